//! Memory regions, windows and device memory: the keys that name memory, in a table that peers read. A key is an index and
//! a variant byte that changes each time the index is used again, so that a stale key is refused (IBA 10.6.2).
//!
//! Revocation (DESIGN decision 3): the key is made invalid, then everybody in flight is waited for.

use crate::arena::Block;
use crate::context::{Context, Pd};
use crate::error::{Error, Result};
use crate::layout::{self, KEY_NULL, KEY_VALID, KEY_WINDOW, KEY_WINDOW2, KeyEntry, NOT_IN_ARENA};
use crate::lock::OwnerLock;
use crate::process::Process;
use crate::types::access;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Entries whose pages are committed together.
const COMMIT: usize = 64;

/// The owner's side of the key table.
pub(crate) struct KeyTable {
    entries: &'static [KeyEntry],
    offset: u64,
    state: OwnerLock<KeyState>,
}

#[derive(Default)]
struct KeyState {
    variants: Vec<u8>,
    free: std::collections::VecDeque<u32>,
}

/// What a key stands for.
struct Named {
    iova: u64,
    len: u64,
    host: u64,
    arena: u64,
    access: u32,
    pd: u32,
    flags: u32,
    qpn: u32,
    parent: u64,
}

impl KeyTable {
    pub(crate) fn new(entries: &'static [KeyEntry], offset: u64) -> Self {
        KeyTable { entries, offset, state: OwnerLock::default() }
    }

    /// An index that is free, with a fresh variant. Index 0 stays unused, so that no key is 0.
    fn take(&self, process: &Process) -> Result<u32> {
        let mut state = self.state.lock();
        // An index rests for a while after use, so that a stale key meets an invalid entry rather than a new one.
        if state.free.len() > 32 || state.variants.len() == self.entries.len() {
            let index = state.free.pop_front().ok_or_else(|| Error::no_memory("no memory key is free"))?;
            let variant = state.variants[index as usize].wrapping_add(1);
            state.variants[index as usize] = variant;
            return Ok(index << 8 | u32::from(variant));
        }
        let index = state.variants.len().max(1);
        if index.is_multiple_of(COMMIT) || index == 1 {
            let size = size_of::<KeyEntry>() as u64;
            let first = self.offset + (index / COMMIT * COMMIT) as u64 * size;
            process.arena.commit(&(first..first + COMMIT as u64 * size))?;
        }
        state.variants.resize(index + 1, 0);
        state.variants[index] = 0x5a;
        Ok((index as u32) << 8 | 0x5a)
    }

    fn give_back(&self, key: u32) {
        self.state.lock().free.push_back(key >> 8);
    }

    fn entry(&self, key: u32) -> &KeyEntry {
        &self.entries[(key >> 8) as usize]
    }

    fn write(&self, key: u32, named: &Named) {
        let e = self.entry(key);
        e.iova.store(named.iova, Ordering::Relaxed);
        e.len.store(named.len, Ordering::Relaxed);
        e.host.store(named.host, Ordering::Relaxed);
        e.arena.store(named.arena, Ordering::Relaxed);
        e.access.store(named.access, Ordering::Relaxed);
        e.pd.store(named.pd, Ordering::Relaxed);
        e.flags.store(named.flags, Ordering::Relaxed);
        e.qpn.store(named.qpn, Ordering::Relaxed);
        e.parent.store(named.parent, Ordering::Relaxed);
        e.key.store(KEY_VALID | u64::from(key), Ordering::SeqCst);
    }

    /// Makes the key invalid and waits for whoever is in flight.
    fn revoke(&self, process: &Process, key: u32) {
        self.entry(key).key.store(0, Ordering::SeqCst);
        process.drain();
    }
}

/// A memory region.
pub struct Mr {
    process: &'static Process,
    key: u32,
    state: OwnerLock<MrState>,
    /// Keys of windows that were bound to it; those a peer invalidated since do not count any more.
    windows: OwnerLock<Vec<u32>>,
    gone: AtomicBool,
    dm: Option<Arc<Dm>>,
}

struct MrState {
    pd: Arc<Pd>,
    addr: u64,
    length: u64,
    access: u32,
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

/// Whether the pages of the range exist, and can be written where `write` asks for it; ENOMEM or EFAULT as registration
/// gives when it cannot pin. Looks at the mapping, not at each page.
fn checked_mapping(addr: u64, length: u64) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let first = addr & !4095;
    let last = (addr + length - 1) & !4095;
    // msync of a range reports ENOMEM for any hole in it, without touching the pages (`man 2 msync`).
    // SAFETY: MS_ASYNC does nothing to the memory.
    let rc = unsafe { libc::msync(first as *mut libc::c_void, (last - first + 4096) as usize, libc::MS_ASYNC) };
    if rc != 0 {
        return Err(Error::new(libc::EFAULT, "the memory to register is not all mapped"));
    }
    Ok(())
}

impl Mr {
    pub(crate) fn register(pd: &Arc<Pd>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        let access = checked_access(access)?;
        checked_range(addr, length)?;
        checked_mapping(addr, length)?;
        let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
        Self::make(pd, addr, length, iova, access, 0, None)
    }

    pub(crate) fn null(pd: &Arc<Pd>) -> Result<Arc<Mr>> {
        Self::make(pd, 0, u64::MAX, 0, access::LOCAL_WRITE, KEY_NULL, None)
    }

    pub(crate) fn of_dm(pd: &Arc<Pd>, dm: &Arc<Dm>, offset: u64, length: u64, access: u32) -> Result<Arc<Mr>> {
        let access = checked_access(access)?;
        if access & access::ZERO_BASED == 0 {
            return Err(Error::invalid("device memory is registered zero-based (IBV_ACCESS_ZERO_BASED)"));
        }
        if offset.checked_add(length).is_none_or(|end| end > dm.length) {
            return Err(Error::invalid("the range lies outside the device memory"));
        }
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
        let named = Named {
            iova,
            len: length,
            host: addr,
            arena: arena_offset(process, addr, length),
            access,
            pd: pd.number,
            flags,
            qpn: 0,
            parent: 0,
        };
        process.keys.write(key, &named);
        pd.users.fetch_add(1, Ordering::Relaxed);
        let state = MrState { pd: Arc::clone(pd), addr, length, access };
        Ok(Arc::new(Mr {
            process,
            key,
            state: OwnerLock::new(state),
            windows: OwnerLock::default(),
            gone: AtomicBool::new(false),
            dm,
        }))
    }

    fn has_windows(&self) -> bool {
        let good = |key: &u32| self.process.keys.entry(*key).key.load(Ordering::Acquire) == KEY_VALID | u64::from(*key);
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
        if flags & 1 != 0 {
            if addr == 0 || length == 0 {
                return Err(Error::invalid("a new translation needs an address and a length"));
            }
            checked_range(addr, length)?;
            checked_mapping(addr, length)?;
        }
        let new_access = if flags & 4 != 0 { checked_access(access)? } else { state.access };
        let new_pd = match (flags & 2 != 0, pd) {
            (true, Some(pd)) => Arc::clone(pd),
            (true, None) => return Err(Error::invalid("no protection domain given")),
            (false, _) => Arc::clone(&state.pd),
        };
        let entry = self.process.keys.entry(self.key);
        let old_iova = entry.iova.load(Ordering::Relaxed);
        self.process.keys.revoke(self.process, self.key);
        if flags & 1 != 0 {
            (state.addr, state.length) = (addr, length);
        }
        new_pd.users.fetch_add(1, Ordering::Relaxed);
        state.pd.users.fetch_sub(1, Ordering::Relaxed);
        state.pd = new_pd;
        state.access = new_access;
        let named = Named {
            iova: if flags & 1 != 0 { addr } else { old_iova },
            len: state.length,
            host: state.addr,
            arena: arena_offset(self.process, state.addr, state.length),
            access: new_access,
            pd: state.pd.number,
            flags: entry.flags.load(Ordering::Relaxed),
            qpn: 0,
            parent: 0,
        };
        self.process.keys.write(self.key, &named);
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
        self.state.lock().pd.users.fetch_sub(1, Ordering::Relaxed);
        if let Some(dm) = &self.dm {
            dm.users.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Where `[addr, addr + length)` lies in this process's arena, if it does.
fn arena_offset(process: &Process, addr: u64, length: u64) -> u64 {
    let view = process.arena.view();
    let base = view.at(0, 0).map_or(0, |p| p as u64);
    match addr.checked_sub(base) {
        Some(offset) if view.at(offset, length).is_some() => offset,
        _ => NOT_IN_ARENA,
    }
}

/// A memory window, type 1 or 2.
pub struct Mw {
    process: &'static Process,
    pd: Arc<Pd>,
    mw_type: u32,
    /// The current key. Type 1: changes with each bind. Type 2: the low byte is the program's.
    key: AtomicU32,
    next_key: AtomicU32,
    bound: OwnerLock<Option<Arc<Mr>>>,
    gone: AtomicBool,
}

impl Mw {
    pub(crate) fn alloc(pd: &Arc<Pd>, mw_type: u32) -> Result<Arc<Mw>> {
        if mw_type != 1 && mw_type != 2 {
            return Err(Error::invalid(format!("memory window type {mw_type}; there are types 1 and 2")));
        }
        pd.process.check()?;
        let key = pd.process.keys.take(pd.process)?;
        pd.users.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Mw {
            process: pd.process,
            pd: Arc::clone(pd),
            mw_type,
            key: AtomicU32::new(key),
            next_key: AtomicU32::new(key),
            bound: OwnerLock::new(None),
            gone: AtomicBool::new(false),
        }))
    }

    /// The key of the last completed bind, or the one given at allocation.
    pub fn rkey(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// The protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// 1 or 2.
    pub fn mw_type(&self) -> u32 {
        self.mw_type
    }

    /// The key that the next type 1 bind gives, fixed at posting so that the program has it at once (`man ibv_bind_mw`).
    pub fn next_rkey(&self) -> u32 {
        let old = self.next_key.load(Ordering::Relaxed);
        let new = (old & !0xff) | (old.wrapping_add(1) & 0xff);
        self.next_key.store(new, Ordering::Relaxed);
        new
    }

    /// Binds or, with no length, unbinds (IBA 10.6.6.2, 11.2.8.11). The caller has checked nothing yet.
    pub(crate) fn bind(
        &self,
        key: u32,
        mr: Option<&Arc<Mr>>,
        addr: u64,
        length: u64,
        access: u32,
        qpn: u32,
    ) -> Result<()> {
        if self.gone.load(Ordering::Acquire) || key >> 8 != self.key.load(Ordering::Relaxed) >> 8 {
            return Err(Error::invalid("the key does not belong to the window"));
        }
        let mut bound = self.bound.lock();
        let table = &self.process.keys;
        if self.mw_type == 2 && length != 0 && table.entry(key).key.load(Ordering::Acquire) & KEY_VALID != 0 {
            return Err(Error::invalid("a bound type 2 window must be invalidated before it is bound again"));
        }
        if length == 0 {
            table.revoke(self.process, key);
            self.unbind(&mut bound);
            self.key.store(key, Ordering::Release);
            return Ok(());
        }
        let mr = mr.ok_or_else(|| Error::invalid("no memory region to bind to"))?;
        let (start, size, mr_access, mr_pd) = {
            let s = mr.state.lock();
            (s.addr, s.length, s.access, s.pd.number)
        };
        let under = table.entry(mr.key);
        let iova = under.iova.load(Ordering::Relaxed);
        let allowed = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | access::ZERO_BASED;
        let writes = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let inside = addr.checked_sub(iova).is_some_and(|o| o <= size && length <= size - o);
        if mr_access & access::MW_BIND == 0
            || mr_pd != self.pd.number
            || !inside
            || access & !allowed != 0
            || (writes && mr_access & access::LOCAL_WRITE == 0)
            || (mr_access & access::ZERO_BASED != 0 && self.mw_type == 1)
            || mr.gone.load(Ordering::Acquire)
        {
            return Err(Error::invalid("the region does not allow this binding"));
        }
        table.revoke(self.process, key);
        self.unbind(&mut bound);
        let host = start + (addr - iova);
        let named = Named {
            iova: if access & access::ZERO_BASED != 0 { 0 } else { addr },
            len: length,
            host,
            arena: arena_offset(self.process, host, length),
            access,
            pd: self.pd.number,
            flags: KEY_WINDOW | if self.mw_type == 2 { KEY_WINDOW2 } else { 0 },
            qpn,
            parent: u64::from(mr.key >> 8),
        };
        table.write(key, &named);
        mr.windows.lock().push(key);
        *bound = Some(Arc::clone(mr));
        self.key.store(key, Ordering::Release);
        Ok(())
    }

    fn unbind(&self, bound: &mut Option<Arc<Mr>>) {
        if let Some(mr) = bound.take() {
            let index = self.key.load(Ordering::Relaxed) >> 8;
            mr.windows.lock().retain(|key| key >> 8 != index);
        }
    }

    /// Ends the window; when this returns nobody touches memory through it.
    pub fn dealloc(&self) -> Result<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        if self.gone.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid("the window was freed already"));
        }
        let key = self.key.load(Ordering::Relaxed);
        self.process.keys.revoke(self.process, key);
        self.unbind(&mut self.bound.lock());
        self.process.keys.give_back(key);
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Local invalidate (IBA 10.6.7.2): of a type 2 window bound to the QP `qpn`. Regions registered by these verbs cannot be
/// invalidated, as on real adapters.
pub(crate) fn local_invalidate(process: &Process, key: u32, qpn: u32) -> Result<()> {
    let entry = process.keys.entries.get((key >> 8) as usize).ok_or_else(|| Error::invalid("no such key"))?;
    let good = KEY_VALID | u64::from(key);
    if entry.key.load(Ordering::Acquire) != good
        || entry.flags.load(Ordering::Relaxed) & KEY_WINDOW2 == 0
        || entry.qpn.load(Ordering::Relaxed) != qpn
    {
        return Err(Error::invalid("the key is not that of a type 2 window bound to this QP"));
    }
    process.keys.revoke(process, key);
    Ok(())
}

/// Device memory: memory of the arena, which every peer has mapped.
pub struct Dm {
    process: &'static Process,
    block: OwnerLock<Option<Block>>,
    host: u64,
    length: u64,
    users: AtomicU32,
}

impl Dm {
    pub(crate) fn alloc(context: &Arc<Context>, length: u64, log_align: u32) -> Result<Arc<Dm>> {
        let process = context.process;
        process.check()?;
        if length == 0 || length > crate::device::LIMITS.max_dm_size {
            return Err(Error::invalid(format!(
                "device memory of {length} bytes; at most {} are there",
                crate::device::LIMITS.max_dm_size
            )));
        }
        if log_align > 12 {
            return Err(Error::invalid("device memory is aligned to at most 4096 bytes"));
        }
        // Blocks of a page or more start on a page.
        let room = if log_align > 6 { length.max(4096) } else { length };
        let block = process.arena.alloc(room)?;
        let host = process.arena.view().at(block.offset(), length).map_or(0, |p| p as u64);
        Ok(Arc::new(Dm { process, block: OwnerLock::new(Some(block)), host, length, users: AtomicU32::new(0) }))
    }

    fn host(&self) -> u64 {
        self.host
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Address in this process, for `ibv_alloc_buf` and the like.
    pub fn addr(&self) -> *mut u8 {
        self.host as *mut u8
    }

    fn range(&self, offset: u64, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.length) {
            return Err(Error::new(libc::EFAULT, "the range lies outside the device memory"));
        }
        Ok((self.host + offset) as *mut u8)
    }

    /// Copies `data` to `offset` (`man ibv_memcpy_to_dm`).
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let to = self.range(offset, data.len())?;
        // SAFETY: the range was checked to lie in this block, which lives as long as self.
        unsafe { std::ptr::copy(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Copies from `offset` (`man ibv_memcpy_from_dm`).
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let from = self.range(offset, data.len())?;
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy(from, data.as_mut_ptr(), data.len()) };
        Ok(())
    }

    /// Frees it; EBUSY while regions use it.
    pub fn free(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) != 0 {
            return Err(Error::busy("memory regions use the device memory"));
        }
        if self.process.is_current()
            && let Some(block) = self.block.lock().take()
        {
            self.process.release(block);
        }
        Ok(())
    }
}

/// Looks up local memory for the requester: an SGE of this process.
#[inline]
pub(crate) fn local_memory(process: &Process, lkey: u32, addr: u64, len: u64, need: u32, pd: u32) -> Option<*mut u8> {
    match process.own.resolve(lkey, addr, len, need, pd, 0)? {
        crate::space::Place::Direct(p) => Some(p),
        crate::space::Place::Null => Some(std::ptr::null_mut()),
        crate::space::Place::Remote(_) => None,
    }
}

const _: () = assert!(layout::KEYS <= 1 << 24);
