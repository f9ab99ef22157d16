//! THE responder (IBA 9.7.4, 9.9.3): what an initiator's operation does to the QP, the receive queue, the completion queue
//! and the memory at the other end. Whoever initiates runs it: a thread of a peer process through shared memory, a thread
//! of the same process on a looped QP.
//!
//! Every access happens between [`Responder::enter`] and the end of its [`InFlight`] mark; all checks are made inside.

use crate::arena::layout::{self, CqShared, Header, KeyEntry, Lane, QpShared};
use crate::cq::completion::watched;
use crate::cq::recv_ring::Deliveries;
use crate::host::barrier;
use crate::process::gate::{self, is_established};
use crate::process::peer::{Location, PeerProcess, plain_region};
use crate::rq::{Receipt, RqView};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vervain_iba::{QpState, QpType, access, event, wc};

pub use crate::process::gate::InFlight;

/// Why the responder refuses, as an acknowledgement would say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// Nobody answers: the QP is gone, not ready, in error, or connected elsewhere.
    Silence,
    /// Receiver not ready; the encoded timer (IBA table 45).
    ReceiverNotReady(u8),
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperation,
    /// The process lets nobody in for a moment ([`crate::Process::pause`]); not an answer that a peer would hear of.
    Paused,
}

/// A QP as it was when somebody decided to use it: a number and how many resets it has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpIncarnation {
    /// QP number.
    pub qpn: u32,
    /// Resets.
    pub generation: u32,
}

impl QpIncarnation {
    /// How `qp` is now. To be read before anything else of it that matters.
    pub fn now(qp: &QpShared) -> QpIncarnation {
        let generation = qp.generation.load(Ordering::SeqCst);
        QpIncarnation { qpn: qp.qpn.load(Ordering::SeqCst), generation }
    }
}

/// A completion was published for a program that may wait for an event of its CQ.
#[must_use]
pub(crate) struct WakeCall {
    /// Keeps the memory that `cq` lies in.
    space: Arc<PeerProcess>,
    cq: &'static CqShared,
    slot: u32,
    solicited_or_error: bool,
}

impl WakeCall {
    /// Raises the event, if the program has asked for one.
    #[cold]
    pub(crate) fn make(self) {
        let raise = || crate::cq::peer_events::raise(&self.space, self.cq, self.slot);
        crate::cq::notify::fire(self.cq, self.solicited_or_error, raise);
    }
}

/// A QP to deliver to, through one lane of it.
#[derive(Clone)]
pub struct Responder {
    /// The process that owns it.
    pub space: Arc<PeerProcess>,
    /// The lane.
    pub lane: &'static Lane,
    /// The QP.
    pub qp: &'static QpShared,
    /// Where receives come from.
    pub rq: Option<RqView>,
    /// Where the QP's receives complete.
    cq: &'static CqShared,
    ring: &'static [AtomicU32],
    /// The header of its process's arena. The kernel itself marks there that the process has ended.
    header: &'static Header,
    /// Its process's keys.
    keys: &'static [KeyEntry; layout::KEYS],
    /// Its process is the calling one.
    own: bool,
    qp_type: QpType,
    me: u64,
    /// The owner relies on full barriers of ours.
    full_barrier: bool,
}

impl Responder {
    /// Takes the lane at `lane_offset` for the initiator `me` (`nonce << 32 | QPN`) into the QP that was `seen` before. None while someone else has it, or when
    /// what is found there does not hold together.
    pub fn bind(space: &Arc<PeerProcess>, lane_offset: u64, me: u64, seen: QpIncarnation) -> Option<Responder> {
        let view = space.view;
        let lane = view.get::<Lane>(lane_offset)?;
        let qp = view.get::<QpShared>(lane.qp.load(Ordering::Relaxed))?;
        let cq = view.get::<CqShared>(lane.cq.load(Ordering::Relaxed))?;
        let ring = view.slice(lane.ring.load(Ordering::Relaxed), lane.mask.load(Ordering::Relaxed) as usize + 1)?;
        if !ring.len().is_power_of_two() || lane.open.load(Ordering::Acquire) == 0 {
            return None;
        }
        let qp_type = QpType::from_verbs(qp.qp_type.load(Ordering::Relaxed))?;
        let rq = match lane.rq.load(Ordering::Relaxed) {
            0 => None,
            offset => Some(RqView::new(view, offset)?),
        };
        if let Err(other) = lane.initiator.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire)
            && other != me
        {
            return None;
        }
        // The QP may have been reset, and the lane given to another, since it was seen.
        if qp.generation.load(Ordering::SeqCst) != seen.generation
            || qp.qpn.load(Ordering::SeqCst) != seen.qpn
            || lane.open.load(Ordering::SeqCst) == 0
        {
            let _ = lane.initiator.compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed);
            return None;
        }
        let full_barrier = space.needs_full_barrier();
        let (header, keys, own) = (space.header, space.keys, space.is_own());
        Some(Responder {
            space: Arc::clone(space),
            lane,
            qp,
            rq,
            cq,
            ring,
            header,
            keys,
            own,
            qp_type,
            me,
            full_barrier,
        })
    }

    /// Gives the lane back. Nobody of the initiator is in flight on it.
    pub fn release(&self) {
        self.in_hand().release();
    }

    /// What is enough to leave and give back the lane when the target itself is lost.
    #[inline]
    pub fn in_hand(&self) -> LaneGuard {
        LaneGuard { lane: self.lane, me: self.me }
    }

    /// Takes back a request that the owner has not begun. Whether the owner is at it just now.
    pub fn withdraw(&self) -> bool {
        use crate::arena::layout::request::{DONE, IDLE, POSTED, WAITING};
        if self.lane.initiator.load(Ordering::Acquire) != self.me {
            return false;
        }
        let take = |from| self.lane.request.state.compare_exchange(from, IDLE, Ordering::AcqRel, Ordering::Acquire);
        !matches!(take(POSTED).or_else(|_| take(WAITING)), Ok(_) | Err(IDLE | DONE))
    }

    /// Ends a mark whose thread is gone.
    pub fn leave(&self) {
        self.in_hand().leave();
    }

    /// The service type of the target QP.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Marks the initiator as in flight and checks that the QP still takes what comes through this lane. The mark is
    /// visible before the check (IBA has no such race: there the adapter serialises); whoever revokes does it the other way
    /// round: first the state or key, then a heavy barrier, then a look at the mark.
    #[inline(always)]
    pub fn enter(&self) -> Result<InFlight<'_>, Nak> {
        self.enter_by(self.lane)
    }

    /// The same with the lane in a register.
    #[inline(always)]
    fn enter_by<'a>(&'a self, lane: &'a Lane) -> Result<InFlight<'a>, Nak> {
        let mark = InFlight::begin(lane, self.full_barrier);
        if gate::is_open(lane, self.qp, self.header) {
            return Ok(mark);
        }
        match self.not_as_usual() {
            None => Ok(mark),
            Some(nak) => Err(nak),
        }
    }

    /// [`Responder::enter`] with the memory already named that is touched next, for [`Responder::mapped`].
    #[inline(always)]
    pub fn enter_at(&self, key: u32, addr: u64) -> Result<InFlight<'_>, Nak> {
        let lane = self.lane;
        gate::name(lane, key, addr);
        self.enter_by(lane)
    }

    /// [`Responder::enter`] inside [`crate::process::Process::handle_packets`], which a pause waits for: what was begun is finished.
    pub fn enter_in_hand(&self) -> Result<InFlight<'_>, Nak> {
        let mark = InFlight::begin(self.lane, self.full_barrier);
        match self.not_as_usual() {
            None | Some(Nak::Paused) => Ok(mark),
            Some(nak) => Err(nak),
        }
    }

    /// [`Responder::unclaim`] there.
    pub fn unclaim_in_hand(&self, wqe: u32) {
        if let Some(rq) = self.rq.as_ref().filter(|rq| rq.exclusive)
            && let Ok(_mark) = self.enter_in_hand()
        {
            rq.unclaim_exclusive(wqe);
        }
    }

    /// [`Responder::enter`] where not everything is as it is most of the time.
    #[cold]
    #[inline(never)]
    fn not_as_usual(&self) -> Option<Nak> {
        let state = self.qp.state.load(Ordering::Acquire);
        // IBA 10.3.1: RTR, RTS, SQD and SQE receive.
        let receives = (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&state);
        if !receives || self.lane.open.load(Ordering::Relaxed) == 0 || self.space.is_dead() {
            return Some(Nak::Silence);
        }
        if !self.space.is_open() {
            return Some(Nak::Paused);
        }
        if state == QpState::Rtr as u32 && !is_established(self.qp) {
            self.established();
        }
        None
    }

    /// The first message in RTR raises "communication established" (IBA 11.6.3.1).
    #[cold]
    fn established(&self) {
        if self.qp.established.swap(1, Ordering::AcqRel) == 0 {
            self.raise_qp();
        }
    }

    /// The PSN that the owner expects next (RC).
    pub fn expected_psn(&self) -> u32 {
        self.lane.next_psn().unwrap_or_else(|| self.qp.rq_psn.load(Ordering::Relaxed))
    }

    /// Orders what the initiator has stored before what it looks at next, inside the mark.
    #[inline]
    pub fn barrier(&self) {
        barrier::light(self.full_barrier);
    }

    /// Names the memory that is touched next, inside the mark; false once the lane was cut off.
    #[inline]
    fn name_next(&self, key: u32, addr: u64) -> bool {
        gate::name_next(self.lane, key, addr, self.full_barrier)
    }

    /// Whether the owner has waited in vain for this initiator while it was in flight.
    #[inline(always)]
    fn is_cut_off(&self) -> bool {
        gate::is_cut_off(self.lane)
    }

    /// Whether what was done inside the mark counts, asked after the last copy or publication.
    #[inline(always)]
    pub fn counts(&self) -> bool {
        gate::counts(self.lane)
    }

    /// The end of a request that was carried out inside `mark`; silence if it does not count.
    #[inline]
    pub fn leave_done(&self, mark: InFlight<'_>) -> Result<(), Nak> {
        let counts = self.counts();
        drop(mark);
        if counts { Ok(()) } else { Err(Nak::Silence) }
    }

    /// Remote memory for an RDMA operation (IBA 9.7.4.1.5, 9.7.4.1.6): the QP must allow the access at all, and the key must.
    #[inline]
    pub fn remote_memory(&self, rkey: u32, addr: u64, len: u64, need: u32) -> Result<Location, Nak> {
        if !self.name_next(rkey, addr) {
            return Err(Nak::Silence);
        }
        if self.qp.access.load(Ordering::Relaxed)
            & need
            & (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC)
            != need & (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC)
        {
            // An operation that the QP does not allow at all is an invalid request, not an access violation (IBA 9.7.4.1.2).
            return Err(Nak::InvalidRequest);
        }
        self.space
            .resolve(rkey, addr, len, need, self.pd(), self.qp.qpn.load(Ordering::Relaxed))
            .filter(|place| *place != Location::Null)
            .ok_or(Nak::RemoteAccess)
    }

    /// The same for the plain case: a connected QP, a region that is mapped here. None for all others and for refusals. The
    /// caller came by [`Responder::enter_at`].
    #[inline(always)]
    pub fn mapped(&self, rkey: u32, addr: u64, len: u64, need: u32) -> Option<*mut u8> {
        if self.qp.access.load(Ordering::Relaxed) & need != need {
            return None;
        }
        let (entry, offset) = plain_region(self.keys, rkey, addr, len, need, self.qp.pd.load(Ordering::Relaxed))?;
        if self.own {
            return Some(entry.host.load(Ordering::Relaxed).wrapping_add(offset) as *mut u8);
        }
        self.space.mapped_at(entry, offset, len)
    }

    /// The checks of a Flush to `placement`, bit 0 global visibility and bit 1 persistence (IBA annex A19.4.2). Each kind is
    /// a right of the region, and asking for one that this lacks an access error; only then it is held against the QP.
    pub fn check_flush(&self, rkey: u32, addr: u64, len: u64, placement: u32) -> Result<(), Nak> {
        if placement & !3 != 0 {
            return Err(Nak::InvalidRequest);
        }
        let need = [access::FLUSH_GLOBAL, access::FLUSH_PERSISTENT];
        let need = (0..2).filter(|bit| placement >> bit & 1 != 0).fold(0, |all, bit| all | need[bit]);
        self.remote_memory(rkey, addr, len, need)?;
        if self.qp.access.load(Ordering::Relaxed) & need != need { Err(Nak::InvalidRequest) } else { Ok(()) }
    }

    /// The protection domain that keys are held against: over XRC that of the SRQ (IBA A14.5.2).
    #[inline]
    fn pd(&self) -> u32 {
        match &self.rq {
            Some(rq) if self.qp_type == QpType::XrcRecv => rq.shared.pd.load(Ordering::Relaxed),
            _ => self.qp.pd.load(Ordering::Relaxed),
        }
    }

    /// Claims a receive for the initiator's message.
    #[inline]
    pub fn claim(&self) -> Result<u32, Nak> {
        if self.is_cut_off() {
            return Err(Nak::Silence);
        }
        let rnr = || Nak::ReceiverNotReady(self.qp.min_rnr_timer.load(Ordering::Relaxed) as u8);
        let rq = self.rq.as_ref().ok_or_else(rnr)?;
        let wqe = rq.claim(self.me as u32).ok_or_else(rnr)?;
        let limit = rq.shared.limit.load(Ordering::Relaxed);
        if limit != 0 && rq.waiting() < u64::from(limit) {
            self.limit_reached(rq, limit);
        }
        Ok(wqe)
    }

    /// Gives claimed receive `wqe` to the next message instead, for this one will not be finished. Of a queue that others
    /// claim from too it stays claimed until the QP goes to ERR.
    #[cold]
    pub fn unclaim(&self, wqe: u32) {
        if let Some(rq) = self.rq.as_ref().filter(|rq| rq.exclusive)
            && let Ok(_mark) = self.enter()
        {
            rq.unclaim_exclusive(wqe);
        }
    }

    /// The SRQ fell below its limit: one event, and the limit is disarmed (IBA 10.2.9.1, `man ibv_modify_srq`).
    #[cold]
    fn limit_reached(&self, rq: &RqView, limit: u32) {
        if rq.shared.limit.compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            rq.shared.limit_reached.store(1, Ordering::SeqCst);
            self.space.raise(rq.shared.attention.load(Ordering::Relaxed));
        }
    }

    /// Whether a receive is waiting, without taking it.
    pub fn has_receive(&self) -> bool {
        self.rq
            .as_ref()
            .is_some_and(|rq| rq.shared.tail.load(Ordering::Acquire) > rq.shared.head.load(Ordering::Acquire))
    }

    /// The memory of claimed receive `wqe` at `offset`, for at most `most` bytes: place and contiguous bytes there. None beyond
    /// its end. Only what is stored is held against the key: a receive may be longer than its region. Silence once the lane
    /// was cut off, for the receive is no longer the caller's.
    #[inline]
    pub fn receive_memory(
        &self,
        wqe: u32,
        mut offset: u64,
        most: u64,
    ) -> Result<Option<(Location, u64, u32, u64)>, Nak> {
        let Some(rq) = &self.rq else { return Ok(None) };
        let pd = rq.shared.pd.load(Ordering::Relaxed);
        for sge in rq.sges(wqe).unwrap_or(&[]) {
            let sge = RqView::sge(sge);
            if offset < u64::from(sge.length) {
                let len = (u64::from(sge.length) - offset).min(most);
                let addr = sge.addr.wrapping_add(offset);
                if !self.name_next(sge.lkey, addr) {
                    return Err(Nak::Silence);
                }
                let place =
                    self.space.resolve(sge.lkey, addr, len, access::LOCAL_WRITE, pd, 0).ok_or(Nak::RemoteOperation)?;
                return Ok(Some((place, len, sge.lkey, addr)));
            }
            offset -= u64::from(sge.length);
        }
        Ok(None)
    }

    /// Bytes that claimed receive `wqe` has room for.
    #[inline]
    pub fn receive_room(&self, wqe: u32) -> u64 {
        let sges = self.rq.as_ref().and_then(|rq| rq.sges(wqe)).unwrap_or(&[]);
        sges.iter().map(|sge| u64::from(RqView::sge(sge).length)).sum()
    }

    /// Publishes the completion of claimed receive `wqe`, and wakes the owner's channel if it is armed for it.
    #[inline]
    pub fn complete_receive(&self, wqe: u32, receipt: &Receipt, solicited: bool) {
        if let Some(call) = self.publish_receive(wqe, receipt, solicited) {
            call.make();
        }
    }

    /// The same without waking: a requester's own completion comes first, for whoever wakes may answer at once.
    #[inline]
    pub(crate) fn publish_receive(&self, wqe: u32, receipt: &Receipt, solicited: bool) -> Option<WakeCall> {
        let (rq, w) = self.rq.as_ref().and_then(|rq| Some((rq, rq.wqe(wqe)?)))?;
        // The receive was flushed, and may be that of another connection now.
        if self.is_cut_off() {
            return None;
        }
        let (lane, ring, cq, full_barrier) = (self.lane, self.ring, self.cq, self.full_barrier);
        let asks = Deliveries { lane, ring, cq, full_barrier }.push(rq, wqe, w, receipt);
        let call = if asks { self.tell(solicited || receipt.status != wc::SUCCESS) } else { None };
        rq.fetch_next();
        call
    }

    /// The receive CQ counts its completions or wants to be told of them.
    #[cold]
    #[inline(never)]
    fn tell(&self, solicited_or_error: bool) -> Option<WakeCall> {
        let news = watched(self.cq);
        if news.overrun {
            self.cq.overrun.store(1, Ordering::SeqCst);
        }
        if news.overrun {
            self.space.raise(self.cq.attention.load(Ordering::Relaxed));
        }
        news.event.then(|| WakeCall {
            space: Arc::clone(&self.space),
            cq: self.cq,
            slot: layout::slot_of(self.qp.qpn.load(Ordering::Relaxed)),
            solicited_or_error,
        })
    }

    /// A receive that was taken and cannot be filled completes with `status`, and its QP goes to ERR (IBA 9.9.3).
    #[cold]
    pub fn spoil_receive(&self, wqe: u32, receipt: &Receipt, status: u32) {
        if self.is_cut_off() {
            return;
        }
        self.complete_receive(wqe, &Receipt { status, ..*receipt }, true);
        self.fail(None);
    }

    /// The QP goes to ERR because of what came in. `event` is raised at the owner when no receive completion tells of it.
    #[cold]
    pub fn fail(&self, event: Option<u32>) {
        if fail(self.qp, event) {
            self.raise_qp();
        }
    }

    /// What the responder does when it refuses an RDMA operation with `nak` on a reliable service (IBA 9.9.3, class C): the
    /// QP goes to ERR with an affiliated asynchronous error. On UC the message is dropped (class D). False while the process
    /// is paused: then it is to be refused later, or the QP would go on as if nothing had been.
    #[cold]
    #[must_use]
    pub fn refuse(&self, nak: Nak) -> bool {
        if !self.qp_type.is_reliable() {
            return true;
        }
        let _mark = match self.enter() {
            Ok(mark) => mark,
            Err(refused) => return refused != Nak::Paused,
        };
        match nak {
            Nak::RemoteAccess => self.fail(Some(event::QP_ACCESS_ERR)),
            Nak::InvalidRequest => self.fail(Some(event::QP_REQ_ERR)),
            Nak::RemoteOperation => self.fail(Some(event::QP_FATAL)),
            Nak::Silence | Nak::ReceiverNotReady(_) | Nak::Paused => {}
        }
        true
    }

    fn raise_qp(&self) {
        self.space.raise(self.qp.attention.load(Ordering::Relaxed));
    }

    /// Invalidates the type 2 window `rkey` for a Send with Invalidate (IBA 10.6.7.2, 9.4.1.1.3).
    pub fn invalidate(&self, rkey: u32) -> Result<(), Nak> {
        if self.is_cut_off() {
            return Err(Nak::Silence);
        }
        let entry = self.space.keys.get((rkey >> 8) as usize).ok_or(Nak::RemoteAccess)?;
        let good = u64::from(rkey);
        self.space.write_key(rkey);
        if entry.key.load(Ordering::Acquire) != good
            || entry.flags() & layout::KEY_WINDOW2 == 0
            || entry.qpn.load(Ordering::Relaxed) != self.qp.qpn.load(Ordering::Relaxed)
            || entry.key.compare_exchange(good, 0, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            return Err(Nak::RemoteAccess);
        }
        Ok(())
    }
}

/// Moves a QP that receives to ERR; whether this call did. Its owner is to be told.
pub(crate) fn fail(qp: &QpShared, event: Option<u32>) -> bool {
    let state = qp.state.load(Ordering::Acquire);
    let failed = (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&state)
        && qp.state.compare_exchange(state, QpState::Err as u32, Ordering::SeqCst, Ordering::Relaxed).is_ok();
    if failed {
        qp.fault.store(event.map_or(u32::MAX, |e| e + 1), Ordering::SeqCst);
    }
    failed
}

/// A lane and who has it.
#[derive(Clone, Copy)]
pub struct LaneGuard {
    lane: &'static Lane,
    me: u64,
}

impl LaneGuard {
    /// Ends a mark whose thread is gone.
    pub fn leave(&self) {
        if self.lane.initiator.load(Ordering::Acquire) == self.me {
            let gate = self.lane.gate.load(Ordering::Relaxed);
            self.lane.gate.store(gate.wrapping_add(gate & 1), Ordering::Release);
        }
    }

    /// Gives the lane back.
    pub fn release(&self) {
        let _ = self.lane.initiator.compare_exchange(self.me, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
