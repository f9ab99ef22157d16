//! Sockets of NETLINK_RDMA, on which `rdma` of iproute2, rdma-core's tests and other programs ask the kernel for RDMA
//! devices.
//!
//! Under a tree such a socket becomes one of NETLINK_USERSOCK, by which processes may talk to each other without
//! privilege and which the kernel itself never reads. So it is a netlink socket in every respect: bind(2),
//! getsockname(2), poll(2), recvmsg(2), dup(2) and close(2) are the kernel's. Only what the program sends to the kernel
//! is taken here, and the answers (`vervain-nldev`) are sent to it before the call returns.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{iovec, msghdr, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use vervain_counters::{OBJECTS, Word};
use vervain_nldev::{Devices, NETLINK_RDMA, answer};

use crate::counters;
use crate::real::{errno, real, reals, set_errno};
use crate::view;

reals! { socket send sendto sendmsg }

/// True if the program has opened such a socket: all that sending costs one that has not.
static OPENED: AtomicBool = AtomicBool::new(false);

/// Longest request that is looked at.
const LONGEST: usize = 16384;

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let real = real!(socket: fn(c_int, c_int, c_int) -> c_int);
    if domain != libc::AF_NETLINK || protocol != NETLINK_RDMA || !view::is_shown() {
        // SAFETY: the caller's own arguments.
        return unsafe { real(domain, kind, protocol) };
    }
    OPENED.store(true, Ordering::Relaxed);
    // SAFETY: integers.
    unsafe { real(domain, kind, libc::NETLINK_USERSOCK) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn send(fd: c_int, data: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    let real = real!(send: fn(c_int, *const c_void, size_t, c_int) -> ssize_t);
    if OPENED.load(Ordering::Relaxed) && is_ours(fd) {
        // SAFETY: the caller's buffer, readable for the whole call.
        let request = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
        return taken(fd, request);
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(fd, data, length, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    data: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    let real = real!(sendto: fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t);
    // SAFETY: the caller's address is as long as it says.
    if OPENED.load(Ordering::Relaxed) && unsafe { is_kernel(to.cast(), to_length) } && is_ours(fd) {
        // SAFETY: the caller's buffer, readable for the whole call.
        let request = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) };
        return taken(fd, request);
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(fd, data, length, flags, to, to_length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let real = real!(sendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t);
    if OPENED.load(Ordering::Relaxed) && !message.is_null() {
        // SAFETY: the caller's message, which is as sendmsg(2) has it.
        let m = unsafe { &*message };
        // SAFETY: as above.
        if unsafe { is_kernel(m.msg_name.cast(), m.msg_namelen) } && is_ours(fd) {
            let mut request = Vec::new();
            let parts: *const iovec = m.msg_iov;
            for i in 0..m.msg_iovlen {
                // SAFETY: msg_iov has msg_iovlen parts, each readable for as long as it says.
                let part = unsafe { &*parts.add(i) };
                // SAFETY: as above.
                request.extend(unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) });
            }
            return taken(fd, &request);
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { real(fd, message, flags) }
}

/// Returns true if the address is the kernel's; so is no address.
///
/// # Safety
/// `to` is null or readable for `length` bytes.
unsafe fn is_kernel(to: *const sockaddr_nl, length: socklen_t) -> bool {
    if to.is_null() {
        return true;
    }
    if (length as usize) < size_of::<sockaddr_nl>() {
        return false;
    }
    // SAFETY: long enough; a caller's address may lie anywhere.
    let to = unsafe { to.read_unaligned() };
    c_int::from(to.nl_family) == libc::AF_NETLINK && to.nl_pid == 0 && to.nl_groups == 0
}

/// Returns true if the descriptor is a socket that was opened for NETLINK_RDMA, or one that was opened for
/// NETLINK_USERSOCK, on which the kernel takes nothing: there is no need to tell them apart.
fn is_ours(fd: c_int) -> bool {
    let before = errno();
    let is = |option, value: c_int| {
        let (mut found, mut length): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
        // SAFETY: the option is an int, and there is room for it.
        let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut found).cast(), &raw mut length) };
        got == 0 && found == value
    };
    let ours = is(libc::SO_DOMAIN, libc::AF_NETLINK) && is(libc::SO_PROTOCOL, libc::NETLINK_USERSOCK);
    set_errno(before);
    ours
}

/// Answers a request, and says what send(2) says.
fn taken(fd: c_int, request: &[u8]) -> ssize_t {
    let before = errno();
    if request.len() > LONGEST {
        set_errno(libc::EMSGSIZE);
        return -1;
    }
    let answered = port_id(fd).and_then(|to| give(to, &answer(request, to, &devices())));
    match answered {
        Some(()) => {
            set_errno(before);
            request.len() as ssize_t
        }
        // errno is that of the call that failed.
        None => -1,
    }
}

/// The facts about the devices: the view, read by this library's own hooks as the program would, and the objects.
fn devices() -> Devices {
    let mut devices = Devices::read(Path::new("/sys"));
    let ports: usize = devices.0.iter().map(|device| device.ports.len()).sum();
    let mut first = 0;
    for device in &mut devices.0 {
        if let Some(words) = counters::objects(first, ports) {
            let count = |word: &Option<Word>| word.map_or(0, |word| words[word as usize]);
            device.objects = OBJECTS.iter().map(|(name, word)| (*name, count(word))).collect();
        }
        first += device.ports.len();
    }
    devices
}

/// The number of the program's socket, which gets one now if it has none, as by its first send(2).
fn port_id(fd: c_int) -> Option<u32> {
    let address = |fd| {
        let mut address = MaybeUninit::<sockaddr_nl>::zeroed();
        let mut length = size_of::<sockaddr_nl>() as socklen_t;
        // SAFETY: there is room for a netlink address.
        let got = unsafe { libc::getsockname(fd, address.as_mut_ptr().cast(), &raw mut length) };
        // SAFETY: integers, which were zeroed.
        (got == 0).then(|| unsafe { address.assume_init() })
    };
    let mut own = address(fd)?;
    if own.nl_pid == 0 {
        // SAFETY: a netlink address, with no number for the kernel to choose one.
        if unsafe { libc::bind(fd, (&raw const own).cast(), size_of::<sockaddr_nl>() as socklen_t) } != 0 {
            return None;
        }
        own = address(fd)?;
    }
    Some(own.nl_pid)
}

/// Puts the answers into the queue of the socket with number `to`, or None with errno.
fn give(to: u32, datagrams: &[Vec<u8>]) -> Option<()> {
    // SAFETY: integers. The hook lets this protocol through.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_USERSOCK) };
    if fd < 0 {
        return None;
    }
    // SAFETY: just opened, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: integers.
    let mut address: sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
    (address.nl_family, address.nl_pid) = (libc::AF_NETLINK as _, to);
    for datagram in datagrams {
        // A queue that the program does not read must not hold it up.
        // SAFETY: the datagram and the address live as long as the call, which the hook passes on: it is not to the
        // kernel.
        let sent = unsafe {
            libc::sendto(
                fd.as_raw_fd(),
                datagram.as_ptr().cast(),
                datagram.len(),
                libc::MSG_DONTWAIT,
                (&raw const address).cast(),
                size_of::<sockaddr_nl>() as socklen_t,
            )
        };
        if sent < 0 {
            if errno() == libc::EAGAIN {
                set_errno(libc::ENOBUFS);
            }
            return None;
        }
    }
    Some(())
}
