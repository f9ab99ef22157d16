//! Memory windows: `ibv_alloc_mw(3)`, `ibv_bind_mw(3)`.

use core::ffi::c_int;
use std::sync::Arc;

use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::object::{self, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::pd::{Use, hca_pd, use_pd};
use crate::registry::Entry;

/// Behind an `ibv_mw`.
pub(crate) struct MwState {
    _entry: Entry<ibv_mw>,
    pub(crate) hca: Arc<hca::Mw>,
    _pd: Option<Use>,
}

impl Handle for ibv_mw {
    type State = MwState;
}

/// Allocates a window of type 1 or 2.
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    pointer_of(|| {
        // SAFETY: the client's PD.
        unsafe { Ok(new_mw(pd, hca::Mw::alloc(hca_pd(pd)?, mw_type)?)) }
    })
}

/// Wraps a new window and gives it a handle.
pub(crate) unsafe fn new_mw(pd: *mut ibv_pd, hca: Arc<hca::Mw>) -> *mut ibv_mw {
    // SAFETY: the client's PD.
    let context = unsafe { (*pd).context };
    // SAFETY: its context.
    let opening = unsafe { opening(context) };
    let (rkey, type_, handle) = (hca.rkey(), hca.mw_type(), opening.handle());
    // SAFETY: the client's PD.
    let state = MwState { _entry: opening.mws.entry(handle), hca, _pd: unsafe { use_pd(pd) } };
    opening.mws.publish(handle, object::new(ibv_mw { context, pd, rkey, handle, type_ }, state))
}

/// Deallocates a window; after this returns, no access to memory by it is possible.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    errno_of(|| {
        // SAFETY: the client's window, which it gives up if this succeeds.
        unsafe {
            state(mw).hca.dealloc()?;
            object::free(mw);
        }
        Ok(())
    })
}

/// Posts the bind of a type 1 window. Its new rkey is there at once, though it opens only when the bind is executed.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    errno_of(|| {
        // SAFETY: the client's QP, window and bind; the header's inline function has checked the window's type and PD.
        unsafe {
            let (bind, window) = (*bind, &state(mw).hca);
            let new_rkey = window.next_rkey();
            let request = hca::SendRequest {
                wr_id: bind.wr_id,
                opcode: hca::Opcode::BindMw,
                flags: bind.send_flags,
                bind: Some(bind_info(window, new_rkey, &bind.bind_info)),
                ..hca::SendRequest::default()
            };
            crate::qp::hca_qp(qp).post_send(|poster| poster.push(&request))?;
            (*mw).rkey = new_rkey;
        }
        Ok(())
    })
}

/// The bind of a type 2 window, by a posted request. A type 1 window takes `ibv_bind_mw`.
pub(crate) unsafe fn type_2_bind<'a>(
    mw: *mut ibv_mw,
    new_rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<hca::Bind<'a>, Error> {
    // SAFETY: the client's window, or NULL.
    unsafe {
        if mw.is_null() || (*mw).type_ != IBV_MW_TYPE_2 {
            return Err(Error::invalid("a posted bind needs a memory window of type 2"));
        }
        Ok(bind_info(&state(mw).hca, new_rkey, info))
    }
}

/// Translates a bind request to the device model's.
unsafe fn bind_info<'a>(mw: &'a Arc<hca::Mw>, new_rkey: u32, info: &ibv_mw_bind_info) -> hca::Bind<'a> {
    // SAFETY: the client's region, or NULL for a bind of nothing.
    let mr = unsafe { if info.mr.is_null() { None } else { Some(&state(info.mr).hca) } };
    hca::Bind {
        mw,
        new_rkey,
        mr,
        addr: info.addr,
        length: info.length,
        // Local write is the region's; a window that names it as well, as pyverbs' do, gets what it means.
        access: info.mw_access_flags & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_LOCAL_WRITE),
    }
}
