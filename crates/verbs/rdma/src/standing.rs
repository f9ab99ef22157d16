//! A device that stands still and goes on later (`vervain.h`), which no verb asks for: Vervain's library can, others
//! cannot.

use std::ffi::c_int;
use std::ptr;

use vervain_abi::ibv_context;

use crate::device::Context;
use crate::error::{Error, Result, check};

/// A context of which nothing moves: what was posted waits, and so do peers. It goes on when this is dropped.
pub struct StandsStill {
    context: Context,
    go: unsafe extern "C" fn(*mut ibv_context) -> c_int,
}

impl Context {
    /// Has it stand still. Verbs may be called meanwhile: completions that have come are polled, and what is posted
    /// waits.
    ///
    /// # Errors
    /// The library is another than Vervain's; `vervain_stop`: EALREADY, ETIMEDOUT, EOPNOTSUPP.
    pub fn stand_still(&self) -> Result<StandsStill> {
        let functions = &self.0.library.0;
        let (Some(stop), Some(go)) = (functions.vervain_stop, functions.vervain_go) else {
            return Err(Error::library(format!("{} cannot stand still: the library has no vervain_stop", self.name())));
        };
        // SAFETY: the context is open as long as `self`; without attributes the function reads none.
        check(unsafe { stop(self.0.raw, ptr::null()) }, "vervain_stop", || self.name().into())?;
        Ok(StandsStill { context: self.clone(), go })
    }
}

impl Drop for StandsStill {
    fn drop(&mut self) {
        // SAFETY: it is open, for `self` has it. This value has stopped it, so it may go on, and no other call makes it
        // go on.
        unsafe { (self.go)(self.context.0.raw) };
    }
}
