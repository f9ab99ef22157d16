//! Queue pairs, as the program holds them. A change of state closes the lanes into the QP, waits until no initiator is
//! in flight, and flushes (IBA 10.3); the send queue does the requester's work, peers do the responder's.
//!
//! The parts of a QP own their state: [`base`] what is fixed and what peers read, `send_side` the requests, `pending`
//! the record of those that wait, `receive_side` the receives and the ways in, `events` the async events.

pub mod ah;
pub mod base;
pub mod carrier;
mod events;
pub(crate) mod facts;
mod granting;
mod init;
pub(crate) mod life;
pub(crate) mod modify;
mod pending;
mod receive_side;
pub mod remote;
pub mod router;
pub mod saved;
mod send_side;
pub mod sq;
pub(crate) mod state;
pub mod table;

use crate::arena::Block;
use crate::arena::layout::{QpShared, Switch};
use crate::arena::numbers::Kind;
use crate::context::{Context, Pd};
use crate::cq::completion::Source;
use crate::cq::send_ring::SendRing;
use crate::cq::{Cq, Reports};
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::barrier;
use crate::host::cancel::nap;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::lane::OwnedLane;
use crate::process::send_work::{Mark, Progress, SendWork, Settled};
use crate::qp::ah::Route;
use crate::qp::base::QpBase;
use crate::qp::carrier::Connection;
use crate::qp::events::QpEvents;
use crate::qp::pending::Pending;
use crate::qp::receive_side::ReceiveSide;
use crate::qp::remote::{SenderAccess, Sends};
use crate::qp::send_side::SendSide;
use crate::qp::sq::ud::{Datagram, DatagramOut};
use crate::qp::sq::wqe::{SendRequest, WorkRequest};
use crate::qp::sq::{LOOK_BUDGET, SendQueue};
use crate::qp::table::QpTable;
use crate::responder::Responder;
use crate::srq::Srq;
use crate::srq::xrcd::Xrcd;
pub use init::QpInit;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::{Gid, Nak, Opcode, QpAttr, QpCap, QpState, QpType, Sge, event};

/// The number of tries to lock a send queue that another thread holds.
const SOON_TRIES: u32 = 200;

/// A queue pair.
pub struct Qp {
    base: QpBase,
    pub(crate) table: &'static QpTable,
    me: Weak<Qp>,
    pd: Option<Arc<Pd>>,
    cap: QpCap,
    /// Holds the shared part.
    block: Block,
    receives: ReceiveSide,
    sends: OwnerLock<SendSide>,
    /// The send queue's ring of completions, for the CQ.
    ring: Arc<SendRing>,
    attr: OwnerLock<QpAttr>,
    pending: Pending,
    events: QpEvents,
    /// Multicast groups that it has joined.
    groups: OwnerLock<Vec<Gid>>,
    gone: AtomicBool,
    _counted: Counted,
}

impl Deref for Qp {
    type Target = QpBase;

    #[inline(always)]
    fn deref(&self) -> &QpBase {
        &self.base
    }
}

impl Qp {
    /// Returns the XRC target `qpn` of this process in `xrcd` (`man ibv_open_qp`).
    pub fn open(context: &Context, xrcd: &Xrcd, qpn: u32) -> Result<Arc<Qp>> {
        QpTable::of(context.process()?)?
            .find(qpn)
            .filter(|qp| qp.shared.xrcd.load(Ordering::Relaxed) == xrcd.id)
            .ok_or_else(|| Error::invalid(format!("the XRC domain has no target QP {qpn:#x} in this process")))
    }

    /// Makes a QP in a PD or in an XRC domain (`man ibv_create_qp_ex`).
    pub fn create(context: &Arc<Context>, pd: Option<&Arc<Pd>>, init: &QpInit<'_>) -> Result<Arc<Qp>> {
        Self::with_number(context, pd, init, None)
    }

    fn with_number(
        context: &Arc<Context>,
        pd: Option<&Arc<Pd>>,
        init: &QpInit<'_>,
        number: Option<u32>,
    ) -> Result<Arc<Qp>> {
        let process = context.process()?;
        let table = QpTable::of(process)?;
        pd.map_or(Ok(()), |pd| pd.process.check())?;
        init.srq.map_or(Ok(()), |srq| srq.check())?;
        for cq in init.send_cq.iter().chain(&init.recv_cq) {
            cq.process.check()?;
        }
        process.attention.check_room()?;
        init.check(pd)?;
        let number = match number {
            None => process.new_number(Kind::Qp)?,
            Some(number) => process.numbers.take_again(Kind::Qp, number).map(|()| number)?,
        };
        match Self::build(context, table, pd, init, number) {
            Ok(qp) => Ok(qp),
            Err(e) => {
                process.numbers.free(Kind::Qp, number);
                Err(e)
            }
        }
    }

    fn build(
        context: &Arc<Context>,
        table: &'static QpTable,
        pd: Option<&Arc<Pd>>,
        init: &QpInit<'_>,
        number: u32,
    ) -> Result<Arc<Qp>> {
        let process = table.process();
        let pd_number = pd.map_or(0, |p| p.number);
        let cap = init.granted();
        let rq = ReceiveSide::make_queue(process, pd_number, init, &cap)?;
        let block = process.arena.alloc(size_of::<QpShared>() as u64)?;
        let offset = block.offset();
        let shared = process.arena.view().get::<QpShared>(offset).expect("just allocated");
        shared.qpn.store(number, Ordering::Relaxed);
        shared.qp_type.store(init.qp_type.to_verbs(), Ordering::Relaxed);
        shared.pd.store(pd_number, Ordering::Relaxed);
        let (switch, at) = context.switch();
        shared.switch.store(at, Ordering::Relaxed);
        shared.xrcd.store(init.xrcd.map_or(0, |x| x.id), Ordering::Relaxed);
        let send_cq = init.send_cq.map(|cq| &**cq);
        let mut sq = SendQueue::new((process, switch), init.qp_type, number, pd_number, cap, init.sq_sig_all, send_cq);
        let ring = Arc::clone(sq.ring());
        let qp = Arc::new_cyclic(|me: &Weak<Qp>| {
            shared.attention.store(process.attention.add(me.clone()), Ordering::Relaxed);
            if init.qp_type == QpType::Ud {
                let out: Weak<dyn DatagramOut> = me.clone();
                sq.set_datagram_out(out);
            }
            Qp {
                base: QpBase::new(process, context, init.qp_type, number, shared, switch, init.send_cq),
                table,
                me: me.clone(),
                pd: pd.cloned(),
                cap,
                block,
                receives: ReceiveSide::new(init, rq, offset, me.clone(), &ring),
                sends: OwnerLock::new(SendSide { sq, connection: None }),
                ring,
                attr: OwnerLock::new(QpAttr { cap, ..QpAttr::default() }),
                pending: Pending::default(),
                events: QpEvents::new(init.cookie),
                groups: OwnerLock::default(),
                gone: AtomicBool::new(false),
                _counted: Counted::new(Word::Qps, context.device()),
            }
        });
        qp.receives.make_own_lane(&qp.base)?;
        qp.count_users(1);
        qp.report_to_cqs();
        process.send_work.add(Mark::new(&qp, |qp| &qp.base.marks), number);
        table.add(&qp);
        process.publish_number(Kind::Qp, number, offset);
        Ok(qp)
    }

    /// The CQs that its completions come to, that of its sends first.
    fn cqs(&self) -> impl Iterator<Item = &Arc<Cq>> {
        self.send_cq.iter().chain(&self.receives.cq)
    }

    /// Gives the CQs the number of completions to expect, and the source of those of sends.
    fn report_to_cqs(&self) {
        for cq in self.cqs() {
            let me: Weak<dyn Reports> = self.me.clone();
            cq.add_reporting(self.number, me);
        }
        if let Some(cq) = &self.send_cq {
            cq.add_source(Source::Sends(Arc::clone(&self.ring)));
            cq.expect(u64::from(self.cap.max_send_wr), None);
        }
        self.receives.report_to_cq();
    }

    /// Takes back from the CQs the announcements of `report_to_cqs`, when the QP is destroyed.
    fn leave_cqs(&self) {
        self.cqs().for_each(|cq| cq.remove_reporting(self.number));
        if let Some(cq) = &self.send_cq {
            cq.remove_source(&Source::Sends(Arc::clone(&self.ring)));
            cq.expect_no_more(u64::from(self.cap.max_send_wr), None);
        }
        self.receives.leave_cq();
    }

    /// Makes a lane for `initiator` into this datagram QP, or through this XRC target into `srq`, unless it has one.
    /// Returns the lane's offset.
    pub(crate) fn make_lane(&self, initiator: u32, srq: Option<&Arc<Srq>>) -> Result<u64> {
        self.receives.make_lane(&self.base, initiator, srq)
    }

    /// Reaps the lanes whose initiators have ended or give them up. `lost`: messages that they have begun are lost;
    /// else they are begun anew.
    pub(crate) fn reap_where(&self, theirs: impl Fn(&OwnedLane) -> bool, lost: bool) {
        self.receives.reap_where(&self.base, theirs, lost);
    }

    fn count_users(&self, by: u32) {
        let sends = self.pd.iter().map(|pd| &pd.users).chain(self.send_cq.iter().map(|cq| &cq.users));
        // Adding u32::MAX subtracts 1.
        sends.chain(self.receives.user_counts()).for_each(|count| _ = count.fetch_add(by, Ordering::AcqRel));
    }

    // ---- plain facts -----------------------------------------------------------------------------------------------

    /// The sizes granted.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    pub(crate) fn pd(&self) -> Option<&Arc<Pd>> {
        self.pd.as_ref()
    }

    /// The CQ of its receives.
    pub fn recv_cq(&self) -> Option<&Arc<Cq>> {
        self.receives.cq.as_ref()
    }

    /// The SRQ that it receives from.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.receives.srq.as_ref()
    }

    /// The XRC domain of a target.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.receives.xrcd.as_ref()
    }

    /// Changes the cookie.
    pub fn set_cookie(&self, cookie: usize) {
        self.events.set_cookie(cookie);
    }

    /// Acknowledges one async event of this QP.
    pub fn ack_async_event(&self) {
        self.events.ack();
    }

    /// Returns true if it was destroyed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// A counted reference to the QP, to be kept beyond a call. None while it is dropped.
    pub fn handle(&self) -> Option<Arc<Qp>> {
        self.me.upgrade()
    }

    fn raise(&self, event: u32) {
        self.events.raise(&self.context, event);
    }

    // ---- what carriers ask of it -----------------------------------------------------------------------------------

    /// The way in for messages by a carrier: a lane of this QP, or through this XRC target into SRQ `srqn`. The errors:
    /// silence if there is none now; an invalid request if there is no such SRQ (IBA A14.4.3).
    pub fn way_in(&self, srqn: u32) -> std::result::Result<Responder, Nak> {
        self.receives.way_in(&self.base, srqn)
    }

    /// Returns true if no receive waits for the next message, although the QP has a receive queue.
    pub fn lacks_receive(&self) -> bool {
        self.receives.lacks_receive()
    }

    /// Receives posted to an own queue and not taken, for the credits of an acknowledgement (IBA 9.7.7.2). None with an
    /// SRQ, and if there has never been a receive: a QP that is only for RDMA has no credits to give.
    pub fn receives_waiting(&self) -> Option<u32> {
        self.receives.credits()
    }

    /// The place among the saved receives of a claimed one. `receive`: the number that a carrier's responder has for
    /// it.
    pub fn receive_place(&self, srqn: u32, receive: u32) -> Option<u32> {
        self.receives.receive_place(srqn, receive)
    }

    /// Claims the receive at that place again. Returns its new number and its room in bytes.
    pub fn claim_receive(&self, srqn: u32, place: u32) -> Option<(u32, u64)> {
        self.receives.claim_receive(self.number, srqn, place)
    }

    /// Runs `f` on the send queue of this QP as send work, if it is connected by `connection`. A carrier calls it for
    /// answers and timers.
    pub fn with_sends<C: Connection + 'static>(
        &self,
        connection: &Arc<C>,
        f: impl FnOnce(&mut Sends<'_>) -> Progress,
    ) -> SenderAccess {
        let Some(mut sends) = self.lock_sends_soon() else { return SenderAccess::Busy };
        let is_its = |own: &Arc<dyn Connection>| std::ptr::addr_eq(Arc::as_ptr(own), Arc::as_ptr(connection));
        if !sends.connection.as_ref().is_some_and(is_its) {
            return SenderAccess::NoSender;
        }
        match sends.work_on(self, |sends| f(&mut Sends::of(&mut sends.sq, self))) {
            Some(progress) => {
                sends.note_if_needed(self, progress);
                SenderAccess::Ran
            }
            None => SenderAccess::Busy,
        }
    }

    /// Goes on with send work that the carrier has held back. Returns false if another thread holds the send queue.
    /// That thread may have passed the point already, so the caller tries again.
    pub fn go_on(&self) -> bool {
        let sends = self.lock_sends_soon();
        sends.map(|mut sends| sends.start(self, LOOK_BUDGET)).is_some()
    }

    // ---- posting ---------------------------------------------------------------------------------------------------

    #[inline]
    fn lock_sends(&self) -> OwnerGuard<'_, SendSide> {
        let mut sends = self.sends.lock();
        if sends.stolen() {
            self.torn(&mut sends);
        }
        sends
    }

    /// The send queue, if it comes free soon. A thread that handles packets does not wait for a batch (`ibv_wr_start`)
    /// that is not ended, least of all its own, nor for a thread that was preempted.
    fn lock_sends_soon(&self) -> Option<OwnerGuard<'_, SendSide>> {
        for _ in 0..SOON_TRIES {
            if let Some(sends) = self.sends.try_lock() {
                return Some(sends);
            }
            std::hint::spin_loop();
        }
        (!self.sends.raw().held_by_me() && self.thread_is_gone()).then(|| self.lock_sends())
    }

    /// A thread ended in the middle of a call: its requests are lost, and the QP fails with QP_FATAL.
    #[cold]
    fn torn(&self, sends: &mut SendSide) {
        sends.sq.leave_lanes();
        if let Some(cq) = &self.send_cq {
            cq.look_at(self.ring.ready_bit);
        }
        self.end_mark();
        self.shared.state.store(QpState::Err as u32, Ordering::SeqCst);
        self.shared.fault.store(event::QP_FATAL + 1, Ordering::SeqCst);
        self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
    }

    /// Posts the requests that `f` pushes, and starts on them.
    #[inline(always)]
    pub fn post_send<R>(&self, f: impl FnOnce(&mut Poster<'_>) -> R) -> R {
        let mut sends = self.lock_sends();
        sends.sq.begin_call();
        let mut poster = Poster { qp: self, sq: &mut sends.sq, pushed: false };
        let r = f(&mut poster);
        if poster.pushed {
            sends.begin(self);
        }
        r
    }

    /// Begins a batch. This thread holds the lock of the send queue until [`Qp::wr_complete`] or [`Qp::wr_abort`]
    /// (`man ibv_wr_post`).
    pub fn wr_start(&self) {
        let stolen = self.sends.raw().lock();
        // SAFETY: locked just above, and no other reference is alive.
        let sends = unsafe { self.sends.held() };
        if stolen {
            self.torn(sends);
            // A refusal of the thread that ended: a batch that has ended leaves none.
            sends.sq.forget_refusal();
        }
        sends.sq.begin_call();
        sends.sq.begin_batch();
    }

    /// Carries out a batch of one request at once and ends the batch. Returns false, with the batch still open, if the
    /// request has to be pushed.
    #[inline]
    pub fn wr_complete_fast(&self, opcode: Opcode, work: &impl WorkRequest) -> bool {
        // SAFETY: this thread holds the lock since `wr_start`; the reference ends before the lock does.
        let sq = unsafe { &mut self.sends.held().sq };
        let done = sq.nothing_pushed() && sq.post_fast(&self.base, opcode, work);
        if done {
            self.sends.raw().unlock();
        }
        done
    }

    /// Adds one request to the batch. The first error is kept for [`Qp::wr_complete`].
    pub fn wr_push(&self, request: &SendRequest<'_>) -> Result<()> {
        // SAFETY: this thread holds the lock since `wr_start`.
        let sq = unsafe { &mut self.sends.held().sq };
        let pushed = sq.push(&self.base, request);
        if let Err(e) = &pushed {
            sq.keep_refusal(e);
        }
        pushed
    }

    /// Posts the batch, or nothing of it if one of its requests was refused.
    pub fn wr_complete(&self) -> Result<()> {
        // SAFETY: this thread holds the lock since `wr_start`; the reference ends before the lock does.
        let sends = unsafe { self.sends.held() };
        let result = match sends.sq.forget_refusal() {
            Some(e) => {
                sends.sq.abort_batch();
                Err(e)
            }
            None => {
                sends.begin(self);
                Ok(())
            }
        };
        self.sends.raw().unlock();
        result
    }

    /// Drops the batch.
    pub fn wr_abort(&self) {
        // SAFETY: as in `wr_complete`.
        unsafe { self.sends.held() }.sq.abort_batch();
        self.sends.raw().unlock();
    }

    /// Posts one receive (`man ibv_post_recv`). EINVAL in RESET and for QPs that receive from an SRQ.
    #[inline]
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let Some(rq) = self.receives.own_queue() else {
            return Err(Error::invalid("the QP has no receive queue of its own"));
        };
        let state = self.state();
        if state == QpState::Reset {
            return Err(Error::invalid("receives cannot be posted in RESET"));
        }
        rq.post(wr_id, sges)?;
        // A thread that moves the QP to ERR and flushes finds this receive, or its new state is seen here.
        barrier::light(!barrier::is_registered());
        if state == QpState::Err || self.state() == QpState::Err {
            self.flush_posted_receive();
        }
        Ok(())
    }

    /// Flushes a receive that was posted in ERR.
    #[cold]
    fn flush_posted_receive(&self) {
        // A reset waits for this; but another thread may hold it across code of the program, a batch that it has begun.
        let _sends = self.lock_sends_soon();
        // Another thread may have reset the QP meanwhile: its receives are those of another connection.
        if self.state() == QpState::Err {
            // Messages that peers have delivered come first, and no peer may be filling a receive that is flushed.
            self.receives.settle_lanes(&self.base);
            self.receives.flush(&self.base);
        }
    }
}

impl SendWork for Qp {
    fn qpn(&self) -> u32 {
        self.number
    }

    fn switch(&self) -> &'static Switch {
        self.base.switch
    }

    fn mark(&self) -> u64 {
        self.base.marks.executing.load(Ordering::SeqCst)
    }

    fn settle(&self) -> Settled {
        let Some(mut sends) = self.sends.try_lock() else { return Settled::NotYet };
        sends.settle(self)
    }

    fn wait_executing(&self) {
        let executing = &self.base.marks.executing;
        let e = executing.load(Ordering::SeqCst);
        let mut spins = 0u32;
        while e & 1 == 1 && executing.load(Ordering::Acquire) == e && !self.thread_is_gone() {
            spins += 1;
            if spins > 100 {
                nap(std::time::Duration::from_micros(20));
            }
        }
    }

    fn thread_is_gone(&self) -> bool {
        self.sends.raw().holder_is_gone()
    }

    fn has_pending(&self) -> bool {
        self.pending.has_any()
    }

    fn is_leaving(&self) -> bool {
        match self.lock_sends_soon() {
            Some(mut sends) => sends.is_leaving(self),
            None => self.sends.raw().comes_free(),
        }
    }

    fn looks(&self) -> u32 {
        self.pending.looks()
    }

    fn advance_if_free(&self) {
        self.pending.count_look();
        if let Some(mut sends) = self.sends.try_lock() {
            sends.start(self, LOOK_BUDGET);
        }
    }

    fn advance_for_progress(&self) -> Option<Progress> {
        let mut sends = self.sends.try_lock()?;
        Some(sends.start(self, LOOK_BUDGET))
    }

    fn clear_listed(&self) -> bool {
        self.pending.clear_listed()
    }

    fn clear_listed_for_progress(&self) -> bool {
        self.pending.clear_listed_for_progress()
    }
}

impl Reports for Qp {
    fn cq_has_failed(&self) {
        self.fail(event::QP_FATAL);
    }
}

impl DatagramOut for Qp {
    fn send(&self, route: Route, datagram: &Datagram<'_>) -> Option<u64> {
        self.table.router.carrier(route)?.send_datagram(self, datagram)
    }

    fn flush(&self) {
        self.table.router.flush();
    }
}

/// The locked send queue, as `post_send` hands it to its caller.
pub struct Poster<'a> {
    qp: &'a Qp,
    sq: &'a mut SendQueue,
    pushed: bool,
}

impl Poster<'_> {
    /// Carries out a request at once. Returns false if it has to be pushed.
    #[inline(always)]
    pub fn fast(&mut self, opcode: Opcode, work: &impl WorkRequest) -> bool {
        self.sq.post_fast(&self.qp.base, opcode, work)
    }

    /// [`Poster::fast`] for a Write.
    #[inline(always)]
    pub fn fast_write(&mut self, work: &impl WorkRequest) -> bool {
        self.sq.post_fast_write(&self.qp.base, work)
    }

    /// [`Poster::fast`] for any other request than a Write.
    #[inline(always)]
    pub fn fast_other(&mut self, opcode: Opcode, work: &impl WorkRequest) -> bool {
        self.sq.post_fast_other(&self.qp.base, opcode, work)
    }

    /// The number of scatter/gather elements that a request may have.
    pub fn max_send_sge(&self) -> u32 {
        self.sq.max_send_sge()
    }

    /// Posts one request.
    #[inline(always)]
    pub fn push(&mut self, request: &SendRequest<'_>) -> Result<()> {
        let first = !std::mem::replace(&mut self.pushed, true);
        push(self.qp, self.sq, first, request)
    }
}

#[inline(never)]
fn push(qp: &Qp, sq: &mut SendQueue, first: bool, request: &SendRequest<'_>) -> Result<()> {
    if first {
        sq.begin_batch();
    }
    sq.push(&qp.base, request)
}
