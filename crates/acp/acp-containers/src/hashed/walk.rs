//! Going through a container: iterators, and all elements of a slot.

use vervain_acp::{Batch, Error, GlobalAddress, Order, Place, Result};

use super::directory::{Chunk, Slot};
use super::layout::{CHUNK, HEAD, HEADER, Header, Pointer, SLOT, State, mark};
use super::slot::{Listed, Patience};
use super::{Bytes, Container, Extent, Name};

/// Slots that are read with an element, in case that it is the last of its own.
const BESIDE: u64 = 8;
/// Slots that are read at a time, at most.
const SCANNED: u64 = 256;
/// How often a slot may be changed before it is taken.
const FAILURES: u32 = 16;

/// An iterator (`acp_set_it_t` and the like): a place between the first element and the end, in the order of the
/// indexes, of the slots, and of insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Cursor {
    /// Its container.
    pub name: Name,
    /// The index in the container's ranks; the number of these at the end.
    pub index: i32,
    /// The slot there; 0 at the end.
    pub slot: i32,
    /// The element, as the container names it; 0 at the end.
    pub element: u64,
}

/// The places of an element's parts, in global memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// The key and how many bytes it has.
    pub key: (GlobalAddress, u64),
    /// The value and how many bytes it has; none but of a map.
    pub value: (GlobalAddress, u64),
    /// How often a multiset has the key; 1 of others.
    pub count: u64,
}

/// An element's contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// The value; empty but of a map.
    pub value: Vec<u8>,
    /// How often a multiset has the key; 1 of others.
    pub count: u64,
}

/// The facts about an element and its slot that an iterator needs.
struct Seen {
    slot: Slot,
    head: Pointer,
    /// None if the element is not in its slot any more.
    header: Option<Header>,
    /// Slots that follow in the chunk, and how many.
    beside: Option<(Place, u64)>,
}

impl Container<'_> {
    /// The iterator behind the last element.
    pub fn end(&self) -> Cursor {
        Cursor {
            name: self.directory.name,
            index: i32::try_from(self.directory.name.ranks).unwrap_or(i32::MAX),
            slot: 0,
            element: 0,
        }
    }

    fn cursor(&self, index: u64, slot: u64, element: Pointer) -> Cursor {
        // Numbers that no `int` has are those of containers that C did not make.
        let [index, slot] = [index, slot].map(|number| i32::try_from(number).unwrap_or(i32::MAX));
        Cursor { name: self.directory.name, index, slot, element: element.0 }
    }

    /// The iterator of a key; the [end](Container::end) if it is not there. The round trips are one, and one for each
    /// element of the key's slot up to it.
    ///
    /// # Errors
    /// As [`begin`](Container::begin).
    pub fn find(&self, key: Bytes<'_>) -> Result<Cursor> {
        let found = key.with(self.world(), |key| {
            let place =
                self.directory.spot(key)?.zip(self.retrieved(key, 0, |_, _, element| Ok(Some(element.pointer)))?);
            Ok(place.map(|(spot, pointer)| self.cursor(spot.index, spot.slot, pointer)))
        })?;
        Ok(found.unwrap_or_else(|| self.end()))
    }

    /// The first element; the [end](Container::end) if there is none. A round trip for every 256 empty slots before it,
    /// fewer at first.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such container. Else the job is broken.
    pub fn begin(&self) -> Result<Cursor> {
        self.first(0, 0, |_| true)
    }

    /// The first element that is stored at this rank; [`end_local`](Container::end_local) if there is none.
    ///
    /// # Errors
    /// As [`begin`](Container::begin).
    pub fn begin_local(&self) -> Result<Cursor> {
        let rank = self.world().rank();
        let first = self.first(0, 0, |owner| owner == rank)?;
        if first.element == 0 { self.end_local() } else { Ok(first) }
    }

    /// The first element behind the last table of this rank; the [end](Container::end) if there is none.
    ///
    /// # Errors
    /// As [`begin`](Container::begin).
    pub fn end_local(&self) -> Result<Cursor> {
        let rank = self.world().rank();
        match self.directory.owners()?.iter().rposition(|owner| *owner == rank) {
            Some(last) => self.first(last as u64 + 1, 0, |_| true),
            None => Ok(self.end()),
        }
    }

    /// The first element from this slot on, of tables of ranks that `wanted` says.
    fn first(&self, index: u64, slot: u64, wanted: impl Fn(u32) -> bool) -> Result<Cursor> {
        let mut batch = self.world().batch();
        let (mut index, mut slot, mut step) = (index, slot, BESIDE);
        if self.directory.name.slots == 0 {
            return Err(self.directory.none());
        }
        while index < self.directory.name.ranks {
            if slot >= self.directory.name.slots {
                (index, slot) = (index + 1, 0);
                continue;
            }
            let chunk = self.directory.chunk(&mut batch, index, slot / CHUNK)?;
            if !wanted(chunk.first.rank) {
                (index, slot) = (index + 1, 0);
                continue;
            }
            let count = step.min(chunk.slots - slot % CHUNK);
            batch.clear()?;
            let slots = batch.get(chunk.slot(slot % CHUNK).at, (count * SLOT) as usize, Order::Now)?;
            batch.wait()?;
            match self.scan(&batch, slots, count, &chunk.first) {
                Err(()) => {
                    self.directory.mistaken(&mut batch, chunk.first.id)?;
                    continue;
                }
                Ok(Some((number, head))) => return Ok(self.cursor(index, slot + number, head)),
                Ok(None) => {}
            }
            slot += count;
            step = (step * 4).min(SCANNED);
        }
        Ok(self.end())
    }

    /// The first of these slots that has an element. An error if they are another container's.
    fn scan(&self, batch: &Batch<'_>, slots: Place, count: u64, of: &Slot) -> Result<Option<(u64, Pointer)>, ()> {
        for number in 0..count {
            let words = slots.part((number * SLOT) as usize, SLOT as usize);
            if batch.word(words, 2) != of.id {
                return Err(());
            }
            let head = Pointer(batch.word(words, 1));
            if !head.is_null() {
                return Ok(Some((number, head)));
            }
        }
        Ok(None)
    }

    /// The slot and the pointer of an iterator's element; None if the iterator is not of this container.
    fn is_inside(&self, cursor: &Cursor) -> Option<(u64, u64, Pointer)> {
        let (index, slot) = (u64::try_from(cursor.index).ok()?, u64::try_from(cursor.slot).ok()?);
        let is = cursor.name == self.directory.name
            && index < self.directory.name.ranks
            && slot < self.directory.name.slots
            && cursor.element != 0;
        is.then_some((index, slot, Pointer(cursor.element)))
    }

    /// The element behind the iterator's; the [end](Container::end) at the end, and for what is no iterator of this
    /// container. If the iterator's element was removed, the first one of its slot that is there.
    ///
    /// One round trip if the next element is in the same slot, or in one of the 8 that follow in the table; else as
    /// [`begin`](Container::begin).
    ///
    /// # Errors
    /// As [`begin`](Container::begin).
    pub fn next(&self, cursor: &Cursor) -> Result<Cursor> {
        let Some((index, slot, pointer)) = self.is_inside(cursor) else { return Ok(self.end()) };
        let mut batch = self.world().batch();
        let Some(seen) = self.see(&mut batch, index, slot, pointer, BESIDE)? else { return Ok(self.end()) };
        let next = seen.header.map_or(seen.head, |header| header.next);
        if !next.is_null() {
            return Ok(self.cursor(index, slot, next));
        }
        let Some((beside, count)) = seen.beside else { return self.first(index, slot + 1, |_| true) };
        match self.scan(&batch, beside, count, &seen.slot) {
            Ok(Some((number, head))) => Ok(self.cursor(index, slot + 1 + number, head)),
            Ok(None) => self.first(index, slot + 1 + count, |_| true),
            Err(()) => self.first(index, slot + 1, |_| true),
        }
    }

    /// The places of the parts of an iterator's element. None at the end, if the element was removed, and for an
    /// iterator of another container. One round trip.
    ///
    /// # Errors
    /// As [`begin`](Container::begin).
    pub fn parts(&self, cursor: &Cursor) -> Result<Option<Parts>> {
        let Some((index, slot, pointer)) = self.is_inside(cursor) else { return Ok(None) };
        let mut batch = self.world().batch();
        let seen = self.see(&mut batch, index, slot, pointer, 0)?;
        let Some(header) = seen.and_then(|seen| seen.header) else { return Ok(None) };
        let listed = Listed { pointer, header };
        let place = |bytes: Bytes<'_>| match bytes {
            Bytes::At(at, len) if len > 0 => (at, len as u64),
            _ => (GlobalAddress::NULL, 0),
        };
        let (key, value) = (place(listed.key()), place(listed.value(self.kind())));
        Ok(Some(Parts { key, value, count: listed.times(self.kind()) }))
    }

    /// Reads an element's header, the slot that it is in, and `beside` slots behind that. None for a pointer to no
    /// element.
    fn see(
        &self,
        batch: &mut Batch<'_>,
        index: u64,
        number: u64,
        pointer: Pointer,
        beside: u64,
    ) -> Result<Option<Seen>> {
        let mut patience = Patience::new();
        let mut failures = 0;
        loop {
            let chunk = self.directory.chunk(batch, index, number / CHUNK)?;
            let slot = chunk.slot(number % CHUNK);
            if self.world().rank_of(pointer.address()) != Some(slot.rank) {
                return Ok(None);
            }
            if pointer.safe().is_none() || failures > FAILURES {
                let Some(listed) = self.directory.access(batch, slot).listed(true)? else {
                    self.directory.mistaken(batch, slot.id)?;
                    continue;
                };
                let header = listed.iter().find(|listed| listed.pointer == pointer).map(|listed| listed.header);
                let head = listed.first().map_or(Pointer::NULL, |first| first.pointer);
                return Ok(Some(Seen { slot, head, header, beside: None }));
            }
            batch.clear()?;
            let word = batch.get(slot.at, 8, Order::Now)?;
            let rest = batch.get(slot.at.add(HEAD), 16, Order::Continue)?;
            let header = batch.get(pointer.address(), HEADER, Order::Continue)?;
            let again = batch.get(slot.at, 8, Order::Continue)?;
            let behind = beside.min(chunk.slots - number % CHUNK - 1);
            let slots = match behind {
                0 => None,
                _ => Some(batch.get(slot.at.add(SLOT), (behind * SLOT) as usize, Order::Now)?),
            };
            batch.wait()?;
            if batch.word(rest, 1) != slot.id {
                self.directory.mistaken(batch, slot.id)?;
                continue;
            }
            let state = State(batch.word(word, 0));
            if state.is_locked() {
                patience.wait(self.world(), &slot, state)?;
                continue;
            }
            if batch.word(again, 0) != state.0 {
                failures += 1;
                continue;
            }
            let header = Header::of([0, 1, 2, 3].map(|index| batch.word(header, index)));
            let header = (header.mark == mark(slot.at)).then_some(header);
            return Ok(Some(Seen {
                slot,
                head: Pointer(batch.word(rest, 0)),
                header,
                beside: slots.map(|slots| (slots, behind)),
            }));
        }
    }

    /// The contents of all elements of a slot at one moment, in order. A round trip, one for each element, and one for
    /// each again.
    pub(super) fn items(&self, batch: &mut Batch<'_>, slot: &Slot) -> Result<Option<Vec<Item>>> {
        let mut access = self.directory.access(batch, *slot);
        for _ in 0..FAILURES {
            let (state, head, id) = access.read()?;
            if id != slot.id {
                return Ok(None);
            }
            if state.is_locked() {
                break;
            }
            if head.is_null() {
                return Ok(Some(vec![]));
            }
            let Some(listed) = access.list(state, head, false)? else { break };
            let items = self.contents(&listed)?;
            access.batch.clear()?;
            if access.is_still(Some(state))? {
                return Ok(Some(items));
            }
        }
        let Some((state, head)) = access.hold()? else { return Ok(None) };
        let listed = access.list(state, head, true)?.unwrap_or_default();
        let items = self.contents(&listed);
        if items.as_ref().map_or_else(Error::is_refused, |_| true) {
            access.unlock(&[], state)?;
        }
        items.map(Some)
    }

    /// Reads keys and values of elements that stay.
    fn contents(&self, listed: &[Listed]) -> Result<Vec<Item>> {
        let (world, kind) = (self.world(), self.kind());
        let item = |listed: &Listed| {
            let (key, value) = (listed.key().to_vec(world)?, listed.value(kind).to_vec(world)?);
            Ok(Item { key, value, count: listed.times(kind) })
        };
        listed.iter().map(item).collect()
    }

    /// The slots with elements of the 256 from `from` on in a chunk, as they are one by one. One round trip.
    pub(super) fn occupied(&self, batch: &mut Batch<'_>, chunk: &Chunk, from: u64) -> Result<Vec<Slot>> {
        let count = SCANNED.min(chunk.slots - from);
        batch.clear()?;
        let slots = batch.get(chunk.slot(from).at, (count * SLOT) as usize, Order::Now)?;
        batch.wait()?;
        let mut occupied = vec![];
        for number in 0..count {
            let words = slots.part((number * SLOT) as usize, SLOT as usize);
            if batch.word(words, 2) != chunk.first.id {
                return Err(self.directory.none());
            }
            if batch.word(words, 1) != 0 {
                occupied.push(chunk.slot(from + number));
            }
        }
        Ok(occupied)
    }

    /// Calls `f` with each slot that has elements.
    pub(super) fn for_each_slot(
        &self,
        extent: Extent,
        mut f: impl FnMut(&mut Batch<'_>, &Slot) -> Result<()>,
    ) -> Result<()> {
        let mut batch = self.world().batch();
        for (_, chunk) in self.directory.all(extent)? {
            for from in (0..chunk.slots).step_by(SCANNED as usize) {
                for slot in self.occupied(&mut batch, &chunk, from)? {
                    f(&mut batch, &slot)?;
                }
            }
        }
        Ok(())
    }

    /// The contents of all elements, a slot at a time: each slot as it was at one moment. Elements that are inserted or
    /// removed meanwhile may be among them or not.
    ///
    /// # Errors
    /// As [`begin`](Container::begin), here and by the items.
    pub fn iter(&self, extent: Extent) -> Result<impl Iterator<Item = Result<Item>> + '_> {
        let groups =
            |(_, chunk): (u64, Chunk)| (0..chunk.slots).step_by(SCANNED as usize).map(move |from| (chunk, from));
        let groups = self.directory.all(extent)?.into_iter().flat_map(groups);
        let items = move |(chunk, from): (Chunk, u64)| -> Result<Vec<Item>> {
            let mut batch = self.world().batch();
            let mut items = vec![];
            for slot in self.occupied(&mut batch, &chunk, from)? {
                items.extend(self.items(&mut batch, &slot)?.ok_or_else(|| self.directory.none())?);
            }
            Ok(items)
        };
        Ok(groups.flat_map(move |group| match items(group) {
            Ok(items) => items.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        }))
    }
}
