//! libibverbs.so.1 over a carrier of the tests' own, [`carrier`], which reaches the process itself by a device that can only put.
//! The table of conformance runs over it (`tests/tests/put_only.rs`): nothing of RoCE or of the way by memory knows of it.

pub mod carrier;
pub mod window;

use std::sync::Arc;

/// The exports of the library, as it is.
#[path = "../../../crates/verbs/libibverbs/src/lib.rs"]
mod exports;

extern "C" fn loaded() {
    vervain_link::prefer(|| {
        let carrier = Arc::<carrier::PutOnly>::default();
        Ok(vervain_link::More { carrier: carrier.clone(), poller: carrier })
    });
}

/// Called by the dynamic linker when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
// SAFETY: the linker calls each pointer of .init_array once, with arguments that this one does not take.
static LOADED: extern "C" fn() = loaded;
