//! Protection domains, thread domains and parent domains: `ibv_alloc_pd(3)`, `ibv_alloc_td(3)`,
//! `ibv_alloc_parent_domain(3)`, `ibv_import_pd(3)`.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::object::{self, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::registry::Entry;

/// Behind an `ibv_pd`.
pub(crate) struct PdState {
    /// None for an imported one.
    _entry: Option<Entry<ibv_pd>>,
    pub(crate) hca: Arc<hca::Pd>,
    users: Users,
    /// The objects that a parent domain is made of; None for a plain PD. A parent domain stands for the PD that it
    /// contains.
    pub(crate) parts: Option<Parts>,
}

/// References that keep the PD and the thread domain of a parent domain alive, and the handle of that PD.
pub(crate) struct Parts {
    _pd: Use,
    _td: Option<Use>,
    pub(crate) of: u32,
}

/// Counts what keeps a domain from being deallocated.
#[derive(Default)]
pub(crate) struct Users(Arc<AtomicU32>);

impl Users {
    fn enter(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    fn check(&self) -> Result<(), Error> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            n => Err(Error::busy(format!("objects left in the protection domain: {n}"))),
        }
    }
}

/// Kept by an object as long as it uses a domain.
pub(crate) struct Use(Arc<AtomicU32>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handle for ibv_pd {
    type State = PdState;
}

impl Handle for ibv_td {
    type State = Users;
}

/// Notes that an object uses a PD, which may be NULL.
pub(crate) unsafe fn use_pd(pd: *mut ibv_pd) -> Option<Use> {
    // SAFETY: the client's PD.
    (!pd.is_null()).then(|| unsafe { &state(pd).users }.enter())
}

/// The device model's PD behind a client's.
pub(crate) unsafe fn hca_pd<'a>(pd: *mut ibv_pd) -> Result<&'a Arc<hca::Pd>, Error> {
    if pd.is_null() {
        return Err(Error::invalid("the PD is NULL"));
    }
    // SAFETY: the client's PD.
    Ok(unsafe { &state(pd).hca })
}

/// Wraps a PD under a handle of its own.
pub(crate) unsafe fn new_pd(context: *mut ibv_context, hca: Arc<hca::Pd>, parts: Option<Parts>) -> *mut ibv_pd {
    // SAFETY: the client's context.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    let _entry = Some(opening.pds.entry(handle));
    let pd = object::new(ibv_pd { context, handle }, PdState { _entry, hca, users: Users::default(), parts });
    opening.pds.publish(handle, pd)
}

/// Wraps a parent domain of a PD and perhaps a thread domain.
pub(crate) unsafe fn new_parent_domain(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    td: *mut ibv_td,
) -> Result<*mut ibv_pd, Error> {
    // SAFETY: the client's context, PD and thread domain.
    unsafe {
        let hca = Arc::clone(hca_pd(pd)?);
        let _td = (!td.is_null()).then(|| state(td).enter());
        let parts = Parts { _pd: state(pd).users.enter(), _td, of: (*pd).handle };
        Ok(new_pd(context, hca, Some(parts)))
    }
}

/// Allocates a PD.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer_of(|| {
        // SAFETY: the client's context.
        let hca = unsafe { opening(context) }.hca.alloc_pd()?;
        // SAFETY: as above.
        Ok(unsafe { new_pd(context, hca, None) })
    })
}

/// Deallocates a PD or a parent domain; EBUSY while anything uses it.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    errno_of(|| {
        // SAFETY: the client's PD, which it gives up if this succeeds.
        unsafe {
            let this = state(pd);
            this.users.check()?;
            if this.parts.is_none() {
                this.hca.dealloc()?;
            }
            object::free(pd);
        }
        Ok(())
    })
}

/// A second `ibv_pd` for the PD with that handle.
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd {
    pointer_of(|| {
        // SAFETY: the client's context.
        let hca = unsafe { opening(context) }.pds.with(pd_handle, |pd| Arc::clone(&pd.hca))?;
        let pd = PdState { _entry: None, hca, users: Users::default(), parts: None };
        Ok(object::new(ibv_pd { context, handle: pd_handle }, pd))
    })
}

/// Ends an imported `ibv_pd`, not the PD.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the client's PD, which it gives up.
    unsafe { object::free(pd) }
}

/// Allocates a thread domain. It promises that one thread at a time uses its objects; no code here relies on that,
/// since every object has a lock.
pub(crate) unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer_of(|| {
        // SAFETY: the client's attributes.
        if unsafe { (*attr).comp_mask } != 0 {
            return Err(Error::unsupported("ibv_td_init_attr has no optional fields"));
        }
        Ok(object::new(ibv_td { context }, Users::default()))
    })
}

/// Deallocates a thread domain; EBUSY while a parent domain contains it.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    errno_of(|| {
        // SAFETY: the client's thread domain, which it gives up if this succeeds.
        unsafe {
            state(td).check()?;
            object::free(td);
        }
        Ok(())
    })
}

/// Makes a parent domain of a PD and perhaps a thread domain.
///
/// The client's allocator is for memory that a provider needs per object. There is none here that a client could place,
/// so it is accepted and, as the man page allows, never called.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    pointer_of(|| {
        // SAFETY: the client's attributes, PD and thread domain.
        unsafe {
            // The fields behind comp_mask are only there if it says so.
            let (pd, td, comp_mask) = ((*attr).pd, (*attr).td, (*attr).comp_mask);
            if comp_mask & !KNOWN != 0 {
                return Err(Error::invalid(format!("unknown fields in comp_mask {comp_mask:#x}")));
            }
            new_parent_domain(context, pd, td)
        }
    })
}
