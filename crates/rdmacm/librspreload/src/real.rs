//! The functions behind ours, found by dlsym(RTLD_NEXT) and kept.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a function after ours.
pub struct Real {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Real {
    pub const fn new(name: &'static CStr) -> Real {
        Real { name, function: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The function. Two threads that look at once find the same.
    ///
    /// # Panics
    /// The C library has none.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        let mut function = self.function.load(Ordering::Acquire);
        if function.is_null() {
            let before = errno();
            // SAFETY: the name is a C string; RTLD_NEXT is right in a library that the dynamic linker loaded.
            function = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            assert!(!function.is_null(), "the C library has {:?}", self.name);
            self.function.store(function, Ordering::Release);
            set_errno(before);
        }
        function
    }
}

pub fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

/// Calls the C library's function of this name and type, which is that of its headers; unsafe, as the function is.
macro_rules! real {
    ($name:ident($($argument:expr),*): fn($($ty:ty),*) -> $ret:ty) => {{
        static REAL: $crate::real::Real = $crate::real::Real::new(
            // The cast only appends the NUL.
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            });
        let function =
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> $ret>(REAL.get());
        function($($argument),*)
    }};
}
pub(crate) use real;
