//! Detection of a peer's death on another kernel.

use super::Two;
use crate::pairs::block;
use crate::pairs::heartbeat::{Heartbeat, SILENT};
use crate::pairs::ring::Outgoing;

/// One of two processes, as far as it says and hears that they live.
struct Side {
    outgoing: Outgoing,
    heartbeat: Heartbeat,
}

impl Side {
    fn new(two: &Two, node: usize) -> Side {
        let (from, at) = (&two.devices[node], two.block(0));
        let outgoing = Outgoing::new(from.channel(1 - node as u32).unwrap(), at, from.own().clone(), at);
        Side { outgoing, heartbeat: Heartbeat::default() }
    }

    fn says(&mut self) {
        self.outgoing.tell(block::BEAT, self.heartbeat.beat().into());
    }

    /// Returns true if the other is silent.
    fn looks(&mut self) -> bool {
        self.heartbeat.look(self.outgoing.told(block::BEAT))
    }
}

#[test]
fn who_says_nothing_for_ten_looks_is_silent_until_heard_again() {
    let two = Two::apart();
    let [mut a, mut b] = [Side::new(&two, 0), Side::new(&two, 1)];
    for _ in 0..3 * SILENT {
        a.says();
        b.says();
        assert!(!a.looks() && !b.looks());
    }
    // The first has stopped, or died.
    for _ in 1..SILENT {
        assert!(!b.looks());
    }
    for _ in 0..3 {
        b.says();
        assert!(b.looks());
    }
    // It goes on, and holds nobody for silent whom it has not listened to.
    a.says();
    assert!(!a.looks() && !b.looks());
}

#[test]
fn who_has_never_said_anything_becomes_silent() {
    let two = Two::apart();
    let mut a = Side::new(&two, 0);
    let looks: Vec<_> = (0..SILENT).map(|_| a.looks()).collect();
    assert_eq!(looks.iter().filter(|is_silent| **is_silent).count(), 1, "{looks:?}");
}

#[test]
fn counts_that_wrap_are_new_ones() {
    let mut heartbeat = Heartbeat::default();
    for _ in 0..SILENT {
        assert!(!heartbeat.look(u32::MAX) && !heartbeat.look(0));
    }
}
