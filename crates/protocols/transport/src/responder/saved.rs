//! The responder of a QP that stands still, as a record from which another one goes on in its place: nothing that was
//! executed is executed again, and what was to be answered is.

use crate::config::ResponderConfig;
use crate::host::Target;
use crate::psn;
use crate::saved::Unusable;
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Body, Resource};
use super::execute::{LONGEST, Message};
use super::{MOST_PARTS, REMEMBERED, Refusal, Then};

/// The state of a responder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedResponder {
    /// PSN of the request that is expected next.
    pub expected: u32,
    /// Messages executed, modulo 2^32 (IBA 9.7.7).
    pub msn: u32,
    /// The message of several packets that is coming in. Its receive is claimed.
    pub message: Option<Message>,
    /// The requester has been told, or shall not be told, that `expected` is missing (IBA 9.7.5.2.8).
    pub quiet: bool,
    /// The last PSN that has come since then.
    pub beyond: Option<u32>,
    /// The highest PSN that was dropped since then.
    pub dropped: Option<u32>,
    /// An acknowledgement is to be sent.
    pub ack_due: bool,
    /// A NAK is to be sent.
    pub refusal: Option<Refusal>,
    /// Answers that are due, in PSN order.
    pub answers: Vec<Answer>,
    /// READs and atomics that may be asked for again, oldest first.
    pub resources: Vec<Resource>,
    /// A request was refused with an error; the NAK may wait to be sent.
    pub ended: bool,
    /// The requester takes reports of gaps. The packets that are kept are not part of the record: their requester sends
    /// them again.
    pub reports: bool,
}

impl SavedResponder {
    /// Checks that a responder has been in such a state. `config` is that of the one that goes on.
    pub(super) fn check(&self, config: &ResponderConfig) -> Result<(), Unusable> {
        let most = usize::from(config.max_dest_rd_atomic.max(1));
        // Per READ or atomic that may be outstanding: its answer, one that is asked for again, and an acknowledgement
        // before each. So much for parts of READs too.
        let (remembered, parts) = if self.reports { (most * REMEMBERED, 2 * MOST_PARTS) } else { (most, 0) };
        if self.resources.len() > remembered || self.answers.len() > 8 * most + parts {
            return Err(Unusable("more READs and atomics are kept than the peer may have outstanding"));
        }
        let refused = self.refusal.map(|refusal| refusal.psn);
        let psns = self.answers.iter().map(|answer| answer.psn);
        let psns = psns.chain(self.resources.iter().map(|resource| resource.first_psn)).chain(self.beyond);
        if psns.chain(self.dropped).chain(refused).chain([self.expected]).any(|n| n > psn::MASK) {
            return Err(Unusable("a PSN has more than 24 bits"));
        }
        let is_whole = |body: Body, packets: u32| match body {
            Body::Read { length, .. } => length <= LONGEST && packets == length.div_ceil(config.mtu).max(1),
            Body::Word(_) | Body::Nothing | Body::Acknowledgement => packets == 1,
        };
        let are_whole = self.answers.iter().all(|answer| is_whole(answer.body, answer.packets))
            && self
                .resources
                .iter()
                .all(|resource| is_whole(resource.body, resource.packets) && resource.body != Body::Acknowledgement);
        if !are_whole {
            return Err(Unusable("an answer has another length than its packets"));
        }
        let is_coming_in = |message: &Message| match message.target {
            Target::Receive { room, .. } => message.done <= room,
            Target::Memory { length, .. } => length <= LONGEST && message.done < u64::from(length),
        };
        if !self.message.as_ref().is_none_or(is_coming_in) {
            return Err(Unusable("more of a message has come than it has"));
        }
        if matches!(self.refusal, Some(Refusal { then: Then::Fail(nak), .. }) if nak.event().is_none()) {
            return Err(Unusable("a refusal ends the QP that does not"));
        }
        Ok(())
    }
}
