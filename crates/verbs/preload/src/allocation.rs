//! malloc and its kin. Large and page-aligned requests go to the shared heap (`vervain-share`), all others to the next
//! allocator, after one comparison; free decides by the address.
//!
//! The next allocator is found at the first call, which comes before any constructor of ours. Memory that dlsym itself
//! needs meanwhile comes from the C library under its other names.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::size_t;
use vervain_share::heap;
use vervain_share::settings::THRESHOLD;

use crate::real::set_errno;

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
}

/// The next allocator's functions. Each starts as one that finds them all.
macro_rules! next {
    ($(
        $slot:ident $call:ident = $first:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?, $name:literal or $own:expr;
    )*) => {
        $(
            static $slot: AtomicPtr<c_void> = AtomicPtr::new($first as *const () as *mut c_void);

            unsafe extern "C" fn $first($($arg: $ty),*) $(-> $ret)? {
                if find() {
                    // SAFETY: the caller's own arguments; the slot has a function of this type now.
                    unsafe { $call($($arg),*) }
                } else {
                    // SAFETY: the caller's own arguments.
                    unsafe { $own($($arg),*) }
                }
            }

            /// The next allocator's function.
            ///
            /// # Safety
            /// As the function of C.
            #[inline(always)]
            unsafe fn $call($($arg: $ty),*) $(-> $ret)? {
                type Function = unsafe extern "C" fn($($ty),*) $(-> $ret)?;
                let function = $slot.load(Ordering::Relaxed);
                // SAFETY: the slot never has anything but a function of this type.
                let function = unsafe { transmute::<*mut c_void, Function>(function) };
                // SAFETY: the caller's promise.
                unsafe { function($($arg),*) }
            }
        )*

        /// Finds the next allocator; false while that is being done.
        #[cold]
        fn find() -> bool {
            static SEARCHING: AtomicBool = AtomicBool::new(false);
            if SEARCHING.swap(true, Ordering::AcqRel) {
                return false;
            }
            $(
                // SAFETY: a C string; RTLD_NEXT is right in a library that the dynamic linker loaded.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, $name.as_ptr()) };
                let found = if found.is_null() { $own as *const () as *mut c_void } else { found };
                $slot.store(found, Ordering::Relaxed);
            )*
            true
        }
    };
}

next! {
    MALLOC next_malloc = first_malloc(size: size_t) -> *mut c_void, c"malloc" or __libc_malloc;
    CALLOC next_calloc = first_calloc(count: size_t, size: size_t) -> *mut c_void, c"calloc" or __libc_calloc;
    REALLOC next_realloc = first_realloc(old: *mut c_void, size: size_t) -> *mut c_void, c"realloc" or __libc_realloc;
    FREE next_free = first_free(old: *mut c_void), c"free" or __libc_free;
    MEMALIGN next_memalign = first_memalign(align: size_t, size: size_t) -> *mut c_void, c"memalign" or __libc_memalign;
    USABLE next_usable = first_usable(old: *mut c_void) -> size_t, c"malloc_usable_size" or no_size;
}

/// While the next allocator is looked for nobody asks for sizes.
unsafe extern "C" fn no_size(_old: *mut c_void) -> size_t {
    0
}

/// Finds the next allocator, if nothing has been allocated yet.
pub fn resolve() {
    if MALLOC.load(Ordering::Relaxed) == first_malloc as *const () as *mut c_void {
        find();
    }
}

/// A block of the shared heap, or null.
#[cold]
#[inline(never)]
fn shared(size: usize, align: usize, zero: bool) -> *mut c_void {
    heap::alloc(size, align, zero).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    if size >= THRESHOLD {
        let got = shared(size, 1, false);
        if !got.is_null() {
            return got;
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { next_malloc(size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    // Both below a power of two below half a word: no overflow, one comparison for nearly every call.
    if (count | size) >= THRESHOLD || count * size >= THRESHOLD {
        let got = count.checked_mul(size).map_or(ptr::null_mut(), |bytes| match bytes {
            THRESHOLD.. => shared(bytes, 1, true),
            _ => ptr::null_mut(),
        });
        if !got.is_null() {
            return got;
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { next_calloc(count, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    if heap::owns(old as usize) {
        return heap::free(old as usize);
    }
    // SAFETY: the caller's own argument.
    unsafe { next_free(old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, size: size_t) -> *mut c_void {
    if size >= THRESHOLD || heap::owns(old as usize) {
        // SAFETY: the caller's own arguments.
        return unsafe { large_realloc(old, size) };
    }
    // SAFETY: as above.
    unsafe { next_realloc(old, size) }
}

/// # Safety
/// As realloc(3).
#[cold]
#[inline(never)]
unsafe fn large_realloc(old: *mut c_void, size: size_t) -> *mut c_void {
    if old.is_null() {
        // SAFETY: any size is right.
        return unsafe { malloc(size) };
    }
    if heap::owns(old as usize) {
        if size == 0 {
            heap::free(old as usize);
            return ptr::null_mut();
        }
        let got = heap::resize(old as usize, size);
        if !got.is_null() {
            return got.cast();
        }
        // SAFETY: any size is right.
        let new = unsafe { next_malloc(size) };
        if !new.is_null() {
            // SAFETY: the heap could not grow the block, so the new one is the larger.
            unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), heap::usable(old as usize).min(size)) };
            heap::free(old as usize);
        }
        return new;
    }
    // SAFETY: the next allocator's block, since it is not the heap's.
    let had = unsafe { next_usable(old) };
    if had < THRESHOLD {
        let new = shared(size, 1, false);
        if !new.is_null() {
            // SAFETY: the new block has at least THRESHOLD bytes; the old one has `had`.
            unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), had) };
            // SAFETY: the old block has moved.
            unsafe { next_free(old) };
            return new;
        }
    }
    // SAFETY: the caller's own arguments.
    unsafe { next_realloc(old, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(old: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's own arguments.
        Some(bytes) => unsafe { realloc(old, bytes) },
        None => {
            set_errno(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// Memory at a multiple of `align`, a power of two.
fn aligned(align: usize, size: usize) -> *mut c_void {
    if size >= THRESHOLD || align >= vervain_share::sys::page() {
        let got = shared(size, align, false);
        if !got.is_null() {
            return got;
        }
    }
    // SAFETY: any alignment and size are right.
    unsafe { next_memalign(align, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // The C library takes the next power of two.
    match align.checked_next_power_of_two() {
        Some(align) => aligned(align, size),
        None => {
            set_errno(libc::EINVAL);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: the caller's own arguments.
    unsafe { memalign(align, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: size_t, size: size_t) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let before = crate::real::errno();
    let got = aligned(align, size);
    set_errno(before);
    if got.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: posix_memalign(3) writes there on success.
    unsafe { out.write(got) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(size: size_t) -> *mut c_void {
    aligned(vervain_share::sys::page(), size)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    let page = vervain_share::sys::page();
    match size.checked_next_multiple_of(page) {
        Some(bytes) => aligned(page, bytes),
        None => {
            set_errno(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(old: *mut c_void) -> size_t {
    if heap::owns(old as usize) {
        return heap::usable(old as usize);
    }
    // SAFETY: the caller's own argument.
    unsafe { next_usable(old) }
}
