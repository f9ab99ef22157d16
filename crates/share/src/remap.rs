//! mremap(2) of the heap's memory, or onto it. The kernel would keep a moved mapping shared; private memory is moved by copying
//! what has pages.

use std::ffi::c_int;
use std::ops::Range;

use crate::heap::{Handle, Want, extend, owns, release, serve};
use crate::maps::{Answer, MADV_DONTNEED_LOCKED, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE, RW};
use crate::maps::{advise, attributed, code, kernel_advice, map_over, protected, touches, unmap};
use crate::marks::{Mark, There};
use crate::state::{Block, GRANULE, Heap, Kind, State, lock};
use crate::sys::{self, page, round_up};

/// What the arguments of mremap(2) are.
#[derive(Debug, Clone, Copy)]
pub struct Remap {
    /// Old address.
    pub addr: usize,
    /// Old length.
    pub len: usize,
    /// New length.
    pub new_len: usize,
    /// MREMAP_ bits.
    pub flags: c_int,
    /// New address, with MREMAP_FIXED.
    pub to: usize,
}

/// mremap(2) of, or onto, a part of the heap.
///
/// # Safety
/// As the system call: the caller owns both ranges.
pub unsafe fn remap(call: Remap) -> Option<Answer> {
    let _masked = sys::mask_signals();
    let fixed = call.flags & libc::MREMAP_FIXED != 0;
    let mut heap = lock();
    let is_foreign = |heap: &Heap| call.addr.is_multiple_of(page()) && heap.is_foreign_at(call.addr);
    if !owns(call.addr) || heap.as_deref().is_some_and(is_foreign) {
        let prot = heap.as_ref().map_or(RW, |heap| heap.marks.pieces(call.addr..call.addr + 1)[0].1.prot);
        // SAFETY: the caller's promise.
        let answer = unsafe { real_remap(call) };
        let mut out = Vec::new();
        if let Ok(start) = answer
            && let Some(heap) = &mut heap
        {
            let stays = call.len == 0 || call.flags & libc::MREMAP_DONTUNMAP != 0;
            if !stays && start != call.addr {
                heap.unmapped(call.addr..call.addr + round_up(call.len, page()), &mut out);
            }
            heap.note_foreign(start..start + round_up(call.new_len, page()), prot);
        }
        drop(heap);
        release(out);
        return Some(answer);
    }
    drop(heap);
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let keep = call.flags & libc::MREMAP_DONTUNMAP != 0;
    let aligned = call.addr.is_multiple_of(page()) && (!fixed || call.to.is_multiple_of(page()));
    let may_move = call.flags & libc::MREMAP_MAYMOVE != 0;
    if call.flags & !known != 0
        || !aligned
        || call.new_len == 0
        || call.len == 0
        || call.len > isize::MAX as usize / 4
        || ((fixed || keep) && !may_move)
        || (keep && round_up(call.len, page()) != round_up(call.new_len, page()))
    {
        return Some(Err(libc::EINVAL));
    }
    if call.new_len > isize::MAX as usize / 4 {
        return Some(Err(libc::ENOMEM));
    }
    let (len, new_len) = (round_up(call.len, page()), round_up(call.new_len, page()));
    let call = Remap { len, new_len, ..call };
    if fixed && call.to < call.addr + len && call.addr < call.to.saturating_add(new_len) {
        return Some(Err(libc::EINVAL));
    }
    if !fixed && !keep && new_len <= len {
        if new_len < len {
            // SAFETY: the caller gives the tail up.
            if let Some(Err(code)) = unsafe { unmap(call.addr + new_len, len - new_len) } {
                return Some(Err(code));
            }
        }
        return Some(Ok(call.addr));
    }
    // SAFETY: the caller's promise.
    Some(unsafe { grow_or_move(call, fixed, keep, may_move) })
}

/// # Safety
/// As `remap`; the arguments have been judged, lengths are whole pages.
unsafe fn grow_or_move(call: Remap, fixed: bool, keep: bool, may_move: bool) -> Answer {
    let (start, block, mark, pieces, handle, free) = {
        let heap = lock().ok_or(libc::ENOMEM)?;
        let Some((start, &block)) = heap.block_at(call.addr) else { return Err(libc::EFAULT) };
        let range = call.addr..call.addr + call.len;
        if !matches!(block.state, State::Live(_)) || range.end > start + block.mapped {
            return Err(libc::EFAULT);
        }
        let pieces = heap.marks.pieces(range.clone());
        // As the kernel, which takes one mapping at a time; a guard does not part it.
        let unguarded = |mark: &Mark| Mark { guard: false, ..*mark };
        let mark = unguarded(&pieces[0].1);
        if mark.there == There::Hole || pieces.iter().any(|(_, other)| unguarded(other) != mark) {
            return Err(libc::EFAULT);
        }
        // Pages that a device still works on may lie where the block would grow.
        let room = start + block.mapped..start + block.room;
        let free = range.end == room.start && !room.is_empty() && !heap.parked.overlaps(&room);
        (start, block, mark, pieces, heap.handle(), free)
    };
    let locked = mark.odd && is_locked(call.addr);
    if locked != (mark.odd && is_locked(call.addr + call.len - page())) {
        return Err(libc::EFAULT);
    }
    if !fixed && !keep && free && mark.there == There::Object && call.addr + call.new_len <= start + block.room {
        let mapped = call.addr + call.new_len - start;
        if extend(&handle, start, block.mapped, mapped).is_ok() {
            let behind = call.addr + call.len;
            if locked && sys::mlock(behind, call.new_len - call.len).is_err() {
                // SAFETY: nobody knows of it yet.
                let _ = unsafe { sys::munmap(behind, call.new_len - call.len) };
                return Err(libc::EAGAIN);
            }
            grown(start, &block, mapped, &mark, &handle);
            return Ok(call.addr);
        }
    }
    if !may_move {
        return Err(libc::ENOMEM);
    }
    // SAFETY: the caller's promise.
    let to = unsafe { destination(&call, fixed) }?;
    if locked {
        sys::munlock(call.addr, call.len);
        if sys::mlock(to, call.new_len).is_err() {
            let _ = sys::mlock(call.addr, call.len);
            // SAFETY: made just now.
            unsafe { unmap(to, call.new_len) };
            return Err(libc::EAGAIN);
        }
        attributed(to, call.new_len);
    }
    move_contents(&call, to, &mark, &pieces, &handle);
    if mark.prot != RW {
        // SAFETY: fresh memory of the caller.
        let _ = unsafe { sys::mprotect(to, call.new_len, mark.prot) };
        if owns(to) {
            protected(to, call.new_len, mark.prot);
        }
    }
    if (mark.dont_fork || mark.wipe) && owns(to) {
        for (advice, wanted) in [(libc::MADV_DONTFORK, mark.dont_fork), (libc::MADV_WIPEONFORK, mark.wipe)] {
            if wanted {
                // SAFETY: changes no contents.
                let _ = unsafe { advise(to, call.new_len, advice) };
            }
        }
    }
    if keep {
        // What is not the object's is emptied by the kernel.
        // SAFETY: the contents have moved.
        unsafe { advise(call.addr, call.len, MADV_DONTNEED_LOCKED) };
        if pieces.iter().any(|(_, mark)| mark.guard) {
            // SAFETY: as above.
            unsafe { advise(call.addr, call.len, MADV_GUARD_REMOVE) };
        }
    } else {
        // SAFETY: the contents have moved.
        unsafe { unmap(call.addr, call.len) };
    }
    Ok(to)
}

/// A block has been extended in place.
fn grown(start: usize, old: &Block, mapped: usize, mark: &Mark, handle: &Handle) {
    // The room behind a mapping may have pages of an earlier owner.
    if old.dirty > old.mapped {
        handle.punch(start + old.mapped, old.dirty.min(mapped) - old.mapped);
    }
    if mark.prot != RW {
        // SAFETY: fresh memory of the caller.
        let _ = unsafe { sys::mprotect(start + old.mapped, mapped - old.mapped, mark.prot) };
    }
    if let Some(mut heap) = lock() {
        if let Some(block) = heap.blocks.get_mut(&start) {
            block.mapped = mapped;
            block.dirty = block.dirty.max(mapped);
            block.full = block.full.min(old.mapped);
        }
        let mark = *mark;
        heap.marks.update(start + old.mapped..start + mapped, |m| *m = mark);
    }
}

/// Writable memory for the moved range: at the place the caller wants, from the heap, or from the kernel.
///
/// # Safety
/// With `fixed` the caller owns the destination.
unsafe fn destination(call: &Remap, fixed: bool) -> Answer {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if fixed {
        if touches(call.to, call.new_len) {
            // SAFETY: the caller's promise.
            return unsafe { map_over(call.to, call.new_len, RW, flags | libc::MAP_FIXED, -1, 0) }
                .unwrap_or(Err(libc::ENOMEM));
        }
        // SAFETY: as above.
        return unsafe { sys::mmap(call.to, call.new_len, RW, flags | libc::MAP_FIXED, -1, 0) }.map_err(code);
    }
    // What grows once will grow again.
    let least = round_up(call.new_len, GRANULE);
    let growth = lock().map_or(1, |heap| heap.growth());
    for room in [growth * least, least] {
        let want = Want { len: call.new_len, room, align: page(), zero: true, kind: Kind::Mapping };
        if let Some(start) = serve(want) {
            return Ok(start);
        }
    }
    // SAFETY: the kernel chooses the place.
    unsafe { sys::mmap(0, call.new_len, RW, flags, -1, 0) }.map_err(code)
}

/// Whether the page at `addr` is locked (mlock(2)): the kernel refuses to call such a one cold.
fn is_locked(addr: usize) -> bool {
    kernel_advice(&(addr..addr + page()), libc::MADV_COLD) == Err(libc::EINVAL)
}

/// Copies what the old range has to the new one, guards as guards.
fn move_contents(call: &Remap, to: usize, mark: &Mark, pieces: &[(Range<usize>, Mark)], handle: &Handle) {
    if mark.prot & libc::PROT_READ == 0 {
        // SAFETY: the caller's range, which is about to be given up or emptied.
        let _ = unsafe { sys::mprotect(call.addr, call.len, RW) };
    }
    let end = call.addr + call.new_len;
    for (piece, Mark { guard, .. }) in pieces.iter().filter(|(piece, _)| piece.start < end) {
        let (n, to) = (piece.end.min(end) - piece.start, to + (piece.start - call.addr));
        if *guard {
            // SAFETY: fresh memory of the caller.
            let answer = touches(to, n).then(|| unsafe { advise(to, n, MADV_GUARD_INSTALL) }).flatten();
            let _ = answer.map_or_else(|| kernel_advice(&(to..to + n), MADV_GUARD_INSTALL), |answer| answer.map(drop));
        } else if mark.there == There::Object {
            handle.copy(piece.start, to, n);
        } else {
            // SAFETY: both ranges are mapped for `n` bytes, and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(piece.start as *const u8, to as *mut u8, n) };
        }
    }
    if mark.prot & libc::PROT_READ == 0 {
        // SAFETY: as above.
        let _ = unsafe { sys::mprotect(call.addr, call.len, mark.prot) };
    }
}

/// The system call.
///
/// # Safety
/// As the system call.
pub(crate) unsafe fn real_remap(call: Remap) -> Answer {
    // SAFETY: the caller's promise.
    let got = unsafe { libc::syscall(libc::SYS_mremap, call.addr, call.len, call.new_len, call.flags, call.to) };
    if got == -1 { Err(sys::errno()) } else { Ok(got as usize) }
}
