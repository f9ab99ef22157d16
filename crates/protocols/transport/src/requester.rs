//! The requester of a QP (IBA 9.7.2, 9.7.3 for requests, 9.7.5, 9.7.6 for answers): takes posted requests from its
//! host, sends their packets as far as window, credits and outstanding READs allow, matches answers, and ends requests
//! in order.
//!
//! Requests under way are kept in a queue, oldest first. `unacknowledged` is the first PSN without an answer and always
//! lies in the oldest; `next` is the PSN to be sent next, at `cursor` in the queue. To go back is to set `next` to
//! `unacknowledged`.

mod acknowledge;
mod arrived;
mod flight;
mod holes;
mod recovery;
mod saved;
mod transmit;

use std::collections::VecDeque;

use vervain_iba::Status;
use vervain_wire::Packet;

use crate::config::{LARGEST_MTU, RequesterConfig, Service};
use crate::counters::RequesterCounters;
use crate::host::{Nanos, RequesterHost};
use crate::psn;
use crate::window::Window;
use flight::{Flight, WireRead};
use holes::{Holes, Introduction};
use recovery::Timers;
pub use saved::SavedRequester;

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

/// The place of the next packet in the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Index of the request.
    index: usize,
    /// Packet of it.
    packet: u32,
}

/// Messages that take a receive (IBA 9.7.7.2).
#[derive(Debug, Default)]
struct Receives {
    /// Those begun.
    used: u32,
    /// How many there may be by the peer's credits; None: no limit.
    granted: Option<u32>,
}

/// The sending side of a connected QP.
#[derive(Debug)]
pub struct Requester {
    config: RequesterConfig,
    opcode_base: u8,
    /// Requests begun and not ended, oldest first.
    flights: VecDeque<Flight>,
    /// Number of the oldest request that has not ended.
    first: u32,
    unacknowledged: u32,
    next: u32,
    cursor: Cursor,
    /// One beyond the highest PSN that was ever sent.
    highest: u32,
    /// READ requests and atomics on the wire that are not fully answered, in PSN order; those before `reads_sent` have
    /// been sent since the requester went back last.
    reads: VecDeque<WireRead>,
    reads_sent: usize,
    /// Bytes of this QP that the window counts as under way.
    in_flight: u64,
    /// The window keeps this requester from sending.
    held_back: bool,
    /// Bytes sent since the last packet that asked for an acknowledgement.
    since_request: u64,
    receives: Receives,
    /// A request that cannot be sent on, and why. It ends when all before it have.
    stopped: Option<(u32, Status)>,
    /// The first packets carry Vervain's marks, so that the peer knows it from the first packet that it takes.
    introduction: Introduction,
    /// What a peer misses that reports gaps, and which of its answers are missing. None: nothing that is known.
    holes: Option<Box<Holes>>,
    ended: bool,
    timers: Timers,
    counters: RequesterCounters,
}

impl Requester {
    /// A requester that has sent nothing. `config.mtu` must be a power of two up to [`LARGEST_MTU`].
    pub fn new(config: &RequesterConfig) -> Requester {
        debug_assert!(config.mtu.is_power_of_two() && config.mtu <= LARGEST_MTU);
        let first_psn = config.first_psn & psn::MASK;
        Requester {
            config: *config,
            opcode_base: config.service.opcode_base(),
            flights: VecDeque::new(),
            first: config.first_request,
            unacknowledged: first_psn,
            next: first_psn,
            cursor: Cursor::default(),
            highest: first_psn,
            reads: VecDeque::new(),
            reads_sent: 0,
            in_flight: 0,
            held_back: false,
            since_request: 0,
            receives: Receives::default(),
            stopped: None,
            introduction: Introduction::new(config.introduces),
            holes: None,
            ended: false,
            timers: Timers::new(config),
            counters: RequesterCounters::default(),
        }
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
        !self.ended && self.stopped.is_none() && self.cursor.index < self.flights.len()
    }

    /// Returns true if the peer has no receive for what is to be sent next, or is silent: an ACK timeout has passed
    /// since its last answer, or more probes than may find one packet lost.
    pub fn waits_for_peer(&self) -> bool {
        self.timers.is_waiting() || self.timers.is_in_vain(&self.config)
    }

    /// Returns true if a request has failed. The requester does nothing more.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// PSN of the next packet that has not been sent yet (`sq_psn` of a queried QP).
    pub fn next_psn(&self) -> u32 {
        self.highest
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
        self.timers.next(self.next != self.unacknowledged)
    }

    /// Gives what is under way back to the window; before the requester is dropped.
    pub fn abandon(&mut self, window: &mut Window) {
        self.release(window);
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

    /// Takes all bytes of this QP out of the window's count.
    #[inline]
    fn release(&mut self, window: &mut Window) {
        window.released(self.in_flight);
        self.in_flight = 0;
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
        self.expire(now, window, host);
        self.end_stopped(window, host);
    }

    /// Ends the oldest request with an error, and the requester.
    #[cold]
    fn fail(&mut self, status: Status, window: &mut Window, host: &mut impl RequesterHost) {
        let n = self.first;
        self.abandon(window);
        host.complete(n, status);
    }

    /// Ends the request that could not be sent, if those before it have ended (IBA 10.8.2: in order).
    #[inline]
    fn end_stopped(&mut self, window: &mut Window, host: &mut impl RequesterHost) {
        if let Some((n, status)) = self.stopped
            && n == self.first
            && !self.ended
        {
            self.fail(status, window, host);
        }
    }
}
