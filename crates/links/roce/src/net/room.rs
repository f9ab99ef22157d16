//! The buffer of a batch.

use vervain_hca::host::guarded::Access;
use vervain_wire::{Headers, MAX_HEADERS};

/// A buffer that is filled from the front.
pub struct Room {
    /// What it has room for, and [`MAX_HEADERS`]: headers are written where the longest would fit.
    bytes: Box<[u8]>,
    used: usize,
}

impl Room {
    /// An empty buffer of `size` bytes.
    pub fn new(size: usize) -> Room {
        Room { bytes: vec![0; size + MAX_HEADERS].into(), used: 0 }
    }

    /// Returns true if `length` more bytes fit.
    pub fn has(&self, length: usize) -> bool {
        self.used + length + MAX_HEADERS <= self.bytes.len()
    }

    /// Number of bytes in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Appends the bytes of `headers`, written in place.
    #[inline]
    pub fn append_headers(&mut self, headers: &Headers) {
        if let Some(next) = self.bytes[self.used..].first_chunk_mut() {
            self.used += headers.emit(next);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_wire::{BTH_LEN, Bth, opcode};

    #[test]
    fn headers_are_written_in_place_up_to_the_end_of_the_room() {
        let bth = Bth { opcode: opcode::SEND_ONLY, dest_qpn: 17, ..Bth::default() };
        let headers = Headers { bth, ..Headers::default() };
        let mut room = Room::new(2 * BTH_LEN);
        for n in 1..=2 {
            assert!(room.has(BTH_LEN));
            room.append_headers(&headers);
            assert_eq!(room.used(), n * BTH_LEN);
        }
        assert!(!room.has(1));
        let (first, last) = room.since(0).split_at(BTH_LEN);
        assert_eq!((first, first[7]), (last, 17));
    }
}
