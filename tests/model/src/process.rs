//! Stand-in for the process: an arena, and nobody who was cut off.

#[path = "../../../crates/hca/src/process/gate.rs"]
pub(crate) mod gate;

use crate::arena::layout::Shared;
use crate::arena::{Arena, Block};

pub(crate) struct Process {
    pub(crate) arena: Arena,
}

impl Process {
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
}
