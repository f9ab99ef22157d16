//! The places of blocks in the heap's object: found by a table in a memfd of this process; in a window claimed from the
//! region of this process's node, which the node's other processes share.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use range_alloc::RangeAllocator;
use vervain_config::{WINDOW, WindowSpec};
use vervain_window::{Claim, FileDevice, HeapOwner, Options, PutDevice};

use crate::object::{HUGE, Object};
use crate::settings::say;

/// Blocks begin at multiples of this in the object.
pub const GRANULE: usize = 64 << 10;
const _: () = assert!(GRANULE as u64 == vervain_window::GRANULE);

/// The object's descriptor, and that of the locks of a window; -1: there is none.
static DESCRIPTORS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// The heap's descriptors, which are none of the program's; negative: there is none.
#[inline]
pub fn own_descriptors() -> [i32; 2] {
    [0, 1].map(|i: usize| DESCRIPTORS[i].load(Ordering::Relaxed))
}

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

    /// Takes room for a block: its offset in the object. `huge`: the object has huge pages.
    pub fn take(&mut self, bytes: usize, align: usize, huge: bool) -> Option<usize> {
        // The base is a multiple of 1 GiB.
        if align > 1 << 30 {
            return None;
        }
        match self {
            Room::Own(room) => {
                let huge = if huge && bytes >= HUGE { HUGE } else { GRANULE };
                Some(room.allocate_range_aligned(bytes / GRANULE, align.max(huge) / GRANULE).ok()?.start * GRANULE)
            }
            Room::Window(room) => room.take(bytes, align.max(GRANULE)),
        }
    }

    /// Gives room back.
    pub fn give_back(&mut self, offset: usize, bytes: usize) {
        match self {
            Room::Own(room) => room.free_range(offset / GRANULE..(offset + bytes) / GRANULE),
            Room::Window(room) => drop(room.claims.remove(&offset)),
        }
    }

    /// Returns true if it is memory, which this process shares with others.
    pub fn is_scarce(&self) -> bool {
        matches!(self, Room::Window(_))
    }

    /// Says that the descriptors of `object` and of this room are the heap's own.
    pub fn note_descriptors(&self, object: &Object) {
        let locks = if let Room::Window(room) = self { room.locks() } else { -1 };
        for (place, fd) in DESCRIPTORS.iter().zip([object.fd, locks]) {
            place.store(fd, Ordering::Relaxed);
        }
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
    fn locks(&self) -> c_int {
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
