//! Extended completion queues: `ibv_create_cq_ex(3)`.
//!
//! A poll takes one completion at a time out of the device model's CQ, so that `ibv_poll_cq` and an event request see
//! exactly those that were not yet read.

use core::ffi::{c_int, c_uint};

use vervain_hca::{Completion, Error};

use crate::abi::*;
use crate::cq::{CqState, NewCq, new_cq};
use crate::object::{pointer_of, state};
use crate::ordered;

/// The fields of a completion that a client can ask for. There are no VLANs, flow tags or tag matching.
const SUPPORTED_WC_FLAGS: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | TIMESTAMPS;

const TIMESTAMPS: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Creates an extended CQ.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer_of(|| {
        // SAFETY: the client's context and attributes; the fields behind comp_mask are read as it allows.
        unsafe {
            let comp_mask = (*attr).comp_mask;
            if comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
                return Err(Error::invalid(format!("unknown fields in comp_mask {comp_mask:#x}")));
            }
            let wc_flags = (*attr).wc_flags;
            if wc_flags & !SUPPORTED_WC_FLAGS != 0 {
                return Err(Error::unsupported(format!("wc_flags {wc_flags:#x}")));
            }
            let flags = if comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { (*attr).flags } else { 0 };
            if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
                return Err(Error::invalid(format!("unknown flags {flags:#x}")));
            }
            let cq = new_cq(
                context,
                &NewCq {
                    cqe: (*attr).cqe,
                    cq_context: (*attr).cq_context,
                    channel: (*attr).channel,
                    comp_vector: (*attr).comp_vector,
                    ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
                    timestamps: wc_flags & TIMESTAMPS != 0,
                },
            )?;
            set_operations(&mut *cq);
            Ok(cq)
        }
    })
}

pub(crate) fn set_operations(cq: &mut ibv_cq_ex) {
    let in_order = ordered::order().is_some();
    cq.start_poll = Some(if in_order { start_poll_in_order } else { start_poll });
    cq.next_poll = Some(if in_order { next_poll_in_order } else { next_poll });
    cq.end_poll = Some(if in_order { end_poll_in_order } else { end_poll });
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
    cq.read_completion_ts = Some(read_completion_ts);
    cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// Makes the next completion the current one, or ENOENT. The caller holds the poll lock.
unsafe fn advance(cq: *mut ibv_cq_ex, state: &CqState) -> c_int {
    let mut found = false;
    state.hca.poll(1, &mut |c: &Completion| {
        // SAFETY: the poll lock is held, and the client reads these fields only between start and end of its own poll.
        unsafe {
            (*cq).status = c.status;
            (*cq).wr_id = c.wr_id;
            *state.current.get() = *c;
        }
        found = true;
    });
    if found { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the client's CQ and attributes; the lock was initialised with the CQ. A client that creates a CQ for one
    // thread pays for a lock that is always free.
    unsafe {
        if !attr.is_null() && (*attr).comp_mask != 0 {
            return libc::EINVAL;
        }
        let state = state(cq);
        libc::pthread_mutex_lock(state.poll_lock.get());
        let found = advance(cq, state);
        if found != 0 {
            libc::pthread_mutex_unlock(state.poll_lock.get());
        }
        found
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the client's CQ, whose lock `start_poll` took.
    unsafe { advance(cq, state(cq)) }
}

/// [`start_poll`] in a program with ThreadSanitizer.
unsafe extern "C" fn start_poll_in_order(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the client's arguments.
    unsafe { taken(cq, start_poll(cq, attr)) }
}

/// [`next_poll`] in a program with ThreadSanitizer.
unsafe extern "C" fn next_poll_in_order(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the client's CQ, whose lock `start_poll` took.
    unsafe { taken(cq, next_poll(cq)) }
}

/// [`end_poll`] in a program with ThreadSanitizer.
unsafe extern "C" fn end_poll_in_order(cq: *mut ibv_cq_ex) {
    // SAFETY: the client's CQ, whose lock `start_poll` took.
    unsafe {
        end_poll(cq);
        // Or the compiler would jump to the unlock, which would then seem to be called by the program. The sanitizer
        // has not seen this library lock.
        core::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// Passes on what a poll said, and orders what comes after a completion.
unsafe fn taken(cq: *mut ibv_cq_ex, found: c_int) -> c_int {
    if found == 0 {
        // SAFETY: the poll lock is held where there is a completion.
        ordered::after_completion(cq, unsafe { current(cq) }.opcode);
    }
    found
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the client's CQ, whose lock `start_poll` took.
    unsafe { libc::pthread_mutex_unlock(state(cq).poll_lock.get()) };
}

/// The completion that the client is reading.
unsafe fn current(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: the client's CQ, between start and end of a poll.
    unsafe { *state(cq).current.get() }
}

macro_rules! read_functions {
    ($($function:ident: $type:ty = |$c:ident| $value:expr;)+) => {
        $(unsafe extern "C" fn $function(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the client's CQ, between start and end of a poll.
            let $c = unsafe { current(cq) };
            $value
        })+
    };
}

read_functions! {
    read_opcode: ibv_wc_opcode = |c| c.opcode;
    read_vendor_err: u32 = |c| c.vendor_err;
    read_byte_len: u32 = |c| c.byte_len;
    read_imm_data: u32 = |c| c.imm_or_rkey;
    read_qp_num: u32 = |c| c.qp_num;
    read_src_qp: u32 = |c| c.src_qp;
    read_wc_flags: c_uint = |c| c.wc_flags;
    read_slid: u32 = |c| u32::from(c.slid);
    read_sl: u8 = |c| c.sl;
    read_dlid_path_bits: u8 = |c| c.dlid_path_bits;
    read_completion_ts: u64 = |c| c.timestamp;
    read_completion_wallclock_ns: u64 = |c| wallclock_ns(c.timestamp);
}

/// A reading of the HCA's clock as nanoseconds since 1970, by how far both clocks are apart now.
fn wallclock_ns(timestamp: u64) -> u64 {
    let ago = vervain_hca::hca_clock_ns().saturating_sub(timestamp);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).saturating_sub(ago)
}
