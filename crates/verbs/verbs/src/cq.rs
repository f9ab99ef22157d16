//! Completion queues: `ibv_create_cq(3)`, `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`, `ibv_resize_cq(3)`.
//!
//! Every CQ is allocated as an extended one, since clients cast between the two.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use std::sync::Arc;

use vervain_hca::{self as hca, Completion, Error};

use crate::abi::*;
use crate::errno;
use crate::object::{self, Blank, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::registry::Entry;

/// Behind an `ibv_cq_ex`.
pub(crate) struct CqState {
    _entry: Entry<ibv_cq_ex>,
    pub(crate) hca: Arc<hca::Cq>,
    /// Held from `start_poll` to `end_poll`.
    pub(crate) poll_lock: UnsafeCell<libc::pthread_mutex_t>,
    /// The completion that the `read_*` functions read; under the lock.
    pub(crate) current: UnsafeCell<Completion>,
}

impl Handle for ibv_cq_ex {
    type State = CqState;
}

/// The state behind a client's CQ.
#[inline]
pub(crate) unsafe fn cq_state<'a>(cq: *mut ibv_cq) -> &'a CqState {
    // SAFETY: the client's CQ, which `new_cq` made.
    unsafe { state(cq.cast::<ibv_cq_ex>()) }
}

/// The device model's CQ behind a client's, which may be NULL.
pub(crate) unsafe fn hca_cq<'a>(cq: *mut ibv_cq) -> Option<&'a Arc<hca::Cq>> {
    // SAFETY: the client's CQ.
    (!cq.is_null()).then(|| unsafe { &cq_state(cq).hca })
}

/// The parameters that both ways to create a CQ have in common.
pub(crate) struct NewCq {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) ignore_overrun: bool,
    pub(crate) timestamps: bool,
}

pub(crate) unsafe fn new_cq(context: *mut ibv_context, new: &NewCq) -> Result<*mut ibv_cq_ex, Error> {
    // SAFETY: the client's context and channel.
    let opening = unsafe { opening(context) };
    // SAFETY: as above.
    let channel = (!new.channel.is_null()).then(|| unsafe { &state(new.channel).hca });
    let blank = Blank::<ibv_cq_ex>::new();
    let hca = hca::Cq::create(
        &opening.hca,
        new.cqe,
        channel,
        new.comp_vector,
        blank.cookie(),
        new.ignore_overrun,
        new.timestamps,
    )?;
    // SAFETY: the client's context and channel.
    Ok(unsafe { fill(blank, context, new.channel, new.cq_context, hca) })
}

/// Makes the client's CQ around the device model's.
pub(crate) unsafe fn fill(
    blank: Blank<ibv_cq_ex>,
    context: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    cq_context: *mut c_void,
    hca: Arc<hca::Cq>,
) -> *mut ibv_cq_ex {
    // SAFETY: the client's context.
    let opening = unsafe { opening(context) };
    if !channel.is_null() {
        // SAFETY: the client's channel; the count is for its eyes only.
        unsafe { (*channel).refcnt += 1 };
    }
    let handle = opening.handle();
    // SAFETY: integers, pointers, `Option`s of functions, and pthread objects.
    let mut c: ibv_cq_ex = unsafe { object::zeros() };
    c.base.context = context;
    c.base.channel = channel;
    c.base.cq_context = cq_context;
    c.base.handle = handle;
    c.base.cqe = hca.cqe() as c_int;
    // SAFETY: a pthread mutex.
    let poll_lock = UnsafeCell::new(unsafe { object::zeros() });
    let _entry = opening.cqs.entry(handle);
    let state = CqState { _entry, hca, poll_lock, current: UnsafeCell::new(Completion::default()) };
    opening.cqs.publish(handle, blank.fill(c, state))
}

/// Creates a CQ with room for at least `cqe` completions.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    pointer_of(|| {
        let (Ok(cqe), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
            return Err(Error::invalid("a negative size or completion vector"));
        };
        let new = NewCq { cqe, cq_context, channel, comp_vector, ignore_overrun: false, timestamps: false };
        // SAFETY: the client's context and channel.
        Ok(unsafe { new_cq(context, &new) }?.cast())
    })
}

/// Changes a CQ's room.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    errno_of(|| {
        let cqe = u32::try_from(cqe).map_err(|_| Error::invalid("a negative size"))?;
        // SAFETY: the client's CQ.
        unsafe {
            let hca = &cq_state(cq).hca;
            hca.resize(cqe)?;
            (*cq).cqe = hca.cqe() as c_int;
        }
        Ok(())
    })
}

/// Destroys a CQ; EBUSY while a QP or SRQ uses it. Waits until its events are acknowledged.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    errno_of(|| {
        // SAFETY: the client's CQ, which it gives up if this succeeds, and its channel.
        unsafe {
            hca::Cq::destroy(&cq_state(cq).hca)?;
            let channel = (*cq).channel;
            if !channel.is_null() {
                (*channel).refcnt -= 1;
            }
            object::free(cq.cast::<ibv_cq_ex>());
        }
        Ok(())
    })
}

/// Takes up to `num_entries` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the client's CQ.
    let cq = unsafe { cq_state(cq) };
    let mut next = wc;
    cq.hca.poll(num_entries.max(0) as usize, &mut |c: &Completion| {
        // SAFETY: the client's array has `num_entries` elements, and `poll` calls this at most that often.
        unsafe {
            next.write(ibv_wc {
                wr_id: c.wr_id,
                status: c.status,
                opcode: c.opcode,
                vendor_err: c.vendor_err,
                byte_len: c.byte_len,
                imm_data: c.imm_or_rkey,
                qp_num: c.qp_num,
                src_qp: c.src_qp,
                wc_flags: c.wc_flags,
                pkey_index: c.pkey_index,
                slid: c.slid,
                sl: c.sl,
                dlid_path_bits: c.dlid_path_bits,
            });
            next = next.add(1);
        }
    }) as c_int
}

/// Asks for an event with the next completion, or the next solicited or failed one.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // Not `errno_of`: as quick as a post, and no more a cancellation point.
    // SAFETY: the client's CQ.
    let asked = unsafe { cq_state(cq) }.hca.req_notify(solicited_only != 0);
    asked.map_or_else(|e| errno::code(object::failed(&e)), |()| 0)
}
