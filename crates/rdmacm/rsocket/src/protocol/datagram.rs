//! The headers of datagrams: over UDP, where the peer's QP is not known yet, and between UD QPs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of a receive, and the most of a datagram with its header.
pub const MAX_BYTES: usize = 2048;

/// The queue key of all QPs (RDMA_UDP_QKEY).
pub const QUEUE_KEY: u32 = 0x0123_4567;

/// Bytes of the longest header.
pub const MAX_HEADER_BYTES: usize = UDP_V6;

const TAG: u32 = 0x5555_5555;
const UDP_V4: usize = 16;
const UDP_V6: usize = 28;
const QP_V4: usize = 8;
const QP_V6: usize = 24;

/// The kind of a datagram over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has the program's data behind its header.
    Data,
    /// It only says which QP the sender has.
    Control,
}

const KIND_DATA: u8 = 0;
const KIND_CONTROL: u8 = 7;

/// The header of a datagram over UDP (struct ds_udp_header).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Its kind.
    pub kind: Kind,
    /// The sender's UD QP, 24 bits.
    pub qp_number: u32,
    /// The address of that QP.
    pub address: IpAddr,
}

/// A header of up to [`MAX_HEADER_BYTES`] bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; MAX_HEADER_BYTES],
    length: usize,
}

impl Encoded {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl UdpHeader {
    /// In network order.
    pub fn encode(&self) -> Encoded {
        let mut bytes = [0; MAX_HEADER_BYTES];
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[5] = if self.kind == Kind::Data { KIND_DATA } else { KIND_CONTROL };
        bytes[8..12].copy_from_slice(&(self.qp_number & 0xff_ffff).to_be_bytes());
        let (version, length) = match self.address {
            IpAddr::V4(address) => {
                bytes[12..16].copy_from_slice(&address.octets());
                (4, UDP_V4)
            }
            IpAddr::V6(address) => {
                bytes[12..28].copy_from_slice(&address.octets());
                (6, UDP_V6)
            }
        };
        (bytes[4], bytes[6]) = (version, length as u8);
        Encoded { bytes, length }
    }

    /// The header and the payload; None if the datagram is not of this protocol, or not of the family of the address
    /// that it came from.
    pub fn decode<'a>(datagram: &'a [u8], from: &SocketAddr) -> Option<(UdpHeader, &'a [u8])> {
        let (version, length) = if from.is_ipv4() { (4, UDP_V4) } else { (6, UDP_V6) };
        let (header, payload) = datagram.split_at_checked(length)?;
        let is_ours = header[..4] == TAG.to_be_bytes() && header[4] == version && usize::from(header[6]) == length;
        let kind = match header[5] {
            KIND_DATA => Kind::Data,
            KIND_CONTROL => Kind::Control,
            _ => return None,
        };
        let address = match header[12..] {
            [a, b, c, d] => Ipv4Addr::new(a, b, c, d).into(),
            ref long => Ipv6Addr::from(<[u8; 16]>::try_from(long).expect("16 bytes")).into(),
        };
        let qp_number = u32::from_be_bytes(*header[8..].first_chunk().expect("4 bytes")) & 0xff_ffff;
        is_ours.then_some((UdpHeader { kind, qp_number, address }, payload))
    }
}

/// The header of a datagram between QPs (struct ds_header): the sender's address.
pub fn encode_source(from: &SocketAddr) -> Encoded {
    let mut bytes = [0; MAX_HEADER_BYTES];
    bytes[2..4].copy_from_slice(&from.port().to_be_bytes());
    let (version, length) = match from {
        SocketAddr::V4(from) => {
            bytes[4..8].copy_from_slice(&from.ip().octets());
            (4, QP_V4)
        }
        SocketAddr::V6(from) => {
            bytes[4..8].copy_from_slice(&from.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&from.ip().octets());
            (6, QP_V6)
        }
    };
    (bytes[0], bytes[1]) = (version, length as u8);
    Encoded { bytes, length }
}

/// The sender's address and the payload; None if the datagram is not of this protocol.
pub fn decode_source(datagram: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let short = |at: usize| Some([*datagram.get(at)?, *datagram.get(at + 1)?]);
    let port = u16::from_be_bytes(short(2)?);
    match short(0)? {
        [4, length] if usize::from(length) == QP_V4 => {
            let (header, payload) = datagram.split_at_checked(QP_V4)?;
            let octets: [u8; 4] = *header[4..].first_chunk()?;
            Some((SocketAddrV4::new(octets.into(), port).into(), payload))
        }
        [6, length] if usize::from(length) == QP_V6 => {
            let (header, payload) = datagram.split_at_checked(QP_V6)?;
            let flow = u32::from_be_bytes(*header[4..].first_chunk()?);
            let octets: [u8; 16] = *header[8..].first_chunk()?;
            Some((SocketAddrV6::new(octets.into(), port, flow, 0).into(), payload))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_over_udp_is_laid_out_as_rdma_cores() {
        let header =
            UdpHeader { kind: Kind::Control, qp_number: 0x12_3456, address: Ipv4Addr::new(10, 0, 0, 1).into() };
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0x12, 0x34, 0x56, 10, 0, 0, 1];
        assert_eq!(header.encode().bytes(), bytes);
        let from = "10.0.0.1:7".parse().unwrap();
        let with_data = [&bytes[..], b"data"].concat();
        assert_eq!(UdpHeader::decode(&with_data, &from), Some((header, &b"data"[..])));
        // From an address of another family, or shorter, it is none.
        assert_eq!(UdpHeader::decode(&with_data, &"[::1]:7".parse().unwrap()), None);
        assert_eq!(UdpHeader::decode(&bytes[..15], &from), None);
    }

    #[test]
    fn a_header_between_qps_is_the_senders_address() {
        let four: SocketAddr = "10.0.0.1:258".parse().unwrap();
        assert_eq!(encode_source(&four).bytes(), [4, 8, 1, 2, 10, 0, 0, 1]);
        let six: SocketAddr = SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0x0102_0304, 0).into();
        assert_eq!(encode_source(&six).bytes()[..8], [6, 24, 0, 9, 1, 2, 3, 4]);
        for address in [four, six] {
            let datagram = [encode_source(&address).bytes(), b"x"].concat();
            assert_eq!(decode_source(&datagram), Some((address, &b"x"[..])));
            assert_eq!(decode_source(&datagram[..datagram.len() - 2]), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_none(bytes: Vec<u8>, six: bool) {
            let from = if six { "[::1]:1" } else { "1.1.1.1:1" }.parse().unwrap();
            if let Some((header, payload)) = UdpHeader::decode(&bytes, &from) {
                let again = [header.encode().bytes(), payload].concat();
                prop_assert_eq!(UdpHeader::decode(&again, &from), Some((header, payload)));
            }
            if let Some((source, payload)) = decode_source(&bytes) {
                let again = [encode_source(&source).bytes(), payload].concat();
                prop_assert_eq!(decode_source(&again), Some((source, payload)));
            }
        }
    }
}
