//! One message at a time. The time of an iteration is that between its post and the next one's, as perftest takes it.

use std::time::Duration;

use anyhow::Result;
use vervain_rdma::{Completion, Region};

use super::clock::{Clock, Ticks};
use super::memory::Memory;
use super::pair::{Pair, succeeded};
use super::segments::Course;
use super::wait::{Stop, Wait};
use crate::case::{Operation, Service};
use crate::protocol::Measured;
use crate::stats::Recorder;

/// How the other end's answer is seen.
#[derive(Clone, Copy)]
enum Answer<'a> {
    /// In the last byte of the area that it writes to.
    Memory(&'a Region),
    /// By a receive.
    Receive,
    /// There is none: the operation brings it.
    None,
}

/// The common part of both ends.
struct Player<'a> {
    pair: &'a Pair,
    memory: &'a Memory,
    stop: &'a Stop,
    answer: Answer<'a>,
    limit: Duration,
    outgoing: usize,
    incoming: usize,
    done: [Completion; 1],
}

impl<'a> Player<'a> {
    fn new(pair: &'a Pair, memory: &'a Memory, stop: &'a Stop) -> Result<Self> {
        let answer = match pair.spec.case.operation {
            Operation::Write => Answer::Memory(memory.of_cpu()?),
            operation if operation.takes_receive() => Answer::Receive,
            _ => Answer::None,
        };
        // Lost packets of RC are sent again, with pauses that add up.
        let limit = Duration::from_secs(if pair.spec.case.service == Service::Rc { 20 } else { 1 });
        let (outgoing, incoming) = pair.last_bytes();
        Ok(Self { pair, memory, stop, answer, limit, outgoing, incoming, done: [Completion::default()] })
    }

    /// Posts message `n`, from 1. Its last byte is `n`, which the byte before it was not.
    #[inline]
    fn post(&mut self, n: u64) -> Result<()> {
        if let Answer::Memory(region) = self.answer {
            region.store_byte(self.outgoing, n as u8);
        }
        Ok(self.pair.post(self.memory, 0, n, true)?)
    }

    /// Waits until message `n` has been sent. False: stopped.
    #[inline]
    fn sent(&mut self) -> Result<bool> {
        let found = Wait::new(self.stop, self.limit).completions(&self.pair.send_cq, &mut self.done)?;
        succeeded(&self.done[0], self.pair.spec.case.operation)?;
        Ok(found > 0)
    }

    /// Waits until message `n` of the other end has come. False: stopped.
    #[inline]
    fn came(&mut self, n: u64) -> Result<bool> {
        match self.answer {
            Answer::None => Ok(true),
            Answer::Memory(region) => {
                let mut wait = Wait::new(self.stop, self.limit);
                while region.load_byte(self.incoming) != n as u8 {
                    if !wait.again()? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Answer::Receive => {
                let found = Wait::new(self.stop, self.limit).completions(&self.pair.recv_cq, &mut self.done)?;
                succeeded(&self.done[0], self.pair.spec.case.operation)?;
                if found > 0 {
                    self.pair.receive(self.memory, 0, 0)?;
                }
                Ok(found > 0)
            }
        }
    }
}

/// Before each `Start`, at both ends: a byte that is polled is that of no message.
pub fn reset(pair: &Pair, memory: &Memory) {
    if let Memory::Host(region) = memory {
        region.store_byte(pair.last_bytes().1, 0);
    }
}

/// The requester: posts, and waits for the answer.
pub fn request(pair: &Pair, memory: &Memory, iterations: u64, stop: &Stop, clock: &Clock) -> Result<Measured> {
    let mut player = Player::new(pair, memory, stop)?;
    timed(iterations, halved(pair), clock, |n| {
        player.post(n)?;
        // Its completion first: the memory of the message is then free, and the queue never fills.
        Ok(player.sent()? && player.came(n)?)
    })
}

/// Measures each of so many iterations, which `once` makes by its number, from 1, and whose times are divided by
/// `halved`; until it says that it was stopped (false).
#[inline]
pub fn timed(
    iterations: u64,
    halved: u64,
    clock: &Clock,
    mut once: impl FnMut(u64) -> Result<bool>,
) -> Result<Measured> {
    let mut times = Times::new(iterations, halved);
    let mut course = Course::begin(iterations, clock);
    let mut made = 0;
    times.begin(course.began());
    for n in 1..=iterations {
        if !once(n)? {
            break;
        }
        let now = clock.now();
        made = n;
        times.add(now, clock);
        course.mark(n, now);
    }
    Ok(course.end(made, times.into_buckets(clock)))
}

/// By how much an iteration is divided.
fn halved(pair: &Pair) -> u64 {
    if pair.spec.case.operation.is_answered() { 2 } else { 1 }
}

/// When each iteration ended. They become a histogram afterwards, since that would take some ns of each.
pub struct Times {
    ends: Vec<Ticks>,
    last: Ticks,
    halved: u64,
    recorder: Recorder,
}

impl Times {
    /// Ends that are kept before they have to be counted, between two iterations.
    const MOST: u64 = 1 << 20;

    /// For so many iterations, the time of each divided by `halved`.
    pub fn new(iterations: u64, halved: u64) -> Self {
        let mut ends = vec![1; iterations.min(Self::MOST) as usize];
        // Touched, so that no page is made while it is measured.
        ends.clear();
        Self { ends, last: 0, halved, recorder: Recorder::new() }
    }

    /// The first iteration begins.
    pub fn begin(&mut self, at: Ticks) {
        self.last = at;
    }

    /// An iteration has ended.
    #[inline]
    pub fn add(&mut self, end: Ticks, clock: &Clock) {
        self.ends.push(end);
        if self.ends.len() == Self::MOST as usize {
            self.count(clock);
        }
    }

    #[cold]
    fn count(&mut self, clock: &Clock) {
        for end in self.ends.drain(..) {
            self.recorder.record(clock.picoseconds(self.last, end) / self.halved);
            self.last = end;
        }
    }

    /// All, as a histogram.
    pub fn into_buckets(mut self, clock: &Clock) -> Vec<(u64, u64)> {
        self.count(clock);
        self.recorder.into_buckets()
    }
}

/// The responder: waits for each message and answers it with its like. Says how many came.
pub fn respond(pair: &Pair, memory: &Memory, iterations: u64, stop: &Stop) -> Result<u64> {
    let mut player = Player::new(pair, memory, stop)?;
    if matches!(player.answer, Answer::None) {
        return Ok(0);
    }
    for n in 1..=iterations {
        if !player.came(n)? {
            return Ok(n - 1);
        }
        player.post(n)?;
        if !player.sent()? {
            return Ok(n);
        }
    }
    Ok(iterations)
}
