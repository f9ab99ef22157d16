//! Requests that have been executed before (IBA 9.7.5.1): SENDs and WRITEs are acknowledged again, READs read again,
//! atomics answered with what they found the first time.

use vervain_iba::{Nak, Right};
use vervain_wire::aeth::{NakCode, Syndrome};
use vervain_wire::{Headers, Packet, opcode};

use crate::host::ResponderHost;
use crate::psn;

use super::answer::{Answer, Body, Resource};
use super::{Refusal, Responder, Then};

/// Most parts of READs that wait to be answered again.
const MOST_PARTS: usize = 256;

impl Responder {
    #[cold]
    pub(super) fn duplicate<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let headers = &packet.headers;
        let code = headers.bth.opcode;
        if opcode::is_send(code) || opcode::is_write(code) {
            self.acknowledge_again(headers.bth.psn);
            // Packets that come as one may have been cut in another way the first time, and only the first of them have
            // been executed.
            let last = psn::add(headers.bth.psn, self.packets(packet) - 1);
            if !psn::is_before(last, self.expected) {
                self.out_of_sequence(last);
            }
            return;
        }
        let psn = headers.bth.psn;
        let found =
            self.resources.iter().rev().find(|resource| psn::distance(resource.first_psn, psn) < resource.packets);
        let Some(resource) = found.copied() else {
            // It is too long ago for its requester to miss the answer.
            self.counters.dropped += 1;
            return;
        };
        let answer = match (opcode::operation(code), resource.body) {
            (opcode::READ_REQUEST, Body::Read { .. }) => self.read_again(headers, &resource, host),
            (opcode::COMPARE_SWAP | opcode::FETCH_ADD, Body::Word(_))
            | (opcode::FLUSH | opcode::ATOMIC_WRITE, Body::Nothing) => {
                Some(Answer { psn, packets: 1, body: resource.body, msn: self.msn, begun: false, again: true })
            }
            _ => None,
        };
        match answer {
            Some(answer) => self.insert(answer),
            None => self.counters.dropped += 1,
        }
    }

    /// Acknowledges a SEND or WRITE packet that has come again. One acknowledgement stands for all requests before the
    /// next READ or atomic and does not have the PSN of that: its requester may still miss the answer, and take an
    /// acknowledgement with its PSN for it, as rxe does. Requests behind it are acknowledged when they come again too.
    fn acknowledge_again(&mut self, psn: u32) {
        let executed = psn::distance(psn, self.expected);
        let next = self.resources.iter().find(|resource| psn::distance(psn, resource.first_psn) < executed);
        let Some(next) = next else {
            self.ack_due = true;
            return;
        };
        let last = psn::add(next.first_psn, psn::MASK);
        let (body, msn) = (Body::Acknowledgement, next.msn.wrapping_sub(1));
        let answer = Answer { psn: last, packets: 1, body, msn, begun: false, again: true };
        // An answer with that PSN is due anyway, and acknowledges it.
        if !self.answers.iter().any(|other| overlap(other, &answer)) {
            self.place(answer);
        }
    }

    /// Any part of a READ up to its end may be asked for again, with its own PSN, address and length.
    fn read_again(&mut self, headers: &Headers, resource: &Resource, host: &mut impl ResponderHost) -> Option<Answer> {
        let Body::Read { srqn, rkey, addr, length } = resource.body else { return None };
        let reth = headers.reth?;
        let skipped = psn::distance(resource.first_psn, headers.bth.psn) * self.config.mtu;
        let is_part = reth.rkey == rkey
            && headers.srqn.unwrap_or(0) == srqn
            && reth.addr == addr.wrapping_add(u64::from(skipped))
            && reth.length <= length - skipped.min(length);
        if !is_part {
            return None;
        }
        match host.check(srqn, rkey, reth.addr, u64::from(reth.length), Right::Read) {
            Ok(()) => {}
            Err(Nak::RemoteAccess | Nak::InvalidRequest) => {
                self.refuse_again(headers.bth.psn, NakCode::RemoteAccess);
                return None;
            }
            Err(_) => return None,
        }
        Some(Answer {
            psn: headers.bth.psn,
            packets: reth.length.div_ceil(self.config.mtu).max(1),
            body: Body::Read { srqn, rkey, addr: reth.addr, length: reth.length },
            msn: self.msn,
            begun: false,
            again: true,
        })
    }

    /// The memory of a READ that is asked for again has gone. The requester gets a NAK, but the QP goes on: the request
    /// may be an old copy of one that was answered, for which the requester then takes the NAK, too.
    pub(super) fn refuse_again(&mut self, psn: u32, code: NakCode) {
        let syndrome = Syndrome::Nak(code);
        self.refusal.get_or_insert(Refusal { psn, syndrome, then: Then::Nothing });
    }

    /// Puts an answer that is to be sent again in its place. Answers of the same PSNs that are waiting give way to it;
    /// what an impatient requester asks for too often is dropped.
    fn insert(&mut self, answer: Answer) {
        // What is yet to be sent needs no second.
        if self.answers.iter().any(|other| covers(other, &answer)) {
            return;
        }
        let waiting = self.answers.len();
        self.answers.retain(|other| !overlap(other, &answer));
        let responses = self.answers.iter().filter(|other| other.body != Body::Acknowledgement).count();
        // If answers have given way to it there is room; without it an answer that was never sent would be lost.
        if self.answers.len() == waiting && responses > self.most_repeated() {
            self.counters.dropped += 1;
            return;
        }
        self.place(answer);
    }

    /// Most answers that may wait to be sent again: a requester that takes reports asks for each part of a READ that it
    /// misses by itself.
    fn most_repeated(&self) -> usize {
        2 * usize::from(self.config.max_dest_rd_atomic) + if self.kept.is_some() { MOST_PARTS } else { 0 }
    }

    fn place(&mut self, answer: Answer) {
        let place = self.answers.iter().position(|other| psn::is_before(answer.psn, other.psn));
        self.answers.insert(place.unwrap_or(self.answers.len()), answer);
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
