//! Memory regions (IBA 10.6). Their keys stand in `process::key_table`.
//!
//! Revocation (DESIGN decision 3): the key is made invalid, then everybody in flight is waited for.

pub mod dm;
pub mod mw;
pub mod saved;
pub mod transfer;

use crate::arena::layout::KEY_NULL;
use crate::context::Pd;
use crate::device::port_counters::{Counted, Word};
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::mr::dm::Dm;
use crate::process::Process;
use crate::process::exports::{ExportedRange, Pin};
use crate::process::key_table::Named;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_config::{Config, WindowSpec};
use vervain_iba::access;

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
    if length > crate::device::LIMITS.memory.max_mr_size || addr.checked_add(length).is_none() {
        return Err(Error::invalid("the region wraps around the address space"));
    }
    Ok(())
}

/// Returns true if programs are told what the board of their window cannot do (`strict=on`).
fn has_strict_board() -> bool {
    let is_strict = |window: &WindowSpec| window.peach2.is_some_and(|board| board.strict);
    Config::of_process().is_ok_and(|config| config.window_in_use().is_some_and(is_strict))
}

impl Mr {
    /// A memory region whose users name its memory from `iova` on (`man ibv_reg_mr_iova`).
    pub fn register(pd: &Arc<Pd>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        let access = checked_access(access)?;
        checked_range(addr, length)?;
        pd.process.check()?;
        pd.process.mappings.check(addr, length, access)?;
        if length != 0 && has_strict_board() && pd.process.place_in_window(addr, length).is_none() {
            return Err(Error::invalid(
                "the board reads and writes memory of the window only, which heap=on has programs allocate from",
            ));
        }
        let iova = if access & access::ZERO_BASED != 0 { 0 } else { iova };
        Self::make(pd, (addr, length), iova, access, 0, None, None)
    }

    /// The region that reads as zeros and swallows writes (`man ibv_alloc_null_mr`).
    pub fn null(pd: &Arc<Pd>) -> Result<Arc<Mr>> {
        Self::make(pd, (0, u64::MAX), 0, access::LOCAL_WRITE, KEY_NULL, None, None)
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
        let host = dm.host() + offset;
        Self::make(pd, (host, length), 0, access, 0, Some(dm), None)
    }

    fn make(
        pd: &Arc<Pd>,
        (addr, length): (u64, u64),
        iova: u64,
        access: u32,
        flags: u32,
        dm: Option<&Arc<Dm>>,
        key: Option<u32>,
    ) -> Result<Arc<Mr>> {
        let process = pd.process;
        process.check()?;
        let key = process.take_key(key)?;
        if let Some(dm) = dm {
            dm.users.fetch_add(1, Ordering::Relaxed);
        }
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
            dm: dm.cloned(),
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
            // Memory that was pinned for reading is pinned anew.
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
        self.process.revoke_region(self.key);
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
        self.process.revoke_region(self.key);
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
