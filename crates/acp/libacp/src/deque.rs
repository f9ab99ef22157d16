//! Deques.

use std::ffi::c_int;

use vervain_acp::GlobalAddress;
use vervain_acp_containers::Deque as Inner;

use crate::element::{Element, Pair};
use crate::sequences::{NULL, byte_container, done, index, int, moved, range, rank, source};

byte_container!(Deque, deque, Inner, DequeIt {
    acp_assign_deque acp_assign_range_deque acp_at_deque acp_begin_deque acp_capacity_deque acp_clear_deque
    acp_create_deque acp_destroy_deque acp_empty_deque acp_end_deque acp_erase_deque acp_erase_range_deque
    acp_insert_deque acp_insert_range_deque acp_pop_back_deque acp_push_back_deque acp_reserve_deque acp_size_deque
    acp_swap_deque acp_advance_deque_it acp_distance_deque_it
});

/// Erases bytes at the front.
pub extern "C" fn acp_pop_front_deque(deque: Deque, size: usize) {
    done("acp_pop_front_deque", (), |heap| deque.inner().pop_front(heap, size))
}

/// Adds bytes at the front.
pub extern "C" fn acp_push_front_deque(deque: Deque, ga: u64, size: usize) {
    done("acp_push_front_deque", (), |heap| deque.inner().push_front(heap, source(ga, size)))
}

/// The places of bytes.
pub extern "C" fn acp_dereference_deque_it(it: DequeIt, size: usize) -> Pair {
    done("acp_dereference_deque_it", Pair::NONE, |heap| {
        let [first, second] = it.deque.inner().extents(heap, index(it.index)?, size)?.map(Element::from);
        Ok(Pair { first, second })
    })
}
