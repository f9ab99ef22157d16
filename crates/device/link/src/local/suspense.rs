//! Processes that were saved while they stood still ([`Process::mark_saved`](vervain_hca::Process)): when one of them ends, whoever
//! wants something of it waits, until a process comes that shows the secret of the image, or the time for that is over.
//!
//! A process has a secret, and its peers know it by a digest of that from their first word on. Each save has a number of its own, and is
//! good until a process goes on: the one that was saved, or one that has shown the secret. One that ends before that has done nothing.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use vervain_hca::host::lock::OwnerLock;

/// How long a process is waited for of which is not known for how long it wanted to be.
pub(super) const DEFAULT_S: u32 = 600;
/// What a look may take off the time that is left: who did not look for longer stood still itself.
const LONGEST_LOOK_NS: u64 = 1_000_000_000;

/// A process that was restored tells those that knew the saved one. Others look for it, this often.
const BETWEEN_QUESTIONS_NS: u64 = 20_000_000;

/// What a secret is known by: half of its SHA-256.
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
    /// None until it has said so.
    proof: Option<[u64; 2]>,
    save: Option<u64>,
    /// It has gone on, or one that was restored has.
    over: bool,
    /// One that was restored is there, and has not gone on.
    taken: bool,
    /// Nanoseconds that it is waited for from now on, and when that was looked at last.
    left: u64,
    looked: Option<u64>,
    /// When it was last looked for under its name.
    asked: Option<u64>,
}

impl Saved {
    fn new(incarnation: [u64; 2], seconds: u32) -> Saved {
        let left = u64::from(seconds) * 1_000_000_000;
        Saved { incarnation, proof: None, save: None, over: false, taken: false, left, looked: None, asked: None }
    }

    /// Whether it is waited for still; `now` is CLOCK_MONOTONIC in nanoseconds.
    fn look(&mut self, now: u64) -> bool {
        let since = self.looked.replace(now).map_or(0, |looked| now.saturating_sub(looked));
        self.left = self.left.saturating_sub(since.min(LONGEST_LOOK_NS));
        !self.over && self.left > 0
    }
}

/// All that this process knows of.
#[derive(Default)]
pub(super) struct Suspense(OwnerLock<HashMap<u32, Saved>>);

impl Suspense {
    /// A process says that it was saved, as number `save`. It may say so twice, and after it has said that that is over.
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

    /// For how many nanoseconds whoever had `slot` is waited for from now on.
    pub(super) fn left(&self, slot: u32) -> u64 {
        self.0.lock().get(&slot).map_or(0, |known| known.left)
    }

    /// A process was known to one that is restored here, and may be restored too. What one of its slots has said itself stands: it was
    /// heard after the image was made, or the slot would have another owner.
    pub(super) fn may_come(&self, slots: &[u32], incarnation: [u64; 2], proof: [u64; 2], seconds: u32) {
        let mut all = self.0.lock();
        for slot in slots {
            let is_waited_for = |known: &Saved| known.save.is_some() && !known.over && known.left > 0;
            if !all.get(slot).is_some_and(is_waited_for) {
                all.insert(*slot, Saved { proof: Some(proof), ..Saved::new(incarnation, seconds) });
            }
        }
    }

    /// Such a process is there, and is waited for no longer, unless it was saved itself or is in the place of one that was.
    pub(super) fn is_there(&self, slots: &[u32]) {
        let mut all = self.0.lock();
        for slot in slots {
            if let Some(known) = all.get_mut(slot).filter(|known| known.save.is_none()) {
                known.over = true;
            }
        }
    }

    /// What was saved as number `save` is void.
    pub(super) fn is_over(&self, slots: &[u32], save: u64) {
        let mut all = self.0.lock();
        for slot in slots {
            if let Some(known) = all.get_mut(slot).filter(|known| known.save == Some(save)) {
                known.over = true;
            }
        }
    }

    /// Whether the process `incarnation` of `slot`, whose arena says that it was saved, is waited for. It may be seen there before
    /// its word comes.
    pub(super) fn waits_for(&self, slot: u32, incarnation: [u64; 2], now: u64) -> bool {
        let mut all = self.0.lock();
        let known = all.entry(slot).or_insert_with(|| Saved::new(incarnation, DEFAULT_S));
        known.incarnation == incarnation && known.look(now)
    }

    /// Whether whoever had `slot` is waited for, and nobody is there in its place.
    pub(super) fn waits_for_any(&self, slot: u32, now: u64) -> bool {
        self.0.lock().get_mut(&slot).is_some_and(|known| !known.taken && known.look(now))
    }

    /// Whether it is time to see whether who had `slot` is there again under its name.
    pub(super) fn may_ask(&self, slot: u32, now: u64) -> bool {
        let mut all = self.0.lock();
        let Some(known) = all.get_mut(&slot) else { return false };
        let is_time = known.asked.is_none_or(|asked| now.saturating_sub(asked) >= BETWEEN_QUESTIONS_NS);
        if is_time {
            known.asked = Some(now);
        }
        is_time
    }

    /// Whether any of `slots` is that of a process that was saved.
    pub(super) fn was_saved(&self, slots: &[u32]) -> bool {
        let all = self.0.lock();
        slots.iter().any(|slot| all.get(slot).is_some_and(|known| !known.over))
    }

    /// Whether a process that shows this secret, and which save it was, is the one that is waited for.
    pub(super) fn knows(&self, slots: &[u32], secret: &[u64; 4], save: u64) -> bool {
        let all = self.0.lock();
        let proof = proof_of(secret);
        let is_it = |known: &Saved| {
            !known.over && known.proof == Some(proof) && known.save.is_none_or(|known_save| known_save == save)
        };
        let mut known = slots.iter().filter_map(|slot| all.get(slot)).peekable();
        known.peek().is_some() && known.all(is_it)
    }

    /// The process `incarnation` is there in the place of the saved one, if [`Suspense::knows`]; whether it does.
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

    /// The process `incarnation` has ended: if it was restored and has not gone on, another one may come.
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
        // It comes by another connection once more.
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
        // One that was not saved, and one that has gone on, is there as any other.
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
