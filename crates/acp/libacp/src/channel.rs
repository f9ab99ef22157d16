//! Channels.

use std::ffi::{c_int, c_void};
use std::ptr;

use vervain_acp_channel::Id;

use crate::error;
use crate::process::{self, Libraries};

/// A channel or a request as C has it: a number, which is never dereferenced.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

/// The pointer that stands for a number in C.
pub fn pointer(id: Id) -> *mut Opaque {
    ptr::without_provenance_mut(id.bits() as usize)
}

/// The number that C has.
pub fn id(pointer: *mut Opaque) -> Id {
    Id::from_bits(pointer.addr() as u64)
}

/// The result of a function, or null and the reason.
pub fn made(function: &str, made: impl FnOnce(&'static Libraries) -> vervain_acp::Result<Id>) -> *mut Opaque {
    let Some(libraries) = process::libraries_for(function) else { return ptr::null_mut() };
    made(libraries).map_or_else(
        |error| {
            error::note(function, error::reason(&error));
            ptr::null_mut()
        },
        pointer,
    )
}

/// The result of a function, or -1 and the reason.
pub fn result<T: From<i8>>(function: &str, done: impl FnOnce(&'static Libraries) -> vervain_acp::Result<T>) -> T {
    let Some(libraries) = process::libraries_for(function) else { return T::from(-1) };
    done(libraries).unwrap_or_else(|error| {
        error::note(function, error::reason(&error));
        T::from(-1)
    })
}

/// A rank, from what C says.
pub fn rank(number: c_int) -> vervain_acp::Result<u32> {
    u32::try_from(number).map_err(|_| vervain_acp::Error::refused(format!("there is no rank {number}")))
}

/// Creates an end of a channel.
pub extern "C" fn acp_create_ch(sender: c_int, receiver: c_int) -> *mut Opaque {
    made("acp_create_ch", |libraries| libraries.channels.create(rank(sender)?, rank(receiver)?))
}

/// Begins to send.
///
/// # Safety
/// `size` bytes are at `buf` until the request was waited for, and nobody stores there.
pub unsafe extern "C" fn acp_nbsend_ch(ch: *mut Opaque, buf: *mut c_void, size: usize) -> *mut Opaque {
    // SAFETY: the caller's promise.
    made("acp_nbsend_ch", |libraries| unsafe { libraries.channels.begin_send(id(ch), buf.cast(), size) })
}

/// Begins to receive.
///
/// # Safety
/// `size` bytes are at `buf` until the request was waited for, and nobody uses them.
pub unsafe extern "C" fn acp_nbrecv_ch(ch: *mut Opaque, buf: *mut c_void, size: usize) -> *mut Opaque {
    // SAFETY: the caller's promise.
    made("acp_nbrecv_ch", |libraries| unsafe { libraries.channels.begin_receive(id(ch), buf.cast(), size) })
}

/// Begins to free an end.
pub extern "C" fn acp_nbfree_ch(ch: *mut Opaque) -> *mut Opaque {
    made("acp_nbfree_ch", |libraries| libraries.channels.begin_free(id(ch)))
}

/// Waits for a request.
pub extern "C" fn acp_wait_ch(request: *mut Opaque) -> usize {
    result("acp_wait_ch", |libraries| Ok(libraries.channels.wait(id(request))? as isize)).cast_unsigned()
}

/// Waits for all of `n` requests.
///
/// # Safety
/// `requests` has `n` requests, and `sizes`, if it is not null, places for as many sizes.
pub unsafe extern "C" fn acp_waitall_ch(requests: *mut *mut Opaque, n: c_int, sizes: *mut usize) -> c_int {
    result("acp_waitall_ch", |libraries| {
        let count = usize::try_from(n).ok().filter(|count| *count == 0 || !requests.is_null());
        let count = count.ok_or_else(|| vervain_acp::Error::refused(format!("{requests:p} are not {n} requests")))?;
        let mut failed = None;
        for at in 0..count {
            // SAFETY: the caller's promise.
            let request = id(unsafe { *requests.add(at) });
            let size = libraries.channels.wait(request).unwrap_or_else(|error| {
                // The error of a broken job ends it.
                let why = error::reason(&error);
                failed.get_or_insert_with(|| vervain_acp::Error::refused(format!("request {at}: {why}")));
                usize::MAX
            });
            // SAFETY: the caller's promise.
            unsafe {
                *requests.add(at) = ptr::null_mut();
                if !sizes.is_null() {
                    *sizes.add(at) = size;
                }
            }
        }
        failed.map_or(Ok(0), Err)
    })
}

/// Sends, and waits for that.
///
/// # Safety
/// `size` bytes are at `buf`, and nobody stores there.
pub unsafe extern "C" fn acp_send_ch(ch: *mut Opaque, buf: *mut c_void, size: usize) -> c_int {
    result("acp_send_ch", |libraries| {
        // SAFETY: the caller's promise.
        unsafe { libraries.channels.send(id(ch), buf.cast(), size) }.map(|()| 0)
    })
}

/// Receives a message.
///
/// # Safety
/// `size` bytes are at `buf`, and nobody uses them.
pub unsafe extern "C" fn acp_recv_ch(ch: *mut Opaque, buf: *mut c_void, size: usize) -> c_int {
    result("acp_recv_ch", |libraries| {
        // SAFETY: the caller's promise.
        let received = unsafe { libraries.channels.receive(id(ch), buf.cast(), size) };
        // Larger sizes than the type has are told by acp_wait_ch only.
        received.map(|size| c_int::try_from(size).unwrap_or(c_int::MAX))
    })
}

/// Frees an end, and waits for the other one.
pub extern "C" fn acp_free_ch(ch: *mut Opaque) -> c_int {
    result("acp_free_ch", |libraries| {
        let request = libraries.channels.begin_free(id(ch))?;
        libraries.channels.wait(request).map(|_| 0)
    })
}
