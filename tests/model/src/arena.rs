//! Stand-in for the arena: a piece of memory, found by offset as in the real one, whose words are the model's.

#[path = "../../../crates/device/hca/src/arena/layout/mod.rs"]
pub(crate) mod layout;

use crate::error::Result;
use crate::host::atomic::AtomicU64;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So few that a model runs out of them.
pub(crate) const CQES: usize = 2;

const LINE: usize = 64;
const WORDS: usize = LINE / size_of::<AtomicU64>();
/// Large enough for each model.
const LINES: usize = 512;

// Structs of atomics lie here as they lie in a real arena.
const _: () = assert!(size_of::<AtomicU64>() == size_of::<u64>());

#[repr(C, align(64))]
struct Line([AtomicUsize; WORDS]);

/// Memory that is used again by each run of a model, and never freed.
#[derive(Clone)]
pub(crate) struct View(&'static [Line; LINES]);

impl View {
    fn at<T>(&self, offset: u64, n: usize) -> Option<*const T> {
        let end = offset as usize + n * size_of::<T>();
        let p = self.0.as_ptr().wrapping_byte_add(offset as usize).cast::<T>();
        (end <= LINES * LINE && p.is_aligned()).then_some(p)
    }

    pub(crate) fn get<T: layout::Shared>(&self, offset: u64) -> Option<&'static T> {
        // SAFETY: aligned and inside of the memory, which is never freed; `Shared` types are made of words of the model only,
        // which may be any of those that this memory ever holds.
        self.at::<T>(offset, 1).map(|p| unsafe { &*p })
    }

    pub(crate) fn slice<T: layout::Shared>(&self, offset: u64, n: usize) -> Option<&'static [T]> {
        // SAFETY: as for `get`, for the whole array.
        self.at::<T>(offset, n).map(|p| unsafe { std::slice::from_raw_parts(p, n) })
    }

    pub(crate) fn hold<T: layout::Shared>(&self, offset: u64) -> Option<ArenaRef<T>> {
        self.get(offset).map(ArenaRef)
    }

    pub(crate) fn hold_slice<T: layout::Shared>(&self, offset: u64, n: usize) -> Option<ArenaRef<[T]>> {
        self.slice(offset, n).map(ArenaRef)
    }
}

/// A shared struct that is kept.
pub(crate) struct ArenaRef<T: ?Sized + 'static>(&'static T);

impl<T: ?Sized> Clone for ArenaRef<T> {
    fn clone(&self) -> Self {
        ArenaRef(self.0)
    }
}

impl<T: ?Sized> Deref for ArenaRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

pub(crate) struct Block(u64);

impl Block {
    pub(crate) fn offset(&self) -> u64 {
        self.0
    }
}

pub(crate) struct Arena {
    view: View,
    lines_used: AtomicUsize,
}

impl Arena {
    pub(crate) fn new() -> Arena {
        let lines = Box::new([const { Line([const { AtomicUsize::new(0) }; WORDS]) }; LINES]);
        Arena { view: View(Box::leak(lines)), lines_used: AtomicUsize::new(1) }
    }

    /// All zeros again, for the next run. Offset 0 stands for none.
    pub(crate) fn clear(&self) {
        let used = self.lines_used.swap(1, Ordering::Relaxed);
        self.view.0[..used].iter().flat_map(|line| &line.0).for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// A block of zeros.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<Block> {
        let lines = (bytes as usize).div_ceil(LINE);
        let first = self.lines_used.fetch_add(lines, Ordering::Relaxed);
        assert!(first + lines <= LINES, "the arena of the model is too small");
        Ok(Block((first * LINE) as u64))
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }
}
