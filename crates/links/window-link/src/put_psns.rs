//! PSNs of Writes that were put, of which their target learns nothing by itself. They are needed for the attributes of
//! a QP only (`man ibv_query_qp`), so the peer is asked then, and a Write sends none.

use super::pair::Pair;
use super::peer_qp::PeerQp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use vervain_hca::host::cancel::nap;
use vervain_hca::now_ns;
use vervain_window::pairs::grant::{Grant, Want};
use vervain_window::pairs::ring::Class;
use vervain_window::pairs::slot::Kind;

/// Nanoseconds that the answer is waited for. Its sender may have no CPU or be stopped: then the last answer holds.
const PATIENCE_NS: u64 = 20_000_000;
/// Between two looks for it.
const LOOK: Duration = Duration::from_micros(20);

/// PSNs of both directions of a connection.
#[derive(Debug, Default)]
pub struct PutPsns {
    /// Those of the Writes that this process has put.
    own: AtomicU32,
    /// True if the peer has a grant, and so may put.
    is_granted: AtomicBool,
    /// Questions asked.
    asked: AtomicU32,
    /// The last answer: which question that was in the upper half, and those of the peer.
    told: AtomicU64,
}

impl PutPsns {
    /// Notes that this process has put a Write of `psns` PSNs.
    pub fn count(&self, psns: u32) {
        self.own.fetch_add(psns, Ordering::Relaxed);
    }

    /// The peer is granted memory.
    pub fn note_grant(&self) {
        self.is_granted.store(true, Ordering::Relaxed);
    }

    /// PSNs of the peer's Writes in its last answer.
    pub fn peers(&self) -> u32 {
        self.told.load(Ordering::Acquire) as u32
    }

    /// Asks the peer how far it is, if it may have put anything, and waits for the answer, which the next look takes
    /// in: of the watch or the progress thread.
    pub fn ask(&self, peer: &PeerQp) {
        let Some(pair) = peer.pair().filter(|pair| self.is_granted.load(Ordering::Relaxed) && !pair.is_over()) else {
            return;
        };
        let number = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let want = Want { qpn: peer.qpn, from: peer.own_qpn, rkey: number };
        let end = now_ns() + PATIENCE_NS;
        if !pair.say(Class::Control, Kind::WantPsns, &want.encode()) {
            return;
        }
        while self.told.load(Ordering::Acquire) >> 32 != u64::from(number) && now_ns() < end && !pair.is_over() {
            nap(LOOK);
        }
    }

    /// Answers the peer, which asks what this process has put.
    pub fn answer(&self, pair: &Arc<Pair>, want: Want) {
        let len = self.own.load(Ordering::Relaxed).into();
        let reply = Grant { qpn: want.from, rkey: want.rkey, count: 0, at: 0, len, iova: 0, owner: 0 };
        pair.say(Class::Control, Kind::Psns, &reply.encode());
    }

    /// The peer has answered.
    pub fn take_answer(&self, reply: &Grant) {
        self.told.store(u64::from(reply.rkey) << 32 | u64::from(reply.len as u32), Ordering::Release);
    }
}
