//! Memory of the own region out of which the board reads what the program has elsewhere: an image of the block of each peer, so that
//! every slot has one place that it is put from, and areas for everything else.

use crate::claims::{Claim, Claims, HeapOwner};
use crate::error::Result;
use crate::layout::GRANULE;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Areas: as many threads put at once.
const AREAS: usize = super::descriptor::CHANNELS;
/// Bytes of an area.
pub(super) const AREA: u64 = 4 * GRANULE;

/// The staging memory of a process. It is claimed when it is first used.
#[derive(Debug)]
pub(super) struct Staging {
    owner: HeapOwner,
    /// Offsets of a region at which the memory of programs lies.
    heaps: Range<u64>,
    areas: [Mutex<Option<Claim>>; AREAS],
    images: Mutex<Images>,
}

#[derive(Debug, Default)]
struct Images {
    claims: Vec<Claim>,
    free: Vec<u64>,
}

/// An area, as long as one puts from it.
pub(super) struct Area<'a>(MutexGuard<'a, Option<Claim>>);

impl Area<'_> {
    /// Where in the own region it begins.
    pub(super) fn begin(&self) -> u64 {
        self.0.as_ref().map_or(0, |claim| claim.bytes().start)
    }
}

impl Staging {
    /// Nothing yet.
    ///
    /// # Errors
    /// As [`Claims::heap`].
    pub(super) fn new(claims: &Arc<Claims>) -> Result<Staging> {
        let owner = claims.heap()?;
        let granules = owner.granules();
        let heaps = u64::from(granules.start) * GRANULE..u64::from(granules.end) * GRANULE;
        Ok(Staging { owner, heaps, areas: Default::default(), images: Mutex::default() })
    }

    /// Whether an offset is one of those that the memory of programs has.
    pub(super) fn is_for_heaps(&self, offset: u64) -> bool {
        self.heaps.contains(&offset)
    }

    /// Claims the first area, if that has not been done.
    ///
    /// # Errors
    /// As [`HeapOwner::claim`].
    pub(super) fn begin(&self) -> Result<()> {
        let mut first = self.areas[0].lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(self.claim(AREA)?);
        }
        Ok(())
    }

    /// An area that nobody uses, or else the first, when that is free. [`Staging::begin`] has been called.
    pub(super) fn area(&self) -> Area<'_> {
        for area in &self.areas {
            let mut area = match area.try_lock() {
                Ok(area) => area,
                Err(TryLockError::Poisoned(area)) => area.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if area.is_none() {
                *area = self.claim(AREA).ok();
            }
            if area.is_some() {
                return Area(area);
            }
        }
        Area(self.areas[0].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Room for an image of `len` bytes, a granule at most and always as many; None where the region has no room for it.
    pub(super) fn image(&self, len: u64) -> Option<u64> {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.free.is_empty() {
            let claim = self.claim(GRANULE).inspect_err(|e| log::info!("no image of a peer's block: {e}")).ok()?;
            images.free.extend((0..GRANULE / len).map(|i| claim.bytes().start + i * len));
            images.claims.push(claim);
        }
        images.free.pop()
    }

    /// An image is not used any more.
    pub(super) fn give_back(&self, image: u64) {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).free.push(image);
    }

    fn claim(&self, bytes: u64) -> Result<Claim> {
        self.owner.claim((bytes / GRANULE) as u32, 1)
    }
}
