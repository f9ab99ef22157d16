//! The two rings of a queue with several claimers. Receives are claimed in the order of posting, unless several QPs
//! share the queue: they complete in any order there, so no program can count on one, and a receive whose WQE was used
//! before goes into the second ring, which claimers prefer. So a program that posts thousands of receives, and posts
//! each again when it has read its message, touches a few of them again and again, which stay in its cache.

use super::{RqView, entry_claimer, entry_position, entry_wqe};
use crate::host::atomic::{AtomicU64, Ordering};

/// Bit of a position in the second ring.
pub(super) const AGAIN: u64 = 1 << 63;
/// Bits of a position that an entry has, besides the ring's.
const POSITION_BITS: u32 = 23;
/// Receives that stay in the second ring while the first one has some: two lines of the ring, so that owner and
/// claimers do not wait for each other's.
const KEPT: u64 = 16;

/// What an entry has of `position`.
#[inline]
pub(super) fn in_entry(position: u64) -> u64 {
    position & ((1 << POSITION_BITS) - 1) | (position >> 63) << POSITION_BITS
}

/// One of the rings.
#[derive(Clone, Copy)]
pub(super) struct Ring<'a> {
    /// First position not known to be claimed.
    pub(super) head: &'a AtomicU64,
    /// Position after the last posted WQE.
    pub(super) tail: &'a AtomicU64,
    pub(super) entries: &'a [AtomicU64],
    /// [`AGAIN`] in the second ring.
    pub(super) bit: u64,
}

impl<'a> Ring<'a> {
    /// The entry for `position`.
    #[inline]
    pub(super) fn slot(&self, position: u64) -> &'a AtomicU64 {
        &self.entries[position as usize & (self.entries.len() - 1)]
    }

    /// Entry `e` at `position` if its WQE was posted there.
    #[inline]
    fn is_posted(&self, e: u64, position: u64) -> bool {
        entry_position(e) == in_entry(position & !AGAIN | self.bit)
    }

    /// Takes the oldest WQE for the initiator `me`.
    #[inline]
    fn claim(&self, me: u32) -> Option<u32> {
        // Others may claim while we look, at most all of the ring; more than that is damage, not contention.
        for _ in 0..2 * self.entries.len() + 64 {
            let head = self.head.load(Ordering::Acquire);
            let slot = self.slot(head);
            let e = slot.load(Ordering::Acquire);
            if !self.is_posted(e, head) {
                // Not posted yet, unless the head moved on while we looked.
                if self.head.load(Ordering::Acquire) == head {
                    return None;
                }
                continue;
            }
            if entry_claimer(e) != 0 {
                help(self.head, head);
                continue;
            }
            if slot.compare_exchange(e, e | u64::from(me) & 0xff_ffff, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                help(self.head, head);
                return Some(entry_wqe(e));
            }
        }
        None
    }

    /// The WQE at `position`, if it was posted.
    #[inline]
    fn posted_at(&self, position: u64) -> Option<u32> {
        let e = self.slot(position).load(Ordering::Relaxed);
        self.is_posted(e, position).then(|| entry_wqe(e))
    }

    /// WQEs that are not claimed, as far as known.
    #[inline]
    pub(super) fn waiting(&self) -> u64 {
        self.tail.load(Ordering::Acquire).saturating_sub(self.head.load(Ordering::Acquire))
    }
}

impl RqView {
    /// The ring of receives in the order of posting.
    #[inline]
    pub(super) fn first(&self) -> Ring<'_> {
        let entries = &self.ring[..=self.mask as usize];
        Ring { head: &self.shared.head.first, tail: &self.shared.tail.first, entries, bit: 0 }
    }

    /// The ring of receives that are used again.
    #[inline]
    pub(super) fn again(&self) -> Ring<'_> {
        let entries = &self.ring[self.mask as usize + 1..];
        Ring { head: &self.shared.head.again, tail: &self.shared.tail.again, entries, bit: AGAIN }
    }

    /// The ring of `position`.
    #[inline]
    pub(super) fn ring_of(&self, position: u64) -> Ring<'_> {
        if position & AGAIN == 0 { self.first() } else { self.again() }
    }

    /// Returns true if a receive was ever posted to the second ring.
    #[inline]
    pub(super) fn uses_again(&self) -> bool {
        self.shared.uses_again.load(Ordering::Relaxed) != 0
    }

    #[inline(never)]
    pub(super) fn claim_among_others(&self, me: u32) -> Option<u32> {
        let claimed = if self.uses_again() { self.claim_from_both(me) } else { self.first().claim(me) };
        claimed.filter(|wqe| *wqe < self.count)
    }

    /// Both rings, in the order in which claimers look for a receive.
    fn in_turn(&self) -> [Ring<'_>; 2] {
        let again = self.again();
        let has_more = again.posted_at(again.head.load(Ordering::Relaxed).wrapping_add(KEPT)).is_some();
        if has_more { [again, self.first()] } else { [self.first(), again] }
    }

    fn claim_from_both(&self, me: u32) -> Option<u32> {
        self.in_turn().iter().find_map(|ring| ring.claim(me))
    }

    /// Claims the WQE at `position` for `me`, whichever is the oldest; false if somebody has.
    pub(crate) fn claim_at(&self, position: u64, me: u32) -> bool {
        let ring = self.ring_of(position);
        let slot = ring.slot(position);
        let e = slot.load(Ordering::Acquire);
        ring.is_posted(e, position)
            && entry_claimer(e) == 0
            && slot.compare_exchange(e, e | u64::from(me) & 0xff_ffff, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The WQEs that are probably claimed next, and after that.
    #[inline]
    pub(super) fn next_two(&self) -> [Option<u32>; 2] {
        let at = |ring: Ring<'_>| {
            let head = ring.head.load(Ordering::Relaxed);
            [head, head.wrapping_add(1)].map(|position| ring.posted_at(position))
        };
        if !self.uses_again() {
            return at(self.first());
        }
        let [one, other] = self.in_turn();
        match at(one) {
            [None, _] => at(other),
            next => next,
        }
    }
}

/// Advances `counter` from `from` by one, unless another thread has done so.
pub(super) fn help(counter: &AtomicU64, from: u64) {
    let _ = counter.compare_exchange(from, from.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed);
}
