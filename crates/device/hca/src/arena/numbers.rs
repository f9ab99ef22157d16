//! QP and SRQ numbers: a process holds slots of them, and hands them out in turn. And the numbers of its PDs.

use crate::arena::layout::{self, PER_SLOT};
use crate::arena::{Block, View};
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The kind of object that a number names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Qp = 0,
    Srq = 1,
}

/// The numbers of a process.
pub(crate) struct Numbers {
    /// Held while a slot is claimed.
    slots: OwnerLock<Vec<SlotNumbers>>,
    next_pd: AtomicU32,
}

/// Those of one process slot.
pub(crate) struct SlotNumbers {
    slot: u32,
    tables: [Block; 2],
    used: [Vec<bool>; 2],
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
    pub(crate) fn new() -> Self {
        Numbers { slots: OwnerLock::default(), next_pd: AtomicU32::new(1) }
    }

    pub(crate) fn next_pd(&self) -> u32 {
        self.next_pd.fetch_add(1, Ordering::Relaxed)
    }

    /// A number that is free. `claim` gets one more slot, to be the process's with this index.
    pub(crate) fn take(&self, kind: Kind, claim: impl FnOnce(usize) -> Result<SlotNumbers>) -> Result<u32> {
        let mut slots = self.slots.lock();
        if let Some(number) = take(&mut slots, kind) {
            return Ok(number);
        }
        add(&mut slots, claim)?;
        take(&mut slots, kind).ok_or_else(|| Error::no_memory("no number is free"))
    }

    /// The first slot, for which `claim` is called if there is none.
    pub(crate) fn first_slot(&self, claim: impl FnOnce(usize) -> Result<SlotNumbers>) -> Result<u32> {
        let mut slots = self.slots.lock();
        if slots.is_empty() {
            add(&mut slots, claim)?;
        }
        slots.first().map(|first| first.slot).ok_or_else(|| Error::no_memory("no process slot is free"))
    }

    /// Takes this number, which a QP or SRQ of a saved process had. EEXIST if it is in use, or in none of the slots.
    pub(crate) fn take_again(&self, kind: Kind, number: u32) -> Result<()> {
        let mut slots = self.slots.lock();
        let slot = slots.iter_mut().find(|s| s.slot == layout::slot_of(number));
        if slot.is_some_and(|s| !std::mem::replace(&mut s.used[kind as usize][layout::index_of(number)], true)) {
            return Ok(());
        }
        drop(slots);
        let what = if kind == Kind::Qp { "QP" } else { "SRQ" };
        Err(Error::new(libc::EEXIST, format!("{what} number {number:#x} is in use")))
    }

    /// Claims those of `saved`, slots that a saved process had, that are not this process's, by `claim` with the slot
    /// and the index that it is to have.
    pub(crate) fn claim_again(
        &self,
        saved: &[u32],
        is_own: impl Fn(u32) -> bool,
        claim: impl Fn(u32, usize) -> Result<SlotNumbers>,
    ) -> Result<()> {
        let mut slots = self.slots.lock();
        let wanted: BTreeSet<u32> = saved.iter().copied().filter(|slot| !is_own(*slot)).collect();
        // All of them or none: what is claimed is this process's until it ends.
        if let Some(slot) = wanted.iter().find(|slot| !(1..layout::SLOTS - 1).contains(slot)) {
            return Err(Error::invalid(format!("{slot} is no slot")));
        }
        if slots.len() + wanted.len() > layout::SLOTS_PER_PROCESS {
            return Err(Error::no_memory(
                "this process has QPs or SRQs of its own, and no room for those that were saved",
            ));
        }
        wanted.into_iter().try_for_each(|slot| add(&mut slots, |i| claim(slot, i)))
    }

    pub(crate) fn slots(&self) -> Vec<u32> {
        self.slots.lock().iter().map(|s| s.slot).collect()
    }

    /// Makes `number` lead to `offset` of the arena `view`; 0 to withdraw it.
    pub(crate) fn publish(&self, view: &View, kind: Kind, number: u32, offset: u64) {
        let slots = self.slots.lock();
        if let Some(slot) = slots.iter().find(|s| s.slot == layout::slot_of(number)) {
            let table = view.slice::<AtomicU64>(slot.tables[kind as usize].offset(), PER_SLOT);
            if let Some(table) = table {
                table[layout::index_of(number)].store(offset, Ordering::SeqCst);
            }
        }
    }

    /// Gives a number back.
    pub(crate) fn free(&self, kind: Kind, number: u32) {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.iter_mut().find(|s| s.slot == layout::slot_of(number)) {
            slot.used[kind as usize][layout::index_of(number)] = false;
        }
    }
}

fn take(slots: &mut [SlotNumbers], kind: Kind) -> Option<u32> {
    let k = kind as usize;
    for s in slots {
        let free = (0..PER_SLOT).map(|i| (s.next[k] + i) % PER_SLOT).find(|&i| !s.used[k][i]);
        if let Some(i) = free {
            s.used[k][i] = true;
            s.next[k] = i + 1;
            return Some(s.slot << layout::INDEX_BITS | i as u32);
        }
    }
    None
}

fn add(slots: &mut Vec<SlotNumbers>, claim: impl FnOnce(usize) -> Result<SlotNumbers>) -> Result<()> {
    if slots.len() == layout::SLOTS_PER_PROCESS {
        return Err(Error::no_memory("this process has all the QPs or SRQs that it can have"));
    }
    slots.push(claim(slots.len())?);
    Ok(())
}
