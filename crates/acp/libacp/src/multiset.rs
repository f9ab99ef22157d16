//! Multisets.

use std::ffi::c_int;

use vervain_acp_containers::hashed::{Bytes, Container, Cursor, Extent, Kind, Name};

use crate::element::Element;
use crate::hashed::{self, functions};

functions! {
    Multiset: acp_create_multiset acp_destroy_multiset acp_find_multiset acp_increment_multiset_it acp_swap_multiset;
    clear { acp_clear_multiset All; }
    two {
        acp_assign_multiset assign All;
        acp_assign_local_multiset assign Local;
        acp_merge_multiset merge All;
        acp_merge_local_multiset merge Local;
        acp_move_multiset take_from All;
        acp_move_local_multiset take_from Local;
    }
    number { acp_size_multiset All; acp_size_local_multiset Local; }
    empty { acp_empty_multiset All; acp_empty_local_multiset Local; }
    place {
        acp_end_multiset;
        acp_begin_multiset begin;
        acp_begin_local_multiset begin_local;
        acp_end_local_multiset end_local;
    }
}

/// Inserts a key.
pub extern "C" fn acp_insert_multiset(set: Name, key: Element) -> c_int {
    let inserted = |set: Container<'static>| Ok(c_int::from(set.insert(key.bytes(), Bytes::Here(&[]))?));
    match hashed::has_bytes("acp_insert_multiset", key) {
        true => hashed::of("acp_insert_multiset", Kind::Multiset, set, 0, inserted),
        false => 0,
    }
}

/// Removes a key once.
pub extern "C" fn acp_remove_multiset(set: Name, key: Element) {
    hashed::of("acp_remove_multiset", Kind::Multiset, set, (), |set| set.remove(key.bytes(), 1).map(drop))
}

/// The key that an iterator names.
pub extern "C" fn acp_dereference_multiset_it(it: Cursor) -> Element {
    let parts = hashed::dereference("acp_dereference_multiset_it", Kind::Multiset, it);
    parts.map_or(Element::NONE, |parts| Element::new(parts.key))
}

/// Removes a key as often as it is there.
pub extern "C" fn acp_remove_all_multiset(set: Name, key: Element) {
    hashed::of("acp_remove_all_multiset", Kind::Multiset, set, (), |set| set.remove(key.bytes(), u64::MAX).map(drop))
}

/// How often a key is there.
pub extern "C" fn acp_retrieve_multiset(set: Name, key: Element) -> u64 {
    hashed::of("acp_retrieve_multiset", Kind::Multiset, set, 0, |set| set.count(key.bytes()))
}
