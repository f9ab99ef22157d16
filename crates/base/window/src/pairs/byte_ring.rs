//! Bytes of a receiver that one sender hands out to its messages, each in one piece, in the order in which they are freed again.

/// Payloads begin at multiples of this: what is copied there is aligned.
const ALIGN: u64 = 64;

/// The sender's account of such bytes.
#[derive(Debug, Clone)]
pub struct ByteRing {
    /// Where the bytes are, in the region of the receiver.
    at: u64,
    len: u64,
    /// Bytes handed out since the beginning, with those that were skipped at the end of a lap; and the ones that are free again.
    head: u64,
    tail: u64,
}

impl ByteRing {
    /// All of `[at, at + len)` is free.
    pub fn new(at: u64, len: u64) -> Self {
        ByteRing { at, len, head: 0, tail: 0 }
    }

    /// A place for `len` bytes: where in the receiver's region, and what [`ByteRing::free_up_to`] is to be told when they are
    /// free. None while there is no room.
    #[inline]
    pub fn hand_out(&mut self, len: u64) -> Option<(u64, u64)> {
        let len = len.next_multiple_of(ALIGN);
        let place = self.head % self.len;
        // In one piece, so what is left of the lap may be left out; all of it is free if nothing is handed out.
        let skipped = if place + len <= self.len { 0 } else { self.len - place };
        let begin = self.head + skipped;
        let tail = if self.head == self.tail { begin } else { self.tail };
        if begin + len - tail > self.len {
            return None;
        }
        self.tail = tail;
        self.head = begin + len;
        Some((self.at + begin % self.len, self.head))
    }

    /// What was handed out up to `mark` is free again.
    #[inline]
    pub fn free_up_to(&mut self, mark: u64) {
        debug_assert!(mark <= self.head, "what was handed out");
        self.tail = self.tail.max(mark);
    }
}
