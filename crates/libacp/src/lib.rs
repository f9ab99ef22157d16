//! `libacp.so.3`: the functions of ACP (Advanced Communication Primitives) for C, which `include/acp.h` declares and documents, and
//! nothing else. What they do is in the `vervain-acp` crate; here arguments become its types, and its errors what C gets.
//!
//! `tests/exports.rs` compares the built library and the header with the list of functions.

mod access;
mod error;
mod heap;
mod job;
mod memory;
mod process;

use vervain_symver::export;

export!(
    default "ACP_3.0" from job:
    acp_abort,
    acp_colors,
    acp_finalize,
    acp_init,
    acp_procs,
    acp_rank,
    acp_reset,
    acp_sync,
);
export!(
    default "ACP_3.0" from memory:
    acp_query_address,
    acp_query_color,
    acp_query_ga,
    acp_query_rank,
    acp_query_starter_ga,
    acp_register_memory,
    acp_unregister_memory,
);
export!(
    default "ACP_3.0" from access:
    acp_add4,
    acp_add8,
    acp_and4,
    acp_and8,
    acp_cas4,
    acp_cas8,
    acp_complete,
    acp_copy,
    acp_inquire,
    acp_or4,
    acp_or8,
    acp_swap4,
    acp_swap8,
    acp_xor4,
    acp_xor8,
);

export!(
    default "ACP_3.1" from heap:
    acp_free,
    acp_malloc,
);

// An extension.
export!(default "ACP_3.0" from error: acp_error);
