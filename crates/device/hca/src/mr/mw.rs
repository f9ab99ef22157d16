//! Memory windows: narrower keys over a region, bound and invalidated by work requests (IBA 10.6.6.2, 10.6.7).

use crate::arena::layout::{KEY_WINDOW, KEY_WINDOW2, NOT_SHARED};
use crate::context::Pd;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::mr::Mr;
use crate::process::Process;
use crate::process::key_table::Named;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use vervain_iba::access;

/// A memory window, type 1 or 2.
pub struct Mw {
    pub(super) process: &'static Process,
    pd: Arc<Pd>,
    pub(super) mw_type: u32,
    /// The current key. Type 1: changes with each bind. Type 2: the low byte is the program's.
    key: AtomicU32,
    pub(super) next_key: AtomicU32,
    pub(super) bound: OwnerLock<Option<Arc<Mr>>>,
    gone: AtomicBool,
}

impl Mw {
    /// A memory window of type 1 or 2 (`man ibv_alloc_mw`).
    pub fn alloc(pd: &Arc<Pd>, mw_type: u32) -> Result<Arc<Mw>> {
        Self::with_key(pd, mw_type, None)
    }

    pub(super) fn with_key(pd: &Arc<Pd>, mw_type: u32, key: Option<u32>) -> Result<Arc<Mw>> {
        if mw_type != 1 && mw_type != 2 {
            return Err(Error::invalid(format!("memory window type {mw_type}; there are types 1 and 2")));
        }
        pd.process.check()?;
        let key = pd.process.take_key(key)?;
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

    /// The key that the next type 1 bind gives, fixed at posting so that the program has it at once (`man
    /// ibv_bind_mw`).
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
        if self.mw_type == 2 && length != 0 && table.entry(key).key.load(Ordering::Acquire) != 0 {
            return Err(Error::invalid("a bound type 2 window must be invalidated before it is bound again"));
        }
        if length == 0 {
            self.process.revoke_key(key);
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
        self.process.revoke_key(key);
        self.unbind(&mut bound);
        let partings = self.process.partings();
        let host = start + (addr - iova);
        let at = match under.at.load(Ordering::Relaxed) {
            NOT_SHARED => NOT_SHARED,
            at => at + (addr - iova),
        };
        let named = Named {
            iova: if access & access::ZERO_BASED != 0 { 0 } else { addr },
            len: length,
            host,
            at,
            generation: under.generation.load(Ordering::Relaxed),
            access,
            pd: self.pd.number,
            flags: KEY_WINDOW | if self.mw_type == 2 { KEY_WINDOW2 } else { 0 },
            qpn,
            parent: mr.key,
        };
        self.process.publish_key(key, named, partings);
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
        self.process.revoke_key(key);
        self.unbind(&mut self.bound.lock());
        self.process.keys.give_back(key);
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Local invalidate (IBA 10.6.7.2): of a type 2 window bound to the QP `qpn`. Regions registered by these verbs cannot
/// be invalidated, as on real adapters.
pub(crate) fn local_invalidate(process: &Process, key: u32, qpn: u32) -> Result<()> {
    let entry = process.keys.entries.get((key >> 8) as usize).ok_or_else(|| Error::invalid("no such key"))?;
    let good = u64::from(key);
    if entry.key.load(Ordering::Acquire) != good
        || entry.flags() & KEY_WINDOW2 == 0
        || entry.qpn.load(Ordering::Relaxed) != qpn
    {
        return Err(Error::invalid("the key is not that of a type 2 window bound to this QP"));
    }
    process.revoke_key(key);
    Ok(())
}
