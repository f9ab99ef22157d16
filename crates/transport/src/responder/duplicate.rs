//! Requests that have been executed before (IBA 9.7.5.1): SENDs and WRITEs are acknowledged again, READs read again, atomics
//! answered with what they found the first time.

use vervain_wire::aeth::{NakCode, Syndrome};
use vervain_wire::{Packet, opcode};

use crate::host::{Access, Nak, ResponderHost};
use crate::psn;

use super::answer::{Answer, Body, Resource};
use super::{Refusal, Responder, Then};

impl Responder {
    #[cold]
    pub(super) fn duplicate(&mut self, packet: &Packet<'_>, host: &mut impl ResponderHost) {
        let headers = &packet.headers;
        let code = headers.bth.opcode;
        if opcode::is_send(code) || opcode::is_write(code) {
            self.ack_due = true;
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
            (opcode::READ_REQUEST, Body::Read { .. }) => self.read_again(packet, &resource, host),
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

    /// Any part of a READ up to its end may be asked for again, with its own PSN, address and length.
    fn read_again(
        &mut self,
        packet: &Packet<'_>,
        resource: &Resource,
        host: &mut impl ResponderHost,
    ) -> Option<Answer> {
        let Body::Read { srqn, rkey, addr, length } = resource.body else { return None };
        let reth = packet.headers.reth?;
        let skipped = psn::distance(resource.first_psn, packet.headers.bth.psn) * self.config.mtu;
        let is_part = reth.rkey == rkey
            && packet.headers.srqn.unwrap_or(0) == srqn
            && reth.addr == addr.wrapping_add(u64::from(skipped))
            && reth.length <= length - skipped.min(length);
        if !is_part {
            return None;
        }
        match host.check(srqn, rkey, reth.addr, u64::from(reth.length), Access::Read) {
            Ok(()) => {}
            Err(Nak::RemoteAccess | Nak::InvalidRequest) => {
                self.refuse_again(packet.headers.bth.psn);
                return None;
            }
            Err(_) => return None,
        }
        Some(Answer {
            psn: packet.headers.bth.psn,
            packets: reth.length.div_ceil(self.config.mtu).max(1),
            body: Body::Read { srqn, rkey, addr: reth.addr, length: reth.length },
            msn: self.msn,
            begun: false,
            again: true,
        })
    }

    /// The memory of a READ that is asked for again has gone. The requester is told, but the QP goes on: the requester may have
    /// all it needs, and this be a ghost, which it then takes the NAK for too.
    pub(super) fn refuse_again(&mut self, psn: u32) {
        let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
        self.refusal.get_or_insert(Refusal { psn, syndrome, then: Then::Nothing });
    }

    /// Puts an answer that is to be sent again in its place. Answers of the same PSNs that are waiting give way to it; what an
    /// impatient requester asks for too often is dropped.
    fn insert(&mut self, answer: Answer) {
        let end = psn::add(answer.psn, answer.packets);
        let overlaps = |other: &Answer| {
            psn::is_before(other.psn, end) && psn::is_before(answer.psn, psn::add(other.psn, other.packets))
        };
        // One that is yet to be sent whole needs no second.
        if self
            .answers
            .iter()
            .any(|other| overlaps(other) && other.psn == answer.psn && other.packets >= answer.packets)
        {
            return;
        }
        self.answers.retain(|other| !overlaps(other));
        if self.answers.len() > 2 * usize::from(self.config.max_dest_rd_atomic) {
            self.counters.dropped += 1;
            return;
        }
        let place = self.answers.iter().position(|other| psn::is_before(answer.psn, other.psn));
        self.answers.insert(place.unwrap_or(self.answers.len()), answer);
    }
}
