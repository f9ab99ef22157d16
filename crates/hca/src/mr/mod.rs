//! Memory regions and the keys that name memory, in a table that peers read. A key is an index and
//! a variant byte that changes each time the index is used again, so that a stale key is refused (IBA 10.6.2). Both begin
//! anywhere.
//!
//! Revocation (DESIGN decision 3): the key is made invalid, then everybody in flight is waited for.

pub mod adopt;
pub mod dm;
pub mod mw;
pub(crate) mod pinnable;
pub mod transfer;

use crate::arena::layout::{self, KEY_NULL, KEY_WINDOW, KeyEntry, Lane, NOT_SHARED};
use crate::context::Pd;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::mr::dm::Dm;
use crate::mr::transfer::DIRECT_CHUNK;
use crate::process::exports::{ExportedRange, Pin};
use crate::process::{self, Process};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_iba::access;

/// Entries whose pages are committed together: a page of the table.
const COMMIT: usize = 64;
/// Indices that rest after use, so that a stale key meets an invalid entry rather than a new one.
const RESTING: usize = 32;

/// The owner's side of the key table.
pub(crate) struct KeyTable {
    pub(crate) entries: &'static [KeyEntry; layout::KEYS],
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

/// What a key stands for.
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
    pub(crate) fn new(entries: &'static [KeyEntry; layout::KEYS], offset: u64) -> Self {
        KeyTable { entries, offset, state: OwnerLock::default() }
    }

    /// An index that is free, with a fresh variant. Which keys a process has is left to chance, so that nobody comes by one
    /// without being told: neither by counting up from another, nor by what it had in another process (IBA 10.6.2 leaves it
    /// open). Index 0 stays unused, so that no key is 0, which stands for none.
    pub(crate) fn take(&self, process: &Process) -> Result<u32> {
        let mut state = self.state.lock();
        if state.free.len() <= RESTING && state.fresh.is_empty() && state.pages.len() < self.entries.len() / COMMIT {
            self.add_page(process, &mut state)?;
        }
        let rested = if state.free.len() > RESTING { state.free.pop_front() } else { None };
        let index = rested.or_else(|| state.fresh.pop()).or_else(|| state.free.pop_front());
        let index = index.ok_or_else(|| Error::no_memory("no memory key is free"))?;
        let variant = state.variant(index);
        *variant = variant.wrapping_add(1);
        Ok(index << 8 | u32::from(*variant))
    }

    /// One more page of the table, any of those that are not in use, with its indices in any order.
    fn add_page(&self, process: &Process, state: &mut KeyState) -> Result<()> {
        let pages = self.entries.len() / COMMIT;
        let random = process::random_u64()? as usize;
        let page = (0..pages).map(|i| (random + i) % pages).find(|page| !state.pages.contains_key(page));
        let page = page.ok_or_else(|| Error::no_memory("no memory key is free"))?;
        let first = self.offset + (page * COMMIT * size_of::<KeyEntry>()) as u64;
        process.arena.commit(&(first..first + (COMMIT * size_of::<KeyEntry>()) as u64))?;
        let mut variants = [0; COMMIT];
        let mut order = [0; COMMIT];
        process::random(&mut variants)?;
        process::random(&mut order)?;
        let mut indices: Vec<u32> = (0..COMMIT).map(|i| (page * COMMIT + i) as u32).collect();
        for (i, random) in order.into_iter().enumerate().rev() {
            indices.swap(i, usize::from(random) % (i + 1));
        }
        indices.retain(|index| *index != 0);
        state.pages.insert(page, variants);
        state.fresh = indices;
        Ok(())
    }

    pub(crate) fn give_back(&self, key: u32) {
        let mut state = self.state.lock();
        // Binding a window moves its variant on; the next user of the index starts after it.
        *state.variant(key >> 8) = key as u8;
        state.free.push_back(key >> 8);
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

    /// Takes from peers the mapping of all that `covers` (given host address, length and `at`) says yes to: they reach it by
    /// other means. Called while everybody is kept out, or followed by a wait for those who may have it still.
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

    /// Makes the key invalid and waits for whoever is in flight there.
    pub(crate) fn revoke(&self, process: &Process, key: u32) {
        self.entry(key).key.store(0, Ordering::SeqCst);
        process.drain(key);
    }

    /// Whether an initiator that has named `named` may be at the memory of `key`: by that key, or by a window, which may lie
    /// over it and have been invalidated by a peer.
    pub(crate) fn may_reach(&self, named: u32, key: u32) -> bool {
        let is_window = || {
            let entry = self.entries.get((named >> 8) as usize);
            entry.is_none_or(|e| e.flags() & KEY_WINDOW != 0)
        };
        named >> 8 == key >> 8 || is_window()
    }

    /// The addresses of this process that an initiator in flight on `lane` may be touching; none where that is no memory
    /// that it has mapped.
    pub(crate) fn touched(&self, lane: &Lane) -> Option<Range<u64>> {
        let (key, addr) = (lane.key.load(Ordering::SeqCst), lane.addr.load(Ordering::SeqCst));
        let e = self.entries.get((key >> 8) as usize)?;
        let len = e.len.load(Ordering::Relaxed);
        let offset = addr.checked_sub(e.iova.load(Ordering::Relaxed)).filter(|offset| *offset < len)?;
        let start = e.host.load(Ordering::Relaxed) + offset;
        (e.flags() & KEY_NULL == 0).then(|| start..start + (len - offset).min(DIRECT_CHUNK))
    }
}

impl KeyState {
    /// The variant of `index`, which is in use or has been.
    fn variant(&mut self, index: u32) -> &mut u8 {
        let page = self.pages.entry(index as usize / COMMIT).or_insert([0; COMMIT]);
        &mut page[index as usize % COMMIT]
    }
}

/// A memory region.
pub struct Mr {
    process: &'static Process,
    pub(crate) key: u32,
    pub(crate) state: OwnerLock<MrState>,
    /// Keys of windows that were bound to it; those a peer invalidated since do not count any more.
    pub(crate) windows: OwnerLock<Vec<u32>>,
    pub(crate) gone: AtomicBool,
    dm: Option<Arc<Dm>>,
    _counted: Counted,
}

pub(crate) struct MrState {
    pub(crate) pd: Arc<Pd>,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: u32,
    /// Holds the memory where peers find it.
    pin: Option<Pin>,
}

/// Refuses access flags that `man ibv_reg_mr` refuses; returns them without the optional ones.
fn checked_access(flags: u32) -> Result<u32> {
    let flags = flags & !access::OPTIONAL_RANGE;
    if flags & access::ON_DEMAND != 0 {
        return Err(Error::unsupported("on-demand paging is not offered (IBV_ACCESS_ON_DEMAND)"));
    }
    if flags & access::FLUSH_PERSISTENT != 0 {
        return Err(Error::unsupported("this memory is not persistent (IBV_ACCESS_FLUSH_PERSISTENT)"));
    }
    if flags & !access::KNOWN != 0 {
        return Err(Error::invalid(format!("unknown access flags {:#x}", flags & !access::KNOWN)));
    }
    if flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && flags & access::LOCAL_WRITE == 0 {
        return Err(Error::invalid("remote write or atomic access needs local write access too"));
    }
    Ok(flags)
}

fn checked_range(addr: u64, length: u64) -> Result<()> {
    if length > crate::device::LIMITS.max_mr_size || addr.checked_add(length).is_none() {
        return Err(Error::invalid("the region wraps around the address space"));
    }
    Ok(())
}

impl Mr {
    /// A memory region whose users name its memory from `iova` on (`man ibv_reg_mr_iova`).
    pub fn register(pd: &Arc<Pd>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        let access = checked_access(access)?;
        checked_range(addr, length)?;
        pd.process.check()?;
        pd.process.mappings.check(addr, length, access)?;
        let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
        Self::make(pd, addr, length, iova, access, 0, None)
    }

    /// The region that reads as zeros and swallows writes (`man ibv_alloc_null_mr`).
    pub fn null(pd: &Arc<Pd>) -> Result<Arc<Mr>> {
        Self::make(pd, 0, u64::MAX, 0, access::LOCAL_WRITE, KEY_NULL, None)
    }

    /// A region over device memory (`man ibv_reg_dm_mr`).
    pub fn of_dm(pd: &Arc<Pd>, dm: &Arc<Dm>, offset: u64, length: u64, access: u32) -> Result<Arc<Mr>> {
        let access = checked_access(access)?;
        if access & access::ZERO_BASED == 0 {
            return Err(Error::invalid("device memory is registered zero-based (IBV_ACCESS_ZERO_BASED)"));
        }
        if offset.checked_add(length).is_none_or(|end| end > dm.length) {
            return Err(Error::invalid("the range lies outside the device memory"));
        }
        dm.check()?;
        dm.users.fetch_add(1, Ordering::Relaxed);
        let host = dm.host() + offset;
        Self::make(pd, host, length, 0, access, 0, Some(Arc::clone(dm)))
    }

    fn make(
        pd: &Arc<Pd>,
        addr: u64,
        length: u64,
        iova: u64,
        access: u32,
        flags: u32,
        dm: Option<Arc<Dm>>,
    ) -> Result<Arc<Mr>> {
        let process = pd.process;
        process.check()?;
        let key = process.keys.take(process)?;
        let nothing = flags & KEY_NULL != 0;
        let partings = process.partings();
        let ExportedRange { at, generation, pin } =
            if nothing { ExportedRange::NOWHERE } else { process.share(addr, length, access) };
        let named =
            Named { iova, len: length, host: addr, at, generation, access, pd: pd.number, flags, qpn: 0, parent: 0 };
        process.publish_key(key, named, partings);
        pd.users.fetch_add(1, Ordering::Relaxed);
        let state = MrState { pd: Arc::clone(pd), addr, length, access, pin };
        Ok(Arc::new(Mr {
            process,
            key,
            state: OwnerLock::new(state),
            windows: OwnerLock::default(),
            gone: AtomicBool::new(false),
            dm,
            _counted: Counted::new(Word::Mrs, pd.device()),
        }))
    }

    fn has_windows(&self) -> bool {
        let good = |key: &u32| self.process.keys.entry(*key).key.load(Ordering::Acquire) == u64::from(*key);
        self.windows.lock().iter().any(good)
    }

    /// Local key.
    pub fn lkey(&self) -> u32 {
        self.key
    }

    /// Remote key; the same number.
    pub fn rkey(&self) -> u32 {
        self.key
    }

    /// Start of the registered memory.
    pub fn addr(&self) -> u64 {
        self.state.lock().addr
    }

    /// Bytes registered.
    pub fn length(&self) -> u64 {
        self.state.lock().length
    }

    /// Changes translation (1), protection domain (2) or access (4) (`man ibv_rereg_mr`). The keys stay. In flight
    /// accesses are over when this returns.
    pub fn rereg(&self, flags: u32, pd: Option<&Arc<Pd>>, addr: u64, length: u64, access: u32) -> Result<()> {
        self.process.check()?;
        if flags == 0 || flags & !7 != 0 {
            return Err(Error::invalid(format!("unknown rereg flags {flags:#x}")));
        }
        if self.has_windows() {
            return Err(Error::busy("memory windows are bound to the region"));
        }
        if self.dm.is_some() && flags & 1 != 0 {
            return Err(Error::unsupported("the translation of device memory does not change"));
        }
        let mut state = self.state.lock();
        let new_access = if flags & 4 != 0 { checked_access(access)? } else { state.access };
        if flags & 1 != 0 {
            if addr == 0 || length == 0 {
                return Err(Error::invalid("a new translation needs an address and a length"));
            }
            checked_range(addr, length)?;
            self.process.mappings.check(addr, length, new_access)?;
        } else if new_access & access::WRITABLE != 0 && state.access & access::WRITABLE == 0 && self.dm.is_none() {
            // What was pinned to be read is pinned anew.
            self.process.mappings.check(state.addr, state.length, new_access)?;
        }
        let new_pd = match (flags & 2 != 0, pd) {
            (true, Some(pd)) => {
                pd.process.check()?;
                Arc::clone(pd)
            }
            (true, None) => return Err(Error::invalid("no protection domain given")),
            (false, _) => Arc::clone(&state.pd),
        };
        let entry = self.process.keys.entry(self.key);
        let old_iova = entry.iova.load(Ordering::Relaxed);
        self.process.keys.revoke(self.process, self.key);
        let partings = self.process.partings();
        let (mut at, mut generation) = (entry.at.load(Ordering::Relaxed), entry.generation.load(Ordering::Relaxed));
        if flags & 1 != 0 {
            (state.addr, state.length) = (addr, length);
            // The new pin first: an object that both lie in stays.
            let found = self.process.share(addr, length, new_access);
            (at, generation) = (found.at, found.generation);
            self.process.unshare(std::mem::replace(&mut state.pin, found.pin));
        }
        new_pd.users.fetch_add(1, Ordering::Relaxed);
        state.pd.users.fetch_sub(1, Ordering::Relaxed);
        state.pd = new_pd;
        state.access = new_access;
        let named = Named {
            iova: if flags & 1 != 0 { addr } else { old_iova },
            len: state.length,
            host: state.addr,
            at,
            generation,
            access: new_access,
            pd: state.pd.number,
            flags: entry.flags(),
            qpn: 0,
            parent: 0,
        };
        self.process.publish_key(self.key, named, partings);
        Ok(())
    }

    /// Ends the registration: when this returns nobody touches the memory through it. EBUSY while windows are bound.
    pub fn deregister(&self) -> Result<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        if self.has_windows() {
            return Err(Error::busy("memory windows are bound to the region"));
        }
        if self.gone.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid("the region was deregistered already"));
        }
        self.process.keys.revoke(self.process, self.key);
        self.process.keys.give_back(self.key);
        let mut state = self.state.lock();
        state.pd.users.fetch_sub(1, Ordering::Relaxed);
        self.process.unshare(state.pin.take());
        drop(state);
        if let Some(dm) = &self.dm {
            dm.users.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Looks up local memory for the requester: an SGE of this process.
#[inline]
pub(crate) fn local_memory(process: &Process, lkey: u32, addr: u64, len: u64, need: u32, pd: u32) -> Option<*mut u8> {
    match process.own.resolve(lkey, addr, len, need, pd, 0)? {
        crate::process::peer::Location::Mapped(p) => Some(p),
        crate::process::peer::Location::Null => Some(std::ptr::null_mut()),
        crate::process::peer::Location::Unmapped(_) => None,
    }
}

const _: () = assert!(layout::KEYS <= 1 << 24);
