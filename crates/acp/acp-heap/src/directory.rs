//! The segments of a rank, as its directory has them. Its layout is that of `vervain-acp` (`engine::segments`).

use vervain_acp::{Error, Extension, GlobalAddress, Library, Order, Result, World};

use crate::geometry::{Geometry, LARGEST, SMALLEST, Shape};
use crate::hints::Segment;

/// Bytes of the counts, and of a segment's place.
const PLACE: u64 = 16;
/// In a length: the segment is one block.
const ALONE: u64 = 1 << 63;
/// Bytes that are read first: most directories have no more.
const FEW: u64 = 16 * PLACE;

/// log2 of the first segment's bytes: the largest tree of three levels, so that it has large blocks too.
const FIRST: u32 = 19;
/// log2 of the bytes up to which a heap doubles with each segment. Above, it grows by an eighth.
const DOUBLES: u32 = 24;

/// The contents of a directory.
pub struct Directory {
    /// Segments for all that were made.
    made: u64,
    /// Those for all.
    pub segments: Vec<Segment>,
}

impl Directory {
    /// Reads it: one round trip, two if there are many segments.
    pub fn read(world: &World, rank: u32) -> Result<Self> {
        let none = || Error::refused(format!("there is no rank {rank}: the job has {}", world.size()));
        let start = world.library_starter(Library::Data, rank).ok_or_else(none)?;
        let room = world.library_starter_len(Library::Data) / PLACE * PLACE;
        let mut directory = Self { made: 0, segments: vec![] };
        if room <= PLACE {
            // No segment has a place there.
            return Ok(directory);
        }
        let mut batch = world.batch();
        let few = room.min(FEW);
        let mut words = words(&batch_get(&mut batch, start, few)?);
        let count = words[0];
        if count >= room / PLACE {
            return Err(Error::from(format!(
                "the heap of rank {rank} is broken: its directory says {count} segments, and has room for {}",
                room / PLACE - 1
            )));
        }
        let all = (count + 1) * PLACE;
        if all > few {
            words.extend(self::words(&batch_get(&mut batch, start.add(few), all - few)?));
        }
        directory.made = words[1];
        for place in words[2..].chunks_exact(2).take(count as usize) {
            let (base, len) = (GlobalAddress(place[0]), place[1]);
            // One that is just being made is there in a moment.
            if base.is_null() || len == 0 || len & ALONE != 0 {
                continue;
            }
            let geometry = Geometry::new(len.trailing_zeros()).filter(|_| len.is_power_of_two());
            let is_its = world.rank_of(base) == Some(rank) && world.color_of(base) == Some(0);
            let geometry = geometry.filter(|_| is_its && world.region_of(base) == Some(base));
            let Some(geometry) = geometry else {
                return Err(Error::from(format!(
                    "the heap of rank {rank} is broken: its directory has a segment of {len} bytes at {base}"
                )));
            };
            directory.segments.push(Segment { base, geometry });
        }
        Ok(directory)
    }

    /// Has the rank make a segment that has room for the shape, as large as becomes the heap or else as small as it may
    /// be. Returns the directory once it has one more segment, this or another rank's; None if there is no memory.
    pub fn grow(&self, world: &World, rank: u32, shape: Shape) -> Result<Option<Self>> {
        let bytes: u64 = self.segments.iter().map(|segment| 1 << segment.geometry.log()).sum();
        let becomes = becoming(bytes);
        let fits = |log: &u32| Geometry::new(*log).is_some_and(|geometry| geometry.fits(shape));
        let Some(least) = (SMALLEST..=LARGEST).find(fits) else { return Ok(None) };
        for log in (least..=becomes.max(least)).rev().filter(fits) {
            let extension = world.extend(rank, Some(self.made), 1 << log)?;
            if extension == Extension::NoMemory {
                continue;
            }
            let larger = Self::read(world, rank)?;
            let is_there = match extension {
                Extension::Segment(base) => larger.segments.iter().any(|segment| segment.base == base),
                _ => larger.made != self.made,
            };
            if !is_there {
                // A caller that went on with it would ask for segments for ever.
                return Err(Error::from(format!(
                    "the heap of rank {rank} is broken: its directory has not the segment that was made last"
                )));
            }
            return Ok(Some(larger));
        }
        Ok(None)
    }
}

/// log2 of the bytes of the next segment of a heap of so many.
fn becoming(bytes: u64) -> u32 {
    let log = |bytes: u64| bytes.checked_ilog2().unwrap_or(0);
    log(bytes).clamp(FIRST, DOUBLES.max(log(bytes / 8))).min(LARGEST)
}

fn batch_get(batch: &mut vervain_acp::Batch<'_>, from: GlobalAddress, len: u64) -> Result<Vec<u8>> {
    let place = batch.get(from, len as usize, Order::Now)?;
    batch.wait()?;
    Ok(batch.bytes(place))
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_doubles_and_then_grows_by_an_eighth() {
        let (mut bytes, mut segments) = (0, vec![]);
        while bytes < 1 << 40 {
            segments.push(becoming(bytes));
            bytes += 1 << becoming(bytes);
        }
        assert_eq!(segments[..8], [19, 19, 20, 21, 22, 23, 24, 24]);
        // A TiB has not half of the places of a directory of 4096 bytes.
        assert!(segments.len() < 127, "{}", segments.len());
    }
}
