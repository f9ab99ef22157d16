//! `vervain_stop` and `vervain_go` (`vervain.h`): what Vervain has beyond verbs.

use core::ffi::c_int;

use vervain_hca::process::Process;
use vervain_hca::{self as hca, Error};

use crate::abi::ibv_context;
use crate::object::errno_of;
use crate::opening::opening;

/// How a context is stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct vervain_stop_attr {
    /// Attributes beyond these; there are none.
    pub comp_mask: u32,
    /// Milliseconds to wait for operations that are in progress; 0: the library's own limit.
    pub timeout_ms: u32,
}

/// The scope of a stop.
enum Scope<'a> {
    Context(&'a hca::Context),
    Process(&'static Process),
}

unsafe fn scope<'a>(context: *mut ibv_context) -> Result<Scope<'a>, Error> {
    if !context.is_null() {
        // SAFETY: the client's context.
        return Ok(Scope::Context(unsafe { &opening(context).hca }));
    }
    Process::current().map(Scope::Process).ok_or_else(|| Error::invalid("this process has no open device"))
}

/// Stops a context, or the process.
pub unsafe extern "C" fn vervain_stop(context: *mut ibv_context, attr: *const vervain_stop_attr) -> c_int {
    errno_of(|| {
        // SAFETY: NULL or the client's struct.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if attr.comp_mask != 0 {
            return Err(Error::invalid(format!("vervain_stop knows no attributes {:#x}", attr.comp_mask)));
        }
        let patience = (attr.timeout_ms != 0).then(|| u64::from(attr.timeout_ms) * 1_000_000);
        // SAFETY: NULL or the client's context.
        match unsafe { scope(context) }? {
            Scope::Context(context) => context.stop(patience),
            Scope::Process(process) => process.stop_all(patience),
        }
    })
}

/// The end of a stop.
pub unsafe extern "C" fn vervain_go(context: *mut ibv_context) -> c_int {
    errno_of(|| {
        // SAFETY: NULL or the client's context.
        match unsafe { scope(context) }? {
            Scope::Context(context) => context.go(),
            Scope::Process(process) => process.go_all(),
        }
    })
}
