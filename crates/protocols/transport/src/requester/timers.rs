//! When an answer is missing: the ACK timeout of IBA 9.7.6.1.3, which takes a retry; the probe after a few round trip
//! times, which does not; the wait that an RNR NAK asks for. Round trip times are measured here too.

use crate::config::RequesterConfig;
use crate::host::Nanos;
use crate::psn;
use crate::window::Window;

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
    retry_cnt: u8,
    retries_left: u8,
    probe_at: Nanos,
    /// The longest wait for a probe: several fit into an ACK timeout, however wrong the measured times may be.
    longest_probe: Nanos,
    /// Probes since the last progress.
    probes: u32,
    /// End of the wait that an RNR NAK has asked for.
    not_ready_until: Option<Nanos>,
    rnr_retry: u8,
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

/// What is to be done after a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    /// An answer is late by the measured round trip time. First the last packet is sent again: if an earlier one was
    /// lost, the responder now says so (the idea of RFC 8985, 7).
    ProbeOfLast,
    /// Then the oldest, for a responder says so once only.
    ProbeOfOldest,
    /// Then everything.
    ProbeOfAll,
    /// The ACK timeout has passed, which takes a retry.
    Retry,
    /// No retry is left.
    Failure,
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
            retry_cnt: config.retry_cnt,
            retries_left: config.retry_cnt,
            probe_at: Nanos::MAX,
            longest_probe: longest_probe(config),
            probes: 0,
            not_ready_until: None,
            rnr_retry: config.rnr_retry,
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
        (self.retry_cnt, self.rnr_retry) = (config.retry_cnt, config.rnr_retry);
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
    pub fn is_in_vain(&self) -> bool {
        self.retries_left < self.retry_cnt || self.probes > GENTLE_PROBES
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
    pub fn arm(&mut self, now: Nanos, window: &Window) {
        if window.is_lossless() {
            return self.arm_lossless(now);
        }
        self.arm_retry(now);
        self.arm_probe(now, window);
    }

    /// The oldest packet goes into a lossless channel. If it had to wait for room, the peer has the whole ACK timeout
    /// to answer.
    #[inline(never)]
    fn arm_lossless(&mut self, now: Nanos) {
        match std::mem::take(&mut self.refused) {
            true => self.restart(now),
            false => self.arm_retry(now),
        }
    }

    /// The host has no room for the next packet. Over a lossless channel the ACK timer then runs as it does for packets
    /// under way, so that a peer that is absent, or takes nothing, is noticed as a silent one is.
    #[cold]
    #[inline(never)]
    pub fn wait_for_room(&mut self, now: Nanos, under_way: bool, window: &Window) {
        if !window.is_lossless() {
            return;
        }
        let was_refused = std::mem::replace(&mut self.refused, true);
        if !under_way && (!was_refused || self.retry_at == Nanos::MAX) {
            self.arm_retry(now);
        }
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
    pub fn spoil(&mut self) {
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

    /// Answers have come to all before `unacknowledged`: counters of failures begin anew (IBA 9.7.6.1.3), and so does
    /// the wait if packets are `under_way`.
    #[inline]
    pub fn progress(&mut self, now: Nanos, unacknowledged: u32, under_way: bool, window: &mut Window) {
        if let Some(timed) = self.timed
            && psn::is_before(timed.psn, unacknowledged)
        {
            self.measure(now, timed, window);
        }
        self.retries_left = self.retry_cnt;
        self.not_ready_left = self.rnr_retry;
        self.probes = 0;
        match under_way {
            true => self.restart(now),
            false => self.retry_at = Nanos::MAX,
        }
        self.arm_probe(now, window);
    }

    /// Handles an answer by which the packet `psn` is missing. Returns true if it says something new.
    pub fn missing(&mut self, now: Nanos, psn: u32, window: &mut Window) -> bool {
        if let Some((then, to)) = self.went_back
            && to == psn
            && now < then + window.rtt().smoothed().unwrap_or(0) / 2
        {
            return false;
        }
        self.went_back = Some((now, psn));
        // The peer answers; nothing is to be learnt from how long it takes until the loss is made good.
        self.untold = 0;
        if let Some(timed) = self.timed.take().filter(|timed| !timed.again)
            && window.rtt().smoothed().is_none()
        {
            // Not exact, but where much is lost, nothing may ever be answered that was sent once.
            window.sample(now, timed.sent);
        }
        true
    }

    /// Returns true if an RNR NAK has refused the packet `psn` last.
    pub fn was_not_ready(&self, psn: u32) -> bool {
        self.not_ready_psn == Some(psn)
    }

    /// An RNR NAK asks to wait for `delay` with the packet `psn` (IBA 9.7.5.2.8). Returns false if that was the last
    /// retry.
    pub fn not_ready(&mut self, now: Nanos, delay: Nanos, psn: u32) -> bool {
        if self.rnr_retry != FOR_EVER {
            let Some(left) = self.not_ready_left.checked_sub(1) else { return false };
            self.not_ready_left = left;
        }
        self.not_ready_until = Some(now + delay);
        self.not_ready_psn = Some(psn);
        self.retry_at = Nanos::MAX;
        true
    }

    /// What is due, given whether packets are under way.
    pub fn expire(&mut self, now: Nanos, under_way: bool, window: &Window) -> Due {
        if let Some(until) = self.not_ready_until {
            if now >= until {
                self.not_ready_until = None;
            }
            return Due::Nothing;
        }
        let due = self.retry_at.min(self.probe_at);
        if (!under_way && !self.refused) || now < due {
            return Due::Nothing;
        }
        if window.is_lossless() && self.is_excused(now) {
            return Due::Nothing;
        }
        self.excuse(now - due);
        if now < self.retry_at {
            return self.probe(now, window);
        }
        let Some(left) = self.retries_left.checked_sub(1) else { return Due::Failure };
        self.retries_left = left;
        self.restart(now);
        Due::Retry
    }

    /// A probe goes now.
    fn probe(&mut self, now: Nanos, window: &Window) -> Due {
        let probes = self.probes;
        self.probes += 1;
        self.spoil();
        // An answer after the probe is new.
        self.went_back = None;
        self.arm_probe(now, window);
        match probes {
            0 => Due::ProbeOfLast,
            1..GENTLE_PROBES => Due::ProbeOfOldest,
            _ => Due::ProbeOfAll,
        }
    }
}
