//! Misrouted packets: those for a process slot of somebody else. The program that picks the socket sees only the first
//! packet of a train, and a network card may make a train of packets that have nothing but sender and source port in
//! common (generic receive offload). They are collected here and handed to their owners, many in one message, for a
//! mailbox holds few messages (net.unix.max_dgram_qlen).

use super::mailbox::{HEAD, MOST};
use super::{Sharing, SlotOwner};
use crate::net::Datagram;
use std::net::{IpAddr, SocketAddr};
use vervain_hca::arena::layout::slot_of;
use vervain_hca::host::address_map::{known, known_socket};

/// Messages that are collected at once.
const MESSAGES: usize = 16;
/// Bytes before each packet: its length and its place in its train.
const RECORD: usize = 4;

/// The destination QPN of a packet (UDP payload); None if it is too short to have one.
pub fn qpn_of_packet(packet: &[u8]) -> Option<u32> {
    let qpn = packet.get(4..8)?;
    // Byte 4 is reserved (IBA 9.2.3).
    Some(u32::from_be_bytes([0, qpn[1], qpn[2], qpn[3]]))
}

/// The process slot in it.
pub fn slot_of_packet(packet: &[u8]) -> Option<u32> {
    qpn_of_packet(packet).map(slot_of)
}

/// Fields common to all packets of a message. Addresses are those on the wire: the owner may know them by other ones
/// than the receiver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender.
    pub from: SocketAddr,
    /// The address of this host.
    pub to: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// Flow label.
    pub label: u32,
}

/// A message that is being collected.
struct Message {
    slot: u32,
    origin: Origin,
    packets: u64,
    bytes: Vec<u8>,
}

/// Misrouted packets on their way to their owners. The receiver keeps one, and flushes it after each batch.
#[derive(Default)]
pub struct Misrouted {
    messages: Vec<Message>,
}

impl Misrouted {
    /// Takes a packet for `slot`; may send those that wait.
    pub fn add(&mut self, sharing: &Sharing, slot: u32, packet: &Datagram<'_>) {
        let Ok(length) = u16::try_from(packet.bytes.len()) else { return };
        let Datagram { hop_limit, tos, label, .. } = *packet;
        let (from, to) = packet.on_the_wire();
        let origin = Origin { from, to: to.ip(), hop_limit, tos, label };
        let fits = |m: &Message| HEAD + m.bytes.len() + RECORD + packet.bytes.len() <= MOST;
        let same = |m: &Message| m.slot == slot && m.origin == origin;
        let place = self.messages.iter().position(same);
        if place.map_or(self.messages.len() == MESSAGES, |i| !fits(&self.messages[i])) {
            self.flush(sharing);
        }
        let message = match place.filter(|i| *i < self.messages.len()) {
            Some(i) => &mut self.messages[i],
            None => {
                self.messages.push(Message { slot, origin, packets: 0, bytes: Vec::new() });
                self.messages.last_mut().expect("one was just pushed")
            }
        };
        message.packets += 1;
        message.bytes.extend_from_slice(&length.to_ne_bytes());
        message.bytes.extend_from_slice(&packet.index.to_ne_bytes());
        message.bytes.extend_from_slice(packet.bytes);
    }

    /// Hands over what was collected. Never waits: what an owner does not take is lost, as on a network.
    pub fn flush(&mut self, sharing: &Sharing) {
        for message in self.messages.drain(..) {
            let counters = sharing.counters();
            match sharing.put(message.slot, message.origin, &message.bytes) {
                SlotOwner::Took => counters.handed_over.add(message.packets),
                SlotOwner::IsBusy => counters.not_taken.add(message.packets),
                SlotOwner::IsNobody => counters.unowned.add(message.packets),
            }
        }
    }

    /// Returns true if there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

/// The packets of a message, with addresses as this process knows them; none of a sender whose address it knows as
/// another's.
pub(super) fn packets(origin: Origin, bytes: &[u8]) -> impl Iterator<Item = Datagram<'_>> {
    let Origin { from, to, hop_limit, tos, label } = origin;
    let ends = known_socket(from).zip(known(to));
    let mut rest = if ends.is_some() { bytes } else { &[] };
    let (from, to) = ends.unwrap_or((from, to));
    std::iter::from_fn(move || {
        let ([l0, l1, i0, i1], after) = rest.split_first_chunk::<RECORD>()?;
        let (bytes, after) = after.split_at_checked(usize::from(u16::from_ne_bytes([*l0, *l1])))?;
        rest = after;
        let index = u16::from_ne_bytes([*i0, *i1]);
        Some(Datagram { from, to, hop_limit, tos, overflowed: false, label, index, bytes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_hca::arena::layout::INDEX_BITS;

    #[test]
    fn the_slot_of_a_packet_is_in_its_destination_qpn() {
        let mut packet = [0xff; 12];
        packet[5..8].copy_from_slice(&(1022u32 << INDEX_BITS | 77).to_be_bytes()[1..]);
        assert_eq!(slot_of_packet(&packet), Some(1022));
        assert_eq!(slot_of_packet(&packet[..8]), Some(1022));
        assert_eq!(slot_of_packet(&packet[..7]), None);
    }

    #[test]
    fn a_torn_message_ends_at_the_last_whole_packet() {
        let origin = Origin {
            from: "192.0.2.1:49152".parse().unwrap(),
            to: "192.0.2.2".parse().unwrap(),
            hop_limit: 64,
            tos: 0,
            label: 0,
        };
        let mut bytes = Vec::new();
        for (index, packet) in [&b"first"[..], b"", b"third"].into_iter().enumerate() {
            bytes.extend_from_slice(&(packet.len() as u16).to_ne_bytes());
            bytes.extend_from_slice(&(index as u16).to_ne_bytes());
            bytes.extend_from_slice(packet);
        }
        let parted = |bytes| packets(origin, bytes).map(|d| (d.index, d.bytes.to_vec())).collect::<Vec<_>>();
        assert_eq!(parted(&bytes), [(0, b"first".to_vec()), (1, Vec::new()), (2, b"third".to_vec())]);
        assert_eq!(parted(&bytes[..bytes.len() - 1]).len(), 2);
        assert_eq!(parted(&bytes[..3]), []);
    }
}
