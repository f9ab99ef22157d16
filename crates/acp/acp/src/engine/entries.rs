//! Entries of peers' tables: a cache of those that were read, and the memory that they are read into.

use vervain_mesh::Link;
use vervain_rdma::Sge;

use crate::error::Result;
use crate::memory::{Domain, Mapped};
use crate::table::{Entry, read_entry};

/// Number of places of the cache.
const CACHED: usize = 4096;

/// A cached entry.
#[derive(Clone, Copy)]
pub(super) struct Cached {
    pub region: u64,
    /// The stamp of the connection by which the entry was read; 0: no entry is here.
    pub stamp: u64,
    pub link: Link,
    pub entry: Entry,
}

/// The cache of entries, a place for each hash of a region.
pub(super) struct Entries {
    cached: Vec<Cached>,
    /// The memory into which each connection reads an entry.
    fetched: Mapped,
}

impl Entries {
    /// The most entries that are cached.
    pub const COUNT: usize = CACHED;
    /// Bytes of the cache.
    pub const BYTES: usize = CACHED * size_of::<Cached>();

    pub fn new(domains: &[Domain<'_>], connections: usize) -> Result<Self> {
        let entry = Entry { start: 0, size: 0, rkey: 0 };
        let nothing = Cached { region: 0, stamp: 0, link: Link { index: 0, life: 0 }, entry };
        let fetched = Mapped::new(domains, connections * Entry::BYTES)?;
        Ok(Self { cached: vec![nothing; CACHED], fetched })
    }

    /// The entry at the place of `region`, which may be that of another region.
    #[inline]
    pub fn at(&self, region: u64) -> &Cached {
        &self.cached[slot(region)]
    }

    /// Caches an entry, and drops the one at its place.
    pub fn keep(&mut self, cached: Cached) {
        self.cached[slot(cached.region)] = cached;
    }

    /// The memory of a connection for an entry, for a Read at `port`.
    #[inline]
    pub fn fetch_sge(&self, port: usize, connection: u32) -> Sge<'_> {
        let at = connection as usize * Entry::BYTES;
        self.fetched.sge(port, at..at + Entry::BYTES)
    }

    /// The entry that a connection has read: `Err(())` if it was read while it changed; None if nothing is registered.
    pub fn fetched(&self, connection: u32) -> Result<Option<Entry>, ()> {
        let at = connection as usize * Entry::BYTES;
        read_entry([0, 8, 16, 24].map(|word| self.fetched.word(at + word)))
    }
}

#[inline]
fn slot(region: u64) -> usize {
    (region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - CACHED.trailing_zeros())) as usize
}
