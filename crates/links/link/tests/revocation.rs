//! Revocation against a writer that does not stop: once a region is deregistered or reregistered, or a window is
//! invalidated or freed, no byte of the memory changes any more through the old key (IBA 10.6.3, 10.6.7.2).

#[allow(dead_code)]
mod fixture;

use fixture::wait;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vervain_hca::{
    Bind, Context, Cq, Data, Mr, Mw, Opcode, Pd, Qp, QpAttr, QpCap, QpState, QpType, SendRequest, Sge, Status, access,
    attr, devices, send_flags,
};

/// Bytes of the region: more than one chunk of a copy.
const LEN: usize = 160 << 10;
/// The tests need the CPUs for themselves: an owner and a writer that really run at once.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
/// Most time for the two to meet often enough while others want the CPUs too.
const PATIENCE: Duration = Duration::from_secs(60);
const REMOTE: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE;

struct Side {
    cq: Arc<Cq>,
    qp: Arc<Qp>,
}

/// The memory: written by one thread while another looks at it, so never through plain references.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new() -> Memory {
        Memory((0..LEN / 8).map(|_| AtomicU64::new(0)).collect())
    }
    fn addr(&self) -> u64 {
        self.0.as_ptr() as u64
    }
    /// One word in 16, so that many cycles fit into the time; a late copy goes over more than that.
    fn samples(&self) -> impl DoubleEndedIterator<Item = &AtomicU64> {
        self.0.chunks(16).map(|c| &c[c.len() - 1])
    }
    fn fill(&self, value: u64) {
        self.samples().for_each(|w| w.store(value, Ordering::Relaxed));
    }
    /// Returns true if it still has `value`, checked from the end, where late writes land.
    fn is(&self, value: u64) -> bool {
        self.samples().rev().all(|w| w.load(Ordering::Relaxed) == value)
    }
}

fn side(context: &Arc<Context>, pd: &Arc<Pd>) -> Side {
    let cq = Cq::create(context, 64, None, 0, 0, false, false).unwrap();
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 1, max_inline_data: 64 };
    let qp = fixture::qp(context, pd, &cq, QpType::Rc, cap);
    Side { cq, qp }
}

fn to_rts(context: &Arc<Context>, me: &Qp, peer: &Qp) {
    let way = QpAttr {
        qp_access_flags: REMOTE,
        dest_qp_num: peer.qp_num(),
        min_rnr_timer: 1,
        timeout: 8,
        retry_cnt: 3,
        rnr_retry: 3,
        ..QpAttr::default()
    };
    fixture::to_rts(context, me, &way);
}

fn connect(context: &Arc<Context>, a: &Qp, b: &Qp) {
    for qp in [a, b] {
        qp.modify(&QpAttr { qp_state: QpState::Reset, ..QpAttr::default() }, attr::STATE).unwrap();
    }
    to_rts(context, a, b);
    to_rts(context, b, a);
}

/// State shared by the two threads.
#[derive(Default)]
struct Shared {
    /// The key to write with now, and where.
    key: AtomicU32,
    addr: AtomicU64,
    stop: AtomicBool,
    written: AtomicU32,
    refused: AtomicU32,
    /// Held by the writer while it reconnects, so that the owner's binds do not meet a QP in RESET.
    connecting: std::sync::Mutex<()>,
}

impl Shared {
    fn met(&self) -> (u32, u32) {
        (self.written.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Returns true if the two have met often enough for the test to have a meaning.
    fn has_shown(&self, cycles: u64) -> bool {
        let (written, refused) = self.met();
        cycles > 300 && written > 50 && refused > 20
    }
}

/// Writes without a pause; after each refusal connects anew, as a real program has to.
fn write_on(context: &Arc<Context>, a: &Side, b: &Side, from: &Memory, ma: &Mr, shared: &Shared) {
    let sge = [Sge { addr: from.addr(), length: LEN as u32, lkey: ma.lkey() }];
    let mut n = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        n += 1;
        from.0[LEN / 8 - 1].store(n, Ordering::Relaxed);
        let request = SendRequest {
            opcode: Opcode::Write,
            flags: send_flags::SIGNALED,
            remote_addr: shared.addr.load(Ordering::Relaxed),
            rkey: shared.key.load(Ordering::Acquire),
            data: Data::Sges(&sge),
            ..SendRequest::default()
        };
        a.qp.post_send(|p| p.push(&request)).unwrap();
        match Status::from_verbs(wait(&a.cq).status) {
            Some(Status::Success) => drop(shared.written.fetch_add(1, Ordering::Relaxed)),
            Some(Status::RemoteAccess) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                let _connecting = shared.connecting.lock().unwrap();
                connect(context, &a.qp, &b.qp);
            }
            status => panic!("the write ended with {status:?}"),
        }
    }
}

/// Runs `cycle` against a writer for `seconds`, or longer until it has met the writer often enough. `cycle` gets the
/// number of the cycle and the data shared with the writer, and has to leave the memory writable.
fn against_a_writer(seconds: f64, cycle: impl Fn(&Arc<Context>, &Arc<Pd>, &Side, &Shared, &Memory, u64)) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let context = vervain_link::open(&devices().unwrap()[0]).unwrap();
    let pd = context.alloc_pd().unwrap();
    let (a, b) = (side(&context, &pd), side(&context, &pd));
    connect(&context, &a.qp, &b.qp);
    let (from, to) = (Memory::new(), Memory::new());
    from.fill(0x1111_1111_1111_1111);
    let ma = Mr::register(&pd, from.addr(), LEN as u64, from.addr(), access::LOCAL_WRITE).unwrap();
    let shared = Shared { addr: AtomicU64::new(to.addr()), ..Shared::default() };
    let mut cycles = 0u64;
    std::thread::scope(|s| {
        let writer = s.spawn(|| write_on(&context, &a, &b, &from, &ma, &shared));
        let begun = Instant::now();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while begun.elapsed().as_secs_f64() < seconds || !shared.has_shown(cycles) {
                assert!(!writer.is_finished() && begun.elapsed() < PATIENCE, "{cycles} cycles, {:?}", shared.met());
                cycles += 1;
                cycle(&context, &pd, &b, &shared, &to, cycles);
            }
        }));
        shared.stop.store(true, Ordering::Relaxed);
        if let Err(e) = done {
            std::panic::resume_unwind(e);
        }
    });
    let (written, refused) = shared.met();
    println!("{cycles} cycles, {written} writes, {refused} refused");
}

/// Lets the writer in for a random short time.
fn let_write(shared: &Shared, cycle: u64) {
    let before = shared.written.load(Ordering::Relaxed);
    if cycle.is_multiple_of(4) {
        // Until it has surely written once.
        let deadline = Instant::now() + Duration::from_millis(50);
        while shared.written.load(Ordering::Relaxed) == before && Instant::now() < deadline {
            std::hint::spin_loop();
        }
    }
    (0..cycle.wrapping_mul(0x9e37_79b9) % 8000).for_each(|_| std::hint::spin_loop());
}

/// The memory is the program's again: nothing may change it.
fn must_rest(memory: &Memory, cycle: u64) {
    let mark = 0xa5a5_0000_0000_0000 | cycle;
    memory.fill(mark);
    for look in 0..3 {
        assert!(memory.is(mark), "cycle {cycle}: the memory changed after the revocation (look {look})");
        std::thread::yield_now();
    }
}

#[test]
fn deregistered_memory_never_changes_again() {
    against_a_writer(4.0, |_, pd, _, shared, memory, cycle| {
        let mr = Mr::register(pd, memory.addr(), LEN as u64, memory.addr(), REMOTE).unwrap();
        shared.key.store(mr.rkey(), Ordering::Release);
        let_write(shared, cycle);
        mr.deregister().unwrap();
        must_rest(memory, cycle);
    });
}

#[test]
fn reregistered_memory_changes_only_as_its_new_registration_says() {
    let (elsewhere, kept) = (Memory::new(), std::sync::OnceLock::new());
    against_a_writer(4.0, |_, pd, _, shared, memory, cycle| {
        let mr = kept.get_or_init(|| Mr::register(pd, memory.addr(), LEN as u64, memory.addr(), REMOTE).unwrap());
        shared.key.store(mr.rkey(), Ordering::Release);
        let_write(shared, cycle);
        if cycle % 2 == 0 {
            mr.rereg(4, None, 0, 0, access::LOCAL_WRITE).unwrap();
            must_rest(memory, cycle);
            mr.rereg(4, None, 0, 0, REMOTE).unwrap();
        } else {
            mr.rereg(1, None, elsewhere.addr(), LEN as u64, 0).unwrap();
            must_rest(memory, cycle);
            mr.rereg(1, None, memory.addr(), LEN as u64, 0).unwrap();
        }
    });
    kept.get().unwrap().deregister().unwrap();
}

#[test]
fn memory_behind_an_invalidated_or_freed_window_never_changes_again() {
    let kept = std::sync::OnceLock::new();
    against_a_writer(4.0, |_, pd, b, shared, memory, cycle| {
        let mr: &Arc<Mr> = kept.get_or_init(|| {
            let rights = REMOTE | access::MW_BIND;
            Mr::register(pd, memory.addr(), LEN as u64, memory.addr(), rights).unwrap()
        });
        let mw_type = if cycle % 3 == 0 { 1 } else { 2 };
        let mw = Mw::alloc(pd, mw_type).unwrap();
        let new_rkey = if mw_type == 1 { mw.next_rkey() } else { mw.rkey() & !0xff | cycle as u32 & 0xff };
        let work = |opcode, rkey| SendRequest {
            opcode,
            flags: send_flags::SIGNALED,
            imm_or_rkey: rkey,
            bind: (opcode == Opcode::BindMw).then_some(Bind {
                mw: &mw,
                new_rkey: rkey,
                mr: Some(mr),
                addr: memory.addr(),
                length: LEN as u64,
                access: access::REMOTE_WRITE,
            }),
            ..SendRequest::default()
        };
        // The writer may have broken the QP, or be at connecting it again.
        let run = |opcode, rkey| {
            loop {
                let connecting = shared.connecting.lock().unwrap();
                if b.qp.state() == QpState::Rts && b.qp.post_send(|p| p.push(&work(opcode, rkey))).is_ok() {
                    match Status::from_verbs(wait(&b.cq).status) {
                        Some(Status::Success) => break,
                        Some(Status::Flushed) => {}
                        status => panic!("{opcode:?} ended with {status:?}"),
                    }
                }
                drop(connecting);
                std::thread::yield_now();
            }
        };
        run(Opcode::BindMw, new_rkey);
        assert_eq!(mw.rkey(), new_rkey);
        shared.key.store(new_rkey, Ordering::Release);
        let_write(shared, cycle);
        if mw_type == 2 && cycle % 2 == 0 {
            run(Opcode::LocalInv, new_rkey);
            must_rest(memory, cycle);
            mw.dealloc().unwrap();
        } else {
            mw.dealloc().unwrap();
            must_rest(memory, cycle);
        }
    });
}

#[test]
fn a_key_that_a_window_had_is_not_soon_the_key_of_something_else() {
    let context = vervain_link::open(&devices().unwrap()[0]).unwrap();
    let pd = context.alloc_pd().unwrap();
    let (a, b) = (side(&context, &pd), side(&context, &pd));
    connect(&context, &a.qp, &b.qp);
    let memory = Memory::new();
    let mr = Mr::register(&pd, memory.addr(), 64, memory.addr(), REMOTE | access::MW_BIND).unwrap();
    let mut stale = std::collections::HashSet::new();
    for round in 0..120 {
        let mw = Mw::alloc(&pd, 1).unwrap();
        assert!(stale.insert(mw.rkey()), "the key {:#x} was a window's before", mw.rkey());
        for _ in 0..round % 3 {
            let new_rkey = mw.next_rkey();
            let bind = Bind {
                mw: &mw,
                new_rkey,
                mr: Some(&mr),
                addr: memory.addr(),
                length: 64,
                access: access::REMOTE_WRITE,
            };
            let request = SendRequest {
                opcode: Opcode::BindMw,
                flags: send_flags::SIGNALED,
                bind: Some(bind),
                ..SendRequest::default()
            };
            a.qp.post_send(|p| p.push(&request)).unwrap();
            assert_eq!(wait(&a.cq).status, Status::Success.to_verbs());
            assert!(stale.insert(mw.rkey()), "the key {:#x} was a window's before", mw.rkey());
        }
        mw.dealloc().unwrap();
    }
    mr.deregister().unwrap();
}
