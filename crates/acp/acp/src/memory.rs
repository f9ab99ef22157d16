//! Memory that all ports of this process know: the program's, and mappings of the library's own.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vervain_rdma::{Access, AtomicCap, Foreign, Pd, Sge};

use crate::error::{Error, Result};

/// Devices carry out atomics on words of 8 bytes only, so registrations begin and end at such words. The bytes that
/// this adds lie in the same cache line as the program's memory, and only atomics on the word may access them.
const WORD: usize = 8;

/// A port's domain, and the atomics of its device.
pub(crate) struct Domain<'a> {
    pub pd: &'a Pd,
    pub atomics: AtomicCap,
}

/// Memory registered with each port: for peers with the port of its color, with the others as the source and
/// destination of requests of this process.
pub(crate) struct Registration {
    start: NonNull<u8>,
    len: usize,
    /// Bytes in front of `start` that are registered too.
    before: usize,
    ports: Vec<Foreign>,
    /// The key for peers.
    pub rkey: u32,
    /// True: it may be written. The device refuses writes to other memory; a store by the processor in its place is
    /// refused here.
    pub writable: bool,
}

// SAFETY: the pointer is to memory that devices and other threads use anyway, as the caller of `new` has promised.
unsafe impl Send for Registration {}

/// The rights of peers in registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Read it; this rank does not write to it either.
    Read,
    /// Read it, and write to it if this process may.
    Write,
}

impl Registration {
    /// Registers `len` bytes at `start`. Memory that may not be written can be registered too; peers can then only read
    /// it.
    ///
    /// # Safety
    /// The memory stays mapped until [`deregister`](Registration::deregister), or until all that is of the domains is
    /// gone; no Rust reference leads into it meanwhile.
    pub unsafe fn new(
        domains: &[Domain<'_>],
        start: *mut c_void,
        len: usize,
        color: usize,
        rights: Rights,
    ) -> Result<Self> {
        let whole = start as usize;
        let before = whole % WORD;
        let end = whole.checked_add(len).and_then(|end| end.checked_next_multiple_of(WORD));
        let (Some(end), Some(start)) = (end, NonNull::new(start.cast::<u8>())) else {
            return Err(Error::refused(format!("{len} bytes from {whole:#x} on are no memory")));
        };
        // SAFETY: at most 7 bytes in front, in the same word.
        let from = unsafe { start.as_ptr().sub(before) };
        let bytes = (end - (whole - before)).max(WORD);
        let mut ports = Vec::with_capacity(domains.len());
        let mut writable = rights == Rights::Write;
        for (port, domain) in domains.iter().enumerate() {
            let mut access = if port == color { Access::REMOTE } else { Access::LOCAL_WRITE };
            if domain.atomics == AtomicCap::None {
                access -= Access::REMOTE_ATOMIC;
            }
            let read_only = if port == color { Access::REMOTE_READ } else { Access::empty() };
            // SAFETY: handed on to the caller.
            let register = |access| unsafe { domain.pd.register_foreign(from.cast(), bytes, access) };
            let registered = match rights {
                Rights::Read => register(read_only),
                Rights::Write => register(access).or_else(|error| {
                    writable = false;
                    register(read_only).map_err(|_| error)
                }),
            };
            match registered {
                Ok(foreign) => ports.push(foreign),
                Err(error) => return Err(Error::from(error).held_unless(take_back(ports))),
            }
        }
        let rkey = ports.get(color).map_or(0, Foreign::rkey);
        Ok(Self { start, len, before, ports, rkey, writable })
    }

    /// A registration at no device.
    #[cfg(test)]
    pub fn of_nobody(start: NonNull<u8>, len: usize, rkey: u32) -> Self {
        Self { start, len, before: 0, ports: vec![], rkey, writable: true }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte, which is also the address in requests of peers.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The byte at `offset`, which is at most the length.
    #[inline]
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.len, "an offset in the region");
        // SAFETY: inside the memory, or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The bytes of `range` for a request at `port`.
    #[inline]
    pub fn sge(&self, port: usize, range: Range<usize>) -> Sge<'_> {
        debug_assert!(range.end <= self.len);
        self.ports[port].slice(range.start + self.before..range.end + self.before)
    }

    /// The word at `offset`, a multiple of 8, of memory that begins at such an address.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let place = self.at(offset);
        assert!((place as usize).is_multiple_of(WORD) && offset + WORD <= self.len, "a word of the region");
        // SAFETY: aligned and inside the memory, which stays mapped as long as `self`; atomics and devices access it.
        unsafe { AtomicU64::from_ptr(place.cast()) }
    }

    /// Deregisters at all ports. Returns false if one did not: the memory may then still be accessed.
    pub fn deregister(self) -> bool {
        take_back(self.ports)
    }
}

fn take_back(ports: Vec<Foreign>) -> bool {
    ports.into_iter().map(Foreign::deregister).fold(true, |all, one| all & one.is_ok())
}

/// Pages of zeros that this process has mapped, and unmaps on drop.
pub(crate) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: atomics, devices and the program access the pages, which threads share anyway.
unsafe impl Send for Pages {}
// SAFETY: a shared one only yields their address.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `len` bytes. They cost memory once they are used.
    pub fn new(len: usize) -> Result<Self> {
        let bytes = len.max(WORD);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(place) if start != libc::MAP_FAILED => Ok(Self { start: place, bytes }),
            _ => Err(Error::broken(format!("no {bytes} bytes of memory: {}", std::io::Error::last_os_error()))),
        }
    }

    pub fn start(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    /// Unmaps pages that could not be registered, unless a device may still access them.
    pub fn unregistered(self, error: &Error) {
        if error.is_held() {
            std::mem::forget(self);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once; a registration's owner keeps the pages until the device has let go.
        unsafe { libc::munmap(self.start(), self.bytes) };
    }
}

/// Memory of the library's own, which peers of all ports may read and write.
pub(crate) struct Mapped {
    /// Both are None only while it is dropped.
    registration: Option<Registration>,
    pages: Option<Pages>,
}

impl Mapped {
    pub fn new(domains: &[Domain<'_>], len: usize) -> Result<Self> {
        let pages = Pages::new(len)?;
        let mut ports = Vec::with_capacity(domains.len());
        for domain in domains {
            // SAFETY: the pages stay until they are deregistered, by `drop`; only atomics access them.
            match unsafe { domain.pd.register_foreign(pages.start(), pages.bytes, ACCESS) } {
                Ok(foreign) => ports.push(foreign),
                Err(error) => {
                    if !take_back(ports) {
                        std::mem::forget(pages);
                    }
                    return Err(error.into());
                }
            }
        }
        let registration =
            Registration { start: pages.start, len: pages.bytes, before: 0, ports, rkey: 0, writable: true };
        Ok(Self { registration: Some(registration), pages: Some(pages) })
    }

    #[inline]
    fn registration(&self) -> &Registration {
        self.registration.as_ref().expect("taken by drop only")
    }

    /// The key for peers of `port`.
    pub fn rkey(&self, port: usize) -> u32 {
        self.registration().ports[port].rkey()
    }

    /// The first byte, which is also the address in requests of peers.
    pub fn start(&self) -> u64 {
        self.registration().start() as u64
    }

    #[inline]
    pub fn sge(&self, port: usize, range: Range<usize>) -> Sge<'_> {
        self.registration().sge(port, range)
    }

    /// The word at `offset`, a multiple of 8. Devices store to it too.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.registration().word(offset)
    }
}

/// Access of peers to the library's own memory.
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);

impl Drop for Mapped {
    fn drop(&mut self) {
        let done = self.registration.take().is_none_or(Registration::deregister);
        if !done {
            // The device may still access it.
            std::mem::forget(self.pages.take());
        }
    }
}

/// Copies bytes that peers may change meanwhile, as a device would: the result may be of both versions.
///
/// # Safety
/// `len` bytes are mapped at both places, which do not overlap, and no Rust reference leads there.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // A flag of 8 or 4 bytes is one store, as a device's is.
    let aligned = |bytes: usize| len == bytes && (from as usize | to as usize).is_multiple_of(bytes);
    if aligned(8) {
        // SAFETY: mapped, as the caller has promised, and aligned.
        unsafe {
            (*to.cast::<AtomicU64>()).store((*from.cast::<AtomicU64>()).load(Ordering::Acquire), Ordering::Release)
        };
    } else if aligned(4) {
        // SAFETY: as above.
        unsafe {
            (*to.cast::<AtomicU32>()).store((*from.cast::<AtomicU32>()).load(Ordering::Acquire), Ordering::Release)
        };
    } else {
        // SAFETY: as the caller has promised.
        unsafe { ptr::copy(from, to, len) };
    }
}
