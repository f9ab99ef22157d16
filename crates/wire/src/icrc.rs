//! The invariant CRC (IBA 7.8.1, annex A17.3.3): CRC-32 over everything that no switch or router may change, from the IP
//! header to the padding. Fields that may change count as ones: 8 bytes in place of the LRH, of IPv4 TOS, TTL and checksum,
//! of IPv6 traffic class, flow label and hop limit, the UDP checksum, and the byte of the BTH with FECN and BECN.
//!
//! A sender starts a [`Flow`] per packet, adds the payload in as many pieces as it lies in, and sends what
//! [`Icrc::finish`] returns. A receiver calls [`Flow::verify`].

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::headers::{BTH_LEN, MAX_HEADERS};
use crate::parse::ICRC_LEN;

/// Bytes of ones that stand for the LRH.
const LRH_LEN: usize = 8;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// The longest pseudo-header: LRH, IPv6, UDP.
const MAX_PSEUDO: usize = LRH_LEN + IPV6_LEN + UDP_LEN;

/// "Don't fragment" in the two bytes behind the identification, as the CRC register holds them.
const DF: u32 = 0x40;

/// What the ICRC covers of an IPv4 header and a UDP socket does not tell; without meaning for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold {
    /// Identification.
    pub id: u16,
    /// Whether routers must not cut the packet.
    pub dont_fragment: bool,
}

impl Untold {
    /// That of a packet with DF, as Vervain sends all.
    pub const fn with_df(id: u16) -> Untold {
        Untold { id, dont_fragment: true }
    }
}

/// What all packets from one address and port to another have in common: LRH, IP and UDP header as the ICRC counts them.
/// Packets are without IPv4 options and IPv6 extension headers (A17.3.1). Those that are made here have DF set.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pseudo: [u8; MAX_PSEUDO],
    len: usize,
}

impl Flow {
    /// A flow over IPv4.
    pub fn v4((source, source_port): (Ipv4Addr, u16), (destination, port): (Ipv4Addr, u16)) -> Flow {
        let mut pseudo = [0xff; MAX_PSEUDO];
        let (ip, udp) = pseudo[LRH_LEN..].split_at_mut(IPV4_LEN);
        ip[0] = 0x45;
        ip[6..8].copy_from_slice(&[0x40, 0]);
        ip[9] = 17;
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..20].copy_from_slice(&destination.octets());
        udp[..2].copy_from_slice(&source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&port.to_be_bytes());
        Flow { pseudo, len: LRH_LEN + IPV4_LEN + UDP_LEN }
    }

    /// A flow over IPv6.
    pub fn v6((source, source_port): (Ipv6Addr, u16), (destination, port): (Ipv6Addr, u16)) -> Flow {
        let mut pseudo = [0xff; MAX_PSEUDO];
        let (ip, udp) = pseudo[LRH_LEN..].split_at_mut(IPV6_LEN);
        ip[0] = 0x6f;
        ip[6] = 17;
        ip[8..24].copy_from_slice(&source.octets());
        ip[24..40].copy_from_slice(&destination.octets());
        udp[..2].copy_from_slice(&source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&port.to_be_bytes());
        Flow { pseudo, len: MAX_PSEUDO }
    }

    fn is_v4(&self) -> bool {
        self.len < MAX_PSEUDO
    }

    /// Starts the ICRC of a packet. `headers` are all its headers from the BTH on, at most [`MAX_HEADERS`] bytes; `rest` is
    /// the length of payload and padding, which [`Icrc::update`] must then be given; `id` is the IPv4 identification
    /// (without meaning for IPv6).
    #[inline]
    pub fn start(&self, id: u16, headers: &[u8], rest: usize) -> Icrc {
        // One update of some 80 bytes: each further one would cost 5 to 8 ns.
        let mut bytes = [0; MAX_PSEUDO + MAX_HEADERS];
        bytes[..MAX_PSEUDO].copy_from_slice(&self.pseudo);
        let udp_len = (UDP_LEN + headers.len() + rest + ICRC_LEN) as u16;
        let ip = &mut bytes[LRH_LEN..];
        if self.is_v4() {
            ip[2..4].copy_from_slice(&(udp_len + IPV4_LEN as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
        bytes[self.len - 4..self.len - 2].copy_from_slice(&udp_len.to_be_bytes());
        bytes[self.len..self.len + headers.len()].copy_from_slice(headers);
        bytes[self.len + 4] = 0xff;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&bytes[..self.len + headers.len()]);
        Icrc { crc }
    }

    /// Checks the ICRC of a UDP payload, and returns what the IPv4 header must have had for it to be right; none: it is
    /// wrong, or the datagram is too short.
    ///
    /// A UDP socket tells neither the identification nor DF, which the ICRC covers. `expected` with DF is tried first. Since
    /// a CRC is linear, the difference shows in which of these 17 bits the header differs, if the packet differs in no
    /// other; a damaged packet passes for one with other bits there once in 32,768 times. Who knows which ones a peer uses
    /// compares.
    #[inline]
    pub fn verify(&self, expected: u16, datagram: &[u8]) -> Option<Untold> {
        let covered = datagram.len().checked_sub(ICRC_LEN).filter(|&len| len >= BTH_LEN)?;
        let (covered, sent) = datagram.split_at(covered);
        let (headers, rest) = covered.split_at(covered.len().min(MAX_HEADERS));
        let mut icrc = self.start(expected, headers, rest.len());
        icrc.update(rest);
        let difference = u32::from_le_bytes(icrc.finish()) ^ u32::from_le_bytes(sent.try_into().ok()?);
        if difference == 0 {
            return Some(Untold::with_df(expected));
        }
        if !self.is_v4() {
            return None;
        }
        // Back over all that follows the identification, and over itself.
        let bytes_back = IPV4_LEN - 4 + UDP_LEN + covered.len();
        let changed = back(difference, bytes_back);
        let id = expected ^ (changed as u16).swap_bytes();
        (changed >> 16 & !DF == 0).then_some(Untold { id, dont_fragment: changed >> 16 & DF == 0 })
    }
}

/// The ICRC of a packet in the making.
#[derive(Clone, Debug)]
pub struct Icrc {
    crc: crc32fast::Hasher,
}

impl Icrc {
    /// Adds payload, and at the end the zero bytes of the padding.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
    }

    /// The four bytes that end the packet.
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.crc.finalize().to_le_bytes()
    }
}

/// The generator polynomial of CRC-32. Polynomials are held as the CRC register holds them: x^0 is bit 31.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Divides by x^8, modulo the generator: the register one byte earlier.
const fn byte_back(mut register: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        register = if register >> 31 != 0 { (register ^ POLYNOMIAL) << 1 | 1 } else { register << 1 };
        bit += 1;
    }
    register
}

/// The product modulo the generator.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}

/// x^-8n for n of 0 to 255, and for n of 0, 256 to 255 * 256.
static BACK: [[u32; 256]; 2] = {
    let mut table = [[1 << 31; 256]; 2];
    let mut n = 1;
    while n < 256 {
        table[0][n] = byte_back(table[0][n - 1]);
        n += 1;
    }
    let by_256 = byte_back(table[0][255]);
    n = 1;
    while n < 256 {
        table[1][n] = multiply(table[1][n - 1], by_256);
        n += 1;
    }
    table
};

/// The register `bytes` zero bytes earlier, up to 65,535.
fn back(register: u32, bytes: usize) -> u32 {
    multiply(register, multiply(BACK[0][bytes & 0xff], BACK[1][bytes >> 8 & 0xff]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 77, 0, 2), 0xc123);
    const DESTINATION: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 77, 0, 3), crate::UDP_PORT);

    fn with(id: u16) -> Option<Untold> {
        Some(Untold::with_df(id))
    }

    fn packet(flow: &Flow, id: u16, len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..BTH_LEN + len).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut icrc = flow.start(id, &packet[..BTH_LEN], len);
        icrc.update(&packet[BTH_LEN..]);
        packet.extend(icrc.finish());
        packet
    }

    #[test]
    fn the_register_goes_back_as_far_as_it_went() {
        for bytes in [0, 1, 2, 255, 256, 257, 4096, 65_535] {
            let zeros = vec![0; bytes];
            for start in [1, 0x8000_0000, 0xdead_beef] {
                let mut register = crc32fast::Hasher::new_with_initial(!start);
                register.update(&zeros);
                assert_eq!(back(!register.finalize(), bytes), start, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn any_ipv4_identification_is_found() {
        let flow = Flow::v4(SOURCE, DESTINATION);
        for len in [0, 8, 1024, 4096, 65_000] {
            for id in [0, 1, 2, 0x00ff, 0x0100, 0x8000, 0xffff, 0x1234] {
                let packet = packet(&flow, id, len);
                for expected in [id, 0, 1, 0xffff, 0x4321] {
                    assert_eq!(flow.verify(expected, &packet), with(id), "{len} bytes, expected {expected:#x}");
                }
            }
        }
    }

    /// DF clear is a packet that routers may cut; the other bits of these two bytes belong to fragments.
    #[test]
    fn a_packet_may_have_df_clear_and_no_other_flag_or_offset_changed() {
        let set = Flow::v4(SOURCE, DESTINATION);
        for bit in 0..16 {
            let mut other = set;
            other.pseudo[LRH_LEN + 6..LRH_LEN + 8].copy_from_slice(&(0x4000u16 ^ 1 << bit).to_be_bytes());
            for (id, expected) in [(0, 0), (0x1234, 0), (0xffff, 7)] {
                let found = set.verify(expected, &packet(&other, id, 100));
                assert_eq!(found, (bit == 14).then_some(Untold { id, dont_fragment: false }), "bit {bit}");
            }
        }
    }

    /// As many as say what is said of it: one in 32,768.
    #[test]
    fn damage_seldom_looks_like_another_identification() {
        let flow = Flow::v4(SOURCE, DESTINATION);
        let (right, mut passed) = (packet(&flow, 0, 64), 0);
        let mut random = 0x2545_f491_4f6c_dd1du64;
        for _ in 0..1 << 20 {
            let mut damaged = right.clone();
            for _ in 0..3 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = BTH_LEN + random as usize % 64;
                damaged[at] ^= (random >> 32) as u8 | 1;
            }
            passed += u32::from(damaged != right && flow.verify(0, &damaged).is_some());
        }
        // 32 are to be expected.
        assert!((8..80).contains(&passed), "{passed} of 2^20");
    }

    #[test]
    fn pieces_of_any_length_give_the_same() {
        let flow = Flow::v4(SOURCE, DESTINATION);
        let whole = packet(&flow, 3, 1000);
        for headers in [BTH_LEN, 28, MAX_HEADERS] {
            for piece in [1, 3, 64, 129, 1000] {
                let (head, payload) = whole[..whole.len() - ICRC_LEN].split_at(headers);
                let mut icrc = flow.start(3, head, payload.len());
                payload.chunks(piece).for_each(|piece| icrc.update(piece));
                assert_eq!(icrc.finish(), whole[whole.len() - ICRC_LEN..]);
            }
        }
    }

    /// The byte with FECN and BECN may change on the way, no other.
    #[test]
    fn a_changed_byte_is_noticed_unless_switches_may_change_it() {
        let flows = [
            Flow::v4(SOURCE, DESTINATION),
            Flow::v6((Ipv6Addr::LOCALHOST, SOURCE.1), (Ipv6Addr::LOCALHOST, DESTINATION.1)),
        ];
        for flow in flows {
            let mut packet = packet(&flow, 0, 1024);
            for at in 0..packet.len() {
                packet[at] ^= 0x5a;
                assert_eq!(flow.verify(0, &packet) == with(0), at == 4, "byte {at}");
                packet[at] ^= 0x5a;
            }
        }
    }

    #[test]
    fn another_flow_is_noticed() {
        let packet = packet(&Flow::v4(SOURCE, DESTINATION), 0, 64);
        assert_eq!(Flow::v4(SOURCE, DESTINATION).verify(0, &packet), with(0));
        assert_eq!(Flow::v4(DESTINATION, SOURCE).verify(0, &packet), None);
        assert_eq!(Flow::v4((SOURCE.0, SOURCE.1 + 1), DESTINATION).verify(0, &packet), None);
    }

    /// What would be another identification over IPv4 is damage over IPv6.
    #[test]
    fn over_ipv6_there_is_no_identification_to_be_found() {
        let v4 = Flow::v4(SOURCE, DESTINATION);
        let [zero, one] = [0, 1].map(|id| packet(&v4, id, 64));
        let v6 = Flow::v6((Ipv6Addr::LOCALHOST, SOURCE.1), (Ipv6Addr::LOCALHOST, DESTINATION.1));
        let mut damaged = packet(&v6, 0, 64);
        assert_eq!(v6.verify(9, &damaged), with(9));
        damaged.iter_mut().zip(zero.iter().zip(&one)).for_each(|(byte, (zero, one))| *byte ^= zero ^ one);
        assert_eq!(v6.verify(0, &damaged), None);
    }

    #[test]
    fn too_short_for_a_bth_is_wrong_whatever_its_icrc() {
        let flow = Flow::v4(SOURCE, DESTINATION);
        for (len, is_right) in [(8, false), (11, false), (12, true)] {
            let mut datagram = vec![0; len];
            datagram.extend(flow.start(0, &datagram, 0).finish());
            assert_eq!(flow.verify(0, &datagram).is_some(), is_right);
        }
    }

    #[test]
    fn too_short_for_an_icrc_is_wrong() {
        let packet = packet(&Flow::v4(SOURCE, DESTINATION), 0, 0);
        for len in 0..packet.len() {
            assert_eq!(Flow::v4(SOURCE, DESTINATION).verify(0, &packet[..len]), None);
        }
    }
}
