//! A program's knowledge of its identifiers, and the check that events come only when they can.

use vervain_cm::message::reason;
use vervain_cm::{CommId, Event};

/// The program's knowledge of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has asked for a connection.
    Asked,
    /// A reply was sent.
    Replied,
    /// It is asked for a connection.
    Requested,
    /// It has granted that.
    Granted,
    /// The connection is there.
    Up,
    /// It wants to end it.
    Ending,
    /// The other end wants to.
    AskedToEnd,
    /// It has ended, or there never was one.
    Over,
    /// It has asked for a QP.
    SidrAsked,
    /// It is asked for one.
    SidrRequested,
}

/// An identifier.
#[derive(Clone, Debug)]
pub struct End {
    pub stage: Stage,
    /// Which one of all attempts; none: somebody from elsewhere asks.
    pub attempt: Option<usize>,
    pub is_client: bool,
    pub qpn: u32,
    /// Process, its incarnation and its identifier at the other end.
    pub other: Option<(usize, u32, CommId)>,
    /// The QP may be used again.
    pub exited: bool,
    /// An MRA was received for what it waits for.
    pub prolonged: bool,
}

impl End {
    pub fn new(stage: Stage, attempt: Option<usize>, qpn: u32) -> End {
        let is_client = matches!(stage, Stage::Asked | Stage::SidrAsked);
        End { stage, attempt, is_client, qpn, other: None, exited: false, prolonged: false }
    }

    /// The program gets an event. Checks against the other end are the world's task.
    pub fn hear(&mut self, event: &Event) {
        let next = match (self.stage, event) {
            (Stage::Asked, Event::Reply { .. }) => Stage::Replied,
            (Stage::Asked | Stage::Granted, Event::MraReceived { .. }) if !self.prolonged => {
                self.prolonged = true;
                self.stage
            }
            (Stage::Asked | Stage::Granted, Event::Rejected { .. } | Event::Unreachable { .. })
            | (Stage::Replied | Stage::Requested, Event::Rejected { .. }) => Stage::Over,
            (Stage::Granted, Event::Established { .. }) => Stage::Up,
            (Stage::Up, Event::DisconnectRequested { .. }) => Stage::AskedToEnd,
            (Stage::Up | Stage::Ending, Event::Disconnected { .. }) => Stage::Over,
            // A server may take back what it has granted when the client has begun. And who has taken the place of a
            // client does not know a REP that comes late.
            (Stage::Up, Event::Rejected { reason, .. }) if self.is_client || *reason == reason::INVALID_COMM_ID => {
                Stage::Over
            }
            (Stage::Over, Event::TimewaitExit { .. }) if !self.exited => {
                self.exited = true;
                self.stage
            }
            (Stage::AskedToEnd, Event::TimewaitExit { .. }) => {
                // The other end was gone before it could be answered.
                self.exited = true;
                Stage::Over
            }
            (Stage::SidrAsked, Event::SidrReply { .. } | Event::Unreachable { .. }) => Stage::Over,
            _ => panic!("{event:?} of {self:?}"),
        };
        if let Event::Rejected { reason, .. } = event {
            let possible = [
                reason::CONSUMER_DEFINED,
                reason::TIMEOUT,
                reason::INVALID_SERVICE_ID,
                reason::INVALID_COMM_ID,
                reason::STALE_CONN,
            ];
            assert!(possible.contains(reason), "{event:?}");
        }
        self.stage = next;
    }
}
