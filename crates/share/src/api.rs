//! The seam between the preload, which serves memory from shared objects, and the device, which lets peers map them. The
//! preload exports one C symbol, [`SYMBOL`], a function that returns a pointer to a [`ShareApi`], or null when sharing is
//! off; the device looks it up with `dlsym(RTLD_DEFAULT)` when it starts.

use std::ffi::CStr;

/// The symbol's name: `unsafe extern "C" fn() -> *const ShareApi`.
pub const SYMBOL: &CStr = c"vervain_share_v1";
/// [`ShareApi::version`] of this file.
pub const VERSION: u32 = 1;
/// [`Place::kind`]: a memfd sealed against shrinking.
pub const MEMFD: u32 = 1;
/// [`Place::kind`]: a SysV segment.
pub const SYSV: u32 = 2;

/// Where a range lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// 1 = memfd sealed against shrinking, 2 = SysV segment.
    pub kind: u32,
    /// Kind 1: valid while the object lives; kind 2: shmid.
    pub fd: i32,
    /// Identity: never reused in this process image.
    pub object: u64,
    /// Of the address in the object.
    pub offset: u64,
    /// Bytes of the object.
    pub object_len: u64,
}

/// What the preload offers.
#[repr(C)]
pub struct ShareApi {
    /// [`VERSION`].
    pub version: u32,
    /// Bytes of this struct.
    pub size: u32,
    /// Where [addr, addr+len) lies, if all of it lies in one shared object contiguously; 0 or -1. Async-signal-unsafe, may
    /// be called from any thread.
    pub find: unsafe extern "C" fn(addr: usize, len: usize, out: *mut Place) -> i32,
    /// As find, and the pages stay at that place of the object until unpin, whatever the program does with the range
    /// (munmap, free, MADV_DONTNEED, mremap).
    pub pin: unsafe extern "C" fn(addr: usize, len: usize, out: *mut Place) -> i32,
    /// Ends a pin.
    pub unpin: unsafe extern "C" fn(object: u64, offset: u64, len: usize),
    /// Called around fork in the parent: `before` must return only when no peer writes into shared memory any more,
    /// `after` lets them in again.
    pub set_fork_gate:
        unsafe extern "C" fn(before: Option<unsafe extern "C" fn()>, after: Option<unsafe extern "C" fn()>),
}
