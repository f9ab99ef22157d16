//! The orders of the coordinator and the answers of a worker. Each order but [`Order::Stop`] has one answer, after
//! [`Answer::Listening`] if a responder first reports that it is ready.

use serde::{Deserialize, Serialize};
use vervain_rdma::Endpoint;

use crate::case::{Case, Interface, Memory};
use crate::results::{Host, RawFigures};

/// Both ends must say the same; raised with every change here.
pub const VERSION: u32 = 4;

/// The TCP port of `vervain bench serve`, where none is named.
pub const PORT: u16 = 4790;

/// From the coordinator to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Order {
    /// First of all. [`Answer::Opened`].
    Open {
        /// [`VERSION`].
        version: u32,
        /// The device's name; None: the first.
        device: Option<String>,
        /// From 1.
        port: u8,
        /// Place in the port's GID table; None: the best.
        gid_index: Option<u8>,
    },
    /// Pins the process and makes its memory. [`Answer::Settled`].
    Settle {
        /// None: the scheduler chooses.
        cpu: Option<u32>,
        /// The interface that is measured: a window must be opened.
        interface: Interface,
        /// The owner of the memory.
        memory: Memory,
        /// NUMA node of the host's memory; None: that of the CPU.
        node: Option<u32>,
        /// The number of the GPU; None: the first one on the device's NUMA node.
        gpu: Option<u32>,
        /// Bytes of memory.
        bytes: u64,
    },
    /// Makes QPs, or memory to put to. [`Answer::Prepared`].
    Prepare(Spec),
    /// Brings the QPs to RTS. [`Answer::Done`].
    Connect(Ends),
    /// Carries out the case; so often as it is ordered. A responder says [`Answer::Listening`] first. [`Answer::Run`]
    /// for a requester, [`Answer::Served`] for a responder, [`Answer::Stream`] for an interfering requester.
    Start {
        /// Operations on all QPs together; without meaning for an interfering pair, which goes on until `Stop`.
        iterations: u64,
    },
    /// Ends what `Start` began: at once, or when all that is under way has come. No answer of its own.
    Stop,
    /// Destroys the QPs. [`Answer::Released`], with the same number: what was answered before it is about earlier
    /// orders.
    Release(u64),
    /// Measures the machine itself. [`Answer::Raw`].
    Raw {
        /// To number them.
        round: u32,
        /// The CPUs of requester and responder.
        cpus: (Option<u32>, Option<u32>),
    },
}

/// A case from the view of one worker.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Spec {
    /// Its side: the one that posts, or the one that is posted to.
    pub side: Side,
    /// The case; for the interference its own operation, with no stream beside it.
    pub case: Case,
    /// Bytes of payload in a packet.
    pub mtu: u32,
    /// Bytes up to which a message is inline; None: as perftest.
    pub inline: Option<u32>,
    /// Requests for one completion.
    pub signal_every: u32,
    /// Goes on until it is stopped: interference.
    pub endless: bool,
    /// Operations of a `Start` before those that are measured; 0 but for ranks of a job, whose first operations after a
    /// barrier are those.
    pub warm_up: u64,
}

/// The two ends of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// Posts, and measures.
    Requester,
    /// Is posted to, and answers where latency is measured.
    Responder,
}

/// The resources that a worker has made for the other one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Ends {
    /// One endpoint for each QP, with the memory that it may use; none of ranks, who find each other.
    Qps(Vec<Endpoint>),
    /// Memory of a window.
    Place {
        /// The node that they belong to.
        node: u32,
        /// From the beginning of the node's region.
        at: u64,
    },
}

/// From a worker to the coordinator.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    /// First of all from a rank of a job, which nobody has to ask.
    Joined(Joined),
    /// The device is open.
    Opened(Box<Opened>),
    /// The order was carried out.
    Done,
    /// The memory is there.
    Settled {
        /// The GPU that it lies in, by its number and name.
        gpu: Option<String>,
    },
    /// The QPs are there, or what stands for them.
    Prepared(Ends),
    /// The responder has posted its receives and watches its memory.
    Listening,
    /// The measurement of the requester.
    Run(Measured),
    /// The number of messages that the responder has got.
    Served {
        /// Without those of which it is not told: RDMA Writes, Reads, atomics.
        received: u64,
    },
    /// The work of an interfering requester.
    Stream(Stream),
    /// The QPs are gone; the order's number.
    Released(u64),
    /// The machine's own figures.
    Raw(RawFigures),
    /// The order cannot be carried out, or came to nothing: a sentence. The QPs are of no use any more.
    Failed(String),
}

/// The identity of a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opened {
    /// The machine and the device, with nothing pinned.
    pub host: Host,
    /// CPUs in the order in which to hand them out.
    pub cpus: Vec<u32>,
    /// The process.
    pub pid: u32,
    /// The kernel's boot id: network namespaces and containers are hosts to the network, and share the CPUs of one
    /// machine.
    pub boot: String,
}

/// A worker that is a rank of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Joined {
    /// [`VERSION`].
    pub version: u32,
    /// Its number, from 0: the requester, the responder, and a third one.
    pub rank: u32,
    /// Their number.
    pub ranks: u32,
}

/// One measurement, as the requester made it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Operations.
    pub iterations: u64,
    /// First post and last completion, in ns of CLOCK_MONOTONIC.
    pub between: (u64, u64),
    /// Seconds that all took.
    pub seconds: f64,
    /// As [`Run::segments`](crate::results::Run::segments).
    pub segments: Vec<(u64, f64)>,
    /// As [`Run::histogram`](crate::results::Run::histogram).
    pub histogram: Vec<(u64, u64)>,
}

/// The work of an interfering requester, on the clock of [`Measured::between`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Stream {
    /// When the first slice begins, in ns.
    pub start: u64,
    /// Length of a slice, in ns.
    pub slice: u64,
    /// Operations that were completed in each slice.
    pub operations: Vec<u32>,
    /// Times without a completion that were longer than two slices, in ns: from, to.
    pub pauses: Vec<(u64, u64)>,
}
