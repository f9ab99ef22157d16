//! When an answer is missing: the ACK timeout of IBA 9.7.6.1.3, which takes a retry; the probe after a few round trip
//! times, which does not; the wait that an RNR NAK asks for; going back; and sending again only what the peer reports
//! missing.

use vervain_iba::Status;
use vervain_wire::Packet;
use vervain_wire::aeth::Syndrome;
use vervain_wire::gaps::{self, Gap};

use crate::config::RequesterConfig;
use crate::host::{Data, Nanos, Payload, Refused, RequesterHost, Transmit};
use crate::psn;
use crate::responder::MOST_KEPT;
use crate::window::{PACKET_OVERHEAD, Window};

use super::flight::is_answered;
use super::holes::{Holes, Resent};
use super::{Cursor, Requester, Sent};

/// Probes that resend one packet before everything is sent again.
const GENTLE_PROBES: u32 = 2;
/// Answers in a row without a clear round trip time before an unclear one is believed.
const MOST_UNTOLD: u32 = 8;
/// RNR retry count that stands for "for ever" (IBA 9.7.5.2.8).
const FOR_EVER: u8 = 7;

/// Deadlines and retry counters.
#[derive(Debug)]
pub(super) struct Timers {
    /// The ACK timeout; 0 for never.
    timeout: Nanos,
    retry_at: Nanos,
    /// The host has had no room, in a channel that loses nothing, since a packet went out with none under way: the ACK
    /// timer runs also if none is now.
    refused: bool,
    /// The end of an ACK timeout that was prolonged because this end had not looked.
    excused: Nanos,
    retries_left: u8,
    probe_at: Nanos,
    /// The longest wait for a probe: several fit into an ACK timeout, however wrong the measured times may be.
    longest_probe: Nanos,
    /// Probes since the last progress.
    probes: u32,
    /// End of the wait that an RNR NAK has asked for.
    not_ready_until: Option<Nanos>,
    not_ready_left: u8,
    /// The PSN that an RNR NAK has refused last.
    not_ready_psn: Option<u32>,
    /// The last answer-driven step back: when, and to which PSN. An answer to what was sent before it says nothing new.
    went_back: Option<(Nanos, u32)>,
    timed: Option<Timed>,
    /// Answers in a row that gave no round trip time.
    untold: u32,
}

/// A packet whose round trip is being measured.
#[derive(Clone, Copy, Debug)]
struct Timed {
    psn: u32,
    sent: Nanos,
    /// It may have been sent again: the answered transmission is unknown (Karn, RFC 6298, 3).
    again: bool,
}

/// See [`Timers::longest_probe`].
fn longest_probe(config: &RequesterConfig) -> Nanos {
    match config.ack_timeout() {
        0 => Nanos::MAX,
        timeout => timeout / 4,
    }
}

impl Timers {
    pub fn new(config: &RequesterConfig) -> Timers {
        Timers {
            timeout: config.ack_timeout(),
            retry_at: Nanos::MAX,
            refused: false,
            excused: Nanos::MAX,
            retries_left: config.retry_cnt,
            probe_at: Nanos::MAX,
            longest_probe: longest_probe(config),
            probes: 0,
            not_ready_until: None,
            not_ready_left: config.rnr_retry,
            not_ready_psn: None,
            went_back: None,
            timed: None,
            untold: 0,
        }
    }

    /// The timeout counts from the next packet on; retries from the start when nothing is under way.
    pub fn modify(&mut self, config: &RequesterConfig, idle: bool) {
        self.timeout = config.ack_timeout();
        self.longest_probe = longest_probe(config);
        let (retries, not_ready) = if idle { (7, 7) } else { (self.retries_left, self.not_ready_left) };
        self.retries_left = config.retry_cnt.min(retries);
        self.not_ready_left = config.rnr_retry.min(not_ready);
    }

    /// Returns true if an RNR NAK forbids sending now.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.not_ready_until.is_some()
    }

    /// Returns true if an ACK timeout has passed since the last answer, or more than the probes that resend one packet.
    pub fn is_in_vain(&self, config: &RequesterConfig) -> bool {
        self.retries_left < config.retry_cnt || self.probes > GENTLE_PROBES
    }

    /// The next deadline, given whether packets are under way.
    #[inline]
    pub fn next(&self, under_way: bool) -> Option<Nanos> {
        match self.not_ready_until {
            Some(until) => Some(until),
            // Without a timeout and probes there is none.
            None if under_way || self.refused => Some(self.retry_at.min(self.probe_at)).filter(|at| *at != Nanos::MAX),
            None => None,
        }
    }

    /// Starts the timers as the oldest packet leaves. A packet that is sent again because of a probe has only the rest
    /// of its ACK timeout.
    #[inline]
    fn arm(&mut self, now: Nanos, window: &Window) {
        self.arm_retry(now);
        self.arm_probe(now, window);
    }

    /// The ACK timeout runs from now on, unless it does already.
    #[inline]
    fn arm_retry(&mut self, now: Nanos) {
        if self.retry_at == Nanos::MAX || self.retry_at <= now {
            self.restart(now);
        }
    }

    /// A channel that loses nothing needs no probes.
    #[inline]
    fn arm_probe(&mut self, now: Nanos, window: &Window) {
        if window.is_lossless() {
            return;
        }
        self.probe_at = now + window.rtt().probe_delay(self.probes).min(self.longest_probe);
    }

    /// Moves the ACK timeout by `late`, the time by which this end has missed its last deadline. It did nothing
    /// meanwhile: its packets may have left only now, and answers of the peer may be waiting; so the peer is not to
    /// blame for silence in that time.
    fn excuse(&mut self, late: Nanos) {
        self.retry_at = self.retry_at.saturating_add(late);
    }

    /// The same for channels without probes, where this end may look only after the ACK timeout: true if it looks later
    /// than a probe would have waited. Answers of the peer may have waited for room here meanwhile, so it gets as much
    /// time again, once.
    fn is_excused(&mut self, now: Nanos) -> bool {
        let late = now.saturating_sub(self.retry_at);
        if late <= self.longest_probe || self.retry_at == self.excused {
            return false;
        }
        self.retry_at = now + self.longest_probe;
        self.excused = self.retry_at;
        true
    }

    /// Begins the ACK timeout anew.
    #[inline]
    fn restart(&mut self, now: Nanos) {
        self.retry_at = if self.timeout == 0 { Nanos::MAX } else { now + self.timeout };
    }

    /// A packet that asks for an acknowledgement goes for the first time.
    #[inline]
    pub fn time(&mut self, now: Nanos, psn: u32) {
        if self.timed.is_none() {
            self.timed = Some(Timed { psn, sent: now, again: false });
        }
    }

    /// Marks the packet that is being measured as one that may be sent again.
    fn spoil(&mut self) {
        if let Some(timed) = &mut self.timed {
            timed.again = true;
        }
    }

    /// Packets before `end` may be sent again: what is being measured is not, if it is one of them.
    pub fn spoil_before(&mut self, end: u32) {
        self.timed.take_if(|timed| psn::is_before(timed.psn, end));
    }

    /// The packets from `from` to `to` have arrived: an answer to what is being measured, if it is one of them.
    pub fn measure_between(&mut self, now: Nanos, from: u32, to: u32, window: &mut Window) {
        if let Some(timed) = self.timed
            && !psn::is_before(timed.psn, from)
            && psn::is_before(timed.psn, to)
        {
            self.measure(now, timed, window);
        }
    }

    /// An answer to what is being measured has come. The time since it was sent first is too long if the first
    /// transmission was lost; it counts where the path is so slow that nothing is answered before it is probed for.
    fn measure(&mut self, now: Nanos, timed: Timed, window: &mut Window) {
        self.timed = None;
        self.untold = if timed.again { self.untold + 1 } else { 0 };
        if !timed.again || self.untold >= MOST_UNTOLD {
            self.untold = 0;
            window.sample(now, timed.sent);
        }
    }
}

impl Requester {
    /// Answers have come: counters of failures begin anew (IBA 9.7.6.1.3), and so does the wait.
    #[inline]
    pub(super) fn progress(&mut self, now: Nanos, window: &mut Window) {
        let timers = &mut self.timers;
        if let Some(timed) = timers.timed
            && psn::is_before(timed.psn, self.unacknowledged)
        {
            timers.measure(now, timed, window);
        }
        timers.retries_left = self.config.retry_cnt;
        timers.not_ready_left = self.config.rnr_retry;
        timers.probes = 0;
        if self.introduction.mark != 0 {
            self.introduction.acknowledged(self.unacknowledged, self.highest);
        }
        match self.next == self.unacknowledged {
            true => timers.retry_at = Nanos::MAX,
            false => timers.restart(now),
        }
        timers.arm_probe(now, window);
    }

    /// Everything without an answer is to be sent again, from the oldest PSN on (go-back-N).
    pub(super) fn go_back(&mut self, window: &mut Window) {
        let packet = self.flights.front().map_or(0, |oldest| psn::distance(oldest.first_psn, self.unacknowledged));
        self.cursor = Cursor { index: 0, packet };
        self.next = self.unacknowledged;
        self.reads_sent = 0;
        self.since_request = 0;
        self.holes = None;
        self.release(window);
        self.timers.spoil();
    }

    /// Handles a packet `unacknowledged` that is missing, by a NAK or a gap in the answers. Returns true if that was
    /// not known before.
    pub(super) fn missing(&mut self, now: Nanos, window: &mut Window) -> bool {
        if self.next == self.unacknowledged {
            // It is about to be sent, or waits for the receiver to be ready.
            return false;
        }
        if let Some((then, to)) = self.timers.went_back
            && to == self.unacknowledged
            && now < then + window.rtt().smoothed().unwrap_or(0) / 2
        {
            return false;
        }
        self.timers.went_back = Some((now, self.unacknowledged));
        if let Some(timed) = self.timers.timed.filter(|timed| !timed.again)
            && window.rtt().smoothed().is_none()
        {
            // Not exact, but where much is lost, nothing may ever be answered that was sent once.
            window.sample(now, timed.sent);
        }
        window.lost(now);
        self.go_back(window);
        // The peer answers; nothing is to be learnt from how long it takes until the loss is made good.
        (self.timers.timed, self.timers.untold) = (None, 0);
        true
    }

    /// Returns true if the oldest request waits for a receive of the peer's: an RNR NAK has refused it, and it has not
    /// been acknowledged since.
    pub fn waits_for_receive(&self) -> bool {
        !self.is_idle() && self.timers.not_ready_psn == Some(self.unacknowledged)
    }

    /// RNR NAK for the packet `unacknowledged` (IBA 9.7.5.2.8). The NAKs "sequence error" that rxe sends for the
    /// packets behind it are not heeded while the requester waits.
    pub(super) fn not_ready(&mut self, now: Nanos, delay: Nanos, window: &mut Window, host: &mut impl RequesterHost) {
        if self.next == self.unacknowledged {
            return;
        }
        self.counters.rnr_naks += 1;
        if self.config.rnr_retry != FOR_EVER {
            if self.timers.not_ready_left == 0 {
                return self.fail(Status::RnrRetryExceeded, window, host);
            }
            self.timers.not_ready_left -= 1;
        }
        self.timers.not_ready_until = Some(now + delay);
        self.timers.not_ready_psn = Some(self.unacknowledged);
        self.timers.retry_at = Nanos::MAX;
        self.go_back(window);
    }

    /// The oldest packet goes out.
    #[inline]
    pub(super) fn arm(&mut self, now: Nanos, window: &Window) {
        match window.is_lossless() {
            true => self.arm_lossless(now),
            false => self.timers.arm(now, window),
        }
    }

    /// The oldest packet goes into a lossless channel. If it had to wait for room, the peer has the whole ACK timeout
    /// to answer.
    #[inline(never)]
    fn arm_lossless(&mut self, now: Nanos) {
        match std::mem::take(&mut self.timers.refused) {
            true => self.timers.restart(now),
            false => self.timers.arm_retry(now),
        }
    }

    /// The host has no room for the next packet. Over a lossless channel the ACK timer then runs as it does for packets
    /// under way, so that a peer that is absent, or takes nothing, is noticed as a silent one is.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_room(&mut self, now: Nanos, window: &Window) {
        if !window.is_lossless() {
            return;
        }
        let was_refused = std::mem::replace(&mut self.timers.refused, true);
        if self.next == self.unacknowledged && (!was_refused || self.timers.retry_at == Nanos::MAX) {
            self.timers.arm_retry(now);
        }
    }

    /// Does what is due.
    pub(super) fn expire(&mut self, now: Nanos, window: &mut Window, host: &mut impl RequesterHost) {
        if let Some(until) = self.timers.not_ready_until {
            if now >= until {
                self.timers.not_ready_until = None;
            }
            return;
        }
        let due = self.timers.retry_at.min(self.timers.probe_at);
        if (self.next == self.unacknowledged && !self.timers.refused) || now < due {
            return;
        }
        if window.is_lossless() && self.timers.is_excused(now) {
            return;
        }
        self.timers.excuse(now - due);
        if now >= self.timers.retry_at {
            self.counters.timeouts += 1;
            if self.timers.retries_left == 0 {
                return self.fail(Status::RetryExceeded, window, host);
            }
            self.timers.retries_left -= 1;
            self.timers.restart(now);
            if host.is_taken() {
                window.collapsed(now);
                self.go_back(window);
            }
        } else {
            self.probe(now, window, host);
        }
    }

    /// An answer is late by the measured round trip time. First the last packet is sent again: if an earlier one was
    /// lost, the responder now says so (the idea of RFC 8985, 7). Then the oldest, for a responder says so once only.
    /// Then everything.
    fn probe(&mut self, now: Nanos, window: &mut Window, host: &mut impl RequesterHost) {
        self.counters.probes += 1;
        let probes = self.timers.probes;
        self.timers.probes += 1;
        self.timers.spoil();
        self.holes.iter_mut().for_each(|holes| holes.doubt());
        // An answer after the probe is new.
        self.timers.went_back = None;
        self.timers.arm_probe(now, window);
        if probes >= GENTLE_PROBES {
            window.collapsed(now);
            return self.go_back(window);
        }
        let last = self.before_cursor();
        let oldest = Cursor { index: 0, packet: psn::distance(self.flights[0].first_psn, self.unacknowledged) };
        let answered = |at: Cursor| is_answered(self.flights[at.index].request.opcode);
        let at = if probes == 0 && !answered(last) { last } else { oldest };
        if answered(at) {
            if self.repeat_first(window) {
                return;
            }
            match self.introduction.answers_parts {
                true => window.lost_in_part(now, PACKET_OVERHEAD),
                false => window.lost(now),
            }
            return self.go_back(window);
        }
        self.resend_one(at, host);
    }

    /// The packet sent last.
    fn before_cursor(&self) -> Cursor {
        match self.cursor {
            Cursor { index, packet: 0 } => Cursor { index: index - 1, packet: self.flights[index - 1].packets - 1 },
            Cursor { index, packet } => Cursor { index, packet: packet - 1 },
        }
    }
}

// Gaps that the peer reports.
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
        if self.advance(now, psn, window, host) {
            self.grant(code);
        } else if !self.asks_for_parts(psn, window) {
            return self.overtaken(now, psn, window);
        }
        if self.next == self.unacknowledged {
            // It is about to be sent, or waits for the receiver to be ready.
            return;
        }
        self.counters.sequence_naks += 1;
        self.counters.reports += 1;
        self.learn(now, psn, gaps, window);
    }

    /// Notes what is missing: answers to what the peer has executed, all before PSN `executed`, and from there on the
    /// `gaps` of its report. What was sent before the last step back counts as unknown. Returns true if something was
    /// found lost.
    pub(super) fn learn(
        &mut self,
        now: Nanos,
        executed: u32,
        gaps: impl Iterator<Item = Gap>,
        window: &mut Window,
    ) -> bool {
        let oldest = self.unacknowledged;
        let mut holes = self.holes.take().unwrap_or_else(|| Box::new(Holes::new(oldest)));
        let is_old = psn::is_before(executed, holes.executed);
        holes.executed = if is_old { holes.executed } else { executed };
        let mut missing = Vec::new();
        let (mut kept, mut at) = (self.unanswered(&holes, &mut missing), holes.executed);
        holes.executed_bytes = kept;
        let limit = |to: u32, next: u32| if psn::is_before(next, to) { next } else { to };
        for gap in gaps.take_while(|_| !is_old) {
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
        let lost = holes.update(&missing, end, again);
        let cost_of_lost = |&(from, to): &(u32, u32)| match psn::is_before(from, holes.executed) {
            true => self.cost_of(from, to, false),
            false => self.cost_of_requests(from, to),
        };
        let dropped: u64 = lost.iter().map(cost_of_lost).sum();
        let lost: u64 = lost.iter().map(|&(from, to)| self.cost_of(from, to, false)).sum();
        let unsent = holes.runs.iter().filter(|run| run.resent.is_none());
        let unsent: u64 = unsent.map(|run| self.cost_of(run.from, run.to, false)).sum();
        self.count_out(&mut holes, kept + unsent, lost, window);
        if lost > 0 {
            window.lost_in_part(now, dropped);
            // The time of what is sent again is not that of a round trip.
            self.timers.spoil_before(end);
        } else {
            self.timers.measure_between(now, self.unacknowledged, holes.executed, window);
        }
        self.holes = Some(holes);
        lost > 0
    }

    /// Adds to `missing` the answers that have not come to what the peer has executed. Returns the bytes that all else
    /// there counts for.
    fn unanswered(&self, holes: &Holes, missing: &mut Vec<(u32, u32)>) -> u64 {
        let mut at = self.unacknowledged;
        for flight in &self.flights {
            if !psn::is_before(at, holes.executed) {
                break;
            }
            let end = flight.end_psn();
            let end = if psn::is_before(holes.executed, end) { holes.executed } else { end };
            if is_answered(flight.request.opcode) {
                holes.arrived.add_missing(at, end, missing);
            }
            at = end;
        }
        let lost: u64 = missing.iter().map(|&(from, to)| self.cost_of(from, to, false)).sum();
        self.cost_of(self.unacknowledged, at, false).saturating_sub(lost)
    }

    /// An answer is late: the first that is missing before others is asked for once more. Returns false if none is.
    fn repeat_first(&mut self, window: &mut Window) -> bool {
        let Some(mut holes) = self.holes.take() else { return false };
        let are_answers = psn::is_before(self.unacknowledged, holes.executed);
        let repeated = if are_answers { holes.repeat_first() } else { None };
        if let Some((from, to)) = repeated {
            let cost = self.cost_of(from, to, false);
            let out = holes.out + cost;
            self.count_out(&mut holes, out, cost, window);
        }
        self.holes = Some(holes);
        repeated.is_some()
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
        holes.executed_bytes = holes.executed_bytes.saturating_sub(was_out);
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

    /// Bytes that the request packets from PSN `from` to `to` count for where they are lost: a READ is one packet.
    fn cost_of_requests(&self, from: u32, to: u32) -> u64 {
        let are_lost = |end: u32| psn::is_before(from, end) && !psn::is_before(to, end);
        let reads = self.reads.iter().filter(|read| are_lost(read.end)).count() as u64;
        self.cost_of(from, to, true) + reads * PACKET_OVERHEAD
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
        let kept = |holes: &Holes| holes.out.saturating_sub(holes.executed_bytes);
        let is_full = self.holes.as_ref().is_some_and(|holes| kept(holes) + self.in_flight >= MOST_KEPT);
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
        // A READ is asked for as it was, up to its end, unless the peer has executed it.
        let is_executed = self.holes.as_ref().is_some_and(|holes| psn::is_before(from, holes.executed));
        let end = match self.reads.iter().find(|read| psn::is_before(from, read.end)) {
            Some(read) if is_answered && is_executed && psn::is_before(to, read.end) => to,
            Some(read) if is_answered => read.end,
            _ => psn::add(from, 1),
        };
        let packets = psn::distance(from, end).min(flight.packets - packet);
        let cost = flight.cost(packet, packet + packets, self.config.mtu);
        let sent_cost = if is_answered { PACKET_OVERHEAD } else { cost };
        let within_bound = self.holes.as_mut().is_some_and(|holes| holes.may_send(now, sent_cost, window));
        // The peer executes nothing before the first, so that no answer would open the window for it.
        if !within_bound || !(from == self.unacknowledged || window.admits(self.in_flight, cost)) {
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
            holes.again += sent_cost;
        });
        Ok(psn::add(from, packets))
    }
}
