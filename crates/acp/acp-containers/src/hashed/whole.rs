//! A container as a whole: counting, clearing, destroying, and bringing the elements of one into another.
//!
//! No operation is one moment for all: each slot is. An insertion or removal meanwhile happens before or after its
//! slot's turn.

use vervain_acp::{Batch, GlobalAddress, Order, Result, World};

use super::change::{Inserted, Prepared};
use super::directory::{Chunk, Directory, Slot};
use super::layout::{HEAD, MARK, SLOT, State};
use super::slot::{Listed, Patience};
use super::{Bytes, Extent, Hashed, Kind, Name};

/// Chunks that are counted in a round trip.
const COUNTED: usize = 16;

/// A set, multiset or map as this rank reaches it. Making one of a name accesses nothing.
#[derive(Clone, Copy)]
pub struct Container<'a> {
    pub(super) directory: Directory<'a>,
}

impl<'a> Container<'a> {
    /// The container of this name, which has to be of this kind; whether there is one shows when it is used.
    pub fn of(hashed: Hashed<'a>, kind: Kind, name: Name) -> Self {
        Self { directory: Directory { hashed, kind, name } }
    }

    /// Its name.
    pub fn name(&self) -> Name {
        self.directory.name
    }

    pub(super) fn kind(&self) -> Kind {
        self.directory.kind
    }

    pub(super) fn world(&self) -> &'a World {
        self.directory.world()
    }

    pub(super) fn free(&self, block: GlobalAddress) -> Result<()> {
        self.directory.hashed.heap.free(block)
    }

    /// Frees all of it. Nobody may use it any more, and nobody may be using it.
    ///
    /// # Errors
    /// [Refused](vervain_acp::Error::is_refused): there is no such container. Else the job is broken.
    pub fn destroy(self) -> Result<()> {
        let mut batch = self.world().batch();
        batch.reserve(Directory::PUT)?;
        self.clear(Extent::All)?;
        self.directory.destroy(&mut batch)
    }

    /// The number of its elements; for a multiset, of different keys. Two round trips for the directory, and one for
    /// each 10,000 slots.
    ///
    /// # Errors
    /// [Refused](vervain_acp::Error::is_refused): there is no such container. Else the job is broken.
    pub fn len(&self, extent: Extent) -> Result<u64> {
        let mut sum = 0;
        for chunks in self.directory.all(extent)?.chunks(COUNTED) {
            sum += self.counted(chunks)?;
        }
        Ok(sum)
    }

    /// Returns whether it has no elements. As [`len`](Container::len), and no further than to the first that are found.
    ///
    /// # Errors
    /// Those of [`len`](Container::len).
    pub fn is_empty(&self, extent: Extent) -> Result<bool> {
        for chunks in self.directory.all(extent)?.chunks(COUNTED) {
            if self.counted(chunks)? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The elements of chunks.
    fn counted(&self, chunks: &[(u64, Chunk)]) -> Result<u64> {
        let mut batch = self.world().batch();
        let mut sum = 0;
        let mut read = Vec::with_capacity(chunks.len());
        for (_, chunk) in chunks {
            read.push((chunk, batch.get(chunk.first.at, (chunk.slots * SLOT) as usize, Order::Now)?));
        }
        batch.wait()?;
        let mut locked = vec![];
        for (chunk, slots) in read {
            for number in 0..chunk.slots {
                let words = slots.part((number * SLOT) as usize, SLOT as usize);
                if batch.word(words, 2) != chunk.first.id {
                    return Err(self.directory.none());
                }
                let state = State(batch.word(words, 0));
                if state.is_locked() {
                    locked.push(chunk.slot(number));
                } else {
                    sum += state.count();
                }
            }
        }
        for slot in locked {
            let mut patience = Patience::new();
            sum += loop {
                let (state, ..) = self.directory.access(&mut batch, slot).read()?;
                if !state.is_locked() {
                    break state.count();
                }
                patience.wait(self.world(), &slot, state)?;
            };
        }
        Ok(sum)
    }

    /// Removes all elements. Two round trips for the directory, one for each 256 slots; for each slot that has some
    /// four, and one for each of its elements and what it takes to free that.
    ///
    /// # Errors
    /// As [`len`](Container::len).
    pub fn clear(&self, extent: Extent) -> Result<()> {
        self.for_each_slot(extent, |batch, slot| {
            for listed in self.detach(batch, slot)? {
                self.free(listed.pointer.address())?;
            }
            Ok(())
        })
    }

    /// Takes all elements out of a slot: they are in none, and this thread's.
    fn detach(&self, batch: &mut Batch<'_>, slot: &Slot) -> Result<Vec<Listed>> {
        let mut access = self.directory.access(batch, *slot);
        let Some((state, head)) = access.hold()? else { return Err(self.directory.none()) };
        let listed = access.list(state, head, true);
        let listed = access.or_let_go(state, listed)?.unwrap_or_default();
        // Iterators find that their element is gone. Before the slot is free nobody links to it. So many words always
        // have room.
        for some in listed.chunks(256) {
            access.batch.clear()?;
            for listed in some {
                access.batch.put_words(listed.at(MARK as usize), &[0], Order::Now)?;
            }
        }
        access.batch.clear()?;
        access.unlock(&[(slot.at.add(HEAD), 0)], state.changed(0))?;
        Ok(listed)
    }

    /// Inserts copies of what `other` has: keys that are not there, of maps with their values; into a multiset each as
    /// often as it is there. Two round trips for the directory, one for each 256 slots; for each slot that has some
    /// two, and for each of its elements two, of a map three, and those of an insertion.
    ///
    /// # Errors
    /// [Refused](vervain_acp::Error::is_refused): there is no such container, or no memory left; some may be inserted
    /// then. Else the job is broken.
    pub fn merge(&self, other: &Container<'_>, extent: Extent) -> Result<()> {
        if self.directory.name == other.directory.name {
            return Ok(());
        }
        other.for_each_slot(extent, |batch, slot| {
            for item in other.items(batch, slot)?.ok_or_else(|| other.directory.none())? {
                self.put(&item.key, Bytes::Here(&item.value), item.count, None)?;
            }
            Ok(())
        })
    }

    /// As [`merge`](Container::merge), and the elements are no longer in `other`. If an element's rank is also that of
    /// its new place, it stays in its memory, and needs no other. For each slot it takes the round trips of
    /// [`clear`](Container::clear), and for each element one and those of an insertion.
    ///
    /// # Errors
    /// Those of [`merge`](Container::merge): elements that were not inserted are still in `other`.
    pub fn take_from(&self, other: &Container<'_>, extent: Extent) -> Result<()> {
        if self.directory.name == other.directory.name {
            return Ok(());
        }
        other.for_each_slot(extent, |batch, slot| {
            let mut listed = other.detach(batch, slot)?.into_iter();
            while let Some(next) = listed.next() {
                if let Err(error) = self.adopt(&next, other) {
                    if error.is_refused() {
                        // One that is refused too keeps no other one from its place.
                        let mut back = std::iter::once(next).chain(listed);
                        back.try_for_each(|back| if_there_is_memory(other.adopt(&back, other)))?;
                    }
                    return Err(error);
                }
            }
            Ok(())
        })
    }

    /// Inserts a detached element that was in a slot of `other`: by its own block, or a copy, and then that is freed.
    /// Frees it too if the key is there.
    fn adopt(&self, listed: &Listed, other: &Container<'_>) -> Result<()> {
        let (times, value) = (listed.times(other.kind()), listed.value(other.kind()));
        let block = Prepared { pointer: listed.pointer, own: false, written: Some(GlobalAddress::NULL) };
        let inserted = listed.key().with(self.world(), |key| self.put(key, value, times, Some(block)))?;
        match inserted {
            Inserted::New(at) if at == listed.pointer.address() => Ok(()),
            _ => self.free(listed.pointer.address()),
        }
    }

    /// Makes it a copy of `other`: of what `other` has at this rank, if so asked; all elements of before are gone.
    ///
    /// # Errors
    /// As [`merge`](Container::merge).
    pub fn assign(&self, other: &Container<'_>, extent: Extent) -> Result<()> {
        if self.directory.name == other.directory.name {
            return Ok(());
        }
        // A name of no container must be found out before anything is gone.
        other.directory.owners()?;
        self.clear(Extent::All)?;
        self.merge(other, extent)
    }

    /// Exchanges the elements of both, which keep their ranks and slots. Elements that have to change their rank need
    /// memory there.
    ///
    /// # Errors
    /// As [`merge`](Container::merge); all elements are where they were then, if there is the memory for that.
    pub fn swap(&self, other: &Container<'_>) -> Result<()> {
        if self.directory.name == other.directory.name {
            return Ok(());
        }
        // A name of no container must be found out before anything moves.
        other.directory.owners()?;
        // Elements of the one wait in slots of their own ranks, by their own blocks, which takes no memory there and
        // back.
        let aside = self.directory.hashed.create(
            self.kind(),
            &self.directory.owners()?,
            self.directory.name.slots,
            self.world().rank(),
        )?;
        let moved = aside.take_from(self, Extent::All).map_err(|error| (error, false));
        let moved = moved.and_then(|()| self.take_from(other, Extent::All).map_err(|error| (error, false)));
        let moved = moved.and_then(|()| other.take_from(&aside, Extent::All).map_err(|error| (error, true)));
        let Err((error, is_last)) = moved else { return aside.destroy() };
        if error.is_refused() {
            // An element for which there is no memory on the way back stays in its new place. None stays aside, in a
            // container whose name no program has.
            if is_last {
                if_there_is_memory(aside.take_from(other, Extent::All))?;
            }
            if_there_is_memory(other.take_from(self, Extent::All))?;
            self.take_from(&aside, Extent::All)?;
            aside.destroy()?;
        }
        Err(error)
    }
}

fn if_there_is_memory(moved: Result<()>) -> Result<()> {
    match moved {
        Err(error) if error.is_refused() => Ok(()),
        moved => moved,
    }
}
