//! `libibverbs.so.1`: every exported symbol of rdma-core's library up to v65, under its version, and those of
//! `vervain.h`. The functions themselves are in the `vervain-verbs` crate.
//!
//! `tests/exports.rs` compares the built library with the list of Debian's v44 and with the nodes that came later.

/// Called by the dynamic linker when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
// SAFETY: the linker calls each pointer of .init_array once, with arguments that this one does not take.
static LOADED: extern "C" fn() = vervain_verbs::library_is_loaded;

use vervain_symver::{export, is_false, minus_one, no_pointer, nothing, unsupported};

export!(
    default "IBVERBS_1.0" from vervain_verbs:
    ibv_copy_path_rec_from_kern,
    ibv_copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern,
    ibv_create_comp_channel,
    ibv_destroy_comp_channel,
    ibv_get_sysfs_path,
    ibv_rate_to_mult,
    ibv_read_sysfs_file,
    mult_to_ibv_rate,
);

// The ABI of 2006, whose structs were laid out otherwise. Its device list cannot be had, so no program gets an object
// that it could pass to the other functions; no program of today asks for any of them. They are here because ld.so may
// bind a reference without a version to the oldest one: then the answer is a clean error.
export!(
    compat "IBVERBS_1.0" => no_pointer:
    ibv_alloc_pd,
    ibv_create_ah,
    ibv_create_cq,
    ibv_create_qp,
    ibv_create_srq,
    ibv_get_device_list,
    ibv_get_device_name,
    ibv_open_device,
    ibv_reg_mr,
);
export!(
    compat "IBVERBS_1.0" => unsupported:
    ibv_attach_mcast,
    ibv_close_device,
    ibv_dealloc_pd,
    ibv_dereg_mr,
    ibv_destroy_ah,
    ibv_destroy_cq,
    ibv_destroy_qp,
    ibv_destroy_srq,
    ibv_detach_mcast,
    ibv_modify_qp,
    ibv_modify_srq,
    ibv_query_device,
    ibv_query_port,
    ibv_query_qp,
    ibv_query_srq,
    ibv_resize_cq,
);
export!(
    compat "IBVERBS_1.0" => minus_one:
    ibv_get_async_event,
    ibv_get_cq_event,
    ibv_query_gid,
    ibv_query_pkey,
);
export!(compat "IBVERBS_1.0" => is_false: ibv_get_device_guid);
export!(
    compat "IBVERBS_1.0" => nothing:
    ibv_ack_async_event,
    ibv_ack_cq_events,
    ibv_free_device_list,
);

export!(
    default "IBVERBS_1.1" from vervain_verbs:
    ibv_ack_async_event,
    ibv_ack_cq_events,
    ibv_alloc_pd,
    ibv_attach_mcast,
    ibv_close_device,
    ibv_copy_ah_attr_from_kern,
    ibv_create_ah,
    ibv_create_ah_from_wc,
    ibv_create_cq,
    ibv_create_qp,
    ibv_create_srq,
    ibv_dealloc_pd,
    ibv_dereg_mr,
    ibv_destroy_ah,
    ibv_destroy_cq,
    ibv_destroy_qp,
    ibv_destroy_srq,
    ibv_detach_mcast,
    ibv_dofork_range,
    ibv_dontfork_range,
    ibv_event_type_str,
    ibv_fork_init,
    ibv_free_device_list,
    ibv_get_async_event,
    ibv_get_cq_event,
    ibv_get_device_guid,
    ibv_get_device_list,
    ibv_get_device_name,
    ibv_init_ah_from_wc,
    ibv_modify_qp,
    ibv_modify_srq,
    ibv_node_type_str,
    ibv_open_device,
    ibv_port_state_str,
    ibv_query_device,
    ibv_query_gid,
    ibv_query_pkey,
    ibv_query_port,
    ibv_query_qp,
    ibv_query_srq,
    ibv_rate_to_mbps,
    ibv_reg_mr,
    ibv_rereg_mr,
    ibv_resize_cq,
    ibv_resolve_eth_l2_from_gid,
    ibv_wc_status_str,
    mbps_to_ibv_rate,
);
export!(compat "IBVERBS_1.1" => nothing: ibv_register_driver);
export!(default "IBVERBS_1.5" from vervain_verbs: ibv_get_pkey_index);
export!(default "IBVERBS_1.6" from vervain_verbs: ibv_qp_to_qp_ex);
export!(default "IBVERBS_1.7" from vervain_verbs: ibv_reg_mr_iova);
export!(default "IBVERBS_1.8" from vervain_verbs: ibv_reg_mr_iova2);
export!(default "IBVERBS_1.9" from vervain_verbs: ibv_get_device_index);
export!(
    default "IBVERBS_1.10" from vervain_verbs:
    ibv_import_device,
    ibv_import_mr,
    ibv_import_pd,
    ibv_query_ece,
    ibv_set_ece,
    ibv_unimport_mr,
    ibv_unimport_pd,
);
export!(default "IBVERBS_1.11" from vervain_verbs: _ibv_query_gid_ex, _ibv_query_gid_table);
export!(default "IBVERBS_1.12" => no_pointer: ibv_reg_dmabuf_mr);
export!(
    default "IBVERBS_1.13" from vervain_verbs:
    ibv_import_dm,
    ibv_is_fork_initialized,
    ibv_unimport_dm,
);
export!(default "IBVERBS_1.14" from vervain_verbs: ibv_query_qp_data_in_order);

// v59 and later: DMA handles (TPH) and completion counters are not there.
export!(default "IBVERBS_1.15" from vervain_verbs: ibv_reg_mr_ex);
export!(default "IBVERBS_1.15" => no_pointer: ibv_alloc_dmah);
export!(default "IBVERBS_1.15" => unsupported: ibv_dealloc_dmah);
export!(default "IBVERBS_1.16" from vervain_verbs: ibv_query_port_speed);
export!(default "IBVERBS_1.16" => minus_one: ibv_dm_export_dmabuf_fd);
export!(default "IBVERBS_1.17" from vervain_verbs: ibv_alloc_buf, ibv_free_buf, ibv_reg_buf_mr);
export!(default "IBVERBS_1.18" from vervain_verbs: ibv_export_buf_dmabuf_fd);
export!(default "IBVERBS_1.18" => no_pointer: ibv_create_comp_cntr);
export!(
    default "IBVERBS_1.18" => unsupported:
    _ibv_query_comp_cntr_caps,
    ibv_destroy_comp_cntr,
    ibv_inc_comp_cntr,
    ibv_inc_err_comp_cntr,
    ibv_qp_attach_comp_cntr,
    ibv_read_comp_cntr,
    ibv_read_err_comp_cntr,
    ibv_set_comp_cntr,
    ibv_set_err_comp_cntr,
);

// The private node, for the plugins that rdma-core loads. Without it programs do not load: ibv_devinfo, perftest and
// pyverbs import `ibv_query_gid_type` from it. A vendor's own libmlx5 in the search path needs the rest to be loaded,
// and finds that none of it works. Newer releases renamed the node; their programs import the same few functions.
export!(default "IBVERBS_PRIVATE_34" from vervain_verbs: ibv_query_gid_type);
export!(compat "IBVERBS_PRIVATE_57" => vervain_verbs::ibv_query_gid_type: ibv_query_gid_type);
export!(compat "IBVERBS_PRIVATE_59" => vervain_verbs::ibv_query_gid_type: ibv_query_gid_type);
export!(compat "IBVERBS_PRIVATE_64" => vervain_verbs::ibv_query_gid_type: ibv_query_gid_type);
export!(compat "IBVERBS_PRIVATE_65" => vervain_verbs::ibv_query_gid_type: ibv_query_gid_type);
export!(default "IBVERBS_PRIVATE_65" from vervain_verbs: ibv_wr_opcode_str);
export!(
    default "IBVERBS_PRIVATE_34" => no_pointer:
    _verbs_init_and_alloc_context,
    verbs_open_device,
);
export!(
    default "IBVERBS_PRIVATE_34" => nothing:
    __verbs_log,
    verbs_init_cq,
    verbs_register_driver_34,
    verbs_set_ops,
    verbs_uninit_context,
);
export!(default "IBVERBS_PRIVATE_34" => is_false: __ioctl_final_num_attrs);
export!(default "IBVERBS_PRIVATE_34" => minus_one: ibv_cmd_poll_cq, ibv_read_ibdev_sysfs_file);
export!(
    default "IBVERBS_PRIVATE_34" => unsupported:
    execute_ioctl,
    ibv_cmd_advise_mr,
    ibv_cmd_alloc_dm,
    ibv_cmd_alloc_mw,
    ibv_cmd_alloc_pd,
    ibv_cmd_attach_mcast,
    ibv_cmd_close_xrcd,
    ibv_cmd_create_ah,
    ibv_cmd_create_counters,
    ibv_cmd_create_cq,
    ibv_cmd_create_cq_ex,
    ibv_cmd_create_flow,
    ibv_cmd_create_flow_action_esp,
    ibv_cmd_create_qp,
    ibv_cmd_create_qp_ex,
    ibv_cmd_create_qp_ex2,
    ibv_cmd_create_rwq_ind_table,
    ibv_cmd_create_srq,
    ibv_cmd_create_srq_ex,
    ibv_cmd_create_wq,
    ibv_cmd_dealloc_mw,
    ibv_cmd_dealloc_pd,
    ibv_cmd_dereg_mr,
    ibv_cmd_destroy_ah,
    ibv_cmd_destroy_counters,
    ibv_cmd_destroy_cq,
    ibv_cmd_destroy_flow,
    ibv_cmd_destroy_flow_action,
    ibv_cmd_destroy_qp,
    ibv_cmd_destroy_rwq_ind_table,
    ibv_cmd_destroy_srq,
    ibv_cmd_destroy_wq,
    ibv_cmd_detach_mcast,
    ibv_cmd_free_dm,
    ibv_cmd_get_context,
    ibv_cmd_modify_cq,
    ibv_cmd_modify_flow_action_esp,
    ibv_cmd_modify_qp,
    ibv_cmd_modify_qp_ex,
    ibv_cmd_modify_srq,
    ibv_cmd_modify_wq,
    ibv_cmd_open_qp,
    ibv_cmd_open_xrcd,
    ibv_cmd_post_recv,
    ibv_cmd_post_send,
    ibv_cmd_post_srq_recv,
    ibv_cmd_query_context,
    ibv_cmd_query_device_any,
    ibv_cmd_query_mr,
    ibv_cmd_query_port,
    ibv_cmd_query_qp,
    ibv_cmd_query_srq,
    ibv_cmd_read_counters,
    ibv_cmd_reg_dm_mr,
    ibv_cmd_reg_dmabuf_mr,
    ibv_cmd_reg_mr,
    ibv_cmd_req_notify_cq,
    ibv_cmd_rereg_mr,
    ibv_cmd_resize_cq,
);

// Functions that plugins of later releases import; no program does.
export!(
    default "IBVERBS_PRIVATE_65" => unsupported:
    ibv_cmd_alloc_dmah,
    ibv_cmd_create_comp_cntr,
    ibv_cmd_create_cq_ex2,
    ibv_cmd_destroy_comp_cntr,
    ibv_cmd_export_dmabuf_fd,
    ibv_cmd_free_dmah,
    ibv_cmd_inc_comp_cntr,
    ibv_cmd_inc_err_comp_cntr,
    ibv_cmd_qp_attach_comp_cntr,
    ibv_cmd_query_comp_cntr_caps,
    ibv_cmd_query_port_speed,
    ibv_cmd_read_comp_cntr,
    ibv_cmd_read_err_comp_cntr,
    ibv_cmd_reg_mr_ex,
    ibv_cmd_set_comp_cntr,
    ibv_cmd_set_err_comp_cntr,
);
export!(default "IBVERBS_PRIVATE_65" => no_pointer: ibv_dmabuf_heap_alloc, ibv_dmabuf_heap_cc_shared_init);
export!(
    default "IBVERBS_PRIVATE_65" => nothing:
    ibv_dmabuf_heap_destroy,
    ibv_dmabuf_heap_free,
    verbs_register_driver_65,
);

// Vervain's own functions beyond verbs, for programs that look for them.
export!(default "VERVAIN_1.0" from vervain_verbs: vervain_go, vervain_restore, vervain_save, vervain_stop);

// QP 1, for Vervain's librdmacm.
export!(default "VERVAIN_PRIVATE_1" from vervain_verbs: vervain_gsi);

// The one datum: a flag of rdma-core's that plugins may set; nothing here reads it.
std::arch::global_asm!(
    ".pushsection .bss.export,\"aw\",%nobits",
    ".globl \"verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34\"",
    ".type \"verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34\",%object",
    "\"verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34\":",
    ".zero 1",
    ".size \"verbs_allow_disassociate_destroy@@IBVERBS_PRIVATE_34\", 1",
    ".popsection",
);
