//! Device memory: memory of the arena, which every peer has mapped (`man ibv_alloc_dm`).

use crate::arena::Block;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::process::Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Device memory: memory of the arena, which every peer has mapped.
pub struct Dm {
    process: &'static Process,
    block: OwnerLock<Option<Block>>,
    host: u64,
    pub(crate) length: u64,
    pub(crate) users: AtomicU32,
}

impl Dm {
    /// Device memory of `length` bytes (`man ibv_alloc_dm`).
    pub fn alloc(context: &Arc<Context>, length: u64, log_align: u32) -> Result<Arc<Dm>> {
        let process = context.process()?;
        if length == 0 || length > crate::device::LIMITS.max_dm_size {
            return Err(Error::invalid(format!(
                "device memory of {length} bytes; at most {} are there",
                crate::device::LIMITS.max_dm_size
            )));
        }
        if log_align > 12 {
            return Err(Error::invalid("device memory is aligned to at most 4096 bytes"));
        }
        // Blocks of a page or more start on a page.
        let room = if log_align > 6 { length.max(4096) } else { length };
        let block = process.arena.alloc(room)?;
        let host = process.arena.view().at(block.offset(), length).map_or(0, |p| p as u64);
        Ok(Arc::new(Dm { process, block: OwnerLock::new(Some(block)), host, length, users: AtomicU32::new(0) }))
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

    /// Address in this process, for `ibv_alloc_buf` and the like.
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
        // SAFETY: the range was checked to lie in this block, which lives as long as self.
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
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::busy("memory regions use the device memory"));
        }
        if self.process.is_current()
            && let Some(block) = self.block.lock().take()
        {
            self.process.release(block);
        }
        Ok(())
    }
}
