//! Which pages can be adopted, what becomes of them, and what the program may do meanwhile.

use crate::{Memory, Numbers, PAGE, adoption, fork, wait};
use std::sync::atomic::{AtomicU32, Ordering};
use vervain_hca::adopt::{Adopted, Adoption};
use vervain_skip::skip;

fn peer_bytes(adopted: &Adopted, len: usize) -> &'static mut [u8] {
    let (fd, offset) = (adopted.object.fd(), adopted.offset);
    let skip = (offset % PAGE as u64) as usize;
    // SAFETY: a fresh mapping, never unmapped.
    unsafe {
        let at = (offset - skip as u64) as libc::off_t;
        let p = libc::mmap(std::ptr::null_mut(), skip + len, 3, libc::MAP_SHARED, fd, at);
        assert_ne!(p, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(p.cast::<u8>().add(skip), len)
    }
}

fn fill(memory: &Memory) {
    for (i, byte) in memory.bytes().iter_mut().enumerate() {
        *byte = pattern(i);
    }
}

fn pattern(i: usize) -> u8 {
    ((i * 31) >> 5) as u8 | 1
}

fn intact(memory: &Memory) -> bool {
    memory.bytes().iter().enumerate().all(|(i, &b)| b == pattern(i))
}

/// The adoption is refused with a sentence that has `why` in it, and nothing has changed.
fn refused(adoption: &Adoption, memory: &Memory, why: &str) {
    let vmas = memory.vmas();
    let error = adoption.adopt(memory.base, memory.len).expect_err("adopted").to_string();
    assert!(error.contains(why), "{error}");
    assert!(intact(memory));
    assert_eq!(memory.vmas(), vmas);
}

#[test]
fn a_peer_sees_and_changes_unaligned_ranges_and_nothing_else_changes() {
    let Some(adoption) = adoption() else { return };
    for (from, to) in [(0, 1), (4095, 4097), (100, 9000), (8192, 12288), (1, 40960)] {
        let memory = Memory::new(10 * PAGE);
        fill(&memory);
        let adopted = adoption.adopt(memory.base + from, to - from).unwrap();
        let peer = peer_bytes(&adopted, to - from);
        assert!(peer.iter().enumerate().all(|(i, &b)| b == pattern(from + i)));
        peer.fill(0xee);
        assert!(memory.bytes()[from..to].iter().all(|&b| b == 0xee));
        memory.bytes()[from] = 0x77;
        assert_eq!(peer[0], 0x77);
        adoption.revert(adopted);
        assert_eq!(memory.bytes()[from], 0x77);
        memory.bytes()[from] = 0xee;
        for (i, &b) in memory.bytes().iter().enumerate() {
            assert_eq!(b, if (from..to).contains(&i) { 0xee } else { pattern(i) });
        }
        let vmas = memory.vmas();
        assert!(vmas.len() == 1 && vmas[0].contains("rw-p"), "{vmas:?}");
    }
}

#[test]
fn pages_stay_until_the_last_of_any_overlapping_registrations_goes() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(24 * PAGE);
    fill(&memory);
    let mut numbers = Numbers(0x1234_5678_9abc_def1);
    let mut live: Vec<(Adopted, usize, usize)> = Vec::new();
    for step in 0..3000 {
        if live.is_empty() || live.len() < 12 && numbers.below(2) == 0 {
            let from = numbers.below(memory.len - 1);
            let len = 1 + numbers.below((memory.len - from).min(6 * PAGE));
            live.push((adoption.adopt(memory.base + from, len).unwrap(), from, len));
        } else {
            let (adopted, ..) = live.swap_remove(numbers.below(live.len()));
            adoption.revert(adopted);
        }
        assert!(intact(&memory), "step {step}");
        let shared: usize = {
            let mut pages = [false; 24];
            live.iter().for_each(|(_, from, len)| pages[from / PAGE..=(from + len - 1) / PAGE].fill(true));
            pages.iter().filter(|&&p| p).count()
        };
        if step % 16 == 0 {
            assert_eq!(shared_pages(&memory), shared, "step {step}");
        }
        if let Some((adopted, from, len)) = live.last()
            && step % 64 == 0
        {
            let peer = peer_bytes(adopted, *len);
            assert!(peer.iter().enumerate().all(|(i, &b)| b == pattern(from + i)));
            let (at, skip) = (peer.as_ptr() as usize, from % PAGE);
            // SAFETY: mapped by `peer_bytes`; the slice is not used again.
            unsafe { libc::munmap((at - skip) as *mut _, skip + peer.len()) };
        }
    }
    live.into_iter().for_each(|(adopted, ..)| adoption.revert(adopted));
    assert!(intact(&memory));
    assert_eq!(memory.vmas().len(), 1, "{:?}", memory.vmas());
}

fn shared_pages(memory: &Memory) -> usize {
    let vmas = memory.vmas();
    let bytes = vmas.iter().filter(|line| line.contains("rw-s")).map(|line| {
        let (range, _) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        usize::from_str_radix(end, 16).unwrap() - usize::from_str_radix(start, 16).unwrap()
    });
    bytes.sum::<usize>() / PAGE
}

#[test]
fn absent_pages_read_as_zero_and_can_be_written() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(64 * PAGE);
    memory.bytes()[5 * PAGE] = 5;
    // Read, so that the kernel's zero page is there.
    assert_eq!(std::hint::black_box(memory.bytes()[7 * PAGE]), 0);
    let adopted = adoption.adopt(memory.base, memory.len).unwrap();
    let peer = peer_bytes(&adopted, memory.len);
    assert!(peer.iter().enumerate().all(|(i, &b)| b == if i == 5 * PAGE { 5 } else { 0 }));
    peer[9 * PAGE] = 9;
    memory.bytes()[11 * PAGE] = 11;
    adoption.revert(adopted);
    assert_eq!([5, 7, 9, 11].map(|page| memory.bytes()[page * PAGE]), [5, 0, 9, 11]);
}

#[test]
fn huge_pages_are_adopted_in_whole_and_in_part() {
    let Some(adoption) = adoption() else { return };
    const HUGE: usize = 2 << 20;
    let memory = Memory::new(4 * HUGE);
    // SAFETY: changes no contents.
    unsafe { libc::madvise(memory.base as *mut _, memory.len, libc::MADV_HUGEPAGE) };
    fill(&memory);
    for (from, to) in [(0, memory.len), (HUGE + 3 * PAGE, HUGE + 5 * PAGE), (100, 3 * HUGE + 100)] {
        let adopted = adoption.adopt(memory.base + from, to - from).unwrap();
        assert!(intact(&memory));
        let peer = peer_bytes(&adopted, to - from);
        assert!(peer.iter().enumerate().all(|(i, &b)| b == pattern(from + i)));
        adoption.revert(adopted);
        assert!(intact(&memory));
        assert_eq!(memory.vmas().len(), 1, "{:?}", memory.vmas());
    }
}

#[test]
fn pages_shared_with_a_forked_child_are_adopted_and_the_child_keeps_its_own() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(16 * PAGE);
    fill(&memory);
    let turn = Memory::new(PAGE);
    // SAFETY: shared memory in place of the private page, for both processes.
    let turn = unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(turn.base as *mut _, PAGE, 3, flags, -1, 0);
        AtomicU32::from_ptr(turn.base as *mut u32)
    };
    let child = fork(|| {
        turn.store(1, Ordering::SeqCst);
        while turn.load(Ordering::SeqCst) != 2 {
            std::hint::spin_loop();
        }
        let good = intact(&memory);
        memory.bytes().fill(0xcc);
        good
    });
    while turn.load(Ordering::SeqCst) != 1 {
        std::thread::yield_now();
    }
    let adopted = adoption.adopt(memory.base, memory.len).unwrap();
    assert!(intact(&memory));
    peer_bytes(&adopted, memory.len).fill(0xdd);
    turn.store(2, Ordering::SeqCst);
    assert!(wait(child), "the child's snapshot changed");
    assert!(memory.bytes().iter().all(|&b| b == 0xdd));
    adoption.revert(adopted);
    assert!(memory.bytes().iter().all(|&b| b == 0xdd));
}

#[test]
fn pages_merged_by_ksm_are_adopted() {
    let Some(adoption) = adoption() else { return };
    if std::fs::read_to_string("/sys/kernel/mm/ksm/run").is_ok_and(|run| run.trim() != "1") {
        return skip("KSM does not run (/sys/kernel/mm/ksm/run)");
    }
    let memory = Memory::new(16 * PAGE);
    memory.bytes().fill(0x5a);
    // SAFETY: changes no contents.
    unsafe { libc::madvise(memory.base as *mut _, memory.len, libc::MADV_MERGEABLE) };
    let merged = || std::fs::read_to_string("/proc/self/ksm_merging_pages").is_ok_and(|n| n.trim() != "0");
    let mut looks = (0..100).map(|_| std::thread::sleep(std::time::Duration::from_millis(100)));
    if !looks.any(|()| merged()) {
        return skip("KSM merges nothing");
    }
    let adopted = adoption.adopt(memory.base, memory.len).unwrap();
    peer_bytes(&adopted, PAGE).fill(0xa5);
    adoption.revert(adopted);
    assert!(memory.bytes()[..PAGE].iter().all(|&b| b == 0xa5));
    assert!(memory.bytes()[PAGE..].iter().all(|&b| b == 0x5a));
}

#[test]
fn a_child_forked_meanwhile_gets_a_snapshot_of_its_own() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(16 * PAGE);
    fill(&memory);
    let adopted = adoption.adopt(memory.base + 10, memory.len - 20).unwrap();
    let mut ready = [0; 2];
    // SAFETY: fills the two descriptors.
    assert_eq!(unsafe { libc::pipe(ready.as_mut_ptr()) }, 0);
    adoption.before_fork();
    let child = fork(|| {
        let mut byte = 0u8;
        // SAFETY: waits for one byte of the parent.
        unsafe { libc::read(ready[0], (&raw mut byte).cast(), 1) };
        let good = intact(&memory);
        memory.bytes().fill(0xcc);
        good
    });
    assert_eq!(adoption.after_fork(), []);
    let peer = peer_bytes(&adopted, memory.len - 20);
    assert!(peer.iter().enumerate().all(|(i, &b)| b == pattern(10 + i)));
    peer.fill(0xdd);
    // SAFETY: one byte of a static.
    unsafe { libc::write(ready[1], c"g".as_ptr().cast(), 1) };
    assert!(wait(child), "the child saw what happened after fork");
    assert!(memory.bytes()[10..memory.len - 10].iter().all(|&b| b == 0xdd));
    adoption.revert(adopted);
    assert!(memory.bytes()[10..memory.len - 10].iter().all(|&b| b == 0xdd));
    assert_eq!(memory.vmas().len(), 1, "{:?}", memory.vmas());
}

#[test]
fn locked_memory_is_refused_and_stays_locked() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(8 * PAGE);
    fill(&memory);
    // SAFETY: a plain call.
    if unsafe { libc::mlock(memory.base as *const _, memory.len) } != 0 {
        return skip("mlock is refused");
    }
    refused(&adoption, &memory, "locked");
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mine = smaps.split_once(&format!("{:x}-", memory.base)).unwrap().1;
    let flags = mine.lines().find(|l| l.starts_with("VmFlags")).unwrap();
    assert!(flags.contains(" lo"), "{flags}");
}

#[test]
fn pinned_memory_is_refused_and_adopted_when_the_pin_is_gone() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(8 * PAGE);
    fill(&memory);
    let mut params = [0u32; 30];
    // SAFETY: the parameters are 120 bytes.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) } as i32;
    if ring < 0 {
        return skip("io_uring is refused");
    }
    let buffer = libc::iovec { iov_base: (memory.base + 5 * PAGE) as *mut _, iov_len: 100 };
    const REGISTER_BUFFERS: u32 = 0;
    const UNREGISTER_BUFFERS: u32 = 1;
    // SAFETY: one buffer of live memory.
    let rc = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_BUFFERS, &raw const buffer, 1) };
    assert_eq!(rc, 0);
    refused(&adoption, &memory, "pinned");
    // SAFETY: no buffers are in use.
    let rc = unsafe { libc::syscall(libc::SYS_io_uring_register, ring, UNREGISTER_BUFFERS, 0, 0) };
    assert_eq!(rc, 0);
    let adopted = adoption.adopt(memory.base, memory.len).unwrap();
    adoption.revert(adopted);
    assert!(intact(&memory));
    // SAFETY: opened above.
    unsafe { libc::close(ring) };
}

#[test]
fn memory_of_other_kinds_is_refused() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(4 * PAGE);
    fill(&memory);
    let pages = |pages, flags: i32, fd| {
        let (addr, len) = memory.pages(pages);
        // SAFETY: replaces pages of the test's own memory.
        assert_ne!(unsafe { libc::mmap(addr as *mut _, len, 3, flags | libc::MAP_FIXED, fd, 0) }, libc::MAP_FAILED);
    };
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
    // SAFETY: a plain call.
    unsafe { libc::ftruncate(file, 4096) };
    let expect = |why: &str| {
        fill(&memory);
        refused(&adoption, &memory, why);
    };
    pages(2..3, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
    expect("shared");
    pages(2..3, libc::MAP_PRIVATE, file);
    expect("file");
    pages(2..3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    fill(&memory);
    // SAFETY: the test's own memory.
    unsafe { libc::mprotect((memory.base + PAGE) as *mut _, PAGE, libc::PROT_READ) };
    refused(&adoption, &memory, "readable and writable");
    let local = [0u8; 64];
    assert!(adoption.adopt(local.as_ptr() as usize, 64).is_err());
    assert!(adoption.adopt(PAGE, 64).is_err());
    assert!(adoption.adopt(memory.base, 0).is_err());
    assert!(adoption.adopt(usize::MAX - 5, 100).is_err());
}

#[test]
fn what_the_program_puts_over_adopted_pages_is_left_alone() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(8 * PAGE);
    fill(&memory);
    let adopted = adoption.adopt(memory.base, memory.len).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let over = memory.base + 2 * PAGE;
    // SAFETY: the test's own memory; two pages are replaced, one goes, one is moved away.
    let moved = unsafe {
        libc::mmap(over as *mut _, 2 * PAGE, 3, flags, -1, 0);
        std::ptr::write_bytes(over as *mut u8, 0x42, 2 * PAGE);
        libc::munmap((memory.base + 5 * PAGE) as *mut _, PAGE);
        libc::mremap((memory.base + 7 * PAGE) as *mut _, PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE)
    };
    assert_ne!(moved, libc::MAP_FAILED);
    let object = adopted.object.identity();
    adoption.revert(adopted);
    let bytes = |page: usize| &memory.bytes()[page * PAGE..(page + 1) * PAGE];
    for page in [0, 1, 4, 6] {
        assert!(bytes(page).iter().enumerate().all(|(i, &b)| b == pattern(page * PAGE + i)), "page {page}");
    }
    assert!(bytes(2).iter().chain(bytes(3)).all(|&b| b == 0x42));
    // SAFETY: one page that mremap has moved here.
    let moved = unsafe { std::slice::from_raw_parts(moved.cast::<u8>(), PAGE) };
    assert!(moved.iter().enumerate().all(|(i, &b)| b == pattern(7 * PAGE + i)));
    // The moved page still lies in the object, so what is adopted now goes elsewhere.
    let again = adoption.adopt(memory.base, PAGE).unwrap();
    assert_ne!(again.object.identity(), object);
    adoption.revert(again);
}

#[test]
fn a_buffer_on_a_threads_stack_is_reverted_by_that_thread() {
    let Some(adoption) = adoption() else { return };
    let (give, given) = std::sync::mpsc::channel();
    let (hand, handed) = std::sync::mpsc::channel::<Adopted>();
    std::thread::scope(|scope| {
        let adoption = &adoption;
        scope.spawn(move || {
            let mut buffer = [1u8; 8 * PAGE];
            give.send(buffer.as_mut_ptr() as usize).unwrap();
            let adopted = handed.recv().unwrap();
            std::hint::black_box(&mut buffer)[PAGE] = 2;
            peer_bytes(&adopted, 6 * PAGE)[5 * PAGE + 1] = 3;
            adoption.revert(adopted);
            let buffer = std::hint::black_box(&buffer);
            assert_eq!((buffer[PAGE], buffer.iter().filter(|&&b| b == 3).count()), (2, 1));
        });
        let buffer = given.recv().unwrap();
        // The frames of the calls that the thread makes lie below the buffer.
        hand.send(adoption.adopt(buffer - 4 * PAGE, 6 * PAGE).unwrap()).unwrap();
    });
}

#[test]
fn a_private_futex_that_somebody_waits_on_keeps_working() {
    let Some(adoption) = adoption() else { return };
    let memory = Memory::new(PAGE);
    // SAFETY: a word of the test's memory.
    let word = unsafe { AtomicU32::from_ptr(memory.base as *mut u32) };
    let futex = |op: i32, value: u32| {
        let timeout = libc::timespec { tv_sec: 20, tv_nsec: 0 };
        let op = op | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives as long as the test.
        let rc = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const timeout) };
        rc != -1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
    };
    for round in 0..200u32 {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| futex(libc::FUTEX_WAIT, round));
            let adopted = (round % 2 == 0).then(|| adoption.adopt(memory.base, PAGE).unwrap());
            // The waiter began before, in the middle or after; none of it may keep it asleep.
            if round % 4 == 0 {
                std::thread::yield_now();
            }
            if let Some(adopted) = adopted {
                word.store(round + 1, Ordering::SeqCst);
                futex(libc::FUTEX_WAKE, 1);
                adoption.revert(adopted);
            } else {
                let adopted = adoption.adopt(memory.base, PAGE).unwrap();
                adoption.revert(adopted);
                word.store(round + 1, Ordering::SeqCst);
                futex(libc::FUTEX_WAKE, 1);
            }
            assert!(waiter.join().unwrap(), "round {round}: the waiter slept on");
        });
    }
}
