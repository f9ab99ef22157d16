//! The table of a process's QPs, above the process itself: the QPs, the lanes into them that peers ask for, and the
//! router for the ways to their peers.

use crate::arena::layout::slot_of;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::process::lanes::{LaneOwner, LaneRequest};
use crate::process::{Identity, Process, Ways};
use crate::qp::Qp;
use crate::qp::router::Router;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

/// The table of the process that the library serves; null before the first device is opened.
static CURRENT: AtomicPtr<QpTable> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: OwnerLock<()> = OwnerLock::new(());

/// Makes the ways to the peers of a process, and the router over its carriers.
pub type MakeWays = fn(&Identity) -> Result<(Ways, Router)>;

/// The QPs of one process.
pub struct QpTable {
    process: &'static Process,
    pub(crate) router: Router,
    /// By number.
    qps: OwnerLock<BTreeMap<u32, Weak<Qp>>>,
}

/// The process that the library serves, made when the first device is opened; `make` makes the ways to its peers.
pub fn start(make: MakeWays) -> Result<&'static Process> {
    if let Some(p) = Process::current() {
        return Ok(p);
    }
    let _starting = STARTING.lock();
    if let Some(p) = Process::current() {
        return Ok(p);
    }
    let mut router = None;
    let ways = |identity: &Identity| {
        let (ways, routes) = make(identity)?;
        router = Some(routes);
        Ok(ways)
    };
    let process = Process::create(ways, Box::new(move || start(make)))?;
    let process: &'static Process = Box::leak(Box::new(process));
    let router = router.ok_or_else(|| Error::invalid("the process has no ways to its peers"))?;
    let table: &'static QpTable = Box::leak(Box::new(QpTable { process, router, qps: OwnerLock::default() }));
    process.lanes.set_owner(table);
    CURRENT.store(std::ptr::from_ref(table).cast_mut(), Ordering::Release);
    process.serve()?;
    Ok(process)
}

impl QpTable {
    /// The table of `process`; EIO for one that is not the calling one's own.
    pub fn of(process: &Process) -> Result<&'static QpTable> {
        // SAFETY: null, or a leaked box that is never freed.
        let table = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
        table
            .filter(|table| std::ptr::eq(table.process, process))
            .ok_or_else(|| Error::new(libc::EIO, "the process has no device open"))
    }

    /// The router for the ways to peers.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The process whose QPs they are.
    pub(crate) fn process(&self) -> &'static Process {
        self.process
    }

    pub(crate) fn add(&self, qp: &Arc<Qp>) {
        self.qps.lock().insert(qp.qp_num(), Arc::downgrade(qp));
    }

    pub(crate) fn remove(&self, qpn: u32) {
        self.qps.lock().remove(&qpn);
    }

    /// QP `qpn`; None if it was destroyed.
    pub fn find(&self, qpn: u32) -> Option<Arc<Qp>> {
        // Not dropped under the lock, since the last holder of a QP looks for others.
        let qp = self.qps.lock().get(&qpn).and_then(Weak::upgrade);
        qp.filter(|q| !q.is_gone())
    }

    /// All QPs; none while the table is in use for long ([`OwnerLock::try_lock_briefly`]).
    pub(crate) fn try_all(&self) -> Vec<Arc<Qp>> {
        self.qps.try_lock_briefly().map_or_else(Vec::new, |qps| qps.values().filter_map(Weak::upgrade).collect())
    }

    fn all(&self) -> Vec<Arc<Qp>> {
        self.qps.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl LaneOwner for QpTable {
    fn make_lane(&self, request: &LaneRequest) -> Option<u64> {
        let qp = self.find(request.qpn)?;
        if request.srqn == 0 {
            return qp.make_lane(request.initiator, None).ok();
        }
        let srq = qp.xrcd()?.srq(request.srqn)?;
        qp.make_lane(request.initiator, Some(&srq)).ok()
    }

    fn drop_lanes_of(&self, initiator: u32) {
        self.all().iter().for_each(|qp| qp.reap_where(|lane| lane.granted == initiator && lane.granted != 0, true));
    }

    fn reap(&self, slots: &[u32], lost: bool) {
        let theirs = |holder: u32| holder != 0 && slots.contains(&slot_of(holder));
        self.all().iter().for_each(|qp| qp.reap_where(|lane| theirs(lane.holder()), lost));
    }
}
