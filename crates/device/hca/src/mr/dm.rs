//! Device memory (`man ibv_alloc_dm`): memory of the arena, which every peer of this host has mapped; or of a window,
//! where the program's heap lies there too, so that peers on other nodes put there.

use crate::arena::Block;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::process::Process;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vervain_config::Config;
use vervain_share::api::KIND_WINDOW;

/// Device memory.
pub struct Dm {
    process: &'static Process,
    memory: OwnerLock<Option<Memory>>,
    host: u64,
    pub(crate) length: u64,
    pub(crate) log_align: u32,
    pub(crate) users: AtomicU32,
}

/// The place of device memory.
enum Memory {
    Arena(Block),
    /// A mapping of this number of bytes, which the heap has put into the window.
    Window(NonNull<libc::c_void>, usize),
}

// SAFETY: a mapping is nobody's thread's, and is only unmapped.
unsafe impl Send for Memory {}

impl Memory {
    /// In the arena, and its address.
    fn in_arena(process: &Process, length: u64, log_align: u32) -> Result<(Memory, u64)> {
        // Blocks of a page or more start on a page.
        let block = process.arena.alloc(if log_align > 6 { length.max(4096) } else { length })?;
        let host = process.arena.view().at(block.offset(), length).map_or(0, |p| p as u64);
        Ok((Memory::Arena(block), host))
    }

    /// In the window, if this process has a heap there that has room.
    fn in_window(process: &Process, length: u64) -> Option<(Memory, u64)> {
        let source = process.objects.source().filter(|_| is_wanted())?;
        let len = usize::try_from(length).ok()?.next_multiple_of(4096);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // UCX gets its buffers in the same way: the preload serves such a mapping from the heap.
        // SAFETY: a new anonymous mapping overlaps nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        let memory = NonNull::new(at).filter(|_| at != libc::MAP_FAILED).map(|at| Memory::Window(at, len))?;
        let host = at as u64;
        if source.find_range(host, len as u64).is_some_and(|place| place.kind == KIND_WINDOW) {
            return Some((memory, host));
        }
        memory.unmap();
        None
    }

    /// Unmaps it, if it is a mapping.
    fn unmap(&self) {
        if let Memory::Window(at, len) = self {
            // SAFETY: mapped by `in_window`, and nobody uses it any more.
            unsafe { libc::munmap(at.as_ptr(), *len) };
        }
    }
}

/// Returns true if heaps lie in a window that peers put to; else the arena is better, which peers of this host have
/// mapped.
fn is_wanted() -> bool {
    Config::of_process().is_ok_and(|config| config.window_in_use().is_some_and(|window| window.heap))
}

impl Dm {
    /// Device memory of `length` bytes (`man ibv_alloc_dm`).
    pub fn alloc(context: &Arc<Context>, length: u64, log_align: u32) -> Result<Arc<Dm>> {
        let process = context.process()?;
        if length == 0 || length > crate::device::LIMITS.memory.max_dm_size {
            return Err(Error::invalid(format!(
                "device memory of {length} bytes; at most {} are there",
                crate::device::LIMITS.memory.max_dm_size
            )));
        }
        if log_align > 12 {
            return Err(Error::invalid("device memory is aligned to at most 4096 bytes"));
        }
        let found = Memory::in_window(process, length).map_or_else(|| Memory::in_arena(process, length, log_align), Ok);
        let (memory, host) = found?;
        let (memory, users) = (OwnerLock::new(Some(memory)), AtomicU32::new(0));
        Ok(Arc::new(Dm { process, memory, host, length, log_align, users }))
    }

    /// EIO in a forked child that did not make it.
    pub(crate) fn check(&self) -> Result<()> {
        self.process.check()
    }

    pub(crate) fn host(&self) -> u64 {
        self.host
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Address in this process.
    pub fn addr(&self) -> *mut u8 {
        self.host as *mut u8
    }

    fn range(&self, offset: u64, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.length) {
            return Err(Error::new(libc::EFAULT, "the range lies outside the device memory"));
        }
        Ok((self.host + offset) as *mut u8)
    }

    /// Copies `data` to `offset` (`man ibv_memcpy_to_dm`).
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let to = self.range(offset, data.len())?;
        // SAFETY: the range was checked to lie in this memory, which lives as long as self.
        unsafe { std::ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Copies from `offset` (`man ibv_memcpy_from_dm`).
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let from = self.range(offset, data.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Frees it; EBUSY while regions use it.
    pub fn free(&self) -> Result<()> {
        let users = self.users.load(Ordering::Acquire);
        if users != 0 {
            return Err(Error::busy(format!("memory regions use the device memory: {users}")));
        }
        if self.process.is_current()
            && let Some(memory) = self.memory.lock().take()
        {
            memory.unmap();
            if let Memory::Arena(block) = memory {
                self.process.release(block);
            }
        }
        Ok(())
    }
}
