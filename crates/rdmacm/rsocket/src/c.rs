//! The functions of `<rdma/rsocket.h>`: each as the socket call of its name without the r, but for what rsocket(7)
//! says. They return -1, and say why by errno.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{
    fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
    socklen_t, ssize_t, timeval,
};

use crate::calls::Flags;
use crate::datagram::DatagramSocket;
use crate::fabric::{Errno, Result};
use crate::memory::Vectors;
use crate::options;
use crate::poll::{self, Sets};
use crate::stream::StreamSocket;
use crate::table::{self, Entry, Socket};

fn set_errno(errno: Errno) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno.0 };
}

fn status(what: impl FnOnce() -> Result<()>) -> c_int {
    number(|| what().map(|()| 0))
}

fn number(what: impl FnOnce() -> Result<c_int>) -> c_int {
    what().unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

fn size(what: impl FnOnce() -> Result<usize>) -> ssize_t {
    match what() {
        Ok(size) => ssize_t::try_from(size).unwrap_or(ssize_t::MAX),
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// # Safety
/// `at` is null or readable for `length` bytes.
unsafe fn address(at: *const sockaddr, length: socklen_t) -> Result<SocketAddr> {
    if at.is_null() || (length as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: long enough; a caller's address may lie anywhere.
    let family = c_int::from(unsafe { (&raw const (*at).sa_family).read_unaligned() });
    if (length as usize) < length_of(family).ok_or(Errno(libc::EAFNOSUPPORT))? {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as long as its family says.
    unsafe { vervain_rdmacm::address::read(at) }.map_err(Errno)
}

/// The length of addresses of a family, for the two that are known.
fn length_of(family: c_int) -> Option<usize> {
    match family {
        libc::AF_INET => Some(size_of::<sockaddr_in>()),
        libc::AF_INET6 => Some(size_of::<sockaddr_in6>()),
        _ => None,
    }
}

/// Writes as much of an address as there is room for, and its length.
///
/// # Safety
/// Both are null, or `length` says for how many bytes `to` is writable.
unsafe fn store(address: &SocketAddr, to: *mut sockaddr, length: *mut socklen_t) {
    if to.is_null() || length.is_null() {
        return;
    }
    // SAFETY: a struct of integers.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    vervain_rdmacm::address::write(&mut storage, address);
    let whole = if address.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
    // SAFETY: as the caller promised.
    unsafe {
        let room = length.read_unaligned() as usize;
        std::ptr::copy_nonoverlapping((&raw const storage).cast(), to.cast::<u8>(), room.min(whole));
        length.write_unaligned(whole as socklen_t);
    }
}

/// The flags of a call as they are used here. Others, such as MSG_NOSIGNAL, change nothing: no signal is ever sent.
fn flags(flags: c_int) -> Result<Flags> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let has = |flag| flags & flag != 0;
    Ok(Flags { dont_wait: has(libc::MSG_DONTWAIT), peek: has(libc::MSG_PEEK), wait_all: has(libc::MSG_WAITALL) })
}

/// # Safety
/// `vectors` is readable for `count` elements.
unsafe fn vectors<'a>(vectors: *const iovec, count: size_t) -> Result<&'a [iovec]> {
    /// IOV_MAX.
    const MOST: size_t = 1024;
    match count {
        0 => Ok(&[]),
        _ if vectors.is_null() => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller's.
        1..=MOST => Ok(unsafe { std::slice::from_raw_parts(vectors, count) }),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn one(buffer: *const c_void, length: size_t) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: length }]
}

/// socket(2), of AF_INET or AF_INET6, SOCK_STREAM or SOCK_DGRAM. ENOTSUP for others; ENODEV where there is no device.
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(|| {
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let socket = match (domain, kind, protocol) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                Socket::Stream(Arc::new(StreamSocket::new(&**table::fabric())?))
            }
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                let is_v6 = domain == libc::AF_INET6;
                Socket::Datagram(Arc::new(DatagramSocket::new(table::fabric().clone(), is_v6)?))
            }
            _ => return Err(Errno(libc::ENOTSUP)),
        };
        let descriptor = table::insert(socket, domain);
        if nonblocking {
            table::find(descriptor)?.set_flags(libc::O_RDWR | libc::O_NONBLOCK);
        }
        Ok(descriptor)
    })
}

/// bind(2).
///
/// # Safety
/// The arguments are valid as bind(2) requires.
pub unsafe extern "C" fn rbind(socket: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    status(|| {
        let entry = table::find(socket)?;
        // SAFETY: the caller's.
        let to = unsafe { address(to, length)? };
        match &entry.socket {
            Socket::Stream(socket) => socket.bind(&to),
            Socket::Datagram(socket) => socket.bind(&to),
        }
    })
}

/// listen(2).
pub extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    status(|| table::find(socket)?.stream()?.listen(backlog))
}

/// accept(2).
///
/// # Safety
/// The arguments are valid as accept(2) requires.
pub unsafe extern "C" fn raccept(socket: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
    number(|| {
        let entry = table::find(socket)?;
        let accepted = entry.stream()?.accept()?;
        let peer = accepted.id().peer();
        let accepted = Arc::new(accepted);
        if accepted.calls.with_options(|options| options.keep_alive) {
            crate::service::keep_alive(&accepted)?;
        }
        let descriptor = table::insert(Socket::Stream(accepted), entry.domain);
        if let Some(peer) = peer {
            // SAFETY: the caller's.
            unsafe { store(&peer, from, length) };
        }
        Ok(descriptor)
    })
}

/// connect(2).
///
/// # Safety
/// The arguments are valid as connect(2) requires.
pub unsafe extern "C" fn rconnect(socket: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    status(|| {
        let entry = table::find(socket)?;
        // SAFETY: the caller's.
        let to = unsafe { address(to, length)? };
        match &entry.socket {
            Socket::Stream(socket) => socket.connect(&to),
            Socket::Datagram(socket) => socket.connect(&to),
        }
    })
}

/// shutdown(2), which waits until what was sent has arrived.
pub extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    status(|| {
        let entry = table::find(socket)?;
        let (reading, writing) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno(libc::EINVAL)),
        };
        match &entry.socket {
            Socket::Stream(socket) => socket.shut_down(reading, writing),
            Socket::Datagram(socket) => {
                socket.shut_down(reading, writing);
                Ok(())
            }
        }
    })
}

/// close(2).
pub extern "C" fn rclose(socket: c_int) -> c_int {
    status(|| {
        match &table::remove(socket)?.socket {
            Socket::Stream(socket) => socket.close(),
            Socket::Datagram(socket) => socket.close(),
        }
        Ok(())
    })
}

/// One for all that receive: bytes that were written, bytes that a datagram has, and its sender.
fn receive(entry: &Entry, into: &mut Vectors<'_>, flags: Flags) -> Result<(usize, usize, Option<SocketAddr>)> {
    match &entry.socket {
        Socket::Stream(socket) => {
            let length = socket.receive(into, flags)?;
            Ok((length, length, None))
        }
        Socket::Datagram(socket) => {
            let (from, length, whole) = socket.receive(into, flags)?;
            Ok((length, whole, from))
        }
    }
}

/// recv(2).
///
/// # Safety
/// The arguments are valid as recv(2) requires.
pub unsafe extern "C" fn rrecv(socket: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the caller's, and no place for an address.
    unsafe { rrecvfrom(socket, buffer, length, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// recvfrom(2).
///
/// # Safety
/// The arguments are valid as recvfrom(2) requires.
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buffer: *mut c_void,
    length: size_t,
    how: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    size(|| {
        let entry = table::find(socket)?;
        let vector = one(buffer, length);
        // SAFETY: the caller's.
        let (length, whole, sender) = receive(&entry, &mut unsafe { Vectors::new(&vector) }, flags(how)?)?;
        if let Some(sender) = sender.or_else(|| peer_of(&entry)) {
            // SAFETY: the caller's.
            unsafe { store(&sender, from, from_length) };
        }
        Ok(if how & libc::MSG_TRUNC != 0 { whole } else { length })
    })
}

fn peer_of(entry: &Entry) -> Option<SocketAddr> {
    match &entry.socket {
        Socket::Stream(socket) => socket.id().peer(),
        Socket::Datagram(socket) => socket.peer(),
    }
}

/// recvmsg(2). There is no control data.
///
/// # Safety
/// The arguments are valid as recvmsg(2) requires.
pub unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, how: c_int) -> ssize_t {
    size(|| {
        let entry = table::find(socket)?;
        // SAFETY: the caller's.
        let message = unsafe { message.as_mut().ok_or(Errno(libc::EFAULT))? };
        // SAFETY: the caller's.
        let into = unsafe { vectors(message.msg_iov, message.msg_iovlen)? };
        // SAFETY: the caller's.
        let (length, whole, sender) = receive(&entry, &mut unsafe { Vectors::new(into) }, flags(how)?)?;
        (message.msg_controllen, message.msg_flags) = (0, if whole > length { libc::MSG_TRUNC } else { 0 });
        match sender {
            // SAFETY: the caller's.
            Some(sender) => unsafe { store(&sender, message.msg_name.cast(), &raw mut message.msg_namelen) },
            None => message.msg_namelen = 0,
        }
        Ok(if how & libc::MSG_TRUNC != 0 { whole } else { length })
    })
}

/// read(2).
///
/// # Safety
/// The arguments are valid as read(2) requires.
pub unsafe extern "C" fn rread(socket: c_int, buffer: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { rrecv(socket, buffer, length, 0) }
}

/// readv(2).
///
/// # Safety
/// The arguments are valid as readv(2) requires.
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    size(|| {
        let entry = table::find(socket)?;
        // SAFETY: the caller's.
        let into = unsafe { vectors(iov, usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?)? };
        // SAFETY: the caller's.
        receive(&entry, &mut unsafe { Vectors::new(into) }, Flags::default()).map(|(length, ..)| length)
    })
}

fn send(entry: &Entry, data: &mut Vectors<'_>, to: Option<SocketAddr>, how: c_int) -> Result<usize> {
    let flags = flags(how)?;
    match &entry.socket {
        Socket::Stream(_) if to.is_some() => Err(Errno(libc::EISCONN)),
        Socket::Stream(socket) => socket.send(data, flags),
        Socket::Datagram(socket) => socket.send(data, to.as_ref(), flags),
    }
}

/// send(2). No signal is sent if the peer has closed its end.
///
/// # Safety
/// The arguments are valid as send(2) requires.
pub unsafe extern "C" fn rsend(socket: c_int, buffer: *const c_void, length: size_t, how: c_int) -> ssize_t {
    // SAFETY: the caller's, and no address.
    unsafe { rsendto(socket, buffer, length, how, std::ptr::null(), 0) }
}

/// sendto(2).
///
/// # Safety
/// The arguments are valid as sendto(2) requires.
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buffer: *const c_void,
    length: size_t,
    how: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    size(|| {
        let entry = table::find(socket)?;
        let vector = one(buffer, length);
        // SAFETY: the caller's.
        let to = if to.is_null() { None } else { Some(unsafe { address(to, to_length)? }) };
        // SAFETY: the caller's.
        send(&entry, &mut unsafe { Vectors::new(&vector) }, to, how)
    })
}

/// sendmsg(2). ENOTSUP with control data.
///
/// # Safety
/// The arguments are valid as sendmsg(2) requires.
pub unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, how: c_int) -> ssize_t {
    size(|| {
        let entry = table::find(socket)?;
        // SAFETY: the caller's.
        let message = unsafe { message.as_ref().ok_or(Errno(libc::EFAULT))? };
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno(libc::ENOTSUP));
        }
        let name = message.msg_name.cast::<sockaddr>();
        // SAFETY: the caller's.
        let to = if name.is_null() { None } else { Some(unsafe { address(name, message.msg_namelen)? }) };
        // SAFETY: the caller's.
        let data = unsafe { vectors(message.msg_iov, message.msg_iovlen)? };
        // SAFETY: the caller's.
        send(&entry, &mut unsafe { Vectors::new(data) }, to, how)
    })
}

/// write(2).
///
/// # Safety
/// The arguments are valid as write(2) requires.
pub unsafe extern "C" fn rwrite(socket: c_int, buffer: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { rsend(socket, buffer, length, 0) }
}

/// writev(2).
///
/// # Safety
/// The arguments are valid as writev(2) requires.
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    size(|| {
        let entry = table::find(socket)?;
        // SAFETY: the caller's.
        let data = unsafe { vectors(iov, usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?)? };
        // SAFETY: the caller's.
        send(&entry, &mut unsafe { Vectors::new(data) }, None, 0)
    })
}

/// poll(2), of sockets of both kinds and of other descriptors.
///
/// # Safety
/// The arguments are valid as poll(2) requires.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    number(|| {
        let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
        let fds = match count {
            0 => &mut [],
            _ if fds.is_null() => return Err(Errno(libc::EFAULT)),
            // SAFETY: the caller's.
            _ => unsafe { std::slice::from_raw_parts_mut(fds, count) },
        };
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        poll::poll(fds, timeout).map(|ready| ready as c_int)
    })
}

/// select(2), as [`rpoll`]. The time that is left is not written back.
///
/// # Safety
/// The arguments are valid as select(2) requires.
pub unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    number(|| {
        // SAFETY: the caller's.
        let timeout = match unsafe { timeout.as_ref() } {
            None => None,
            Some(timeval { tv_sec, tv_usec }) => {
                let seconds = u64::try_from(*tv_sec).map_err(|_| Errno(libc::EINVAL))?;
                let micros = u64::try_from(*tv_usec).map_err(|_| Errno(libc::EINVAL))?;
                Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
            }
        };
        // SAFETY: the caller's.
        let mut sets = unsafe { Sets { read: read.as_mut(), write: write.as_mut(), except: except.as_mut() } };
        poll::select(count, &mut sets, timeout).map(|bits| bits as c_int)
    })
}

/// getpeername(2).
///
/// # Safety
/// The arguments are valid as getpeername(2) requires.
pub unsafe extern "C" fn rgetpeername(socket: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    status(|| {
        let peer = peer_of(&*table::find(socket)?).ok_or(Errno(libc::ENOTCONN))?;
        // SAFETY: the caller's.
        unsafe { store(&peer, to, length) };
        Ok(())
    })
}

/// getsockname(2).
///
/// # Safety
/// The arguments are valid as getsockname(2) requires.
pub unsafe extern "C" fn rgetsockname(socket: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    status(|| {
        let local = table::find(socket)?.local();
        // SAFETY: the caller's.
        unsafe { store(&local, to, length) };
        Ok(())
    })
}

/// setsockopt(2).
///
/// # Safety
/// The arguments are valid as setsockopt(2) requires.
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    status(|| {
        let entry = table::find(socket)?;
        let value = match length {
            0 => &[],
            _ if value.is_null() => return Err(Errno(libc::EFAULT)),
            // SAFETY: the caller's.
            _ => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length as usize) },
        };
        options::set(&entry, level, name, value)
    })
}

/// getsockopt(2).
///
/// # Safety
/// The arguments are valid as getsockopt(2) requires.
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    status(|| {
        let entry = table::find(socket)?;
        if value.is_null() || length.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the caller's.
        let room = unsafe { length.read_unaligned() } as usize;
        let found = options::get(&entry, level, name, room)?;
        let count = found.len().min(room);
        // SAFETY: the caller's.
        unsafe {
            std::ptr::copy_nonoverlapping(found.as_ptr(), value.cast::<u8>(), count);
            length.write_unaligned(count as socklen_t);
        }
        Ok(())
    })
}

/// fcntl(2): F_GETFL and F_SETFL, of which O_NONBLOCK counts; F_GETFD and F_SETFD. ENOTSUP for others. In C it is
/// variadic; an integer argument travels the same way (see the preload's opening.rs).
pub extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_int) -> c_int {
    number(|| {
        let entry = table::find(socket)?;
        match command {
            libc::F_GETFL => Ok(entry.flags.load(Ordering::Relaxed)),
            libc::F_SETFL => {
                entry.set_flags(argument);
                Ok(0)
            }
            libc::F_GETFD | libc::F_SETFD => {
                // SAFETY: integers.
                let answer = unsafe { libc::syscall(libc::SYS_fcntl, socket, command, argument) };
                if answer < 0 { Err(Errno::last()) } else { Ok(answer as c_int) }
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    })
}

/// Registers a buffer, for Writes of the peer with PROT_WRITE, which then knows it by `offset`, or by its address with
/// -1; see rsocket(7).
///
/// # Safety
/// The buffer stays until it is unmapped, or the socket closed.
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    length: size_t,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = || {
        let entry = table::find(socket)?;
        let link = entry.stream()?.link().ok_or(Errno(libc::EINVAL))?;
        let offset = if offset == -1 { buffer as off_t } else { offset };
        if protection & !libc::PROT_WRITE != 0 || offset < 0 {
            return Err(Errno(libc::EINVAL));
        }
        let told = (protection & libc::PROT_WRITE != 0).then_some(offset as u64);
        // SAFETY: the caller's.
        unsafe { link.map(buffer.cast(), length, told)? };
        Ok(offset)
    };
    mapped().unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// Takes that back. EINVAL: no such buffer.
pub extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, length: size_t) -> c_int {
    status(|| {
        let entry = table::find(socket)?;
        entry.stream()?.link().ok_or(Errno(libc::EINVAL))?.unmap(buffer.cast(), length)
    })
}

/// Writes into the peer's buffer that has `offset`, up to where none has: how many bytes.
///
/// # Safety
/// As of write(2).
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buffer: *const c_void,
    length: size_t,
    offset: off_t,
    how: c_int,
) -> size_t {
    let written = size(|| {
        let entry = table::find(socket)?;
        let offset = u64::try_from(offset).map_err(|_| Errno(libc::EINVAL))?;
        let vector = one(buffer, length);
        // SAFETY: the caller's.
        entry.stream()?.io_write(&mut unsafe { Vectors::new(&vector) }, offset, flags(how)?)
    });
    written as size_t
}
