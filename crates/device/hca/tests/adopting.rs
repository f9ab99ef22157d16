//! Registration with `VERVAIN_ADOPT=on`: what keys tell peers of memory that nobody prepared, and what fork leaves of
//! it.

mod common;

use common::{context, process};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::adopt::Adoption;
use vervain_hca::arena::layout::{KeyEntry, NOT_SHARED, OFFSET_BITS};
use vervain_hca::{Mr, access};
use vervain_skip::skip;

const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
const LEN: usize = 64 << 10;

fn key(mr: &Mr) -> &'static KeyEntry {
    &process().own.keys[mr.rkey() as usize >> 8]
}

/// Private memory of the program, filled with `byte`.
fn memory(byte: u8) -> &'static mut [u8] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, never unmapped.
    let memory = unsafe {
        let p = libc::mmap(std::ptr::null_mut(), LEN, 3, flags, -1, 0);
        assert_ne!(p, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(p.cast::<u8>(), LEN)
    };
    memory.fill(byte);
    memory
}

/// The memory of `mr` as a peer maps it; None if it cannot.
fn as_peer(mr: &Mr) -> Option<&'static mut [u8]> {
    let (at, generation) = (key(mr).at.load(Ordering::Relaxed), key(mr).generation.load(Ordering::Relaxed));
    if at == NOT_SHARED {
        return None;
    }
    let fd: OwnedFd = process().grant_object((at >> OFFSET_BITS) as u32, generation)??;
    let offset = at & ((1 << OFFSET_BITS) - 1);
    let skip = offset % 4096;
    let len = mr.length() as usize;
    // SAFETY: a fresh mapping, never unmapped.
    unsafe {
        let at = (offset - skip) as libc::off_t;
        let p = libc::mmap(std::ptr::null_mut(), skip as usize + len, 3, libc::MAP_SHARED, fd.as_raw_fd(), at);
        assert_ne!(p, libc::MAP_FAILED);
        Some(std::slice::from_raw_parts_mut(p.cast::<u8>().add(skip as usize), len))
    }
}

#[test]
fn registered_memory_is_adopted_while_a_registration_needs_it() {
    if let Err(why) = Adoption::new() {
        return skip(why);
    }
    // SAFETY: the only test of this program, and no other thread runs yet that reads the environment.
    unsafe { std::env::set_var("VERVAIN_ADOPT", "on") };
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let register = |memory: &[u8], rights| -> Arc<Mr> {
        let addr = memory.as_ptr() as u64;
        Mr::register(&pd, addr, memory.len() as u64, addr, rights).unwrap()
    };
    let mine = memory(1);

    // Two registrations that overlap, in the first one's pages.
    let a = register(&mine[100..40000], ALL);
    let b = register(&mine[30000..60000], ALL);
    as_peer(&a).unwrap().fill(2);
    assert!(mine[100..40000].iter().all(|&x| x == 2) && mine[99] == 1 && mine[40000] == 1);
    let object = key(&a).at.load(Ordering::Relaxed) >> OFFSET_BITS;
    a.deregister().unwrap();
    as_peer(&b).unwrap()[0] = 3;
    assert_eq!((mine[30000], mine[29999]), (3, 2));

    // Translation and access change; the keys follow.
    let other = memory(4);
    b.rereg(1, None, other.as_ptr() as u64, LEN as u64, 0).unwrap();
    as_peer(&b).unwrap()[5] = 5;
    assert_eq!((other[5], mine[30000]), (5, 3));

    // Memory that peers only read through its own process stays as it is.
    let source = register(mine, 0);
    assert!(as_peer(&source).is_none());
    source.deregister().unwrap();

    // A child has a snapshot; the parent's keys stay good.
    let before = key(&b).at.load(Ordering::Relaxed);
    // SAFETY: the child only looks at memory and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        other[6] = 6;
        let good = other[5] == 5 && other[7] == 4;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((status, other[6]), (0, 4));
    assert_eq!(key(&b).at.load(Ordering::Relaxed), before);
    as_peer(&b).unwrap()[7] = 7;
    assert_eq!(other[7], 7);

    // Memory that is locked at the moment of registration is registered all the same.
    // SAFETY: the test's own memory.
    if unsafe { libc::mlock(mine.as_ptr().cast(), LEN) } == 0 {
        let locked = register(mine, ALL);
        assert!(as_peer(&locked).is_none());
        locked.deregister().unwrap();
    }
    b.deregister().unwrap();
    assert!(other[8] == 4 && other[5] == 5 && other[7] == 7);

    // The object stays known to peers.
    let last = register(other, ALL);
    assert_eq!(key(&last).at.load(Ordering::Relaxed) >> OFFSET_BITS, object);
    last.deregister().unwrap();
}
