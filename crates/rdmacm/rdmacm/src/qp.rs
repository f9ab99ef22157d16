//! QPs and queues of an identifier: `rdma_create_qp(3)`, `rdma_create_srq(3)`, and the moves of a QP to its states.

use std::ffi::c_int;
use std::ptr;

use vervain_abi::*;

use crate::abi::*;
use crate::device::last_errno;
use crate::errno::result;
use crate::ids::{Id, Joined, id_of};
use crate::manager::Manager;
use crate::verbs::Verbs;

/// Which queues an identifier has made itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnQueues {
    pub send: bool,
    pub receive: bool,
}

type CreateQpEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
type CreateSrqEx = unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
type OpenXrcd = unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;

/// The operations that programs call inline.
///
/// # Safety
/// An open context of Vervain's, which is extended.
unsafe fn operations(context: *mut ibv_context) -> *const verbs_context {
    let offset = std::mem::offset_of!(verbs_context, context);
    // SAFETY: the caller's: it stands in a verbs_context.
    unsafe { context.cast::<u8>().sub(offset).cast() }
}

fn made<T>(object: *mut T) -> Result<*mut T, c_int> {
    if object.is_null() { Err(last_errno()) } else { Ok(object) }
}

/// A completion queue with its channel; `context` is what it is known by (`rdma_get_send_comp(3)`).
unsafe fn create_queue(
    verbs: &Verbs,
    id: *mut rdma_cm_id,
    entries: u32,
) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), c_int> {
    // SAFETY: an identifier that is bound to a device.
    let context = unsafe { (*id).verbs };
    // SAFETY: an open context.
    let channel = made(unsafe { (verbs.cq.create_channel)(context) })?;
    let entries = c_int::try_from(entries).map_err(|_| libc::EINVAL)?;
    // SAFETY: as above, with a channel of it.
    match made(unsafe { (verbs.cq.create)(context, entries, id.cast(), channel, 0) }) {
        Ok(queue) => Ok((channel, queue)),
        Err(errno) => {
            // SAFETY: just made.
            unsafe { (verbs.cq.destroy_channel)(channel) };
            Err(errno)
        }
    }
}

/// Makes the queues that are wanted and that it has not.
unsafe fn create_queues(verbs: &Verbs, object: &mut Id, send: u32, receive: u32) -> Result<(), c_int> {
    let id: *mut rdma_cm_id = &raw mut object.c;
    if send > 0 && object.c.send_cq.is_null() {
        // SAFETY: the caller's.
        (object.c.send_cq_channel, object.c.send_cq) = unsafe { create_queue(verbs, id, send) }?;
        object.own_queues.send = true;
    }
    if receive > 0 && object.c.recv_cq.is_null() {
        // SAFETY: as above.
        (object.c.recv_cq_channel, object.c.recv_cq) = unsafe { create_queue(verbs, id, receive) }?;
        object.own_queues.receive = true;
    }
    Ok(())
}

unsafe fn destroy_queues(verbs: &Verbs, object: &mut Id) {
    // A QP and an SRQ may share the queue for receives.
    if !object.c.qp.is_null() || !object.c.srq.is_null() {
        return;
    }
    let OwnQueues { send, receive } = std::mem::take(&mut object.own_queues);
    let c = &mut object.c;
    for (is_own, queue, channel) in
        [(receive, &mut c.recv_cq, &mut c.recv_cq_channel), (send, &mut c.send_cq, &mut c.send_cq_channel)]
    {
        if is_own {
            // SAFETY: made above.
            unsafe {
                (verbs.cq.destroy)(*queue);
                (verbs.cq.destroy_channel)(*channel);
            }
        }
        (*queue, *channel) = (ptr::null_mut(), ptr::null_mut());
    }
}

/// `rdma_create_qp(3)`.
pub unsafe extern "C" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> c_int {
    // SAFETY: of the man page.
    result(unsafe { create_qp(id_of(id), pd, attr) })
}

/// Makes the QP of an identifier.
pub(crate) unsafe fn create_qp(object: &mut Id, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let attr = unsafe { attr.as_mut() }.ok_or(libc::EINVAL)?;
    let mut ex = ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        // SAFETY: a struct of integers and pointers.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: the caller's.
    let made = unsafe { create_qp_of(object, &mut ex) };
    attr.cap = ex.cap;
    made
}

/// `rdma_create_qp_ex(3)`.
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: of the man page.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return crate::errno::fail(libc::EINVAL) };
    // SAFETY: as above.
    result(unsafe { create_qp_of(id_of(id), attr) })
}

unsafe fn create_qp_of(object: &mut Id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    let manager = Manager::get()?;
    let verbs = manager.verbs;
    if object.c.verbs.is_null() || object.c.qp_type != attr.qp_type || !object.c.qp.is_null() {
        return Err(libc::EINVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = object.c.pd;
    // SAFETY: the program's.
    } else if unsafe { (*attr.pd).context } != object.c.verbs {
        return Err(libc::EINVAL);
    }
    if attr.qp_type == IBV_QPT_XRC_RECV && attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        // SAFETY: bound to a device.
        attr.xrcd = unsafe { xrcd(object.c.verbs) }?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    if attr.srq.is_null() && attr.qp_type != IBV_QPT_XRC_SEND {
        attr.srq = object.c.srq;
    }
    let sends = attr.send_cq.is_null() && attr.qp_type != IBV_QPT_XRC_RECV;
    let receives = attr.recv_cq.is_null() && !matches!(attr.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV);
    let of = |is_wanted: bool, entries: u32| if is_wanted { entries } else { 0 };
    let receive_entries = if attr.srq.is_null() { attr.cap.max_recv_wr } else { attr.cap.max_recv_wr.max(1) };
    let queues =
        // SAFETY: bound to a device.
        unsafe { create_queues(verbs, object, of(sends, attr.cap.max_send_wr), of(receives, receive_entries)) };
    let made = queues.and_then(|()| {
        if attr.send_cq.is_null() {
            attr.send_cq = object.c.send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = object.c.recv_cq;
        }
        // A queue that takes nothing has the other's completions.
        if attr.send_cq.is_null() && attr.qp_type != IBV_QPT_XRC_RECV {
            attr.send_cq = attr.recv_cq;
        }
        if attr.recv_cq.is_null() && !matches!(attr.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) {
            attr.recv_cq = attr.send_cq;
        }
        // SAFETY: an open context and the program's attributes.
        let create: CreateQpEx = unsafe { (*operations(object.c.verbs)).create_qp_ex }.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: as above.
        made(unsafe { create(object.c.verbs, attr) })
    });
    let qp = match made {
        Ok(qp) => qp,
        Err(errno) => {
            // SAFETY: made above.
            unsafe { destroy_queues(verbs, object) };
            return Err(errno);
        }
    };
    // SAFETY: just made.
    let moved = unsafe { initialise(manager, object, qp) };
    if let Err(errno) = moved {
        // SAFETY: as above.
        unsafe {
            (verbs.qp.destroy)(qp);
            destroy_queues(verbs, object);
        }
        return Err(errno);
    }
    object.c.pd = attr.pd;
    object.c.qp = qp;
    for group in object.groups().iter_mut() {
        group.attach(verbs, qp);
    }
    Ok(())
}

/// A UD QP is ready at once; others are to be connected.
unsafe fn initialise(manager: &Manager, object: &Id, qp: *mut ibv_qp) -> Result<(), c_int> {
    let states: &[ibv_qp_state] =
        if object.c.qp_type == IBV_QPT_UD { &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] } else { &[IBV_QPS_INIT] };
    for state in states {
        let (mut attr, mask) = manager.qp_attr(object.handle, *state)?;
        // SAFETY: the caller's.
        modified(unsafe { (manager.verbs.qp.modify)(qp, &raw mut attr, mask) })?;
    }
    Ok(())
}

fn modified(returned: c_int) -> Result<(), c_int> {
    if returned == 0 { Ok(()) } else { Err(returned.abs()) }
}

/// Moves the QP to RTR and RTS, with these depths in place of what the other end has said, if there are any.
///
/// # Safety
/// An identifier that has a QP.
pub(crate) unsafe fn connect(
    manager: &Manager,
    object: &Id,
    resources: Option<u8>,
    depth: Option<u8>,
) -> Result<(), c_int> {
    for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
        let (mut attr, mask) = manager.qp_attr(object.handle, state)?;
        if let Some(resources) = resources {
            attr.max_dest_rd_atomic = resources;
            if state == IBV_QPS_INIT && resources > 0 {
                attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
            }
        }
        if let Some(depth) = depth {
            attr.max_rd_atomic = depth;
        }
        // SAFETY: the caller's.
        modified(unsafe { (manager.verbs.qp.modify)(object.c.qp, &raw mut attr, mask) })?;
    }
    Ok(())
}

/// Moves the QP, if there is one, to the error state: what is posted is flushed.
///
/// # Safety
/// The identifier's QP lives.
pub(crate) unsafe fn to_error(manager: &Manager, object: &Id) -> Result<(), c_int> {
    if object.c.qp.is_null() {
        return Ok(());
    }
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: the caller's.
    modified(unsafe { (manager.verbs.qp.modify)(object.c.qp, &raw mut attr, IBV_QP_STATE as c_int) })
}

/// `rdma_destroy_qp(3)`.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    let Ok(manager) = Manager::get() else { return };
    // SAFETY: of the man page.
    let object = unsafe { id_of(id) };
    let qp = std::mem::replace(&mut object.c.qp, ptr::null_mut());
    if qp.is_null() {
        return;
    }
    for group in object.groups().iter_mut() {
        group.detach(manager.verbs, qp);
    }
    // SAFETY: the identifier's.
    unsafe {
        (manager.verbs.qp.destroy)(qp);
        destroy_queues(manager.verbs, object);
    }
}

/// `rdma_create_srq(3)`.
pub unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int {
    // SAFETY: of the man page.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return crate::errno::fail(libc::EINVAL) };
    let mut ex = ibv_srq_init_attr_ex {
        srq_context: attr.srq_context,
        attr: attr.attr,
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
        // SAFETY: of the man page.
        srq_type: if unsafe { (*id).qp_type } == IBV_QPT_XRC_RECV { IBV_SRQT_XRC } else { IBV_SRQT_BASIC },
        pd,
        // SAFETY: a struct of integers and pointers.
        ..unsafe { std::mem::zeroed() }
    };
    // SAFETY: of the man page.
    let made = unsafe { create_srq(id_of(id), &mut ex) };
    attr.attr = ex.attr;
    result(made)
}

/// `rdma_create_srq_ex(3)`.
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: of the man page.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return crate::errno::fail(libc::EINVAL) };
    // SAFETY: as above.
    result(unsafe { create_srq(id_of(id), attr) })
}

unsafe fn create_srq(object: &mut Id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    let verbs = Manager::get()?.verbs;
    if object.c.verbs.is_null() || !object.c.srq.is_null() {
        return Err(libc::EINVAL);
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        attr.pd = object.c.pd;
    }
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && attr.srq_type == IBV_SRQT_XRC {
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            // SAFETY: bound to a device.
            attr.xrcd = unsafe { xrcd(object.c.verbs) }?;
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        }
        if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            // SAFETY: bound to a device.
            unsafe { create_queues(verbs, object, 0, attr.attr.max_wr) }?;
            attr.cq = object.c.recv_cq;
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
    }
    // SAFETY: an open context and the program's attributes.
    let create: CreateSrqEx = unsafe { (*operations(object.c.verbs)).create_srq_ex }.ok_or(libc::EOPNOTSUPP)?;
    // SAFETY: as above.
    match made(unsafe { create(object.c.verbs, attr) }) {
        Ok(srq) => {
            object.c.srq = srq;
            object.c.pd = attr.pd;
            Ok(())
        }
        Err(errno) => {
            // SAFETY: made above.
            unsafe { destroy_queues(verbs, object) };
            Err(errno)
        }
    }
}

/// `rdma_destroy_srq(3)`.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    let Ok(manager) = Manager::get() else { return };
    // SAFETY: of the man page.
    let object = unsafe { id_of(id) };
    let srq = std::mem::replace(&mut object.c.srq, ptr::null_mut());
    if !srq.is_null() {
        // SAFETY: the identifier's.
        unsafe {
            (manager.verbs.qp.destroy_srq)(srq);
            destroy_queues(manager.verbs, object);
        }
    }
}

/// The XRC domain of those that name none: one for each context of the program, of no file.
unsafe fn xrcd(context: *mut ibv_context) -> Result<*mut ibv_xrcd, c_int> {
    use std::sync::{Mutex, PoisonError};
    static DOMAINS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, domain)) = domains.iter().find(|(of, _)| *of == context.addr()) {
        return Ok(*domain as *mut ibv_xrcd);
    }
    // SAFETY: a struct of integers.
    let mut attr: ibv_xrcd_init_attr = unsafe { std::mem::zeroed() };
    attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    attr.fd = -1;
    attr.oflags = libc::O_CREAT;
    // SAFETY: the caller's.
    let open: OpenXrcd = unsafe { (*operations(context)).open_xrcd }.ok_or(libc::EOPNOTSUPP)?;
    // SAFETY: as above.
    let domain = made(unsafe { open(context, &raw mut attr) })?;
    domains.push((context.addr(), domain as usize));
    Ok(domain)
}

impl Joined {
    /// Has a QP receive what is sent to the group: an errno value, or 0.
    pub fn attach(&mut self, verbs: &Verbs, qp: *mut ibv_qp) -> c_int {
        if qp.is_null() || self.is_attached || self.sends_only {
            return 0;
        }
        // SAFETY: a QP that lives, and a GID.
        let failed = unsafe { (verbs.qp.attach_mcast)(qp, &raw const self.mgid, 0) };
        self.is_attached = failed == 0;
        failed.abs()
    }

    /// Has it no longer receive that.
    pub fn detach(&mut self, verbs: &Verbs, qp: *mut ibv_qp) {
        if std::mem::take(&mut self.is_attached) && !qp.is_null() {
            // SAFETY: as above.
            unsafe { (verbs.qp.detach_mcast)(qp, &raw const self.mgid, 0) };
        }
    }
}
