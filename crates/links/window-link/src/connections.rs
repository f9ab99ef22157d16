//! The connections of this process, by the numbers of their QPs.

use super::connection::Connection;
use super::pair::Pair;
use std::sync::Arc;
use vervain_carrier::by_qp::ByQp;
use vervain_window::pairs::block;
use vervain_window::pairs::rendezvous::PeerId;

/// The connected QPs.
#[derive(Default)]
pub struct Connections {
    pub by_qp: ByQp<Connection>,
}

impl Connections {
    /// The connection of a QP, if its peer is that of `pair`.
    pub fn by_pair(&self, qpn: u32, pair: &Arc<Pair>) -> Option<Arc<Connection>> {
        self.by_qp.get(qpn).filter(|connection| connection.path.peer.is_with(pair))
    }

    /// Those with a process.
    pub fn with(&self, peer: PeerId) -> Vec<Arc<Connection>> {
        self.by_qp.all(|connection| connection.path.peer.process == peer)
    }

    /// Follows a peer that has taken its grants back: nothing more goes there by them.
    #[inline]
    pub fn follow(&self, pair: &Arc<Pair>) {
        if pair.is_asked_back() {
            self.give_back(pair, pair.told(block::TAKEN_BACK));
        }
    }

    #[cold]
    fn give_back(&self, pair: &Arc<Pair>, count: u32) {
        // With the lock nothing is under way, and its next holder finds the new count.
        self.with(pair.peer).iter().filter(|c| c.path.peer.is_with(pair)).for_each(|c| c.path.direct.forget());
        pair.follow(count);
    }
}
