//! A request under way: its PSNs, packets, opcodes and what it counts for in the window.

use vervain_iba::{Opcode, Request, Status};
use vervain_wire::opcode;

use crate::config::Service;
use crate::psn;
use crate::window::PACKET_OVERHEAD;

/// Longest message (IBA 9.7.7).
const LONGEST: u64 = 1 << 31;

/// A request that has been begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub request: Request,
    pub first_psn: u32,
    /// Packets of the request, or of what answers it.
    pub packets: u32,
    /// Messages up to and with this one that take a receive.
    pub receives: u32,
}

impl Flight {
    /// Packets that a request takes, or what answers it; an empty message takes one.
    #[inline(always)]
    pub fn packets_of(request: &Request, mtu: u32) -> u32 {
        match request.opcode {
            // Its length is that of remote memory.
            Opcode::Flush => 1,
            _ => Flight::packets(request.length, mtu),
        }
    }

    /// Packets that `length` bytes take; an empty message takes one.
    #[inline]
    pub fn packets(length: u64, mtu: u32) -> u32 {
        // The length of most messages; a division takes as long as much of the rest.
        if length <= u64::from(mtu) { 1 } else { length.div_ceil(u64::from(mtu)) as u32 }
    }

    /// Returns true if the message takes a receive.
    #[inline]
    pub fn takes_receive(&self) -> bool {
        takes_receive(self.request.opcode)
    }

    /// PSN behind the last packet.
    #[inline]
    pub fn end_psn(&self) -> u32 {
        psn::add(self.first_psn, self.packets)
    }

    /// Bytes that packets `from` to `to` count for in the window.
    #[inline]
    pub fn cost(&self, from: u32, to: u32, mtu: u32) -> u64 {
        let bytes_before = |packet: u32| (u64::from(packet) * u64::from(mtu)).min(self.request.length);
        u64::from(to - from) * PACKET_OVERHEAD + bytes_before(to) - bytes_before(from)
    }
}

/// Returns true if the responder answers with more than an acknowledgement.
#[inline]
pub(super) fn is_answered(operation: Opcode) -> bool {
    use Opcode::*;
    matches!(operation, Read | CompareSwap | FetchAdd | Flush | AtomicWrite)
}

/// Returns true if the message takes a receive.
#[inline]
pub(super) fn takes_receive(operation: Opcode) -> bool {
    use Opcode::*;
    matches!(operation, Send | SendImm | SendInv | WriteImm)
}

/// The status of a request that cannot be sent at all, as by the local link; None: it can be sent.
pub(super) fn unsendable(request: &Request, service: Service, max_rd_atomic: u8) -> Option<Status> {
    use Opcode::*;
    if request.length > LONGEST {
        return Some(Status::LocalLength);
    }
    if service == Service::Uc {
        // IBA table 10: UC has SEND and WRITE only.
        let known = matches!(request.opcode, Send | SendImm | Write | WriteImm);
        return (!known).then_some(Status::LocalQpOperation);
    }
    if matches!(request.opcode, CompareSwap | FetchAdd | AtomicWrite) && request.length != 8 {
        return Some(Status::LocalLength);
    }
    (is_answered(request.opcode) && max_rd_atomic == 0).then_some(Status::LocalQpOperation)
}

/// The operation code of a SEND or WRITE packet by its place in the message (IBA table 38).
#[inline]
pub(super) fn posted_code(operation: Opcode, is_first: bool, is_last: bool) -> u8 {
    use Opcode::*;
    let is_write = matches!(operation, Write | WriteImm);
    match (is_first, is_last) {
        (false, false) if is_write => opcode::WRITE_MIDDLE,
        (false, false) => opcode::SEND_MIDDLE,
        (true, false) if is_write => opcode::WRITE_FIRST,
        (true, false) => opcode::SEND_FIRST,
        (false, true) => match operation {
            SendImm => opcode::SEND_LAST_IMM,
            SendInv => opcode::SEND_LAST_INVALIDATE,
            Write => opcode::WRITE_LAST,
            WriteImm => opcode::WRITE_LAST_IMM,
            _ => opcode::SEND_LAST,
        },
        (true, true) => match operation {
            SendImm => opcode::SEND_ONLY_IMM,
            SendInv => opcode::SEND_ONLY_INVALIDATE,
            Write => opcode::WRITE_ONLY,
            WriteImm => opcode::WRITE_ONLY_IMM,
            _ => opcode::SEND_ONLY,
        },
    }
}
