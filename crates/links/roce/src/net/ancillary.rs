//! Control messages of sendmsg and recvmsg.

use super::limits::{ECT0, HOP_LIMIT, MOST_LABEL};
use libc::{c_int, cmsghdr, msghdr};
use std::net::IpAddr;

/// Room for what is sent along: segment size, hop limit, type of service.
const SEND_BYTES: usize = 3 * space(size_of::<c_int>());
/// Room for what comes along: segment size, hop limit, type of service, flow label, drops.
pub const RECEIVE_BYTES: usize = 5 * space(size_of::<c_int>());

/// CMSG_SPACE.
const fn space(length: usize) -> usize {
    // SAFETY: plain arithmetic.
    unsafe { libc::CMSG_SPACE(length as u32) as usize }
}

/// Control messages to send along.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Control {
    bytes: [u8; SEND_BYTES],
    used: usize,
}

impl Control {
    /// No control messages.
    pub const EMPTY: Control = Control { bytes: [0; SEND_BYTES], used: 0 };

    /// For packets to be cut every `segment` bytes (None: one packet), with `hop_limit` and `tos` where they differ
    /// from what the socket does by itself.
    pub fn new(local: IpAddr, segment: Option<u16>, hop_limit: u8, tos: u8) -> Control {
        let mut control = Control::EMPTY;
        if let Some(size) = segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, size);
        }
        let (level, hops, class) = match local {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL, libc::IP_TOS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS),
        };
        if hop_limit != HOP_LIMIT {
            control.push(level, hops, c_int::from(hop_limit));
        }
        if tos != ECT0 {
            control.push(level, class, c_int::from(tos));
        }
        control
    }

    fn push<T: Copy>(&mut self, level: c_int, kind: c_int, value: T) {
        const HEADER: usize = space(0);
        let header = cmsghdr { cmsg_len: HEADER + size_of::<T>(), cmsg_level: level, cmsg_type: kind };
        let at = self.used;
        self.used += space(size_of::<T>());
        let room = &mut self.bytes[at..self.used];
        // SAFETY: `room` has space for both, which the slice has checked; unaligned stores need nothing else.
        unsafe {
            room.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header);
            room.as_mut_ptr().add(HEADER).cast::<T>().write_unaligned(value);
        }
    }

    /// Enters them into `message`, which they must outlive.
    pub fn enter(&mut self, message: &mut msghdr) {
        message.msg_control = if self.used == 0 { std::ptr::null_mut() } else { self.bytes.as_mut_ptr().cast() };
        message.msg_controllen = self.used;
    }
}

/// Control data of a received train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Bytes of each packet but the last; None for one packet.
    pub segment: Option<usize>,
    /// Hop limit, or time to live, if asked for.
    pub hop_limit: u8,
    /// Traffic class, or type of service.
    pub tos: u8,
    /// Flow label of IPv6, if asked for.
    pub label: u32,
    /// Packets dropped by the socket so far, if there were any.
    pub dropped: Option<u32>,
}

impl Told {
    /// Bytes of each packet but the last, of a train of `length` bytes; not 0.
    pub fn segment(&self, length: usize) -> usize {
        self.segment.unwrap_or(length).max(1)
    }

    /// Packets in it; an empty one counts.
    pub fn packets(&self, length: usize) -> usize {
        length.div_ceil(self.segment(length)).max(1)
    }
}

/// Reads the control messages of a received `message`.
///
/// # Safety
/// `message` is as the kernel left it, and its control buffer is still there.
pub unsafe fn read(message: &msghdr) -> Told {
    let mut told = Told::default();
    // SAFETY: the kernel keeps to the control buffer, and the macros keep to what it wrote.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = next.as_ref() {
            let data = libc::CMSG_DATA(header);
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => told.segment = Some(data.cast::<c_int>().read_unaligned() as usize),
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    told.hop_limit = data.cast::<c_int>().read_unaligned() as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => told.tos = *data,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => told.tos = data.cast::<c_int>().read_unaligned() as u8,
                // Traffic class and flow label as they are in the header; none if both are 0.
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                    told.label = u32::from_be(data.cast::<u32>().read_unaligned()) & MOST_LABEL;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => told.dropped = Some(data.cast::<u32>().read_unaligned()),
                _ => {}
            }
            next = libc::CMSG_NXTHDR(message, header);
        }
    }
    told
}
