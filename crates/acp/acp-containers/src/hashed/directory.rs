//! Directories: making and destroying a container's tables, and finding slots.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, PoisonError};

use vervain_acp::{Batch, Error, GlobalAddress, Order, Result, World};

use super::layout::{CHUNK, DIRECTORY, SLOT, STAYS, Spot, chunks};
use super::slot::SlotAccess;
use super::{Container, Extent, Hashed, Kind, Name};

/// The first word of a directory, with the kind in its lowest byte.
const MAGIC: u64 = 0x5dc9_acb7_1e63_4f00;
/// Places that a rank remembers: as many at first, and at most. They are enough for tables of 5 million slots.
const FEW: usize = 64;
const MOST: usize = 8192;
/// The places, one behind the other, that a chunk can have.
const WAYS: usize = 4;
/// Bytes that are under way at a time, of many.
const AT_ONCE: usize = 1 << 20;

/// The place of a chunk of a table that was found, and the id of its container.
#[derive(Debug, Clone, Copy)]
struct Place {
    name: Name,
    number: u64,
    chunk: GlobalAddress,
    id: u64,
    rank: u32,
}

/// A rank's memory of the places of its containers' tables, of a fixed size.
#[derive(Debug, Default)]
pub struct Places {
    places: Mutex<Vec<Option<Place>>>,
}

impl Places {
    /// Remembers nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The places that a chunk can have among `len`, a power of two.
    fn ways(name: Name, number: u64, len: usize) -> impl Iterator<Item = usize> {
        let mixed = ((name.address.0 >> 4) ^ number.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..WAYS).map(move |way| ((mixed >> 32) as usize + way) & (len - 1))
    }

    fn find(&self, name: Name, number: u64) -> Option<Place> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.is_empty() {
            return None;
        }
        let mut found = Self::ways(name, number, places.len()).filter_map(|at| places[at]);
        found.find(|place| place.name == name && place.number == number)
    }

    fn remember(&self, place: Place) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.is_empty() {
            places.resize(FEW, None);
        }
        loop {
            let len = places.len();
            let is_it = |other: &Place| other.name == place.name && other.number == place.number;
            let mut ways = Self::ways(place.name, place.number, len);
            if let Some(at) = ways.find(|at| places[*at].as_ref().is_none_or(is_it)) {
                places[at] = Some(place);
                return;
            }
            if len == MOST {
                // Any of the four: the number says which.
                let at = Self::ways(place.name, place.number, len).nth(place.number as usize % WAYS);
                places[at.unwrap_or(0)] = Some(place);
                return;
            }
            let former = std::mem::replace(&mut *places, vec![None; len * 2]);
            for place in former.into_iter().flatten() {
                let mut ways = Self::ways(place.name, place.number, len * 2);
                if let Some(at) = ways.find(|at| places[*at].is_none()) {
                    places[at] = Some(place);
                }
            }
        }
    }

    /// Forgets all of a container.
    fn forget(&self, name: Name) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let of_it = |place: &&mut Option<Place>| place.is_some_and(|place| place.name == name);
        places.iter_mut().filter(of_it).for_each(|place| *place = None);
    }
}

/// A slot of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub at: GlobalAddress,
    /// The id of its container.
    pub id: u64,
    /// The rank that it and its elements are of.
    pub rank: u32,
}

/// A table's part, whose slots lie one behind the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    /// Its first slot, which stands for all.
    pub first: Slot,
    pub slots: u64,
}

impl Chunk {
    pub fn slot(&self, number: u64) -> Slot {
        Slot { at: self.first.at.add(number * SLOT), ..self.first }
    }
}

impl<'a> Hashed<'a> {
    /// Makes a container without elements: its directory in the memory of `rank`, and a table of `slots` slots in that
    /// of each of `ranks`, in this order. A rank may be there more than once.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): no ranks or slots, a rank that is none, no memory. Else the job is broken.
    pub fn create(self, kind: Kind, ranks: &[u32], slots: u64, rank: u32) -> Result<Container<'a>> {
        let world = self.world();
        let what = kind.name();
        if ranks.is_empty() || slots == 0 {
            return Err(Error::refused(format!("a {what} has at least one rank and one slot")));
        }
        if let Some(none) = ranks.iter().chain([&rank]).find(|rank| **rank >= world.size()) {
            return Err(Error::refused(format!("there is no rank {none}: the job has {}", world.size())));
        }
        let per_rank = chunks(slots);
        let number = (ranks.len() as u64).checked_mul(per_rank).and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| *number < 1 << 40);
        let number = number.ok_or_else(|| Error::refused(format!("a {what} of {slots} slots is too large")))?;
        let mut made: Vec<GlobalAddress> = vec![];
        let name = self.make(kind, ranks, slots, rank, number, &mut made);
        match name {
            Ok(name) => Ok(Container::of(self, kind, name)),
            Err(error) => {
                if error.is_refused() {
                    made.into_iter().try_for_each(|block| self.heap.free(block))?;
                }
                Err(error)
            }
        }
    }

    /// Makes the blocks, and notes them in `made`.
    fn make(
        self,
        kind: Kind,
        ranks: &[u32],
        slots: u64,
        rank: u32,
        number: usize,
        made: &mut Vec<GlobalAddress>,
    ) -> Result<Name> {
        let mut allocate = |bytes: usize, rank: u32| -> Result<GlobalAddress> {
            let block = self.heap.allocate(bytes, rank)?;
            let none = || format!("rank {rank} has no memory left for {bytes} bytes of a {}", kind.name());
            let block = block.ok_or_else(|| Error::refused(none()))?;
            made.push(block);
            Ok(block)
        };
        // The header stays mapped, so that a rank that uses the container when it is destroyed finds out.
        let len = DIRECTORY as usize + number * 8;
        let directory = allocate(if len <= STAYS { len } else { DIRECTORY as usize }, rank)?;
        let addresses = if len <= STAYS { directory.add(DIRECTORY) } else { allocate(number * 8, rank)? };
        let id = RandomState::new().build_hasher().finish() | 1;
        let image: Vec<u64> = [0, 0, id].repeat(slots.min(CHUNK) as usize);
        let mut entries = Vec::with_capacity(number);
        let mut batch = self.world().batch();
        for rank in ranks {
            for part in 0..chunks(slots) {
                let words = &image[..(slots - part * CHUNK).min(CHUNK) as usize * 3];
                let chunk = allocate(words.len() * 8, *rank)?;
                batch.put_words(chunk, words, Order::Now)?;
                entries.push(chunk.0);
                if entries.len().is_multiple_of(AT_ONCE / (CHUNK * SLOT) as usize) {
                    batch.clear()?;
                }
            }
        }
        for (number, part) in entries.chunks(AT_ONCE / 8).enumerate() {
            batch.put_words(addresses.add((number * AT_ONCE) as u64), part, Order::Now)?;
            batch.clear()?;
        }
        let words = [MAGIC | kind as u64, 0, id, ranks.len() as u64, slots, addresses.0];
        batch.put_words(directory, &words, Order::Now)?;
        batch.wait()?;
        Ok(Name { address: directory, ranks: ranks.len() as u64, slots })
    }
}

/// The directory of a container: which tables it has, and where they are, as this rank remembers or reads it.
#[derive(Clone, Copy)]
pub(super) struct Directory<'a> {
    pub hashed: Hashed<'a>,
    pub kind: Kind,
    pub name: Name,
}

impl<'a> Directory<'a> {
    /// Bytes that [`destroy`](Directory::destroy) puts at a time.
    pub const PUT: usize = (CHUNK * SLOT) as usize + 64;

    /// The world that it is of.
    pub fn world(&self) -> &'a World {
        self.hashed.world()
    }

    /// The sentence about a name of none.
    pub fn none(&self) -> Error {
        let Name { address, ranks, slots } = self.name;
        Error::refused(format!("there is no {} of {ranks} ranks and {slots} slots at {address}", self.kind.name()))
    }

    /// Reads the directory's header: the container's id, and where the addresses of its chunks are. One round trip.
    fn header(&self, batch: &mut Batch<'_>) -> Result<(u64, GlobalAddress)> {
        if self.name.address.is_null() || !self.name.address.0.is_multiple_of(8) {
            return Err(self.none());
        }
        let header = batch.get(self.name.address, DIRECTORY as usize, Order::Now)?;
        batch.wait()?;
        let [magic, id, ranks, slots] = [0, 2, 3, 4].map(|index| batch.word(header, index));
        let is_it =
            magic == MAGIC | self.kind as u64 && id != 0 && (ranks, slots) == (self.name.ranks, self.name.slots);
        // The heap has no more: a directory of so many entries was never made.
        let is_it = is_it && slots > 0 && ranks > 0 && ranks.checked_mul(chunks(slots)).is_some_and(|n| n < 1 << 40);
        if !is_it {
            return Err(self.none());
        }
        let addresses = GlobalAddress(batch.word(header, 5));
        let rank_of = |at| self.world().rank_of(at);
        if rank_of(addresses) != rank_of(self.name.address) || !addresses.0.is_multiple_of(8) {
            return Err(self.broken_directory());
        }
        Ok((id, addresses))
    }

    fn broken_directory(&self) -> Error {
        Error::broken(format!("the directory of the {} at {} is broken", self.kind.name(), self.name.address))
    }

    fn chunk_of(&self, entry: u64, part: u64, id: u64) -> Result<Chunk> {
        let at = GlobalAddress(entry);
        let rank = self.world().rank_of(at).filter(|_| entry.is_multiple_of(8));
        let first = Slot { at, id, rank: rank.ok_or_else(|| self.broken_directory())? };
        Ok(Chunk { first, slots: (self.name.slots - part * CHUNK).min(CHUNK) })
    }

    /// The chunk with this number of the table with this index, which are those of the container's. Two round trips
    /// where this rank does not remember it.
    pub fn chunk(&self, batch: &mut Batch<'_>, index: u64, part: u64) -> Result<Chunk> {
        let number = index.wrapping_mul(chunks(self.name.slots)).wrapping_add(part);
        if let Some(Place { chunk, id, rank, .. }) = self.hashed.places.find(self.name, number) {
            let slots = (self.name.slots - part * CHUNK).min(CHUNK);
            return Ok(Chunk { first: Slot { at: chunk, id, rank }, slots });
        }
        let (id, addresses) = self.header(batch)?;
        let entry = batch.get(addresses.add(number * 8), 8, Order::Now)?;
        batch.wait()?;
        let chunk = self.chunk_of(batch.word(entry, 0), part, id)?;
        let Slot { at, id, rank } = chunk.first;
        self.hashed.places.remember(Place { name: self.name, number, chunk: at, id, rank });
        Ok(chunk)
    }

    /// The place of a key; None for a key without bytes, which no container has.
    pub fn spot(&self, key: &[u8]) -> Result<Option<Spot>> {
        if key.is_empty() {
            return Ok(None);
        }
        Spot::of(key, self.name.ranks, self.name.slots).ok_or_else(|| self.none()).map(Some)
    }

    /// The slot at this place.
    pub fn slot<'b, 'w>(&'b self, batch: &'b mut Batch<'w>, spot: Spot) -> Result<SlotAccess<'b, 'w>> {
        let slot = self.chunk(batch, spot.index, spot.slot / CHUNK)?.slot(spot.slot % CHUNK);
        Ok(self.access(batch, slot))
    }

    /// A slot, by this batch.
    pub fn access<'b, 'w>(&'b self, batch: &'b mut Batch<'w>, slot: Slot) -> SlotAccess<'b, 'w> {
        SlotAccess::new(self.world(), self.kind, batch, slot)
    }

    /// A slot had another container's id: what this rank has remembered is forgotten. An error if it is as the
    /// directory says.
    pub fn mistaken(&self, batch: &mut Batch<'_>, id: u64) -> Result<()> {
        self.hashed.places.forget(self.name);
        if self.header(batch)?.0 == id { Err(self.none()) } else { Ok(()) }
    }

    /// All chunks of this extent with their indexes, in order. At least two round trips.
    pub fn all(&self, extent: Extent) -> Result<Vec<(u64, Chunk)>> {
        let mut batch = self.world().batch();
        let (id, addresses) = self.header(&mut batch)?;
        let parts = chunks(self.name.slots);
        let number = self.name.ranks * parts;
        let mut all = vec![];
        let mut next = 0;
        while next < number {
            let count = (number - next).min((AT_ONCE / 8) as u64);
            let entries = batch.get(addresses.add(next * 8), count as usize * 8, Order::Now)?;
            batch.wait()?;
            for i in 0..count {
                let part = (next + i) % parts;
                let chunk = self.chunk_of(batch.word(entries, i as usize), part, id)?;
                if extent == Extent::All || chunk.first.rank == self.world().rank() {
                    all.push(((next + i) / parts, chunk));
                }
            }
            next += count;
            batch.clear()?;
        }
        Ok(all)
    }

    /// Which ranks the tables are of, by index.
    pub fn owners(&self) -> Result<Vec<u32>> {
        let mut owners = self.all(Extent::All)?;
        owners.dedup_by_key(|(index, _)| *index);
        Ok(owners.into_iter().map(|(_, chunk)| chunk.first.rank).collect())
    }

    /// Frees the tables, whose slots have no elements, and the directory. The batch has [`PUT`](Directory::PUT) bytes
    /// of room: half of a container nobody could destroy.
    pub fn destroy(&self, batch: &mut Batch<'_>) -> Result<()> {
        let (all, (_, addresses)) = (self.all(Extent::All)?, self.header(batch)?);
        batch.clear()?;
        // A rank that remembers a chunk finds no id there, and one that asks the directory finds no container.
        batch.put_words(self.name.address, &[0; 3], Order::Now)?;
        let nothing = vec![0; (CHUNK * SLOT / 8) as usize];
        for (_, chunk) in &all {
            batch.put_words(chunk.first.at, &nothing[..(chunk.slots * SLOT / 8) as usize], Order::Now)?;
            batch.clear()?;
        }
        batch.wait()?;
        self.hashed.places.forget(self.name);
        for (_, chunk) in all {
            self.hashed.heap.free(chunk.first.at)?;
        }
        if addresses != self.name.address.add(DIRECTORY) {
            self.hashed.heap.free(addresses)?;
        }
        self.hashed.heap.free(self.name.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(directory: u64, number: u64) -> Place {
        let name = Name { address: GlobalAddress(directory), ranks: 1, slots: 1 << 40 };
        Place { name, number, chunk: GlobalAddress(number * 16), id: directory + 1, rank: 0 }
    }

    #[test]
    fn places_are_remembered_in_a_table_that_grows_to_its_limit() {
        let places = Places::new();
        assert!(places.find(place(16, 0).name, 0).is_none());
        (0..5000).for_each(|number| places.remember(place(16, number)));
        let found = |directory, number| places.find(place(directory, number).name, number);
        let known = (0..5000).filter(|number| found(16, *number).is_some()).count();
        assert!(known > 4500, "{known} of 5000 are known");
        for number in 0..5000 {
            assert!(found(16, number).is_none_or(|place| place.chunk == GlobalAddress(number * 16)));
        }
        (0..100_000).for_each(|number| places.remember(place(32, number)));
        assert!(found(32, 99_999).is_some());
        assert_eq!(places.places.lock().unwrap().len(), MOST);
        places.forget(place(32, 0).name);
        assert!((0..100_000).all(|number| found(32, number).is_none()));
    }
}
