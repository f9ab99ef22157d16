//! The requests under way, oldest first, and how far they have been sent and acknowledged: their PSNs, the READs and
//! atomics among them, and the bytes that the window counts for them.
//!
//! `unacknowledged` is the first PSN without an answer and always lies in the oldest request; `next` is the PSN to be
//! sent next, at `cursor` in the queue. To go back is to set `next` to `unacknowledged`.

mod missing;

use std::collections::VecDeque;

use vervain_iba::Request;

use crate::config::{RequesterConfig, Service};
use crate::psn;
use crate::window::{PACKET_OVERHEAD, Window};

use super::flight::{Flight, is_answered};
use super::holes::Holes;
use super::saved::SavedRequester;

/// The place of a packet in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// Index of the request.
    pub index: usize,
    /// Packet of it.
    pub packet: u32,
}

/// What is under way. Others read its fields, and change them by its methods.
#[derive(Debug)]
pub(super) struct Flights {
    mtu: u32,
    /// Requests begun and not ended, oldest first.
    queue: VecDeque<Flight>,
    /// Number of the oldest request that has not ended.
    pub first: u32,
    pub unacknowledged: u32,
    pub next: u32,
    pub cursor: Cursor,
    /// One beyond the highest PSN that was ever sent.
    pub highest: u32,
    /// The PSN behind the last answer of each READ request and atomic on the wire that is not fully answered, in order;
    /// those before `reads_sent` have been sent since the last step back. A long READ is sent as several requests (IBA
    /// 9.7.5.1 lets a requester ask for any part anew; parting it from the start keeps a response within the window).
    reads: VecDeque<u32>,
    pub reads_sent: usize,
    /// Bytes of this QP that the window counts as under way.
    pub in_flight: u64,
    /// What a peer misses that reports gaps, and which of its answers are missing. None: nothing that is known.
    holes: Option<Box<Holes>>,
}

impl Flights {
    /// No requests yet; the first has PSN `first_psn` of the configuration.
    pub fn new(config: &RequesterConfig) -> Flights {
        let first_psn = config.first_psn & psn::MASK;
        Flights {
            mtu: config.mtu,
            queue: VecDeque::new(),
            first: config.first_request,
            unacknowledged: first_psn,
            next: first_psn,
            cursor: Cursor::default(),
            highest: first_psn,
            reads: VecDeque::new(),
            reads_sent: 0,
            in_flight: 0,
            holes: None,
        }
    }

    /// All requests, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Flight> {
        self.queue.iter()
    }

    #[inline]
    pub fn oldest(&self) -> Option<&Flight> {
        self.queue.front()
    }

    /// Number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if no request has been begun that has not ended.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of the next request to be begun.
    #[inline]
    pub fn end(&self) -> u32 {
        self.first.wrapping_add(self.queue.len() as u32)
    }

    /// Packets from the first without an answer up to PSN `to`.
    #[inline]
    pub fn distance(&self, to: u32) -> u32 {
        psn::distance(self.unacknowledged, to)
    }

    /// Returns true if `psn` was sent and has no answer.
    #[inline]
    pub fn is_outstanding(&self, psn: u32) -> bool {
        self.distance(psn) < self.distance(self.highest)
    }

    /// Returns true if packets without an answer have been sent since the last step back.
    #[inline]
    pub fn are_under_way(&self) -> bool {
        self.next != self.unacknowledged
    }

    /// Returns true if the next packet was sent before the last step back.
    #[inline]
    pub fn goes_again(&self) -> bool {
        self.next != self.highest
    }

    /// Returns true if packets of requests that were begun are still to be sent, for the first time or again.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.cursor.index < self.queue.len()
    }

    /// The request of which a packet is to be sent next. There must be one.
    #[inline(always)]
    pub fn current(&self) -> Flight {
        self.queue[self.cursor.index]
    }

    /// Number of that request.
    #[inline(always)]
    pub fn current_number(&self) -> u32 {
        self.first.wrapping_add(self.cursor.index as u32)
    }

    /// All packets of the current request have been sent.
    #[inline]
    pub fn pass_current(&mut self) {
        self.cursor = Cursor { index: self.cursor.index + 1, packet: 0 };
    }

    /// The request at `index` and its number.
    pub fn at(&self, index: usize) -> Option<(u32, &Flight)> {
        self.queue.get(index).map(|flight| (self.first.wrapping_add(index as u32), flight))
    }

    /// Index of the request that `psn` belongs to.
    pub fn index_of(&self, psn: u32) -> usize {
        let first_psn = self.oldest().map_or(psn, |oldest| oldest.first_psn);
        let offset = |at: u32| psn::distance(first_psn, at);
        self.queue.partition_point(|flight| offset(flight.end_psn()) <= offset(psn))
    }

    /// Place of a packet of the oldest request.
    fn in_oldest(&self, psn: u32) -> Cursor {
        Cursor { index: 0, packet: self.oldest().map_or(0, |oldest| psn::distance(oldest.first_psn, psn)) }
    }

    /// The first packet without an answer.
    pub fn oldest_packet(&self) -> Cursor {
        self.in_oldest(self.unacknowledged)
    }

    /// The packet sent last.
    pub fn last_packet(&self) -> Cursor {
        match self.cursor {
            Cursor { index, packet: 0 } => Cursor { index: index - 1, packet: self.queue[index - 1].packets - 1 },
            Cursor { index, packet } => Cursor { index, packet: packet - 1 },
        }
    }

    /// Adds a request behind all others, all of which have been sent. `receives`: messages up to and with this one that
    /// take a receive.
    #[inline(always)]
    pub fn begin(&mut self, request: Request, receives: u32) {
        let packets = Flight::packets_of(&request, self.mtu);
        self.queue.push_back(Flight { request, first_psn: self.highest, packets, receives });
    }

    /// Returns true if READ requests or atomics are not fully answered.
    #[inline]
    pub fn have_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// PSN behind the answers to the next READ request or atomic that is to be sent again.
    pub fn read_end(&self) -> Option<u32> {
        self.reads.get(self.reads_sent).copied()
    }

    /// The next READ request or atomic is sent, which `packets` answer.
    pub fn read_sent(&mut self, packets: u32) {
        if !self.goes_again() {
            self.reads.push_back(psn::add(self.next, packets));
        }
        self.reads_sent += 1;
    }

    /// The next `packets` of the current request have been sent, which count for `cost`.
    #[inline(always)]
    pub fn sent(&mut self, cost: u64, packets: u32, window: &mut Window) {
        self.cursor.packet += packets;
        window.sent(cost);
        self.in_flight += cost;
        let at_end = self.next == self.highest;
        self.next = psn::add(self.next, packets);
        if at_end || psn::is_before(self.highest, self.next) {
            self.highest = self.next;
        }
    }

    /// The next `packets` of the oldest request have been sent over UC, where nothing is counted.
    pub fn sent_unreliably(&mut self, packets: u32) {
        self.cursor.packet += packets;
        self.highest = psn::add(self.highest, packets);
    }

    /// Ends the oldest request over UC, whose packets have all been sent.
    pub fn end_unreliable(&mut self) {
        self.queue.pop_front();
        self.cursor = Cursor::default();
        self.first = self.first.wrapping_add(1);
        (self.next, self.unacknowledged) = (self.highest, self.highest);
    }

    /// Moves `unacknowledged` on by `packets` of the oldest request, and ends that if it is done. Returns the bytes
    /// that they counted for, and the number of a request that has ended.
    #[inline(always)]
    pub fn move_up(&mut self, packets: u32) -> (u64, Option<u32>) {
        let oldest = &self.queue[0];
        let done = psn::distance(oldest.first_psn, self.unacknowledged);
        let cost = oldest.cost(done, done + packets, self.mtu);
        let ends = done + packets == oldest.packets;
        self.unacknowledged = psn::add(self.unacknowledged, packets);
        if !ends {
            return (cost, None);
        }
        self.queue.pop_front();
        let n = self.first;
        self.first = n.wrapping_add(1);
        // A cursor in the request itself is behind now; `settle` moves it up.
        self.cursor.index = self.cursor.index.saturating_sub(1);
        (cost, Some(n))
    }

    /// Forgets READ requests and atomics that are fully answered.
    #[inline]
    pub fn end_reads(&mut self) {
        while self.reads.front().is_some_and(|end| !psn::is_before(self.unacknowledged, *end)) {
            self.reads.pop_front();
            self.reads_sent = self.reads_sent.saturating_sub(1);
        }
    }

    /// After `unacknowledged` has moved past packets that counted for `cost`: nothing before it is to be sent.
    #[inline]
    pub fn settle(&mut self, cost: u64, window: &mut Window) {
        let cost = if self.holes.is_some() { self.settle_holes(cost, window) } else { cost };
        self.acknowledged(cost, window);
        if psn::is_before(self.next, self.unacknowledged) {
            // It was sent, then to be sent again, and has arrived after all.
            self.next = self.unacknowledged;
            self.cursor = self.in_oldest(self.next);
        }
        if self.next == self.unacknowledged {
            self.release(window);
        }
    }

    /// Packets that counted for `cost` have arrived. Those that were given up as lost are not counted as under way.
    #[inline]
    fn acknowledged(&mut self, cost: u64, window: &mut Window) {
        let cost = cost.min(self.in_flight);
        self.in_flight -= cost;
        window.acknowledged(cost);
    }

    /// Takes all bytes of this QP out of the window's count.
    #[inline]
    pub fn release(&mut self, window: &mut Window) {
        window.released(self.in_flight);
        self.in_flight = 0;
    }

    /// Everything without an answer is to be sent again, from the oldest PSN on (go-back-N).
    pub fn go_back(&mut self, window: &mut Window) {
        self.cursor = self.oldest_packet();
        self.next = self.unacknowledged;
        self.reads_sent = 0;
        self.holes = None;
        self.release(window);
    }

    /// Bytes that the packets from PSN `from` to `to` count for; of those only which no answer is for, if
    /// `only_posted`.
    fn cost_of(&self, from: u32, to: u32, only_posted: bool) -> u64 {
        let Some(oldest) = self.oldest() else { return 0 };
        let offset = |at: u32| psn::distance(oldest.first_psn, at);
        let spanned = self.queue.iter().skip(self.index_of(from));
        let spanned = spanned.take_while(|flight| offset(flight.first_psn) < offset(to));
        let counted = spanned.filter(|flight| !(only_posted && is_answered(flight.request.opcode)));
        counted
            .map(|flight| {
                let start = offset(from).saturating_sub(offset(flight.first_psn));
                let end = (offset(to) - offset(flight.first_psn)).min(flight.packets);
                flight.cost(start, end, self.mtu)
            })
            .sum()
    }

    /// Bytes that the request packets from PSN `from` to `to` count for where they are lost: a READ is one packet.
    fn cost_of_requests(&self, from: u32, to: u32) -> u64 {
        let are_lost = |end: &&u32| psn::is_before(from, **end) && !psn::is_before(to, **end);
        self.cost_of(from, to, true) + self.reads.iter().filter(are_lost).count() as u64 * PACKET_OVERHEAD
    }

    /// The PSNs behind the READ requests and atomics on the wire that are not fully answered, in order.
    pub fn read_ends(&self) -> Vec<u32> {
        self.reads.iter().copied().collect()
    }

    /// All requests count as sent, so that the next one begins where they end.
    pub fn assume_sent(&mut self) {
        self.highest = self.queue.back().map_or(self.highest, Flight::end_psn);
    }

    /// The packets of these requests were sent and acknowledged as those of a requester that was saved.
    pub fn resume(&mut self, saved: &SavedRequester, service: Service) {
        (self.unacknowledged, self.next, self.highest) = (saved.unacknowledged, saved.unacknowledged, saved.highest);
        self.reads = saved.reads.iter().copied().collect();
        self.cursor = self.in_oldest(if service == Service::Uc { self.highest } else { self.unacknowledged });
    }
}
