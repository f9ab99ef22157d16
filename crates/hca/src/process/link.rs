//! What the device model asks of a link: the way to the process that owns a QP. The mechanism stands in this crate; links
//! only find peers and map their arenas (crate `vervain-link`).

use crate::context::ah::Route;
use crate::error::{Error, Result};
use crate::mr::transfer::Pieces;
use crate::process::Process;
use crate::process::imports::Wanted;
use crate::process::peer::PeerProcess;
use crate::qp::Qp;
use crate::qp::remote::Sender;
use std::any::Any;
use std::os::fd::RawFd;
use std::sync::Arc;
use vervain_iba::{AhAttr, Gid, QpAttr};

/// Where a peer process stands.
#[derive(Clone)]
pub enum Peer {
    /// Mapped.
    Ready(Arc<PeerProcess>),
    /// Asked for; the answer comes to the progress thread.
    Connecting,
    /// No process answers under that number.
    Absent,
}

/// A datagram that leaves in a packet.
pub struct Datagram<'a> {
    /// Destination.
    pub ah: &'a AhAttr,
    /// Destination QP.
    pub qpn: u32,
    /// Q_Key, as it goes out.
    pub qkey: u32,
    /// Immediate data, as it lies in memory.
    pub imm: Option<u32>,
    /// Asks for a solicited event.
    pub solicited: bool,
    /// The payload, valid during the call.
    pub data: &'a Pieces,
}

/// What a lane is for.
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

/// A member of a multicast group: the QP number.
pub type Member = u32;

/// A link between processes.
pub trait Link: Any + Send + Sync {
    /// A process slot that no other process of this user has on this host.
    fn claim_slot(&self) -> Result<u32>;

    /// A descriptor that is readable when [`Link::handle_events`] has something to do.
    fn poll_fd(&self) -> RawFd;

    /// Does what came in. Only the progress thread calls it.
    fn handle_events(&self, process: &'static Process);

    /// Where the address leads.
    fn route(&self, device: u32, ah: &AhAttr) -> Route;

    /// The process that owns `slot`. Never waits.
    fn peer(&self, process: &'static Process, slot: u32) -> Peer;

    /// Whether the process of `slot`, which has initiators here, still runs.
    fn initiator_lives(&self, slot: u32) -> bool;

    /// A lane in a peer, for an initiator that has none of its own there. Never waits.
    fn lane(&self, slot: u32, request: LaneRequest) -> LaneReply;

    /// Forgets the answer to one request, so that it is asked again.
    fn forget_lane(&self, request: &LaneRequest);

    /// Forgets the answers given to `initiator`, whose QP is reset or gone, and tells the peers.
    fn forget_lanes(&self, initiator: u32);

    /// Asks the process of `slot` for the pipe of its completion channel `channel`; whether that is under way. The
    /// answer goes to [`crate::process::peer_channels::PeerChannels::learn`]. A link that cannot pass descriptors leaves it at this.
    fn ask_channel(&self, _slot: u32, _channel: u32) -> bool {
        false
    }

    /// Tells the peers that completion channel `channel` of this process is gone.
    fn channel_gone(&self, _channel: u32) {}

    /// Asks the owner of `space` for an object of shared memory; the answer ends in [`PeerProcess::map_object`]. Never waits; false
    /// when it cannot be asked now.
    fn ask_for_object(&self, space: &PeerProcess, wanted: &Wanted) -> bool;

    /// An object of this process is withdrawn: peers that have it are told.
    fn object_withdrawn(&self, number: u32, generation: u32);

    /// Enters QP `qpn` into a multicast group; when this returns, senders of this host know.
    fn join(&self, process: &'static Process, group: &Gid, qpn: u32) -> Result<()>;

    /// Takes it out again.
    fn leave(&self, process: &'static Process, group: &Gid, qpn: u32);

    /// The members of a group on this host.
    fn members(&self, process: &'static Process, group: &Gid) -> Vec<Member>;

    // ---- packets ---------------------------------------------------------------------------------------------------

    /// Makes the connection of `qp`, which goes to RTR with these attributes and whose peer is far; it receives from now on.
    fn connect(&self, _process: &'static Process, _qp: &Arc<Qp>, _attr: &QpAttr) -> Result<Box<dyn Sender>> {
        Err(Error::unsupported("this process has no link that sends packets"))
    }

    /// Finds out whether the host of an address that leads away can be reached. Waits a second at most. What
    /// [`Link::connect`] does by itself.
    fn resolve(&self, _device: u32, _ah: &AhAttr) -> Result<()> {
        Ok(())
    }

    /// Receives datagrams for `qp`, which goes to RTR. An error where it can get none at all, by no way; that a link cannot
    /// which is not the only one stands in the log.
    fn listen(&self, _process: &'static Process, _qp: &Arc<Qp>) -> Result<()> {
        Ok(())
    }

    /// Whether packets can leave from the source of an address that leads far; EADDRINUSE when somebody else has it.
    fn check_source(&self, _process: &'static Process, _device: u32, _ah: &AhAttr) -> Result<()> {
        Ok(())
    }

    /// The reverse of [`Link::listen`] and of [`Link::connect`], when the QP is reset or destroyed.
    fn unregister_qp(&self, _qpn: u32) {}

    /// Takes a datagram along; it leaves with the next [`Link::flush`] of the same thread. A time (CLOCK_MONOTONIC, ns) means
    /// that the peer has no room for it now: it is to be tried again then, or when the link calls [`Qp::go_on`].
    fn send_datagram(&self, _process: &'static Process, _qp: &Qp, _datagram: &Datagram<'_>) -> Option<u64> {
        None
    }

    /// Sends what this thread has left to be sent.
    fn flush(&self) {}

    /// Receives packets, in a thread that polls; whether there were any. Never waits. Called only after
    /// [`Process::expect_packets`].
    fn poll_packets(&self, _process: &'static Process) -> bool {
        false
    }

    /// Waits, in a thread that sleeps for `fd` to be readable, and receives packets meanwhile. EINTR as `man 2 poll` says.
    fn wait_for(&self, _process: &'static Process, _fd: RawFd) -> Result<()> {
        Ok(())
    }

    /// What the progress thread does about packets: receives them if nobody else does, and keeps the time. Says whether
    /// [`Link::packet_fd`] is to be watched, and when it wants to be called again (CLOCK_MONOTONIC, ns).
    fn attend_packets(&self, _process: &'static Process) -> (bool, Option<u64>) {
        (false, None)
    }

    /// Says what is left to be said before the process ends: what a program has received is acknowledged, even if it ends
    /// at once.
    fn shutdown(&self) {}

    /// A descriptor that is readable when packets have come; none before there is a port.
    fn packet_fd(&self) -> Option<RawFd> {
        None
    }
}
