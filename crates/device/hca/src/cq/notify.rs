//! The arm of a completion queue: the program's request for one event (`man ibv_req_notify_cq`). The producer of a
//! completion grants it: it marks the arm as being fired, writes the event, and only then takes the arm away. If it is
//! stopped or killed in between, the mark stays, and the next producer, or the owner when it learns of the death,
//! writes the event in its place. The program may then see two events for one completion, which it must expect anyway:
//! an event means that the queue is worth a look.

use crate::arena::layout::{CqShared, arm, watch};
use crate::host::atomic::{Ordering, fence, spin_loop};
use crate::host::barrier;
use crate::host::clock::now_ns;

/// Nanoseconds to wait for another producer that fires: a write to a pipe that wakes a thread takes about 10 µs on a
/// virtual machine.
const PATIENCE_NS: u64 = 20_000;

/// A completion was published: calls `raise` if the program has asked for an event.
pub(crate) fn fire(cq: &CqShared, solicited_or_error: bool, raise: impl FnOnce()) {
    let mut armed = cq.armed.load(Ordering::SeqCst);
    let mut since = 0;
    loop {
        let wanted = armed & !arm::FIRING;
        if wanted == arm::NONE || (wanted == arm::SOLICITED && !solicited_or_error) {
            return;
        }
        if armed & arm::FIRING == 0 {
            match cq.armed.compare_exchange(armed, armed | arm::FIRING, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    armed |= arm::FIRING;
                    break;
                }
                Err(now) => armed = now,
            }
            continue;
        }
        // Another is at it, and its event is as good as ours, for what we have published is there already.
        let now = now_ns();
        since = if since == 0 { now } else { since };
        if now - since > PATIENCE_NS {
            break;
        }
        spin_loop();
        armed = cq.armed.load(Ordering::SeqCst);
    }
    raise();
    // Not over an arm that the program has set anew meanwhile.
    let _ = cq.armed.compare_exchange(armed, arm::NONE, Ordering::SeqCst, Ordering::Relaxed);
}

/// Arms the CQ: an event is raised at the next completion, or the next solicited one. An arm for any completion is not
/// weakened. Returns what the arm was.
pub(crate) fn set(cq: &CqShared, solicited_only: bool) -> u32 {
    if !solicited_only {
        return cq.armed.swap(arm::ANY, Ordering::SeqCst);
    }
    let weaker = |armed| !matches!(armed, arm::ANY | arm::SOLICITED);
    let set = |armed| weaker(armed).then_some(arm::SOLICITED);
    cq.armed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, set).unwrap_or_else(|armed| armed)
}

/// The program asks for an event. `is_untold`, given the rest of its last request, says if there are completions that
/// no event has announced. Returns true if the event is due at once ([`fire`]). The caller holds the CQ's queue, as it
/// does for [`forget`].
pub(crate) fn ask(cq: &CqShared, solicited_only: bool, is_untold: impl FnOnce(u32) -> bool) -> bool {
    if cq.watch.load(Ordering::Relaxed) & watch::EVENTS == 0 {
        cq.watch.fetch_or(watch::EVENTS, Ordering::SeqCst);
        // From here on every producer looks at the request below, or has published before it.
        barrier::heavy();
    }
    let armed = set(cq, solicited_only);
    fence(Ordering::SeqCst);
    is_untold(armed) && !solicited_only
}

/// The program polls, and has asked for no event for a long time: until it does, producers do not look for a request,
/// which spares them a barrier. The caller holds the CQ's queue.
#[cold]
pub(crate) fn forget(cq: &CqShared) {
    if cq.armed.load(Ordering::Relaxed) == arm::NONE && cq.watch.load(Ordering::Relaxed) & watch::EVENTS != 0 {
        cq.watch.fetch_and(!watch::EVENTS, Ordering::Relaxed);
    }
}

/// Polls after which it is looked what a program does instead of asking for events.
const LOOK_AFTER: u32 = 1 << 12;
/// A program that polls is taken for one that goes on so after as many looks, however little it finds: it may poll for
/// a while before it sleeps, each time. One that finds something every other time pays for the look at its request with
/// each completion, and to ask again costs what some thousand such looks do (`barrier::heavy`).
const LOOKS: u32 = 16;

/// The program's calls since its last event. They decide if it gets an event for completions that came before it asked.
pub(crate) struct SinceEvent {
    /// Polls until the next look, and looks that there have been, since it got or asked for an event.
    polls_left: u32,
    looks: u32,
    /// [`found`](crate::host::tid::found) of its thread at the last look.
    found: u32,
    /// It has asked since it got one.
    asked: bool,
}

impl Default for SinceEvent {
    fn default() -> Self {
        SinceEvent { polls_left: LOOK_AFTER, looks: 0, found: 0, asked: false }
    }
}

impl SinceEvent {
    /// Counts a poll. Returns true if it is time for a [look](SinceEvent::look).
    #[inline(always)]
    pub(crate) fn polled(&mut self) -> bool {
        self.polls_left -= 1;
        self.polls_left == 0
    }

    /// Looks at the thread that polls, which has found completions in `found` polls of any CQ. Returns true if it polls
    /// instead of asking for events: [`forget`].
    pub(crate) fn look(&mut self, found: u32) -> bool {
        let finds = found.wrapping_sub(std::mem::replace(&mut self.found, found)) >= LOOK_AFTER / 2;
        (self.polls_left, self.looks) = (LOOK_AFTER, self.looks.saturating_add(1));
        finds || self.looks >= LOOKS
    }

    /// Polls since the program got or asked for an event.
    pub(crate) fn polls(&self) -> u64 {
        u64::from(self.looks) * u64::from(LOOK_AFTER) + u64::from(LOOK_AFTER - self.polls_left)
    }

    fn has_polled(&self) -> bool {
        self.polls_left < LOOK_AFTER || self.looks > 0
    }

    fn begin(&mut self, asked: bool) {
        *self = SinceEvent { asked, found: self.found, ..SinceEvent::default() };
    }

    pub(crate) fn event_got(&mut self) {
        self.begin(false);
    }

    /// The program asks for an event; `armed` is the rest of its request before. Returns true if completions that the
    /// queue `holds` came since the program looked, and no event has announced them.
    pub(crate) fn is_untold(&mut self, armed: u32, holds: impl FnOnce() -> bool) -> bool {
        let (polled, asked) = (self.has_polled(), self.asked);
        self.begin(true);
        let granted = asked && (armed == arm::NONE || armed & arm::FIRING != 0);
        polled && !granted && holds()
    }
}

/// A producer has died. It may have been firing, or have published a completion that nobody was told of: `waiting`
/// says that some are there.
pub(crate) fn rescue(cq: &CqShared, waiting: bool, raise: impl FnOnce()) {
    let armed = cq.armed.load(Ordering::SeqCst);
    if armed & arm::FIRING != 0 || (armed != arm::NONE && waiting) {
        raise();
        let _ = cq.armed.compare_exchange(armed, arm::NONE, Ordering::SeqCst, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    fn cq(armed: u32) -> Box<CqShared> {
        // SAFETY: a struct of atomic integers, for which zeros are valid.
        let cq: Box<CqShared> = unsafe { Box::new(std::mem::zeroed()) };
        cq.armed.store(armed, Ordering::Relaxed);
        cq
    }

    fn fired(cq: &CqShared, solicited: bool) -> u32 {
        let n = AtomicU32::new(0);
        fire(cq, solicited, || _ = n.fetch_add(1, Ordering::Relaxed));
        n.into_inner()
    }

    fn armed(cq: &CqShared) -> u32 {
        cq.armed.load(Ordering::Relaxed)
    }

    #[test]
    fn one_arm_is_one_event() {
        let q = cq(arm::ANY);
        assert_eq!((fired(&q, false), armed(&q), fired(&q, false)), (1, arm::NONE, 0));
        let q = cq(arm::SOLICITED);
        assert_eq!((fired(&q, false), armed(&q)), (0, arm::SOLICITED));
        assert_eq!((fired(&q, true), armed(&q)), (1, arm::NONE));
    }

    #[test]
    fn the_arm_that_the_program_sets_while_an_event_is_written_stays() {
        let q = cq(arm::SOLICITED);
        fire(&q, true, || _ = set(&q, false));
        assert_eq!(armed(&q), arm::ANY);
        fire(&q, true, || _ = set(&q, true));
        assert_eq!((armed(&q), fired(&q, true)), (arm::SOLICITED, 1));
    }

    #[test]
    fn a_wish_for_any_completion_is_not_weakened() {
        let q = cq(arm::NONE);
        set(&q, false);
        set(&q, true);
        assert_eq!(armed(&q), arm::ANY);
    }

    #[test]
    fn the_next_producer_fires_for_one_that_was_stopped() {
        let q = cq(arm::ANY | arm::FIRING);
        assert_eq!((fired(&q, false), armed(&q)), (1, arm::NONE));
        let q = cq(arm::SOLICITED | arm::FIRING);
        assert_eq!((fired(&q, false), armed(&q)), (0, arm::SOLICITED | arm::FIRING));
        assert_eq!((fired(&q, true), armed(&q)), (1, arm::NONE));
    }

    #[test]
    fn the_program_arms_over_one_that_was_stopped() {
        let q = cq(arm::ANY | arm::FIRING);
        set(&q, true);
        assert_eq!((armed(&q), fired(&q, true)), (arm::SOLICITED, 1));
    }

    #[test]
    fn the_owner_fires_for_one_that_died() {
        for (before, waiting, events) in [
            (arm::NONE, true, 0),
            (arm::ANY, false, 0),
            (arm::ANY, true, 1),
            (arm::ANY | arm::FIRING, false, 1),
            (arm::SOLICITED | arm::FIRING, true, 1),
        ] {
            let q = cq(before);
            let mut n = 0;
            rescue(&q, waiting, || n += 1);
            assert_eq!(n, events, "arm {before}, waiting {waiting}");
            assert!(events == 0 || armed(&q) == arm::NONE);
        }
    }

    #[test]
    fn a_request_is_not_forgotten_while_it_stands() {
        let q = cq(arm::NONE);
        assert!(!ask(&q, false, |_| false));
        forget(&q);
        assert_eq!(q.watch.load(Ordering::Relaxed), watch::EVENTS);
        assert_eq!(fired(&q, false), 1);
        forget(&q);
        assert_eq!(q.watch.load(Ordering::Relaxed), 0);
        assert!(!ask(&q, true, |_| true), "not for what may be unsolicited");
        assert_eq!((q.watch.load(Ordering::Relaxed), armed(&q)), (watch::EVENTS, arm::SOLICITED));
    }

    #[test]
    fn a_program_that_polls_is_seen_to_after_what_it_finds() {
        // Polls until it is taken for one that polls, which finds something in `percent` of them.
        let polls = |since: &mut SinceEvent, percent: u64| {
            (1u64..).find(|n| since.polled() && since.look((n * percent / 100) as u32)).expect("at last")
        };
        for (percent, expected) in [(100, LOOK_AFTER), (60, LOOK_AFTER), (0, LOOKS * LOOK_AFTER)] {
            let mut since = SinceEvent::default();
            assert_eq!(polls(&mut since, percent), u64::from(expected), "{percent} %");
            since.event_got();
            assert!(!since.has_polled() && !since.polled() && since.has_polled());
        }
    }

    #[test]
    fn many_producers_never_lose_the_event() {
        let q = cq(arm::NONE);
        let events = AtomicU32::new(0);
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        fire(&q, true, || _ = events.fetch_add(1, Ordering::SeqCst));
                    }
                });
            }
            for _ in 0..2_000 {
                let before = events.load(Ordering::SeqCst);
                set(&q, false);
                // Somebody always produces, so every arm is granted; a lost one would hang here.
                while events.load(Ordering::SeqCst) == before {
                    std::thread::yield_now();
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(armed(&q) & arm::FIRING, 0);
    }
}
