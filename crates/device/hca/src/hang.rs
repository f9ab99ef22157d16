//! Reports of hangs (DESIGN decision 11): waits of QPs and CQs that do not end. With `VERVAIN_LOG=info` each such wait
//! is reported after 1 s; if no level was chosen only the first, after 10 s or when the program exits.
//!
//! Posting and polling record nothing for this. The progress thread looks once a second at the contents of the queues,
//! and a wait is as old as the first look that found it. Looks begin when a QP becomes ready to send. Without `info`
//! they end 15 s after the last one that found a change, for an idle program costs nothing (DESIGN decision 10), and
//! begin again when something else wakes the thread.

use crate::cq::Cq;
use crate::cq::facts::CqFacts;
use crate::host::clock::now_ns;
use crate::host::lock::OwnerLock;
use crate::process::Process;
use crate::process::poller::EventHandler;
use crate::qp::facts::QpFacts;
use crate::qp::table::QpTable;
use crate::reasons::{self, Waits};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use vervain_iba::{Opcode, QpState};

/// From one look to the next.
const LOOK_NS: u64 = 1_000_000_000;
/// Age of a wait that is reported.
const ALL_AFTER_NS: u64 = 1_000_000_000;
const FIRST_AFTER_NS: u64 = 10_000_000_000;
/// After so long without a change the looks end: later than any wait is reported.
const REST_AFTER_NS: u64 = 15_000_000_000;
/// No look is due.
const NEVER: u64 = u64::MAX;

/// The waits of the process that the library serves.
static WAITS: OwnerLock<Known> = OwnerLock::new(Known::new());

/// A wait that does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wait {
    /// A send, the `request`th of its QP, waits for a receive of the peer's.
    Receive { qpn: u32, dest_qpn: u32, opcode: Opcode, rnr_retry: u8, request: u32 },
    /// The program waits for the completion of sends that were to make none. `is_sure`: nothing that it has posted is
    /// outstanding.
    Unsignaled { qpn: u32, sends: u32, is_sure: bool },
    /// A CQ, at this address, holds completions, and the program has never polled it.
    Unpolled { cq: usize, qpn: u32, holds: u64 },
    /// A CQ holds completions, and after its last event the program has not asked for another; nor does it poll.
    Unarmed { cq: usize, qpn: u32, events: u32, polls: u64, holds: u64 },
}

/// The part of a wait that stays the same as long as it goes on.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Receive { qpn: u32, dest_qpn: u32, request: u32 },
    Unsignaled { qpn: u32, sends: u32 },
    Unpolled { cq: usize },
    Unarmed { cq: usize, events: u32, polls: u64 },
}

impl Wait {
    /// The key by which the next look recognises it. Completions are not in it: a CQ that is not polled may get more.
    fn key(&self) -> Key {
        match *self {
            Wait::Receive { qpn, dest_qpn, request, .. } => Key::Receive { qpn, dest_qpn, request },
            Wait::Unsignaled { qpn, sends, .. } => Key::Unsignaled { qpn, sends },
            Wait::Unpolled { cq, .. } => Key::Unpolled { cq },
            Wait::Unarmed { cq, events, polls, .. } => Key::Unarmed { cq, events, polls },
        }
    }

    /// Returns true if no correct program waits so: one that signals few of its sends polls for them too while it waits
    /// for a message.
    fn is_sure(&self) -> bool {
        !matches!(self, Wait::Unsignaled { is_sure: false, .. })
    }

    /// The message about it after `ns` nanoseconds.
    fn sentence(&self, ns: u64) -> String {
        let s = ns / 1_000_000_000;
        match self {
            Wait::Receive { qpn, dest_qpn, opcode, rnr_retry, .. } => {
                let for_ever = if *rnr_retry == 7 { ", and rnr_retry 7 waits for ever" } else { "" };
                format!(
                    "QP {qpn:#x}, {opcode} to QP {dest_qpn:#x}: has waited {s} s for a receive: the peer has posted none{for_ever}"
                )
            }
            Wait::Unsignaled { qpn, sends, .. } => {
                format!(
                    "QP {qpn:#x}: {} done without a completion: no IBV_SEND_SIGNALED and sq_sig_all 0",
                    count(*sends, "send")
                )
            }
            Wait::Unpolled { qpn, holds, .. } => {
                format!("the CQ of QP {qpn:#x} was never polled: it holds {}", count(*holds, "completion"))
            }
            Wait::Unarmed { qpn, holds, .. } => format!(
                "the CQ of QP {qpn:#x} holds {} for {s} s and is not polled, and there will be no event: ibv_req_notify_cq was \
                 not called again after the last one",
                count(*holds, "completion")
            ),
        }
    }
}

fn count(n: impl Into<u64>, what: &str) -> String {
    let n = n.into();
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The findings of one look.
#[derive(Default)]
struct Look {
    /// QPs that can send, with the addresses of the CQs of their sends.
    qps: Vec<(QpFacts, Option<usize>)>,
    /// CQs by address, each with the number of the first QP that reports there, which names it.
    cqs: BTreeMap<usize, (u32, CqFacts)>,
    /// Sends that wait and receives that are posted, of all QPs: more completions may come by themselves.
    outstanding: u64,
}

impl Look {
    /// Looks at QPs and their CQs. Waits for nobody.
    fn at(process: &Process) -> Look {
        let mut look = Look::default();
        let Ok(table) = QpTable::of(process) else { return look };
        for qp in table.try_all() {
            let Some(facts) = QpFacts::of(&qp) else { continue };
            look.outstanding += u64::from(facts.waiting) + facts.receives;
            if qp.state() == QpState::Rts && !qp.is_stopped() {
                let send_cq = look.add_cq(qp.send_cq(), facts.qpn);
                look.add_cq(qp.recv_cq(), facts.qpn);
                look.qps.push((facts, send_cq));
            }
        }
        look
    }

    /// Looks at a CQ to which `qpn` reports, unless it has been looked at; its address.
    fn add_cq(&mut self, cq: Option<&Arc<Cq>>, qpn: u32) -> Option<usize> {
        let cq = cq?;
        let at = Arc::as_ptr(cq).addr();
        if let Entry::Vacant(new) = self.cqs.entry(at) {
            new.insert((qpn, cq.facts()?));
        }
        Some(at)
    }

    /// A number that changes with each request, receive and completion, but not with empty polls.
    fn progress(&self) -> u64 {
        let qps = self.qps.iter().map(|(qp, _)| u64::from(qp.done) + 1);
        let rest = self.cqs.values().map(|(_, cq)| cq.holds).chain([self.outstanding]);
        qps.chain(rest).fold(0_u64, |sum, n| sum.wrapping_mul(31).wrapping_add(n))
    }

    /// The waits of this look. `is_awaited` says of the CQ at an address that the program polls it or sleeps for its
    /// event.
    fn waits(&self, is_awaited: impl Fn(usize, &CqFacts) -> bool) -> Vec<Wait> {
        let sends = self.qps.iter().filter_map(|(qp, cq)| {
            if let Some(opcode) = qp.not_ready {
                let QpFacts { qpn, dest_qpn, rnr_retry, done, .. } = *qp;
                return Some(Wait::Receive { qpn, dest_qpn, opcode, rnr_retry, request: done });
            }
            let (at, (_, cq)) = cq.and_then(|at| Some((at, self.cqs.get(&at)?)))?;
            let is_silent = qp.done > 0 && qp.completed == 0 && qp.waiting == 0 && !qp.sq_sig_all;
            let (qpn, sends, is_sure) = (qp.qpn, qp.done, self.outstanding == 0);
            (is_silent && cq.holds == 0 && is_awaited(at, cq)).then_some(Wait::Unsignaled { qpn, sends, is_sure })
        });
        let cqs = self.cqs.iter().filter_map(|(&cq, &(qpn, ref facts))| {
            let &CqFacts { holds, polls, was_in_vain, is_armed, events } = facts;
            match () {
                () if holds == 0 => None,
                () if events > 0 && !is_armed => Some(Wait::Unarmed { cq, qpn, events, polls, holds }),
                () if events == 0 && polls == 0 && !was_in_vain => Some(Wait::Unpolled { cq, qpn, holds }),
                () => None,
            }
        });
        sends.chain(cqs).collect()
    }
}

/// A wait, the first look that found it, and whether it was reported.
struct Lasting {
    wait: Wait,
    since: u64,
    reported: bool,
}

/// The state that is kept between looks.
struct Known {
    waits: BTreeMap<Key, Lasting>,
    /// Polls of each CQ.
    polls: BTreeMap<usize, u64>,
    /// [`Look::progress`], and when it changed last.
    progress: u64,
    changed: u64,
    /// A wait was reported.
    has_reported: bool,
}

impl Known {
    const fn new() -> Known {
        Known { waits: BTreeMap::new(), polls: BTreeMap::new(), progress: 0, changed: 0, has_reported: false }
    }

    /// Takes a look in.
    fn take(&mut self, look: &Look, now: u64) {
        let progress = look.progress();
        if progress != self.progress {
            (self.progress, self.changed) = (progress, now);
        }
        // A program that polled when its wait was found waits on while nothing changes, however seldom it polls.
        let is_known = |qp: &QpFacts| self.waits.contains_key(&Key::Unsignaled { qpn: qp.qpn, sends: qp.done });
        let known: BTreeSet<_> = look.qps.iter().filter(|(qp, _)| is_known(qp)).filter_map(|(_, cq)| *cq).collect();
        let found = look.waits(|at, cq| {
            let polls = self.polls.get(&at).copied().unwrap_or_default();
            polls != cq.polls || cq.is_armed || known.contains(&at)
        });
        let mut old = std::mem::take(&mut self.waits);
        self.waits.extend(found.into_iter().map(|wait| {
            let (since, reported) = old.remove(&wait.key()).map_or((now, false), |known| (known.since, known.reported));
            (wait.key(), Lasting { wait, since, reported })
        }));
        self.polls = look.cqs.iter().map(|(at, (_, cq))| (*at, cq.polls)).collect();
    }

    /// The sentences that are due now, of waits that have lasted `after`.
    fn due(&mut self, asked: Waits, now: u64, after: u64) -> Vec<String> {
        let mut sentences = Vec::new();
        for known in self.waits.values_mut() {
            let is_wanted = match asked {
                Waits::All => true,
                Waits::First => known.wait.is_sure() && !self.has_reported,
                Waits::None => false,
            };
            let lasted = now.saturating_sub(known.since);
            if is_wanted && !known.reported && lasted >= after {
                (known.reported, self.has_reported) = (true, true);
                sentences.push(known.wait.sentence(lasted));
            }
        }
        sentences
    }
}

/// The looks of the progress thread.
pub struct Watch {
    /// When the next is due (CLOCK_MONOTONIC, ns).
    next: AtomicU64,
}

impl Watch {
    /// Begins to watch the process that is being made.
    pub fn begin() -> Watch {
        static ONCE: Once = Once::new();
        // SAFETY: a function of this library, which takes nothing and returns.
        ONCE.call_once(|| _ = unsafe { libc::atexit(at_exit) });
        // A forked child has the waits of its parent.
        *WAITS.lock() = Known::new();
        Watch { next: AtomicU64::new(NEVER) }
    }
}

impl EventHandler for Watch {
    fn qp_is_ready(&self, process: &Process) {
        if self.next.load(Ordering::Relaxed) == NEVER && reasons::waits_to_report() != Waits::None {
            self.next.store(now_ns() + LOOK_NS, Ordering::Relaxed);
            process.wake_progress();
        }
    }

    fn deadline(&self) -> Option<u64> {
        Some(self.next.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    fn handle_events(&self, process: &'static Process) {
        let (now, next) = (now_ns(), self.next.load(Ordering::Relaxed));
        if next != NEVER && now < next {
            return;
        }
        let asked = reasons::waits_to_report();
        let after = match asked {
            Waits::All => ALL_AFTER_NS,
            Waits::First => FIRST_AFTER_NS,
            Waits::None => return self.next.store(NEVER, Ordering::Relaxed),
        };
        let mut known = WAITS.lock();
        if next == NEVER {
            // Something has woken the thread.
            known.changed = now;
            return self.next.store(now + LOOK_NS, Ordering::Relaxed);
        }
        known.take(&Look::at(process), now);
        let due = known.due(asked, now, after);
        let rests = asked == Waits::First && now.saturating_sub(known.changed) >= REST_AFTER_NS;
        drop(known);
        self.next.store(if rests { NEVER } else { now + LOOK_NS }, Ordering::Relaxed);
        due.iter().for_each(|why| reasons::tell_of_wait(why));
    }
}

/// The program exits, perhaps because it has waited for long enough.
extern "C" fn at_exit() {
    let Some(process) = Process::current().filter(|process| process.is_current()) else { return };
    // The progress thread, which may have it, waits for no lock that this thread may hold.
    if WAITS.raw().held_by_me() {
        return;
    }
    let mut known = WAITS.lock();
    let now = now_ns();
    known.take(&Look::at(process), now);
    let due = known.due(reasons::waits_to_report(), now, ALL_AFTER_NS);
    drop(known);
    due.iter().for_each(|why| reasons::tell_of_wait(why));
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const CQ: usize = 64;

    /// A QP that has done `done` sends, none of which made a completion, and has posted nothing else.
    fn qp(done: u32) -> QpFacts {
        QpFacts {
            qpn: 0x11,
            dest_qpn: 0x12,
            rnr_retry: 7,
            sq_sig_all: false,
            waiting: 0,
            done,
            completed: 0,
            not_ready: None,
            receives: 0,
        }
    }

    fn look(qp: QpFacts, facts: CqFacts) -> Look {
        let outstanding = u64::from(qp.waiting) + qp.receives;
        Look { cqs: BTreeMap::from([(CQ, (qp.qpn, facts))]), qps: vec![(qp, Some(CQ))], outstanding }
    }

    fn polled(polls: u64) -> CqFacts {
        CqFacts { polls, was_in_vain: true, ..CqFacts::default() }
    }

    fn sentences(look: &Look, is_awaited: bool) -> Vec<String> {
        look.waits(|_, _| is_awaited).iter().map(|wait| wait.sentence(12 * S)).collect()
    }

    #[test]
    fn each_wait_has_its_sentence() {
        let refused = || QpFacts { waiting: 1, not_ready: Some(Opcode::Send), ..qp(4) };
        let waits = "QP 0x11, Send to QP 0x12: has waited 12 s for a receive: the peer has posted none";
        assert_eq!(sentences(&look(refused(), polled(5)), true), [format!("{waits}, and rnr_retry 7 waits for ever")]);
        assert_eq!(sentences(&look(QpFacts { rnr_retry: 6, ..refused() }, polled(5)), true), [waits]);
        assert_eq!(
            sentences(&look(qp(1), polled(5)), true),
            ["QP 0x11: 1 send done without a completion: no IBV_SEND_SIGNALED and sq_sig_all 0"]
        );
        let holding = |holds| CqFacts { holds, ..CqFacts::default() };
        assert_eq!(
            sentences(&look(QpFacts { completed: 3, ..qp(3) }, holding(3)), false),
            ["the CQ of QP 0x11 was never polled: it holds 3 completions"]
        );
        assert_eq!(
            sentences(&look(QpFacts { completed: 2, ..qp(2) }, CqFacts { events: 1, polls: 2, ..holding(1) }), false),
            ["the CQ of QP 0x11 holds 1 completion for 12 s and is not polled, and there will be no event: \
                 ibv_req_notify_cq was not called again after the last one"]
        );
    }

    #[test]
    fn who_may_get_what_it_waits_for_does_not_hang() {
        for (what, qp, cq, is_awaited) in [
            ("nothing was posted", qp(0), polled(5), true),
            ("a send is under way", QpFacts { waiting: 1, ..qp(1) }, polled(5), true),
            ("it signals now and then", QpFacts { completed: 1, ..qp(9) }, polled(5), true),
            ("all are signaled", QpFacts { sq_sig_all: true, ..qp(1) }, polled(5), true),
            ("it waits for no completion", qp(1), polled(5), false),
            (
                "it has polled, and will again",
                QpFacts { completed: 1, ..qp(1) },
                CqFacts { holds: 1, ..polled(5) },
                true,
            ),
            (
                "it is armed",
                QpFacts { completed: 1, ..qp(1) },
                CqFacts { holds: 1, events: 1, is_armed: true, ..polled(5) },
                true,
            ),
        ] {
            assert_eq!(look(qp, cq).waits(|_, _| is_awaited), [], "{what}");
        }
        // Perhaps its peer has nothing to ask for.
        let server = look(QpFacts { receives: 1, ..qp(1) }, polled(5)).waits(|_, _| true);
        assert!(server.len() == 1 && !server[0].is_sure(), "{server:?}");
        let sure = look(qp(1), polled(5)).waits(|_, _| true);
        assert!(sure.len() == 1 && sure[0].is_sure(), "{sure:?}");
    }

    /// Looks at a program each second, whose state after so many is `state`; the seconds at which something is
    /// reported.
    fn reports(asked: Waits, after: u64, state: impl Fn(u64) -> Look) -> Vec<u64> {
        let mut known = Known::new();
        let due = |at: &u64| {
            known.take(&state(*at), at * S);
            !known.due(asked, at * S, after).is_empty()
        };
        (1..30).filter(due).collect()
    }

    #[test]
    fn a_wait_is_reported_once_when_it_has_lasted() {
        let refused = |done| QpFacts { waiting: 1, not_ready: Some(Opcode::Send), ..qp(done) };
        let hangs = |_| look(refused(4), polled(0));
        assert_eq!(reports(Waits::All, ALL_AFTER_NS, hangs), [2]);
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, hangs), [11]);
        assert_eq!(reports(Waits::None, FIRST_AFTER_NS, hangs), [0; 0]);
        // Each is another request.
        let slow = |at: u64| look(refused(at as u32 / 5), polled(0));
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, slow), [0; 0]);
        assert_eq!(reports(Waits::All, ALL_AFTER_NS, slow), [2, 6, 11, 16, 21, 26]);
    }

    #[test]
    fn a_poller_is_known_by_its_polls() {
        // Polled between the first looks only, as by a program that naps, or not at all.
        let polls = |most| move |at: u64| look(qp(1), polled(at.min(most)));
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, polls(29)), [11]);
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, polls(1)), [11]);
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, polls(0)), [0; 0]);
        // A CQ that may belong to a server is reported only at the level `info`.
        let server = |at| look(QpFacts { receives: 1, ..qp(1) }, polled(at));
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, server), [0; 0]);
        assert_eq!(reports(Waits::All, ALL_AFTER_NS, server), [2]);
    }

    #[test]
    fn a_queue_that_fills_is_the_same_wait() {
        let fills = |at: u64| {
            look(QpFacts { completed: at as u32, ..qp(at as u32) }, CqFacts { holds: at, ..CqFacts::default() })
        };
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, fills), [11]);
    }

    /// The progress thread looks, for whom peers wait: where each QP was compared with each, this took minutes.
    #[test]
    fn many_qps_are_looked_at_as_fast_each_as_few() {
        const QPS: u32 = 100_000;
        let mut known = Known::new();
        for at in 1..=3 {
            let cqs = BTreeMap::from([(CQ, (0, polled(1)))]);
            let qps = (0..QPS).map(|qpn| (QpFacts { qpn, ..qp(1) }, Some(CQ))).collect();
            known.take(&Look { cqs, qps, outstanding: 0 }, at * S);
        }
        assert_eq!(known.waits.len(), QPS as usize);
        assert!(known.waits.values().all(|lasting| lasting.since == S));
    }

    #[test]
    fn both_queues_of_a_qp_are_reported() {
        let hangs = |_| {
            let holding = || (0x11, CqFacts { holds: 1, ..CqFacts::default() });
            Look { cqs: BTreeMap::from([(CQ, holding()), (2 * CQ, holding())]), ..Look::default() }
        };
        assert_eq!(reports(Waits::First, FIRST_AFTER_NS, hangs), [11]);
        let mut known = Known::new();
        (1..3).for_each(|at| known.take(&hangs(at), at * S));
        assert_eq!(known.due(Waits::All, 2 * S, ALL_AFTER_NS).len(), 2);
    }

    #[test]
    fn progress_is_what_requests_and_completions_make() {
        let of = |qp, cq| look(qp, cq).progress();
        assert_eq!(of(qp(1), polled(1)), of(qp(1), polled(2)));
        assert_ne!(of(qp(1), polled(1)), of(qp(2), polled(1)));
        assert_ne!(of(qp(1), polled(1)), of(QpFacts { receives: 1, ..qp(1) }, polled(1)));
        assert_ne!(of(qp(1), polled(1)), of(qp(1), CqFacts { holds: 1, ..polled(1) }));
    }
}
