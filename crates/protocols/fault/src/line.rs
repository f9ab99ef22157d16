//! A line with faults: packets go in, and come out later, changed, twice or not at all.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

use crate::Nanos;
use crate::chance::Chance;
use crate::config::{Faults, Port};
use crate::rule::{Action, Direction, Rule};

/// Bytes that a line holds at most; what comes on top is lost, as in a full queue.
const HELD: usize = 64 << 20;
/// Bytes of Ethernet, IPv4 and UDP around each packet, which take their part of a rate.
const FRAME: u64 = 24 + 14 + 20 + 8;

/// The number of packets that a line has changed, by kind of change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Came in.
    pub packets: u64,
    /// Lost by a rule.
    pub dropped: u64,
    /// Lost while the line was down.
    pub down: u64,
    /// Lost because too many waited.
    pub overflowed: u64,
    /// Given out a second time.
    pub duplicated: u64,
    /// Given out with turned bits.
    pub corrupted: u64,
    /// Held back, all others behind them.
    pub delayed: u64,
    /// Held back so that others overtook them.
    pub reordered: u64,
}

impl Counts {
    /// Together with those of another line.
    pub fn add(&mut self, other: &Counts) {
        let Counts { packets, dropped, down, overflowed, duplicated, corrupted, delayed, reordered } = *other;
        self.packets += packets;
        self.dropped += dropped;
        self.down += down;
        self.overflowed += overflowed;
        self.duplicated += duplicated;
        self.corrupted += corrupted;
        self.delayed += delayed;
        self.reordered += reordered;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.dropped + self.down + self.overflowed;
        write!(f, "{lost} of {} packets dropped", self.packets)?;
        let others = [
            (self.duplicated, "sent twice"),
            (self.corrupted, "corrupted"),
            (self.delayed, "delayed"),
            (self.reordered, "reordered"),
        ];
        others.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, what)| write!(f, ", {count} {what}"))
    }
}

/// The course of a packet that is not lost.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// When it comes out.
    due: Nanos,
    /// Time until it comes again; None: it comes once.
    again: Option<Nanos>,
    corrupt: bool,
}

/// One direction of one port. `M` is what the caller wants to know of a packet when it comes out: its destination, say.
#[derive(Debug)]
pub struct Line<M> {
    rules: Vec<Counted>,
    port: Port,
    chance: Chance,
    start: Nanos,
    /// Packets that are still to be lost in a row.
    run: u64,
    /// When the last bit of what waits for the rate will have left.
    busy: Nanos,
    /// When the latest packet that keeps its place comes out.
    latest: Nanos,
    held: BinaryHeap<Reverse<Held<M>>>,
    bytes: usize,
    serial: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Counted {
    rule: Rule,
    seen: u64,
}

#[derive(Debug)]
struct Held<M> {
    /// When it comes out, and its number among all, so that equals stay in order.
    due: (Nanos, u64),
    meta: M,
    packet: Vec<u8>,
}

impl<M> PartialEq for Held<M> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}
impl<M> Eq for Held<M> {}
impl<M> PartialOrd for Held<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<M> Ord for Held<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl<M: Clone> Line<M> {
    /// A line of this direction. `salt` makes lines differ that have the same faults (the two ends of a connection,
    /// say); times of the configuration count from `now`.
    pub fn new(faults: &Faults, direction: Direction, salt: u64, now: Nanos) -> Self {
        let side = salt << 1 | u64::from(direction == Direction::Receive);
        let rules = faults.rules.iter().filter(|rule| rule.direction == direction);
        Self {
            rules: rules.map(|rule| Counted { rule: rule.clone(), seen: 0 }).collect(),
            port: faults.port(direction).clone(),
            chance: Chance::new(faults.seed.unwrap_or(0) ^ side.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            start: now,
            run: 0,
            busy: 0,
            latest: 0,
            held: BinaryHeap::new(),
            bytes: 0,
            serial: 0,
            counts: Counts::default(),
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes a packet: BTH to ICRC, as it is in the UDP datagram. Ask [`Line::pop`] afterwards.
    pub fn push(&mut self, now: Nanos, meta: M, packet: &[u8]) {
        if let Some(course) = self.judge(now, packet) {
            self.keep(course, meta, packet);
        }
    }

    /// Decides the course of a packet that comes in; None: it is lost. To be followed by [`Line::keep`], unless it
    /// [passes](Line::passes) and the caller lets it.
    pub fn judge(&mut self, now: Nanos, packet: &[u8]) -> Option<Course> {
        self.counts.packets += 1;
        let fate = self.decide(packet);
        let since = now.saturating_sub(self.start);
        if self.port.down.iter().any(|down| down.low <= since && since < down.high) {
            self.counts.down += 1;
            return None;
        }
        if fate.drop {
            self.counts.dropped += 1;
            return None;
        }
        let Some(sent) = self.pace(now, packet.len()) else {
            self.counts.overflowed += 1;
            return None;
        };
        self.counts.delayed += u64::from(fate.delay > 0);
        self.counts.reordered += u64::from(fate.reorder > 0);
        let mut due = sent + fate.delay;
        if fate.reorder > 0 {
            due += fate.reorder;
        } else {
            due = due.max(self.latest);
            self.latest = due;
        }
        Some(Course { due, again: fate.duplicate, corrupt: fate.corrupt })
    }

    /// Returns true if a packet with this course would come out at once, before all that is kept, once and as it is.
    pub fn passes(&self, now: Nanos, course: &Course) -> bool {
        let first = self.next_timeout().is_none_or(|at| at > now);
        course.due <= now && course.again.is_none() && !course.corrupt && first
    }

    /// Keeps a packet until it comes out.
    pub fn keep(&mut self, course: Course, meta: M, packet: &[u8]) {
        let Course { due, again, corrupt } = course;
        if let Some(after) = again {
            self.counts.duplicated += 1;
            self.hold(due + after, meta.clone(), packet.to_vec());
        }
        let mut packet = packet.to_vec();
        if corrupt && !packet.is_empty() {
            self.counts.corrupted += 1;
            self.spoil(&mut packet);
        }
        self.hold(due, meta, packet);
    }

    /// The next packet whose time has come.
    pub fn pop(&mut self, now: Nanos) -> Option<(M, Vec<u8>)> {
        if self.next_timeout()? > now {
            return None;
        }
        let Reverse(Held { meta, packet, .. }) = self.held.pop()?;
        self.bytes -= packet.len();
        Some((meta, packet))
    }

    /// When the next packet comes out.
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.held.peek().map(|Reverse(held)| held.due.0)
    }

    /// The decision of the rules about a packet. Every rule is asked, so that their random numbers do not depend on
    /// each other.
    fn decide(&mut self, packet: &[u8]) -> Fate {
        let mut fate = Fate { drop: self.run > 0, ..Fate::default() };
        self.run = self.run.saturating_sub(1);
        for Counted { rule, seen } in &mut self.rules {
            if let Some(selector) = &rule.selector {
                if !selector.names(packet) {
                    continue;
                }
                *seen += 1;
                if !selector.counts(*seen) {
                    continue;
                }
            }
            if !self.chance.happens(rule.probability) {
                continue;
            }
            match rule.action {
                Action::Drop(run) => {
                    fate.drop = true;
                    self.run = self.run.max(self.chance.between(run.low, run.high) - 1);
                }
                Action::Corrupt => fate.corrupt = true,
                Action::Duplicate(after) => fate.duplicate = Some(self.chance.between(after.low, after.high)),
                Action::Delay(by) => fate.delay += self.chance.between(by.low, by.high),
                Action::Reorder(by) => fate.reorder += self.chance.between(by.low, by.high),
            }
        }
        fate
    }

    /// When a packet has left at the line's rate; none if it finds the queue full.
    fn pace(&mut self, now: Nanos, bytes: usize) -> Option<Nanos> {
        let Some(rate) = self.port.rate else { return Some(now) };
        let begin = self.busy.max(now);
        let waiting = u128::from(begin - now) * u128::from(rate) / 8_000_000_000;
        if waiting > u128::from(self.port.queue) {
            return None;
        }
        self.busy = begin + (bytes as u64 + FRAME) * 8_000_000_000 / rate;
        Some(self.busy)
    }

    fn hold(&mut self, due: Nanos, meta: M, packet: Vec<u8>) {
        if self.bytes + packet.len() > HELD {
            self.counts.overflowed += 1;
            return;
        }
        self.bytes += packet.len();
        self.serial += 1;
        self.held.push(Reverse(Held { due: (due, self.serial), meta, packet }));
    }

    /// Turns one to three bits.
    fn spoil(&mut self, packet: &mut [u8]) {
        let last = packet.len() as u64 * 8 - 1;
        let first = self.chance.between(0, last);
        packet[first as usize / 8] ^= 1 << (first % 8);
        for _ in 0..self.chance.between(0, 2) {
            // Not the first again, or nothing might change.
            let bit = self.chance.between(0, last);
            if bit != first {
                packet[bit as usize / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[derive(Default)]
struct Fate {
    drop: bool,
    corrupt: bool,
    duplicate: Option<Nanos>,
    delay: Nanos,
    reorder: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    fn line(faults: &str) -> Line<usize> {
        Line::new(&faults.parse().unwrap(), Direction::Transmit, 0, 0)
    }

    /// Pushes `count` packets, one a microsecond, and returns the times at which they came out.
    fn run(line: &mut Line<usize>, count: usize) -> Vec<(Nanos, usize)> {
        let mut out = Vec::new();
        for n in 0..count {
            let now = n as Nanos * 1000;
            out.extend(drain(line, now));
            line.push(now, n, &[0x0a; 64]);
        }
        out.extend(drain(line, Nanos::MAX));
        out
    }

    fn drain(line: &mut Line<usize>, until: Nanos) -> Vec<(Nanos, usize)> {
        std::iter::from_fn(|| {
            let at = line.next_timeout()?;
            line.pop(until).map(|(meta, _)| (at, meta))
        })
        .collect()
    }

    #[test]
    fn without_faults_packets_pass_at_once_and_in_order() {
        let out = run(&mut line(""), 100);
        assert_eq!(out, (0..100).map(|n| (n as Nanos * 1000, n)).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_leaves_at_once_unchanged_and_first_passes() {
        let pass = |line: &mut Line<usize>, n: Nanos| {
            let course = line.judge(n, &[0x0a; 64])?;
            let passes = line.passes(n, &course);
            if !passes {
                line.keep(course, n as usize, &[0x0a; 64]);
            }
            Some(passes)
        };
        let mut lossy = line("drop=any@2");
        assert_eq!([1, 2, 3].map(|n| pass(&mut lossy, n)), [Some(true), None, Some(true)]);
        for faults in ["corrupt=any@2", "dup=any@2:5ms", "delay=any@2:1ms", "reorder=any@2:1ms", "rate=1Gbit"] {
            let mut line = line(faults);
            let passed = [1, 2].map(|n| pass(&mut line, n));
            assert_eq!(passed[1], Some(false), "{faults}");
        }
        let mut line = line("delay=any@1:10ns");
        assert_eq!([1, 5].map(|n| pass(&mut line, n)), [Some(false), Some(false)], "the second keeps its place");
        assert_eq!(drain(&mut line, 20).len(), 2);
        assert_eq!(pass(&mut line, 21), Some(true));
    }

    #[test]
    fn the_same_seed_decides_the_same_and_another_salt_does_not() {
        let text = "seed=3,drop=20%,dup=10%,reorder=10%,delay=1us..5us";
        let faults: Faults = text.parse().unwrap();
        let with = |salt| run(&mut Line::new(&faults, Direction::Transmit, salt, 0), 500);
        assert_eq!(with(1), with(1));
        assert_ne!(with(1), with(2));
    }

    #[test]
    fn counts_are_added_and_told() {
        let one = Counts { packets: 10, dropped: 1, down: 2, overflowed: 3, ..Counts::default() };
        let mut all = Counts { packets: 5, duplicated: 1, corrupted: 2, delayed: 3, reordered: 4, ..one };
        assert_eq!(one.to_string(), "6 of 10 packets dropped");
        all.add(&one);
        assert_eq!(all.to_string(), "12 of 15 packets dropped, 1 sent twice, 2 corrupted, 3 delayed, 4 reordered");
    }

    #[test]
    fn about_as_many_are_lost_as_asked() {
        let mut line = line("drop=10%");
        let arrived = run(&mut line, 10_000).len() as u64;
        assert_eq!(arrived + line.counts().dropped, 10_000);
        assert!((850..1150).contains(&line.counts().dropped), "{:?}", line.counts());
    }

    #[test]
    fn losses_come_in_rows_when_asked() {
        let out = run(&mut line("drop=write@4:x3"), 10);
        assert_eq!(out.iter().map(|o| o.1).collect::<Vec<_>>(), [0, 1, 2, 6, 7, 8, 9]);
    }

    #[test]
    fn only_the_packets_that_are_meant_meet_a_rule() {
        let out = run(&mut line("drop=write_only@2..3,drop=ack"), 6);
        assert_eq!(out.iter().map(|o| o.1).collect::<Vec<_>>(), [0, 3, 4, 5]);
    }

    #[test]
    fn delayed_packets_keep_their_order_and_reordered_ones_do_not() {
        let order = |text: &str| run(&mut line(text), 200).into_iter().map(|o| o.1).collect::<Vec<_>>();
        assert!(order("delay=10us..1ms").is_sorted());
        let reordered = order("reorder=10%");
        assert_eq!(reordered.len(), 200);
        assert!(!reordered.is_sorted());
    }

    #[test]
    fn a_second_copy_comes_after_its_time() {
        let out = run(&mut line("dup=any@1:5ms"), 2);
        assert_eq!(out, [(0, 0), (1000, 1), (5 * MS, 0)]);
    }

    #[test]
    fn a_corrupted_packet_differs_and_keeps_its_length() {
        let mut line = line("corrupt=100%");
        for n in 0..1000 {
            let packet = [n as u8; 40];
            line.push(n, 0, &packet);
            let (_, out) = line.pop(n).unwrap();
            assert_eq!(out.len(), packet.len());
            let turned: u32 = out.iter().zip(packet).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!((1..=3).contains(&turned), "{turned}");
        }
    }

    #[test]
    fn nothing_passes_while_the_line_is_down() {
        let out = run(&mut line("down=10us..20us"), 30);
        assert_eq!(out.iter().map(|o| o.1).collect::<Vec<_>>(), (0..10).chain(20..30).collect::<Vec<_>>());
    }

    #[test]
    fn packets_leave_at_the_rate_and_a_full_queue_loses_them() {
        // 64 + 66 bytes at 104 Mbit/s take 10 us each; one comes each microsecond.
        let mut line = line("rate=104Mbit,queue=1.3kB");
        let out = run(&mut line, 100);
        assert_eq!(out[..3].iter().map(|o| o.0).collect::<Vec<_>>(), [10_000, 20_000, 30_000]);
        assert!(line.counts().overflowed > 70, "{:?}", line.counts());
        assert_eq!(out.len() as u64, 100 - line.counts().overflowed);
    }
}
