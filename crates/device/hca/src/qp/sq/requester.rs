//! The requester: one step of the work request at the head of a send queue (IBA 9.7.2, 9.9.2). It resolves the local
//! memory, enters the target's lane, and runs the responder's operations there. Refusals become completion statuses,
//! silence becomes retries.

use crate::arena::layout::request;
use crate::device::port_counters::Word;
use crate::mr::transfer::{self, Direction, Fault, Pieces, Way};
use crate::process::peer::Location;
use crate::qp::base::QpBase;
use crate::qp::sq::exec::Step;
use crate::qp::sq::owner_copy::{OwnerCopy, Remote};
use crate::qp::sq::path::Path;
use crate::qp::sq::ud::{Message, Sender};
use crate::qp::sq::{SendQueue, local_need};
use crate::responder::{Atomic, Barred, InFlight, Reached, Refusal, Responder, Spoilt};
use crate::rq::Receipt;
use std::sync::atomic::Ordering;
use vervain_iba::{Nak, Opcode, QpType, Right, Status, access, wc};

/// Longest message, max_msg_sz (IBA 9.7.7).
const MAX_MESSAGE: u64 = 1 << 31;
/// Bytes that are moved at once even if the budget is smaller.
const SMALL: u64 = 64 << 10;

/// Either a final status for the request, or a reason to try later.
pub(crate) enum Stop {
    Step(Step),
    Nak(Nak),
    Local(Status),
    /// The peer's process lets no initiator in for a moment.
    Paused,
    /// The peer's QP is stopped.
    Stopped,
}

impl From<Barred> for Stop {
    fn from(barred: Barred) -> Self {
        match barred {
            Barred::Silence => Stop::Nak(Nak::Silence),
            Barred::Paused => Stop::Paused,
            Barred::Stopped => Stop::Stopped,
        }
    }
}

impl From<Nak> for Stop {
    fn from(nak: Nak) -> Self {
        Stop::Nak(nak)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Local => Stop::Local(Status::LocalProtection),
            Fault::Remote | Fault::Refused => Stop::Nak(Nak::RemoteOperation),
            Fault::Gone => Stop::Nak(Nak::Silence),
        }
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Nak(nak) => nak.into(),
            Refusal::Fault(fault) => fault.into(),
        }
    }
}

/// Reaches the remote memory of an RDMA Write or Read.
#[inline]
fn reach(target: &Responder, direction: Direction, rkey: u32, addr: u64, len: u64) -> Result<Reached<'_>, Nak> {
    let need = match direction {
        Direction::Write => access::REMOTE_WRITE,
        Direction::Read => access::REMOTE_READ,
    };
    target.reach(rkey, addr, len, need)
}

impl SendQueue {
    /// Takes one step of the request at the head.
    #[inline]
    pub(crate) fn step(&mut self, qp: &QpBase, budget: &mut u64) -> Step {
        let i = self.wq.place(self.wq.head());
        let opcode = self.wq[i].request.opcode;
        if !matches!(qp.qp_type(), QpType::Rc | QpType::Uc) || opcode.is_local() {
            return self.step_elsewhere(qp, i, opcode, budget);
        }
        // The target is moved out and back, so that the queue and the target can be borrowed side by side.
        let target = match self.path.take_peer() {
            Some(target) => target,
            None => match self.find_target(qp, None) {
                Ok(target) => target,
                Err(step) => return step,
            },
        };
        let (step, keep) = self.attempt(qp, i, opcode, &target, budget);
        if keep {
            self.path = Path::Memory(target);
        }
        step
    }

    /// Takes one step of a request that is not for the one peer of a connected QP.
    #[inline(never)]
    fn step_elsewhere(&mut self, qp: &QpBase, i: usize, opcode: Opcode, budget: &mut u64) -> Step {
        if opcode.is_local() {
            return self.local_operation(qp, i, opcode);
        }
        if qp.qp_type() == QpType::Ud {
            return self.datagram(qp, i);
        }
        // Every XRC request names an SRQ, since the keys are checked against its domain (IBA A14.5.2).
        let srqn = self.wq[i].request.srqn;
        let known = if let Path::Xrc(peers) = &mut self.path { peers.remove(&srqn) } else { None };
        let target = match known.map_or_else(|| self.find_target(qp, Some(srqn)), Ok) {
            Ok(target) => target,
            Err(step) => return step,
        };
        let (step, keep) = self.attempt(qp, i, opcode, &target, budget);
        if let (true, Path::Xrc(peers)) = (keep, &mut self.path) {
            peers.insert(srqn, target);
        }
        step
    }

    /// Sends the datagram at the head.
    fn datagram(&mut self, qp: &QpBase, i: usize) -> Step {
        let total = self.wq[i].request.length;
        if total > u64::from(self.params.mtu_bytes) {
            return Step::Done(Status::LocalLength);
        }
        let mut pieces = Pieces::new();
        if let Err(status) = self.collect(i, 0, total, 0, &mut pieces) {
            return Step::Done(status);
        }
        // Checked before a receive is taken for it.
        if !pieces.are_readable() {
            return Step::Done(Status::LocalProtection);
        }
        let w = &self.wq[i].request;
        let imm = (w.opcode == Opcode::SendImm).then_some(w.imm_or_rkey);
        let message = Message { data: &pieces, imm, solicited: w.is_solicited() };
        let (to, from) = (self.wq.ud_address(i), Sender { qp, qkey: self.params.qkey });
        let Some(peers) = self.path.datagrams_mut() else { return Step::Done(Status::LocalQpOperation) };
        peers.send(from, &to, &message, &mut self.owed)
    }

    /// Goes on with the request at the head. Returns the step's result, and true if the target is still good.
    #[inline]
    fn attempt(&mut self, qp: &QpBase, i: usize, opcode: Opcode, target: &Responder, budget: &mut u64) -> (Step, bool) {
        self.in_hand = Some(target.in_hand());
        let mut outcome = self.carry_out(qp, i, opcode, target, budget);
        if outcome.is_err() && self.exec.asked.is_some() && self.exec.has_answer(self.wq[i].request.length, target) {
            // The owner has answered since the last look, and its program may have ended the QP or the key since: this
            // thread may have been preempted in between, or inside the mark for so long that it was cut off.
            outcome = self.carry_out(qp, i, opcode, target, budget);
        }
        let dropped = match &outcome {
            Err(Stop::Local(_)) => true,
            Err(Stop::Nak(nak)) => !matches!(nak, Nak::Silence | Nak::ReceiverNotReady(_)),
            _ => false,
        };
        if dropped && let Some(wqe) = self.exec.claimed.take() {
            target.unclaim(wqe);
        }
        let result = match outcome {
            Ok(()) => (Step::Done(Status::Success), true),
            Err(Stop::Step(step)) => (step, true),
            Err(Stop::Local(status)) => (Step::Done(status), true),
            Err(Stop::Paused) => (Step::paused(), true),
            Err(Stop::Stopped) if target.is_over(self.process) => (self.exec.look_anew(target), false),
            Err(Stop::Stopped) => (self.exec.retry.stopped(), true),
            Err(Stop::Nak(nak)) => (self.refused(qp, i, target, nak), nak != Nak::Silence),
        };
        if !matches!(result.0, Step::Done(_)) {
            // The access was no request of its own.
            target.lane.tell_psn(self.next_psn());
        }
        self.in_hand = None;
        result
    }

    /// The outcome of a request that is refused or not answered: a status, or another try later.
    #[cold]
    fn refused(&mut self, qp: &QpBase, i: usize, target: &Responder, nak: Nak) -> Step {
        let reliable = qp.qp_type().is_reliable();
        let w = &self.wq[i].request;
        let note = |target: &Responder| {
            if let Some((length, right)) = w.reaches() {
                target.qp.refused.note_access(w.rkey, w.remote_addr, length, right);
            }
        };
        match nak {
            Nak::ReceiverNotReady(code) if reliable => {
                self.exec.retry.receiver_not_ready(qp, &self.params, target, code)
            }
            Nak::Silence => {
                self.exec.start_over(target);
                if reliable { self.silence() } else { Step::Done(Status::Success) }
            }
            // Unreliable services get no answer (IBA 9.8.2.2.6).
            Nak::ReceiverNotReady(_) => {
                qp.tally.add(Word::OutOfBuffer, 1);
                Step::Done(Status::Success)
            }
            _ if !reliable => Step::Done(Status::Success),
            // The request is tried again from the start after the pause, and refused then.
            _ if !target.refuse(nak, note) => {
                self.exec.forget_progress(target);
                Step::paused()
            }
            Nak::InvalidRequest => Step::Done(Status::RemoteInvalidRequest),
            Nak::RemoteAccess => Step::Done(Status::RemoteAccess),
            Nak::RemoteOperation => Step::Done(Status::RemoteOperation),
        }
    }

    #[inline]
    fn carry_out(
        &mut self,
        qp: &QpBase,
        i: usize,
        opcode: Opcode,
        target: &Responder,
        budget: &mut u64,
    ) -> Result<(), Stop> {
        let total = self.wq[i].request.length;
        // The local memory of a message that is moved in one go.
        let mut whole = Pieces::new();
        if !self.exec.checked {
            // IBA 10.10.2.2: local errors are found before anything is sent.
            if total <= transfer::DIRECT_CHUNK {
                self.collect(i, 0, total, local_need(opcode), &mut whole).map_err(Stop::Local)?;
            } else {
                self.check_long(i, total, opcode).map_err(Stop::Local)?;
            }
            if opcode.answers() && self.params.max_rd_atomic == 0 {
                return Err(Stop::Local(Status::LocalQpOperation));
            }
        }
        match opcode {
            Opcode::Write | Opcode::Read => self.rdma(qp, i, opcode, target, &whole, budget),
            Opcode::CompareSwap | Opcode::FetchAdd => self.fetch_atomic(i, opcode, target, &whole),
            Opcode::WriteImm => self.rdma(qp, i, opcode, target, &whole, budget),
            Opcode::AtomicWrite => self.write_atomic(qp, i, target, &whole, budget),
            Opcode::Flush => self.flush_remote(i, target),
            _ => self.send(qp, i, opcode, target, &whole, budget),
        }
    }

    #[inline(never)]
    fn check_long(&self, i: usize, total: u64, opcode: Opcode) -> Result<(), Status> {
        if total > MAX_MESSAGE {
            return Err(Status::LocalLength);
        }
        self.check_local(i, local_need(opcode))
    }

    /// RDMA Write, with or without immediate, and RDMA Read. `whole` is the local memory if the message is short.
    #[inline]
    fn rdma(
        &mut self,
        qp: &QpBase,
        i: usize,
        opcode: Opcode,
        target: &Responder,
        whole: &Pieces,
        budget: &mut u64,
    ) -> Result<(), Stop> {
        let w = &self.wq[i].request;
        let (total, rkey, addr) = (w.length, w.rkey, w.remote_addr);
        let direction = if opcode == Opcode::Read { Direction::Read } else { Direction::Write };
        if self.exec.asked.is_some() && self.exec.takes_answer(total, target) {
            return Ok(());
        }
        let mut mark = target.enter()?;
        match direction {
            Direction::Write => self.fast.note_store(),
            Direction::Read => {
                target.answers()?;
                // For every way of moving the data: a request to the owner would order it as well, but process_vm_readv
                // would not. A system call promises no order, though its locks and the pages that it pins give one
                // today.
                self.fast.show_stores();
            }
        }
        // A length of zero touches no memory, and its key is not looked at (IBA 9.7.4.1.5).
        let mut known = None;
        if !self.exec.checked {
            if total > 0 {
                known = Some(reach(target, direction, rkey, addr, total)?);
            }
            if opcode == Opcode::WriteImm {
                self.exec.claimed = Some(target.claim()?);
            }
            self.exec.checked = true;
        }
        match known {
            Some(Reached { location: Location::Mapped(p), .. }) if whole.len() == total => {
                // SAFETY: both sides were checked against their keys inside the in-flight mark.
                unsafe { transfer::copy_direct(direction, p, whole, true)? };
                *budget = budget.saturating_sub(total);
            }
            _ if total > 0 => mark = self.rdma_long(i, target, direction, known, mark, budget)?,
            _ => {}
        }
        if let Some(wqe) = self.exec.claimed {
            self.deliver_immediate(qp, i, target, wqe);
        }
        target.leave_done(mark).map_err(Stop::from)
    }

    /// Moves a message in chunks, and leaves the peer's memory between two of them.
    #[inline(never)]
    fn rdma_long<'a>(
        &mut self,
        i: usize,
        target: &'a Responder,
        direction: Direction,
        mut known: Option<Reached<'a>>,
        mut mark: InFlight<'a>,
        budget: &mut u64,
    ) -> Result<InFlight<'a>, Stop> {
        let w = &self.wq[i].request;
        let (total, rkey, addr) = (w.length, w.rkey, w.remote_addr);
        while self.exec.done < total {
            let done = self.exec.done;
            let far = match known.take() {
                Some(whole) => whole,
                None => reach(target, direction, rkey, addr.wrapping_add(done), total - done)?,
            };
            self.exec.done += self.chunk(i, target, direction, &far, true, budget)?;
            if self.exec.done < total {
                drop(mark);
                if *budget == 0 {
                    return Err(Stop::Step(Step::Again));
                }
                mark = target.enter()?;
            }
        }
        Ok(mark)
    }

    #[inline(never)]
    fn deliver_immediate(&mut self, qp: &QpBase, i: usize, target: &Responder, wqe: u32) {
        let w = &self.wq[i].request;
        let receipt = Receipt {
            opcode: wc::OP_RECV_RDMA_WITH_IMM,
            byte_len: w.length as u32,
            imm: w.imm_or_rkey,
            src_qp: qp.qp_num(),
            wc_flags: wc::FLAG_IMM,
            slid: qp.lid(),
            sl: self.params.ah.sl,
            ..Receipt::default()
        };
        self.owed.extend(target.publish_receive(wqe, &receipt, w.is_solicited()));
    }

    /// Send, with immediate, with invalidate. `whole` is the local memory if the message is short.
    #[inline]
    fn send(
        &mut self,
        qp: &QpBase,
        i: usize,
        opcode: Opcode,
        target: &Responder,
        whole: &Pieces,
        budget: &mut u64,
    ) -> Result<(), Stop> {
        let total = self.wq[i].request.length;
        let mut mark = target.enter()?;
        self.fast.note_store();
        let wqe = match self.exec.claimed {
            Some(wqe) => wqe,
            None => {
                let wqe = target.claim()?;
                self.exec.claimed = Some(wqe);
                wqe
            }
        };
        let mut receipt = Receipt {
            opcode: wc::OP_RECV,
            src_qp: qp.qp_num(),
            slid: qp.lid(),
            sl: self.params.ah.sl,
            ..Receipt::default()
        };
        let first = !self.exec.checked;
        if first {
            if total > target.receive_room(wqe) {
                return Err(self.spoil(target, wqe, &receipt, Status::LocalLength, Nak::InvalidRequest));
            }
            self.exec.checked = true;
        }
        let known =
            if first && total > 0 && whole.len() == total { target.receive_memory(wqe, 0, total) } else { Ok(None) };
        match known {
            Err(Nak::Silence) => return Err(Stop::Nak(Nak::Silence)),
            Ok(Some((Location::Mapped(p), room, ..))) if room >= total => {
                // SAFETY: both sides were checked against their keys inside the in-flight mark.
                let filled = unsafe { transfer::copy_direct(Direction::Write, p, whole, true) };
                filled.map_err(|fault| self.not_filled(target, wqe, &receipt, fault.into()))?;
                *budget = budget.saturating_sub(total);
            }
            _ if total > 0 => mark = self.send_long(i, target, wqe, &receipt, mark, budget)?,
            _ => {}
        }
        let w = &self.wq[i].request;
        receipt.byte_len = total as u32;
        match opcode {
            Opcode::SendImm => (receipt.imm, receipt.wc_flags) = (w.imm_or_rkey, wc::FLAG_IMM),
            Opcode::SendInv => {
                (receipt.imm, receipt.wc_flags) = (w.imm_or_rkey, wc::FLAG_INV);
                match target.invalidate(w.imm_or_rkey) {
                    Ok(()) => {}
                    Err(Nak::Silence) => return Err(Stop::Nak(Nak::Silence)),
                    // The receive was used; it completes with the fault of the message (IBA 9.9.3, class J).
                    Err(_) => {
                        return Err(self.spoil(target, wqe, &receipt, Status::RemoteInvalidRequest, Nak::RemoteAccess));
                    }
                }
            }
            _ => {}
        }
        self.owed.extend(target.publish_receive(wqe, &receipt, w.is_solicited()));
        target.leave_done(mark).map_err(Stop::from)
    }

    /// Moves a message into its receive in chunks, and leaves the peer's memory between two of them.
    #[inline(never)]
    fn send_long<'a>(
        &mut self,
        i: usize,
        target: &'a Responder,
        wqe: u32,
        receipt: &Receipt,
        mut mark: InFlight<'a>,
        budget: &mut u64,
    ) -> Result<InFlight<'a>, Stop> {
        let total = self.wq[i].request.length;
        while self.exec.done < total {
            let done = self.exec.done;
            let far = match target.reach_receive(wqe, done, total - done) {
                Ok(Some(far)) => far,
                Err(Nak::Silence) => return Err(Stop::Nak(Nak::Silence)),
                Ok(None) | Err(_) => {
                    return Err(self.spoil(target, wqe, receipt, Status::LocalProtection, Nak::RemoteOperation));
                }
            };
            let ends = done + far.len >= total;
            let n = self.chunk(i, target, Direction::Write, &far, ends, budget);
            self.exec.done += n.map_err(|stop| self.not_filled(target, wqe, receipt, stop))?;
            if self.exec.done < total {
                drop(mark);
                if *budget == 0 {
                    return Err(Stop::Step(Step::Again));
                }
                mark = target.enter()?;
            }
        }
        Ok(mark)
    }

    /// Handles a message that was not moved into its receive: it is spoilt if the receive's memory is at fault.
    #[cold]
    fn not_filled(&mut self, target: &Responder, wqe: u32, receipt: &Receipt, stop: Stop) -> Stop {
        match stop {
            Stop::Nak(Nak::RemoteOperation) => {
                self.spoil(target, wqe, receipt, Status::LocalProtection, Nak::RemoteOperation)
            }
            stop => stop,
        }
    }

    /// Completes the receive in error, which moves its QP to ERR: the message or the receive is at fault.
    #[cold]
    fn spoil(&mut self, target: &Responder, wqe: u32, receipt: &Receipt, status: Status, nak: Nak) -> Stop {
        let length = self.wq[self.wq.place(self.wq.head())].request.length;
        target.spoil_receive(wqe, receipt, Spoilt { status, length, whole: true });
        self.exec.claimed = None;
        Stop::Nak(nak)
    }

    /// Compare and swap, fetch and add: 8 bytes, aligned (IBA 9.4.5). `whole`: the memory for the answer.
    #[inline]
    fn fetch_atomic(&mut self, i: usize, opcode: Opcode, target: &Responder, whole: &Pieces) -> Result<(), Stop> {
        let total = self.wq[i].request.length;
        if total != 8 {
            return Err(Stop::Local(Status::LocalLength));
        }
        if self.exec.unanswered {
            return Err(Stop::Local(Status::LocalProtection));
        }
        let old = if self.exec.asked.is_some() && self.exec.takes_answer(total, target) {
            target.lane.request.result.load(Ordering::Relaxed)
        } else {
            self.fetch_at(i, opcode, target)?
        };
        let mut word = old.to_ne_bytes();
        // SAFETY: the pieces are checked local memory of 8 bytes; the word is on this stack.
        unsafe { transfer::copy_direct(Direction::Read, word.as_mut_ptr(), whole, true)? };
        Ok(())
    }

    /// Carries out an atomic, here or by asking the owner. Returns the earlier value.
    #[inline]
    fn fetch_at(&mut self, i: usize, opcode: Opcode, target: &Responder) -> Result<u64, Stop> {
        let w = &self.wq[i].request;
        let (rkey, addr) = (w.rkey, w.remote_addr);
        let mark = target.enter()?;
        target.answers()?;
        let compare_swap = opcode == Opcode::CompareSwap;
        // The owner answers a request that it has got, even if the memory has been mapped meanwhile: an atomic is never
        // done twice.
        let done = if self.exec.asked.is_some() {
            target.check(rkey, addr, 8, Right::Atomic).map(|()| None)?
        } else {
            let atomic = Atomic { compare_swap, compare_add: w.compare_add, swap: w.swap };
            target.fetch_atomic(rkey, addr, atomic)?
        };
        let old = match done {
            Some(old) => old,
            None => {
                let op = if compare_swap { request::COMPARE_SWAP } else { request::FETCH_ADD };
                OwnerCopy::of(self, i, target).ask(op, Remote { key: rkey, addr, local: false }, 8, &mut { SMALL })?;
                target.lane.request.result.load(Ordering::Relaxed)
            }
        };
        target.leave_done(mark)?;
        Ok(old)
    }

    /// Atomic write: 8 bytes, aligned, in one store (IBA annex A19.4.3).
    #[inline(never)]
    fn write_atomic(
        &mut self,
        qp: &QpBase,
        i: usize,
        target: &Responder,
        whole: &Pieces,
        budget: &mut u64,
    ) -> Result<(), Stop> {
        let w = &self.wq[i].request;
        let (rkey, addr, total) = (w.rkey, w.remote_addr, w.length);
        if total != 8 {
            return Err(Stop::Local(Status::LocalLength));
        }
        if !addr.is_multiple_of(8) {
            return Err(Stop::Nak(Nak::InvalidRequest));
        }
        if self.exec.asked.is_some() && self.exec.takes_answer(total, target) {
            return Ok(());
        }
        let mark = target.enter()?;
        let far = target.reach(rkey, addr, 8, access::REMOTE_WRITE)?;
        if let (Location::Mapped(_), None) = (far.location, self.exec.asked) {
            drop(mark);
            return self.rdma(qp, i, Opcode::Write, target, whole, budget);
        }
        // A process_vm call promises no atomic store; the owner makes one.
        OwnerCopy::of(self, i, target).ask(request::WRITE, Remote { key: rkey, addr, local: false }, 8, budget)?;
        target.leave_done(mark).map_err(Stop::from)
    }

    /// Flush to global visibility. Memory here is coherent, so all earlier writes are visible once the checks pass and
    /// the stores of this queue have left their processor (IBA annex A19.4.2).
    #[inline(never)]
    fn flush_remote(&mut self, i: usize, target: &Responder) -> Result<(), Stop> {
        let w = &self.wq[i].request;
        let mark = target.enter()?;
        let length = if w.flush.level == 1 { 0 } else { w.flush.length };
        target.check(w.rkey, w.remote_addr, length, Right::Flush(w.flush.placement))?;
        self.fast.show_stores();
        target.leave_done(mark).map_err(Stop::from)
    }

    /// Moves the next piece, at most one chunk of the reached memory, to or from `far`. Returns its bytes. The caller
    /// is in flight. `ends`: the message ends with the reached memory.
    fn chunk(
        &mut self,
        i: usize,
        target: &Responder,
        direction: Direction,
        far: &Reached<'_>,
        ends: bool,
        budget: &mut u64,
    ) -> Result<u64, Stop> {
        // The owner finishes a request that it has got, even if the memory has been mapped meanwhile.
        let way = if self.exec.asked.is_some() { Way::Owner } else { far.way(self.process.policy) };
        let n = part_of(way, far.len, *budget);
        if way != Way::Owner {
            let need = if direction == Direction::Read { access::LOCAL_WRITE } else { 0 };
            let stream = self.wq[i].request.length >= crate::host::copy::STREAM_FROM;
            let mut pieces = Pieces::new();
            self.collect(i, self.exec.done, n, need, &mut pieces).map_err(Stop::Local)?;
            let moved =
                // SAFETY: the pieces were just checked against this process's keys, the far side inside the in-flight
                // mark.
                unsafe { far.transfer(way, direction, &pieces, ends && n == far.len, stream, self.process.policy)? };
            if moved {
                if let Way::Vm(_) = way {
                    self.exec.by_vm += n;
                }
                *budget = budget.saturating_sub(n);
                return Ok(n);
            }
        }
        let op = if direction == Direction::Read { request::READ } else { request::WRITE };
        let remote = Remote { key: far.key, addr: far.addr, local: far.is_receive() };
        OwnerCopy::of(self, i, target).ask(op, remote, n, budget)
    }

    // ---- work without a peer ---------------------------------------------------------------------------------------

    /// A bind or an invalidation.
    pub(crate) fn local_operation(&mut self, qp: &QpBase, i: usize, opcode: Opcode) -> Step {
        if opcode == Opcode::BindMw { self.bind_window(qp, i) } else { self.local_invalidate(qp, i) }
    }

    fn local_invalidate(&mut self, qp: &QpBase, i: usize) -> Step {
        let key = self.wq[i].request.imm_or_rkey;
        let process = self.process;
        let done = qp.pausing(|| crate::mr::mw::local_invalidate(process, key, qp.qp_num()));
        // Memory management operation error (IBA 11.6.2), which the verbs call MW_BIND_ERR.
        Step::Done(if done.is_ok() { Status::Success } else { Status::MwBind })
    }

    fn bind_window(&mut self, qp: &QpBase, i: usize) -> Step {
        let Some(b) = self.wq[i].bind.take() else {
            return Step::Done(Status::LocalQpOperation);
        };
        let done = qp.pausing(|| {
            if b.mw.pd().number != self.pd {
                return Err(crate::error::Error::invalid("the window belongs to another protection domain"));
            }
            b.mw.bind(b.new_rkey, b.mr.as_ref(), b.addr, b.length, b.access, qp.qp_num())
        });
        Step::Done(if done.is_ok() { Status::Success } else { Status::MwBind })
    }
}

/// The number of bytes, of `room`, that go at once by `way`. A small message is never split, since programs rely on
/// aligned words; a large one is split at whole lines of the peer's memory, whatever its offset in a line.
fn part_of(way: Way, room: u64, budget: u64) -> u64 {
    let (limit, in_line) = match way {
        Way::Direct(p) => (transfer::DIRECT_CHUNK, p as u64 % 64),
        Way::Vm(host) => (transfer::VM_CHUNK, host % 64),
        Way::Null => (transfer::DIRECT_CHUNK, 0),
        // The owner checks the key for each piece, and the budget bounds the bytes that pass through the bounce buffer.
        Way::Owner => (MAX_MESSAGE, 0),
    };
    let most = if way == Way::Owner { limit } else { limit.min(budget.max(SMALL)) };
    if room <= most { room } else { ((most + in_line) & !63) - in_line }
}
