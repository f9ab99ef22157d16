//! Adoption as registration uses it: switched on by `VERVAIN_ADOPT`, behind the closed gate, with the shared object in
//! the table that peers read; and fork, around which adopted memory is private for a moment.

use crate::adopt::sys::NoSignals;
use crate::adopt::{Adopted, Adoption, Object};
use crate::arena::layout::{Lane, OBJECT_MEMFD, OFFSET_BITS};
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::exports::{ExportedRange, Withdrawn};
use std::ops::Range;
use std::sync::Arc;
use vervain_config::{ADOPT, Config};
use vervain_iba::access;
use vervain_share::api::Place;

/// Rights with which memory is registered for peers; memory without them is only read, by its own process.
const FOR_PEERS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Marks identities of objects that are not the preload's.
const IDENTITY: u64 = 1 << 63;

/// The adoption of a process that has it switched on.
pub(crate) struct Adopting {
    adoption: Adoption,
    /// The object in use and its number. It stays in the table while nothing is adopted, so that peers keep it mapped.
    kept: OwnerLock<Option<(Arc<Object>, u32)>>,
}

impl Adopting {
    /// The adoption that `VERVAIN_ADOPT` asks for. If the kernel refuses, adoption is off, and the log gives the
    /// reason.
    pub(crate) fn new(config: &Config) -> Option<Adopting> {
        if !config.adopt {
            return None;
        }
        match Adoption::new() {
            Ok(adoption) => Some(Adopting { adoption, kept: OwnerLock::default() }),
            Err(why) => {
                log::warn!("{}=on has no effect: {why}", ADOPT.name());
                None
            }
        }
    }

    /// Ends a registration's hold. The gate is closed.
    pub(crate) fn revert(&self, adopted: Adopted) {
        self.adoption.revert(adopted);
    }
}

/// While this lives, no thread and no peer is in this process's memory. No signal handler runs in the thread that holds
/// it: a thread that ended in one would leave all others waiting.
pub(crate) struct Closed<'a> {
    process: &'a Process,
    _signals: NoSignals,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.process.resume();
    }
}

impl Process {
    /// Closes the gate for as long as the guard lives.
    pub(crate) fn close_gate(&self) -> Closed<'_> {
        self.close_gate_where(|_| true)
    }

    /// Closes the gate for what goes on by the lanes that `matter`, as long as the guard lives.
    pub(crate) fn close_gate_where(&self, matter: impl Fn(&Lane) -> bool) -> Closed<'_> {
        let signals = NoSignals::new();
        self.pause_where(matter);
        Closed { process: self, _signals: signals }
    }

    /// Adopts `[addr, addr + length)` for a registration with `access` rights.
    pub(crate) fn adopt(&self, addr: u64, length: u64, rights: u32) -> ExportedRange {
        let Some(adopting) = self.adopting.as_ref() else { return ExportedRange::NOWHERE };
        if rights & FOR_PEERS == 0 || length == 0 || length >= 1 << 47 {
            return ExportedRange::NOWHERE;
        }
        let gate = self.close_gate();
        let adopted = adopting.adoption.adopt(addr as usize, length as usize);
        drop(gate);
        let adopted = match adopted {
            Ok(adopted) => adopted,
            Err(why) => {
                log::info!("registration of {length} bytes at {addr:#x}: {why}");
                return ExportedRange::NOWHERE;
            }
        };
        let object = &adopted.object;
        let place = Place {
            kind: OBJECT_MEMFD,
            fd: object.fd(),
            object: IDENTITY | object.identity(),
            offset: adopted.offset,
            object_len: object.object_len(),
            incarnation: 0,
        };
        self.keep_object(adopting, object, &place);
        self.objects.hold(&self.arena, &place, length, adopted).unwrap_or_else(|adopted| {
            let _gate = self.close_gate();
            adopting.revert(adopted);
            ExportedRange::NOWHERE
        })
    }

    fn keep_object(&self, adopting: &Adopting, object: &Arc<Object>, place: &Place) {
        let mut kept = adopting.kept.lock();
        if kept.as_ref().is_some_and(|(known, _)| known.identity() >= object.identity()) {
            return;
        }
        let entered = self.objects.enter(&self.arena, place, None);
        let before = std::mem::replace(&mut *kept, entered.map(|(number, _)| (Arc::clone(object), number)));
        drop(kept);
        let Some((_object, number)) = before else { return };
        if let Some(Withdrawn { number, generation }) = self.objects.leave(number) {
            self.rendezvous.object_withdrawn(number, generation);
        }
    }

    /// Before fork: adopted memory becomes private, so that the child gets a snapshot. Peers wait.
    pub(crate) fn adoption_before_fork(&self) {
        if let Some(adopting) = self.adopting.as_ref() {
            self.pause();
            adopting.adoption.before_fork();
        }
    }

    /// After fork, in the parent: it is shared again, at the same places.
    pub(crate) fn adoption_after_fork(&self) {
        let Some(adopting) = self.adopting.as_ref() else { return };
        let lost = adopting.adoption.after_fork();
        if !lost.is_empty() {
            log::info!("{} pieces of registered memory are not adopted again after fork", lost.len());
            // Offsets of adopted memory are its addresses; no other object is laid out so.
            self.keys.unshare(|host, len, at| {
                let meets = |range: &Range<usize>| host < range.end as u64 && (range.start as u64) < host + len;
                at & ((1 << OFFSET_BITS) - 1) == host && lost.iter().any(meets)
            });
        }
        self.resume();
    }
}
