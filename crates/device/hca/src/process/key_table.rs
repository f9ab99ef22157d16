//! The table of memory keys, which peers read. A key is an index and a variant byte that changes each time the index is
//! used again, so that a stale key is refused (IBA 10.6.2). Both begin anywhere.

use crate::arena::layout::{self, KEY_NULL, KEY_WINDOW, KeyEntry, Lane, NOT_SHARED};
use crate::arena::{Arena, ArenaRef};
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::host::random;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Entries whose pages are committed together: a page of the table.
const COMMIT: usize = 64;
const _: () = assert!(layout::KEYS <= 1 << 24);
/// Indices that rest after use, so that a stale key meets an invalid entry rather than a new one.
const RESTING: usize = 32;

/// The owner's side of the key table.
pub(crate) struct KeyTable {
    pub(crate) entries: ArenaRef<[KeyEntry; layout::KEYS]>,
    offset: u64,
    state: OwnerLock<KeyState>,
}

#[derive(Default)]
struct KeyState {
    /// The variant that each index had last, of each page in use.
    pages: HashMap<usize, [u8; COMMIT]>,
    /// Indices of the last page that have not been used.
    fresh: Vec<u32>,
    free: VecDeque<u32>,
}

/// The object that a key stands for.
pub(crate) struct Named {
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) host: u64,
    pub(crate) at: u64,
    pub(crate) generation: u32,
    pub(crate) access: u32,
    pub(crate) pd: u32,
    pub(crate) flags: u32,
    pub(crate) qpn: u32,
    pub(crate) parent: u32,
}

impl KeyTable {
    pub(crate) fn new(entries: ArenaRef<[KeyEntry; layout::KEYS]>, offset: u64) -> Self {
        KeyTable { entries, offset, state: OwnerLock::default() }
    }

    /// An index that is free, with a fresh variant. The keys of a process are random, so that a peer cannot guess one:
    /// neither by counting up from another, nor by what it had in another process (IBA 10.6.2 leaves it open). Index 0
    /// stays unused, so that no key is 0, which stands for none.
    pub(crate) fn take(&self, arena: &Arena) -> Result<u32> {
        let mut state = self.state.lock();
        if state.free.len() <= RESTING && state.fresh.is_empty() && state.pages.len() < self.entries.len() / COMMIT {
            self.add_page(arena, &mut state)?;
        }
        let rested = if state.free.len() > RESTING { state.free.pop_front() } else { None };
        let index = rested.or_else(|| state.fresh.pop()).or_else(|| state.free.pop_front());
        let index = index.ok_or_else(|| Error::no_memory("no memory key is free"))?;
        let variant = state.variant(index);
        *variant = variant.wrapping_add(1);
        Ok(index << 8 | u32::from(*variant))
    }

    /// Takes `key`, which a saved process had. EEXIST if its index is in use.
    pub(crate) fn take_again(&self, arena: &Arena, key: u32) -> Result<()> {
        let index = key >> 8;
        if index == 0 || index as usize >= self.entries.len() {
            return Err(Error::invalid(format!("{key:#x} is no memory key")));
        }
        let mut state = self.state.lock();
        let page = index as usize / COMMIT;
        if !state.pages.contains_key(&page) {
            let indices = self.open_page(arena, &mut state, page)?;
            state.free.extend(indices);
        }
        if let Some(i) = state.fresh.iter().position(|fresh| *fresh == index) {
            state.fresh.swap_remove(i);
        } else if let Some(i) = state.free.iter().position(|free| *free == index) {
            state.free.remove(i);
        } else {
            return Err(Error::new(libc::EEXIST, format!("memory key {key:#x} is in use")));
        }
        *state.variant(index) = key as u8;
        Ok(())
    }

    /// One more page of the table, any of those that are not in use, with its indices in any order.
    fn add_page(&self, arena: &Arena, state: &mut KeyState) -> Result<()> {
        let pages = self.entries.len() / COMMIT;
        let random = random::word()? as usize;
        let page = (0..pages).map(|i| (random + i) % pages).find(|page| !state.pages.contains_key(page));
        let page = page.ok_or_else(|| Error::no_memory("no memory key is free"))?;
        state.fresh = self.open_page(arena, state, page)?;
        Ok(())
    }

    /// Commits page `page` of the table; its indices, in any order.
    fn open_page(&self, arena: &Arena, state: &mut KeyState, page: usize) -> Result<Vec<u32>> {
        let first = self.offset + (page * COMMIT * size_of::<KeyEntry>()) as u64;
        arena.commit(&(first..first + (COMMIT * size_of::<KeyEntry>()) as u64))?;
        let mut variants = [0; COMMIT];
        let mut order = [0; COMMIT];
        random::fill(&mut variants)?;
        random::fill(&mut order)?;
        let mut indices: Vec<u32> = (0..COMMIT).map(|i| (page * COMMIT + i) as u32).collect();
        for (i, random) in order.into_iter().enumerate().rev() {
            indices.swap(i, usize::from(random) % (i + 1));
        }
        indices.retain(|index| *index != 0);
        state.pages.insert(page, variants);
        Ok(indices)
    }

    pub(crate) fn give_back(&self, key: u32) {
        let mut state = self.state.lock();
        // Binding a window moves its variant on; the next user of the index starts after it.
        *state.variant(key >> 8) = key as u8;
        state.free.push_back(key >> 8);
    }

    /// The entry of a key that is good.
    pub(crate) fn find(&self, key: u32) -> Option<&KeyEntry> {
        self.entries.get((key >> 8) as usize).filter(|entry| entry.key.load(Ordering::SeqCst) == u64::from(key))
    }

    pub(crate) fn entry(&self, key: u32) -> &KeyEntry {
        &self.entries[(key >> 8) as usize]
    }

    pub(crate) fn write(&self, key: u32, named: &Named) {
        let e = self.entry(key);
        e.iova.store(named.iova, Ordering::Relaxed);
        e.len.store(named.len, Ordering::Relaxed);
        e.host.store(named.host, Ordering::Relaxed);
        e.at.store(named.at, Ordering::Relaxed);
        e.generation.store(named.generation, Ordering::Relaxed);
        e.access.store(named.access, Ordering::Relaxed);
        e.domain.store(u64::from(named.flags) << 32 | u64::from(named.pd), Ordering::Relaxed);
        e.qpn.store(named.qpn, Ordering::Relaxed);
        e.parent.store(named.parent, Ordering::Relaxed);
        e.key.store(u64::from(key), Ordering::SeqCst);
    }

    /// Takes from peers the mapping of all that `covers` (given host address, length and `at`) says yes to: they reach
    /// it by other means. Called while everybody is kept out, or followed by a wait for those who may have it still.
    pub(crate) fn unshare(&self, covers: impl Fn(u64, u64, u64) -> bool) {
        let pages: Vec<usize> = self.state.lock().pages.keys().copied().collect();
        for e in pages.iter().flat_map(|page| &self.entries[page * COMMIT..][..COMMIT]) {
            let at = e.at.load(Ordering::Relaxed);
            let (host, len) = (e.host.load(Ordering::Relaxed), e.len.load(Ordering::Relaxed));
            // Also of a key that is revoked just now, and may be made good again.
            if at != NOT_SHARED && covers(host, len, at) {
                e.at.store(NOT_SHARED, Ordering::SeqCst);
            }
        }
    }

    /// Returns true if an initiator that has named `named` may be at the memory of `key`: by that key, or by a window,
    /// which may lie over it and have been invalidated by a peer.
    pub(crate) fn may_reach(&self, named: u32, key: u32) -> bool {
        let is_window = || {
            let entry = self.entries.get((named >> 8) as usize);
            entry.is_none_or(|e| e.flags() & KEY_WINDOW != 0)
        };
        named >> 8 == key >> 8 || is_window()
    }

    /// The addresses of this process that an initiator in flight on `lane` may be touching; none where that is no
    /// memory that it has mapped.
    pub(crate) fn touched(&self, lane: &Lane) -> Option<Range<u64>> {
        let (key, addr) = (lane.key.load(Ordering::SeqCst), lane.addr.load(Ordering::SeqCst));
        let e = self.entries.get((key >> 8) as usize)?;
        let len = e.len.load(Ordering::Relaxed);
        let offset = addr.checked_sub(e.iova.load(Ordering::Relaxed)).filter(|offset| *offset < len)?;
        let start = e.host.load(Ordering::Relaxed) + offset;
        (e.flags() & KEY_NULL == 0).then(|| start..start + (len - offset).min(layout::DIRECT_CHUNK))
    }
}

impl KeyState {
    /// The variant of `index`, which is in use or has been.
    fn variant(&mut self, index: u32) -> &mut u8 {
        let page = self.pages.entry(index as usize / COMMIT).or_insert([0; COMMIT]);
        &mut page[index as usize % COMMIT]
    }
}
