//! This rank's memory: the table of its registrations, starter memories and segments, and the accesses to it by the
//! processor.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vervain_mesh::Mesh;
use vervain_rdma::AtomicCap;

use super::segments::Segments;
use crate::address::{GlobalAddress, Layout, Parts};
use crate::command::NOTHING;
use crate::error::{Error, Result};
use crate::memory::{self, Domain, Pages, Registration, Rights};
use crate::op::Atomic;
use crate::settings::Settings;
use crate::table::{KeyFor, STARTERS, Table};

/// The memory that this rank has registered for its job.
pub(crate) struct OwnMemory {
    pub layout: Layout,
    pub rank: u32,
    pub table: Table,
    pub(super) segments: Segments,
    /// Mapped until the table is closed.
    starters: Vec<Pages>,
    /// The atomics that all ports of this rank carry out on its words.
    atomics: AtomicCap,
}

impl OwnMemory {
    /// The table with the three starter memories.
    pub fn new(mesh: &Mesh, settings: &Settings) -> Result<Self> {
        let layout = Layout::of_job(mesh.size())?;
        let caps = mesh.ports().iter().map(|port| Ok(port.context.attr()?.atomics)).collect::<Result<Vec<_>>>()?;
        // One kind of atomics for all words: either all devices carry them out, or the processor does.
        let global = caps.iter().all(|cap| *cap == AtomicCap::Global) && !settings.owner_atomics;
        let atomics = if global { AtomicCap::Global } else { AtomicCap::None };
        let domains = domains(mesh, atomics);
        let mut table = Table::new(&domains, mesh.rank(), layout)?;
        let mut starters = vec![];
        for size in settings.starter {
            let len = usize::try_from(size).map_err(|_| Error::broken("the starter memory is too large"))?;
            let pages = Pages::new(len)?;
            // SAFETY: the pages live as long as the table, which the engine closes first.
            let registration = unsafe { Registration::new(&domains, pages.start(), len, 0, Rights::Write)? };
            if let KeyFor::Key(key) = table.key()? {
                table.insert(key, registration, 0);
            }
            starters.push(pages);
        }
        Ok(Self { layout, rank: mesh.rank(), table, segments: Segments::new(settings.heap), starters, atomics })
    }

    /// The ports as domains to register with.
    pub(super) fn domains<'a>(&self, mesh: &'a Mesh) -> Vec<Domain<'a>> {
        domains(mesh, self.atomics)
    }

    /// Returns true if devices carry out the atomics on this rank's words.
    pub fn has_device_atomics(&self) -> bool {
        by_device(self.atomics)
    }

    /// Registers memory of the program; peers do not know it before they have its key.
    ///
    /// # Safety
    /// As [`Registration::new`].
    pub unsafe fn register(
        &self,
        mesh: &Mesh,
        start: *mut libc::c_void,
        len: usize,
        color: u32,
        rights: Rights,
    ) -> Result<Registration> {
        // SAFETY: handed on to the caller.
        unsafe { Registration::new(&self.domains(mesh), start, len, color as usize, rights) }
    }

    /// Deregisters all, for good. Returns false if the device did not release some memory: the pages then stay mapped.
    pub fn close(&mut self) -> bool {
        let closed = self.table.close();
        if !closed {
            self.starters.drain(..).for_each(std::mem::forget);
            self.segments.forget();
        }
        closed
    }

    /// The starter memory `which` of a rank; None if there is no such rank.
    pub fn starter(&self, rank: u32, which: u32) -> Option<GlobalAddress> {
        debug_assert!(which < STARTERS);
        (rank < self.layout.ranks()).then(|| self.layout.address(Parts { rank, color: 0, key: which + 1, offset: 0 }))
    }

    /// The place of `len` bytes of this rank's memory, for the program to read or to write.
    pub fn place(&self, address: GlobalAddress, len: usize, rights: Rights) -> Result<*mut u8> {
        if self.layout.parts(address).is_none_or(|parts| parts.rank != self.rank) {
            return Err(Error::refused(format!("{address} is no memory of rank {}", self.rank)));
        }
        let found = match rights {
            Rights::Read => self.table.range(address, len),
            Rights::Write => self.table.writable(address, len),
        };
        let (registration, offset) = found.map_err(Error::into_refused)?;
        Ok(registration.at(offset))
    }

    /// Checks a word of this rank that an atomic names.
    pub fn check_word(&self, address: GlobalAddress, width: usize) -> Result<()> {
        let (registration, offset) = self.table.writable(address, width).map_err(Error::into_refused)?;
        check_alignment(registration.at(offset) as u64, width, address)
    }

    /// Checks that `len` bytes at `address` are in a region of this rank. The error is the region's size, or
    /// [`NOTHING`].
    pub fn check_range(&self, address: GlobalAddress, len: u64) -> Result<(), u64> {
        match self.table.find(address) {
            None => Err(NOTHING),
            Some((registration, offset)) if len <= (registration.len() - offset) as u64 => Ok(()),
            Some((registration, _)) => Err(registration.len() as u64),
        }
    }

    /// Copies inside this rank.
    pub fn copy(&self, dst: GlobalAddress, src: GlobalAddress, len: usize) -> Result<()> {
        let (to, at) = self.table.writable(dst, len)?;
        let (from, offset) = self.table.range(src, len)?;
        // SAFETY: both are inside registered memory, which stays mapped until it is unregistered.
        unsafe { memory::copy(from.at(offset), to.at(at), len) };
        Ok(())
    }

    /// Carries out an atomic on a word of this rank by the processor. Returns the word's earlier value.
    pub fn carry_out(&self, at: GlobalAddress, what: Atomic) -> Result<u64> {
        let width = what.width();
        let (registration, offset) = self.table.writable(at, width)?;
        let word = registration.at(offset);
        check_alignment(word as u64, width, at)?;
        if width == 8 {
            // SAFETY: aligned, and inside registered memory, which stays mapped until it is unregistered.
            let word = unsafe { AtomicU64::from_ptr(word.cast()) };
            let all = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| what.apply(old));
            Ok(all.unwrap_or_else(|old| old))
        } else {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(word.cast()) };
            let update = |old: u32| what.apply(old.into()).map(|new| new as u32);
            let all = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
            Ok(all.unwrap_or_else(|old| old).into())
        }
    }

    /// Stores the result of an atomic to its destination, a word of this rank.
    pub fn store(&self, dst: GlobalAddress, value: u64, width: usize) -> Result<()> {
        let (registration, offset) = self.table.writable(dst, width)?;
        let word = registration.at(offset);
        if width == 8 {
            // SAFETY: aligned, as was checked when it was issued, and inside registered memory.
            unsafe { AtomicU64::from_ptr(word.cast()) }.store(value, Ordering::Release);
        } else {
            // SAFETY: as above.
            unsafe { AtomicU32::from_ptr(word.cast()) }.store(value as u32, Ordering::Release);
        }
        Ok(())
    }
}

/// Refuses a word of `width` bytes at `at`, the global address `address`, unless it is aligned to its size.
pub(super) fn check_alignment(at: u64, width: usize, address: GlobalAddress) -> Result<()> {
    if at.is_multiple_of(width as u64) {
        return Ok(());
    }
    Err(Error::refused(format!("the word of {width} bytes at {address} is not aligned to its size")))
}

fn domains(mesh: &Mesh, atomics: AtomicCap) -> Vec<Domain<'_>> {
    mesh.ports().iter().map(|port| Domain { pd: &port.pd, atomics }).collect()
}

/// Returns true if the device does the atomics, as its peers will know. A device that is atomic only among its own
/// operations does not: it would change the neighbour of a word of 4 bytes, and its own atomics would meet those of the
/// processor.
pub(crate) fn by_device(cap: AtomicCap) -> bool {
    cap == AtomicCap::Global
}
