//! Queue pairs, as the program holds them. A change of state closes the lanes into the QP, waits until no initiator is
//! in flight, and flushes (IBA 10.3); the send queue does the requester's work, peers do the responder's.

pub mod ah;
pub mod base;
pub mod carrier;
pub(crate) mod facts;
mod granting;
pub(crate) mod life;
pub(crate) mod modify;
pub mod remote;
pub mod router;
pub mod saved;
pub mod sq;
pub(crate) mod state;
pub mod table;

use crate::arena::Block;
use crate::arena::layout::{QpShared, Switch};
use crate::arena::numbers::Kind;
use crate::context::async_events::{Element, EventCount};
use crate::context::{Context, Pd};
use crate::cq::completion::Source;
use crate::cq::send_ring::SendRing;
use crate::cq::{Cq, Reports};
use crate::device::LIMITS;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::barrier;
use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::lane::OwnedLane;
use crate::process::send_work::{Mark, Progress, SendWork, Settled};
use crate::qp::base::QpBase;
use crate::qp::carrier::Connection;
use crate::qp::remote::Sends;
use crate::qp::sq::ud::DatagramOut;
use crate::qp::sq::wqe::SendRequest;
use crate::qp::sq::wqe::WorkRequest;
use crate::qp::sq::{LOOK_BUDGET, POST_BUDGET, SendQueue};
use crate::qp::table::QpTable;
use crate::rq::RecvQueue;
use crate::srq::xrcd::Xrcd;
use crate::srq::{Srq, XrcTarget};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::{Gid, Opcode, QpAttr, QpCap, QpState, QpType, Sge, event};

/// Delay before send work is looked at again while the process is paused, in ns.
const PAUSED_NS: u64 = 20_000;

/// Bytes of a scatter/gather element in a send request (`struct ibv_sge`).
const PIECE: u32 = 16;

/// The objects and sizes that a QP is made of.
pub struct QpInit<'a> {
    /// Service type.
    pub qp_type: QpType,
    /// Send completions.
    pub send_cq: Option<&'a Arc<Cq>>,
    /// Receive completions.
    pub recv_cq: Option<&'a Arc<Cq>>,
    /// Shared receive queue instead of an own one.
    pub srq: Option<&'a Arc<Srq>>,
    /// XRC domain (XRC targets).
    pub xrcd: Option<&'a Arc<Xrcd>>,
    /// Sizes.
    pub cap: QpCap,
    /// True: every send completes, signaled or not.
    pub sq_sig_all: bool,
    /// The program's cookie.
    pub cookie: usize,
}

/// A queue pair.
pub struct Qp {
    base: QpBase,
    pub(crate) table: &'static QpTable,
    me: Weak<Qp>,
    pd: Option<Arc<Pd>>,
    xrcd: Option<Arc<Xrcd>>,
    cap: QpCap,
    block: OwnerLock<Option<Block>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    rq: Option<Arc<RecvQueue>>,
    lanes: OwnerLock<Vec<Arc<OwnedLane>>>,
    sends: OwnerLock<SendSide>,
    /// The send queue's ring of completions, for the CQ.
    ring: Arc<SendRing>,
    attr: OwnerLock<QpAttr>,
    /// True while work waits in the send queue; the next two: while this QP is in its CQ's list, in the progress
    /// thread's.
    work: AtomicBool,
    listed: AtomicBool,
    listed_for_progress: AtomicBool,
    /// Counts looks by the program, so that the progress thread keeps away while it polls.
    looks: AtomicU32,
    notify_drained: AtomicBool,
    last_wqe_told: AtomicBool,
    /// Multicast groups that it has joined.
    groups: OwnerLock<Vec<Gid>>,
    cookie: AtomicUsize,
    events: Arc<EventCount>,
    gone: AtomicBool,
    _counted: Counted,
}

/// The sending half of a QP, guarded by one lock.
struct SendSide {
    sq: SendQueue,
    /// The carrier's connection; None: memory reaches the peer, or there is none yet.
    connection: Option<Arc<dyn Connection>>,
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
        check_init(pd, init)?;
        let mut cap = init.cap;
        let receives_itself = init.srq.is_none() && !matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv);
        if !receives_itself {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        // The room of a send request's scatter/gather elements holds inline data instead, as on rxe and adapters: some
        // programs send a few bytes inline and have asked for no room.
        let inline = cap.max_inline_data.max(cap.max_send_sge * PIECE);
        cap.max_inline_data = if init.qp_type == QpType::XrcRecv { 0 } else { inline };
        let number = match number {
            None => process.new_number(Kind::Qp)?,
            Some(number) => process.numbers.take_again(Kind::Qp, number).map(|()| number)?,
        };
        let built = Self::build(context, table, pd, init, cap, number, receives_itself);
        match built {
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
        cap: QpCap,
        number: u32,
        receives_itself: bool,
    ) -> Result<Arc<Qp>> {
        let process = table.process();
        let pd_number = pd.map_or(0, |p| p.number);
        let rq = match (init.srq, receives_itself) {
            (Some(srq), _) => Some(Arc::clone(&srq.rq)),
            (None, true) => {
                let alone = matches!(init.qp_type, QpType::Rc | QpType::Uc);
                let (wr, sge) = (cap.max_recv_wr, cap.max_recv_sge);
                Some(Arc::new(RecvQueue::create(process, pd_number, wr, sge, alone)?))
            }
            (None, false) => None,
        };
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
                xrcd: init.xrcd.cloned(),
                cap,
                block: OwnerLock::new(Some(block)),
                recv_cq: init.recv_cq.cloned(),
                srq: init.srq.cloned(),
                rq: rq.clone(),
                lanes: OwnerLock::default(),
                sends: OwnerLock::new(SendSide { sq, connection: None }),
                ring,
                attr: OwnerLock::new(QpAttr { cap, ..QpAttr::default() }),
                work: AtomicBool::new(false),
                listed: AtomicBool::new(false),
                listed_for_progress: AtomicBool::new(false),
                looks: AtomicU32::new(0),
                notify_drained: AtomicBool::new(false),
                last_wqe_told: AtomicBool::new(false),
                groups: OwnerLock::default(),
                cookie: AtomicUsize::new(init.cookie),
                events: Arc::default(),
                gone: AtomicBool::new(false),
                _counted: Counted::new(Word::Qps, context.device()),
            }
        });
        qp.make_own_lane(offset)?;
        qp.count_users(1);
        qp.report_to_cqs();
        process.send_work.add(Mark::new(&qp, |qp| &qp.base.marks), number);
        table.add(&qp);
        process.publish_number(Kind::Qp, number, offset);
        Ok(qp)
    }

    /// Gives the CQs the number of completions to expect, and the source of those of sends.
    fn report_to_cqs(&self) {
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            let me: Weak<dyn Reports> = self.me.clone();
            cq.add_reporting(self.number, me);
        }
        if let Some(cq) = &self.send_cq {
            cq.add_source(Source::Sends(Arc::clone(&self.ring)));
            cq.expect(u64::from(self.cap.max_send_wr), None);
        }
        if let (Some(cq), Some(rq)) = (&self.recv_cq, &self.rq) {
            cq.expect(u64::from(rq.max_wr()), self.srq.as_ref().map(|srq| Arc::as_ptr(srq) as usize));
        }
    }

    /// Takes back from the CQs the announcements of `report_to_cqs`, when the QP is destroyed.
    fn leave_cqs(&self) {
        self.send_cq.iter().chain(&self.recv_cq).for_each(|cq| cq.remove_reporting(self.number));
        if let Some(cq) = &self.send_cq {
            cq.remove_source(&Source::Sends(Arc::clone(&self.ring)));
            cq.expect_no_more(u64::from(self.cap.max_send_wr), None);
        }
        if let (Some(cq), Some(rq)) = (&self.recv_cq, &self.rq) {
            cq.expect_no_more(u64::from(rq.max_wr()), self.srq.as_ref().map(|srq| Arc::as_ptr(srq) as usize));
        }
    }

    /// Makes the lane of the one peer that a connected QP has. Lanes into datagram QPs and XRC targets are made on
    /// request.
    fn make_own_lane(&self, offset: u64) -> Result<()> {
        if !matches!(self.qp_type, QpType::Rc | QpType::Uc) {
            return Ok(());
        }
        let (Some(rq), Some(cq)) = (&self.rq, &self.recv_cq) else {
            return Err(Error::invalid("the QP has nowhere to receive"));
        };
        let lane = OwnedLane::create(self.process, rq, cq, offset, self.number, 0)?;
        self.shared.lane.store(lane.offset, Ordering::Release);
        self.lanes.lock().push(lane);
        Ok(())
    }

    /// Makes a lane for `initiator` into this datagram QP, or through this XRC target into `srq`, unless it has one.
    /// Returns the lane's offset.
    pub(crate) fn make_lane(&self, initiator: u32, srq: Option<&Arc<Srq>>) -> Result<u64> {
        let (rq, cq) = match (srq, &self.rq, &self.recv_cq) {
            (Some(srq), _, _) => (&srq.rq, srq.cq().ok_or_else(|| Error::invalid("not an XRC SRQ"))?),
            (None, Some(rq), Some(cq)) if self.qp_type == QpType::Ud => (rq, cq),
            _ => return Err(Error::invalid("the QP takes no such lane")),
        };
        if let Some(srq) = srq {
            let me: Weak<dyn XrcTarget> = self.me.clone();
            srq.add_target(me);
        }
        let mut lanes = self.lanes.lock();
        let same = |l: &&Arc<OwnedLane>| Arc::ptr_eq(&l.rq, rq) && l.granted == initiator && !l.gate.is_cut_off();
        if let Some(lane) = lanes.iter().find(same) {
            return Ok(lane.offset);
        }
        let offset = self.block.lock().as_ref().map_or(0, Block::offset);
        let lane = OwnedLane::create(self.process, rq, cq, offset, self.number, initiator)?;
        if self.qp_type == QpType::Ud {
            lane.make_bounce(crate::arena::layout::request::DATAGRAM_BYTES);
        }
        let at = lane.offset;
        lanes.push(lane);
        Ok(at)
    }

    pub(crate) fn count_users(&self, by: u32) {
        // Adding u32::MAX subtracts 1.
        let count = |c: &AtomicU32| {
            c.fetch_add(by, Ordering::AcqRel);
        };
        self.pd.iter().for_each(|p| count(&p.users));
        self.send_cq.iter().for_each(|c| count(&c.users));
        self.recv_cq.iter().for_each(|c| count(&c.users));
        self.srq.iter().for_each(|s| count(&s.users));
        self.xrcd.iter().for_each(|x| count(&x.users));
    }

    // ---- plain facts -----------------------------------------------------------------------------------------------

    /// The sizes granted.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Changes the cookie.
    pub fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Acknowledges one async event of this QP.
    pub fn ack_async_event(&self) {
        self.events.ack();
    }

    /// The XRC domain of a target.
    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrcd.as_ref()
    }

    /// Returns true if it was destroyed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    pub(crate) fn raise(&self, event: u32) {
        self.context.raise(event, Element::Qp(self.cookie.load(Ordering::Relaxed)), &self.events);
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
            self.begin(&mut sends);
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
                self.begin(sends);
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
        let Some(rq) = self.rq.as_ref().filter(|_| self.srq.is_none()) else {
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

    /// Flushes a receive that was posted in ERR. A thread that has begun a batch has the send queue already.
    #[cold]
    fn flush_posted_receive(&self) {
        let _sends = (!self.sends.raw().held_by_me()).then(|| self.lock_sends());
        // Another thread may have reset the QP meanwhile: its receives are those of another connection.
        if self.state() == QpState::Err {
            // Messages that peers have delivered come first, and no peer may be filling a receive that is flushed.
            self.settle_lanes();
            self.flush_receives();
        }
    }

    // ---- carrying out ----------------------------------------------------------------------------------------------

    /// Begins on the requests just posted, unless earlier work waits: then they take their turn at the next look. With
    /// a carrier, earlier work most often waits for answers only, so that later requests may be sent now.
    fn begin(&self, sends: &mut SendSide) {
        if sends.sq.batch_is_first() || sends.connection.is_some() {
            self.start(sends, POST_BUDGET);
        }
    }

    fn start(&self, sends: &mut SendSide, budget: u64) -> Progress {
        if !sends.sq.has_work() {
            // The work on record may have been flushed, or dropped by a reset.
            if self.work.load(Ordering::Relaxed) {
                self.note(sends, Progress::Idle);
            }
            return Progress::Idle;
        }
        let progress = self.work_on(sends, |SendSide { sq, connection }| match connection {
            Some(connection) => self.advance_connection(sq, &**connection),
            None => sq.advance(&self.base, budget),
        });
        let progress = progress.unwrap_or_else(|| match self.is_stopped() {
            true => Progress::Stopped,
            false => Progress::Wait(now_ns() + PAUSED_NS),
        });
        self.note_if_needed(sends, progress);
        progress
    }

    /// Runs `f` as marked send work, and handles a failure in it. None while the process is paused.
    #[inline(always)]
    fn work_on(&self, sends: &mut SendSide, f: impl FnOnce(&mut SendSide) -> Progress) -> Option<Progress> {
        self.base.executing(|| {
            let progress = f(sends);
            if sends.sq.take_failure() {
                self.send_error(sends);
                return Progress::Idle;
            }
            progress
        })
    }

    /// Records the work that is left, and raises the event of a drained send queue.
    #[inline]
    fn note_if_needed(&self, sends: &SendSide, progress: Progress) {
        if progress != Progress::Idle
            || self.work.load(Ordering::Relaxed)
            || self.shared.state.load(Ordering::Relaxed) == QpState::Sqd as u32
        {
            self.note(sends, progress);
        }
    }

    #[cold]
    fn note(&self, sends: &SendSide, progress: Progress) {
        if self.state() == QpState::Sqd && !sends.has_begun() && self.notify_drained.swap(false, Ordering::AcqRel) {
            self.raise(event::SQ_DRAINED);
        }
        let waits = progress != Progress::Idle;
        self.work.store(waits, Ordering::SeqCst);
        if !waits {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        if let Some(cq) = &self.send_cq
            && !self.listed.swap(true, Ordering::AcqRel)
        {
            let me: Arc<dyn SendWork> = me.clone();
            cq.add_pending(me);
        }
        if !self.listed_for_progress.swap(true, Ordering::AcqRel) {
            self.process.add_pending(me);
        }
    }

    fn unlist(listed: &AtomicBool, work: &AtomicBool) -> bool {
        listed.store(false, Ordering::SeqCst);
        // A poster that saw the mark still set relies on this caller: the QP stays in the list, unless the poster has
        // set the mark again.
        !work.load(Ordering::SeqCst) || listed.swap(true, Ordering::SeqCst)
    }
}

impl SendSide {
    /// Returns true if a request has been begun and not finished.
    fn has_begun(&self) -> bool {
        self.sq.has_begun() || self.connection.as_ref().is_some_and(|connection| connection.has_begun())
    }

    /// Returns true if requests wait that an adapter would have sent by now.
    fn is_leaving(&mut self, qp: &Qp) -> bool {
        let SendSide { sq, connection } = self;
        match connection {
            Some(connection) => !qp.is_stopped() && connection.holds_back(&Sends::of(sq, qp)),
            None => sq.is_leaving(&qp.base),
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
        let settled = self.base.while_stopped(|| {
            let settled = sends.sq.settle(&self.base);
            if sends.sq.take_failure() {
                self.send_error(&mut sends);
            }
            settled
        });
        if settled == Settled::Yes {
            self.note_if_needed(&sends, if sends.sq.has_work() { Progress::Stopped } else { Progress::Idle });
        }
        settled
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
        self.work.load(Ordering::SeqCst)
    }

    fn is_leaving(&self) -> bool {
        match self.lock_sends_soon() {
            Some(mut sends) => sends.is_leaving(self),
            None => self.sends.raw().comes_free(),
        }
    }

    fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    fn advance_if_free(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if let Some(mut sends) = self.sends.try_lock() {
            self.start(&mut sends, LOOK_BUDGET);
        }
    }

    fn advance_for_progress(&self) -> Option<Progress> {
        let mut sends = self.sends.try_lock()?;
        Some(self.start(&mut sends, LOOK_BUDGET))
    }

    fn clear_listed(&self) -> bool {
        Self::unlist(&self.listed, &self.work)
    }

    fn clear_listed_for_progress(&self) -> bool {
        Self::unlist(&self.listed_for_progress, &self.work)
    }
}

impl Reports for Qp {
    fn cq_has_failed(&self) {
        self.fail(event::QP_FATAL);
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

/// Refuses the values that `man ibv_create_qp` refuses: missing queues and sizes beyond the device's.
fn check_init(pd: Option<&Arc<Pd>>, init: &QpInit<'_>) -> Result<()> {
    let c = &init.cap;
    let sizes = [
        ("max_send_wr", c.max_send_wr, LIMITS.max_qp_wr),
        ("max_recv_wr", c.max_recv_wr, LIMITS.max_qp_wr),
        ("max_send_sge", c.max_send_sge, LIMITS.max_sge),
        ("max_recv_sge", c.max_recv_sge, LIMITS.max_sge),
        ("max_inline_data", c.max_inline_data, LIMITS.max_inline),
    ];
    if let Some((name, wanted, most)) = sizes.into_iter().find(|(_, wanted, most)| wanted > most) {
        return Err(Error::invalid(format!("{name} {wanted} exceeds {most}")));
    }
    let sends = init.qp_type != QpType::XrcRecv;
    if sends && (init.send_cq.is_none() || pd.is_none()) {
        return Err(Error::invalid("the QP needs a protection domain and a completion queue for sends"));
    }
    if init.recv_cq.is_none() && !matches!(init.qp_type, QpType::XrcSend | QpType::XrcRecv) {
        return Err(Error::invalid("the QP needs a completion queue for receives"));
    }
    if init.qp_type == QpType::XrcRecv && init.xrcd.is_none() {
        return Err(Error::invalid("an XRC target needs an XRC domain"));
    }
    if init.srq.is_some() && !matches!(init.qp_type, QpType::Rc | QpType::Ud | QpType::Uc) {
        return Err(Error::invalid("this QP type takes no SRQ"));
    }
    Ok(())
}
