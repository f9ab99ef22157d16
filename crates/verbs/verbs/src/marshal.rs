//! Between the kernel's structs and the header's: `ibv_copy_ah_attr_from_kern` and its kin, which old rdmacm libraries
//! import. The kernel-side layouts are those of `<rdma/ib_user_verbs.h>` and `<rdma/ib_user_sa.h>`.
#![allow(non_camel_case_types, reason = "the names are the headers'")]
#![allow(missing_docs, reason = "the fields are the kernel headers'")]

use core::ffi::c_int;

use crate::abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec};
use crate::same::same;

/// An address vector on the kernel's side.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ib_uverbs_ah_attr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub grh_reserved: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
    pub reserved: u8,
}

/// QP attributes on the kernel's side.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ib_uverbs_qp_attr {
    pub qp_attr_mask: u32,
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub ah_attr: ib_uverbs_ah_attr,
    pub alt_ah_attr: ib_uverbs_ah_attr,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub reserved: [u8; 5],
}

/// A path record on the kernel's side.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ib_user_path_rec {
    pub dgid: [u8; 16],
    pub sgid: [u8; 16],
    pub dlid: u16,
    pub slid: u16,
    pub raw_traffic: u32,
    pub flow_label: u32,
    pub reversible: u32,
    pub mtu: u32,
    pub pkey: u16,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub numb_path: u8,
    pub sl: u8,
    pub mtu_selector: u8,
    pub rate_selector: u8,
    pub rate: u8,
    pub packet_life_time_selector: u8,
    pub packet_life_time: u8,
    pub preference: u8,
}

impl From<&ib_uverbs_ah_attr> for ibv_ah_attr {
    fn from(k: &ib_uverbs_ah_attr) -> Self {
        same!(k => ibv_ah_attr {
            dlid, sl, src_path_bits, static_rate, is_global, port_num;
            grh: ibv_global_route {
                dgid: ibv_gid { raw: k.dgid },
                flow_label: k.flow_label,
                sgid_index: k.sgid_index,
                hop_limit: k.hop_limit,
                traffic_class: k.traffic_class,
            },
        })
    }
}

/// Converts an address vector.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *const ib_uverbs_ah_attr) {
    // SAFETY: the caller's promise.
    unsafe { *dst = (&*src).into() }
}

/// Converts QP attributes. `qp_state` and `rate_limit` stay as they are: the caller of this old function sets the state
/// that it is about to move to.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *const ib_uverbs_qp_attr) {
    // SAFETY: the caller's promise.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = same!(src => ibv_qp_attr {
        cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index,
        alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
        port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
        rate_limit: dst.rate_limit,
        qp_state: dst.qp_state,
        cap: ibv_qp_cap {
            max_send_wr: src.max_send_wr,
            max_recv_wr: src.max_recv_wr,
            max_send_sge: src.max_send_sge,
            max_recv_sge: src.max_recv_sge,
            max_inline_data: src.max_inline_data,
        },
        ah_attr: (&src.ah_attr).into(),
        alt_ah_attr: (&src.alt_ah_attr).into(),
    });
}

/// Converts a path record from the kernel's form.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *const ib_user_path_rec) {
    // SAFETY: the caller's promise.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = same!(src => ibv_sa_path_rec {
        dlid, slid, flow_label, hop_limit, traffic_class, numb_path, pkey, sl, mtu_selector, rate_selector,
        rate, packet_life_time_selector, packet_life_time, preference;
        dgid: ibv_gid { raw: src.dgid },
        sgid: ibv_gid { raw: src.sgid },
        raw_traffic: src.raw_traffic as c_int,
        reversible: src.reversible as c_int,
        // An MTU code fits a byte; C cuts it off as well.
        mtu: src.mtu as u8,
    });
}

/// Converts a path record to the kernel's form.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut ib_user_path_rec, src: *const ibv_sa_path_rec) {
    // SAFETY: the caller's promise.
    let (dst, src) = unsafe { (&mut *dst, &*src) };
    *dst = same!(src => ib_user_path_rec {
        dlid, slid, flow_label, pkey, hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector,
        rate, packet_life_time_selector, packet_life_time, preference;
        dgid: src.dgid.raw,
        sgid: src.sgid.raw,
        raw_traffic: src.raw_traffic as u32,
        reversible: src.reversible as u32,
        mtu: src.mtu.into(),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_survives_the_way_to_the_kernel_and_back() {
        let rec = ibv_sa_path_rec {
            dgid: ibv_gid { raw: [1; 16] },
            sgid: ibv_gid { raw: [2; 16] },
            dlid: 3,
            slid: 4,
            raw_traffic: 1,
            flow_label: 5,
            hop_limit: 6,
            traffic_class: 7,
            reversible: 1,
            numb_path: 8,
            pkey: 9,
            sl: 10,
            mtu_selector: 11,
            mtu: 5,
            rate_selector: 12,
            rate: 13,
            packet_life_time_selector: 14,
            packet_life_time: 15,
            preference: 16,
        };
        let (mut kern, mut back) = (ib_user_path_rec::default(), ibv_sa_path_rec::default());
        // SAFETY: all four are locals.
        unsafe {
            ibv_copy_path_rec_to_kern(&raw mut kern, &raw const rec);
            ibv_copy_path_rec_from_kern(&raw mut back, &raw const kern);
        }
        assert_eq!(back, rec);
    }

    #[test]
    fn the_state_that_the_caller_set_is_left_alone() {
        let kern = ib_uverbs_qp_attr { qp_state: 6, qkey: 7, port_num: 1, ..Default::default() };
        let mut attr = ibv_qp_attr { qp_state: 2, ..Default::default() };
        // SAFETY: both are locals.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut attr, &raw const kern) };
        assert_eq!((attr.qp_state, attr.qkey, attr.port_num), (2, 7, 1));
    }

    #[test]
    fn the_kernel_side_sizes_are_those_of_the_kernel_headers() {
        assert_eq!(size_of::<ib_uverbs_ah_attr>(), 32);
        assert_eq!(size_of::<ib_uverbs_qp_attr>(), 144);
        assert_eq!(size_of::<ib_user_path_rec>(), 64);
        assert_eq!(size_of::<ibv_sa_path_rec>(), 64);
    }
}
