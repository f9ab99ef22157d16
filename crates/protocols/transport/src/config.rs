//! The configuration of a QP's requester and responder: the attributes of `ibv_modify_qp`.

use vervain_wire::opcode;

use crate::host::Nanos;

/// The shortest ACK timeout. Programs that ask for less mean an adapter that answers without being scheduled; adapters
/// and rxe have a floor of this order too.
const SHORTEST_TIMEOUT: Nanos = 4096 << 10;
/// A silent peer is noticed after one to four times the timeout that the program has set (IBA 9.7.6.1.3). A peer whose
/// processor does other things needs most of that; what is lost is found by probes, long before.
const LENIENCE: Nanos = 3;

/// The largest `mtu` of a requester or responder, in bytes.
pub const LARGEST_MTU: u32 = 1 << 16;

/// A connected transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection (annex A14).
    Xrc,
}

impl Service {
    /// The upper three bits of the service's opcodes (IBA table 38).
    pub(crate) fn opcode_base(self) -> u8 {
        match self {
            Service::Rc => opcode::RC,
            Service::Uc => opcode::UC,
            Service::Xrc => opcode::XRC,
        }
    }
}

/// The sending side of a QP.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Transport service.
    pub service: Service,
    /// The peer's QP number.
    pub dest_qpn: u32,
    /// Partition key of outgoing packets.
    pub pkey: u16,
    /// True if the QP's path has migrated (IBV_MIG_MIGRATED): then all packets have MigReq set (IBA 17.2.8).
    pub migrated: bool,
    /// True if packets say that their sender is Vervain until the first answer comes (RC, XRC).
    pub introduces: bool,
    /// PSN of the first packet (sq_psn).
    pub first_psn: u32,
    /// Number of the first request, as [`crate::RequesterHost::request`] counts them.
    pub first_request: u32,
    /// Bytes of payload that a packet has at most, a power of two, and both ends alike. Over a network this is the path
    /// MTU of IBA, 256 to 4096; another carrier may take up to [`LARGEST_MTU`].
    pub mtu: u32,
    /// Local ACK timeout code: 4.096 µs × 2^timeout, 0 for never (IBA 9.7.6.1.3, 0 to 31).
    pub timeout: u8,
    /// How often a timeout is followed by another try (0 to 7).
    pub retry_cnt: u8,
    /// How often an RNR NAK is followed by another try; 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics outstanding at once; with 0 they end in a local QP operation error.
    pub max_rd_atomic: u8,
}

impl RequesterConfig {
    /// Nanoseconds to wait for an answer before a retry; 0: no limit.
    pub fn ack_timeout(&self) -> Nanos {
        vervain_iba::timer::ack_timeout_ns(self.timeout).map_or(0, |ns| (LENIENCE * ns).max(SHORTEST_TIMEOUT))
    }
}

/// The receiving side of a QP.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// Transport service.
    pub service: Service,
    /// The peer's QP number, to which answers go.
    pub dest_qpn: u32,
    /// Partition key of outgoing packets.
    pub pkey: u16,
    /// True if the QP's path has migrated (IBV_MIG_MIGRATED): then all packets have MigReq set (IBA 17.2.8).
    pub migrated: bool,
    /// PSN of the first packet to come (rq_psn).
    pub expected_psn: u32,
    /// Bytes of payload that a packet has at most, a power of two, and both ends alike. Over a network this is the path
    /// MTU of IBA, 256 to 4096; another carrier may take up to [`LARGEST_MTU`].
    pub mtu: u32,
    /// READs and atomics that the peer may have outstanding; with 0 they are invalid requests.
    pub max_dest_rd_atomic: u8,
    /// An acknowledgement leaves before its message completes here, as far as the host has room for it, and not with
    /// others at the next [`crate::Responder::poll_transmit`]: nothing with which a program answers the message comes
    /// before it.
    pub acks_first: bool,
}
