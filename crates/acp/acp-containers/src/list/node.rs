//! Nodes of lists: the header, which stands behind the last element and before the first, and the elements. Each names
//! the next and the one before, so that a list is a circle. The header has the number of elements where an element has
//! its size.
//!
//! | bytes | element | header |
//! |---|---|---|
//! | 0 to 7 | the next node | the first element |
//! | 8 to 15 | the node before | the last element |
//! | 16 to 23 | bytes of the value | elements |
//! | 24 to 31 | the value | [`HEADER`] |
//! | 32 on | more of the value | |
//!
//! Those words are where ACP 3.0.0 has them, for programs read them through `acp_query_address`. Elements have no word
//! to spare for a mark: one that was erased names null as the next node.

use vervain_acp::{Batch, Error, GlobalAddress, Order, Place, Result, World};
use vervain_acp_heap::Heap;

use crate::source::{Element, MAX_BYTES, Source};

/// Bytes of an element before its value.
pub(super) const NODE: usize = 24;
/// Bytes of a header. So many are read of an element too: blocks are of whole units of 16 bytes, so that none with a
/// node is shorter.
pub(super) const HEADER_LEN: usize = 32;
pub(super) const NEXT: u64 = 0;
pub(super) const PREVIOUS: u64 = 8;
pub(super) const COUNT: u64 = 16;
/// Offset of the mark of a header.
pub(super) const KIND: u64 = 24;
/// Blocks of a heap begin at multiples of so many bytes, nodes with them.
const ALIGNMENT: u64 = 16;
/// Accesses of one batch, after which it is waited for: fewer than may be outstanding.
const AT_ONCE: usize = 1000;

/// The mark of a header: memory that is none has another one.
const HEADER: u64 = u64::from_le_bytes(*b"a list::");

/// A node as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    pub at: GlobalAddress,
    pub next: GlobalAddress,
    pub previous: GlobalAddress,
    /// Bytes of an element's value; a header's number of elements.
    pub size: usize,
}

/// The links of a list, as a rank follows them.
pub(super) struct Links<'a> {
    world: &'a World,
    header: GlobalAddress,
}

impl<'a> Links<'a> {
    /// Those of the list with the header at this address.
    pub fn of(world: &'a World, header: GlobalAddress) -> Self {
        Self { world, header }
    }

    /// Has the batch get a node.
    pub fn begin(&self, batch: &mut Batch<'_>, at: GlobalAddress) -> Result<Place> {
        if at.is_null() || self.header.is_null() {
            return Err(Error::refused("there is no list, or no element, at a null address"));
        }
        batch.get(at, HEADER_LEN, Order::Now)
    }

    /// The node that a batch has got.
    ///
    /// # Errors
    /// The job is broken: what is there is no node of a list.
    pub fn read(&self, batch: &Batch<'_>, place: Place, at: GlobalAddress) -> Result<Node> {
        let [next, previous, size, kind] = std::array::from_fn(|i| batch.word(place, i));
        let is_header = at == self.header;
        let what = if is_header { "list" } else { "element of a list" };
        let broken = |why: String| Err(Error::broken(format!("there is no {what} at {at}: {why}")));
        if is_header && kind != HEADER {
            return broken(format!("it is marked {kind:#x}, as one that was destroyed or never made"));
        }
        let (next, previous) = (GlobalAddress(next), GlobalAddress(previous));
        if next.is_null() {
            return broken("it names no next one, as one that was erased or never made".into());
        }
        let is_node = |node: GlobalAddress| node.0.is_multiple_of(ALIGNMENT) && self.world.rank_of(node).is_some();
        if !is_node(next) || !is_node(previous) {
            return broken(format!("its neighbours are at {previous} and {next}"));
        }
        if size > MAX_BYTES as u64 {
            return broken(format!("its size is {size}"));
        }
        Ok(Node { at, next, previous, size: size as usize })
    }

    /// Gets a node: one round trip.
    pub fn fetch(&self, batch: &mut Batch<'_>, at: GlobalAddress) -> Result<Node> {
        batch.clear()?;
        let place = self.begin(batch, at)?;
        batch.wait()?;
        self.read(batch, place, at)
    }

    /// Gets several at once: one round trip.
    pub fn fetch_all<const N: usize>(&self, batch: &mut Batch<'_>, at: [GlobalAddress; N]) -> Result<[Node; N]> {
        batch.clear()?;
        let mut places = Vec::with_capacity(N);
        for node in at {
            places.push(self.begin(batch, node)?);
        }
        batch.wait()?;
        let mut nodes = [Node { at: self.header, next: self.header, previous: self.header, size: 0 }; N];
        for (i, place) in places.into_iter().enumerate() {
            nodes[i] = self.read(batch, place, at[i])?;
        }
        Ok(nodes)
    }

    /// The nodes from `first` up to `end`, not with it, one round trip each. `most` says how many there can be.
    ///
    /// # Errors
    /// Refused: the list ends before. The job is broken: its links do not fit.
    pub fn walk(
        &self,
        batch: &mut Batch<'_>,
        first: GlobalAddress,
        end: GlobalAddress,
        most: usize,
    ) -> Result<Vec<Node>> {
        let mut nodes: Vec<Node> = vec![];
        let mut at = first;
        while at != end {
            if at == self.header {
                return Err(Error::refused(format!(
                    "the end of the range, {end}, is not behind its beginning, {first}"
                )));
            }
            let node = self.fetch(batch, at)?;
            let before = nodes.last().map_or(node.previous, |before| before.at);
            if nodes.len() >= most || node.previous != before {
                return Err(self.torn(at));
            }
            nodes.push(node);
            at = node.next;
        }
        Ok(nodes)
    }

    /// All elements, of the list with this header: one round trip each.
    pub fn all(&self, batch: &mut Batch<'_>, header: &Node) -> Result<Vec<Node>> {
        let nodes = self.walk(batch, header.next, self.header, header.size)?;
        let ends = [nodes.first().map(|node| node.previous), nodes.last().map(|node| node.at)];
        let fits = match ends {
            [Some(before), Some(last)] => before == self.header && last == header.previous,
            _ => header.previous == self.header,
        };
        if !fits || nodes.len() != header.size {
            return Err(self.torn(header.previous));
        }
        Ok(nodes)
    }

    /// The list is none.
    pub fn torn(&self, at: GlobalAddress) -> Error {
        Error::broken(format!(
            "the list at {} is torn at {at}: links or the number of elements do not fit",
            self.header
        ))
    }
}

impl Node {
    /// The place of the value.
    pub fn element(&self) -> Element {
        Element { address: self.at.add(NODE as u64), size: self.size }
    }
}

/// A header of a list without elements.
pub(super) fn put_header(batch: &mut Batch<'_>, at: GlobalAddress) -> Result<()> {
    batch.put_words(at, &[at.0, at.0, 0, HEADER], Order::Now)
}

/// Writes a word of a node.
pub(super) fn put(batch: &mut Batch<'_>, at: GlobalAddress, word: u64, value: u64) -> Result<()> {
    batch.put_words(at.add(word), &[value], Order::Now)
}

/// Writes an element, with its neighbours: the node before and the one behind.
pub(super) fn fill(
    batch: &mut Batch<'_>,
    at: GlobalAddress,
    (previous, next): (GlobalAddress, GlobalAddress),
    value: Source<'_>,
) -> Result<()> {
    batch.put_words(at, &[next.0, previous.0, value.len() as u64], Order::Now)?;
    value.copy_to(batch, at.add(NODE as u64), Order::Now)
}

/// Links these elements in this order behind each other and into the header, of as many: of nodes as they were read,
/// those that have other neighbours now are written. Not waited for.
pub(super) fn relink(batch: &mut Batch<'_>, header: GlobalAddress, nodes: &[Node]) -> Result<()> {
    let at = |i: Option<usize>| i.and_then(|i| nodes.get(i)).map_or(header, |node| node.at);
    for (i, node) in nodes.iter().enumerate() {
        let (next, previous) = (at(Some(i + 1)), at(i.checked_sub(1)));
        if (next, previous) != (node.next, node.previous) {
            batch.put_words(node.at, &[next.0, previous.0], Order::Now)?;
        }
        pause(batch, i)?;
    }
    batch.put_words(header, &[at(Some(0)).0, at(nodes.len().checked_sub(1)).0, nodes.len() as u64], Order::Now)
}

/// Gets room for writing links of so many nodes, a [`pause`] at a time, and some more: of the links none may be refused
/// when some are written.
pub(super) fn reserve(batch: &mut Batch<'_>, nodes: usize) -> Result<()> {
    batch.reserve((nodes.min(AT_ONCE) + 4) * HEADER_LEN)
}

/// Waits after many accesses, the one with the number `i` being the last of them, so that the memory of a batch stays
/// small.
pub(super) fn pause(batch: &mut Batch<'_>, i: usize) -> Result<()> {
    if i % AT_ONCE == AT_ONCE - 1 { batch.clear() } else { Ok(()) }
}

/// Marks elements that nobody refers to any more as none, and frees them: one round trip, besides that.
pub(super) fn free(
    heap: &Heap<'_>,
    batch: &mut Batch<'_>,
    nodes: impl Iterator<Item = GlobalAddress> + Clone,
) -> Result<()> {
    for (i, node) in nodes.clone().enumerate() {
        put(batch, node, NEXT, 0)?;
        pause(batch, i)?;
    }
    batch.clear()?;
    nodes.into_iter().try_for_each(|node| heap.free(node))
}
