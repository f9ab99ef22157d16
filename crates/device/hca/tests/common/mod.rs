//! A process with a rendezvous that reaches nobody, and initiators that are driven by hand through the responder.
#![allow(dead_code)]

pub mod fake_share;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use vervain_hca::arena::layout::{INDEX_BITS, Lane};
use vervain_hca::device::LinkChoice;
use vervain_hca::process::imports::Wanted;
use vervain_hca::process::lanes::{LaneReply, LaneRequest};
use vervain_hca::process::peer::PeerProcess;
use vervain_hca::process::rendezvous::{Member, Peer, Rendezvous};
use vervain_hca::process::{Identity, Ways};
use vervain_hca::qp::router::Router;
use vervain_hca::qp::table;
use vervain_hca::responder::{Barred, QpIncarnation, Responder};
use vervain_hca::rq::Receipt;
use vervain_hca::{
    AhAttr, Completion, Context, Cq, Gid, Grh, Pd, Process, Qp, QpAttr, QpCap, QpInit, QpState, QpType, Result, Srq,
    access, attr, devices,
};

/// Slot of initiators that exist only in the tests.
pub const FOREIGN_SLOT: u32 = 900;
/// The answer of [`Rendezvous::initiator_lives`].
pub static INITIATORS_LIVE: AtomicBool = AtomicBool::new(true);
/// Slot of a process whose handshake is under way for ever.
pub const SLOW_SLOT: u32 = 901;
/// The answer of [`Rendezvous::is_slow`] about it.
pub static IS_SLOW: AtomicBool = AtomicBool::new(true);
/// The arena's memfd.
pub static ARENA_FD: AtomicI32 = AtomicI32::new(-1);

/// Objects that were asked for.
pub static ASKED: Mutex<Vec<Wanted>> = Mutex::new(Vec::new());
/// Objects that were withdrawn: number and generation.
pub static WITHDRAWN: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

struct Nobody {
    slot: AtomicU32,
    event: OwnedFd,
}

impl Rendezvous for Nobody {
    fn claim_slot(&self) -> Result<u32> {
        Ok(self.slot.fetch_add(1, Ordering::Relaxed))
    }
    fn events_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
    fn handle_events(&self, _: &'static Process) {}
    fn peer(&self, process: &'static Process, slot: u32) -> Peer {
        match slot {
            SLOW_SLOT => Peer::Connecting,
            _ if process.owns_slot(slot) => Peer::Ready(Arc::clone(&process.own)),
            _ => Peer::Absent,
        }
    }
    fn is_slow(&self, slot: u32) -> bool {
        slot == SLOW_SLOT && IS_SLOW.load(Ordering::Relaxed)
    }
    fn initiator_lives(&self, _: u32) -> bool {
        INITIATORS_LIVE.load(Ordering::Relaxed)
    }
    fn lane(&self, _: u32, _: LaneRequest) -> LaneReply {
        LaneReply::Refused
    }
    fn forget_lane(&self, _: &LaneRequest) {}
    fn forget_lanes(&self, _: u32) {}
    fn ask_for_object(&self, _: &PeerProcess, wanted: &Wanted) -> bool {
        ASKED.lock().unwrap().push(*wanted);
        true
    }
    fn object_withdrawn(&self, number: u32, generation: u32) {
        WITHDRAWN.lock().unwrap().push((number, generation));
    }
    fn join(&self, _: &'static Process, _: &Gid, _: u32) -> Result<()> {
        Ok(())
    }
    fn leave(&self, _: &'static Process, _: &Gid, _: u32) {}
    fn members(&self, _: &'static Process, _: &Gid) -> Vec<Member> {
        Vec::new()
    }
}

/// The process of this test program; memory that a test makes by [`fake_share`] is shared.
pub fn process() -> &'static Process {
    fake_share::install();
    table::start(|identity| Ok((ways(identity), Router::new(LinkChoice::Local, devices()?, Vec::new())))).unwrap()
}

/// The ways of a process that reaches nobody else.
pub fn ways(identity: &Identity) -> Ways {
    ARENA_FD.store(identity.arena_fd, Ordering::Relaxed);
    // SAFETY: a fresh descriptor, owned at once.
    let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
    let rendezvous = Arc::new(Nobody { slot: AtomicU32::new(3), event });
    Ways { rendezvous, pollers: Vec::new(), handlers: Vec::new() }
}

/// The first device, opened.
pub fn context() -> Arc<Context> {
    Context::open(&devices().unwrap()[0], process()).unwrap()
}

/// The QPN of foreign initiator number `i`.
pub fn foreign(i: u32) -> u32 {
    FOREIGN_SLOT << INDEX_BITS | i
}

/// A QP that receives, ready for a foreign initiator.
pub fn receiver(
    context: &Arc<Context>,
    pd: &Arc<Pd>,
    cq: &Arc<Cq>,
    srq: Option<&Arc<Srq>>,
    max_recv_wr: u32,
) -> Arc<Qp> {
    let cap = QpCap { max_send_wr: 1, max_recv_wr, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq,
        xrcd: None,
        cap,
        sq_sig_all: false,
        cookie: 0,
    };
    let qp = Qp::create(context, Some(pd), &init).unwrap();
    to_rtr(context, &qp);
    qp
}

/// RESET or INIT to RTR.
pub fn to_rtr(context: &Arc<Context>, qp: &Arc<Qp>) {
    let dgid = context.device().gids(1)[0].gid;
    let ah = AhAttr { is_global: true, port_num: 1, grh: Grh { dgid, ..Grh::default() }, ..AhAttr::default() };
    let new = QpAttr {
        qp_state: QpState::Init,
        port_num: 1,
        qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
        path_mtu: 5,
        dest_qp_num: foreign(0),
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ah,
        ..QpAttr::default()
    };
    qp.modify(&new, attr::STATE | attr::PKEY_INDEX | attr::PORT | attr::ACCESS_FLAGS).unwrap();
    let rtr = QpAttr { qp_state: QpState::Rtr, ..new };
    let mask = attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    qp.modify(&rtr, mask | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER).unwrap();
}

/// The target of foreign initiator `qpn` on the QP's own lane.
pub fn bind(qp: &Qp, qpn: u32) -> Responder {
    let own = &process().own;
    let shared = own.qp(qp.qp_num()).unwrap();
    let (lane, seen) = (shared.lane.load(Ordering::Acquire), QpIncarnation::now(shared));
    Responder::bind(own, lane, 7 << 32 | u64::from(qpn), seen).expect("the lane is free")
}

/// The lane behind a target.
pub fn lane(target: &Responder) -> &Lane {
    &target.lane
}

/// Publishes claimed receive `wqe` as a message with immediate `imm`.
pub fn publish(target: &Responder, wqe: u32, imm: u32) {
    target.complete_receive(wqe, &Receipt { opcode: 128, imm, byte_len: 0, ..Receipt::default() }, false);
}

/// Polls once.
pub fn poll(cq: &Cq, max: usize) -> Vec<Completion> {
    let mut got = Vec::new();
    let n = cq.poll(max, &mut |c| got.push(*c));
    assert_eq!(n, got.len());
    got
}

/// A small random generator whose seed can be printed and used again.
pub struct Random(pub u64);

impl Random {
    /// The next word (xorshift64*).
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// One of `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Tests that watch process-wide state take turns.
pub static TURN: Mutex<()> = Mutex::new(());

/// Enters a lane; waits while another test of this process pauses it.
pub fn enter(target: &Responder) -> vervain_hca::responder::InFlight<'_> {
    loop {
        match target.enter() {
            Ok(mark) => return mark,
            Err(Barred::Paused) => std::thread::yield_now(),
            Err(barred) => panic!("refused: {barred:?}"),
        }
    }
}

/// Asks the rendezvous of this test program for an object of a peer.
pub fn ask(peer: &PeerProcess, wanted: &Wanted) -> bool {
    process().rendezvous.ask_for_object(peer, wanted)
}
