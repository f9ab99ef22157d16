//! The heap without the hooks: allocations, mappings, pins and the answers to the device. The hooks are tested by whole
//! programs (tests/tests/share.rs).

use std::sync::Mutex;

use vervain_share::api::{KIND_MEMFD, Place, ShareApi};
use vervain_share::heap;
use vervain_share::remap::Remap;
use vervain_share::settings::THRESHOLD;
use vervain_share::{device, maps, program, remap, sys};
use vervain_skip::skip;

const MIB: usize = 1 << 20;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// The tests look at which block is used again, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

/// False, with a reason on the output, where there is no heap on this machine.
fn heap_is_there() -> bool {
    vervain_share::wake();
    let probe = heap::alloc(THRESHOLD, 1, false);
    if probe.is_null() {
        skip(vervain_share::status::sentence());
        return false;
    }
    heap::free(probe as usize);
    true
}

macro_rules! turn {
    () => {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !heap_is_there() {
            return;
        }
    };
}

fn api() -> &'static ShareApi {
    // SAFETY: the table is a static.
    unsafe { device::api().as_ref() }.expect("sharing is on")
}

fn find(addr: usize, len: usize) -> Option<Place> {
    let mut place = Place::default();
    // SAFETY: `place` is writable.
    (unsafe { (api().find)(addr, len, &raw mut place) } == 0).then_some(place)
}

fn pin(addr: usize, len: usize) -> Option<Place> {
    let mut place = Place::default();
    // SAFETY: `place` is writable.
    (unsafe { (api().pin)(addr, len, &raw mut place) } == 0).then_some(place)
}

fn unpin(place: Place, len: usize) {
    // SAFETY: ends a pin of the test.
    unsafe { (api().unpin)(place.object, place.offset, len) };
}

fn fill(addr: usize, len: usize, byte: u8) {
    // SAFETY: the tests' own memory.
    unsafe { std::ptr::write_bytes(addr as *mut u8, byte, len) };
}

fn bytes(addr: usize, len: usize) -> &'static [u8] {
    // SAFETY: the tests' own memory, looked at before it is given back.
    unsafe { std::slice::from_raw_parts(addr as *const u8, len) }
}

fn all(addr: usize, len: usize, byte: u8) -> bool {
    bytes(addr, len).iter().all(|&b| b == byte)
}

/// The contents of the object at a place, as a peer sees them.
fn peer(place: Place, len: usize) -> Vec<u8> {
    let mut seen = vec![0; len];
    // SAFETY: `seen` has `len` bytes.
    let got = unsafe { libc::pread(place.fd, seen.as_mut_ptr().cast(), len, place.offset as i64) };
    assert_eq!(got, len as isize);
    seen
}

fn map(len: usize) -> usize {
    maps::map(len, ANONYMOUS).expect("room").expect("memory")
}

fn unmap(addr: usize, len: usize) {
    // SAFETY: the tests' own memory.
    assert_eq!(unsafe { maps::unmap(addr, len) }, Some(Ok(0)));
}

fn advise(addr: usize, len: usize, advice: i32) -> Result<usize, i32> {
    // SAFETY: the tests' own memory.
    unsafe { maps::advise(addr, len, advice) }.expect("in the heap")
}

fn remap(addr: usize, len: usize, new_len: usize) -> usize {
    let call = Remap { addr, len, new_len, flags: libc::MREMAP_MAYMOVE, to: 0 };
    // SAFETY: the tests' own memory.
    unsafe { remap::remap(call) }.expect("in the heap").expect("moved or grown")
}

#[test]
fn what_is_written_is_seen_through_the_object() {
    turn!();
    let block = heap::alloc(MIB, 1, false) as usize;
    fill(block, MIB, 7);
    let place = find(block + 100, MIB - 100).expect("shared");
    assert_eq!(place.kind, KIND_MEMFD);
    assert!(peer(place, MIB - 100).iter().all(|&b| b == 7));
    // SAFETY: plain numbers.
    let seals = unsafe { libc::fcntl(place.fd, libc::F_GET_SEALS) };
    assert_eq!(seals, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL);
    heap::free(block);
    assert_eq!(find(block, MIB), None, "freed memory is nobody's");
}

#[test]
fn zeroed_memory_is_zero_when_it_was_used_before() {
    turn!();
    for len in [THRESHOLD, MIB, 5 * MIB + 4096] {
        let first = heap::alloc(len, 1, false) as usize;
        fill(first, len, 0xff);
        heap::free(first);
        let again = heap::alloc(len, 1, true) as usize;
        assert_eq!(again, first, "a warm block is used again");
        assert!(all(again, len, 0));
        heap::free(again);
    }
}

#[test]
fn a_block_grows_and_shrinks_with_its_contents() {
    turn!();
    let mut block = heap::alloc(THRESHOLD, 1, false) as usize;
    fill(block, THRESHOLD, 3);
    let mut len = THRESHOLD;
    for next in [200_000, 3 * MIB, 20 * MIB, 90 * MIB, 21 * MIB, 4 * MIB, THRESHOLD] {
        block = heap::resize(block, next) as usize;
        assert!(heap::usable(block) >= next);
        assert!(all(block, len.min(next).min(THRESHOLD), 3));
        len = next;
    }
    heap::free(block);
}

#[test]
fn alignment_is_what_was_asked_for() {
    turn!();
    for align in [1, 4096, 64 << 10, MIB, 2 * MIB, 64 * MIB] {
        let block = heap::alloc(100, align, false) as usize;
        assert!(block != 0 && block.is_multiple_of(align), "{align}");
        heap::free(block);
    }
}

#[test]
fn memory_freed_while_pinned_stays_until_unpin() {
    turn!();
    let block = heap::alloc(MIB, 1, false) as usize;
    fill(block, MIB, 9);
    let place = pin(block + 4096, 4096).expect("shared");
    let twice = pin(block + 4096, 8192).expect("shared");
    heap::free(block);
    let others: Vec<_> = (0..20).map(|_| heap::alloc(MIB, 1, true) as usize).collect();
    assert!(!others.contains(&block));
    assert!(peer(twice, 8192).iter().all(|&b| b == 9));
    unpin(place, 4096);
    let more: Vec<_> = (0..20).map(|_| heap::alloc(MIB, 1, true) as usize).collect();
    assert!(!more.contains(&block), "one pin is left");
    unpin(twice, 8192);
    let after = heap::alloc(MIB, 1, true) as usize;
    assert_eq!(after, block);
    for block in others.into_iter().chain(more).chain([after]) {
        heap::free(block);
    }
}

#[test]
fn a_mapping_unmapped_while_pinned_keeps_its_pages() {
    turn!();
    let m = map(MIB);
    fill(m, MIB, 5);
    let place = pin(m + 65536, 65536).expect("shared");
    unmap(m, MIB);
    assert_eq!(find(m, 4096), None);
    assert!(peer(place, 65536).iter().all(|&b| b == 5));
    assert_ne!(map(MIB), m);
    unpin(place, 65536);
}

#[test]
fn pages_thrown_away_while_pinned_are_replaced_for_the_program() {
    turn!();
    let block = heap::alloc(MIB, 1, false) as usize;
    fill(block, MIB, 4);
    let place = pin(block + 8192, 4096).expect("shared");
    assert_eq!(advise(block, 16384, libc::MADV_DONTNEED), Ok(0));
    assert!(all(block, 16384, 0) && all(block + 16384, MIB - 16384, 4));
    assert!(peer(place, 4096).iter().all(|&b| b == 4), "the device's page stays");
    fill(block + 8192, 4096, 6);
    assert!(peer(place, 4096).iter().all(|&b| b == 4), "the program has another");
    assert_eq!(find(block, 16384), None, "part of it is private now");
    assert!(find(block, 8192).is_some());
    unpin(place, 4096);
    assert!(peer(place, 4096).iter().all(|&b| b == 0), "given back at unpin");
    assert!(all(block + 8192, 4096, 6));
    heap::free(block);
    let again = heap::alloc(MIB, 1, true) as usize;
    assert!(find(again, MIB).is_some(), "whole again");
    heap::free(again);
}

fn part(addr: usize, len: usize) {
    // SAFETY: the tests' own memory.
    unsafe { (api().part)(addr, len) };
}

#[test]
fn memory_that_is_parted_from_peers_keeps_its_contents_and_hears_of_them_no_more() {
    turn!();
    let block = heap::alloc(MIB, 1, false) as usize;
    fill(block, MIB, 4);
    let place = pin(block + 8192, 8192).expect("shared");
    part(block + 8192 + 100, 4096);
    assert!(all(block, MIB, 4));
    let late = [9u8; 8192];
    // SAFETY: `late` has so many bytes.
    let wrote = unsafe { libc::pwrite(place.fd, late.as_ptr().cast(), late.len(), place.offset as i64) };
    assert_eq!(wrote, 8192);
    assert!(all(block, MIB, 4), "what a peer stores there late is stored for nobody");
    fill(block + 8192, 8192, 6);
    assert!(peer(place, 8192).iter().all(|&b| b == 9), "and the peer sees nothing more of the program");
    assert_eq!(find(block, MIB), None);
    assert!(find(block, 8192).is_some() && find(block + 16384, MIB - 16384).is_some(), "the rest is shared");
    unpin(place, 8192);
    assert!(all(block + 8192, 8192, 6));
    assert!(peer(place, 8192).iter().all(|&b| b == 0), "the object's pages are given back at unpin");
    // The kernel would show the object's pages again, were it private memory over a file to the program.
    let twice = pin(block + 65536, 8192).expect("shared");
    part(block + 65536, 8192);
    assert_eq!(advise(block + 65536, 8192, libc::MADV_DONTNEED), Ok(0));
    assert!(all(block + 65536, 8192, 0));
    unpin(twice, 8192);
    heap::free(block);
    let again = heap::alloc(MIB, 1, true) as usize;
    assert!(find(again, MIB).is_some() && all(again, MIB, 0), "whole again");
    heap::free(again);
}

#[test]
fn what_is_protected_or_not_pinned_is_parted_as_it_should() {
    turn!();
    let m = map(MIB);
    fill(m, MIB, 4);
    part(m, MIB);
    assert!(find(m, MIB).is_some(), "nobody can be there");
    let place = pin(m, MIB).expect("shared");
    // SAFETY: the test's own memory.
    unsafe { sys::mprotect(m, 8192, libc::PROT_READ) }.unwrap();
    maps::protected(m, 8192, libc::PROT_READ);
    part(m, 8192);
    assert!(all(m, MIB, 4));
    // SAFETY: an address of this process, which the kernel looks after.
    let written = unsafe { libc::syscall(libc::SYS_getrandom, m, 16, 0) };
    assert_eq!(written, -1, "the program's protection stays");
    unpin(place, MIB);
    unmap(m, MIB);
}

#[test]
fn a_region_that_begins_and_ends_within_pages_is_parted_by_whole_pages() {
    turn!();
    let block = heap::alloc(MIB, 1, false) as usize;
    fill(block, MIB, 4);
    let (start, len) = (block + 8192 + 64, 8000);
    let place = pin(start, len).expect("shared");
    part(start, len);
    let late = [9u8; 8000];
    // SAFETY: `late` has so many bytes.
    let wrote = unsafe { libc::pwrite(place.fd, late.as_ptr().cast(), late.len(), place.offset as i64) };
    assert_eq!(wrote, 8000);
    assert!(all(block, MIB, 4), "what is stored late is stored for nobody");
    for at in [block + 8192, start + len + 1, block + 16384 - 16] {
        assert_eq!(find(at, 16), None, "the whole page is private");
    }
    assert!(find(block, 8192).is_some() && find(block + 16384, MIB - 16384).is_some());
    unpin(place, len);
    // No entry is left that a later pin would take for pages to be given back.
    assert_eq!(advise(block + 8192, 8192, libc::MADV_DONTNEED), Ok(0));
    assert!(all(block + 8192, 8192, 0));
    heap::free(block);
    let again = heap::alloc(MIB, 1, false) as usize;
    fill(again, MIB, 7);
    let place = pin(again, MIB).expect("shared again");
    unpin(place, MIB);
    assert!(all(again, MIB, 7), "the end of a pin takes nothing from a new owner");
    heap::free(again);
}

#[test]
fn no_store_is_lost_while_memory_is_parted_from_peers() {
    turn!();
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    let block = heap::alloc(MIB, 1, false) as usize;
    fill(block, MIB, 0);
    let place = pin(block, MIB).expect("shared");
    // SAFETY: words of the test's own memory, which lives until the threads have ended.
    let word = |page: usize, t: usize| unsafe { AtomicU64::from_ptr((block + page * 4096 + 8 * t) as *mut u64) };
    let over = AtomicBool::new(false);
    let counts = std::thread::scope(|s| {
        let threads = [0usize, 1].map(|t| {
            let over = &over;
            s.spawn(move || {
                let mut n = 0u64;
                while !over.load(Ordering::Relaxed) {
                    for page in 0..256 {
                        // Apart, so that a store in between would be lost.
                        let mine = word(page, t);
                        mine.store(mine.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                    n += 1;
                }
                n
            })
        });
        for page in 0..256 {
            while word(page, 0).load(Ordering::Relaxed) < page as u64 / 8 {
                std::thread::yield_now();
            }
            part(block + page * 4096, 4096);
        }
        over.store(true, Ordering::Relaxed);
        threads.map(|t| t.join().unwrap())
    });
    for (t, n) in counts.iter().enumerate() {
        for page in 0..256 {
            assert_eq!(word(page, t).load(Ordering::Relaxed), *n, "page {page}");
        }
    }
    unpin(place, MIB);
    heap::free(block);
}

#[test]
fn a_mapping_is_zero_and_is_unmapped_in_parts() {
    turn!();
    let m = map(MIB);
    assert!(all(m, MIB, 0));
    fill(m, MIB, 1);
    unmap(m + 4096, 4096);
    assert_eq!(find(m, MIB), None);
    assert!(find(m, 4096).is_some() && find(m + 8192, MIB - 8192).is_some());
    assert!(all(m, 4096, 1) && all(m + 8192, MIB - 8192, 1));
    unmap(m + MIB / 2, MIB / 2);
    unmap(m, MIB / 2);
    let again = map(MIB);
    assert!(all(again, MIB, 0));
    unmap(again, MIB);
}

#[test]
fn a_mapping_grows_in_place_and_elsewhere() {
    turn!();
    let m = map(MIB);
    fill(m, MIB, 2);
    let mut at = remap(m, MIB, 3 * MIB);
    assert!(all(at, MIB, 2) && all(at + MIB, 2 * MIB, 0));
    fill(at + MIB, 2 * MIB, 8);
    at = remap(at, 3 * MIB, MIB);
    at = remap(at, MIB, 4 * MIB);
    assert!(all(at, MIB, 2) && all(at + MIB, 3 * MIB, 0), "what was cut off is gone");
    unmap(at, 4 * MIB);
}

/// Sixteen pages of `a`, of which those in `own` are not the heap's.
fn mixed(own: &[usize]) -> usize {
    let addr = map(MIXED);
    for page in own {
        let at = addr + page * PAGE;
        let flags = ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the tests' own memory.
        let got = unsafe { maps::map_over(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_eq!(got, Some(Ok(at)));
    }
    fill(addr, MIXED, b'a');
    addr
}

const PAGE: usize = 4096;
const MIXED: usize = 16 * PAGE + THRESHOLD;

/// Memory of the kernel's, outside of the heap.
fn outside(len: usize) -> usize {
    // SAFETY: a new mapping.
    unsafe { sys::mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, ANONYMOUS, -1, 0) }.expect("memory")
}

fn remap_to(addr: usize, new_len: usize, to: usize, flags: i32) -> Result<usize, i32> {
    let flags = flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let call = Remap { addr, len: MIXED, new_len, flags, to };
    // SAFETY: the tests' own memory.
    unsafe { remap::remap(call) }.expect("in the heap")
}

#[test]
fn a_mapping_that_is_the_programs_in_part_stays_with_its_contents() {
    turn!();
    if sys::page() != PAGE {
        return;
    }
    for own in [&[0][..], &[5], &[0, 1, 9]] {
        let addr = mixed(own);
        assert_eq!(remap(addr, MIXED, MIXED), addr);
        assert!(all(addr, MIXED, b'a'), "{own:?}");
        let shorter = MIXED - 3 * PAGE;
        assert_eq!(remap(addr, MIXED, shorter), addr);
        assert!(all(addr, shorter, b'a'), "{own:?}, shorter");
        unmap(addr, shorter);
    }
}

#[test]
fn a_mapping_that_is_the_programs_in_part_moves_piece_by_piece() {
    turn!();
    if sys::page() != PAGE {
        return;
    }
    for own in [&[0][..], &[5], &[0, 1, 9]] {
        for place in [map, outside] {
            for new_len in [MIXED, MIXED - 8 * PAGE] {
                let (addr, to) = (mixed(own), place(MIXED));
                assert_eq!(remap_to(addr, new_len, to, 0), Ok(to));
                assert!(all(to, new_len, b'a'), "{own:?}, {new_len}");
                // The next owner of the heap's room has nothing to do with it.
                let next = map(MIXED);
                assert!(all(next, MIXED, 0));
                fill(next, MIXED, b'x');
                assert!(all(to, new_len, b'a'), "{own:?}, {new_len}");
                unmap(next, MIXED);
                unmap(to, MIXED);
            }
            let (addr, to) = (mixed(own), place(MIXED));
            assert_eq!(remap_to(addr, MIXED, to, libc::MREMAP_DONTUNMAP), Ok(to));
            assert!(all(to, MIXED, b'a'), "{own:?}, kept");
            assert!(all(addr, MIXED, 0), "{own:?}, kept");
            unmap(addr, MIXED);
            unmap(to, MIXED);
        }
    }
}

#[test]
fn a_hole_is_passed_over_when_a_mapping_moves_unless_it_is_first() {
    turn!();
    if sys::page() != PAGE {
        return;
    }
    let (addr, to) = (mixed(&[3]), outside(MIXED));
    fill(to, MIXED, b'x');
    unmap(addr + 7 * PAGE, PAGE);
    assert_eq!(remap_to(addr, MIXED, to, 0), Ok(to));
    assert!(all(to, 7 * PAGE, b'a') && all(to + 7 * PAGE, PAGE, b'x') && all(to + 8 * PAGE, MIXED - 8 * PAGE, b'a'));
    unmap(to, MIXED);
    let (addr, to) = (mixed(&[3]), outside(MIXED));
    fill(to, MIXED, b'x');
    unmap(addr, PAGE);
    assert_eq!(remap_to(addr, MIXED, to, 0), Err(libc::EFAULT));
    assert!(all(to, MIXED, b'x') && all(addr + PAGE, MIXED - PAGE, b'a'));
    unmap(addr, MIXED);
    unmap(to, MIXED);
}

#[test]
fn what_the_heap_has_where_a_hole_moves_to_stays() {
    turn!();
    if sys::page() != PAGE {
        return;
    }
    let (from, to) = (outside(MIXED), map(MIXED));
    fill(from, MIXED, b'a');
    fill(to, MIXED, b'x');
    // SAFETY: the test's own memory.
    unsafe { sys::munmap(from + 7 * PAGE, PAGE) }.expect("a hole");
    assert_eq!(remap_to(from, MIXED, to, 0), Ok(to));
    assert!(all(to, 7 * PAGE, b'a') && all(to + 7 * PAGE, PAGE, b'x') && all(to + 8 * PAGE, MIXED - 8 * PAGE, b'a'));
    unmap(to, MIXED);
}

#[test]
fn memory_that_was_given_back_is_not_used_again_under_what_moved_there() {
    turn!();
    let (to, from) = (map(MIXED), outside(MIXED));
    // Only a block with pages is kept for the next request.
    fill(to, MIXED, b'o');
    unmap(to, MIXED);
    fill(from, MIXED, b'a');
    assert_eq!(remap_to(from, MIXED, to, 0), Ok(to));
    // None: the heap leaves the request to the kernel.
    let next = maps::map(MIXED, ANONYMOUS);
    assert_ne!(next, Some(Ok(to)));
    assert!(all(to, MIXED, b'a'));
    if let Some(Ok(next)) = next {
        unmap(next, MIXED);
    }
    unmap(to, MIXED);
}

/// The exit status of a child that has `look` as its.
fn child(look: impl Fn() -> i32) -> i32 {
    // SAFETY: the child calls nothing but `look`, which takes no locks.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(look()) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WEXITSTATUS(status)
}

#[test]
fn what_is_kept_from_children_is_kept_from_them_outside_of_the_heap_too() {
    turn!();
    for (advice, want) in [(libc::MADV_WIPEONFORK, 0), (libc::MADV_DONTFORK, libc::ENOMEM)] {
        let (addr, to) = (map(MIXED), outside(MIXED));
        fill(addr, MIXED, b's');
        assert_eq!(advise(addr, MIXED, advice), Ok(0));
        assert_eq!(remap_to(addr, MIXED, to, 0), Ok(to));
        assert!(all(to, MIXED, b's'));
        let got = child(|| {
            let mut resident = [0; MIXED / PAGE];
            // SAFETY: `resident` has a byte for each page; mincore fails where there is no mapping.
            let mapped = unsafe { libc::mincore(to as *mut _, MIXED, resident.as_mut_ptr()) } == 0;
            if mapped { i32::from(bytes(to, 1)[0]) } else { sys::errno() }
        });
        assert_eq!(got, want);
        unmap(to, MIXED);
    }
}

#[test]
fn pages_given_up_are_zero_and_free() {
    turn!();
    let m = map(4 * MIB);
    fill(m, 4 * MIB, 1);
    for (i, advice) in [libc::MADV_DONTNEED, libc::MADV_FREE].into_iter().enumerate() {
        let at = m + i * MIB;
        assert_eq!(advise(at, MIB, advice), Ok(0));
        assert!(all(at, MIB, 0));
    }
    assert!(all(m + 2 * MIB, 2 * MIB, 1));
    assert_eq!(advise(m + 1, MIB, libc::MADV_DONTNEED), Err(libc::EINVAL));
    assert_eq!(advise(m, MIB, libc::MADV_REMOVE), Err(libc::EINVAL));
    unmap(m, 4 * MIB);
}

#[test]
fn a_memfd_is_found_only_while_it_is_sealed_against_shrinking() {
    turn!();
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"theirs".as_ptr(), libc::MFD_ALLOW_SEALING) };
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::ftruncate(fd, MIB as i64) }, 0);
    // SAFETY: a place of the kernel's choice.
    let at = unsafe { sys::mmap(0, MIB, 3, libc::MAP_SHARED, fd, 65536) }.expect("mapped");
    program::mapped(at, MIB, fd, 65536);
    assert_eq!(find(at, 4096), None);
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) }, 0);
    let place = find(at + 4096, 4096).expect("sealed");
    assert_eq!((place.kind, place.offset, place.object_len), (KIND_MEMFD, 65536 + 4096, MIB as u64));
    assert_eq!(find(at, MIB), None, "the mapping is longer than the file");
    sys::close(fd);
    fill(at + 4096, 1, 3);
    assert_eq!(peer(place, 1), [3], "the descriptor of the answer is not the program's");
    program::gone(at..at + MIB);
    assert_eq!(find(at + 4096, 4096), None);
}

/// If two memfds are mapped side by side, one page of each is found at its place of its own file after a move of both,
/// and the old entries for the new place are forgotten.
#[test]
fn memfds_that_move_together_are_found_each_in_its_own_file() {
    turn!();
    let page = sys::page();
    let (from, to) = (outside(3 * page), outside(3 * page));
    for (i, at) in [from, from + page, to + 2 * page].into_iter().enumerate() {
        // SAFETY: a C string, and plain numbers.
        let fd = unsafe {
            let fd = libc::memfd_create(c"theirs".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(fd, (4 * page) as i64), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
            fd
        };
        // SAFETY: a range of the test's.
        unsafe { sys::mmap(at, page, 3, libc::MAP_SHARED | libc::MAP_FIXED, fd, (i * page) as u64) }.expect("mapped");
        program::mapped(at, page, fd, (i * page) as u64);
        sys::close(fd);
    }
    let [first, second] = [from, from + page].map(|at| find(at, page).expect("noted"));
    program::moved(from..from + 3 * page, to..to + 3 * page, false);
    let found = |at| find(at, page).map(|place| (place.object, place.offset));
    assert_eq!(found(to), Some((first.object, 0)));
    assert_eq!(found(to + page), Some((second.object, page as u64)));
    assert_eq!([to + 2 * page, from, from + page].map(found), [None; 3]);
    // One mapping that becomes longer.
    program::moved(to..to + page, from..from + 2 * page, false);
    assert!(find(from, 2 * page).is_some());
    program::gone(from..from + 3 * page);
    program::gone(to..to + 3 * page);
}
