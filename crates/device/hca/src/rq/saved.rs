//! The receives of a queue that stands still, for an image of it.

use crate::error::{Error, Result};
use crate::host::atomic::Ordering;
use crate::rq::ring::AGAIN;
use crate::rq::{MAX_SGES, RecvQueue, RqView};
use serde::{Deserialize, Serialize};
use vervain_iba::Sge;

/// A receive that is outstanding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedReceive {
    /// The program's cookie.
    pub wr_id: u64,
    /// Its memory.
    pub sges: Vec<Sge>,
}

impl RecvQueue {
    /// All that are outstanding, the oldest first, claimed for a message or not: one by memory begins anew. Nobody is
    /// in flight on the queue, and what was completed has been taken.
    pub(crate) fn outstanding_receives(&self) -> Vec<SavedReceive> {
        self.outstanding_indices().into_iter().filter_map(|index| self.outstanding_receive(index)).collect()
    }

    fn outstanding_indices(&self) -> Vec<u32> {
        let state = self.state.lock();
        if self.view.exclusive {
            let taken = self.taken.load(Ordering::Relaxed);
            return (taken..state.tail).map(|position| (position & self.view.mask) as u32).collect();
        }
        let mut in_use: Vec<u32> = (0..state.in_use.len() as u32).filter(|i| state.in_use[*i as usize]).collect();
        // Those of the second ring are claimed first.
        in_use.sort_unstable_by_key(|i| state.posted_at[*i as usize] ^ AGAIN);
        in_use
    }

    /// The place of receive `index` among those that are outstanding.
    pub(crate) fn place_of(&self, index: u32) -> Option<u32> {
        self.outstanding_indices().iter().position(|i| *i == index).map(|place| place as u32)
    }

    /// Claims the receive at `place` for the initiator `me`, whose message had it when it was saved. Returns its index
    /// and its room. None if it is claimed already, or not there.
    pub(crate) fn claim_place(&self, place: u32, me: u32) -> Option<(u32, u64)> {
        let index = *self.outstanding_indices().get(place as usize)?;
        let room = self.view.sges(index)?.iter().map(|sge| u64::from(RqView::sge(sge).length)).sum();
        if self.view.exclusive {
            // It has one claimer, which takes them in order.
            return (place == 0 && self.view.claim_exclusive() == Some(index)).then_some((index, room));
        }
        let state = self.state.lock();
        let position = state.posted_at[index as usize];
        self.view.claim_at(position, me).then_some((index, room))
    }

    fn outstanding_receive(&self, index: u32) -> Option<SavedReceive> {
        let sges = self.view.sges(index)?.iter().map(RqView::sge).collect();
        Some(SavedReceive { wr_id: self.wr_id(index)?, sges })
    }

    /// Posts them again, to a queue without any.
    pub(crate) fn post_again(&self, receives: &[SavedReceive]) -> Result<()> {
        for receive in receives {
            if receive.sges.len() > MAX_SGES as usize {
                return Err(Error::invalid("a receive has more pieces than any can have"));
            }
            self.post(receive.wr_id, &receive.sges)?;
        }
        Ok(())
    }
}
