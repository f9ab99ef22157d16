//! The responder of a QP that stands still, as a record from which another one goes on in its place: nothing that was
//! executed is executed again, and what was to be answered is.

use crate::config::ResponderConfig;
use crate::host::{ResponderHost, Target};
use crate::psn;
use crate::saved::Unusable;
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Body, Resource};
use super::execute::{LONGEST, Message};
use super::{Refusal, Responder, Then};

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

impl Responder {
    /// The state that another responder needs to go on. A receive that was taken for an announced message is given
    /// back.
    pub fn save(&mut self, host: &mut impl ResponderHost) -> SavedResponder {
        if self.announced.is_some() {
            self.drop_message(host);
        }
        SavedResponder {
            expected: self.expected,
            msn: self.msn,
            message: self.message,
            quiet: self.quiet,
            beyond: self.beyond,
            dropped: self.dropped,
            ack_due: self.ack_due,
            refusal: self.refusal,
            answers: self.answers.iter().copied().collect(),
            resources: self.resources.iter().copied().collect(),
            ended: self.ended,
            reports: self.kept.is_some(),
        }
    }

    /// A responder in the place of one that was saved. `config` is as for [`Responder::new`], whose `expected_psn` is
    /// not looked at. The host sees that the receives of its message and of its refusal are claimed. If
    /// `saved.reports`, the caller goes on with [`Responder::keep_packets`].
    ///
    /// # Errors
    /// No responder has been in such a state.
    pub fn resume(config: &ResponderConfig, saved: &SavedResponder) -> Result<Responder, Unusable> {
        let most = usize::from(config.max_dest_rd_atomic.max(1));
        // Per READ or atomic that may be outstanding: its answer, one that is asked for again, and an acknowledgement
        // before each.
        if saved.resources.len() > most || saved.answers.len() > 8 * most {
            return Err(Unusable("more READs and atomics are kept than the peer may have outstanding"));
        }
        let refused = saved.refusal.map(|refusal| refusal.psn);
        let psns = saved.answers.iter().map(|answer| answer.psn);
        let psns = psns.chain(saved.resources.iter().map(|resource| resource.first_psn)).chain(saved.beyond);
        if psns.chain(saved.dropped).chain(refused).chain([saved.expected]).any(|n| n > psn::MASK) {
            return Err(Unusable("a PSN has more than 24 bits"));
        }
        let is_whole = |body: Body, packets: u32| match body {
            Body::Read { length, .. } => length <= LONGEST && packets == length.div_ceil(config.mtu).max(1),
            Body::Word(_) | Body::Nothing | Body::Acknowledgement => packets == 1,
        };
        let are_whole = saved.answers.iter().all(|answer| is_whole(answer.body, answer.packets))
            && saved
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
        if !saved.message.as_ref().is_none_or(is_coming_in) {
            return Err(Unusable("more of a message has come than it has"));
        }
        if matches!(saved.refusal, Some(Refusal { then: Then::Fail(nak), .. }) if nak.event().is_none()) {
            return Err(Unusable("a refusal ends the QP that does not"));
        }
        let SavedResponder { expected, msn, message, quiet, beyond, dropped, ack_due, refusal, ended, .. } = *saved;
        Ok(Responder {
            message,
            msn,
            quiet,
            beyond,
            dropped,
            ack_due,
            refusal,
            ended,
            answers: saved.answers.iter().copied().collect(),
            resources: saved.resources.iter().copied().collect(),
            ..Responder::new(&ResponderConfig { expected_psn: expected, ..*config })
        })
    }

    /// The receive of a message that will not end well, for the host to find it claimed: that of the NAK to be sent.
    pub fn spoiled_receive(saved: &SavedResponder) -> Option<(u32, u32)> {
        match saved.refusal?.then {
            Then::Spoil { srqn, receive, .. } => Some((srqn, receive)),
            Then::Nothing | Then::Fail(_) => None,
        }
    }
}
