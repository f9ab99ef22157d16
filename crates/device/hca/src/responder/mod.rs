//! THE responder (IBA 9.7.4, 9.9.3): the effects of an initiator's operation on the QP, the receive queue, the
//! completion queue and the memory at the other end. The initiator runs it: a thread of a peer process through shared
//! memory, or a thread of the same process on a looped QP.
//!
//! Every access happens between [`Responder::enter`] and the end of its [`InFlight`] mark; all checks are made inside.
//! The operations: `memory` (RDMA Writes, Reads and atomics), `deliver` (messages into receives) and [`datagram`]. A
//! requester that works by memory takes the operations in pieces; a carrier of packets takes them whole, and enters
//! once for those that it handles together ([`Visit`]). The fast path of a requester ([`crate::qp::sq::fast_path`])
//! shares the gate and the checks.

pub mod datagram;
mod deliver;
mod memory;
pub(crate) mod refused;
mod visit;

pub use crate::process::gate::InFlight;
pub(crate) use deliver::WakeCall;
pub(crate) use memory::{Atomic, Reached, Refusal};
pub use refused::Spoilt;
pub use visit::Visit;

use crate::arena::ArenaRef;
use crate::arena::layout::{self, CqShared, CqeRing, KeyEntry, Lane, QpShared, Switch};
use crate::host::barrier;
use crate::process::Process;
use crate::process::gate::{self, is_established};
use crate::process::peer::PeerProcess;
use crate::rq::RqView;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use vervain_iba::{Nak, QpState, QpType};

/// The reasons why an initiator may not enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// No answer: the QP is gone, not ready, in error, or connected elsewhere.
    Silence,
    /// The process lets no initiator in for a moment ([`crate::Process::pause`]).
    Paused,
    /// The QP is stopped, and will go on ([`crate::Context::stop`]).
    Stopped,
}

/// To a peer a pause and a stop are silence: its packet counts as lost.
impl From<Barred> for Nak {
    fn from(_: Barred) -> Nak {
        Nak::Silence
    }
}

/// A QP at the moment when an initiator decided to use it: its number and its count of resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpIncarnation {
    /// QP number.
    pub qpn: u32,
    /// Number of resets.
    pub generation: u32,
}

impl QpIncarnation {
    /// The present incarnation of `qp`. To be read before any other state of it that matters.
    pub fn now(qp: &QpShared) -> QpIncarnation {
        let generation = qp.generation.load(Ordering::SeqCst);
        QpIncarnation { qpn: qp.qpn.load(Ordering::SeqCst), generation }
    }
}

/// A QP to deliver to, through one lane of it.
#[derive(Clone)]
pub struct Responder {
    /// The process that owns it.
    pub space: Arc<PeerProcess>,
    /// The lane.
    pub lane: ArenaRef<Lane>,
    /// The QP.
    pub qp: ArenaRef<QpShared>,
    /// The queue that receives come from.
    pub rq: Option<RqView>,
    /// The CQ that the QP's receives complete in.
    cq: ArenaRef<CqShared>,
    ring: ArenaRef<[AtomicU32]>,
    cqes: Option<ArenaRef<CqeRing>>,
    /// The switch of its context. The kernel itself marks the end of the process there.
    switch: ArenaRef<Switch>,
    /// Its process's keys.
    keys: ArenaRef<[KeyEntry; layout::KEYS]>,
    /// True: its process is the calling one.
    own: bool,
    qp_type: QpType,
    me: u64,
    /// True: the owner relies on full barriers of the initiator.
    full_barrier: bool,
}

impl Responder {
    /// Takes the lane at `lane_offset` for the initiator `me` (`nonce << 32 | QPN`) into the QP that was `seen` before.
    /// None while another initiator has it, or if the contents of the arena are inconsistent.
    pub fn bind(space: &Arc<PeerProcess>, lane_offset: u64, me: u64, seen: QpIncarnation) -> Option<Responder> {
        let view = &space.view;
        let lane = view.hold::<Lane>(lane_offset)?;
        let to = &lane.leads_to;
        let qp = view.hold::<QpShared>(to.qp.load(Ordering::Relaxed))?;
        let switch = view.hold::<Switch>(qp.switch.load(Ordering::Relaxed))?;
        let cq = view.hold::<CqShared>(to.cq.load(Ordering::Relaxed))?;
        let ring = view.hold_slice(to.ring.load(Ordering::Relaxed), to.mask.load(Ordering::Relaxed) as usize + 1)?;
        let cqes = match to.cqes.load(Ordering::Relaxed) {
            0 => None,
            offset => Some(view.hold::<CqeRing>(offset)?),
        };
        if !ring.len().is_power_of_two() || lane.open.load(Ordering::Acquire) == 0 {
            return None;
        }
        let qp_type = QpType::from_verbs(qp.qp_type.load(Ordering::Relaxed))?;
        let rq = match to.rq.load(Ordering::Relaxed) {
            0 => None,
            offset => Some(RqView::new(view, offset)?),
        };
        if let Err(other) = lane.initiator.compare_exchange(0, me, Ordering::AcqRel, Ordering::Acquire)
            && other != me
        {
            return None;
        }
        // The QP may have been reset, and the lane given to another, since it was seen: the thread that resets it
        // changes the generation, passes a barrier, and then looks at the lane's initiator.
        fence(Ordering::SeqCst);
        if qp.generation.load(Ordering::SeqCst) != seen.generation
            || qp.qpn.load(Ordering::SeqCst) != seen.qpn
            || lane.open.load(Ordering::SeqCst) == 0
        {
            let _ = lane.initiator.compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed);
            return None;
        }
        let full_barrier = space.needs_full_barrier();
        let (keys, own) = (space.keys.clone(), space.is_own());
        Some(Responder {
            space: Arc::clone(space),
            lane,
            qp,
            rq,
            cq,
            ring,
            cqes,
            switch,
            keys,
            own,
            qp_type,
            me,
            full_barrier,
        })
    }

    /// Gives the lane back. The initiator is not in flight on it.
    pub fn release(&self) {
        self.in_hand().release();
    }

    /// The part of it that can leave and give back the lane even when the responder itself is lost.
    #[inline]
    pub fn in_hand(&self) -> LaneGuard {
        LaneGuard { lane: self.lane.clone(), me: self.me }
    }

    /// Returns true if the lane is still this initiator's.
    pub(crate) fn has_lane(&self) -> bool {
        self.lane.initiator.load(Ordering::Acquire) == self.me
    }

    /// Takes back a request that the owner has not begun. Returns true if the owner is carrying it out just now.
    pub fn withdraw(&self) -> bool {
        use crate::arena::layout::request::{DONE, IDLE, POSTED, WAITING};
        if !self.has_lane() {
            return false;
        }
        let take = |from| self.lane.request.state.compare_exchange(from, IDLE, Ordering::AcqRel, Ordering::Acquire);
        !matches!(take(POSTED).or_else(|_| take(WAITING)), Ok(_) | Err(IDLE | DONE))
    }

    /// Ends the mark of a thread that is gone.
    pub fn leave(&self) {
        self.in_hand().leave();
    }

    /// The service type of the target QP.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Marks the initiator as in flight and checks that the QP still takes requests through this lane. The mark is
    /// visible before the check (IBA has no such race: an adapter serialises). A thread that revokes works the other
    /// way round: first the state or key, then a heavy barrier, then a look at the mark.
    #[inline(always)]
    pub fn enter(&self) -> Result<InFlight<'_>, Barred> {
        self.enter_by(&self.lane)
    }

    /// [`Responder::enter`] with the lane in a register.
    #[inline(always)]
    fn enter_by<'a>(&'a self, lane: &'a Lane) -> Result<InFlight<'a>, Barred> {
        let mark = InFlight::begin(lane, &self.full_barrier);
        if !gate::is_open(lane, &self.qp, &self.switch)
            && let Some(barred) = self.not_as_usual()
        {
            return Err(barred);
        }
        Ok(mark)
    }

    /// [`Responder::enter`] that names the memory touched next already, for [`Responder::mapped`].
    #[inline(always)]
    pub fn enter_at(&self, key: u32, addr: u64) -> Result<InFlight<'_>, Barred> {
        let lane = &*self.lane;
        gate::name(lane, key, addr);
        self.enter_by(lane)
    }

    /// [`Responder::enter`] inside [`crate::process::Process::handle_packets`], which a pause and a stop wait for:
    /// operations that were begun are finished.
    pub fn enter_in_hand(&self) -> Result<InFlight<'_>, Barred> {
        let mark = InFlight::begin(&self.lane, &self.full_barrier);
        match self.not_as_usual() {
            None | Some(Barred::Paused | Barred::Stopped) => Ok(mark),
            Some(barred) => Err(barred),
        }
    }

    /// [`Responder::enter_in_hand`] for an operation that takes one visit and may be done later: a stop refuses it.
    pub(crate) fn enter_unless_stopped(&self) -> Result<InFlight<'_>, Barred> {
        let mark = InFlight::begin(&self.lane, &self.full_barrier);
        match self.not_as_usual() {
            None | Some(Barred::Paused) => Ok(mark),
            Some(barred) => Err(barred),
        }
    }

    /// The check of [`Responder::enter`] if something is not as it is most of the time. None: the initiator may go on.
    #[cold]
    #[inline(never)]
    fn not_as_usual(&self) -> Option<Barred> {
        if gate::is_saved(&self.switch) {
            // Stopped rather than silent, even if the process has ended: it may be restored.
            return Some(Barred::Stopped);
        }
        let state = self.qp.state.load(Ordering::Acquire);
        // IBA 10.3.1: RTR, RTS, SQD and SQE receive.
        let receives = (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&state);
        if !receives
            || self.lane.open.load(Ordering::Relaxed) == 0
            || self.space.is_dead()
            || gate::has_ended(&self.switch)
        {
            return Some(Barred::Silence);
        }
        if gate::is_closed(&self.switch) {
            return Some(if gate::is_stopped(&self.switch) { Barred::Stopped } else { Barred::Paused });
        }
        if state == QpState::Rtr as u32 && !is_established(&self.qp) {
            self.established();
        }
        None
    }

    /// Raises "communication established" at the first message in RTR (IBA 11.6.3.1).
    #[cold]
    fn established(&self) {
        if self.qp.established.swap(1, Ordering::AcqRel) == 0 {
            self.raise_qp();
        }
    }

    /// Returns true if the QP, which was saved, has left its place, alone or with its process, and will not be restored
    /// there: it is restored elsewhere or not at all.
    #[cold]
    pub(crate) fn is_over(&self, process: &Process) -> bool {
        let is_dead = self.space.is_dead() || gate::has_ended(&self.switch);
        if !is_dead && self.lane.open.load(Ordering::Relaxed) != 0 && self.has_lane() {
            return false;
        }
        let incarnation = self.space.header.incarnation.each_ref().map(|word| word.load(Ordering::Relaxed));
        !process.rendezvous.may_be_restored(layout::slot_of(self.qp.qpn.load(Ordering::Relaxed)), incarnation)
    }

    /// The PSN that the owner expects next (RC). None: it takes any.
    pub fn expected_psn(&self) -> Option<u32> {
        let first = || Some(self.qp.rq_psn.load(Ordering::Relaxed)).filter(|psn| *psn != layout::ANY_PSN);
        self.lane.next_psn().or_else(first)
    }

    /// Orders the initiator's stores before its next loads, inside the mark.
    #[inline]
    pub fn barrier(&self) {
        barrier::light(self.full_barrier);
    }

    /// Returns true if the owner has given up waiting for this initiator, which was in flight.
    #[inline(always)]
    fn is_cut_off(&self) -> bool {
        gate::is_cut_off(&self.lane)
    }

    /// Returns true if the operations inside the mark count. To be called after the last copy or publication.
    #[inline(always)]
    pub fn counts(&self) -> bool {
        gate::counts(&self.lane)
    }

    /// Ends a request that was carried out inside `mark`. Silence if it does not count.
    #[inline]
    pub fn leave_done(&self, mark: InFlight<'_>) -> Result<(), Nak> {
        let counts = self.counts();
        drop(mark);
        if counts { Ok(()) } else { Err(Nak::Silence) }
    }

    /// Moves the QP to ERR because of a request. `event` is raised at the owner if no receive completion reports the
    /// error.
    #[cold]
    pub fn fail(&self, event: Option<u32>) {
        if self.qp.fail(event) {
            self.raise_qp();
        }
    }

    /// Refuses an RDMA operation with `nak`. On a reliable service the QP goes to ERR with an affiliated asynchronous
    /// error (IBA 9.9.3, class C); on UC the message is dropped (class D). Returns false while the process is paused or
    /// the QP stopped: the operation is then to be refused later, or the QP would go on as if nothing had happened.
    /// `note` records the refusal inside the mark: outside, the QP may be gone and its memory reused.
    #[cold]
    #[must_use]
    pub fn refuse(&self, nak: Nak, note: impl FnOnce(&Responder)) -> bool {
        if !self.qp_type.is_reliable() {
            return true;
        }
        let _mark = match self.enter() {
            Ok(mark) => mark,
            Err(barred) => return barred == Barred::Silence,
        };
        note(self);
        if let Some(event) = nak.event() {
            self.fail(Some(event));
        }
        true
    }

    /// The sentence for the last refusal, for the initiator that has noted it.
    #[cold]
    pub(crate) fn why_refused(&self) -> Option<String> {
        refused::why(&self.qp, &*self.keys, self.pd(), refused::End::Requester)
    }

    fn raise_qp(&self) {
        self.space.raise(self.qp.attention.load(Ordering::Relaxed));
    }
}

/// A lane and the initiator that has it.
#[derive(Clone)]
pub struct LaneGuard {
    lane: ArenaRef<Lane>,
    me: u64,
}

impl LaneGuard {
    /// Ends the mark of a thread that is gone.
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
