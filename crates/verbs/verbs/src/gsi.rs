//! QP 1 for Vervain's librdmacm: [`vervain_gsi::Table`].

use core::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use vervain_gsi::{Client, Mad, Path, Table, VERSION};
use vervain_hca::Error;
use vervain_link::gsi;

use crate::object::errno_of;

static TABLE: Table =
    Table { version: VERSION, size: size_of::<Table>() as u32, attach, slot, claim, release, send, resolve, wake };

/// The table ([`vervain_gsi::SYMBOL`]).
pub extern "C" fn vervain_gsi() -> *const Table {
    &raw const TABLE
}

/// The client's functions.
struct Attached(Client);

// SAFETY: the client that attaches promises that its functions may be called by any thread, one at a time.
unsafe impl Send for Attached {}
// SAFETY: as above.
unsafe impl Sync for Attached {}

impl gsi::Client for Attached {
    fn receive(&self, path: &Path, mad: &Mad) {
        let Client { user, receive, .. } = self.0;
        // SAFETY: the client's function, with its argument; path and MAD live during the call.
        unsafe { receive(user, path, mad) }
    }

    fn tick(&self, now: u64) -> u64 {
        let Client { user, tick, .. } = self.0;
        // SAFETY: the client's function, with its argument.
        unsafe { tick(user, now) }
    }

    fn gone(&self, slot: u32) {
        let Client { user, gone, .. } = self.0;
        // SAFETY: the client's function, with its argument.
        unsafe { gone(user, slot) }
    }
}

/// The struct that the client passed, or EINVAL for NULL.
fn given<'a, T>(pointer: *const T) -> Result<&'a T, Error> {
    // SAFETY: NULL, or a struct of this type that the client keeps during the call.
    unsafe { pointer.as_ref() }.ok_or_else(|| Error::invalid("a pointer is NULL"))
}

unsafe extern "C" fn attach(client: *const Client) -> c_int {
    errno_of(|| gsi::attach(Arc::new(Attached(*given(client)?))))
}

extern "C" fn slot() -> u32 {
    gsi::slot()
}

unsafe extern "C" fn claim(service: u64, address: *const [u8; 16]) -> c_int {
    errno_of(|| gsi::claim(service, given(address)?))
}

unsafe extern "C" fn release(service: u64, address: *const [u8; 16]) {
    let _ = errno_of(|| gsi::release(service, given(address)?));
}

unsafe extern "C" fn send(path: *const Path, mad: *const Mad) -> c_int {
    match given(path).and_then(|path| gsi::send(path, given(mad)?)) {
        // These two are answers, not failures: the user need not hear of them.
        Err(e) if matches!(e.errno(), libc::ECONNREFUSED | libc::EAGAIN) => e.errno(),
        sent => errno_of(|| sent),
    }
}

unsafe extern "C" fn resolve(path: *const Path, patience_ms: u32) -> c_int {
    errno_of(|| gsi::resolve(given(path)?, Duration::from_millis(patience_ms.into())))
}

extern "C" fn wake() {
    gsi::wake();
}
