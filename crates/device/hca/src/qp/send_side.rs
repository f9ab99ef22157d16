//! The sending half of a QP, guarded by one lock: the send queue, and the carrier's connection if memory does not reach
//! the peer. The thread that has the lock goes on with the requests, records those that are left, and handles failures.

use crate::host::clock::now_ns;
use crate::process::send_work::{Progress, Settled};
use crate::qp::Qp;
use crate::qp::base::QpBase;
use crate::qp::carrier::Connection;
use crate::qp::remote::Sends;
use crate::qp::sq::{POST_BUDGET, SendQueue, owner_copy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{QpState, event};

/// Delay before send work is looked at again while the process is paused, in ns.
const PAUSED_NS: u64 = 20_000;

/// The sending half of a QP.
pub(crate) struct SendSide {
    pub(super) sq: SendQueue,
    /// The carrier's connection; None: memory reaches the peer, or there is none yet.
    pub(super) connection: Option<Arc<dyn Connection>>,
}

impl SendSide {
    /// Begins on the requests just posted, unless earlier work waits: then they take their turn at the next look. With
    /// a carrier, earlier work most often waits for answers only, so that later requests may be sent now.
    pub(super) fn begin(&mut self, qp: &Qp) {
        if self.sq.batch_is_first() || self.connection.is_some() {
            self.start(qp, POST_BUDGET);
        }
    }

    /// Goes on with the requests, by `budget` bytes at most, and records those that are left.
    pub(super) fn start(&mut self, qp: &Qp, budget: u64) -> Progress {
        if !self.sq.has_work() {
            // The work on record may have been flushed, or dropped by a reset.
            if qp.pending.is_noted() {
                self.note(qp, Progress::Idle);
            }
            return Progress::Idle;
        }
        let progress = self.work_on(qp, |SendSide { sq, connection }| match connection {
            Some(connection) => advance_connection(qp, sq, &**connection),
            None => sq.advance(&qp.base, budget),
        });
        let progress = progress.unwrap_or_else(|| match qp.is_stopped() {
            true => Progress::Stopped,
            false => Progress::Wait(now_ns() + PAUSED_NS),
        });
        self.note_if_needed(qp, progress);
        progress
    }

    /// Runs `f` as marked send work, and handles a failure in it. None while the process is paused.
    #[inline(always)]
    pub(super) fn work_on(&mut self, qp: &Qp, f: impl FnOnce(&mut SendSide) -> Progress) -> Option<Progress> {
        qp.base.executing(|| {
            let progress = f(self);
            if self.sq.take_failure() {
                qp.send_error(self);
                return Progress::Idle;
            }
            progress
        })
    }

    /// Takes the requests to owners of a QP that is stopped back ([`owner_copy::settle`]).
    pub(super) fn settle(&mut self, qp: &Qp) -> Settled {
        let settled = qp.base.while_stopped(|| {
            let settled = owner_copy::settle(&mut self.sq, &qp.base);
            if self.sq.take_failure() {
                qp.send_error(self);
            }
            settled
        });
        if settled == Settled::Yes {
            self.note_if_needed(qp, if self.sq.has_work() { Progress::Stopped } else { Progress::Idle });
        }
        settled
    }

    /// Records the work that is left, and raises the event of a drained send queue.
    #[inline]
    pub(super) fn note_if_needed(&self, qp: &Qp, progress: Progress) {
        if progress != Progress::Idle
            || qp.pending.is_noted()
            || qp.shared.state.load(Ordering::Relaxed) == QpState::Sqd as u32
        {
            self.note(qp, progress);
        }
    }

    #[cold]
    fn note(&self, qp: &Qp, progress: Progress) {
        if qp.state() == QpState::Sqd && !self.has_begun() && qp.events.take_drained() {
            qp.raise(event::SQ_DRAINED);
        }
        let waits = progress != Progress::Idle;
        qp.pending.set(waits);
        if waits && let Some(me) = qp.handle() {
            qp.pending.list(&qp.base, me);
        }
    }

    /// Returns true if a request has been begun and not finished.
    pub(super) fn has_begun(&self) -> bool {
        self.sq.has_begun() || self.connection.as_ref().is_some_and(|connection| connection.has_begun())
    }

    /// Returns true if requests wait that an adapter would have sent by now.
    pub(super) fn is_leaving(&mut self, qp: &Qp) -> bool {
        let SendSide { sq, connection } = self;
        match connection {
            Some(connection) => !qp.is_stopped() && connection.holds_back(&Sends::of(sq, qp)),
            None => sq.is_leaving(&qp.base),
        }
    }

    /// The PSN of the next request, and with a carrier the PSN that is expected of the peer.
    pub(super) fn psns(&self) -> (u32, Option<u32>) {
        match &self.connection {
            Some(connection) => self.sq.psns_of(&connection.psns()),
            None => self.sq.psns(),
        }
    }

    /// Gives up the connection and the lanes to the peer.
    pub(super) fn disconnect(&mut self, qp: &QpBase) {
        if let Some(connection) = self.connection.take() {
            self.sq.leave_remote(connection.psns());
            connection.disconnected();
        }
        if self.sq.disconnect() {
            qp.process.forget_lanes(qp.number);
        }
    }
}

/// [`SendQueue::advance`] for a QP whose carrier sends.
#[cold]
#[inline(never)]
fn advance_connection(qp: &Qp, sq: &mut SendQueue, connection: &dyn Connection) -> Progress {
    let has_begun = |sq: &SendQueue| sq.has_begun() || connection.has_begun();
    if !sq.wq.is_empty() && qp.state() != QpState::Rts && !sq.goes_on(&qp.base, has_begun(sq)) {
        return Progress::Idle;
    }
    connection.advance(&mut Sends::of(sq, qp))
}
