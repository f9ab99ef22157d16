//! Adoption as registration uses it: switched on by `VERVAIN_ADOPT`, behind the closed gate, with the shared object in
//! the table that peers read; and fork, around which adopted memory is private for a moment.

use crate::adopt::{Adopted, Adoption, Object};
use crate::arena::Arena;
use crate::arena::layout::{OBJECT_MEMFD, OFFSET_BITS};
use crate::host::lock::OwnerLock;
use crate::process::exports::{Objects, Withdrawn};
use crate::process::key_table::KeyTable;
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

    /// Adopts `[addr, addr + length)` for a registration, behind the gate that `close_gate` closes. If the kernel
    /// refuses, the log gives the reason.
    pub(crate) fn adopt<G>(&self, addr: u64, length: u64, close_gate: impl FnOnce() -> G) -> Option<Adopted> {
        let gate = close_gate();
        let adopted = self.adoption.adopt(addr as usize, length as usize);
        drop(gate);
        adopted.inspect_err(|why| log::info!("registration of {length} bytes at {addr:#x}: {why}")).ok()
    }

    /// Keeps `object` in the table at `place`, unless it or a later one is; returns the one before it if that goes.
    pub(crate) fn keep(
        &self,
        objects: &Objects,
        arena: &Arena,
        object: &Arc<Object>,
        place: &Place,
    ) -> Option<(Withdrawn, Arc<Object>)> {
        let mut kept = self.kept.lock();
        if kept.as_ref().is_some_and(|(known, _)| known.identity() >= object.identity()) {
            return None;
        }
        let entered = objects.enter(arena, place, None);
        let before = std::mem::replace(&mut *kept, entered.map(|(number, _)| (Arc::clone(object), number)));
        drop(kept);
        let (object, number) = before?;
        objects.leave(number).map(|gone| (gone, object))
    }

    /// Before fork: adopted memory becomes private, so that the child gets a snapshot. The gate is closed.
    pub(crate) fn before_fork(&self) {
        self.adoption.before_fork();
    }

    /// After fork, in the parent: it is shared again, at the same places. `keys` lead peers no more to what is not.
    pub(crate) fn after_fork(&self, keys: &KeyTable) {
        let lost = self.adoption.after_fork();
        if lost.is_empty() {
            return;
        }
        log::info!("{} pieces of registered memory are not adopted again after fork", lost.len());
        // Offsets of adopted memory are its addresses; no other object is laid out so.
        keys.unshare(|host, len, at| {
            let meets = |range: &Range<usize>| host < range.end as u64 && (range.start as u64) < host + len;
            at & ((1 << OFFSET_BITS) - 1) == host && lost.iter().any(meets)
        });
    }
}

/// Returns true if `length` bytes that are registered with these rights are worth an adoption.
pub(crate) fn is_for_peers(length: u64, rights: u32) -> bool {
    rights & FOR_PEERS != 0 && length != 0 && length < 1 << 47
}

/// Where peers find adopted memory.
pub(crate) fn place_of(adopted: &Adopted) -> Place {
    let object = &adopted.object;
    Place {
        kind: OBJECT_MEMFD,
        fd: object.fd(),
        object: IDENTITY | object.identity(),
        offset: adopted.offset,
        object_len: object.object_len(),
        incarnation: 0,
    }
}
