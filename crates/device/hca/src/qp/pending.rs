//! Work that waits in a send queue, and the lists of the threads that go on with it: the CQ's, for those that poll, and
//! the progress thread's.

use crate::process::send_work::SendWork;
use crate::qp::base::QpBase;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The waiting work of a QP's send queue, on record for other threads.
#[derive(Default)]
pub(crate) struct Pending {
    /// True while work waits. Written by the thread that has the send queue.
    work: AtomicBool,
    /// True while the QP is in its CQ's list.
    listed: AtomicBool,
    /// True while the QP is in the progress thread's list.
    listed_for_progress: AtomicBool,
    /// Counts looks by the program, so that the progress thread keeps away while it polls.
    looks: AtomicU32,
}

impl Pending {
    /// Returns true if work is on record. For the thread that has the send queue.
    #[inline]
    pub(super) fn is_noted(&self) -> bool {
        self.work.load(Ordering::Relaxed)
    }

    /// Returns true if work waits. For other threads.
    pub(super) fn has_any(&self) -> bool {
        self.work.load(Ordering::SeqCst)
    }

    /// Puts on record whether work waits.
    pub(super) fn set(&self, waits: bool) {
        self.work.store(waits, Ordering::SeqCst);
    }

    /// Enters `me`, the QP of `qp`, in both lists unless it is there.
    pub(super) fn list<Q: SendWork + 'static>(&self, qp: &QpBase, me: Arc<Q>) {
        if let Some(cq) = &qp.send_cq
            && !self.listed.swap(true, Ordering::AcqRel)
        {
            let me: Arc<dyn SendWork> = me.clone();
            cq.add_pending(me);
        }
        if !self.listed_for_progress.swap(true, Ordering::AcqRel) {
            qp.process.add_pending(me);
        }
    }

    /// Takes the mark of the CQ's list away. Returns true if the QP leaves the list. The caller holds the list.
    pub(super) fn clear_listed(&self) -> bool {
        self.clear(&self.listed)
    }

    /// [`Pending::clear_listed`] for the progress thread's list.
    pub(super) fn clear_listed_for_progress(&self) -> bool {
        self.clear(&self.listed_for_progress)
    }

    fn clear(&self, listed: &AtomicBool) -> bool {
        listed.store(false, Ordering::SeqCst);
        // A poster that saw the mark still set relies on this caller: the QP stays in the list, unless the poster has
        // set the mark again.
        !self.work.load(Ordering::SeqCst) || listed.swap(true, Ordering::SeqCst)
    }

    /// How often the program has looked.
    pub(super) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Counts a look by the program.
    pub(super) fn count_look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }
}
