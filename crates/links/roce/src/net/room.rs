//! The buffer of a batch.

use vervain_hca::host::guarded::Access;

/// A buffer that is filled from the front.
pub struct Room {
    bytes: Box<[u8]>,
    used: usize,
}

impl Room {
    /// An empty buffer of `size` bytes.
    pub fn new(size: usize) -> Room {
        Room { bytes: vec![0; size].into(), used: 0 }
    }

    /// Returns true if `length` more bytes fit.
    pub fn has(&self, length: usize) -> bool {
        length <= self.bytes.len() - self.used
    }

    /// Number of bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Appends `bytes`.
    pub fn append(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `length` bytes from `from`, or as many zeros if that is null. They count as appended even if they cannot
    /// be read.
    ///
    /// # Safety
    /// No exclusive reference to them exists, and they are not in this buffer.
    pub unsafe fn append_from(&mut self, from: *const u8, length: usize) -> Access {
        let room = self.next(length);
        if from.is_null() {
            room.fill(0);
            return Ok(());
        }
        // SAFETY: the caller vouches for the source; the target is as long.
        unsafe { vervain_hca::host::copy::bulk(from, room.as_mut_ptr(), length, false) }
    }

    fn next(&mut self, length: usize) -> &mut [u8] {
        let at = self.used;
        self.used += length;
        &mut self.bytes[at..at + length]
    }

    /// The bytes appended since `start` were in use.
    pub fn since(&self, start: usize) -> &[u8] {
        &self.bytes[start..self.used]
    }

    /// The `length` bytes from `start` on.
    pub fn part(&mut self, start: usize, length: usize) -> &mut [u8] {
        &mut self.bytes[start..start + length]
    }

    /// Removes the bytes appended since `used` were in use.
    pub fn cut(&mut self, used: usize) {
        self.used = used;
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}
