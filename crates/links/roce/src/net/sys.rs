//! System calls on sockets that take addresses and lists of messages.
//!
//! They bypass the C library's wrappers where these are cancellation points ([`vervain_hca::host::cancel`]).

use super::address::RawAddress;
use libc::{mmsghdr, msghdr};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use vervain_hca::host::cancel::Uncancelled;

fn result(value: isize) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::Error::last_os_error())
}

/// Calls bind(2).
pub fn bind(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (raw, length) = RawAddress::new(address);
    // SAFETY: `raw` is an address of `length` bytes.
    result(unsafe { libc::bind(fd.as_raw_fd(), (&raw const raw).cast(), length) } as isize).map(drop)
}

/// Calls connect(2).
pub fn connect(fd: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let (raw, length) = RawAddress::new(address);
    // SAFETY: `raw` is an address of `length` bytes.
    result(unsafe { libc::syscall(libc::SYS_connect, fd.as_raw_fd(), &raw const raw, length) } as isize).map(drop)
}

/// Sends one message: by sendto(2) if it is in one piece and has no control messages, which takes 130 ns less than
/// sendmsg(2).
///
/// # Safety
/// All memory to which `message` points is valid.
pub unsafe fn send(fd: BorrowedFd<'_>, message: &msghdr) -> io::Result<usize> {
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    // SAFETY: the caller vouches for the message.
    result(unsafe {
        if message.msg_iovlen == 1 && message.msg_controllen == 0 {
            let piece = *message.msg_iov;
            let (name, length) = (message.msg_name, message.msg_namelen);
            libc::syscall(libc::SYS_sendto, fd, piece.iov_base, piece.iov_len, flags, name, length)
        } else {
            libc::syscall(libc::SYS_sendmsg, fd, std::ptr::from_ref(message), flags)
        }
    } as isize)
}

/// Calls sendmmsg(2). Returns the number of messages sent; an error is that of the first message.
///
/// # Safety
/// All memory to which the messages point is valid.
pub unsafe fn send_all(fd: BorrowedFd<'_>, messages: &mut [mmsghdr]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller vouches for the messages.
    result(unsafe {
        libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), messages.as_mut_ptr(), messages.len() as u32, flags)
    } as isize)
}

/// Receives waiting messages, and returns their number. One message is received by recvmsg(2), which is quicker than
/// recvmmsg(2).
///
/// # Safety
/// All memory to which the messages point is valid for writes.
pub unsafe fn receive(fd: BorrowedFd<'_>, messages: &mut [mmsghdr]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the caller vouches for the messages.
    unsafe {
        if let [message] = messages {
            let length = libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message.msg_hdr, flags);
            message.msg_len = result(length as isize)? as u32;
            return Ok(1);
        }
        let (list, count, none) =
            (messages.as_mut_ptr(), messages.len() as u32, std::ptr::null_mut::<libc::timespec>());
        result(libc::syscall(libc::SYS_recvmmsg, fd.as_raw_fd(), list, count, flags, none) as isize)
    }
}

/// Waits at most `milliseconds` until `fd` takes packets again. Returns true if it does.
pub fn wait_for_room(fd: BorrowedFd<'_>, milliseconds: i64) -> bool {
    poll(fd.as_raw_fd(), libc::POLLOUT, milliseconds)
}

/// Makes the descriptor `fd` stand for nothing that leads to the network, and closes its socket. [`refill`] gives it
/// another.
pub fn vacate(fd: BorrowedFd<'_>) -> io::Result<()> {
    let _whole = Uncancelled::begin();
    let nothing = std::fs::File::open("/dev/null")?;
    refill(fd, nothing.into())
}

/// Makes the descriptor `fd` stand for the socket of `with`.
pub fn refill(fd: BorrowedFd<'_>, with: OwnedFd) -> io::Result<()> {
    let _whole = Uncancelled::begin();
    // SAFETY: both are open. The owner of `fd` goes on to own it, and nothing relies on the file behind it.
    result(unsafe { libc::dup3(with.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) } as isize).map(drop)
}

/// Returns true if `fd` is readable.
pub fn is_readable(fd: RawFd) -> bool {
    is_readable_within(fd, 0)
}

/// Waits at most `milliseconds` until `fd` is readable. Returns true if it is.
pub fn is_readable_within(fd: RawFd, milliseconds: i64) -> bool {
    poll(fd, libc::POLLIN, milliseconds)
}

fn poll(fd: RawFd, events: i16, milliseconds: i64) -> bool {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let time = libc::timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: one entry and a time on this stack; no signal mask.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut entry, 1, &raw const time, no_mask, 0) > 0 }
}
