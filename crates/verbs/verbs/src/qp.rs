//! Queue pairs: `ibv_create_qp(3)`, `ibv_create_qp_ex(3)`, `ibv_open_qp(3)`, `ibv_modify_qp(3)`, `ibv_query_qp(3)`, and
//! multicast. Every QP is allocated as an extended one; whether the client may use it so is in its state.

use core::ffi::c_int;
use core::ptr;
use std::sync::Arc;

use vervain_hca::{self as hca, Error, attr};

use crate::abi::*;
use crate::ah::{ah_attr_from_c, ah_attr_to_c};
use crate::cq::hca_cq;
use crate::errno;
use crate::object::{self, Blank, Handle, errno_of, pointer_of, state};
use crate::opening::opening;
use crate::pd::{Use, hca_pd, use_pd};
use crate::registry::Entry;
use crate::same::same;
use crate::srq::hca_srq;
use crate::wr::{self, Builder};
use crate::xrc_target;
use crate::xrcd::hca_xrcd;

/// Behind an `ibv_qp_ex`.
pub(crate) struct QpState {
    _entry: Entry<ibv_qp_ex>,
    pub(crate) hca: Arc<hca::Qp>,
    pub(crate) builder: Builder,
    /// Created with send operations, so `ibv_qp_to_qp_ex` may show the table.
    pub(crate) extended: bool,
    sq_sig_all: c_int,
    _pd: Option<Use>,
}

impl Handle for ibv_qp_ex {
    type State = QpState;
}

/// The state behind a client's QP.
#[inline]
pub(crate) unsafe fn qp_state<'a>(qp: *mut ibv_qp) -> &'a QpState {
    // SAFETY: the client's QP, which this file made.
    unsafe { state(qp.cast::<ibv_qp_ex>()) }
}

/// The device model's QP behind a client's.
#[inline]
pub(crate) unsafe fn hca_qp<'a>(qp: *mut ibv_qp) -> &'a hca::Qp {
    // SAFETY: the client's QP.
    unsafe { &qp_state(qp).hca }
}

const RDMA_OPS: u64 = IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW;

/// The operations that a QP type has (the table in `ibv_wr_post(3)`).
fn send_ops(qp_type: hca::QpType) -> u64 {
    match qp_type {
        hca::QpType::Ud => IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
        hca::QpType::Uc => RDMA_OPS,
        hca::QpType::Rc | hca::QpType::XrcSend => {
            RDMA_OPS
                | IBV_QP_EX_WITH_RDMA_READ
                | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
                | IBV_QP_EX_WITH_ATOMIC_WRITE
                | IBV_QP_EX_WITH_FLUSH
        }
        hca::QpType::XrcRecv => 0,
    }
}

fn qp_type(qp_type: ibv_qp_type) -> Result<hca::QpType, Error> {
    hca::QpType::from_verbs(qp_type).ok_or_else(|| match qp_type {
        IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => Error::unsupported(format!("QP type {qp_type}")),
        _ => Error::invalid(format!("QP type {qp_type}")),
    })
}

/// Creates a QP and stores the capabilities that it got in `init.cap`. `pd` is NULL for an XRC target only.
unsafe fn new_qp(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    init: &mut ibv_qp_init_attr,
    send_ops_flags: Option<u64>,
) -> Result<*mut ibv_qp, Error> {
    let hca_type = qp_type(init.qp_type)?;
    if let Some(ops) = send_ops_flags
        && ops & !send_ops(hca_type) != 0
    {
        return Err(Error::unsupported(format!("send operations {ops:#x} on a {hca_type:?} QP")));
    }
    // SAFETY: the client's context and the objects that its attributes name.
    unsafe {
        let opening = opening(context);
        let is_target = hca_type == hca::QpType::XrcRecv;
        let mut cap = cap_from_c(&init.cap);
        if send_ops_flags.is_some_and(|ops| ops & IBV_QP_EX_WITH_ATOMIC_WRITE != 0) {
            // `wr_atomic_write` brings its 8 bytes inline.
            cap.max_inline_data = cap.max_inline_data.max(8);
        }
        let hca_pd = if is_target { None } else { Some(hca_pd(pd)?) };
        let blank = Blank::<ibv_qp_ex>::new();
        let hca = hca::Qp::create(
            &opening.hca,
            hca_pd,
            &hca::QpInit {
                qp_type: hca_type,
                send_cq: hca_cq(init.send_cq),
                recv_cq: hca_cq(init.recv_cq),
                srq: hca_srq(init.srq),
                xrcd: if is_target { Some(hca_xrcd(xrcd)?) } else { None },
                cap,
                sq_sig_all: init.sq_sig_all != 0,
                cookie: blank.cookie(),
            },
        )?;
        init.cap = cap_to_c(&hca.cap());
        Ok(fill(blank, context, pd, init, hca, send_ops_flags.is_some()))
    }
}

/// Makes the client's QP around the device model's.
pub(crate) unsafe fn fill(
    blank: Blank<ibv_qp_ex>,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    hca: Arc<hca::Qp>,
    extended: bool,
) -> *mut ibv_qp {
    // SAFETY: integers, pointers, `Option`s of functions, and pthread objects.
    let mut c: ibv_qp_ex = unsafe { object::zeros() };
    let base = &mut c.qp_base;
    base.context = context;
    base.qp_context = init.qp_context;
    base.pd = pd;
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    // SAFETY: the client's context.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    base.handle = handle;
    base.qp_num = hca.qp_num();
    base.state = hca.state().to_verbs();
    base.qp_type = init.qp_type;
    if extended {
        wr::set_operations(&mut c);
    }
    if init.qp_type == IBV_QPT_XRC_RECV {
        xrc_target::add(hca.qp_num(), blank.cookie());
    }
    let builder = Builder::new(&if extended { init.cap } else { ibv_qp_cap::default() });
    // SAFETY: the client's PD, or NULL.
    let _pd = unsafe { use_pd(pd) };
    let _entry = opening.qps.entry(handle);
    let qp = blank.fill(c, QpState { _entry, hca, builder, extended, sq_sig_all: init.sq_sig_all, _pd });
    opening.qps.publish(handle, qp).cast()
}

/// Creates a QP.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer_of(|| {
        if pd.is_null() {
            return Err(Error::invalid("the PD is NULL"));
        }
        // SAFETY: the client's PD and attributes.
        unsafe { new_qp((*pd).context, pd, ptr::null_mut(), &mut *init, None) }
    })
}

/// Creates a QP by extended attributes: XRC targets, and the choice of operations for the `ibv_wr_*` functions.
pub(crate) unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const KNOWN: u32 =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    pointer_of(|| {
        // SAFETY: the client's attributes, of which fields are read as comp_mask allows.
        unsafe {
            let mask = (*attr).comp_mask;
            if mask & !KNOWN != 0 {
                return Err(Error::unsupported(format!("QP attributes in comp_mask {mask:#x}")));
            }
            if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && (*attr).create_flags != 0 {
                return Err(Error::unsupported(format!("QP create_flags {:#x}", (*attr).create_flags)));
            }
            let pd = if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd } else { ptr::null_mut() };
            let xrcd = if mask & IBV_QP_INIT_ATTR_XRCD != 0 { (*attr).xrcd } else { ptr::null_mut() };
            let ops = (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then(|| (*attr).send_ops_flags);
            // The extended struct begins with the fields of the plain one, so the client sees `cap` set.
            new_qp(context, pd, xrcd, &mut *attr.cast(), ops)
        }
    })
}

/// Opens an XRC target that another `ibv_qp` made, by its number.
pub(crate) unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    pointer_of(|| {
        // SAFETY: the client's context and attributes, of which fields are read as comp_mask allows.
        unsafe {
            let mask = (*attr).comp_mask;
            if mask & !IBV_QP_OPEN_ATTR_CONTEXT != NEEDED || (*attr).qp_type != IBV_QPT_XRC_RECV {
                return Err(Error::invalid("ibv_open_qp needs the number, domain and type of an XRC target"));
            }
            let blank = Blank::<ibv_qp_ex>::new();
            let hca = hca::Qp::open(&opening(context).hca, hca_xrcd((*attr).xrcd)?, (*attr).qp_num)?;
            let mut init: ibv_qp_init_attr = object::zeros();
            init.qp_type = IBV_QPT_XRC_RECV;
            if mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
                init.qp_context = (*attr).qp_context;
            }
            Ok(fill(blank, context, ptr::null_mut(), &init, hca, false))
        }
    })
}

/// The extended view of a QP, if it was created with send operations.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the client's QP.
    if unsafe { qp_state(qp) }.extended { qp.cast() } else { ptr::null_mut() }
}

/// Changes a QP's attributes and state.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
    errno_of(|| {
        // SAFETY: the client's QP and attributes.
        unsafe {
            let mask = attr_mask as u32 & !pointless_attributes((*qp).qp_type);
            let hca = hca_qp(qp);
            hca.modify(&attr_from_c(&*attr, mask)?, mask)?;
            (*qp).state = hca.state().to_verbs();
        }
        Ok(())
    })
}

/// Attributes that one half of an XRC connection does not have. The kernel's verbs take them and drop them, so that
/// programs can treat both halves as they treat RC QPs; perftest does.
fn pointless_attributes(qp_type: ibv_qp_type) -> u32 {
    match qp_type {
        IBV_QPT_XRC_SEND => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        IBV_QPT_XRC_RECV => IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY,
        _ => 0,
    }
}

/// Reads a QP's attributes, all of them, without regard to the mask, and the attributes that it was created with.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the client's QP, attributes and initial attributes.
    unsafe {
        let state = qp_state(qp);
        let now = attr_to_c(&state.hca.query());
        (*qp).state = now.qp_state;
        *init = same!((*qp) => ibv_qp_init_attr {
            qp_context, send_cq, recv_cq, srq, qp_type;
            sq_sig_all: state.sq_sig_all,
            cap: now.cap,
        });
        *attr = now;
    }
    0
}

/// Destroys a QP, an XRC target with its last handle. Waits until its events are acknowledged.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    errno_of(|| {
        // SAFETY: the client's QP, which it gives up if this succeeds.
        unsafe {
            let hca = &qp_state(qp).hca;
            if (*qp).qp_type != IBV_QPT_XRC_RECV || xrc_target::remove(hca, qp.expose_provenance()) {
                hca.destroy()?;
            }
            object::free(qp.cast::<ibv_qp_ex>());
        }
        Ok(())
    })
}

/// Attaches a UD QP to a multicast group.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the client's QP and GID.
    errno_of(|| unsafe { hca_qp(qp).attach_mcast(&(*gid).raw, lid) })
}

/// Detaches a UD QP from a multicast group.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the client's QP and GID.
    errno_of(|| unsafe { hca_qp(qp).detach_mcast(&(*gid).raw, lid) })
}

/// The guarantees about the order of data within a message: none. The last byte is written last on every path, but the
/// CPU or the kernel copies the bytes before it in any order.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    0
}

/// There are no vendor options to agree on with a peer.
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    errno::code(libc::EOPNOTSUPP)
}

/// There are no vendor options to agree on with a peer.
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut ibv_ece) -> c_int {
    errno::code(libc::EOPNOTSUPP)
}

fn cap_from_c(c: &ibv_qp_cap) -> hca::QpCap {
    same!(c => hca::QpCap {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    })
}

pub(crate) fn cap_to_c(h: &hca::QpCap) -> ibv_qp_cap {
    same!(h => ibv_qp_cap {
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
    })
}

/// Attributes as the device model has them. Fields that the mask does not name may hold anything, so only a state that
/// it names must be one.
fn attr_from_c(c: &ibv_qp_attr, mask: u32) -> Result<hca::QpAttr, Error> {
    let state = |value: ibv_qp_state, bit: u32| match hca::QpState::from_verbs(value) {
        Some(state) => Ok(state),
        None if mask & bit == 0 => Ok(hca::QpState::Reset),
        None => Err(Error::invalid(format!("QP state {value}"))),
    };
    Ok(same!(c => hca::QpAttr {
        path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
        qp_state: state(c.qp_state, attr::STATE)?,
        cur_qp_state: state(c.cur_qp_state, attr::CUR_STATE)?,
        cap: cap_from_c(&c.cap),
        ah: ah_attr_from_c(&c.ah_attr),
    }))
}

fn attr_to_c(h: &hca::QpAttr) -> ibv_qp_attr {
    same!(h => ibv_qp_attr {
        path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry;
        qp_state: h.qp_state.to_verbs(),
        cur_qp_state: h.cur_qp_state.to_verbs(),
        cap: cap_to_c(&h.cap),
        ah_attr: ah_attr_to_c(&h.ah),
        path_mig_state: IBV_MIG_MIGRATED;
        ..ibv_qp_attr::default()
    })
}
