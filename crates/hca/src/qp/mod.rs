//! Queue pairs: what the program holds. State changes close the lanes into the QP, wait until nobody is in flight, and
//! flush (IBA 10.3); the send queue does the requester's work, peers do the responder's.

pub(crate) mod life;
pub(crate) mod modify;
pub mod remote;
pub mod sq;
pub(crate) mod state;

use crate::arena::Block;
use crate::arena::layout::QpShared;
use crate::arena::numbers::Kind;
use crate::context::async_events::{Element, EventCount};
use crate::context::{Context, Pd};
use crate::cq::Cq;
use crate::cq::completion::Source;
use crate::cq::send_ring::SendRing;
use crate::device::LIMITS;
use crate::device::port_counters::{Counted, Tally, Word};
use crate::error::{Error, Result};
use crate::host::barrier;
use crate::host::clock::now_ns;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::process::Process;
use crate::qp::sq::fast_path::{FAST_MAX_BYTES, WorkRequest};
use crate::qp::sq::wqe::SendRequest;
use crate::qp::sq::{LOOK_BUDGET, POST_BUDGET, Progress, SendQueue};
use crate::rq::RecvQueue;
use crate::rq::lane::OwnedLane;
use crate::rq::srq::Srq;
use crate::rq::xrcd::Xrcd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::{AhAttr, Gid, Opcode, QpAttr, QpCap, QpState, QpType, Sge, event};

/// How soon send work is looked at again while the process is paused.
const PAUSED_NS: u64 = 20_000;

/// What a QP is made of.
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
    /// Whether every send completes, signaled or not.
    pub sq_sig_all: bool,
    /// The program's cookie.
    pub cookie: usize,
}

/// A queue pair.
pub struct Qp {
    pub(crate) process: &'static Process,
    pub(crate) context: Arc<Context>,
    pub(crate) me: Weak<Qp>,
    pub(crate) pd: Option<Arc<Pd>>,
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    pub(crate) qp_type: QpType,
    pub(crate) number: u32,
    pub(crate) cap: QpCap,
    pub(crate) shared: &'static QpShared,
    pub(crate) block: OwnerLock<Option<Block>>,
    pub(crate) send_cq: Option<Arc<Cq>>,
    pub(crate) recv_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) rq: Option<Arc<RecvQueue>>,
    pub(crate) lanes: OwnerLock<Vec<Arc<OwnedLane>>>,
    pub(crate) sq: OwnerLock<SendQueue>,
    /// That of the send queue, for the CQ.
    ring: Arc<SendRing>,
    pub(crate) attr: OwnerLock<QpAttr>,
    /// Work waits in the send queue; and this QP stands in its CQ's list and in the progress thread's.
    pub(crate) work: AtomicBool,
    pub(crate) listed: AtomicBool,
    pub(crate) listed_for_progress: AtomicBool,
    /// Odd while a thread carries out send work.
    pub(crate) executing: AtomicU64,
    /// Counts looks by the program, so that the progress thread keeps away while it polls.
    pub(crate) looks: AtomicU32,
    pub(crate) notify_drained: AtomicBool,
    pub(crate) last_wqe_told: AtomicBool,
    /// The peer is reached by packets.
    pub(crate) far: AtomicBool,
    pub(crate) lid: AtomicU32,
    /// What it does is counted here.
    pub tally: Tally,
    pub(crate) groups: AtomicU32,
    pub(crate) cookie: AtomicUsize,
    pub(crate) events: Arc<EventCount>,
    pub(crate) gone: AtomicBool,
    _counted: Counted,
}

impl Qp {
    /// The XRC target `qpn` of this process in `xrcd`, once more (`man ibv_open_qp`).
    pub fn open(context: &Context, xrcd: &Xrcd, qpn: u32) -> Result<Arc<Qp>> {
        context
            .process()?
            .find_qp(qpn)
            .filter(|qp| qp.shared.xrcd.load(Ordering::Relaxed) == xrcd.id)
            .ok_or_else(|| Error::invalid(format!("the XRC domain has no target QP {qpn:#x} in this process")))
    }

    /// Makes a QP, of a PD or of an XRC domain (`man ibv_create_qp_ex`).
    pub fn create(context: &Arc<Context>, pd: Option<&Arc<Pd>>, init: &QpInit<'_>) -> Result<Arc<Qp>> {
        let process = context.process()?;
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
        cap.max_inline_data = if init.qp_type == QpType::XrcRecv { 0 } else { cap.max_inline_data };
        let number = process.new_number(Kind::Qp)?;
        let built = Self::build(context, process, pd, init, cap, number, receives_itself);
        match built {
            Ok(qp) => Ok(qp),
            Err(e) => {
                process.free_number(Kind::Qp, number);
                Err(e)
            }
        }
    }

    fn build(
        context: &Arc<Context>,
        process: &'static Process,
        pd: Option<&Arc<Pd>>,
        init: &QpInit<'_>,
        cap: QpCap,
        number: u32,
        receives_itself: bool,
    ) -> Result<Arc<Qp>> {
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
        shared.xrcd.store(init.xrcd.map_or(0, |x| x.id), Ordering::Relaxed);
        let send_cq = init.send_cq.map(|cq| &**cq);
        let sq = SendQueue::new(process, init.qp_type, number, pd_number, cap, init.sq_sig_all, send_cq);
        let ring = Arc::clone(&sq.ring);
        let qp = Arc::new_cyclic(|me: &Weak<Qp>| {
            shared.attention.store(process.attention.add(me.clone()), Ordering::Relaxed);
            Qp {
                process,
                context: Arc::clone(context),
                me: me.clone(),
                pd: pd.cloned(),
                xrcd: init.xrcd.cloned(),
                qp_type: init.qp_type,
                number,
                cap,
                shared,
                block: OwnerLock::new(Some(block)),
                send_cq: init.send_cq.cloned(),
                recv_cq: init.recv_cq.cloned(),
                srq: init.srq.cloned(),
                rq: rq.clone(),
                lanes: OwnerLock::default(),
                sq: OwnerLock::new(sq),
                ring,
                attr: OwnerLock::new(QpAttr { cap, ..QpAttr::default() }),
                work: AtomicBool::new(false),
                listed: AtomicBool::new(false),
                listed_for_progress: AtomicBool::new(false),
                executing: AtomicU64::new(0),
                looks: AtomicU32::new(0),
                notify_drained: AtomicBool::new(false),
                last_wqe_told: AtomicBool::new(false),
                far: AtomicBool::new(false),
                lid: AtomicU32::new(0),
                tally: Tally::default(),
                groups: AtomicU32::new(0),
                cookie: AtomicUsize::new(init.cookie),
                events: Arc::default(),
                gone: AtomicBool::new(false),
                _counted: Counted::new(Word::Qps, context.device()),
            }
        });
        qp.make_own_lane(offset)?;
        qp.count_users(1);
        qp.report_to_cqs();
        process.add_qp(&qp);
        process.publish_number(Kind::Qp, number, offset);
        Ok(qp)
    }

    /// Tells the CQs how much to expect, and where to look for completions of sends.
    fn report_to_cqs(&self) {
        if let Some(cq) = &self.send_cq {
            cq.add_source(Source::Sends(Arc::clone(&self.ring)));
            cq.expect(u64::from(self.cap.max_send_wr), None);
        }
        if let (Some(cq), Some(rq)) = (&self.recv_cq, &self.rq) {
            cq.expect(u64::from(rq.max_wr()), self.srq.as_ref().map(|srq| Arc::as_ptr(srq) as usize));
        }
    }

    /// The reverse, when the QP is destroyed.
    pub(crate) fn leave_cqs(&self) {
        if let Some(cq) = &self.send_cq {
            cq.remove_source(&Source::Sends(Arc::clone(&self.ring)));
            cq.expect_no_more(u64::from(self.cap.max_send_wr), None);
        }
        if let (Some(cq), Some(rq)) = (&self.recv_cq, &self.rq) {
            cq.expect_no_more(u64::from(rq.max_wr()), self.srq.as_ref().map(|srq| Arc::as_ptr(srq) as usize));
        }
    }

    /// The lane of the one peer that a connected QP has. Into datagram QPs and XRC targets lanes are made on request.
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

    /// A lane for `initiator` into this datagram QP, or through this XRC target into `srq`; its offset.
    pub(crate) fn make_lane(&self, initiator: u32, srq: Option<&Arc<Srq>>) -> Result<u64> {
        let (rq, cq) = match (srq, &self.rq, &self.recv_cq) {
            (Some(srq), _, _) => (&srq.rq, srq.cq().ok_or_else(|| Error::invalid("not an XRC SRQ"))?),
            (None, Some(rq), Some(cq)) if self.qp_type == QpType::Ud => (rq, cq),
            _ => return Err(Error::invalid("the QP takes no such lane")),
        };
        let mut lanes = self.lanes.lock();
        let same = |l: &&Arc<OwnedLane>| Arc::ptr_eq(&l.rq, rq) && l.granted == initiator && !l.is_cut_off();
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
        // Adding u32::MAX is taking one away.
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

    /// QP number.
    pub fn qp_num(&self) -> u32 {
        self.number
    }

    /// Service type.
    #[inline]
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Sizes granted.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// State now; a peer's error may have changed it.
    #[inline]
    pub fn state(&self) -> QpState {
        QpState::from_verbs(self.shared.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    /// Changes the cookie.
    pub fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Acknowledges an async event about this QP.
    pub fn ack_async_event(&self) {
        self.events.ack();
    }

    pub(crate) fn generation(&self) -> u32 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn send_cq(&self) -> Option<&Arc<Cq>> {
        self.send_cq.as_ref()
    }

    pub(crate) fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.xrcd.as_ref()
    }

    /// Index of its device.
    pub fn device_index(&self) -> u32 {
        self.context.device().index()
    }

    /// Counts a request that was carried out by memory, with `bytes` of data.
    #[inline(always)]
    pub(crate) fn count_by_memory(&self, opcode: Opcode, bytes: u64) {
        let line = self.tally.line();
        line.add(Word::MemoryBytes, bytes);
        line.add(crate::device::port_counters::by_memory(opcode), 1);
    }

    pub(crate) fn lid(&self) -> u16 {
        self.lid.load(Ordering::Relaxed) as u16
    }

    /// The source GID of `ah`, and whether the port speaks RoCE.
    pub(crate) fn route(&self, ah: &AhAttr) -> (Gid, bool) {
        let device = self.context.device();
        let port = ah.port_num.max(1);
        (device.gid(port, u32::from(ah.grh.sgid_index)).unwrap_or_default(), device.is_ethernet())
    }

    pub(crate) fn reports_to(&self, cq: &Cq) -> bool {
        self.send_cq.iter().chain(&self.recv_cq).any(|c| std::ptr::eq(Arc::as_ptr(c), cq))
    }

    pub(crate) fn raise(&self, event: u32) {
        self.context.raise(event, Element::Qp(self.cookie.load(Ordering::Relaxed)), &self.events);
    }

    // ---- posting ---------------------------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn lock_sq(&self) -> OwnerGuard<'_, SendQueue> {
        let mut sq = self.sq.lock();
        if sq.stolen() {
            self.torn(&mut sq);
        }
        sq
    }

    /// A thread ended in the middle of a call: what it was doing is lost, and the QP says so.
    #[cold]
    pub(crate) fn torn(&self, sq: &mut SendQueue) {
        sq.leave_lanes();
        if let Some(cq) = &self.send_cq {
            cq.look_at(sq.ring.ready_bit);
        }
        let e = self.executing.load(Ordering::Relaxed);
        self.executing.store((e | 1) + 1, Ordering::Release);
        self.shared.state.store(QpState::Err as u32, Ordering::SeqCst);
        self.shared.fault.store(event::QP_FATAL + 1, Ordering::SeqCst);
        self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
    }

    /// Posts what `f` pushes, and starts on it.
    #[inline(always)]
    pub fn post_send<R>(&self, f: impl FnOnce(&mut Poster<'_>) -> R) -> R {
        let mut sq = self.lock_sq();
        sq.left = FAST_MAX_BYTES;
        let mut poster = Poster { qp: self, sq: &mut sq, pushed: false };
        let r = f(&mut poster);
        if poster.pushed {
            self.begin(&mut sq);
        }
        r
    }

    /// Begins a batch; the QP stays locked by this thread until [`Qp::wr_complete`] or [`Qp::wr_abort`] (`man ibv_wr_post`).
    pub fn wr_start(&self) {
        let stolen = self.sq.raw().lock();
        // SAFETY: locked just above, and no other reference is alive.
        let sq = unsafe { self.sq.held() };
        if stolen {
            self.torn(sq);
            // The end of every batch leaves none.
            sq.failed_push = None;
        }
        sq.left = FAST_MAX_BYTES;
        sq.begin_batch();
    }

    /// Carries out a batch of one request at once, if it can be, and ends the batch; false if it has to be pushed.
    #[inline]
    pub fn wr_complete_short(&self, opcode: Opcode, work: &impl WorkRequest) -> bool {
        // SAFETY: this thread holds the lock since `wr_start`; the reference ends before the lock does.
        let sq = unsafe { self.sq.held() };
        let done = sq.nothing_pushed() && sq.failed_push.is_none() && sq.post_fast(self, opcode, work);
        if done {
            self.sq.raw().unlock();
        }
        done
    }

    /// Adds one request to the batch. The first error is kept for [`Qp::wr_complete`].
    pub fn wr_push(&self, request: &SendRequest<'_>) -> Result<()> {
        // SAFETY: this thread holds the lock since `wr_start`.
        let sq = unsafe { self.sq.held() };
        let pushed = sq.push(self, request);
        if let Err(e) = &pushed
            && sq.failed_push.is_none()
        {
            sq.failed_push = Some(e.clone());
        }
        pushed
    }

    /// Posts the batch, or nothing of it if any of its requests was refused.
    pub fn wr_complete(&self) -> Result<()> {
        // SAFETY: this thread holds the lock since `wr_start`; the reference ends before the lock does.
        let sq = unsafe { self.sq.held() };
        let result = match sq.failed_push.take() {
            Some(e) => {
                sq.abort_batch();
                Err(e)
            }
            None => {
                self.begin(sq);
                Ok(())
            }
        };
        self.sq.raw().unlock();
        result
    }

    /// Forgets the batch.
    pub fn wr_abort(&self) {
        // SAFETY: as in `wr_complete`.
        unsafe { self.sq.held() }.abort_batch();
        self.sq.raw().unlock();
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
        // Whoever moves the QP to ERR and flushes finds the receive, or is seen here.
        barrier::light(!barrier::is_registered());
        if state == QpState::Err || self.state() == QpState::Err {
            // What peers have delivered so far comes first, and nobody may be filling a receive that is flushed.
            self.settle_lanes();
            self.flush_receives();
        }
        Ok(())
    }

    // ---- carrying out ----------------------------------------------------------------------------------------------

    /// Begins on what was just posted, unless earlier work waits: then it takes its turn when somebody looks. Where the peer
    /// is far, earlier work most often waits for answers only, and what comes after it may be sent now.
    fn begin(&self, sq: &mut SendQueue) {
        if sq.batch_is_first() || sq.far.is_some() {
            self.start(sq, POST_BUDGET);
        }
    }

    pub(crate) fn start(&self, sq: &mut SendQueue, budget: u64) -> Progress {
        if !sq.has_work() {
            return Progress::Idle;
        }
        let progress =
            self.executing(sq, |sq| sq.advance(self, budget)).unwrap_or(Progress::Wait(now_ns() + PAUSED_NS));
        self.note_if_needed(sq, progress);
        progress
    }

    /// Keeps account of what is left to do, and of a drained send queue.
    #[inline]
    pub(crate) fn note_if_needed(&self, sq: &SendQueue, progress: Progress) {
        if progress != Progress::Idle
            || self.work.load(Ordering::Relaxed)
            || self.shared.state.load(Ordering::Relaxed) == QpState::Sqd as u32
        {
            self.note(sq, progress);
        }
    }

    /// Marks `f` as send work, which whoever revokes local memory waits for. None while the process is paused.
    #[inline(always)]
    pub(crate) fn executing<R>(&self, sq: &mut SendQueue, f: impl FnOnce(&mut SendQueue) -> R) -> Option<R> {
        // A plain store: whoever revokes local memory makes it visible with a heavy barrier before it looks.
        let e = self.executing.load(Ordering::Relaxed);
        self.executing.store(e + 1, Ordering::Relaxed);
        barrier::light(!barrier::is_registered());
        let r = if self.process.is_paused() { None } else { Some(f(sq)) };
        self.executing.store(e + 2, Ordering::Release);
        r
    }

    #[cold]
    fn note(&self, sq: &SendQueue, progress: Progress) {
        if self.state() == QpState::Sqd && !sq.has_begun() && self.notify_drained.swap(false, Ordering::AcqRel) {
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
            cq.add_pending(&me);
        }
        if !self.listed_for_progress.swap(true, Ordering::AcqRel) {
            self.process.add_pending(&me);
        }
    }

    /// Whether send work waits.
    pub(crate) fn has_pending(&self) -> bool {
        self.work.load(Ordering::SeqCst)
    }

    /// Leaves the CQ's list unless work came meanwhile. The caller holds the list.
    pub(crate) fn clear_listed(&self) -> bool {
        Self::unlist(&self.listed, &self.work)
    }

    /// The same for the progress thread's list.
    pub(crate) fn clear_listed_for_progress(&self) -> bool {
        Self::unlist(&self.listed_for_progress, &self.work)
    }

    fn unlist(listed: &AtomicBool, work: &AtomicBool) -> bool {
        listed.store(false, Ordering::SeqCst);
        // If work came and its poster still saw the mark, it relies on us: stay, unless it took the mark itself.
        !work.load(Ordering::SeqCst) || listed.swap(true, Ordering::SeqCst)
    }

    /// Goes on with the send queue, from a thread that polls.
    pub(crate) fn advance_if_free(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if let Some(mut sq) = self.sq.try_lock() {
            self.start(&mut sq, LOOK_BUDGET);
        }
    }

    /// Goes on with the send queue, from the progress thread. None when another thread is at it.
    pub(crate) fn advance_for_progress(&self) -> Option<Progress> {
        let mut sq = self.sq.try_lock()?;
        Some(self.start(&mut sq, LOOK_BUDGET))
    }

    /// How often the program has looked.
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    pub(crate) fn is_executing(&self) -> bool {
        self.executing.load(Ordering::SeqCst) & 1 == 1
    }

    /// Waits until the piece of work in hand is over; a thread that ended inside is not waited for.
    pub(crate) fn wait_executing(&self) {
        let e = self.executing.load(Ordering::SeqCst);
        let mut spins = 0u32;
        while e & 1 == 1 && self.executing.load(Ordering::Acquire) == e && !self.thread_is_gone() {
            spins += 1;
            if spins > 100 {
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        }
    }

    /// Whether the thread that carries out send work ended in the middle of it.
    pub(crate) fn thread_is_gone(&self) -> bool {
        self.sq.raw().holder_is_gone()
    }

    /// Runs `f`, which itself waits for work in hand, outside of the mark. Called from inside send work, which holds no
    /// memory at that point.
    pub(crate) fn pausing<R>(&self, f: impl FnOnce() -> R) -> R {
        let e = self.executing.load(Ordering::Relaxed);
        self.executing.store(e + 1, Ordering::Release);
        let r = f();
        self.executing.swap(e + 2, Ordering::SeqCst);
        r
    }
}

/// What `post_send` hands to its caller: the locked send queue.
pub struct Poster<'a> {
    qp: &'a Qp,
    sq: &'a mut SendQueue,
    pushed: bool,
}

impl Poster<'_> {
    /// Carries a request out at once, if it can be; false if it has to be pushed.
    #[inline(always)]
    pub fn short(&mut self, opcode: Opcode, work: &impl WorkRequest) -> bool {
        self.sq.post_fast(self.qp, opcode, work)
    }

    /// Pieces that a request may have.
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
    sq.push(qp, request)
}

/// Refuses what `man ibv_create_qp` refuses: missing queues and sizes beyond the device's.
fn check_init(pd: Option<&Arc<Pd>>, init: &QpInit<'_>) -> Result<()> {
    let c = &init.cap;
    let too_big = c.max_send_wr > LIMITS.max_qp_wr
        || c.max_recv_wr > LIMITS.max_qp_wr
        || c.max_send_sge > LIMITS.max_sge
        || c.max_recv_sge > LIMITS.max_sge
        || c.max_inline_data > LIMITS.max_inline;
    if too_big {
        return Err(Error::invalid(format!("the QP sizes {c:?} are beyond the device's limits")));
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
