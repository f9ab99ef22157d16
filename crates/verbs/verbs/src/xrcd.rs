//! XRC domains: `ibv_open_xrcd(3)`.

use core::ffi::c_int;
use std::sync::Arc;

use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::object::{self, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::registry::Entry;

/// Behind an `ibv_xrcd`.
pub(crate) struct XrcdState {
    _entry: Entry<ibv_xrcd>,
    pub(crate) hca: Arc<hca::Xrcd>,
}

impl Handle for ibv_xrcd {
    type State = XrcdState;
}

/// Wraps a domain and gives it a handle.
pub(crate) unsafe fn new_xrcd(context: *mut ibv_context, hca: Arc<hca::Xrcd>) -> *mut ibv_xrcd {
    // SAFETY: the client's context.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    let state = XrcdState { _entry: opening.xrcds.entry(handle), hca };
    opening.xrcds.publish(handle, object::new(ibv_xrcd { context }, state))
}

/// The device model's domain behind a client's.
pub(crate) unsafe fn hca_xrcd<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Arc<hca::Xrcd>, Error> {
    if xrcd.is_null() {
        return Err(Error::invalid("the XRC domain is NULL"));
    }
    // SAFETY: the client's domain.
    Ok(&unsafe { state(xrcd) }.hca)
}

/// Opens the domain of a file's inode, or a private one.
pub(crate) unsafe extern "C" fn open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    pointer_of(|| {
        // SAFETY: the client's context and attributes.
        let (opening, attr) = unsafe { (opening(context), *attr) };
        if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS {
            return Err(Error::invalid("ibv_open_xrcd needs fd and oflags, and knows nothing else"));
        }
        let fd = (attr.fd != -1).then_some(attr.fd);
        let hca = hca::Xrcd::open(&opening.hca, fd, attr.oflags)?;
        // SAFETY: the client's context.
        Ok(unsafe { new_xrcd(context, hca) })
    })
}

/// Closes a domain; EBUSY while anything uses it.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    errno_of(|| {
        // SAFETY: the client's domain, which it gives up if this succeeds.
        unsafe {
            state(xrcd).hca.close()?;
            object::free(xrcd);
        }
        Ok(())
    })
}
