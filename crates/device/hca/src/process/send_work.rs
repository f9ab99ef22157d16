//! The send work of a QP, as its process and its CQ see it: a pause or a revocation waits for it, and threads that poll
//! or sleep go on with it.

use crate::arena::layout::Switch;
use crate::host::dense::Dense;
use crate::host::lock::OwnerLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The work that is left after a look at send work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No work.
    Idle,
    /// More, at once.
    More,
    /// Something, not before this time (CLOCK_MONOTONIC, ns).
    Wait(u64),
    /// Something, when the QP goes on, which is stopped (`Process::go`).
    Stopped,
}

/// Requests of a stopped QP that others still work at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// None.
    Yes,
    /// An owner is at its request, or a thread of this process has the send queue.
    NotYet,
}

/// Returns true if both are the send work of the same QP. Its number does not tell, for the next QP may have it while a
/// thread still looks after one that was destroyed.
pub(crate) fn is_same(a: &dyn SendWork, b: &dyn SendWork) -> bool {
    std::ptr::addr_eq(a, b)
}

/// Facts about the send work of a QP for other threads, in one line.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Marks {
    /// Odd while a thread carries out a piece of it.
    pub(crate) executing: AtomicU64,
    /// An owner may have been asked for something that is not answered. Written inside the mark.
    pub(crate) asks: AtomicBool,
}

/// The send work of a QP, and its marks, by which many are looked at fast.
pub(crate) struct Mark {
    /// A part of the QP that is `work`.
    marks: *const Marks,
    work: Weak<dyn SendWork>,
}

// SAFETY: the pointer leads to atomics, as a shared reference would.
unsafe impl Send for Mark {}

impl Mark {
    /// The mark of the QP behind `me`, of which `marks` are a part.
    pub(crate) fn new<Q: SendWork + 'static>(me: &Arc<Q>, marks: impl FnOnce(&Q) -> &Marks) -> Mark {
        let work: Weak<dyn SendWork> = Arc::downgrade(me) as _;
        Mark { marks: marks(me), work }
    }

    /// Address of the marks.
    pub(crate) fn place(&self) -> *const Marks {
        self.marks
    }

    fn marks(&self) -> &Marks {
        // SAFETY: the weak reference keeps the memory of the QP, if not the QP; and the end of a QP leaves integers as
        // they are.
        unsafe { &*self.marks }
    }

    /// The send work, if its QP exists still.
    pub(crate) fn work(&self) -> Option<Arc<dyn SendWork>> {
        self.work.upgrade()
    }

    /// The send work, if a thread is carrying out a piece of it now.
    pub(crate) fn executing(&self) -> Option<Arc<dyn SendWork>> {
        if self.marks().executing.load(Ordering::SeqCst) & 1 == 1 { self.work() } else { None }
    }

    /// The send work, if it may have asked an owner for something.
    pub(crate) fn asking(&self) -> Option<Arc<dyn SendWork>> {
        if self.marks().asks.load(Ordering::SeqCst) { self.work() } else { None }
    }
}

/// The send work of all QPs of a process, by their numbers.
#[derive(Default)]
pub(crate) struct SendWorks(OwnerLock<Dense<u32, Mark>>);

impl SendWorks {
    pub(crate) fn add(&self, work: Mark, qpn: u32) {
        self.0.lock().insert(qpn, work);
    }

    pub(crate) fn remove(&self, qpn: u32) {
        self.0.lock().remove(qpn);
    }

    /// That of QP `qpn`, also while it is being destroyed.
    pub(crate) fn find(&self, qpn: u32) -> Option<Arc<dyn SendWork>> {
        self.0.lock().get(qpn).and_then(Mark::work)
    }

    /// Those that a thread is carrying out a piece of now.
    pub(crate) fn executing(&self) -> Vec<Arc<dyn SendWork>> {
        let marks = self.0.lock();
        marks.look_at(Mark::place).filter_map(Mark::executing).collect()
    }

    /// Those that may have asked an owner for something.
    pub(crate) fn asking(&self) -> Vec<Arc<dyn SendWork>> {
        let marks = self.0.lock();
        marks.look_at(Mark::place).filter_map(Mark::asking).collect()
    }

    /// Returns true if any is about to leave. Waits for no lock that this thread may hold.
    pub(crate) fn is_any_leaving(&self) -> bool {
        match self.0.try_lock() {
            Some(marks) => marks.look_at(Mark::place).filter_map(Mark::work).any(|work| work.is_leaving()),
            None => self.0.raw().comes_free(),
        }
    }
}

/// The send work of one QP.
pub(crate) trait SendWork: Send + Sync {
    /// The QP.
    fn qpn(&self) -> u32;

    /// The switch that stops it.
    fn switch(&self) -> &'static Switch;

    /// Its mark: odd while a thread is carrying out a piece of it.
    fn mark(&self) -> u64;

    /// Takes back what it has asked an owner for, which would go on although the QP is stopped, or takes the answer.
    fn settle(&self) -> Settled;

    /// Returns true if a thread is carrying out a piece of it now.
    fn is_executing(&self) -> bool {
        self.mark() & 1 == 1
    }

    /// Waits until the piece in hand is over; a thread that ended inside is not waited for.
    fn wait_executing(&self);

    /// Returns true if the thread that carries it out has ended in the middle of it.
    fn thread_is_gone(&self) -> bool;

    /// Returns true if any waits.
    fn has_pending(&self) -> bool;

    /// Returns true if it leaves soon, if it goes on (`SendQueue::is_leaving`). Waits for a moment at most; false if
    /// the calling thread, which a signal may have interrupted, has the send queue.
    fn is_leaving(&self) -> bool;

    /// How often the program has looked.
    fn looks(&self) -> u32;

    /// Goes on with it, in a thread that polls.
    fn advance_if_free(&self);

    /// Goes on with it, in the progress thread. None if another thread does so at this time.
    fn advance_for_progress(&self) -> Option<Progress>;

    /// Leaves the CQ's list unless work came meanwhile. The caller holds the list.
    fn clear_listed(&self) -> bool;

    /// Leaves the progress thread's list unless work came meanwhile. The caller holds the list.
    fn clear_listed_for_progress(&self) -> bool;
}
