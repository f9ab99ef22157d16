//! The process.

#[path = "../../../crates/device/hca/src/process/gate.rs"]
pub(crate) mod gate;

use crate::arena::layout::{CqeRing, Inline, Shared};
use crate::arena::{Arena, ArenaRef, Block};
use crate::host::atomic::AtomicU32;
use std::sync::Mutex;
use vervain_iba::Sge;

/// Stand-in for the process: an arena, memory of a word each that messages are put into, and nobody who was cut off.
pub(crate) struct Process {
    pub(crate) arena: Arena,
    pub(crate) keys: Keys,
}

/// Stand-in for the keys.
#[derive(Default)]
pub(crate) struct Keys {
    /// Messages that came in their completions, by the address of their receives.
    scattered: Mutex<Vec<(u64, u32)>>,
}

impl Keys {
    pub(crate) fn scatter(&self, at: &Sge, _pd: u32, message: &Inline, _revoked: bool) -> bool {
        self.scattered.lock().expect("not poisoned").push((at.addr, message[0]));
        true
    }

    /// What was scattered, and nothing any more.
    pub(crate) fn take_scattered(&self) -> Vec<(u64, u32)> {
        std::mem::take(&mut *self.scattered.lock().expect("not poisoned"))
    }
}

impl Process {
    /// A ring of indices for `slots` completions of a lane, and CQEs, as its owner and its initiator have them.
    #[allow(clippy::type_complexity, reason = "used once and taken apart at once")]
    pub(crate) fn lane_rings(
        &self,
        slots: usize,
    ) -> (&'static [AtomicU32], ArenaRef<[AtomicU32]>, &'static CqeRing, ArenaRef<CqeRing>) {
        let indices = self.arena.alloc(slots as u64 * 8).expect("room in the arena").offset();
        let cqes = self.arena.alloc(size_of::<CqeRing>() as u64).expect("room in the arena").offset();
        let view = self.arena.view();
        let rings = (view.slice(indices, slots), view.hold_slice(indices, slots), view.get(cqes), view.hold(cqes));
        let (Some(ring), Some(held), Some(cqes), Some(held_cqes)) = rings else { panic!("just allocated") };
        (ring, held, cqes, held_cqes)
    }

    /// A shared struct of zeros.
    pub(crate) fn place<T: Shared>(&self) -> &'static T {
        let block = self.arena.alloc(size_of::<T>() as u64).expect("room in the arena");
        self.arena.view().get(block.offset()).expect("just allocated")
    }

    pub(crate) fn release(&self, _: Block) {}

    pub(crate) fn has_suspects(&self) -> bool {
        false
    }

    pub(crate) fn is_current(&self) -> bool {
        false
    }

    pub(crate) fn fail_qp(&self, _offset: u64) {}
}
