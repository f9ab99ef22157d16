//! Regions: registered memory that the library has mapped itself.

use std::sync::atomic::AtomicU64;

use bytemuck::Pod;

use crate::address::GlobalAddress;
use crate::error::{Error, Result};
use crate::memory::Pages;
use crate::pointer::GlobalPtr;
use crate::world::{Key, World};

/// Memory of this rank, zero at first, that all ranks can access while it lives. No reference into it is ever made,
/// since peers may store to it at any time: [`World::read`] and [`World::write`] copy.
///
/// Dropping it waits for this rank's operations; operations of other ranks that still name it break the job.
pub struct Region<'w> {
    world: &'w World,
    key: Key,
    len: usize,
    /// Taken by drop only.
    pages: Option<Pages>,
}

impl World {
    /// Maps `len` bytes and registers them, accessed by the device `color`.
    ///
    /// # Errors
    /// As of [`register_foreign`](World::register_foreign), or there is no memory.
    pub fn region(&self, len: usize, color: u32) -> Result<Region<'_>> {
        let pages = Pages::new(len).map_err(Error::into_refused)?;
        // SAFETY: the pages stay until the region is dropped, which takes the registration back first.
        match unsafe { self.register_foreign(pages.start(), len, color) } {
            Ok(key) => Ok(Region { world: self, key, len, pages: Some(pages) }),
            Err(error) => {
                pages.unregistered(&error);
                Err(error)
            }
        }
    }

    /// Maps and registers `count` words, zero at first, for color 0. The memory stays until this rank leaves the job or
    /// gets another number, for a library whose peers may store there until then. Returns its address too.
    ///
    /// # Errors
    /// As of [`region`](World::region).
    pub fn lasting_words(&self, count: usize) -> Result<(GlobalAddress, &[AtomicU64])> {
        let region = self.region(count.max(1) * size_of::<u64>(), 0)?;
        let address = GlobalAddress(region.key.0);
        let start = region.pages.as_ref().map_or(std::ptr::null_mut(), Pages::start);
        region.leave();
        // SAFETY: mapped pages of at least `count` words, which the world keeps: it unmaps them when it is dropped or
        // reset, which is impossible while it is borrowed. Atomics and devices access them.
        Ok((address, unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), count) }))
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

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Leaves it registered until this rank leaves the job or gets another number, for peers that may still access it.
    pub fn leave(mut self) {
        if let Some(pages) = self.pages.take() {
            self.world.staging().keep(pages);
        }
        std::mem::forget(self);
    }

    /// A pointer to the values that begin at `offset`, in bytes.
    pub fn at<T: Pod>(&self, offset: usize) -> GlobalPtr<T> {
        GlobalPtr::new(GlobalAddress(self.key.0).add(offset as u64))
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // In a broken job the registration is taken back all the same.
        let _ = self.world.complete_all();
        if self.world.unregister(self.key).is_err() {
            // The device may still access it.
            std::mem::forget(self.pages.take());
        }
    }
}
