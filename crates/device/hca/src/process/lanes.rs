//! The lanes into the QPs of a process, on its side: their maker, their gates, the requests that come by them and the
//! memory of those that are gone.

use crate::arena::Block;
use crate::host::lock::OwnerLock;
use crate::process::gate::Gates;
use crate::process::inline_receive::InlineLanes;
use std::sync::OnceLock;

/// The purpose of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneRequest {
    /// The initiating QP.
    pub initiator: u32,
    /// The UD QP, or the XRC target QP, that is addressed.
    pub qpn: u32,
    /// The XRC SRQ, 0 for UD.
    pub srqn: u32,
}

/// The answer to a [`LaneRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneReply {
    /// Offset of the lane in the peer's arena.
    Lane(u64),
    /// Asked for.
    Pending,
    /// The peer has no such QP or SRQ, or no memory for a lane.
    Refused,
}

/// The maker of lanes into the QPs of a process, which also takes them back: the table of its QPs.
pub trait LaneOwner: Send + Sync {
    /// Makes the lane that an initiator asks for, or finds the one that it has; its offset.
    fn make_lane(&self, request: &LaneRequest) -> Option<u64>;

    /// Takes back the lanes that `initiator`, a QP that is reset or gone, had in this process.
    fn drop_lanes_of(&self, initiator: u32);

    /// The processes of `slots`, which had initiators here, have ended: takes back all that they held. Requests that
    /// they had begun and not ended are `lost`, or begun anew by a process that is restored.
    fn reap(&self, slots: &[u32], lost: bool);
}

/// The lanes of a process. The methods for peers are called by the rendezvous.
#[derive(Default)]
pub struct Lanes {
    owner: OnceLock<&'static dyn LaneOwner>,
    pub(crate) gates: Gates,
    /// Those whose completions hold messages.
    pub(crate) inline: InlineLanes,
    /// Memory of lanes that are gone, for new ones.
    blocks: OwnerLock<Vec<Block>>,
    /// Held while a piece of an initiator's request is moved.
    serving: OwnerLock<()>,
}

impl Lanes {
    /// Sets the maker of lanes into the QPs of this process.
    pub(crate) fn set_owner(&self, owner: &'static dyn LaneOwner) {
        let _ = self.owner.set(owner);
    }

    /// Makes the lane that an initiator asks for, in this process or in a peer; its offset.
    pub fn make(&self, request: &LaneRequest) -> Option<u64> {
        self.owner.get()?.make_lane(request)
    }

    /// Takes back the lanes that `initiator`, a QP that is reset or gone, had in this process.
    pub fn drop_those_of(&self, initiator: u32) {
        self.owner.get().iter().for_each(|owner| owner.drop_lanes_of(initiator));
    }

    /// The processes of `slots`, which had initiators here, have ended: takes back what they held.
    pub fn reap(&self, slots: &[u32]) {
        self.owner.get().iter().for_each(|owner| owner.reap(slots, true));
    }

    /// [`Lanes::reap`] of processes that were saved before: those that are restored from it begin anew what they had
    /// begun.
    pub fn reap_saved(&self, slots: &[u32]) {
        self.owner.get().iter().for_each(|owner| owner.reap(slots, false));
    }

    /// Memory of a former lane that is `usable`.
    pub(crate) fn take_block(&self, usable: impl Fn(&Block) -> bool) -> Option<Block> {
        let mut blocks = self.blocks.lock();
        // The longest unused first. Those whose initiator is stopped or idle stay for later; they are few.
        let i = blocks.iter().take(64).position(usable)?;
        Some(blocks.swap_remove(i))
    }

    pub(crate) fn return_block(&self, block: Block) {
        self.blocks.lock().push(block);
    }

    /// Does a piece of an initiator's request; [`Lanes::wait_serving`] waits for it.
    pub(crate) fn serve<R>(&self, piece: impl FnOnce() -> R) -> R {
        let _serving = self.serving.lock();
        piece()
    }

    /// Waits until no request of an initiator is being carried out.
    pub(crate) fn wait_serving(&self) {
        self.while_not_serving(|| ());
    }

    /// Runs `f` while no piece of any request is being moved.
    pub(crate) fn while_not_serving(&self, f: impl FnOnce()) {
        let _serving = self.serving.lock();
        f();
    }

    /// Returns true if a piece is being moved by a thread that goes on with it. Waits for no lock.
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.try_lock().is_none() && self.serving.raw().comes_free()
    }
}
