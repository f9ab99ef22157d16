//! PSNs of Writes that were put, of which their target learns nothing by itself. Only who asks for a QP's attributes wants to know
//! (`man ibv_query_qp`), so the peer is asked then, and a Write says nothing.

use super::Engine;
use super::connection::Connection;
use super::pair::Pair;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use vervain_hca::host::cancel::nap;
use vervain_hca::now_ns;
use vervain_window::pairs::grant::{Grant, Want};
use vervain_window::pairs::ring::Class;
use vervain_window::pairs::slot::Kind;

/// How long the answer is waited for, whose sender may have no CPU or be stopped: then what was told last is told again.
const PATIENCE_NS: u64 = 20_000_000;
/// Between two looks for it.
const LOOK: Duration = Duration::from_micros(20);

/// PSNs of both directions of a connection.
#[derive(Debug, Default)]
pub struct PutPsns {
    /// Those of the Writes that this process has put.
    pub own: AtomicU32,
    /// Whether the peer was granted anything, and so may put.
    pub is_granted: AtomicBool,
    /// Questions asked.
    asked: AtomicU32,
    /// The last answer: which question that was in the upper half, and those of the peer.
    told: AtomicU64,
}

impl PutPsns {
    /// Those of the peer's Writes, as it has told last.
    pub fn peers(&self) -> u32 {
        self.told.load(Ordering::Acquire) as u32
    }
}

impl Connection {
    /// Asks the peer how far it is, if it may have put anything, and waits for the answer. Whoever looks takes it in: the watch or the
    /// progress thread.
    pub fn ask_put_psns(&self) {
        let psns = &self.put_psns;
        let Some(pair) = self.pair().filter(|pair| psns.is_granted.load(Ordering::Relaxed) && !pair.is_over()) else {
            return;
        };
        let number = psns.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let want = Want { qpn: self.peer_qpn(), from: self.qpn(), rkey: number };
        let end = now_ns() + PATIENCE_NS;
        if !pair.say(Class::Control, Kind::WantPsns, &want.encode()) {
            return;
        }
        while psns.told.load(Ordering::Acquire) >> 32 != u64::from(number) && now_ns() < end && !pair.is_over() {
            nap(LOOK);
        }
    }
}

impl Engine {
    /// The owner of a QP asks what was put by its peer, a QP of this process.
    pub fn wants_psns(&self, pair: &Arc<Pair>, want: Want) {
        let Some(connection) = self.connection(want.qpn).filter(|c| c.is_with(pair)) else { return };
        let len = connection.put_psns.own.load(Ordering::Relaxed).into();
        let reply = Grant { qpn: want.from, rkey: want.rkey, count: 0, at: 0, len, iova: 0, owner: 0 };
        pair.say(Class::Control, Kind::Psns, &reply.encode());
    }

    /// A peer has answered.
    pub fn told_psns(&self, pair: &Arc<Pair>, reply: &Grant) {
        if let Some(connection) = self.connection(reply.qpn).filter(|c| c.is_with(pair)) {
            connection
                .put_psns
                .told
                .store(u64::from(reply.rkey) << 32 | u64::from(reply.len as u32), Ordering::Release);
        }
    }
}
