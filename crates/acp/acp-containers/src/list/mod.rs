//! Lists: elements of any size in the heaps of any ranks, each linked with its neighbours.

mod node;
mod whole;

use vervain_acp::{Batch, Error, GlobalAddress, Order, Result};
use vervain_acp_heap::Heap;

use crate::ring::allocate;
use crate::source::{CHUNK, Element, MAX_BYTES, Source, or_free};
use node::{COUNT, HEADER_LEN, Links, NEXT, NODE, Node, PREVIOUS, pause, put, reserve};

/// A list in global memory (`acp_list_t`): the address of its header, in the heap of the rank that it was made on; its
/// elements may be of any. Any rank works on it by that; several at a time may read it, or one may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct List {
    address: GlobalAddress,
}

/// A position in a list (`acp_list_it_t`): that of an element, or the end, behind the last one. It stays that of its
/// element wherever that goes, until it is erased; an element that has gone to another list is to be named with that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The list.
    pub list: List,
    /// The element; the list's own address at the end.
    pub element: GlobalAddress,
}

impl List {
    /// Makes one without elements, in the heap of `rank`. One round trip, besides an allocation.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such rank, or no memory left there. Else the job is broken.
    pub fn create(heap: &Heap<'_>, rank: u32) -> Result<Self> {
        let address = allocate(heap, HEADER_LEN, rank)?;
        let mut batch = heap.world().batch();
        let put = node::put_header(&mut batch, address);
        or_free(heap, &mut batch, address, put)?;
        Ok(Self { address })
    }

    /// The list whose header is at `address`, an address from the rank that has made it. Its first use shows if there
    /// is one.
    pub fn new(address: GlobalAddress) -> Self {
        Self { address }
    }

    /// The address of its header, which ranks send each other.
    pub fn address(self) -> GlobalAddress {
        self.address
    }

    fn header(self, heap: &Heap<'_>) -> Result<Node> {
        Links::of(heap.world(), self.address).fetch(&mut heap.world().batch(), self.address)
    }

    fn cursor(self, element: GlobalAddress) -> Cursor {
        Cursor { list: self, element }
    }

    /// Elements that it has. One round trip.
    ///
    /// # Errors
    /// As of all methods: [refused](Error::is_refused) where the address is null, and nothing has happened; otherwise
    /// the job is broken, as where no list is at the address or its links do not fit.
    pub fn len(self, heap: &Heap<'_>) -> Result<usize> {
        Ok(self.header(heap)?.size)
    }

    /// Returns whether it has none. One round trip.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn is_empty(self, heap: &Heap<'_>) -> Result<bool> {
        Ok(self.len(heap)? == 0)
    }

    /// The first element, or the end if there is none. One round trip.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn begin(self, heap: &Heap<'_>) -> Result<Cursor> {
        Ok(self.cursor(self.header(heap)?.next))
    }

    /// The end. No round trip.
    pub fn end(self) -> Cursor {
        self.cursor(self.address)
    }

    /// Adds an element behind the last one: as [`insert`](Self::insert).
    ///
    /// # Errors
    /// Those of [`insert`](Self::insert).
    pub fn push_back(self, heap: &Heap<'_>, value: Source<'_>, rank: u32) -> Result<Cursor> {
        self.insert(heap, self.end(), value, rank)
    }

    /// Adds an element before the first one: as [`insert`](Self::insert).
    ///
    /// # Errors
    /// Those of [`insert`](Self::insert).
    pub fn push_front(self, heap: &Heap<'_>, value: Source<'_>, rank: u32) -> Result<Cursor> {
        let header = self.header(heap)?;
        self.link(heap, header, [self.address, header.next], value, rank)
    }

    /// Inserts an element before the one at `at`, or at the end: a copy of the bytes, in the heap of `rank`. Two round
    /// trips, besides an allocation. Returns where it is.
    ///
    /// # Errors
    /// As of [`len`](Self::len); refused also where the position is of another list, there is no such rank, no memory
    /// left there, or no source.
    pub fn insert(self, heap: &Heap<'_>, at: Cursor, value: Source<'_>, rank: u32) -> Result<Cursor> {
        self.owns(at)?;
        let links = Links::of(heap.world(), self.address);
        let [header, node] = links.fetch_all(&mut heap.world().batch(), [self.address, at.element])?;
        self.link(heap, header, [node.previous, at.element], value, rank)
    }

    fn link(
        self,
        heap: &Heap<'_>,
        header: Node,
        [previous, next]: [GlobalAddress; 2],
        value: Source<'_>,
        rank: u32,
    ) -> Result<Cursor> {
        value.check(heap.world())?;
        if value.len() > MAX_BYTES {
            return Err(Error::refused(format!("an element of {} bytes is larger than any region", value.len())));
        }
        let mut batch = heap.world().batch();
        let here = if let Source::Here(bytes) = value { bytes.len().min(CHUNK) } else { 0 };
        // Room for all of them, since none may be refused after some were written.
        batch.reserve(2 * HEADER_LEN + 3 * 8 + here)?;
        let element = allocate(heap, NODE + value.len(), rank)?;
        let filled = node::fill(&mut batch, element, (previous, next), value);
        if filled.is_err() {
            or_free(heap, &mut batch, element, filled)?;
        }
        put(&mut batch, previous, NEXT, element.0)?;
        put(&mut batch, next, PREVIOUS, element.0)?;
        put(&mut batch, self.address, COUNT, header.size as u64 + 1)?;
        batch.wait()?;
        Ok(self.cursor(element))
    }

    /// Erases the first element, if there is one. Three round trips, and freeing a block. Returns whether there was
    /// one.
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn pop_front(self, heap: &Heap<'_>) -> Result<bool> {
        let header = self.header(heap)?;
        self.pop(heap, &header, header.next)
    }

    /// Erases the last element, if there is one. As [`pop_front`](Self::pop_front).
    ///
    /// # Errors
    /// As of [`len`](Self::len).
    pub fn pop_back(self, heap: &Heap<'_>) -> Result<bool> {
        let header = self.header(heap)?;
        self.pop(heap, &header, header.previous)
    }

    fn pop(self, heap: &Heap<'_>, header: &Node, element: GlobalAddress) -> Result<bool> {
        if element == self.address {
            return Ok(false);
        }
        let node = Links::of(heap.world(), self.address).fetch(&mut heap.world().batch(), element)?;
        self.unlink(heap, header, &node)?;
        Ok(true)
    }

    /// Takes an element out, and frees it.
    fn unlink(self, heap: &Heap<'_>, header: &Node, node: &Node) -> Result<()> {
        let Some(count) = header.size.checked_sub(1) else {
            return Err(Links::of(heap.world(), self.address).torn(node.at));
        };
        let mut batch = heap.world().batch();
        put(&mut batch, node.previous, NEXT, node.next.0)?;
        put(&mut batch, node.next, PREVIOUS, node.previous.0)?;
        put(&mut batch, self.address, COUNT, count as u64)?;
        put(&mut batch, node.at, NEXT, 0)?;
        batch.wait()?;
        heap.free(node.at)
    }

    /// Erases an element. Two round trips, and freeing a block. Returns the position behind it.
    ///
    /// # Errors
    /// As of [`len`](Self::len); refused also at the end, and where the position is of another list.
    pub fn erase(self, heap: &Heap<'_>, at: Cursor) -> Result<Cursor> {
        self.owns(at)?;
        at.is_element()?;
        let links = Links::of(heap.world(), self.address);
        let [header, node] = links.fetch_all(&mut heap.world().batch(), [self.address, at.element])?;
        self.unlink(heap, &header, &node)?;
        Ok(self.cursor(node.next))
    }

    /// Erases the elements from `first` up to `end`, not with it. Two round trips, one for each element, and freeing
    /// them; one more for each 1,000 beyond the first. Returns `end`.
    ///
    /// # Errors
    /// As of [`len`](Self::len); refused also where the positions are of another list, or the end of the list comes
    /// first.
    pub fn erase_range(self, heap: &Heap<'_>, first: Cursor, end: Cursor) -> Result<Cursor> {
        let (header, nodes) = self.range(heap, first, end)?;
        let (Some(one), Some(last)) = (nodes.first(), nodes.last()) else { return Ok(end) };
        let mut batch = heap.world().batch();
        reserve(&mut batch, nodes.len())?;
        put(&mut batch, one.previous, NEXT, last.next.0)?;
        put(&mut batch, last.next, PREVIOUS, one.previous.0)?;
        put(&mut batch, self.address, COUNT, (header.size - nodes.len()) as u64)?;
        node::free(heap, &mut batch, nodes.iter().map(|node| node.at))?;
        Ok(end)
    }

    /// The header, and the nodes of a range of this list.
    fn range(self, heap: &Heap<'_>, first: Cursor, end: Cursor) -> Result<(Node, Vec<Node>)> {
        self.owns(first)?;
        self.owns(end)?;
        let mut batch = heap.world().batch();
        let links = Links::of(heap.world(), self.address);
        let header = links.fetch(&mut batch, self.address)?;
        let nodes = links.walk(&mut batch, first.element, end.element, header.size)?;
        Ok((header, nodes))
    }

    /// Inserts copies of the elements of another list, or this one, from `first` up to `end`, before the position `at`.
    /// Each is of the rank that the original is of. Three round trips, one for each element, and their allocation.
    /// Returns the first one's position, or `at` if there is none.
    ///
    /// # Errors
    /// As of [`insert`](Self::insert) and [`erase_range`](Self::erase_range).
    pub fn insert_range(self, heap: &Heap<'_>, at: Cursor, first: Cursor, end: Cursor) -> Result<Cursor> {
        self.owns(at)?;
        let (_, nodes) = first.list.range(heap, first, end)?;
        let mut batch = heap.world().batch();
        let links = Links::of(heap.world(), self.address);
        let [header, node] = links.fetch_all(&mut batch, [self.address, at.element])?;
        reserve(&mut batch, nodes.len())?;
        let (previous, next) = (node.previous, at.element);
        let copies = self.copies(heap, &mut batch, &nodes, (previous, next))?;
        let (Some(one), Some(last)) = (copies.first(), copies.last()) else { return Ok(at) };
        put(&mut batch, previous, NEXT, one.0)?;
        put(&mut batch, next, PREVIOUS, last.0)?;
        put(&mut batch, self.address, COUNT, (header.size + copies.len()) as u64)?;
        batch.wait()?;
        Ok(self.cursor(*one))
    }

    /// Copies of nodes, each where its original is, linked with each other and to the nodes before and behind, by a
    /// batch that has room for them. Not waited for. Where memory is not enough there are none.
    fn copies(
        self,
        heap: &Heap<'_>,
        batch: &mut Batch<'_>,
        nodes: &[Node],
        (previous, next): (GlobalAddress, GlobalAddress),
    ) -> Result<Vec<GlobalAddress>> {
        let mut copies: Vec<GlobalAddress> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let rank = heap.world().rank_of(node.at).unwrap_or_default();
            match allocate(heap, NODE + node.size, rank) {
                Ok(copy) => copies.push(copy),
                Err(error) => {
                    copies.into_iter().try_for_each(|copy| heap.free(copy))?;
                    return Err(error);
                }
            }
        }
        for (i, node) in nodes.iter().enumerate() {
            let Element { address, size } = node.element();
            let before = if i == 0 { previous } else { copies[i - 1] };
            let behind = copies.get(i + 1).copied().unwrap_or(next);
            node::fill(batch, copies[i], (before, behind), Source::At(address, size))?;
            pause(batch, i)?;
        }
        Ok(copies)
    }

    /// Moves the element at `from`, of this list or another, before the position `at`. Two round trips.
    ///
    /// # Errors
    /// As of [`erase`](Self::erase).
    pub fn splice(self, heap: &Heap<'_>, at: Cursor, from: Cursor) -> Result<()> {
        self.owns(at)?;
        from.is_element()?;
        let source = from.list;
        let mut batch = heap.world().batch();
        let (links, theirs) = (Links::of(heap.world(), self.address), Links::of(heap.world(), source.address));
        let places = [
            links.begin(&mut batch, self.address)?,
            links.begin(&mut batch, at.element)?,
            theirs.begin(&mut batch, source.address)?,
            theirs.begin(&mut batch, from.element)?,
        ];
        batch.wait()?;
        let [header, node] = [(0, self.address), (1, at.element)].map(|(i, at)| links.read(&batch, places[i], at));
        let [their_header, moved] =
            [(2, source.address), (3, from.element)].map(|(i, at)| theirs.read(&batch, places[i], at));
        let (header, node, their_header, moved) = (header?, node?, their_header?, moved?);
        if at.element == from.element || moved.next == at.element {
            let sentence = || format!("{} cannot be of two lists", at.element);
            return if source == self { Ok(()) } else { Err(Error::refused(sentence())) };
        }
        put(&mut batch, moved.previous, NEXT, moved.next.0)?;
        put(&mut batch, moved.next, PREVIOUS, moved.previous.0)?;
        put(&mut batch, node.previous, NEXT, moved.at.0)?;
        put(&mut batch, node.at, PREVIOUS, moved.at.0)?;
        batch.put_words(moved.at, &[node.at.0, node.previous.0], Order::Now)?;
        if source != self {
            let Some(count) = their_header.size.checked_sub(1) else { return Err(theirs.torn(moved.at)) };
            put(&mut batch, source.address, COUNT, count as u64)?;
            put(&mut batch, self.address, COUNT, header.size as u64 + 1)?;
        }
        batch.wait()
    }

    /// Moves the elements from `first` up to `end`, not with it, of this list or another, before the position `at`.
    /// Three round trips, and one for each element, which are counted.
    ///
    /// # Errors
    /// As of [`erase_range`](Self::erase_range); refused also where `at` is in the midst of them.
    pub fn splice_range(self, heap: &Heap<'_>, at: Cursor, first: Cursor, end: Cursor) -> Result<()> {
        self.owns(at)?;
        let source = first.list;
        let (their_header, nodes) = source.range(heap, first, end)?;
        let (Some(one), Some(last)) = (nodes.first(), nodes.last()) else { return Ok(()) };
        if source == self && (at.element == first.element || at.element == end.element) {
            return Ok(());
        }
        if nodes.iter().any(|node| node.at == at.element) {
            return Err(Error::refused(format!("{} is one of the elements that are to move before it", at.element)));
        }
        let mut batch = heap.world().batch();
        let links = Links::of(heap.world(), self.address);
        let [header, node] = links.fetch_all(&mut batch, [self.address, at.element])?;
        put(&mut batch, one.previous, NEXT, last.next.0)?;
        put(&mut batch, last.next, PREVIOUS, one.previous.0)?;
        put(&mut batch, node.previous, NEXT, one.at.0)?;
        put(&mut batch, node.at, PREVIOUS, last.at.0)?;
        put(&mut batch, one.at, PREVIOUS, node.previous.0)?;
        put(&mut batch, last.at, NEXT, node.at.0)?;
        if source != self {
            put(&mut batch, source.address, COUNT, (their_header.size - nodes.len()) as u64)?;
            put(&mut batch, self.address, COUNT, (header.size + nodes.len()) as u64)?;
        }
        batch.wait()
    }

    /// Checks that the position is of this list.
    fn owns(self, at: Cursor) -> Result<()> {
        if at.list == self {
            return Ok(());
        }
        Err(Error::refused(format!(
            "a position of the list at {} is none of that at {}",
            at.list.address, self.address
        )))
    }
}

impl Cursor {
    /// Returns true if it is the end.
    pub fn is_end(self) -> bool {
        self.element == self.list.address
    }

    fn is_element(self) -> Result<()> {
        if self.is_end() {
            return Err(Error::refused("there is no element at the end of a list"));
        }
        Ok(())
    }

    fn node(self, heap: &Heap<'_>) -> Result<Node> {
        Links::of(heap.world(), self.list.address).fetch(&mut heap.world().batch(), self.element)
    }

    /// The place of the element's value, until it is erased. One round trip.
    ///
    /// # Errors
    /// As of [`List::len`]; refused also at the end.
    pub fn value(self, heap: &Heap<'_>) -> Result<Element> {
        self.is_element()?;
        Ok(self.node(heap)?.element())
    }

    /// The position behind. One round trip.
    ///
    /// # Errors
    /// As of [`value`](Self::value).
    pub fn next(self, heap: &Heap<'_>) -> Result<Self> {
        self.is_element()?;
        Ok(self.list.cursor(self.node(heap)?.next))
    }

    /// The position before. One round trip.
    ///
    /// # Errors
    /// As of [`List::len`]; refused also at the first element.
    pub fn previous(self, heap: &Heap<'_>) -> Result<Self> {
        let previous = self.list.cursor(self.node(heap)?.previous);
        if previous.is_end() {
            return Err(Error::refused("there is no element before the first of a list"));
        }
        Ok(previous)
    }

    /// The position `count` elements further on, or back if it is negative. A round trip for each.
    ///
    /// # Errors
    /// As of [`List::len`]; refused also where the list does not go so far.
    pub fn advance(self, heap: &Heap<'_>, count: i64) -> Result<Self> {
        let mut at = self;
        for _ in 0..count.unsigned_abs() {
            at = if count > 0 { at.next(heap)? } else { at.previous(heap)? };
        }
        Ok(at)
    }

    /// Elements from this position up to `last`, which stands behind it or is the same. A round trip for each, and one.
    ///
    /// # Errors
    /// As of [`List::len`]; refused also where the list ends before `last`, or is another one.
    pub fn distance(self, heap: &Heap<'_>, last: Self) -> Result<usize> {
        Ok(self.list.range(heap, self, last)?.1.len())
    }
}
