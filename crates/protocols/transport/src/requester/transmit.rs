//! Which packets go out, and when (IBA 9.7.3): messages cut to the path MTU, READs cut to the window, and the limits:
//! window, READs and atomics outstanding, fences, credits. First what the peer reports missing.

use std::ops::Range;

use vervain_iba::{Opcode, Request, Status};
use vervain_wire::{AtomicEth, Headers, Reth, opcode};

use crate::host::{Nanos, Payload, Refused, RequesterHost, Transmit};
use crate::psn;
use crate::responder::REMEMBERED;
use crate::window::{PACKET_OVERHEAD, Window};

use super::flight::{Flight, is_answered, posted_code, unsendable};
use super::flights::Cursor;
use super::receives::Credit;
use super::{Requester, Sent};

/// An acknowledgement is asked for after this part of the window at the latest.
const REQUESTS_PER_WINDOW: u64 = 4;
/// Response packets that a READ asks for at once where several may be outstanding: what is lost of them is asked for
/// anew with all that follows.
const LONGEST_PIECE: u64 = 64;
/// The same where only that is asked for anew: as many as may be lost in a row before a packet that the peer keeps.
const LONGEST_IN_PARTS: u64 = 512;

impl Requester {
    /// Sends until a limit is met.
    #[inline]
    pub(super) fn transmit_reliable(&mut self, now: Nanos, window: &mut Window, host: &mut impl RequesterHost) -> Sent {
        if self.flights.have_holes()
            && let Some(stop) = self.send_missing(now, window, host)
        {
            self.end_stopped(window, host);
            return stop;
        }
        let stop = loop {
            if !self.flights.has_unsent() && !self.begin(host) {
                break Sent::All;
            }
            if self.stopped.is_some_and(|(n, _)| n == self.flights.current_number()) {
                break Sent::All;
            }
            let flight = self.flights.current();
            let sent = if is_answered(flight.request.opcode) {
                self.send_read(now, &flight, window, host)
            } else {
                self.send_posted(now, &flight, window, host)
            };
            if let Err(stop) = sent {
                break stop;
            }
            if self.flights.cursor.packet == flight.packets {
                self.flights.pass_current();
            }
        };
        self.end_stopped(window, host);
        stop
    }

    /// Takes the next posted request, if there is one.
    #[inline(always)]
    pub(super) fn begin(&mut self, host: &mut impl RequesterHost) -> bool {
        let n = self.flights.end();
        if self.stopped.is_some() {
            return false;
        }
        let Some(request) = host.request(n) else { return false };
        if let Some(status) = unsendable(&request, self.config.service, self.config.max_rd_atomic) {
            self.stopped = Some((n, status));
            return false;
        }
        self.flights.begin(request, self.receives.begin(request.opcode));
        true
    }

    /// Sends packets of a SEND or WRITE from the cursor on.
    #[inline(always)]
    fn send_posted(
        &mut self,
        now: Nanos,
        flight: &Flight,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) -> Result<(), Sent> {
        if self.waits_for_reads(flight) {
            return Err(Sent::All);
        }
        let mtu = u64::from(self.config.mtu);
        let length = flight.request.length;
        let n = self.flights.current_number();
        let mut headers = self.headers(&flight.request);
        while self.flights.cursor.packet < flight.packets {
            let packet = self.flights.cursor.packet;
            let packets = at_once(packet, flight, host);
            let is_last = packet + packets == flight.packets;
            let offset = u64::from(packet) * mtu;
            let bytes = (length - offset).min(u64::from(packets) * mtu);
            let cost = bytes + u64::from(packets) * PACKET_OVERHEAD;
            if !window.admits(self.flights.in_flight, cost) && self.has_asked(window) {
                return Err(Sent::WindowClosed);
            }
            let again = self.flights.goes_again();
            let credit = if again { Credit::Enough } else { self.receives.credit(flight, packet, is_last) };
            if credit == Credit::Awaited && self.has_asked(window) {
                return Err(Sent::All);
            }
            self.since_request += cost;
            // The responder answers nothing else, and without answers nothing more can be sent.
            let asks = is_last
                || credit != Credit::Enough
                || self.since_request * REQUESTS_PER_WINDOW >= window.size()
                || window.room(self.flights.in_flight) < cost + mtu + PACKET_OVERHEAD;
            self.posted_packet(flight, packet..packet + packets, asks, &mut headers);
            let payload = posted_payload(n, offset, bytes);
            self.put(now, n, &Transmit { headers: &headers, payload, again }, packets, window, host)?;
            self.flights.sent(cost, packets, window);
            if asks {
                self.since_request = 0;
                if !again {
                    self.timers.time(now, headers.bth.psn);
                }
            }
        }
        Ok(())
    }

    /// Returns true if the fence of a request that is to be sent for the first time keeps it back (IBA 10.8.3.3).
    #[inline(always)]
    fn waits_for_reads(&self, flight: &Flight) -> bool {
        let is_new = !self.flights.goes_again() && self.flights.cursor.packet == 0;
        is_new && flight.request.is_fenced() && self.flights.have_reads()
    }

    /// Returns true if an acknowledgement is asked for by what has gone. It may not be if that was sent again, or
    /// before others had filled the window or the credit was known. Then a packet more goes that asks; where packets
    /// are lost, a probe does.
    #[cold]
    fn has_asked(&self, window: &Window) -> bool {
        self.since_request == 0 || !window.is_lossless()
    }

    /// Headers that all packets of a request have in common.
    #[inline]
    fn headers(&self, request: &Request) -> Headers {
        let mut headers = Headers::default();
        headers.bth.pkey = self.config.pkey;
        headers.bth.migration = self.config.migrated;
        headers.bth.mark = self.introduction.mark;
        headers.bth.dest_qpn = self.config.dest_qpn;
        if self.opcode_base == opcode::XRC {
            headers.srqn = Some(request.srqn);
        }
        headers
    }

    /// Fills in what is particular to one packet of a SEND or WRITE, or to several that go as one.
    #[inline(always)]
    fn posted_packet(&self, flight: &Flight, packets: Range<u32>, asks: bool, headers: &mut Headers) {
        let request = &flight.request;
        let packet = packets.start;
        let (is_first, is_last) = (packet == 0, packets.end == flight.packets);
        let code = posted_code(request.opcode, is_first, is_last);
        headers.bth.opcode = self.opcode_base | code;
        headers.bth.psn = psn::add(flight.first_psn, packet);
        headers.bth.ack_request = asks;
        let offset = u64::from(packet) * u64::from(self.config.mtu);
        headers.bth.pad = ((offset.wrapping_sub(request.length)) & 3) as u8;
        headers.reth = None;
        if is_first && opcode::is_write(code) {
            headers.reth = Some(Reth { addr: request.remote_addr, rkey: request.rkey, length: request.length as u32 });
        }
        if is_last {
            headers.bth.solicited = request.is_solicited() && flight.takes_receive();
            if opcode::has_imm(code) {
                headers.imm = Some(request.imm_or_rkey.to_ne_bytes());
            } else if opcode::has_invalidate(code) {
                headers.invalidate = Some(request.imm_or_rkey);
            }
        } else {
            headers.bth.pad = 0;
        }
    }

    /// Sends a READ from the cursor on, in pieces, or an atomic, FLUSH or ATOMIC WRITE.
    fn send_read(
        &mut self,
        now: Nanos,
        flight: &Flight,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) -> Result<(), Sent> {
        let request = &flight.request;
        if self.waits_for_reads(flight) {
            return Err(Sent::All);
        }
        let n = self.flights.current_number();
        while self.flights.cursor.packet < flight.packets {
            if self.flights.reads_sent >= usize::from(self.config.max_rd_atomic) && !self.may_read_ahead() {
                return Err(Sent::All);
            }
            let again = self.flights.goes_again();
            let (packet, first_psn) = (self.flights.cursor.packet, self.flights.next);
            // A READ that is sent again asks for the rest of a former one, never for less: else more requests than the
            // responder has resources for could be outstanding, and rxe does not answer one that reaches further back
            // than its last.
            let packets = match self.flights.read_end() {
                Some(end) if again && window.admits(self.flights.in_flight, PACKET_OVERHEAD) => {
                    psn::distance(first_psn, end)
                }
                Some(_) if again => return Err(Sent::WindowClosed),
                _ => self.read_packets(flight.packets - packet, window).ok_or(Sent::WindowClosed)?,
            };
            let cost = flight.cost(packet, packet + packets, self.config.mtu);
            let mut headers = self.headers(request);
            headers.bth.psn = first_psn;
            headers.bth.ack_request = true;
            let payload = self.answered_packet(flight, n, packet, packets, &mut headers);
            if packets > 1 {
                host.asks(
                    n,
                    u64::from(packet) * u64::from(self.config.mtu),
                    cost - u64::from(packets) * PACKET_OVERHEAD,
                );
            }
            self.put(now, n, &Transmit { headers: &headers, payload, again }, packets, window, host)?;
            self.flights.read_sent(packets);
            self.flights.sent(cost, packets, window);
            self.since_request = 0;
            if !again {
                self.timers.time(now, headers.bth.psn);
            }
        }
        Ok(())
    }

    /// Returns true if one more READ or atomic may be sent though as many wait for their turn as the peer takes: some
    /// of them have all their answers, and the peer remembers them.
    #[cold]
    fn may_read_ahead(&self) -> bool {
        let most = usize::from(self.config.max_rd_atomic);
        self.introduction.answers_parts
            && self.flights.reads_sent < most * REMEMBERED
            && self.flights.count_waiting().is_some_and(|waiting| waiting < most)
    }

    /// The number of response packets, of `left`, to ask for at once. At most half a window, so that the next piece is
    /// on its way before this one has come; less if little is free, but not so little that the requests outnumber the
    /// data. Never less over a lossless channel: answers come soon there, and short ones are not worth putting in
    /// place.
    fn read_packets(&self, left: u32, window: &Window) -> Option<u32> {
        let packet = u64::from(self.config.mtu) + PACKET_OVERHEAD;
        let fits = window.size() / packet;
        let longest = if self.introduction.answers_parts { LONGEST_IN_PARTS } else { LONGEST_PIECE };
        let most = if self.config.max_rd_atomic > 1 { (fits / 2).clamp(1, longest) } else { fits };
        let most = most.max(1).min(u64::from(left)) as u32;
        let free = (window.room(self.flights.in_flight) / packet) as u32;
        if free >= most {
            Some(most)
        } else if free > most / 4 && !window.is_lossless() {
            Some(free)
        } else {
            (self.flights.in_flight == 0).then_some(1)
        }
    }

    /// Fills in a request that is answered.
    fn answered_packet(
        &self,
        flight: &Flight,
        n: u32,
        packet: u32,
        packets: u32,
        headers: &mut Headers,
    ) -> Payload<'static> {
        let request = &flight.request;
        let mtu = u64::from(self.config.mtu);
        let mut reth = Reth { addr: request.remote_addr, rkey: request.rkey, length: request.length as u32 };
        let code = match request.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd => {
                let is_swap = request.opcode == Opcode::CompareSwap;
                headers.atomic = Some(AtomicEth {
                    addr: request.remote_addr,
                    rkey: request.rkey,
                    swap_add: if is_swap { request.swap } else { request.compare_add },
                    compare: if is_swap { request.compare_add } else { 0 },
                });
                headers.bth.opcode = self.opcode_base | if is_swap { opcode::COMPARE_SWAP } else { opcode::FETCH_ADD };
                return Payload::None;
            }
            Opcode::AtomicWrite => opcode::ATOMIC_WRITE,
            Opcode::Flush => {
                headers.flush = Some((request.flush.placement as u8, request.flush.level as u8));
                opcode::FLUSH
            }
            _ => {
                let offset = u64::from(packet) * mtu;
                reth.addr = reth.addr.wrapping_add(offset);
                reth.length = (request.length - offset).min(u64::from(packets) * mtu) as u32;
                opcode::READ_REQUEST
            }
        };
        headers.bth.opcode = self.opcode_base | code;
        headers.reth = Some(reth);
        match request.opcode {
            Opcode::AtomicWrite => Payload::Request { n, offset: 0, len: 8 },
            _ => Payload::None,
        }
    }

    /// Hands a packet over; what the host says to it.
    #[inline(always)]
    fn put(
        &mut self,
        now: Nanos,
        n: u32,
        packet: &Transmit<'_>,
        packets: u32,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) -> Result<(), Sent> {
        match host.transmit(packet) {
            Ok(()) => {
                if !self.flights.are_under_way() {
                    self.timers.arm(now, window);
                }
                if packet.again {
                    self.counters.resent_packets += u64::from(packets);
                }
                Ok(())
            }
            Err(Refused::Full) => {
                self.timers.wait_for_room(now, self.flights.are_under_way(), window);
                Err(Sent::HostFull)
            }
            Err(Refused::Memory) => {
                self.stopped = Some((n, Status::LocalProtection));
                Err(Sent::All)
            }
        }
    }

    /// Sends the packet at `at` of a SEND or WRITE once more, and nothing else.
    pub(super) fn resend_one(&mut self, at: Cursor, host: &mut impl RequesterHost) {
        let Some((n, &flight)) = self.flights.at(at.index) else { return };
        let mtu = u64::from(self.config.mtu);
        let offset = u64::from(at.packet) * mtu;
        let bytes = (flight.request.length - offset).min(mtu);
        let mut headers = self.headers(&flight.request);
        self.posted_packet(&flight, at.packet..at.packet + 1, true, &mut headers);
        let payload = posted_payload(n, offset, bytes);
        match host.transmit(&Transmit { headers: &headers, payload, again: true }) {
            Ok(()) => self.counters.resent_packets += 1,
            Err(Refused::Full) => {}
            Err(Refused::Memory) => self.stopped = Some((n, Status::LocalProtection)),
        }
    }

    /// Sends what the peer misses, before anything new. Returns why nothing new may be sent now; None: it may.
    #[cold]
    fn send_missing(&mut self, now: Nanos, window: &mut Window, host: &mut impl RequesterHost) -> Option<Sent> {
        while let Some((from, to)) = self.flights.next_missing() {
            if let Err(stop) = self.send_missing_packet(now, from, to, window, host) {
                return Some(stop);
            }
        }
        self.flights.fill_what_is_kept().then_some(Sent::WindowClosed)
    }

    /// Sends the packet at `from` again, of a run up to `to`.
    fn send_missing_packet(
        &mut self,
        now: Nanos,
        from: u32,
        to: u32,
        window: &mut Window,
        host: &mut impl RequesterHost,
    ) -> Result<(), Sent> {
        let Some((n, &flight)) = self.flights.at(self.flights.index_of(from)) else { return Err(Sent::All) };
        if self.stopped.is_some_and(|(stopped, _)| n.wrapping_sub(stopped) as i32 >= 0) {
            return Err(Sent::All);
        }
        let packet = psn::distance(flight.first_psn, from);
        let is_answered = is_answered(flight.request.opcode);
        let packets = self.flights.missing_at_once(&flight, from, to);
        let behind = psn::add(from, packets);
        let cost = flight.cost(packet, packet + packets, self.config.mtu);
        let costs = (cost, if is_answered { PACKET_OVERHEAD } else { cost });
        if !self.flights.may_resend(now, from, costs, window) {
            return Err(Sent::WindowClosed);
        }
        let mut headers = self.headers(&flight.request);
        let payload = if is_answered {
            headers.bth.psn = from;
            headers.bth.ack_request = true;
            self.answered_packet(&flight, n, packet, packets, &mut headers)
        } else {
            let is_last = behind == to || packet + 1 == flight.packets;
            self.posted_packet(&flight, packet..packet + 1, is_last, &mut headers);
            posted_payload(n, u64::from(packet) * u64::from(self.config.mtu), cost - PACKET_OVERHEAD)
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
        if from == self.flights.unacknowledged {
            self.timers.arm(now, window);
        }
        self.flights.resent(now, behind, costs, window);
        Ok(())
    }

    /// Sends everything that is posted: there are no answers over UC, and nothing is sent twice (IBA 9.8.2).
    pub(super) fn transmit_unreliable(&mut self, host: &mut impl RequesterHost) -> Sent {
        loop {
            if self.flights.is_empty() && !self.begin(host) {
                break;
            }
            let (n, flight) = (self.flights.first, self.flights.current());
            let mtu = u64::from(self.config.mtu);
            let mut headers = self.headers(&flight.request);
            while self.flights.cursor.packet < flight.packets {
                let packet = self.flights.cursor.packet;
                let packets = at_once(packet, &flight, host);
                let offset = u64::from(packet) * mtu;
                let bytes = (flight.request.length - offset).min(u64::from(packets) * mtu);
                self.posted_packet(&flight, packet..packet + packets, false, &mut headers);
                let payload = posted_payload(n, offset, bytes);
                match host.transmit(&Transmit { headers: &headers, payload, again: false }) {
                    Ok(()) => {}
                    Err(Refused::Full) => return Sent::HostFull,
                    Err(Refused::Memory) => {
                        self.stopped = Some((n, Status::LocalProtection));
                        break;
                    }
                }
                self.flights.sent_unreliably(packets);
            }
            if self.stopped.is_some() {
                break;
            }
            self.flights.end_unreliable();
            host.complete(n, Status::Success);
        }
        if let Some((n, status)) = self.stopped {
            self.ended = true;
            host.complete(n, status);
        }
        Sent::All
    }
}

/// The number of packets of a message, from `packet` on, that are sent as one.
#[inline(always)]
fn at_once(packet: u32, flight: &Flight, host: &impl RequesterHost) -> u32 {
    if flight.packets == 1 { 1 } else { host.landing(flight.packets - packet) }
}

/// The payload of a SEND or WRITE packet.
#[inline(always)]
fn posted_payload(n: u32, offset: u64, bytes: u64) -> Payload<'static> {
    match bytes {
        0 => Payload::None,
        _ => Payload::Request { n, offset, len: bytes as u32 },
    }
}
