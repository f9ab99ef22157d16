//! Maps.

use std::ffi::c_int;

use vervain_acp_containers::hashed::{Container, Cursor, Extent, Kind, Name, Room};

use crate::element::{Element, Pair};
use crate::hashed::{self, functions};

functions! {
    Map: acp_create_map acp_destroy_map acp_find_map acp_increment_map_it acp_swap_map;
    clear { acp_clear_map All; acp_clear_local_map Local; }
    two {
        acp_assign_map assign All;
        acp_assign_local_map assign Local;
        acp_merge_map merge All;
        acp_merge_local_map merge Local;
        acp_move_map take_from All;
        acp_move_local_map take_from Local;
    }
    number { acp_size_map All; acp_size_local_map Local; }
    empty { acp_empty_map All; acp_empty_local_map Local; }
    place {
        acp_end_map;
        acp_begin_map begin;
        acp_begin_local_map begin_local;
        acp_end_local_map end_local;
    }
}

/// Inserts a key with its value. One without bytes removes the key, as in the original.
pub extern "C" fn acp_insert_map(map: Name, pair: Pair) -> c_int {
    let (key, value) = (pair.first, pair.second);
    if !hashed::has_bytes("acp_insert_map", key) {
        return 0;
    }
    if value.size == 0 {
        acp_remove_map(map, key);
        return 0;
    }
    let inserted = |map: Container<'static>| Ok(c_int::from(map.insert(key.bytes(), value.bytes())?));
    hashed::of("acp_insert_map", Kind::Map, map, 0, inserted)
}

/// Removes a key.
pub extern "C" fn acp_remove_map(map: Name, key: Element) {
    hashed::of("acp_remove_map", Kind::Map, map, (), |map| map.remove(key.bytes(), 1).map(drop))
}

/// Copies a key's value to where the pair's second part is.
pub extern "C" fn acp_retrieve_map(map: Name, pair: Pair) -> usize {
    let Pair { first, second } = pair;
    let stored = hashed::of("acp_retrieve_map", Kind::Map, map, None, |map| {
        map.retrieve(first.bytes(), Room::At(second.ga, second.size))
    });
    stored.map_or(0, |stored| usize::try_from(stored).unwrap_or(usize::MAX))
}

/// The key and the value that an iterator names.
pub extern "C" fn acp_dereference_map_it(it: Cursor) -> Pair {
    let parts = hashed::dereference("acp_dereference_map_it", Kind::Map, it);
    let parts = parts.map(|parts| Pair { first: Element::new(parts.key), second: Element::new(parts.value) });
    parts.unwrap_or(Pair::NONE)
}
