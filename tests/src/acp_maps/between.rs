//! What ranks see of each other in the midst of their changes, by chance: often enough that it comes to pass; and iterators that name what is not
//! their container's.

use vervain_acp::{Atomic, Batch, GlobalAddress, Order, Result};
use vervain_acp_containers::GMap;
use vervain_acp_containers::hashed::{Bytes, Container, Cursor, Extent, Hashed, Kind, Name};

use super::trips::slot_of;
use super::{holds, shared};
use crate::scarce::free_bytes;

const LOCKED: u64 = 1 << 63;

/// Iterators of another container, of elements of another slot, and of what was removed.
pub fn cursors(hashed: Hashed<'_>) -> Result<()> {
    let world = hashed.world();
    let name = shared(hashed, || Ok(hashed.create(Kind::Map, &[0], 2, 0)?.name()))?;
    let other = shared(hashed, || Ok(hashed.create(Kind::Map, &[0], 2, 0)?.name()))?;
    let (map, other) = (Container::of(hashed, Kind::Map, name), Container::of(hashed, Kind::Map, other));
    if world.rank() == world.size() - 1 {
        for key in 0..20u64 {
            for map in [&map, &other] {
                map.insert(Bytes::Here(&key.to_ne_bytes()), Bytes::Here(&[1; 8]))?;
            }
        }
        let nothing = |cursor: &Cursor, what: &str| -> Result<()> {
            let (parts, next) = (map.parts(cursor)?, map.next(cursor)?);
            holds(parts.is_none() && next == map.end(), || format!("{what} has {parts:?}, and {next:?} behind it"))
        };
        nothing(&map.end(), "the end")?;
        nothing(&other.begin()?, "the beginning of another map")?;
        nothing(&other.end(), "the end of another map")?;
        let first = map.begin()?;
        nothing(&Cursor { index: -1, ..first }, "index -1")?;
        nothing(&Cursor { index: 1, ..first }, "an index that is not there")?;
        nothing(&Cursor { slot: 2, ..first }, "a slot that is not there")?;
        nothing(&Cursor { slot: i32::MIN, ..first }, "a slot before the first")?;
        nothing(&Cursor { element: 0, ..first }, "no element")?;
        // Elements, but not of this slot: an iterator there goes on with what the slot has.
        let theirs = other.begin()?.element;
        let in_the_other_slot = map.find_other(&first)?;
        for (what, element) in [("another map's", theirs), ("another slot's", in_the_other_slot)] {
            let cursor = Cursor { element, ..first };
            holds(map.parts(&cursor)?.is_none(), || format!("an element is {what}"))?;
            holds(map.next(&cursor)? == first, || format!("{what} element is followed by {:?}", map.next(&cursor)))?;
        }
        // No element, and no rank's.
        for element in [1, u64::MAX, world.library_starter(vervain_acp::Library::Data, 0).map_or(0, |at| at.0 | 1)] {
            holds(map.parts(&Cursor { element, ..first })?.is_none(), || format!("{element:#x} is an element"))?;
        }
        map.clear(Extent::All)?;
        holds(map.parts(&first)?.is_none() && map.next(&first)? == map.end(), || "an element that was cleared".into())?;
    }
    world.sync()
}

trait Other {
    fn find_other(&self, cursor: &Cursor) -> Result<u64>;
}

impl Other for Container<'_> {
    /// The first element in another slot.
    fn find_other(&self, cursor: &Cursor) -> Result<u64> {
        let mut other = *cursor;
        while other.slot == cursor.slot {
            other = self.next(&other)?;
        }
        Ok(other.element)
    }
}

/// A map of one slot that rank 0 sees as others change it.
fn of_one_slot<'a>(hashed: Hashed<'a>, on: u32) -> Result<(Name, GMap<'a, u64, u64>)> {
    let name = shared(hashed, || Ok(GMap::<u64, u64>::create(hashed, &[on], 1, 0)?.name()))?;
    Ok((name, GMap::open(hashed, name)))
}

fn word(batch: &mut Batch<'_>, at: GlobalAddress) -> Result<u64> {
    batch.clear()?;
    let word = batch.get(at, 8, Order::Now)?;
    batch.wait()?;
    Ok(batch.word(word, 0))
}

/// Makes the slot this rank's, if it is free: its word of before.
fn lock(batch: &mut Batch<'_>, slot: GlobalAddress, rank: u32) -> Result<Option<u64>> {
    let expected = word(batch, slot)?;
    if expected & LOCKED != 0 {
        return Ok(None);
    }
    let new = LOCKED | u64::from(rank) << 32 | expected & u64::from(u32::MAX);
    let was = batch.atomic(slot, Atomic::CompareSwap8 { expected, new }, Order::Now)?;
    batch.wait()?;
    Ok((batch.word(was, 0) == expected).then_some(expected))
}

/// Others insert a key and remove it; whenever it is not there, its block does not say that it is an element: an iterator of before
/// would believe it.
pub fn unlinked(hashed: Hashed<'_>, count: u64) -> Result<()> {
    let world = hashed.world();
    let (name, map) = of_one_slot(hashed, 0)?;
    let slot = slot_of(world, name)?;
    if world.rank() == 0 {
        let mut batch = world.batch();
        let (mut known, mut looks) = (vec![], 0);
        while looks < count {
            let Some(free) = lock(&mut batch, slot, 0)? else { continue };
            let head = GlobalAddress(word(&mut batch, slot.add(8))? & !15);
            if !head.is_null() {
                if !known.contains(&head) {
                    known.push(head);
                }
            } else {
                // Long enough for who has found the slot free before to write its element, which it cannot link.
                for _ in 0..20 {
                    for element in &known {
                        let mark = word(&mut batch, element.add(8))?;
                        holds(mark != !slot.0, || format!("what is at {element} and in no slot is marked"))?;
                    }
                }
                looks += u64::from(!known.is_empty());
            }
            batch.clear()?;
            batch.put_words(slot, &[free & !u64::from(u32::MAX) | (free + 1) & u64::from(u32::MAX)], Order::Now)?;
            batch.clear()?;
        }
        world.store(super::starter(world, 0)?.add(40), 1)?;
    } else {
        let over = super::starter(world, 0)?.add(40).address();
        let mut batch = world.batch();
        while word(&mut batch, over)? == 0 {
            map.insert(&7, &1)?;
            map.remove(&7)?;
        }
    }
    world.sync()
}

/// The slot of a map goes from one rank to another and back, as where a map was made anew at the same address by other ranks, in the
/// midst of insertions: nobody keeps a block of the former rank's.
pub fn elsewhere(hashed: Hashed<'_>, count: u64) -> Result<()> {
    let world = hashed.world();
    let (name, map) = of_one_slot(hashed, 0)?;
    let (twin, _) = of_one_slot(hashed, 1)?;
    let slots = [slot_of(world, name)?, slot_of(world, twin)?];
    let over = super::starter(world, 0)?.add(40).address();
    let left = if world.rank() == 0 { [free_bytes(hashed.heap(), 0)?, free_bytes(hashed.heap(), 1)?] } else { [0; 2] };
    world.sync()?;
    if world.rank() == 0 {
        let mut batch = world.batch();
        let ids = [word(&mut batch, slots[0].add(16))?, word(&mut batch, slots[1].add(16))?];
        let mut go = |to: usize| -> Result<()> {
            // The id, where the table is, and at last that it is not where it was.
            batch.clear()?;
            batch.put_words(slots[to].add(16), &[ids[to]], Order::Now)?;
            batch.put_words(name.address.add(48), &[slots[to].0], Order::All)?;
            batch.put_words(name.address.add(16), &[ids[to]], Order::All)?;
            batch.put_words(slots[1 - to].add(16), &[0], Order::All)?;
            batch.wait()
        };
        for turn in 0..count {
            go(1 - turn as usize % 2)?;
            // Some time for those who find that it has gone.
            for _ in 0..turn % 50 {
                word(&mut world.batch(), over)?;
            }
        }
        go(0)?;
        world.store(super::starter(world, 0)?.add(40), 1)?;
    } else {
        let mut batch = world.batch();
        while word(&mut batch, over)? == 0 {
            for result in [map.insert(&7, &1), map.remove(&7)] {
                // Between the two words that tell where it is, there is none.
                holds(result.as_ref().is_ok() || result.as_ref().is_err_and(|e| e.is_refused()), || {
                    format!("{result:?}")
                })?;
            }
        }
    }
    world.sync()?;
    if world.rank() == 0 {
        let mut batch = world.batch();
        for slot in slots {
            // What is in either goes.
            let head = word(&mut batch, slot.add(8))?;
            let (mut at, mut blocks) = (GlobalAddress(head & !15), vec![]);
            while !at.is_null() {
                blocks.push(at);
                at = GlobalAddress(word(&mut batch, at)? & !15);
            }
            batch.clear()?;
            batch.put_words(slot, &[0, 0], Order::Now)?;
            batch.clear()?;
            blocks.into_iter().try_for_each(|block| hashed.heap().free(block))?;
        }
        let now = [free_bytes(hashed.heap(), 0)?, free_bytes(hashed.heap(), 1)?];
        holds(now == left, || format!("{now:?} bytes are left of {left:?}"))?;
    }
    world.sync()
}
