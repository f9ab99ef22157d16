//! Many requests under way: bandwidth, and the stream that interferes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Result;
use vervain_rdma::Completion;

use super::clock::{Clock, Ticks};
use super::memory::Memory;
use super::pair::{Pair, succeeded};
use super::segments::Course;
use super::wait::Stop;
use crate::case::Service;
use crate::protocol::{Measured, Stream};

/// Completions that one look takes.
const BATCH: usize = 32;
/// Messages of this size and more have a completion each, and it is looked for after each, so that what happens when is
/// known to some µs.
const EACH: u64 = 32 << 10;
/// Time for which a responder waits for stragglers once the requester is done: datagrams on their way.
const STRAGGLERS: Duration = Duration::from_millis(50);
/// Length of a slice in which an interfering stream counts, in ns.
const SLICE: u64 = 1_000_000;

/// The progress of a QP.
#[derive(Clone, Default)]
struct Lane {
    posted: u64,
    finished: u64,
    /// Requests up to the next one that has a completion, it among them.
    unsignaled: u64,
}

/// Keeps `depth` requests under way on each QP until `goal` have completed on each, or it is stopped. `completed` gets
/// their number, at each look that found some.
fn pump(
    pair: &Pair,
    memory: &Memory,
    goal: u64,
    stop: &Stop,
    mut completed: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let spec = &pair.spec;
    let depth = u64::from(spec.case.depth);
    // A device that does the work while it is posted would else complete long messages all at once, at the end.
    let each = spec.case.size >= EACH;
    let every = if each { 1 } else { u64::from(spec.signal_every).min(depth) };
    let mut lanes = vec![Lane { unsignaled: every, ..Default::default() }; pair.qps()];
    let mut open = pair.qps();
    let mut done = [Completion::default(); BATCH];
    while open > 0 {
        for (qp, lane) in lanes.iter_mut().enumerate() {
            while lane.posted < goal && lane.posted - lane.finished < depth {
                lane.unsignaled -= 1;
                let signaled = lane.unsignaled == 0 || lane.posted + 1 == goal;
                pair.post(memory, qp, lane.posted, signaled)?;
                lane.posted += 1;
                if lane.unsignaled == 0 {
                    lane.unsignaled = every;
                }
                if each {
                    break;
                }
            }
        }
        let found = pair.send_cq.poll(&mut done)?;
        let mut count = 0;
        for done in &done[..found] {
            let lane = &mut lanes[succeeded(done, spec.case.operation)?];
            let more = every.min(goal - lane.finished);
            lane.finished += more;
            count += more;
            open -= usize::from(lane.finished == goal);
        }
        if count > 0 {
            completed(count)?;
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(())
}

/// The measured requester.
pub fn request(pair: &Pair, memory: &Memory, iterations: u64, stop: &Stop, clock: &Clock) -> Result<Measured> {
    let goal = iterations.div_ceil(pair.qps() as u64).max(1);
    let all = goal * pair.qps() as u64;
    let mut course = Course::begin(all, clock);
    let mut made = 0;
    pump(pair, memory, goal, stop, |count| {
        made += count;
        if course.is_due(made) || made == all {
            course.mark(made, clock.now());
        }
        Ok(())
    })?;
    Ok(course.end(made, vec![]))
}

/// The interfering requester: goes on until it is stopped. `running` is called when the first request has completed.
pub fn interfere(
    pair: &Pair,
    memory: &Memory,
    stop: &Stop,
    clock: &Clock,
    mut running: impl FnMut() -> Result<()>,
) -> Result<Stream> {
    let mut counts = Counts::new(clock);
    let mut first = true;
    pump(pair, memory, u64::MAX, stop, |count| {
        counts.count(clock, clock.now(), count);
        if std::mem::take(&mut first) { running() } else { Ok(()) }
    })?;
    Ok(counts.stream)
}

/// The progress of an interfering stream over time.
struct Counts {
    stream: Stream,
    begin: Ticks,
    last: u64,
}

impl Counts {
    fn new(clock: &Clock) -> Self {
        let stream = Stream { start: clock.monotonic(), slice: SLICE, ..Default::default() };
        Self { stream, begin: clock.now(), last: 0 }
    }

    fn count(&mut self, clock: &Clock, now: Ticks, operations: u64) {
        self.at(clock.picoseconds(self.begin, now) / 1000, operations);
    }

    /// `at` ns after the start.
    fn at(&mut self, at: u64, operations: u64) {
        let stream = &mut self.stream;
        if at.saturating_sub(self.last) > 2 * SLICE {
            stream.pauses.push((stream.start + self.last, stream.start + at));
        }
        self.last = at;
        let slice = (at / SLICE) as usize;
        if stream.operations.len() <= slice {
            stream.operations.resize(slice + 1, 0);
        }
        let count = &mut stream.operations[slice];
        *count = count.saturating_add(u32::try_from(operations).unwrap_or(u32::MAX));
    }
}

/// Posts the receives that the first messages take; before the other end begins.
pub fn post_receives(pair: &Pair, memory: &Memory) -> Result<()> {
    for qp in 0..pair.qps() {
        for n in 0..u64::from(pair.receives()) {
            pair.receive(memory, qp, n)?;
        }
    }
    Ok(())
}

/// The responder of messages that take receives: takes them and posts new receives, until `iterations` have come, or,
/// after it was stopped, none comes any more. Says how many came.
pub fn respond(pair: &Pair, memory: &Memory, iterations: u64, stop: &Stop) -> Result<u64> {
    if !pair.spec.case.operation.takes_receive() {
        return Ok(0);
    }
    let per_qp = iterations.div_ceil(pair.qps() as u64).max(1);
    let all = if pair.spec.endless { u64::MAX } else { per_qp * pair.qps() as u64 };
    let mut done = [Completion::default(); BATCH];
    let mut received = 0;
    let mut idle: Option<Instant> = None;
    while received < all {
        let found = pair.recv_cq.poll(&mut done)?;
        for done in &done[..found] {
            let qp = succeeded(done, pair.spec.case.operation)?;
            pair.receive(memory, qp, received)?;
            received += 1;
        }
        if found > 0 {
            idle = None;
        } else if stop.load(Ordering::Relaxed) {
            let reliable = pair.spec.case.service == Service::Rc;
            let since = *idle.get_or_insert_with(Instant::now);
            if reliable || since.elapsed() > STRAGGLERS {
                break;
            }
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_by_slices_and_notes_its_pauses() {
        let stream = Stream { start: 1000, slice: SLICE, ..Default::default() };
        let mut counts = Counts { stream, begin: 0, last: 0 };
        for (at, operations) in [(0, 5), (SLICE - 1, 2), (SLICE, 1), (5 * SLICE, 9)] {
            counts.at(at, operations);
        }
        assert_eq!(counts.stream.operations, [7, 1, 0, 0, 0, 9]);
        assert_eq!(counts.stream.pauses, [(1000 + SLICE, 1000 + 5 * SLICE)]);
    }
}
