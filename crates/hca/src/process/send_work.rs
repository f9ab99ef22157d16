//! The send work of a QP, as its process and its CQ see it: who pauses or revokes waits for it, and who polls or sleeps goes
//! on with it.

/// What is left to do after a look at send work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    Idle,
    /// More, at once.
    More,
    /// Something, not before this time (CLOCK_MONOTONIC, ns).
    Wait(u64),
}

/// Whether both are the send work of the same QP. Its number does not tell, for the next QP may have it while a thread still
/// looks after one that was destroyed.
pub(crate) fn is_same(a: &dyn SendWork, b: &dyn SendWork) -> bool {
    std::ptr::addr_eq(a, b)
}

/// The send work of one QP.
pub(crate) trait SendWork: Send + Sync {
    /// Whether a thread is carrying out a piece of it now.
    fn is_executing(&self) -> bool;

    /// Waits until the piece in hand is over; a thread that ended inside is not waited for.
    fn wait_executing(&self);

    /// Whether the thread that carries it out has ended in the middle of it.
    fn thread_is_gone(&self) -> bool;

    /// Whether any waits.
    fn has_pending(&self) -> bool;

    /// How often the program has looked.
    fn looks(&self) -> u32;

    /// Goes on with it, in a thread that polls.
    fn advance_if_free(&self);

    /// Goes on with it, in the progress thread. None when another thread is at it.
    fn advance_for_progress(&self) -> Option<Progress>;

    /// Leaves the CQ's list unless work came meanwhile. The caller holds the list.
    fn clear_listed(&self) -> bool;

    /// Leaves the progress thread's list unless work came meanwhile. The caller holds the list.
    fn clear_listed_for_progress(&self) -> bool;
}
