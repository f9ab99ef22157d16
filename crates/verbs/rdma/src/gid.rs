//! GIDs: what a port is called on the wire, and which of its names a connection should use.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use vervain_abi::{IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_gid};

/// The bytes in front of every datagram that is received, whether a GRH is in them or not; IBA volume 1, 11.4.1.2.
pub const GRH_BYTES: usize = 40;

/// A GID: 16 bytes in network byte order, shown and exchanged as the IPv6 address that it looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address behind the GID of a RoCE port: IPv4 where it is mapped (`::ffff:a.b.c.d`). Without meaning for
    /// the GIDs of InfiniBand and RoCE v1, which are no IP addresses; [`GidEntry::ip`] asks for the type first.
    pub fn ip(self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    pub(crate) fn raw(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        Self(match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        })
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl FromStr for Gid {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse::<Ipv6Addr>()?.octets()))
    }
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The kind of a GID; `enum ibv_gid_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidType {
    /// The GID of an InfiniBand port.
    InfiniBand,
    /// RoCE v1: Ethernet frames of type 0x8915.
    RoceV1,
    /// RoCE v2: UDP over the IP address that the GID is.
    RoceV2,
    /// A number that is newer than this crate.
    Other(u32),
}

impl GidType {
    pub(crate) fn of(number: u32) -> Self {
        match number {
            vervain_abi::IBV_GID_TYPE_IB => Self::InfiniBand,
            IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

/// One valid entry of a port's GID table; `ibv_query_gid_ex(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Its place in the table of its port, from 0.
    pub index: u32,
    /// Its port, from 1.
    pub port: u32,
    /// The name itself.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidType,
    /// The network interface that it comes from (`if_nametoindex(3)`); 0 for none.
    pub interface: u32,
}

impl GidEntry {
    /// The IP address that the GID is; only those of RoCE v2 are.
    pub fn ip(&self) -> Option<IpAddr> {
        (self.kind == GidType::RoceV2).then(|| self.gid.ip())
    }

    /// How well a connection is served by it; less is better.
    fn rank(&self) -> (u8, u8, u32) {
        let kind = match self.kind {
            GidType::RoceV2 => 0,
            GidType::RoceV1 => 1,
            _ => 2,
        };
        let address = match self.gid.ip() {
            address if address.is_loopback() => 4,
            IpAddr::V4(v4) if v4 == Ipv4Addr::UNSPECIFIED => 5,
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
            IpAddr::V6(_) => 1,
        };
        (kind, address, self.index)
    }
}

/// The entry that a connection should use unless the user says otherwise: RoCE v2 before v1, then IPv4, then IPv6 of
/// more than the link, as perftest picks; addresses of the loopback interface last. None if there is no RoCE entry: in
/// an InfiniBand subnet LIDs are the addresses.
pub fn best(entries: &[GidEntry]) -> Option<GidEntry> {
    let roce = |e: &&GidEntry| matches!(e.kind, GidType::RoceV1 | GidType::RoceV2);
    entries.iter().filter(roce).min_by_key(|e| e.rank()).copied()
}

/// The GID of the sender of a datagram, from the first [`GRH_BYTES`](crate::GRH_BYTES) bytes of its receive. They are
/// valid if [`has_grh`](crate::Completion::has_grh) is true, and hold a GRH or IPv6 header (IBA volume 1, 8.3), or with
/// RoCE v2 over IPv4 that header in the last 20 bytes (annex A17.4.5.1). None if they hold neither. The sender chose
/// these bytes; nothing has verified them.
pub fn of_sender(grh: &[u8; GRH_BYTES]) -> Option<Gid> {
    let ipv4 = &grh[20..];
    // The checksum distinguishes it from the end of an IPv6 address that begins with the same byte.
    if ipv4[0] == 0x45 && is_checksum_right(ipv4) {
        let address = Ipv4Addr::new(ipv4[12], ipv4[13], ipv4[14], ipv4[15]);
        return Some(Gid::from(IpAddr::from(address)));
    }
    let mut sender = [0; 16];
    sender.copy_from_slice(&grh[8..24]);
    (grh[0] >> 4 == 6).then_some(Gid(sender))
}

/// RFC 1071: the ones' complement sum of all 16-bit words, the checksum with them, is all ones.
fn is_checksum_right(header: &[u8]) -> bool {
    let (words, _) = header.as_chunks::<2>();
    let sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, kind: GidType, gid: &str) -> GidEntry {
        GidEntry { index, port: 1, gid: gid.parse().expect("a GID"), kind, interface: 2 }
    }

    #[test]
    fn roce_v2_over_ipv4_comes_first_and_loopback_last() {
        let mut entries = vec![
            entry(0, GidType::RoceV1, "fe80::1"),
            entry(1, GidType::RoceV2, "fe80::1"),
            entry(2, GidType::RoceV2, "::ffff:127.0.0.1"),
            entry(3, GidType::RoceV1, "::ffff:10.0.0.1"),
            entry(4, GidType::RoceV2, "2001:db8::1"),
            entry(5, GidType::RoceV2, "::ffff:10.0.0.1"),
            entry(6, GidType::RoceV2, "::ffff:10.0.0.2"),
        ];
        let mut order = vec![];
        while let Some(next) = best(&entries) {
            order.push(next.index);
            entries.retain(|e| *e != next);
        }
        assert_eq!(order, [5, 6, 4, 1, 2, 3, 0]);
    }

    /// The header of a datagram from 10.1.2.3 to 10.1.2.4, as RFC 791 has it.
    fn over_ipv4() -> [u8; GRH_BYTES] {
        let mut grh = [0xee; GRH_BYTES];
        let header = [0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x22, 0xa9, 10, 1, 2, 3, 10, 1, 2, 4];
        grh[20..].copy_from_slice(&header);
        grh
    }

    #[test]
    fn the_sender_stands_in_the_ipv4_header_or_in_the_grh() {
        assert_eq!(of_sender(&over_ipv4()), Some(Gid::from(IpAddr::from([10, 1, 2, 3]))));
        // The same bytes as the end of two IPv6 addresses, but for one bit: no IPv4 header any more.
        let mut grh = over_ipv4();
        grh[39] ^= 1;
        assert_eq!(of_sender(&grh), None);
        grh[0] = 0x60;
        let wanted: [u8; 16] = std::array::from_fn(|i| grh[8 + i]);
        assert_eq!(of_sender(&grh), Some(Gid(wanted)));
        // A sum that carries twice.
        assert!(is_checksum_right(&[0xff, 0xff, 0xff, 0xff]) && !is_checksum_right(&[0xff, 0xff, 0, 1]));
    }

    #[test]
    fn infiniband_has_none() {
        assert_eq!(best(&[entry(0, GidType::InfiniBand, "fe80::1")]), None);
    }

    #[test]
    fn a_gid_is_exchanged_as_text() {
        let gid = Gid::from(IpAddr::from([10, 1, 2, 3]));
        let text = serde_json::to_string(&gid).expect("text");
        assert_eq!(text, "\"::ffff:10.1.2.3\"");
        assert_eq!(serde_json::from_str::<Gid>(&text).expect("the same"), gid);
        assert!(serde_json::from_str::<Gid>("\"10.1.2.3.4\"").is_err());
        assert_eq!(gid.ip(), IpAddr::from([10, 1, 2, 3]));
    }
}
