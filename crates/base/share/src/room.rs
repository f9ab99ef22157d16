//! The places of blocks in the heap's object: found by a table in a memfd of this process; in a window claimed from the
//! region of this process's node, which the node's other processes share.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering;

use range_alloc::RangeAllocator;
use vervain_config::{WINDOW, WindowSpec};
use vervain_window::{Claim, FileDevice, HeapOwner, Options, PutDevice};

use crate::heap;
use crate::object::{HUGE, Object};
use crate::settings::say;
use crate::state::{DESCRIPTORS, GRANULE, Heap};

const _: () = assert!(GRANULE as u64 == vervain_window::GRANULE);

/// The room of an object that blocks do not have.
#[derive(Debug)]
pub enum Room {
    /// Room in an object of this process: granules from its begin.
    Own(RangeAllocator<usize>),
    /// Room in a window.
    Window(WindowRoom),
}

impl Room {
    /// All of an object of `len` bytes but these ranges of it, in ascending order.
    pub fn beside(len: usize, taken: impl Iterator<Item = Range<usize>>) -> Room {
        let granules = 0..len / GRANULE;
        let mut room = RangeAllocator::new(granules.clone());
        let _ = room.allocate_range(granules.end);
        let mut free = 0;
        for block in taken.chain(std::iter::once(len..len)) {
            if free < block.start {
                room.free_range(free / GRANULE..block.start / GRANULE);
            }
            free = block.end;
        }
        Room::Own(room)
    }
}

/// The part of its node's region that belongs to the heap of this process.
#[derive(Debug)]
pub struct WindowRoom {
    /// By offset in the region.
    claims: BTreeMap<usize, Claim>,
    owner: HeapOwner,
    device: FileDevice,
}

impl WindowRoom {
    /// Bytes that heaps may have of the region.
    pub fn len(&self) -> usize {
        self.owner.granules().len() * GRANULE
    }

    /// The node of this process.
    pub fn node(&self) -> u32 {
        self.device.facts().node
    }

    /// See [`HeapOwner::incarnation`].
    pub fn incarnation(&self) -> u64 {
        self.owner.incarnation()
    }

    /// The descriptor that the locks are taken by.
    pub fn locks(&self) -> c_int {
        self.device.claims().descriptor().unwrap_or(-1)
    }

    fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let count = u32::try_from(bytes / GRANULE).ok()?;
        let claim = self.owner.claim(count, (align / GRANULE) as u32).ok()?;
        let offset = claim.bytes().start as usize;
        self.claims.insert(offset, claim);
        Some(offset)
    }
}

/// The window that `VERVAIN_WINDOW` names for heaps.
pub fn wanted() -> Option<WindowSpec> {
    // The library reports a wrong value.
    WINDOW.look(|value| WindowSpec::of(value?)).filter(|spec| spec.heap)
}

/// The region of this node in a window, as the heap's object.
pub fn open(spec: &WindowSpec) -> vervain_window::Result<(Object, WindowRoom)> {
    let device = FileDevice::open(&spec.path, &Options::of(spec))?;
    let owner = device.claims().heap()?;
    let (file, first) = device.file()?;
    let object = Object::of_window(file.into_raw_fd(), first, device.own().clone());
    Ok((object, WindowRoom { claims: BTreeMap::new(), owner, device }))
}

/// As [`open`], for the window that the variable names; None if there is none, or if it cannot be opened, which is
/// reported.
pub(crate) fn of_window() -> Option<(Object, WindowRoom)> {
    let spec = wanted()?;
    let told = |e: vervain_window::Error| {
        say(&[b"vervain: ", WINDOW.name().as_bytes(), b": ", e.to_string().as_bytes(), b"; the heap is not in it"]);
    };
    open(&spec).map_err(told).ok()
}

impl Heap {
    /// Room for a new block, in bytes from the base.
    pub fn take_room(&mut self, bytes: usize, align: usize) -> Option<usize> {
        // The base is a multiple of 1 GiB.
        if align > 1 << 30 {
            return None;
        }
        let offset = match &mut self.room {
            Room::Own(room) => {
                let huge = if self.settings.huge && bytes >= HUGE { HUGE } else { GRANULE };
                room.allocate_range_aligned(bytes / GRANULE, align.max(huge) / GRANULE).ok()?.start * GRANULE
            }
            Room::Window(room) => room.take(bytes, align.max(GRANULE))?,
        };
        Some(self.base + offset)
    }

    /// Gives room back.
    pub fn give_room(&mut self, start: usize, bytes: usize) {
        let offset = start - self.base;
        match &mut self.room {
            Room::Own(room) => room.free_range(offset / GRANULE..(offset + bytes) / GRANULE),
            Room::Window(room) => drop(room.claims.remove(&offset)),
        }
    }

    /// Returns true if room is memory, which this process shares with others.
    pub(crate) fn room_is_scarce(&self) -> bool {
        matches!(self.room, Room::Window(_))
    }

    /// The factor by which a block that had to move because it grew gets more room than it needs.
    pub(crate) fn growth(&self) -> usize {
        if self.room_is_scarce() { 1 } else { heap::GROWTH }
    }

    /// Says which descriptors are the heap's own.
    pub(crate) fn note_descriptors(&self) {
        let locks = if let Room::Window(room) = &self.room { room.locks() } else { -1 };
        for (place, fd) in DESCRIPTORS.iter().zip([self.object.fd, locks]) {
            place.store(fd, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_blocks_do_not_have() {
        const G: usize = GRANULE;
        let Room::Own(mut room) = Room::beside(10 * G, [0..G, 3 * G..5 * G, 5 * G..6 * G].into_iter()) else {
            panic!()
        };
        assert_eq!(room.allocate_range(5), Err(range_alloc::RangeAllocationError { fragmented_free_length: 6 }));
        assert_eq!(room.allocate_range(4), Ok(6..10));
        assert_eq!(room.allocate_range(2), Ok(1..3));
        assert!(room.allocate_range(1).is_err());
        let one = |taken| std::iter::once(taken).collect();
        for (taken, len) in [(vec![], 4), (one(0..4 * G), 0), (one(G..4 * G), 1)] {
            let Room::Own(mut room) = Room::beside(4 * G, taken.into_iter()) else { panic!() };
            assert_eq!(
                (room.allocate_range(len + 1).is_err(), len == 0 || room.allocate_range(len).is_ok()),
                (true, true)
            );
        }
    }
}
