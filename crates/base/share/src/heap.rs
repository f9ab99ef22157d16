//! malloc and its kin for large requests: blocks of the object, found again without a fault while they are still warm.
//!
//! A block that is freed keeps its pages for a second, or until newer ones fill the cache. That is what pays for pages
//! of shared memory being dearer than private ones (docs/shared-memory.md has the measurements).

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use crate::blocks::{Block, Kind, Leaving, State};
use crate::mode;
use crate::object::Object;
use crate::reaper;
use crate::room::GRANULE;
pub use crate::room::own_descriptors;
use crate::settings::{KEEP_MS, THRESHOLD};
use crate::slab;
use crate::state::{self, Heap, LEN, lock};
use crate::sys::{self, round_up};

/// A block that had to move because it grew gets this many times the room that it needs.
const GROWTH: usize = 8;

/// From here on the contents of a block are looked for page by page: untouched memory must stay untouched.
const SPARSE: usize = 1 << 20;

/// Returns true if an address lies in the heap's range. Two loads and a comparison.
#[inline]
pub fn owns(addr: usize) -> bool {
    let (base, len) = state::range();
    addr.wrapping_sub(base) < len
}

/// The parameters of a request.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    pub len: usize,
    pub room: usize,
    pub align: usize,
    pub zero: bool,
    pub kind: Kind,
}

/// Room for `len` bytes in steps of an eighth of the size, so that blocks of about one size fit in each other's place.
fn class(len: usize) -> usize {
    round_up(len, (len.next_power_of_two() / 16).max(GRANULE))
}

impl Heap {
    /// Blocks to release: those kept too long, and the oldest while there are more than `limit` bytes.
    pub(crate) fn expired(&mut self, limit: usize) -> Vec<Leaving> {
        let now = if self.blocks.oldest().is_none() && self.snapshots.is_empty() { 0 } else { sys::now_ms() };
        self.snapshots.look(now);
        self.blocks.expired(now, limit)
    }

    /// In how many ms something that is kept is due; after `expired`.
    pub(crate) fn due_in(&self) -> Option<u64> {
        let since = self.blocks.oldest().into_iter().chain(self.snapshots.looked_at()).min()?;
        // The clock is coarse: a little later is surely late enough.
        Some((since + KEEP_MS).saturating_sub(sys::now_ms()) + 10)
    }

    /// Keeps a block that the program has given back, or lets it go where it cannot be used again as it is.
    pub(crate) fn retire(&mut self, start: usize, out: &mut Vec<Leaving>) {
        let Some(block) = self.blocks.get_mut(start) else { return };
        let range = start..start + block.mapped.max(block.dirty);
        if self.pins.any(&range) {
            block.state = State::Parked;
            return;
        }
        if self.marks.any(&range) || block.dirty > self.settings.cache_limit {
            block.state = State::Busy;
            self.marks.clear(range);
            out.push(Leaving::of(start, block));
            return;
        }
        self.blocks.keep(start, sys::now_ms());
        reaper::want();
        let limit = self.settings.cache_limit;
        out.extend(self.expired(limit));
    }

    /// Takes a live slot back. If the machine refuses what that takes it stays unused for ever.
    fn free_slot(&mut self, range: Range<usize>, out: &mut Vec<Leaving>) {
        if self.pins.any(&range) {
            self.slabs.park(range.start);
            return;
        }
        if self.marks.any(&range) {
            // The next owner gets plain memory, without the changes that the program made.
            self.object.punch(range.start - self.base, range.len());
            if self.object.map_again(range.start, range.start - self.base, range.len()).is_err() {
                return;
            }
            self.marks.clear(range.clone());
        }
        if let Some(block) = self.slabs.free(range.start) {
            self.retire(block, out);
        }
    }

    /// Takes one pin of a range back, and with the last what the program has given back of it.
    pub(crate) fn unpin(&mut self, range: Range<usize>, out: &mut Vec<Leaving>) {
        for part in self.pins.remove(range.clone()) {
            for piece in self.pins.take_parked(&part) {
                self.object.punch(piece.start - self.base, piece.len());
            }
        }
        for start in self.blocks.in_room(&range, |state| state == State::Parked) {
            self.retire(start, out);
        }
        let mut at = range.start;
        while at < range.end {
            let Some((slot, is_parked)) = self.slabs.slot_at(at) else { return };
            at = slot.end;
            if is_parked {
                self.free_slot(slot, out);
            }
        }
    }
}

/// Unmaps blocks and gives their pages back, outside of the lock: nobody else knows them any more.
pub(crate) fn release(blocks: Vec<Leaving>) {
    reaper::call();
    if blocks.is_empty() || mode::stopped() {
        return;
    }
    let Some(object) = lock().map(|heap| heap.handle()) else { return };
    for block in &blocks {
        if block.mapped > 0 {
            // SAFETY: the program has given the block back.
            let _ = unsafe { sys::munmap(block.start, block.mapped) };
        }
        object.punch(block.start, block.dirty);
    }
    if let Some(mut heap) = lock() {
        for block in blocks {
            heap.blocks.remove(block.start);
            heap.give_room(block.start, block.room);
        }
    }
}

/// The part of the heap that is used outside of its lock. It lives as long as the process; a child of fork has one of
/// its own.
#[derive(Clone, Copy)]
pub(crate) struct Handle {
    base: usize,
    object: *const Object,
}

impl Heap {
    pub(crate) fn handle(&self) -> Handle {
        Handle { base: self.base, object: &raw const self.object }
    }
}

impl Handle {
    fn object(&self) -> &Object {
        // SAFETY: the heap is in a static, made once; only the one thread of a child of fork replaces the object.
        unsafe { &*self.object }
    }

    pub(crate) fn map(&self, addr: usize, len: usize) -> std::io::Result<()> {
        self.object().map(addr, addr - self.base, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    pub(crate) fn punch(&self, addr: usize, len: usize) {
        if len > 0 {
            self.object().punch(addr - self.base, len);
        }
    }

    /// Makes mapped, writable memory read as zeros without touching what has no page. The first `full` bytes are known
    /// to have pages; returns how many are now.
    fn zero(&self, addr: usize, len: usize, full: usize) -> usize {
        let full = if len < SPARSE { len } else { full.min(len) };
        // SAFETY: the block is the caller's, and mapped.
        unsafe { ptr::write_bytes(addr as *mut u8, 0, full) };
        let mut end = full;
        for (offset, n) in self.object().resident(addr + full - self.base, len - full) {
            let at = self.base + offset;
            // SAFETY: as above.
            unsafe { ptr::write_bytes(at as *mut u8, 0, n) };
            if at == addr + end {
                end += n;
            }
        }
        end
    }

    /// Copies what has pages from one block to another, whose pages are fresh.
    pub(crate) fn copy(&self, from: usize, to: usize, len: usize) {
        if len < SPARSE {
            // SAFETY: both are mapped blocks of at least `len` bytes.
            unsafe { ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
            return;
        }
        for (offset, n) in self.object().resident(from - self.base, len) {
            let at = self.base + offset;
            // SAFETY: as above.
            unsafe { ptr::copy_nonoverlapping(at as *const u8, (to + (at - from)) as *mut u8, n) };
        }
    }
}

impl Heap {
    /// A block that has nothing yet.
    fn new_block(&mut self, want: &Want) -> Option<(usize, Block)> {
        if self.blocks.len() >= self.settings.most_blocks {
            return None;
        }
        let start = self.base + self.room.take(want.room, want.align, self.settings.huge)?;
        let block = Block { room: want.room, mapped: 0, dirty: 0, full: 0, state: State::Busy };
        self.blocks.insert(start, block);
        Some((start, block))
    }

    /// Gives the room of a block back that is none any more.
    pub(crate) fn give_room(&mut self, start: usize, bytes: usize) {
        self.room.give_back(start - self.base, bytes);
    }

    /// The factor by which a block that had to move because it grew gets more room than it needs.
    pub(crate) fn growth(&self) -> usize {
        if self.room.is_scarce() { 1 } else { GROWTH }
    }
}

/// Takes a block, maps it and hands it to the program. `None`: somebody else has to serve the request.
pub(crate) fn serve(want: Want) -> Option<usize> {
    let (mut found, handle, expired) = {
        let mut heap = lock()?;
        if want.room > heap.len / 2 || want.len > heap.settings.largest {
            return None;
        }
        let limit = heap.settings.cache_limit;
        let mut expired = heap.expired(limit);
        let found = match heap.blocks.reuse(want.room, want.align) {
            // Warm, mapped and nothing to do: one visit to the lock.
            Some((start, block)) if want.kind == Kind::Allocation && !want.zero && block.mapped >= want.len => {
                heap.blocks.insert(start, Block { state: State::Live(want.kind), ..block });
                drop(heap);
                release(expired);
                return Some(start);
            }
            Some(found) => Some(found),
            None => heap.new_block(&want),
        };
        if found.is_none() && heap.room.is_scarce() {
            expired.extend(heap.expired(0));
        }
        (found, heap.handle(), expired)
    };
    let has_room = found.is_some() || expired.is_empty();
    release(expired);
    if !has_room {
        // There was none but what had been kept.
        found = lock()?.new_block(&want);
    }
    let (start, block) = found?;
    let mapped = match fit(&handle, start, &block, &want) {
        Ok(mapped) => mapped,
        Err(code) => {
            // If another mapping lies at the address, the room is never used again.
            if code == libc::EEXIST {
                handle.punch(start, block.dirty);
            } else {
                release(vec![Leaving::of(start, &block)]);
            }
            return None;
        }
    };
    let full = if want.zero { handle.zero(start, block.dirty.min(mapped), block.full) } else { block.full };
    let mut heap = lock()?;
    let dirty = block.dirty.max(mapped);
    let full = full.max(block.full);
    heap.blocks.insert(start, Block { mapped, dirty, full, state: State::Live(want.kind), ..block });
    Some(start)
}

/// Maps exactly (a mapping) or at least (an allocation) `want.len` bytes of a block; the bytes mapped, or an errno.
fn fit(handle: &Handle, start: usize, block: &Block, want: &Want) -> Result<usize, i32> {
    if block.mapped >= want.len {
        if want.kind == Kind::Mapping && block.mapped > want.len {
            // SAFETY: nobody has the block.
            unsafe { sys::munmap(start + want.len, block.mapped - want.len) }
                .map_err(|e| e.raw_os_error().unwrap_or(libc::ENOMEM))?;
            return Ok(want.len);
        }
        return Ok(block.mapped);
    }
    extend(handle, start, block.mapped, want.len)?;
    if block.full > block.mapped {
        // Pages that were kept come back with one call, not with a fault each. An old kernel does not know it.
        let len = round_up(block.full.min(want.len), sys::page()) - block.mapped;
        // SAFETY: changes no contents.
        let _ = unsafe { sys::madvise(start + block.mapped, len, libc::MADV_POPULATE_WRITE) };
    }
    Ok(want.len)
}

/// Maps the bytes `[mapped, len)` of a block; an errno when that is refused.
pub(crate) fn extend(handle: &Handle, start: usize, mapped: usize, len: usize) -> Result<(), i32> {
    if mode::stopped() {
        return Err(libc::ENOMEM);
    }
    // The kernel does not count shared memory as "data". A program with such a limit gets the C library's memory, which
    // counts.
    if sys::limit(libc::RLIMIT_DATA).is_some() {
        return Err(libc::ENOMEM);
    }
    let code = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::ENOMEM);
    match handle.map(start + mapped, len - mapped).map_err(code) {
        Err(libc::ENOMEM) => {
            // The address space or the number of mappings is at its limit; ours to give are the cached blocks.
            let kept = lock().map(|mut heap| heap.expired(0)).unwrap_or_default();
            if kept.is_empty() {
                return Err(libc::ENOMEM);
            }
            release(kept);
            handle.map(start + mapped, len - mapped).map_err(code)
        }
        other => other,
    }
}

/// Memory of `size` bytes at a multiple of `align`, if that is a slot's of a slab.
fn alloc_slot(size: usize, align: usize) -> Option<usize> {
    let slot = slab::slot_for(size, align)?;
    if let Some(got) = lock()?.slabs.take(slot) {
        return Some(got);
    }
    let want = Want { len: slab::LENGTH, room: slab::LENGTH, align: GRANULE, zero: false, kind: Kind::Slab };
    let start = serve(want)?;
    let mut heap = lock()?;
    heap.slabs.add(start, slot);
    heap.slabs.take(slot)
}

/// Memory for `size` bytes at a multiple of `align`; null when the C library has to serve it.
pub fn alloc(size: usize, align: usize, zero: bool) -> *mut u8 {
    alloc_in(size, 0, align, zero)
}

fn alloc_in(size: usize, room: usize, align: usize, zero: bool) -> *mut u8 {
    if !mode::possible() || size > isize::MAX as usize / 4 {
        return ptr::null_mut();
    }
    let before = sys::errno();
    if let Some(slot) = alloc_slot(size, align) {
        sys::set_errno(before);
        return slot as *mut u8;
    }
    let len = round_up(size.max(1), GRANULE);
    let want = Want { len, room: class(len).max(room), align: align.max(1), zero, kind: Kind::Allocation };
    let got = serve(want);
    sys::set_errno(before);
    got.map_or(ptr::null_mut(), |start| start as *mut u8)
}

/// A pointer that was not given out here, or was freed before: the program is broken, as it is to the C library.
fn invalid(what: &[u8]) -> ! {
    crate::settings::say(&[what, b": invalid pointer into the shared heap (vervain)"]);
    std::process::abort()
}

/// free(3) of an address in the heap.
pub fn free(addr: usize) {
    let before = sys::errno();
    let mut out = Vec::new();
    {
        let Some(mut heap) = lock() else { return };
        match heap.blocks.get(addr) {
            Some(Block { state: State::Live(Kind::Allocation), .. }) => heap.retire(addr, &mut out),
            _ => match heap.slabs.live(addr) {
                Some(slot) => heap.free_slot(slot, &mut out),
                None => {
                    drop(heap);
                    invalid(b"free()")
                }
            },
        }
    }
    release(out);
    sys::set_errno(before);
}

/// malloc_usable_size(3) of an address in the heap.
pub fn usable(addr: usize) -> usize {
    let Some(mut heap) = lock() else { return 0 };
    match heap.blocks.get(addr) {
        Some(block) if block.state == State::Live(Kind::Allocation) => block.mapped,
        _ => heap.slabs.live(addr).map_or(0, |slot| slot.len()),
    }
}

/// realloc(3) of an address in the heap; null: the C library has to serve it (the old block is still there).
pub fn resize(addr: usize, size: usize) -> *mut u8 {
    let before = sys::errno();
    let (block, handle, plain, growth) = {
        let Some(mut heap) = lock() else { return ptr::null_mut() };
        match heap.blocks.get(addr) {
            Some(&block) if block.state == State::Live(Kind::Allocation) => {
                let range = addr..addr + block.mapped;
                let plain = !heap.marks.any(&range) && !heap.pins.any(&range);
                (block, heap.handle(), plain, heap.growth())
            }
            _ => {
                let slot = heap.slabs.live(addr);
                drop(heap);
                let Some(slot) = slot else { invalid(b"realloc()") };
                return resize_slot(&slot, size);
            }
        }
    };
    let len = round_up(size.max(1), GRANULE);
    if len <= block.mapped {
        // A large part that is not needed any more goes back at once, as with mremap.
        if plain && block.mapped - len >= THRESHOLD.max(len / 8) {
            shrink(&handle, addr, &block, len);
        }
        sys::set_errno(before);
        return addr as *mut u8;
    }
    if len <= block.room && extend(&handle, addr, block.mapped, len).is_ok() {
        if let Some(mut heap) = lock()
            && let Some(block) = heap.blocks.get_mut(addr)
        {
            block.mapped = len;
            block.dirty = block.dirty.max(len);
        }
        sys::set_errno(before);
        return addr as *mut u8;
    }
    // A block that grows once will grow again: room costs nothing, moving does.
    let room = (growth * class(len)).min(LEN.load(Ordering::Relaxed) / 16);
    let mut to = alloc_in(size, room, 1, false);
    if to.is_null() {
        to = alloc_in(size, 0, 1, false);
    }
    if !to.is_null() {
        if plain {
            handle.copy(addr, to as usize, block.mapped);
        } else {
            // SAFETY: the program's old block is readable, the new one is larger.
            unsafe { ptr::copy_nonoverlapping(addr as *const u8, to, block.mapped) };
        }
        free(addr);
    }
    sys::set_errno(before);
    to
}

fn resize_slot(slot: &Range<usize>, size: usize) -> *mut u8 {
    if size <= slot.len() {
        return slot.start as *mut u8;
    }
    let to = alloc_in(size, 0, sys::page(), false);
    if !to.is_null() {
        // SAFETY: the program's slot is readable, the new block is larger.
        unsafe { ptr::copy_nonoverlapping(slot.start as *const u8, to, slot.len()) };
        free(slot.start);
    }
    to
}

fn shrink(handle: &Handle, addr: usize, block: &Block, len: usize) {
    // The room stays with the block, so nobody else can be there when it grows again.
    // SAFETY: the program gives the tail back.
    if unsafe { sys::munmap(addr + len, block.mapped - len) }.is_err() {
        return;
    }
    handle.punch(addr + len, block.dirty - len);
    if let Some(mut heap) = lock()
        && let Some(block) = heap.blocks.get_mut(addr)
    {
        block.mapped = len;
        block.dirty = len;
        block.full = block.full.min(len);
    }
}
