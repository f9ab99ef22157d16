//! The bytes of a batch.

use vervain_hca::host::guarded::Access;

/// Bytes that are filled from the front.
pub struct Room {
    bytes: Box<[u8]>,
    used: usize,
}

impl Room {
    /// Empty, with place for `size` bytes.
    pub fn new(size: usize) -> Room {
        Room { bytes: vec![0; size].into(), used: 0 }
    }

    /// Whether `length` more bytes have place.
    pub fn has(&self, length: usize) -> bool {
        length <= self.bytes.len() - self.used
    }

    /// How many bytes there are.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Copies `bytes` behind what is there.
    pub fn append(&mut self, bytes: &[u8]) {
        self.next(bytes.len()).copy_from_slice(bytes);
    }

    /// Copies `length` bytes from `from`, or as many zeros if that is null. They count as added even where they cannot be read.
    ///
    /// # Safety
    /// No reference excludes others from them, and they are not in here.
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

    /// What has been added since `start` were used.
    pub fn since(&self, start: usize) -> &[u8] {
        &self.bytes[start..self.used]
    }

    /// `length` bytes from `start` on.
    pub fn part(&mut self, start: usize, length: usize) -> &mut [u8] {
        &mut self.bytes[start..start + length]
    }

    /// Forgets what was added since `used` were used.
    pub fn cut(&mut self, used: usize) {
        self.used = used;
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}
