//! Memory that the program has locked: nodes that have its handle reach it.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;

use serde::{Deserialize, Serialize};
use vervain_rdma::{Access, Foreign, Pd};

use crate::error::{Error, Result};

/// The offset of an address in its page, which devices want to be that of the address in the process too.
pub(crate) const IN_PAGE: usize = 4095;
/// Bytes that the lower half of a handle can name.
pub(crate) const SPAN: u64 = 1 << 32;

/// Names a byte of locked memory to any node (`pmAddrHandle`): the key is above, below is where the byte lies behind
/// the beginning of the first byte's page. So a handle and a number of bytes make the handle of a byte further on, and
/// nobody has to be asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct AddrHandle(pub u64);

impl AddrHandle {
    fn new(key: u32, at: u32) -> Self {
        Self(u64::from(key) << 32 | u64::from(at))
    }

    /// The key: the remote one, unless the memory was locked before the context was restored.
    pub(crate) fn key(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The address that requests have.
    pub(crate) fn addr(self) -> u64 {
        u64::from(self.0 as u32)
    }
}

/// The nodes that may reach locked memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Whom {
    /// One node.
    Node(u32),
    /// All of them (`PM_NODE_ANY`).
    Any,
}

/// A region that is registered.
struct Lock {
    memory: Foreign,
    range: (usize, usize),
    /// For whom it was locked, and how often.
    holders: HashMap<Whom, u32>,
    /// Requests of this node's that use it.
    busy: u32,
}

/// How often a region is registered anew for want of a key.
const TRIES: usize = 16;

/// A lock as an image has it: the key in its handle, and which bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedLock {
    pub key: u32,
    pub start: u64,
    pub len: u64,
}

/// All of them.
pub(crate) struct Locks {
    pd: Pd,
    /// By the keys in their handles.
    by_key: HashMap<u32, Lock>,
    /// Keys in handles of an image, which are no others' as long as the context lives: nodes know them by the ones that
    /// they have now.
    restored: HashSet<u32>,
    /// Keys of those that are locked, by address and length. One that is only still in use is not here.
    by_range: HashMap<(usize, usize), u32>,
}

impl Locks {
    pub fn new(pd: Pd) -> Self {
        Self { pd, by_key: HashMap::new(), restored: HashSet::new(), by_range: HashMap::new() }
    }

    /// # Safety
    /// The memory stays mapped until [`unlock`](Locks::unlock), as often as it was locked, and until no request uses
    /// it; nobody has a Rust reference into it.
    pub unsafe fn lock(&mut self, whom: Whom, start: *mut c_void, len: usize) -> Result<AddrHandle> {
        let range = (start.addr(), len);
        let at = start.addr() & IN_PAGE;
        if len == 0 || len as u64 + at as u64 > SPAN || start.addr().checked_add(len).is_none() {
            return Err(Error::invalid(format!(
                "there is no memory of {len} bytes at {start:p} that can be locked: 1 byte to 4 GiB less a page"
            )));
        }
        let handle = |key| AddrHandle::new(key, at as u32);
        if let Some(key) = self.by_range.get(&range).copied()
            && let Some(lock) = self.by_key.get_mut(&key)
        {
            *lock.holders.entry(whom).or_default() += 1;
            return Ok(handle(key));
        }
        // SAFETY: handed on to the caller.
        let memory = unsafe { self.register(start, len, at) }?;
        let key = memory.rkey();
        self.by_range.insert(range, key);
        self.by_key.insert(key, Lock { memory, range, holders: HashMap::from([(whom, 1)]), busy: 0 });
        Ok(handle(key))
    }

    /// Registers memory by a key that stands in no handle of other memory.
    ///
    /// # Safety
    /// As [`lock`](Locks::lock).
    unsafe fn register(&self, start: *mut c_void, len: usize, at: usize) -> Result<Foreign> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // Those whose keys are taken keep the device from giving them out again meanwhile.
        let mut others = Vec::new();
        let registered = loop {
            // SAFETY: handed on to the caller; requests with this memory are never inline.
            match unsafe { self.pd.register_foreign_at(start, len, at as u64, access) } {
                Ok(memory) if self.is_taken(memory.rkey()) && others.len() < TRIES => others.push(memory),
                other => break other,
            }
        };
        for other in others {
            other.deregister().map_err(vervain_rdma::Error::from)?;
        }
        let memory = registered.map_err(|error| {
            let errno = match error.errno() {
                Some(libc::EFAULT | libc::EINVAL | libc::EACCES | libc::EPERM) => libc::EINVAL,
                _ => libc::ENOSPC,
            };
            Error::new(errno, format!("{len} bytes at {start:p} cannot be locked: {error}"))
        })?;
        if self.is_taken(memory.rkey()) {
            memory.deregister().map_err(vervain_rdma::Error::from)?;
            return Err(Error::new(libc::ENOSPC, format!("{len} bytes at {start:p} cannot be locked: no key is free")));
        }
        Ok(memory)
    }

    fn is_taken(&self, key: u32) -> bool {
        self.restored.contains(&key) || self.by_key.contains_key(&key)
    }

    /// All that are locked, in the order of their keys.
    pub fn saved(&self) -> Vec<SavedLock> {
        let saved =
            |(range, key): (&(usize, usize), &u32)| SavedLock { key: *key, start: range.0 as u64, len: range.1 as u64 };
        let mut all: Vec<_> = self.by_range.iter().map(saved).collect();
        all.sort_unstable_by_key(|lock| lock.key);
        all
    }

    /// For all locks: the keys that their handles get with those of an image, whose memory is locked already, and the
    /// keys by which the device knows the memory.
    ///
    /// # Errors
    /// EINVAL: the memory is not locked; or a key is that of other memory, whose handle the program has.
    pub fn keys_of(&self, saved: &[SavedLock]) -> Result<Vec<(u32, u32)>> {
        let range = |lock: &SavedLock| (lock.start as usize, lock.len as usize);
        let of_image: HashSet<(usize, usize)> = saved.iter().map(range).collect();
        let mut keys = Vec::with_capacity(saved.len());
        for lock in saved {
            let now = self.by_range.get(&range(lock)).and_then(|key| self.by_key.get(key)).ok_or_else(|| {
                Error::invalid(format!(
                    "{} bytes at {:#x} were locked at the save, and are not now",
                    lock.len, lock.start
                ))
            })?;
            if self.by_key.get(&lock.key).is_some_and(|other| !of_image.contains(&other.range)) {
                return Err(Error::invalid(format!(
                    "memory that was not locked at the save has the handle of {} bytes at {:#x}: it is to be locked later",
                    lock.len, lock.start
                )));
            }
            keys.push((lock.key, now.memory.rkey()));
        }
        let others = self.by_range.iter().filter(|(range, _)| !of_image.contains(range));
        keys.extend(others.filter_map(|(_, key)| Some((*key, self.by_key.get(key)?.memory.rkey()))));
        Ok(keys)
    }

    /// The handles of these locks are those of the image, which [`keys_of`](Locks::keys_of) has let pass.
    pub fn become_restored(&mut self, saved: &[SavedLock]) {
        let range = |lock: &SavedLock| (lock.start as usize, lock.len as usize);
        let locks: Vec<_> = saved
            .iter()
            .filter_map(|lock| Some((lock.key, self.by_key.remove(self.by_range.get(&range(lock))?)?)))
            .collect();
        for (key, lock) in locks {
            self.by_range.insert(lock.range, key);
            self.by_key.insert(key, lock);
            self.restored.insert(key);
        }
    }

    /// Takes back one lock.
    pub fn unlock(&mut self, whom: Whom, start: *mut c_void, len: usize) -> Result<()> {
        let range = (start.addr(), len);
        let not_locked = || {
            let whom = match whom {
                Whom::Node(node) => format!("node {node}"),
                Whom::Any => "all nodes".into(),
            };
            Error::new(libc::ENOENT, format!("{len} bytes at {start:p} are not locked for {whom}"))
        };
        let key = *self.by_range.get(&range).ok_or_else(not_locked)?;
        let lock = self.by_key.get_mut(&key).ok_or_else(not_locked)?;
        let count = lock.holders.get_mut(&whom).ok_or_else(not_locked)?;
        *count -= 1;
        if *count == 0 {
            lock.holders.remove(&whom);
        }
        if lock.holders.is_empty() {
            self.by_range.remove(&range);
            self.free(key)?;
        }
        Ok(())
    }

    /// The local memory of a request: its handle's place, which `len` bytes from there are in.
    pub fn find(&self, handle: AddrHandle, len: usize) -> Result<(&Foreign, usize)> {
        let lock = self.by_key.get(&handle.key()).filter(|lock| !lock.holders.is_empty());
        let lock =
            lock.ok_or_else(|| Error::invalid(format!("handle {:#x} is not of memory locked here", handle.0)))?;
        let at = handle.addr().checked_sub(lock.memory.addr()).map(|at| at as usize);
        match at.filter(|at| at.checked_add(len).is_some_and(|end| end <= lock.range.1)) {
            Some(at) => Ok((&lock.memory, at)),
            None => Err(Error::invalid(format!(
                "{len} bytes from handle {:#x} on are not all inside the {} that are locked",
                handle.0, lock.range.1
            ))),
        }
    }

    /// A request uses it.
    #[inline]
    pub fn hold(&mut self, key: u32) {
        if let Some(lock) = self.by_key.get_mut(&key) {
            lock.busy += 1;
        }
    }

    /// A request uses it no more. The memory may have been unlocked meanwhile.
    #[inline]
    pub fn release(&mut self, key: u32) -> Result<()> {
        let Some(lock) = self.by_key.get_mut(&key) else { return Ok(()) };
        lock.busy -= 1;
        if lock.busy == 0 && lock.holders.is_empty() { self.free(key) } else { Ok(()) }
    }

    /// Deregisters what nobody has locked and no request uses.
    fn free(&mut self, key: u32) -> Result<()> {
        if self.by_key.get(&key).is_some_and(|lock| lock.busy == 0 && lock.holders.is_empty())
            && let Some(lock) = self.by_key.remove(&key)
        {
            lock.memory.deregister().map_err(vervain_rdma::Error::from)?;
        }
        Ok(())
    }
}
