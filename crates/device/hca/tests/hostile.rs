//! Shared memory written by someone who means harm, or has gone mad: whatever stands in a peer's arena, or is written
//! by a peer into our own, nothing panics, loops or leaves the mapping.

mod common;

use common::{ARENA_FD, INITIATORS_LIVE, Random, TURN, bind, context, fake_share, foreign, process, receiver};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vervain_hca::Nak;
use vervain_hca::arena::View;
use vervain_hca::arena::layout::{
    CqShared, CqeRing, Header, IS_INLINE, KEY_WINDOW, KEY_WINDOW2, KeyEntry, Lane, OFFSET_BITS, ObjectEntry, QpShared,
    RecvWqe, RqShared, Switch,
};
use vervain_hca::mr::transfer::{Direction, Policy, Way, aim, way};
use vervain_hca::process::imports::{SLACK, Wanted};
use vervain_hca::process::lanes::LaneRequest;
use vervain_hca::process::peer::{Location, PeerProcess};
use vervain_hca::responder::{QpIncarnation, Responder, Spoilt};
use vervain_hca::rq::{Receipt, RqView};
use vervain_hca::{
    Cq, Dm, Mr, Qp, QpAttr, QpCap, QpInit, QpState, QpType, Sge, Srq, SrqInit, Status, Xrcd, access, attr, event,
};

/// The shared object, sparse and longer than one window.
const OBJECT: &std::ffi::CStr = c"hostile-object";
const OBJECT_LEN: u64 = 65 << 30;
/// No call may take longer. Generous, for machines that are busy; what is unbounded takes for ever.
const LIMIT: Duration = Duration::from_secs(20);
/// Panics in any thread, the progress thread included.
static PANICS: AtomicU32 = AtomicU32::new(0);

/// Places that were found in the shared object.
static IN_OBJECTS: AtomicU32 = AtomicU32::new(0);

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let old = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            old(info);
        }));
    });
}

/// The facts about an honest process: the numbers and offsets by which a peer finds its way in it.
struct Honest {
    qpns: Vec<u32>,
    srqn: u32,
    lanes: Vec<u64>,
    rkeys: Vec<u32>,
    addrs: Vec<u64>,
    /// The shared object under one of the keys.
    object: Wanted,
    /// Places that a hostile owner would write to: offset and bytes.
    structs: Vec<(u64, u64)>,
    /// Keeps everything alive.
    _objects: Box<dyn std::any::Any + Send + Sync>,
}

fn memfd(name: &std::ffi::CStr, size: u64) -> OwnedFd {
    let fd =
        // SAFETY: a fresh descriptor, owned at once.
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC)) };
    // SAFETY: plain calls on our own descriptor.
    unsafe {
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), size as i64), 0);
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW), 0);
    }
    fd
}

fn honest() -> Honest {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 64, None, 0, 0, false, true).unwrap();
    let srq_init = SrqInit { max_wr: 8, max_sge: 2, cookie: 0, xrc: None };
    let srq = Srq::create(&context, &pd, &srq_init).unwrap();
    let xrcd = Xrcd::open(&context, None, libc::O_CREAT).unwrap();
    let xsrq = Srq::create(&context, &pd, &SrqInit { xrc: Some((&xrcd, &cq)), ..srq_init }).unwrap();
    let rc = receiver(&context, &pd, &cq, None, 8);
    let on_srq = receiver(&context, &pd, &cq, Some(&srq), 0);
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 2, max_inline_data: 0 };
    let init = QpInit {
        qp_type: QpType::Ud,
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
        cookie: 0,
    };
    let ud = Qp::create(&context, Some(&pd), &init).unwrap();
    let new = QpAttr { qp_state: QpState::Init, port_num: 1, ..QpAttr::default() };
    ud.modify(&new, attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::QKEY).unwrap();
    ud.modify(&QpAttr { qp_state: QpState::Rtr, ..new }, attr::STATE).unwrap();
    let buffer = vec![0u64; 1024];
    let addr = buffer.as_ptr() as u64;
    let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let heap = Mr::register(&pd, addr, 8192, addr, all).unwrap();
    let dm = Dm::alloc(&context, 8192, 0).unwrap();
    let in_arena = Mr::of_dm(&pd, &dm, 0, 8192, all | access::ZERO_BASED).unwrap();
    let shared_at = fake_share::memfd(OBJECT, OBJECT_LEN, true) as u64;
    let shared = Mr::register(&pd, shared_at + 4096, 8192, 0x7000, all).unwrap();
    for i in 0..8 {
        let sges =
            [Sge { addr: 64 * i, length: 16, lkey: in_arena.lkey() }, Sge { addr, length: 16, lkey: heap.lkey() }];
        rc.post_recv(i, &sges[..1]).unwrap();
        srq.post_recv(i, &sges).unwrap();
        xsrq.post_recv(i, &sges).unwrap();
        let _ = ud.post_recv(i, &sges);
    }
    for srq in [&srq, &xsrq] {
        srq.modify(Some(2), None).unwrap();
    }
    let own = &process().own;
    let lane_of = |qpn| own.qp(qpn).unwrap().lane.load(Ordering::Acquire);
    let request = LaneRequest { initiator: foreign(9), qpn: ud.qp_num(), srqn: 0 };
    let lanes = vec![lane_of(rc.qp_num()), lane_of(on_srq.qp_num()), process().lanes.make(&request).unwrap()];
    let base = own.view.at(0, 0).unwrap() as u64;
    let at = |p: *const u8| p as u64 - base;
    let size = |n: usize| n as u64;
    let mut structs = vec![(0, 320)];
    let entry = &own.keys[shared.rkey() as usize >> 8];
    let object = Wanted {
        number: (entry.at.load(Ordering::Relaxed) >> OFFSET_BITS) as u32,
        generation: entry.generation.load(Ordering::Relaxed),
        window: 0,
    };
    let objects = own.header.objects.load(Ordering::Relaxed);
    structs.extend((0..3).map(|_| (objects + u64::from(object.number) * 64, size(size_of::<ObjectEntry>()))));
    for key in [heap.rkey(), in_arena.rkey(), shared.rkey(), shared.rkey(), shared.rkey()] {
        structs.push((at((&raw const own.keys[key as usize >> 8]).cast()), size(size_of::<KeyEntry>())));
    }
    let qpns: Vec<u32> = [&rc, &on_srq, &ud].map(|q| q.qp_num()).to_vec();
    for qpn in &qpns {
        let qp = own.qp(*qpn).unwrap();
        structs.push((at(std::ptr::from_ref(qp).cast()), size(size_of::<QpShared>())));
        structs.push((qp.switch.load(Ordering::Relaxed), size(size_of::<Switch>())));
    }
    for lane in &lanes {
        let l = own.view.get::<Lane>(*lane).unwrap();
        structs.push((*lane, size(size_of::<Lane>())));
        structs.push((l.leads_to.cq.load(Ordering::Relaxed), 256));
        let rq = l.leads_to.rq.load(Ordering::Relaxed);
        let r = own.view.get::<RqShared>(rq).unwrap();
        structs.push((rq, size(size_of::<RqShared>())));
        structs.push((r.ring.load(Ordering::Relaxed), 64));
        let stride = u64::from(r.stride.load(Ordering::Relaxed));
        structs.extend((0..3).map(|i| (r.wqes.load(Ordering::Relaxed) + i * stride, size(size_of::<RecvWqe>()) + 32)));
    }
    structs.push((at(std::ptr::from_ref(own.xrc_srq(xsrq.srq_num()).unwrap()).cast()), size(size_of::<RqShared>())));
    Honest {
        qpns,
        srqn: xsrq.srq_num(),
        lanes,
        rkeys: vec![heap.rkey(), in_arena.rkey(), shared.rkey()],
        addrs: vec![addr, 0, 8, 0x7000, 0x7008],
        object,
        structs,
        _objects: Box::new(((context, pd, cq, srq, xrcd, xsrq, rc), (on_srq, ud, buffer, heap, dm, in_arena, shared))),
    }
}

/// A private copy of this process's arena, to be spoiled and mended.
struct Copied {
    fd: OwnedFd,
    wake: OwnedFd,
    extents: Vec<(u64, Vec<u8>)>,
}

impl Copied {
    fn take() -> Copied {
        let from = ARENA_FD.load(Ordering::Relaxed);
        let mut extents = Vec::new();
        let mut at = 0;
        loop {
            // SAFETY: plain seeks on the arena's descriptor, whose offset nobody uses.
            let (start, end) = unsafe {
                let start = libc::lseek(from, at, libc::SEEK_DATA);
                (start, libc::lseek(from, start.max(0), libc::SEEK_HOLE))
            };
            if start < 0 {
                break;
            }
            let own = process().own.view.at(start as u64, (end - start) as u64).unwrap();
            let mut bytes = vec![0u8; (end - start) as usize];
            // SAFETY: the range was just checked; nobody writes to these objects while the copy is made.
            unsafe { std::ptr::copy_nonoverlapping(own, bytes.as_mut_ptr(), bytes.len()) };
            extents.push((start as u64, bytes));
            at = end;
        }
        let size = (at as u64).next_multiple_of(4096) + (1 << 20);
        // SAFETY: a fresh descriptor, owned at once.
        let wake = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
        Copied { fd: memfd(c"hostile", size), wake, extents }
    }

    fn view(&self) -> View {
        View::of_peer(self.fd.as_raw_fd()).unwrap()
    }

    fn mend(&self, view: &View) {
        for (at, bytes) in &self.extents {
            let to = view.at(*at, bytes.len() as u64).unwrap();
            // SAFETY: the range was just checked.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        // The mutex of the real owner says nothing here.
        view.get::<Header>(0).unwrap().switch.alive[0].store(0, Ordering::Relaxed);
    }

    fn space(&self, view: &View) -> Option<Arc<PeerProcess>> {
        let wake = self.wake.try_clone().unwrap();
        PeerProcess::new(view.clone(), Some(common::ask), std::process::id() as i32, wake).ok().map(Arc::new)
    }
}

fn value(r: &mut Random, view: &View, honest: &Honest, old: u64) -> u64 {
    let some = |r: &mut Random| honest.structs[r.below(honest.structs.len() as u64) as usize].0;
    match r.below(8) {
        0 => [0, 1, 2, 3, 7, 8, 15, 31, 63, 64, 65, 255, 4096, 65535, 65536][r.below(15) as usize],
        1 => u64::MAX - [0, 1, 7, 8, 63, 64, 4095][r.below(7) as usize],
        2 => view.len() - [0, 1, 4, 8, 64, 128, 4096][r.below(7) as usize],
        3 => {
            [1 << 31, (1 << 31) - 1, u64::from(u32::MAX), 1 << 32, 1 << 63, (1 << 63) - 1, 1 << 24][r.below(7) as usize]
        }
        4 => some(r),
        5 => old ^ 1 << r.below(64),
        6 => r.next() & u64::from(u32::MAX),
        _ => r.next(),
    }
}

fn spoil(r: &mut Random, view: &View, honest: &Honest) {
    let (at, len) = honest.structs[r.below(honest.structs.len() as u64) as usize];
    if r.below(2) == 0 {
        let word = view.get::<AtomicU32>(at + r.below(len / 4) * 4).unwrap();
        let new = value(r, view, honest, u64::from(word.load(Ordering::Relaxed)));
        word.store(new as u32, Ordering::Relaxed);
    } else if let Some(word) = view.get::<AtomicU64>(at + r.below(len / 8) * 8) {
        word.store(value(r, view, honest, word.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

/// Memory that is said to be mapped must be, in the arena or in an object; one byte at each end is written.
fn check(view: &View, objects: &[std::ops::Range<u64>], place: Location, len: u64) {
    if let Location::Mapped(p) = place {
        let base = view.at(0, 0).unwrap() as u64;
        let at = p as u64;
        let in_arena = at.checked_sub(base).and_then(|o| o.checked_add(len)).is_some_and(|end| end <= view.len());
        // A place in an object is contiguous for so many bytes; a chunk of a copy is shorter.
        let len = if in_arena { len } else { len.min(SLACK) };
        let in_object = objects.iter().any(|o| o.start <= at && at + len <= o.end);
        IN_OBJECTS.fetch_add(u32::from(in_object), Ordering::Relaxed);
        assert!(in_arena || in_object, "{len} bytes at {p:?} leave what is mapped: {objects:x?}");
        if len > 0 {
            // SAFETY: inside a mapping, as just checked.
            unsafe {
                p.write_volatile(0xee);
                p.add(len as usize - 1).write_volatile(0xee);
            }
        }
    }
}

/// The ranges at which the shared object is mapped in this process.
fn mapped_objects() -> Vec<std::ops::Range<u64>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
    };
    maps.lines().filter(|l| l.contains(OBJECT.to_str().unwrap())).filter_map(range).collect()
}

/// Descriptors that an owner might send: the object, one that could shrink, none of memory, nothing.
fn some_fd(r: &mut Random) -> Option<OwnedFd> {
    // SAFETY: fresh descriptors, owned at once.
    unsafe {
        match r.below(6) {
            0 => None,
            1 => Some(OwnedFd::from_raw_fd(libc::memfd_create(c"loose".as_ptr(), libc::MFD_CLOEXEC))),
            2 => Some(OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC))),
            3 => Some(memfd(OBJECT, [1, 4095, 4096, 1 << 20][r.below(4) as usize])),
            _ => Some(fake_share::descriptor(OBJECT_LEN)),
        }
    }
}

/// The link's work with objects, on an owner's messages, which may say anything.
fn objects(space: &PeerProcess, honest: &Honest, r: &mut Random) {
    let o = honest.object;
    space.map_object(&o, Some(fake_share::descriptor(OBJECT_LEN)));
    let wild = Wanted {
        number: [o.number, 0, 1, 4095, 4096, r.next() as u32][r.below(6) as usize],
        generation: [o.generation, 0, r.next() as u32][r.below(3) as usize],
        window: [0, 1, 2, r.next() as u32][r.below(4) as usize],
    };
    for wanted in [Wanted { window: 1, ..o }, wild] {
        space.map_object(&wanted, some_fd(r));
    }
    let _ = space.heap();
    if r.below(4) == 0 {
        space.forget_object(wild.number, wild.generation);
    }
    space.sweep_objects();
}

/// Everything that an initiator does in a peer's arena.
fn visit(space: &Arc<PeerProcess>, honest: &Honest, r: &mut Random) {
    let view = &space.view;
    objects(space, honest, r);
    let mapped = mapped_objects();
    for &qpn in &honest.qpns {
        let _ = space.qp(qpn);
    }
    if let Some(srq) = space.xrc_srq(honest.srqn) {
        let at = std::ptr::from_ref(srq) as u64 - view.at(0, 0).unwrap() as u64;
        if let Some(rq) = RqView::new(view, at)
            && let Some(claimed) = rq.claim(foreign(9))
        {
            assert!(rq.sges(claimed).is_none_or(|s| s.len() <= 256), "more pieces than any device allows");
        }
    }
    let _ = (space.qp(r.next() as u32), space.xrc_srq(r.next() as u32));
    space.raise(r.next() as u32);
    space.take_attention(|_| ());
    let lanes = honest.lanes.iter().copied().chain([r.below(view.len()) & !63, r.next()]);
    for lane in lanes {
        // Behind the lane is the QP that was seen there, also if it claims to be another one now.
        let behind = view.get::<Lane>(lane).and_then(|l| view.get::<QpShared>(l.leads_to.qp.load(Ordering::Relaxed)));
        let seen = behind.map_or(QpIncarnation { qpn: 0, generation: 0 }, QpIncarnation::now);
        let Some(target) = Responder::bind(space, lane, 7 << 32 | u64::from(foreign(9)), seen) else { continue };
        let mark = target.enter();
        let _ = target.has_receive();
        for round in 0..3u32 {
            let Ok(wqe) = target.claim() else { break };
            let room = target.receive_room(wqe);
            for offset in [0, 1, room.wrapping_sub(1), room, u64::MAX] {
                if let Ok(Some((place, len, _, _))) = target.receive_memory(wqe, offset, u64::MAX) {
                    check(view, &mapped, place, len);
                }
            }
            let receipt =
                Receipt { opcode: 128, status: Status::Success.to_verbs(), byte_len: 1, ..Receipt::default() };
            match round {
                2 if r.below(4) == 0 => {
                    target.spoil_receive(
                        wqe,
                        &receipt,
                        Spoilt { status: Status::LocalLength, length: 64, whole: true },
                    );
                }
                _ => target.complete_receive(wqe, &receipt, round == 0),
            }
        }
        let wild = [r.next() as u32, (r.next() & 0x0fff_ffff) as u32];
        for key in honest.rkeys.iter().copied().chain(wild) {
            for addr in honest.addrs.iter().copied().chain([r.next(), u64::MAX]) {
                for (len, need) in
                    [(8, access::REMOTE_WRITE), (4096, access::REMOTE_READ), (0, 0), (r.next(), access::REMOTE_WRITE)]
                {
                    let Ok(place) = target.remote_memory(key, addr, len, need) else { continue };
                    check(view, &mapped, place, len);
                    if let Way::Vm(host) = way(space, place, Policy::Auto) {
                        aim(&target.lane, Direction::Write, host, len, true);
                        target.lane.unaim();
                    }
                }
            }
            let _ = target.invalidate(key);
        }
        if r.below(4) == 0 {
            let _ = target.refuse(Nak::RemoteAccess, |_| ());
            target.fail(Some(event::QP_REQ_ERR));
        }
        target.barrier();
        let _ = target.withdraw();
        drop(mark);
        target.leave();
        target.release();
    }
}

/// Runs `f`; says which case failed, and how long it took if that was too long.
fn guarded(seed: u64, f: impl FnOnce()) {
    let started = Instant::now();
    let before = PANICS.load(Ordering::SeqCst);
    let outcome = catch_unwind(AssertUnwindSafe(f));
    assert!(outcome.is_ok(), "the case of seed {seed:#x} panicked");
    assert_eq!(PANICS.load(Ordering::SeqCst), before, "another thread panicked in the case of seed {seed:#x}");
    let took = started.elapsed();
    assert!(took < LIMIT, "the case of seed {seed:#x} took {took:?}");
}

/// The number of mapped objects, after those of peers that are gone were let go; not more than `before`. The progress
/// thread tidies up too, and an object that it is about to unmap is neither in the list nor gone.
fn settled(before: usize) -> usize {
    let (deadline, mut same) = (Instant::now() + LIMIT, 0);
    let mut now = mapped_objects().len();
    while same < 5 || now > before {
        assert!(Instant::now() < deadline, "{now} objects stay mapped, {before} were before");
        std::thread::sleep(Duration::from_millis(1));
        process().tidy_imports();
        let next = mapped_objects().len();
        same = if next == now { same + 1 } else { 0 };
        now = next;
    }
    now
}

#[test]
fn a_spoiled_arena_of_a_peer_does_no_harm() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    count_panics();
    let honest = honest();
    let copy = Copied::take();
    let (mut bound, mut before) = (0, usize::MAX);
    for seed in 1..=6_000u64 {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let view = copy.view();
        copy.mend(&view);
        if seed % 8 == 1 {
            // Windows too: a type 2 one of the first QP, and one over a region.
            let e = view.get::<KeyEntry>(honest.structs[1].0).unwrap();
            e.domain.store(u64::from(KEY_WINDOW | KEY_WINDOW2) << 32 | u64::from(e.pd()), Ordering::Relaxed);
            e.qpn.store(honest.qpns[0], Ordering::Relaxed);
            e.parent.store(honest.rkeys[1], Ordering::Relaxed);
            assert_ne!(e.key.load(Ordering::Relaxed), 0);
        }
        (0..r.below(4)).for_each(|_| spoil(&mut r, &view, &honest));
        let Some(space) = copy.space(&view) else {
            continue;
        };
        bound += 1;
        guarded(seed, || visit(&space, &honest, &mut r));
        drop(space);
        process().tidy_imports();
        if seed % 500 == 0 {
            before = settled(before);
        }
    }
    assert!(bound > 4_000, "most cases must get past the header: {bound}");
    let found = IN_OBJECTS.load(Ordering::Relaxed);
    assert!(found > 10_000, "most cases must find the shared object mapped: {found} places");
}

#[test]
fn an_arena_that_changes_under_the_reader_does_no_harm() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    count_panics();
    let honest = honest();
    let copy = Copied::take();
    let view = copy.view();
    copy.mend(&view);
    let space = copy.space(&view).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut r = Random(77);
            while !stop.load(Ordering::Relaxed) {
                (0..64).for_each(|_| spoil(&mut r, &view, &honest));
                copy.mend(&view);
            }
        });
        let end = Instant::now() + Duration::from_millis(1500);
        let mut r = Random(78);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while Instant::now() < end {
                guarded(r.0, || visit(&space, &honest, &mut Random(r.0)));
                process().tidy_imports();
                r.next();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        assert!(outcome.is_ok());
    });
}

#[test]
fn a_ring_that_is_full_of_claims_does_not_hold_the_claimer() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // An entry for each value that a position has, each of them claimed at its own position.
    let entries = 1u64 << 24;
    let fd = memfd(c"hostile", entries * 8 + 4096);
    let view = View::of_peer(fd.as_raw_fd()).unwrap();
    let shared = view.get::<RqShared>(0).unwrap();
    shared.ring.store(4096, Ordering::Relaxed);
    shared.mask.store(entries as u32 - 1, Ordering::Relaxed);
    shared.open.store(1, Ordering::Relaxed);
    if let Some(rq) = RqView::new(&view, 0) {
        let ring = view.slice::<AtomicU64>(4096, entries as usize).unwrap();
        ring.iter().enumerate().for_each(|(i, e)| e.store((i as u64) << 40 | 0x1234, Ordering::Relaxed));
        // Without a bound it would never return; the watcher says so instead of hanging for ever.
        let (done, finished) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = rq.claim(foreign(1));
            let _ = done.send(());
        });
        finished.recv_timeout(LIMIT).expect("the claimer is still looking");
    }
    // A head that stands at the end of its numbers.
    let shared = view.get::<RqShared>(0).unwrap();
    shared.mask.store(7, Ordering::Relaxed);
    shared.head.first.store(u64::MAX, Ordering::Relaxed);
    shared.count.store(8, Ordering::Relaxed);
    shared.wqes.store(8192, Ordering::Relaxed);
    let ring = view.slice::<AtomicU64>(4096, 8).unwrap();
    for e in ring {
        e.store(0xff_ffff << 40, Ordering::Relaxed);
    }
    let rq = RqView::new(&view, 0).unwrap();
    let _ = rq.claim(foreign(1));
    // Pieces beyond number: they would be walked one by one.
    shared.max_sge.store(u32::MAX, Ordering::Relaxed);
    shared.stride.store(64, Ordering::Relaxed);
    rq.wqe(1).unwrap().num_sge.store(1 << 22, Ordering::Relaxed);
    assert!(rq.sges(1).is_none_or(|s| s.len() <= 256), "more pieces than any device allows");
}

#[test]
fn what_peers_write_into_our_own_arena_does_no_harm() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    count_panics();
    INITIATORS_LIVE.store(false, Ordering::Relaxed);
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let view = process().own.view.clone();
    for seed in 1..=600u64 {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        guarded(seed, || {
            let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
            let srq_init = SrqInit { max_wr: 4, max_sge: 1, cookie: 0, xrc: None };
            let srq = Srq::create(&context, &pd, &srq_init).unwrap();
            let qp = receiver(&context, &pd, &cq, (seed % 2 == 0).then_some(&srq), 4);
            let post = |id| if seed % 2 == 0 { srq.post_recv(id, &[]) } else { qp.post_recv(id, &[]) };
            (0..4).for_each(|id| post(id).unwrap());
            let target = bind(&qp, foreign(1));
            let offset = process().own.qp(qp.qp_num()).unwrap().lane.load(Ordering::Relaxed);
            let rq = &target.rq.as_ref().unwrap().shared;
            let cq_at = target.lane.leads_to.cq.load(Ordering::Relaxed);
            let places = [
                (offset, size_of::<Lane>() as u64),
                (target.lane.leads_to.ring.load(Ordering::Relaxed), 16),
                // The queue of a connected QP has none: the lane once more.
                match target.lane.leads_to.cqes.load(Ordering::Relaxed) {
                    0 => (offset, size_of::<Lane>() as u64),
                    cqes => (cqes, size_of::<CqeRing>() as u64),
                },
                (target.lane.leads_to.rq.load(Ordering::Relaxed), size_of::<RqShared>() as u64),
                (rq.ring.load(Ordering::Relaxed), 32),
                (rq.wqes.load(Ordering::Relaxed), 256),
                (cq_at, size_of::<CqShared>() as u64),
            ];
            let honest = Honest {
                qpns: Vec::new(),
                srqn: 0,
                lanes: Vec::new(),
                object: Wanted { number: 0, generation: 0, window: 0 },
                rkeys: Vec::new(),
                addrs: Vec::new(),
                structs: places.to_vec(),
                _objects: Box::new(()),
            };
            for round in 0..6 {
                if let Ok(wqe) = target.claim() {
                    common::publish(&target, wqe, round);
                }
                (0..=r.below(2)).for_each(|_| spoil(&mut r, &view, &honest));
                process().own.raise(target.lane.attention.load(Ordering::Relaxed));
                common::poll(&cq, 3);
                let _ = post(50 + u64::from(round));
                let _ = cq.req_notify(r.below(2) == 0);
                let _ = cq.resize(8 + r.below(30) as u32);
                let _ = (srq.query(), srq.modify(Some(1), None));
            }
            let to = if r.below(2) == 0 { QpState::Reset } else { QpState::Err };
            let _ = qp.modify(&QpAttr { qp_state: to, ..QpAttr::default() }, attr::STATE);
            common::poll(&cq, 64);
            process().lanes.reap(&[common::FOREIGN_SLOT]);
            drop(target);
            qp.destroy().unwrap();
            srq.destroy().unwrap();
            cq.destroy().unwrap();
        });
    }
    INITIATORS_LIVE.store(true, Ordering::Relaxed);
}

#[test]
fn a_published_index_that_no_receive_has_is_not_believed() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
    let qp = receiver(&context, &pd, &cq, None, 4);
    qp.post_recv(1, &[]).unwrap();
    let target = bind(&qp, foreign(1));
    // The peer also says that there are more receives than were ever made.
    target.rq.as_ref().unwrap().shared.count.store(u32::MAX, Ordering::Relaxed);
    for index in [4, 100, 65_535, 65_536, u32::MAX] {
        common::publish(&target, index, 0);
        assert!(common::poll(&cq, 4).is_empty(), "receive {index} was never posted");
    }
    let wqe = target.claim().unwrap();
    common::publish(&target, wqe, 7);
    assert_eq!(common::poll(&cq, 4).iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1]);
}

/// A completion that says to hold a message writes only where a receive was posted, and no further.
#[test]
fn a_forged_message_in_a_completion_is_written_nowhere_else() {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = Cq::create(&context, 16, None, 0, 0, false, false).unwrap();
    let srq_init = SrqInit { max_wr: 4, max_sge: 1, cookie: 0, xrc: None };
    let memory = Box::new([0xee_u8; 64]);
    let addr = memory.as_ptr() as u64;
    let mr = Mr::register(&pd, addr, 16, addr, access::LOCAL_WRITE).unwrap();
    let read_only = Mr::register(&pd, addr, 64, addr, 0).unwrap();
    let good = Sge { addr, length: 8, lkey: mr.lkey() };
    // The receive's memory, the message's length in the completion, and the receive's number in it.
    let cases = [
        (good, 8, 0, Some(Status::Success.to_verbs())),
        (good, 9, 0, Some(Status::LocalProtection.to_verbs())),
        (good, u32::MAX, 0, Some(Status::LocalProtection.to_verbs())),
        (good, 8, 1, None),
        (good, 8, 70_000, None),
        (Sge { length: 64, ..good }, 17, 0, Some(Status::LocalProtection.to_verbs())),
        (Sge { lkey: read_only.lkey(), ..good }, 8, 0, Some(Status::LocalProtection.to_verbs())),
        (Sge { lkey: mr.lkey() ^ 1, ..good }, 8, 0, Some(Status::LocalProtection.to_verbs())),
        (Sge { addr: addr + 12, ..good }, 8, 0, Some(Status::LocalProtection.to_verbs())),
    ];
    for (sge, len, beside, status) in cases {
        let srq = Srq::create(&context, &pd, &srq_init).unwrap();
        let qp = receiver(&context, &pd, &cq, Some(&srq), 0);
        srq.post_recv(5, &[sge]).unwrap();
        let target = bind(&qp, foreign(1));
        let wqe = target.claim().unwrap();
        let cqes = process().own.view.get::<CqeRing>(target.lane.leads_to.cqes.load(Ordering::Relaxed)).unwrap();
        let cqe = &cqes.entries[0];
        cqe.wqe.store((wqe + beside) | IS_INLINE, Ordering::Relaxed);
        cqe.completed.byte_len.store(len, Ordering::Relaxed);
        cqe.data.iter().for_each(|word| word.store(0x0101_0101, Ordering::Relaxed));
        cqe.turn.store(1, Ordering::Relaxed);
        cqe.published.store(1, Ordering::Release);
        let got = common::poll(&cq, 4);
        assert_eq!(got.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), Vec::from_iter(status.map(|s| (5, s))));
        let written = if status == Some(Status::Success.to_verbs()) { 8 } else { 0 };
        // SAFETY: the vector, which only the device writes to.
        let now: Vec<u8> = (0..64).map(|i| unsafe { memory.as_ptr().add(i).read_volatile() }).collect();
        let want = [vec![1; written], vec![0xee; 64 - written]].concat();
        assert_eq!(now, want, "{sge:?}, {len} bytes, receive {wqe} and {beside}");
        (0..written).for_each(|i| {
            // SAFETY: as above.
            unsafe { memory.as_ptr().add(i).cast_mut().write_volatile(0xee) }
        });
        if status == Some(Status::Success.to_verbs()) {
            // The same once more: the receive is taken, and its memory the program's.
            let again = &cqes.entries[1];
            again.wqe.store(wqe | IS_INLINE, Ordering::Relaxed);
            again.completed.byte_len.store(len, Ordering::Relaxed);
            again.turn.store(2, Ordering::Relaxed);
            again.published.store(2, Ordering::Release);
            assert!(common::poll(&cq, 4).is_empty(), "a receive that was taken completes once more");
            // SAFETY: as above.
            assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 0xee, "the memory of a receive that was taken");
        }
        drop(target);
        qp.destroy().unwrap();
        srq.destroy().unwrap();
    }
}
