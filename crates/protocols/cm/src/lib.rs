//! The InfiniBand connection manager (IBA vol. 1 ch. 12): the state machines of one process for the connections that it
//! asks for and is asked for, and for service ID resolution (SIDR). Time and management datagrams are passed in;
//! datagrams, events and deadlines are handed out. No clock, no socket, no thread, so that processes that lose, repeat
//! and forge each other's datagrams run in a deterministic simulation.
//!
//! A [`Machine`] is told what the program wants by its methods and what the network brings by [`Machine::receive`].
//! After any call, the caller takes all of [`Machine::next_output`] and calls [`Machine::tick`] at
//! [`Machine::next_deadline`].
//!
//! Most peers are the kernel's ib_cm, or Vervain. So where it differs from the specification, it is followed; where it
//! leaves a peer waiting for a timeout that an answer would spare, an answer is given that it understands:
//!
//! | what | ib_cm | here |
//! |---|---|---|
//! | REP for a connection that is not known | is dropped | REJ, invalid communication ID |
//! | RTU for such a one | is dropped | REJ likewise |
//! | REQ, again, that was refused | is a new request | the same REJ for a while |
//! | SIDR_REQ, again, that was answered | is a new request | the same SIDR_REP for a while |
//! | REQ, again, while a REP waits for its RTU | is dropped | the same REP |
//! | a REQ or REP that is not answered at all | ends | ends, with a REJ of reason timeout |
//! | DREQ of an identifier that is destroyed | is sent once | is sent until it is answered |
//! | DREQ that crosses another | waits for the program | is answered |
//! | DREQ while the RTU is missing | a disconnection | a connection, then its disconnection |
//! | REQ of a QP whose last connection is ending, or in timewait | REJ, stale connection | a new request |

#![forbid(unsafe_code)]

mod machine;
mod params;
mod time;

pub use machine::Machine;
pub use params::{Ece, PathParams, RepParams, ReqParams, Service, SidrRepParams, SidrReqParams};
pub use time::Nanos;
pub use vervain_gsi::{Mad, Path};
pub use vervain_wire::cm as message;

use message::{Rep, Req, SidrRep, SidrReq};

/// A communication identifier of a [`Machine`]; never 0. Its upper [`vervain_gsi::SLOT_BITS`] bits are the process
/// slot.
pub type CommId = u32;

/// The output of a [`Machine`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "is taken out at once")]
pub enum Output {
    /// Is to be sent. If nobody is there, [`Machine::refused`] is to hear of it; if it cannot be sent now, it may be
    /// dropped.
    Send {
        /// Its destination.
        path: Path,
        /// The datagram.
        mad: Mad,
    },
    /// The program is to hear of it.
    Event(Event),
}

/// An event of an identifier. Destroyed identifiers have none.
///
/// A [`Machine::connect`] ends in one of [`Event::Reply`], [`Event::Rejected`] and [`Event::Unreachable`]; an
/// [`Event::Request`] that is accepted in one of [`Event::Established`], [`Event::Rejected`] and
/// [`Event::Unreachable`]; a connection that is established in one of [`Event::DisconnectRequested`],
/// [`Event::Disconnected`] and [`Event::Rejected`]. Behind these [`Event::TimewaitExit`] follows, when the program has
/// answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "is taken out at once")]
pub enum Event {
    /// A REQ has come: [`Machine::accept`], [`Machine::reject`] or [`Machine::destroy`] is to be called. `conn` is new.
    Request {
        /// The new identifier.
        conn: CommId,
        /// The way back to who asks.
        path: Path,
        /// The request.
        req: Req,
    },
    /// A REP has come: [`Machine::ready`] is to be called when the QP is, or [`Machine::reject`].
    Reply {
        /// The identifier.
        conn: CommId,
        /// The reply.
        rep: Rep,
    },
    /// The connection that was accepted is established.
    Established {
        /// The identifier.
        conn: CommId,
        /// The private data of the RTU; zeros if the connection was established without one.
        private_data: [u8; 224],
    },
    /// The other end has refused, at any time; for an established connection this is also its end.
    Rejected {
        /// The identifier.
        conn: CommId,
        /// A number of [`message::reason`].
        reason: u16,
        /// Additional information.
        ari: Ari,
        /// The program's at the other end.
        private_data: [u8; 148],
    },
    /// No answer has come to any of the tries.
    Unreachable {
        /// The identifier.
        conn: CommId,
    },
    /// The other end wants to end the connection: [`Machine::disconnect`] or [`Machine::destroy`] answers.
    DisconnectRequested {
        /// The identifier.
        conn: CommId,
        /// The program's at the other end.
        private_data: [u8; 220],
    },
    /// The connection has ended: by [`Machine::disconnect`] and its answer, or want of it, or because the other end is
    /// gone.
    Disconnected {
        /// The identifier.
        conn: CommId,
        /// The private data of the DREP; zeros if there was none.
        private_data: [u8; 224],
        /// The other end has said so, or is known to have gone; it may well be there otherwise.
        is_certain: bool,
    },
    /// No packet of the connection is under way any more: the QP can be used again.
    TimewaitExit {
        /// The identifier.
        conn: CommId,
    },
    /// The other end has got the message and takes longer to answer.
    MraReceived {
        /// The identifier.
        conn: CommId,
        /// The program's at the other end.
        private_data: [u8; 222],
    },
    /// A SIDR_REQ has come: [`Machine::sidr_reply`] or [`Machine::destroy`] is to be called. `conn` is new.
    SidrRequest {
        /// The new identifier.
        conn: CommId,
        /// The way back to who asks.
        path: Path,
        /// The request.
        req: SidrReq,
    },
    /// A SIDR_REP has come, or nobody serves the service ID on this host (status [`message::sidr::UNSUPPORTED`]).
    SidrReply {
        /// The identifier.
        conn: CommId,
        /// The reply.
        rep: SidrRep,
    },
}

impl Event {
    /// The identifier that it is of.
    pub fn conn(&self) -> CommId {
        match *self {
            Event::Request { conn, .. }
            | Event::Reply { conn, .. }
            | Event::Established { conn, .. }
            | Event::Rejected { conn, .. }
            | Event::Unreachable { conn }
            | Event::DisconnectRequested { conn, .. }
            | Event::Disconnected { conn, .. }
            | Event::TimewaitExit { conn }
            | Event::MraReceived { conn, .. }
            | Event::SidrRequest { conn, .. }
            | Event::SidrReply { conn, .. } => conn,
        }
    }
}

/// Additional information of a REJ: up to 72 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ari {
    length: u8,
    bytes: [u8; 72],
}

impl Ari {
    /// No information.
    pub const NONE: Ari = Ari { length: 0, bytes: [0; 72] };

    /// These bytes; none if there are too many.
    pub fn new(information: &[u8]) -> Option<Ari> {
        let mut bytes = [0; 72];
        bytes.get_mut(..information.len())?.copy_from_slice(information);
        Some(Ari { length: information.len() as u8, bytes })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The reason why a call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such identifier.
    #[error("no such communication identifier")]
    Unknown,
    /// It is in no state to do this.
    #[error("not possible in this state of the connection")]
    State,
    /// It is established already.
    #[error("the connection is established already")]
    Established,
    /// There is no room for so much private data or additional information.
    #[error("too much private data")]
    TooLong,
}
