//! The connections of this process, by the numbers of their QPs.

use super::connection::Connection;
use super::numbers::ByNumber;
use super::pair::Pair;
use std::sync::Arc;
use vervain_hca::host::lock::OwnerLock;
use vervain_window::pairs::block;
use vervain_window::pairs::rendezvous::PeerId;

/// The connected QPs.
#[derive(Default)]
pub struct Connections(OwnerLock<ByNumber<Arc<Connection>>>);

impl Connections {
    /// Adds that of QP `qpn`.
    pub fn insert(&self, qpn: u32, connection: Arc<Connection>) {
        self.0.lock().insert(qpn, connection);
    }

    /// Takes that of a QP out.
    pub fn remove(&self, qpn: u32) -> Option<Arc<Connection>> {
        self.0.lock().remove(&qpn)
    }

    /// The connection of a QP.
    pub fn get(&self, qpn: u32) -> Option<Arc<Connection>> {
        self.0.lock().get(&qpn).cloned()
    }

    /// The connection of a QP, if its peer is that of `pair`.
    pub fn by_pair(&self, qpn: u32, pair: &Arc<Pair>) -> Option<Arc<Connection>> {
        self.get(qpn).filter(|connection| connection.peer().is_with(pair))
    }

    /// Those with a process.
    pub fn with(&self, peer: PeerId) -> Vec<Arc<Connection>> {
        self.0.lock().values().filter(|connection| connection.peer().process == peer).cloned().collect()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Connection>> {
        self.0.lock().values().cloned().collect()
    }

    /// Returns true if a peer is putting a message to one of them, or if that cannot be known just now. Waits for no
    /// lock.
    pub fn is_put_to(&self) -> bool {
        match self.0.try_lock() {
            Some(connections) => connections.values().any(|connection| connection.is_put_to()),
            None => self.0.raw().comes_free(),
        }
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
        self.with(pair.peer).iter().filter(|c| c.peer().is_with(pair)).for_each(|c| c.direct().forget());
        pair.follow(count);
    }
}
