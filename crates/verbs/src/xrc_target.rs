//! The handles of XRC target QPs. `ibv_open_qp(3)` gives one QP several `ibv_qp`s; the QP ends with the last of them, and
//! its events go to one that is left.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vervain_hca as hca;

/// By QP number, the cookies of the handles.
fn handles() -> MutexGuard<'static, BTreeMap<u32, Vec<usize>>> {
    static HANDLES: Mutex<BTreeMap<u32, Vec<usize>>> = Mutex::new(BTreeMap::new());
    // A panic between two whole operations on the map leaves it in order.
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
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
