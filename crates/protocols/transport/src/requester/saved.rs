//! The requester of a QP that stands still, as a record from which another one goes on in its place, in another process
//! say: what the peer has acknowledged is not sent again, and all else is, as after a step back, whatever the peer has
//! reported that it keeps.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

use crate::config::{RequesterConfig, Service};
use crate::host::RequesterHost;
use crate::psn;
use crate::saved::Unusable;

use super::flight::{Flight, WireRead, is_answered};
use super::{Cursor, Requester};

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

impl Requester {
    /// The state that another requester needs to go on; None if this one has ended.
    pub fn save(&self) -> Option<SavedRequester> {
        if self.ended {
            return None;
        }
        let taken = |receives: u32, flight: &Flight| receives.wrapping_sub(u32::from(flight.takes_receive()));
        Some(SavedRequester {
            first_psn: self.flights.front().map_or(self.highest, |oldest| oldest.first_psn),
            unacknowledged: self.unacknowledged,
            highest: self.highest,
            begun: self.flights.len() as u32,
            reads: self.reads.iter().map(|read| read.end).collect(),
            receives_used: self.flights.iter().fold(self.receives.used, taken),
            receives_granted: self.receives.granted,
            introduces: self.introduction.mark != 0,
        })
    }

    /// A requester in the place of one that was saved. `config` is as for [`Requester::new`], whose `first_psn` and
    /// `introduces` are not looked at; its `first_request` is the oldest request that has not ended.
    ///
    /// # Errors
    /// No requester with these requests has been in such a state.
    pub fn resume(
        config: &RequesterConfig,
        saved: &SavedRequester,
        host: &mut impl RequesterHost,
    ) -> Result<Requester, Unusable> {
        let &SavedRequester { first_psn, unacknowledged, highest, .. } = saved;
        if [first_psn, unacknowledged, highest].into_iter().chain(saved.reads.iter().copied()).any(|n| n > psn::MASK) {
            return Err(Unusable("a PSN has more than 24 bits"));
        }
        let introduces = saved.introduces;
        let mut resumed = Requester::new(&RequesterConfig { first_psn, introduces, ..*config });
        (resumed.receives.used, resumed.receives.granted) = (saved.receives_used, saved.receives_granted);
        for _ in 0..saved.begun {
            if !resumed.begin(host) {
                return Err(Unusable("a request that was begun is not there, or cannot be sent"));
            }
            // The next one begins where this one ends.
            resumed.highest = resumed.flights.back().map_or(first_psn, Flight::end_psn);
        }
        (resumed.unacknowledged, resumed.next, resumed.highest) = (unacknowledged, unacknowledged, highest);
        resumed.check_progress(first_psn)?;
        resumed.reads = saved.reads.iter().map(|end| WireRead { end: *end }).collect();
        resumed.check_reads()?;
        let sent = if config.service == Service::Uc { highest } else { unacknowledged };
        let packet = resumed.flights.front().map_or(0, |oldest| psn::distance(oldest.first_psn, sent));
        resumed.cursor = Cursor { index: 0, packet };
        if config.service == Service::Uc && packet == resumed.flights.front().map_or(u32::MAX, |oldest| oldest.packets)
        {
            return Err(Unusable("a message over UC has gone and not ended"));
        }
        Ok(resumed)
    }

    /// Checks that the packets sent and acknowledged lie within the requests.
    fn check_progress(&self, first_psn: u32) -> Result<(), Unusable> {
        let (Some(oldest), Some(newest)) = (self.flights.front(), self.flights.back()) else {
            let is_idle = self.unacknowledged == self.highest && self.highest == first_psn;
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
        let is_uc = self.config.service == Service::Uc;
        let is_within = if is_uc { acknowledged == 0 } else { acknowledged < oldest.packets };
        if !is_within || acknowledged > psn::distance(oldest.first_psn, self.highest) {
            return Err(Unusable("what was acknowledged ends outside of the oldest request"));
        }
        Ok(())
    }

    /// Checks that the READs on the wire are whole READs of the requests that are answered.
    fn check_reads(&self) -> Result<(), Unusable> {
        let wrong = Err(Unusable("the READs under way are not those of the requests"));
        let mut reads: VecDeque<u32> = self.reads.iter().map(|read| read.end).collect();
        for flight in self.flights.iter().filter(|flight| is_answered(flight.request.opcode)) {
            let offset = |at: u32| psn::distance(flight.first_psn, at);
            let sent = offset(self.highest).min(flight.packets);
            // All before it was answered.
            let mut answered = match offset(self.unacknowledged) {
                offset if offset < flight.packets => offset,
                _ => 0,
            };
            while answered < sent {
                let Some(end) = reads.pop_front().map(offset).filter(|end| *end > answered && *end <= sent) else {
                    return wrong;
                };
                answered = end;
            }
        }
        if reads.is_empty() { Ok(()) } else { wrong }
    }
}
