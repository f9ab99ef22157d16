//! The peer of a connection: its QP, its process, and the pair by which that is reached.

use super::pair::Pair;
use super::pairs::Pairs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use vervain_window::pairs::rendezvous::PeerId;

/// The peer of a connected QP.
pub struct PeerQp {
    /// Its process.
    pub process: PeerId,
    /// Its number.
    pub qpn: u32,
    /// The number of the own QP.
    pub own_qpn: u32,
    pairs: Weak<Pairs>,
    /// The pair by which the connection goes on, once there is one: it is never with another process of that number.
    pair: OnceLock<Arc<Pair>>,
    /// At the last look there was no pair, nor a process that one could be made with.
    is_absent: AtomicBool,
}

impl PeerQp {
    /// QP `qpn` of `process` as the peer of `own_qpn`.
    pub fn new(pairs: &Arc<Pairs>, process: PeerId, qpn: u32, own_qpn: u32) -> Self {
        let (pair, is_absent) = (OnceLock::new(), AtomicBool::new(false));
        PeerQp { process, qpn, own_qpn, pairs: Arc::downgrade(pairs), pair, is_absent }
    }

    /// The pair, if there is one.
    pub fn pair(&self) -> Option<&Arc<Pair>> {
        if self.pair.get().is_none() {
            let pair = self.pairs.upgrade()?.get(self.process)?;
            let _ = self.pair.set(pair);
        }
        self.pair.get()
    }

    /// The pair, if the connection has used one already, and so has one process that is its peer.
    pub fn used_pair(&self) -> Option<&Arc<Pair>> {
        self.pair.get()
    }

    /// Returns true if messages of `pair` are the peer's: it is with the process of this connection.
    pub fn is_with(&self, pair: &Arc<Pair>) -> bool {
        self.pair().is_some_and(|own| Arc::ptr_eq(own, pair))
    }

    /// Looks whether there is a process to make a pair with, where there is no pair.
    pub fn look_for_process(&self) {
        let has_process = || self.pairs.upgrade().is_some_and(|pairs| pairs.has_process(self.process));
        self.is_absent.store(self.pair.get().is_none() && !has_process(), Ordering::Relaxed);
    }

    /// Returns true if the last look found neither a pair nor a process.
    pub fn is_absent(&self) -> bool {
        self.is_absent.load(Ordering::Relaxed)
    }
}
