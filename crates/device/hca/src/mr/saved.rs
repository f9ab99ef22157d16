//! Memory regions, memory windows and device memory that stand still, as records from which others are made under the
//! same keys.

use crate::arena::layout::KEY_NULL;
use crate::context::{Context, Pd};
use crate::error::{Error, Result};
use crate::mr::dm::Dm;
use crate::mr::mw::Mw;
use crate::mr::{Mr, checked_access, checked_range};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::access;

/// The memory under a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Over {
    /// Memory of the program.
    Memory,
    /// No memory (`ibv_alloc_null_mr`).
    Nothing,
    /// Device memory, from this byte on.
    DeviceMemory(u64),
}

/// A memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMr {
    /// Its keys, which are one.
    pub key: u32,
    /// The address that its memory had.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// The first address by which users of the key name it.
    pub iova: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
    /// The memory under it.
    pub over: Over,
}

impl Mr {
    /// The state that another region needs to take its place.
    pub fn save(&self) -> SavedMr {
        let state = self.state.lock();
        let entry = self.process.keys.entry(self.key);
        let over = match &self.dm {
            Some(dm) => Over::DeviceMemory(state.addr - dm.host()),
            None if entry.flags() & KEY_NULL != 0 => Over::Nothing,
            None => Over::Memory,
        };
        let iova = entry.iova.load(Ordering::Relaxed);
        SavedMr { key: self.key, addr: state.addr, length: state.length, iova, access: state.access, over }
    }

    /// The device memory that it is over.
    pub fn dm(&self) -> Option<&Arc<Dm>> {
        self.dm.as_ref()
    }

    /// Makes the region of `saved`, its memory now at `addr`, or in `dm`. EEXIST if its key is in use.
    pub fn restore(pd: &Arc<Pd>, saved: &SavedMr, addr: u64, dm: Option<&Arc<Dm>>) -> Result<Arc<Mr>> {
        let &SavedMr { key, length, iova, over, .. } = saved;
        let access = checked_access(saved.access)?;
        match (over, dm) {
            (Over::Nothing, _) => Self::make(pd, (0, u64::MAX), 0, access::LOCAL_WRITE, KEY_NULL, None, Some(key)),
            (Over::Memory, _) => {
                checked_range(addr, length)?;
                checked_range(iova, length)?;
                pd.process.mappings.check(addr, length, access)?;
                Self::make(pd, (addr, length), iova, access, 0, None, Some(key))
            }
            (Over::DeviceMemory(offset), Some(dm))
                if offset.checked_add(length).is_some_and(|end| end <= dm.length) =>
            {
                Self::make(pd, (dm.host() + offset, length), 0, access, 0, Some(dm), Some(key))
            }
            (Over::DeviceMemory(_), _) => Err(Error::invalid("a region lies outside of its device memory")),
        }
    }
}

/// The binding of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBinding {
    /// The key of the region.
    pub mr: u32,
    /// First address, as users of that key name it.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
    /// The QP that it was bound by.
    pub qpn: u32,
}

/// A memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMw {
    /// 1 or 2.
    pub mw_type: u32,
    /// Its key.
    pub key: u32,
    /// The key that was given at the last bind that was posted.
    pub next_key: u32,
    /// Its binding; None: it was not bound.
    pub binding: Option<SavedBinding>,
}

impl Mw {
    /// The state that another window needs to take its place.
    pub fn save(&self) -> SavedMw {
        let key = self.rkey();
        let bound = self.bound.lock();
        let entry = self.process.keys.find(key);
        let binding = bound.as_ref().zip(entry).map(|(mr, entry)| {
            let under = self.process.keys.entry(mr.lkey()).iova.load(Ordering::Relaxed);
            SavedBinding {
                mr: mr.lkey(),
                addr: under + (entry.host.load(Ordering::Relaxed) - mr.addr()),
                length: entry.len.load(Ordering::Relaxed),
                access: entry.access.load(Ordering::Relaxed),
                qpn: entry.qpn.load(Ordering::Relaxed),
            }
        });
        SavedMw { mw_type: self.mw_type, key, next_key: self.next_key.load(Ordering::Relaxed), binding }
    }

    /// Makes the window of `saved`, bound to `mr` if it was bound. EEXIST if its key is in use.
    pub fn restore(pd: &Arc<Pd>, saved: &SavedMw, mr: Option<&Arc<Mr>>) -> Result<Arc<Mw>> {
        if saved.next_key >> 8 != saved.key >> 8 {
            return Err(Error::invalid("a memory window has two keys"));
        }
        let mw = Mw::with_key(pd, saved.mw_type, Some(saved.key))?;
        mw.next_key.store(saved.next_key, Ordering::Relaxed);
        if let Some(SavedBinding { addr, length, access, qpn, .. }) = saved.binding {
            let bound = mw.bind(saved.key, mr, addr, length, access, qpn);
            if let Err(e) = bound {
                let _ = mw.dealloc();
                return Err(e);
            }
        }
        Ok(mw)
    }
}

/// Device memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedDm {
    /// Its alignment, as a power of two.
    pub log_align: u32,
    /// Its contents.
    pub bytes: Vec<u8>,
}

impl Dm {
    /// The state that other device memory needs to take its place.
    pub fn save(&self) -> Result<SavedDm> {
        let mut bytes = vec![0; self.length as usize];
        self.read(0, &mut bytes)?;
        Ok(SavedDm { log_align: self.log_align, bytes })
    }

    /// Makes device memory with the contents of `saved`.
    pub fn restore(context: &Arc<Context>, saved: &SavedDm) -> Result<Arc<Dm>> {
        let dm = Dm::alloc(context, saved.bytes.len() as u64, saved.log_align)?;
        dm.write(0, &saved.bytes)?;
        Ok(dm)
    }
}
