//! The handles of XRC target QPs. `ibv_open_qp(3)` gives one QP several `ibv_qp`s; the QP ends with the last of them,
//! and its events go to one that is left.

use std::collections::BTreeMap;

use vervain_hca as hca;
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};

/// By QP number, the cookies of the handles.
fn handles() -> OwnerGuard<'static, BTreeMap<u32, Vec<usize>>> {
    static HANDLES: OwnerLock<BTreeMap<u32, Vec<usize>>> = OwnerLock::new(BTreeMap::new());
    HANDLES.lock()
}

/// Notes a new handle.
pub(crate) fn add(qpn: u32, cookie: usize) {
    handles().entry(qpn).or_default().push(cookie);
}

/// Forgets a handle; whether it was the last.
pub(crate) fn remove(qp: &hca::Qp, cookie: usize) -> bool {
    let mut handles = handles();
    let Some(of_qp) = handles.get_mut(&qp.qp_num()) else { return true };
    of_qp.retain(|&c| c != cookie);
    if let Some(&left) = of_qp.first() {
        qp.set_cookie(left);
        return false;
    }
    handles.remove(&qp.qp_num());
    true
}
