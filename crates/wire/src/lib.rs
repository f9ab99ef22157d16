//! RoCEv2 packets as bytes (IBA vol. 1 ch. 9, annexes A14, A17 and A19): headers and opcodes, parsed and emitted, and the
//! invariant CRC. No I/O, no allocation, no policy: what a packet means to a QP is the business of `vervain-transport`.

#![forbid(unsafe_code)]

/// The UDP port of RoCE v2 (IANA).
pub const UDP_PORT: u16 = 4791;

/// All headers of a packet. Which extended headers there are follows from the opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// XRC: the SRQ number (XRCETH).
    pub srqn: Option<u32>,
    /// Datagrams.
    pub deth: Option<Deth>,
    /// RDMA.
    pub reth: Option<Reth>,
    /// Atomics.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgements and READ responses.
    pub aeth: Option<Aeth>,
    /// The word that an atomic answers with.
    pub atomic_ack: Option<u64>,
    /// Immediate data, as the four bytes lie in the packet.
    pub imm: Option<[u8; 4]>,
    /// The key that a SEND invalidates (IETH).
    pub invalidate: Option<u32>,
    /// RDMA FLUSH: placement type and selectivity level (FETH).
    pub flush: Option<(u8, u8)>,
}

/// Base transport header (IBA 9.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bth {
    /// See [`opcode`].
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// Migration request.
    pub migration: bool,
    /// Bytes of padding, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination QP, 24 bits.
    pub dest_qpn: u32,
    /// Asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

/// Datagram extended transport header (IBA 9.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source QP, 24 bits.
    pub source_qpn: u32,
}

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reth {
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

/// Atomic extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtomicEth {
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

/// ACK extended transport header (IBA 9.3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aeth {
    /// Syndrome (IBA table 44).
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}
