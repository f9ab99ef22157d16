//! `ibv_device`, `ibv_context` and `verbs_context`: the function tables that the header's inline functions call
//! through.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::{offset_of, size_of};

use super::*;

/// The bytes of `ibv_device::name` and `dev_name`.
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// The bytes of `ibv_device::dev_path` and `ibdev_path`.
pub const IBV_SYSFS_PATH_MAX: usize = 256;

pub type ibv_node_type = c_int;
pub const IBV_NODE_UNKNOWN: ibv_node_type = -1;
pub const IBV_NODE_CA: ibv_node_type = 1;
pub const IBV_NODE_SWITCH: ibv_node_type = 2;
pub const IBV_NODE_ROUTER: ibv_node_type = 3;
pub const IBV_NODE_RNIC: ibv_node_type = 4;
pub const IBV_NODE_USNIC: ibv_node_type = 5;
pub const IBV_NODE_USNIC_UDP: ibv_node_type = 6;
pub const IBV_NODE_UNSPECIFIED: ibv_node_type = 7;

pub type ibv_transport_type = c_int;
pub const IBV_TRANSPORT_IB: ibv_transport_type = 0;

/// A device as `ibv_get_device_list(3)` hands it out.
#[repr(C)]
#[derive(Debug)]
pub struct ibv_device {
    /// Two function pointers that were never used; kept for their place.
    pub _ops: [*mut c_void; 2],
    pub node_type: ibv_node_type,
    pub transport_type: ibv_transport_type,
    pub name: [c_char; IBV_SYSFS_NAME_MAX],
    pub dev_name: [c_char; IBV_SYSFS_NAME_MAX],
    pub dev_path: [c_char; IBV_SYSFS_PATH_MAX],
    pub ibdev_path: [c_char; IBV_SYSFS_PATH_MAX],
}

/// The place of a function that the 1.0 ABI called through and that nothing calls any more.
pub type CompatOp = Option<unsafe extern "C" fn() -> *mut c_void>;

/// The operations that clients call inline through `ibv_context::ops`, without a NULL check.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_context_ops {
    pub _compat_query_device: CompatOp,
    pub _compat_query_port: CompatOp,
    pub _compat_alloc_pd: CompatOp,
    pub _compat_dealloc_pd: CompatOp,
    pub _compat_reg_mr: CompatOp,
    pub _compat_rereg_mr: CompatOp,
    pub _compat_dereg_mr: CompatOp,
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: CompatOp,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_cq_event: CompatOp,
    pub _compat_resize_cq: CompatOp,
    pub _compat_destroy_cq: CompatOp,
    pub _compat_create_srq: CompatOp,
    pub _compat_modify_srq: CompatOp,
    pub _compat_query_srq: CompatOp,
    pub _compat_destroy_srq: CompatOp,
    pub post_srq_recv: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_create_qp: CompatOp,
    pub _compat_query_qp: CompatOp,
    pub _compat_modify_qp: CompatOp,
    pub _compat_destroy_qp: CompatOp,
    pub post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_create_ah: CompatOp,
    pub _compat_destroy_ah: CompatOp,
    pub _compat_attach_mcast: CompatOp,
    pub _compat_detach_mcast: CompatOp,
    pub _compat_async_event: CompatOp,
}

/// An open device; always the last part of a [`verbs_context`].
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    /// [`VERBS_ABI_IS_EXTENDED`] says that a [`verbs_context`] surrounds this.
    pub abi_compat: *mut c_void,
}

/// The value of `ibv_context::abi_compat` in an extended context.
pub const VERBS_ABI_IS_EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// The operations that clients call inline through `verbs_get_ctx_op`; a NULL one reads as EOPNOTSUPP.
///
/// New operations go on top; `sz` tells a client how many of those it knows are there.
#[repr(C)]
pub struct verbs_context {
    pub free_buf: Option<unsafe extern "C" fn(*mut ibv_buf)>,
    pub alloc_buf: Option<unsafe extern "C" fn(*mut ibv_pd, usize, *mut *mut ibv_buf) -> *mut c_void>,
    pub dm_export_dmabuf_fd: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub reg_mr_ex: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr>,
    pub dealloc_dmah: Option<unsafe extern "C" fn(*mut ibv_dmah) -> c_int>,
    pub alloc_dmah: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_dmah_init_attr) -> *mut ibv_dmah>,
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: CompatOp,
    pub attach_counters_point_flow: CompatOp,
    pub create_counters: CompatOp,
    pub destroy_counters: CompatOp,
    pub reg_dm_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub alloc_dm: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: CompatOp,
    pub destroy_flow_action: CompatOp,
    pub create_flow_action_esp: CompatOp,
    pub modify_qp_rate_limit: CompatOp,
    pub alloc_parent_domain:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd>,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_ops_wr, *mut *mut ibv_ops_wr) -> c_int>,
    pub destroy_rwq_ind_table: CompatOp,
    pub create_rwq_ind_table: CompatOp,
    pub destroy_wq: CompatOp,
    pub modify_wq: CompatOp,
    pub create_wq: CompatOp,
    pub query_rt_values: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    /// rdma-core's own pointer; ours stays NULL.
    pub priv_: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub ibv_destroy_flow: CompatOp,
    pub _abi_placeholder2: CompatOp,
    pub ibv_create_flow: CompatOp,
    pub _abi_placeholder1: CompatOp,
    pub open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub _abi_placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}

impl verbs_context {
    /// The `verbs_context` that surrounds `context`.
    pub fn of(context: *mut ibv_context) -> *mut verbs_context {
        context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
    }
}

const _: () = assert!(
    offset_of!(verbs_context, context) + size_of::<ibv_context>() == size_of::<verbs_context>(),
    "a client finds every operation by its distance from the end"
);
