//! Messages.

use std::ffi::{c_char, c_int};

use crate::context::{Context, context, node, put};
use crate::error::{null, status};
use crate::of_either;

/// A buffer for a message.
///
/// # Safety
/// `pmc` is null or open, `buffer` is null or a place for a pointer.
pub unsafe extern "C" fn pmGetSendBuffer(
    pmc: *mut Context,
    dest: c_int,
    buffer: *mut *mut c_char,
    len: usize,
) -> c_int {
    status("pmGetSendBuffer", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        let dest = node(dest)?;
        // SAFETY: the caller's promise.
        unsafe { put(buffer, "bufp", || Ok(of_either!(context, c => c.send_buffer(dest, len))?.cast())) }
    })
}

/// Sends it.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmSend(pmc: *mut Context) -> c_int {
    status("pmSend", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.send())
    })
}

/// Returns 0 if all messages were sent, else an errno value.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmIsSendDone(pmc: *mut Context) -> c_int {
    status("pmIsSendDone", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.is_send_done())
    })
}

/// The next message.
///
/// # Safety
/// `pmc` is null or open, `buffer` is null or a place for a pointer, `len` is null or a place for a size.
pub unsafe extern "C" fn pmReceive(pmc: *mut Context, buffer: *mut *mut c_char, len: *mut usize) -> c_int {
    status("pmReceive", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        if buffer.is_null() || len.is_null() {
            return Err(null("bufp or lenp"));
        }
        let received = of_either!(context, c => c.receive())?;
        // SAFETY: places, by the caller's promise.
        unsafe {
            buffer.write(received.at.cast());
            len.write(received.len);
        }
        Ok(())
    })
}

/// The sender of the message that was received last.
///
/// # Safety
/// `pmc` is null or open, `sender` is null or a place for a number.
pub unsafe extern "C" fn pmGetSender(pmc: *mut Context, sender: *mut c_int) -> c_int {
    status("pmGetSender", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        // SAFETY: the caller's promise.
        unsafe { put(sender, "nodep", || Ok(of_either!(context, c => c.sender())?.cast_signed())) }
    })
}

/// Gives its buffer back.
///
/// # Safety
/// `pmc` is null or open.
pub unsafe extern "C" fn pmReleaseReceiveBuffer(pmc: *mut Context) -> c_int {
    status("pmReleaseReceiveBuffer", || {
        // SAFETY: the caller's promise.
        let context = unsafe { context(pmc) }?;
        of_either!(context, c => c.release_receive_buffer())
    })
}
