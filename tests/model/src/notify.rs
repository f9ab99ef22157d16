//! Events: a program that asks for one and sleeps is woken when something completes, whoever completes and whenever it asked.

use crate::arena::layout::CqShared;
use crate::check::check;
use crate::cq::completion::watched;
use crate::cq::notify::{SinceEvent, ask, fire, forget};
use crate::cq::send_ring::SendRing;
use crate::host::atomic::{AtomicU32, Ordering, spin_loop};
use crate::process::Process;
use crate::rings::Queue;
use crate::thread::{self, JoinHandle};
use std::ops::Range;
use std::sync::Arc;
use vervain_iba::Status;

/// The completion channel: events written and not read. Writing to a pipe and reading from it orders what is before and after.
struct Channel(AtomicU32);

impl Channel {
    fn post(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes all events; whether there were any.
    fn take(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) != 0
    }
}

/// The program with its queue and channel.
struct Program {
    queue: Queue,
    channel: Arc<Channel>,
    since_event: SinceEvent,
}

impl Program {
    fn new(process: &'static Process) -> Program {
        let queue = Queue::watching(process, 1);
        Program { queue, channel: Arc::new(Channel(AtomicU32::new(0))), since_event: SinceEvent::default() }
    }

    /// A thread that completes one request, a solicited one if `solicited`.
    fn producer(&mut self, number: u32, solicited: bool) -> JoinHandle<()> {
        let (ring, cq, channel) = (self.queue.add_sends(number, 1), self.queue.shared, Arc::clone(&self.channel));
        thread::spawn(move || complete(&ring, cq, &channel, solicited))
    }

    fn poll(&mut self) -> usize {
        let n = self.queue.poll(usize::MAX);
        self.since_event.polled();
        n
    }

    fn ask(&mut self, solicited_only: bool) {
        let Program { queue, channel, since_event } = self;
        let holds = || queue.rings.hold_any();
        if ask(queue.shared, solicited_only, |armed| since_event.is_untold(armed, holds)) {
            fire(queue.shared, false, || channel.post());
        }
    }

    /// The program waits in the channel. Everybody else has ended when it would wait for ever.
    fn sleep(&mut self, producers: &mut Vec<JoinHandle<()>>) {
        while !self.channel.take() {
            assert!(
                !producers.is_empty(),
                "nobody wakes the program, and {} completions wait",
                self.queue.rings.pending()
            );
            producers.drain(..).for_each(|producer| producer.join());
        }
        self.since_event.event_got();
    }
}

/// Completes a request, and does what the queue asks besides.
fn complete(ring: &SendRing, cq: &CqShared, channel: &Channel, solicited: bool) {
    if ring.push(cq, 0, Status::Success, 0, 0, 1) && watched(cq).event {
        fire(cq, solicited, || channel.post());
    }
}

/// A program that asks, polls until there is nothing, and sleeps.
pub fn who_asks_and_polls_is_woken(seeds: Range<u64>) {
    check("ask, poll, sleep", seeds, |process| {
        let mut program = Program::new(process);
        let mut producers = vec![program.producer(1, false), program.producer(2, false)];
        let mut got = 0;
        loop {
            program.ask(false);
            while got < 2 {
                match program.poll() {
                    0 => break,
                    n => got += n,
                }
            }
            if got == 2 {
                break;
            }
            program.sleep(&mut producers);
        }
        producers.into_iter().for_each(|producer| producer.join());
    });
}

/// A program that polls until there is nothing, asks and sleeps, as UCX does.
pub fn who_polls_and_asks_is_woken(seeds: Range<u64>) {
    check("poll, ask, sleep", seeds, |process| {
        let mut program = Program::new(process);
        let mut producers = vec![program.producer(1, false), program.producer(2, false)];
        let mut got = 0;
        loop {
            while got < 2 {
                match program.poll() {
                    0 => break,
                    n => got += n,
                }
            }
            if got == 2 {
                break;
            }
            program.ask(false);
            program.sleep(&mut producers);
        }
        producers.into_iter().for_each(|producer| producer.join());
    });
}

/// A program that polls for long and asks then.
pub fn who_polls_for_long_and_asks_is_woken(seeds: Range<u64>) {
    check("poll for long, ask, sleep", seeds, |process| {
        let mut program = Program::new(process);
        let mut producers = vec![program.producer(1, false), program.producer(2, false)];
        let mut got = program.poll();
        while got < 2 {
            forget(program.queue.shared);
            got += program.poll();
            if got == 2 {
                break;
            }
            program.ask(false);
            forget(program.queue.shared);
            program.sleep(&mut producers);
            got += program.poll();
        }
        producers.into_iter().for_each(|producer| producer.join());
    });
}

/// A program that wants to hear of solicited completions only, and one of two is.
pub fn who_asks_for_solicited_completions_is_woken(seeds: Range<u64>) {
    check("ask for solicited completions", seeds, |process| {
        let mut program = Program::new(process);
        let mut producers = vec![program.producer(1, false), program.producer(2, true)];
        let is_there = |program: &Program| program.queue.polled.iter().any(|(ring, _)| *ring == 2);
        loop {
            program.ask(true);
            while program.poll() > 0 {}
            if is_there(&program) {
                break;
            }
            program.sleep(&mut producers);
        }
        producers.into_iter().for_each(|producer| producer.join());
    });
}

/// A program that asks again while an event is being written for what it asked before.
pub fn who_asks_anew_is_woken(seeds: Range<u64>) {
    check("ask anew", seeds, |process| {
        let mut program = Program::new(process);
        program.ask(true);
        let mut producers = vec![program.producer(1, true), program.producer(2, false)];
        program.ask(false);
        let mut got = program.poll();
        while got < 2 {
            program.sleep(&mut producers);
            program.ask(false);
            got += program.poll();
        }
        producers.into_iter().for_each(|producer| producer.join());
    });
}

/// Whoever completes next wakes the program for one that was stopped while it wrote the event.
pub fn one_that_stands_still_is_stood_in_for(seeds: Range<u64>) {
    check("one that stands still", seeds, |process| {
        let mut program = Program::new(process);
        program.ask(false);
        let (fires, goes_on) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let ring = program.queue.add_sends(1, 1);
        let (cq, channel) = (program.queue.shared, Arc::clone(&program.channel));
        let stands = thread::spawn({
            let (fires, goes_on) = (Arc::clone(&fires), Arc::clone(&goes_on));
            move || {
                ring.push(cq, 0, Status::Success, 0, 0, 1);
                fire(cq, false, || {
                    fires.store(1, Ordering::Release);
                    while goes_on.load(Ordering::Acquire) == 0 {
                        spin_loop();
                    }
                    channel.post();
                });
            }
        });
        while fires.load(Ordering::Acquire) == 0 {
            spin_loop();
        }
        let mut producers = vec![program.producer(2, false)];
        let mut got = program.poll();
        while got < 2 {
            program.sleep(&mut producers);
            program.ask(false);
            got += program.poll();
        }
        goes_on.store(1, Ordering::Release);
        stands.join();
        producers.into_iter().for_each(|producer| producer.join());
    });
}
