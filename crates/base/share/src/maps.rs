//! The mmap family, for what concerns the heap: anonymous private mappings are served from it, and whatever the program
//! does to a range of it afterwards means what it would mean on private memory.
//!
//! Each function answers `None` when the call does not concern the heap; the caller then makes the real one. Otherwise
//! the answer is what the system call would return, an errno as an error.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::blocks::{Kind, Leaving, State};
use crate::heap::{Want, release, serve};
use crate::marks::{Mark, PLAIN, There};
use crate::mode::{possible, stopped};
use crate::object::HUGE;
use crate::remap::{Remap, real_remap};
use crate::room::GRANULE;
use crate::settings::{THRESHOLD, say};
use crate::state::{Heap, lock, range};
use crate::sys::{self, page, round_up};

/// A system call's answer.
pub type Answer = Result<usize, c_int>;

pub(crate) const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;

pub(crate) fn code(error: std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

/// Returns true if `[addr, addr+len)` has bytes in the heap's range. A few instructions.
#[inline]
pub fn touches(addr: usize, len: usize) -> bool {
    let (base, length) = range();
    length != 0 && addr < base.wrapping_add(length) && addr.wrapping_add(len) > base
}

/// Mappings of this many bytes and more are served.
static SERVED_FROM: AtomicUsize = AtomicUsize::new(THRESHOLD);
/// Blocks beyond which small mappings are the kernel's again: each takes one of the 65,530 that a process may have
/// (vm.max_map_count), while those of the kernel's that lie side by side are one.
const MANY: usize = 8192;

/// From now on small mappings are served too. A process that has a device registers memory, and what asks the kernel
/// for whole pages then is most likely a communication library that makes buffers (UCX); others pay nothing for it.
pub(crate) fn serve_small() {
    SERVED_FROM.store(page().min(THRESHOLD), Ordering::Relaxed);
}

/// Returns true if an mmap call asks for what the heap can serve: private, anonymous, writable memory, at no particular
/// place, without a word about huge pages, stacks or memory that is only reserved.
#[inline]
pub fn wants(addr: usize, len: usize, prot: c_int, flags: c_int) -> bool {
    let kind = flags & !libc::MAP_POPULATE;
    len >= SERVED_FROM.load(Ordering::Relaxed)
        && addr == 0
        && prot == RW
        && kind == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        && possible()
}

/// mmap(2) of what [`wants`] says yes to.
pub fn map(len: usize, flags: c_int) -> Option<Answer> {
    let _masked = sys::mask_signals();
    if len > isize::MAX as usize / 4 {
        return None;
    }
    let before = sys::errno();
    if len < THRESHOLD && lock()?.blocks.len() >= MANY {
        return None;
    }
    let len = round_up(len, page());
    let room = round_up(len, GRANULE);
    let got = serve(Want { len, room, align: page(), zero: true, kind: Kind::Mapping });
    sys::set_errno(before);
    let start = got?;
    if flags & libc::MAP_POPULATE != 0 {
        // SAFETY: changes no contents. As with mmap, it is no error when not all of it can be had.
        let _ = unsafe { sys::madvise(start, len, libc::MADV_POPULATE_WRITE) };
        sys::set_errno(before);
    }
    Some(Ok(start))
}

/// mmap(2) with MAP_FIXED over a part of the heap.
///
/// # Safety
/// As the system call: the caller owns the range.
pub unsafe fn map_over(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: u64) -> Option<Answer> {
    let _masked = sys::mask_signals();
    let mut heap = lock();
    if let Some(heap) = &mut heap {
        heap.make_way(&(addr..addr.checked_add(round_up(len, page()))?));
    }
    // SAFETY: the caller's promise.
    let answer = unsafe { sys::mmap(addr, len, prot, flags, fd, offset) }.map_err(code);
    if let Ok(start) = answer
        && let Some(mut heap) = heap
    {
        heap.note_foreign(start..start + round_up(len, page()), prot);
    }
    Some(answer)
}

impl Heap {
    /// The part of a range that is the heap's.
    fn within(&self, range: &Range<usize>) -> Range<usize> {
        let span = self.span();
        range.start.clamp(span.start, span.end)..range.end.clamp(span.start, span.end)
    }

    /// Something else has been mapped over the range, or nothing is there any more: the object's pages go, but for
    /// those that a device works on.
    fn replace(&mut self, range: Range<usize>, change: impl Fn(&mut Mark)) {
        let range = self.within(&range);
        for (start, _, part) in self.blocks.live_parts(&range) {
            let dirty = part.start..part.end.min(start + self.blocks[start].dirty);
            if !dirty.is_empty() {
                self.drop_pages(dirty);
            }
            self.marks.update(part, &change);
        }
    }

    /// Gives cached blocks up for a mapping that the program puts over them. Their room is the program's now; it stays
    /// unused for ever.
    pub(crate) fn make_way(&mut self, range: &Range<usize>) {
        let mut out = Vec::new();
        self.disturbed(range, &mut out);
        for block in out {
            // SAFETY: a cached block, which nobody has.
            let _ = unsafe { sys::munmap(block.start, block.mapped) };
            self.object.punch(block.start - self.base, block.dirty);
        }
    }

    /// The program's own mapping lies there now.
    pub(crate) fn note_foreign(&mut self, range: Range<usize>, prot: c_int) {
        self.replace(range, |m| *m = Mark { there: There::Foreign, prot, odd: true, ..PLAIN });
    }

    /// Pages of live blocks go.
    fn incomplete(&mut self, range: &Range<usize>) {
        for start in self.blocks.overlapping(range, |state| matches!(state, State::Live(_))) {
            if let Some(block) = self.blocks.get_mut(start) {
                block.full = block.full.min(range.start.saturating_sub(start));
            }
        }
    }

    /// Gives the object's pages behind a range back, now or at unpin.
    fn drop_pages(&mut self, range: Range<usize>) {
        self.incomplete(&range);
        for (part, pinned) in self.pins.split(range) {
            if pinned {
                self.pins.park(part);
            } else {
                self.object.punch(part.start - self.base, part.len());
            }
        }
    }
}

/// mmap(2) with an address in the heap's range that is a hint, or not to be replaced.
///
/// # Safety
/// As the system call.
pub unsafe fn map_at(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: u64) -> Option<Answer> {
    let _masked = sys::mask_signals();
    let mut out = Vec::new();
    let answer = {
        // Under the lock, so that nobody gives up the block around it before the mapping is noted.
        let mut heap = lock()?;
        // SAFETY: the caller's promise.
        let answer = unsafe { sys::mmap(addr, len, prot, flags, fd, offset) }.map_err(code);
        if let Ok(start) = answer {
            let range = start..start + round_up(len, page());
            heap.disturbed(&range, &mut out);
            heap.note_foreign(range, prot);
        }
        answer
    };
    release(out);
    Some(answer)
}

/// munmap(2) of a range that has bytes in the heap.
///
/// # Safety
/// As the system call: nobody uses the range any more.
pub unsafe fn unmap(addr: usize, len: usize) -> Option<Answer> {
    let _masked = sys::mask_signals();
    let before = sys::errno();
    let mut out = Vec::new();
    let answer = {
        // Under the lock, so that no block of the range is taken into use meanwhile.
        let heap = lock();
        let range = addr..addr.checked_add(round_up(len, page()))?;
        // SAFETY: the caller's promise. This also unmaps what lies outside of the heap, and judges the arguments.
        let answer = unsafe { sys::munmap(addr, len) }.map_err(code);
        if let Some(mut heap) = heap
            && answer.is_ok()
        {
            heap.unmapped(range, &mut out);
        }
        answer.map(|()| 0)
    };
    release(out);
    sys::set_errno(before);
    Some(answer)
}

impl Heap {
    /// Cached blocks that something happens to from outside: never to be used again as they are.
    fn disturbed(&mut self, range: &Range<usize>, out: &mut Vec<Leaving>) {
        for start in self.blocks.overlapping(range, |state| matches!(state, State::Cached(_))) {
            out.extend(self.blocks.evict(start));
        }
    }

    /// A range has been unmapped by the program. Blocks that have nothing left are retired: their pages stay for the
    /// next request, which is much faster than giving them back and asking for others.
    pub(crate) fn unmapped(&mut self, range: Range<usize>, out: &mut Vec<Leaving>) {
        let range = self.within(&range);
        self.disturbed(&range, out);
        for (start, kind, part) in self.blocks.live_parts(&range) {
            let Some(block) = self.blocks.get_mut(start) else { continue };
            let all = start..start + block.mapped;
            if kind == Kind::Mapping && part == all && !self.marks.any(&all) {
                block.mapped = 0;
                self.retire(start, out);
                continue;
            }
            if kind == Kind::Mapping && part.end == all.end {
                // The block becomes shorter, and can grow into its room again.
                block.mapped = part.start - start;
                let dirty = part.start..part.end.min(start + block.dirty);
                if !dirty.is_empty() {
                    self.drop_pages(dirty);
                }
                self.marks.clear(part.clone());
            } else {
                self.replace(part.clone(), |m| *m = Mark { there: There::Hole, ..PLAIN });
            }
            let all = start..start + self.blocks[start].mapped;
            let gone = |(_, m): &(Range<usize>, Mark)| m.there == There::Hole;
            if kind == Kind::Mapping && self.marks.pieces(all).iter().all(gone) {
                // Nothing of it is mapped any more, and later mappings at these addresses are not the heap's.
                if let Some(block) = self.blocks.get_mut(start) {
                    block.mapped = 0;
                }
                self.retire(start, out);
            }
        }
    }
}

/// mprotect(2) or pkey_mprotect(2) has been done on a range.
pub fn protected(addr: usize, len: usize, prot: c_int) {
    let _masked = sys::mask_signals();
    if let Some(mut heap) = lock() {
        let range = heap.within(&(addr..addr + round_up(len, page())));
        for (_, _, part) in heap.blocks.live_parts(&range) {
            heap.marks.update(part, |m| m.prot = prot);
        }
    }
}

/// mprotect(2) has failed with ENOMEM: it has done what lies before the first hole.
pub fn protected_in_part(addr: usize, len: usize, prot: c_int) {
    let _masked = sys::mask_signals();
    let Some(mut heap) = lock() else { return };
    let mut at = addr;
    let range = heap.within(&(addr..addr.saturating_add(round_up(len, page()))));
    for (_, _, part) in heap.blocks.live_parts(&range) {
        for (piece, mark) in heap.marks.pieces(part) {
            if piece.start != at || mark.there == There::Hole {
                return;
            }
            at = piece.end;
            heap.marks.update(piece, |m| m.prot = prot);
        }
    }
}

/// mlock(2) or an madvise(2) that leaves an attribute behind: memory that has it is not kept for the next request.
pub fn attributed(addr: usize, len: usize) {
    let _masked = sys::mask_signals();
    if let Some(mut heap) = lock() {
        let end = addr.saturating_add(len);
        let range = heap.within(&(addr & !(page() - 1)..round_up(end, page())));
        for (_, _, part) in heap.blocks.live_parts(&range) {
            heap.marks.update(part, |m| m.odd = true);
        }
    }
}

/// Linux 5.18.
pub(crate) const MADV_DONTNEED_LOCKED: c_int = 24;
/// Linux 6.13; of shared memory, and of files, 6.15.
pub(crate) const MADV_GUARD_INSTALL: c_int = 102;
pub(crate) const MADV_GUARD_REMOVE: c_int = 103;

/// madvise(2) as such.
pub(crate) fn kernel_advice(range: &Range<usize>, advice: c_int) -> Result<(), c_int> {
    // SAFETY: the caller of `advise` owns the range and wants this.
    unsafe { sys::madvise(range.start, range.len(), advice) }.map_err(code)
}

/// madvise(2) of a range that has bytes in the heap.
///
/// # Safety
/// As the system call.
pub unsafe fn advise(addr: usize, len: usize, advice: c_int) -> Option<Answer> {
    let _masked = sys::mask_signals();
    if len > isize::MAX as usize {
        return None;
    }
    let range = addr..addr.checked_add(round_up(len, page()))?;
    // Advice whose meaning for shared memory differs from that for private memory.
    let own: fn(&mut Heap, Range<usize>, &Mark, c_int) -> Result<(), c_int> = match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED | libc::MADV_FREE => Heap::throw_away,
        libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => Heap::inherit,
        MADV_GUARD_INSTALL | MADV_GUARD_REMOVE => Heap::guard,
        // For shared memory only.
        libc::MADV_REMOVE => |_, _, _, _| Err(libc::EINVAL),
        _ => {
            let answer = kernel_advice(&range, advice);
            match advice {
                libc::MADV_HUGEPAGE if answer.is_ok() => give_huge_pages(range),
                // Advice about huge pages does no harm to the next owner, and numpy gives it for each array.
                libc::MADV_DONTDUMP if answer.is_ok() => attributed(addr, len),
                _ => {}
            }
            return Some(answer.map(|()| 0));
        }
    };
    // The kernel judges what is no range.
    if range.is_empty() || !addr.is_multiple_of(page()) {
        return Some(kernel_advice(&(addr..addr + len), advice).map(|()| 0));
    }
    Some(lock()?.advise(range, advice, own).map(|()| 0))
}

impl Heap {
    /// A range cut where the state changes, in order; no state where it is not the heap's to tell.
    pub(crate) fn parts(&self, range: &Range<usize>) -> Vec<(Range<usize>, Option<Mark>)> {
        let mut all = Vec::new();
        let mut at = range.start;
        for (_, _, part) in self.blocks.live_parts(range) {
            if at < part.start {
                all.push((at..part.start, None));
            }
            at = part.end;
            all.extend(self.marks.pieces(part).into_iter().map(|(piece, mark)| (piece, Some(mark))));
        }
        if at < range.end {
            all.push((at..range.end, None));
        }
        all
    }

    /// Takes mapping after mapping as the kernel does: the first error ends it, except for a hole, which is reported at
    /// the end.
    fn advise(
        &mut self,
        range: Range<usize>,
        advice: c_int,
        own: fn(&mut Heap, Range<usize>, &Mark, c_int) -> Result<(), c_int>,
    ) -> Result<(), c_int> {
        let mut result = Ok(());
        for (piece, mark) in self.parts(&range) {
            let answer = match mark {
                Some(Mark { there: There::Hole, .. }) => Err(libc::ENOMEM),
                Some(mark) if mark.there != There::Foreign => own(self, piece, &mark, advice),
                _ => kernel_advice(&piece, advice),
            };
            match answer {
                Err(libc::ENOMEM) => result = answer,
                other => other?,
            }
        }
        result
    }

    /// MADV_DONTNEED and MADV_FREE.
    fn throw_away(&mut self, range: Range<usize>, _mark: &Mark, advice: c_int) -> Result<(), c_int> {
        let call = if advice == libc::MADV_FREE { libc::MADV_DONTNEED } else { advice };
        match kernel_advice(&range, call) {
            Ok(()) => self.zap(&range),
            // Some of it is locked. The pages before the locked one are dropped.
            Err(libc::EINVAL) => {
                for at in range.step_by(page()) {
                    let one = at..at + page();
                    kernel_advice(&one, call)?;
                    self.zap(&one);
                }
            }
            other => return other,
        }
        Ok(())
    }

    /// The advices about fork are kept here for the object's pages: to the kernel all of them are kept from children.
    fn inherit(&mut self, range: Range<usize>, mark: &Mark, advice: c_int) -> Result<(), c_int> {
        if mark.there == There::Copy {
            // For anonymous memory only, which a copy is to the program.
            if advice == libc::MADV_WIPEONFORK {
                self.make_anonymous(range.clone(), mark)?;
            }
            kernel_advice(&range, advice)?;
        }
        self.marks.update(range, |m| match advice {
            libc::MADV_DONTFORK => m.dont_fork = true,
            libc::MADV_DOFORK => m.dont_fork = false,
            libc::MADV_WIPEONFORK => m.wipe = true,
            _ => m.wipe = false,
        });
        Ok(())
    }

    /// MADV_GUARD_INSTALL and MADV_GUARD_REMOVE. The contents go where guards come.
    fn guard(&mut self, range: Range<usize>, _mark: &Mark, advice: c_int) -> Result<(), c_int> {
        kernel_advice(&range, advice)?;
        if advice == MADV_GUARD_INSTALL {
            self.zap(&range);
            // Pages that a device works on have been replaced by private memory, which has no guards yet.
            kernel_advice(&range, advice)?;
        }
        let installed = advice == MADV_GUARD_INSTALL;
        self.marks.update(range, |m| m.guard = installed && m.there == There::Object);
        Ok(())
    }
}

/// Replaces memory for which huge pages are requested before it has contents by private memory, which gets them. For
/// machines on which shared memory has no huge pages, if the device adopts registered memory.
fn give_huge_pages(range: Range<usize>) {
    let Some(mut heap) = lock() else { return };
    if heap.settings.huge || !heap.settings.adopts {
        return;
    }
    let range = heap.within(&(range.start.next_multiple_of(HUGE)..range.end & !(HUGE - 1)));
    for (_, _, part) in heap.blocks.live_parts(&range) {
        let is_plain = !heap.marks.any(&part) && !heap.pins.any(&part);
        if is_plain && heap.object.resident(part.start - heap.base, part.len()).next().is_none() {
            heap.part_from_device(part.clone(), &PLAIN);
            // SAFETY: changes no contents.
            let _ = unsafe { sys::madvise(part.start, part.len(), libc::MADV_HUGEPAGE) };
        }
    }
}

impl Heap {
    /// Makes the live part of a range read as zeros.
    fn zap(&mut self, range: &Range<usize>) {
        self.incomplete(range);
        for (start, _, part) in self.blocks.live_parts(range) {
            let dirty = start + self.blocks[start].dirty;
            for (piece, mark) in self.marks.pieces(part) {
                match mark.there {
                    There::Object => {}
                    // The kernel would show the object's page again.
                    There::Copy => {
                        self.part_from_device(piece, &mark);
                        continue;
                    }
                    There::Foreign | There::Hole => continue,
                }
                for (piece, pinned) in self.pins.split(piece) {
                    if pinned {
                        self.part_from_device(piece, &mark);
                    } else if stopped() && mark.prot & libc::PROT_WRITE != 0 && !mark.guard {
                        // SAFETY: the program's range, whose contents it has given up.
                        unsafe { std::ptr::write_bytes(piece.start as *mut u8, 0, piece.len()) };
                    } else if piece.start < dirty {
                        self.object.punch(piece.start - self.base, piece.len());
                    }
                }
            }
        }
    }
}

impl Heap {
    /// The program has thrown away pages that a device works on: those stay where they are, and the program gets
    /// private ones, as it would with an HCA.
    fn part_from_device(&mut self, range: Range<usize>, mark: &Mark) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the range is the program's, which has just given its contents up.
        if unsafe { sys::mmap(range.start, range.len(), mark.prot, flags, -1, 0) }.is_err() {
            return;
        }
        self.parted(range.clone(), There::Foreign, mark);
        if mark.guard {
            let _ = kernel_advice(&range, MADV_GUARD_INSTALL);
        }
    }

    /// Private memory has been put in the place of pages that a device works on: the object keeps those until unpin.
    fn parted(&mut self, range: Range<usize>, there: There, mark: &Mark) {
        for (advice, wanted) in [(libc::MADV_DONTFORK, mark.dont_fork), (libc::MADV_WIPEONFORK, mark.wipe)] {
            if wanted {
                // SAFETY: private memory, whose contents these advices do not change.
                let _ = unsafe { sys::madvise(range.start, range.len(), advice) };
            }
        }
        for (part, pinned) in self.pins.split(range.clone()) {
            if pinned {
                self.pins.park(part);
            }
        }
        self.marks.update(range, |m| {
            m.there = there;
            m.odd = true;
            m.guard = false;
        });
    }

    /// Replaces the object's pages by a private copy, so that later stores of a stopped peer to the object reach no
    /// memory of the program's. If the object has private views, the program's threads may use the memory meanwhile and
    /// lose no store: until its page is copied each of them reads the object's, and stores only after the copy.
    fn copy_from_device(&mut self, range: Range<usize>, mark: &Mark) {
        if mark.guard {
            // A guard lies there, so that the contents cannot be read.
            return self.part_from_device(range, mark);
        }
        let failed = || say(&[b"vervain: memory that a stopped peer may still write to cannot be replaced"]);
        if !self.object.has_private_views {
            match self.make_anonymous(range.clone(), mark) {
                Ok(()) => self.parted(range, There::Foreign, mark),
                Err(_) => failed(),
            }
            return;
        }
        let (flags, offset) = (libc::MAP_PRIVATE | libc::MAP_FIXED, range.start - self.base);
        // SAFETY: shows what the range shows now.
        if unsafe { self.object.show(range.start, offset, range.len(), RW, flags) }.is_err() {
            return failed();
        }
        for at in range.clone().step_by(page()) {
            // A store that changes nothing has the kernel copy the page. An exchange: compilers make a load of
            // `fetch_or(0)`. SAFETY: a byte of the mapping just made.
            let byte = unsafe { AtomicU8::from_ptr(at as *mut u8) };
            let there = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(there, there, Ordering::Relaxed, Ordering::Relaxed);
        }
        if mark.prot != RW {
            // SAFETY: as the program had it.
            let _ = unsafe { sys::mprotect(range.start, range.len(), mark.prot) };
        }
        self.parted(range, There::Copy, mark);
    }
}

impl Heap {
    /// Puts anonymous memory of the same contents in the place of a private copy, or of the object's pages. A store of
    /// another thread meanwhile may be lost.
    fn make_anonymous(&mut self, range: Range<usize>, mark: &Mark) -> Result<(), c_int> {
        if mark.guard {
            self.part_from_device(range, mark);
            return Ok(());
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { sys::mmap(0, range.len(), RW, flags, -1, 0) }.map_err(code)?;
        if mark.prot & libc::PROT_READ == 0 {
            // SAFETY: the program is in this call about it.
            let _ = unsafe { sys::mprotect(range.start, range.len(), RW) };
        }
        // SAFETY: both are mapped for these bytes, and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(range.start as *const u8, at as *mut u8, range.len()) };
        if mark.prot != RW {
            // SAFETY: known here only.
            let _ = unsafe { sys::mprotect(at, range.len(), mark.prot) };
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the place is the program's, which is to have the same there.
        unsafe { real_remap(Remap { addr: at, len: range.len(), new_len: range.len(), flags, to: range.start }) }?;
        self.marks.update(range, |m| m.there = There::Foreign);
        Ok(())
    }
}

/// Parts the program's memory in a range from the pages that a device's peers can reach, where it shows such pages. Its
/// contents stay as they are at this moment.
pub(crate) fn part_from_peers(range: Range<usize>) {
    let _masked = sys::mask_signals();
    let Some(mut heap) = lock() else { return };
    let range = heap.within(&(range.start & !(page() - 1)..round_up(range.end, page())));
    for (_, _, part) in heap.blocks.live_parts(&range) {
        for (piece, mark) in heap.marks.pieces(part) {
            for (piece, pinned) in heap.pins.split(piece) {
                if pinned && mark.there == There::Object {
                    heap.copy_from_device(piece, &mark);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap;
    use vervain_skip::skip;

    #[test]
    fn memory_of_an_object_without_private_views_is_parted_from_peers_too() {
        crate::wake();
        let addr = heap::alloc(THRESHOLD, page(), false) as usize;
        if addr == 0 {
            return skip(crate::status::sentence());
        }
        let range = addr..addr + THRESHOLD;
        // SAFETY: the test's own memory.
        unsafe { std::ptr::write_bytes(addr as *mut u8, 7, THRESHOLD) };
        let (fd, offset) = {
            let mut heap = lock().expect("a heap");
            heap.object.has_private_views = false;
            heap.pins.add(range.clone());
            (heap.object.fd, addr - heap.base)
        };
        part_from_peers(range.clone());
        // SAFETY: a peer's store, to a page that the pin keeps.
        let stored = unsafe { libc::pwrite(fd, [9_u8; 8].as_ptr().cast(), 8, offset as i64) };
        // SAFETY: the test's own memory.
        let seen = unsafe { std::slice::from_raw_parts(addr as *const u8, THRESHOLD) };
        assert!(stored == 8 && seen.iter().all(|&byte| byte == 7));
        let mut heap = lock().expect("a heap");
        assert!(heap.marks.pieces(range.clone()).iter().all(|(_, mark)| mark.there == There::Foreign));
        heap.object.has_private_views = true;
        heap.pins.remove(range.clone());
        heap.pins.take_parked(&range);
        drop(heap);
        heap::free(addr);
    }
}
