//! Settings that the runtimes of GCC's and Clang's sanitizers read from a program that does not define them itself:
//! functions that each runtime defines weakly, and calls by way of the dynamic linker, which finds these first. A
//! runtime that is linked into the program itself never asks here; `vervain run` sets the variable for it.
//!
//! So the settings do not depend on the process that starts the program. ASAN_OPTIONS and TSAN_OPTIONS are read after
//! them, and override them.

use std::ffi::{CStr, c_char};

/// A runtime that is a shared library refuses to start behind another library, since that may serve malloc in its
/// place. This one does not: where there is a sanitizer it passes every request on (`vervain_share::checkers`).
const ASAN_OPTIONS: &CStr = c"verify_asan_link_order=0";

/// ThreadSanitizer sees what Vervain's libraries call of the C library and nothing of how their threads agree among
/// themselves: what it takes for races there is none. The device's orders the program's own accesses by hand
/// (`vervain_verbs::ordered`). packaging/tsan.supp says the same.
const TSAN_SUPPRESSIONS: &CStr = c"called_from_lib:libibverbs.so.1$\ncalled_from_lib:librdmacm.so.1$\n";

#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    ASAN_OPTIONS.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_default_suppressions() -> *const c_char {
    TSAN_SUPPRESSIONS.as_ptr()
}
