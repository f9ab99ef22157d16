//! Device memory: `ibv_alloc_dm(3)`, `ibv_import_dm(3)`.

use core::ffi::{c_int, c_void};
use core::slice;
use std::sync::Arc;

use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::object::{self, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::registry::Entry;

/// Behind an `ibv_dm`.
pub(crate) struct DmState {
    /// None for an imported one.
    _entry: Option<Entry<ibv_dm>>,
    pub(crate) hca: Arc<hca::Dm>,
}

impl Handle for ibv_dm {
    type State = DmState;
}

/// Wraps device memory and gives it a handle.
pub(crate) unsafe fn new_dm(context: *mut ibv_context, hca: Arc<hca::Dm>) -> *mut ibv_dm {
    // SAFETY: the client's context.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    let entry = opening.dms.entry(handle);
    opening.dms.publish(handle, wrap(context, handle, DmState { _entry: Some(entry), hca }))
}

fn wrap(context: *mut ibv_context, handle: u32, state: DmState) -> *mut ibv_dm {
    object::new(
        ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: IBV_DM_MASK_HANDLE,
            handle,
        },
        state,
    )
}

/// Allocates device memory.
pub(crate) unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    pointer_of(|| {
        // SAFETY: the client's context and attributes.
        let (opening, attr) = unsafe { (opening(context), *attr) };
        if attr.comp_mask != 0 {
            return Err(Error::invalid("ibv_alloc_dm_attr has no optional fields"));
        }
        let hca = hca::Dm::alloc(&opening.hca, attr.length as u64, attr.log_align_req)?;
        // SAFETY: the client's context.
        Ok(unsafe { new_dm(context, hca) })
    })
}

/// Frees device memory; EBUSY while a region is registered in it.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    errno_of(|| {
        // SAFETY: the client's device memory, which it gives up if this succeeds.
        unsafe {
            state(dm).hca.free()?;
            object::free(dm);
        }
        Ok(())
    })
}

/// Device memory is copied in words of 4 bytes, as the adapters that have it demand; programs must not come to rely on
/// less here.
fn check_alignment(offset: u64, length: usize) -> Result<(), Error> {
    if offset.is_multiple_of(4) && length.is_multiple_of(4) {
        Ok(())
    } else {
        Err(Error::invalid("device memory is copied in multiples of 4 bytes"))
    }
}

unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    errno_of(|| {
        check_alignment(offset, length)?;
        // SAFETY: the client's device memory, and `length` bytes of its memory.
        unsafe {
            let from = if length == 0 { &[] } else { slice::from_raw_parts(from.cast(), length) };
            state(dm).hca.write(offset, from)
        }
    })
}

unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    errno_of(|| {
        check_alignment(offset, length)?;
        // SAFETY: the client's device memory, and `length` bytes of its memory.
        unsafe {
            let to = if length == 0 { &mut [] } else { slice::from_raw_parts_mut(to.cast(), length) };
            state(dm).hca.read(offset, to)
        }
    })
}

/// A second `ibv_dm` for the device memory with that handle.
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm {
    pointer_of(|| {
        // SAFETY: the client's context.
        let hca = unsafe { opening(context) }.dms.with(dm_handle, |dm| Arc::clone(&dm.hca))?;
        Ok(wrap(context, dm_handle, DmState { _entry: None, hca }))
    })
}

/// Ends an imported `ibv_dm`, not the memory.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the client's device memory, which it gives up.
    unsafe { object::free(dm) }
}
