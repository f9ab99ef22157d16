//! The effects of answers (IBA 9.7.5, 9.7.6): they acknowledge all requests before them, bring data, refuse, report
//! gaps, and grant credits.

use vervain_iba::{Opcode, Status, timer};
use vervain_wire::aeth::{NakCode, Syndrome};
use vervain_wire::{Aeth, Packet, TAKES_GAPS, gaps, opcode};

use crate::host::{Data, Nanos, Refused, RequesterHost};
use crate::psn;
use crate::window::{PACKET_OVERHEAD, Window};

use super::Requester;
use super::flight::{Flight, is_answered};

/// The contents of an answer, beyond an acknowledgement.
enum Answer<'a, D: ?Sized> {
    /// A READ response, which has no bytes for a FLUSH or ATOMIC WRITE.
    Data(&'a D),
    /// The word that an atomic has found.
    Word(u64),
}

impl Requester {
    /// Sorts a response by its PSN and kind.
    #[inline]
    pub(super) fn take_response<H: RequesterHost>(
        &mut self,
        now: Nanos,
        packet: &Packet<'_, H::Data>,
        window: &mut Window,
        host: &mut H,
    ) {
        let headers = &packet.headers;
        let psn = headers.bth.psn;
        if headers.bth.opcode != self.opcode_base | opcode::operation(headers.bth.opcode) {
            if headers.bth.opcode == opcode::GAPS {
                return self.take_report(now, packet, window, host);
            }
            self.counters.stale += 1;
            return;
        }
        if !self.flights.is_outstanding(psn) {
            // The answer before the oldest that is missing may come again with new credits; all else is a ghost (IBA
            // 9.7.5.1).
            if let (psn::MASK, Some(aeth)) = (self.flights.distance(psn), headers.aeth)
                && let Some(Syndrome::Ack(code)) = Syndrome::decode(aeth.syndrome)
            {
                self.receives.grant(code, &self.flights);
                return;
            }
            self.counters.stale += 1;
            return;
        }
        match (opcode::operation(headers.bth.opcode), headers.aeth) {
            (opcode::ACKNOWLEDGE, Some(aeth)) => self.acknowledgement(now, psn, aeth, window, host),
            (opcode::ATOMIC_ACKNOWLEDGE, Some(aeth)) => {
                self.introduction.answers_parts |= headers.bth.mark == TAKES_GAPS;
                let word = headers.atomic_ack.unwrap_or(0);
                self.answer(now, psn, Some(aeth), &Answer::Word(word), window, host);
            }
            (code, aeth) if opcode::is_read_response(code) => {
                self.introduction.answers_parts |= headers.bth.mark == TAKES_GAPS;
                self.answer(now, psn, aeth, &Answer::Data(packet.payload), window, host);
            }
            _ => self.counters.stale += 1,
        }
    }

    /// ACK or NAK.
    #[inline]
    fn acknowledgement(
        &mut self,
        now: Nanos,
        psn: u32,
        aeth: Aeth,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) {
        let status = match Syndrome::decode(aeth.syndrome) {
            Some(Syndrome::Ack(code)) => {
                let behind = psn::add(psn, 1);
                if self.advance(now, behind, window, host) {
                    self.receives.grant(code, &self.flights);
                } else {
                    self.overtaken(now, behind, window);
                }
                return;
            }
            None => {
                self.counters.stale += 1;
                return;
            }
            // A NAK acknowledges everything before its PSN (IBA 9.7.5.1).
            Some(_) if !self.advance(now, psn, window, host) => {
                self.counters.implied_naks += u64::from(self.missing(now, window));
                return;
            }
            Some(Syndrome::RnrNak(code)) => {
                return self.not_ready(now, timer::rnr_timer_ns(code), window, host);
            }
            Some(Syndrome::Nak(NakCode::Sequence)) => {
                self.counters.sequence_naks += u64::from(self.missing(now, window));
                return;
            }
            Some(Syndrome::Nak(NakCode::InvalidRequest)) => Status::RemoteInvalidRequest,
            Some(Syndrome::Nak(NakCode::RemoteAccess)) => Status::RemoteAccess,
            Some(Syndrome::Nak(NakCode::RemoteOperation)) => Status::RemoteOperation,
        };
        self.fail(status, window, host);
    }

    /// A READ response packet, or the answer to an atomic, FLUSH or ATOMIC WRITE.
    #[inline]
    fn answer<H: RequesterHost>(
        &mut self,
        now: Nanos,
        psn: u32,
        aeth: Option<Aeth>,
        answer: &Answer<'_, H::Data>,
        window: &mut Window,
        host: &mut H,
    ) {
        if !self.advance(now, psn, window, host) {
            return self.early_answer(now, psn, answer, window, host);
        }
        let n = self.flights.first;
        let Some(oldest) = self.flights.oldest() else { return };
        let (operation, length) = (oldest.request.opcode, oldest.request.length);
        let offset = u64::from(psn::distance(oldest.first_psn, psn)) * u64::from(self.config.mtu);
        let mut packets = 1;
        let delivered = match (operation, answer) {
            // The opcode is not held against the place in the message: rxe answers a READ that is asked for again from
            // the middle with MIDDLE and LAST packets. PSN and length say the same.
            (Opcode::Read | Opcode::Flush | Opcode::AtomicWrite, Answer::Data(data)) => {
                let mtu = u64::from(self.config.mtu);
                if data.has_landed() {
                    packets = Flight::packets(data.length() as u64, self.config.mtu);
                }
                let most = (length - offset).min(u64::from(packets) * mtu);
                let wanted = if operation == Opcode::Read { most } else { 0 };
                let is_asked_for = packets <= self.flights.distance(self.flights.highest);
                match data.length() as u64 {
                    found if found != wanted || !is_asked_for => return self.fail(Status::BadResponse, window, host),
                    0 => Ok(()),
                    _ => host.deliver(n, offset, data),
                }
            }
            (Opcode::CompareSwap | Opcode::FetchAdd, Answer::Word(word)) => host.deliver_word(n, *word),
            _ => {
                self.counters.stale += 1;
                return;
            }
        };
        match delivered {
            Ok(()) => {}
            Err(Refused::Full) => return,
            Err(Refused::Memory) => return self.fail(Status::LocalProtection, window, host),
        }
        let mut cost = self.move_up(packets, host);
        if self.flights.have_holes() {
            cost += self.move_over_arrived(host);
        }
        self.flights.end_reads();
        self.settle(now, cost, window);
        if let Some(aeth) = aeth
            && let Some(Syndrome::Ack(code)) = Syndrome::decode(aeth.syndrome)
        {
            self.receives.grant(code, &self.flights);
        }
    }

    /// Takes everything before `to` as arrived. False when that passes an answer that is missing: then everything up to
    /// it.
    #[inline]
    fn advance(&mut self, now: Nanos, to: u32, window: &mut Window, host: &mut impl RequesterHost) -> bool {
        if self.flights.unacknowledged == to {
            return true;
        }
        let mut cost = 0;
        let mut whole = true;
        while self.flights.unacknowledged != to {
            let Some(oldest) = self.flights.oldest() else { break };
            if is_answered(oldest.request.opcode) {
                whole = false;
                break;
            }
            let left = self.flights.distance(oldest.end_psn());
            let step = self.flights.distance(to).min(left);
            cost += self.move_up(step, host);
        }
        if cost > 0 {
            self.settle(now, cost, window);
        }
        whole
    }

    /// Acknowledges `packets` of the oldest request, and ends that if it is done. Returns the bytes that they counted
    /// for.
    #[inline(always)]
    fn move_up(&mut self, packets: u32, host: &mut impl RequesterHost) -> u64 {
        let (cost, ended) = self.flights.move_up(packets);
        if let Some(n) = ended {
            if self.stopped.is_some_and(|(stopped, _)| stopped == n) {
                self.stopped = None;
            }
            host.complete(n, Status::Success);
        }
        cost
    }

    /// After packets that counted for `cost` were acknowledged: nothing before them is to be sent, and the timers begin
    /// anew.
    #[inline]
    fn settle(&mut self, now: Nanos, cost: u64, window: &mut Window) {
        self.flights.settle(cost, window);
        if self.introduction.mark != 0 {
            self.introduction.acknowledged(self.flights.unacknowledged, self.flights.highest);
        }
        self.timers.progress(now, self.flights.unacknowledged, self.flights.are_under_way(), window);
    }

    /// The peer has executed all requests before `executed`, and an answer to one of them is missing: that is lost (IBA
    /// 9.7.5.1, implied NAK).
    #[cold]
    fn overtaken(&mut self, now: Nanos, executed: u32, window: &mut Window) {
        let is_found_lost = match self.asks_for_parts(executed, window) {
            true => self.flights.learn(now, executed, std::iter::empty(), &mut self.timers, window),
            false => self.missing(now, window),
        };
        self.counters.implied_naks += u64::from(is_found_lost);
    }

    /// Returns true if answers that are missing before PSN `to` are asked for by themselves: the peer answers any part
    /// of a READ again, and all before `to` was sent since the last step back.
    fn asks_for_parts(&self, to: u32, window: &Window) -> bool {
        let sent = self.flights.distance(self.flights.next);
        self.introduction.answers_parts && !window.is_lossless() && self.flights.distance(to) <= sent
    }

    /// The answer to `psn` has come before one that is missing. If only that will be asked for, this one takes its
    /// place now; what cannot be placed counts as missing too, and fails its request when that is the oldest.
    #[cold]
    fn early_answer<H: RequesterHost>(
        &mut self,
        now: Nanos,
        psn: u32,
        answer: &Answer<'_, H::Data>,
        window: &mut Window,
        host: &mut H,
    ) {
        let behind = psn::add(psn, 1);
        if !self.asks_for_parts(behind, window) {
            return self.overtaken(now, behind, window);
        }
        if self.flights.is_answered_early(psn) {
            self.counters.stale += 1;
            return;
        }
        let Some(cost) = self.place_early(psn, answer, host) else { return self.overtaken(now, psn, window) };
        let word = match *answer {
            Answer::Data(_) => None,
            Answer::Word(word) => Some(word),
        };
        let (is_noted, follows) = self.flights.note_early(psn, word);
        if !is_noted || !follows {
            return self.overtaken(now, if is_noted { behind } else { psn }, window);
        }
        self.timers.measure_between(now, psn, behind, window);
        self.flights.count_early(behind, cost, window);
    }

    /// Delivers the answer to `psn`, of any request; of an atomic, when it is the oldest. Returns what it counts for;
    /// None: it does not fit, or the host has no place for it.
    fn place_early<H: RequesterHost>(&mut self, psn: u32, answer: &Answer<'_, H::Data>, host: &mut H) -> Option<u64> {
        let (n, flight) = self.flights.at(self.flights.index_of(psn))?;
        let (packet, mtu) = (psn::distance(flight.first_psn, psn), self.config.mtu);
        let cost = flight.cost(packet, packet + 1, mtu);
        let (operation, offset) = (flight.request.opcode, u64::from(packet) * u64::from(mtu));
        let placed = match (operation, answer) {
            (Opcode::Read, Answer::Data(data)) if data.length() as u64 == cost - PACKET_OVERHEAD => match data.length()
            {
                0 => Ok(()),
                _ => host.deliver(n, offset, data),
            },
            (Opcode::Flush | Opcode::AtomicWrite, Answer::Data(data)) if data.length() == 0 => Ok(()),
            (Opcode::CompareSwap | Opcode::FetchAdd, Answer::Word(_)) => Ok(()),
            _ => {
                self.counters.stale += 1;
                return None;
            }
        };
        placed.is_ok().then_some(cost)
    }

    /// Acknowledges what has been executed, and answered, before an answer that was missing. Returns the bytes that it
    /// counted for.
    #[cold]
    fn move_over_arrived(&mut self, host: &mut impl RequesterHost) -> u64 {
        let mut cost = 0;
        while let Some((packets, word)) = self.flights.arrived() {
            if let Some(word) = word
                && host.deliver_word(self.flights.first, word).is_err()
            {
                // Its answer comes again, and fails it.
                self.flights.forget_arrived();
                break;
            }
            cost += self.move_up(packets, host);
        }
        cost
    }

    /// A report of gaps. It acknowledges everything before its PSN, as a NAK "PSN sequence error" does.
    #[cold]
    fn take_report<H: RequesterHost>(
        &mut self,
        now: Nanos,
        packet: &Packet<'_, H::Data>,
        window: &mut Window,
        host: &mut H,
    ) {
        let psn = packet.headers.bth.psn;
        let syndrome = packet.headers.aeth.and_then(|aeth| Syndrome::decode(aeth.syndrome));
        let is_heeded = self.flights.is_outstanding(psn) && !window.is_lossless();
        let (Some(Syndrome::Ack(code)), Some(gaps), true) =
            (syndrome, packet.payload.bytes().and_then(gaps::parse), is_heeded)
        else {
            self.counters.stale += 1;
            return;
        };
        if self.advance(now, psn, window, host) {
            self.receives.grant(code, &self.flights);
        } else if !self.asks_for_parts(psn, window) {
            return self.overtaken(now, psn, window);
        }
        if !self.flights.are_under_way() {
            // It is about to be sent, or waits for the receiver to be ready.
            return;
        }
        self.counters.sequence_naks += 1;
        self.counters.reports += 1;
        self.flights.learn(now, psn, gaps, &mut self.timers, window);
    }
}
