//! Reasons for warnings that recur with each peer. The first of a process is a warning; later ones are at level info.

use log::Level;
use std::sync::atomic::{AtomicU32, Ordering};

/// A reason, and the process that has warned of it.
#[derive(Debug, Default)]
pub struct Reason(AtomicU32);

impl Reason {
    /// One that no process has warned of.
    pub const fn new() -> Reason {
        Reason(AtomicU32::new(0))
    }

    /// The level of a message for this reason: a warning once in a process, also in a forked child, info from then on.
    pub fn level(&self) -> Level {
        let own = std::process::id();
        if self.0.swap(own, Ordering::Relaxed) == own { Level::Info } else { Level::Warn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_message_of_a_process_is_a_warning() {
        let (one, other) = (Reason::new(), Reason::new());
        assert_eq!([&one, &one, &one].map(Reason::level), [Level::Warn, Level::Info, Level::Info]);
        assert_eq!(other.level(), Level::Warn);
        // Stands for a forked child.
        one.0.store(std::process::id() + 1, Ordering::Relaxed);
        assert_eq!([&one, &one].map(Reason::level), [Level::Warn, Level::Info]);
    }
}
