//! Random programs against a model: the ranks take turns, and each finds what all have done before.

use fastrand::Rng;
use vervain_acp::{Error, Result};
use vervain_acp_containers::hashed::{Bytes, Container, Extent, Hashed, Item, Kind, Name, Room};

use super::{holds, other, shared};

/// Operations of a rank before it is the next one's turn.
const TURN: u64 = 40;
const SHAPES: [(&[u32], u64); 4] = [(&[0, 1, 2], 5), (&[1, 0, 1], 3), (&[0], 1), (&[2, 1, 0], 2100)];

/// A container as it should be: a list for each slot of each index.
#[derive(Clone)]
struct Model {
    ranks: u64,
    slots: u64,
    lists: Vec<Vec<Item>>,
}

/// CRC-64 with the reflected polynomial, bit by bit.
fn crc(bytes: &[u8]) -> u64 {
    let step = |crc: u64, _| (crc >> 1) ^ ((crc & 1) * 0xc96c_5795_d787_0f42);
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), step))
}

impl Model {
    fn of(ranks: u64, slots: u64) -> Self {
        Self { ranks, slots, lists: vec![vec![]; (ranks * slots) as usize] }
    }

    fn list(&mut self, key: &[u8]) -> &mut Vec<Item> {
        let crc = crc(key) >> 16;
        let at = crc / self.slots % self.ranks * self.slots + crc % self.slots;
        &mut self.lists[at as usize]
    }

    fn insert(&mut self, kind: Kind, key: &[u8], value: &[u8], count: u64) -> bool {
        let list = self.list(key);
        match list.iter_mut().find(|item| item.key == key) {
            Some(item) => {
                item.count += if kind == Kind::Multiset { count } else { 0 };
                kind == Kind::Multiset
            }
            None => {
                list.push(Item { key: key.to_vec(), value: value.to_vec(), count });
                true
            }
        }
    }

    fn remove(&mut self, key: &[u8], times: u64) -> bool {
        let list = self.list(key);
        let Some(at) = list.iter().position(|item| item.key == key) else { return false };
        if list[at].count > times {
            list[at].count -= times;
        } else {
            list.remove(at);
        }
        true
    }

    fn merge(&mut self, kind: Kind, from: &[Item]) {
        for item in from {
            self.insert(kind, &item.key, &item.value, item.count);
        }
    }

    fn items(&self) -> Vec<Item> {
        self.lists.concat()
    }

    /// What is stored at `rank`.
    fn items_of(&self, owners: &[u32], rank: u32) -> Vec<Item> {
        let index = |at: usize| owners[at / self.slots as usize];
        (0..self.lists.len()).filter(|at| index(*at) == rank).flat_map(|at| self.lists[at].clone()).collect()
    }
}

/// The containers of one kind, and their models.
struct Family<'a> {
    kind: Kind,
    hashed: Hashed<'a>,
    owners: Vec<Vec<u32>>,
    names: Vec<Name>,
    models: Vec<Model>,
}

fn a_key(random: &mut Rng) -> Vec<u8> {
    let number = random.u8(..60);
    let len = match number {
        0..50 => 1 + number as usize % 24,
        50..56 => 250 + number as usize,
        56..59 => 1100 * (number as usize - 54),
        _ => 70_000,
    };
    (0..len).map(|i| number.wrapping_add((i / 7) as u8)).collect()
}

fn a_value(random: &mut Rng) -> Vec<u8> {
    let len = match random.u8(..40) {
        0..30 => random.usize(1..60),
        30..36 => random.usize(450..1100),
        36..39 => random.usize(3000..40_000),
        _ => 100_000,
    };
    let byte = random.u8(..);
    (0..len).map(|i| byte.wrapping_add((i / 3) as u8)).collect()
}

impl<'a> Family<'a> {
    fn container(&self, which: usize) -> Container<'a> {
        Container::of(self.hashed, self.kind, self.names[which])
    }

    /// One operation: of the model at all ranks, and of the container where it is this one's `turn`.
    fn step(&mut self, random: &mut Rng, turn: bool, rank: u32) -> Result<()> {
        let (which, with) = (random.usize(..SHAPES.len()), random.usize(..SHAPES.len()));
        let (key, value) = (a_key(random), a_value(random));
        let value = if self.kind == Kind::Map { value } else { vec![] };
        let (one, two) = (self.container(which), self.container(with));
        let extent = if random.u8(..3) == 0 { Extent::Local } else { Extent::All };
        let key_bytes = Bytes::Here(&key);
        let theirs = match extent {
            Extent::All => self.models[with].items(),
            Extent::Local => self.models[with].items_of(&self.owners[with], rank),
        };
        let what = random.u32(..1000);
        let same = |found: bool, expected: bool, what: &str| {
            holds(found == expected, || format!("{what} of {} bytes: {found}", key.len()))
        };
        match what {
            0..450 => {
                let inserted = self.models[which].insert(self.kind, &key, &value, 1);
                if turn {
                    same(one.insert(key_bytes, Bytes::Here(&value))?, inserted, "insert")?;
                }
            }
            450..700 => {
                let times = if random.bool() { 1 } else { u64::MAX };
                let removed = self.models[which].remove(&key, times);
                if turn {
                    same(one.remove(key_bytes, times)?, removed, "remove")?;
                }
            }
            700..940 => {
                let item = self.models[which].list(&key).iter().find(|item| item.key == key).cloned();
                let room = random.usize(..value.len() + 2);
                if turn {
                    self.look(&one, &key, item, room)?;
                }
            }
            940..945 => {
                if extent == Extent::All {
                    self.models[which] = Model::of(self.models[which].ranks, self.models[which].slots);
                    if turn {
                        one.clear(extent)?;
                    }
                }
            }
            945..960 => {
                if which != with {
                    self.models[which].merge(self.kind, &theirs);
                }
                if turn {
                    one.merge(&two, extent)?;
                }
            }
            960..975 => {
                if which != with {
                    self.models[which].merge(self.kind, &theirs);
                    for item in &theirs {
                        self.models[with].remove(&item.key, u64::MAX);
                    }
                }
                if turn {
                    one.take_from(&two, extent)?;
                }
            }
            975..980 => {
                if which != with {
                    let Model { ranks, slots, .. } = self.models[which];
                    self.models[which] = Model::of(ranks, slots);
                    self.models[which].merge(self.kind, &theirs);
                }
                if turn {
                    one.assign(&two, extent)?;
                }
            }
            980..985 => {
                if which != with {
                    let (a, b) = (self.models[which].items(), self.models[with].items());
                    for (at, items) in [(which, b), (with, a)] {
                        let Model { ranks, slots, .. } = self.models[at];
                        self.models[at] = Model::of(ranks, slots);
                        self.models[at].merge(self.kind, &items);
                    }
                }
                if turn {
                    one.swap(&two)?;
                }
            }
            _ => {
                if turn {
                    self.compare(which, rank)?;
                }
            }
        }
        Ok(())
    }

    fn look(&self, one: &Container<'_>, key: &[u8], item: Option<Item>, room: usize) -> Result<()> {
        let key_bytes = Bytes::Here(key);
        let count = item.as_ref().map_or(0, |item| item.count);
        holds(one.count(key_bytes)? == count, || format!("a key of {} bytes is not there {count} times", key.len()))?;
        let cursor = one.find(key_bytes)?;
        holds((cursor == one.end()) == item.is_none(), || format!("found {cursor:?}, expected {item:?}"))?;
        let Some(item) = item else { return Ok(()) };
        let parts = one.parts(&cursor)?.ok_or_else(|| other("an element without parts".into()))?;
        let sizes = (item.key.len() as u64, item.value.len() as u64, item.count);
        holds((parts.key.1, parts.value.1, parts.count) == sizes, || format!("{parts:?} of {sizes:?}"))?;
        if self.kind == Kind::Map {
            let mut bytes = vec![0xee; room];
            let stored = one.retrieve(key_bytes, Room::Here(&mut bytes))?;
            let copied = room.min(item.value.len());
            holds(stored == Some(item.value.len() as u64), || format!("{stored:?} bytes of {}", item.value.len()))?;
            holds(bytes[..copied] == item.value[..copied], || {
                format!("a value of {} bytes differs", item.value.len())
            })?;
            holds(bytes[copied..].iter().all(|byte| *byte == 0xee), || "bytes behind the value".into())?;
        }
        Ok(())
    }

    /// All of a container, by its iterators, its numbers, and its contents.
    fn compare(&self, which: usize, rank: u32) -> Result<()> {
        let (one, model) = (self.container(which), &self.models[which]);
        let expected = model.items();
        let found: Vec<Item> = one.iter(Extent::All)?.collect::<Result<_>>()?;
        holds(found == expected, || format!("{} elements, not {}, or in another order", found.len(), expected.len()))?;
        let locals: Vec<Item> = one.iter(Extent::Local)?.collect::<Result<_>>()?;
        let own = model.items_of(&self.owners[which], rank);
        holds(locals == own, || format!("{} elements of this rank, not {}", locals.len(), own.len()))?;
        let numbers = (one.len(Extent::All)?, one.len(Extent::Local)?);
        holds(numbers == (expected.len() as u64, own.len() as u64), || format!("lengths {numbers:?}"))?;
        let empty = (one.is_empty(Extent::All)?, one.is_empty(Extent::Local)?);
        holds(empty == (expected.is_empty(), own.is_empty()), || format!("empty {empty:?}"))?;
        let (mut cursor, mut begun_locally) = (one.begin()?, false);
        let (local, end_local) = (one.begin_local()?, one.end_local()?);
        for item in &expected {
            begun_locally |= cursor == local;
            holds(cursor == one.find(Bytes::Here(&item.key))?, || format!("another element at {cursor:?}"))?;
            cursor = one.next(&cursor)?;
        }
        holds(cursor == one.end() && one.next(&cursor)? == cursor, || format!("no end at {cursor:?}"))?;
        holds(begun_locally || local == end_local && own.is_empty(), || format!("{local:?} is no element"))?;
        let behind =
            self.owners[which].iter().rposition(|owner| *owner == rank).map_or(model.ranks, |last| last as u64 + 1);
        let first = model.lists[(behind * model.slots) as usize..].iter().flatten().next();
        let first = first.map_or(Ok(one.end()), |item| one.find(Bytes::Here(&item.key)))?;
        holds(end_local == first, || format!("{end_local:?} is the end of this rank's, not {first:?}"))
    }
}

/// All ranks know all operations; those of a turn are carried out by one.
pub fn run(hashed: Hashed<'_>, count: u64, seed: u64) -> Result<()> {
    let world = hashed.world();
    let (rank, size) = (world.rank(), world.size());
    let mut random = Rng::with_seed(seed);
    let mut families = vec![];
    for kind in [Kind::Set, Kind::Multiset, Kind::Map] {
        let (mut names, mut models, mut owners) = (vec![], vec![], vec![]);
        for (ranks, slots) in SHAPES {
            let ranks: Vec<u32> = ranks.iter().map(|rank| rank % size).collect();
            names.push(shared(hashed, || Ok(hashed.create(kind, &ranks, slots, size - 1)?.name()))?);
            models.push(Model::of(ranks.len() as u64, slots));
            owners.push(ranks);
        }
        families.push(Family { kind, hashed, owners, names, models });
    }
    for i in 0..count {
        let taker = (i / TURN % u64::from(size)) as u32;
        for family in &mut families {
            // What is local is that of the rank whose turn it is.
            let step = family.step(&mut random, taker == rank, taker);
            step.map_err(|error| other(format!("operation {i} of seed {seed}, a {:?}: {error}", family.kind)))?;
        }
        if i % TURN == TURN - 1 {
            world.sync()?;
        }
    }
    world.sync()?;
    for family in &families {
        (0..SHAPES.len()).try_for_each(|which| family.compare(which, rank))?;
    }
    world.sync()?;
    if rank == 0 {
        for family in &families {
            for which in 0..SHAPES.len() {
                family.container(which).destroy()?;
            }
        }
    }
    world.sync()?;
    // All that remember them find out.
    for family in &families {
        for which in 0..SHAPES.len() {
            let found = family.container(which).count(Bytes::Here(b"a key"));
            holds(found.as_ref().is_err_and(Error::is_refused), || format!("{found:?} of what was destroyed"))?;
        }
    }
    world.sync()
}
