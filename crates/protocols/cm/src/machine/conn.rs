//! The state of an identifier.

use crate::{Mad, Nanos, Path};

/// The state of an identifier (IBA 12.9.5). A sent or received MRA is no state of its own here: it changes the answer
/// to duplicates, and the waiting time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A REQ waits for its answer.
    ReqSent,
    /// A REP has come; the program has not answered.
    RepRcvd,
    /// A REQ has come; the program has not answered.
    ReqRcvd,
    /// A REP waits for its answer.
    RepSent,
    /// Established.
    Established,
    /// A DREQ waits for its answer.
    DreqSent,
    /// A DREQ has come; the program has not answered.
    DreqRcvd,
    /// Ended; packets may be under way.
    Timewait,
    /// Refused by one of the two; the other end may ask again.
    Rejected,
    /// Ended.
    Idle,
    /// A SIDR_REQ waits for its answer.
    SidrReqSent,
    /// A SIDR_REQ has come; the program has not answered.
    SidrReqRcvd,
    /// It was answered; the other end may ask again.
    SidrDone,
}

impl State {
    /// Returns true if the two ends have a connection, or are about to, and neither has said that it ends.
    pub fn is_live(self) -> bool {
        matches!(self, State::ReqRcvd | State::RepRcvd | State::RepSent | State::Established)
    }
}

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its identifier.
    pub id: u32,
    /// Its adapter.
    pub guid: u64,
    /// Its QP.
    pub qpn: u32,
}

/// The fields that distinguish a repeated REQ from another one with the same identifier, of a process that has taken
/// the place of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Transaction ID.
    pub tid: u64,
    /// Service ID.
    pub service_id: u64,
    /// QP.
    pub qpn: u32,
    /// First PSN.
    pub psn: u32,
}

/// When a message that waits for its answer is sent again, and how often.
#[derive(Debug, Default)]
pub struct Repetition {
    /// The waiting time of a message: an MRA prolongs it for the present one.
    interval: Nanos,
    wait: Nanos,
    /// How often a message is sent again; and how often the present one still is.
    most: u8,
    left: u8,
    /// An MRA has come for the present message.
    prolonged: bool,
}

impl Repetition {
    pub fn new(interval: Nanos, most: u8) -> Repetition {
        Repetition { interval, most, ..Repetition::default() }
    }

    /// Begins with a message: its deadline.
    pub fn begin(&mut self, now: Nanos) -> Nanos {
        (self.wait, self.left, self.prolonged) = (self.interval, self.most, false);
        now.saturating_add(self.wait)
    }

    /// Sends the message again: its next deadline. None: it was sent often enough.
    pub fn next(&mut self, now: Nanos) -> Option<Nanos> {
        self.left = self.left.checked_sub(1)?;
        Some(now.saturating_add(self.wait))
    }

    /// An MRA has come, by which an answer may take this long: the next deadline. None if it is not the first.
    pub fn prolong(&mut self, now: Nanos, wait: Nanos) -> Option<Nanos> {
        if std::mem::replace(&mut self.prolonged, true) {
            return None;
        }
        self.wait = wait;
        Some(now.saturating_add(wait))
    }
}

/// An identifier.
#[derive(Debug)]
pub struct Conn {
    pub state: State,
    /// The program has not given it up.
    pub owned: bool,
    /// The way to the other end.
    pub path: Path,
    /// Transaction ID of what is sent.
    pub tid: u64,
    pub xrc: bool,
    pub local_guid: u64,
    pub local_qpn: u32,
    /// From REQ or REP on.
    pub remote: Option<Remote>,
    /// The identifier of the other end, if it has sent an MRA for the REQ.
    pub server: Option<u32>,
    /// The REQ that has come.
    pub asked: Option<Asked>,
    /// The number of the SIDR_REQ that has come.
    pub sidr: Option<u32>,
    /// The service ID, for SIDR.
    pub service_id: u64,
    /// Exponent: longest time that packets take.
    pub life: u8,
    /// Exponent: time in which a packet is acknowledged; timewait is as long.
    pub ack_timeout: u8,
    pub repetition: Repetition,
    /// After this time the other end sends its message again.
    pub again: Nanos,
    pub deadline: Option<Nanos>,
    /// The message that waits for its answer, or that answers what comes again.
    pub mad: Option<Box<Mad>>,
}

impl Conn {
    /// One that nothing is known of but the way and the transaction.
    pub fn new(path: Path, tid: u64) -> Conn {
        Conn {
            state: State::Idle,
            owned: true,
            path,
            tid,
            xrc: false,
            local_guid: 0,
            local_qpn: 0,
            remote: None,
            server: None,
            asked: None,
            sidr: None,
            service_id: 0,
            life: 0,
            ack_timeout: 0,
            repetition: Repetition::default(),
            again: 0,
            deadline: None,
            mad: None,
        }
    }
}
