//! What a peer misses that reports gaps: packets to be sent again, without going back over what it keeps; and which of
//! its answers are missing, without going back over those that have come. A report is advice: only acknowledgements
//! end requests, and a step back forgets it all, so that a peer that drops what it has kept, or lies, gets everything
//! again.

use vervain_wire::{TAKES_GAPS, VERVAIN, gaps};

use crate::host::Nanos;
use crate::psn;
use crate::window::Window;

use super::arrived::Arrived;

/// Most runs that are remembered; what is behind them is reported again.
const MOST_RUNS: usize = 4 * gaps::MOST;

/// The missing packets, and how far the peer has reported.
#[derive(Debug)]
pub(super) struct Holes {
    /// In PSN order.
    pub runs: Vec<Run>,
    /// PSN behind the last packet that the peer has reported, or answered.
    pub end: u32,
    /// All requests before this PSN have been executed by the peer: of READs there only answers can be missing.
    pub executed: u32,
    /// Answers that have come before one that is missing.
    pub arrived: Arrived,
    /// Bytes that are not under way though not acknowledged: the peer keeps them, or they are to be sent again.
    pub out: u64,
    /// Those of them that the peer has executed, and does not keep.
    pub executed_bytes: u64,
    /// Bytes that have been sent again since a round trip began, and when it ends: one window at most, whatever the
    /// peer reports.
    pub again: u64,
    round_ends: Nanos,
}

/// Missing packets that have gone equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub from: u32,
    /// PSN behind the last.
    pub to: u32,
    /// None: to be sent again.
    pub resent: Option<Resent>,
}

/// When packets were sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resent {
    pub at: Nanos,
    /// The PSN that was to be sent next for the first time. A peer that has it has missed what was resent before.
    pub next: u32,
}

/// How the requester shows the peer what it is: packets have a mark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Introduction {
    /// The mark of packets now. First that of Vervain, which every Vervain knows; then, until one that has it was
    /// acknowledged, that of a requester that takes reports; then none.
    pub mark: u8,
    /// A packet with this PSN has the second mark.
    shown: u32,
    /// The peer answers any part of a READ again: its answers have the mark of those that report gaps.
    pub answers_parts: bool,
}

impl Introduction {
    pub fn new(introduces: bool) -> Introduction {
        Introduction { mark: if introduces { VERVAIN } else { 0 }, shown: 0, answers_parts: false }
    }

    /// Everything before `unacknowledged` has arrived, and no packet from `highest` on has been sent.
    #[cold]
    pub fn acknowledged(&mut self, unacknowledged: u32, highest: u32) {
        if self.mark == VERVAIN {
            (self.mark, self.shown) = (TAKES_GAPS, highest);
        } else if psn::is_before(self.shown, unacknowledged) {
            self.mark = 0;
        }
    }
}

impl Holes {
    /// Nothing is missing before `end`.
    pub fn new(end: u32) -> Holes {
        Holes {
            runs: Vec::new(),
            end,
            executed: end,
            arrived: Arrived::default(),
            out: 0,
            executed_bytes: 0,
            again: 0,
            round_ends: 0,
        }
    }

    /// Returns true if `cost` more bytes may be sent again in this round trip.
    pub fn may_send(&mut self, now: Nanos, cost: u64, window: &Window) -> bool {
        if now >= self.round_ends {
            self.again = 0;
            self.round_ends = now + window.rtt().assumed();
        }
        self.again == 0 || self.again + cost <= window.size()
    }

    /// The number of READs and atomics that miss an answer, of those from PSN `from` on that end before the PSNs
    /// `ends`. One that the peer keeps has not been executed.
    pub fn count_waiting(&self, from: u32, ends: impl Iterator<Item = u32>) -> usize {
        let (mut from, mut runs) = (from, self.runs.iter().peekable());
        let mut waits = |end: u32| {
            while runs.next_if(|run| !psn::is_before(from, run.to)).is_some() {}
            from = end;
            psn::is_before(self.executed, end) || runs.peek().is_some_and(|run| psn::is_before(run.from, end))
        };
        ends.filter(|end| waits(*end)).count()
    }

    /// Returns true if the answer to `psn` is the next one behind all that have come, and shows nothing to be lost.
    pub fn follows(&self, psn: u32) -> bool {
        let behind = psn::add(psn, 1);
        let shows_loss = |run: &Run| run.resent.is_some_and(|resent| psn::is_before(resent.next, behind));
        self.end == psn && self.executed == psn && !self.runs.iter().any(shows_loss)
    }

    /// The first missing packet, which was sent again, goes once more. Returns the PSNs of its run.
    pub fn repeat_first(&mut self) -> Option<(u32, u32)> {
        let first = self.runs.first_mut().filter(|first| first.resent.is_some())?;
        first.resent = None;
        Some((first.from, first.to))
    }

    /// What was sent again may be lost by now; if the peer still misses it, it goes once more.
    pub fn doubt(&mut self) {
        self.runs.iter_mut().for_each(|run| {
            let from = run.from;
            run.resent.iter_mut().for_each(|resent| resent.next = from);
        });
    }

    /// Takes over a report: up to `end` the peer misses `missing` (first PSN, PSN behind the last) and nothing else.
    /// Returns those of them that are to be sent again, because the report shows that they are lost.
    pub fn update(&mut self, missing: &[(u32, u32)], end: u32, again: impl Fn(&Resent) -> bool) -> Vec<(u32, u32)> {
        let before = std::mem::take(&mut self.runs);
        let mut lost = Vec::new();
        for &(from, to) in missing {
            let mut at = from;
            for run in before.iter().filter(|run| psn::is_before(run.from, to) && psn::is_before(from, run.to)) {
                if psn::is_before(at, run.from) {
                    lost.push((at, run.from));
                    self.push(Run { from: at, to: run.from, resent: None });
                    at = run.from;
                }
                let part_end = if psn::is_before(to, run.to) { to } else { run.to };
                let resent = run.resent.filter(|resent| !again(resent));
                if run.resent.is_some() && resent.is_none() {
                    lost.push((at, part_end));
                }
                self.push(Run { from: at, to: part_end, resent });
                at = part_end;
            }
            if at != to {
                lost.push((at, to));
                self.push(Run { from: at, to, resent: None });
            }
        }
        // A report may end before a former one: it has room for so many gaps only.
        if psn::is_before(self.end, end) {
            self.end = end;
        }
        for run in before {
            let from = if psn::is_before(run.from, end) { end } else { run.from };
            if psn::is_before(from, run.to) {
                self.push(Run { from, ..run });
            }
        }
        self.runs.truncate(MOST_RUNS);
        lost
    }

    /// Adds a run behind all others.
    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.to == run.from && last.resent == run.resent => last.to = run.to,
            _ => self.runs.push(run),
        }
    }

    /// The first packet that is to be sent again, and the PSN behind its run.
    pub fn next_unsent(&self) -> Option<(u32, u32)> {
        self.runs.iter().find(|run| run.resent.is_none()).map(|run| (run.from, run.to))
    }

    /// Packets up to `to` of the first run that is to be sent again have been.
    pub fn sent(&mut self, to: u32, resent: Resent) {
        let Some(place) = self.runs.iter().position(|run| run.resent.is_none()) else { return };
        let run = self.runs[place];
        let done = Run { to: if psn::is_before(run.to, to) { run.to } else { to }, resent: Some(resent), ..run };
        let joins = place > 0 && self.runs[place - 1].to == run.from && self.runs[place - 1].resent == done.resent;
        match (joins, done.to == run.to) {
            (true, true) => {
                self.runs[place - 1].to = done.to;
                self.runs.remove(place);
            }
            (true, false) => (self.runs[place - 1].to, self.runs[place].from) = (done.to, done.to),
            (false, true) => self.runs[place] = done,
            (false, false) => {
                self.runs[place].from = done.to;
                self.runs.insert(place, done);
            }
        }
    }

    /// Forgets what lies before `unacknowledged`. Returns false if nothing is left.
    pub fn forget_before(&mut self, unacknowledged: u32) -> bool {
        self.arrived.forget_before(unacknowledged);
        self.runs.retain(|run| psn::is_before(unacknowledged, run.to));
        if let Some(first) = self.runs.first_mut()
            && psn::is_before(first.from, unacknowledged)
        {
            first.from = unacknowledged;
        }
        psn::is_before(unacknowledged, self.end)
    }
}
