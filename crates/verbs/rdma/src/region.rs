//! Registered memory. Peers and the device store into it at any time, so no reference into it is ever made: bytes are
//! copied in and out by atomic loads and stores.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use vervain_abi::{ibv_mr, ibv_sge};

use crate::error::{Error, Result};
use crate::pd::{Memory, Pd, Registration};
use crate::post::Domain;

/// Memory that this process mapped, and unmaps on drop.
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    pub fn new(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid("a region has at least one byte"));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses; nothing that exists is touched.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last("mmap", format!("{len} bytes")));
        }
        Ok(Self { start: start.cast(), len })
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// The `len` bytes at `offset` as atomic bytes.
    ///
    /// # Panics
    /// When they are not all inside.
    fn bytes(&self, offset: usize, len: usize) -> &[AtomicU8] {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "bytes {offset}..{} of a region of {}",
            offset.saturating_add(len),
            self.len
        );
        // SAFETY: inside the mapping, by the assertion, which lives as long as `self`. This process stores there by
        // atomics only; stores of other processes and devices are what atomics are for.
        unsafe { std::slice::from_raw_parts(self.start.add(offset).cast(), len) }
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// When it is not inside, or `offset` is no multiple of 8.
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a word at {offset}, which is no multiple of 8");
        words(self.bytes(offset, 8)).1.first().expect("8 aligned bytes are a word")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once; every reference into it borrows `self`.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Atomic bytes as bytes up to an aligned address, words, and the bytes that are left.
fn words(bytes: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
    // SAFETY: any eight bytes are a word, and atomics may be of mixed sizes where every access is one of the hardware:
    // only whole words and whole bytes are loaded and stored, of memory that others write with instructions of any
    // size.
    unsafe { bytes.align_to() }
}

/// Registered memory of this process's own; made by [`Pd::region`].
///
/// Dropping it leaves the memory registered, so that no request and no peer ever reaches memory that has become
/// something else; [`deregister`](Region::deregister) gives it back earlier.
pub struct Region {
    pd: Pd,
    registration: Arc<Registration>,
}

impl Region {
    pub(crate) fn new(pd: Pd, registration: Arc<Registration>) -> Self {
        Self { pd, registration }
    }

    fn mapping(&self) -> &Mapping {
        match &self.registration.memory {
            Memory::Mapping(mapping) => mapping,
            _ => unreachable!("a region's registration has its mapping until it is deregistered"),
        }
    }

    /// Length in bytes; never 0.
    #[allow(clippy::len_without_is_empty, reason = "a region has at least one byte")]
    pub fn len(&self) -> usize {
        self.mapping().len
    }

    /// The address of its first byte, in this process and for peers.
    pub fn addr(&self) -> u64 {
        self.mapping().start as u64
    }

    /// The key for the device's own access.
    pub fn lkey(&self) -> u32 {
        self.registration.lkey
    }

    /// The key that peers need.
    pub fn rkey(&self) -> u32 {
        self.registration.rkey
    }

    /// The address and key that a peer needs to access it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: self.addr(), rkey: self.rkey(), len: self.len() as u64 }
    }

    /// Its first byte, for code that takes pointers. Reads and writes through it are the caller's responsibility.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping().start
    }

    /// An SGE of the bytes in `range`.
    ///
    /// # Panics
    /// When they are not all inside, or are 4 GiB or more.
    pub fn slice(&self, range: Range<usize>) -> Sge<'_> {
        assert!(range.start <= range.end && range.end <= self.len(), "bytes {range:?} of a region of {}", self.len());
        Sge::new(self.addr(), range, self.lkey())
    }

    /// Copies the bytes from `offset` on into `to`. Parts of a concurrent store may be seen.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let (head, middle, tail) = words(self.mapping().bytes(offset, to.len()));
        let (first, rest) = to.split_at_mut(head.len());
        let (words, last) = rest.split_at_mut(middle.len() * 8);
        head.iter().zip(first).for_each(|(from, to)| *to = from.load(Ordering::Relaxed));
        let (chunks, _) = words.as_chunks_mut::<8>();
        middle.iter().zip(chunks).for_each(|(from, to)| *to = from.load(Ordering::Relaxed).to_ne_bytes());
        tail.iter().zip(last).for_each(|(from, to)| *to = from.load(Ordering::Relaxed));
    }

    /// Copies `from` to the bytes from `offset` on.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let (head, middle, tail) = words(self.mapping().bytes(offset, from.len()));
        let (first, rest) = from.split_at(head.len());
        let (words, last) = rest.split_at(middle.len() * 8);
        head.iter().zip(first).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
        let (chunks, _) = words.as_chunks::<8>();
        middle.iter().zip(chunks).for_each(|(to, from)| to.store(u64::from_ne_bytes(*from), Ordering::Relaxed));
        tail.iter().zip(last).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
    }

    /// Sets the bytes in `range` to `value`.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn fill(&self, range: Range<usize>, value: u8) {
        let (head, middle, tail) = words(self.mapping().bytes(range.start, range.len()));
        head.iter().chain(tail).for_each(|to| to.store(value, Ordering::Relaxed));
        middle.iter().for_each(|to| to.store(u64::from_ne_bytes([value; 8]), Ordering::Relaxed));
    }

    /// The byte at `offset`, by an acquire load: later reads are at least as new. For polling memory.
    ///
    /// # Panics
    /// When it is not inside.
    #[inline]
    pub fn load_byte(&self, offset: usize) -> u8 {
        self.mapping().bytes(offset, 1)[0].load(Ordering::Acquire)
    }

    /// Sets the byte at `offset`, after all that was written before (release).
    ///
    /// # Panics
    /// When it is not inside.
    #[inline]
    pub fn store_byte(&self, offset: usize, value: u8) {
        self.mapping().bytes(offset, 1)[0].store(value, Ordering::Release);
    }

    /// The word at `offset`, in this machine's byte order, as atomics use it (acquire).
    ///
    /// # Panics
    /// When it is not inside, or `offset` is no multiple of 8.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        self.mapping().word(offset).load(Ordering::Acquire)
    }

    /// Sets the word at `offset`, after all that was written before (release).
    ///
    /// # Panics
    /// When it is not inside, or `offset` is no multiple of 8.
    #[inline]
    pub fn store(&self, offset: usize, value: u64) {
        self.mapping().word(offset).store(value, Ordering::Release);
    }

    /// Deregisters and unmaps it now. Requests under way that name it end in a protection error, those of peers in a
    /// remote access error; `ibv_dereg_mr(3)`.
    ///
    /// # Errors
    /// EBUSY where a memory window is bound to it, on devices that look. The handle comes back with the error, and the
    /// memory is as before.
    pub fn deregister(self) -> Result<(), StillRegistered<Self>> {
        let Self { pd, registration } = self;
        let taken = pd.0.take_back(registration);
        taken.map_err(|(registration, error)| StillRegistered { memory: Self { pd, registration }, error })
    }

    /// The bytes in `range`, for a window to be bound to.
    ///
    /// # Panics
    /// When they are not all inside.
    pub fn part(&self, range: Range<usize>) -> Part<'_> {
        Part::new(&self.pd, &self.registration, self.addr(), self.len(), range)
    }
}

/// Registered memory that this crate does not access; it has keys and SGEs only. It is the program's or a library's
/// ([`Pd::register_foreign`]), or a GPU's ([`Pd::gpu_region`]).
///
/// Dropping it leaves the memory registered, as dropping a [`Region`] does.
pub struct Foreign {
    pd: Pd,
    registration: Arc<Registration>,
    addr: u64,
    len: usize,
}

impl Foreign {
    pub(crate) fn new(pd: Pd, registration: Arc<Registration>, addr: u64, len: usize) -> Self {
        Self { pd, registration, addr, len }
    }

    /// Length in bytes; never 0 where the device refuses that.
    #[allow(clippy::len_without_is_empty, reason = "as a Region")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of its first byte in requests, here and for peers: the iova where it was registered with one.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The key that peers need.
    pub fn rkey(&self) -> u32 {
        self.registration.rkey
    }

    /// The key for the device's own access.
    pub fn lkey(&self) -> u32 {
        self.registration.lkey
    }

    /// The address and key that a peer needs to access it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: self.addr, rkey: self.rkey(), len: self.len as u64 }
    }

    /// As [`Region::slice`].
    ///
    /// # Panics
    /// If the range is not inside, or is 4 GiB or longer.
    pub fn slice(&self, range: Range<usize>) -> Sge<'_> {
        assert!(range.start <= range.end && range.end <= self.len, "bytes {range:?} of {} registered", self.len);
        Sge::new(self.addr, range, self.lkey())
    }

    /// As [`Region::deregister`]; the memory is its owner's again, and that of a GPU is freed.
    ///
    /// # Errors
    /// Those of [`Region::deregister`]; the memory must then stay allocated, as before.
    pub fn deregister(self) -> Result<(), StillRegistered<Self>> {
        let Self { pd, registration, addr, len } = self;
        let taken = pd.0.take_back(registration);
        taken.map_err(|(registration, error)| StillRegistered { memory: Self { pd, registration, addr, len }, error })
    }

    /// As [`Region::part`].
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn part(&self, range: Range<usize>) -> Part<'_> {
        Part::new(&self.pd, &self.registration, self.addr, self.len, range)
    }
}

/// Memory that could not be deregistered: nothing about it has changed.
pub struct StillRegistered<M> {
    /// The handle of the memory.
    pub memory: M,
    error: Error,
}

impl<M> StillRegistered<M> {
    /// The reason.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl<M> fmt::Display for StillRegistered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> fmt::Debug for StillRegistered<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for StillRegistered<M> {}

impl<M> From<StillRegistered<M>> for Error {
    /// The memory's handle is dropped: it stays registered.
    fn from(still: StillRegistered<M>) -> Self {
        still.error
    }
}

/// Bytes of registered memory that a window can be bound to; made by [`Region::part`] and [`Foreign::part`].
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub(crate) mr: *mut ibv_mr,
    pub(crate) domain: Domain,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    borrows: PhantomData<&'a ()>,
}

impl<'a> Part<'a> {
    fn new(pd: &Pd, registration: &'a Registration, start: u64, len: usize, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= len, "bytes {range:?} of {len} registered");
        Self {
            mr: registration.raw(),
            domain: Arc::as_ptr(&pd.0),
            addr: start + range.start as u64,
            len: range.len() as u64,
            borrows: PhantomData,
        }
    }
}

/// A scatter/gather element: bytes of registered memory, which is there as long as this.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Sge<'a>(pub(crate) ibv_sge, PhantomData<&'a ()>);

impl Sge<'_> {
    fn new(start: u64, range: Range<usize>, lkey: u32) -> Self {
        let length = u32::try_from(range.len()).expect("an SGE is shorter than 4 GiB");
        Self(ibv_sge { addr: start + range.start as u64, length, lkey }, PhantomData)
    }
}

/// Memory of a peer, as the peer described it. Nothing is checked here: the peer's device checks each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// The address of its first byte, in the peer.
    pub addr: u64,
    /// The key to it.
    pub rkey: u32,
    /// Its length in bytes.
    pub len: u64,
}

impl RemoteMemory {
    /// The place `offset` bytes in, which may be beyond the end: the peer's device then refuses the request.
    pub fn at(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.addr.wrapping_add(offset), rkey: self.rkey }
    }
}

/// The place in a peer's memory at which a request begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// The address, in the peer.
    pub addr: u64,
    /// The key that opens it.
    pub rkey: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_zeros_from_the_start_of_a_page() {
        let mapping = Mapping::new(100).expect("memory");
        assert!((mapping.start() as usize).is_multiple_of(4096));
        assert!(mapping.bytes(0, 100).iter().all(|b| b.load(Ordering::Relaxed) == 0));
        assert!(Mapping::new(0).is_err());
    }

    #[test]
    #[should_panic(expected = "bytes 99..101 of a region of 100")]
    fn bytes_beyond_the_end_are_refused() {
        Mapping::new(100).expect("memory").bytes(99, 2);
    }

    #[test]
    #[should_panic(expected = "region of 100")]
    fn a_length_that_overflows_is_refused() {
        Mapping::new(100).expect("memory").bytes(1, usize::MAX);
    }

    #[test]
    #[should_panic(expected = "no multiple of 8")]
    fn a_word_is_aligned() {
        Mapping::new(100).expect("memory").word(4);
    }
}
