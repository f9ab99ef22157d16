//! Functions of any descriptor, of which some have an rsocket.
//!
//! fcntl(2) and ioctl(2) are variadic in C; on x86-64 and AArch64 under Linux an integer or a pointer travels the same
//! way whether it is variadic or not.

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{FILE, epoll_event, off_t, size_t, ssize_t};

use crate::real::{errno, real, set_errno};
use crate::table::{find, insert, remove, remove_all};

/// Bytes of a file that are sent at once.
const CHUNK: usize = 64 << 10;

/// Closes the rsocket of a descriptor that is closed.
fn leave(fd: c_int) {
    if let Some((rsocket, functions)) = remove(fd) {
        // SAFETY: an rsocket that no descriptor has any more.
        unsafe { (functions.rclose)(rsocket) };
    }
}

/// close(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    leave(fd);
    // SAFETY: the caller's own argument.
    unsafe { real!(close(fd): fn(c_int) -> c_int) }
}

/// fclose(3), which closes its descriptor inside of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    let before = errno();
    // SAFETY: the caller's own argument. One without a descriptor has -1, and an errno that is not the caller's.
    leave(unsafe { libc::fileno(stream) });
    set_errno(before);
    // SAFETY: as above.
    unsafe { real!(fclose(stream): fn(*mut FILE) -> c_int) }
}

/// close_range(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 && first <= last {
        remove_all(first, last);
    }
    // SAFETY: integers. By the kernel's number: an older C library has no such function.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

/// closefrom(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    remove_all(first.max(0) as c_uint, c_uint::MAX);
    // SAFETY: the caller's own argument.
    unsafe { real!(closefrom(first): fn(c_int) -> ()) }
}

/// A new descriptor of the kernel's socket has the rsocket too.
fn share(old: c_int, new: c_int) -> c_int {
    if new >= 0
        && let Some((rsocket, _)) = find(old)
    {
        insert(new, rsocket);
    }
    new
}

/// dup(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(old: c_int) -> c_int {
    // SAFETY: the caller's own argument.
    share(old, unsafe { real!(dup(old): fn(c_int) -> c_int) })
}

/// dup2(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    replace(old, new, || unsafe { real!(dup2(old, new): fn(c_int, c_int) -> c_int) })
}

/// dup3(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    replace(old, new, || unsafe { real!(dup3(old, new, flags): fn(c_int, c_int, c_int) -> c_int) })
}

fn replace(old: c_int, new: c_int, duplicate: impl FnOnce() -> c_int) -> c_int {
    let duplicated = duplicate();
    if duplicated < 0 || old == new {
        return duplicated;
    }
    let before = errno();
    leave(new);
    set_errno(before);
    share(old, duplicated)
}

/// The effect of fcntl(2) on a descriptor that has an rsocket; None: the same as on others.
fn controlled(fd: c_int, command: c_int, argument: *mut c_void, real: impl Fn() -> c_int) -> c_int {
    let Some((rsocket, functions)) = find(fd) else { return real() };
    match command {
        libc::F_GETFL => {
            // SAFETY: integers.
            unsafe { (functions.rfcntl)(rsocket, command, 0) }
        }
        libc::F_SETFL => {
            real();
            // SAFETY: integers.
            unsafe { (functions.rfcntl)(rsocket, command, argument as c_int) }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => share(fd, real()),
        _ => real(),
    }
}

/// fcntl(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    controlled(fd, command, argument, || unsafe {
        real!(fcntl(fd, command, argument): fn(c_int, c_int, *mut c_void) -> c_int)
    })
}

/// The form of fcntl with 64 bits for the offsets of files.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    controlled(fd, command, argument, || unsafe {
        real!(fcntl64(fd, command, argument): fn(c_int, c_int, *mut c_void) -> c_int)
    })
}

/// ioctl(2): FIONBIO is O_NONBLOCK.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's own arguments.
    let done = unsafe { real!(ioctl(fd, request, argument): fn(c_int, c_ulong, *mut c_void) -> c_int) };
    if let (libc::FIONBIO, 0, Some((rsocket, functions))) = (request, done, find(fd)) {
        // SAFETY: the request has an integer, as the kernel has found.
        let flag = if unsafe { *argument.cast::<c_int>() } == 0 { 0 } else { libc::O_NONBLOCK };
        // SAFETY: integers.
        return unsafe { (functions.rfcntl)(rsocket, libc::F_SETFL, libc::O_RDWR | flag) };
    }
    done
}

/// epoll_ctl(2): an rsocket is refused, as a file is.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if find(fd).is_some() {
        set_errno(libc::EPERM);
        return -1;
    }
    // SAFETY: the caller's own arguments.
    unsafe { real!(epoll_ctl(epoll, operation, fd, event): fn(c_int, c_int, c_int, *mut epoll_event) -> c_int) }
}

/// Sends a part of a file over an rsocket.
fn send_file(
    rsocket: c_int,
    functions: &crate::rsockets::Functions,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let mut chunk = vec![0_u8; CHUNK.min(count.max(1))];
    let mut done = 0;
    while done < count {
        let most = chunk.len().min(count - done);
        let place = chunk.as_mut_ptr().cast::<c_void>();
        // SAFETY: room for so many bytes; an offset of the caller's, where there is one.
        let got = unsafe {
            match offset.as_ref() {
                Some(at) => libc::pread(from, place, most, *at),
                None => real!(read(from, place, most): fn(c_int, *mut c_void, size_t) -> ssize_t),
            }
        };
        if got <= 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        // SAFETY: so many bytes, and no address.
        let sent = unsafe { (functions.rsendto)(rsocket, place, got as size_t, 0, std::ptr::null(), 0) };
        let moved = sent.max(0);
        // SAFETY: the caller's.
        match unsafe { offset.as_mut() } {
            Some(at) => *at += moved as off_t,
            // Bytes that were read and not sent are to be read again.
            None if moved < got => {
                // SAFETY: integers.
                unsafe { libc::lseek(from, (moved - got) as off_t, libc::SEEK_CUR) };
            }
            None => {}
        }
        if sent < 0 {
            return if done > 0 { done as ssize_t } else { sent };
        }
        done += moved as usize;
        if moved < got {
            break;
        }
    }
    done as ssize_t
}

/// sendfile(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    match find(to) {
        Some((rsocket, functions)) => send_file(rsocket, functions, from, offset, count),
        // SAFETY: the caller's own arguments.
        None => unsafe { real!(sendfile(to, from, offset, count): fn(c_int, c_int, *mut off_t, size_t) -> ssize_t) },
    }
}

/// The form of sendfile with 64 bits for the offsets of files.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's own arguments; off_t has 64 bits here.
    unsafe { sendfile(to, from, offset, count) }
}
