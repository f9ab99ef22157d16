//! Messages between processes of a host: a MAD and its addresses.

use std::net::{IpAddr, Ipv6Addr};
use vervain_gsi::{MAD_BYTES, Mad};
use vervain_hca::Gid;
use vervain_hca::host::address_map::{actual, known};

/// Version of the messages; others are dropped.
const VERSION: u32 = 1;
/// Bytes before the MAD.
const HEAD: usize = 56;
/// Bytes of a message.
pub const MESSAGE: usize = HEAD + MAD_BYTES;

/// Origin of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The process of this host with this slot.
    Process(u32),
    /// A carrier that delivered it to a process it is not for.
    Carrier,
}

/// A MAD on its way, with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The hop that it came by.
    pub origin: Origin,
    /// The sender's address, as this process knows it.
    pub from: Gid,
    /// The receiver's address.
    pub to: Gid,
    /// Flow label.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// 0 for MADs that came by no carrier.
    pub hop_limit: u8,
    /// The MAD.
    pub mad: Mad,
}

impl Message {
    /// The bytes as they are sent, with the present addresses: the other process may know them by others.
    pub fn to_bytes(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        let (kind, slot) = match self.origin {
            Origin::Process(slot) => (1u32, slot),
            Origin::Carrier => (2, 0),
        };
        for (at, word) in [(0, VERSION), (4, kind), (8, slot), (12, self.flow_label)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        (bytes[16], bytes[17]) = (self.traffic_class, self.hop_limit);
        bytes[24..40].copy_from_slice(&actual_gid(&self.from));
        bytes[40..56].copy_from_slice(&actual_gid(&self.to));
        bytes[HEAD..].copy_from_slice(&self.mad);
        bytes
    }

    /// The message in these bytes; None: no process of this version sends them, or this process knows another host by
    /// one of the addresses.
    pub fn of(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; MESSAGE] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let gid = |at: usize| known_gid(&std::array::from_fn(|i| bytes[at + i]));
        let origin = match (word(0), word(4)) {
            (VERSION, 1) => Origin::Process(word(8)),
            (VERSION, 2) => Origin::Carrier,
            _ => return None,
        };
        let mad = std::array::from_fn(|i| bytes[HEAD + i]);
        let (flow_label, traffic_class, hop_limit) = (word(12), bytes[16], bytes[17]);
        Some(Message { origin, from: gid(24)?, to: gid(40)?, flow_label, traffic_class, hop_limit, mad })
    }
}

/// The present address of a GID.
pub fn actual_gid(gid: &Gid) -> Gid {
    let wide = Ipv6Addr::from(*gid);
    gid_of(actual(wide.to_canonical()))
}

fn known_gid(gid: &Gid) -> Option<Gid> {
    known(Ipv6Addr::from(*gid).to_canonical()).map(gid_of)
}

/// The GID of an IP address.
#[inline]
pub fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let gid = |last: u8| std::array::from_fn(|i| if i == 15 { last } else { 0xfd });
        Message {
            origin: Origin::Process(1022),
            from: gid(1),
            to: gid(2),
            flow_label: 0xf_ffff,
            traffic_class: 0xb8,
            hop_limit: 63,
            mad: std::array::from_fn(|i| i as u8),
        }
    }

    #[test]
    fn a_message_survives_its_bytes() {
        for origin in [Origin::Process(1022), Origin::Carrier] {
            let message = Message { origin, ..message() };
            assert_eq!(Message::of(&message.to_bytes()), Some(message));
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        let bytes = message().to_bytes();
        assert_eq!(Message::of(&bytes[1..]), None);
        assert_eq!(Message::of(&[&bytes[..], &[0]].concat()), None);
        for (at, value) in [(0, 2), (4, 3)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Message::of(&other), None);
        }
    }
}
