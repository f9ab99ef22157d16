//! The requester of a QP (IBA 9.7.2, 9.7.3 for requests, 9.7.5, 9.7.6 for answers): takes posted requests from its
//! host, sends their packets as far as window, credits and outstanding READs allow, matches answers, and ends requests
//! in order.

mod acknowledge;
mod arrived;
mod flight;
mod flights;
mod holes;
mod receives;
mod saved;
mod timers;
mod transmit;

use vervain_iba::Status;
use vervain_wire::Packet;

use crate::config::{LARGEST_MTU, RequesterConfig, Service};
use crate::counters::RequesterCounters;
use crate::host::{Nanos, RequesterHost};
use crate::saved::Unusable;
use crate::window::{PACKET_OVERHEAD, Window};
use flight::{Flight, is_answered};
use flights::{Cursor, Flights};
use holes::Introduction;
use receives::Receives;
pub use saved::SavedRequester;
use timers::{Due, Timers};

/// The reason why [`Requester::poll_transmit`] has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Nothing more can be sent before a post, a packet or a timeout.
    All,
    /// The window is closed. Some request of this requester is outstanding, and its answer reopens it; nothing is to be
    /// done.
    WindowClosed,
    /// The host had no room: poll again when it has.
    HostFull,
}

/// The sending side of a connected QP.
#[derive(Debug)]
pub struct Requester {
    config: RequesterConfig,
    opcode_base: u8,
    flights: Flights,
    /// The window keeps this requester from sending.
    held_back: bool,
    /// Bytes sent since the last packet that asked for an acknowledgement.
    since_request: u64,
    receives: Receives,
    /// A request that cannot be sent on, and why. It ends when all before it have.
    stopped: Option<(u32, Status)>,
    /// The first packets carry Vervain's marks, so that the peer knows it from the first packet that it takes.
    introduction: Introduction,
    ended: bool,
    timers: Timers,
    counters: RequesterCounters,
}

impl Requester {
    /// A requester that has sent nothing. `config.mtu` must be a power of two up to [`LARGEST_MTU`].
    pub fn new(config: &RequesterConfig) -> Requester {
        debug_assert!(config.mtu.is_power_of_two() && config.mtu <= LARGEST_MTU);
        Requester {
            config: *config,
            opcode_base: config.service.opcode_base(),
            flights: Flights::new(config),
            held_back: false,
            since_request: 0,
            receives: Receives::default(),
            stopped: None,
            introduction: Introduction::new(config.introduces),
            ended: false,
            timers: Timers::new(config),
            counters: RequesterCounters::default(),
        }
    }

    /// The state that another requester needs to go on; None if this one has ended.
    pub fn save(&self) -> Option<SavedRequester> {
        if self.ended {
            return None;
        }
        let taken = |receives: u32, flight: &Flight| receives.wrapping_sub(u32::from(flight.takes_receive()));
        Some(SavedRequester {
            first_psn: self.flights.oldest().map_or(self.flights.highest, |oldest| oldest.first_psn),
            unacknowledged: self.flights.unacknowledged,
            highest: self.flights.highest,
            begun: self.flights.len() as u32,
            reads: self.flights.read_ends(),
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
        saved.check_psns()?;
        let &SavedRequester { first_psn, introduces, .. } = saved;
        let mut resumed = Requester::new(&RequesterConfig { first_psn, introduces, ..*config });
        resumed.receives = Receives { used: saved.receives_used, granted: saved.receives_granted };
        for _ in 0..saved.begun {
            if !resumed.begin(host) {
                return Err(Unusable("a request that was begun is not there, or cannot be sent"));
            }
            resumed.flights.assume_sent();
        }
        saved.check(&resumed.flights, config.service)?;
        resumed.flights.resume(saved, config.service);
        Ok(resumed)
    }

    /// Takes over what may change while a QP is drained (IBA 11.2.5.2): the timeout, the retries and `max_rd_atomic`.
    /// Retries that are being counted are never more than there are now.
    pub fn modify(&mut self, config: &RequesterConfig) {
        let RequesterConfig { timeout, retry_cnt, rnr_retry, max_rd_atomic, .. } = *config;
        self.config = RequesterConfig { timeout, retry_cnt, rnr_retry, max_rd_atomic, ..self.config };
        let idle = self.is_idle();
        self.timers.modify(&self.config, idle);
    }

    /// Returns true if no request has been begun that has not ended.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Number of requests that have been begun and have not ended.
    #[inline]
    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    /// Returns true if packets of requests that were begun are still to be sent, for the first time or again.
    pub fn has_unsent(&self) -> bool {
        !self.ended && self.stopped.is_none() && self.flights.has_unsent()
    }

    /// Returns true if the peer has no receive for what is to be sent next, or is silent: an ACK timeout has passed
    /// since its last answer, or more probes than may find one packet lost.
    pub fn waits_for_peer(&self) -> bool {
        self.timers.is_waiting() || self.timers.is_in_vain()
    }

    /// Returns true if the oldest request waits for a receive of the peer's: an RNR NAK has refused it, and it has not
    /// been acknowledged since.
    pub fn waits_for_receive(&self) -> bool {
        !self.is_idle() && self.timers.was_not_ready(self.flights.unacknowledged)
    }

    /// Returns true if a request has failed. The requester does nothing more.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// PSN of the next packet that has not been sent yet (`sq_psn` of a queried QP).
    pub fn next_psn(&self) -> u32 {
        self.flights.highest
    }

    /// Counts since the start.
    pub fn counters(&self) -> &RequesterCounters {
        &self.counters
    }

    /// When [`Requester::handle_timeout`] is to be called.
    #[inline]
    pub fn next_timeout(&self) -> Option<Nanos> {
        if self.ended {
            return None;
        }
        self.timers.next(self.flights.are_under_way())
    }

    /// Gives what is under way back to the window; before the requester is dropped.
    pub fn abandon(&mut self, window: &mut Window) {
        self.flights.release(window);
        window.hold_back(self.held_back, false);
        self.held_back = false;
        self.ended = true;
    }

    /// Sends what may be sent. Ends requests too: those that fail here, and over UC those whose last packet has gone.
    pub fn poll_transmit(&mut self, now: Nanos, window: &mut Window, host: &mut impl RequesterHost) -> Sent {
        if self.ended {
            return Sent::All;
        }
        if self.config.service == Service::Uc {
            return self.transmit_unreliable(host);
        }
        let sent = match self.timers.is_waiting() {
            true => Sent::All,
            false => self.transmit_reliable(now, window, host),
        };
        let held_back = sent == Sent::WindowClosed;
        if self.held_back != held_back && !self.ended {
            window.hold_back(self.held_back, held_back);
            self.held_back = held_back;
        }
        sent
    }

    /// Takes a response: ACK, NAK, READ response or atomic answer.
    pub fn handle_packet<H: RequesterHost>(
        &mut self,
        now: Nanos,
        packet: &Packet<'_, H::Data>,
        window: &mut Window,
        host: &mut H,
    ) {
        if self.ended {
            return;
        }
        self.take_response(now, packet, window, host);
        self.end_stopped(window, host);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Nanos, window: &mut Window, host: &mut impl RequesterHost) {
        if self.ended {
            return;
        }
        let due = self.timers.expire(now, self.flights.are_under_way(), window);
        match due {
            Due::Nothing => {}
            Due::ProbeOfLast | Due::ProbeOfOldest | Due::ProbeOfAll => self.probe(now, due, window, host),
            Due::Retry => {
                self.counters.timeouts += 1;
                if host.is_taken() {
                    window.collapsed(now);
                    self.go_back(window);
                }
            }
            Due::Failure => {
                self.counters.timeouts += 1;
                self.fail(Status::RetryExceeded, window, host);
            }
        }
        self.end_stopped(window, host);
    }

    /// Sends again what `due` says; where that is answered, what is missing of it.
    fn probe(&mut self, now: Nanos, due: Due, window: &mut Window, host: &mut impl RequesterHost) {
        self.counters.probes += 1;
        self.flights.doubt();
        if due == Due::ProbeOfAll {
            window.collapsed(now);
            return self.go_back(window);
        }
        let answered = |at: Cursor| self.flights.at(at.index).is_some_and(|(_, of)| is_answered(of.request.opcode));
        let last = if due == Due::ProbeOfLast { Some(self.flights.last_packet()) } else { None };
        let at = last.filter(|last| !answered(*last)).unwrap_or(self.flights.oldest_packet());
        if !answered(at) {
            return self.resend_one(at, host);
        }
        if self.flights.repeat_first(window) {
            return;
        }
        match self.introduction.answers_parts {
            true => window.lost_in_part(now, PACKET_OVERHEAD),
            false => window.lost(now),
        }
        self.go_back(window);
    }

    /// Everything without an answer is to be sent again.
    fn go_back(&mut self, window: &mut Window) {
        self.flights.go_back(window);
        self.since_request = 0;
        self.timers.spoil();
    }

    /// Handles the first packet without an answer, which is missing by a NAK or a gap in the answers. Returns true if
    /// that was not known before.
    fn missing(&mut self, now: Nanos, window: &mut Window) -> bool {
        // Without packets under way it is about to be sent, or waits for the receiver to be ready.
        let is_news = self.flights.are_under_way() && self.timers.missing(now, self.flights.unacknowledged, window);
        if is_news {
            window.lost(now);
            self.go_back(window);
        }
        is_news
    }

    /// RNR NAK for the first packet without an answer (IBA 9.7.5.2.8). The NAKs "sequence error" that rxe sends for the
    /// packets behind it are not heeded while the requester waits.
    fn not_ready(&mut self, now: Nanos, delay: Nanos, window: &mut Window, host: &mut impl RequesterHost) {
        if !self.flights.are_under_way() {
            return;
        }
        self.counters.rnr_naks += 1;
        match self.timers.not_ready(now, delay, self.flights.unacknowledged) {
            true => self.go_back(window),
            false => self.fail(Status::RnrRetryExceeded, window, host),
        }
    }

    /// Ends the oldest request with an error, and the requester.
    #[cold]
    fn fail(&mut self, status: Status, window: &mut Window, host: &mut impl RequesterHost) {
        let n = self.flights.first;
        self.abandon(window);
        host.complete(n, status);
    }

    /// Ends the request that could not be sent, if those before it have ended (IBA 10.8.2: in order).
    #[inline]
    fn end_stopped(&mut self, window: &mut Window, host: &mut impl RequesterHost) {
        if let Some((n, status)) = self.stopped
            && n == self.flights.first
            && !self.ended
        {
            self.fail(status, window, host);
        }
    }
}
