//! A device that can only put: a ring of slots in memory of the receiver, which the sender writes to and does not read, and
//! a word of the sender's that the receiver writes to. Messages arrive in order and without loss.

use std::sync::atomic::{AtomicU64, Ordering};
use vervain_hca::host::lock::OwnerLock;

/// Words of a slot: the message's number and length, and the message.
const SLOT_WORDS: usize = 1 + 576;
const SLOTS: usize = 64;

/// A ring of messages to one receiver.
pub struct Ring {
    /// Put by the sender.
    slots: Vec<AtomicU64>,
    /// Put by the receiver: messages taken.
    taken: AtomicU64,
    /// The sender's count of messages put.
    put: OwnerLock<u64>,
    /// The receiver's count of messages taken.
    next: OwnerLock<u64>,
}

impl Default for Ring {
    fn default() -> Self {
        let slots = (0..SLOTS * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Ring { slots, taken: AtomicU64::new(0), put: OwnerLock::default(), next: OwnerLock::default() }
    }
}

impl Ring {
    /// Messages put that are not taken yet.
    pub fn waiting(&self) -> usize {
        (*self.put.lock() - self.taken.load(Ordering::Acquire)) as usize
    }

    /// Returns true if another message finds room.
    pub fn has_room(&self) -> bool {
        self.waiting() < SLOTS
    }

    /// Puts a message, of 4,608 bytes at most. Returns false while there is no room.
    pub fn put(&self, message: &[u8]) -> bool {
        let mut put = self.put.lock();
        if *put - self.taken.load(Ordering::Acquire) >= SLOTS as u64 {
            return false;
        }
        let slot = &self.slots[*put as usize % SLOTS * SLOT_WORDS..][..SLOT_WORDS];
        for (to, word) in slot[1..].iter().zip(message.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..word.len()].copy_from_slice(word);
            to.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        *put += 1;
        // The last word, by which the receiver sees that the others are there.
        slot[0].store(*put << 16 | message.len() as u64, Ordering::Release);
        true
    }

    /// Hands messages to `handle`, oldest first, and takes them as long as that returns true. Returns true if any was taken:
    /// none while another thread is about it.
    pub fn take(&self, mut handle: impl FnMut(&[u8]) -> bool) -> bool {
        let Some(mut next) = self.next.try_lock() else { return false };
        let begin = *next;
        loop {
            let slot = &self.slots[*next as usize % SLOTS * SLOT_WORDS..][..SLOT_WORDS];
            let head = slot[0].load(Ordering::Acquire);
            let words = slot[1..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
            if head >> 16 != *next + 1 || !handle(&words.take(head as usize & 0xffff).collect::<Vec<u8>>()) {
                return *next != begin;
            }
            *next += 1;
            self.taken.store(*next, Ordering::Release);
        }
    }
}
