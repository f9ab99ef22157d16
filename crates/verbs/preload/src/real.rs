//! The functions behind ours, found by dlsym(RTLD_NEXT) and kept; and the macro that makes a hook.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::OLDEST_GLIBC;

/// The name of a function. A type and no field of [`Real`]: the dynamic linker would write a table of names at each
/// start of a program.
pub trait Name {
    const NAME: &'static CStr;
}

/// The next definition of a function after ours. Zero until it is found.
pub struct Real<N> {
    function: AtomicPtr<c_void>,
    name: PhantomData<fn() -> N>,
}

impl<N: Name> Real<N> {
    pub const fn new() -> Real<N> {
        Real { function: AtomicPtr::new(ptr::null_mut()), name: PhantomData }
    }

    /// The function, or null where the C library has none. Two threads that look at once find the same.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        let function = self.function.load(Ordering::Acquire);
        if function.is_null() { find(N::NAME, &self.function) } else { function }
    }
}

#[cold]
#[inline(never)]
fn find(name: &CStr, function: &AtomicPtr<c_void>) -> *mut c_void {
    let before = errno();
    // SAFETY: the name is a C string; RTLD_NEXT is right in a library that the dynamic linker loaded.
    let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // Under the first version glibc keeps functions that it no longer offers to the linker (`__xstat`), which
        // dlsym does not find.
        // SAFETY: as above.
        found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), OLDEST_GLIBC.as_ptr()) };
        // SAFETY: takes this thread's message away, which nobody but us has caused.
        unsafe { libc::dlerror() };
    }
    function.store(found, Ordering::Release);
    set_errno(before);
    found
}

pub fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

/// The value that a function that takes a path returns when it fails.
pub trait Failure {
    const FAILURE: Self;
}

impl Failure for c_int {
    const FAILURE: c_int = -1;
}

impl Failure for isize {
    const FAILURE: isize = -1;
}

impl<T> Failure for *mut T {
    const FAILURE: *mut T = ptr::null_mut();
}

/// Says ENOSYS: our function was called on a C library that does not have it.
pub fn absent<R: Failure>() -> R {
    set_errno(libc::ENOSYS);
    R::FAILURE
}

/// The next definition of `$name` as a function of this type, or a return with ENOSYS.
macro_rules! real {
    ($name:ident: fn($($ty:ty),*) -> $ret:ty) => {{
        let function = REAL.$name.get();
        if function.is_null() {
            return $crate::real::absent();
        }
        // SAFETY: a function of this name has this type in the C library's headers.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> $ret>(function) }
    }};
}
pub(crate) use real;

/// Declares the functions of a module that have something behind them: `REAL`, and `resolve` for the constructor.
macro_rules! reals {
    ($($name:ident)*) => {
        #[allow(non_camel_case_types)]
        mod names {
            $(
                pub enum $name {}
                impl $crate::real::Name for $name {
                    // The cast only appends the NUL.
                    const NAME: &'static std::ffi::CStr =
                        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!(),
                        };
                }
            )*
        }
        #[allow(non_snake_case)]
        struct Reals { $($name: $crate::real::Real<names::$name>,)* }
        static REAL: Reals = Reals { $($name: $crate::real::Real::new(),)* };
        /// Finds all functions behind this module's.
        pub fn resolve() {
            $(REAL.$name.get();)*
        }
    };
}
pub(crate) use reals;

/// Functions whose whole difference is the path: `fn name(before, @path, after) -> ret;`, where `@path` stands for the
/// argument that is rewritten. `also` names functions that the module's other hooks have behind them.
macro_rules! hooks {
    ($(also $($also:ident)*;)? $(fn $name:ident($($before:ident: $bt:ty,)* @path $(, $after:ident: $at:ty)*) -> $ret:ty;)*) => {
        $crate::real::reals! { $($name)* $($($also)*)? }
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($before: $bt,)* path: *const std::ffi::c_char $(, $after: $at)*) -> $ret {
                let real = $crate::real::real!($name: fn($($bt,)* *const std::ffi::c_char $(, $at)*) -> $ret);
                // SAFETY: the caller's own arguments, with a path that lives as long as the call.
                let call = |path| unsafe { real($($before,)* path $(, $after)*) };
                match $crate::view::kind(path) {
                    None => call(path),
                    Some(_) => $crate::view::with_tree_path(path, call),
                }
            }
        )*
    };
}
pub(crate) use hooks;
