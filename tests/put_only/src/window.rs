//! A device that can only put: memory of a process that another writes to and cannot read. Over two such windows goes a ring of
//! slots, in order and without loss: one for the messages, one by which the receiver says how many it has taken.

use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;

/// Words of a slot: one that says how long its message is, and the message.
const SLOT_WORDS: usize = 1 + 576;
/// Bytes that a message may have.
const MOST: usize = (SLOT_WORDS - 1) * 8;
const SLOTS: usize = 64;

/// Memory that its owner reads, and whoever has the [`Putter`] writes.
struct Window(Box<[AtomicU64]>);

/// The far side of a window.
struct Putter<'a>(&'a Window);

impl Putter<'_> {
    /// Puts `word` at word `at`; what was put before is there when this is.
    fn put(&self, at: usize, word: u64) {
        self.0.0[at].store(word, Ordering::Release);
    }
}

impl Window {
    fn new(words: usize) -> Window {
        Window((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn read(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Acquire)
    }
}

/// A ring of messages to one receiver.
pub struct Ring {
    /// The receiver's.
    slots: Window,
    /// The sender's: how many messages the receiver has taken.
    taken: Window,
    /// Messages put; the sender's own count.
    put: OwnerLock<u64>,
    /// Messages taken; the receiver's own count.
    next: OwnerLock<u64>,
}

impl Default for Ring {
    fn default() -> Self {
        let (slots, taken) = (Window::new(SLOTS * SLOT_WORDS), Window::new(1));
        Ring { slots, taken, put: OwnerLock::default(), next: OwnerLock::default() }
    }
}

impl Ring {
    /// Whether a message would find room.
    pub fn has_room(&self) -> bool {
        *self.put.lock() - self.taken.read(0) < SLOTS as u64
    }

    /// Whether the receiver has taken all messages.
    pub fn is_taken(&self) -> bool {
        *self.put.lock() == self.taken.read(0)
    }

    /// Puts a message; false while there is no room.
    ///
    /// # Panics
    /// When the message is longer than a slot.
    pub fn put(&self, message: &[u8]) -> bool {
        assert!(message.len() <= MOST, "a message of {} bytes", message.len());
        let mut put = self.put.lock();
        if *put - self.taken.read(0) >= SLOTS as u64 {
            return false;
        }
        let (to, slot) = (Putter(&self.slots), *put as usize % SLOTS * SLOT_WORDS);
        for (i, word) in message.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            to.put(slot + 1 + i, u64::from_le_bytes(bytes));
        }
        *put += 1;
        // The last word, by which the receiver sees that the others are there: which lap, and how long.
        to.put(slot, *put << 16 | message.len() as u64);
        true
    }

    /// Takes the oldest message, if there is one.
    pub fn take(&self) -> Option<Vec<u8>> {
        let mut next = self.next.lock();
        let slot = *next as usize % SLOTS * SLOT_WORDS;
        let head = self.slots.read(slot);
        if head >> 16 != *next + 1 {
            return None;
        }
        let len = head as usize & 0xffff;
        let words = (0..len.div_ceil(8)).flat_map(|i| self.slots.read(slot + 1 + i).to_le_bytes());
        let message = words.take(len).collect();
        *next += 1;
        Putter(&self.taken).put(0, *next);
        Some(message)
    }
}
