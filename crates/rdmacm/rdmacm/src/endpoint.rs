//! Identifiers with all that a connection needs: `rdma_create_ep(3)`, `rdma_get_request(3)`; and the devices.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use vervain_abi::*;

use crate::abi::*;
use crate::connect::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, rdma_set_option};
use crate::device::last_errno;
use crate::errno::{fail, result};
use crate::ids::{create, id_of, rdma_destroy_id, rdma_get_cm_event};
use crate::manager::Manager;
use crate::qp::{create_qp, rdma_destroy_qp, rdma_destroy_srq};

/// Milliseconds that resolving an address may take.
const RESOLVE_MS: c_int = 2000;

/// `rdma_create_ep(3)`.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: of the man page.
    let Some(res) = (unsafe { res.as_ref() }) else { return fail(libc::EINVAL) };
    let (space, kind) = (res.ai_port_space as rdma_port_space, res.ai_qp_type as ibv_qp_type);
    // SAFETY: no channel: its calls wait.
    let made = match unsafe { create(ptr::null_mut(), ptr::null_mut(), space, kind) } {
        Ok(made) => made,
        Err(errno) => return fail(errno),
    };
    // SAFETY: just made; the rest is of the man page.
    match unsafe { prepare(made, res, pd, attr) } {
        Ok(()) => {
            // SAFETY: room for the result.
            unsafe { *id = made };
            0
        }
        Err(errno) => {
            // SAFETY: just made.
            unsafe { rdma_destroy_ep(made) };
            fail(errno)
        }
    }
}

unsafe fn prepare(
    id: *mut rdma_cm_id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    let done = |returned: c_int| if returned == 0 { Ok(()) } else { Err(last_errno()) };
    // SAFETY: the caller's.
    unsafe {
        if res.ai_flags & RAI_PASSIVE != 0 {
            done(rdma_bind_addr(id, res.ai_src_addr))?;
            let object = id_of(id);
            object.qp_init_attr = attr.as_ref().copied();
            if !pd.is_null() {
                object.c.pd = pd;
            }
            return Ok(());
        }
        done(rdma_resolve_addr(id, res.ai_src_addr, res.ai_dst_addr, RESOLVE_MS))?;
        if res.ai_route_len > 0 {
            done(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.ai_route, res.ai_route_len))?;
        } else {
            done(rdma_resolve_route(id, RESOLVE_MS))?;
        }
        let object = id_of(id);
        if let Some(attr) = attr.as_mut() {
            attr.qp_type = res.ai_qp_type as ibv_qp_type;
            create_qp(object, pd, attr)?;
        }
        if res.ai_connect_len > 0 {
            object.connect_data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len).to_vec();
        }
    }
    Ok(())
}

/// `rdma_destroy_ep(3)`.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: of the man page.
    unsafe {
        if !(*id).qp.is_null() {
            rdma_destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            rdma_destroy_srq(id);
        }
        rdma_destroy_id(id);
    }
}

/// `rdma_get_request(3)`.
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: of the man page.
    result(unsafe { next_request(listen) }.map(|request| unsafe { *id = request }))
}

unsafe fn next_request(listen: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: the caller's.
    unsafe {
        let listener = id_of(listen);
        if !listener.is_synchronous {
            return Err(libc::EINVAL);
        }
        if !listener.c.event.is_null() {
            crate::ids::rdma_ack_cm_event(std::mem::replace(&mut listener.c.event, ptr::null_mut()));
        }
        let mut event = ptr::null_mut();
        if rdma_get_cm_event(listener.c.channel, &raw mut event) != 0 {
            return Err(last_errno());
        }
        let (kind, status, request) = ((*event).event, (*event).status, (*event).id);
        if status != 0 || kind != RDMA_CM_EVENT_CONNECT_REQUEST {
            crate::ids::rdma_ack_cm_event(event);
            return Err(if status == 0 { libc::EINVAL } else { status.abs() });
        }
        let object = id_of(request);
        if let Some(mut attr) = listener.qp_init_attr {
            let pd = if listener.c.pd.is_null() { ptr::null_mut() } else { listener.c.pd };
            attr.qp_type = object.c.qp_type;
            if let Err(errno) = create_qp(object, pd, &raw mut attr) {
                crate::ids::rdma_ack_cm_event(event);
                rdma_destroy_ep(request);
                return Err(errno);
            }
        }
        object.c.event = event;
        Ok(request)
    }
}

/// `rdma_get_devices(3)`.
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let manager = match Manager::get() {
        Ok(manager) => manager,
        Err(errno) => {
            fail(errno);
            return ptr::null_mut();
        }
    };
    let devices = &manager.devices;
    // SAFETY: room for a list that ends with NULL.
    let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_context>()) }.cast::<*mut ibv_context>();
    if list.is_null() {
        fail(libc::ENOMEM);
        return ptr::null_mut();
    }
    for (i, device) in devices.iter().enumerate() {
        // SAFETY: as above.
        unsafe { *list.add(i) = device.context };
    }
    // SAFETY: of the man page: room, or NULL.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = devices.len() as c_int;
    }
    list
}

/// `rdma_free_devices(3)`.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: made by rdma_get_devices.
    unsafe { libc::free(list.cast::<c_void>()) };
}

/// `rdma_event_str(3)`.
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 20] = [
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        c"RDMA_CM_EVENT_USER",
        c"RDMA_CM_EVENT_INTERNAL",
    ];
    NAMES.get(event as usize).unwrap_or(&c"UNKNOWN EVENT").as_ptr()
}
