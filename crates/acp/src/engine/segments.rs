//! Segments: memory of the libraries above that this rank maps and registers because some rank has asked for it. Their directory
//! lies in the starter memory of the data library, for all ranks to read:
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 7 | how many places the directory has that were used |
//! | 16 n + 16 to 16 n + 23 | the global address of segment n; 0: it was given up |
//! | 16 n + 24 to 16 n + 31 | its length |
//!
//! Who asks says how many places it has seen, so that of many that miss memory at once one makes the segment for all.

use crate::address::GlobalAddress;
use crate::engine::Engine;
use crate::memory::Pages;
use crate::table::{KeyFor, STARTERS};

/// Which starter memory has the directory.
pub(crate) const DIRECTORY: u32 = STARTERS - 1;
/// Bytes of the count, and of a segment's place.
pub(crate) const PLACE: u64 = 16;

/// This rank's side of its segments.
pub(super) struct Segments {
    /// By their places.
    mapped: Vec<Option<Pages>>,
    bytes: u64,
    /// The most bytes.
    limit: u64,
}

impl Segments {
    pub fn new(limit: u64) -> Self {
        Self { mapped: vec![], bytes: 0, limit }
    }

    /// They stay mapped for ever.
    pub fn forget(&mut self) {
        self.mapped.drain(..).for_each(std::mem::forget);
    }
}

impl Engine {
    /// Makes a segment of `len` bytes if there are `known` places; how many there are then. None if peers have to forget keys first.
    pub(super) fn extend(&mut self, known: u64, len: u64) -> Option<u64> {
        let count = self.segments.mapped.len() as u64;
        let room = self.table.find(self.starter(self.rank, DIRECTORY)?).map_or(0, |(starter, _)| starter.len() as u64);
        let freed = self.segments.mapped.iter().position(Option::is_none);
        let place = freed.unwrap_or(self.segments.mapped.len());
        let fits = len <= self.layout.max_region_size()
            && self.segments.bytes.checked_add(len).is_some_and(|bytes| bytes <= self.segments.limit)
            && (place as u64 + 2) * PLACE <= room;
        if known != count || !fits || len == 0 {
            return Some(count);
        }
        let Ok(pages) = usize::try_from(len).map_err(drop).and_then(|len| Pages::new(len).map_err(drop)) else {
            return Some(count);
        };
        // SAFETY: the pages stay until the registration is gone.
        let Ok(registration) = (unsafe { self.register(pages.start(), len as usize, 0) }) else { return Some(count) };
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
                return Some(count);
            }
        };
        self.segments.bytes += len;
        self.tell(place as u64 * PLACE + 24, len);
        self.tell(place as u64 * PLACE + 16, address.0);
        match freed {
            Some(place) => self.segments.mapped[place] = Some(pages),
            None => self.segments.mapped.push(Some(pages)),
        }
        let count = self.segments.mapped.len() as u64;
        self.tell(0, count);
        Some(count)
    }

    /// Gives a segment up, which nobody uses any more.
    pub(super) fn retract(&mut self, segment: GlobalAddress) -> bool {
        let found = self.table.find(segment).filter(|(_, offset)| *offset == 0);
        let Some((start, len)) = found.map(|(registration, _)| (registration.start(), registration.len())) else {
            return false;
        };
        let is_it = |pages: &Option<Pages>| pages.as_ref().is_some_and(|pages| pages.start().cast() == start);
        let Some(place) = self.segments.mapped.iter().position(is_it) else { return false };
        self.tell(place as u64 * PLACE + 16, 0);
        let pages = self.segments.mapped[place].take();
        self.segments.bytes -= len as u64;
        if self.table.remove(segment).is_err() {
            // The device may still reach it.
            std::mem::forget(pages);
        }
        true
    }

    /// Stores a word of the directory.
    fn tell(&self, at: u64, value: u64) {
        if let Some(starter) = self.starter(self.rank, DIRECTORY) {
            // It is this rank's own, and long enough: `extend` has looked.
            let _ = self.store(starter.add(at), value, size_of::<u64>());
        }
    }
}
