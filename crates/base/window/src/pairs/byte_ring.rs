//! A receiver's bytes that one sender hands out to its messages, each in one piece, and frees in the same order.

/// Alignment of payloads in bytes, so that copies to them are aligned.
const ALIGN: u64 = 64;

/// The sender's account of the bytes.
#[derive(Debug, Clone)]
pub struct ByteRing {
    /// Offset of the bytes in the receiver's region.
    at: u64,
    len: u64,
    /// Bytes handed out since the beginning, with those skipped at the end of a lap; and how many of them are free
    /// again.
    head: u64,
    tail: u64,
}

impl ByteRing {
    /// A ring in which all of `[at, at + len)` is free.
    pub fn new(at: u64, len: u64) -> Self {
        ByteRing { at, len, head: 0, tail: 0 }
    }

    /// Hands out `len` bytes. Returns their offset in the receiver's region, and the mark to pass to
    /// [`ByteRing::free_up_to`] when they are free; None: there is no room.
    #[inline]
    pub fn hand_out(&mut self, len: u64) -> Option<(u64, u64)> {
        let len = len.next_multiple_of(ALIGN);
        let place = self.head % self.len;
        // A place is one piece, so the rest of the lap may be skipped. If nothing is handed out, the whole ring is
        // free.
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

    /// Frees the bytes handed out up to `mark`.
    #[inline]
    pub fn free_up_to(&mut self, mark: u64) {
        debug_assert!(mark <= self.head, "what was handed out");
        self.tail = self.tail.max(mark);
    }
}
