//! Taking packets from the kernel: many with one call, trains whole, in buffers that are used again.

use super::address::RawAddress;
use super::ancillary::{self, RECEIVE_BYTES, Told};
use super::capture::Captured;
use super::faults::{Arrival, Lines};
use super::icrc::LastFlow;
use super::limits::{CE, HOP_LIMIT};
use super::port::Port;
use super::{icrc, sys};
use libc::{iovec, mmsghdr};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use vervain_hca::host::address_map::{actual_socket, is_moved, known_socket};
use vervain_wire::icrc::{Flow, Untold};
use vervain_wire::{ICRC_LEN, UDP_PORT};

/// Trains that are taken at once.
const TRAINS: usize = 8;
/// Calls in a row that find a train after which many are asked for at once.
const MANY_FROM: u32 = 2;
/// Bytes of a train at most.
const ROOM: usize = 64 << 10;

/// Rooms begin with a page. The kernel copies from whole pages with `rep movsb`, which on some processors takes eight
/// times as long if the target lies up to 31 bytes further in its page than the source in its own (measured on a Zen 3:
/// 21 us in place of 2.5 for a train); memory from malloc lies 16 bytes further.
const PAGE: usize = 4096;

/// A sender that the kernel does not tell, or who has an address by which the program knows another. There is none: no
/// packet of its is intact.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A received packet, with addresses as the program knows them.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Sender.
    pub from: SocketAddr,
    /// The address it was sent to: the port's, or that of a group.
    pub to: IpAddr,
    /// Hop limit, or time to live; 0 before [`Port::tell_hop_limits`].
    pub hop_limit: u8,
    /// Traffic class, or type of service.
    pub tos: u8,
    /// Since the packet before, the socket has dropped some for want of room.
    pub overflowed: bool,
    /// Flow label of IPv6; 0 before [`Port::tell_hop_limits`].
    pub label: u32,
    /// Place in its train; if that came whole, the IPv4 identification.
    pub index: u16,
    /// From the BTH to the ICRC.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Returns true if the network has marked it: a queue on its way was too long (RFC 3168, CE).
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.tos & CE == CE
    }

    /// Returns true if the ICRC is right. Over IPv4 any identification is accepted, with DF or without, as sockets show
    /// neither.
    pub fn is_intact(&self) -> bool {
        self.untold().is_some()
    }

    /// [`Datagram::flow`], by `last`.
    #[inline]
    pub fn flow_by(&self, last: &mut LastFlow) -> Option<Flow> {
        let (from, to) = (self.from, SocketAddr::new(self.to, UDP_PORT));
        let (from, to) = if is_moved() { self.on_the_wire() } else { (from, to) };
        last.get(from, to)
    }

    /// [`Datagram::is_intact`], where `flow` is that of a packet with the same addresses.
    #[inline]
    pub fn is_intact_in(&self, flow: &Flow) -> bool {
        flow.verify(self.index, self.bytes).is_some()
    }

    /// The fields of the IPv4 header that follow from the ICRC.
    fn untold(&self) -> Option<Untold> {
        self.flow()?.verify(self.index, self.bytes)
    }

    /// The ICRC's view of its addresses; None: there is none by which its ICRC could be right.
    #[inline]
    pub fn flow(&self) -> Option<Flow> {
        if is_moved() {
            return self.flow_of_moved();
        }
        icrc::flow(self.from, SocketAddr::new(self.to, UDP_PORT))
    }

    #[cold]
    fn flow_of_moved(&self) -> Option<Flow> {
        let (from, to) = self.on_the_wire();
        icrc::flow(from, to)
    }

    /// From where and to where it was on its way.
    pub fn on_the_wire(&self) -> (SocketAddr, SocketAddr) {
        (actual_socket(self.from), actual_socket(SocketAddr::new(self.to, UDP_PORT)))
    }

    /// The ICRC that is right for an intact packet between the addresses as they are now.
    pub fn icrc(&self) -> Option<[u8; ICRC_LEN]> {
        let (covered, _) = self.bytes.split_last_chunk::<ICRC_LEN>()?;
        Some(self.flow()?.icrc(self.index, covered))
    }

    /// The packet for the capture, with likely values where the sockets provide none.
    fn captured(self) -> Captured<'a> {
        let (from, to) = self.on_the_wire();
        Captured {
            from,
            to,
            hop_limit: if self.hop_limit == 0 { HOP_LIMIT } else { self.hop_limit },
            tos: self.tos,
            label: self.label,
            untold: self.untold().unwrap_or(Untold::with_df(self.index)),
            bytes: self.bytes,
        }
    }
}

/// A train as the kernel gave it.
#[derive(Clone, Copy)]
struct Received {
    from: SocketAddr,
    to: IpAddr,
    told: Told,
    overflowed: bool,
    length: usize,
}

/// Buffers for packets, and the packets in them.
pub struct ReceiveBatch {
    bytes: Box<[u8]>,
    /// Offset of the first buffer.
    start: usize,
    trains: [Option<Received>; TRAINS],
    /// Number of calls in a row that found a train directly after the last one; counts the trains themselves while they
    /// are taken one by one.
    in_a_row: u32,
    /// Packets that faults have let pass.
    late: Vec<(Arrival, Vec<u8>)>,
}

impl Default for ReceiveBatch {
    fn default() -> Self {
        ReceiveBatch::new()
    }
}

impl ReceiveBatch {
    /// A batch without packets. Its buffers take memory as far as they are used.
    pub fn new() -> ReceiveBatch {
        let bytes: Box<[u8]> = vec![0; TRAINS * ROOM + PAGE].into();
        let start = bytes.as_ptr().align_offset(PAGE);
        ReceiveBatch { bytes, start, trains: [None; TRAINS], in_a_row: 0, late: Vec::new() }
    }

    /// Receives from `port`, without waiting, in place of the previous packets. Returns true if any came. There may be
    /// more: call it until it returns false.
    // Once for each poll; what parks sockets, which calls it too, does not count.
    #[inline(always)]
    pub fn receive(&mut self, port: &Port) -> bool {
        // One train costs less to ask for than many, and is most often all there is.
        let (socket, ip) = (port.receive_socket(), port.ip());
        let few = self.in_a_row < MANY_FROM;
        let taken = if few { self.take::<1>(port, socket, ip) } else { self.take::<TRAINS>(port, socket, ip) };
        self.in_a_row = if taken > usize::from(!few) { self.in_a_row + 1 } else { 0 };
        let some = taken > 0 || port.groups.any(|socket, group| self.take::<TRAINS>(port, socket, group) > 0);
        if some && let Some(capture) = port.capture {
            capture.turn().write(self.datagrams().map(Datagram::captured));
        }
        match port.lines.as_deref().filter(|lines| lines.receives()) {
            Some(lines) => self.pass(lines) || some,
            None => some,
        }
    }

    /// The caller does not ask whether more trains follow: where they are taken one by one, the next call begins to
    /// count.
    pub fn ends_early(&mut self) {
        if self.in_a_row < MANY_FROM {
            self.in_a_row = 0;
        }
    }

    /// Passes received packets through a line, and takes those that come out. Returns true if any do.
    fn pass(&mut self, lines: &Lines) -> bool {
        self.late.clear();
        self.datagrams().for_each(|datagram| lines.arrived(&datagram));
        self.trains = [None; TRAINS];
        self.late.extend(std::iter::from_fn(|| lines.next_to_deliver()));
        !self.late.is_empty()
    }

    /// Takes up to `N` trains that were sent to `to`; how many.
    fn take<const N: usize>(&mut self, port: &Port, socket: BorrowedFd<'_>, to: IpAddr) -> usize {
        let mut addresses = [RawAddress::EMPTY; N];
        let mut controls = [[0u64; RECEIVE_BYTES / 8]; N];
        let mut pieces = [iovec { iov_base: std::ptr::null_mut(), iov_len: ROOM }; N];
        // SAFETY: messages of zeros are empty ones.
        let mut messages: [mmsghdr; N] = unsafe { std::mem::zeroed() };
        for (i, room) in self.bytes[self.start..].chunks_mut(ROOM).take(N).enumerate() {
            pieces[i].iov_base = room.as_mut_ptr().cast();
            let message = &mut messages[i].msg_hdr;
            (message.msg_name, message.msg_namelen) = ((&raw mut addresses[i]).cast(), RawAddress::SIZE);
            (message.msg_iov, message.msg_iovlen) = (&raw mut pieces[i], 1);
            (message.msg_control, message.msg_controllen) = (controls[i].as_mut_ptr().cast(), RECEIVE_BYTES);
        }
        // SAFETY: all that the messages point at is on the stack or in the batch, and nobody else looks at it now.
        let taken = unsafe { sys::receive(socket, &mut messages) };
        self.trains = [None; TRAINS];
        // An error: nothing is there, or word of the network's about an earlier packet, which is no news here.
        let Ok(count) = taken else { return 0 };
        let filled = messages[..count].iter().zip(&addresses);
        for (train, (message, address)) in self.trains.iter_mut().zip(filled) {
            // SAFETY: the kernel has just filled it in.
            let told = unsafe { ancillary::read(&message.msg_hdr) };
            let length = message.msg_len as usize;
            let mut from = address.get().unwrap_or(UNKNOWN);
            if is_moved() {
                from = known_socket(from).unwrap_or(UNKNOWN);
            }
            // The sockets of groups count for themselves.
            let dropped = told.dropped.filter(|_| to == port.ip());
            let overflowed = port.received(told.packets(length), length, dropped);
            *train = Some(Received { from, to, told, overflowed, length });
        }
        count
    }

    /// The packets, in the order of arrival.
    pub fn datagrams(&self) -> Datagrams<'_, impl Fn(&[u8]) -> bool + Copy> {
        self.datagrams_where(|_| true)
    }

    /// Those of the packets whose bytes are `wanted`, in the order of arrival. The others cost no more than that look.
    pub fn datagrams_where<W: Fn(&[u8]) -> bool>(&self, wanted: W) -> Datagrams<'_, W> {
        Datagrams { batch: self, train: 0, at: 0, index: 0, late: 0, wanted }
    }
}

/// The packets of a batch. Small, since a copy of it is how a caller looks ahead.
#[derive(Clone, Copy)]
pub struct Datagrams<'a, W> {
    batch: &'a ReceiveBatch,
    /// The train, the offset in it and the number of the next packet.
    train: usize,
    at: usize,
    index: u16,
    /// The next of the late ones, which follow.
    late: usize,
    wanted: W,
}

impl<'a, W: Fn(&[u8]) -> bool> Iterator for Datagrams<'a, W> {
    type Item = Datagram<'a>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'a>> {
        while let Some(Some(train)) = self.batch.trains.get(self.train) {
            if self.at < train.length {
                let start = self.batch.start + self.train * ROOM + self.at;
                let length = train.told.segment(train.length).min(train.length - self.at);
                let index = self.index;
                self.at += length;
                self.index = index.wrapping_add(1);
                let bytes = &self.batch.bytes[start..start + length];
                if !(self.wanted)(bytes) {
                    continue;
                }
                let Received { from, to, overflowed, told: Told { hop_limit, tos, label, .. }, .. } = *train;
                let overflowed = overflowed && index == 0;
                return Some(Datagram { from, to, hop_limit, tos, overflowed, label, index, bytes });
            }
            (self.train, self.at, self.index) = (self.train + 1, 0, 0);
        }
        let late = self.batch.late.get(self.late..)?;
        let skipped = late.iter().position(|(_, bytes)| (self.wanted)(bytes))?;
        self.late += skipped + 1;
        let (arrival, bytes) = &late[skipped];
        Some(arrival.with(bytes))
    }
}
