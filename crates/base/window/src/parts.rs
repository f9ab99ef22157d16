//! Parts of devices, for one whose memory or kernel is not the machine's: the simulation in this crate's tests.

pub use crate::device::Bounds;
pub use crate::file::check_node;
pub use crate::locks::{Kernel, Kind};
pub use crate::nodes::Identity;

use crate::claims::Claims;
use crate::device::Region;
use crate::error::Result;
use crate::file::join;
use crate::layout::{HEADER, Layout, first_words};
use crate::mapping::Mapping;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A region of `len` bytes, all zero, private to this process.
///
/// # Errors
/// ENOMEM: no memory.
pub fn memory(len: u64) -> Result<Region> {
    Ok(Mapping::anonymous(len)?.region(0, len))
}

/// The header of a new window.
///
/// # Errors
/// Those of [`memory`].
pub fn header(layout: Layout, uuid: [u8; 16]) -> Result<Region> {
    let header = memory(HEADER)?;
    for (word, value) in header.words().iter().zip(first_words(layout, uuid)) {
        word.store(value, Ordering::Relaxed);
    }
    Ok(header)
}

/// Joins a window as a process of `node`, and returns its claims. `kernel` is the process's own holder of locks;
/// `memory` is the window's header and the node's region.
///
/// # Errors
/// EINVAL: there is no such node; EBUSY: the node is another's, or the table of nodes stays locked.
pub fn claims(
    layout: Layout,
    (node, identity): (u32, Identity),
    kernel: Box<dyn Kernel>,
    memory: (Region, Region),
) -> Result<Arc<Claims>> {
    join(&memory.0, layout, &*kernel, identity, Some(node), "the window")?;
    Ok(Claims::new((node, identity), layout, memory, kernel))
}
