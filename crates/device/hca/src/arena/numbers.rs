//! QP and SRQ numbers: a process holds slots of them, and hands them out in turn.

use crate::arena::Block;
use crate::arena::layout::{self, PER_SLOT};

/// The kind of object that a number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Qp = 0,
    Srq = 1,
}

/// QP and SRQ numbers in use.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) slots: Vec<SlotNumbers>,
}

/// Those of one process slot.
pub(crate) struct SlotNumbers {
    pub(crate) slot: u32,
    pub(crate) tables: [Block; 2],
    pub(crate) used: [Vec<bool>; 2],
    /// Numbers are handed out in turn, so that one that was freed comes back late.
    next: [usize; 2],
}

impl SlotNumbers {
    pub(crate) fn new(slot: u32, tables: [Block; 2], random: usize) -> Self {
        let used = || vec![false; PER_SLOT];
        let first = random % PER_SLOT;
        SlotNumbers { slot, tables, used: [used(), used()], next: [first, first] }
    }
}

impl Numbers {
    /// Takes this number; false if it is in use, or in none of the slots.
    pub(crate) fn take_again(&mut self, kind: Kind, number: u32) -> bool {
        let slot = self.slots.iter_mut().find(|s| s.slot == layout::slot_of(number));
        slot.is_some_and(|s| !std::mem::replace(&mut s.used[kind as usize][layout::index_of(number)], true))
    }

    pub(crate) fn take(&mut self, kind: Kind) -> Option<u32> {
        let k = kind as usize;
        for s in &mut self.slots {
            let free = (0..PER_SLOT).map(|i| (s.next[k] + i) % PER_SLOT).find(|&i| !s.used[k][i]);
            if let Some(i) = free {
                s.used[k][i] = true;
                s.next[k] = i + 1;
                return Some(s.slot << layout::INDEX_BITS | i as u32);
            }
        }
        None
    }
}
