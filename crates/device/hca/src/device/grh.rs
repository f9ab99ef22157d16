//! The 40 bytes in front of a received datagram: a Global Routing Header, or on RoCE v2 over IPv4 twenty undefined
//! bytes and an IPv4 header (IBA 8.3, annex A17.4.5.1).

use vervain_iba::Gid;

/// Bytes that a UD receive has in front of the data.
pub const GRH_BYTES: usize = 40;
/// Next-header value of InfiniBand's transport header in a GRH.
const NEXT_IBA: u8 = 0x1b;
/// IP protocol number of UDP, which carries RoCE v2.
const NEXT_UDP: u8 = 17;
/// UDP header, BTH, DETH and ICRC around a UD payload.
const OVERHEAD: usize = 8 + 12 + 8 + 4;

/// The contents of the headers in front of a datagram.
pub struct Route<'a> {
    /// Source.
    pub sgid: &'a Gid,
    /// Destination.
    pub dgid: &'a Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// RoCE v2, not InfiniBand.
    pub roce: bool,
}

impl Route<'_> {
    /// The service level in the completion of such a datagram, `sl` being the sender's. Over RoCE that is the kind of
    /// packet, as ConnectX has it: 8 for UDP, with 1 for IPv6 or 2 for IPv4 (annex A17.4.5.1 asks for a flag, and verbs
    /// have no other place). UCX reads it to find the destination in the header.
    pub fn service_level(&self, sl: u8) -> u8 {
        match (self.roce, self.is_ipv4()) {
            (true, true) => 8 | 2,
            (true, false) => 8 | 1,
            (false, _) => sl,
        }
    }

    fn is_ipv4(&self) -> bool {
        self.roce && is_ipv4(self.sgid) && is_ipv4(self.dgid)
    }
}

/// Returns true if a GID holds an IPv4 address (`::ffff:a.b.c.d`).
pub fn is_ipv4(gid: &Gid) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// The headers for a payload of `len` bytes.
pub fn build(route: &Route<'_>, len: usize) -> [u8; GRH_BYTES] {
    let mut h = [0u8; GRH_BYTES];
    let padded = len.next_multiple_of(4) + OVERHEAD;
    if route.is_ipv4() {
        let ip = &mut h[20..];
        ip[0] = 0x45;
        ip[1] = route.traffic_class;
        ip[2..4].copy_from_slice(&((20 + padded) as u16).to_be_bytes());
        // Don't fragment: a RoCE packet never is.
        ip[6] = 0x40;
        ip[8] = route.hop_limit;
        ip[9] = NEXT_UDP;
        ip[12..16].copy_from_slice(&route.sgid[12..]);
        ip[16..20].copy_from_slice(&route.dgid[12..]);
        let sum = checksum(ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        return h;
    }
    let first = 6u32 << 28 | u32::from(route.traffic_class) << 20 | (route.flow_label & 0xf_ffff);
    h[..4].copy_from_slice(&first.to_be_bytes());
    h[4..6].copy_from_slice(&(padded as u16).to_be_bytes());
    h[6] = if route.roce { NEXT_UDP } else { NEXT_IBA };
    h[7] = route.hop_limit;
    h[8..24].copy_from_slice(route.sgid);
    h[24..40].copy_from_slice(route.dgid);
    h
}

/// The Internet checksum (RFC 1071) of an IPv4 header whose checksum field is zero.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header.chunks_exact(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> Gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
    }

    #[test]
    fn an_ipv4_datagram_has_a_valid_ip_header_in_its_last_twenty_bytes() {
        let (s, d) = (v4(1), v4(2));
        let route = Route { sgid: &s, dgid: &d, traffic_class: 3, flow_label: 0, hop_limit: 64, roce: true };
        let h = build(&route, 10);
        assert_eq!(h[..20], [0; 20]);
        assert_eq!((h[20], h[29], &h[32..36], &h[36..40]), (0x45, 17, &s[12..], &d[12..]));
        // A header with its checksum in place sums to zero.
        assert_eq!(checksum(&h[20..]), 0);
    }

    #[test]
    fn a_completion_tells_the_kind_of_packet_over_roce_and_the_service_level_elsewhere() {
        let v6 = [0xfd; 16];
        let of = |gid: &Gid, roce| {
            let route = Route { sgid: gid, dgid: gid, traffic_class: 0, flow_label: 0, hop_limit: 1, roce };
            route.service_level(5)
        };
        assert_eq!((of(&v4(1), true), of(&v6, true), of(&v6, false), of(&v4(1), false)), (10, 9, 5, 5));
    }

    #[test]
    fn other_datagrams_have_an_ipv6_style_header() {
        let (s, d) = ([0xfe; 16], [0xfd; 16]);
        let route = Route { sgid: &s, dgid: &d, traffic_class: 1, flow_label: 5, hop_limit: 9, roce: false };
        let h = build(&route, 4);
        assert_eq!((h[0] >> 4, h[6], h[7]), (6, 0x1b, 9));
        assert_eq!((&h[8..24], &h[24..40]), (&s[..], &d[..]));
    }
}
