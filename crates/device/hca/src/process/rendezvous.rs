//! The rendezvous of the processes of one host: how a process finds the owner of a QP, maps its arena, asks it for
//! lanes, channels and shared objects, and hears of its end. The mechanism stands in the crate `vervain-rendezvous`.

use crate::error::{Error, Result};
use crate::process::Process;
use crate::process::imports::Wanted;
use crate::process::lanes::{LaneReply, LaneRequest};
use crate::process::peer::PeerProcess;
use serde::{Deserialize, Serialize};
use std::os::fd::RawFd;
use std::sync::Arc;
use vervain_iba::Gid;

/// The state of the connection with a peer process.
#[derive(Clone)]
pub enum Peer {
    /// Mapped.
    Ready(Arc<PeerProcess>),
    /// Asked for; the answer comes to the progress thread.
    Connecting,
    /// No process answers under that number.
    Absent,
    /// It has ended after it was saved, and may be restored: operations that need it wait.
    Suspended,
}

/// A process that this one knows, as an image of this one names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquaintance {
    /// Its slots.
    pub slots: Vec<u32>,
    /// Which process image it was.
    pub incarnation: [u64; 2],
    /// The proof of its secret.
    pub proof: [u64; 2],
}

/// The evidence that a process gives its peers to be accepted in the place of a saved one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Random; never sent while the process lives.
    pub secret: [u64; 4],
    /// Which save it was; not 0.
    pub save: u64,
    /// Seconds for which peers wait for it.
    pub suspense: u32,
}

/// The process that a context belongs to, as an image of it names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedProcess {
    /// Its slots, which are the upper parts of its QP numbers.
    pub slots: Vec<u32>,
    /// The evidence that it will give its peers.
    pub credentials: Credentials,
    /// Its peers.
    pub known: Vec<Acquaintance>,
}

/// A member of a multicast group: the QP number.
pub type Member = u32;

/// The way to the processes of this host.
pub trait Rendezvous: Send + Sync {
    /// A process slot that no other process of this user has on this host.
    fn claim_slot(&self) -> Result<u32>;

    /// Takes back that a slot was claimed, in which nothing has a number yet.
    fn give_slot_back(&self, _slot: u32) {}

    /// Claims `slot`, one of the `slots` of a saved process, which its peers may keep for a process that can prove `of`
    /// to them. EADDRINUSE, with its holder.
    fn claim_slot_again(&self, slot: u32, _slots: &[u32], _of: &Credentials) -> Result<()> {
        Err(Error::unsupported(format!("slot {slot} cannot be claimed")))
    }

    /// The processes that have initiators here, or initiators of this process.
    fn acquaintances(&self) -> Vec<Acquaintance> {
        Vec::new()
    }

    /// Announces to the peers that this process, which stands still, was saved, so that they wait for it when it ends.
    /// Returns the evidence that it will give them.
    fn tell_saved(&self, suspense: u32) -> Result<Credentials> {
        Ok(Credentials { secret: [0; 4], save: 1, suspense })
    }

    /// Tells the peers that this process goes on: what was saved of it is void.
    fn tell_save_is_over(&self) {}

    /// Returns true if the process `incarnation` of `slot` may still be restored. Every waiter calls this again and
    /// again, and its waiting time is counted by these calls.
    fn may_be_restored(&self, _slot: u32, _incarnation: [u64; 2]) -> bool {
        false
    }

    /// Shows the processes that a saved one knew that this one is in its place. ESTALE if one of them says that it is
    /// not, or not any more; those that are not there are waited for like one that was saved.
    fn take_the_place(
        &self,
        _process: &'static Process,
        _slots: &[u32],
        _of: &Credentials,
        _known: &[Acquaintance],
    ) -> Result<()> {
        Ok(())
    }

    /// A descriptor that is readable when [`Rendezvous::handle_events`] has something to do.
    fn events_fd(&self) -> RawFd;

    /// Does what came in. Only the progress thread calls it.
    fn handle_events(&self, process: &'static Process);

    /// The process that owns `slot`. Never waits.
    fn peer(&self, process: &'static Process, slot: u32) -> Peer;

    /// Returns true if the process of `slot`, whose answer to a handshake is waited for, is slow: it lives and is not
    /// stopped, but has had no CPU to answer. False if that is unknown.
    fn is_slow(&self, _slot: u32) -> bool {
        false
    }

    /// Returns true if the process of `slot`, which has initiators here, still runs.
    fn initiator_lives(&self, slot: u32) -> bool;

    /// A lane in a peer, for an initiator that has none of its own there. Never waits.
    fn lane(&self, slot: u32, request: LaneRequest) -> LaneReply;

    /// Forgets the answer to one request, so that it is asked again.
    fn forget_lane(&self, request: &LaneRequest);

    /// Forgets the answers given to `initiator`, whose QP is reset or gone, and notifies the peers.
    fn forget_lanes(&self, initiator: u32);

    /// Asks the process of `slot` for the pipe of its completion channel `channel`; returns true if the request is on
    /// its way. The answer goes to [`crate::process::peer_channels::PeerChannels::learn`]. False from a rendezvous that
    /// cannot pass descriptors.
    fn ask_channel(&self, _slot: u32, _channel: u32) -> bool {
        false
    }

    /// Tells the peers that completion channel `channel` of this process is gone.
    fn channel_gone(&self, _channel: u32) {}

    /// Tells peers that have it that an object of this process is withdrawn.
    fn object_withdrawn(&self, number: u32, generation: u32);

    /// Asks the owner of `peer` for an object of shared memory; the answer ends in [`PeerProcess::map_object`]. Never
    /// waits; false when it cannot be asked now.
    fn ask_for_object(&self, peer: &PeerProcess, wanted: &Wanted) -> bool;

    /// Enters QP `qpn` into a multicast group; when this returns, senders of this host know.
    fn join(&self, process: &'static Process, group: &Gid, qpn: u32) -> Result<()>;

    /// Takes it out again.
    fn leave(&self, process: &'static Process, group: &Gid, qpn: u32);

    /// Tells the peers that have initiators here that what was stopped goes on: they look again at once.
    fn tell_go(&self) {}

    /// The members of a group on this host.
    fn members(&self, process: &'static Process, group: &Gid) -> Vec<Member>;
}
