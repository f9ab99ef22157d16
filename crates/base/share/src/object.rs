//! The object behind the heap: a sealed, sparse memfd, or this node's region of a window, at a fixed distance from the
//! addresses that show it. Only what is in use is mapped; there is no reservation, so limits on address space and core
//! dumps see what the program has.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use vervain_window::Region;

use crate::settings::{Off, Settings};
use crate::sys;

/// Identities of objects; shared with the program's own objects (`program`).
static IDENTITY: AtomicU64 = AtomicU64::new(1);

/// An identity that no object of this process image had before.
pub fn identity() -> u64 {
    IDENTITY.fetch_add(1, Ordering::Relaxed)
}

/// The descriptor is put above those that programs use: some close or replace all up to a small number.
const HIGH_FD: c_int = 700;

/// An open memfd, or a region of a window.
#[derive(Debug)]
pub struct Object {
    /// The descriptor.
    pub fd: c_int,
    /// Its identity.
    pub id: u64,
    /// Bytes.
    pub len: usize,
    /// Offset of its begin in the file.
    first: u64,
    /// The region of a window that it fills; None for an object that is no window's. Pages of a region are never given
    /// back, since the next owner might find the file system full when it needs them.
    region: Option<Region>,
    /// True if it can be mapped as private memory, as no device-DAX can. A MAP_FIXED that is refused may have taken
    /// away what was there.
    pub(crate) has_private_views: bool,
    /// Device and inode: a program may close descriptors that are not its own.
    file: (u64, u64),
    /// Ask for huge pages.
    huge: bool,
}

impl Object {
    /// A new, empty object of `len` bytes, sealed against every change of its length.
    pub fn create(len: usize, huge: bool) -> Result<Object, Off> {
        if sys::limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < len as u64) {
            return Err(Off::FileSizeLimit);
        }
        let refused = || Off::Kernel(sys::errno());
        // SAFETY: a C string.
        let low = unsafe {
            libc::syscall(libc::SYS_memfd_create, c"vervain-heap".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        } as c_int;
        if low < 0 {
            return Err(refused());
        }
        let fd = raise(low);
        // SAFETY: an open descriptor; the arguments are plain numbers.
        let ready = unsafe {
            libc::syscall(libc::SYS_ftruncate, fd, len) == 0
                && libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) == 0
        };
        let file = if ready { file_of(fd) } else { None };
        let Some(file) = file else {
            let why = refused();
            sys::close(fd);
            return Err(why);
        };
        Ok(Object { fd, id: identity(), len, first: 0, region: None, has_private_views: true, file, huge })
    }

    /// An object that nothing can be mapped of.
    pub fn none(len: usize) -> Object {
        Object {
            fd: -1,
            id: identity(),
            len,
            first: 0,
            region: None,
            has_private_views: false,
            file: (0, 0),
            huge: false,
        }
    }

    /// The region of a window that begins at `first` of the file of `fd`, which is taken over.
    pub fn of_window(fd: c_int, first: u64, region: Region) -> Object {
        let fd = raise(fd);
        let (len, file) = (region.size() as usize, file_of(fd).unwrap_or((0, 0)));
        let region = Some(region);
        let mut object = Object { fd, id: identity(), len, first, region, has_private_views: false, file, huge: false };
        // SAFETY: a place of the kernel's choice.
        if let Ok(at) = unsafe { object.show(0, 0, sys::page(), libc::PROT_READ, libc::MAP_PRIVATE) } {
            // SAFETY: mapped just now.
            let _ = unsafe { sys::munmap(at, sys::page()) };
            object.has_private_views = true;
        }
        object
    }

    /// Maps a part of the object as `flags` say.
    ///
    /// # Safety
    /// With MAP_FIXED nobody else may own the range.
    pub unsafe fn show(&self, addr: usize, offset: usize, len: usize, prot: c_int, flags: c_int) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { sys::mmap(addr, len, prot, flags, self.fd, self.first + offset as u64) }
    }

    /// Returns true if the descriptor still is this object.
    pub fn alive(&self) -> bool {
        crate::mode::stopped() || file_of(self.fd) == Some(self.file)
    }

    /// Maps a part of the object at `addr`, where nothing may be.
    ///
    /// The mapping is kept from children: a child that is forked by the C library gets a copy (`fork`), and one that
    /// the C library knows nothing of must not write into its parent's memory.
    pub fn map(&self, addr: usize, offset: usize, len: usize, prot: c_int) -> io::Result<()> {
        if !self.alive() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: NOREPLACE takes no range that somebody owns.
        let got = unsafe { self.show(addr, offset, len, prot, flags) }?;
        if got != addr {
            // An old kernel takes the address as a hint.
            // SAFETY: mapped just now.
            unsafe { sys::munmap(got, len) }?;
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        // SAFETY: changes no contents; mapped just now.
        unsafe { sys::madvise(addr, len, libc::MADV_DONTFORK) }?;
        if self.huge && len >= HUGE {
            // SAFETY: as above. A host that refuses leaves small pages.
            let _ = unsafe { sys::madvise(addr, len, libc::MADV_HUGEPAGE) };
        }
        Ok(())
    }

    /// Maps a part of the object once more where it, or something else of the program's, was mapped before.
    pub fn map_again(&self, addr: usize, offset: usize, len: usize) -> io::Result<()> {
        // SAFETY: the range is the heap's own, and nobody uses it.
        unsafe { sys::munmap(addr, len) }?;
        self.map(addr, offset, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Makes a range read as zeros, and gives its pages back to the machine.
    pub fn punch(&self, offset: usize, len: usize) {
        if let Some(region) = &self.region {
            let range = offset as u64..(offset + len) as u64;
            if let Some(at) = region.bytes(range) {
                // SAFETY: in the region, of a block that is nobody's but this process's.
                unsafe { std::ptr::write_bytes(at, 0, len) };
            }
            return;
        }
        if crate::mode::stopped() {
            return;
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain numbers.
        let done = self.alive() && unsafe { libc::syscall(libc::SYS_fallocate, self.fd, mode, offset, len) } == 0;
        if !done && self.alive() {
            // The kernel has no memory to split a huge page: zeros are what matters.
            for (start, n) in self.resident(offset, len) {
                self.write_zeros(start, n);
            }
        }
    }

    fn write_zeros(&self, offset: usize, len: usize) {
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut at = offset;
        while at < offset + len {
            let n = (offset + len - at).min(ZEROS.len());
            // SAFETY: `n` bytes of zeros.
            if unsafe { libc::pwrite(self.fd, ZEROS.as_ptr().cast(), n, at as i64) } <= 0 {
                return;
            }
            at += n;
        }
    }

    /// The parts of a range that have pages, as offsets and lengths in ascending order.
    pub fn resident(&self, offset: usize, len: usize) -> Resident<'_> {
        Resident { object: self, at: offset, end: offset + len }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.alive() {
            sys::close(self.fd);
        }
    }
}

/// From here on a block is aligned so that it can have huge pages.
pub const HUGE: usize = 2 << 20;

/// See [`Object::resident`].
pub struct Resident<'a> {
    object: &'a Object,
    at: usize,
    end: usize,
}

impl Iterator for Resident<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        if self.at >= self.end {
            return None;
        }
        if self.object.region.is_some() {
            // In a window the claimer of memory writes zeros to it; and a device cannot be asked for holes.
            let start = std::mem::replace(&mut self.at, self.end);
            return Some((start, self.end - start));
        }
        // SAFETY: plain numbers; nobody uses the file position.
        let seek = |from: usize, whence| unsafe { libc::lseek(self.object.fd, from as i64, whence) };
        let start = usize::try_from(seek(self.at, libc::SEEK_DATA)).ok().filter(|&s| s < self.end)?;
        let stop = usize::try_from(seek(start, libc::SEEK_HOLE)).map_or(self.end, |s| s.min(self.end));
        self.at = stop;
        Some((start, stop - start))
    }
}

fn file_of(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// This file under a higher number, where the limit on descriptors allows one.
pub(crate) fn raise(low: c_int) -> c_int {
    // SAFETY: an open descriptor.
    let high = unsafe { libc::fcntl(low, libc::F_DUPFD_CLOEXEC, HIGH_FD) };
    if high < 0 {
        return low;
    }
    sys::close(low);
    high
}

/// Has the kernel make its table of descriptors long enough for the heap's own ones. While the process has one thread
/// that takes microseconds; later the kernel waits until no CPU can be reading the old table any more, which takes 10
/// to 20 ms.
pub fn make_room_for_descriptors() {
    // SAFETY: makes a descriptor.
    let low = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if low >= 0 {
        sys::close(raise(low));
    }
}

/// A random place for `settings.heap_len` bytes, far below where the kernel puts mappings by itself. Nothing is
/// reserved: each block is mapped only where nothing is.
pub fn place(settings: &Settings) -> usize {
    const LOWEST: usize = 0x1000_0000_0000;
    const SPREAD: usize = 0x4000_0000_0000;
    let mut random = [0_u8; 8];
    // SAFETY: eight writable bytes. On failure the place is the same each time, which works as well.
    unsafe { libc::syscall(libc::SYS_getrandom, random.as_mut_ptr(), random.len(), 0) };
    // The heap's end stays below 0x5000_0000_0000.
    let steps = (SPREAD - settings.heap_len) >> 30;
    LOWEST + ((usize::from_ne_bytes(random) % steps) << 30)
}
