//! Carriers: the ways of a QP's messages to a peer whose memory is not mapped here, in packets or through a device that
//! can only put. A carrier gets the send queue of a QP in hand ([`Sends`]); it hands arriving messages to the one
//! responder, as an initiator of this process ([`Qp::way_in`]). Only the carrier knows the format of packets.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::process::{Process, Progress};
use crate::qp::Qp;
use crate::qp::remote::Sends;
pub use crate::qp::sq::path::{PathAttr, Psns};
pub use crate::qp::sq::ud::Datagram;
use std::sync::Arc;
use std::time::Duration;
use vervain_iba::{AhAttr, Gid, QpAttr};

/// A management datagram in wire format (IBA 13.4.2).
pub type Mad = [u8; 256];

/// A service whose requests are for this process (IBA 12.6.5, Service ID).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceClaim {
    /// Its ID.
    pub service: u64,
    /// The address that the requests come to; None: any.
    pub address: Option<Gid>,
}

/// A way to peers that memory does not reach. Its receiving side is a [`crate::process::poller::Poller`].
pub trait Carrier: Send + Sync {
    /// Returns true if it carries messages of `device` to this address.
    fn carries(&self, device: &Device, ah: &AhAttr) -> bool;

    /// Makes the connection of `qp`, which goes to RTR with these attributes; it receives from now on.
    fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Arc<dyn Connection>>;

    /// Receives datagrams for `qp`, which goes to RTR. An error if it can get none at all.
    fn register_qp(&self, qp: &Arc<Qp>) -> Result<()>;

    /// QP `qpn` is about to stop receiving. Waits for data that its peer has put into its memory, where a program sees
    /// it before the peer's announcement, and acknowledges it, as an adapter has done by then. Called without a lock of
    /// the QP.
    fn let_arrive(&self, _process: &'static Process, _qpn: u32) {}

    /// QP `qpn` is reset or destroyed: nothing is received for it any more, neither by a connection nor as a datagram.
    fn unregister_qp(&self, qpn: u32);

    /// Takes a datagram along; it leaves with the next [`Carrier::flush`] of the same thread. Some(time)
    /// (CLOCK_MONOTONIC, ns): the peer has no room for it now; it is to be tried again then, or when the carrier calls
    /// [`Qp::go_on`].
    fn send_datagram(&self, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64>;

    /// Sends the datagrams that this thread has queued.
    fn flush(&self) {}

    /// Returns true if it reaches the members of a group on this host too, so that they need no copy by memory.
    fn reaches_this_host(&self) -> bool {
        false
    }

    /// Receives messages to a multicast group for `qp`.
    fn join(&self, _group: &Gid, _qp: &Qp) -> Result<()> {
        Ok(())
    }

    /// QP `qpn` has left a multicast group.
    fn leave(&self, _group: &Gid, _qpn: u32) {}

    /// Checks that messages can leave from the source of an address. EADDRINUSE if another process has it.
    fn check_source(&self, _process: &'static Process, _device: u32, _ah: &AhAttr) -> Result<()> {
        Ok(())
    }

    /// Sends a management datagram to QP 1 of an address. Waits only if a thread other than the progress thread is the
    /// first that sends from its source.
    fn send_mad(&self, _process: &'static Process, _device: u32, _ah: &AhAttr, _mad: &Mad) -> Result<()> {
        Err(Error::unsupported("this carrier takes no management datagrams"))
    }

    /// Has management datagrams led to this process: those with communication identifiers that begin with its `slot`,
    /// and those that ask for one of these services. An error if none can come.
    fn serve(&self, _process: &'static Process, _slot: u32, _services: &[ServiceClaim]) -> Result<()> {
        Ok(())
    }

    /// Checks that the host of an address can be reached. Waits for `patience`, or a second, if that is longer.
    /// [`Carrier::connect`] does it by itself.
    fn resolve(&self, _device: u32, _ah: &AhAttr, _patience: Duration) -> Result<()> {
        Ok(())
    }
}

/// A QP's connection by a carrier, which owns its requester and its responder. The requester's half is called under the
/// lock of the send queue only, by the QP and by the carrier itself ([`Qp::with_sends`]).
pub trait Connection: Send + Sync {
    /// Goes on with the send queue: begins the requests that may begin, and sends the packets that may be sent.
    fn advance(&self, sends: &mut Sends<'_>) -> Progress;

    /// The QP's attributes have changed (IBA 11.2.5.2: retries and depths may while the queue is drained).
    fn modified(&self, path: &PathAttr);

    /// Its PSNs and those of the peer.
    fn psns(&self) -> Psns;

    /// Asks the peer for PSNs that it alone knows, since the program is about to query them. Called without a lock of
    /// the QP.
    fn ask_psns(&self) {}

    /// Returns true if a request has been begun that has not completed (IBA 10.3.1.5: SQD finishes those).
    fn has_begun(&self) -> bool;

    /// Returns true if the oldest request waits for a receive of the peer's (IBA 9.7.5.2.8).
    fn waits_for_receive(&self) -> bool {
        false
    }

    /// Returns true if requests wait that an adapter would have sent by now: for room on the way, or for the handshake
    /// with the peer's process. Those that wait for a receive, or for a peer that is absent or silent, do not count.
    /// Takes no lock but those that are taken under that of the send queue only.
    fn holds_back(&self, sends: &Sends<'_>) -> bool;

    /// The send queue has dropped the connection: it sends nothing more.
    fn disconnected(&self);

    /// The state that another connection of such a carrier needs to go on in its place; the QP is stopped. None: the
    /// carrier cannot do that.
    fn save(&self, _qp: &Qp) -> Option<Vec<u8>> {
        None
    }

    /// Goes on from the state `saved` of an earlier connection. The requests of the send queue are those that it had
    /// then.
    fn resume(&self, _saved: &[u8], _sends: &mut Sends<'_>) -> Result<()> {
        Err(Error::unsupported("a connection of this kind does not go on in the place of another"))
    }
}
