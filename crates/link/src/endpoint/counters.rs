//! What the halves of a connection count by themselves, told to the counters that the device shows.

use vervain_hca::device::port_counters::{Tally, Word};
use vervain_transport::{RequesterCounters, ResponderCounters};

/// Tells what a responder has counted since the last call.
#[inline]
pub fn of_responder(tally: &Tally, now: &ResponderCounters, told: &mut ResponderCounters) {
    if now != told {
        let words = |c: &ResponderCounters| {
            [
                (Word::Sends, c.sends),
                (Word::Writes, c.writes),
                (Word::Reads, c.reads),
                (Word::Atomics, c.atomics),
                (Word::Duplicates, c.duplicates),
                (Word::OutOfSequence, c.out_of_sequence),
                (Word::OutOfBuffer, c.rnr_naks),
            ]
        };
        tell(tally, words(now), words(told));
        *told = *now;
    }
}

/// Tells what a requester has counted since the last call.
#[inline]
pub fn of_requester(tally: &Tally, now: &RequesterCounters, told: &mut RequesterCounters) {
    if now != told {
        let words = |c: &RequesterCounters| {
            [
                (Word::Resent, c.resent_packets),
                (Word::SequenceNaks, c.sequence_naks),
                (Word::ImpliedNaks, c.implied_naks),
                (Word::RnrNaks, c.rnr_naks),
                (Word::Timeouts, c.timeouts),
            ]
        };
        tell(tally, words(now), words(told));
        *told = *now;
    }
}

fn tell<const N: usize>(tally: &Tally, now: [(Word, u64); N], told: [(Word, u64); N]) {
    for ((word, now), (_, told)) in now.into_iter().zip(told) {
        if now != told {
            tally.add(word, now.wrapping_sub(told));
        }
    }
}
