//! The common part of the functions of vectors, deques and lists: the types of acp.h, and the conversion of arguments
//! and errors.

use std::ffi::c_int;
use std::ops::Range;

use vervain_acp::{Error, GlobalAddress, Result};
use vervain_acp_containers::Source;
use vervain_acp_heap::Heap;

use crate::{error, process};

/// `ACP_GA_NULL`.
pub const NULL: u64 = 0;

/// Does what a function is for; where that fails, notes the sentence and answers `null`.
pub fn done<T>(function: &str, null: T, what: impl FnOnce(&Heap<'static>) -> Result<T>) -> T {
    let Some(libraries) = process::libraries_for(function) else { return null };
    what(&libraries.heap).unwrap_or_else(|error| {
        error::note(function, error::reason(&error));
        null
    })
}

/// The number of a rank.
pub fn rank(rank: c_int) -> Result<u32> {
    u32::try_from(rank).map_err(|_| Error::refused(format!("there is no rank {rank}")))
}

/// A byte's index.
pub fn index(index: c_int) -> Result<usize> {
    usize::try_from(index).map_err(|_| Error::refused(format!("there is no byte {index}")))
}

/// A byte's index as C has it.
pub fn int(index: usize) -> Result<c_int> {
    let told = c_int::try_from(index);
    told.map_err(|_| Error::refused(format!("{index} is more than an iterator's index can be, which is an int")))
}

/// The indices from one to another of the same container; else a sentence.
pub fn range(containers: [u64; 2], indices: [c_int; 2]) -> Result<Range<usize>> {
    if containers[0] != containers[1] {
        return Err(Error::refused("the two iterators are of different containers"));
    }
    Ok(index(indices[0])?..index(indices[1])?)
}

/// An index moved by `by`.
pub fn moved(at: c_int, by: c_int) -> Result<c_int> {
    let to = at.checked_add(by).filter(|to| *to >= 0);
    to.ok_or_else(|| Error::refused(format!("{by} bytes from byte {at} on there is none")))
}

/// Bytes that are to be put in.
pub fn source<'a>(ga: u64, size: usize) -> Source<'a> {
    Source::At(GlobalAddress(ga), size)
}

/// The functions that vectors and deques share: of byte containers, which have the same methods.
macro_rules! byte_container {
    ($container:ident, $of:ident, $inner:ident, $iterator:ident {
        $assign:ident $assign_range:ident $at:ident $begin:ident $capacity:ident $clear:ident $create:ident $destroy:ident
        $empty:ident $end:ident $erase:ident $erase_range:ident $insert:ident $insert_range:ident $pop_back:ident
        $push_back:ident $reserve:ident $size:ident $swap:ident $advance:ident $distance:ident
    }) => {
        #[doc = concat!("`acp_", stringify!($of), "_t`.")]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $container {
            ga: u64,
        }

        impl $container {
            fn inner(self) -> $inner {
                $inner::new(GlobalAddress(self.ga))
            }
        }

        #[doc = concat!("`acp_", stringify!($of), "_it_t`.")]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $iterator {
            $of: $container,
            index: c_int,
        }

        impl $iterator {
            const NULL: Self = Self { $of: $container { ga: NULL }, index: 0 };
        }

        /// Makes one a copy of another.
        pub extern "C" fn $assign(to: $container, from: $container) {
            done(stringify!($assign), (), |heap| to.inner().assign(heap, from.inner()))
        }

        /// Makes one a copy of bytes of another.
        pub extern "C" fn $assign_range(to: $container, start: $iterator, end: $iterator) {
            done(stringify!($assign_range), (), |heap| {
                let range = range([start.$of.ga, end.$of.ga], [start.index, end.index])?;
                to.inner().assign_range(heap, start.$of.inner(), range)
            })
        }

        /// The place of a byte.
        pub extern "C" fn $at(of: $container, at: c_int) -> u64 {
            done(stringify!($at), NULL, |heap| Ok(of.inner().at(heap, index(at)?)?.0))
        }

        /// The first byte.
        pub extern "C" fn $begin(of: $container) -> $iterator {
            done(stringify!($begin), $iterator::NULL, |_| match of.ga {
                NULL => Err(vervain_acp::Error::refused("there is no container at a null address")),
                _ => Ok($iterator { $of: of, index: 0 }),
            })
        }

        /// Bytes that there is room for.
        pub extern "C" fn $capacity(of: $container) -> usize {
            done(stringify!($capacity), 0, |heap| of.inner().capacity(heap))
        }

        /// Erases all bytes.
        pub extern "C" fn $clear(of: $container) {
            done(stringify!($clear), (), |heap| of.inner().clear(heap))
        }

        /// Makes one.
        pub extern "C" fn $create(size: usize, on: c_int) -> $container {
            done(stringify!($create), $container { ga: NULL }, |heap| {
                Ok($container { ga: $inner::create(heap, size, rank(on)?)?.address().0 })
            })
        }

        /// Frees it.
        pub extern "C" fn $destroy(of: $container) {
            done(stringify!($destroy), (), |heap| of.inner().destroy(heap))
        }

        /// Returns 1 if it has no bytes, else 0; -1 on an error.
        pub extern "C" fn $empty(of: $container) -> c_int {
            done(stringify!($empty), -1, |heap| Ok(of.inner().is_empty(heap)?.into()))
        }

        /// Behind the last byte.
        pub extern "C" fn $end(of: $container) -> $iterator {
            done(stringify!($end), $iterator::NULL, |heap| {
                Ok($iterator { $of: of, index: int(of.inner().len(heap)?)? })
            })
        }

        /// Erases bytes.
        pub extern "C" fn $erase(it: $iterator, size: usize) -> $iterator {
            done(stringify!($erase), $iterator::NULL, |heap| {
                let at = index(it.index)?;
                it.$of.inner().erase(heap, at..at.saturating_add(size))?;
                Ok(it)
            })
        }

        /// Erases bytes.
        pub extern "C" fn $erase_range(start: $iterator, end: $iterator) -> $iterator {
            done(stringify!($erase_range), $iterator::NULL, |heap| {
                let range = range([start.$of.ga, end.$of.ga], [start.index, end.index])?;
                start.$of.inner().erase(heap, range)?;
                Ok(start)
            })
        }

        /// Inserts bytes.
        pub extern "C" fn $insert(it: $iterator, ga: u64, size: usize) -> $iterator {
            done(stringify!($insert), $iterator::NULL, |heap| {
                it.$of.inner().insert(heap, index(it.index)?, source(ga, size))?;
                Ok(it)
            })
        }

        /// Inserts bytes of the same kind of container.
        pub extern "C" fn $insert_range(it: $iterator, start: $iterator, end: $iterator) -> $iterator {
            done(stringify!($insert_range), $iterator::NULL, |heap| {
                let range = range([start.$of.ga, end.$of.ga], [start.index, end.index])?;
                it.$of.inner().insert_range(heap, index(it.index)?, start.$of.inner(), range)?;
                Ok(it)
            })
        }

        /// Erases bytes at the end.
        pub extern "C" fn $pop_back(of: $container, size: usize) {
            done(stringify!($pop_back), (), |heap| of.inner().pop_back(heap, size))
        }

        /// Adds bytes at the end.
        pub extern "C" fn $push_back(of: $container, ga: u64, size: usize) {
            done(stringify!($push_back), (), |heap| of.inner().push_back(heap, source(ga, size)))
        }

        /// Makes room.
        pub extern "C" fn $reserve(of: $container, size: usize) {
            done(stringify!($reserve), (), |heap| of.inner().reserve(heap, size))
        }

        /// Bytes that it has.
        pub extern "C" fn $size(of: $container) -> usize {
            done(stringify!($size), 0, |heap| of.inner().len(heap))
        }

        /// Exchanges the bytes of two.
        pub extern "C" fn $swap(one: $container, other: $container) {
            done(stringify!($swap), (), |heap| one.inner().swap(heap, other.inner()))
        }

        /// An iterator further on, or back.
        pub extern "C" fn $advance(it: $iterator, by: c_int) -> $iterator {
            done(stringify!($advance), $iterator::NULL, |_| Ok($iterator { index: moved(it.index, by)?, ..it }))
        }

        /// Bytes between two iterators.
        pub extern "C" fn $distance(first: $iterator, last: $iterator) -> c_int {
            done(stringify!($distance), -1, |_| {
                let range = range([first.$of.ga, last.$of.ga], [first.index, last.index])?;
                // The difference of two numbers that are not negative.
                Ok((range.end as i64 - range.start as i64) as c_int)
            })
        }
    };
}

pub(crate) use byte_container;
