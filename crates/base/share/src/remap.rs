//! mremap(2) of the heap's memory, or onto it. The kernel would keep a moved mapping shared; private memory is moved by
//! copying what has pages.

use std::ffi::c_int;
use std::ops::Range;

use crate::blocks::{Block, Kind, State};
use crate::heap::{Handle, Want, extend, owns, release, serve};
use crate::maps::{Answer, MADV_DONTNEED_LOCKED, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE, RW};
use crate::maps::{advise, attributed, code, kernel_advice, map_over, protected, touches, unmap};
use crate::marks::{Mark, There};
use crate::room::GRANULE;
use crate::state::lock;
use crate::sys::{self, page, round_up};

/// The arguments of mremap(2).
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

/// Longer ranges than any that a process has: the sum of two of them does not overflow.
const MOST: usize = isize::MAX as usize / 4;

/// mremap(2) of, or onto, a part of the heap.
///
/// # Safety
/// As the system call: the caller owns both ranges.
pub unsafe fn remap(call: Remap) -> Option<Answer> {
    let _masked = sys::mask_signals();
    if !call.addr.is_multiple_of(page()) || call.len > MOST || call.addr > MOST {
        // No range: the kernel says what is wrong with it.
        // SAFETY: the caller's promise.
        return Some(unsafe { real_remap(call) });
    }
    let fixed = call.flags & libc::MREMAP_FIXED != 0;
    let keep = call.flags & libc::MREMAP_DONTUNMAP != 0;
    let may_move = call.flags & libc::MREMAP_MAYMOVE != 0;
    let (len, new_len) = (round_up(call.len, page()), round_up(call.new_len.min(MOST + 1), page()));
    if !fixed && !keep && new_len > 0 && new_len <= len {
        // SAFETY: the caller's promise.
        return Some(unsafe { shrink(call) });
    }
    if is_foreign(&call) {
        if fixed && new_len > 0 && new_len == len {
            // SAFETY: the caller's promise.
            return Some(unsafe { move_foreign(call, true) }.map(|()| call.to));
        }
        // SAFETY: the caller's promise.
        return Some(unsafe { remap_foreign(call) });
    }
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    if call.flags & !known != 0
        || (fixed && (!call.to.is_multiple_of(page()) || call.to > MOST))
        || new_len == 0
        || len == 0
        || ((fixed || keep) && !may_move)
        || (keep && len != new_len)
    {
        return Some(Err(libc::EINVAL));
    }
    if new_len > MOST {
        return Some(Err(libc::ENOMEM));
    }
    let call = Remap { len, new_len, ..call };
    if fixed && call.to < call.addr + len && call.addr < call.to + new_len {
        return Some(Err(libc::EINVAL));
    }
    if fixed && new_len <= len {
        // SAFETY: the caller's promise.
        return Some(unsafe { move_pieces(call, keep) });
    }
    // SAFETY: the caller's promise.
    Some(unsafe { grow_or_move(call, fixed, keep, may_move) })
}

/// Returns true if nothing in the old range is the heap's.
fn is_foreign(call: &Remap) -> bool {
    let Some(heap) = lock() else { return !owns(call.addr) };
    let parts = heap.parts(&(call.addr..call.addr + round_up(call.len.max(1), page())));
    parts.iter().all(|(_, mark)| mark.is_none_or(|mark| mark.there == There::Foreign))
}

/// Handles a block that stays in its place, with fewer pages or as many. The kernel asks only for a mapping at the
/// address, not behind it.
///
/// # Safety
/// As `remap`.
unsafe fn shrink(call: Remap) -> Answer {
    let mut out = Vec::new();
    let answer = {
        // Under the lock, so that no block of the range is taken into use meanwhile.
        let heap = lock();
        // SAFETY: the caller's promise.
        let answer = unsafe { real_remap(call) };
        let [tail, end] = [call.new_len, call.len].map(|len| call.addr + round_up(len, page()));
        if let Some(mut heap) = heap
            && answer.is_ok()
            && tail < end
        {
            heap.unmapped(tail..end, &mut out);
        }
        answer
    };
    release(out);
    answer
}

/// Has the kernel move memory that is not the heap's, and notes what that makes of the heap's.
///
/// # Safety
/// As `remap`.
unsafe fn remap_foreign(call: Remap) -> Answer {
    let mut out = Vec::new();
    let answer = {
        let mut heap = lock();
        if let Some(heap) = &mut heap
            && call.flags & libc::MREMAP_FIXED != 0
            && call.to.max(call.new_len) <= MOST
        {
            heap.make_way(&(call.to..call.to + round_up(call.new_len, page())));
        }
        let prot = heap.as_ref().map_or(RW, |heap| heap.marks.pieces(call.addr..call.addr + 1)[0].1.prot);
        // SAFETY: the caller's promise.
        let answer = unsafe { real_remap(call) };
        if let Ok(start) = answer
            && let Some(heap) = &mut heap
        {
            let stays = call.len == 0 || call.flags & libc::MREMAP_DONTUNMAP != 0;
            if !stays && start != call.addr {
                heap.unmapped(call.addr..call.addr + round_up(call.len, page()), &mut out);
            }
            heap.note_foreign(start..start + round_up(call.new_len, page()), prot);
        }
        answer
    };
    release(out);
    answer
}

/// Moves a range to a fixed place, one piece after another, as the kernel moves mapping after mapping (Linux 6.17;
/// older ones move one at most). A hole behind the first page is passed over, and so is its place.
///
/// # Safety
/// As `remap`; the arguments have been judged, lengths are whole pages.
unsafe fn move_pieces(call: Remap, keep: bool) -> Answer {
    let parts = lock().ok_or(libc::ENOMEM)?.parts(&(call.addr..call.addr + call.new_len));
    let hole = |mark: &Option<Mark>| mark.is_some_and(|mark| mark.there == There::Hole);
    if parts.first().is_none_or(|(_, mark)| hole(mark)) {
        return Err(libc::EFAULT);
    }
    let one = |part: &Range<usize>| {
        let to = call.to + (part.start - call.addr);
        Remap { addr: part.start, len: part.len(), new_len: part.len(), to, ..call }
    };
    for (piece, mark) in parts {
        match mark {
            Some(Mark { there: There::Hole, .. }) => {}
            Some(mark) if mark.there != There::Foreign => {
                for part in cut_at_locks(piece, &mark) {
                    // SAFETY: the caller's promise.
                    unsafe { grow_or_move(one(&part), true, keep, true) }?;
                }
            }
            // SAFETY: the caller's promise.
            _ => unsafe { move_foreign(one(&piece), piece.start == call.addr) }?,
        }
    }
    if call.new_len < call.len {
        // SAFETY: the caller gives the tail up.
        let rest = unsafe { unmap(call.addr + call.new_len, call.len - call.new_len) };
        rest.unwrap_or(Err(libc::ENOMEM))?;
    }
    Ok(call.to)
}

/// Returns true if a part of the old range is not mapped.
fn has_hole(call: &Remap) -> bool {
    // SAFETY: plain numbers; MS_ASYNC only looks at the mappings.
    let answer = unsafe { libc::syscall(libc::SYS_msync, call.addr, round_up(call.len, page()), libc::MS_ASYNC) };
    answer == -1 && sys::errno() == libc::ENOMEM
}

/// Moves a part that is not the heap's, of mappings and holes; `first`: a hole at its start is an error.
///
/// # Safety
/// As `remap`; both lengths have the same pages.
unsafe fn move_foreign(call: Remap, first: bool) -> Result<(), c_int> {
    // At the place of a hole the heap's memory must stay.
    if !touches(call.to, call.new_len) || !has_hole(&call) {
        // SAFETY: the caller's promise.
        match unsafe { remap_foreign(call) } {
            Err(libc::EFAULT) => {}
            answer => return answer.map(drop),
        }
    }
    // Before Linux 6.17 the kernel takes one mapping at most, and always none that begins with a hole. A page is of one
    // mapping.
    for at in (call.addr..call.addr + call.len).step_by(page()) {
        let one = Remap { addr: at, len: page(), new_len: page(), to: call.to + (at - call.addr), ..call };
        // SAFETY: the caller's promise.
        match unsafe { remap_foreign(one) } {
            Err(libc::EFAULT) if !first || at > call.addr => {}
            answer => drop(answer?),
        }
    }
    Ok(())
}

/// A piece of one state cut where locked pages (mlock(2)) begin and end: a lock goes along for a whole mapping.
fn cut_at_locks(piece: Range<usize>, mark: &Mark) -> Vec<Range<usize>> {
    if !mark.odd {
        return vec![piece];
    }
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for at in piece.step_by(page()) {
        let locked = is_locked(at);
        match runs.last_mut() {
            Some((run, same)) if *same == locked => run.end = at + page(),
            _ => runs.push((at..at + page(), locked)),
        }
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

/// # Safety
/// As `remap`; the arguments have been judged, lengths are whole pages.
unsafe fn grow_or_move(call: Remap, fixed: bool, keep: bool, may_move: bool) -> Answer {
    let (start, block, mark, pieces, handle, free) = {
        let heap = lock().ok_or(libc::ENOMEM)?;
        let Some((start, &block)) = heap.blocks.at(call.addr) else { return Err(libc::EFAULT) };
        let range = call.addr..call.addr + call.len;
        if !matches!(block.state, State::Live(_)) || range.end > start + block.mapped {
            return Err(libc::EFAULT);
        }
        let pieces = heap.marks.pieces(range.clone());
        // The kernel takes one mapping at a time, too; a guard does not part one.
        let unguarded = |mark: &Mark| Mark { guard: false, ..*mark };
        let mark = unguarded(&pieces[0].1);
        if mark.there == There::Hole || pieces.iter().any(|(_, other)| unguarded(other) != mark) {
            return Err(libc::EFAULT);
        }
        // Pages that a device still works on may lie where the block would grow.
        let room = start + block.mapped..start + block.room;
        let free = range.end == room.start && !room.is_empty() && !heap.pins.any_parked(&room);
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
    for (advice, wanted) in [(libc::MADV_DONTFORK, mark.dont_fork), (libc::MADV_WIPEONFORK, mark.wipe)] {
        // Before the contents come: they stay where they are if they cannot be kept from children at the new place.
        if wanted && let Err(code) = advise_anywhere(to..to + call.new_len, advice) {
            // SAFETY: made just now.
            unsafe { unmap(to, call.new_len) };
            return Err(code);
        }
    }
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
    if keep {
        // The kernel empties the pages that are not the object's.
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
        if let Some(block) = heap.blocks.get_mut(start) {
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
    // A block that grows once will grow again.
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

/// Returns true if the page at `addr` is locked (mlock(2)): the kernel refuses to call such a one cold.
fn is_locked(addr: usize) -> bool {
    kernel_advice(&(addr..addr + page()), libc::MADV_COLD) == Err(libc::EINVAL)
}

/// madvise(2) of fresh memory, the heap's or not.
fn advise_anywhere(range: Range<usize>, advice: c_int) -> Result<(), c_int> {
    if touches(range.start, range.len())
        // SAFETY: memory that has no contents yet.
        && let Some(answer) = unsafe { advise(range.start, range.len(), advice) }
    {
        return answer.map(drop);
    }
    kernel_advice(&range, advice)
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
            let _ = advise_anywhere(to..to + n, MADV_GUARD_INSTALL);
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
