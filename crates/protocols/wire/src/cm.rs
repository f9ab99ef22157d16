//! The messages of communication management (IBA 12.6 to 12.11) as numbers and bytes, and the header of the IP CM
//! service (annex A11) in their private data. Reserved bits are zeros when written and ignored when read. The fields of
//! enhanced connection establishment (the vendor's ID, and what lies in the attribute modifier) are where the kernel
//! has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use crate::mad::Malformed;
use crate::mad::{BYTES, HEADER, Header};

/// Some bits of a MAD, the most significant one of its first byte being bit 0.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    width: usize,
}

/// The bits from bit `bit` of byte `byte` of a message on.
const fn at(byte: usize, bit: usize, width: usize) -> Place {
    Place { first: (HEADER + byte) * 8 + bit, width }
}

/// The attribute modifier of the common header.
const MODIFIER: Place = Place { first: 20 * 8, width: 32 };

/// A value in a MAD. A number may be in several places, the upper bits in the first.
trait Field {
    fn get(mad: &[u8; BYTES], places: &[Place]) -> Self;
    fn put(self, mad: &mut [u8; BYTES], places: &[Place]);
}

impl Place {
    /// The bytes that the bits are in, and how many bits of the last byte are behind them.
    fn bytes(self) -> (std::ops::RangeInclusive<usize>, usize) {
        let last = (self.first + self.width - 1) / 8;
        (self.first / 8..=last, (last + 1) * 8 - (self.first + self.width))
    }

    fn mask(self) -> u128 {
        (1 << self.width) - 1
    }

    fn get(self, mad: &[u8; BYTES]) -> u64 {
        let (bytes, behind) = self.bytes();
        let word = mad[bytes].iter().fold(0, |word, byte| word << 8 | u128::from(*byte));
        (word >> behind & self.mask()) as u64
    }

    /// Changes these bits and no others. Higher bits of `value` are cut off.
    fn put(self, mad: &mut [u8; BYTES], value: u64) {
        let (bytes, behind) = self.bytes();
        let mut word = (u128::from(value) & self.mask()) << behind;
        let mut mask = self.mask() << behind;
        for byte in mad[bytes].iter_mut().rev() {
            *byte = *byte & !(mask as u8) | word as u8;
            word >>= 8;
            mask >>= 8;
        }
    }
}

impl Field for u64 {
    fn get(mad: &[u8; BYTES], places: &[Place]) -> u64 {
        places.iter().fold(0, |value, place| value.checked_shl(place.width as u32).unwrap_or(0) | place.get(mad))
    }

    fn put(mut self, mad: &mut [u8; BYTES], places: &[Place]) {
        for place in places.iter().rev() {
            place.put(mad, self);
            self = self.checked_shr(place.width as u32).unwrap_or(0);
        }
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Field for $number {
            fn get(mad: &[u8; BYTES], places: &[Place]) -> $number {
                u64::get(mad, places) as $number
            }
            fn put(self, mad: &mut [u8; BYTES], places: &[Place]) {
                u64::from(self).put(mad, places);
            }
        }
    )+};
}

numbers!(u8, u16, u32);

impl Field for bool {
    fn get(mad: &[u8; BYTES], places: &[Place]) -> bool {
        u64::get(mad, places) != 0
    }

    fn put(self, mad: &mut [u8; BYTES], places: &[Place]) {
        u64::from(self).put(mad, places);
    }
}

/// Whole bytes.
impl<const N: usize> Field for [u8; N] {
    fn get(mad: &[u8; BYTES], places: &[Place]) -> [u8; N] {
        let mut bytes = [0; N];
        let first = places[0].first / 8;
        bytes.copy_from_slice(&mad[first..first + N]);
        bytes
    }

    fn put(self, mad: &mut [u8; BYTES], places: &[Place]) {
        let first = places[0].first / 8;
        mad[first..first + N].copy_from_slice(&self);
    }
}

/// Declares a message: its attribute, and for each field where it is.
macro_rules! message {
    ($(#[$meta:meta])* $name:ident = $attribute:literal {
        $($(#[$fmeta:meta])* $field:ident: $type:ty = $places:expr),+ $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type),+ }

        impl $name {
            /// Its attribute ID.
            pub const ATTRIBUTE: u16 = $attribute;

            /// The message as a MAD. The upper bits of values that do not fit their fields are cut off.
            pub fn encode(&self, tid: u64) -> [u8; BYTES] {
                let mut mad = Header { tid, attribute: Self::ATTRIBUTE, ..Header::default() }.encode();
                $(self.$field.put(&mut mad, &$places);)+
                mad
            }

            fn read(mad: &[u8; BYTES]) -> $name {
                $name { $($field: Field::get(mad, &$places)),+ }
            }

            /// The fields: each with its name, its places, and the bits of its type.
            #[cfg(test)]
            fn layout() -> Vec<(&'static str, Vec<Place>, usize)> {
                vec![$((stringify!($field), $places.to_vec(), 8 * size_of::<$type>())),+]
            }
        }

        /// Zeros.
        impl Default for $name {
            fn default() -> $name {
                $name::read(&[0; BYTES])
            }
        }
    };
}

message! {
    /// REQ (IBA 12.6.5): a request for communication.
    Req = 0x10 {
        /// The sender's communication ID.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// Enhanced connection establishment: the options.
        ece_options: u32 = [MODIFIER],
        /// Enhanced connection establishment: the vendor's ID, 24 bits.
        ece_vendor: u32 = [at(5, 0, 24)],
        /// The service that is asked for: see [`service_id`].
        service_id: u64 = [at(8, 0, 64)],
        /// The sender's adapter.
        local_ca_guid: u64 = [at(16, 0, 64)],
        /// Q_Key, for datagrams.
        local_qkey: u32 = [at(28, 0, 32)],
        /// The sender's QP, 24 bits.
        local_qpn: u32 = [at(32, 0, 24)],
        /// READs and atomics that the sender takes at once.
        responder_resources: u8 = [at(35, 0, 8)],
        /// 24 bits.
        local_eecn: u32 = [at(36, 0, 24)],
        /// READs and atomics that the sender will have under way.
        initiator_depth: u8 = [at(39, 0, 8)],
        /// 24 bits.
        remote_eecn: u32 = [at(40, 0, 24)],
        /// Time in which the receiver is to answer: 4.096 µs · 2^n, 5 bits.
        remote_cm_response_timeout: u8 = [at(43, 0, 5)],
        /// [`RC`], [`UC`] or [`EXTENDED`].
        transport_service: u8 = [at(43, 5, 2)],
        /// The sender grants credits.
        flow_control: bool = [at(43, 7, 1)],
        /// PSN of the receiver's first packet, 24 bits.
        starting_psn: u32 = [at(44, 0, 24)],
        /// Time in which the sender answers: 4.096 µs · 2^n, 5 bits.
        local_cm_response_timeout: u8 = [at(47, 0, 5)],
        /// Retries of the receiver's QP, 3 bits.
        retry_count: u8 = [at(47, 5, 3)],
        /// Partition.
        pkey: u16 = [at(48, 0, 16)],
        /// 1 to 5: 256 to 4096 bytes; 4 bits.
        path_mtu: u8 = [at(50, 0, 4)],
        /// There is a reliable datagram channel.
        rdc_exists: bool = [at(50, 4, 1)],
        /// RNR retries of the receiver's QP, 3 bits.
        rnr_retry_count: u8 = [at(50, 5, 3)],
        /// How often either side sends its message again, 4 bits.
        max_cm_retries: u8 = [at(51, 0, 4)],
        /// The sender's QP has an SRQ.
        srq: bool = [at(51, 4, 1)],
        /// [`XRC`], of [`EXTENDED`]; 3 bits.
        extended_transport: u8 = [at(51, 5, 3)],
        /// LID of the sender; 0xffff over RoCE.
        primary_local_lid: u16 = [at(52, 0, 16)],
        /// LID of the receiver; 0xffff over RoCE.
        primary_remote_lid: u16 = [at(54, 0, 16)],
        /// Address of the sender.
        primary_local_gid: [u8; 16] = [at(56, 0, 128)],
        /// Address of the receiver.
        primary_remote_gid: [u8; 16] = [at(72, 0, 128)],
        /// 20 bits.
        primary_flow_label: u32 = [at(88, 0, 20)],
        /// As `enum ibv_rate`, 6 bits.
        primary_packet_rate: u8 = [at(91, 2, 6)],
        /// As in a GRH.
        primary_traffic_class: u8 = [at(92, 0, 8)],
        /// As in a GRH.
        primary_hop_limit: u8 = [at(93, 0, 8)],
        /// Service level, 4 bits.
        primary_sl: u8 = [at(94, 0, 4)],
        /// No router is between the two.
        primary_subnet_local: bool = [at(94, 4, 1)],
        /// Time in which a packet is acknowledged: 4.096 µs · 2^n, 5 bits.
        primary_local_ack_timeout: u8 = [at(95, 0, 5)],
        /// As `primary_local_lid`, of the other path; 0: there is none.
        alternate_local_lid: u16 = [at(96, 0, 16)],
        /// As `primary_remote_lid`.
        alternate_remote_lid: u16 = [at(98, 0, 16)],
        /// As `primary_local_gid`.
        alternate_local_gid: [u8; 16] = [at(100, 0, 128)],
        /// As `primary_remote_gid`.
        alternate_remote_gid: [u8; 16] = [at(116, 0, 128)],
        /// As `primary_flow_label`.
        alternate_flow_label: u32 = [at(132, 0, 20)],
        /// As `primary_packet_rate`.
        alternate_packet_rate: u8 = [at(135, 2, 6)],
        /// As `primary_traffic_class`.
        alternate_traffic_class: u8 = [at(136, 0, 8)],
        /// As `primary_hop_limit`.
        alternate_hop_limit: u8 = [at(137, 0, 8)],
        /// As `primary_sl`.
        alternate_sl: u8 = [at(138, 0, 4)],
        /// As `primary_subnet_local`.
        alternate_subnet_local: bool = [at(138, 4, 1)],
        /// As `primary_local_ack_timeout`.
        alternate_local_ack_timeout: u8 = [at(139, 0, 5)],
        /// In the IP CM service, an [`IpHeader`] and 56 bytes of the program.
        private_data: [u8; 92] = [at(140, 0, 736)],
    }
}

message! {
    /// MRA (IBA 12.6.6): the message was received, and answering takes longer.
    Mra = 0x11 {
        /// The sender's communication ID.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// The receiver's.
        remote_comm_id: u32 = [at(4, 0, 32)],
        /// The message that was received, of [`answered`].
        message: u8 = [at(8, 0, 2)],
        /// Time that it takes: 4.096 µs · 2^n, 5 bits.
        service_timeout: u8 = [at(9, 0, 5)],
        /// The program's.
        private_data: [u8; 222] = [at(10, 0, 1776)],
    }
}

message! {
    /// REJ (IBA 12.6.7): a refusal.
    Rej = 0x12 {
        /// The sender's communication ID; 0 if it has none.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// The receiver's; 0 if it is not known.
        remote_comm_id: u32 = [at(4, 0, 32)],
        /// The message that is refused, of [`answered`].
        message: u8 = [at(8, 0, 2)],
        /// Bytes of `information`, at most 72.
        information_length: u8 = [at(9, 0, 7)],
        /// A number of [`reason`].
        reason: u16 = [at(10, 0, 16)],
        /// Details that the reason calls for (additional reject information).
        information: [u8; 72] = [at(12, 0, 576)],
        /// The program's.
        private_data: [u8; 148] = [at(84, 0, 1184)],
    }
}

message! {
    /// REP (IBA 12.6.8): the request is granted.
    Rep = 0x13 {
        /// The sender's communication ID.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// The receiver's.
        remote_comm_id: u32 = [at(4, 0, 32)],
        /// Enhanced connection establishment: the options.
        ece_options: u32 = [MODIFIER],
        /// Enhanced connection establishment: the vendor's ID, 24 bits.
        ece_vendor: u32 = [at(15, 0, 8), at(19, 0, 8), at(23, 0, 8)],
        /// Q_Key, for datagrams.
        local_qkey: u32 = [at(8, 0, 32)],
        /// The sender's QP, 24 bits; of XRC it is in `local_eecn`.
        local_qpn: u32 = [at(12, 0, 24)],
        /// 24 bits.
        local_eecn: u32 = [at(16, 0, 24)],
        /// PSN of the receiver's first packet, 24 bits.
        starting_psn: u32 = [at(20, 0, 24)],
        /// READs and atomics that the sender takes at once.
        responder_resources: u8 = [at(24, 0, 8)],
        /// READs and atomics that the sender will have under way.
        initiator_depth: u8 = [at(25, 0, 8)],
        /// Time that the sender's adapter takes to acknowledge: 4.096 µs · 2^n, 5 bits.
        target_ack_delay: u8 = [at(26, 0, 5)],
        /// The fate of the other path, 2 bits.
        failover_accepted: u8 = [at(26, 5, 2)],
        /// The sender grants credits.
        flow_control: bool = [at(26, 7, 1)],
        /// RNR retries of the receiver's QP, 3 bits.
        rnr_retry_count: u8 = [at(27, 0, 3)],
        /// The sender's QP has an SRQ.
        srq: bool = [at(27, 3, 1)],
        /// The sender's adapter.
        local_ca_guid: u64 = [at(28, 0, 64)],
        /// The program's.
        private_data: [u8; 196] = [at(36, 0, 1568)],
    }
}

message! {
    /// RTU (IBA 12.6.9): ready to use.
    Rtu = 0x14 {
        /// The sender's communication ID.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// The receiver's.
        remote_comm_id: u32 = [at(4, 0, 32)],
        /// The program's.
        private_data: [u8; 224] = [at(8, 0, 1792)],
    }
}

message! {
    /// DREQ (IBA 12.6.10): a request to end communication.
    Dreq = 0x15 {
        /// The sender's communication ID.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// The receiver's.
        remote_comm_id: u32 = [at(4, 0, 32)],
        /// The receiver's QP, 24 bits.
        remote_qpn: u32 = [at(8, 0, 24)],
        /// The program's.
        private_data: [u8; 220] = [at(12, 0, 1760)],
    }
}

message! {
    /// DREP (IBA 12.6.11): it has ended.
    Drep = 0x16 {
        /// The sender's communication ID.
        local_comm_id: u32 = [at(0, 0, 32)],
        /// The receiver's.
        remote_comm_id: u32 = [at(4, 0, 32)],
        /// The program's.
        private_data: [u8; 224] = [at(8, 0, 1792)],
    }
}

message! {
    /// SIDR_REQ (IBA 12.11.1): which QP serves datagrams for this service ID?
    SidrReq = 0x17 {
        /// The sender's number of the request.
        request_id: u32 = [at(0, 0, 32)],
        /// Partition.
        pkey: u16 = [at(4, 0, 16)],
        /// The service that is asked for: see [`service_id`].
        service_id: u64 = [at(8, 0, 64)],
        /// In the IP CM service, an [`IpHeader`] and 180 bytes of the program.
        private_data: [u8; 216] = [at(16, 0, 1728)],
    }
}

message! {
    /// SIDR_REP (IBA 12.11.2): this one.
    SidrRep = 0x18 {
        /// The number of the request.
        request_id: u32 = [at(0, 0, 32)],
        /// A number of [`sidr`].
        status: u8 = [at(4, 0, 8)],
        /// Bytes of `information`, at most 72.
        information_length: u8 = [at(5, 0, 8)],
        /// Enhanced connection establishment: the options.
        ece_options: u32 = [MODIFIER],
        /// Enhanced connection establishment: the vendor's ID, 24 bits.
        ece_vendor: u32 = [at(6, 0, 16), at(11, 0, 8)],
        /// The QP, 24 bits.
        qpn: u32 = [at(8, 0, 24)],
        /// The service of the request.
        service_id: u64 = [at(12, 0, 64)],
        /// The QP's queue key.
        qkey: u32 = [at(20, 0, 32)],
        /// Details that the status calls for.
        information: [u8; 72] = [at(24, 0, 576)],
        /// The program's.
        private_data: [u8; 136] = [at(96, 0, 1088)],
    }
}

/// `transport_service` of a [`Req`]: reliable connection.
pub const RC: u8 = 0;
/// Unreliable connection.
pub const UC: u8 = 1;
/// The value for a QP type that `extended_transport` names.
pub const EXTENDED: u8 = 3;
/// `extended_transport` of a [`Req`]: XRC.
pub const XRC: u8 = 1;

/// The LID of ports that have none.
pub const PERMISSIVE_LID: u16 = 0xffff;

/// The message that an [`Mra`] or [`Rej`] answers (IBA tables 107 and 108).
pub mod answered {
    /// A REQ.
    pub const REQ: u8 = 0;
    /// A REP.
    pub const REP: u8 = 1;
    /// Any other message; in an MRA, a LAP.
    pub const OTHER: u8 = 2;
}

/// Reasons of a [`Rej`] (IBA table 109) that are sent or heeded, as `enum ib_cm_rej_reason` has them.
pub mod reason {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const NO_QP: u16 = 1;
    pub const TIMEOUT: u16 = 4;
    pub const UNSUPPORTED: u16 = 5;
    pub const INVALID_COMM_ID: u16 = 6;
    pub const INVALID_SERVICE_ID: u16 = 8;
    pub const INVALID_TRANSPORT_TYPE: u16 = 9;
    pub const STALE_CONN: u16 = 10;
    pub const INVALID_MTU: u16 = 26;
    pub const CONSUMER_DEFINED: u16 = 28;
    pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Statuses of a [`SidrRep`] (IBA table 120) that are sent or heeded, as `enum ib_cm_sidr_status` has them.
pub mod sidr {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const SUCCESS: u8 = 0;
    pub const UNSUPPORTED: u8 = 1;
    pub const REJECT: u8 = 2;
    pub const NO_QP: u8 = 3;
}

/// Any message of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "all are MADs")]
pub enum Message {
    /// See [`Req`].
    Req(Req),
    /// See [`Mra`].
    Mra(Mra),
    /// See [`Rej`].
    Rej(Rej),
    /// See [`Rep`].
    Rep(Rep),
    /// See [`Rtu`].
    Rtu(Rtu),
    /// See [`Dreq`].
    Dreq(Dreq),
    /// See [`Drep`].
    Drep(Drep),
    /// See [`SidrReq`].
    SidrReq(SidrReq),
    /// See [`SidrRep`].
    SidrRep(SidrRep),
    /// LAP: a request for another path, which connections over RoCE do not have.
    Lap,
    /// APR: the answer to that.
    Apr,
}

/// A MAD as header and message.
///
/// # Errors
/// If it is none of communication management, or says of itself that it holds more than it can.
pub fn parse(mad: &[u8; BYTES]) -> Result<(Header, Message), Malformed> {
    let header = Header::parse(mad)?;
    let fits = |length: u8| if length <= 72 { Ok(()) } else { Err(Malformed::Information(length)) };
    let message = match header.attribute {
        Req::ATTRIBUTE => Message::Req(Req::read(mad)),
        Mra::ATTRIBUTE => Message::Mra(Mra::read(mad)),
        Rej::ATTRIBUTE => {
            let rej = Rej::read(mad);
            fits(rej.information_length)?;
            Message::Rej(rej)
        }
        Rep::ATTRIBUTE => Message::Rep(Rep::read(mad)),
        Rtu::ATTRIBUTE => Message::Rtu(Rtu::read(mad)),
        Dreq::ATTRIBUTE => Message::Dreq(Dreq::read(mad)),
        Drep::ATTRIBUTE => Message::Drep(Drep::read(mad)),
        SidrReq::ATTRIBUTE => Message::SidrReq(SidrReq::read(mad)),
        SidrRep::ATTRIBUTE => {
            let rep = SidrRep::read(mad);
            fits(rep.information_length)?;
            Message::SidrRep(rep)
        }
        0x19 => Message::Lap,
        0x1a => Message::Apr,
        attribute => return Err(Malformed::Attribute(attribute)),
    };
    Ok((header, message))
}

impl Message {
    /// The message as a MAD; none of what is only recognised.
    pub fn encode(&self, tid: u64) -> Option<[u8; BYTES]> {
        Some(match self {
            Message::Req(message) => message.encode(tid),
            Message::Mra(message) => message.encode(tid),
            Message::Rej(message) => message.encode(tid),
            Message::Rep(message) => message.encode(tid),
            Message::Rtu(message) => message.encode(tid),
            Message::Dreq(message) => message.encode(tid),
            Message::Drep(message) => message.encode(tid),
            Message::SidrReq(message) => message.encode(tid),
            Message::SidrRep(message) => message.encode(tid),
            Message::Lap | Message::Apr => return None,
        })
    }
}

impl Req {
    /// Returns true if the connection is one of XRC.
    pub fn is_xrc(&self) -> bool {
        self.transport_service == EXTENDED && self.extended_transport == XRC
    }
}

/// Port space of [`service_id`]: TCP.
pub const PORTS_TCP: u16 = 0x0106;
/// UDP.
pub const PORTS_UDP: u16 = 0x0111;

/// The service ID of a port (annex A11.2.1).
pub fn service_id(space: u16, port: u16) -> u64 {
    u64::from(space) << 16 | u64::from(port)
}

/// The header of the IP CM service, the first bytes of the private data of a [`Req`] or [`SidrReq`] (annex A11.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// The port of the asking end.
    pub source_port: u16,
    /// Its address; both are of one family.
    pub source: IpAddr,
    /// The address of the end that is asked.
    pub destination: IpAddr,
}

impl IpHeader {
    /// Its bytes.
    pub const BYTES: usize = 36;

    /// Reads it from private data; None for another version, or for addresses of another family than IPv4 and IPv6.
    pub fn read(private_data: &[u8]) -> Option<IpHeader> {
        let (header, _) = private_data.split_first_chunk::<{ IpHeader::BYTES }>()?;
        if header[0] != 0 {
            return None;
        }
        let version = header[1] >> 4;
        let address = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&header[at..at + 16]);
            match version {
                4 => Some(Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]).into()),
                6 => Some(Ipv6Addr::from(bytes).into()),
                _ => None,
            }
        };
        let source_port = u16::from_be_bytes([header[2], header[3]]);
        Some(IpHeader { source_port, source: address(4)?, destination: address(20)? })
    }

    /// The header as bytes.
    ///
    /// # Panics
    /// If the addresses are of two families.
    pub fn encode(&self) -> [u8; IpHeader::BYTES] {
        assert_eq!(self.source.is_ipv4(), self.destination.is_ipv4(), "addresses of one family");
        let mut header = [0; IpHeader::BYTES];
        header[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        header[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => header[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => header[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mistyped place would be read and written alike, and so go unnoticed where only one program speaks.
    #[test]
    fn no_bit_is_in_two_fields_and_bytes_fill_theirs() {
        let messages = [
            Req::layout(),
            Mra::layout(),
            Rej::layout(),
            Rep::layout(),
            Rtu::layout(),
            Dreq::layout(),
            Drep::layout(),
            SidrReq::layout(),
            SidrRep::layout(),
        ];
        for message in messages {
            let mut taken = [""; BYTES * 8];
            for (name, places, room) in &message {
                let bits: usize = places.iter().map(|place| place.width).sum();
                assert!(bits == *room || bits < *room && *room <= 64, "{name}: {bits} bits in {room}");
                for bit in places.iter().flat_map(|place| place.first..place.first + place.width) {
                    assert_eq!(taken[bit], "", "{name}: bit {bit}");
                    taken[bit] = name;
                }
            }
            // Private data are the end of each message.
            assert_eq!((taken[BYTES * 8 - 1], message.last().unwrap().0), ("private_data", "private_data"));
        }
    }

    #[test]
    fn bits_are_put_where_they_belong_and_nowhere_else() {
        let mut mad = [0xff; BYTES];
        Place { first: 13, width: 7 }.put(&mut mad, 0x1_00);
        assert_eq!(mad[1..3], [0xf8, 0x0f]);
        Place { first: 13, width: 7 }.put(&mut mad, 0x55);
        assert_eq!(mad[1..3], [0xfd, 0x5f]);
        assert_eq!(Place { first: 13, width: 7 }.get(&mad), 0x55);
        0x12_3456u32.put(&mut mad, &[at(0, 0, 8), at(4, 0, 16)]);
        assert_eq!((mad[HEADER], &mad[HEADER + 4..HEADER + 6]), (0x12, &[0x34, 0x56][..]));
        assert_eq!(u32::get(&mad, &[at(0, 0, 8), at(4, 0, 16)]), 0x12_3456);
        0x0123_4567_89ab_cdefu64.put(&mut mad, &[at(0, 0, 64)]);
        assert_eq!(u64::get(&mad, &[at(0, 0, 64)]), 0x0123_4567_89ab_cdef);
    }

    #[test]
    fn the_header_of_ip_has_addresses_of_one_family_and_a_version() {
        let v6 =
            IpHeader { source_port: 0x1234, source: "fe80::1".parse().unwrap(), destination: "::1".parse().unwrap() };
        let bytes = v6.encode();
        assert_eq!((bytes[0], bytes[1], &bytes[2..4]), (0, 0x60, &[0x12, 0x34][..]));
        assert_eq!(IpHeader::read(&bytes), Some(v6));
        let v4 = IpHeader { source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), ..v6 };
        assert_eq!(IpHeader::read(&v4.encode()), Some(v4));
        for (at, value) in [(0, 0x10), (1, 0x50)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(IpHeader::read(&bytes), None);
        }
        assert_eq!(IpHeader::read(&bytes[..35]), None);
    }
}
