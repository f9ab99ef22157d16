//! Requests of this module to the kernel that rustix does not support.

use rustix::fd::{AsRawFd, BorrowedFd};

/// Packets that the kernel has dropped because `socket` had no room (SO_MEMINFO).
pub fn drops(socket: BorrowedFd<'_>) -> u32 {
    /// SK_MEMINFO_DROPS of linux/sock_diag.h.
    const DROPS: usize = 8;
    let mut info = [0u32; DROPS + 1];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, into `info`, and the length into `length`.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    info[DROPS]
}
