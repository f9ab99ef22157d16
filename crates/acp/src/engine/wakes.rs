//! Wakes: a rank asks another one to look whether what it waits for has come. They are no operations of the program's: a rank that is
//! asked and does not answer, for its process is stopped, holds up nothing else.

use std::collections::VecDeque;

use super::Engine;
use crate::address::GlobalAddress;
use crate::command::Ask;
use crate::error::{Error, Result};
use crate::op::{Op, Work};

/// Ranks that are asked at a time; each takes one of the library's own operations.
const MAX_WAKES: usize = 64;

/// Who is asked to look.
#[derive(Default)]
pub(super) struct Wakes {
    /// Those that have not answered, each once.
    under_way: Vec<Wake>,
    /// Those that are to be asked once there is room, each once.
    waiting: VecDeque<u32>,
}

struct Wake {
    rank: u32,
    op: u32,
    /// It is to look once more, for something that may have come behind its look.
    again: bool,
}

impl Engine {
    /// Has a thread of `rank` that waits look. Returns before it does.
    pub fn wake(&mut self, rank: u32) -> Result<()> {
        if rank >= self.memory.layout.ranks() {
            return Err(Error::refused(format!("there is no rank {rank}: the job has {}", self.memory.layout.ranks())));
        }
        if rank == self.memory.rank {
            self.looks += 1;
        } else if let Some(wake) = self.wakes.under_way.iter_mut().find(|wake| wake.rank == rank) {
            wake.again = true;
        } else if !self.wakes.waiting.contains(&rank) {
            self.wakes.waiting.push_back(rank);
            self.ask_to_look();
            self.drain();
        }
        Ok(())
    }

    fn ask_to_look(&mut self) {
        while self.wakes.under_way.len() < MAX_WAKES
            && let Some(rank) = self.wakes.waiting.pop_front()
        {
            let src = self.memory.starter(rank, 0).unwrap_or(GlobalAddress::NULL);
            let op = self.operations.add(Op { work: Work::Ask(Ask::Look), src, ..Op::NONE });
            self.wakes.under_way.push(Wake { rank, op, again: false });
            self.start(op);
        }
    }

    /// The rank that this operation has asked to look has done so.
    pub(super) fn has_looked(&mut self, op: u32) {
        if let Some(at) = self.wakes.under_way.iter().position(|wake| wake.op == op) {
            let wake = self.wakes.under_way.swap_remove(at);
            // Behind those that wait, so that no rank keeps others from it.
            self.wakes.waiting.extend(wake.again.then_some(wake.rank));
        }
        self.operations.finish(op);
        self.ask_to_look();
    }

    /// Whether all ranks that were asked to look have answered.
    pub fn have_all_looked(&self) -> bool {
        self.wakes.under_way.is_empty() && self.wakes.waiting.is_empty()
    }
}
