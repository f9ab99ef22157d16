//! Segments: memory that this rank maps and registers for the libraries above, because some rank has asked for it. The
//! directory lies in the starter memory of the data library, for all ranks to read:
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 7 | the number of places of the directory that were used |
//! | 8 to 15 | the number of segments for all that were made |
//! | 16 n + 16 to 16 n + 23 | the global address of segment n; 0: it was given up |
//! | 16 n + 24 to 16 n + 31 | its length; bit 63 ([`ALONE`]): it is for the rank that has asked for it, else for all |
//!
//! A request for a segment for all has the number of those that the asker has seen, so that of many ranks that lack
//! memory at once one gets it made. A place stays with its kind, so that an address that is read beside the length of
//! its successor never passes for one of the other kind. A segment for all is never given up, and what peers have once
//! read of it stays true. So memory that is freed in two of them never becomes one block, and a heap with a limit has
//! as few of them as can be: see [`Segments::whole`].

use vervain_mesh::Mesh;

use super::own_memory::OwnMemory;
use crate::address::GlobalAddress;
use crate::memory::{Pages, Registration, Rights};
use crate::table::{KeyFor, STARTERS};

/// The number of the starter memory with the directory.
pub(crate) const DIRECTORY: u32 = STARTERS - 1;
/// Bytes of the counts, and of a segment's place.
pub(crate) const PLACE: u64 = 16;
/// Bit of a length: the segment is for the rank that has asked for it.
pub(crate) const ALONE: u64 = 1 << 63;
/// Stands for the number of segments for all that the asker has seen: it wants one for itself.
pub(crate) const FOR_ITSELF: u64 = u64::MAX;
/// The answer instead of a segment's address if there is no memory.
pub(crate) const NO_MEMORY: u64 = 0;
/// The answer if another request has had one made meanwhile. No address: it has no key.
pub(crate) const OTHERS: u64 = 1;
/// The most bytes of a segment for all that is longer than requested. A device may pin all of it.
const WHOLE: u64 = 64 << 20;
/// The same for a heap's first one. The segment for few small blocks is to leave room for large ones, which have
/// segments of their own: one of [`WHOLE`] has a single block of 17 to 48 MiB.
const FIRST_WHOLE: u64 = 16 << 20;

/// This rank's side of its segments.
pub(super) struct Segments {
    /// The segments by their places.
    places: Vec<Place>,
    /// The number of segments for all that were made.
    made: u64,
    bytes: u64,
    /// The most bytes of all segments.
    limit: u64,
}

struct Place {
    alone: bool,
    pages: Option<Pages>,
}

impl Segments {
    pub fn new(limit: u64) -> Self {
        Self { places: vec![], made: 0, bytes: 0, limit }
    }

    /// Leaves all segments mapped for ever.
    pub fn forget(&mut self) {
        self.places.drain(..).for_each(std::mem::forget);
    }

    /// Bytes of a segment for all for a request of `len` bytes, a power of two that fits: `len` in a heap without a
    /// limit, else the largest power of two that the limit leaves room for, up to [`WHOLE`], the first time
    /// [`FIRST_WHOLE`]. If it doubled by segments of 512 KiB, 512 KiB, 1 MiB … instead, a heap of 16 MiB that small
    /// blocks have filled would have no more than 8 MiB in a row for good, whatever is freed.
    fn whole(&self, len: u64) -> u64 {
        if self.limit == u64::MAX {
            return len;
        }
        let left = self.limit.saturating_sub(self.bytes);
        let most = if self.made == 0 { FIRST_WHOLE } else { WHOLE };
        left.checked_ilog2().map_or(len, |log| (1 << log).min(most).max(len))
    }
}

impl OwnMemory {
    /// Maps and registers `len` bytes for a segment.
    fn map_segment(&self, mesh: &Mesh, len: u64) -> Option<(Pages, Registration)> {
        let len = usize::try_from(len).ok()?;
        let pages = Pages::new(len).ok()?;
        // SAFETY: the pages stay until the registration is gone.
        match unsafe { self.register(mesh, pages.start(), len, 0, Rights::Write) } {
            Ok(registration) => Some((pages, registration)),
            Err(error) => {
                pages.unregistered(&error);
                None
            }
        }
    }

    /// Makes a segment of `len` bytes. `known`: the number of segments for all that the asker has seen, which must be
    /// the present one; the segment is then for all, and may be longer, as the directory shows. [`FOR_ITSELF`]: it is
    /// for the asker alone. Returns its address, or the reason why there is none. None if peers have to forget keys
    /// first.
    pub fn extend(&mut self, mesh: &Mesh, known: u64, len: u64) -> Option<u64> {
        let alone = known == FOR_ITSELF;
        if !alone && known != self.segments.made {
            return Some(OTHERS);
        }
        let room = self.table.find(self.starter(self.rank, DIRECTORY)?).map_or(0, |(starter, _)| starter.len() as u64);
        let most = (room / PLACE).saturating_sub(1) as usize;
        let places = &self.segments.places;
        let freed = places.iter().position(|place| alone && place.alone && place.pages.is_none());
        let place = freed.unwrap_or(places.len());
        // Segments for one rank must leave places for those for all.
        let has_place =
            place < most && (!alone || freed.is_some() || places.iter().filter(|place| place.alone).count() < most / 2);
        let fits = len <= self.layout.max_region_size()
            && self.segments.bytes.checked_add(len).is_some_and(|bytes| bytes <= self.segments.limit);
        if !has_place || !fits || len == 0 {
            return Some(NO_MEMORY);
        }
        let wanted = if alone { len } else { self.segments.whole(len) };
        // A device that cannot have the longer one may have the length requested.
        let mapped =
            self.map_segment(mesh, wanted).or_else(|| if wanted > len { self.map_segment(mesh, len) } else { None });
        let Some((pages, registration)) = mapped else { return Some(NO_MEMORY) };
        let len = registration.len() as u64;
        let key = if self.table.remembers(registration.rkey) { Ok(KeyFor::AfterRound) } else { self.table.key() };
        let address = match key {
            Ok(KeyFor::Key(key)) => self.table.insert(key, registration, 0),
            Ok(KeyFor::AfterRound) => {
                if !registration.deregister() {
                    std::mem::forget(pages);
                }
                return None;
            }
            Err(_) => {
                if !registration.deregister() {
                    std::mem::forget(pages);
                }
                return Some(NO_MEMORY);
            }
        };
        self.segments.bytes += len;
        self.write_directory(place as u64 * PLACE + 24, if alone { len | ALONE } else { len });
        self.write_directory(place as u64 * PLACE + 16, address.0);
        match freed {
            Some(place) => self.segments.places[place].pages = Some(pages),
            None => self.segments.places.push(Place { alone, pages: Some(pages) }),
        }
        self.write_directory(0, self.segments.places.len() as u64);
        self.segments.made += u64::from(!alone);
        self.write_directory(8, self.segments.made);
        Some(address.0)
    }

    /// Gives up a segment that was for one rank and that is not used any more. Returns true if there was one.
    pub fn retract(&mut self, segment: GlobalAddress) -> bool {
        let found = self.table.find(segment).filter(|(_, offset)| *offset == 0);
        let Some((start, len)) = found.map(|(registration, _)| (registration.start(), registration.len())) else {
            return false;
        };
        let is_it = |pages: &Pages| pages.start().cast() == start;
        let is_it = |place: &Place| place.alone && place.pages.as_ref().is_some_and(is_it);
        let Some(place) = self.segments.places.iter().position(is_it) else { return false };
        self.write_directory(place as u64 * PLACE + 16, 0);
        let pages = self.segments.places[place].pages.take();
        self.segments.bytes -= len as u64;
        if self.table.remove(segment).is_err() {
            // The device may still access it.
            std::mem::forget(pages);
        }
        true
    }

    /// Stores a word of the directory.
    fn write_directory(&self, at: u64, value: u64) {
        if let Some(starter) = self.starter(self.rank, DIRECTORY) {
            // The memory is this rank's own, and long enough: `extend` has checked that.
            let _ = self.store(starter.add(at), value, size_of::<u64>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lengths of a heap's segments for all, if each request is for as much as there is already, or half of it.
    fn lengths(limit: u64) -> Vec<u64> {
        let (mut segments, mut lengths) = (Segments::new(limit), vec![]);
        let mut asked = 512 << 10;
        while asked >= 16 << 10 {
            if segments.bytes + asked > limit {
                asked /= 2;
                continue;
            }
            let len = segments.whole(asked);
            assert!(len >= asked && len.is_power_of_two(), "{len} of {asked}");
            segments.bytes += len;
            segments.made += 1;
            assert!(segments.bytes <= limit, "{} of {limit}", segments.bytes);
            lengths.push(len);
        }
        lengths
    }

    #[test]
    fn a_heap_with_a_limit_has_few_segments() {
        assert_eq!(lengths(512 << 10), [512 << 10]);
        assert_eq!(lengths(16 << 20), [16 << 20]);
        assert_eq!(lengths((24 << 20) + 5), [16 << 20, 8 << 20]);
        assert_eq!(lengths(208 << 20), [FIRST_WHOLE, WHOLE, WHOLE, WHOLE]);
        // Too little for one segment.
        assert_eq!(lengths(15 << 10), [0; 0]);
    }

    #[test]
    fn few_small_blocks_leave_a_heap_with_a_limit_room_for_large_ones() {
        const LIMIT: u64 = 64 << 20;
        let segments = Segments::new(LIMIT);
        let first = segments.whole(512 << 10);
        assert_eq!((LIMIT - first) / 20_000_000, 2, "segments of one block of 20 MB");
    }

    #[test]
    fn a_heap_without_a_limit_grows_as_it_is_asked_to() {
        let segments = Segments::new(u64::MAX);
        assert_eq!((segments.whole(512 << 10), segments.whole(128 << 20)), (512 << 10, 128 << 20));
        // Longer than those that are chosen here.
        assert_eq!(Segments::new(1 << 30).whole(128 << 20), 128 << 20);
    }
}
