//! The invariant CRC (IBA 7.8.1, annex A17.3.3): CRC-32 over everything that no switch or router may change, from the
//! IP header to the padding. Fields that may change count as ones: 8 bytes in place of the LRH, of IPv4 TOS, TTL and
//! checksum, of IPv6 traffic class, flow label and hop limit, the UDP checksum, and the byte of the BTH with FECN and
//! BECN.
//!
//! A sender makes a [`Flow`] for packets of the same addresses and ports, and asks it for the [`Flow::icrc`] of each. A
//! receiver calls [`Flow::verify`].

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use crate::headers::{BTH_LEN, MAX_HEADERS};
use crate::parse::ICRC_LEN;

/// Bytes of ones that stand for the LRH.
const LRH_LEN: usize = 8;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Bytes that crc32fast takes in at a time; fewer at the end cost more than a block.
const BLOCK: usize = 16;
/// Bytes of the LRH that a pseudo-header leaves out. The CRC register begins as four bytes of ones, which the first
/// four of the LRH turn into zeros. A register of zeros stays zeros over zeros, so that any number of those may stand
/// in front.
const CANCELLED: usize = 4;
/// The longest pseudo-header (rest of the LRH, IPv6, UDP), and zeros in front of it that fill the first block.
const PSEUDO_LEN: usize = (LRH_LEN - CANCELLED + IPV6_LEN + UDP_LEN).next_multiple_of(BLOCK);
/// Offset of the headers in a pseudo-header.
const UDP: usize = PSEUDO_LEN - UDP_LEN;
const IPV4: usize = UDP - IPV4_LEN;
const IPV6: usize = UDP - IPV6_LEN;

/// "Don't fragment" among the flags of an IPv4 header.
const DONT_FRAGMENT: u16 = 0x4000;
/// "Don't fragment" in the two bytes behind the identification, as the CRC register holds them.
const DF: u32 = 0x40;

/// The part of an IPv4 header that the ICRC covers and a UDP socket does not report; without meaning for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untold {
    /// Identification.
    pub id: u16,
    /// True if routers must not cut the packet.
    pub dont_fragment: bool,
}

impl Untold {
    /// The value for a packet with DF, which Vervain sets in all packets.
    pub const fn with_df(id: u16) -> Untold {
        Untold { id, dont_fragment: true }
    }
}

/// All packets from one address and port to another. Packets are without IPv4 options and IPv6 extension headers
/// (A17.3.1). Vervain's own have DF set.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// The CRC register behind LRH, IP and UDP header as the ICRC counts them, with lengths and identification of 0. A
    /// CRC is linear: what those fields have in a packet is added to it ([`Field`]).
    register: u32,
    is_v4: bool,
}

impl Flow {
    /// A flow over IPv4.
    pub fn v4(source: (Ipv4Addr, u16), destination: (Ipv4Addr, u16)) -> Flow {
        Flow::v4_with_flags(source, destination, DONT_FRAGMENT)
    }

    /// A flow over IPv4 with these flags and fragment offset.
    fn v4_with_flags((source, source_port): (Ipv4Addr, u16), (destination, port): (Ipv4Addr, u16), flags: u16) -> Flow {
        let mut pseudo = [0; PSEUDO_LEN];
        pseudo[IPV4 + CANCELLED - LRH_LEN..IPV4].fill(0xff);
        let ip = &mut pseudo[IPV4..UDP];
        // TOS, TTL and checksum count as ones.
        ip[..2].copy_from_slice(&[0x45, 0xff]);
        ip[6..8].copy_from_slice(&flags.to_be_bytes());
        ip[8..12].copy_from_slice(&[0xff, 17, 0xff, 0xff]);
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..].copy_from_slice(&destination.octets());
        Flow { register: register_behind(pseudo, IPV4, source_port, port), is_v4: true }
    }

    /// A flow over IPv6.
    pub fn v6((source, source_port): (Ipv6Addr, u16), (destination, port): (Ipv6Addr, u16)) -> Flow {
        let mut pseudo = [0; PSEUDO_LEN];
        pseudo[IPV6 + CANCELLED - LRH_LEN..IPV6].fill(0xff);
        let ip = &mut pseudo[IPV6..UDP];
        // Traffic class, flow label and hop limit count as ones.
        ip[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
        ip[6..8].copy_from_slice(&[17, 0xff]);
        ip[8..24].copy_from_slice(&source.octets());
        ip[24..].copy_from_slice(&destination.octets());
        Flow { register: register_behind(pseudo, IPV6, source_port, port), is_v4: false }
    }

    /// The four bytes that end a packet. `covered` is the packet from the BTH to the padding, at least [`BTH_LEN`]
    /// bytes; `id` is the IPv4 identification (without meaning for IPv6).
    #[inline]
    pub fn icrc(&self, id: u16, covered: &[u8]) -> [u8; ICRC_LEN] {
        let udp_len = (UDP_LEN + covered.len() + ICRC_LEN) as u16;
        let register = self.register
            ^ UDP_LENGTH.part(udp_len)
            ^ if self.is_v4 {
                IPV4_LENGTH.part(udp_len.wrapping_add(IPV4_LEN as u16)) ^ IPV4_ID.part(id)
            } else {
                IPV6_LENGTH.part(udp_len)
            };
        let (head, rest) = covered.split_at(head_len(covered.len()));
        let mut bytes = [0; BLOCK + MAX_HEADERS];
        // Zeros in front change nothing, and fill the first block.
        let start = head.len().wrapping_neg() % BLOCK;
        let end = start + head.len();
        bytes[start..end].copy_from_slice(head);
        // FECN and BECN.
        bytes[start + 4] = 0xff;
        // A register is taken in with the four bytes that follow it.
        for (byte, register) in bytes[start..].iter_mut().zip(register.to_le_bytes()) {
            *byte ^= register;
        }
        let mut crc = ZEROS.clone();
        crc.update(&bytes[..end]);
        // Most packets are short enough for one update. A second one costs 5 to 8 ns.
        if !rest.is_empty() {
            crc.update(rest);
        }
        crc.finalize().to_le_bytes()
    }

    /// Checks the ICRC of a UDP payload, and returns the fields that the IPv4 header must have had for it to be right;
    /// None: it is wrong, or the datagram is too short.
    ///
    /// A UDP socket reports neither the identification nor DF, which the ICRC covers. `expected` with DF is tried
    /// first. Since a CRC is linear, the difference shows in which of these 17 bits the header differs, if the packet
    /// differs in no other; a damaged packet passes for one with other bits there once in 32,768 times. A caller that
    /// knows which ones a peer uses can compare.
    #[inline]
    pub fn verify(&self, expected: u16, datagram: &[u8]) -> Option<Untold> {
        let covered = datagram.len().checked_sub(ICRC_LEN).filter(|&len| len >= BTH_LEN)?;
        let (covered, sent) = datagram.split_at(covered);
        let difference = u32::from_le_bytes(self.icrc(expected, covered)) ^ u32::from_le_bytes(sent.try_into().ok()?);
        if difference == 0 {
            return Some(Untold::with_df(expected));
        }
        if !self.is_v4 {
            return None;
        }
        // Back over all that follows the identification, and over itself.
        let bytes_back = IPV4_LEN - 4 + UDP_LEN + covered.len();
        let changed = back(difference, bytes_back);
        let id = expected ^ (changed as u16).swap_bytes();
        (changed >> 16 & !DF == 0).then_some(Untold { id, dont_fragment: changed >> 16 & DF == 0 })
    }
}

/// The CRC register behind a pseudo-header, whose IP header begins at `ip`, once its UDP header is filled in.
fn register_behind(mut pseudo: [u8; PSEUDO_LEN], ip: usize, source: u16, destination: u16) -> u32 {
    let udp = &mut pseudo[UDP..];
    udp[..2].copy_from_slice(&source.to_be_bytes());
    udp[2..4].copy_from_slice(&destination.to_be_bytes());
    // The checksum counts as ones.
    udp[6..].fill(0xff);
    let length = (PSEUDO_LEN - ip + LRH_LEN - CANCELLED).next_multiple_of(BLOCK);
    let mut crc = ZEROS.clone();
    crc.update(&pseudo[PSEUDO_LEN - length..]);
    !crc.finalize()
}

/// The parts that a field of two bytes has in the CRC register behind a pseudo-header, for each value of either byte.
struct Field([[u32; 256]; 2]);

impl Field {
    /// The field at offset `at` of a pseudo-header.
    const fn at(at: usize) -> Field {
        Field([parts(PSEUDO_LEN - at), parts(PSEUDO_LEN - at - 1)])
    }

    /// The part of `value`.
    #[inline(always)]
    fn part(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.0[0][high as usize] ^ self.0[1][low as usize]
    }
}

static UDP_LENGTH: Field = Field::at(UDP + 4);
static IPV4_LENGTH: Field = Field::at(IPV4 + 2);
static IPV4_ID: Field = Field::at(IPV4 + 4);
static IPV6_LENGTH: Field = Field::at(IPV6 + 4);

/// The registers behind a byte of each value and zeros, `length` bytes in all.
const fn parts(length: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut bit = 0;
    while bit < 8 {
        let mut register: u32 = 1 << bit;
        let mut step = 0;
        while step < 8 * length {
            register = register >> 1 ^ POLYNOMIAL & (register & 1).wrapping_neg();
            step += 1;
        }
        table[1 << bit] = register;
        bit += 1;
    }
    let mut value: usize = 1;
    while value < 256 {
        let lowest = value & value.wrapping_neg();
        table[value] = table[lowest] ^ table[value ^ lowest];
        value += 1;
    }
    table
}

/// A register of zeros. Each packet begins with a copy, since a new one would look up the features of the processor.
static ZEROS: LazyLock<crc32fast::Hasher> = LazyLock::new(|| crc32fast::Hasher::new_with_initial(!0));

/// The number of bytes at the beginning of a packet that are copied behind the pseudo-header; the CRC reads the rest in
/// place. A full packet's rest is its payload: crc32fast folds 256 bytes at a time, and takes 20 ns more for 4,080
/// bytes than for 4,096 (an Intel Xeon with AVX-512).
#[inline]
fn head_len(covered: usize) -> usize {
    let odd = covered % 64;
    let head = if (BTH_LEN..=MAX_HEADERS).contains(&odd) { odd } else { 2 * BLOCK + covered % BLOCK };
    head.min(MAX_HEADERS).min(covered)
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
    const SOURCE_V6: (Ipv6Addr, u16) = (Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7), SOURCE.1);
    const DESTINATION_V6: (Ipv6Addr, u16) =
        (Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe12, 0x3456), DESTINATION.1);

    fn with(id: u16) -> Option<Untold> {
        Some(Untold::with_df(id))
    }

    fn packet(flow: &Flow, id: u16, len: usize) -> Vec<u8> {
        let mut packet: Vec<u8> = (0..BTH_LEN + len).map(|n| (n * 7 + n / 256) as u8).collect();
        packet.extend(flow.icrc(id, &packet));
        packet
    }

    /// CRC-32 bit by bit.
    fn crc(bytes: impl Iterator<Item = u8>) -> u32 {
        !bytes.fold(!0, |register, byte| {
            (0..8).fold(register ^ u32::from(byte), |register, _| {
                register >> 1 ^ POLYNOMIAL & (register & 1).wrapping_neg()
            })
        })
    }

    /// The IPv4 header of a packet with `covered` bytes from the BTH to the padding, as the ICRC counts it.
    fn ipv4_header(id: u16, covered: usize) -> Vec<u8> {
        let length = (20 + 8 + covered + 4) as u16;
        let mut ip = vec![0x45, 0xff];
        ip.extend([length, id, 0x4000].iter().flat_map(|field| field.to_be_bytes()));
        ip.extend([0xff, 17, 0xff, 0xff]);
        ip.extend([SOURCE.0, DESTINATION.0].iter().flat_map(Ipv4Addr::octets));
        ip
    }

    /// The same of IPv6.
    fn ipv6_header(covered: usize) -> Vec<u8> {
        let mut ip = vec![0x6f, 0xff, 0xff, 0xff];
        ip.extend(((8 + covered + 4) as u16).to_be_bytes());
        ip.extend([17, 0xff]);
        ip.extend([SOURCE_V6.0, DESTINATION_V6.0].iter().flat_map(Ipv6Addr::octets));
        ip
    }

    /// The ICRC as annex A17.3.3 writes it down.
    fn by_the_book(ip: Vec<u8>, covered: &[u8]) -> [u8; ICRC_LEN] {
        let length = (8 + covered.len() + 4) as u16;
        let udp = [SOURCE.1, DESTINATION.1, length, 0xffff].map(u16::to_be_bytes);
        let masked = covered.iter().enumerate().map(|(at, byte)| if at == 4 { 0xff } else { *byte });
        crc([0xff; 8].into_iter().chain(ip).chain(udp.into_iter().flatten()).chain(masked)).to_le_bytes()
    }

    #[test]
    fn packets_of_any_length_at_any_address_have_the_icrc_of_the_specification() {
        assert_eq!(crc(b"123456789".iter().copied()), 0xcbf4_3926);
        let (v4, v6) = (Flow::v4(SOURCE, DESTINATION), Flow::v6(SOURCE_V6, DESTINATION_V6));
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        for len in (BTH_LEN..2400).chain(4000..4200) {
            let covered = &bytes[len * 7 % 64..][..len];
            let id = (len as u16).wrapping_mul(31);
            assert_eq!(v4.icrc(id, covered), by_the_book(ipv4_header(id, len), covered), "IPv4, {len} bytes");
            assert_eq!(v6.icrc(id, covered), by_the_book(ipv6_header(len), covered), "IPv6, {len} bytes");
        }
    }

    #[test]
    fn the_payload_of_a_full_packet_is_taken_in_from_where_it_lies() {
        for headers in (BTH_LEN..=MAX_HEADERS).step_by(4) {
            for mtu in [256, 512, 1024, 2048, 4096] {
                assert_eq!(head_len(headers + mtu), headers, "{headers} + {mtu} bytes");
            }
            assert_eq!(head_len(headers), headers);
        }
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
            let other = Flow::v4_with_flags(SOURCE, DESTINATION, DONT_FRAGMENT ^ 1 << bit);
            for (id, expected) in [(0, 0), (0x1234, 0), (0xffff, 7)] {
                let found = set.verify(expected, &packet(&other, id, 100));
                assert_eq!(found, (bit == 14).then_some(Untold { id, dont_fragment: false }), "bit {bit}");
            }
        }
    }

    /// As often as the documentation of [`Flow::verify`] says: one in 32,768.
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

    /// A difference that would be another identification over IPv4 is damage over IPv6.
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
            datagram.extend(flow.icrc(0, &datagram));
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
