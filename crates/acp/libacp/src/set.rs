//! Sets.

use std::ffi::c_int;

use vervain_acp_containers::hashed::{Bytes, Container, Cursor, Extent, Kind, Name};

use crate::element::Element;
use crate::hashed::{self, functions};

functions! {
    Set: acp_create_set acp_destroy_set acp_find_set acp_increment_set_it acp_swap_set;
    clear { acp_clear_set All; }
    two {
        acp_assign_set assign All;
        acp_assign_local_set assign Local;
        acp_merge_set merge All;
        acp_merge_local_set merge Local;
        acp_move_set take_from All;
        acp_move_local_set take_from Local;
    }
    number { acp_size_set All; acp_size_local_set Local; }
    empty { acp_empty_set All; acp_empty_local_set Local; }
    place {
        acp_end_set;
        acp_begin_set begin;
        acp_begin_local_set begin_local;
        acp_end_local_set end_local;
    }
}

/// Inserts a key.
pub extern "C" fn acp_insert_set(set: Name, key: Element) -> c_int {
    let inserted = |set: Container<'static>| Ok(c_int::from(set.insert(key.bytes(), Bytes::Here(&[]))?));
    match hashed::has_bytes("acp_insert_set", key) {
        true => hashed::of("acp_insert_set", Kind::Set, set, 0, inserted),
        false => 0,
    }
}

/// Removes a key.
pub extern "C" fn acp_remove_set(set: Name, key: Element) {
    hashed::of("acp_remove_set", Kind::Set, set, (), |set| set.remove(key.bytes(), 1).map(drop))
}

/// The key that an iterator names.
pub extern "C" fn acp_dereference_set_it(it: Cursor) -> Element {
    let parts = hashed::dereference("acp_dereference_set_it", Kind::Set, it);
    parts.map_or(Element::NONE, |parts| Element::new(parts.key))
}
