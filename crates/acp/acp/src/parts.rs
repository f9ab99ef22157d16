//! Parts of a rank, for a process that is many ranks, and for the computation of a rank's memory: `vervain-acp-scale`.

pub use crate::engine::{EngineBytes, Peer, hello};
pub use crate::progress::{STACK, agreed, options};
pub use crate::table::Entry;

use crate::address::Layout;
use crate::table::Table;

/// Bytes of a table with all regions that a job of this layout can have.
pub fn table_bytes(layout: Layout) -> usize {
    Table::bytes(layout)
}
