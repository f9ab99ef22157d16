//! Unix sockets whose messages carry their sender's user, vouched for by the kernel; and descriptors that forked
//! children close.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred,
};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use vervain_hca::process::{forget_private_fd, keep_from_children};

/// A descriptor that a forked child closes at once: others take its end for the process's.
pub struct Private(OwnedFd);

impl Private {
    /// Keeps `fd` from children.
    pub fn keep(fd: OwnedFd) -> Private {
        keep_from_children(fd.as_raw_fd());
        Private(fd)
    }
}

impl AsFd for Private {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        forget_private_fd(self.0.as_raw_fd());
    }
}

/// A socket for datagrams, without a name.
pub fn datagrams() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// A socket for datagrams to `name`, with the users of their senders. EADDRINUSE: another socket has the name.
pub fn named(name: &str) -> Result<Private, Errno> {
    let socket = Private::keep(datagrams()?);
    rustix::net::sockopt::set_socket_passcred(&socket, true)?;
    rustix::net::bind(&socket, &abstract_name(name)?)?;
    Ok(socket)
}

/// A name in the abstract namespace.
pub fn abstract_name(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Sends a message, to a name or along a connection, without waiting.
pub fn send(
    socket: BorrowedFd<'_>,
    to: Option<&str>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2), ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The kernel fills in the real user id, but sockets belong to the effective one. It checks an id that is given.
    let uid = rustix::process::geteuid();
    if uid != rustix::process::getuid() {
        let (pid, gid) = (rustix::process::getpid(), rustix::process::getegid());
        control.push(SendAncillaryMessage::ScmCredentials(UCred { pid, uid, gid }));
    }
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match to {
        Some(name) => rustix::net::sendmsg_addr(socket, &abstract_name(name)?, parts, &mut control, flags),
        None => rustix::net::sendmsg(socket, parts, &mut control, flags),
    }
    .map(drop)
}

/// A message of a unix socket.
pub struct Received {
    /// Its bytes.
    pub length: usize,
    /// The sender's user; None: the socket does not ask for it.
    pub uid: Option<u32>,
    /// The sender's process; 0 if this pid namespace does not show it.
    pub pid: i32,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// Most descriptors in one message.
const MOST_FDS: usize = 2;

/// Room for control messages, aligned as they must be.
#[repr(C, align(8))]
struct Control([u8; 128]);

/// Takes the next message (or, with MSG_PEEK, a copy of it) without waiting. A process id in the credentials may be 0,
/// for a process in another pid namespace, which rustix's type cannot hold.
pub fn receive(fd: BorrowedFd<'_>, bytes: &mut [u8], flags: i32) -> io::Result<Received> {
    const {
        // SAFETY: computes a size only.
        let rights = unsafe { libc::CMSG_SPACE((MOST_FDS * size_of::<RawFd>()) as u32) };
        // SAFETY: as above.
        let credentials = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) };
        assert!(rights as usize + credentials as usize <= size_of::<Control>());
    }
    let mut control = Control([0; 128]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a message header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = control.0.len() as _;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names `bytes` and `control`, which live here, with their lengths.
    let length = unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut header, flags) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut received = Received { length: length as usize, uid: None, pid: 0, fds: Vec::new() };
    // SAFETY: the kernel has filled in the header; the macro stays inside its control bytes.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: not null, so a whole header inside `control`.
        let head = unsafe { message.read() };
        // SAFETY: as above; the data follows the header.
        let data = unsafe { libc::CMSG_DATA(message) };
        // SAFETY: computes a size only.
        let room = (head.cmsg_len as usize).saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        match (head.cmsg_level, head.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                for i in 0..room / size_of::<RawFd>() {
                    // SAFETY: the kernel has put `room` bytes of descriptors here, each new and ours from now on.
                    let fd = unsafe { OwnedFd::from_raw_fd(data.cast::<RawFd>().add(i).read_unaligned()) };
                    received.fds.push(fd);
                }
            }
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if room >= size_of::<libc::ucred>() => {
                // SAFETY: the kernel has put a whole ucred here.
                let sender = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                (received.uid, received.pid) = (Some(sender.uid), sender.pid);
            }
            _ => {}
        }
        // SAFETY: `message` is inside the control bytes of `header`; the macro stays there or returns null.
        message = unsafe { libc::CMSG_NXTHDR(&raw const header, message) };
    }
    Ok(received)
}
