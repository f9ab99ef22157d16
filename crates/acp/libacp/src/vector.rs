//! Vectors.

use std::ffi::c_int;

use vervain_acp::GlobalAddress;
use vervain_acp_containers::Vector as Inner;

use crate::sequences::{NULL, byte_container, done, index, int, moved, range, rank, source};

byte_container!(Vector, vector, Inner, VectorIt {
    acp_assign_vector acp_assign_range_vector acp_at_vector acp_begin_vector acp_capacity_vector acp_clear_vector
    acp_create_vector acp_destroy_vector acp_empty_vector acp_end_vector acp_erase_vector acp_erase_range_vector
    acp_insert_vector acp_insert_range_vector acp_pop_back_vector acp_push_back_vector acp_reserve_vector acp_size_vector
    acp_swap_vector acp_advance_vector_it acp_distance_vector_it
});

/// The place of a byte.
pub extern "C" fn acp_dereference_vector_it(it: VectorIt) -> u64 {
    done("acp_dereference_vector_it", NULL, |heap| Ok(it.vector.inner().at(heap, index(it.index)?)?.0))
}
