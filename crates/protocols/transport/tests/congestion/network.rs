//! Flows through one bottleneck in virtual time: a queue that drops what does not fit, and may mark what finds it long.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use vervain_transport::Nanos;

use crate::host::{Flow, MTU, Sent};

const US: Nanos = 1_000;
pub const MS: Nanos = 1_000_000;
/// From a sender to the queue, from there to the receiver, and back.
const TO_QUEUE: Nanos = 10 * US;
const TO_RECEIVER: Nanos = 10 * US;
const BACK: Nanos = 20 * US;
/// The receiver's answers take up to this time longer.
const JITTER: Nanos = 5 * US;
/// Least time between two notifications to one peer (DCQCN's N).
const BETWEEN_NOTIFICATIONS: Nanos = 50 * US;
/// Bytes of a packet on a line beside its payload: preamble, Ethernet, IP, UDP, BTH, RETH, ICRC.
const HEADERS: usize = 100;
/// Bytes of a full packet there.
pub const PACKET: u64 = MTU as u64 + HEADERS as u64;

/// A bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Gbit/s.
    pub rate: u64,
    /// Bytes that its queue holds.
    pub room: u64,
    /// Packets that find more bytes than that are marked.
    pub mark_above: Option<u64>,
    /// Packets in a thousand that are lost for other reasons.
    pub lost: u64,
    /// The flows' ends speak of gaps.
    pub speaking: bool,
}

/// The measurements.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Bytes written by each flow.
    pub taken: Vec<u64>,
    /// The longest queue that a packet found, in bytes.
    pub longest: u64,
    /// Packets for which the queue had no room.
    pub dropped: u64,
    pub marked: u64,
    pub notified: u64,
    /// Part of the bottleneck's rate at which data was written.
    pub used: f64,
    /// Part of the rate that packets took.
    pub carried: f64,
}

impl Outcome {
    /// The largest share by the smallest.
    pub fn unfairness(&self) -> f64 {
        let (most, least) = (self.taken.iter().max().unwrap(), self.taken.iter().min().unwrap());
        *most as f64 / *least as f64
    }
}

enum Event {
    Start,
    AtQueue(Sent),
    AtReceiver(Sent, bool),
    Answer(Sent),
    Notification,
    Timeout,
}

pub struct Network {
    bottleneck: Bottleneck,
    flows: Vec<Flow>,
    now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    bodies: Vec<Option<Event>>,
    free: Vec<usize>,
    flow_of: Vec<usize>,
    count: u64,
    /// When the bottleneck has sent all that is in its queue, in picoseconds.
    busy_until: u64,
    random: Xoshiro256PlusPlus,
    carried: u64,
    outcome: Outcome,
}

impl Network {
    /// Each flow begins `apart` after the one before.
    pub fn new(bottleneck: Bottleneck, flows: usize, apart: Nanos) -> Network {
        let mut network = Network {
            bottleneck,
            flows: (0..flows).map(|_| Flow::new(bottleneck.speaking)).collect(),
            now: 0,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            free: Vec::new(),
            flow_of: Vec::new(),
            count: 0,
            busy_until: 0,
            random: Xoshiro256PlusPlus::seed_from_u64(1),
            carried: 0,
            outcome: Outcome::default(),
        };
        (0..flows).for_each(|flow| network.add(flow as u64 * apart, flow, Event::Start));
        network
    }

    /// Picoseconds that `bytes` take on the bottleneck.
    fn time_of(&self, bytes: u64) -> u64 {
        bytes * 8_000 / self.bottleneck.rate
    }

    fn add(&mut self, at: Nanos, flow: usize, event: Event) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.bodies.push(None);
            self.flow_of.push(0);
            self.bodies.len() - 1
        });
        (self.bodies[slot], self.flow_of[slot]) = (Some(event), flow);
        self.count += 1;
        self.events.push(Reverse((at, self.count, slot)));
    }

    /// Runs until `warm`, and then measures until `end`.
    pub fn run(mut self, warm: Nanos, end: Nanos) -> Outcome {
        self.run_until(warm);
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.sink.taken).collect();
        (self.outcome, self.carried) = (Outcome::default(), 0);
        self.run_until(end);
        let taken: Vec<u64> = self.flows.iter().zip(before).map(|(flow, before)| flow.sink.taken - before).collect();
        let whole = self.bottleneck.rate as f64 / 8.0 * (end - warm) as f64;
        let used = taken.iter().sum::<u64>() as f64 / whole;
        let carried = self.carried as f64 / whole;
        Outcome { taken, used, carried, ..self.outcome }
    }

    fn run_until(&mut self, end: Nanos) {
        while let Some(&Reverse((at, _, slot))) = self.events.peek()
            && at < end
        {
            self.events.pop();
            self.now = at;
            self.free.push(slot);
            if let Some(event) = self.bodies[slot].take() {
                self.handle(self.flow_of[slot], event);
            }
        }
    }

    fn handle(&mut self, number: usize, event: Event) {
        let now = self.now;
        let flow = &mut self.flows[number];
        let Flow { requester, window, sends, .. } = flow;
        match event {
            Event::AtQueue(sent) => return self.enqueue(number, sent),
            Event::AtReceiver(sent, marked) => return self.receive(number, sent, marked),
            Event::Start => {}
            Event::Answer(sent) => requester.handle_packet(now, &sent.packet(), window, sends),
            Event::Notification => window.notified(now),
            Event::Timeout => {
                flow.timer = None;
                if requester.next_timeout().is_some_and(|at| at <= now) {
                    requester.handle_timeout(now, window, sends);
                }
            }
        }
        self.send(number);
    }

    fn send(&mut self, number: usize) {
        let now = self.now;
        let flow = &mut self.flows[number];
        let _ = flow.requester.poll_transmit(now, &mut flow.window, &mut flow.sends);
        for sent in std::mem::take(&mut self.flows[number].sends.out) {
            // The sender's line has 100 Gbit/s.
            let line_free = self.flows[number].line_free.max(now) + (sent.length + HEADERS) as u64 * 8 / 100;
            self.flows[number].line_free = line_free;
            self.add(line_free + TO_QUEUE, number, Event::AtQueue(sent));
        }
        let flow = &mut self.flows[number];
        if let Some(at) = flow.requester.next_timeout().map(|at| at.max(now + 1))
            && flow.timer.is_none_or(|timer| at < timer)
        {
            flow.timer = Some(at);
            self.add(at, number, Event::Timeout);
        }
    }

    fn enqueue(&mut self, number: usize, sent: Sent) {
        let Bottleneck { rate, room, mark_above, lost, .. } = self.bottleneck;
        let (now, size) = (self.now * 1_000, (sent.length + HEADERS) as u64);
        let queue = self.busy_until.saturating_sub(now) * rate / 8_000;
        let is_lost = self.random.next_u64() % 1_000 < lost;
        if is_lost || queue + size > room {
            self.outcome.dropped += u64::from(!is_lost);
            return;
        }
        self.outcome.longest = self.outcome.longest.max(queue);
        self.carried += size;
        let marked = mark_above.is_some_and(|above| queue > above);
        self.outcome.marked += u64::from(marked);
        self.busy_until = self.busy_until.max(now) + self.time_of(size);
        self.add(self.busy_until / 1_000 + TO_RECEIVER, number, Event::AtReceiver(sent, marked));
    }

    fn receive(&mut self, number: usize, sent: Sent, marked: bool) {
        let now = self.now;
        let flow = &mut self.flows[number];
        flow.arrives(&sent);
        if marked && flow.notified.is_none_or(|last| now >= last + BETWEEN_NOTIFICATIONS) {
            flow.notified = Some(now);
            self.outcome.notified += 1;
            self.add(now + BACK, number, Event::Notification);
        }
        // Hosts look at packets when they get to it.
        let back = BACK + self.random.next_u64() % JITTER;
        for sent in std::mem::take(&mut self.flows[number].sink.out) {
            let at = (now + back).max(self.flows[number].answered);
            self.flows[number].answered = at;
            self.add(at, number, Event::Answer(sent));
        }
    }
}
