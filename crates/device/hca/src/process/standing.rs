//! Standing still: a context, or the process as a whole, is stopped by one store to its switch, and goes on by another.
//! When [`Process::stop`] returns, nobody is in flight into its QPs, none of its threads carries out send work, and
//! nothing of its own lies with an owner: nothing moves, and nothing is between two processes. Unlike a revocation it
//! takes nothing away, so it cuts nobody off: where somebody stands inside for longer than the patience, all goes on as
//! if nothing had been.

use crate::arena::layout::{Lane, QpShared, Switch};
use crate::error::{Error, Result};
use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::process::Process;
use crate::process::gate::{self, Standing};
use crate::process::rendezvous::SavedProcess;
use crate::process::send_work::{SendWork, Settled};
use crate::process::switches::{OF_PROCESS, PATIENCE_NS};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Looks, some 70 µs apart, that find it so besides: a job that was stopped as a whole goes on together.
const LOOKS: u32 = 100;
/// Looks without a pause, at first.
const SPINS: u32 = 1000;
const NAP: Duration = Duration::from_micros(20);
/// QPs that are named when they keep a stop waiting.
const NAMED: usize = 4;

/// Waits until something is so.
struct Wait {
    until: u64,
    looks: u32,
}

impl Wait {
    fn new(patience: u64) -> Wait {
        Wait { until: now_ns().saturating_add(patience), looks: 0 }
    }

    /// Looks again and again; false when the patience is over.
    fn for_it(&mut self, mut is_so: impl FnMut() -> bool) -> bool {
        loop {
            if is_so() {
                return true;
            }
            self.looks += 1;
            if self.looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            if self.looks > SPINS + LOOKS && now_ns() > self.until {
                return false;
            }
            nap(NAP);
        }
    }
}

impl Process {
    /// Stops what has switch `number`: a context, or by [`OF_PROCESS`] all contexts. EALREADY if that was done before,
    /// ETIMEDOUT if somebody is still inside after `patience` nanoseconds; then nothing is stopped.
    pub(crate) fn stop(&self, number: usize, patience: u64) -> Result<()> {
        let _one_at_a_time = self.switches.one_at_a_time();
        if !self.switches.stop(number) {
            return Err(Error::new(libc::EALREADY, format!("{} is stopped already", name_of(number))));
        }
        let stood = self.come_to_rest(number, patience);
        if stood.is_err() {
            self.switches.go(number);
            self.went();
        }
        stood
    }

    /// The end of a stop. EALREADY if there is none.
    pub(crate) fn go(&self, number: usize) -> Result<()> {
        let _one_at_a_time = self.switches.one_at_a_time();
        let was_saved = self.switches.is_any_saved();
        if !self.switches.go(number) {
            return Err(Error::new(libc::EALREADY, format!("{} is not stopped", name_of(number))));
        }
        if was_saved && !self.switches.is_any_saved() {
            // An image that was made until now is that of another past.
            self.rendezvous.tell_save_is_over();
        }
        self.went();
        Ok(())
    }

    /// Lets all operations go on that waited for it, here and in peers.
    fn went(&self) {
        for number in self.switches.take_requests() {
            self.own.raise(number);
        }
        self.rendezvous.tell_go();
        self.hand_over();
        self.wake_for_packets();
    }

    /// Notes that the context of switch `number`, which stands still, or the process, was saved. Notifies the peers,
    /// which wait for it for `suspense` seconds when it ends, for 600 if that is 0.
    pub(crate) fn mark_saved(&self, number: usize, suspense: u32) -> Result<SavedProcess> {
        let _one_at_a_time = self.switches.one_at_a_time();
        if !gate::is_stopped(self.switches.get(number)) {
            return Err(Error::busy(format!("{} is not stopped", name_of(number))));
        }
        let credentials = self.rendezvous.tell_saved(suspense)?;
        self.switches.mark_saved(number);
        Ok(SavedProcess { slots: self.numbers.slots(), credentials, known: self.rendezvous.acquaintances() })
    }

    /// Takes [`Process::mark_saved`] back: there is no image.
    pub(crate) fn unmark_saved(&self, number: usize) {
        let _one_at_a_time = self.switches.one_at_a_time();
        self.switches.unmark_saved(number);
        if !self.switches.is_any_saved() {
            self.rendezvous.tell_save_is_over();
        }
    }

    /// Has what has switch `number`, which stands still and was restored, take the place of what was saved of `saved`.
    /// ESTALE if a peer says that it is not.
    pub(crate) fn take_the_place(&'static self, number: usize, saved: &SavedProcess) -> Result<()> {
        // Until it goes on, peers wait for it.
        self.switches.mark_saved(number);
        self.rendezvous.take_the_place(self, &saved.slots, &saved.credentials, &saved.known)
    }

    /// Waits until no thread moves that the closed switch has kept from moving on.
    fn come_to_rest(&self, number: usize, patience: u64) -> Result<()> {
        let mut wait = Wait::new(patience);
        // Packets in hand are handled completely, and the handler looks at the switch before each. After this no thread
        // enters that has not seen it.
        self.packets.wait_for();
        let there = |lane: &Lane| self.is_stopped_by(number, lane.leads_to.qp.load(Ordering::Relaxed));
        let mut inside = gate::standing(self.initiators_inside(there));
        let mut looks = 0u32;
        let have_left = wait.for_it(|| {
            inside.retain(|(gate, mark)| gate.stands(*mark));
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                inside.retain(|(gate, _)| self.initiator_lives(gate.lane));
            }
            inside.is_empty()
        });
        if !have_left {
            return Err(in_flight(&inside));
        }
        let ours = |qpn: u32| number == OF_PROCESS || self.own.qp(qpn).is_none_or(|qp| self.has_switch(number, qp));
        if !self.grants.ask_back(|grant| ours(grant.qpn), patience) {
            return Err(late("a peer that may put to its memory does not answer".into()));
        }
        let is_theirs = |work: &Arc<dyn SendWork>| gate::is_stopped(work.switch());
        let mut executing: Vec<_> =
            self.send_work.executing().into_iter().filter(is_theirs).map(|w| (w.mark(), w)).collect();
        let rests = |executing: &mut Vec<(u64, Arc<dyn SendWork>)>| {
            executing.retain(|(mark, work)| mark & 1 == 1 && work.mark() == *mark && !work.thread_is_gone());
            executing.is_empty()
        };
        if !wait.for_it(|| rests(&mut executing)) {
            let qpns: Vec<u32> = executing.iter().map(|(_, work)| work.qpn()).collect();
            return Err(late(format!("a thread of this process is at the send queue of {}", names(&qpns))));
        }
        self.lanes.wait_serving();
        self.settle(&mut wait)?;
        self.wait_for_attention(&mut wait)
    }

    /// Takes back what the stopped send queues have asked owners for, or what these have answered.
    fn settle(&self, wait: &mut Wait) -> Result<()> {
        let mut asking = self.send_work.asking();
        asking.retain(|work| gate::is_stopped(work.switch()));
        let settled = wait.for_it(|| {
            asking.retain(|work| work.settle() == Settled::NotYet);
            asking.is_empty()
        });
        let qpns: Vec<u32> = asking.iter().map(|work| work.qpn()).collect();
        settled.then_some(()).ok_or_else(|| {
            let what = "is in the hands of a thread (ibv_wr_start), or its request in those of a peer";
            late(format!("the send queue of {} {what}", names(&qpns)))
        })
    }

    /// Waits until the progress thread has done what peers have called for before: a QP that one of them has failed is
    /// flushed.
    fn wait_for_attention(&self, wait: &mut Wait) -> Result<()> {
        let is_done = || !self.own.wants_attention() && !self.attention.is_attending();
        let done = wait.for_it(is_done);
        done.then_some(()).ok_or_else(|| late("the progress thread is busy".into()))
    }

    /// Returns true if the QP at `offset` has the switch `number`, or is in the process that is meant as a whole.
    fn is_stopped_by(&self, number: usize, offset: u64) -> bool {
        number == OF_PROCESS || self.own.view.get::<QpShared>(offset).is_none_or(|qp| self.has_switch(number, qp))
    }

    fn has_switch(&self, number: usize, qp: &QpShared) -> bool {
        qp.switch.load(Ordering::Relaxed) == self.switches.offset(number)
    }

    /// Stops all contexts of the process, as [`crate::Context::stop`] one.
    pub fn stop_all(&self, patience: Option<u64>) -> Result<()> {
        self.check()?;
        self.parking.stop(self, patience.unwrap_or(PATIENCE_NS))
    }

    /// The end of [`Process::stop_all`]. Contexts that were stopped by themselves stay stopped.
    pub fn go_all(&self) -> Result<()> {
        self.check()?;
        self.parking.go(self)
    }

    /// Returns true if the process as a whole is stopped.
    pub fn is_stopped(&self) -> bool {
        gate::is_stopped(self.switches.of_process())
    }

    /// The request of the lane with this attention number waits until its QP goes on, whose switch is `switch`.
    pub(crate) fn keep_request(&self, number: u32, switch: &Switch) {
        self.switches.keep_request(number);
        // The call that lets it go on may have looked at the list before.
        if !gate::is_stopped(switch) {
            self.own.raise(number);
        }
    }
}

fn name_of(number: usize) -> &'static str {
    if number == OF_PROCESS { "the process" } else { "the context" }
}

fn names(qpns: &[u32]) -> String {
    let mut named: Vec<String> = qpns.iter().take(NAMED).map(|qpn| format!("QP {qpn:#x}")).collect();
    if qpns.len() > NAMED {
        named.push(format!("{} more", qpns.len() - NAMED));
    }
    named.join(", ")
}

fn late(why: String) -> Error {
    Error::new(libc::ETIMEDOUT, format!("not stopped: {why}"))
}

fn in_flight(inside: &[Standing]) -> Error {
    let initiator = |(gate, _): &Standing| gate.lane.initiator.load(Ordering::Relaxed) as u32 & 0x00ff_ffff;
    let qpns: Vec<u32> = inside.iter().map(initiator).collect();
    late(format!("{} of a process that stands still is in the middle of a request", names(&qpns)))
}
