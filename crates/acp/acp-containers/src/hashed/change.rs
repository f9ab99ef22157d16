//! Changing one key: insertion, removal; and reading its value.

use vervain_acp::{Batch, Error, GlobalAddress, GlobalPtr, Order, Result};

use super::layout::{COUNTER, HEADER, Header, MARK, Pointer, State, block, mark, value_offset};
use super::slot::{Element, Look, SlotAccess};
use super::{Bytes, Container, Kind, Room};

/// Bytes of an element that go in one piece, and bytes of values of this rank's that are copied into it.
const ONE_PIECE: usize = 512;

/// A block for a new element, of its table's rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared {
    pub pointer: Pointer,
    /// It was allocated for this insertion, which frees it unless it is linked.
    pub own: bool,
    /// The slot that its header is written for, once key and value are there; null for none any more.
    pub written: Option<GlobalAddress>,
}

/// The result of an insertion.
pub(super) enum Inserted {
    /// It is in the element at this address.
    New(GlobalAddress),
    /// The key was there.
    There,
}

impl Container<'_> {
    /// Inserts a key: with its value into a map, if the key is not there yet; once more into a multiset. Returns true
    /// if it was inserted, as it always is into a multiset. A key without bytes is not.
    ///
    /// Round trips: one, one for each element of the slot, two, and those of an allocation; if the key is there, those
    /// of a search, and two more into a multiset. A key or value of another rank takes one more.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): there is no such container, no memory left, or nothing at a key's or value's
    /// address. Else the job is broken.
    pub fn insert(&self, key: Bytes<'_>, value: Bytes<'_>) -> Result<bool> {
        key.with(self.world(), |key| {
            let inserted = self.put(key, value, 1, None)?;
            Ok(matches!(inserted, Inserted::New(_)) || self.kind() == Kind::Multiset && !key.is_empty())
        })
    }

    /// Inserts a key `times`: by the `block` of an element with this key and value, if that is given and of the right
    /// rank.
    pub(super) fn put(&self, key: &[u8], value: Bytes<'_>, times: u64, block: Option<Prepared>) -> Result<Inserted> {
        let mut prepared = block;
        let result = self.try_put(key, value, times, &mut prepared);
        let is_over = result.as_ref().map_or_else(Error::is_refused, |_| true);
        if is_over {
            self.give_back(prepared)?;
        }
        result
    }

    fn try_put(&self, key: &[u8], value: Bytes<'_>, times: u64, prepared: &mut Option<Prepared>) -> Result<Inserted> {
        let Some(spot) = self.directory.spot(key)? else { return Ok(Inserted::There) };
        let mut batch = self.world().batch();
        loop {
            let mut slot = self.directory.slot(&mut batch, spot)?;
            let Some(mut look) = slot.look(key, 0, false)? else {
                self.directory.mistaken(slot.batch, slot.slot.id)?;
                continue;
            };
            if let Some(element) = look.element {
                if self.kind() != Kind::Multiset {
                    slot.let_go(&look)?;
                    return Ok(Inserted::There);
                }
                if look.held || slot.lock(look.state)? {
                    let counter = (element.at(COUNTER), element.header.more.saturating_add(times));
                    slot.unlock(&[counter], look.state.changed(look.state.count()))?;
                    return Ok(Inserted::There);
                }
                continue;
            }
            let linked = self.link(&mut slot, &mut look, key, value, times, prepared);
            match linked {
                Ok(Some(at)) => {
                    *prepared = None;
                    return Ok(Inserted::New(at));
                }
                Ok(None) => {}
                Err(error) => {
                    if error.is_refused() {
                        slot.let_go(&look)?;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Frees a block that was not linked, unless it is the caller's.
    fn give_back(&self, block: Option<Prepared>) -> Result<()> {
        block.filter(|block| block.own).map_or(Ok(()), |block| self.free(block.pointer.address()))
    }

    /// Writes a new element and links it to the end of its list. Returns its place. None if the slot has changed.
    fn link(
        &self,
        slot: &mut SlotAccess<'_, '_>,
        look: &mut Look,
        key: &[u8],
        value: Bytes<'_>,
        times: u64,
        prepared: &mut Option<Prepared>,
    ) -> Result<Option<GlobalAddress>> {
        if look.state.count() == State::MOST {
            return Err(Error::refused(format!("a slot of the {} has as many elements as it can", self.kind().name())));
        }
        // A container that was made anew meanwhile may have the slot at another rank.
        let elsewhere = prepared.take_if(|block| self.world().rank_of(block.pointer.address()) != Some(slot.slot.rank));
        self.give_back(elsewhere)?;
        let block = match prepared {
            Some(block) => block,
            None => prepared.insert(self.allocate(slot.slot.rank, key.len(), value.len())?),
        };
        let more = match self.kind() {
            Kind::Set => 0,
            Kind::Multiset => times,
            Kind::Map => value.len() as u64,
        };
        // The mark comes with the link: an iterator at an element whose block this was must not believe in it before.
        let header = Header { next: Pointer::NULL, mark: 0, key: key.len() as u64, more };
        let at = block.pointer.address();
        // All that is put: none may be refused when the slot is this rank's, or an element is linked.
        let here = if let Bytes::Here(bytes) = value { bytes.len() } else { 0 };
        let here = if block.written.is_none() { key.len().saturating_add(here) } else { 0 };
        slot.batch.reserve(here.saturating_add(2 * ONE_PIECE))?;
        match block.written {
            Some(written) if written == slot.slot.at => {}
            Some(_) => slot.batch.put_words(at, &header.words(), Order::Now)?,
            None => self.write(slot.batch, at, &header, key, value)?,
        }
        block.written = Some(slot.slot.at);
        if !look.held {
            if !slot.lock(look.state)? {
                return Ok(None);
            }
            look.held = true;
        }
        slot.batch.wait()?;
        let words = [(at.add(MARK), mark(slot.slot.at)), (look.link, block.pointer.0)];
        slot.unlock(&words, look.state.changed(look.state.count() + 1))?;
        Ok(Some(at))
    }

    fn allocate(&self, rank: u32, key: usize, value: usize) -> Result<Prepared> {
        let none = || Error::refused(format!("rank {rank} has no memory left for {key} and {value} bytes"));
        let bytes = block(key, value).ok_or_else(none)?;
        let at = self.directory.hashed.heap.allocate(bytes, rank)?.ok_or_else(none)?;
        Ok(Prepared { pointer: Pointer::new(at, bytes), own: true, written: None })
    }

    /// Puts an element into its block.
    fn write(
        &self,
        batch: &mut Batch<'_>,
        at: GlobalAddress,
        header: &Header,
        key: &[u8],
        value: Bytes<'_>,
    ) -> Result<()> {
        let mut piece = [0; ONE_PIECE];
        for (word, to) in header.words().iter().zip(piece.chunks_exact_mut(8)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        let begins = value_offset(key.len());
        let mut end = HEADER;
        if HEADER + key.len() <= ONE_PIECE {
            end += key.len();
            piece[HEADER..end].copy_from_slice(key);
        } else {
            batch.put(at.add(HEADER as u64), key, Order::Now)?;
        }
        let world = self.world();
        let fits = begins.saturating_add(value.len()) <= ONE_PIECE && end > HEADER && !value.is_empty();
        match value {
            Bytes::Here(bytes) if fits => {
                end = begins + bytes.len();
                piece[begins..end].copy_from_slice(bytes);
            }
            Bytes::At(from, len) if fits && world.rank_of(from) == Some(world.rank()) => {
                end = begins + len;
                world.read(GlobalPtr::new(from), &mut piece[begins..end])?;
            }
            // An empty value may be at the null address, from which nothing is read.
            _ if value.is_empty() => {}
            Bytes::Here(bytes) => batch.put(at.add(begins as u64), bytes, Order::Now)?,
            Bytes::At(from, len) => batch.copy(at.add(begins as u64), from, len, Order::Now)?,
        }
        batch.put(at, &piece[..end], Order::Now)
    }

    /// Removes a key; from a multiset `times`, and the key with the last. Returns true if it was there.
    ///
    /// Takes the round trips of a search, two, and those of freeing.
    ///
    /// # Errors
    /// As [`insert`](Container::insert).
    pub fn remove(&self, key: Bytes<'_>, times: u64) -> Result<bool> {
        key.with(self.world(), |key| self.take(key, times))
    }

    fn take(&self, key: &[u8], times: u64) -> Result<bool> {
        let Some(spot) = self.directory.spot(key)? else { return Ok(false) };
        let mut batch = self.world().batch();
        loop {
            let mut slot = self.directory.slot(&mut batch, spot)?;
            let Some(look) = slot.look(key, 0, false)? else {
                self.directory.mistaken(slot.batch, slot.slot.id)?;
                continue;
            };
            let Some(Element { pointer, header, .. }) = look.element else {
                slot.let_go(&look)?;
                return Ok(false);
            };
            if !look.held && !slot.lock(look.state)? {
                continue;
            }
            let count = look.state.count();
            if self.kind() == Kind::Multiset && header.more > times {
                let counter = (pointer.address().add(COUNTER), header.more - times);
                slot.unlock(&[counter], look.state.changed(count))?;
                return Ok(true);
            }
            let unlinked = [(look.link, header.next.0), (pointer.address().add(MARK), 0)];
            slot.unlock(&unlinked, look.state.changed(count.saturating_sub(1)))?;
            self.free(pointer.address())?;
            return Ok(true);
        }
    }

    /// How often a multiset has a key; of a set or map 1 or 0. The round trips of a search.
    ///
    /// # Errors
    /// As [`insert`](Container::insert).
    pub fn count(&self, key: Bytes<'_>) -> Result<u64> {
        let more =
            key.with(self.world(), |key| self.retrieved(key, 0, |_, _, element| Ok(Some(element.header.more))))?;
        Ok(more.map_or(0, |more| if self.kind() == Kind::Multiset { more } else { 1 }))
    }

    /// Copies as much of a key's value as there is room for. Returns the size of the value; None if there is no such
    /// key, and then the contents of the room are undefined.
    ///
    /// The round trips of a search; one more for values of over about 1,000 bytes, and for room in the memory of
    /// others.
    ///
    /// # Errors
    /// As [`insert`](Container::insert).
    pub fn retrieve(&self, key: Bytes<'_>, mut room: Room<'_>) -> Result<Option<u64>> {
        key.with(self.world(), |key| {
            self.retrieved(key, room.len(), |slot, look, element| {
                self.copy_value(slot, look, element, key.len(), &mut room)
            })
        })
    }

    /// Searches a key and calls `f` with its element, over and over until that has found the slot as it was.
    pub(super) fn retrieved<T>(
        &self,
        key: &[u8],
        want: usize,
        mut f: impl FnMut(&mut SlotAccess<'_, '_>, &Look, &Element) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let Some(spot) = self.directory.spot(key)? else { return Ok(None) };
        let mut batch = self.world().batch();
        let mut failed = false;
        loop {
            let mut slot = self.directory.slot(&mut batch, spot)?;
            let Some(look) = slot.look(key, want, failed)? else {
                self.directory.mistaken(slot.batch, slot.slot.id)?;
                continue;
            };
            let Some(element) = look.element else {
                slot.let_go(&look)?;
                return Ok(None);
            };
            let done = f(&mut slot, &look, &element);
            if done.as_ref().map_or_else(Error::is_refused, |_| true) {
                slot.let_go(&look)?;
            }
            match done? {
                Some(done) => return Ok(Some(done)),
                None => failed = true,
            }
        }
    }

    /// Copies the value of an element into the room. None if the slot has changed meanwhile.
    fn copy_value(
        &self,
        slot: &mut SlotAccess<'_, '_>,
        look: &Look,
        element: &Element,
        key: usize,
        room: &mut Room<'_>,
    ) -> Result<Option<u64>> {
        let stored = element.header.more;
        let (begins, len) = (value_offset(key), usize::try_from(stored).unwrap_or(usize::MAX).min(room.len()));
        if len == 0 {
            return Ok(Some(stored));
        }
        let here = element
            .first
            .filter(|first| begins.saturating_add(len) <= first.len())
            .map(|first| first.part(begins, len));
        if let Some(value) = here {
            room.fill(self.world(), slot.batch, value)?;
            return Ok(Some(stored));
        }
        let (from, as_it_was) = (element.at(begins as u64), (!look.held).then_some(look.state));
        slot.batch.clear()?;
        if let Room::At(to, _) = room {
            slot.batch.copy(*to, from, len, Order::Now)?;
            // Not from where the value comes, if that goes to another rank.
            if let Some(state) = as_it_was {
                let word = slot.batch.get(slot.slot.at, 8, Order::All)?;
                slot.batch.wait()?;
                return Ok((slot.batch.word(word, 0) == state.0).then_some(stored));
            }
            slot.batch.wait()?;
            return Ok(Some(stored));
        }
        let value = slot.batch.get(from, len, Order::Now)?;
        if !slot.is_still(as_it_was)? {
            return Ok(None);
        }
        room.fill(self.world(), slot.batch, value)?;
        Ok(Some(stored))
    }
}
