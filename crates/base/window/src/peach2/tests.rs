//! Puts by boards into memory that the test sees on both sides.

use super::*;
use crate::claims::Claim;
use crate::device::{Faulted, Origin, Put, Refused};
use crate::layout::GRANULE;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;
use vervain_config::Without;

/// A window of two nodes of this process, and memory that the first may put to in the region of the second.
struct Pair {
    _file: OwnedFd,
    path: PathBuf,
    near: Peach2Device,
    far: Peach2Device,
    target: Claim,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts(Mutex<Vec<(Count, u64)>>);

impl Counts {
    fn take(&self, what: Count) -> u64 {
        let mut counts = self.0.lock().unwrap();
        counts.extract_if(.., |(kind, _)| *kind == what).map(|(_, n)| n).sum()
    }
}

/// A program whose memory is part of the first node's region.
struct Heap {
    base: usize,
    len: usize,
    at: u64,
    counts: Arc<Counts>,
}

impl Program for Heap {
    fn place(&self, address: *const u8, len: usize) -> Option<u64> {
        let offset = address.addr().checked_sub(self.base).filter(|offset| offset + len <= self.len)?;
        Some(self.at + offset as u64)
    }

    fn count(&self, what: Count, n: u64) {
        self.counts.0.lock().unwrap().push((what, n));
    }
}

/// Pieces of memory of the program.
struct Gathered(Vec<(*const u8, usize)>);

// SAFETY: the length is the sum of the pieces', and as many bytes are copied.
unsafe impl Source for Gathered {
    fn len(&self) -> usize {
        self.0.iter().map(|(_, len)| len).sum()
    }

    unsafe fn store_to(&self, to: *mut u8) -> std::result::Result<(), Faulted> {
        // SAFETY: the caller's.
        unsafe { self.store_part_to(0, self.len(), to) }
    }

    unsafe fn store_part_to(&self, from: usize, len: usize, to: *mut u8) -> std::result::Result<(), Faulted> {
        // SAFETY: a piece is memory of the test that nobody writes meanwhile.
        let bytes = |(at, len): &(*const u8, usize)| unsafe { std::slice::from_raw_parts(*at, *len) }.to_vec();
        let all: Vec<u8> = self.0.iter().flat_map(bytes).collect();
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(all[from..from + len].as_ptr(), len) };
        Ok(())
    }

    fn pieces(&self, each: &mut dyn FnMut(*const u8, usize)) -> bool {
        self.0.iter().for_each(|(at, len)| each(*at, *len));
        true
    }
}

const LEN: usize = 4 * GRANULE as usize;

impl Pair {
    fn new(model: Peach2) -> Pair {
        let options = |node| Options { node, peach2: None, size: Some(64 << 20), nodes: Some(2) };
        let file = crate::memfd(&options(None)).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let open = |node| Peach2Device::open(&path, &options(Some(node)), model).unwrap();
        let (near, far) = (open(0), open(1));
        let target = far.claims().process().unwrap().claim(4).unwrap();
        Pair { _file: file, path, near, far, target, counts: Arc::default() }
    }

    /// Gives the program of the first node a heap, and returns its memory.
    fn with_heap(&self) -> &'static mut [u8] {
        let claim = Box::leak(Box::new(self.near.claims().heap().unwrap().claim(4, 1).unwrap()));
        let at = self.near.own().bytes(claim.bytes()).unwrap();
        let heap = Heap { base: at.addr(), len: LEN, at: claim.bytes().start, counts: Arc::clone(&self.counts) };
        self.near.set_program(Box::new(heap));
        std::mem::forget(self.near.own().clone());
        // SAFETY: claimed for this, kept mapped, and given out once.
        unsafe { std::slice::from_raw_parts_mut(at, LEN) }
    }

    fn target(&self) -> u64 {
        self.target.bytes().start
    }

    fn put_there(&self, at: usize, len: usize) -> Vec<u8> {
        let from = self.target() + at as u64;
        let there = self.far.own().bytes(from..from + len as u64).unwrap();
        // SAFETY: inside of the region, and nobody puts there now.
        unsafe { std::slice::from_raw_parts(there, len) }.to_vec()
    }
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn what_is_put_is_there_whatever_the_board_can_read() {
    let pair = Pair::new(Peach2::default());
    let heap = pair.with_heap();
    heap.copy_from_slice(&numbers(LEN));
    let mut channel = pair.near.channel(1).unwrap();
    let mut put = |at: usize, source: &dyn Source| {
        channel.put(&[Put { to: pair.target() + at as u64, from: Origin::Source(source) }])
    };
    let piece = |at: usize, len: usize| (heap[at..at + len].as_ptr(), len);
    for (pieces, at, descriptors, alignment) in [
        (vec![piece(0, 4096)], 0, 1, 0),
        (vec![piece(20, 1000)], 4, 1, 0),
        (vec![piece(0, 1024), piece(4096, 1024), piece(8192, 1024)], 64, 1, 0),
        (vec![piece(0, 1024), piece(4096, 1024), piece(16384, 1024)], 64, 2, 0),
        (vec![piece(0, 1024), piece(1024, 512)], 64, 1, 0),
        // Not equal modulo 16, and not at a multiple of 4.
        (vec![piece(0, 4096)], 4, 1, 4096),
        (vec![piece(3, 4096)], 0, 1, 4096),
        (vec![piece(1, 255), piece(100, 257)], 32, 1, 512),
        // Shorter than a descriptor is worth.
        (vec![piece(0, 64)], 0, 1, 64),
    ] {
        let expected: Vec<u8> = pieces
            .iter()
            .flat_map(|(at, len)| {
                let from = at.addr() - heap.as_ptr().addr();
                heap[from..from + len].to_vec()
            })
            .collect();
        put(at, &Gathered(pieces.clone())).unwrap();
        assert!(pair.put_there(at, expected.len()) == expected, "{pieces:?} at {at}");
        let counted =
            [Count::HostDescriptors, Count::StagedAlignment, Count::StagedMemory].map(|what| pair.counts.take(what));
        assert_eq!(counted, [descriptors, alignment, 0], "{pieces:?} at {at}");
    }
    // Longer than an area, and not in the window.
    let elsewhere = numbers(LEN);
    put(8, &&elsewhere[..LEN - 8]).unwrap();
    assert!(pair.put_there(8, LEN - 8) == elsewhere[..LEN - 8]);
    assert_eq!(pair.counts.take(Count::StagedMemory), LEN as u64 - 8);
    assert_eq!((pair.counts.take(Count::Refusals), pair.counts.take(Count::Hops) > 0), (0, true));
    // The library never puts these.
    assert_eq!(put(2, &&elsewhere[..8]), Err(Refused::Misaligned));
    assert_eq!(put(0, &&elsewhere[..7]), Err(Refused::Misaligned));
    assert_eq!(put(LEN * 1000, &&elsewhere[..8]), Err(Refused::Outside));
    assert_eq!(pair.counts.take(Count::Refusals), 2);
}

#[test]
fn slots_of_eight_pairs_have_their_descriptors_on_the_board() {
    let pair = Pair::new(Peach2::default());
    let _heap = pair.with_heap();
    let prepared = |device: &Peach2Device| {
        let mut channel = device.channel(1).unwrap();
        channel.prepare(pair.target(), 256..256 + 64 * 128, 128);
        channel
    };
    let slot = pair.target() + 256 + 3 * 128;
    let mut is_internal = |channel: &mut Box<dyn Channel>| {
        let chain = [
            Put { to: slot + 56, from: Origin::Source(&&b"payload."[..]) },
            Put { to: slot + 8, from: Origin::Words(&[1, 2, 3, 4, 5, 6]) },
            Put { to: slot, from: Origin::Words(&[7]) },
        ];
        channel.put(&chain).unwrap();
        let counts = [Count::InternalDescriptors, Count::HostDescriptors].map(|what| pair.counts.take(what));
        assert!(matches!(counts, [2, 0] | [0, 2]), "{counts:?}");
        counts[0] == 2
    };
    let mut channels: Vec<_> = (0..8).map(|_| prepared(&pair.near)).collect();
    assert!(channels.iter_mut().all(&mut is_internal));
    assert_eq!(pair.put_there(256 + 3 * 128 + 56, 8), b"payload.");
    let mut ninth = prepared(&pair.near);
    assert!(!is_internal(&mut ninth));
    // The board's memory is that of the node, whichever process has it.
    let options = Options { node: Some(0), ..Options::default() };
    let beside = Peach2Device::open(&pair.path, &options, Peach2::default()).unwrap();
    let counts: Arc<Counts> = Arc::default();
    beside.set_program(Box::new(Heap { base: 0, len: 0, at: 0, counts: Arc::clone(&counts) }));
    let mut other = prepared(&beside);
    other.put(&[Put { to: slot, from: Origin::Words(&[7]) }]).unwrap();
    assert_eq!(counts.take(Count::InternalDescriptors), 0);
    drop(channels.pop());
    let mut other = prepared(&beside);
    other.put(&[Put { to: slot, from: Origin::Words(&[7]) }]).unwrap();
    assert_eq!(counts.take(Count::InternalDescriptors), 1);
    // A word of the block is no slot, and is put from its image all the same.
    channels[0].put(&[Put { to: pair.target() + 8, from: Origin::Words(&[9]) }]).unwrap();
    assert_eq!(pair.counts.take(Count::HostDescriptors), 1);
    assert_eq!(pair.put_there(8, 8), 9_u64.to_le_bytes());
}

#[test]
fn what_may_be_later_goes_with_what_may_not() {
    let pair = Pair::new(Peach2 { timing: true, ..Peach2::default() });
    let mut channel = pair.near.channel(1).unwrap();
    channel.prepare(pair.target(), 256..256 + 64 * 128, 128);
    let word = |at: u64, words: &'static [u64]| [Put { to: pair.target() + at, from: Origin::Words(words) }];
    let seen = |at| u64::from_le_bytes(pair.put_there(at, 8).try_into().unwrap());
    channel.put_later(&word(0, &[1])).unwrap();
    assert_eq!((seen(0), channel.owes()), (0, true));
    channel.put(&word(256, &[2])).unwrap();
    assert_eq!((seen(0), seen(256), channel.owes()), (1, 2, false));
    channel.put_later(&word(0, &[3])).unwrap();
    // A refused chain takes no other with it.
    let bytes = &[1_u8; 3][..];
    let refused = [word(384, &[5])[0], Put { to: pair.target(), from: Origin::Source(&bytes) }];
    assert_eq!(channel.put(&refused), Err(Refused::Misaligned));
    assert_eq!(seen(0), 1);
    channel.flush();
    assert_eq!((seen(0), seen(384), channel.owes()), (3, 0, false));
    // A put without an image is not left for later.
    channel.put_later(&word(LEN as u64 - 8, &[4])).unwrap();
    assert_eq!((seen(LEN - 8), channel.owes()), (4, false));
}

#[test]
fn puts_take_the_time_of_the_board() {
    let took = |model: Peach2, chain: &dyn Fn(u64) -> Vec<Put<'static>>| {
        let pair = Pair::new(Peach2 { timing: true, ..model });
        let mut channel = pair.near.channel(1).unwrap();
        channel.prepare(pair.target(), 256..256 + 64 * 128, 128);
        let chain = chain(pair.target());
        let once = || {
            let begin = board::now_ns();
            channel.put(&chain).unwrap();
            board::now_ns() - begin
        };
        // Other threads may take the processor, so only the fastest counts.
        std::iter::repeat_with(once).take(100).min().unwrap()
    };
    let slot = |to: u64| {
        vec![Put { to: to + 256 + 8, from: Origin::Words(&[1, 2]) }, Put { to: to + 256, from: Origin::Words(&[3]) }]
    };
    let bytes: &'static [u8] = Box::leak(vec![5_u8; 1 << 17].into_boxed_slice());
    let source: &'static &'static [u8] = Box::leak(Box::new(bytes));
    let long = |to: u64| vec![Put { to, from: Origin::Source(source) }];
    let without = |without| Peach2 { without, ..Peach2::default() };
    let plain = Peach2::default();
    for (model, chain, least) in [
        (plain, &slot as &dyn Fn(u64) -> Vec<Put<'static>>, 2000),
        (without(Without { internal: true, ..Without::default() }), &slot, 2200 + 2 * 20),
        (without(Without { prepared: true, ..Without::default() }), &slot, 2000 + 2 * 500),
        (without(Without { chaining: true, ..Without::default() }), &slot, 4000),
        (plain, &long, 2200 + (1 << 17) * 10 / 35),
    ] {
        let took = took(model, chain);
        assert!(took >= least, "{model:?}: {took} ns, not {least}");
    }
}

#[test]
fn descriptors_of_the_dead_are_given_back() {
    // The descriptor's end, as at a process's death: the kernel releases the locks.
    let pair = Pair::new(Peach2::default());
    let place = |device: &Peach2Device| device.0.prepare(64).map(|prepared| prepared.place);
    let held: Vec<_> = (0..8).map(|_| pair.near.0.prepare(64).unwrap()).collect();
    assert_eq!(place(&pair.near), None);
    assert!(place(&pair.far).is_some(), "another board");
    let options = Options { node: Some(0), ..Options::default() };
    let beside = Peach2Device::open(&pair.path, &options, Peach2::default()).unwrap();
    assert_eq!(place(&beside), None);
    let descriptor: c_int = pair.near.claims().descriptor().unwrap();
    // SAFETY: the descriptor is used afterwards only to give back what is gone.
    unsafe { libc::close(descriptor) };
    assert!(place(&beside).is_some());
    std::mem::forget((held, pair));
}
