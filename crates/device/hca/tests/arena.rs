//! The arena's allocator and the key table against simple models.

mod common;

use common::{context, process};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::arena::{Arena, Block};
use vervain_hca::process::peer::Location;
use vervain_hca::{Context, Cq, Mr, Pd, access};

#[derive(Clone, Debug)]
enum Op {
    Alloc(u64),
    Sparse(u64),
    Free(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![0u64..300, 3900..4300u64, 4096..70_000u64];
    prop_oneof![
        4 => len.clone().prop_map(Op::Alloc),
        1 => len.prop_map(Op::Sparse),
        4 => any::<prop::sample::Index>().prop_map(|i| Op::Free(i.index(1 << 16))),
    ]
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

// The mapping is shared memory, which the arena itself never holds a reference to.
#[allow(clippy::mut_from_ref)]
fn bytes<'a>(arena: &'a Arena, block: &Block) -> &'a mut [u8] {
    let p = arena.view().at(block.offset(), block.len()).expect("inside the arena");
    // SAFETY: the block is allocated, and only this thread uses it.
    unsafe { std::slice::from_raw_parts_mut(p, block.len() as usize) }
}

fn free(arena: &Arena, block: Block, mark: u8) {
    assert!(bytes(arena, &block).iter().all(|b| *b == mark), "somebody else wrote into the block");
    arena.release(block);
}

const HEADER: u64 = 5000;

proptest! {
    #![proptest_config(config(60))]
    #[test]
    fn blocks_do_not_overlap_and_come_zeroed(ops in prop::collection::vec(op(), 1..150)) {
        let arena = Arena::create(HEADER).unwrap();
        let mut blocks: Vec<(Block, u8)> = Vec::new();
        let mut taken: BTreeMap<u64, u64> = BTreeMap::from([(0, HEADER)]);
        for (i, op) in ops.iter().enumerate() {
            match *op {
                Op::Alloc(len) | Op::Sparse(len) => {
                    let block = if matches!(op, Op::Alloc(_)) { arena.alloc(len) } else { arena.alloc_sparse(len) }.unwrap();
                    let (start, end) = (block.offset(), block.offset() + block.len());
                    prop_assert!(block.len() >= len.max(1) && block.len() < len + 4096);
                    let unit = if len < 4096 { 64 } else { 4096 };
                    prop_assert!(start.is_multiple_of(unit));
                    prop_assert!(end <= arena.view().len());
                    let before = taken.range(..end).next_back();
                    prop_assert!(before.is_none_or(|(_, e)| *e <= start), "{start}..{end} overlaps {before:?}");
                    prop_assert!(bytes(&arena, &block).iter().all(|b| *b == 0), "not zeroed");
                    let mark = (i % 255) as u8 + 1;
                    bytes(&arena, &block).fill(mark);
                    taken.insert(start, end);
                    blocks.push((block, mark));
                }
                Op::Free(_) if blocks.is_empty() => {}
                Op::Free(i) => {
                    let (block, mark) = blocks.swap_remove(i % blocks.len());
                    taken.remove(&block.offset());
                    free(&arena, block, mark);
                }
            }
        }
        blocks.into_iter().for_each(|(block, mark)| free(&arena, block, mark));
        // All of it is one piece again.
        let rest = arena.view().len() - HEADER.next_multiple_of(4096);
        prop_assert!(arena.alloc_sparse(rest).is_err(), "a page is set aside for alignment");
        let all = arena.alloc_sparse(rest - 4096).unwrap();
        prop_assert!(bytes(&arena, &all)[..1 << 20].iter().all(|b| *b == 0), "not zeroed");
        arena.release(all);
    }
}

struct Keys {
    _context: Arc<Context>,
    pds: [Arc<Pd>; 2],
    memory: Vec<u64>,
    live: Vec<(Arc<Mr>, u64, u64, u32, usize)>,
    stale: HashSet<u32>,
}

impl Keys {
    fn check(&self) {
        let own = &process().own;
        let pd_of = |key: u32| own.keys[key as usize >> 8].pd();
        for (mr, addr, len, rights, _) in &self.live {
            let (key, pd) = (mr.rkey(), pd_of(mr.rkey()));
            let find = |addr, len, need| own.resolve(key, addr, len, need, pd, 0);
            assert_eq!(find(*addr, *len, *rights), Some(Location::Mapped(*addr as *mut u8)));
            assert_eq!(find(addr + len, 0, *rights), Some(Location::Mapped((addr + len) as *mut u8)));
            for (a, l) in [(*addr, len + 1), (addr + 1, *len), (addr - 1, 1), (addr + len, 1), (*addr, u64::MAX)] {
                assert_eq!(find(a, l, *rights), None, "{l} bytes at {a:#x} are not in {len} at {addr:#x}");
            }
            for right in [1, 2, 4, 8, 16] {
                assert_eq!(find(*addr, 1.min(*len), right).is_some(), rights & right != 0);
            }
            assert_eq!(own.resolve(key, *addr, 0, 0, pd + 1, 0), None, "another protection domain");
            for near in [key ^ 1, key ^ 0x80, key.wrapping_add(1)] {
                let known = self.live.iter().any(|(m, ..)| m.rkey() == near);
                assert!(known || own.resolve(near, *addr, 0, 0, pd, 0).is_none(), "another variant");
            }
        }
        for key in &self.stale {
            for pd in [0, pd_of(*key)] {
                assert_eq!(own.resolve(*key, self.memory.as_ptr() as u64, 0, 0, pd, 0), None, "stale key {key:#x}");
            }
        }
    }
}

proptest! {
    #![proptest_config(config(25))]
    #[test]
    fn a_key_is_good_from_registration_to_the_end_and_never_again(
        ops in prop::collection::vec((0..8u8, any::<prop::sample::Index>(), 0..4096u64, 1..2000u64, 0..32u32), 1..150)
    ) {
        let context = context();
        let pds = [context.alloc_pd().unwrap(), context.alloc_pd().unwrap()];
        let mut k = Keys { _context: context, pds, memory: vec![0; 1024], live: Vec::new(), stale: HashSet::new() };
        for (what, which, offset, len, rights) in ops {
            let addr = k.memory.as_ptr() as u64 + 8 + offset;
            let rights = if rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 { rights | 1 } else { rights };
            match what {
                0..=3 => {
                    let pd = offset as usize % 2;
                    let mr = Mr::register(&k.pds[pd], addr, len, addr, rights).unwrap();
                    prop_assert_eq!(mr.lkey(), mr.rkey());
                    prop_assert!(k.live.iter().all(|(m, ..)| m.rkey() >> 8 != mr.rkey() >> 8), "an index in use");
                    prop_assert!(!k.stale.contains(&mr.rkey()), "a key that was used before");
                    k.live.push((mr, addr, len, rights, pd));
                }
                4 | 5 if !k.live.is_empty() => {
                    let i = which.index(k.live.len());
                    let (mr, ..) = k.live.swap_remove(i);
                    mr.deregister().unwrap();
                    prop_assert!(mr.deregister().is_err());
                    k.stale.insert(mr.rkey());
                }
                6 if !k.live.is_empty() => {
                    let i = which.index(k.live.len());
                    let (mr, old_addr, old_len, old_rights, pd) = &mut k.live[i];
                    let key = mr.rkey();
                    match len % 3 {
                        0 => {
                            mr.rereg(1, None, addr, len, 0).unwrap();
                            (*old_addr, *old_len) = (addr, len);
                        }
                        1 => {
                            mr.rereg(4, None, 0, 0, rights).unwrap();
                            *old_rights = rights;
                        }
                        _ => {
                            *pd = 1 - *pd;
                            mr.rereg(2, Some(&k.pds[*pd]), 0, 0, 0).unwrap();
                        }
                    }
                    prop_assert_eq!(mr.rkey(), key, "the keys stay");
                }
                _ => k.check(),
            }
        }
        k.check();
        for (mr, ..) in &k.live {
            mr.deregister().unwrap();
            let entry = process().own.keys[mr.rkey() as usize >> 8].key.load(Ordering::Relaxed);
            prop_assert_eq!(entry, 0);
        }
        k.pds.iter().for_each(|pd| pd.dealloc().unwrap());
    }
}

#[test]
fn an_index_that_is_used_again_gives_another_key() {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let memory = [0u64; 8];
    let addr = memory.as_ptr() as u64;
    let mut seen = HashSet::new();
    for _ in 0..2_000 {
        let mr = Mr::register(&pd, addr, 64, addr, access::LOCAL_WRITE).unwrap();
        assert!(seen.insert(mr.rkey()), "the key {:#x} came twice", mr.rkey());
        mr.deregister().unwrap();
    }
    let indices: HashSet<u32> = seen.iter().map(|key| key >> 8).collect();
    assert!(indices.len() < 1_000, "indices are used again");
}

#[test]
fn a_region_ends_only_when_no_peer_is_in_flight() {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
    let qp = common::receiver(&context, &pd, &cq, None, 4);
    let target = common::bind(&qp, common::foreign(1));
    let memory = [0u64; 8];
    let addr = memory.as_ptr() as u64;
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    for _ in 0..20 {
        let mr = Mr::register(&pd, addr, 64, addr, rights).unwrap();
        let gone = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            let mark = common::enter(&target);
            assert!(target.remote_memory(mr.rkey(), addr, 64, access::REMOTE_WRITE).is_ok());
            s.spawn(|| {
                mr.deregister().unwrap();
                gone.store(true, Ordering::SeqCst);
            });
            while target.remote_memory(mr.rkey(), addr, 64, access::REMOTE_WRITE).is_ok() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(3));
            assert!(!gone.load(Ordering::SeqCst), "the region ended under an access");
            drop(mark);
        });
        assert!(gone.load(Ordering::SeqCst));
    }
}

/// In a child, for the limit is the process's.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    let create = |bytes: u64| {
        // SAFETY: the child has one thread, and ends at once.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // SAFETY: plain calls.
            unsafe {
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                libc::_exit(Arena::create(HEADER).map_or_else(|e| e.errno(), |_| 0));
            }
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
        libc::WEXITSTATUS(status)
    };
    assert_eq!(create(1 << 20), libc::EFBIG);
    assert_eq!(create(1 << 30), 0, "a smaller arena will do");
}
