//! `libmlx5.so.1`: what programs that link NVIDIA's mlx5 provider find instead of it. perftest, UCX and Mooncake do.
//!
//! No Vervain device is an mlx5 device: `mlx5dv_is_supported` is false and every other call a clean error. rdma-core's
//! own libmlx5 could not be used beside our libibverbs, because it needs nearly all of its private symbols (BIND_NOW).

use vervain_symver::{export, is_false, minus_one, no_pointer, nothing, unsupported};

export!(compat "MLX5_1.0" => unsupported: mlx5dv_init_obj);
export!(default "MLX5_1.0" => unsupported: mlx5dv_query_device);
export!(default "MLX5_1.1" => no_pointer: mlx5dv_create_cq);
export!(default "MLX5_1.2" => unsupported: mlx5dv_init_obj, mlx5dv_set_context_attr);
export!(default "MLX5_1.3" => no_pointer: mlx5dv_create_qp, mlx5dv_create_wq);
export!(default "MLX5_1.4" => unsupported: mlx5dv_get_clock_info);
export!(default "MLX5_1.5" => no_pointer: mlx5dv_create_flow_action_esp);
export!(default "MLX5_1.6" => no_pointer: mlx5dv_create_flow_matcher, mlx5dv_create_flow);
export!(default "MLX5_1.6" => unsupported: mlx5dv_destroy_flow_matcher);
export!(default "MLX5_1.7" => no_pointer:
    mlx5dv_create_flow_action_modify_header,
    mlx5dv_create_flow_action_packet_reformat,
    mlx5dv_devx_alloc_uar,
    mlx5dv_devx_obj_create,
    mlx5dv_devx_umem_reg,
    mlx5dv_open_device,
);
export!(default "MLX5_1.7" => nothing: mlx5dv_devx_free_uar);
export!(default "MLX5_1.7" => unsupported:
    mlx5dv_devx_general_cmd,
    mlx5dv_devx_obj_destroy,
    mlx5dv_devx_obj_modify,
    mlx5dv_devx_obj_query,
    mlx5dv_devx_query_eqn,
    mlx5dv_devx_umem_dereg,
);
export!(default "MLX5_1.8" => unsupported:
    mlx5dv_devx_cq_modify,
    mlx5dv_devx_cq_query,
    mlx5dv_devx_ind_tbl_modify,
    mlx5dv_devx_ind_tbl_query,
    mlx5dv_devx_qp_modify,
    mlx5dv_devx_qp_query,
    mlx5dv_devx_srq_modify,
    mlx5dv_devx_srq_query,
    mlx5dv_devx_wq_modify,
    mlx5dv_devx_wq_query,
);
export!(default "MLX5_1.8" => is_false: mlx5dv_is_supported);
export!(default "MLX5_1.9" => no_pointer: mlx5dv_devx_create_cmd_comp);
export!(default "MLX5_1.9" => nothing: mlx5dv_devx_destroy_cmd_comp);
export!(default "MLX5_1.9" => unsupported: mlx5dv_devx_get_async_cmd_comp, mlx5dv_devx_obj_query_async);
export!(default "MLX5_1.10" => no_pointer:
    mlx5dv_alloc_dm,
    mlx5dv_create_mkey,
    mlx5dv_dr_action_create_dest_table,
    mlx5dv_dr_action_create_dest_ibv_qp,
    mlx5dv_dr_action_create_dest_vport,
    mlx5dv_dr_action_create_flow_counter,
    mlx5dv_dr_action_create_drop,
    mlx5dv_dr_action_create_modify_header,
    mlx5dv_dr_action_create_packet_reformat,
    mlx5dv_dr_action_create_tag,
    mlx5dv_dr_domain_create,
    mlx5dv_dr_matcher_create,
    mlx5dv_dr_rule_create,
    mlx5dv_dr_table_create,
    mlx5dv_qp_ex_from_ibv_qp_ex,
);
export!(default "MLX5_1.10" => unsupported:
    mlx5dv_destroy_mkey,
    mlx5dv_dr_action_destroy,
    mlx5dv_dr_domain_destroy,
    mlx5dv_dr_domain_sync,
    mlx5dv_dr_matcher_destroy,
    mlx5dv_dr_rule_destroy,
    mlx5dv_dr_table_destroy,
);
export!(default "MLX5_1.11" => no_pointer: mlx5dv_devx_create_event_channel);
export!(default "MLX5_1.11" => nothing: mlx5dv_devx_destroy_event_channel);
export!(default "MLX5_1.11" => minus_one: mlx5dv_devx_get_event);
export!(default "MLX5_1.11" => unsupported: mlx5dv_devx_subscribe_devx_event, mlx5dv_devx_subscribe_devx_event_fd);
export!(default "MLX5_1.12" => no_pointer: mlx5dv_alloc_var, mlx5dv_dr_action_create_flow_meter);
export!(default "MLX5_1.12" => unsupported:
    mlx5dv_dr_action_modify_flow_meter,
    mlx5dv_dump_dr_domain,
    mlx5dv_dump_dr_matcher,
    mlx5dv_dump_dr_rule,
    mlx5dv_dump_dr_table,
);
export!(default "MLX5_1.12" => nothing: mlx5dv_free_var);
export!(default "MLX5_1.13" => no_pointer: mlx5dv_pp_alloc);
export!(default "MLX5_1.13" => nothing: mlx5dv_pp_free);
export!(default "MLX5_1.14" => no_pointer: mlx5dv_dr_action_create_default_miss);
export!(default "MLX5_1.14" => nothing: mlx5dv_dr_domain_set_reclaim_device_memory);
export!(default "MLX5_1.14" => unsupported: mlx5dv_modify_qp_lag_port, mlx5dv_query_qp_lag_port);
export!(default "MLX5_1.15" => no_pointer: mlx5dv_dr_action_create_dest_devx_tir);
export!(default "MLX5_1.16" => no_pointer: mlx5dv_dr_action_create_dest_array, mlx5dv_dr_action_create_flow_sampler);
export!(default "MLX5_1.17" => no_pointer:
    mlx5dv_dr_action_create_aso,
    mlx5dv_dr_action_create_pop_vlan,
    mlx5dv_dr_action_create_push_vlan,
    mlx5dv_sched_leaf_create,
    mlx5dv_sched_node_create,
);
export!(default "MLX5_1.17" => unsupported:
    mlx5dv_dr_action_modify_aso,
    mlx5dv_modify_qp_sched_elem,
    mlx5dv_modify_qp_udp_sport,
    mlx5dv_sched_leaf_destroy,
    mlx5dv_sched_leaf_modify,
    mlx5dv_sched_node_destroy,
    mlx5dv_sched_node_modify,
);
export!(default "MLX5_1.18" => unsupported: mlx5dv_reserved_qpn_alloc, mlx5dv_reserved_qpn_dealloc);
export!(default "MLX5_1.19" => no_pointer: mlx5dv_devx_umem_reg_ex, mlx5dv_dm_map_op_addr);
export!(default "MLX5_1.19" => unsupported: _mlx5dv_query_port);
export!(default "MLX5_1.20" => nothing: mlx5dv_dr_domain_allow_duplicate_rules);
export!(default "MLX5_1.20" => unsupported: mlx5dv_map_ah_to_qp, _mlx5dv_mkey_check);
export!(default "MLX5_1.20" => minus_one: mlx5dv_qp_cancel_posted_send_wrs);
export!(default "MLX5_1.21" => unsupported:
    mlx5dv_crypto_login,
    mlx5dv_crypto_login_query_state,
    mlx5dv_crypto_logout,
    mlx5dv_dci_stream_id_reset,
    mlx5dv_dek_destroy,
    mlx5dv_dek_query,
    mlx5dv_dr_matcher_set_layout,
    mlx5dv_vfio_process_events,
);
export!(default "MLX5_1.21" => no_pointer:
    mlx5dv_dek_create,
    mlx5dv_dr_action_create_dest_ib_port,
    mlx5dv_get_vfio_device_list,
);
export!(default "MLX5_1.21" => minus_one: mlx5dv_vfio_get_events_fd);
export!(default "MLX5_1.22" => unsupported: mlx5dv_dr_aso_other_domain_link, mlx5dv_dr_aso_other_domain_unlink);
export!(default "MLX5_1.23" => no_pointer: mlx5dv_devx_alloc_msi_vector, mlx5dv_devx_create_eq);
export!(default "MLX5_1.23" => unsupported: mlx5dv_devx_destroy_eq, mlx5dv_devx_free_msi_vector);
export!(default "MLX5_1.24" => no_pointer:
    mlx5dv_create_steering_anchor,
    mlx5dv_crypto_login_create,
    mlx5dv_dr_action_create_dest_root_table,
);
export!(default "MLX5_1.24" => unsupported:
    mlx5dv_crypto_login_destroy,
    mlx5dv_crypto_login_query,
    mlx5dv_destroy_steering_anchor,
);
export!(default "MLX5_1.25" => unsupported: mlx5dv_get_data_direct_sysfs_path);
export!(default "MLX5_1.25" => no_pointer: mlx5dv_reg_dmabuf_mr);
export!(default "MLX5_1.25.1" => no_pointer: __mlx5dv_create_flow);
export!(default "MLX5_1.26" => unsupported: mlx5dv_devx_uar_export_dmabuf_fd);
export!(default "MLX5_1.27" => nothing:
    _mlx5dv_get_export_sizes,
    mlx5dv_devx_obj_unimport,
    mlx5dv_devx_umem_unimport,
    mlx5dv_var_unimport,
);
export!(default "MLX5_1.27" => unsupported: mlx5dv_devx_obj_export, mlx5dv_devx_umem_export, mlx5dv_var_export);
export!(default "MLX5_1.27" => no_pointer: mlx5dv_devx_obj_import, mlx5dv_devx_umem_import, mlx5dv_var_import);
