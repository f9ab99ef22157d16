//! The ends of a payload that a device puts directly into its destination, if the device puts no single bytes: those
//! before the first multiple of its grain and those behind the last. They travel with the message that stands for the
//! payload, and its receiver stores them.

use crate::device::Region;
use std::sync::atomic::{AtomicU8, Ordering};

/// Words in which ends are sent.
pub const WORDS: usize = 2;
/// Most bytes of the head and of the tail.
const HEAD: u64 = 7;
const TAIL: u64 = 8;

/// Both ends of a payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ends {
    head: u64,
    tail: u64,
    /// Bytes of head and tail.
    lens: (u8, u8),
}

/// Number of bytes in the head and the tail of `len` bytes at `at`, for a device of this grain: at most 7 and 8. Unless
/// both are 0, the tail ends with all bytes of the last aligned word, which has to become visible last, and whole.
pub fn lens(at: u64, len: u64, grain: u64) -> (u64, u64) {
    if (at | len).is_multiple_of(grain) {
        return (0, 0);
    }
    let head = (at.next_multiple_of(grain) - at).min(len);
    let end = (at + len) % TAIL;
    (head, (len - head).min(if end == 0 { TAIL } else { end }))
}

impl Ends {
    /// Ends of these bytes.
    ///
    /// # Panics
    /// There are more bytes than ends have.
    pub fn new(head: &[u8], tail: &[u8]) -> Ends {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        assert!(head.len() as u64 <= HEAD, "a head of {} bytes", head.len());
        Ends { head: word(head), tail: word(tail), lens: (head.len() as u8, tail.len() as u8) }
    }

    /// The words as they are sent.
    pub fn encode(&self) -> [u64; WORDS] {
        // A head leaves its last byte free, which has room for both lengths.
        let lens = u64::from(self.lens.0) | u64::from(self.lens.1) << 4;
        [self.head | lens << 56, self.tail]
    }

    /// The ends sent with a payload of `len` bytes; empty if the words are invalid.
    pub fn decode(words: [u64; WORDS], len: u64) -> Ends {
        let (head, tail) = (words[0] >> 56 & 15, words[0] >> 60);
        if head > HEAD || tail > TAIL || head + tail > len {
            return Ends::default();
        }
        Ends { head: words[0] & ((1 << 56) - 1), tail: words[1], lens: (head as u8, tail as u8) }
    }

    /// Returns true if both ends are empty.
    pub fn is_empty(&self) -> bool {
        self.lens == (0, 0)
    }

    /// Stores them into the payload of `len` bytes at `at` of a region; the last byte, or the word that it ends, comes
    /// last.
    pub fn store(&self, region: &Region, at: u64, len: u64) {
        let (head, tail) = (u64::from(self.lens.0), u64::from(self.lens.1));
        let from = at + len - tail;
        let Some(bytes) = region.bytes(at..at + len) else { return };
        let store = |word: u64, at: u64, n: u64| {
            for (i, byte) in word.to_le_bytes().into_iter().take(n as usize).enumerate() {
                // SAFETY: inside the payload, which is in the region; all references to it are to atomics.
                let place = unsafe { AtomicU8::from_ptr(bytes.add(at as usize + i)) };
                // In order, for readers that look at the last byte, and behind the payload itself.
                place.store(byte, Ordering::Release);
            }
        };
        store(self.head, 0, head);
        if tail == TAIL && from.is_multiple_of(TAIL) {
            region.word(from).store(self.tail.to_le(), Ordering::Release);
        } else {
            store(self.tail, len - tail, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::memory;
    use proptest::prelude::*;

    #[test]
    fn what_is_left_is_of_whole_grains() {
        for (at, len, expected) in [
            (0, 8, (0, 0)),
            (4, 12, (0, 0)),
            (1, 8, (3, 1)),
            (1, 15, (3, 8)),
            (2, 2, (2, 0)),
            (1, 2, (2, 0)),
            (3, 6, (1, 1)),
            (4, 3, (0, 3)),
            (11, 100_005, (1, 8)),
        ] {
            assert_eq!(lens(at, len, 4), expected, "{len} bytes at {at}");
            assert_eq!(lens(at, len, 1), (0, 0));
        }
    }

    proptest! {
        #[test]
        fn ends_and_what_is_between_are_the_payload(at in 64..96_u64, len in 1..200_u64) {
            let (head, tail) = lens(at, len, 4);
            prop_assert!((at + head).is_multiple_of(4) || head == len);
            prop_assert!(head + tail <= len && (len - head - tail).is_multiple_of(4), "{head} {tail}");
            let payload: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            let ends = Ends::new(&payload[..head as usize], &payload[(len - tail) as usize..]);
            prop_assert_eq!(Ends::decode(ends.encode(), len), ends);
            prop_assert_eq!(ends.is_empty(), (head, tail) == (0, 0));
            let region = memory(512).unwrap();
            ends.store(&region, at, len);
            let words: Vec<u8> = region.words().iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
            for (i, byte) in words.iter().enumerate() {
                let place = (i as u64).wrapping_sub(at);
                let is_end = place < head || place < len && place >= len - tail;
                prop_assert_eq!(*byte, if is_end { payload[place as usize] } else { 0 }, "{} of {} at {}", i, len, at);
            }
        }

        #[test]
        fn ends_that_come_are_never_longer_than_the_payload(words: [u64; 2], len in 0..20_u64) {
            let ends = Ends::decode(words, len);
            prop_assert!(u64::from(ends.lens.0) + u64::from(ends.lens.1) <= len);
            ends.store(&memory(64).unwrap(), 8, len);
        }
    }
}
