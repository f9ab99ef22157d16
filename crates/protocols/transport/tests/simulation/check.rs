//! The invariants while and after a simulation runs, beyond those that the hosts check call by call.

use vervain_transport::Status;

use crate::plan::{Misdeed, Op};
use crate::world::World;

impl World {
    /// The QP has nothing more to do.
    pub fn finished(&self, index: usize) -> bool {
        self.ends[index].dead || self.ends[index].send.finished()
    }

    /// Which QPs are not done, for the message of a failure.
    pub fn unfinished(&self) -> String {
        let open = |index: &usize| !self.finished(*index);
        let tell = |index: usize| {
            let send = &self.ends[index].send;
            let op = send.script.get(send.completed).map(|op| op.request.opcode);
            format!("QP {index}: {} of {} posted {} next {op:?}", send.completed, send.script.len(), send.posted)
        };
        (0..self.ends.len()).filter(open).map(tell).collect::<Vec<_>>().join("; ")
    }

    /// Looks at what a requester has completed since the last time.
    pub fn judge(&mut self, index: usize) {
        let end = &self.ends[index];
        if end.judged == end.send.completed && end.send.failed.is_none() {
            return;
        }
        let target = &self.ends[end.peer].target;
        let send = &end.send;
        if target.service.reliable() {
            assert!(
                send.completed <= target.progress(),
                "request {} is done at the requester, but only {} are at the responder",
                send.completed - 1,
                target.progress()
            );
            for done in end.judged..send.completed {
                if send.script[done].atomic() {
                    let found = target.found.get(&done).copied();
                    assert_eq!(
                        Some(send.fetched_word(done)),
                        found,
                        "atomic {done} returned another word than it found"
                    );
                }
            }
        }
        self.ends[index].judged = self.ends[index].send.completed;
        if let Some(status) = self.ends[index].send.failed
            && !self.ends[index].dead
        {
            self.check_failure(index, status);
            self.kill(index);
        }
        if !self.ends[index].posting && self.ends[index].send.has_place() {
            self.ends[index].posting = true;
            self.post_later(index);
        }
    }

    /// A request may only fail for a reason, and with the status that says so.
    fn check_failure(&self, index: usize, status: Status) {
        let end = &self.ends[index];
        let peer = &self.ends[end.peer];
        let op: &Op = &end.send.script[end.send.completed];
        let told = op.misdeed.is_some_and(|misdeed| misdeed.statuses().contains(&status));
        let lost = status == Status::RetryExceeded && (!self.plan.mild || peer.dead);
        let receives = if peer.target.service.shared() {
            self.hosts[peer.plan.host].shared.receives.plan
        } else {
            peer.target.own.plan
        };
        let unready =
            status == Status::RnrRetryExceeded && end.plan.rnr_retries < 7 && op.receives() && receives.scarce();
        assert!(
            told || lost || unready,
            "request {} ({:?}, {:?}) failed with {status:?}, for no reason",
            end.send.completed,
            op.request.opcode,
            op.misdeed
        );
        // A READ asked for again whose memory is gone is refused, but does not end the peer: docs/protocol.md.
        if told && !matches!(op.misdeed, Some(Misdeed::Local | Misdeed::Gone)) {
            assert!(peer.target.failed, "the peer refused request {} and does not know", end.send.completed);
        }
    }

    /// After everything: nothing waits, no window is held, memory is the model's.
    pub fn check_end(&self) {
        self.check_rings();
        for (index, end) in self.ends.iter().enumerate() {
            if end.target.service.reliable() {
                end.target.check_memory();
            }
            // Data in a ring that is not emptied any more makes no room for it.
            let is_stuck = self.plan.rings.is_some() && self.hosts[self.ends[end.peer].plan.host].stopped;
            let speaks = !end.dead || end.target.failed && !self.hosts[end.plan.host].stopped;
            assert!(
                is_stuck || !speaks || !end.responder.has_ack_due(),
                "QP {index}: something is to be said for ever"
            );
            if end.dead {
                continue;
            }
            let peer = &self.ends[end.peer];
            let is_whole = !peer.dead && end.target.service.reliable();
            assert!(!is_whole || !end.target.has_claimed(), "QP {index}: a receive is claimed for no message");
            assert!(end.requester.is_idle(), "QP {index}: all is done, but the requester is not idle");
            assert_eq!(end.requester.next_timeout(), None, "QP {index}: an idle requester waits for a time");
        }
        for (index, host) in self.hosts.iter().enumerate().filter(|(_, host)| !host.stopped) {
            let ends = || host.ends.iter().map(|end| &self.ends[*end]);
            if ends().all(|end| !end.dead && !self.ends[end.peer].dead) {
                assert_eq!(host.kept.0.left(), host.kept.1, "host {index}: packets are kept for ever");
            }
            for (to, window) in host.windows.iter().enumerate() {
                assert_eq!(window.in_flight(), 0, "host {index}: bytes stay in flight to host {to}");
            }
        }
    }
}
