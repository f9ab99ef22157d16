//! The device's side (`api::ShareApi`): finding the place of memory, and keeping memory there.

use std::ops::Range;

use crate::api::{KIND_MEMFD, KIND_WINDOW, Place, ShareApi, VERSION};
use crate::heap::{owns, release};
use crate::mode::{exists, possible};
use crate::program;
use crate::room::Room;
use crate::state::{Heap, Locked, lock};
use crate::sys::{self, page, round_up};

static API: ShareApi = ShareApi {
    version: VERSION,
    size: size_of::<ShareApi>() as u32,
    find,
    pin,
    unpin,
    set_fork_gate,
    part,
    set_reaper,
    reap,
};

/// The answer of the preload library's `vervain_share_v1`. A process that calls it has a device.
pub fn api() -> *const ShareApi {
    crate::wake();
    if !possible() {
        return std::ptr::null();
    }
    crate::maps::serve_small();
    &raw const API
}

fn place_of(heap: &Heap, addr: usize) -> Place {
    let (kind, incarnation) = match &heap.room {
        Room::Own(_) => (KIND_MEMFD, 0),
        Room::Window(room) => (KIND_WINDOW, room.incarnation()),
    };
    Place {
        kind,
        fd: heap.object.fd,
        object: heap.object.id,
        offset: (addr - heap.base) as u64,
        object_len: heap.object.len as u64,
        incarnation,
    }
}

/// The heap, if all of the range is shared memory of it.
fn in_heap(addr: usize, len: usize) -> Option<(Locked, Range<usize>)> {
    let range = addr..addr.checked_add(len)?;
    if !owns(addr) || !exists() {
        return None;
    }
    let heap = lock()?;
    (heap.shared(&range) && heap.object.alive()).then_some((heap, range))
}

unsafe extern "C" fn find(addr: usize, len: usize, out: *mut Place) -> i32 {
    let _masked = sys::mask_signals();
    let place = match in_heap(addr, len) {
        Some((heap, _)) => Some(place_of(&heap, addr)),
        None => program::find(addr, len, false),
    };
    answer(place, out)
}

/// The whole pages of a range: what is pinned are pages.
fn pages(range: Range<usize>) -> Range<usize> {
    range.start & !(page() - 1)..round_up(range.end, page())
}

unsafe extern "C" fn pin(addr: usize, len: usize, out: *mut Place) -> i32 {
    let _masked = sys::mask_signals();
    let place = match in_heap(addr, len) {
        Some((mut heap, range)) => {
            heap.pins.add(pages(range));
            Some(place_of(&heap, addr))
        }
        None => program::find(addr, len, true),
    };
    answer(place, out)
}

fn answer(place: Option<Place>, out: *mut Place) -> i32 {
    let Some(place) = place else { return -1 };
    // SAFETY: the device passes a place to write to.
    unsafe { out.write(place) };
    0
}

unsafe extern "C" fn unpin(object: u64, offset: u64, len: usize) {
    let _masked = sys::mask_signals();
    let mut out = Vec::new();
    {
        let heap = if exists() { lock() } else { None };
        match heap {
            Some(mut heap) if heap.object.id == object => {
                let start = heap.base + offset as usize;
                heap.unpin(pages(start..start + len), &mut out);
            }
            _ => program::unpin(object),
        }
    }
    release(out);
}

unsafe extern "C" fn part(addr: usize, len: usize) {
    crate::maps::part_from_peers(addr..addr.saturating_add(len));
}

unsafe extern "C" fn set_fork_gate(before: Option<unsafe extern "C" fn()>, after: Option<unsafe extern "C" fn()>) {
    crate::fork::set_gate(before, after);
}

unsafe extern "C" fn set_reaper(called: Option<unsafe extern "C" fn()>) {
    crate::reaper::set(called);
}

unsafe extern "C" fn reap() -> u64 {
    crate::reaper::reap()
}
