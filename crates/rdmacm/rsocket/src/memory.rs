//! Memory that devices read and write. The peer may write to it at any time, so it is only copied, never looked at in
//! place.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fabric::{Errno, Part, Queues, Region, Result};
use crate::protocol::stream::{Arrays, TARGET_ENTRIES};
use crate::protocol::wire::{IO_MAP_BYTES, SGE_BYTES};

/// Zeroed memory that is registered with a device.
pub struct Memory {
    region: Option<Box<dyn Region>>,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is owned, and is reached through raw pointers only, by copies and atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `length` bytes, at least 1, on pages of its own; for Writes of the peer if `remote`.
    ///
    /// # Errors
    /// ENOMEM, or as of ibv_reg_mr(3).
    pub fn new(queues: &dyn Queues, length: usize, remote: bool) -> Result<Memory> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at an address that the kernel chooses.
        let base = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno(libc::ENOMEM))?;
        let mut memory = Memory { region: None, base, length };
        // SAFETY: it stays until `memory` is dropped, which drops the region first.
        memory.region = Some(unsafe { queues.register(base.as_ptr(), length, remote)? });
        Ok(memory)
    }

    /// Address of its first byte, for the device and for peers.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The key by which peers name it.
    pub fn remote_key(&self) -> u32 {
        self.region.as_ref().map_or(0, |region| region.remote_key())
    }

    /// A part of it, for requests.
    ///
    /// # Panics
    /// It is not inside.
    pub fn part(&self, range: &Range<u32>) -> Part {
        self.check(range);
        let key = self.region.as_ref().map_or(0, |region| region.local_key());
        Part { address: self.address() + u64::from(range.start), length: range.end - range.start, key }
    }

    fn check(&self, range: &Range<u32>) {
        assert!(range.start <= range.end && range.end as usize <= self.length, "{range:?} of {} bytes", self.length);
    }

    /// Copies out of it.
    ///
    /// # Panics
    /// The range is not inside.
    ///
    /// # Safety
    /// `to` can be written for as many bytes.
    pub unsafe fn copy_out(&self, range: &Range<u32>, to: *mut u8) {
        self.check(range);
        // SAFETY: inside; the caller's bytes are not of this memory, which nobody else has a pointer to.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(range.start as usize), to, range.len()) };
    }

    /// Copies into it.
    ///
    /// # Panics
    /// The range is not inside.
    ///
    /// # Safety
    /// `from` can be read for as many bytes.
    pub unsafe fn copy_in(&self, range: &Range<u32>, from: *const u8) {
        self.check(range);
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(from, self.base.as_ptr().add(range.start as usize), range.len()) };
    }

    /// The word at `at`, a multiple of 8.
    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.length, "{at} of {} bytes", self.length);
        // SAFETY: inside, aligned, as the memory begins with a page; and all reach these bytes by atomics, but for the
        // peer.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// The words from `at`, the last of them first: who writes them in their order has then written them all.
    fn words<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        for (i, word) in bytes.chunks_exact_mut(8).enumerate().rev() {
            word.copy_from_slice(&self.word(at + 8 * i).load(Ordering::Acquire).to_ne_bytes());
        }
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.region = None;
        // SAFETY: mapped by `new`, and nobody has a pointer to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Arrays for Memory {
    fn target(&self, index: u32) -> [u8; SGE_BYTES] {
        self.words(index as usize * SGE_BYTES)
    }

    fn clear_target(&self, index: u32) {
        for at in [8, 0] {
            self.word(index as usize * SGE_BYTES + at).store(0, Ordering::Relaxed);
        }
    }

    fn io_map(&self, index: u16) -> [u8; IO_MAP_BYTES] {
        self.words(TARGET_ENTRIES as usize * SGE_BYTES + usize::from(index) * IO_MAP_BYTES)
    }
}

/// Bytes of the program's: what is still to be sent, or still to be filled, of an array of struct iovec.
pub struct Vectors<'a> {
    vectors: &'a [libc::iovec],
    /// Bytes of the first that are done.
    skip: usize,
}

impl<'a> Vectors<'a> {
    /// # Safety
    /// Each can be read, or written, as it is used, for as long as this lives.
    pub unsafe fn new(vectors: &'a [libc::iovec]) -> Vectors<'a> {
        Vectors { vectors, skip: 0 }
    }

    /// Bytes that are left. No more than isize::MAX count.
    pub fn left(&self) -> usize {
        let sum = self.vectors.iter().fold(0_usize, |sum, vector| sum.saturating_add(vector.iov_len));
        sum.min(isize::MAX as usize).saturating_sub(self.skip)
    }

    /// The next `length` bytes, in pieces: for each, where it is and how many bytes are before it.
    fn take(&mut self, mut length: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        let mut before = 0;
        while length > 0 {
            let Some((first, rest)) = self.vectors.split_first() else { return };
            let piece = length.min(first.iov_len - self.skip);
            if piece > 0 {
                each(first.iov_base.cast::<u8>().wrapping_add(self.skip), before, piece);
            }
            (before, length, self.skip) = (before + piece, length - piece, self.skip + piece);
            if self.skip == first.iov_len {
                (self.vectors, self.skip) = (rest, 0);
            }
        }
    }

    /// Copies the next bytes into memory.
    pub fn fill(&mut self, memory: &Memory, range: &Range<u32>) {
        self.take(range.len(), |from, before, length| {
            let start = range.start + before as u32;
            // SAFETY: as `new` was promised.
            unsafe { memory.copy_in(&(start..start + length as u32), from) };
        });
    }

    /// Copies the next bytes behind `into`.
    pub fn append(&mut self, length: usize, into: &mut Vec<u8>) {
        self.take(length, |from, _, length| {
            // SAFETY: as `new` was promised; the program's memory is its own matter.
            into.extend_from_slice(unsafe { std::slice::from_raw_parts(from, length) });
        });
    }

    /// Fills the next bytes from memory.
    pub fn empty(&mut self, memory: &Memory, range: &Range<u32>) {
        self.take(range.len(), |to, before, length| {
            let start = range.start + before as u32;
            // SAFETY: as `new` was promised.
            unsafe { memory.copy_out(&(start..start + length as u32), to) };
        });
    }

    /// Fills the next bytes from a slice.
    pub fn store(&mut self, bytes: &[u8]) {
        self.take(bytes.len(), |to, before, length| {
            // SAFETY: as `new` was promised.
            unsafe { ptr::copy_nonoverlapping(bytes[before..before + length].as_ptr(), to, length) };
        });
    }
}
