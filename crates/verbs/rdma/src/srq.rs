//! Shared receive queues: receives for the messages of many QPs; IBA volume 1, 10.2.9.

use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use vervain_abi::*;

use crate::error::{Error, PostError, Result, check};
use crate::pd::Pd;
use crate::post::{RecvList, RecvRequest};
use crate::receive::ReceiveQueue;

/// Which SRQ an event is about: a number that no other SRQ of this process has or had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SrqId(usize);

impl SrqId {
    pub(crate) fn of(srq_context: *mut c_void) -> Self {
        Self(srq_context as usize)
    }
}

/// The attributes of an SRQ; `ibv_query_srq(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqAttr {
    /// Receives that it holds.
    pub max_receive: u32,
    /// SGEs of one receive.
    pub max_sges: u32,
    /// The limit that is armed; 0: none, or its event was raised.
    pub limit: u32,
}

/// A shared receive queue. QPs that were built on it keep it, and it keeps its domain with all memory registered there.
///
/// A message to any of these QPs takes the oldest receive, which completes into that QP's CQ;
/// [`Completion::qp_num`](crate::Completion::qp_num) names the QP. If there is no receive, an RC peer waits by its
/// [`rnr_retry`](crate::PathOptions::rnr_retry), and a datagram is dropped.
#[derive(Clone)]
pub struct Srq(pub(crate) Arc<SrqInner>);

pub(crate) struct SrqInner {
    pub raw: *mut ibv_srq,
    pub pd: Pd,
    id: SrqId,
    receives: ReceiveQueue<ibv_srq>,
}

// SAFETY: the functions of libibverbs may be called from any thread, and lock a queue while they post to it.
unsafe impl Send for SrqInner {}
// SAFETY: as above.
unsafe impl Sync for SrqInner {}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; QPs hold an Arc of this, so none uses it.
        if unsafe { (self.pd.context().0.library.0.srq.destroy)(self.raw) } != 0 {
            // The device may still fill its receives: the memory stays for good.
            mem::forget(self.pd.clone());
        }
    }
}

impl Srq {
    /// An SRQ in `pd` that holds at least `max_receive` receives (1 to
    /// [`max_queue`](crate::SrqLimits::max_queue)) of `max_sges` SGEs at most (to
    /// [`max_sge`](crate::SrqLimits::max_sge)), with no limit: a limit above what is posted would be reached
    /// at once, so that it is armed when receives are there ([`arm_limit`](Srq::arm_limit)). `ibv_create_srq(3)`.
    ///
    /// QPs of other domains of the same open device may be built on it: its receives are checked against this domain.
    ///
    /// # Errors
    /// EINVAL: more than the device can, or nothing. ENOMEM. EOPNOTSUPP, ENOSYS: the device has no SRQs.
    pub fn new(pd: &Pd, max_receive: u32, max_sges: u32) -> Result<Srq> {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let context = pd.context();
        let Some(post) = context.0.ops().post_srq_recv else {
            return Err(Error::library(format!("the driver of {} cannot post to an SRQ", context.name())));
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut init = ibv_srq_init_attr {
            srq_context: ptr::without_provenance_mut(id),
            attr: ibv_srq_attr { max_wr: max_receive, max_sge: max_sges, srq_limit: 0 },
        };
        // SAFETY: an allocated domain, which the SRQ keeps, and a struct of the layout that the call reads and writes;
        // the cookie is a number, never followed.
        let raw = unsafe { (context.0.library.0.srq.create)(pd.0.raw, &mut init) };
        if raw.is_null() {
            let about = format!("an SRQ of {max_receive} receives of {max_sges} SGEs on {}", context.name());
            return Err(Error::last("ibv_create_srq", about));
        }
        // SAFETY: made just now for this driver; it is destroyed with the SrqInner that has the queue.
        let receives = unsafe { ReceiveQueue::new(raw, post, "ibv_post_srq_recv") };
        Ok(Srq(Arc::new(SrqInner { raw, pd: pd.clone(), id: SrqId(id), receives })))
    }

    /// Which one it is in events.
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// Posts one receive; `ibv_post_srq_recv(3)`.
    ///
    /// # Errors
    /// ENOMEM: the queue is full. EINVAL or ENOMEM, by driver: the SGEs are too many.
    #[inline]
    pub fn receive(&self, request: RecvRequest<'_, '_>) -> Result<(), PostError> {
        self.0.receives.post(request)
    }

    /// Posts all receives of the list by one call. One that is empty is nothing.
    ///
    /// # Errors
    /// As [`receive`](Srq::receive); those before the bad one are posted.
    #[inline]
    pub fn receive_list(&self, list: &mut RecvList<'_>) -> Result<(), PostError> {
        self.0.receives.post_list(list)
    }

    /// Asks for one [`SrqLimit`](crate::EventKind::SrqLimit) event for when fewer than `limit` receives are left, at
    /// once where fewer are there already; that event disarms it. 0 disarms it too. `ibv_modify_srq(3)`, IBA volume 1,
    /// 11.2.3.3.
    ///
    /// # Errors
    /// EINVAL: more than the queue holds.
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        let attr = ibv_srq_attr { srq_limit: limit, ..Default::default() };
        self.modify(attr, IBV_SRQ_LIMIT, || format!("a limit of {limit}"))
    }

    /// Makes room for at least `max_receive` receives; the queue may be in use. `ibv_modify_srq(3)`.
    ///
    /// # Errors
    /// EINVAL: more than the device can, or fewer than are posted. The driver's errno, for example EOPNOTSUPP, if the
    /// device does not have [`SRQ_RESIZE`](crate::Capabilities::SRQ_RESIZE).
    pub fn resize(&self, max_receive: u32) -> Result<()> {
        let attr = ibv_srq_attr { max_wr: max_receive, ..Default::default() };
        self.modify(attr, IBV_SRQ_MAX_WR, || format!("{max_receive} receives"))
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: u32, what: impl FnOnce() -> String) -> Result<()> {
        let context = self.0.pd.context();
        // SAFETY: an SRQ that lives as long as `self`, and a struct of the layout that the call reads.
        let rc = unsafe { (context.0.library.0.srq.modify)(self.0.raw, &mut attr, mask.cast_signed()) };
        check(rc, "ibv_modify_srq", || format!("{} for an SRQ on {}", what(), context.name()))
    }

    /// Its size, and the limit that is armed; `ibv_query_srq(3)`.
    ///
    /// # Errors
    /// The driver's.
    pub fn attr(&self) -> Result<SrqAttr> {
        let context = self.0.pd.context();
        let mut raw = ibv_srq_attr::default();
        // SAFETY: an SRQ that lives as long as `self`, and a struct of the layout that the call writes.
        let rc = unsafe { (context.0.library.0.srq.query)(self.0.raw, &mut raw) };
        check(rc, "ibv_query_srq", || format!("an SRQ on {}", context.name()))?;
        Ok(SrqAttr { max_receive: raw.max_wr, max_sges: raw.max_sge, limit: raw.srq_limit })
    }
}
