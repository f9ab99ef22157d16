//! Layout of a window: the header, then one region for each node, all of one length. A region begins with the table of
//! processes and granules; the doors follow, then the memory that processes claim.

use crate::device::Region;
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Processes of a node at most.
pub const PROCESSES: u32 = 64;
/// Nodes of a window at most.
pub const MAX_NODES: u32 = 64;
/// Bytes of the unit in which memory is claimed; also a multiple of every page size.
pub const GRANULE: u64 = 64 << 10;
/// Bytes of a door cell: one line, in which one process of one node writes to one process.
pub const CELL: u64 = 64;
/// Bytes of a window at most. Offsets from here on are never memory: they name locks.
pub const MAX_SIZE: u64 = 1 << 40;
/// Bytes of the header.
pub(crate) const HEADER: u64 = GRANULE;
/// Offset in the header of the entries for nodes with boards (`peach2`), each of at most 128 bytes.
pub(crate) const BOARDS: u64 = 8 << 10;
/// The first word of a window.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"VRVNWNDW");
/// Raised when anything changes that nodes must agree about.
pub(crate) const VERSION: u64 = 1;

/// The header of a window. Everything but the table of nodes is written once, before anybody else sees the window.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU64,
    /// Number of nodes.
    pub nodes: AtomicU64,
    /// Bytes of a region.
    pub region_len: AtomicU64,
    /// Random.
    pub uuid: [AtomicU64; 2],
    /// Name of the maker while it makes the window in a device, where no file system makes it appear complete; 0: none.
    pub maker: AtomicU64,
    _reserved: AtomicU64,
    /// The nodes.
    pub table: [Entry; MAX_NODES as usize],
}

/// A node in the header; changed under the lock of the table only.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Entry {
    /// Identity of the node; zeros: never taken.
    pub identity: [AtomicU64; 4],
    /// Heartbeat of the node: each of its processes adds to it while it lives.
    pub beats: AtomicU64,
    _reserved: [AtomicU64; 3],
}

impl Header {
    /// The header at the beginning of these words.
    pub(crate) fn of(window: &Region) -> &Header {
        let words = &window.words()[..size_of::<Header>() / 8];
        // SAFETY: the slice has as many words, and a header consists of nothing but such words.
        unsafe { &*words.as_ptr().cast() }
    }
}

/// The first words of a window, as its maker writes them.
pub(crate) fn first_words(layout: Layout, uuid: [u8; 16]) -> [u64; 6] {
    let half = |at: usize| u64::from_ne_bytes(uuid[at..at + 8].try_into().expect("eight bytes"));
    [MAGIC, VERSION, layout.nodes.into(), layout.region_len, half(0), half(8)]
}

/// The offsets in a window of `nodes` nodes with regions of `region_len` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    nodes: u32,
    region_len: u64,
}

impl Layout {
    /// The layout of a window of `nodes` nodes in at most `size` bytes.
    ///
    /// # Errors
    /// EINVAL: 0 nodes or more than [`MAX_NODES`]; more than [`MAX_SIZE`] bytes, or too few for one granule to claim.
    pub fn new(nodes: u32, size: u64) -> Result<Layout> {
        check_nodes(nodes)?;
        let region_len = size.saturating_sub(HEADER) / u64::from(nodes) / GRANULE * GRANULE;
        let least = Layout::least(nodes).size();
        if size > MAX_SIZE || size < least {
            return Err(Error::invalid(format!(
                "a window of {size} bytes cannot be: for {nodes} nodes it has {least} to {MAX_SIZE}"
            )));
        }
        Ok(Layout { nodes, region_len })
    }

    /// The layout that a header describes.
    ///
    /// # Errors
    /// EINVAL: numbers that no maker of a window writes.
    pub(crate) fn of_header(nodes: u64, region_len: u64) -> Result<Layout> {
        let few = u32::try_from(nodes).unwrap_or(u32::MAX);
        check_nodes(few)?;
        let layout = Layout { nodes: few, region_len };
        let least = Layout::least(few).region_len;
        if region_len > MAX_SIZE
            || region_len < least
            || !region_len.is_multiple_of(GRANULE)
            || layout.size() > MAX_SIZE
        {
            return Err(Error::invalid(format!("its header says that regions have {region_len} bytes")));
        }
        Ok(layout)
    }

    /// The layout and uuid in the first words of the window `name`.
    ///
    /// # Errors
    /// EINVAL: the words are no header, or their numbers cannot be a window's; EPROTO: the header has another version.
    pub(crate) fn of_first_words(words: [u64; 6], name: &str) -> Result<(Layout, [u8; 16])> {
        if words[0] != MAGIC {
            return Err(Error::invalid(format!("{name} is none: what it begins with is no header")));
        }
        if words[1] != VERSION {
            let said = words[1];
            return Err(Error::new(
                libc::EPROTO,
                format!(
                    "{name} has version {said} of the layout, and this is {VERSION}: use one version of Vervain at all nodes"
                ),
            ));
        }
        let layout = Layout::of_header(words[2], words[3])
            .map_err(|e| Error::new(e.errno(), format!("{name} is broken: {e}")))?;
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&words[4].to_ne_bytes());
        uuid[8..].copy_from_slice(&words[5].to_ne_bytes());
        Ok((layout, uuid))
    }

    /// The smallest layout: one granule can be claimed.
    fn least(nodes: u32) -> Layout {
        // The table fits into one granule.
        Layout { nodes, region_len: 2 * GRANULE + u64::from(PROCESSES) * Layout { nodes, region_len: 0 }.door_len() }
    }

    /// Number of nodes.
    pub fn nodes(self) -> u32 {
        self.nodes
    }

    /// Bytes of a node's region.
    pub fn region_len(self) -> u64 {
        self.region_len
    }

    /// Bytes of the window.
    pub fn size(self) -> u64 {
        HEADER + u64::from(self.nodes) * self.region_len
    }

    /// Offset in the window of the region of `node`.
    pub(crate) fn region(self, node: u32) -> u64 {
        HEADER + u64::from(node) * self.region_len
    }

    /// Granules of a region, including those of the table and the doors.
    fn all_granules(self) -> u32 {
        (self.region_len / GRANULE) as u32
    }

    /// Offset in a region of the word in which this process stores the time at which it was last alive.
    pub(crate) fn alive(process: u32) -> u64 {
        u64::from(process) * 8
    }

    /// Offset in a region of the word that names the owner of a granule.
    pub(crate) fn owner(granule: u32) -> u64 {
        u64::from(PROCESSES + granule) * 8
    }

    /// Offset in a region of the first door. The table lies before it; only the node itself writes there.
    pub fn doors(self) -> u64 {
        Self::owner(self.all_granules()).next_multiple_of(GRANULE)
    }

    /// Bytes of the doors of one process: a [`CELL`] for each process of each node.
    pub fn door_len(self) -> u64 {
        u64::from(self.nodes * PROCESSES) * CELL
    }

    /// Offset in a region of the doors of a process. It follows from the process's number alone.
    pub fn door(self, process: u32) -> u64 {
        self.doors() + u64::from(process) * self.door_len()
    }

    /// The granules of a region that processes claim. Granule g begins at g × [`GRANULE`] of the region.
    pub fn granules(self) -> Range<u32> {
        (self.door(PROCESSES) / GRANULE) as u32..self.all_granules()
    }
}

fn check_nodes(nodes: u32) -> Result<()> {
    if (1..=MAX_NODES).contains(&nodes) {
        return Ok(());
    }
    Err(Error::invalid(format!("a window has 1 to {MAX_NODES} nodes, not {nodes}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_header_is_laid_out_as_version_1_says() {
        assert_eq!(offset_of!(Header, uuid), 32);
        assert_eq!((offset_of!(Header, maker), offset_of!(Header, table)), (48, 64));
        assert_eq!((size_of::<Entry>(), offset_of!(Entry, beats)), (64, 32));
        assert!(size_of::<Header>() as u64 <= BOARDS && BOARDS + u64::from(MAX_NODES) * 128 <= HEADER);
    }

    #[test]
    fn the_default_has_room_for_most_of_a_region() {
        let layout = Layout::new(8, 256 << 20).unwrap();
        assert!(layout.size() <= 256 << 20 && layout.size() > 255 << 20, "{layout:?}");
        assert!(layout.granules().len() as u64 * GRANULE > 29 << 20, "{layout:?}");
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_sentence() {
        for (nodes, size, says) in [
            (0, 1 << 30, "1 to 64 nodes, not 0"),
            (65, 1 << 30, "1 to 64 nodes, not 65"),
            (8, 0, "a window of 0 bytes cannot be"),
            (8, Layout::least(8).size() - 1, "for 8 nodes it has"),
            (8, MAX_SIZE + 1, "to 1099511627776"),
        ] {
            let error = Layout::new(nodes, size).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert_eq!(error.errno(), libc::EINVAL);
        }
        let len = Layout::least(8).region_len;
        for (nodes, len) in [(0, len), (65, len), (1 << 32 | 8, len), (8, len - GRANULE), (8, len + 8), (8, u64::MAX)] {
            assert!(Layout::of_header(nodes, len).is_err(), "{nodes} {len}");
        }
        assert!(Layout::of_header(8, MAX_SIZE / 8).is_err(), "no room for the header");
    }

    proptest! {
        #[test]
        fn parts_lie_behind_each_other_and_inside(nodes in 1..=MAX_NODES, extra in 0..=MAX_SIZE) {
            let least = Layout::least(nodes).size();
            let size = least + extra % (MAX_SIZE - least + 1);
            let layout = Layout::new(nodes, size).unwrap();
            prop_assert!(layout.size() <= size);
            prop_assert!(size - layout.size() < GRANULE * u64::from(nodes));
            prop_assert_eq!(Layout::of_header(nodes.into(), layout.region_len()).unwrap(), layout);
            prop_assert_eq!(Layout::new(nodes, layout.size()).unwrap(), layout);
            prop_assert_eq!(layout.region(nodes), layout.size());
            prop_assert_eq!(layout.region(0), HEADER);
            let granules = layout.granules();
            prop_assert!(!granules.is_empty());
            prop_assert_eq!(u64::from(granules.end) * GRANULE, layout.region_len());
            prop_assert!(Layout::alive(PROCESSES - 1) < Layout::owner(0));
            prop_assert!(Layout::owner(granules.end - 1) + 8 <= layout.doors());
            prop_assert!(layout.door(PROCESSES) <= u64::from(granules.start) * GRANULE);
            prop_assert!(u64::from(granules.start) * GRANULE - layout.door(PROCESSES) < GRANULE);
            prop_assert_eq!(layout.door(0) % GRANULE, 0);
        }
    }
}
