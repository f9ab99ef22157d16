//! Parts of a mesh, for a process that is many ranks: the measurements of `vervain-acp-scale`.

pub use crate::door::{Done, Door};
pub use crate::introduction::{fetch_common, fetch_leader, put_common, put_leader};
pub use crate::port::Pair;
