//! The common part of the functions for sets, multisets and maps.

use std::ffi::c_int;
use std::slice;

use vervain_acp_containers::hashed::{Bytes, Container, Cursor, Extent, Hashed, Kind, Name, Parts};

use crate::element::Element;
use crate::{error, process};

impl Element {
    pub fn bytes(self) -> Bytes<'static> {
        Bytes::At(self.ga, self.size)
    }
}

/// The hashed containers of this rank, or None and the reason for `acp_error`.
fn hashed(function: &str) -> Option<Hashed<'static>> {
    let libraries = process::libraries_for(function)?;
    Some(Hashed::new(&libraries.heap, &libraries.places))
}

/// The result of `f` with the container; `failed`, and the reason for `acp_error`, if there is none or `f` fails.
pub fn of<T>(
    function: &str,
    kind: Kind,
    name: Name,
    failed: T,
    f: impl FnOnce(Container<'static>) -> vervain_acp::Result<T>,
) -> T {
    let Some(hashed) = hashed(function) else { return failed };
    f(Container::of(hashed, kind, name)).unwrap_or_else(|error| {
        error::note(function, error::reason(&error));
        failed
    })
}

/// Makes a container; null with the reason for `acp_error`.
///
/// # Safety
/// `ranks` is null, or there are `num_ranks` of them.
pub unsafe fn create(
    function: &str,
    kind: Kind,
    num_ranks: c_int,
    ranks: *const c_int,
    num_slots: c_int,
    rank: c_int,
) -> Name {
    let Some(hashed) = hashed(function) else { return Name::NONE };
    let refused = |why: &str| {
        error::note(function, why);
        Name::NONE
    };
    let listed: Vec<c_int> = match usize::try_from(num_ranks) {
        // All of them, as the original says it.
        Ok(0) => (0..hashed.world().size().cast_signed()).collect(),
        // SAFETY: the caller's promise.
        Ok(count) if !ranks.is_null() => unsafe { slice::from_raw_parts(ranks, count) }.to_vec(),
        _ => return refused(&format!("there is no list of {num_ranks} ranks")),
    };
    let listed: Result<Vec<u32>, _> = listed.into_iter().map(u32::try_from).collect();
    let (Ok(listed), Ok(slots), Ok(rank)) = (listed, u64::try_from(num_slots), u32::try_from(rank)) else {
        return refused("no number of a rank or of slots is negative");
    };
    match hashed.create(kind, &listed, slots, rank) {
        Ok(container) => container.name(),
        Err(error) => refused(&error::reason(&error)),
    }
}

/// The iterator that stands for a failure.
pub fn end(name: Name) -> Cursor {
    Cursor { name, index: c_int::try_from(name.ranks).unwrap_or(c_int::MAX), slot: 0, element: 0 }
}

/// The element of an iterator; None with the reason for `acp_error`.
pub fn dereference(function: &str, kind: Kind, it: Cursor) -> Option<Parts> {
    of(function, kind, it.name, None, |container| {
        let parts = container.parts(&it)?;
        if parts.is_none() {
            error::note(function, "the iterator names no element");
        }
        Ok(parts)
    })
}

/// Returns true if a key has bytes; notes it for `acp_error` if it has none.
pub fn has_bytes(function: &str, key: Element) -> bool {
    if key.size == 0 {
        error::note(function, "a key has at least one byte");
    }
    key.size > 0
}

/// Functions of one container, of two, and of iterators, that all three kinds have.
macro_rules! functions {
    (
        $kind:ident: $create:ident $destroy:ident $find:ident $increment:ident $swap:ident;
        clear { $($clear:ident $clears:ident;)+ }
        two { $($two:ident $method:ident $twos:ident;)+ }
        number { $($number:ident $numbers:ident;)+ }
        empty { $($empty:ident $empties:ident;)+ }
        place { $end:ident; $($place:ident $places:ident;)+ }
    ) => {
        /// Makes an empty container.
        ///
        /// # Safety
        /// `ranks` is null, or there are `num_ranks` of them.
        pub unsafe extern "C" fn $create(num_ranks: c_int, ranks: *const c_int, num_slots: c_int, rank: c_int) -> Name {
            // SAFETY: the caller's promise.
            unsafe { hashed::create(stringify!($create), Kind::$kind, num_ranks, ranks, num_slots, rank) }
        }

        /// Frees a container.
        pub extern "C" fn $destroy(container: Name) {
            hashed::of(stringify!($destroy), Kind::$kind, container, (), |container| container.destroy())
        }

        /// The iterator of a key.
        pub extern "C" fn $find(container: Name, key: Element) -> Cursor {
            let end = hashed::end(container);
            hashed::of(stringify!($find), Kind::$kind, container, end, |container| container.find(key.bytes()))
        }

        /// The next element.
        pub extern "C" fn $increment(it: Cursor) -> Cursor {
            let end = hashed::end(it.name);
            hashed::of(stringify!($increment), Kind::$kind, it.name, end, |container| container.next(&it))
        }

        /// Exchanges the elements of two containers.
        pub extern "C" fn $swap(one: Name, two: Name) {
            hashed::two(stringify!($swap), Kind::$kind, one, two, |one, two, _| one.swap(two), Extent::All)
        }

        $(
            /// Removes all elements, or those that are stored here.
            pub extern "C" fn $clear(container: Name) {
                hashed::of(stringify!($clear), Kind::$kind, container, (), |container| container.clear(Extent::$clears))
            }
        )+
        $(
            /// Brings elements of the second container into the first.
            pub extern "C" fn $two(one: Name, two: Name) {
                hashed::two(stringify!($two), Kind::$kind, one, two, Container::$method, Extent::$twos)
            }
        )+
        $(
            /// The number of elements; 0 on an error.
            pub extern "C" fn $number(container: Name) -> usize {
                let number =
                    hashed::of(stringify!($number), Kind::$kind, container, 0, |container| container.len(Extent::$numbers));
                usize::try_from(number).unwrap_or(usize::MAX)
            }
        )+
        $(
            /// Returns 1 if there are no elements, else 0; 1 on an error.
            pub extern "C" fn $empty(container: Name) -> c_int {
                let is = |container: Container<'static>| Ok(c_int::from(container.is_empty(Extent::$empties)?));
                hashed::of(stringify!($empty), Kind::$kind, container, 1, is)
            }
        )+
        /// The iterator behind the last element.
        pub extern "C" fn $end(container: Name) -> Cursor {
            hashed::end(container)
        }

        $(
            /// An iterator's place.
            pub extern "C" fn $place(container: Name) -> Cursor {
                let end = hashed::end(container);
                hashed::of(stringify!($place), Kind::$kind, container, end, |container| container.$places())
            }
        )+
    };
}

pub(crate) use functions;

/// Has `f` do something with two containers of a kind; the reason is for `acp_error` if it fails.
pub fn two(
    function: &str,
    kind: Kind,
    one: Name,
    two: Name,
    f: impl FnOnce(&Container<'static>, &Container<'static>, Extent) -> vervain_acp::Result<()>,
    extent: Extent,
) {
    let Some(hashed) = hashed(function) else { return };
    of(function, kind, one, (), |one| f(&one, &Container::of(hashed, kind, two), extent))
}
