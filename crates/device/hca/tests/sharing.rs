//! Registered memory in shared objects, seen from the owner: what its keys tell peers, what is pinned and for how long,
//! and what becomes of numbers.

mod common;

use common::{
    ARENA_FD, ASKED, INITIATORS_LIVE, Random, TURN, WITHDRAWN, bind, context, fake_share, foreign, process, receiver,
};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use vervain_hca::arena::View;
use vervain_hca::arena::layout::{KeyEntry, NOT_SHARED, OBJECTS, OFFSET_BITS, ObjectEntry};
use vervain_hca::process::imports::Wanted;
use vervain_hca::process::peer::{Location, PeerProcess};
use vervain_hca::{Context, Cq, Mr, Pd, access};

const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::MW_BIND;

struct Owner {
    context: Arc<Context>,
    pd: Arc<Pd>,
    _turn: MutexGuard<'static, ()>,
}

fn owner() -> Owner {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let context = context();
    let pd = context.alloc_pd().unwrap();
    Owner { context, pd, _turn: turn }
}

impl Owner {
    fn register(&self, addr: usize, len: u64) -> Arc<Mr> {
        Mr::register(&self.pd, addr as u64, len, addr as u64, ALL).unwrap()
    }
}

fn key(mr: &Mr) -> &'static KeyEntry {
    &process().own.keys[mr.rkey() as usize >> 8]
}

/// Object number and offset of a key.
fn at(mr: &Mr) -> (u64, u64) {
    let at = key(mr).at.load(Ordering::Relaxed);
    (at >> OFFSET_BITS, at & ((1 << OFFSET_BITS) - 1))
}

fn entry(number: u64) -> &'static ObjectEntry {
    let own = &process().own;
    &own.view.slice::<ObjectEntry>(own.header.objects.load(Ordering::Relaxed), OBJECTS).unwrap()[number as usize]
}

fn grants(number: u64, generation: u32) -> bool {
    process().grant_object(number as u32, generation).is_some()
}

#[test]
fn a_key_tells_object_and_offset_and_the_last_one_withdraws_it() {
    let owner = owner();
    let base = fake_share::memfd(c"vt", 1 << 20, true);
    let (a, b) = (owner.register(base + 8192, 4096), owner.register(base, 1 << 20));
    let ((number, offset), generation) = (at(&a), key(&a).generation.load(Ordering::Relaxed));
    assert_eq!((offset, at(&b)), (8192, (number, 0)));
    assert_eq!(key(&b).generation.load(Ordering::Relaxed), generation);
    let e = entry(number);
    let words =
        (e.generation.load(Ordering::Relaxed), e.length.load(Ordering::Relaxed), e.kind.load(Ordering::Relaxed));
    assert_eq!((words, fake_share::pins()), ((generation, 1 << 20, 1), 2));
    assert!(grants(number, generation) && !grants(number, generation + 1) && !grants(number + 1, generation));
    a.deregister().unwrap();
    assert!(grants(number, generation), "one key is left");
    b.deregister().unwrap();
    assert_eq!((entry(number).generation.load(Ordering::Relaxed), fake_share::pins()), (0, 0));
    assert!(!grants(number, generation));
    fake_share::remove(base);
}

#[test]
fn a_number_comes_back_with_another_generation() {
    let owner = owner();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..500 {
        let base = fake_share::memfd(c"vt", 8192, true);
        let mr = owner.register(base, 8192);
        let number = at(&mr).0;
        assert!(number < 8, "numbers are used again: {number}");
        assert!(seen.insert(entry(number).generation.load(Ordering::Relaxed)), "a generation came twice");
        mr.deregister().unwrap();
        fake_share::remove(base);
    }
}

#[test]
fn memory_that_is_not_in_one_object_is_not_shared() {
    let owner = owner();
    let private = vec![0u8; 8192];
    let mr = owner.register(private.as_ptr() as usize, 8192);
    assert_eq!(key(&mr).at.load(Ordering::Relaxed), NOT_SHARED);
    mr.deregister().unwrap();
    let base = fake_share::memfd(c"vt", 8192, true);
    // Nothing is pinned for a region of no bytes, which names no memory.
    let empty = owner.register(base, 0);
    assert_eq!((key(&empty).at.load(Ordering::Relaxed), fake_share::pins()), (NOT_SHARED, 0));
    empty.deregister().unwrap();
    fake_share::remove(base);
}

#[test]
fn a_region_that_is_moved_takes_its_pin_along() {
    let owner = owner();
    let (first, second) = (fake_share::memfd(c"vt", 8192, true), fake_share::memfd(c"vt", 16384, true));
    let private = vec![0u8; 4096];
    let mr = owner.register(first, 8192);
    let old = (at(&mr).0, key(&mr).generation.load(Ordering::Relaxed));
    mr.rereg(1, None, second as u64 + 4096, 4096, 0).unwrap();
    assert_eq!((entry(at(&mr).0).length.load(Ordering::Relaxed), at(&mr).1, fake_share::pins()), (16384, 4096, 1));
    assert!(!grants(old.0, old.1));
    mr.rereg(4, None, 0, 0, access::LOCAL_WRITE).unwrap();
    assert_eq!((at(&mr).1, fake_share::pins()), (4096, 1), "only the access has changed");
    mr.rereg(1, None, private.as_ptr() as u64, 4096, 0).unwrap();
    assert_eq!((key(&mr).at.load(Ordering::Relaxed), fake_share::pins()), (NOT_SHARED, 0));
    mr.deregister().unwrap();
    fake_share::remove(first);
    fake_share::remove(second);
}

#[test]
fn a_system_v_segment_is_told_by_what_identifies_it() {
    let owner = owner();
    let base = fake_share::segment(12288);
    let mr = owner.register(base + 4096, 4096);
    let e = entry(at(&mr).0);
    assert_eq!((e.kind.load(Ordering::Relaxed), e.length.load(Ordering::Relaxed)), (2, 12288));
    // SAFETY: geteuid has no arguments and cannot fail.
    assert_eq!(e.cuid.load(Ordering::Relaxed), unsafe { libc::geteuid() });
    assert!(e.ctime.load(Ordering::Relaxed) > 0 && e.ipc_namespace.load(Ordering::Relaxed) > 0);
    let generation = key(&mr).generation.load(Ordering::Relaxed);
    assert!(process().grant_object(at(&mr).0 as u32, generation).unwrap().is_none(), "no descriptor is passed");
    mr.deregister().unwrap();
    fake_share::remove(base);
}

#[test]
fn more_objects_than_numbers_are_simply_not_shared() {
    let owner = owner();
    let base = fake_share::memfd(c"vt", (OBJECTS as u64 + 8) * 4096, true);
    fake_share::split(base, 4096);
    let all: Vec<_> = (0..OBJECTS + 8).map(|i| owner.register(base + i * 4096, 4096)).collect();
    let shared = all.iter().filter(|mr| key(mr).at.load(Ordering::Relaxed) != NOT_SHARED).count();
    // Number 0 is the arena, number 1 kept for the heap.
    assert_eq!(shared, OBJECTS - 2);
    assert_eq!(fake_share::pins() as usize, shared, "what has no number is not pinned");
    all.iter().for_each(|mr| mr.deregister().unwrap());
    assert_eq!(fake_share::pins(), 0);
    fake_share::split(base, u64::MAX);
    fake_share::remove(base);
}

#[test]
fn memory_stays_pinned_while_a_stopped_initiator_may_write_to_it() {
    let owner = owner();
    INITIATORS_LIVE.store(true, Ordering::Relaxed);
    let base = fake_share::memfd(c"vt", 8192, true);
    let cq = Cq::create(&owner.context, 16, None, 0, 0, false, false).unwrap();
    let qp = receiver(&owner.context, &owner.pd, &cq, None, 4);
    let target = bind(&qp, foreign(1));
    let mark = target.enter().expect("the QP receives");
    let mr = owner.register(base, 8192);
    target.remote_memory(mr.rkey(), base as u64, 64, access::REMOTE_WRITE).expect("it may write there");
    mr.deregister().unwrap();
    assert_eq!(fake_share::pins(), 1, "whoever was cut off may still be in the middle of its copy");
    drop(mark);
    let other = owner.register(base, 4096);
    other.deregister().unwrap();
    assert_eq!(fake_share::pins(), 0, "it has left");
    drop(target);
    qp.destroy().unwrap();
    fake_share::remove(base);
}

/// This process as a peer would see it.
fn seen_from_afar() -> PeerProcess {
    let view = View::of_peer(ARENA_FD.load(Ordering::Relaxed)).unwrap();
    // SAFETY: a fresh descriptor, owned at once.
    let wake = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    PeerProcess::new(view, Some(common::ask), std::process::id() as i32, wake).unwrap()
}

/// An object of the owner, one key that leads to it, and the word that stands in it.
struct Live {
    base: usize,
    mr: Arc<Mr>,
    word: u64,
}

/// Answers and withdrawals on their way to the peer.
enum Message {
    Granted(Wanted, Option<OwnedFd>),
    Gone(u32, u32),
}

/// With messages in any order, and any of them lost, a key that leads to mapped memory leads to its own object.
#[test]
fn no_order_of_messages_makes_a_key_lead_to_another_object() {
    let owner = owner();
    let (mut direct, mut remote) = (0, 0);
    for seed in 1..=40u64 {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let space = seen_from_afar();
        let (mut live, mut messages): (Vec<Live>, Vec<Message>) = (Vec::new(), Vec::new());
        ASKED.lock().unwrap().clear();
        WITHDRAWN.lock().unwrap().clear();
        for _ in 0..400 {
            match r.below(8) {
                0 | 1 if live.len() < 4 => {
                    let (base, word) = (fake_share::memfd(c"vt-live", 8192, true), r.next());
                    // SAFETY: a word of the object just made.
                    unsafe { (base as *mut u64).add(512).write_volatile(word) };
                    live.push(Live { base, mr: owner.register(base + 4096, 4096), word });
                }
                2 if !live.is_empty() => {
                    let gone = live.swap_remove(r.below(live.len() as u64) as usize);
                    gone.mr.deregister().unwrap();
                    fake_share::remove(gone.base);
                }
                // The owner's progress thread answers.
                3 => {
                    let asked = std::mem::take(&mut *ASKED.lock().unwrap());
                    let answer = |w: Wanted| process().grant_object(w.number, w.generation).map(|fd| (w, fd));
                    messages.extend(asked.into_iter().filter_map(answer).map(|(w, fd)| Message::Granted(w, fd)));
                    let gone = std::mem::take(&mut *WITHDRAWN.lock().unwrap());
                    messages.extend(gone.into_iter().map(|(n, g)| Message::Gone(n, g)));
                }
                4 | 5 if !messages.is_empty() => match messages.swap_remove(r.below(messages.len() as u64) as usize) {
                    Message::Granted(wanted, fd) => space.map_object(&wanted, fd),
                    Message::Gone(..) if r.below(2) == 0 => {}
                    Message::Gone(number, generation) => space.forget_object(number, generation),
                },
                6 if r.below(16) == 0 => {
                    space.sweep_objects();
                    process().tidy_imports();
                }
                _ => {}
            }
            for l in &live {
                let place =
                    space.resolve(l.mr.rkey(), l.base as u64 + 4096, 8, access::REMOTE_WRITE, owner.pd.handle(), 0);
                match place.expect("the key is good") {
                    Location::Mapped(p) => {
                        direct += 1;
                        // SAFETY: mapped, as the space says.
                        assert_eq!(unsafe { p.cast::<u64>().read_volatile() }, l.word, "seed {seed:#x}");
                    }
                    Location::Unmapped(host) => {
                        remote += 1;
                        assert_eq!(host, l.base as u64 + 4096);
                    }
                    Location::Null => panic!("no key of the null MR was made"),
                }
            }
        }
        for l in live {
            l.mr.deregister().unwrap();
            fake_share::remove(l.base);
        }
    }
    assert!(direct > 1000 && remote > 1000, "{direct} mapped, {remote} not");
}

#[test]
fn a_descriptor_that_has_become_another_file_is_not_passed() {
    let owner = owner();
    let base = fake_share::memfd(c"vt", 4096, true);
    let mr = owner.register(base, 4096);
    let (number, generation) = (at(&mr).0, key(&mr).generation.load(Ordering::Relaxed));
    assert!(grants(number, generation));
    fake_share::replace_descriptor(base);
    assert!(!grants(number, generation));
    mr.deregister().unwrap();
    fake_share::remove(base);
}

#[test]
fn forks_are_guarded() {
    let _owner = owner();
    assert!(fake_share::fork_gate(), "the device was not told of forks");
}
