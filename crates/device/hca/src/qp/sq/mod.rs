//! The send queue and the requester. Takes work requests in and carries them out in order: the first ones inside
//! `post_send`, the rest in pieces whenever the program polls or the progress thread looks (DESIGN decision 1).
//!
//! The path of an RDMA Write: `post` → `SendQueue::advance` → `requester::step` → [`crate::responder::Responder`] →
//! [`crate::mr::transfer`].

pub(crate) mod exec;
mod explain;
pub mod fast_path;
pub(crate) mod owner_copy;
pub mod path;
pub(crate) mod requester;
pub(crate) mod resolve;
pub(crate) mod ring;
pub mod saved;
pub mod ud;
pub mod wqe;

use crate::arena::layout::{KEYS, KeyEntry, Switch, slot_of};
use crate::cq::Cq;
use crate::cq::send_ring::SendRing;
use crate::device::port_counters::Word;
use crate::error::{Error, Result};
use crate::mr::transfer::Pieces;
use crate::process::{Process, Progress};
use crate::qp::base::QpBase;
use crate::qp::sq::exec::{Exec, Step};
use crate::qp::sq::explain::Failure;
use crate::qp::sq::fast_path::FastPath;
use crate::qp::sq::path::{Params, Path, PathAttr, Psns};
use crate::qp::sq::resolve::Resolved;
use crate::qp::sq::ring::WqeRing;
use crate::qp::sq::ud::{DatagramOut, Sender, UdPeers};
use crate::qp::sq::wqe::{BindWork, SendRequest, allowed, refusal};
use crate::responder::{LaneGuard, Responder, WakeCall};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use vervain_iba::{Opcode, PSN_MASK, QpCap, QpState, QpType, Status, access, send_flags};

/// The most bytes that `post_send` moves before it leaves the rest to later calls, so that posting stays asynchronous.
pub const POST_BUDGET: u64 = 256 << 10;
/// The most bytes that a look from poll_cq or from the progress thread moves: some 100 µs.
pub const LOOK_BUDGET: u64 = 1 << 20;

/// A send queue, guarded by its QP's lock.
pub(crate) struct SendQueue {
    pub(crate) process: &'static Process,
    pub(crate) wq: WqeRing,
    /// Completions for the program to poll.
    completions: Arc<SendRing>,
    fast: FastPath,
    /// Operations that the service type has, one bit each (IBA 10.8.3, table 91).
    allowed: u32,
    is_ud: bool,
    pub(crate) sq_sig_all: bool,
    pub(crate) pd: u32,
    pub(crate) exec: Exec,
    /// Peers to wake when the request in hand has completed.
    pub(crate) owed: Vec<WakeCall>,
    pub(crate) params: Params,
    pub(crate) path: Path,
    /// The lane of the target that is in use, and so moved out of `path`: to be left if its thread ends.
    pub(crate) in_hand: Option<LaneGuard>,
    /// True: the request that was finished last has failed, and the QP has not handled that yet.
    has_failed: bool,
    /// Difference between the next PSN and [`SendQueue::head`], if memory reaches the peer.
    psn_ahead: u32,
    /// This process's keys.
    pub(crate) keys: &'static [KeyEntry; KEYS],
    /// The switch of the QP's context.
    switch: &'static Switch,
    /// The first refusal in the batch; None: none yet.
    refused_push: Option<Error>,
}

impl SendQueue {
    pub(crate) fn new(
        (process, switch): (&'static Process, &'static Switch),
        qp_type: QpType,
        qpn: u32,
        pd: u32,
        cap: QpCap,
        sq_sig_all: bool,
        cq: Option<&Cq>,
    ) -> SendQueue {
        let wq = WqeRing::new(cap, qp_type == QpType::Ud);
        let ready_bit = cq.map_or(0, Cq::next_ready_bit);
        let completions = SendRing::new(wq.slots(), qpn, ready_bit, cq.is_some_and(Cq::has_timestamps));
        SendQueue {
            process,
            wq,
            completions: Arc::new(completions),
            fast: FastPath::new(qp_type, cap.max_send_sge),
            allowed: allowed(qp_type),
            is_ud: qp_type == QpType::Ud,
            sq_sig_all,
            pd,
            exec: Exec::default(),
            owed: Vec::new(),
            params: Params::default(),
            path: Path::start(qp_type),
            in_hand: None,
            has_failed: false,
            psn_ahead: 0,
            keys: &process.own.keys,
            switch,
            refused_push: None,
        }
    }

    /// Returns true if work waits.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.wq.is_empty() || (self.is_ud && self.path.datagrams().is_some_and(UdPeers::has_waiting))
    }

    /// Returns true if requests wait that an adapter would have sent by now: for a handshake, for their turn, or for an
    /// owner that carries them out. Those that wait for a receive, or for a peer that is absent or stopped, do not
    /// count. A carrier answers for its own requests ([`crate::qp::carrier::Connection::holds_back`]).
    pub(crate) fn is_leaving(&self, qp: &QpBase) -> bool {
        if qp.is_stopped() {
            return false;
        }
        if self.is_ud {
            return self.path.datagrams().is_some_and(UdPeers::keeps_any);
        }
        let may_go_on = qp.state() == QpState::Rts || self.has_begun();
        !self.wq.is_empty() && may_go_on && self.exec.is_due()
    }

    /// The ring of completions of this queue.
    pub(crate) fn ring(&self) -> &Arc<SendRing> {
        &self.completions
    }

    /// Sets the carriers of a UD QP.
    pub(crate) fn set_datagram_out(&mut self, out: Weak<dyn DatagramOut>) {
        if let Some(peers) = self.path.datagrams_mut() {
            peers.set_out(out);
        }
    }

    /// The error of a request on `qp` for which there is no room.
    #[cold]
    #[inline(never)]
    fn full(&self, qp: &QpBase) -> Error {
        let most = self.wq.max_wr();
        let open = most - self.wq.room(self.completions.freed());
        Error::no_memory(format!(
            "QP {:#x}: the send queue is full: {open} of max_send_wr {most} not yet completed; poll the CQ",
            qp.qp_num()
        ))
    }

    // ---- posting ---------------------------------------------------------------------------------------------------

    /// Takes one request in (`man ibv_post_send`).
    ///
    /// # Errors
    /// EINVAL for a request that no state of the QP would allow; ENOMEM if the queue is full.
    pub(crate) fn push(&mut self, qp: &QpBase, request: &SendRequest<'_>) -> Result<()> {
        if self.wq.room(self.completions.freed()) == 0 {
            return Err(self.full(qp));
        }
        let opcode = request.opcode;
        let state = qp.shared.state.load(Ordering::Acquire);
        if self.allowed >> opcode as u32 & 1 == 0
            || state < QpState::Rts as u32
            || request.flags & send_flags::IP_CSUM != 0
            || (request.flags & send_flags::INLINE != 0 && opcode.answers())
            || (self.is_ud && request.ud.is_none())
        {
            return Err(refusal(qp, request));
        }
        let i = self.wq.place(self.wq.tail());
        let (num_sge, is_inline, length) = self.wq.take_data(i, request)?;
        let w = &mut self.wq[i];
        (w.wr_id, w.num_sge, w.is_inline) = (request.wr_id, num_sge, is_inline);
        let r = &mut w.request;
        (r.opcode, r.flags, r.length) = (opcode, request.flags, length);
        (r.remote_addr, r.rkey, r.imm_or_rkey) = (request.remote_addr, request.rkey, request.imm_or_rkey);
        r.srqn = request.srqn;
        match opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => (r.compare_add, r.swap) = (request.compare_add, request.swap),
            Opcode::Flush => r.flush = request.flush,
            Opcode::BindMw => w.bind = request.bind.as_ref().map(BindWork::of),
            _ => {}
        }
        if let Some(ud) = &request.ud {
            self.wq.address(i, ud);
        }
        self.wq.posted();
        self.fast.close();
        Ok(())
    }

    /// Begins a call of the program, which may move [`fast_path`]'s limit of bytes on the fast path.
    #[inline(always)]
    pub(crate) fn begin_call(&mut self) {
        self.fast.begin_call();
    }

    /// Keeps the refusal of a request in the batch; the first one is that of the batch.
    pub(crate) fn keep_refusal(&mut self, why: &Error) {
        self.refused_push.get_or_insert_with(|| why.clone());
    }

    /// Takes the batch's refusal out.
    pub(crate) fn forget_refusal(&mut self) -> Option<Error> {
        self.refused_push.take()
    }

    /// The number of scatter/gather elements that a request may have.
    pub(crate) fn max_send_sge(&self) -> u32 {
        self.wq.max_sge()
    }

    /// Remembers the beginning of a batch.
    pub(crate) fn begin_batch(&mut self) {
        self.wq.begin_batch();
    }

    /// Returns true if the batch is still empty and nothing was refused.
    #[inline]
    pub(crate) fn nothing_pushed(&self) -> bool {
        self.wq.nothing_pushed() && self.refused_push.is_none()
    }

    /// Returns true if no request waited before the batch.
    #[inline]
    pub(crate) fn batch_is_first(&self) -> bool {
        self.wq.batch_is_first()
    }

    /// Drops the requests pushed since `wr_start`.
    pub(crate) fn abort_batch(&mut self) {
        self.wq.abort_batch();
        self.refused_push = None;
    }

    // ---- carrying out ----------------------------------------------------------------------------------------------

    /// Does the work that can be done now within `budget` bytes.
    #[inline(always)]
    pub(crate) fn advance(&mut self, qp: &QpBase, mut budget: u64) -> Progress {
        if self.is_ud && self.path.datagrams().is_some_and(UdPeers::has_waiting) {
            self.send_waiting_datagrams(qp);
        }
        while !self.wq.is_empty() {
            if qp.shared.state.load(Ordering::Acquire) != QpState::Rts as u32 && !self.goes_on(qp, self.has_begun()) {
                break;
            }
            if budget == 0 {
                return Progress::More;
            }
            let i = self.wq.place(self.wq.head());
            if self.advance_fast(qp, i) {
                budget = budget.saturating_sub(self.wq[i].request.length);
                self.finish(qp, Status::Success);
                continue;
            }
            match self.step(qp, &mut budget) {
                Step::Done(status) => {
                    qp.asks(false);
                    self.finish(qp, status);
                    if self.has_failed {
                        return Progress::Idle;
                    }
                }
                Step::Again => {
                    qp.asks(self.exec.asked.is_some());
                    return Progress::More;
                }
                Step::Wait(until) => {
                    qp.asks(self.exec.asked.is_some());
                    return Progress::Wait(until);
                }
            }
        }
        if self.is_ud { self.end_of_datagrams() } else { Progress::Idle }
    }

    #[inline(never)]
    fn end_of_datagrams(&mut self) -> Progress {
        let Some(peers) = self.path.datagrams_mut() else { return Progress::Idle };
        peers.flush();
        peers.next_look().map_or(Progress::Idle, Progress::Wait)
    }

    /// Tries to send the waiting datagrams again.
    #[inline(never)]
    fn send_waiting_datagrams(&mut self, qp: &QpBase) {
        let from = Sender { qp, qkey: self.params.qkey };
        if let Some(peers) = self.path.datagrams_mut() {
            peers.send_waiting(from, &mut self.owed);
        }
        self.wake_peers();
    }

    /// Returns true if the request at the head is carried out although the QP is not in RTS. `has_begun`: it has been
    /// begun.
    #[cold]
    pub(crate) fn goes_on(&mut self, qp: &QpBase, has_begun: bool) -> bool {
        match qp.state() {
            QpState::Rts => true,
            // IBA 10.3.1.5: requests that have begun are finished, none is begun.
            QpState::Sqd => has_begun,
            QpState::Err | QpState::Sqe => {
                self.flush(qp);
                false
            }
            _ => false,
        }
    }

    /// Completes the WQE at the head with `status`. After an error the QP stops the queue (IBA 10.10.2.2), see
    /// [`SendQueue::take_failure`].
    #[inline(always)]
    pub(crate) fn finish(&mut self, qp: &QpBase, status: Status) {
        let i = self.wq.place(self.wq.head());
        let w = &mut self.wq[i];
        let opcode = w.request.opcode;
        let signaled = self.sq_sig_all || w.request.flags & send_flags::SIGNALED != 0 || status != Status::Success;
        if opcode.is_local() {
            w.bind = None;
            self.psn_ahead = self.psn_ahead.wrapping_sub(1);
        }
        if status == Status::Success && self.goes_by_memory(opcode) {
            qp.count_by_memory(opcode, self.wq[i].request.length);
            if self.exec.by_vm | self.exec.by_owner != 0 {
                qp.count_ways(self.exec.by_vm, self.exec.by_owner);
            }
            self.count_psns(self.wq[i].request.length);
        }
        if status == Status::Success {
            self.wq.done();
            self.tell_psn();
        } else {
            // The peer has not taken the request, so its PSN comes next.
            self.tell_psn();
            self.wq.done();
            // A thread that sees the completion finds the state that goes with it.
            self.failed(qp, i, status);
        }
        self.exec = Exec::default();
        if signaled {
            let byte_len = if opcode.answers() { self.wq[i].request.length as u32 } else { 0 };
            self.complete(qp, i, status, byte_len);
        }
        if !self.owed.is_empty() {
            self.wake_peers();
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn wake_peers(&mut self) {
        self.owed.drain(..).for_each(WakeCall::make);
    }

    /// Counts the PSNs of a message by memory: as many as it would take packets (IBA 9.7.2). The head counts one of
    /// them.
    #[inline(always)]
    pub(crate) fn count_psns(&mut self, length: u64) {
        if length > u64::from(self.params.mtu_bytes) {
            self.count_more_psns(length);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_more_psns(&mut self, length: u64) {
        let packets = length.div_ceil(u64::from(self.params.mtu_bytes.max(1)));
        self.psn_ahead = self.psn_ahead.wrapping_add(packets as u32 - 1);
        self.tell_psn();
    }

    /// Publishes the next PSN to the peer if the count of accesses does not yield it.
    #[inline]
    pub(crate) fn tell_psn(&self) {
        if let Some(peer) = self.path.peer() {
            peer.lane.tell_psn(self.next_psn());
        }
    }

    /// The PSN that the request at the head begins with, if memory reaches the peer.
    #[inline]
    pub(crate) fn next_psn(&self) -> u32 {
        self.wq.head().wrapping_add(self.psn_ahead) & PSN_MASK
    }

    /// Has the next request begin with the PSN of the attributes.
    pub(crate) fn begin_psns(&mut self) {
        self.psn_ahead = self.params.sq_psn.wrapping_sub(self.wq.head());
    }

    /// The PSN of the next request, and after a carrier's connection the PSN that is expected of the peer.
    pub(crate) fn psns(&self) -> (u32, Option<u32>) {
        match &self.path {
            Path::RemoteEnded(psns) => self.psns_of(psns),
            _ => (self.next_psn(), None),
        }
    }

    /// The PSN of the next request and the one that is expected of the peer, from those of a carrier.
    pub(crate) fn psns_of(&self, psns: &Psns) -> (u32, Option<u32>) {
        (psns.next.unwrap_or(self.params.sq_psn), Some(psns.expected))
    }

    /// The QP's attributes that a carrier needs.
    pub(crate) fn path_attr(&self) -> PathAttr {
        self.params.path_attr()
    }

    /// Sets new attributes.
    pub(crate) fn set_params(&mut self, params: Params) {
        self.params = params;
    }

    /// Leaves the messages to a carrier from now on.
    pub(crate) fn go_remote(&mut self) {
        self.path = Path::Remote;
        self.fast.go_remote();
    }

    /// Ends the carrier's part in the messages.
    pub(crate) fn leave_remote(&mut self, psns: Psns) {
        self.path = Path::RemoteEnded(psns);
    }

    /// Returns true if a carrier has the messages, or had them until the QP went to ERR.
    pub(crate) fn is_remote(&self) -> bool {
        self.path.is_remote()
    }

    /// Returns true if a request has failed that the QP has not handled yet: nothing more is begun.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns true if a request has failed since the last call. Then the QP stops the queue.
    #[inline]
    pub(crate) fn take_failure(&mut self) -> bool {
        self.has_failed && std::mem::take(&mut self.has_failed)
    }

    /// Returns true if a finished request went to a connected peer's memory. Datagrams are counted as they arrive.
    #[inline]
    fn goes_by_memory(&self, opcode: Opcode) -> bool {
        !self.path.is_remote() && !self.is_ud && !opcode.is_local()
    }

    /// Publishes the completion of WQE `i`, the one before the head.
    #[inline(always)]
    fn complete(&mut self, qp: &QpBase, i: usize, status: Status, byte_len: u32) {
        let Some(cq) = qp.send_cq() else { return };
        let (wr_id, opcode) = (self.wq[i].wr_id, self.wq[i].request.opcode.wc_opcode());
        if self.completions.push(cq.shared, wr_id, status, opcode, byte_len, self.wq.head()) {
            cq.tell(status != Status::Success);
        }
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, qp: &QpBase, i: usize, status: Status) {
        qp.stop_sends();
        self.has_failed = true;
        Failure { sq: self, i, status }.explain(qp);
        qp.tally.add(Word::Errors, 1);
        match status {
            Status::RemoteAccess => qp.tally.add(Word::RemoteAccess, 1),
            Status::RemoteInvalidRequest => qp.tally.add(Word::RemoteInvalid, 1),
            _ => {}
        }
    }

    /// Completes all waiting requests with a flush error, in order.
    pub(crate) fn flush(&mut self, qp: &QpBase) {
        self.abandon();
        // Outside of send work a CQ may begin to count at any time, but not between a completion and its count.
        let counted = qp.send_cq().map(|cq| cq.hold_count());
        qp.tally.add(Word::Flushed, self.wq.waiting().into());
        self.psn_ahead = self.psn_ahead.wrapping_sub(self.wq.waiting());
        while !self.wq.is_empty() {
            let i = self.wq.place(self.wq.head());
            self.wq.done();
            self.wq[i].bind = None;
            self.complete(qp, i, Status::Flushed, 0);
        }
        drop(counted);
        self.exec = Exec::default();
        if let Some(peers) = self.path.datagrams_mut() {
            peers.forget_waiting();
        }
    }

    /// Gives up the request at the head, which will not be finished.
    pub(crate) fn abandon(&mut self) {
        owner_copy::cancel(self);
        self.unclaim();
    }

    /// Returns to the state after creation (RESET), after [`SendQueue::abandon`] and [`SendQueue::disconnect`].
    pub(crate) fn reset(&mut self, qp_type: QpType) {
        self.wq.reset();
        self.fast.reset();
        if self.path.is_remote() {
            self.path = Path::start(qp_type);
        }
        self.has_failed = false;
        self.exec = Exec::default();
    }

    /// Gives the receive of a message that will not be finished to the peer's next one.
    fn unclaim(&mut self) {
        if let (Some(wqe), Some(target)) = (self.exec.claimed.take(), self.path.peer()) {
            target.unclaim(wqe);
        }
    }

    /// Ends the in-flight marks that a thread of this process left behind when it ended inside a call.
    pub(crate) fn leave_lanes(&mut self) {
        if let Some(lane) = self.in_hand.take() {
            lane.leave();
            lane.release();
        }
        self.path.each_peer(Responder::leave);
        // Requests that were begun do not count.
        self.tell_psn();
    }

    /// Gives up the lanes into other QPs. Returns true if any was made on request.
    pub(crate) fn disconnect(&mut self) -> bool {
        self.path.disconnect()
    }

    /// Gives the oldest request, of a QP that is restored, its progress: it had been begun; it is an atomic that was
    /// carried out without its answer.
    pub(crate) fn resume(&mut self, begun: bool, unanswered: bool) {
        self.exec.resumed = begun && !self.wq.is_empty();
        self.exec.unanswered = unanswered && !self.wq.is_empty();
    }

    /// Returns true if a request has been begun and not finished.
    pub(crate) fn has_begun(&self) -> bool {
        self.exec.begun()
    }

    // ---- the target ------------------------------------------------------------------------------------------------

    /// The way to the peer, or into its SRQ `srqn`. The error: why the request cannot go there now.
    #[cold]
    pub(crate) fn find_target(&mut self, qp: &QpBase, srqn: Option<u32>) -> std::result::Result<Box<Responder>, Step> {
        let reliable = qp.qp_type().is_reliable();
        match resolve::find(self.process, qp, &self.params, srqn) {
            Resolved::Responder(t)
                if qp.qp_type() == QpType::Rc && t.expected_psn().is_some_and(|psn| psn != self.next_psn()) =>
            {
                Err(self.other_psn(qp, &t))
            }
            Resolved::Responder(t) => {
                t.space.tell_of_way(qp.qp_num());
                self.exec.retry.reached();
                Ok(t)
            }
            Resolved::Connecting => {
                let is_slow = || self.process.rendezvous.is_slow(slot_of(self.params.dest_qpn));
                Err(self.exec.retry.connecting(&self.params, self.switch, reliable, is_slow))
            }
            Resolved::Suspended => Err(self.exec.retry.stopped()),
            Resolved::Nobody if reliable => {
                self.exec.retry.end_handshake();
                Err(self.silence())
            }
            Resolved::Nobody => Err(Step::Done(Status::Success)),
            Resolved::NoSuchSrq => Err(Step::Done(Status::RemoteInvalidRequest)),
        }
    }

    /// Handles a PSN other than the expected one. The responder takes it for a lost or an old request (IBA 9.7.2);
    /// either way it acknowledges nothing.
    #[cold]
    fn other_psn(&mut self, qp: &QpBase, target: &Responder) -> Step {
        target.release();
        if self.exec.retry.is_answered() {
            log::info!(
                "QP {:#x}: QP {:#x} expects PSN {:#x}, not {:#x}: the rq_psn of one must be the sq_psn of the other",
                qp.qp_num(),
                self.params.dest_qpn,
                target.expected_psn().unwrap_or_default(),
                self.next_psn()
            );
        }
        self.exec.retry.end_handshake();
        self.silence()
    }

    /// [`exec::Retry::silence`].
    #[cold]
    pub(crate) fn silence(&mut self) -> Step {
        self.exec.retry.silence(&self.params, self.switch)
    }

    // ---- local data ------------------------------------------------------------------------------------------------

    /// Collects the local memory of bytes `[from, from + len)` of WQE `i`, checked against this process's keys for
    /// `need`. `LOC_PROT_ERR` if a key does not allow it (IBA 10.10.2.2).
    #[inline(always)]
    pub(crate) fn collect(
        &self,
        i: usize,
        from: u64,
        len: u64,
        need: u32,
        to: &mut Pieces,
    ) -> std::result::Result<(), Status> {
        self.each_piece(i, from, len, need, |p, n| to.push(p, n))
    }

    /// Checks the local memory of the whole of WQE `i` as [`SendQueue::collect`] does, and nothing else.
    pub(crate) fn check_local(&self, i: usize, need: u32) -> std::result::Result<(), Status> {
        self.each_piece(i, 0, self.wq[i].request.length, need, |_, _| {})
    }

    /// Calls `each` for each part of bytes `[from, from + len)` of WQE `i`, with its length.
    #[inline(always)]
    pub(crate) fn each_piece(
        &self,
        i: usize,
        from: u64,
        len: u64,
        need: u32,
        mut each: impl FnMut(*mut u8, u64),
    ) -> std::result::Result<(), Status> {
        if let Some(data) = self.wq.inline_data(i) {
            each(data[from as usize..][..len as usize].as_ptr().cast_mut(), len);
            return Ok(());
        }
        let (mut skip, mut left) = (from, len);
        for sge in self.wq.sges(i) {
            let n = u64::from(sge.length);
            if skip >= n {
                skip -= n;
                continue;
            }
            if left == 0 {
                break;
            }
            let take = (n - skip).min(left);
            let addr = sge.addr.wrapping_add(skip);
            let found = crate::mr::local_memory(self.process, sge.lkey, addr, take, need, self.pd);
            each(found.ok_or(Status::LocalProtection)?, take);
            left -= take;
            skip = 0;
        }
        Ok(())
    }
}

/// Rights that local memory needs for `opcode`: fetched data is written there.
#[inline]
pub(crate) fn local_need(opcode: Opcode) -> u32 {
    if opcode.answers() { access::LOCAL_WRITE } else { 0 }
}
