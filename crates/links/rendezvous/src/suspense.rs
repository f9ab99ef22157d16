//! Processes that were saved while they stood still ([`Process::mark_saved`](vervain_hca::Process)). When one of them
//! ends, its peers' operations on it wait until a process comes that shows the secret of the image, or the time for
//! that is over.
//!
//! A process has a secret, and its greeting gives peers a digest of it. Each save has a number of its own, and is good
//! until a process goes on: the saved one, or one that has shown the secret. A restored process that ends before it
//! goes on leaves the save good.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use vervain_hca::host::lock::OwnerLock;

/// Seconds for which a process is waited for if it has not announced how long.
pub(super) const DEFAULT_S: u32 = 600;
/// Most nanoseconds that one look takes off the time left: a process that did not look for longer stood still itself.
const LONGEST_LOOK_NS: u64 = 1_000_000_000;

/// Interval in nanoseconds at which a process without a connection looks for the restored one. That one announces
/// itself only to the processes that knew the saved one.
const BETWEEN_QUESTIONS_NS: u64 = 20_000_000;

/// The digest by which peers know a secret: half of its SHA-256.
pub(super) fn proof_of(secret: &[u64; 4]) -> [u64; 2] {
    let mut sha = Sha256::new();
    secret.iter().for_each(|word| sha.update(word.to_le_bytes()));
    let digest = sha.finalize();
    let half = |at: usize| u64::from_le_bytes(digest[at..at + 8].try_into().unwrap_or_default());
    [half(0), half(8)]
}

/// A saved process, by one of its slots.
#[derive(Clone, Copy, Debug)]
struct Saved {
    incarnation: [u64; 2],
    /// None until it has announced its save.
    proof: Option<[u64; 2]>,
    save: Option<u64>,
    /// True once it, or a restored process in its place, has gone on.
    over: bool,
    /// True while a restored process is in its place and has not gone on.
    taken: bool,
    /// Nanoseconds for which it is still waited for, and the time of the last look.
    left: u64,
    looked: Option<u64>,
    /// Time at which it was last looked for under its name.
    asked: Option<u64>,
}

impl Saved {
    fn new(incarnation: [u64; 2], seconds: u32) -> Saved {
        let left = u64::from(seconds) * 1_000_000_000;
        Saved { incarnation, proof: None, save: None, over: false, taken: false, left, looked: None, asked: None }
    }

    /// Returns true if it is still waited for; `now` is CLOCK_MONOTONIC in nanoseconds.
    fn look(&mut self, now: u64) -> bool {
        let since = self.looked.replace(now).map_or(0, |looked| now.saturating_sub(looked));
        self.left = self.left.saturating_sub(since.min(LONGEST_LOOK_NS));
        !self.over && self.left > 0
    }
}

/// The saved processes that this one knows, by slot.
#[derive(Default)]
pub(super) struct Suspense(OwnerLock<HashMap<u32, Saved>>);

impl Suspense {
    /// Notes a process's announcement of save `save`. It may come twice, even after the end of that save was announced.
    pub(super) fn saved(&self, slots: &[u32], incarnation: [u64; 2], proof: [u64; 2], save: u64, seconds: u32) {
        let mut all = self.0.lock();
        for slot in slots {
            let known = all.get_mut(slot).filter(|known| known.incarnation == incarnation && known.save == Some(save));
            let new = Saved { proof: Some(proof), save: Some(save), ..Saved::new(incarnation, seconds) };
            match known {
                Some(known) => known.left = new.left,
                None => _ = all.insert(*slot, new),
            }
        }
    }

    /// Nanoseconds for which the last process with `slot` is still waited for.
    pub(super) fn left(&self, slot: u32) -> u64 {
        self.0.lock().get(&slot).map_or(0, |known| known.left)
    }

    /// Notes a process that a restored one here knew, and that may be restored too. An announcement of a save by one of
    /// its slots stands: it came after the image was made, or the slot would have another owner.
    pub(super) fn may_come(&self, slots: &[u32], incarnation: [u64; 2], proof: [u64; 2], seconds: u32) {
        let mut all = self.0.lock();
        for slot in slots {
            let is_waited_for = |known: &Saved| known.save.is_some() && !known.over && known.left > 0;
            if !all.get(slot).is_some_and(is_waited_for) {
                all.insert(*slot, Saved { proof: Some(proof), ..Saved::new(incarnation, seconds) });
            }
        }
    }

    /// Ends the wait for such a process, which is there, unless it was saved itself or takes a saved one's place.
    pub(super) fn is_there(&self, slots: &[u32]) {
        let mut all = self.0.lock();
        for slot in slots {
            if let Some(known) = all.get_mut(slot).filter(|known| known.save.is_none()) {
                known.over = true;
            }
        }
    }

    /// Ends the save `save`, which is void.
    pub(super) fn is_over(&self, slots: &[u32], save: u64) {
        let mut all = self.0.lock();
        for slot in slots {
            if let Some(known) = all.get_mut(slot).filter(|known| known.save == Some(save)) {
                known.over = true;
            }
        }
    }

    /// Returns true if the process `incarnation` of `slot`, whose arena shows that it was saved, is waited for. Its
    /// arena may show that before its announcement comes.
    pub(super) fn waits_for(&self, slot: u32, incarnation: [u64; 2], now: u64) -> bool {
        let mut all = self.0.lock();
        let known = all.entry(slot).or_insert_with(|| Saved::new(incarnation, DEFAULT_S));
        known.incarnation == incarnation && known.look(now)
    }

    /// Returns true if the last process with `slot` is waited for and no restored one is in its place.
    pub(super) fn waits_for_any(&self, slot: u32, now: u64) -> bool {
        self.0.lock().get_mut(&slot).is_some_and(|known| !known.taken && known.look(now))
    }

    /// Returns true if it is time to look for the last process with `slot` under its name again.
    pub(super) fn may_ask(&self, slot: u32, now: u64) -> bool {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(&slot) else { return false };
        let is_time = known.asked.is_none_or(|asked| now.saturating_sub(asked) >= BETWEEN_QUESTIONS_NS);
        if is_time {
            known.asked = Some(now);
        }
        is_time
    }

    /// Returns true if any of `slots` is a saved process's.
    pub(super) fn was_saved(&self, slots: &[u32]) -> bool {
        let all = self.0.lock();
        slots.iter().any(|slot| all.get(slot).is_some_and(|known| !known.over))
    }

    /// Returns true if this secret and number of a save are those of the process that is waited for.
    pub(super) fn knows(&self, slots: &[u32], secret: &[u64; 4], save: u64) -> bool {
        let all = self.0.lock();
        let proof = proof_of(secret);
        let is_it = |known: &Saved| {
            !known.over && known.proof == Some(proof) && known.save.is_none_or(|known_save| known_save == save)
        };
        let mut known = slots.iter().filter_map(|slot| all.get(slot)).peekable();
        known.peek().is_some() && known.all(is_it)
    }

    /// Puts the process `incarnation` in the place of the saved one, if [`Suspense::knows`] it. Returns true if so.
    pub(super) fn takes_the_place(&self, slots: &[u32], incarnation: [u64; 2], secret: &[u64; 4], save: u64) -> bool {
        let good = self.knows(slots, secret, save);
        let mut all = self.0.lock();
        for slot in slots.iter().filter(|_| good) {
            if let Some(known) = all.get_mut(slot) {
                (known.incarnation, known.save, known.taken) = (incarnation, Some(save), true);
            }
        }
        good
    }

    /// Notes the end of the process `incarnation`: if it was restored and has not gone on, another one may come.
    pub(super) fn has_ended(&self, slots: &[u32], incarnation: [u64; 2]) {
        let mut all = self.0.lock();
        for slot in slots {
            if let Some(known) = all.get_mut(slot).filter(|known| known.incarnation == incarnation) {
                known.taken = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u64; 4] = [1, 2, 3, 4];
    const WHO: [u64; 2] = [7, 8];
    const NEXT: [u64; 2] = [9, 10];

    fn saved() -> Suspense {
        let suspense = Suspense::default();
        suspense.saved(&[5, 6], WHO, proof_of(&SECRET), 99, 600);
        suspense
    }

    #[test]
    fn one_process_goes_on_in_the_place_of_a_saved_one_and_no_second() {
        let suspense = saved();
        assert!(suspense.waits_for(5, WHO, 0) && suspense.waits_for_any(6, 0) && !suspense.waits_for_any(7, 0));
        assert!(!suspense.takes_the_place(&[5, 6], NEXT, &[1, 2, 3, 5], 99), "another secret");
        assert!(!suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 98), "another save");
        assert!(!suspense.takes_the_place(&[9], NEXT, &SECRET, 99), "nobody was there");
        // The first one ends before it goes on.
        for next in [NEXT, [11, 12]] {
            assert!(suspense.takes_the_place(&[5, 6], next, &SECRET, 99));
            assert!(!suspense.waits_for_any(5, 0) && suspense.waits_for(5, next, 0) && suspense.was_saved(&[5, 6]));
            suspense.has_ended(&[5, 6], WHO);
            assert!(!suspense.waits_for_any(5, 0), "that was the saved one's end");
            suspense.has_ended(&[5, 6], next);
            assert!(suspense.waits_for_any(5, 0));
        }
        assert!(suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 99));
        suspense.is_over(&[5, 6], 99);
        assert!(!suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 99), "one has gone on");
        assert!(!suspense.waits_for(5, NEXT, 0) && !suspense.was_saved(&[5, 6]));
    }

    #[test]
    fn what_has_gone_on_is_another_past_whatever_comes_late() {
        let suspense = saved();
        suspense.is_over(&[5, 6], 98);
        assert!(suspense.was_saved(&[5]), "that was an earlier save");
        suspense.is_over(&[5, 6], 99);
        // The announcement comes once more, by another connection.
        suspense.saved(&[5, 6], WHO, proof_of(&SECRET), 99, 600);
        assert!(!suspense.was_saved(&[5]) && !suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 99));
        suspense.saved(&[5, 6], WHO, proof_of(&SECRET), 100, 600);
        assert!(suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 100));
    }

    #[test]
    fn time_counts_for_who_looks() {
        const S: u64 = 1_000_000_000;
        let suspense = Suspense::default();
        suspense.saved(&[5], WHO, proof_of(&SECRET), 99, 3);
        assert!(suspense.waits_for(5, WHO, 10 * S));
        // This process stood still for an hour.
        assert!(suspense.waits_for(5, WHO, 3_610 * S));
        assert!(suspense.waits_for(5, WHO, 3_611 * S) && !suspense.waits_for(5, WHO, 3_612 * S));
        assert!(!suspense.waits_for_any(5, 3_612 * S));
    }

    #[test]
    fn a_process_that_was_saved_is_waited_for_by_one_that_is_restored_before_it_ends() {
        let suspense = saved();
        suspense.may_come(&[5, 6], WHO, proof_of(&SECRET), 600);
        suspense.is_there(&[5, 6]);
        assert!(suspense.waits_for_any(5, 0) && suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 99));
        // A process that was not saved, and one that has gone on, is there like any other.
        for is_over in [false, true] {
            let suspense = if is_over { saved() } else { Suspense::default() };
            suspense.is_over(&[5, 6], 99);
            suspense.may_come(&[5, 6], WHO, proof_of(&SECRET), 600);
            assert!(suspense.waits_for_any(5, 0));
            suspense.is_there(&[5, 6]);
            assert!(!suspense.waits_for_any(5, 0) && !suspense.was_saved(&[5, 6]));
        }
    }

    #[test]
    fn what_the_owner_of_a_slot_has_said_stands_against_what_an_older_image_knows_of_it() {
        let suspense = saved();
        suspense.may_come(&[5, 6], NEXT, proof_of(&[4, 3, 2, 1]), 600);
        assert!(suspense.takes_the_place(&[5, 6], [11, 12], &SECRET, 99));
    }

    #[test]
    fn what_is_saved_again_is_waited_for_as_long_as_was_said_last() {
        const S: u64 = 1_000_000_000;
        let suspense = saved();
        assert_eq!(suspense.left(5), 600 * S);
        suspense.saved(&[5, 6], WHO, proof_of(&SECRET), 99, 1000);
        assert_eq!((suspense.left(5), suspense.left(7)), (1000 * S, 0));
        assert!(suspense.takes_the_place(&[5, 6], NEXT, &SECRET, 99));
    }

    #[test]
    fn who_waits_looks_for_it_now_and_then() {
        let suspense = saved();
        assert!(!suspense.may_ask(7, 0), "nobody is waited for there");
        assert!(suspense.may_ask(5, 0) && !suspense.may_ask(5, BETWEEN_QUESTIONS_NS - 1));
        assert!(suspense.may_ask(5, BETWEEN_QUESTIONS_NS) && !suspense.may_ask(5, BETWEEN_QUESTIONS_NS + 1));
    }

    #[test]
    fn a_process_that_is_seen_to_be_saved_before_it_says_so_is_waited_for() {
        let suspense = Suspense::default();
        assert!(suspense.waits_for(5, WHO, 0) && !suspense.waits_for(5, [1, 1], 0), "another process had the slot");
        assert!(!suspense.takes_the_place(&[5], NEXT, &SECRET, 99), "its secret is not known yet");
        suspense.saved(&[5], WHO, proof_of(&SECRET), 99, 600);
        assert!(suspense.takes_the_place(&[5], NEXT, &SECRET, 99));
    }

    #[test]
    fn restored_processes_know_each_other_whatever_the_order() {
        let suspense = Suspense::default();
        suspense.may_come(&[5], WHO, proof_of(&SECRET), 600);
        assert!(suspense.waits_for_any(5, 0));
        assert!(suspense.takes_the_place(&[5], NEXT, &SECRET, 1234) && !suspense.waits_for_any(5, 0));
    }
}
