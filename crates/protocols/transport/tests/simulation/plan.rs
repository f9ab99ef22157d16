//! The plan of a simulation: hosts, connections between them, their requests, and the behaviour of the network. A plan
//! comes from a seed ([`crate::generate`]) or is written by hand ([`crate::directed`]).

use vervain_transport::{Nanos, Opcode, Request, Status};

pub const US: Nanos = 1_000;
pub const MS: Nanos = 1_000_000;
pub const SECOND: Nanos = 1_000_000_000;

/// Which QPs report gaps, and take such reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gaps {
    /// None does, as other devices and rings.
    Nobody,
    /// Each takes them, or sends them, or both or neither, and shows it as a link does.
    ByChance,
    /// All, and they know it from the first packet on.
    Everybody,
}

/// A whole simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides what hosts do by chance.
    pub seed: u64,
    pub hosts: Vec<HostPlan>,
    pub connections: Vec<ConnectionPlan>,
    /// One way, between any two hosts.
    pub latency: Nanos,
    /// The network is good enough that no retry count may run out.
    pub mild: bool,
    /// So long without any progress is a hang.
    pub patience: Nanos,
    /// Packets that come from elsewhere: when, from, to.
    pub strangers: Vec<(Nanos, usize, usize, Vec<u8>)>,
    /// Packets go through rings, which lose nothing, and not over lines.
    pub rings: Option<Rings>,
    /// Which QPs speak of gaps.
    pub gaps: Gaps,
}

/// Rings between hosts, in which a packet lies until it is taken.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Packets that one holds.
    pub slots: u64,
    /// The most bytes that each requester may have outstanding.
    pub window: u64,
    /// Answers always come before a timeout, so that nothing may be sent again that was executed.
    pub prompt: bool,
}

impl Plan {
    /// The largest MTU of QPs between two hosts.
    pub fn mtu_between(&self, one: usize, other: usize) -> u32 {
        let between = |c: &&ConnectionPlan| {
            let [a, b] = &c.ends;
            (a.host, b.host) == (one, other) || (a.host, b.host) == (other, one)
        };
        self.connections.iter().filter(between).map(|c| c.mtu).max().unwrap_or(256)
    }
}

#[derive(Clone, Debug)]
pub struct HostPlan {
    /// The text of `VERVAIN_FAULTS`.
    pub faults: String,
    /// At most so long until arrived packets are looked at.
    pub poll: Nanos,
    /// At most so long until a due acknowledgement is sent.
    pub acknowledge: Nanos,
    /// How often in a thousand packets the socket is full.
    pub full: u64,
    /// How often in a thousand packets its responders take nothing, as if the packet had been lost.
    pub deaf: u64,
    /// When it dies.
    pub stops: Option<Nanos>,
    /// When other requesters and responders go on in the place of its own, as in another process.
    pub moves: Vec<Nanos>,
    /// When it does nothing, from and to; what comes stays where it is. Over rings only.
    pub stalls: Option<(Nanos, Nanos)>,
    /// Receives of its SRQ.
    pub shared: Receives,
}

/// How receives are posted.
#[derive(Clone, Copy, Debug)]
pub struct Receives {
    /// At the start.
    pub first: u32,
    /// Later, each time.
    pub then: u32,
    /// Time between them.
    pub every: Nanos,
}

impl Receives {
    pub const PLENTY: Self = Self { first: 1 << 20, then: 0, every: 0 };

    /// Returns true if they may lack.
    pub fn scarce(&self) -> bool {
        self.first < Self::PLENTY.first
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Reliable,
    /// With receives from the host's SRQ.
    ReliableShared,
    Extended,
    Unreliable,
}

impl Service {
    pub fn reliable(self) -> bool {
        self != Self::Unreliable
    }

    /// Receives come from the host's SRQ.
    pub fn shared(self) -> bool {
        matches!(self, Self::ReliableShared | Self::Extended)
    }
}

#[derive(Clone, Debug)]
pub struct ConnectionPlan {
    pub service: Service,
    pub mtu: u32,
    pub ends: [EndPlan; 2],
    /// Data is put where it belongs. Over rings only.
    pub landings: Option<Landings>,
}

#[derive(Clone, Copy, Debug)]
pub struct Landings {
    /// Packets that go as one, at most.
    pub most: u64,
    /// Times in a thousand that a host makes use of what it may do: ask, tell, put.
    pub willing: u64,
}

/// One QP.
#[derive(Clone, Debug)]
pub struct EndPlan {
    pub host: usize,
    /// When it is connected: before, it posts nothing, and what comes for it is dropped. Over rings only.
    pub ready: Nanos,
    pub first_psn: u32,
    pub first_request: u32,
    /// Exponent of the acknowledgement timeout.
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    /// The code that this end's responder sends.
    pub rnr_timer: u8,
    /// READs and atomics that this end may have outstanding, which is what the other end keeps.
    pub depth: u8,
    /// Places of the send queue.
    pub queue: u32,
    /// Between posts.
    pub gap: Nanos,
    pub operations: Vec<Op>,
    /// Unless they come from the SRQ.
    pub receives: Receives,
    /// Bytes of each receive.
    pub room: u64,
    /// Bytes of the memory that the other end accesses.
    pub region: u64,
}

/// A request, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub request: Request,
    /// Names its data.
    pub key: u64,
    pub misdeed: Option<Misdeed>,
}

/// The fault of a request that is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// No such key.
    Key,
    /// Ends behind the memory.
    Range,
    /// More than the receive has room for.
    Length,
    /// An atomic that is not aligned.
    Alignment,
    /// The program's own memory is not accessible.
    Local,
    /// Invalidates a key that it may not.
    Invalidation,
    /// Reads memory that is gone when the answer is sent.
    Gone,
}

impl Misdeed {
    /// How the request may end, if its answer is not lost.
    pub fn statuses(self) -> &'static [Status] {
        match self {
            Self::Key | Self::Range => &[Status::RemoteAccess],
            // Its key is good, as long as it is asked for.
            Self::Gone => &[Status::RemoteOperation],
            // IBA 9.7.4.1.7 and table 62: a too long Send is an invalid request; rxe calls it a remote operational
            // error.
            Self::Length => &[Status::RemoteInvalidRequest, Status::RemoteOperation],
            Self::Alignment => &[Status::RemoteInvalidRequest],
            Self::Local => &[Status::LocalProtection],
            Self::Invalidation => &[Status::RemoteAccess, Status::RemoteInvalidRequest, Status::RemoteOperation],
        }
    }
}

impl Op {
    pub fn sends(&self) -> bool {
        matches!(self.request.opcode, Opcode::Send | Opcode::SendImm | Opcode::SendInv)
    }

    pub fn writes(&self) -> bool {
        matches!(self.request.opcode, Opcode::Write | Opcode::WriteImm)
    }

    pub fn reads(&self) -> bool {
        self.request.opcode == Opcode::Read
    }

    pub fn atomic(&self) -> bool {
        matches!(self.request.opcode, Opcode::CompareSwap | Opcode::FetchAdd)
    }

    /// Takes a receive.
    pub fn receives(&self) -> bool {
        self.sends() || self.request.opcode == Opcode::WriteImm
    }

    /// Leaves no trace at the responder.
    pub fn traceless(&self) -> bool {
        self.reads()
            || self.request.opcode == Opcode::Flush
            || (self.request.opcode == Opcode::Write && self.request.length == 0)
    }
}

/// Keys of memory.
pub mod keys {
    /// Memory of one QP, which only its peer accesses.
    pub const REGION: u32 = 0x0100_0000;
    /// Words that everybody counts in.
    pub const WORDS: u32 = 0x0200_0000;
    /// Data that can only be read.
    pub const PATTERN: u32 = 0x0300_0000;
    /// For Send with Invalidate.
    pub const INVALIDATE: u32 = 0x0400_0000;
    /// As the former, but gone from half of its length on.
    pub const GONE: u32 = 0x0500_0000;
    /// A key of no memory.
    pub const BAD: u32 = 0x0f00_0000;
    pub const KIND: u32 = 0xff00_0000;
    pub const OWNER: u32 = 0x00ff_ffff;

    /// The number of words on a host.
    pub const WORD_COUNT: u64 = 4;
    /// The length of the data that can only be read.
    pub const PATTERN_LENGTH: u64 = 1 << 32;

    /// The address of the memory of a key.
    pub fn base(key: u32) -> u64 {
        0x7f00_0000_0000 + (u64::from(key & OWNER) << 33)
    }
}
