//! The effects of answers (IBA 9.7.5, 9.7.6): they acknowledge all requests before them, bring data, refuse, and grant
//! credits.

use vervain_iba::{Opcode, Status};
use vervain_wire::aeth::{self, NakCode, Syndrome};
use vervain_wire::{Aeth, Packet, TAKES_GAPS, opcode};

use crate::host::{Data, Nanos, Refused, RequesterHost};
use crate::psn;
use crate::window::{PACKET_OVERHEAD, Window};

use super::flight::{Flight, is_answered, takes_receive};
use super::holes::Holes;
use super::{Cursor, Requester};

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
        let ahead = psn::distance(self.unacknowledged, psn);
        if headers.bth.opcode != self.opcode_base | opcode::operation(headers.bth.opcode) {
            if headers.bth.opcode == opcode::GAPS {
                return self.take_report(now, packet, window, host);
            }
            self.counters.stale += 1;
            return;
        }
        if ahead >= psn::distance(self.unacknowledged, self.highest) {
            // The answer before the oldest that is missing may come again with new credits; all else is a ghost (IBA
            // 9.7.5.1).
            if let (psn::MASK, Some(aeth)) = (ahead, headers.aeth)
                && let Some(Syndrome::Ack(code)) = Syndrome::decode(aeth.syndrome)
            {
                self.grant(code);
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
                    self.grant(code);
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
                return self.not_ready(now, vervain_iba::timer::rnr_timer_ns(code), window, host);
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
        let oldest = &self.flights[0];
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
                let is_asked_for = packets <= psn::distance(self.unacknowledged, self.highest);
                match data.length() as u64 {
                    found if found != wanted || !is_asked_for => return self.fail(Status::BadResponse, window, host),
                    0 => Ok(()),
                    _ => host.deliver(self.first, offset, data),
                }
            }
            (Opcode::CompareSwap | Opcode::FetchAdd, Answer::Word(word)) => host.deliver_word(self.first, *word),
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
        if self.holes.is_some() {
            cost += self.move_over_arrived(host);
        }
        while self.reads.front().is_some_and(|read| !psn::is_before(self.unacknowledged, read.end)) {
            self.reads.pop_front();
            self.reads_sent = self.reads_sent.saturating_sub(1);
        }
        self.settle(now, cost, window);
        if let Some(aeth) = aeth
            && let Some(Syndrome::Ack(code)) = Syndrome::decode(aeth.syndrome)
        {
            self.grant(code);
        }
    }

    /// Takes everything before `to` as arrived. False when that passes an answer that is missing: then everything up to
    /// it.
    #[inline]
    pub(super) fn advance(&mut self, now: Nanos, to: u32, window: &mut Window, host: &mut impl RequesterHost) -> bool {
        if self.unacknowledged == to {
            return true;
        }
        let mut cost = 0;
        let mut whole = true;
        while self.unacknowledged != to {
            let Some(oldest) = self.flights.front() else { break };
            if is_answered(oldest.request.opcode) {
                whole = false;
                break;
            }
            let left = psn::distance(self.unacknowledged, oldest.end_psn());
            let step = psn::distance(self.unacknowledged, to).min(left);
            cost += self.move_up(step, host);
        }
        if cost > 0 {
            self.settle(now, cost, window);
        }
        whole
    }

    /// Moves `unacknowledged` on by `packets` of the oldest request, and ends that if it is done. Returns the bytes
    /// that they counted for.
    #[inline(always)]
    fn move_up(&mut self, packets: u32, host: &mut impl RequesterHost) -> u64 {
        let oldest = &self.flights[0];
        let done = psn::distance(oldest.first_psn, self.unacknowledged);
        let cost = oldest.cost(done, done + packets, self.config.mtu);
        let ends = done + packets == oldest.packets;
        self.unacknowledged = psn::add(self.unacknowledged, packets);
        if ends {
            self.flights.pop_front();
            let n = self.first;
            self.first = n.wrapping_add(1);
            // A cursor in the request itself is behind now; `settle` moves it up.
            self.cursor.index = self.cursor.index.saturating_sub(1);
            if self.stopped.is_some_and(|(stopped, _)| stopped == n) {
                self.stopped = None;
            }
            host.complete(n, Status::Success);
        }
        cost
    }

    /// After `unacknowledged` has moved past packets that counted for `cost`: nothing before it is to be sent, and the
    /// timers begin anew.
    #[inline]
    fn settle(&mut self, now: Nanos, cost: u64, window: &mut Window) {
        let cost = if self.holes.is_some() { self.settle_holes(cost, window) } else { cost };
        // Packets that were given up as lost are not counted as outstanding.
        let cost = cost.min(self.in_flight);
        self.in_flight -= cost;
        window.acknowledged(cost);
        if psn::is_before(self.next, self.unacknowledged) {
            // It was sent, then to be sent again, and has arrived after all.
            self.next = self.unacknowledged;
            let packet = self.flights.front().map_or(0, |oldest| psn::distance(oldest.first_psn, self.next));
            self.cursor = Cursor { index: 0, packet };
        }
        if self.next == self.unacknowledged {
            self.release(window);
        }
        self.progress(now, window);
    }

    /// The peer has executed all requests before `executed`, and an answer to one of them is missing: that is lost (IBA
    /// 9.7.5.1, implied NAK).
    #[cold]
    pub(super) fn overtaken(&mut self, now: Nanos, executed: u32, window: &mut Window) {
        let is_found_lost = match self.asks_for_parts(executed, window) {
            true => self.learn(now, executed, std::iter::empty(), window),
            false => self.missing(now, window),
        };
        self.counters.implied_naks += u64::from(is_found_lost);
    }

    /// Returns true if answers that are missing before PSN `to` are asked for by themselves: the peer answers any part
    /// of a READ again, and all before `to` was sent since the last step back.
    pub(super) fn asks_for_parts(&self, to: u32, window: &Window) -> bool {
        let sent = psn::distance(self.unacknowledged, self.next);
        self.introduction.answers_parts && !window.is_lossless() && psn::distance(self.unacknowledged, to) <= sent
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
        if self.holes.as_ref().is_some_and(|holes| holes.arrived.end_of(psn).is_some()) {
            self.counters.stale += 1;
            return;
        }
        let Some(cost) = self.place_early(psn, answer, host) else { return self.overtaken(now, psn, window) };
        let oldest = self.unacknowledged;
        let holes = self.holes.get_or_insert_with(|| Box::new(Holes::new(oldest)));
        let follows = holes.follows(psn);
        let is_noted = match *answer {
            Answer::Data(_) => holes.arrived.add(psn),
            Answer::Word(word) => holes.arrived.add_word(psn, word),
        };
        if !is_noted || !follows {
            return self.overtaken(now, if is_noted { behind } else { psn }, window);
        }
        (holes.end, holes.executed) = (behind, behind);
        holes.out += cost;
        holes.executed_bytes += cost;
        let cost = cost.min(self.in_flight);
        self.in_flight -= cost;
        self.timers.measure_between(now, psn, behind, window);
        window.acknowledged(cost);
    }

    /// Delivers the answer to `psn`, of any request; of an atomic, when it is the oldest. Returns what it counts for;
    /// None: it does not fit, or the host has no place for it.
    fn place_early<H: RequesterHost>(&mut self, psn: u32, answer: &Answer<'_, H::Data>, host: &mut H) -> Option<u64> {
        let first_psn = self.flights.front()?.first_psn;
        let offset = |at: u32| psn::distance(first_psn, at);
        let index = self.flights.partition_point(|flight| offset(flight.end_psn()) <= offset(psn));
        let n = self.first.wrapping_add(index as u32);
        let flight = self.flights.get(index)?;
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

    /// Moves `unacknowledged` over what has been executed, and answered, before an answer that was missing. Returns the
    /// bytes that it counted for.
    #[cold]
    fn move_over_arrived(&mut self, host: &mut impl RequesterHost) -> u64 {
        let mut cost = 0;
        while let (Some(holes), Some(oldest)) = (&mut self.holes, self.flights.front()) {
            let at = self.unacknowledged;
            if let Some(word) = holes.arrived.word(at)
                && host.deliver_word(self.first, word).is_err()
            {
                // Its answer comes again, and fails it.
                holes.arrived.forget_before(psn::add(at, 1));
                break;
            }
            let to = match is_answered(oldest.request.opcode) {
                true => holes.arrived.end_of(at),
                false => Some(holes.executed).filter(|executed| psn::is_before(at, *executed)),
            };
            let Some(to) = to else { break };
            let left = psn::distance(at, oldest.end_psn());
            cost += self.move_up(psn::distance(at, to).min(left), host);
        }
        cost
    }

    /// Credits that come with everything before `unacknowledged` (IBA 9.7.7.2). The count is of receives that are left
    /// behind those messages, so that messages which take none need no credit.
    #[inline]
    pub(super) fn grant(&mut self, code: u8) {
        self.receives.granted = aeth::credits(code).map(|receives| self.receives_taken().wrapping_add(receives));
    }

    /// Messages that have taken a receive at the peer by `unacknowledged`: a SEND does with its first packet.
    fn receives_taken(&self) -> u32 {
        let Some(oldest) = self.flights.front() else { return self.receives.used };
        let operation = oldest.request.opcode;
        let begun = oldest.first_psn != self.unacknowledged && operation != Opcode::WriteImm;
        oldest.receives.wrapping_sub(u32::from(takes_receive(operation) && !begun))
    }
}
