//! `libefa.so.1`: what programs that link Amazon's EFA provider find instead of it. perftest and libfabric do.
//!
//! No Vervain device is an EFA device, so each call is a clean error. `efadv_query_device` must be one above all:
//! success with nothing filled in made `fi_info` divide by zero.

use vervain_symver::{export, no_pointer, unsupported};

export!(default "EFA_1.0" => no_pointer: efadv_create_driver_qp);
export!(default "EFA_1.1" => no_pointer: efadv_create_qp_ex);
export!(default "EFA_1.1" => unsupported: efadv_query_ah, efadv_query_device);
export!(default "EFA_1.2" => no_pointer: efadv_cq_from_ibv_cq_ex, efadv_create_cq);
export!(default "EFA_1.3" => unsupported: efadv_query_mr);
export!(default "EFA_1.4" => unsupported: efadv_query_qp_wqs, efadv_query_cq);
export!(default "EFA_1.5" => unsupported: efadv_get_max_sq_depth, efadv_get_max_rq_depth);
export!(default "EFA_1.6" => no_pointer: efadv_qp_from_ibv_qp_ex);
export!(default "EFA_1.7" => no_pointer: efadv_create_comp_cntr);
