//! The responder's view of a QP of this process: what packets ask for is done by the device model's one responder, through
//! a lane of the QP's own, with the checks that every initiator meets.

use super::{PacketOut, pieces, wc_status};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use vervain_hca::mr::transfer::{self, Direction, Pieces};
use vervain_hca::process::peer::Location;
use vervain_hca::responder::{self, Responder};
use vervain_hca::rq::Receipt;
use vervain_hca::{Qp, access, wc};
use vervain_transport::{Access, Nak, Payload, Received, Refused, ResponderHost, Status, Transmit};

/// The lanes by which packets come into a QP: its own, and over XRC one for each SRQ. Guarded by the responder's lock.
#[derive(Default)]
pub struct Targets {
    known: HashMap<u32, Responder>,
}

impl Targets {
    /// The way into the QP, or over XRC into `srqn`.
    pub fn get(&mut self, qp: &Qp, srqn: u32) -> Result<&Responder, Nak> {
        // A lane is closed when its SRQ goes.
        if self.known.get(&srqn).is_none_or(|target| target.lane.open.load(Ordering::Relaxed) == 0) {
            if let Some(closed) = self.known.remove(&srqn) {
                closed.release();
            }
            self.known.insert(srqn, qp.way_in(srqn).map_err(nak)?);
        }
        self.known.get(&srqn).ok_or(Nak::Silence)
    }

    /// Gives all of them back.
    pub fn release(&mut self) {
        self.known.drain().for_each(|(_, target)| target.release());
    }

    /// The thread that was at it ended in the middle.
    pub fn leave(&self) {
        self.known.values().for_each(Responder::leave);
    }
}

/// A QP while a packet for it is handled.
pub struct Inbound<'a, O> {
    /// The QP.
    pub qp: &'a Qp,
    /// That of the peer.
    pub peer_qpn: u32,
    /// The ways into the QP.
    pub targets: &'a mut Targets,
    /// Where answers go.
    pub out: O,
}

impl<O: PacketOut> Inbound<'_, O> {
    /// The memory that a key names, as long as the target is entered.
    fn memory(target: &Responder, rkey: u32, addr: u64, len: u64, need: u32) -> Result<*mut u8, Nak> {
        match target.remote_memory(rkey, addr, len, need).map_err(nak)? {
            Location::Mapped(p) => Ok(p),
            // This process's own memory is all direct, and the null MR is for local use.
            Location::Unmapped(_) | Location::Null => Err(Nak::RemoteAccess),
        }
    }

    fn receipt(&self, received: &Received) -> Receipt {
        let (imm, wc_flags) = match (received.imm, received.invalidated) {
            (Some(imm), _) => (imm, wc::FLAG_IMM),
            (None, Some(key)) => (key, wc::FLAG_INV),
            (None, None) => (0, 0),
        };
        Receipt {
            status: wc::SUCCESS,
            opcode: if received.write { wc::OP_RECV_RDMA_WITH_IMM } else { wc::OP_RECV },
            byte_len: received.length,
            imm,
            src_qp: self.peer_qpn,
            wc_flags,
            ..Receipt::default()
        }
    }
}

impl<O: PacketOut> ResponderHost for Inbound<'_, O> {
    fn check(&mut self, srqn: u32, rkey: u32, addr: u64, len: u64, wanted: Access) -> Result<(), Nak> {
        let target = self.targets.get(self.qp, srqn)?;
        let _mark = target.enter_in_hand().map_err(nak)?;
        if let Access::Flush(placement) = wanted {
            return target.check_flush(rkey, addr, len, placement).map_err(nak);
        }
        if len == 0 {
            return Ok(());
        }
        let need = match wanted {
            Access::Write => access::REMOTE_WRITE,
            Access::Read => access::REMOTE_READ,
            Access::Atomic | Access::Flush(_) => access::REMOTE_ATOMIC,
        };
        target.remote_memory(rkey, addr, len, need).map(drop).map_err(nak)
    }

    fn write(&mut self, srqn: u32, rkey: u32, addr: u64, data: &[u8], last: bool) -> Result<(), Nak> {
        let target = self.targets.get(self.qp, srqn)?;
        let _mark = target.enter_in_hand().map_err(nak)?;
        let at = Self::memory(target, rkey, addr, data.len() as u64, access::REMOTE_WRITE)?;
        // SAFETY: `memory` has checked `data.len()` bytes at `at` against the key, inside the mark.
        unsafe { transfer::copy_direct(Direction::Write, at, &pieces(data), last) }.map_err(|_| Nak::RemoteOperation)
    }

    fn atomic(&mut self, srqn: u32, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        let target = self.targets.get(self.qp, srqn)?;
        let _mark = target.enter_in_hand().map_err(nak)?;
        let at = Self::memory(target, rkey, addr, 8, access::REMOTE_ATOMIC)?;
        if !(at as usize).is_multiple_of(8) {
            return Err(Nak::InvalidRequest);
        }
        let (compare_add, swap) = compare.map_or((swap_add, 0), |c| (c, swap_add));
        // SAFETY: 8 aligned bytes, checked against the key inside the mark.
        unsafe { transfer::atomic(at, compare.is_some(), compare_add, swap) }.map_err(|_| Nak::RemoteOperation)
    }

    fn atomic_write(&mut self, srqn: u32, rkey: u32, addr: u64, value: u64) -> Result<(), Nak> {
        self.write(srqn, rkey, addr, &value.to_ne_bytes(), true)
    }

    fn claim(&mut self, srqn: u32) -> Result<(u32, u64), Nak> {
        let target = self.targets.get(self.qp, srqn)?;
        let _mark = target.enter_in_hand().map_err(nak)?;
        let wqe = target.claim().map_err(nak)?;
        Ok((wqe, target.receive_room(wqe)))
    }

    fn fill(&mut self, srqn: u32, receive: u32, offset: u64, data: &[u8], last: bool) -> Result<(), Nak> {
        let target = self.targets.get(self.qp, srqn)?;
        let _mark = target.enter_in_hand().map_err(nak)?;
        let mut done = 0;
        while done < data.len() {
            let left = (data.len() - done) as u64;
            let found = target.receive_memory(receive, offset + done as u64, left).map_err(nak)?;
            let (place, n) = found.map(|(place, n, ..)| (place, n as usize)).ok_or(Nak::RemoteOperation)?;
            if let Location::Mapped(at) = place {
                let part = pieces(&data[done..done + n]);
                // SAFETY: the receive's memory, `n` bytes, was just checked against its key, inside the mark.
                unsafe { transfer::copy_direct(Direction::Write, at, &part, last && done + n == data.len()) }
                    .map_err(|_| Nak::RemoteOperation)?;
            }
            done += n;
        }
        Ok(())
    }

    fn invalidate(&mut self, srqn: u32, rkey: u32) -> Result<(), Nak> {
        let target = self.targets.get(self.qp, srqn)?;
        let _mark = target.enter_in_hand().map_err(nak)?;
        target.invalidate(rkey).map_err(nak)
    }

    fn complete(&mut self, srqn: u32, receive: u32, received: &Received) {
        let receipt = self.receipt(received);
        if let Ok(target) = self.targets.get(self.qp, srqn)
            && let Ok(_mark) = target.enter_in_hand()
        {
            target.complete_receive(receive, &receipt, received.solicited);
        }
    }

    fn spoil(&mut self, srqn: u32, receive: u32, received: &Received, status: Status, _nak: Nak) {
        let receipt = self.receipt(received);
        if let Ok(target) = self.targets.get(self.qp, srqn)
            && let Ok(_mark) = target.enter_in_hand()
        {
            target.spoil_receive(receive, &receipt, wc_status(status));
        }
    }

    fn unclaim(&mut self, srqn: u32, receive: u32) {
        if let Ok(target) = self.targets.get(self.qp, srqn) {
            target.unclaim_in_hand(receive);
        }
    }

    fn fail(&mut self, nak: Nak) {
        self.qp.refused(match nak {
            Nak::InvalidRequest => responder::Nak::InvalidRequest,
            Nak::RemoteAccess => responder::Nak::RemoteAccess,
            _ => responder::Nak::RemoteOperation,
        });
    }

    fn credits(&mut self) -> Option<u32> {
        self.qp.receives_waiting()
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let Payload::Memory { srqn, rkey, addr, len } = packet.payload else {
            return self.out.push(packet.headers, &Pieces::new());
        };
        // Not now: it goes on when the process does, or not at all when the QP is done for.
        let later = |nak: Nak| if nak == Nak::Silence { Refused::Full } else { Refused::Memory };
        let target = self.targets.get(self.qp, srqn).map_err(later)?;
        let _mark = target.enter().map_err(|_| Refused::Full)?;
        let len = u64::from(len);
        let at = Self::memory(target, rkey, addr, len, access::REMOTE_READ).map_err(|_| Refused::Memory)?;
        let mut from = Pieces::new();
        from.push(at, len);
        self.out.push(packet.headers, &from)
    }
}

/// What the device model says against a request, in the protocol's words.
pub fn nak(nak: responder::Nak) -> Nak {
    match nak {
        responder::Nak::Silence | responder::Nak::Paused => Nak::Silence,
        responder::Nak::ReceiverNotReady(code) => Nak::ReceiverNotReady(code),
        responder::Nak::InvalidRequest => Nak::InvalidRequest,
        responder::Nak::RemoteAccess => Nak::RemoteAccess,
        responder::Nak::RemoteOperation => Nak::RemoteOperation,
    }
}
