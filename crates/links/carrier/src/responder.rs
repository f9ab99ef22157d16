//! The responder's end of a connection. The device model's one responder carries out the packets' requests, through a
//! lane of the QP's own, with the same checks as for every initiator. The lane is entered once for packets that are
//! handled together.

use super::{AsPieces, PacketOut};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::responder::{Barred, Responder, Spoilt, Visit};
use vervain_hca::rq::Receipt;
use vervain_hca::{Qp, Right, Status, wc};
use vervain_transport::{Data, Nak, Payload, Received, Refused, ResponderHost, Target, Transmit};
use vervain_wire::opcode;

/// The lanes by which packets enter a QP: its own, and over XRC one for each SRQ. Guarded by the responder's lock.
#[derive(Default)]
pub struct Lanes {
    /// The QP's own.
    own: Option<Box<Responder>>,
    /// By SRQ number.
    xrc: HashMap<u32, Box<Responder>>,
    /// The lane entered for the packets in hand.
    visit: Option<(u32, Visit)>,
}

impl Lanes {
    /// The lane into the QP, or over XRC into `srqn`.
    pub fn get(&mut self, qp: &Qp, srqn: u32) -> Result<&Responder, Nak> {
        self.leave();
        let lane = self.take(qp, srqn)?;
        Ok(if srqn == 0 { self.own.insert(lane) } else { self.xrc.entry(srqn).or_insert(lane) })
    }

    #[inline]
    fn put_back(&mut self, srqn: u32, lane: Box<Responder>) {
        if srqn == 0 {
            self.own = Some(lane);
        } else {
            self.xrc.insert(srqn, lane);
        }
    }

    /// Takes the lane out, or makes it. A lane is closed when its SRQ goes.
    #[inline]
    fn take(&mut self, qp: &Qp, srqn: u32) -> Result<Box<Responder>, Nak> {
        match if srqn == 0 { self.own.take() } else { self.xrc.remove(&srqn) } {
            Some(lane) if lane.lane.open.load(Ordering::Relaxed) != 0 => return Ok(lane),
            Some(closed) => closed.release(),
            None => {}
        }
        qp.way_in(srqn).map(Box::new)
    }

    /// Enters the lane by `enter`, unless it is entered for the packets in hand already.
    #[inline(always)]
    fn visit(&mut self, qp: &Qp, srqn: u32, enter: Enter) -> Result<&Visit, Nak> {
        if self.visit.as_ref().is_none_or(|(entered, _)| *entered != srqn) {
            self.enter(qp, srqn, enter)?;
        }
        match &self.visit {
            Some((_, visit)) => Ok(visit),
            None => Err(Nak::Silence),
        }
    }

    /// Leaves the lane that is entered, and enters this one.
    #[inline(never)]
    fn enter(&mut self, qp: &Qp, srqn: u32, enter: Enter) -> Result<(), Nak> {
        self.leave();
        match enter(self.take(qp, srqn)?) {
            Ok(visit) => {
                self.visit = Some((srqn, visit));
                Ok(())
            }
            Err((lane, barred)) => {
                self.put_back(srqn, lane);
                Err(barred.into())
            }
        }
    }

    /// Leaves the lane: the packets in hand are handled, or its thread has ended in the middle.
    #[inline]
    pub fn leave(&mut self) {
        if let Some((srqn, visit)) = self.visit.take() {
            self.put_back(srqn, visit.leave());
        }
    }

    /// Gives all lanes back.
    pub fn release(&mut self) {
        self.leave();
        self.own.take().into_iter().chain(self.xrc.drain().map(|(_, lane)| lane)).for_each(|lane| lane.release());
    }
}

/// A way to enter a lane.
type Enter = fn(Box<Responder>) -> Result<Visit, (Box<Responder>, Barred)>;

/// A QP while packets for it are handled together. Dropping this leaves the lane that was entered.
pub struct Inbound<'a, O> {
    /// The QP.
    pub qp: &'a Qp,
    /// Number of the peer's QP.
    pub peer_qpn: u32,
    /// The lanes into the QP.
    pub lanes: &'a mut Lanes,
    /// Way out for answers.
    pub out: O,
}

impl<O> Drop for Inbound<'_, O> {
    fn drop(&mut self) {
        self.lanes.leave();
    }
}

impl<'a, O: PacketOut> Inbound<'a, O> {
    /// The state for packets of `peer_qpn` that enter `qp` by `lanes` and are answered to `out`.
    pub fn new(qp: &'a Qp, peer_qpn: u32, lanes: &'a mut Lanes, out: O) -> Self {
        Inbound { qp, peer_qpn, lanes, out }
    }

    /// The destination of a message in this process's memory, and its key; None: it is not one piece.
    pub fn landing(&mut self, (srqn, target): (u32, Target)) -> Option<(u32, Range<u64>)> {
        let inside = self.inside(srqn).ok()?;
        match target {
            Target::Memory { rkey, addr, length } => inside.write_range(rkey, addr, length.into()),
            Target::Receive { receive, .. } => inside.receive_range(receive),
        }
    }

    /// The lane, entered even in a pause, as a packet is handled whole or not at all.
    fn inside(&mut self, srqn: u32) -> Result<&Visit, Nak> {
        self.lanes.visit(self.qp, srqn, Visit::enter_in_hand)
    }

    #[inline(always)]
    fn store(&mut self, srqn: u32, rkey: u32, addr: u64, from: &Pieces, last: bool) -> Result<(), Nak> {
        let inside = self.inside(srqn)?;
        let written = inside.write(rkey, addr, from, last);
        written.map_err(|refused| noted(inside, refused, (rkey, addr, from.len()), Right::Write))
    }

    fn receipt(&self, received: &Received) -> Receipt {
        let (imm, wc_flags) = match (received.imm, received.invalidated) {
            (Some(imm), _) => (imm, wc::FLAG_IMM),
            (None, Some(key)) => (key, wc::FLAG_INV),
            (None, None) => (0, 0),
        };
        Receipt {
            status: Status::Success.to_verbs(),
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
    type Data = O::Data;

    fn check(&mut self, srqn: u32, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak> {
        let inside = self.inside(srqn)?;
        inside.check(rkey, addr, len, right).map_err(|refused| noted(inside, refused, (rkey, addr, len), right))
    }

    fn write(&mut self, srqn: u32, rkey: u32, addr: u64, data: &O::Data, last: bool) -> Result<(), Nak> {
        if data.has_landed() {
            return self.check(srqn, rkey, addr, data.length() as u64, Right::Write);
        }
        let mut from = Pieces::new();
        data.add_to(&mut from);
        self.store(srqn, rkey, addr, &from, last)
    }

    fn atomic(&mut self, srqn: u32, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        let inside = self.inside(srqn)?;
        let done = inside.atomic(rkey, addr, compare, swap_add);
        done.map_err(|refused| noted(inside, refused, (rkey, addr, 8), Right::Atomic))
    }

    fn atomic_write(&mut self, srqn: u32, rkey: u32, addr: u64, value: u64) -> Result<(), Nak> {
        self.store(srqn, rkey, addr, &Pieces::of(&value.to_ne_bytes()), true)
    }

    fn claim(&mut self, srqn: u32) -> Result<(u32, u64), Nak> {
        let inside = self.inside(srqn)?;
        let wqe = inside.claim()?;
        let room = inside.receive_room(wqe);
        Ok((wqe, room))
    }

    fn fill(&mut self, srqn: u32, receive: u32, offset: u64, data: &O::Data, last: bool) -> Result<(), Nak> {
        if data.has_landed() {
            return self.inside(srqn)?.check_fill(receive, offset, data.length() as u64);
        }
        let mut from = Pieces::new();
        data.add_to(&mut from);
        self.inside(srqn)?.fill(receive, offset, &from, last)
    }

    fn invalidate(&mut self, srqn: u32, rkey: u32) -> Result<(), Nak> {
        self.inside(srqn)?.invalidate(rkey)
    }

    fn complete(&mut self, srqn: u32, receive: u32, received: &Received) {
        let receipt = self.receipt(received);
        if let Ok(inside) = self.inside(srqn) {
            inside.complete_receive(receive, &receipt, received.solicited);
        }
    }

    fn spoil(&mut self, srqn: u32, receive: u32, received: &Received, status: Status, _nak: Nak) {
        let receipt = self.receipt(received);
        let spoilt = Spoilt { status, length: received.length.into(), whole: !received.partial };
        if let Ok(inside) = self.inside(srqn) {
            inside.spoil_receive(receive, &receipt, spoilt);
        }
    }

    /// The lane is entered anew: who waits for it to be left need not wait for all packets.
    fn next_packet(&mut self) {
        self.lanes.leave();
    }

    fn unclaim(&mut self, srqn: u32, receive: u32) {
        if let Ok(inside) = self.inside(srqn) {
            inside.give_back(receive);
        }
    }

    fn fail(&mut self, nak: Nak) {
        self.qp.refused(nak);
    }

    #[inline]
    fn landing(&self, psn: u32, left: u32) -> u32 {
        self.out.answer_landing(psn, left)
    }

    fn credits(&mut self) -> Option<u32> {
        self.qp.receives_waiting()
    }

    fn transmit(&mut self, packet: &Transmit<'_>) -> Result<(), Refused> {
        let Payload::Memory { srqn, rkey, addr, len, left } = packet.payload else {
            let from = if let Payload::Bytes(bytes) = packet.payload { Pieces::of(bytes) } else { Pieces::new() };
            return self.out.push(packet.headers, &from);
        };
        // It goes on when the process does, or never if the QP is done for.
        let inside = self.lanes.visit(self.qp, srqn, Visit::enter).map_err(|_| Refused::Full)?;
        let from = inside.read(rkey, addr, len.into()).map_err(|_| Refused::Memory)?;
        if O::HAS_SHORTCUTS && opcode::starts(packet.headers.bth.opcode) {
            self.out.begins_message(left.into());
        }
        self.out.push(packet.headers, &from)
    }
}

/// Returns `refused`, for a request that takes `right` to memory (rkey, address, length). The QP keeps the request for
/// its owner.
#[cold]
fn noted(inside: &Responder, refused: Nak, memory: (u32, u64, u64), right: Right) -> Nak {
    if matches!(refused, Nak::RemoteAccess | Nak::InvalidRequest) {
        let (rkey, addr, len) = memory;
        inside.qp.refused.note_access(rkey, addr, len, right);
    }
    refused
}
