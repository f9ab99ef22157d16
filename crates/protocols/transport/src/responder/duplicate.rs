//! Requests that have been executed before (IBA 9.7.5.1): SENDs and WRITEs are acknowledged again, READs read again,
//! atomics answered with what they found the first time.

use vervain_wire::Headers;

use crate::psn;

use super::answer::{Answer, Answers, Body, Resource};

impl Resource {
    /// The part of a READ that the request `headers` asks for again: any up to its end may be, with its own PSN,
    /// address and length. None: it asks for something else.
    pub(super) fn part(&self, headers: &Headers, mtu: u32) -> Option<Body> {
        let Body::Read { srqn, rkey, addr, length } = self.body else { return None };
        let reth = headers.reth?;
        let skipped = psn::distance(self.first_psn, headers.bth.psn) * mtu;
        let is_part = reth.rkey == rkey
            && headers.srqn.unwrap_or(0) == srqn
            && reth.addr == addr.wrapping_add(u64::from(skipped))
            && reth.length <= length - skipped.min(length);
        is_part.then_some(Body::Read { srqn, rkey, addr: reth.addr, length: reth.length })
    }
}

impl Answers {
    /// Acknowledges a SEND or WRITE packet that has come again, before `expected`. One acknowledgement stands for all
    /// requests before the next READ or atomic and does not have the PSN of that: its requester may still miss the
    /// answer, and take an acknowledgement with its PSN for it, as rxe does. Requests behind it are acknowledged when
    /// they come again too. Returns true if there is no next one: a plain acknowledgement does.
    pub fn acknowledge_again(&mut self, psn: u32, expected: u32) -> bool {
        let executed = psn::distance(psn, expected);
        let next = self.resources.iter().find(|resource| psn::distance(psn, resource.first_psn) < executed);
        let Some(next) = next else { return true };
        let last = psn::add(next.first_psn, psn::MASK);
        let (body, msn) = (Body::Acknowledgement, next.msn.wrapping_sub(1));
        let answer = Answer { psn: last, packets: 1, body, msn, begun: false, again: true };
        // An answer with that PSN is due anyway, and acknowledges it.
        if !self.due.iter().any(|other| overlap(other, &answer)) {
            self.place(answer);
        }
        false
    }

    /// Puts an answer that is to be sent again in its place. Answers of the same PSNs that are waiting give way to it.
    /// Returns false if it is dropped: an impatient requester asks too often, and `most` answers wait.
    pub fn insert(&mut self, answer: Answer, most: usize) -> bool {
        // What is yet to be sent needs no second.
        if self.due.iter().any(|other| covers(other, &answer)) {
            return true;
        }
        let waiting = self.due.len();
        self.due.retain(|other| !overlap(other, &answer));
        let responses = self.due.iter().filter(|other| other.body != Body::Acknowledgement).count();
        // If answers have given way to it there is room; without it an answer that was never sent would be lost.
        if self.due.len() == waiting && responses > most {
            return false;
        }
        self.place(answer);
        true
    }

    fn place(&mut self, answer: Answer) {
        let place = self.due.iter().position(|other| psn::is_before(answer.psn, other.psn));
        self.due.insert(place.unwrap_or(self.due.len()), answer);
    }
}

/// Returns true if `a` has all PSNs of `b`.
fn covers(a: &Answer, b: &Answer) -> bool {
    let skipped = psn::distance(a.psn, b.psn);
    a.body != Body::Acknowledgement && skipped < a.packets && b.packets <= a.packets - skipped
}

/// Returns true if both answers have a PSN in common.
fn overlap(a: &Answer, b: &Answer) -> bool {
    psn::is_before(a.psn, psn::add(b.psn, b.packets)) && psn::is_before(b.psn, psn::add(a.psn, a.packets))
}
