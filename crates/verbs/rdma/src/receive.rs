//! Posting receives: one way for the queue of a QP and the one that QPs share.

use std::ffi::c_int;
use std::ptr;

use vervain_abi::{ibv_qp, ibv_recv_wr};

use crate::error::PostError;
use crate::post::{RecvList, RecvRequest};

/// `ibv_post_recv(3)` or `ibv_post_srq_recv(3)`: they differ in the object only.
pub(crate) type PostReceives<T> = unsafe extern "C" fn(*mut T, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The receive queue of the object at `raw`.
pub(crate) struct ReceiveQueue<T> {
    raw: *mut T,
    post: PostReceives<T>,
    /// The call's name, for errors.
    call: &'static str,
}

impl<T> ReceiveQueue<T> {
    /// # Safety
    /// `raw` is an object that `post` is for, and lives as long as this.
    pub unsafe fn new(raw: *mut T, post: PostReceives<T>, call: &'static str) -> Self {
        Self { raw, post, call }
    }

    #[inline]
    pub fn post(&self, mut request: RecvRequest<'_, '_>) -> Result<(), PostError> {
        let mut bad = ptr::null_mut();
        // SAFETY: an object that lives as long as `self`; a request that ends the chain, whose SGEs are borrowed.
        // Memory is named by a key, and stays registered until it is deregistered or the object and its domain are
        // gone.
        let rc = unsafe { (self.post)(self.raw, &mut request.raw, &mut bad) };
        if rc == 0 { Ok(()) } else { Err(PostError::of(self.call, rc, 0)) }
    }

    #[inline]
    pub fn post_list(&self, list: &mut RecvList<'_>) -> Result<(), PostError> {
        let first = list.first();
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post`; `first` leads through the list's requests and their SGEs, which do not change
        // meanwhile.
        let rc = unsafe { (self.post)(self.raw, first, &mut bad) };
        if rc == 0 { Ok(()) } else { Err(PostError::of(self.call, rc, list.place(bad))) }
    }
}

/// Replaces the driver's `ibv_post_recv` for a QP on an SRQ: such a QP has no receive queue of its own, and not every
/// driver checks that.
///
/// # Safety
/// As `ibv_post_recv`.
pub(crate) unsafe extern "C" fn no_queue(_: *mut ibv_qp, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a valid place, by the caller's word.
    unsafe { *bad = first };
    libc::EINVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qp_without_a_queue_refuses_the_first_of_what_is_posted() {
        // SAFETY: the function takes any object.
        let queue = unsafe { ReceiveQueue::new(ptr::null_mut(), no_queue, "ibv_post_recv") };
        let mut list = RecvList::with_capacity(2);
        queue.post_list(&mut list).expect("nothing is nothing");
        list.push(RecvRequest::new(&[]));
        list.push(RecvRequest::new(&[]));
        let refused = PostError { errno: libc::EINVAL, posted: 0, call: "ibv_post_recv" };
        assert_eq!(queue.post_list(&mut list), Err(refused));
        assert_eq!(queue.post(RecvRequest::new(&[])), Err(refused));
    }
}
