//! Wakes: a rank asks another one to look for the event that it waits for. They are no operations of the program: a
//! rank that is asked and does not answer, since its process is stopped, holds up nothing else.

use std::collections::VecDeque;

use super::requester::Requester;
use crate::address::GlobalAddress;
use crate::command::Ask;
use crate::op::{Op, Work};

/// The most ranks that are asked at a time; each takes one of the library's own operations.
const MAX_WAKES: usize = 64;

/// Ranks that are asked to look.
#[derive(Default)]
pub(super) struct Wakes {
    /// Ranks that have not answered, each once.
    under_way: Vec<Wake>,
    /// Ranks that are to be asked once there is room, each once.
    waiting: VecDeque<u32>,
}

struct Wake {
    rank: u32,
    op: u32,
    /// True: the rank is to look once more, for an event that may have come behind its look.
    again: bool,
}

impl Wakes {
    /// Asks another rank to look.
    pub fn wake(&mut self, requester: &mut Requester, rank: u32) {
        if let Some(wake) = self.under_way.iter_mut().find(|wake| wake.rank == rank) {
            wake.again = true;
        } else if !self.waiting.contains(&rank) {
            self.waiting.push_back(rank);
            self.ask(requester);
            requester.start_ready();
        }
    }

    fn ask(&mut self, requester: &mut Requester) {
        while self.under_way.len() < MAX_WAKES
            && let Some(rank) = self.waiting.pop_front()
        {
            let src = requester.memory.starter(rank, 0).unwrap_or(GlobalAddress::NULL);
            let op = requester.add(Op { work: Work::Ask(Ask::Look), src, ..Op::NONE });
            self.under_way.push(Wake { rank, op, again: false });
        }
    }

    /// Ends the wake of the rank that this operation has asked to look.
    pub fn handle_looked(&mut self, requester: &mut Requester, op: u32) {
        if let Some(at) = self.under_way.iter().position(|wake| wake.op == op) {
            let wake = self.under_way.swap_remove(at);
            // Behind those that wait, so that no rank keeps others waiting.
            self.waiting.extend(wake.again.then_some(wake.rank));
        }
        requester.operations.finish(op);
        self.ask(requester);
    }

    /// Returns true if all ranks that were asked to look have answered.
    pub fn have_all_looked(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }
}
