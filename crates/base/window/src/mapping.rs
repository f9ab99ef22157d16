//! Mappings of files, made by bare system calls so that a preload neither serves nor records them.

use crate::device::Region;
use crate::error::{Error, Result};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// The first bytes of a file, mapped to be read and written.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; what is there is accessed as atomics or by raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file.
    ///
    /// The mapping keeps the open file description alive, and so do its copies in forked children. Hence `fd` must not
    /// be one by which locks are taken: the kernel releases those only when the last of all these is gone.
    pub(crate) fn new(fd: impl AsFd, len: u64) -> Result<Arc<Mapping>> {
        let len = usize::try_from(len).map_err(|_| Error::new(libc::ENOMEM, "the window is larger than memory"))?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at a place of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, fd, 0) }
            .map_err(|e| Error::of(format_args!("the window's {len} bytes cannot be mapped (mmap)"), e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null");
        // Other processes' data does not belong into this one's core dump; a kernel that cannot leave it out is no
        // reason to fail.
        // SAFETY: the mapping is ours, and its contents stay.
        let _ = unsafe { madvise(base.as_ptr().cast::<c_void>(), len, Advice::LinuxDontDump) };
        Ok(Arc::new(Mapping { base, len }))
    }

    /// Private zeros, which take memory where they are written.
    pub(crate) fn anonymous(len: u64) -> Result<Arc<Mapping>> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at a place of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len as usize, rights, MapFlags::PRIVATE) }
            .map_err(|e| Error::of(format_args!("there are no {len} bytes for a window"), e))?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null");
        Ok(Arc::new(Mapping { base, len: len as usize }))
    }

    /// The address of `len` bytes from `offset`.
    ///
    /// # Panics
    /// Part of them is outside.
    pub(crate) fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len as u64), "{len} bytes at {offset}");
        // SAFETY: inside of the mapping.
        unsafe { self.base.add(offset as usize) }
    }

    /// The `len` bytes from `offset`, both multiples of 8; they stay mapped as long as the region lives.
    ///
    /// # Panics
    /// Part of them is outside.
    pub(crate) fn region(self: &Arc<Self>, offset: u64, len: u64) -> Region {
        let base = self.at(offset, len);
        // SAFETY: inside of a shared mapping, which `self` keeps; nothing else makes references to it.
        unsafe { Region::new(base, len as usize, self.clone()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no part of it is in use any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Opens the file of a descriptor once more, with an open file description of its own.
pub(crate) fn reopen(fd: &impl AsRawFd, flags: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Error::of(format_args!("the window's file cannot be opened a second time ({path})"), e))
}
