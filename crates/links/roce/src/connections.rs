//! The connections of this process, by the numbers of their QPs, and the paths that they share.

use super::connection::{Connection, Path};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use vervain_hca::arena::layout::slot_of;
use vervain_hca::host::lock::OwnerLock;

/// The connected QPs.
#[derive(Default)]
pub(super) struct Connections {
    by_qpn: OwnerLock<HashMap<u32, Arc<Connection>>>,
    /// Number of connections.
    count: AtomicUsize,
    /// By address and process slot, as long as a QP uses them.
    paths: OwnerLock<HashMap<(IpAddr, u32), Weak<Path>>>,
}

impl Connections {
    /// Adds one.
    pub(super) fn insert(&self, connection: Arc<Connection>) {
        let mut by_qpn = self.by_qpn.lock();
        by_qpn.insert(connection.qpn, connection);
        self.count.store(by_qpn.len(), Ordering::Relaxed);
    }

    /// Takes that of QP `qpn` out.
    pub(super) fn remove(&self, qpn: u32) -> Option<Arc<Connection>> {
        let mut by_qpn = self.by_qpn.lock();
        let connection = by_qpn.remove(&qpn);
        self.count.store(by_qpn.len(), Ordering::Relaxed);
        connection
    }

    /// Returns true if there is any.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// The connection of QP `qpn`.
    pub(super) fn get(&self, qpn: u32) -> Option<Arc<Connection>> {
        self.by_qpn.lock().get(&qpn).cloned()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Connection>> {
        self.by_qpn.lock().values().cloned().collect()
    }

    /// The path to the process that has QP `qpn` at `remote`, an address of this host or not.
    pub(super) fn path(&self, remote: IpAddr, is_of_this_host: bool, qpn: u32, mtu: u32) -> Arc<Path> {
        let slot = slot_of(qpn);
        let mut paths = self.paths.lock();
        if let Some(path) = paths.get(&(remote, slot)).and_then(Weak::upgrade) {
            return path;
        }
        paths.retain(|_, path| path.strong_count() > 0);
        let path = Arc::new(Path::new(mtu, is_of_this_host));
        paths.insert((remote, slot), Arc::downgrade(&path));
        path
    }
}
