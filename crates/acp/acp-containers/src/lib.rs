//! ACP's containers in global memory: vectors, deques, lists, sets, multisets and maps whose bytes lie in the heaps of
//! any ranks, and which all ranks reach.

#![forbid(unsafe_code)]

mod deque;
pub mod hashed;
mod list;
mod map;
mod multiset;
mod ring;
mod set;
mod source;
mod typed;
mod vector;

pub use deque::Deque;
pub use list::{Cursor, List};
pub use map::GMap;
pub use multiset::GMultiset;
pub use set::GSet;
pub use source::{Element, Source};
pub use typed::{GDeque, GList, GVec};
pub use vector::Vector;
