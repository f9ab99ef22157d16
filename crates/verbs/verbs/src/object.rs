//! How an object of the ABI lies in memory: the C struct that the client sees first, our state behind it. The client's
//! pointer is thus the way to the state, without a table.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

use nix::errno::Errno;
use vervain_hca::host::cancel::Uncancelled;
use vervain_hca::{Error, reasons};

use crate::errno;

/// A C struct with state of Vervain behind it.
pub(crate) trait Handle: Sized {
    type State;
}

/// The client may write to its part at any time, hence the cell.
#[repr(C)]
struct Object<C: Handle> {
    c: UnsafeCell<C>,
    state: C::State,
}

/// Memory for an object whose address is needed before the object is there: it is the cookie by which the device model
/// names the object in events.
pub(crate) struct Blank<C: Handle>(Box<MaybeUninit<Object<C>>>);

impl<C: Handle> Blank<C> {
    pub(crate) fn new() -> Self {
        Blank(Box::new_uninit())
    }

    /// The number that the object's address will be.
    pub(crate) fn cookie(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Fills both parts; the pointer goes to the client and comes back to [`free`].
    pub(crate) fn fill(mut self, c: C, state: C::State) -> *mut C {
        self.0.write(Object { c: UnsafeCell::new(c), state });
        // Exposed, because `cookie` brings it back as a number.
        let p = Box::into_raw(self.0).cast::<C>();
        let _ = p.expose_provenance();
        p
    }
}

/// An object that no event ever names.
pub(crate) fn new<C: Handle>(c: C, state: C::State) -> *mut C {
    Blank::new().fill(c, state)
}

/// The pointer that a cookie stands for.
pub(crate) fn from_cookie<C>(cookie: usize) -> *mut C {
    ptr::with_exposed_provenance_mut(cookie)
}

/// The state behind a C struct.
///
/// # Safety
/// `c` came from [`Blank::fill`] or [`new`] and was not freed; the client keeps it until the reference is gone, as
/// verbs demands ("destroy it when nobody uses it").
#[inline]
pub(crate) unsafe fn state<'a, C: Handle>(c: *mut C) -> &'a C::State {
    // SAFETY: the caller's promise; an `Object` begins with its C struct.
    unsafe { &(*c.cast::<Object<C>>()).state }
}

/// Ends an object.
///
/// # Safety
/// As for [`state`], and nobody uses the object after this.
pub(crate) unsafe fn free<C: Handle>(c: *mut C) {
    // SAFETY: the caller's promise; `fill` made the pointer from a box of this type.
    drop(unsafe { Box::from_raw(c.cast::<Object<C>>()) });
}

/// A C struct of zeros.
///
/// # Safety
/// Zeros must be a value of `C`: integers, pointers, `Option`s of functions, and pthread's mutex and condition, whose
/// initialisers are zeros on Linux.
pub(crate) unsafe fn zeros<C>() -> C {
    // SAFETY: the caller's promise.
    unsafe { core::mem::zeroed() }
}

/// Runs a verb that returns an errno value.
pub(crate) fn errno_of(f: impl FnOnce() -> Result<(), Error>) -> c_int {
    let _whole = Uncancelled::begin();
    match f() {
        Ok(()) => 0,
        Err(e) => errno::code(failed(&e)),
    }
}

/// Runs a verb that returns a pointer, NULL with errno set being the error.
pub(crate) fn pointer_of<T>(f: impl FnOnce() -> Result<*mut T, Error>) -> *mut T {
    let _whole = Uncancelled::begin();
    f().unwrap_or_else(|e| errno::null(failed(&e)))
}

/// Runs a verb that returns -1 with errno set on error.
pub(crate) fn minus_one_of(f: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    let _whole = Uncancelled::begin();
    waiting(f)
}

/// [`minus_one_of`] for a verb that waits, and is a cancellation point meanwhile.
pub(crate) fn waiting(f: impl FnOnce() -> Result<c_int, Error>) -> c_int {
    f().unwrap_or_else(|e| errno::minus_one(failed(&e)))
}

/// Reports why a verb fails; returns the errno.
#[cold]
pub(crate) fn failed(e: &Error) -> c_int {
    let why = format_args!("{e} ({:?})", Errno::from_raw(e.errno()));
    match e.errno() {
        // A table entry is empty, there is nothing to read, or a signal has come first.
        libc::ENODATA | libc::EAGAIN | libc::EINTR => {}
        // Programs post until a queue is full, ask whether something is supported, and at their end destroy what is in
        // use.
        libc::ENOMEM | libc::EOPNOTSUPP | libc::EBUSY => reasons::tell_what_is_no_failure(why),
        _ => reasons::tell(why),
    }
    e.errno()
}
