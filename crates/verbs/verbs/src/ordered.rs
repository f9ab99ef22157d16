//! The operations of a program with ThreadSanitizer. The sanitizer sees the program's own accesses, but not how a
//! completion gets from the thread that posts to the thread that polls. These operations declare that order to it: all
//! that a thread did before a post happens before all that a thread does after it has polled a completion of the same
//! CQ, or has received a message of this process or by an SRQ.
//!
//! They replace the plain operations in the tables that programs call by if there is a ThreadSanitizer; without one
//! they cost nothing.

use core::ffi::c_int;
use std::sync::OnceLock;

use vervain_share::checkers::Order;

use crate::abi::*;
use crate::{cq, post, srq};

/// An address that stands for the connection between any two queues of this process.
static FABRIC: u8 = 0;

/// The sanitizer's functions, where the program has it.
#[cold]
pub(crate) fn order() -> Option<Order> {
    static ORDER: OnceLock<Option<Order>> = OnceLock::new();
    *ORDER.get_or_init(Order::find)
}

/// Orders all that this thread has done before the completions of a CQ.
fn before<T>(queue: *const T) {
    if let Some(order) = order() {
        order.release(queue);
        order.release(&raw const FABRIC);
    }
}

/// The completion of `opcode` was taken from a CQ.
fn after<T>(queue: *const T, opcode: u32) {
    if let Some(order) = order() {
        order.acquire(queue);
        if opcode & IBV_WC_RECV != 0 {
            order.acquire(&raw const FABRIC);
        }
    }
}

/// The table of a context, as far as posts and polls go.
pub(crate) fn operations(plain: ibv_context_ops) -> ibv_context_ops {
    match order() {
        None => plain,
        Some(_) => ibv_context_ops {
            poll_cq: Some(poll_cq),
            post_srq_recv: Some(post_srq_recv),
            post_send: Some(post_send),
            post_recv: Some(post_recv),
            ..plain
        },
    }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the client's arguments.
    unsafe {
        before((*qp).send_cq);
        post::post_send(qp, wr, bad_wr)
    }
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the client's arguments.
    unsafe {
        before((*qp).recv_cq);
        post::post_recv(qp, wr, bad_wr)
    }
}

unsafe extern "C" fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    before(srq);
    // SAFETY: the client's arguments.
    unsafe { srq::post_srq_recv(srq, wr, bad_wr) }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the client's arguments.
    let polled = unsafe { cq::poll_cq(cq, num_entries, wc) };
    for i in 0..polled.max(0) as usize {
        // SAFETY: the first `polled` elements of the client's array have been written. A failed completion has no
        // opcode to use.
        after(cq, unsafe { (*wc.add(i)).opcode });
    }
    polled
}

/// Orders the operations of [`crate::wr`] before a batch is posted; in a table of its own.
pub(crate) unsafe fn before_batch(qp: *mut ibv_qp_ex) {
    // SAFETY: the client's QP.
    before(unsafe { (*qp).qp_base.send_cq });
}

/// Orders what follows after a completion of `opcode`, once [`crate::cq_ex`] has made it the current one.
pub(crate) fn after_completion(cq: *mut ibv_cq_ex, opcode: u32) {
    after(cq, opcode);
}
