//! The table of registrations of this rank, published for peers, which read entries by RDMA.
//!
//! A peer keeps the entries that it has read as long as its connection. So before a key is used again, connected peers
//! are asked to forget this rank's entries: keys given up wait in a queue, and one round of asking frees them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::address::{GlobalAddress, Layout, Parts};
use crate::error::{Error, Result};
use crate::memory::{Domain, Mapped, Registration};

/// The keys of the starter memories: the user's, that of channels, that of the data library.
pub(crate) const STARTERS: u32 = 3;
/// The least number of given-up keys for which peers are asked to forget them, if other keys are left.
const MIN_ROUND: usize = 128;

/// A region as peers read it: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its first byte, as requests name it.
    pub start: u64,
    /// Its length in bytes.
    pub size: u64,
    /// The key for peers.
    pub rkey: u32,
}

impl Entry {
    /// Bytes of an entry.
    pub const BYTES: usize = 32;

    /// Encodes it.
    pub fn words(self) -> [u64; 4] {
        let words = [self.start, self.size, u64::from(self.rkey) | 1 << 32];
        [words[0], words[1], words[2], check(&words)]
    }

    /// Decodes an entry; None if nothing is registered.
    ///
    /// # Errors
    /// It was read while it changed.
    #[expect(clippy::result_unit_err, reason = "there is one error")]
    pub fn read(words: [u64; 4]) -> Result<Option<Self>, ()> {
        if words == [0; 4] {
            return Ok(None);
        }
        let [start, size, rkey, sum] = words;
        if sum != check(&[start, size, rkey]) || rkey >> 32 != 1 {
            return Err(());
        }
        Ok(Some(Self { start, size, rkey: rkey as u32 }))
    }
}

/// The sum over an entry's words, which reveals an entry that is half of another. Devices most often read 32 bytes at
/// once, but do not promise it.
fn check(words: &[u64; 3]) -> u64 {
    // Odd constants of the golden ratio's kind: any change of one word changes the sum.
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words.iter().fold(0x243f_6a88_85a3_08d3, mix) | 1
}

struct Own {
    registration: Registration,
    color: u32,
}

/// The registrations of this rank.
pub(crate) struct Table {
    rank: u32,
    layout: Layout,
    published: Mapped,
    own: Vec<Option<Own>>,
    /// Keys that may be used at once, and given-up ones that peers may remember, with their rkeys.
    free: VecDeque<u32>,
    given_up: VecDeque<(u32, u32)>,
    live: usize,
}

/// The key for a new registration.
pub(crate) enum KeyFor {
    Key(u32),
    /// Peers have to forget the given-up keys first.
    AfterRound,
}

impl Table {
    pub fn new(domains: &[Domain<'_>], rank: u32, layout: Layout) -> Result<Self> {
        let published = Mapped::new(domains, (layout.max_regions() as usize + 1) * Entry::BYTES)?;
        let (free, given_up) = (VecDeque::new(), VecDeque::new());
        Ok(Self { rank, layout, published, own: vec![None], free, given_up, live: 0 })
    }

    /// Bytes of a table with all regions that a job of this layout can have: the published part, and this rank's side
    /// of it.
    pub fn bytes(layout: Layout) -> usize {
        (layout.max_regions() as usize + 1) * (Entry::BYTES + size_of::<Option<Own>>())
    }

    /// Address and key at which peers of `port` read it.
    pub fn published(&self, port: usize) -> (u64, u32) {
        (self.published.start(), self.published.rkey(port))
    }

    /// Takes a key for the next registration.
    pub fn key(&mut self) -> Result<KeyFor> {
        if let Some(key) = self.free.pop_front() {
            return Ok(KeyFor::Key(key));
        }
        let fresh = self.own.len() as u32;
        let full = fresh > self.layout.max_regions();
        if self.wants_round() || (full && !self.given_up.is_empty()) {
            return Ok(KeyFor::AfterRound);
        }
        if full {
            let most = self.layout.max_regions() - STARTERS;
            return Err(Error::refused(format!(
                "the table of registrations is full: rank {} has {most} regions, the most in a job of this size",
                self.rank
            )));
        }
        Ok(KeyFor::Key(self.fresh()))
    }

    /// Returns true if so many keys were given up that peers should be asked to forget them.
    pub fn wants_round(&self) -> bool {
        self.free.is_empty() && self.given_up.len() >= MIN_ROUND.max(self.live)
    }

    /// As [`key`](Table::key), but peers have to forget only if no other key is left.
    pub fn key_at_once(&mut self) -> Result<KeyFor> {
        match self.key()? {
            KeyFor::AfterRound if self.own.len() as u32 <= self.layout.max_regions() => Ok(KeyFor::Key(self.fresh())),
            key => Ok(key),
        }
    }

    fn fresh(&mut self) -> u32 {
        self.own.push(None);
        self.own.len() as u32 - 1
    }

    /// Ends a round: the first `keys` keys that were given up can be used again.
    pub fn round_done(&mut self, keys: usize) {
        self.free.extend(self.given_up.drain(..keys.min(self.given_up.len())).map(|(key, _)| key));
    }

    pub fn given_up(&self) -> usize {
        self.given_up.len()
    }

    /// Returns true if a peer may remember `rkey` for a region that is gone. Devices use the numbers again.
    pub fn remembers(&self, rkey: u32) -> bool {
        self.given_up.iter().any(|(_, given_up)| *given_up == rkey)
    }

    /// Publishes a registration under `key`, which [`key`](Table::key) returned.
    pub fn insert(&mut self, key: u32, registration: Registration, color: u32) -> GlobalAddress {
        let entry =
            Entry { start: registration.start() as u64, size: registration.len() as u64, rkey: registration.rkey };
        self.own[key as usize] = Some(Own { registration, color });
        self.live += 1;
        self.publish(key, entry.words());
        self.layout.address(Parts { rank: self.rank, color, key, offset: 0 })
    }

    fn publish(&self, key: u32, words: [u64; 4]) {
        let at = key as usize * Entry::BYTES;
        // The sum is written last; before everything else it is made wrong.
        self.published.word(at + 24).store(0, Ordering::Relaxed);
        for (i, word) in words.iter().enumerate() {
            fence(Ordering::Release);
            self.published.word(at + 8 * i).store(*word, Ordering::Relaxed);
        }
    }

    /// Takes the region of `key` out. Peers that have its entry get access errors from now on.
    pub fn remove(&mut self, address: GlobalAddress) -> Result<()> {
        let nothing = || Error::refused(format!("{address} is no key of a region of this rank"));
        let parts = self.mine(address).filter(|parts| parts.offset == 0 && parts.key > STARTERS).ok_or_else(nothing)?;
        let own = self.own[parts.key as usize].take().ok_or_else(nothing)?;
        self.live -= 1;
        self.publish(parts.key, [0; 4]);
        let rkey = own.registration.rkey;
        if !own.registration.deregister() {
            // Its key is never used again.
            return Err(Error::refused(format!("the device does not let go of the region {address}")));
        }
        self.given_up.push_back((parts.key, rkey));
        Ok(())
    }

    /// Deregisters all. Returns false if the device did not release one.
    pub fn close(&mut self) -> bool {
        self.own.drain(..).flatten().map(|own| own.registration.deregister()).fold(true, |all, one| all & one)
    }

    /// The parts of an address of a registered region of this rank.
    fn mine(&self, address: GlobalAddress) -> Option<Parts> {
        let parts = self.layout.parts(address)?;
        let own = self.own.get(parts.key as usize)?.as_ref()?;
        (parts.rank == self.rank && parts.color == own.color).then_some(parts)
    }

    /// The region of an address of this rank, and the offset in it, which is at most its length.
    #[inline]
    pub fn find(&self, address: GlobalAddress) -> Option<(&Registration, usize)> {
        let parts = self.mine(address)?;
        let registration = &self.own[parts.key as usize].as_ref()?.registration;
        let offset = usize::try_from(parts.offset).ok()?;
        (offset <= registration.len()).then_some((registration, offset))
    }

    /// The region of `len` bytes of this rank from `address` on, and their offset in it.
    ///
    /// # Errors
    /// Part of the range is not registered.
    #[inline]
    pub fn range(&self, address: GlobalAddress, len: usize) -> Result<(&Registration, usize)> {
        match self.find(address) {
            Some((registration, offset)) if len <= registration.len() - offset => Ok((registration, offset)),
            found => Err(self.outside(address, len, found.map(|(registration, _)| registration.len()))),
        }
    }

    /// As [`range`](Table::range), for memory that the processor stores to.
    ///
    /// # Errors
    /// As of [`range`](Table::range), or the memory may not be written.
    #[inline]
    pub fn writable(&self, address: GlobalAddress, len: usize) -> Result<(&Registration, usize)> {
        match self.range(address, len) {
            Ok((registration, _)) if !registration.writable => Err(Error::broken(read_only(self.rank, address))),
            found => found,
        }
    }

    #[cold]
    fn outside(&self, address: GlobalAddress, len: usize, size: Option<usize>) -> Error {
        Error::broken(outside(
            self.rank,
            self.layout.offset(address),
            len as u64,
            address,
            size.map(|size| size as u64),
        ))
    }

    /// The global address of `pointer` in the region that begins at `key`; the byte past the end has one too.
    pub fn global(&self, key: GlobalAddress, pointer: usize) -> Option<GlobalAddress> {
        let (registration, 0) = self.find(key)? else { return None };
        let offset = pointer.checked_sub(registration.start() as usize)?;
        (offset <= registration.len()).then(|| key.add(offset as u64))
    }
}

/// The sentence about an access outside of a region.
pub(crate) fn outside(rank: u32, offset: u64, len: u64, address: GlobalAddress, size: Option<u64>) -> String {
    match size {
        Some(size) => format!(
            "{len} bytes at global address {address} of rank {rank} are outside of their region: offset {offset}, size {size}"
        ),
        None => format!("{len} bytes at global address {address} of rank {rank}: nothing is registered there"),
    }
}

/// The sentence about a store to memory that was registered but may not be written.
pub(crate) fn read_only(rank: u32, address: GlobalAddress) -> String {
    format!("the memory at global address {address} of rank {rank} may not be written")
}

/// An entry as a peer has read it, from memory that a device has written.
pub(crate) fn read_entry(words: [&AtomicU64; 4]) -> Result<Option<Entry>, ()> {
    Entry::read(words.map(|word| word.load(Ordering::Acquire)))
}

#[cfg(test)]
mod stale_keys;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_half_of_another_is_seen() {
        let one = Entry { start: 0x7f00_0000_1000, size: 4096, rkey: 0xffff_ffff };
        let other = Entry { start: 0x7f00_0000_2000, size: 8192, rkey: 1 };
        assert_eq!(Entry::read(one.words()), Ok(Some(one)));
        assert_eq!(Entry::read([0; 4]), Ok(None));
        for mixed in 1u32..15 {
            let pick = |i: usize| if mixed >> i & 1 == 1 { one.words()[i] } else { other.words()[i] };
            assert_eq!(Entry::read([pick(0), pick(1), pick(2), pick(3)]), Err(()), "{mixed:b}");
            let zeroed = |i: usize| if mixed >> i & 1 == 1 { one.words()[i] } else { 0 };
            assert_eq!(Entry::read([zeroed(0), zeroed(1), zeroed(2), zeroed(3)]), Err(()), "{mixed:b}");
        }
    }
}
