//! Messages between processes of the simulation: every byte depends on sender, receiver and number of its message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_window::pairs::ring::HEADERS;
use vervain_window::{Faulted, Source};

/// Identity of a message: its pair, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The incarnation of the sender, and which of its pairs this is.
    pub from: u64,
    pub pair: u64,
    /// The incarnation of the receiver.
    pub to: u64,
    /// Messages of this pair before.
    pub number: u64,
    /// Bytes of payload.
    pub len: u64,
}

impl Stamp {
    pub fn encode(&self) -> [u8; HEADERS] {
        let mut headers = [0; HEADERS];
        let words = [self.from, self.pair, self.to, self.number, self.len];
        for (bytes, word) in headers.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        headers[HEADERS - 4..].copy_from_slice(&(self.number as u32 ^ 0xabcd).to_le_bytes());
        headers
    }

    /// None for headers that nobody has encoded.
    pub fn decode(headers: &[u8; HEADERS]) -> Option<Stamp> {
        let word = |i: usize| headers[8 * i..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let stamp = Stamp { from: word(0)?, pair: word(1)?, to: word(2)?, number: word(3)?, len: word(4)? };
        (stamp.encode() == *headers).then_some(stamp)
    }

    /// Word `i` of the payload.
    fn word(&self, i: u64) -> u64 {
        let key = (self.from ^ self.pair.rotate_left(20) ^ self.to.rotate_left(40)).wrapping_add(self.number << 16 | i);
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    /// The first byte of a payload that is another one than was sent.
    pub fn wrong(&self, payload: &[u8]) -> Option<usize> {
        let words = payload.chunks(8).zip(0..);
        let wrong = |(bytes, i): (&[u8], u64)| *bytes != self.word(i).to_le_bytes()[..bytes.len()];
        words.clone().position(wrong).map(|i| 8 * i)
    }

    /// Memory of a program with this payload.
    pub fn buffer(&self) -> Buffer {
        let words = (0..self.len.div_ceil(8)).map(|i| AtomicU64::new(self.word(i)));
        Buffer { words: words.collect(), len: self.len as usize, late: false }
    }
}

/// Memory of a program, which the device may read late.
#[derive(Clone)]
pub struct Buffer {
    words: Arc<[AtomicU64]>,
    len: usize,
    pub late: bool,
}

impl Buffer {
    /// The program uses it for something else.
    pub fn reuse(&self) {
        self.words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }
}

// SAFETY: the length stays, and as many bytes are copied.
unsafe impl Source for Buffer {
    fn len(&self) -> usize {
        self.len
    }

    unsafe fn store_to(&self, to: *mut u8) -> Result<(), Faulted> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        // SAFETY: the caller's promise; there are at least so many bytes.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), self.len) };
        Ok(())
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> Result<(), Faulted> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(bytes[from..from + len].as_ptr(), len) };
        Ok(())
    }

    fn keep(&self) -> Option<Box<dyn Source + Send>> {
        self.late.then(|| Box::new(self.clone()) as Box<dyn Source + Send>)
    }
}
