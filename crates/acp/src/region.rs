//! Regions: registered memory that the library has mapped itself.

use bytemuck::Pod;

use crate::address::GlobalAddress;
use crate::error::Result;
use crate::memory::Pages;
use crate::pointer::GlobalPtr;
use crate::world::{Key, World};

/// Memory of this rank, zero at first, that all ranks can access while it lives. No reference into it is ever made, since peers may
/// store to it at any time: [`World::read`] and [`World::write`] copy.
///
/// When it is dropped, this rank's operations are waited for; those of other ranks that name it break the job.
pub struct Region<'w> {
    world: &'w World,
    key: Key,
    len: usize,
    /// Taken by drop only.
    pages: Option<Pages>,
}

impl World {
    /// Maps `len` bytes and registers them, accessed by the device `colour`.
    ///
    /// # Errors
    /// As [`register_foreign`](World::register_foreign); no memory.
    pub fn region(&self, len: usize, colour: u32) -> Result<Region<'_>> {
        let pages = Pages::new(len)?;
        // SAFETY: the pages stay until the region is dropped, which takes the registration back first.
        let key = unsafe { self.register_foreign(pages.start(), len, colour)? };
        Ok(Region { world: self, key, len, pages: Some(pages) })
    }
}

impl Region<'_> {
    /// Its key: the address of its first byte.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes, which none is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A pointer to the values that begin `offset` bytes into it.
    pub fn at<T: Pod>(&self, offset: usize) -> GlobalPtr<T> {
        GlobalPtr::new(GlobalAddress(self.key.0).add(offset as u64))
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // In a job that is broken the registration goes all the same.
        let _ = self.world.complete_all();
        if self.world.unregister(self.key).is_err() {
            // The device may still reach it.
            std::mem::forget(self.pages.take());
        }
    }
}
