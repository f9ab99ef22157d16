//! Memory regions and buffers: `ibv_reg_mr(3)`, `ibv_rereg_mr(3)`, `ibv_import_mr(3)`, `ibv_alloc_null_mr(3)`,
//! `ibv_alloc_buf(3)`.
//!
//! Programs register beside their traffic. A signal that arrives meanwhile is handled afterwards, as with an adapter,
//! where each of these verbs is one system call, or while the verb sleeps to wait for another thread or a peer.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use std::sync::Arc;

use vervain_hca::host::lock::OwnerLock;
use vervain_hca::host::signals::SignalsHeld;
use vervain_hca::{self as hca, Error};
use vervain_share::checkers;

use crate::abi::*;
use crate::errno;
use crate::object::{self, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::pd::{Use, hca_pd, use_pd};
use crate::registry::Entry;

/// Behind an `ibv_mr`.
pub(crate) struct MrState {
    /// None for an imported one.
    _entry: Option<Entry<ibv_mr>>,
    pub(crate) hca: Arc<hca::Mr>,
    /// Changes with the PD.
    pd_use: OwnerLock<Option<Use>>,
}

impl Handle for ibv_mr {
    type State = MrState;
}

/// Wraps a new region and gives it a handle.
pub(crate) unsafe fn new_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, hca: Arc<hca::Mr>) -> *mut ibv_mr {
    // SAFETY: the client's PD, whose context lives longer.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    let _entry = Some(opening.mrs.entry(handle));
    // SAFETY: the client's PD.
    let pd_use = OwnerLock::new(unsafe { use_pd(pd) });
    let c = ibv_mr { context, pd, addr, length, handle, lkey: hca.lkey(), rkey: hca.rkey() };
    opening.mrs.publish(handle, object::new(c, MrState { _entry, hca, pd_use }))
}

/// Tells memcheck that other processes store to memory to which the device may write. It must not expect these bytes to
/// be initialised by a store of this program.
fn device_writes(addr: *mut c_void, length: usize, access: c_uint) {
    if access & IBV_ACCESS_LOCAL_WRITE != 0 {
        checkers::written_by_others(addr.cast(), length);
    }
}

/// Registers memory under addresses that begin at `iova`; all other ways to register come here.
///
/// Access bits that a device may ignore, as relaxed ordering, are ignored: perftest sets one.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let _held = SignalsHeld::begin();
    pointer_of(|| {
        // SAFETY: the client's PD.
        unsafe {
            let hca_pd = hca_pd(pd)?;
            let mr = hca::Mr::register(
                hca_pd,
                addr.addr() as u64,
                length as u64,
                iova,
                access & !IBV_ACCESS_OPTIONAL_RANGE,
            )?;
            device_writes(addr, length, access);
            Ok(new_mr(pd, addr, length, mr))
        }
    })
}

/// Registers memory under its own addresses.
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller's arguments, passed on.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access as c_uint) }
}

/// Registers memory under addresses that begin at `iova`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's arguments, passed on.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access as c_uint) }
}

/// Registers what the attributes describe. Memory given by a dma-buf, and DMA handles, are EOPNOTSUPP.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const KNOWN: u64 = IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF;
    // SAFETY: the client's attributes; fields are read as comp_mask allows.
    unsafe {
        let mask = (*attr).comp_mask;
        if mask & !KNOWN != 0 {
            return errno::null(libc::EOPNOTSUPP);
        }
        if mask & IBV_REG_MR_MASK_ADDR == 0 {
            return errno::null(libc::EINVAL);
        }
        let (addr, length) = ((*attr).addr, (*attr).length);
        if mask & IBV_REG_MR_MASK_BUF != 0 && !within((*attr).buf, pd, addr, length) {
            return errno::null(libc::EINVAL);
        }
        let iova = if mask & IBV_REG_MR_MASK_IOVA != 0 { (*attr).iova } else { addr.addr() as u64 };
        ibv_reg_mr_iova2(pd, addr, length, iova, (*attr).access as c_uint)
    }
}

/// A region whose reads give zeros and whose writes go nowhere.
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer_of(|| {
        // SAFETY: the client's PD.
        unsafe {
            let mr = hca::Mr::null(hca_pd(pd)?)?;
            Ok(new_mr(pd, ptr::null_mut(), 0, mr))
        }
    })
}

/// Registers a part of device memory.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer_of(|| {
        let access = access & !IBV_ACCESS_OPTIONAL_RANGE;
        if access & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(Error::invalid("ibv_reg_dm_mr needs IBV_ACCESS_ZERO_BASED"));
        }
        // SAFETY: the client's PD and device memory.
        unsafe {
            let mr = hca::Mr::of_dm(hca_pd(pd)?, &state(dm).hca, dm_offset, length as u64, access)?;
            Ok(new_mr(pd, ptr::null_mut(), length, mr))
        }
    })
}

/// Changes a region's memory, PD or access. On error it is as it was.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let _held = SignalsHeld::begin();
    // SAFETY: the client's region, and its PD if the flags name one.
    let changed = unsafe {
        let new_pd = (flags & IBV_REREG_MR_CHANGE_PD != 0).then(|| hca_pd(pd)).transpose();
        new_pd.and_then(|new_pd| {
            state(mr).hca.rereg(
                flags as u32,
                new_pd,
                addr.addr() as u64,
                length as u64,
                access as u32 & !IBV_ACCESS_OPTIONAL_RANGE,
            )
        })
    };
    if let Err(e) = changed {
        errno::set_errno(e.errno());
        return IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: the client's region, which nobody else may use during this call.
    unsafe {
        let state = state(mr);
        (*mr).lkey = state.hca.lkey();
        (*mr).rkey = state.hca.rkey();
        if flags & IBV_REREG_MR_CHANGE_PD != 0 {
            *state.pd_use.lock() = use_pd(pd);
            (*mr).pd = pd;
        }
        if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 {
            (*mr).addr = addr;
            (*mr).length = length;
        }
        device_writes(
            (*mr).addr,
            (*mr).length,
            if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 { access as c_uint } else { IBV_ACCESS_LOCAL_WRITE },
        );
    }
    0
}

/// Deregisters a region; after this returns, no access to its memory by it is possible.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    let _held = SignalsHeld::begin();
    errno_of(|| {
        // SAFETY: the client's region, which it gives up if this succeeds.
        unsafe {
            state(mr).hca.deregister()?;
            object::free(mr);
        }
        Ok(())
    })
}

/// A second `ibv_mr` for the region with that handle.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    pointer_of(|| {
        // SAFETY: the client's PD.
        let context = unsafe { (*pd).context };
        // SAFETY: its context.
        let hca = unsafe { opening(context) }.mrs.with(mr_handle, |mr| Arc::clone(&mr.hca))?;
        let addr = ptr::with_exposed_provenance_mut(hca.addr() as usize);
        let (length, lkey, rkey) = (hca.length() as usize, hca.lkey(), hca.rkey());
        // SAFETY: the client's PD.
        let pd_use = OwnerLock::new(unsafe { use_pd(pd) });
        let c = ibv_mr { context, pd, addr, length, handle: mr_handle, lkey, rkey };
        Ok(object::new(c, MrState { _entry: None, hca, pd_use }))
    })
}

/// Ends an imported `ibv_mr`, not the region.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the client's region, which it gives up.
    unsafe { object::free(mr) }
}

/// Allocates `size` bytes of zeroed, page-aligned memory.
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    if pd.is_null() || buf.is_null() || size == 0 {
        return errno::null(libc::EINVAL);
    }
    // SAFETY: a new anonymous mapping overlaps nothing.
    let addr = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if addr == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: `buf` is the client's to be set.
    unsafe { *buf = Box::into_raw(Box::new(ibv_buf { pd, addr, length: size })) };
    addr
}

/// Frees a buffer.
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    // SAFETY: the client's buffer, which it gives up; `ibv_alloc_buf` mapped it.
    unsafe {
        let buf = Box::from_raw(buf);
        libc::munmap(buf.addr, buf.length);
    }
}

/// Registers a part of a buffer, under the PD that it was allocated with.
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the client's PD and buffer.
    unsafe {
        if !within(buf, pd, addr, length) {
            return errno::null(libc::EINVAL);
        }
        ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access as c_uint)
    }
}

/// There is no dma-buf behind a buffer: ENODATA.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    errno::minus_one(libc::ENODATA)
}

/// Returns true if the range lies in the buffer and the PD is the buffer's.
unsafe fn within(buf: *const ibv_buf, pd: *const ibv_pd, addr: *const c_void, length: usize) -> bool {
    // SAFETY: the client's buffer, or NULL.
    unsafe { buf.as_ref() }.is_some_and(|buf| {
        let offset = addr.addr().wrapping_sub(buf.addr.addr());
        ptr::eq(buf.pd, pd) && offset <= buf.length && length <= buf.length - offset
    })
}
