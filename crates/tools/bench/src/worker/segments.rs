//! A run from its first post to its last completion, and in parts, for what one number hides: warming up, drift,
//! spread.

use super::clock::{Clock, Ticks};
use crate::protocol::Measured;

/// The number of parts of a run, if it has at least as many iterations.
const PARTS: u64 = 16;

/// A run under way.
pub struct Course<'a> {
    clock: &'a Clock,
    from: u64,
    begin: Ticks,
    last: Ticks,
    segments: Segments,
}

impl<'a> Course<'a> {
    /// One of so many iterations begins now.
    pub fn begin(iterations: u64, clock: &'a Clock) -> Self {
        let segments = Segments::new(iterations);
        let from = clock.monotonic();
        let begin = clock.now();
        Self { clock, from, begin, last: begin, segments }
    }

    /// When it began.
    pub fn began(&self) -> Ticks {
        self.begin
    }

    /// Returns true if [`mark`](Self::mark) has to be told that `done` iterations are done.
    #[inline]
    pub fn is_due(&self, done: u64) -> bool {
        self.segments.is_over(done)
    }

    /// `done` iterations are done at `now`.
    pub fn mark(&mut self, done: u64, now: Ticks) {
        self.last = now;
        if self.segments.is_over(done) {
            self.segments.end(done, self.clock.seconds(self.begin, now));
        }
    }

    /// All `done` are done, the last of them when it was marked.
    pub fn end(self, done: u64, histogram: Vec<(u64, u64)>) -> Measured {
        let seconds = self.clock.seconds(self.begin, self.last);
        let between = (self.from, self.from + (seconds * 1e9) as u64);
        Measured { iterations: done, between, seconds, segments: self.segments.finish(done, seconds), histogram }
    }
}

/// Parts of about as many iterations each, as they end.
struct Segments {
    length: u64,
    next: u64,
    /// The count at the end of the last part, and its time.
    last: (u64, f64),
    parts: Vec<(u64, f64)>,
}

impl Segments {
    /// For a run of so many iterations.
    fn new(iterations: u64) -> Self {
        let length = iterations.div_ceil(PARTS).max(1);
        Self { length, next: length, last: (0, 0.0), parts: Vec::with_capacity(PARTS as usize + 1) }
    }

    /// Returns true if a part ends with iteration `done`, counted from 1.
    #[inline]
    fn is_over(&self, done: u64) -> bool {
        done >= self.next
    }

    /// A part ends: `done` iterations in `seconds` since the beginning of the run.
    fn end(&mut self, done: u64, seconds: f64) {
        self.parts.push((done - self.last.0, seconds - self.last.1));
        self.last = (done, seconds);
        self.next = done + self.length;
    }

    /// All parts, the last of which may be shorter.
    fn finish(mut self, done: u64, seconds: f64) -> Vec<(u64, f64)> {
        if done > self.last.0 {
            self.end(done, seconds);
        }
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(iterations: u64, stride: u64) -> Vec<(u64, f64)> {
        let mut segments = Segments::new(iterations);
        for done in (stride..=iterations).step_by(stride as usize) {
            if segments.is_over(done) {
                segments.end(done, done as f64);
            }
        }
        segments.finish(iterations, iterations as f64)
    }

    #[test]
    fn parts_are_sixteen_and_add_up() {
        for (iterations, stride, parts) in [(1600, 1, 16), (1601, 1, 16), (5, 1, 5), (1600, 300, 6)] {
            let found = run(iterations, stride);
            assert_eq!(found.len(), parts, "{found:?}");
            assert_eq!(found.iter().map(|p| p.0).sum::<u64>(), iterations);
            assert!(found.iter().all(|&(n, seconds)| (n as f64 - seconds).abs() < 1e-9), "{found:?}");
        }
    }
}
