//! The atomics that the protocols between processes are made of. The model of those protocols (`tests/model`) compiles
//! the same sources with a model checker's in their place.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
