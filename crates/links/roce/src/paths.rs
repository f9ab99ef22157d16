//! The paths that connections share.

use super::connection::Path;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use vervain_hca::arena::layout::slot_of;
use vervain_hca::host::lock::OwnerLock;

/// The paths by address and process slot, as long as a QP uses them.
#[derive(Default)]
pub(super) struct Paths(OwnerLock<HashMap<(IpAddr, u32), Weak<Path>>>);

impl Paths {
    /// The path to the process that has QP `qpn` at `remote`, an address of this host or not.
    pub(super) fn to(&self, remote: IpAddr, is_of_this_host: bool, qpn: u32, mtu: u32) -> Arc<Path> {
        let slot = slot_of(qpn);
        let mut paths = self.0.lock();
        if let Some(path) = paths.get(&(remote, slot)).and_then(Weak::upgrade) {
            return path;
        }
        paths.retain(|_, path| path.strong_count() > 0);
        let path = Arc::new(Path::new(mtu, is_of_this_host));
        paths.insert((remote, slot), Arc::downgrade(&path));
        path
    }
}
