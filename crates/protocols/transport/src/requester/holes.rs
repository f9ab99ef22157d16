//! What a peer misses that reports gaps: packets to be sent again, without going back over what it keeps. A report is
//! advice: only acknowledgements end requests, and a step back forgets it all, so that a peer that drops what it has
//! kept, or lies, gets everything again.

use vervain_iba::Status;
use vervain_wire::aeth::Syndrome;
use vervain_wire::gaps::{self, Gap};
use vervain_wire::{Packet, TAKES_GAPS, VERVAIN};

use crate::host::{Data, Nanos, Payload, Refused, RequesterHost, Transmit};
use crate::psn;
use crate::responder::MOST_KEPT;
use crate::window::{PACKET_OVERHEAD, Window};

use super::flight::is_answered;
use super::{Requester, Sent};

/// Most runs that are remembered; what is behind them is reported again.
const MOST_RUNS: usize = 4 * gaps::MOST;

/// The missing packets, and how far the peer has reported.
#[derive(Debug)]
pub(super) struct Holes {
    /// In PSN order.
    runs: Vec<Run>,
    /// PSN behind the last packet that the peer has reported.
    end: u32,
    /// Bytes that are not under way though not acknowledged: the peer keeps them, or they are to be sent again.
    out: u64,
    /// Bytes that have been sent again since a round trip began, and when it ends: one window at most, whatever the
    /// peer reports.
    again: u64,
    round_ends: Nanos,
}

/// Missing packets that have gone equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    from: u32,
    /// PSN behind the last.
    to: u32,
    /// None: to be sent again.
    resent: Option<Resent>,
}

/// When packets were sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resent {
    at: Nanos,
    /// The PSN that was to be sent next for the first time. A peer that has it has missed what was resent before.
    next: u32,
}

/// How the requester shows the peer what it is: packets have a mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    /// The mark of packets now. First that of Vervain, which every Vervain knows; then, until one that has it was
    /// acknowledged, that of a requester that takes reports; then none.
    pub mark: u8,
    /// A packet with this PSN has the second mark.
    shown: u32,
}

impl Introduction {
    pub fn new(introduces: bool) -> Introduction {
        Introduction { mark: if introduces { VERVAIN } else { 0 }, shown: 0 }
    }

    /// Everything before `unacknowledged` has arrived, and no packet from `highest` on has been sent.
    #[cold]
    pub fn acknowledged(&mut self, unacknowledged: u32, highest: u32) {
        if self.mark == VERVAIN {
            (self.mark, self.shown) = (TAKES_GAPS, highest);
        } else if psn::is_before(self.shown, unacknowledged) {
            self.mark = 0;
        }
    }
}

impl Holes {
    /// Returns true if `cost` more bytes may be sent again in this round trip.
    fn may_send(&mut self, now: Nanos, cost: u64, window: &Window) -> bool {
        if now >= self.round_ends {
            self.again = 0;
            self.round_ends = now + window.rtt().assumed();
        }
        self.again == 0 || self.again + cost <= window.size()
    }

    /// What was sent again may be lost by now; if the peer still misses it, it goes once more.
    pub fn doubt(&mut self) {
        self.runs.iter_mut().for_each(|run| {
            let from = run.from;
            run.resent.iter_mut().for_each(|resent| resent.next = from);
        });
    }

    /// Takes over a report: up to `end` the peer misses `missing` (first PSN, PSN behind the last) and nothing else.
    /// Returns those of them that are to be sent again, because the report shows that they are lost.
    fn update(&mut self, missing: &[(u32, u32)], end: u32, again: impl Fn(&Resent) -> bool) -> Vec<(u32, u32)> {
        let before = std::mem::take(&mut self.runs);
        let mut lost = Vec::new();
        for &(from, to) in missing {
            let mut at = from;
            for run in before.iter().filter(|run| psn::is_before(run.from, to) && psn::is_before(from, run.to)) {
                if psn::is_before(at, run.from) {
                    lost.push((at, run.from));
                    self.push(Run { from: at, to: run.from, resent: None });
                    at = run.from;
                }
                let part_end = if psn::is_before(to, run.to) { to } else { run.to };
                let resent = run.resent.filter(|resent| !again(resent));
                if run.resent.is_some() && resent.is_none() {
                    lost.push((at, part_end));
                }
                self.push(Run { from: at, to: part_end, resent });
                at = part_end;
            }
            if at != to {
                lost.push((at, to));
                self.push(Run { from: at, to, resent: None });
            }
        }
        // A report may end before a former one: it has room for so many gaps only.
        if psn::is_before(self.end, end) {
            self.end = end;
        }
        for run in before {
            let from = if psn::is_before(run.from, end) { end } else { run.from };
            if psn::is_before(from, run.to) {
                self.push(Run { from, ..run });
            }
        }
        self.runs.truncate(MOST_RUNS);
        lost
    }

    /// Adds a run behind all others.
    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.to == run.from && last.resent == run.resent => last.to = run.to,
            _ => self.runs.push(run),
        }
    }

    /// The first packet that is to be sent again, and the PSN behind its run.
    fn next_unsent(&self) -> Option<(u32, u32)> {
        self.runs.iter().find(|run| run.resent.is_none()).map(|run| (run.from, run.to))
    }

    /// Packets up to `to` of the first run that is to be sent again have been.
    fn sent(&mut self, to: u32, resent: Resent) {
        let Some(place) = self.runs.iter().position(|run| run.resent.is_none()) else { return };
        let run = self.runs[place];
        let done = Run { to: if psn::is_before(run.to, to) { run.to } else { to }, resent: Some(resent), ..run };
        let joins = place > 0 && self.runs[place - 1].to == run.from && self.runs[place - 1].resent == done.resent;
        match (joins, done.to == run.to) {
            (true, true) => {
                self.runs[place - 1].to = done.to;
                self.runs.remove(place);
            }
            (true, false) => (self.runs[place - 1].to, self.runs[place].from) = (done.to, done.to),
            (false, true) => self.runs[place] = done,
            (false, false) => {
                self.runs[place].from = done.to;
                self.runs.insert(place, done);
            }
        }
    }

    /// Forgets what lies before `unacknowledged`. Returns false if nothing is left.
    fn forget_before(&mut self, unacknowledged: u32) -> bool {
        self.runs.retain(|run| psn::is_before(unacknowledged, run.to));
        if let Some(first) = self.runs.first_mut()
            && psn::is_before(first.from, unacknowledged)
        {
            first.from = unacknowledged;
        }
        psn::is_before(unacknowledged, self.end)
    }
}

impl Requester {
    /// A report of gaps. It acknowledges everything before its PSN, as a NAK "PSN sequence error" does.
    #[cold]
    pub(super) fn take_report<H: RequesterHost>(
        &mut self,
        now: Nanos,
        packet: &Packet<'_, H::Data>,
        window: &mut Window,
        host: &mut H,
    ) {
        let psn = packet.headers.bth.psn;
        let syndrome = packet.headers.aeth.and_then(|aeth| Syndrome::decode(aeth.syndrome));
        let is_outstanding = psn::distance(self.unacknowledged, psn) < psn::distance(self.unacknowledged, self.highest);
        let (Some(Syndrome::Ack(code)), Some(gaps), true) =
            (syndrome, packet.payload.bytes().and_then(gaps::parse), is_outstanding && !window.is_lossless())
        else {
            self.counters.stale += 1;
            return;
        };
        if !self.advance(now, psn, window, host) {
            return self.overtaken(now, window);
        }
        self.grant(code);
        if self.next == self.unacknowledged {
            // It is about to be sent, or waits for the receiver to be ready.
            return;
        }
        self.counters.sequence_naks += 1;
        self.counters.reports += 1;
        self.learn(now, gaps, window);
    }

    /// Notes what the peer misses from `unacknowledged` on. What was sent before the last step back counts as unknown.
    fn learn(&mut self, now: Nanos, gaps: impl Iterator<Item = Gap>, window: &mut Window) {
        let (mut missing, mut kept, mut at) = (Vec::new(), 0, self.unacknowledged);
        let limit = |to: u32, next: u32| if psn::is_before(next, to) { next } else { to };
        for gap in gaps {
            let lost_to = limit(psn::add(at, gap.missing.into()), self.next);
            if lost_to == self.next {
                break;
            }
            missing.push((at, lost_to));
            at = limit(psn::add(lost_to, gap.kept.into()), self.next);
            self.timers.measure_between(now, lost_to, at, window);
            kept += self.cost_of(lost_to, at, true);
        }
        let end = at;
        let since = window.rtt().smoothed().unwrap_or(0) / 2;
        let again = |resent: &Resent| psn::is_before(resent.next, end) && now >= resent.at + since;
        let new = || Box::new(Holes { runs: Vec::new(), end, out: 0, again: 0, round_ends: 0 });
        let mut holes = self.holes.take().unwrap_or_else(new);
        let lost = holes.update(&missing, end, again);
        let lost: u64 = lost.iter().map(|&(from, to)| self.cost_of(from, to, false)).sum();
        let unsent = holes.runs.iter().filter(|run| run.resent.is_none());
        let unsent: u64 = unsent.map(|run| self.cost_of(run.from, run.to, false)).sum();
        self.count_out(&mut holes, kept + unsent, lost, window);
        if lost > 0 {
            window.lost_in_part(now, lost);
            // The time of what is sent again is not that of a round trip.
            self.timers.spoil_before(end);
        }
        self.holes = Some(holes);
    }

    /// Of what is not acknowledged, `out` bytes are not under way now, `lost` of them since they were found lost.
    fn count_out(&mut self, holes: &mut Holes, out: u64, lost: u64, window: &mut Window) {
        let all = self.in_flight + holes.out;
        let out = out.min(all);
        let before = std::mem::replace(&mut self.in_flight, all - out);
        holes.out = out;
        if self.in_flight > before {
            window.sent(self.in_flight - before);
            return;
        }
        let less = before - self.in_flight;
        window.released(lost.min(less));
        window.acknowledged(less - lost.min(less));
    }

    /// `unacknowledged` has moved past packets that counted for `cost`. Returns the part of it that was under way.
    #[cold]
    pub(super) fn settle_holes(&mut self, cost: u64, window: &mut Window) -> u64 {
        let Some(mut holes) = self.holes.take() else { return cost };
        let was_out = cost.min(holes.out);
        holes.out -= was_out;
        if holes.forget_before(self.unacknowledged) {
            self.holes = Some(holes);
        } else {
            // All that is left is under way.
            self.in_flight += holes.out;
            window.sent(holes.out);
        }
        cost - was_out
    }

    /// Bytes that the packets from PSN `from` to `to` count for; of those only which no answer is for, if
    /// `only_posted`.
    fn cost_of(&self, from: u32, to: u32, only_posted: bool) -> u64 {
        let Some(oldest) = self.flights.front() else { return 0 };
        let offset = |at: u32| psn::distance(oldest.first_psn, at);
        let first = self.flights.partition_point(|flight| offset(flight.end_psn()) <= offset(from));
        let spanned = self.flights.iter().skip(first).take_while(|flight| offset(flight.first_psn) < offset(to));
        let counted = spanned.filter(|flight| !(only_posted && is_answered(flight.request.opcode)));
        counted
            .map(|flight| {
                let start = offset(from).saturating_sub(offset(flight.first_psn));
                let end = (offset(to) - offset(flight.first_psn)).min(flight.packets);
                flight.cost(start, end, self.config.mtu)
            })
            .sum()
    }

    /// Sends what the peer misses, before anything new. Returns why nothing new may be sent now; None: it may.
    #[cold]
    pub(super) fn send_missing(
        &mut self,
        now: Nanos,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) -> Option<Sent> {
        while let Some((from, to)) = self.holes.as_ref().and_then(|holes| holes.next_unsent()) {
            match self.send_missing_packet(now, from, to, window, host) {
                Ok(sent) => {
                    let resent = Resent { at: now, next: self.highest };
                    self.holes.iter_mut().for_each(|holes| holes.sent(sent, resent));
                }
                Err(stop) => return Some(stop),
            }
        }
        // The peer keeps no more than so much.
        let is_full = self.holes.as_ref().is_some_and(|holes| holes.out + self.in_flight >= MOST_KEPT);
        is_full.then_some(Sent::WindowClosed)
    }

    /// Sends the packet at `from` again, of a run up to `to`; the PSN behind it.
    fn send_missing_packet(
        &mut self,
        now: Nanos,
        from: u32,
        to: u32,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) -> Result<u32, Sent> {
        let Some(oldest) = self.flights.front() else { return Err(Sent::All) };
        let offset = |at: u32| psn::distance(oldest.first_psn, at);
        let index = self.flights.partition_point(|flight| offset(flight.end_psn()) <= offset(from));
        let n = self.first.wrapping_add(index as u32);
        let Some(flight) = self.flights.get(index).copied() else { return Err(Sent::All) };
        if self.stopped.is_some_and(|(stopped, _)| n.wrapping_sub(stopped) as i32 >= 0) {
            return Err(Sent::All);
        }
        let packet = psn::distance(flight.first_psn, from);
        let is_answered = is_answered(flight.request.opcode);
        // A READ is asked for as it was, up to its end.
        let end = match self.reads.iter().find(|read| psn::is_before(from, read.end)) {
            Some(read) if is_answered => read.end,
            _ => psn::add(from, 1),
        };
        let packets = psn::distance(from, end).min(flight.packets - packet);
        let cost = flight.cost(packet, packet + packets, self.config.mtu);
        let within_bound = self.holes.as_mut().is_some_and(|holes| holes.may_send(now, cost, window));
        if !within_bound || !window.admits(self.in_flight, cost) {
            return Err(Sent::WindowClosed);
        }
        let mut headers = self.headers(&flight.request);
        let payload = if is_answered {
            headers.bth.psn = from;
            headers.bth.ack_request = true;
            self.answered_packet(&flight, n, packet, packets, &mut headers)
        } else {
            let is_last = end == to || packet + 1 == flight.packets;
            self.posted_packet(&flight, packet..packet + 1, is_last, &mut headers);
            let len = cost - PACKET_OVERHEAD;
            match len {
                0 => Payload::None,
                _ => Payload::Request { n, offset: u64::from(packet) * u64::from(self.config.mtu), len: len as u32 },
            }
        };
        match host.transmit(&Transmit { headers: &headers, payload, again: true }) {
            Ok(()) => {}
            Err(Refused::Full) => return Err(Sent::HostFull),
            Err(Refused::Memory) => {
                self.stopped = Some((n, Status::LocalProtection));
                return Err(Sent::All);
            }
        }
        self.counters.resent_packets += u64::from(packets);
        if from == self.unacknowledged {
            self.arm(now, window);
        }
        self.in_flight += cost;
        window.sent(cost);
        self.holes.iter_mut().for_each(|holes| {
            holes.out = holes.out.saturating_sub(cost);
            holes.again += cost;
        });
        Ok(psn::add(from, packets))
    }
}
