//! The way of completions into a CQ: the rings that they lie in, and the duties of a producer besides publishing.

use crate::arena::layout::{CqShared, READY_BITS, arm, found, watch};
use crate::cq::recv_ring::RecvRing;
use crate::cq::send_ring::SendRing;
use crate::host::atomic::{AtomicU32, Ordering, fence};
use crate::host::barrier;
use std::sync::Arc;
use vervain_iba::Completion;

/// A ring that completions are taken from.
#[derive(Clone)]
pub(crate) enum Source {
    /// Receives delivered through a lane.
    Receives(Arc<RecvRing>),
    /// A QP's own work.
    Sends(Arc<SendRing>),
}

impl Source {
    /// Number of completions that wait to be polled.
    pub(crate) fn pending(&self) -> u32 {
        match self {
            Source::Receives(ring) => ring.pending(),
            Source::Sends(ring) => ring.pending(),
        }
    }

    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Source::Receives(ring) => ring.is_ready(),
            Source::Sends(ring) => ring.pending() != 0,
        }
    }

    /// Takes up to `max`, oldest first, in front of receives the sends that were completed before; returns how many.
    #[inline(always)]
    pub(crate) fn take(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        match self {
            Source::Receives(ring) => ring.take_in_turn(max, sink),
            Source::Sends(ring) => ring.take(max, sink),
        }
    }

    /// [`Source::take`] if [`Source::is_ready`], else None; the kind of the source is looked at once.
    #[inline(always)]
    pub(crate) fn take_if_ready(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> Option<usize> {
        match self {
            Source::Receives(ring) if ring.is_ready() => Some(ring.take_in_turn(max, sink)),
            Source::Sends(ring) if ring.pending() != 0 => Some(ring.take(max, sink)),
            _ => None,
        }
    }

    /// Nobody is to poll what is there. Nothing is added from now on.
    pub(crate) fn discard(&self) {
        if let Source::Sends(ring) = self {
            ring.take(usize::MAX, &mut |_| ());
        }
    }

    pub(crate) fn mode(&self) -> &AtomicU32 {
        match self {
            Source::Receives(ring) => &ring.lane.mode,
            Source::Sends(ring) => ring.mode(),
        }
    }

    pub(crate) fn ready_bit(&self) -> u32 {
        match self {
            Source::Receives(ring) => ring.ready_bit(),
            Source::Sends(ring) => ring.ready_bit,
        }
    }

    pub(crate) fn is(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Receives(a), Source::Receives(b)) => Arc::ptr_eq(a, b),
            (Source::Sends(a), Source::Sends(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// From now on each poll looks at this ring. A producer that has not seen the change sets a ready bit, which does
    /// no harm.
    pub(crate) fn begin_watching(&self) {
        self.mode().store(found::WATCHED, Ordering::SeqCst);
    }

    /// Found by its ready bit again; false, and still watched, if there is something.
    pub(crate) fn stop_watching(&self) -> bool {
        self.mode().store(found::QUIET, Ordering::SeqCst);
        // After this, a producer that did not see the change has published before.
        match self {
            Source::Receives(_) => barrier::heavy(),
            Source::Sends(_) => barrier::heavy_here(),
        }
        let idle = !self.is_ready();
        if !idle {
            self.begin_watching();
        }
        idle
    }

    /// The ready bit was taken: the next completion sets it again. False if there is something already.
    pub(crate) fn rest(&self) -> bool {
        self.mode().store(found::QUIET, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        !self.is_ready()
            || self
                .mode()
                .compare_exchange(found::QUIET, found::SIGNALLED, Ordering::SeqCst, Ordering::Relaxed)
                .is_err()
    }
}

/// Makes the completion before `next` of a ring visible, and findable by the owner of `cq`. The caller is the ring's
/// only producer. True when the CQ asks for more ([`watched`]). `full` says that the owner does not use heavy barriers;
/// it is read where it is needed, for a register of the fast path that it would take before.
#[inline(always)]
pub(crate) fn publish(
    cq: &CqShared,
    produced: &AtomicU32,
    next: u32,
    mode: &AtomicU32,
    ready_bit: u32,
    full: &bool,
) -> bool {
    // One step: a killed initiator has done it or has not.
    produced.store(next, Ordering::Release);
    barrier::light(*full);
    if mode.load(Ordering::Relaxed) != found::WATCHED {
        signal(cq, mode, ready_bit, full);
    }
    cq.watch.load(Ordering::Relaxed) != 0
}

/// Sets the ring's ready bit, unless it is set.
#[inline(never)]
fn signal(cq: &CqShared, mode: &AtomicU32, ready_bit: u32, full: &bool) {
    fence(Ordering::SeqCst);
    if mode.load(Ordering::SeqCst) == found::QUIET
        && mode.compare_exchange(found::QUIET, found::SIGNALLED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    {
        set_ready(cq, ready_bit);
        // A program that asks for an event and then polls finds the bit, or what it has asked for is seen.
        barrier::light(*full);
    }
}

pub(crate) fn set_ready(cq: &CqShared, ready_bit: u32) {
    let bit = ready_bit as usize % READY_BITS;
    cq.ready[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
    cq.summary.fetch_or(1 << (bit / 64), Ordering::SeqCst);
}

/// The news for the owner of a CQ after a completion.
pub(crate) struct News {
    /// More completions than fit.
    pub overrun: bool,
    /// The program waits for an event: [`crate::cq::notify::fire`] decides whether for this completion.
    pub event: bool,
}

/// Counts a completion that was just published, and takes the request for an event, as [`CqShared::watch`] asks.
#[cold]
#[inline(never)]
pub(crate) fn watched(cq: &CqShared) -> News {
    let bits = cq.watch.load(Ordering::SeqCst);
    let mut news = News { overrun: false, event: false };
    if bits & watch::COUNT != 0 {
        let total = cq.produced.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        // Signed: a poll that began before counting did may have counted more than was produced.
        let ringed = (total.wrapping_sub(cq.consumed.load(Ordering::Relaxed)) as i64).max(0) as u64;
        news.overrun = ringed.saturating_add(cq.local.load(Ordering::Relaxed)) > cq.capacity.load(Ordering::Relaxed);
    }
    if bits & watch::EVENTS != 0 {
        // Pairs with `Cq::req_notify`: either the program polls what was published, or the request is seen here.
        fence(Ordering::SeqCst);
        news.event = cq.armed.load(Ordering::SeqCst) != arm::NONE;
    }
    news
}
