//! `libacp.so.3`: the functions of ACP (Advanced Communication Primitives) for C, which `include/acp.h` declares and
//! documents, and nothing else. Their work is done in the `vervain-acp` crate; here arguments become its types, and its
//! errors C's values.
//!
//! `tests/exports.rs` compares the built library and the header with the list of functions.

mod access;
mod channel;
mod deque;
mod element;
mod error;
mod hashed;
mod heap;
mod job;
mod list;
mod map;
mod memory;
mod multiset;
mod process;
mod segbuf;
mod sequences;
mod set;
mod vector;
mod workspace;

use vervain_symver::export;

/// Called by exit(3), and when a program returns from main.
#[used]
#[unsafe(link_section = ".fini_array")]
// SAFETY: the linker calls each pointer of .fini_array once, without arguments.
static ENDS: extern "C" fn() = process::process_ends;

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

export!(
    default "ACP_3.1" from vector:
    acp_advance_vector_it,
    acp_assign_range_vector,
    acp_assign_vector,
    acp_at_vector,
    acp_begin_vector,
    acp_capacity_vector,
    acp_clear_vector,
    acp_create_vector,
    acp_dereference_vector_it,
    acp_destroy_vector,
    acp_distance_vector_it,
    acp_empty_vector,
    acp_end_vector,
    acp_erase_range_vector,
    acp_erase_vector,
    acp_insert_range_vector,
    acp_insert_vector,
    acp_pop_back_vector,
    acp_push_back_vector,
    acp_reserve_vector,
    acp_size_vector,
    acp_swap_vector,
);
export!(
    default "ACP_3.1" from deque:
    acp_advance_deque_it,
    acp_assign_deque,
    acp_assign_range_deque,
    acp_at_deque,
    acp_begin_deque,
    acp_capacity_deque,
    acp_clear_deque,
    acp_create_deque,
    acp_dereference_deque_it,
    acp_destroy_deque,
    acp_distance_deque_it,
    acp_empty_deque,
    acp_end_deque,
    acp_erase_deque,
    acp_erase_range_deque,
    acp_insert_deque,
    acp_insert_range_deque,
    acp_pop_back_deque,
    acp_pop_front_deque,
    acp_push_back_deque,
    acp_push_front_deque,
    acp_reserve_deque,
    acp_size_deque,
    acp_swap_deque,
);
export!(
    default "ACP_3.1" from list:
    acp_advance_list_it,
    acp_assign_list,
    acp_assign_range_list,
    acp_begin_list,
    acp_clear_list,
    acp_create_list,
    acp_decrement_list_it,
    acp_dereference_list_it,
    acp_destroy_list,
    acp_distance_list_it,
    acp_empty_list,
    acp_end_list,
    acp_erase_list,
    acp_erase_range_list,
    acp_increment_list_it,
    acp_insert_list,
    acp_insert_range_list,
    acp_merge_list,
    acp_pop_back_list,
    acp_pop_front_list,
    acp_push_back_list,
    acp_push_front_list,
    acp_remove_list,
    acp_reverse_list,
    acp_size_list,
    acp_sort_list,
    acp_splice_list,
    acp_splice_range_list,
    acp_swap_list,
    acp_unique_list,
);
export!(
    default "ACP_3.1" from map:
    acp_assign_local_map,
    acp_assign_map,
    acp_begin_local_map,
    acp_begin_map,
    acp_clear_local_map,
    acp_clear_map,
    acp_create_map,
    acp_dereference_map_it,
    acp_destroy_map,
    acp_empty_local_map,
    acp_empty_map,
    acp_end_local_map,
    acp_end_map,
    acp_find_map,
    acp_increment_map_it,
    acp_insert_map,
    acp_merge_local_map,
    acp_merge_map,
    acp_move_local_map,
    acp_move_map,
    acp_remove_map,
    acp_retrieve_map,
    acp_size_local_map,
    acp_size_map,
    acp_swap_map,
);
export!(
    default "ACP_3.1" from multiset:
    acp_assign_local_multiset,
    acp_assign_multiset,
    acp_begin_local_multiset,
    acp_begin_multiset,
    acp_clear_multiset,
    acp_create_multiset,
    acp_dereference_multiset_it,
    acp_destroy_multiset,
    acp_empty_local_multiset,
    acp_empty_multiset,
    acp_end_local_multiset,
    acp_end_multiset,
    acp_find_multiset,
    acp_increment_multiset_it,
    acp_insert_multiset,
    acp_merge_local_multiset,
    acp_merge_multiset,
    acp_move_local_multiset,
    acp_move_multiset,
    acp_remove_all_multiset,
    acp_remove_multiset,
    acp_retrieve_multiset,
    acp_size_local_multiset,
    acp_size_multiset,
    acp_swap_multiset,
);
export!(
    default "ACP_3.1" from set:
    acp_assign_local_set,
    acp_assign_set,
    acp_begin_local_set,
    acp_begin_set,
    acp_clear_set,
    acp_create_set,
    acp_dereference_set_it,
    acp_destroy_set,
    acp_empty_local_set,
    acp_empty_set,
    acp_end_local_set,
    acp_end_set,
    acp_find_set,
    acp_increment_set_it,
    acp_insert_set,
    acp_merge_local_set,
    acp_merge_set,
    acp_move_local_set,
    acp_move_set,
    acp_remove_set,
    acp_size_local_set,
    acp_size_set,
    acp_swap_set,
);
export!(
    default "ACP_3.1" from channel:
    acp_create_ch,
    acp_free_ch,
    acp_nbfree_ch,
    acp_nbrecv_ch,
    acp_nbsend_ch,
    acp_recv_ch,
    acp_send_ch,
    acp_wait_ch,
    acp_waitall_ch,
);
export!(
    default "ACP_3.1" from segbuf:
    acp_ack_segbuf,
    acp_connect_segbuf,
    acp_create_dst_segbuf,
    acp_create_src_segbuf,
    acp_disconnect_segbuf,
    acp_free_segbuf,
    acp_isacked_segbuf,
    acp_isconnected_segbuf,
    acp_isready_segbuf,
    acp_query_segbuf_head,
    acp_query_segbuf_sent,
    acp_query_segbuf_tail,
    acp_ready_segbuf,
);
export!(
    default "ACP_3.1" from workspace:
    acp_create_ws,
    acp_destroy_ws,
    acp_read_ws,
    acp_setparams_ws,
    acp_write_ws,
);

// Extensions.
export!(default "ACP_3.0" from error: acp_error);
export!(default "ACP_3.1" from error: acp_clear_error);
