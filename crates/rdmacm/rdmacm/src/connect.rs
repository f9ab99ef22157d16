//! Addresses and connections: `rdma_bind_addr(3)` to `rdma_disconnect(3)`.

use std::ffi::{c_int, c_void};

use vervain_abi::*;
use vervain_cm::message::reason;

use crate::abi::*;
use crate::address;
use crate::errno::result;
use crate::ids::{Id, Joined, complete, id_of, show};
use crate::manager::{Manager, Setting};
use crate::qp;
use crate::reports::ConnParam;

/// Does something with an identifier, and waits for its event where the identifier is one whose calls wait.
pub(crate) unsafe fn waiting(
    id: *mut rdma_cm_id,
    f: impl FnOnce(&'static Manager, &mut Id) -> Result<(), c_int>,
) -> c_int {
    let done = (|| {
        // SAFETY: the caller's, of the man page.
        f(Manager::get()?, unsafe { id_of(id) })?;
        // SAFETY: as above.
        unsafe { complete(id) }
    })();
    result(done)
}

/// Does something with an identifier that has no event.
pub(crate) unsafe fn at_once(
    id: *mut rdma_cm_id,
    f: impl FnOnce(&'static Manager, &mut Id) -> Result<(), c_int>,
) -> c_int {
    // SAFETY: the caller's, of the man page.
    result(Manager::get().and_then(|manager| f(manager, unsafe { id_of(id) })))
}

/// `rdma_bind_addr(3)`.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            manager.bind(object.handle, address::read(addr)?)?;
            show(manager, object);
            Ok(())
        })
    }
}

/// `rdma_resolve_addr(3)`. A host has a second to answer at least.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let patience_ms = u32::try_from(timeout_ms).unwrap_or(0);
    // SAFETY: of the man page.
    unsafe {
        waiting(id, |manager, object| {
            let from = if src.is_null() { None } else { Some(address::read(src)?) };
            let to = address::read(dst)?;
            address::write(&mut object.c.route.addr.dst, &to);
            manager.resolve_address(object.handle, from, to, patience_ms)
        })
    }
}

/// `rdma_resolve_route(3)`.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: of the man page.
    unsafe { waiting(id, |manager, object| manager.resolve_route(object.handle)) }
}

/// `rdma_listen(3)`.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            manager.listen(object.handle, backlog)?;
            show(manager, object);
            Ok(())
        })
    }
}

/// Private data that C gives.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}

/// EINVAL where more is asked for than the device can.
fn check_depths(manager: &Manager, object: &Id, param: Option<&rdma_conn_param>) -> Result<(), c_int> {
    if object.c.ps != RDMA_PS_TCP {
        return Ok(());
    }
    let Some(param) = param else {
        return if object.c.qp.is_null() { Err(libc::EINVAL) } else { Ok(()) };
    };
    let device = &manager.devices[object.device.ok_or(libc::EINVAL)?];
    let too_many = |n: u8, all: u8, most: u8| n != all && n > most;
    if too_many(param.responder_resources, RDMA_MAX_RESP_RES, device.most_responder)
        || too_many(param.initiator_depth, RDMA_MAX_INIT_DEPTH, device.most_initiator)
    {
        return Err(libc::EINVAL);
    }
    Ok(())
}

/// The manager's parameters, from a program's parameters and its QP.
unsafe fn conn_param(object: &Id, param: Option<&rdma_conn_param>) -> ConnParam {
    let qp = object.c.qp;
    let (qpn, srq) = if qp.is_null() {
        param.map_or((0, false), |param| (param.qp_num, param.srq != 0))
    } else {
        // SAFETY: the identifier's, which lives.
        unsafe { ((*qp).qp_num, !(*qp).srq.is_null()) }
    };
    let mut private_data = object.connect_data.clone();
    if let Some(param) = param {
        // SAFETY: of the man page.
        private_data.extend(unsafe { bytes(param.private_data, param.private_data_len) });
    }
    ConnParam {
        private_data,
        responder_resources: object.responder_resources,
        initiator_depth: object.initiator_depth,
        flow_control: param.map_or(0, |param| param.flow_control),
        retry_count: param.map_or(7, |param| param.retry_count),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
        srq,
        qpn,
        qkey: RDMA_UDP_QKEY,
    }
}

/// `rdma_connect(3)`.
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        waiting(id, |manager, object| {
            let param = param.as_ref();
            check_depths(manager, object, param)?;
            let device = &manager.devices[object.device.ok_or(libc::EINVAL)?];
            let given = |n: Option<u8>, all: u8, most: u8| n.filter(|n| *n != all).unwrap_or(most);
            object.responder_resources =
                given(param.map(|param| param.responder_resources), RDMA_MAX_RESP_RES, device.most_responder);
            object.initiator_depth =
                given(param.map(|param| param.initiator_depth), RDMA_MAX_INIT_DEPTH, device.most_initiator);
            manager.connect(object.handle, &conn_param(object, param))
        })
    }
}

/// `rdma_accept(3)`.
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        let is_datagram = (*id).qp_type == IBV_QPT_UD;
        let accept = |manager: &'static Manager, object: &mut Id| {
            let param = param.as_ref();
            check_depths(manager, object, param)?;
            let device = &manager.devices[object.device.ok_or(libc::EINVAL)?];
            let given = |n: Option<u8>, all: u8, asked: u8| n.filter(|n| *n != all).unwrap_or(asked);
            object.responder_resources = given(
                param.map(|param| param.responder_resources),
                RDMA_MAX_RESP_RES,
                object.responder_resources.min(device.most_responder),
            );
            object.initiator_depth = given(
                param.map(|param| param.initiator_depth),
                RDMA_MAX_INIT_DEPTH,
                object.initiator_depth.min(device.most_initiator),
            );
            if !is_datagram && !object.c.qp.is_null() {
                let (resources, depth) = (object.responder_resources, object.initiator_depth);
                qp::connect(manager, object, Some(resources), Some(depth))?;
            }
            let accepted = manager.accept(object.handle, &conn_param(object, param));
            if accepted.is_err() {
                let _ = qp::to_error(manager, object);
            }
            accepted
        };
        if !is_datagram {
            return waiting(id, accept);
        }
        // No event follows an answer to a SIDR request. That event was the listener's, which must not wait for it any
        // more.
        at_once(id, |manager, object| {
            accept(manager, object)?;
            if object.is_synchronous {
                object.acknowledge();
            }
            Ok(())
        })
    }
}

/// A response has come: moves the QP, and confirms.
///
/// # Safety
/// The identifier has a QP.
pub(crate) unsafe fn confirm(manager: &Manager, object: &Id) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let confirmed = unsafe { qp::connect(manager, object, None, None) }.and_then(|()| manager.ready(object.handle));
    if confirmed.is_err() {
        // SAFETY: as above.
        let _ = unsafe { qp::to_error(manager, object) };
        let _ = manager.reject(object.handle, reason::CONSUMER_DEFINED, &[]);
    }
    confirmed
}

/// `rdma_establish(3)`: confirms a response, the program having moved its QP.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            // The library does it where it knows the QP.
            if object.c.qp.is_null() { manager.ready(object.handle) } else { Err(libc::EINVAL) }
        })
    }
}

unsafe fn reject(id: *mut rdma_cm_id, why: u16, data: *const c_void, length: u8) -> c_int {
    // SAFETY: the caller's.
    unsafe { at_once(id, |manager, object| manager.reject(object.handle, why, &bytes(data, length))) }
}

/// `rdma_reject(3)`.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: of the man page.
    unsafe { reject(id, reason::CONSUMER_DEFINED, data, length) }
}

/// `rdma_reject_ece(3)`: the enhancement that was asked for cannot be had.
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: of the man page.
    unsafe { reject(id, reason::VENDOR_OPTION_NOT_SUPPORTED, data, length) }
}

/// `rdma_notify(3)`.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            match event {
                IBV_EVENT_COMM_EST => manager.is_established(object.handle),
                // There is no other path.
                IBV_EVENT_PATH_MIG => Ok(()),
                _ => Err(libc::EINVAL),
            }
        })
    }
}

/// `rdma_disconnect(3)`. For datagrams the other end gets no message, so no event follows.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        let disconnect = |manager: &'static Manager, object: &mut Id| {
            qp::to_error(manager, object)?;
            manager.disconnect(object.handle)
        };
        if (*id).qp_type == IBV_QPT_UD { at_once(id, disconnect) } else { waiting(id, disconnect) }
    }
}

/// `rdma_init_qp_attr(3)`.
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            let (Some(attr), Some(mask)) = (attr.as_mut(), mask.as_mut()) else { return Err(libc::EINVAL) };
            (*attr, *mask) = manager.qp_attr(object.handle, attr.qp_state)?;
            Ok(())
        })
    }
}

/// `rdma_set_local_ece(3)`.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            // If the library knows the QP, it names the QP's capabilities itself.
            let can_be = |ece: &&ibv_ece| ece.vendor_id != 0 && ece.vendor_id >> 24 == 0 && ece.comp_mask == 0;
            let ece = ece.as_ref().filter(can_be).filter(|_| object.c.qp.is_null()).ok_or(libc::EINVAL)?;
            manager.set(object.handle, Setting::OwnEce(*ece))
        })
    }
}

/// `rdma_get_remote_ece(3)`.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            *ece.as_mut().filter(|_| object.c.qp.is_null()).ok_or(libc::EINVAL)? = manager.peer_ece(object.handle)?;
            Ok(())
        })
    }
}

/// `rdma_set_option(3)`.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: of the man page: a value of that length.
    unsafe {
        let sized = |wanted: usize| if value.is_null() || length != wanted { Err(libc::EINVAL) } else { Ok(()) };
        let byte = || sized(1).map(|()| *value.cast::<u8>());
        let flag = || sized(size_of::<c_int>()).map(|()| value.cast::<c_int>().read_unaligned() != 0);
        let set = |manager: &'static Manager, object: &mut Id| match (level, option) {
            (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => manager.set(object.handle, Setting::TrafficClass(byte()?)),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => manager.set(object.handle, Setting::ReusesAddress(flag()?)),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => manager.set(object.handle, Setting::OnlyItsFamily(flag()?)),
            (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => manager.set(object.handle, Setting::AckTimeout(byte()?)),
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
                if value.is_null() || length == 0 || !length.is_multiple_of(size_of::<ibv_path_data>()) {
                    return Err(libc::EINVAL);
                }
                // RoCE has one path between two addresses, and asks nobody for it.
                manager.resolve_route(object.handle)
            }
            _ => Err(libc::ENOSYS),
        };
        if level == RDMA_OPTION_IB { waiting(id, set) } else { at_once(id, set) }
    }
}

/// `rdma_join_multicast(3)`.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: of the man page.
    unsafe { join(id, addr, false, context) }
}

/// `rdma_join_multicast_ex(3)`.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        let Some(attr) = attr.as_ref() else { return crate::errno::fail(libc::EINVAL) };
        let known = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask != known || attr.join_flags > RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER {
            return crate::errno::fail(libc::EINVAL);
        }
        join(id, attr.addr, attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context)
    }
}

unsafe fn join(id: *mut rdma_cm_id, addr: *mut libc::sockaddr, sends_only: bool, context: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        waiting(id, |manager, object| {
            let ip = address::read(addr)?.ip();
            if !ip.is_multicast() {
                return Err(libc::EINVAL);
            }
            let mgid = address::group_gid_of(ip);
            // Before its event, which may be heard of by another thread at once.
            object.groups().push(Joined { ip, context, mgid, sends_only, is_attached: false });
            let joined = manager.join(object.handle, ip, context as usize);
            if joined.is_err() {
                let mut groups = object.groups();
                if let Some(at) = groups.iter().rposition(|group| group.ip == ip && group.context == context) {
                    groups.remove(at);
                }
            }
            joined
        })
    }
}

/// `rdma_leave_multicast(3)`.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    // SAFETY: of the man page.
    unsafe {
        at_once(id, |manager, object| {
            let ip = address::read(addr)?.ip();
            let mut groups = object.groups();
            let at = groups.iter().position(|group| group.ip == ip).ok_or(libc::EADDRNOTAVAIL)?;
            let mut group = groups.remove(at);
            drop(groups);
            group.detach(manager.verbs, object.c.qp);
            manager.leave(object.handle, ip).map(drop)
        })
    }
}
