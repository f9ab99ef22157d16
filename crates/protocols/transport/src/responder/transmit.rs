//! The responder's packets: READ responses and atomic answers in PSN order, and among them acknowledgements of repeated
//! requests; then one NAK, or one acknowledgement for all that has been executed (IBA 9.7.5.1.2 lets one stand for
//! many).

use vervain_iba::{Nak, Right};
use vervain_wire::aeth::{NO_CREDIT_LIMIT, NakCode, Syndrome, credit_code};
use vervain_wire::{Aeth, Headers, Packet, TAKES_GAPS, opcode};

use crate::host::{Payload, Refused, ResponderHost, Transmit};
use crate::psn;

use super::answer::{Answer, Body};
use super::{Refusal, Responder, Then};

impl Responder {
    /// Sends packets that are due, at most `budget`. Returns true if more are due, because the budget is spent or the
    /// host had no room; what waits for [`Responder::execute_kept`] is not.
    #[inline]
    pub fn poll_transmit(&mut self, budget: u32, host: &mut impl ResponderHost) -> bool {
        if !self.answers.is_empty() && self.send_answers(budget, host) {
            return true;
        }
        if self.refusal.is_some_and(|refusal| !self.is_too_soon(&refusal)) && self.send_refusal(host) {
            return true;
        }
        if self.ack_due {
            let psn = psn::add(self.expected, psn::MASK);
            let syndrome = self.acknowledge(host);
            if self.send_aeth(psn, syndrome, self.msn, host).is_err() {
                return true;
            }
            self.ack_due = false;
        }
        false
    }

    /// Returns true if a NAK "PSN sequence error" is to wait until the kept packets that are due are executed: only
    /// then is it known what is missing.
    fn is_too_soon(&self, refusal: &Refusal) -> bool {
        refusal.syndrome == Syndrome::Nak(NakCode::Sequence) && self.has_kept_due()
    }

    /// Sends the acknowledgement of the message that is about to complete, if that may leave now.
    #[inline]
    pub(super) fn acknowledge_first<H: ResponderHost>(&mut self, packet: &Packet<'_, H::Data>, host: &mut H) {
        let bth = &packet.headers.bth;
        if self.config.acks_first && bth.ack_request && self.answers.is_empty() && self.refusal.is_none() {
            let syndrome = self.acknowledge(host);
            let last = psn::add(bth.psn, self.packets(packet) - 1);
            self.acked_first = self.send_aeth(last, syndrome, self.msn, host).is_ok();
        }
    }

    /// "Acknowledge", with credits for a requester that is to mind them.
    #[inline]
    fn acknowledge(&self, host: &mut impl ResponderHost) -> Syndrome {
        Syndrome::Ack(host.credits().map_or(NO_CREDIT_LIMIT, credit_code))
    }

    #[inline]
    fn headers(&self, operation: u8, psn: u32) -> Headers {
        let mut headers = Headers::default();
        headers.bth.opcode = self.opcode_base | operation;
        headers.bth.pkey = self.config.pkey;
        headers.bth.migration = self.config.migrated;
        headers.bth.dest_qpn = self.config.dest_qpn;
        headers.bth.psn = psn;
        headers
    }

    /// The mark of answers to a requester that takes reports: it may ask again for any part of a READ, and is answered
    /// in PSN order.
    #[inline]
    fn mark(&self) -> u8 {
        if self.kept.is_some() { TAKES_GAPS } else { 0 }
    }

    #[inline]
    fn send_aeth(&self, psn: u32, syndrome: Syndrome, msn: u32, host: &mut impl ResponderHost) -> Result<(), Refused> {
        let mut headers = self.headers(opcode::ACKNOWLEDGE, psn);
        headers.aeth = Some(Aeth { syndrome: syndrome.encode(), msn: msn & psn::MASK });
        host.transmit(&Transmit { headers: &headers, payload: Payload::None, again: false })
    }

    /// Sends a NAK. The QP that it ends (IBA 9.9.3) has ended before: who has the NAK may ask at once what has become
    /// of the QP.
    #[cold]
    fn send_refusal(&mut self, host: &mut impl ResponderHost) -> bool {
        let Some(Refusal { psn, syndrome, then }) = &mut self.refusal else { return false };
        let (psn, syndrome, then) = (*psn, *syndrome, std::mem::replace(then, Then::Nothing));
        self.finish(then, host);
        let sent = match syndrome {
            Syndrome::Nak(NakCode::Sequence) if self.keeps_some() => self.send_report(psn, host),
            _ => self.send_aeth(psn, syndrome, self.msn, host),
        };
        if sent.is_err() {
            return true;
        }
        self.refusal = None;
        // It acknowledges all before it.
        self.ack_due &= psn != self.expected;
        false
    }

    /// Sends a report of what is missing from `expected` on, which is a NAK "PSN sequence error" that says more.
    fn send_report(&mut self, expected: u32, host: &mut impl ResponderHost) -> Result<(), Refused> {
        let mut headers = self.headers(0, expected);
        headers.bth.opcode = opcode::GAPS;
        headers.aeth = Some(Aeth { syndrome: self.acknowledge(host).encode(), msn: self.msn & psn::MASK });
        let Some(kept) = &mut self.kept else { return Ok(()) };
        let (payload, len) = kept.report(expected);
        self.counters.reports += 1;
        host.transmit(&Transmit { headers: &headers, payload: Payload::Bytes(&payload[..len]), again: false })
    }

    /// Carries out the consequence of a refusal for the QP.
    #[cold]
    pub(super) fn finish(&mut self, then: Then, host: &mut impl ResponderHost) {
        match then {
            Then::Nothing => return,
            Then::Fail(nak) => host.fail(nak),
            Then::Spoil { srqn, receive, received, status, nak } => {
                host.spoil(srqn, receive, &received, status, nak);
            }
        }
        self.counters.errors += 1;
        self.ended = true;
        // Of the answers that are due, only the NAK is left.
        self.ack_due = false;
        self.kept = None;
    }

    /// Sends READ responses and atomic answers. Returns true if some are left.
    pub(super) fn send_answers(&mut self, mut budget: u32, host: &mut impl ResponderHost) -> bool {
        while let Some(&answer) = self.answers.due.front() {
            let (sent, stop) = match answer.body {
                Body::Read { srqn, rkey, addr, length } => {
                    self.send_read(&answer, srqn, rkey, addr, length, budget, host)
                }
                Body::Word(word) => self.send_word(&answer, Some(word), budget, host),
                Body::Nothing => self.send_word(&answer, None, budget, host),
                Body::Acknowledgement if budget == 0 => (0, None),
                Body::Acknowledgement => {
                    let syndrome = self.acknowledge(host);
                    match self.send_aeth(answer.psn, syndrome, answer.msn, host) {
                        Ok(()) => (1, None),
                        Err(refused) => (0, Some(refused)),
                    }
                }
            };
            budget = budget.saturating_sub(sent);
            if self.answers.sent(sent, self.config.mtu) {
                continue;
            }
            if stop != Some(Refused::Memory) {
                return true;
            }
            let nak = self.why_gone(host);
            self.memory_gone(psn::add(answer.psn, sent), answer.again, nak);
        }
        false
    }

    /// The reason why the current READ cannot be answered: its key has gone, or else the memory behind it (IBA
    /// 9.7.4.1.5, 9.7.5.2.4).
    #[cold]
    fn why_gone(&self, host: &mut impl ResponderHost) -> (Nak, NakCode) {
        match self.answers.due.front().map(|answer| answer.body) {
            Some(Body::Read { srqn, rkey, addr, length })
                if host.check(srqn, rkey, addr, u64::from(length), Right::Read).is_ok() =>
            {
                (Nak::RemoteOperation, NakCode::RemoteOperation)
            }
            _ => (Nak::RemoteAccess, NakCode::RemoteAccess),
        }
    }

    /// The memory of a READ went while it was being answered.
    #[cold]
    fn memory_gone(&mut self, psn: u32, again: bool, (nak, code): (Nak, NakCode)) {
        if again {
            self.answers.due.pop_front();
            return self.refuse_again(psn, code);
        }
        self.answers.due.clear();
        self.refusal = Some(Refusal { psn, syndrome: Syndrome::Nak(code), then: Then::Fail(nak) });
    }

    /// READ response packets; how many, and why not all.
    #[allow(clippy::too_many_arguments)]
    fn send_read(
        &self,
        answer: &Answer,
        srqn: u32,
        rkey: u32,
        addr: u64,
        length: u32,
        budget: u32,
        host: &mut impl ResponderHost,
    ) -> (u32, Option<Refused>) {
        let mtu = self.config.mtu;
        let mut headers = self.headers(0, answer.psn);
        headers.bth.mark = self.mark();
        let syndrome = self.acknowledge(host);
        let aeth = Some(Aeth { syndrome: syndrome.encode(), msn: answer.msn & psn::MASK });
        let mut packet = 0;
        while packet < answer.packets.min(budget) {
            let packets = host.landing(psn::add(answer.psn, packet), answer.packets - packet);
            let (is_first, is_last) = (packet == 0 && !answer.begun, packet + packets == answer.packets);
            let (code, has_aeth) = match (is_first, is_last) {
                (true, true) => (opcode::READ_RESPONSE_ONLY, true),
                (true, false) => (opcode::READ_RESPONSE_FIRST, true),
                (false, true) => (opcode::READ_RESPONSE_LAST, true),
                (false, false) => (opcode::READ_RESPONSE_MIDDLE, false),
            };
            let offset = packet * mtu;
            let len = (length - offset).min(packets * mtu);
            headers.bth.opcode = self.opcode_base | code;
            headers.bth.psn = psn::add(answer.psn, packet);
            headers.bth.pad = (len.wrapping_neg() & 3) as u8;
            headers.aeth = if has_aeth { aeth } else { None };
            let payload = match len {
                0 => Payload::None,
                _ => {
                    let addr = addr.wrapping_add(u64::from(offset));
                    Payload::Memory { srqn, rkey, addr, len, left: length - offset }
                }
            };
            if let Err(refused) = host.transmit(&Transmit { headers: &headers, payload, again: answer.again }) {
                return (packet, Some(refused));
            }
            packet += packets;
        }
        (packet, None)
    }

    /// The answer to an atomic, FLUSH or ATOMIC WRITE.
    fn send_word(
        &self,
        answer: &Answer,
        word: Option<u64>,
        budget: u32,
        host: &mut impl ResponderHost,
    ) -> (u32, Option<Refused>) {
        if budget == 0 {
            return (0, None);
        }
        let operation = if word.is_some() { opcode::ATOMIC_ACKNOWLEDGE } else { opcode::READ_RESPONSE_ONLY };
        let mut headers = self.headers(operation, answer.psn);
        headers.bth.mark = self.mark();
        let syndrome = self.acknowledge(host);
        headers.aeth = Some(Aeth { syndrome: syndrome.encode(), msn: answer.msn & psn::MASK });
        headers.atomic_ack = word;
        match host.transmit(&Transmit { headers: &headers, payload: Payload::None, again: answer.again }) {
            Ok(()) => (1, None),
            Err(refused) => (0, Some(refused)),
        }
    }
}
