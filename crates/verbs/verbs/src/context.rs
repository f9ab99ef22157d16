//! Open devices: `ibv_open_device(3)`, `ibv_import_device(3)`, and the table of operations that the header's inline
//! functions call.

use core::ffi::c_int;
use core::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use vervain_hca::Error;
use vervain_hca::device::LIMITS;

use crate::abi::*;
use crate::object::{self, pointer_of};
use crate::opening::Opening;
use crate::{cq, cq_ex, device_list, dm, errno, mr, mw, ordered, pd, post, qp, query, srq, xrcd};

fn command_file() -> Result<OwnedFd, Error> {
    // SAFETY: a C string and a flag; the descriptor that comes back is ours alone.
    unsafe {
        match libc::memfd_create(c"vervain-uverbs".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(Error::last_os("memfd_create")),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Opens a device.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the client's device.
    let hca = match vervain_link::open(unsafe { device_list::device(device) }) {
        Ok(hca) => hca,
        Err(e) => {
            log::error!("cannot open the device: {e}");
            return errno::null(e.errno());
        }
    };
    pointer_of(|| {
        let file = command_file()?;
        let opening = Opening::new(hca, file.as_raw_fd(), device.expose_provenance())?;
        Ok(new_context(device, opening, file))
    })
}

/// A second context for an opening of this process, found by a duplicate of its `cmd_fd`, which it owns from now on.
///
/// An opening of another process is EOPNOTSUPP: its objects cannot be shared as a kernel's can.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer_of(|| {
        let (opening, device) = Opening::find(cmd_fd)?
            .ok_or_else(|| Error::unsupported("ibv_import_device: no context of this process has this cmd_fd"))?;
        let device = object::from_cookie(device);
        // SAFETY: fstat said that the descriptor is open; ibv_import_device(3) gives it to the new context.
        Ok(new_context(device, opening, unsafe { OwnedFd::from_raw_fd(cmd_fd) }))
    })
}

/// Closes a context. Objects that the client left behind keep what they need until they are destroyed.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the client's context, which it gives up.
    unsafe { object::free(verbs_context::of(context)) };
    0
}

fn new_context(device: *mut ibv_device, opening: Arc<Opening>, file: OwnedFd) -> *mut ibv_context {
    let context = ibv_context {
        device,
        ops: ordered::operations(OPS),
        cmd_fd: file.as_raw_fd(),
        async_fd: opening.hca.async_fd(),
        num_comp_vectors: LIMITS.cq.comp_vectors as c_int,
        // SAFETY: a pthread mutex.
        mutex: unsafe { object::zeros() },
        abi_compat: VERBS_ABI_IS_EXTENDED,
    };
    let vctx = object::new(extended(context), (opening, file));
    // SAFETY: just made; only the address of a field is taken.
    unsafe { &raw mut (*vctx).context }
}

/// These are called without a check for NULL, so all are there.
const OPS: ibv_context_ops = ibv_context_ops {
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(mw::bind_mw),
    dealloc_mw: Some(mw::dealloc_mw),
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    post_srq_recv: Some(srq::post_srq_recv),
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    ..NO_OPS
};

/// The places of the 1.0 ABI, which nothing calls.
const NO_OPS: ibv_context_ops = ibv_context_ops {
    _compat_query_device: None,
    _compat_query_port: None,
    _compat_alloc_pd: None,
    _compat_dealloc_pd: None,
    _compat_reg_mr: None,
    _compat_rereg_mr: None,
    _compat_dereg_mr: None,
    alloc_mw: None,
    bind_mw: None,
    dealloc_mw: None,
    _compat_create_cq: None,
    poll_cq: None,
    req_notify_cq: None,
    _compat_cq_event: None,
    _compat_resize_cq: None,
    _compat_destroy_cq: None,
    _compat_create_srq: None,
    _compat_modify_srq: None,
    _compat_query_srq: None,
    _compat_destroy_srq: None,
    post_srq_recv: None,
    _compat_create_qp: None,
    _compat_query_qp: None,
    _compat_modify_qp: None,
    _compat_destroy_qp: None,
    post_send: None,
    post_recv: None,
    _compat_create_ah: None,
    _compat_destroy_ah: None,
    _compat_attach_mcast: None,
    _compat_detach_mcast: None,
    _compat_async_event: None,
};

/// The table of a context. An operation that stays NULL reads as EOPNOTSUPP in the header's inline functions: flow
/// steering, counters, work queues and their tables, CQ moderation, rate limits, prefetching, DMA handles, tag
/// matching.
fn extended(context: ibv_context) -> verbs_context {
    // SAFETY: the struct is pointers, `Option`s of functions, integers and an `ibv_context`, which is set below.
    let mut v: verbs_context = unsafe { object::zeros() };
    v.free_buf = Some(mr::ibv_free_buf);
    v.alloc_buf = Some(mr::ibv_alloc_buf);
    v.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    v.query_port = Some(query::query_port);
    v.alloc_null_mr = Some(mr::alloc_null_mr);
    v.reg_dm_mr = Some(mr::reg_dm_mr);
    v.alloc_dm = Some(dm::alloc_dm);
    v.free_dm = Some(dm::free_dm);
    v.alloc_parent_domain = Some(pd::alloc_parent_domain);
    v.dealloc_td = Some(pd::dealloc_td);
    v.alloc_td = Some(pd::alloc_td);
    v.query_rt_values = Some(query::query_rt_values);
    v.create_cq_ex = Some(cq_ex::create_cq_ex);
    v.query_device_ex = Some(query::query_device_ex);
    v.open_qp = Some(qp::open_qp);
    v.create_qp_ex = Some(qp::create_qp_ex);
    v.get_srq_num = Some(srq::get_srq_num);
    v.create_srq_ex = Some(srq::create_srq_ex);
    v.open_xrcd = Some(xrcd::open_xrcd);
    v.close_xrcd = Some(xrcd::close_xrcd);
    v.sz = size_of::<verbs_context>();
    v.context = context;
    v
}
