//! `librdmacm.so.1`: every exported symbol of rdma-core's library, under its version. The functions themselves are in
//! the `vervain-rdmacm` and `vervain-rsocket` crates.
//!
//! `tests/exports.rs` compares the built library with the lists of rdma-core's.

use vervain_rsocket::c;
use vervain_symver::{export, minus_one};

/// Called by exit(3), and when a program returns from main.
#[used]
#[unsafe(link_section = ".fini_array")]
// SAFETY: the linker calls each pointer of .fini_array once, without arguments.
static ENDS: extern "C" fn() = vervain_rdmacm::process_ends;

export!(
    default "RDMACM_1.0" from vervain_rdmacm:
    rdma_accept,
    rdma_ack_cm_event,
    rdma_bind_addr,
    rdma_connect,
    rdma_create_ep,
    rdma_create_event_channel,
    rdma_create_id,
    rdma_create_qp,
    rdma_create_qp_ex,
    rdma_create_srq,
    rdma_create_srq_ex,
    rdma_destroy_ep,
    rdma_destroy_event_channel,
    rdma_destroy_id,
    rdma_destroy_qp,
    rdma_destroy_srq,
    rdma_disconnect,
    rdma_event_str,
    rdma_free_devices,
    rdma_freeaddrinfo,
    rdma_get_cm_event,
    rdma_get_devices,
    rdma_get_dst_port,
    rdma_get_request,
    rdma_get_src_port,
    rdma_getaddrinfo,
    rdma_join_multicast,
    rdma_leave_multicast,
    rdma_listen,
    rdma_migrate_id,
    rdma_notify,
    rdma_reject,
    rdma_resolve_addr,
    rdma_resolve_route,
    rdma_set_option,
);
export!(default "RDMACM_1.1" from vervain_rdmacm: rdma_join_multicast_ex);
export!(default "RDMACM_1.2" from vervain_rdmacm: rdma_establish, rdma_init_qp_attr);
export!(default "RDMACM_1.3" from vervain_rdmacm: rdma_get_remote_ece, rdma_reject_ece, rdma_set_local_ece);
export!(default "RDMACM_1.4" from vervain_rdmacm: rdma_query_addrinfo, rdma_resolve_addrinfo, rdma_write_cm_event);
export!(default "RDMACM_1.5" => minus_one: repoll_create, repoll_ctl, repoll_wait);
export!(
    default "RDMACM_1.0" from c:
    raccept,
    rbind,
    rclose,
    rconnect,
    rfcntl,
    rgetpeername,
    rgetsockname,
    rgetsockopt,
    riomap,
    riounmap,
    riowrite,
    rlisten,
    rpoll,
    rread,
    rreadv,
    rrecv,
    rrecvfrom,
    rrecvmsg,
    rselect,
    rsend,
    rsendmsg,
    rsendto,
    rsetsockopt,
    rshutdown,
    rsocket,
    rwrite,
    rwritev,
);
