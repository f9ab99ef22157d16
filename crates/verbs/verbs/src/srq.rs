//! Shared receive queues: `ibv_create_srq(3)`, `ibv_create_srq_ex(3)`, `ibv_post_srq_recv(3)`, `ibv_modify_srq(3)`.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::cq::hca_cq;
use crate::object::{self, Blank, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::pd::{Use, hca_pd, use_pd};
use crate::post::post_chain;
use crate::registry::Entry;
use crate::xrcd::hca_xrcd;

/// Behind an `ibv_srq`.
pub(crate) struct SrqState {
    _entry: Entry<ibv_srq>,
    pub(crate) hca: Arc<hca::Srq>,
    _pd: Option<Use>,
}

impl Handle for ibv_srq {
    type State = SrqState;
}

/// The device model's SRQ behind a client's, which may be NULL.
pub(crate) unsafe fn hca_srq<'a>(srq: *mut ibv_srq) -> Option<&'a Arc<hca::Srq>> {
    // SAFETY: the client's SRQ.
    (!srq.is_null()).then(|| unsafe { &state(srq).hca })
}

/// Creates an SRQ and stores the attributes that it got in `attr`.
unsafe fn new_srq(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(&Arc<hca::Xrcd>, &Arc<hca::Cq>)>,
) -> Result<*mut ibv_srq, Error> {
    // SAFETY: the client's PD, and its context.
    let (hca_pd, context) = unsafe { (hca_pd(pd)?, (*pd).context) };
    // SAFETY: as above.
    let opening = unsafe { opening(context) };
    let blank = Blank::<ibv_srq>::new();
    // "srq_limit is irrelevant" at creation (man ibv_create_srq): programs leave there what the stack had.
    let init = hca::SrqInit { max_wr: attr.max_wr, max_sge: attr.max_sge, cookie: blank.cookie(), xrc };
    let hca = hca::Srq::create(&opening.hca, hca_pd, &init)?;
    (attr.max_wr, attr.max_sge, _) = hca.query();
    // SAFETY: the client's PD.
    Ok(unsafe { fill(blank, pd, srq_context, hca) })
}

/// Makes the client's SRQ around the device model's.
pub(crate) unsafe fn fill(
    blank: Blank<ibv_srq>,
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    hca: Arc<hca::Srq>,
) -> *mut ibv_srq {
    // SAFETY: the client's PD.
    let context = unsafe { (*pd).context };
    // SAFETY: its context.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    // SAFETY: integers, pointers and pthread objects.
    let mut c: ibv_srq = unsafe { object::zeros() };
    c.context = context;
    c.srq_context = srq_context;
    c.pd = pd;
    c.handle = handle;
    // SAFETY: the client's PD.
    let _pd = unsafe { use_pd(pd) };
    let state = SrqState { _entry: opening.srqs.entry(handle), hca, _pd };
    opening.srqs.publish(handle, blank.fill(c, state))
}

/// Creates a basic SRQ.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the client's PD and attributes.
    pointer_of(|| unsafe { new_srq(pd, (*init).srq_context, &mut (*init).attr, None) })
}

/// Creates a basic or an XRC SRQ. There is no tag matching.
pub(crate) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const XRC: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    pointer_of(|| {
        // SAFETY: the client's attributes, of which fields are read as comp_mask allows, and what they name.
        unsafe {
            let mask = (*init).comp_mask;
            let srq_type = if mask & IBV_SRQ_INIT_ATTR_TYPE != 0 { (*init).srq_type } else { IBV_SRQT_BASIC };
            if mask & IBV_SRQ_INIT_ATTR_PD == 0 {
                return Err(Error::invalid("an SRQ needs a PD"));
            }
            match srq_type {
                IBV_SRQT_BASIC => new_srq((*init).pd, (*init).srq_context, &mut (*init).attr, None),
                IBV_SRQT_XRC if mask == XRC => {
                    let cq = hca_cq((*init).cq).ok_or_else(|| Error::invalid("an XRC SRQ needs a CQ"))?;
                    let xrcd = hca_xrcd((*init).xrcd)?;
                    new_srq((*init).pd, (*init).srq_context, &mut (*init).attr, Some((xrcd, cq)))
                }
                IBV_SRQT_XRC => Err(Error::invalid("an XRC SRQ needs an XRC domain, a CQ and nothing else")),
                IBV_SRQT_TM => Err(Error::unsupported("there is no tag matching")),
                _ => Err(Error::invalid(format!("SRQ type {srq_type}"))),
            }
        }
    })
}

/// Changes an SRQ's limit or size.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    errno_of(|| {
        let mask = mask as u32;
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Error::invalid(format!("unknown attributes in mask {mask:#x}")));
        }
        // SAFETY: the client's SRQ and attributes.
        let (srq, attr) = unsafe { (&state(srq).hca, *attr) };
        let limit = (mask & IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        let max_wr = (mask & IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        srq.modify(limit, max_wr)
    })
}

/// Reads an SRQ's size and limit.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the client's SRQ and attributes.
    unsafe {
        let (max_wr, max_sge, srq_limit) = state(srq).hca.query();
        *attr = ibv_srq_attr { max_wr, max_sge, srq_limit };
    }
    0
}

/// An XRC SRQ's number, which senders name.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    errno_of(|| {
        // SAFETY: the client's SRQ.
        let number = unsafe { state(srq) }.hca.srq_num();
        if number == 0 {
            return Err(Error::invalid("a basic SRQ has no number"));
        }
        // SAFETY: the client's number, to be set.
        unsafe { *srq_num = number };
        Ok(())
    })
}

/// Destroys an SRQ; EBUSY while a QP uses it. Waits until its events are acknowledged.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    errno_of(|| {
        // SAFETY: the client's SRQ, which it gives up if this succeeds.
        unsafe {
            state(srq).hca.destroy()?;
            object::free(srq);
        }
        Ok(())
    })
}

/// Posts receives.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the client's SRQ and chain of receives.
    unsafe {
        let srq = &state(srq).hca;
        post_chain(wr, bad_wr, |wr_id, sges| srq.post_recv(wr_id, sges))
    }
}
