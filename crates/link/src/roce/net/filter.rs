//! The socket filter (classic BPF): only packets whose IP header is the one that the sender's ICRC was computed over. A
//! fragmented packet was put together again under another header; options and extension headers are not in the ICRC's
//! pseudo-header (IBA annex A17.3.3). What is refused counts as a drop of the socket.

use super::options;
use libc::{BPF_ABS, BPF_B, BPF_H, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, sock_filter, sock_fprog};
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

/// Loads from here on are relative to the IP header.
const NETWORK: u32 = libc::SKF_NET_OFF as u32;

const fn load(size: u32, offset: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | size | BPF_ABS) as u16, jt: 0, jf: 0, k: NETWORK.wrapping_add(offset) }
}

const fn jump(condition: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | condition | BPF_K) as u16, jt, jf, k }
}

const fn verdict(bytes: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k: bytes }
}

/// Version 4 and a header of 20 bytes; "don't fragment", and neither more fragments nor an offset.
const V4: [sock_filter; 7] = [
    load(BPF_B, 0),
    jump(BPF_JEQ, 0x45, 0, 4),
    load(BPF_H, 6),
    jump(BPF_JSET, 0x4000, 0, 2),
    jump(BPF_JSET, 0x3fff, 1, 0),
    verdict(u32::MAX),
    verdict(0),
];

/// UDP follows at once.
const V6: [sock_filter; 4] =
    [load(BPF_B, 6), jump(BPF_JEQ, libc::IPPROTO_UDP as u32, 0, 1), verdict(u32::MAX), verdict(0)];

/// Attaches the filter for the family of `local`.
pub fn attach(fd: BorrowedFd<'_>, local: IpAddr) -> io::Result<()> {
    let instructions: &[sock_filter] = if local.is_ipv4() { &V4 } else { &V6 };
    let program = sock_fprog { len: instructions.len() as u16, filter: instructions.as_ptr().cast_mut() };
    options::set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
