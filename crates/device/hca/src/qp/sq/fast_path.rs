//! The fast path of a request that is posted while no other waits, for one peer, with one piece of local memory, and
//! mapped at both ends. It is carried out from the program's own work request, without becoming a WQE. Any other
//! request, and one that is refused, has had no effect here and takes the long way (`qp::sq`, `requester`), which
//! begins anew and finds the reason; a receive that was claimed is kept for it. A QP whose messages a carrier has takes
//! no request this way.
//!
//! It makes the same checks by the same functions, in the same order. docs/performance.md has the time that it saves.

use crate::arena::layout::Inline;
use crate::host::{EXCHANGES_ARE_BARRIERS, guarded};
use crate::mr::transfer::{self, DIRECT_CHUNK};
use crate::process::gate;
use crate::process::peer::{Location, plain_region};
use crate::qp::base::QpBase;
use crate::qp::sq::SendQueue;
use crate::qp::sq::wqe::WorkRequest;
use crate::responder::{InFlight, Responder, WakeCall};
use crate::rq::Receipt;
use std::sync::atomic::{Ordering, fence};
use vervain_iba::{Opcode, QpState, QpType, Sge, Status, access, send_flags, wc};

/// The most bytes that one call moves on the fast path.
const FAST_MAX_BYTES: u32 = DIRECT_CHUNK as u32;

/// The receive that a message fills at its peer.
#[derive(Default)]
struct Receive {
    /// The number of the receive once it is claimed, filled or not.
    claimed: Option<u32>,
    /// Some: the receive was filled, and the peer is to be woken after the sender's own completion.
    wake_call: Option<WakeCall>,
}

/// The state of the fast path of a send queue.
pub(crate) struct FastPath {
    /// Operations that may take it, one bit each; 0 while a carrier has the messages.
    opcodes: u32,
    /// Operations that may take it if memory reaches the peer.
    by_memory: u32,
    /// Requests that may take it before the next look at the queue; 0 while any request waits.
    room: u32,
    /// Bytes that the current call may still move by it.
    left: u32,
    /// 1: other threads may not see all stores of this queue yet, fast or not, since no full barrier has followed them.
    /// A word, because it is set together with `left`.
    unseen: u32,
}

impl FastPath {
    /// The state for a QP without requests. The fast path reads one piece of data, and does not check later that the QP
    /// takes any.
    pub(crate) fn new(qp_type: QpType, max_send_sge: u32) -> FastPath {
        let by_memory = if max_send_sge > 0 { fast_opcodes(qp_type) } else { 0 };
        FastPath { opcodes: by_memory, by_memory, room: 0, left: 0, unseen: 1 }
    }

    /// Closes the fast path until the QP is reset, since a carrier has the messages.
    pub(crate) fn go_remote(&mut self) {
        self.opcodes = 0;
    }

    /// Returns to the state after creation: memory may reach the next peer.
    pub(crate) fn reset(&mut self) {
        self.opcodes = self.by_memory;
        self.close();
    }

    /// Begins a call of the program. If the exchange that took the queue's lock is no full barrier, the program's own
    /// stores may be unseen, too.
    #[inline(always)]
    pub(crate) fn begin_call(&mut self) {
        self.left = FAST_MAX_BYTES;
        self.unseen = u32::from(!EXCHANGES_ARE_BARRIERS);
    }

    /// Notes that a Write or a message stores next. An atomic needs no note: it is a full barrier itself.
    #[inline(always)]
    pub(crate) fn note_store(&mut self) {
        self.unseen = 1;
    }

    /// Waits until other threads see the stores of this queue, before a Read loads (IBA 9.5): a processor lets a load
    /// pass a store. A Read behind a Read has nothing to wait for.
    #[inline(always)]
    pub(crate) fn show_stores(&mut self) {
        if self.unseen != 0 {
            fence(Ordering::SeqCst);
            self.unseen = 0;
        }
    }

    /// Closes the fast path, since a request waits in the queue.
    #[inline(always)]
    pub(crate) fn close(&mut self) {
        self.room = 0;
    }
}

/// Operations that have a fast path on a service, one bit for each opcode.
fn fast_opcodes(qp_type: QpType) -> u32 {
    use Opcode::*;
    let bits = |list: &[Opcode]| list.iter().fold(0, |bits, o| bits | 1 << *o as u32);
    match qp_type {
        QpType::Rc => bits(&[Write, Send, SendImm, Read, CompareSwap, FetchAdd]),
        QpType::Uc => bits(&[Write, Send, SendImm]),
        _ => 0,
    }
}

impl SendQueue {
    /// Carries `w` out, from posting to its completion. Returns false if it has to take the long way.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, qp: &QpBase, opcode: Opcode, w: &impl WorkRequest) -> bool {
        if self.fast.opcodes >> opcode as u32 & 1 == 0 {
            return false;
        }
        if opcode == Opcode::Write { self.post_write(qp, w) } else { self.post_other(qp, opcode, w) }
    }

    /// [`SendQueue::post_fast`] for a Write.
    #[inline(always)]
    pub(crate) fn post_fast_write(&mut self, qp: &QpBase, w: &impl WorkRequest) -> bool {
        self.fast.opcodes & 1 << Opcode::Write as u32 != 0 && self.post_write(qp, w)
    }

    /// [`SendQueue::post_fast`] for any other request than a Write, in a function of the caller's own.
    #[inline(always)]
    pub(crate) fn post_fast_other(&mut self, qp: &QpBase, opcode: Opcode, w: &impl WorkRequest) -> bool {
        self.fast.opcodes >> opcode as u32 & 1 != 0 && self.post_by_opcode(qp, opcode, w)
    }

    #[inline(never)]
    fn post_other(&mut self, qp: &QpBase, opcode: Opcode, w: &impl WorkRequest) -> bool {
        self.post_by_opcode(qp, opcode, w)
    }

    #[inline(always)]
    fn post_by_opcode(&mut self, qp: &QpBase, opcode: Opcode, w: &impl WorkRequest) -> bool {
        match opcode {
            Opcode::Send | Opcode::SendImm => self.post_message(qp, w, opcode),
            Opcode::Read => self.post_read(qp, w),
            _ => self.post_atomic(qp, w, opcode),
        }
    }

    #[inline(always)]
    fn post_write(&mut self, qp: &QpBase, w: &impl WorkRequest) -> bool {
        let data = w.data();
        self.fast.note_store();
        let done = match self.begin_fast(qp, &data, Some(w.remote())) {
            Some((sq, target, Some(_mark))) => sq.write(target, w, &data),
            Some(_) => None,
            None => return false,
        };
        self.end_fast(qp, w, Opcode::Write, data.length, done)
    }

    #[inline(always)]
    fn write(&self, target: &Responder, w: &impl WorkRequest, data: &Sge) -> Option<u32> {
        let local = self.local(w, data, 0)?;
        // A length of zero touches no memory, and its key is not looked at (IBA 9.7.4.1.5).
        if data.length > 0 {
            let (addr, rkey) = w.remote();
            let remote = target.mapped(rkey, addr, data.length.into(), access::REMOTE_WRITE)?;
            // SAFETY: both sides were checked against their keys inside the in-flight mark, or the program vouches for
            // its inline data as for any buffer that it passes to a C function.
            unsafe { transfer::copy_tail_last(local, remote, data.length as usize) }.ok()?;
        }
        target.counts().then_some(0)
    }

    #[inline(never)]
    fn post_read(&mut self, qp: &QpBase, w: &impl WorkRequest) -> bool {
        let data = w.data();
        self.fast.show_stores();
        let done = match self.begin_fast(qp, &data, Some(w.remote())) {
            Some((sq, target, Some(_mark))) => sq.read(target, w, &data),
            Some(_) => None,
            None => return false,
        };
        self.end_fast(qp, w, Opcode::Read, data.length, done)
    }

    #[inline(always)]
    fn read(&self, target: &Responder, w: &impl WorkRequest, data: &Sge) -> Option<u32> {
        let local = self.answer(w, data, target)?;
        if data.length > 0 {
            let (addr, rkey) = w.remote();
            let remote = target.mapped(rkey, addr, data.length.into(), access::REMOTE_READ)?;
            // SAFETY: both sides were checked against their keys inside the in-flight mark; they may overlap in a
            // looped QP.
            unsafe { transfer::copy(remote, local, data.length as usize) }.ok()?;
        }
        target.counts().then_some(data.length)
    }

    #[inline(never)]
    fn post_atomic(&mut self, qp: &QpBase, w: &impl WorkRequest, opcode: Opcode) -> bool {
        let data = w.data();
        let mut unanswered = false;
        let (addr, rkey, ..) = w.atomic();
        let done = match self.begin_fast(qp, &data, Some((addr, rkey))) {
            Some((sq, target, Some(_mark))) => {
                sq.atomic(target, w, &data, opcode == Opcode::CompareSwap, &mut unanswered)
            }
            Some(_) => None,
            None => return false,
        };
        if unanswered {
            self.exec.unanswered = true;
        }
        self.end_fast(qp, w, opcode, data.length, done)
    }

    /// `unanswered` becomes true if the word was changed, but the answer could not be stored: the atomic must not be
    /// done a second time.
    #[inline(always)]
    fn atomic(
        &self,
        target: &Responder,
        w: &impl WorkRequest,
        data: &Sge,
        compare_swap: bool,
        unanswered: &mut bool,
    ) -> Option<u32> {
        let local = self.answer(w, data, target)?;
        let (addr, rkey, compare_add, swap) = w.atomic();
        if data.length != 8 || !addr.is_multiple_of(8) {
            return None;
        }
        let remote = target.mapped(rkey, addr, 8, access::REMOTE_ATOMIC)?;
        if !(remote as usize).is_multiple_of(8) {
            return None;
        }
        // SAFETY: both sides were checked against their keys inside the in-flight mark, the word is aligned.
        unsafe {
            let old = transfer::atomic(remote, compare_swap, compare_add, swap).ok()?;
            *unanswered = guarded::store8(local, old).is_err();
        }
        (!*unanswered && target.counts()).then_some(8)
    }

    #[inline(never)]
    fn post_message(&mut self, qp: &QpBase, w: &impl WorkRequest, opcode: Opcode) -> bool {
        let data = w.data();
        self.fast.note_store();
        let mut receive = Receive::default();
        let done = match self.begin_fast(qp, &data, None) {
            Some((sq, target, Some(_mark))) => {
                sq.message(target, qp, w, &data, opcode == Opcode::SendImm, &mut receive)
            }
            Some(_) => None,
            None => return false,
        };
        if done.is_none() && receive.claimed.is_some() {
            self.exec.claimed = receive.claimed;
        }
        let is_done = self.end_fast(qp, w, opcode, data.length, done);
        if let Some(call) = receive.wake_call {
            call.make();
        }
        is_done
    }

    #[inline(always)]
    fn message(
        &self,
        target: &Responder,
        qp: &QpBase,
        w: &impl WorkRequest,
        data: &Sge,
        with_imm: bool,
        receive: &mut Receive,
    ) -> Option<u32> {
        let local = self.local(w, data, 0)?;
        let wqe = target.claim().ok()?;
        receive.claimed = Some(wqe);
        if target.is_inline(wqe, data.length) {
            return self.message_inline(target, qp, w, local, with_imm, receive);
        }
        if data.length > 0 {
            let Ok(Some((Location::Mapped(remote), room, ..))) = target.receive_memory(wqe, 0, data.length.into())
            else {
                return None;
            };
            if room < u64::from(data.length) {
                return None;
            }
            // SAFETY: both sides were checked against their keys inside the in-flight mark, or the data is inline.
            unsafe { transfer::copy_tail_last(local, remote, data.length as usize) }.ok()?;
        }
        let receipt = self.receipt(qp, w, data, with_imm);
        receive.wake_call = target.publish_receive(wqe, &receipt, w.flags() & send_flags::SOLICITED != 0);
        self.end_message(target, receive)
    }

    /// [`SendQueue::message`] whose data goes into its completion.
    #[inline(never)]
    fn message_inline(
        &self,
        target: &Responder,
        qp: &QpBase,
        w: &impl WorkRequest,
        local: *const u8,
        with_imm: bool,
        receive: &mut Receive,
    ) -> Option<u32> {
        let (data, wqe) = (w.data(), receive.claimed?);
        let mut message = Inline::default();
        // SAFETY: the local side was checked against its key, or the data is inline; the other has room
        // for the longest inline message.
        unsafe { guarded::copy(local, message.as_mut_ptr().cast(), data.length as usize) }.ok()?;
        let receipt = self.receipt(qp, w, &data, with_imm);
        receive.wake_call = target.publish_inline(wqe, &receipt, &message, w.flags() & send_flags::SOLICITED != 0);
        self.end_message(target, receive)
    }

    #[inline(always)]
    fn receipt(&self, qp: &QpBase, w: &impl WorkRequest, data: &Sge, with_imm: bool) -> Receipt {
        Receipt {
            opcode: wc::OP_RECV,
            byte_len: data.length,
            imm: if with_imm { w.imm() } else { 0 },
            wc_flags: if with_imm { wc::FLAG_IMM } else { 0 },
            src_qp: qp.qp_num(),
            slid: qp.lid(),
            sl: self.params.ah.sl,
            ..Receipt::default()
        }
    }

    #[inline(always)]
    fn end_message(&self, target: &Responder, receive: &mut Receive) -> Option<u32> {
        if !target.counts() {
            *receive = Receive::default();
            return None;
        }
        Some(0)
    }

    /// Carries out WQE `i` at the head of the queue, which was posted in a list. Returns true if it is done and may
    /// complete.
    #[inline]
    pub(crate) fn advance_fast(&mut self, qp: &QpBase, i: usize) -> bool {
        let opcode = self.wq[i].request.opcode;
        if self.fast.opcodes >> opcode as u32 & 1 == 0 || self.exec.begun() || self.exec.claimed.is_some() {
            return false;
        }
        let (Some(w), Some(target)) = (self.wq.queued(i), self.path.peer()) else { return false };
        let data = w.data();
        if u64::from(data.length) > DIRECT_CHUNK {
            return false;
        }
        let (mut receive, mut unanswered) = (Receive::default(), false);
        let done = {
            // A Send names the memory that it fills once it has its receive.
            let (addr, rkey) = w.remote();
            let Ok(_mark) = target.enter_at(rkey, addr) else { return false };
            match opcode {
                Opcode::Write => {
                    self.fast.note_store();
                    self.write(target, &w, &data)
                }
                Opcode::Read => {
                    self.fast.show_stores();
                    self.read(target, &w, &data)
                }
                Opcode::Send | Opcode::SendImm => {
                    self.fast.note_store();
                    self.message(target, qp, &w, &data, opcode == Opcode::SendImm, &mut receive)
                }
                _ => self.atomic(target, &w, &data, opcode == Opcode::CompareSwap, &mut unanswered),
            }
        };
        if done.is_none() {
            (self.exec.claimed, self.exec.unanswered) = (receive.claimed, unanswered);
        }
        self.owed.extend(receive.wake_call);
        done.is_some()
    }

    // ---- what all fast paths share ---------------------------------------------------------------------------------

    /// Marks the send queue as executing and the initiator as in flight, by one barrier for both. None, without a mark,
    /// if the request cannot take the fast path; without [`InFlight`] if the target or this process is closed.
    /// `remote`: address and key of an RDMA operation.
    #[inline(always)]
    fn begin_fast(
        &mut self,
        qp: &QpBase,
        data: &Sge,
        remote: Option<(u64, u32)>,
    ) -> Option<(&SendQueue, &Responder, Option<InFlight<'_>>)> {
        if (self.fast.room == 0 && !self.find_room())
            || data.length > self.fast.left
            || qp.shared.state.load(Ordering::Acquire) != QpState::Rts as u32
        {
            return None;
        }
        let this = &*self;
        let target = this.path.peer()?;
        qp.marks.executing.store(qp.marks.executing.load(Ordering::Relaxed) + 1, Ordering::Release);
        let mark = match remote {
            Some((addr, rkey)) => target.enter_at(rkey, addr),
            None => target.enter(),
        };
        let mark = mark.ok();
        // Looked at inside the marks: a thread that pauses this process closes the switch before it looks at them.
        let open = !gate::is_closed(self.switch);
        Some((this, target, mark.filter(|_| open)))
    }

    /// Opens the fast path while no request waits, for as many requests as the queue has room.
    #[inline(never)]
    fn find_room(&mut self) -> bool {
        if self.wq.is_empty() {
            self.fast.room = self.wq.room(self.completions.freed());
        }
        self.fast.room > 0
    }

    /// Publishes the completion of a request if it is `done`, with the bytes that it fetched, and ends the mark. A CQ
    /// that begins to count waits for the mark, and finds each completion either published and counted, or neither.
    #[inline(always)]
    fn end_fast(&mut self, qp: &QpBase, w: &impl WorkRequest, opcode: Opcode, length: u32, done: Option<u32>) -> bool {
        if let Some(fetched) = done {
            self.complete_fast(qp, w, opcode, length, fetched);
        }
        let executing = qp.marks.executing.load(Ordering::Relaxed);
        qp.marks.executing.store(executing + 1, Ordering::Release);
        done.is_some()
    }

    #[inline(always)]
    fn complete_fast(&mut self, qp: &QpBase, w: &impl WorkRequest, opcode: Opcode, length: u32, fetched: u32) {
        self.fast.left -= length;
        self.fast.room -= 1;
        let tail = self.wq.pass();
        qp.count_by_memory(opcode, length.into());
        self.count_psns(length.into());
        if (self.sq_sig_all || w.flags() & send_flags::SIGNALED != 0)
            && let Some(cq) = qp.send_cq()
            && self.completions.push(cq.shared, w.wr_id(), Status::Success, opcode.wc_opcode(), fetched, tail)
        {
            cq.tell(false);
        }
    }

    /// The local memory of `data`, checked for `need`; any pointer for a length of zero.
    #[inline(always)]
    fn local(&self, w: &impl WorkRequest, data: &Sge, need: u32) -> Option<*mut u8> {
        if w.flags() & (send_flags::INLINE | send_flags::IP_CSUM) != 0 {
            let may = data.length <= self.wq.max_inline() && w.flags() & send_flags::IP_CSUM == 0;
            return may.then_some(data.addr as *mut u8);
        }
        if data.length == 0 {
            return Some(std::ptr::null_mut());
        }
        let (entry, offset) = plain_region(self.keys, data.lkey, data.addr, data.length.into(), need, self.pd)?;
        Some(entry.host.load(Ordering::Relaxed).wrapping_add(offset) as *mut u8)
    }

    /// The local memory for an operation's answer, checked to be writable. None if one of the two QPs has no room for
    /// answers.
    #[inline(always)]
    fn answer(&self, w: &impl WorkRequest, data: &Sge, target: &Responder) -> Option<*mut u8> {
        let may = w.flags() & send_flags::INLINE == 0
            && self.params.max_rd_atomic != 0
            && target.qp.max_dest_rd_atomic.load(Ordering::Relaxed) != 0;
        if may { self.local(w, data, access::LOCAL_WRITE) } else { None }
    }
}
