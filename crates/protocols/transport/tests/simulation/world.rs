//! The event loop: virtual time, hosts, lines with faults between them, and QPs that are driven as the link drives
//! them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use vervain_transport::{Nanos, Requester, Responder, Sent, Window};
use vervain_wire::{Headers, Packet, TAKES_GAPS, opcode};

use crate::codec;
use crate::host::{End, FIRST_QPN, Host, locate};
use crate::landing::{Arrived, Note, Parcel};
use crate::plan::{EndPlan, Gaps, MS, Plan, Receives, SECOND, US};
use crate::port::Trace;
use crate::random::mix;
use crate::receive::TargetHost;
use crate::runner::at_work;
use crate::send::SendHost;

/// Packets that one call takes or a responder sends at once.
const BATCH: u32 = 64;
/// A requester that waits for an answer does something by then: probes are at most a second apart.
const SILENCE: Nanos = 2 * SECOND;
/// Events of one simulation, at most: more is a storm.
const STORM: u64 = 20_000_000;

#[derive(Debug)]
pub enum Event {
    Post {
        end: usize,
    },
    Timer {
        end: usize,
    },
    Arrive {
        from: usize,
        host: usize,
        parcel: Parcel,
    },
    /// The line of a host that sends, or receives, lets go of a packet.
    Transmitted {
        host: usize,
    },
    Received {
        host: usize,
    },
    Progress {
        host: usize,
    },
    Acknowledge {
        host: usize,
    },
    Resume {
        host: usize,
    },
    Refill {
        host: usize,
        end: Option<usize>,
    },
    /// A host learns how much another has taken out of its ring.
    Taken {
        host: usize,
        by: usize,
        count: u64,
    },
    Stop {
        host: usize,
    },
    Move {
        host: usize,
    },
}

pub struct World {
    pub plan: Plan,
    pub hosts: Vec<Host>,
    pub ends: Vec<End>,
    events: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    slots: Vec<Option<Event>>,
    free: Vec<usize>,
    serial: u64,
    pub now: Nanos,
    pub packets: u64,
    /// When something was last done for good.
    progressed: Nanos,
    pub trace: Trace,
    pub print: bool,
    /// All packets sent, if somebody wants them: from, to.
    pub captured: Option<Vec<(usize, usize, Vec<u8>)>>,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// A digest of every packet and completion, in order and with times.
    pub trace: u64,
    pub packets: u64,
    pub again: u64,
    /// Packets that stood for several.
    pub spans: u64,
    pub requests: u64,
    pub receives: u64,
    pub failures: u64,
    /// When the last request was done.
    pub done: Nanos,
}

impl World {
    pub fn new(plan: Plan, print: bool) -> Self {
        let mut world = Self {
            hosts: (0..plan.hosts.len()).map(|host| Host::new(&plan, host)).collect(),
            ends: Vec::new(),
            events: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            now: 0,
            packets: 0,
            progressed: 0,
            trace: Trace::default(),
            print,
            captured: None,
            plan,
        };
        let connections = world.plan.connections.clone();
        for connection in &connections {
            for side in 0..2 {
                let index = world.ends.len();
                world.hosts[connection.ends[side].host].ends.push(index);
                world.ends.push(End::new(connection, side, index, world.plan.seed, world.plan.gaps));
                if world.plan.gaps == Gaps::Everybody {
                    world.keep_packets(index);
                }
            }
        }
        for (at, from, host, packet) in std::mem::take(&mut world.plan.strangers) {
            world.at(at, Event::Arrive { from, host, parcel: packet.into() });
        }
        for host in 0..world.hosts.len() {
            let plan = world.hosts[host].plan.clone();
            if let Some(at) = plan.stops {
                world.at(at, Event::Stop { host });
            }
            plan.moves.iter().for_each(|at| world.at(*at, Event::Move { host }));
            world.refill_at(plan.shared, host, None);
        }
        for end in 0..world.ends.len() {
            let EndPlan { host, receives, gap, ready, .. } = world.ends[end].plan;
            world.at(gap.max(ready), Event::Post { end });
            world.refill_at(receives, host, Some(end));
        }
        world
    }

    /// Keeps all packets.
    pub fn capture(&mut self) {
        self.captured = Some(Vec::new());
    }

    pub fn captured(self) -> Vec<(usize, usize, Vec<u8>)> {
        self.captured.unwrap_or_default()
    }

    /// Runs until nothing happens any more, and checks that all is as it must be.
    pub fn run(&mut self) -> Outcome {
        let mut done = None;
        let mut count = 0;
        while let Some(Reverse((at, _, slot))) = self.events.pop() {
            self.now = at;
            let event = self.slots[slot].take().expect("an event");
            self.free.push(slot);
            self.handle(event);
            count += 1;
            if done.is_none() && (0..self.ends.len()).all(|end| self.finished(end)) {
                done = Some(self.now);
            }
            match done {
                None => assert!(
                    self.now < self.progressed + self.plan.patience && count < STORM,
                    "hangs: {}",
                    self.unfinished()
                ),
                Some(at) => assert!(self.now < at + 30 * SECOND && count < STORM, "is not quiet after all is done"),
            }
        }
        assert!(done.is_some(), "hangs with nothing to wait for: {}", self.unfinished());
        self.check_end();
        Outcome {
            trace: self.trace_value(),
            packets: self.packets,
            again: self.ends.iter().map(|end| end.send.again).sum(),
            spans: self.ends.iter().map(End::spans).sum(),
            requests: self.ends.iter().map(|end| end.send.completed as u64).sum(),
            receives: self.ends.iter().map(|end| end.target.received).sum(),
            failures: self.ends.iter().map(|end| u64::from(end.send.failed.is_some())).sum(),
            done: done.unwrap_or(0),
        }
    }

    /// A digest of packets, and of completions at each host.
    fn trace_value(&self) -> u64 {
        self.hosts.iter().fold(self.trace.value(), |value, host| mix(value, host.port.trace.value()))
    }

    pub fn at(&mut self, at: Nanos, event: Event) {
        self.serial += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(event);
        self.events.push(Reverse((at.max(self.now), self.serial, slot)));
    }

    fn refill_at(&mut self, receives: Receives, host: usize, end: Option<usize>) {
        if receives.scarce() {
            self.at(self.now + receives.every, Event::Refill { host, end });
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(until) = self.stalled(&event) {
            return self.at(until, event);
        }
        match event {
            Event::Taken { host, by, count } => self.taken(host, by, count),
            Event::Stop { host } => {
                self.hosts[host].stopped = true;
                for end in self.hosts[host].ends.clone() {
                    self.ends[end].dead = true;
                }
            }
            Event::Move { host } => self.replace(host),
            Event::Post { end } => self.post(end),
            Event::Timer { end } => self.time_out(end),
            Event::Arrive { from, host, parcel } => match self.hosts[host].receive.as_mut() {
                Some(line) => {
                    line.push(self.now, from, &parcel.packet);
                    self.received(host);
                }
                None => self.take_in(host, from, parcel),
            },
            Event::Transmitted { host } => {
                self.hosts[host].awaited.transmitted.take_if(|at| *at <= self.now);
                self.transmitted(host);
            }
            Event::Received { host } => {
                self.hosts[host].awaited.received.take_if(|at| *at <= self.now);
                self.received(host);
            }
            Event::Progress { host } => self.progress(host),
            Event::Acknowledge { host } => {
                self.hosts[host].awaited.acknowledge = false;
                self.answer(host);
            }
            Event::Resume { host } => {
                self.hosts[host].awaited.resume = false;
                self.answer(host);
                self.request(host);
            }
            Event::Refill { host, end } => {
                if self.ends.iter().enumerate().all(|(other, _)| self.finished(other)) {
                    return;
                }
                let queue = match end {
                    None => &mut self.hosts[host].shared.receives,
                    Some(end) => &mut self.ends[end].target.own,
                };
                let mut next = queue.plan;
                if !queue.refill() {
                    next.every = next.every.max(10 * MS);
                }
                self.refill_at(next, host, end);
            }
        }
    }

    /// Others go on in the place of the requesters and responders of a host.
    fn replace(&mut self, host: usize) {
        for index in self.hosts[host].ends.clone() {
            let config = self.ends[index].requester_config();
            self.with_requester(index, |requester, window, host| {
                let Some(saved) = requester.save() else { return };
                requester.abandon(window);
                *requester = Requester::resume(&config, &saved, host).expect("what was saved");
                assert_eq!(requester.save().as_ref(), Some(&saved));
            });
            let config = *self.ends[index].responder_config();
            let mut reports = false;
            self.with_responder(index, None, |responder, host| {
                let saved = responder.save(host);
                *responder = Responder::resume(&config, &saved).expect("what was saved");
                assert_eq!(responder.save(host), saved);
                reports = saved.reports;
            });
            if reports {
                self.keep_packets(index);
            }
        }
        self.resume(host);
    }

    fn post(&mut self, end: usize) {
        if self.ends[end].dead {
            return;
        }
        // Programs post one or a few at once.
        let host = self.ends[end].plan.host;
        for _ in 0..self.hosts[host].random.between(1, 4) {
            self.ends[end].send.post();
        }
        // With a full queue, a completion lets the program go on.
        self.ends[end].posting = self.ends[end].send.has_place();
        self.request(host);
        if self.ends[end].posting {
            self.post_later(end);
        }
    }

    pub fn post_later(&mut self, end: usize) {
        self.at(self.now + self.ends[end].plan.gap, Event::Post { end });
    }

    fn time_out(&mut self, index: usize) {
        let end = &mut self.ends[index];
        if end.timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        end.timer = None;
        if !end.dead && end.requester.next_timeout().is_some_and(|at| at <= self.now) {
            let (host, now) = (end.plan.host, self.now);
            // Packets that have come by then have come in time.
            while self.plan.rings.is_some() && !self.hosts[host].inbox.is_empty() {
                self.progress(host);
            }
            self.with_requester(index, |requester, window, host| requester.handle_timeout(now, window, host));
            self.request(host);
            let next = self.ends[index].requester.next_timeout();
            assert!(self.ends[index].dead || next.is_none_or(|at| at > now), "a timeout that has been handled stays");
        }
        self.wake(index);
    }

    /// Sees that the timer of a QP fires in time.
    fn wake(&mut self, index: usize) {
        let end = &mut self.ends[index];
        if end.dead {
            return;
        }
        let next = end.requester.next_timeout();
        // Without probes there is the ACK timeout only.
        let silence = if self.plan.rings.is_some() { Nanos::MAX / 2 } else { SILENCE };
        assert!(next.is_none_or(|at| at <= self.now + silence), "waits until {next:?} with packets under way");
        if let Some(next) = next
            && end.timer.is_none_or(|timer| next < timer)
        {
            end.timer = Some(next.max(self.now));
            self.at(next, Event::Timer { end: index });
        }
    }

    /// The work of a receive batch of the link.
    fn progress(&mut self, host: usize) {
        self.hosts[host].awaited.progress = false;
        for _ in 0..BATCH {
            let Some((from, parcel)) = self.hosts[host].inbox.pop_front() else { break };
            self.take_out(host, from);
            if let Some(packet) = codec::decode(from, host, &parcel.packet) {
                self.take(host, from, &packet, parcel.note);
            }
        }
        if !self.hosts[host].inbox.is_empty() {
            self.hosts[host].awaited.progress = true;
            self.at(self.now + US, Event::Progress { host });
        }
        let due = |end: &usize| self.ends[*end].responder.has_ack_due();
        if self.hosts[host].ends.iter().any(due) && !self.hosts[host].awaited.acknowledge {
            let wait = self.hosts[host].plan.acknowledge;
            if wait == 0 {
                self.answer(host);
            } else {
                self.hosts[host].awaited.acknowledge = true;
                let wait = self.hosts[host].random.between(0, wait);
                self.at(self.now + wait, Event::Acknowledge { host });
            }
        }
        self.request(host);
    }

    fn take(&mut self, host: usize, from: usize, packet: &Packet<'_>, note: Option<Note>) {
        let headers = &packet.headers;
        let bth = &headers.bth;
        let Some(index) = bth.dest_qpn.checked_sub(FIRST_QPN).map(|index| index as usize) else { return };
        let Some(end) = self.ends.get(index) else { return };
        let is_ready = self.now >= end.plan.ready;
        if end.plan.host != host || end.dead || !is_ready || self.ends[end.peer].plan.host != from {
            return;
        }
        let Some(place) = self.noted(index, headers, note) else { return };
        let arrived = Arrived { bytes: packet.payload.to_vec(), place };
        let packet = &Packet { headers: *headers, payload: &arrived };
        if opcode::is_response(bth.opcode) {
            self.answer_ends(index, bth.psn, arrived.bytes.len());
            let now = self.now;
            self.with_requester(index, |requester, window, host| requester.handle_packet(now, packet, window, host));
        } else {
            let takes_reports = bth.mark == TAKES_GAPS && self.ends[index].keeps;
            let room = takes_reports.then(|| self.hosts[self.ends[index].plan.host].kept.0.clone());
            self.with_responder(index, Some(headers), |responder, host| match &room {
                Some(room) => responder.handle_introduction(packet, host, room),
                None => responder.handle_packet(packet, host),
            });
            self.message_ends(index, headers);
        }
    }

    /// Makes the responder of an end keep packets that come before one that is missing.
    fn keep_packets(&mut self, index: usize) {
        let end = &mut self.ends[index];
        end.responder.keep_packets(&self.hosts[end.plan.host].kept.0);
    }

    /// Lets the requesters of a host send.
    pub fn request(&mut self, host: usize) {
        let ends = self.hosts[host].ends.clone();
        let first = self.hosts[host].random.between(0, ends.len().max(1) as u64 - 1) as usize;
        for turn in 0..ends.len() {
            let index = ends[(first + turn) % ends.len()];
            if self.ends[index].dead {
                continue;
            }
            let now = self.now;
            let sent = self.with_requester(index, |requester, window, host| requester.poll_transmit(now, window, host));
            if sent == Sent::HostFull {
                self.try_again(host, index);
            }
        }
        self.flush(host);
    }

    /// Lets the responders of a host send.
    pub fn answer(&mut self, host: usize) {
        for index in self.hosts[host].ends.clone() {
            let end = &self.ends[index];
            // One that has refused a request for good is in ERR, and its NAK leaves all the same.
            let speaks = !end.dead || end.target.failed && !self.hosts[host].stopped;
            if speaks && (end.streaming || end.responder.has_ack_due() || end.responder.has_kept_due()) {
                let more = self.with_responder(index, None, |responder, host| {
                    responder.execute_kept(host) | responder.poll_transmit(BATCH, host)
                });
                self.ends[index].streaming = more;
                if more {
                    self.try_again(host, index);
                }
            }
        }
        self.flush(host);
    }

    pub fn resume(&mut self, host: usize) {
        if !self.hosts[host].awaited.resume {
            self.hosts[host].awaited.resume = true;
            let wait = self.hosts[host].random.between(US, 20 * US);
            self.at(self.now + wait, Event::Resume { host });
        }
    }

    fn with_requester<T>(
        &mut self,
        index: usize,
        act: impl FnOnce(&mut Requester, &mut Window, &mut SendHost<'_>) -> T,
    ) -> T {
        at_work(Some(index));
        let (peer_host, peer_qpn) = self.peer(index);
        let executed = self.executed_by_peer(index);
        let end = &mut self.ends[index];
        let host = &mut self.hosts[end.plan.host];
        let (before, counters) = (end.send.progress, *end.requester.counters());
        end.send.executed = executed;
        let now = self.now;
        let mut view = SendHost { queue: &mut end.send, port: &mut host.port, peer_host, peer_qpn, now };
        let result = act(&mut end.requester, &mut host.windows[peer_host], &mut view);
        end.send.goes_back(&counters, end.requester.counters(), host.port.rings.get(peer_host));
        if self.ends[index].send.progress > before {
            self.progressed = self.now;
        }
        self.judge(index);
        self.wake(index);
        at_work(None);
        result
    }

    pub fn with_responder<T>(
        &mut self,
        index: usize,
        headers: Option<&Headers>,
        act: impl FnOnce(&mut Responder, &mut TargetHost<'_>) -> T,
    ) -> T {
        at_work(Some(index));
        let (peer_host, peer_qpn) = self.peer(index);
        let first_psn = self.ends[self.ends[index].peer].plan.first_psn;
        let end = &mut self.ends[index];
        let host = &mut self.hosts[end.plan.host];
        if let (Some(headers), false) = (headers, end.target.service.reliable()) {
            end.target.packet = Some(locate(&end.starts, first_psn, headers.bth.psn, end.target.mtu()));
        }
        let before = end.target.progressed;
        let mut view =
            TargetHost { target: &mut end.target, shared: &mut host.shared, port: &mut host.port, peer_host, peer_qpn };
        let result = act(&mut end.responder, &mut view);
        if end.target.progressed > before {
            self.progressed = self.now;
        }
        if end.target.failed && !end.dead {
            assert!(end.responder.has_ended(), "a responder that has refused a request for good goes on");
            self.kill(index);
        }
        at_work(None);
        result
    }

    pub fn peer(&self, index: usize) -> (usize, u32) {
        let peer = &self.ends[self.ends[index].peer];
        (peer.plan.host, peer.qpn)
    }

    pub fn kill(&mut self, index: usize) {
        let (peer_host, _) = self.peer(index);
        let end = &mut self.ends[index];
        let host = end.plan.host;
        end.dead = true;
        end.requester.abandon(&mut self.hosts[host].windows[peer_host]);
        // Others may have waited for the window.
        self.resume(host);
    }
}
