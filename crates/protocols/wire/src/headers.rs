//! The transport headers of a packet (IBA 9.2, 9.3), as numbers. [`crate::parse`] makes them from bytes, and
//! [`Headers::emit`] makes bytes of them.

use crate::opcode::{self, Format};

/// Bytes of the BTH.
pub const BTH_LEN: usize = 12;
/// Vervain's mark in the 7 reserved bits behind AckReq; all other devices send 0. It has several bits, so that a device
/// which gives one of them a meaning is not taken for Vervain.
pub const VERVAIN: u8 = 0x56;
/// The mark of a Vervain requester that takes [`opcode::GAPS`], and of answers to it that bring data: any part of a
/// READ is answered again, in PSN order. No bit is as in [`VERVAIN`].
pub const TAKES_GAPS: u8 = 0x29;
/// Bytes of the longest headers: BTH, XRCETH and AtomicETH.
pub const MAX_HEADERS: usize = BTH_LEN + 4 + 28;

/// All headers of a packet. Which extended headers there are follows from the opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// XRC: the SRQ number (XRCETH).
    pub srqn: Option<u32>,
    /// Datagrams, and [`opcode::PROBE`] and [`opcode::ECHO`].
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
    /// MigReq: the path of the sender's QP has migrated (IBA 17.2.8), as it has from the start where there is no other
    /// path.
    pub migration: bool,
    /// Bytes of padding, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Destination QP, 24 bits.
    pub dest_qpn: u32,
    /// Asks for an acknowledgement.
    pub ack_request: bool,
    /// The reserved field behind AckReq, 7 bits, which receivers ignore (IBA 9.2): [`VERVAIN`] or [`TAKES_GAPS`] from a
    /// sender that shows itself, else 0. Any other value means nothing.
    pub mark: u8,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Returns true if the sender shows that it is Vervain.
    #[inline]
    pub fn is_vervain(&self) -> bool {
        self.mark == VERVAIN || self.mark == TAKES_GAPS
    }
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
    /// Syndrome (IBA table 44): see [`crate::aeth::Syndrome`].
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Writes fields one behind the other. The array is as long as the longest headers, so no write can fail.
struct Writer<'a> {
    out: &'a mut [u8; MAX_HEADERS],
    at: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        self.out[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    #[inline(always)]
    fn word(&mut self, value: u32) {
        self.bytes(value.to_be_bytes());
    }

    #[inline(always)]
    fn double(&mut self, value: u64) {
        self.bytes(value.to_be_bytes());
    }

    #[inline(always)]
    fn reth(&mut self, reth: Reth) {
        self.double(reth.addr);
        self.word(reth.rkey);
        self.word(reth.length);
    }

    #[inline(always)]
    fn aeth(&mut self, aeth: Aeth) {
        self.word(u32::from(aeth.syndrome) << 24 | aeth.msn & 0xff_ffff);
    }
}

impl Headers {
    /// Writes the headers that the opcode calls for, and returns their length. One that is `None` is written as zeros,
    /// one that the opcode does not call for is left out; 24-bit fields are cut to size.
    #[inline(always)]
    pub fn emit(&self, out: &mut [u8; MAX_HEADERS]) -> usize {
        let bth = &self.bth;
        let mut to = Writer { out, at: 0 };
        to.bytes([bth.opcode, u8::from(bth.solicited) << 7 | u8::from(bth.migration) << 6 | (bth.pad & 3) << 4]);
        to.bytes(bth.pkey.to_be_bytes());
        // A17.9.3: a CNP is a packet with BECN.
        let becn = u32::from(bth.opcode == opcode::CNP) << 30;
        to.word(becn | bth.dest_qpn & 0xff_ffff);
        to.word(u32::from(bth.ack_request) << 31 | u32::from(bth.mark & 0x7f) << 24 | bth.psn & 0xff_ffff);

        if opcode::has_xrceth(bth.opcode) {
            to.word(self.srqn.unwrap_or_default() & 0xff_ffff);
        } else if opcode::has_deth(bth.opcode) {
            let deth = self.deth.unwrap_or_default();
            to.word(deth.qkey);
            to.word(deth.source_qpn & 0xff_ffff);
        }
        match opcode::format(bth.opcode) {
            Format::Plain => {}
            Format::Imm => to.bytes(self.imm.unwrap_or_default()),
            Format::Invalidate => to.word(self.invalidate.unwrap_or_default()),
            Format::Reth => to.reth(self.reth.unwrap_or_default()),
            Format::RethImm => {
                to.reth(self.reth.unwrap_or_default());
                to.bytes(self.imm.unwrap_or_default());
            }
            Format::Aeth => to.aeth(self.aeth.unwrap_or_default()),
            Format::AethAtomic => {
                to.aeth(self.aeth.unwrap_or_default());
                to.double(self.atomic_ack.unwrap_or_default());
            }
            Format::Atomic => {
                let atomic = self.atomic.unwrap_or_default();
                to.double(atomic.addr);
                to.word(atomic.rkey);
                to.double(atomic.swap_add);
                to.double(atomic.compare);
            }
            Format::Flush => {
                let (placement, selectivity) = self.flush.unwrap_or_default();
                to.word(u32::from(selectivity & 3) << 4 | u32::from(placement & 0xf));
                to.reth(self.reth.unwrap_or_default());
            }
        }
        to.at
    }
}
