//! The functions of sockets.

use std::env;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libc::{iovec, msghdr, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t};

use crate::real::{errno, real, set_errno};
use crate::rsockets::{Functions, functions};
use crate::table::{find, insert, is_here, remove};

/// The level of RDMA's options, and those that variables set (rdma-core's librspreload has the same).
const SOL_RDMA: c_int = 0x10000;
const VARIABLES: [(&str, c_int); 3] = [("RS_SQ_SIZE", 0), ("RS_RQ_SIZE", 1), ("RS_INLINE", 2)];

/// socket(2). The sockets inside of an rsocket do not come from the C library: Vervain's libraries make them by system
/// calls.
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's own arguments.
    let fd = unsafe { real!(socket(domain, kind, protocol): fn(c_int, c_int, c_int) -> c_int) };
    let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_one = matches!(
        (domain, plain, protocol),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP)
            | (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP)
    );
    if fd < 0 || !is_one || !is_here() {
        return fd;
    }
    let before = errno();
    if let Some(functions) = functions() {
        // SAFETY: integers.
        let rsocket = unsafe { (functions.rsocket)(domain, plain, protocol) };
        if rsocket >= 0 {
            adopt(fd, rsocket, functions);
            prepare(rsocket, kind & libc::SOCK_NONBLOCK != 0, functions);
        }
    }
    set_errno(before);
    fd
}

/// Gives a descriptor its rsocket.
fn adopt(fd: c_int, rsocket: c_int, functions: &Functions) {
    if !insert(fd, rsocket) {
        // SAFETY: an rsocket of this library's.
        unsafe { (functions.rclose)(rsocket) };
    }
}

fn prepare(rsocket: c_int, nonblocking: bool, functions: &Functions) {
    for (name, option) in VARIABLES {
        if let Some(value) = env::var(name).ok().and_then(|text| text.parse::<c_int>().ok()) {
            // SAFETY: an integer.
            unsafe { (functions.rsetsockopt)(rsocket, SOL_RDMA, option, (&raw const value).cast(), 4) };
        }
    }
    if nonblocking {
        // SAFETY: integers.
        unsafe { (functions.rfcntl)(rsocket, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
    }
}

/// Gives up the rsocket of a descriptor: the kernel's socket goes on, at the same address.
fn give_up(fd: c_int) {
    let Some((rsocket, functions)) = remove(fd) else { return };
    let mut name = MaybeUninit::<sockaddr_storage>::zeroed();
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: room for any address.
    let named = unsafe { (functions.rgetsockname)(rsocket, name.as_mut_ptr().cast(), &raw mut length) } == 0;
    // SAFETY: an rsocket that nobody else has.
    unsafe { (functions.rclose)(rsocket) };
    // SAFETY: zeros, or an address.
    let name = unsafe { name.assume_init() };
    // The port is at the same place in both families.
    // SAFETY: within the storage.
    let port = unsafe { (*(&raw const name).cast::<libc::sockaddr_in>()).sin_port };
    if named && port != 0 {
        // SAFETY: that address. If another has it meanwhile, the next call says so.
        unsafe {
            let place: *const sockaddr = (&raw const name).cast();
            real!(bind(fd, place, length): fn(c_int, *const sockaddr, socklen_t) -> c_int)
        };
    }
}

/// bind(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    if let Some((rsocket, functions)) = find(fd) {
        // SAFETY: the caller's own arguments.
        if unsafe { (functions.rbind)(rsocket, to, length) } == 0 {
            return 0;
        }
        give_up(fd);
    }
    // SAFETY: as above.
    unsafe { real!(bind(fd, to, length): fn(c_int, *const sockaddr, socklen_t) -> c_int) }
}

/// listen(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some((rsocket, functions)) = find(fd) {
        // SAFETY: integers.
        if unsafe { (functions.rlisten)(rsocket, backlog) } == 0 {
            return 0;
        }
        give_up(fd);
    }
    // SAFETY: as above.
    unsafe { real!(listen(fd, backlog): fn(c_int, c_int) -> c_int) }
}

/// connect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    if let Some((rsocket, functions)) = find(fd) {
        // SAFETY: the caller's own arguments.
        let connected = unsafe { (functions.rconnect)(rsocket, to, length) };
        if connected == 0 || matches!(errno(), libc::EINPROGRESS | libc::EALREADY | libc::EISCONN | libc::EINTR) {
            return connected;
        }
        give_up(fd);
    }
    // SAFETY: as above.
    unsafe { real!(connect(fd, to, length): fn(c_int, *const sockaddr, socklen_t) -> c_int) }
}

/// accept(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { accept4(fd, from, length, 0) }
}

/// accept4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    let Some((rsocket, functions)) = find(fd) else {
        // SAFETY: the caller's own arguments.
        return unsafe {
            real!(accept4(fd, from, length, flags): fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int)
        };
    };
    // SAFETY: as above.
    let accepted = unsafe { (functions.raccept)(rsocket, from, length) };
    if accepted < 0 {
        return accepted;
    }
    let (mut domain, mut room) = (libc::AF_INET, 4);
    // SAFETY: room for an integer.
    unsafe {
        let place = (&raw mut domain).cast();
        (functions.rgetsockopt)(accepted, libc::SOL_SOCKET, libc::SO_DOMAIN, place, &raw mut room);
    }
    // It only keeps the descriptor.
    let kind = libc::SOCK_STREAM | flags & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: integers.
    let own = unsafe { real!(socket(domain, kind, 0): fn(c_int, c_int, c_int) -> c_int) };
    if own < 0 {
        let why = errno();
        // SAFETY: nobody else has it.
        unsafe { (functions.rclose)(accepted) };
        set_errno(why);
        return own;
    }
    adopt(own, accepted, functions);
    if flags & libc::SOCK_NONBLOCK != 0 {
        // SAFETY: integers.
        unsafe { (functions.rfcntl)(accepted, libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
    }
    own
}

/// Functions that do to an rsocket what they do to a socket.
macro_rules! forwarded {
    ($(fn $name:ident($($argument:ident: $ty:ty),*) -> $ret:ty => $function:ident($($passed:expr),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int $(, $argument: $ty)*) -> $ret {
            // SAFETY: the caller's own arguments.
            unsafe {
                match find(fd) {
                    Some((rsocket, functions)) => (functions.$function)(rsocket $(, $passed)*),
                    None => real!($name(fd $(, $argument)*): fn(c_int $(, $ty)*) -> $ret),
                }
            }
        }
    )*};
}

/// No address.
const NONE: *mut sockaddr = std::ptr::null_mut();

/// Nor its length.
const NOTHING: *mut socklen_t = std::ptr::null_mut();

forwarded! {
    fn shutdown(how: c_int) -> c_int => rshutdown(how);
    fn getpeername(to: *mut sockaddr, length: *mut socklen_t) -> c_int => rgetpeername(to, length);
    fn getsockname(to: *mut sockaddr, length: *mut socklen_t) -> c_int => rgetsockname(to, length);
    fn getsockopt(level: c_int, option: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int
        => rgetsockopt(level, option, value, length);
    fn recv(to: *mut c_void, length: size_t, flags: c_int) -> ssize_t => rrecvfrom(to, length, flags, NONE, NOTHING);
    fn recvfrom(to: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, room: *mut socklen_t) -> ssize_t
        => rrecvfrom(to, length, flags, from, room);
    fn recvmsg(message: *mut msghdr, flags: c_int) -> ssize_t => rrecvmsg(message, flags);
    fn read(to: *mut c_void, length: size_t) -> ssize_t => rrecvfrom(to, length, 0, NONE, NOTHING);
    fn readv(to: *const iovec, count: c_int) -> ssize_t => rreadv(to, count);
    fn send(from: *const c_void, length: size_t, flags: c_int) -> ssize_t => rsendto(from, length, flags, NONE, 0);
    fn sendto(from: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, room: socklen_t) -> ssize_t
        => rsendto(from, length, flags, to, room);
    fn sendmsg(message: *const msghdr, flags: c_int) -> ssize_t => rsendmsg(message, flags);
    fn write(from: *const c_void, length: size_t) -> ssize_t => rsendto(from, length, 0, NONE, 0);
    fn writev(from: *const iovec, count: c_int) -> ssize_t => rwritev(from, count);

    // The forms of these with _FORTIFY_SOURCE.
    fn __read_chk(to: *mut c_void, length: size_t, size: size_t) -> ssize_t
        => rrecvfrom(to, length.min(size), 0, NONE, NOTHING);
    fn __recv_chk(to: *mut c_void, length: size_t, size: size_t, flags: c_int) -> ssize_t
        => rrecvfrom(to, length.min(size), flags, NONE, NOTHING);
    fn __recvfrom_chk(
        to: *mut c_void,
        length: size_t,
        size: size_t,
        flags: c_int,
        from: *mut sockaddr,
        room: *mut socklen_t
    ) -> ssize_t => rrecvfrom(to, length.min(size), flags, from, room);
}

/// setsockopt(2). The kernel's socket gets the option too, should it have to go on.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller's own arguments.
    let set = unsafe {
        real!(setsockopt(fd, level, option, value, length):
            fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int)
    };
    match find(fd) {
        // SAFETY: as above.
        Some((rsocket, functions)) => unsafe { (functions.rsetsockopt)(rsocket, level, option, value, length) },
        None => set,
    }
}
