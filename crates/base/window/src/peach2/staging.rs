//! Staging memory in the own region, from which the board reads bytes that lie elsewhere in the program: an image of
//! each peer's block, so that every slot is always put from one place, and areas for everything else.

use crate::claims::{Claim, Claims, HeapOwner};
use crate::error::Result;
use crate::layout::GRANULE;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Number of areas: as many threads can put at once.
const AREAS: usize = super::descriptor::CHANNELS;
/// Bytes of an area.
pub(super) const AREA: u64 = 4 * GRANULE;

/// The staging memory of a process. It is claimed at its first use.
#[derive(Debug)]
pub(super) struct Staging {
    owner: HeapOwner,
    /// Offsets in a region at which memory of programs lies.
    heaps: Range<u64>,
    areas: [Mutex<Option<Claim>>; AREAS],
    images: Mutex<Images>,
}

#[derive(Debug, Default)]
struct Images {
    claims: Vec<Claim>,
    free: Vec<u64>,
}

/// An area, locked by the thread that puts from it.
pub(super) struct Area<'a>(MutexGuard<'a, Option<Claim>>);

impl Area<'_> {
    /// Offset of the area in the own region.
    pub(super) fn begin(&self) -> u64 {
        self.0.as_ref().map_or(0, |claim| claim.bytes().start)
    }
}

impl Staging {
    /// Staging memory of which nothing is claimed yet.
    ///
    /// # Errors
    /// Those of [`Claims::heap`].
    pub(super) fn new(claims: &Arc<Claims>) -> Result<Staging> {
        let owner = claims.heap()?;
        let granules = owner.granules();
        let heaps = u64::from(granules.start) * GRANULE..u64::from(granules.end) * GRANULE;
        Ok(Staging { owner, heaps, areas: Default::default(), images: Mutex::default() })
    }

    /// Returns true if memory of programs can lie at an offset.
    pub(super) fn is_for_heaps(&self, offset: u64) -> bool {
        self.heaps.contains(&offset)
    }

    /// Claims the first area, unless that is done.
    ///
    /// # Errors
    /// Those of [`HeapOwner::claim`].
    pub(super) fn begin(&self) -> Result<()> {
        let mut first = self.areas[0].lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() {
            *first = Some(self.claim(AREA)?);
        }
        Ok(())
    }

    /// A free area, or else the first once it is free. [`Staging::begin`] must have been called.
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

    /// Offset of an image of `len` bytes, at most a granule and the same in all calls; None: the region has no room.
    pub(super) fn image(&self, len: u64) -> Option<u64> {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.free.is_empty() {
            let claim = self.claim(GRANULE).inspect_err(|e| log::info!("no image of a peer's block: {e}")).ok()?;
            images.free.extend((0..GRANULE / len).map(|i| claim.bytes().start + i * len));
            images.claims.push(claim);
        }
        images.free.pop()
    }

    /// Frees an image.
    pub(super) fn give_back(&self, image: u64) {
        self.images.lock().unwrap_or_else(PoisonError::into_inner).free.push(image);
    }

    fn claim(&self, bytes: u64) -> Result<Claim> {
        self.owner.claim((bytes / GRANULE) as u32, 1)
    }
}
