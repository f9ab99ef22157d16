//! The requester of a QP that stands still, as a record from which another one goes on in its place, in another process
//! say: what the peer has acknowledged is not sent again, and all else is, as after a step back, whatever the peer has
//! reported that it keeps.

use serde::{Deserialize, Serialize};

use crate::config::Service;
use crate::psn;
use crate::saved::Unusable;

use super::flight::{Flight, is_answered};
use super::flights::Flights;

/// The state of a requester beyond its posted requests. PSNs are those of its packets. Timers, counters and
/// measurements are not part of it: another requester begins them anew.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRequester {
    /// PSN of the first packet of the oldest request that has not ended; that of the next request if there is none.
    pub first_psn: u32,
    /// The first PSN without an answer, within the oldest request.
    pub unacknowledged: u32,
    /// One beyond the highest PSN that was ever sent.
    pub highest: u32,
    /// Requests begun and not ended.
    pub begun: u32,
    /// PSNs behind the READs and atomics on the wire that are not fully answered, in PSN order.
    pub reads: Vec<u32>,
    /// Messages begun that take a receive, by the time the oldest request was begun, and how many there may be by the
    /// peer's credits (IBA 9.7.7.2). Both are counted modulo 2^32.
    pub receives_used: u32,
    /// The limit of that number by the peer's credits; None: no limit.
    pub receives_granted: Option<u32>,
    /// True until the first acknowledgement: packets carry Vervain's mark.
    pub introduces: bool,
}

impl SavedRequester {
    /// Checks that a requester with these requests begun has been in such a state.
    pub(super) fn check(&self, flights: &Flights, service: Service) -> Result<(), Unusable> {
        self.check_progress(flights, service)?;
        self.check_reads(flights)?;
        let is_sent = |oldest: &Flight| psn::distance(oldest.first_psn, self.highest) == oldest.packets;
        if service == Service::Uc && flights.oldest().is_some_and(is_sent) {
            return Err(Unusable("a message over UC has gone and not ended"));
        }
        Ok(())
    }

    /// Checks that all PSNs are PSNs.
    pub(super) fn check_psns(&self) -> Result<(), Unusable> {
        let own = [self.first_psn, self.unacknowledged, self.highest];
        match own.iter().chain(&self.reads).any(|n| *n > psn::MASK) {
            true => Err(Unusable("a PSN has more than 24 bits")),
            false => Ok(()),
        }
    }

    /// Checks that the packets sent and acknowledged lie within the requests.
    fn check_progress(&self, flights: &Flights, service: Service) -> Result<(), Unusable> {
        let (Some(oldest), Some(newest)) = (flights.oldest(), flights.iter().next_back()) else {
            let is_idle = self.unacknowledged == self.highest && self.highest == self.first_psn;
            return if is_idle { Ok(()) } else { Err(Unusable("packets are under way and no request is")) };
        };
        if psn::distance(oldest.first_psn, newest.first_psn) > psn::MASK / 2 {
            return Err(Unusable("more is under way than PSNs tell apart"));
        }
        if psn::distance(newest.first_psn, self.highest) > newest.packets {
            return Err(Unusable("what was sent ends outside of the newest request"));
        }
        let acknowledged = psn::distance(oldest.first_psn, self.unacknowledged);
        // Over UC nothing is acknowledged.
        let is_within = if service == Service::Uc { acknowledged == 0 } else { acknowledged < oldest.packets };
        if !is_within || acknowledged > psn::distance(oldest.first_psn, self.highest) {
            return Err(Unusable("what was acknowledged ends outside of the oldest request"));
        }
        Ok(())
    }

    /// Checks that the READs on the wire are whole READs of the requests that are answered.
    fn check_reads(&self, flights: &Flights) -> Result<(), Unusable> {
        let wrong = Err(Unusable("the READs under way are not those of the requests"));
        let mut reads = self.reads.iter();
        for flight in flights.iter().filter(|flight| is_answered(flight.request.opcode)) {
            let offset = |at: u32| psn::distance(flight.first_psn, at);
            let sent = offset(self.highest).min(flight.packets);
            // All before it was answered.
            let mut answered = match offset(self.unacknowledged) {
                offset if offset < flight.packets => offset,
                _ => 0,
            };
            while answered < sent {
                let Some(end) = reads.next().map(|end| offset(*end)).filter(|end| *end > answered && *end <= sent)
                else {
                    return wrong;
                };
                answered = end;
            }
        }
        if reads.next().is_none() { Ok(()) } else { wrong }
    }
}
