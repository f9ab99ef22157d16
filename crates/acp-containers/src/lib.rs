//! ACP's containers in global memory: vectors, deques, lists, sets, multisets and maps whose bytes lie in the heaps of any ranks,
//! and which all ranks reach.

#![forbid(unsafe_code)]

mod deque;
mod list;
mod ring;
mod source;
mod typed;
mod vector;

pub use deque::Deque;
pub use list::{Cursor, List};
pub use source::{Element, Source};
pub use typed::{GDeque, GList, GVec};
pub use vector::Vector;
