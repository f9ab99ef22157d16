//! The structs are laid out as the clients' header lays them out: numbers written down here for the newest layout, and
//! the system's own header, whatever its version, asked through the C compiler.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use vervain_abi::*;
use vervain_skip::skip;

/// A struct as C knows it: its name, our size, and our offset of each field by the name that C gives it.
struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<(&'static str, usize)>,
}

macro_rules! layouts {
    ($($name:ident { $($field:ident $(. $sub:ident)* $(as $c:literal)?),* $(,)? })+) => {
        vec![$(Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: vec![$((c_name(stringify!($field), &[$($c)?]), offset_of!($name, $field $(. $sub)*))),*],
        }),+]
    };
}

fn c_name(rust: &'static str, alias: &[&'static str]) -> &'static str {
    alias.first().copied().unwrap_or(rust)
}

/// Structs whose size did not change since v44.
fn fixed() -> Vec<Layout> {
    layouts! {
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_mw, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt,
        }
        ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock, device_cap_flags_ex, tso_caps,
            rss_caps, max_wq_type_rq, packet_pacing_caps, raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size,
            pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex,
        }
        ibv_values_ex { comp_mask, raw_clock }
        ibv_gid { raw }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_ah { context, pd, handle }
        ibv_pd { context, handle }
        ibv_td { context }
        ibv_xrcd { context }
        ibv_xrcd_init_attr { comp_mask, fd, oflags }
        ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, type_ as "type" }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw_bind { wr_id, send_flags, bind_info }
        ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        ibv_async_event { element, event_type }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        ibv_cq_ex {
            comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
            read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns,
        }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ibv_modify_cq_attr { attr_mask, moderate }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
            max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
        }
        ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        ibv_ece { vendor_id, options, comp_mask }
        ibv_sge { addr, length, lkey }
        ibv_data_buf { addr, length }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr,
            remote_srqn as "qp_type.xrc.remote_srqn", tail as "bind_mw",
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_ops_wr { wr_id, next, opcode, flags, unexpected_cnt as "tm.unexpected_cnt", mask as "tm.add.mask" }
    }
}

/// Structs that grew at their end, with the fields that v44 had.
fn grown() -> Vec<Layout> {
    layouts! {
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
            wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
            wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
            wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write,
        }
    }
}

/// The operations that v44 had; a client finds them by their distance from the end.
fn context_operations() -> Layout {
    layouts! {
        verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters,
            destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action,
            create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq,
            post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq,
            query_rt_values, create_cq_ex, priv_ as "priv", query_device_ex, ibv_destroy_flow, ibv_create_flow,
            open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context,
        }
    }
    .remove(0)
}

#[test]
fn sizes_and_landmarks_are_those_of_v65() {
    assert_eq!(size_of::<verbs_context>(), 696, "v44's 648 and six operations on top");
    assert_eq!(offset_of!(verbs_context, free_buf), 0);
    assert_eq!(offset_of!(verbs_context, query_port), 48);
    assert_eq!(offset_of!(verbs_context, sz), 360);
    assert_eq!(offset_of!(verbs_context, context), 368);
    assert_eq!(size_of::<ibv_context>(), 328);
    assert_eq!(offset_of!(ibv_context, ops.post_send), 8 + 200);
    assert_eq!(size_of::<ibv_device>(), 664);
    assert_eq!(size_of::<ibv_port_attr>(), 56);
    assert_eq!(offset_of!(ibv_port_attr, active_speed_ex), 52);
    assert_eq!(offset_of!(ibv_port_attr, port_cap_flags2), COMPAT_PORT_ATTR_LEN);
    assert_eq!(size_of::<ibv_qp_ex>(), 360);
    assert_eq!(offset_of!(ibv_qp_ex, wr_flush), 352);
    assert_eq!(size_of::<ibv_cq_ex>(), 288);
    assert_eq!(size_of::<ibv_qp>(), 160);
    assert_eq!(size_of::<ibv_send_wr>(), 128);
    assert_eq!(size_of::<ibv_wc>(), 48);
    assert_eq!(size_of::<ibv_mr_init_attr>(), 72);
    assert_eq!(size_of::<ibv_device_attr_ex>(), 400);
}

#[test]
fn the_system_header_agrees() {
    let mut c = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    let fixed = fixed();
    let grown = grown();
    for layout in fixed.iter().chain(&grown) {
        let tag = if layout.name == "ibv_gid" { "union" } else { "struct" };
        for (field, offset) in &layout.fields {
            let _ =
                writeln!(c, "_Static_assert(offsetof({tag} {0}, {field}) == {offset}, \"{0}.{field}\");", layout.name);
        }
    }
    for layout in &fixed {
        let tag = if layout.name == "ibv_gid" { "union" } else { "struct" };
        let _ = writeln!(c, "_Static_assert(sizeof({tag} {0}) == {1}, \"{0}\");", layout.name, layout.size);
    }
    let context = context_operations();
    for (field, offset) in &context.fields {
        let _ = writeln!(
            c,
            "_Static_assert(sizeof(struct verbs_context) - offsetof(struct verbs_context, {field}) == {}, \"{field}\");",
            context.size - offset
        );
    }

    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("layout.c");
    std::fs::write(&source, c).expect("the temporary directory can be written");
    let has = |check: &str| {
        let probe = Path::new(env!("CARGO_TARGET_TMPDIR")).join("probe.c");
        std::fs::write(&probe, check).expect("the temporary directory can be written");
        compile(&probe).is_ok_and(|errors| errors.is_empty())
    };
    if !has("int x;\n") {
        skip("there is no C compiler");
        return;
    }
    if !has("#include <infiniband/verbs.h>\n") {
        skip("there is no <infiniband/verbs.h> (libibverbs-dev)");
        return;
    }
    let errors = compile(&source).expect("the compiler ran before");
    assert!(errors.is_empty(), "{errors}");
}

/// Compiles without output; gives the compiler's errors.
fn compile(source: &Path) -> std::io::Result<String> {
    let output = Command::new("cc").args(["-std=gnu11", "-fsyntax-only"]).arg(source).output()?;
    Ok(if output.status.success() { String::new() } else { String::from_utf8_lossy(&output.stderr).into_owned() })
}
