//! Segmented buffers.

use std::ffi::{c_int, c_void};

use vervain_acp_channel::Id;

use crate::channel::{Opaque, id, made, rank, result};

/// Creates an end.
///
/// # Safety
/// As of the functions that are exported.
unsafe fn create(name: &str, peer: c_int, buf: *mut c_void, size: usize, count: usize, is_source: bool) -> *mut Opaque {
    made(name, |libraries| {
        // SAFETY: the caller's promise.
        unsafe { libraries.channels.create_buffer(rank(peer)?, buf.cast(), size, count, is_source) }
    })
}

/// Creates the source's end.
///
/// # Safety
/// The segments stay mapped until it is freed.
pub unsafe extern "C" fn acp_create_src_segbuf(
    dst_rank: c_int,
    buf: *mut c_void,
    segsize: usize,
    segnum: usize,
) -> *mut Opaque {
    // SAFETY: the caller's promise.
    unsafe { create("acp_create_src_segbuf", dst_rank, buf, segsize, segnum, true) }
}

/// Creates the destination's end.
///
/// # Safety
/// The segments stay mapped until it is freed.
pub unsafe extern "C" fn acp_create_dst_segbuf(
    src_rank: c_int,
    buf: *mut c_void,
    segsize: usize,
    segnum: usize,
) -> *mut Opaque {
    // SAFETY: the caller's promise.
    unsafe { create("acp_create_dst_segbuf", src_rank, buf, segsize, segnum, false) }
}

/// 0 for yes, 1 for no.
fn answer(yes: vervain_acp::Result<bool>) -> vervain_acp::Result<c_int> {
    yes.map(|yes| c_int::from(!yes))
}

/// One of the counts.
fn count(name: &str, segbuf: *mut Opaque, which: usize) -> i64 {
    result(name, |libraries| Ok(libraries.channels.segment_counts(id(segbuf))?[which].cast_signed()))
}

/// The result of a call that changes something: 0, or -1.
fn change(
    name: &str,
    segbuf: *mut Opaque,
    f: impl FnOnce(&vervain_acp_channel::Channels<'static>, Id) -> vervain_acp::Result<()>,
) -> c_int {
    result(name, |libraries| f(&libraries.channels, id(segbuf)).map(|()| 0))
}

/// Connects a segmented buffer: waits until its other end is there. Returns 0, or -1 on an error.
pub extern "C" fn acp_connect_segbuf(segbuf: *mut Opaque) -> c_int {
    change("acp_connect_segbuf", segbuf, |channels, id| channels.connect_buffer(id))
}

/// Returns 0 if the other end is there, else 1; -1 on an error.
pub extern "C" fn acp_isconnected_segbuf(segbuf: *mut Opaque) -> c_int {
    result("acp_isconnected_segbuf", |libraries| answer(libraries.channels.is_buffer_connected(id(segbuf))))
}

/// Gives a segment back.
pub extern "C" fn acp_ready_segbuf(segbuf: *mut Opaque) -> c_int {
    change("acp_ready_segbuf", segbuf, |channels, id| channels.give_segment_back(id))
}

/// Pushes a segment.
pub extern "C" fn acp_ack_segbuf(segbuf: *mut Opaque) -> c_int {
    change("acp_ack_segbuf", segbuf, |channels, id| channels.push_segment(id))
}

/// Returns 0 if a segment is free, else 1; -1 on an error.
pub extern "C" fn acp_isready_segbuf(segbuf: *mut Opaque) -> c_int {
    result("acp_isready_segbuf", |libraries| answer(libraries.channels.is_segment_ready(id(segbuf))))
}

/// Returns 0 if a segment is pushed, else 1; -1 on an error.
pub extern "C" fn acp_isacked_segbuf(segbuf: *mut Opaque) -> c_int {
    result("acp_isacked_segbuf", |libraries| answer(libraries.channels.is_segment_pushed(id(segbuf))))
}

/// Segments given back, modulo their number.
pub extern "C" fn acp_query_segbuf_head(segbuf: *mut Opaque) -> i64 {
    count("acp_query_segbuf_head", segbuf, 0)
}

/// Segments pushed, modulo their number.
pub extern "C" fn acp_query_segbuf_tail(segbuf: *mut Opaque) -> i64 {
    count("acp_query_segbuf_tail", segbuf, 1)
}

/// Segments that have arrived, modulo their number.
pub extern "C" fn acp_query_segbuf_sent(segbuf: *mut Opaque) -> i64 {
    count("acp_query_segbuf_sent", segbuf, 2)
}

/// Disconnects.
pub extern "C" fn acp_disconnect_segbuf(segbuf: *mut Opaque) -> c_int {
    change("acp_disconnect_segbuf", segbuf, |channels, id| channels.disconnect_buffer(id))
}

/// Frees an end.
pub extern "C" fn acp_free_segbuf(segbuf: *mut Opaque) -> c_int {
    change("acp_free_segbuf", segbuf, |channels, id| channels.free_buffer(id))
}
