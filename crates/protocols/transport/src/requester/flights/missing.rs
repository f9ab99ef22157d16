//! What the peer misses among the packets under way, and which of its answers: what reports and early answers tell of
//! it, what is sent again, and what of it the window counts.

use vervain_wire::gaps::Gap;

use crate::host::Nanos;
use crate::psn;
use crate::responder::MOST_KEPT;
use crate::window::Window;

use super::super::flight::{Flight, is_answered};
use super::super::holes::{Holes, Resent};
use super::super::timers::Timers;
use super::Flights;

impl Flights {
    /// Returns true if something is known of what the peer misses.
    #[inline]
    pub fn have_holes(&self) -> bool {
        self.holes.is_some()
    }

    /// Returns true if the answer to `psn` has come before one that is missing.
    pub fn is_answered_early(&self, psn: u32) -> bool {
        self.holes.as_ref().is_some_and(|holes| holes.arrived.end_of(psn).is_some())
    }

    /// Notes that the answer to `psn` has come before one that is missing, for an atomic with its word. Returns false
    /// if there is no room for that; and whether it is the next one behind all that have come.
    pub fn note_early(&mut self, psn: u32, word: Option<u64>) -> (bool, bool) {
        let oldest = self.unacknowledged;
        let holes = self.holes.get_or_insert_with(|| Box::new(Holes::new(oldest)));
        let follows = holes.follows(psn);
        let is_noted = match word {
            None => holes.arrived.add(psn),
            Some(word) => holes.arrived.add_word(psn, word),
        };
        (is_noted, follows)
    }

    /// The answer before PSN `behind`, which counts for `cost`, follows all that have come and was noted.
    pub fn count_early(&mut self, behind: u32, cost: u64, window: &mut Window) {
        self.holes.iter_mut().for_each(|holes| {
            (holes.end, holes.executed) = (behind, behind);
            holes.out += cost;
            holes.executed_bytes += cost;
        });
        self.acknowledged(cost, window);
    }

    /// Packets of the oldest request that have been executed, and answered, before an answer that was missing; with the
    /// word of an atomic.
    pub fn arrived(&self) -> Option<(u32, Option<u64>)> {
        let (holes, oldest) = (self.holes.as_ref()?, self.oldest()?);
        let at = self.unacknowledged;
        let to = match is_answered(oldest.request.opcode) {
            true => holes.arrived.end_of(at),
            false => Some(holes.executed).filter(|executed| psn::is_before(at, *executed)),
        };
        let left = self.distance(oldest.end_psn());
        Some((self.distance(to?).min(left), holes.arrived.word(at)))
    }

    /// Forgets the answer to `unacknowledged`.
    pub fn forget_arrived(&mut self) {
        let behind = psn::add(self.unacknowledged, 1);
        self.holes.iter_mut().for_each(|holes| holes.arrived.forget_before(behind));
    }

    /// What was sent again may be lost by now.
    pub fn doubt(&mut self) {
        self.holes.iter_mut().for_each(|holes| holes.doubt());
    }

    /// Notes what is missing: answers to what the peer has executed, all before PSN `executed`, and from there on the
    /// `gaps` of its report. What was sent before the last step back counts as unknown. Returns true if something was
    /// found lost.
    pub fn learn(
        &mut self,
        now: Nanos,
        executed: u32,
        gaps: impl Iterator<Item = Gap>,
        timers: &mut Timers,
        window: &mut Window,
    ) -> bool {
        let oldest = self.unacknowledged;
        let mut holes = self.holes.take().unwrap_or_else(|| Box::new(Holes::new(oldest)));
        let is_old = psn::is_before(executed, holes.executed);
        holes.executed = if is_old { holes.executed } else { executed };
        let mut missing = Vec::new();
        let (mut kept, mut at) = (self.unanswered(&holes, &mut missing), holes.executed);
        holes.executed_bytes = kept;
        let limit = |to: u32, next: u32| if psn::is_before(next, to) { next } else { to };
        for gap in gaps.take_while(|_| !is_old) {
            let lost_to = limit(psn::add(at, gap.missing.into()), self.next);
            if lost_to == self.next {
                break;
            }
            missing.push((at, lost_to));
            at = limit(psn::add(lost_to, gap.kept.into()), self.next);
            timers.measure_between(now, lost_to, at, window);
            kept += self.cost_of(lost_to, at, true);
        }
        let end = at;
        let since = window.rtt().smoothed().unwrap_or(0) / 2;
        let again = |resent: &Resent| psn::is_before(resent.next, end) && now >= resent.at + since;
        let lost = holes.update(&missing, end, again);
        let cost_of_lost = |&(from, to): &(u32, u32)| match psn::is_before(from, holes.executed) {
            true => self.cost_of(from, to, false),
            false => self.cost_of_requests(from, to),
        };
        let dropped: u64 = lost.iter().map(cost_of_lost).sum();
        let lost: u64 = lost.iter().map(|&(from, to)| self.cost_of(from, to, false)).sum();
        let unsent = holes.runs.iter().filter(|run| run.resent.is_none());
        let unsent: u64 = unsent.map(|run| self.cost_of(run.from, run.to, false)).sum();
        self.count_out(&mut holes, kept + unsent, lost, window);
        if lost > 0 {
            window.lost_in_part(now, dropped);
            // The time of what is sent again is not that of a round trip.
            timers.spoil_before(end);
        } else {
            timers.measure_between(now, self.unacknowledged, holes.executed, window);
        }
        self.holes = Some(holes);
        lost > 0
    }

    /// Adds to `missing` the answers that have not come to what the peer has executed. Returns the bytes that all else
    /// there counts for.
    fn unanswered(&self, holes: &Holes, missing: &mut Vec<(u32, u32)>) -> u64 {
        let mut at = self.unacknowledged;
        for flight in &self.queue {
            if !psn::is_before(at, holes.executed) {
                break;
            }
            let end = flight.end_psn();
            let end = if psn::is_before(holes.executed, end) { holes.executed } else { end };
            if is_answered(flight.request.opcode) {
                holes.arrived.add_missing(at, end, missing);
            }
            at = end;
        }
        let lost: u64 = missing.iter().map(|&(from, to)| self.cost_of(from, to, false)).sum();
        self.cost_of(self.unacknowledged, at, false).saturating_sub(lost)
    }

    /// An answer is late: the first that is missing before others is asked for once more. Returns false if none is.
    pub fn repeat_first(&mut self, window: &mut Window) -> bool {
        let Some(mut holes) = self.holes.take() else { return false };
        let are_answers = psn::is_before(self.unacknowledged, holes.executed);
        let repeated = if are_answers { holes.repeat_first() } else { None };
        if let Some((from, to)) = repeated {
            let cost = self.cost_of(from, to, false);
            let out = holes.out + cost;
            self.count_out(&mut holes, out, cost, window);
        }
        self.holes = Some(holes);
        repeated.is_some()
    }

    /// Of what is not acknowledged, `out` bytes are not under way now, `lost` of them since they were found lost.
    fn count_out(&mut self, holes: &mut Holes, out: u64, lost: u64, window: &mut Window) {
        let all = self.in_flight + holes.out;
        let out = out.min(all);
        let before = std::mem::replace(&mut self.in_flight, all - out);
        holes.out = out;
        if self.in_flight > before {
            window.sent(self.in_flight - before);
            return;
        }
        let less = before - self.in_flight;
        window.released(lost.min(less));
        window.acknowledged(less - lost.min(less));
    }

    /// `unacknowledged` has moved past packets that counted for `cost`. Returns the part of it that was under way.
    #[cold]
    pub(super) fn settle_holes(&mut self, cost: u64, window: &mut Window) -> u64 {
        let Some(mut holes) = self.holes.take() else { return cost };
        let was_out = cost.min(holes.out);
        holes.out -= was_out;
        holes.executed_bytes = holes.executed_bytes.saturating_sub(was_out);
        if holes.forget_before(self.unacknowledged) {
            self.holes = Some(holes);
        } else {
            // All that is left is under way.
            self.in_flight += holes.out;
            window.sent(holes.out);
        }
        cost - was_out
    }

    /// The first packet that is to be sent again, and the PSN behind its run.
    pub fn next_missing(&self) -> Option<(u32, u32)> {
        self.holes.as_ref().and_then(|holes| holes.next_unsent())
    }

    /// Packets of `flight` that are sent again as one, from PSN `from` on of a run up to `to`. A READ is asked for as
    /// it was, up to its end, unless the peer has executed it.
    pub fn missing_at_once(&self, flight: &Flight, from: u32, to: u32) -> u32 {
        let is_answered = is_answered(flight.request.opcode);
        let is_executed = self.holes.as_ref().is_some_and(|holes| psn::is_before(from, holes.executed));
        let end = match self.reads.iter().find(|end| psn::is_before(from, **end)) {
            Some(end) if is_answered && is_executed && psn::is_before(to, *end) => to,
            Some(end) if is_answered => *end,
            _ => psn::add(from, 1),
        };
        psn::distance(from, end).min(flight.packets - psn::distance(flight.first_psn, from))
    }

    /// Returns true if the packet at `from` may be sent again, which counts for `cost`, of which `sent` are what goes.
    pub fn may_resend(&mut self, now: Nanos, from: u32, (cost, sent): (u64, u64), window: &Window) -> bool {
        // The peer executes nothing before the first, so that no answer would open the window for it.
        self.holes.as_mut().is_some_and(|holes| holes.may_send(now, sent, window))
            && (from == self.unacknowledged || window.admits(self.in_flight, cost))
    }

    /// The packets from the first that is to be sent again up to `to` have been, as [`Flights::may_resend`] says.
    pub fn resent(&mut self, now: Nanos, to: u32, (cost, sent): (u64, u64), window: &mut Window) {
        self.in_flight += cost;
        window.sent(cost);
        let resent = Resent { at: now, next: self.highest };
        self.holes.iter_mut().for_each(|holes| {
            holes.out = holes.out.saturating_sub(cost);
            holes.again += sent;
            holes.sent(to, resent);
        });
    }

    /// Returns true if the peer can keep no more behind what it misses.
    pub fn fill_what_is_kept(&self) -> bool {
        let kept = |holes: &Holes| holes.out.saturating_sub(holes.executed_bytes);
        self.holes.as_ref().is_some_and(|holes| kept(holes) + self.in_flight >= MOST_KEPT)
    }

    /// The number of READs and atomics sent since the last step back that miss an answer; None: nothing is known of
    /// what the peer misses.
    pub fn count_waiting(&self) -> Option<usize> {
        let sent = self.reads.iter().take(self.reads_sent).copied();
        self.holes.as_ref().map(|holes| holes.count_waiting(self.unacknowledged, sent))
    }
}
