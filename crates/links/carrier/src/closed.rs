//! The end of what a QP receives, for those that keep packets for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that the receiving end sets for good once it lets nothing more in. Clones read the same flag; only this crate
/// sets it.
#[derive(Clone, Debug, Default)]
pub struct Closed(Arc<AtomicBool>);

impl Closed {
    /// Returns true once nothing more is let in.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Nothing more is let in. The caller holds the lock of what receives.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shows_the_end_of_the_one_that_it_is_of() {
        let (closed, other) = (Closed::default(), Closed::default());
        let kept = closed.clone();
        assert!(!kept.is_set());
        closed.set();
        assert!(kept.is_set() && !other.is_set());
    }
}
