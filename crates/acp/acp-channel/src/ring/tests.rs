//! The ring with a wire that is as bad as one may be: puts that no order binds are stored in any order, a word at a
//! time, whenever it likes.

use std::collections::VecDeque;
use std::iter::repeat_with;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Words that were put and are not stored yet.
struct Late<'a> {
    side: &'a [AtomicU64],
    /// A put, and those that are behind it, each behind the one before.
    puts: Vec<VecDeque<Vec<(usize, u64)>>>,
}

impl Wire for Late<'_> {
    fn put(&mut self, words: Range<usize>, behind: bool) -> Result<()> {
        let words: Vec<_> = words.map(|at| (at, self.side[at].load(Ordering::Relaxed))).collect();
        match self.puts.last_mut() {
            Some(last) if behind => last.push_back(words),
            // The put before is over, or there was none.
            _ => self.puts.push(VecDeque::from([words])),
        }
        Ok(())
    }
}

impl Late<'_> {
    /// Stores one word of those that may come first.
    fn store(&mut self, ring: &[AtomicU64], which: usize) {
        if self.puts.is_empty() {
            return;
        }
        let put = which % self.puts.len();
        let Some(first) = self.puts[put].front_mut() else { unreachable!("such are removed") };
        let (at, word) = first.swap_remove(which % first.len());
        ring[at].store(word, Ordering::Relaxed);
        if first.is_empty() {
            self.puts[put].pop_front();
        }
        if self.puts[put].is_empty() {
            // The order of the others stays: the last one may be continued.
            self.puts.remove(put);
        }
    }
}

fn words() -> Vec<AtomicU64> {
    repeat_with(|| AtomicU64::new(0)).take(WORDS).collect()
}

fn byte(message: usize, at: usize) -> u8 {
    (message * 31 + at * 7 + 1) as u8
}

/// Sends messages of these lengths; the choices say who goes on, and which word is stored.
fn all_arrive(lens: &[usize], choices: &[u16]) {
    let (side, ring) = (words(), words());
    let (mut out, mut input) = (Out::new(&side), In::new(&ring));
    let mut wire = Late { side: &side, puts: vec![] };
    let (mut sent, mut received) = (0, 0);
    let mut turn = 0;
    while received < lens.len() {
        let choice = choices[turn % choices.len()] as usize;
        turn += 1;
        assert!(turn < 10_000_000, "{received} of {} have come", lens.len());
        if choice.is_multiple_of(3) && sent < lens.len() {
            let bytes: Vec<u8> = (0..lens[sent]).map(|at| byte(sent, at)).collect();
            let is_sent = if bytes.len() <= SHORT {
                out.short(Kind::Short, &bytes, &mut wire)
            } else {
                // SAFETY: the bytes of the vector.
                unsafe { out.long(Kind::Whole, bytes.as_ptr(), bytes.len(), &mut wire) }
            };
            sent += usize::from(is_sent.unwrap());
        }
        // As many as the number of sent ones allows.
        for more in 0..choice % 257 {
            wire.store(&ring, choice / 3 + more);
        }
        let Some(record) = input.look().unwrap() else { continue };
        let bytes = if record.kind == Kind::Short {
            let Some(bytes) = input.short(&record).unwrap() else { continue };
            bytes[..record.len].to_vec()
        } else {
            let mut bytes = vec![0; record.len];
            // SAFETY: the bytes of the vector.
            unsafe { input.long(&record, bytes.as_mut_ptr(), record.len) };
            bytes
        };
        let wanted: Vec<u8> = (0..lens[received]).map(|at| byte(received, at)).collect();
        assert!(bytes == wanted, "message {received} of {} bytes", lens[received]);
        input.consume(&record);
        received += 1;
        if let Some(read) = input.take_room() {
            out.returned(read).unwrap();
        }
    }
    assert_eq!(input.look().unwrap().map(|record| record.kind), None);
    // All is as it was, for the next channel.
    input.clear();
    while !wire.puts.is_empty() {
        wire.store(&ring, 0);
    }
    assert!(ring.iter().all(|word| word.load(Ordering::Relaxed) == 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_is_sent_arrives_in_order(
        lens in vec(prop_oneof![0..=SHORT, 1..=LONG, (LONG - 20)..=LONG], 1..80),
        choices in vec(any::<u16>(), 8..200),
    ) {
        // One choice at least lets the sender go on, one stores.
        let choices = [&choices[..], &[0, 256 + 257]].concat();
        all_arrive(&lens, &choices);
    }

    #[test]
    fn a_ring_full_of_anything_is_an_error_and_no_more(words_there in vec(any::<u64>(), 1..64), kinds in vec(0u64..9, 64)) {
        let ring = words();
        for (at, word) in words_there.iter().enumerate() {
            let kind = kinds[at];
            ring[at].store((word & 0xffff) | kind << 32, Ordering::Relaxed);
        }
        let mut input = In::new(&ring);
        for _ in 0..200 {
            let Ok(Some(record)) = input.look() else { break };
            let mut bytes = vec![0; record.len];
            if record.kind.has_marks() {
                if !matches!(input.short(&record), Ok(Some(_))) {
                    break;
                }
            } else {
                // SAFETY: the bytes of the vector.
                unsafe { input.long(&record, bytes.as_mut_ptr(), record.len) };
            }
            input.consume(&record);
        }
    }
}

#[test]
fn a_receiver_that_has_read_what_nobody_sent_is_an_error() {
    let side = words();
    let mut out = Out::new(&side);
    let mut wire = Late { side: &side, puts: vec![] };
    assert!(out.returned(1).is_err());
    assert!(out.short(Kind::Short, &[1, 2, 3], &mut wire).unwrap());
    assert!(out.returned(2).is_ok() && out.returned(1).is_err() && out.returned(u64::MAX).is_err());
}

#[test]
fn what_no_sender_makes_is_no_record() {
    let longest = [
        (Kind::Short, SHORT),
        (Kind::Whole, LONG),
        (Kind::Part, LONG),
        (Kind::Begin, WORD),
        (Kind::Offer, 2 * WORD),
        (Kind::Free, 0),
        (Kind::Hello, WORD),
    ];
    for (kind, most) in longest {
        for place in [0, 1, WORDS - words_of(kind, most)] {
            for (len, good) in [(most, true), (most + 1, false), (u32::MAX as usize, false)] {
                let ring = words();
                ring[place].store(head(kind, len), Ordering::Relaxed);
                let mut input = In { ring: &ring, read: place as u64, returned: 0 };
                assert_eq!(input.look().is_ok(), good, "{kind:?} of {len} B at {place}");
            }
        }
        // It would go on behind the end of the ring.
        let ring = words();
        let place = WORDS + 1 - words_of(kind, most);
        if place < WORDS {
            ring[place].store(head(kind, most), Ordering::Relaxed);
            assert!(In { ring: &ring, read: place as u64, returned: 0 }.look().is_err(), "{kind:?} at {place}");
        }
    }
    for word in [1, head(Kind::Skip, 0), head(Kind::Whole, 0), head(Kind::Part, 0), 9 << 32, u64::MAX] {
        let ring = words();
        ring[0].store(word, Ordering::Relaxed);
        assert!(In::new(&ring).look().is_err(), "{word:#x}");
    }
}

#[test]
fn a_ring_that_is_skipped_over_and_over_is_an_error() {
    let ring = words();
    for at in [0, 5] {
        ring[at].store(head(Kind::Skip, 0), Ordering::Relaxed);
    }
    let mut input = In { ring: &ring, read: 5, returned: 0 };
    assert!(input.look().is_err());
}

#[test]
fn data_is_there_when_each_word_has_its_mark() {
    let ring = words();
    ring[0].store(head(Kind::Short, 12), Ordering::Relaxed);
    let mut input = In::new(&ring);
    let record = input.look().unwrap().unwrap();
    for at in [3, 1, 2] {
        assert!(input.short(&record).unwrap().is_none(), "before word {at}");
        ring[at].store(u64::from(DATA) << 32 | at as u64, Ordering::Relaxed);
    }
    let bytes = input.short(&record).unwrap().unwrap();
    assert_eq!((bytes[0], bytes[4], bytes[8], bytes[12]), (1, 2, 3, 0));
    for wrong in [1, 14 << 32, 16 << 32, u64::MAX] {
        ring[2].store(wrong, Ordering::Relaxed);
        assert!(input.short(&record).is_err(), "{wrong:#x}");
    }
}
