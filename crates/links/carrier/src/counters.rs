//! Counts of the two halves of a connection, added to the device's counters. This runs for each packet, and mostly only
//! Sends or Writes have changed, so the rare counts are compared all at once, without a branch for each.

use vervain_hca::device::port_counters::{Tally, Word};
use vervain_transport::{RequesterCounters, ResponderCounters};

/// Counters with their words.
type Words<const N: usize> = [(Word, u64); N];

/// Adds a responder's counts since the last call.
#[inline(always)]
pub fn of_responder(tally: &Tally, now: &ResponderCounters, told: &mut ResponderCounters) {
    if now.sends != told.sends {
        tally.add(Word::Sends, now.sends.wrapping_sub(told.sends));
        told.sends = now.sends;
    }
    if now.writes != told.writes {
        tally.add(Word::Writes, now.writes.wrapping_sub(told.writes));
        told.writes = now.writes;
    }
    let rest = |c: &ResponderCounters| {
        [
            (Word::Reads, c.reads),
            (Word::Atomics, c.atomics),
            (Word::Duplicates, c.duplicates),
            (Word::OutOfSequence, c.out_of_sequence),
            (Word::OutOfBuffer, c.rnr_naks),
        ]
    };
    if differ(&rest(now), &rest(told)) {
        tell(tally, &rest(now), &rest(told));
        *told = *now;
    }
}

/// Adds a requester's counts since the last call.
#[inline(always)]
pub fn of_requester(tally: &Tally, now: &RequesterCounters, told: &mut RequesterCounters) {
    let words = |c: &RequesterCounters| {
        [
            (Word::Resent, c.resent_packets),
            (Word::SequenceNaks, c.sequence_naks),
            (Word::ImpliedNaks, c.implied_naks),
            (Word::RnrNaks, c.rnr_naks),
            (Word::Timeouts, c.timeouts),
        ]
    };
    if differ(&words(now), &words(told)) {
        tell(tally, &words(now), &words(told));
        *told = *now;
    }
}

#[inline(always)]
fn differ<const N: usize>(now: &Words<N>, told: &Words<N>) -> bool {
    now.iter().zip(told).fold(0, |all, ((_, now), (_, told))| all | (now ^ told)) != 0
}

#[inline(never)]
fn tell<const N: usize>(tally: &Tally, now: &Words<N>, told: &Words<N>) {
    for ((word, now), (_, told)) in now.iter().zip(told) {
        if now != told {
            tally.add(*word, now.wrapping_sub(*told));
        }
    }
}
