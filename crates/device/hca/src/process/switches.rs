//! The switches of a process ([`layout::Switch`]): its own, which stands in the header of the arena, and one for each
//! context. An initiator that is in flight into a QP looks at that of the QP's context, where the kernel marks the end
//! of the process too. A close of the process closes all of them; there are as many as contexts, most often one.

use crate::arena::layout::{Header, SWITCHES, Switch, closed};
use crate::arena::{Arena, ArenaRef};
use crate::error::Result;
use crate::host::clock::now_ns;
use crate::host::lock::{OwnerGuard, OwnerLock};
use crate::process::gate;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

/// The switch of the process as a whole.
pub(crate) const OF_PROCESS: usize = 0;
/// Nanoseconds for which a stop waits for threads and peers inside, unless the caller sets another time.
pub(crate) const PATIENCE_NS: u64 = 2_000_000_000;

/// All switches, by their numbers: that of the process, and [`SWITCHES`] more.
pub(crate) struct Switches {
    header: ArenaRef<Header>,
    more: ArenaRef<[Switch]>,
    /// Offset of those in the arena.
    offset: u64,
    /// Numbers that contexts have.
    taken: OwnerLock<Vec<usize>>,
    /// Since when each is stopped (CLOCK_MONOTONIC, ns); changed under the lock of `taken`.
    since: Box<[AtomicU64]>,
    stopping: OwnerLock<()>,
    /// Attention numbers of lanes whose requests wait until their QPs go on.
    requests: OwnerLock<Vec<u32>>,
}

impl Switches {
    /// Open ones; whose mutexes [`Switches::each`] leads to.
    pub(crate) fn new(arena: &Arena) -> Result<Switches> {
        let offset = arena.alloc((SWITCHES * size_of::<Switch>()) as u64)?.offset();
        let view = arena.view();
        let header = view.hold(0).expect("the arena holds its header");
        let more = view.hold_slice(offset, SWITCHES).expect("just allocated");
        let since = (0..=SWITCHES).map(|_| AtomicU64::new(0)).collect();
        Ok(Switches {
            header,
            more,
            offset,
            taken: OwnerLock::default(),
            since,
            stopping: OwnerLock::default(),
            requests: OwnerLock::default(),
        })
    }

    /// A switch for a context, as closed as the process. Contexts beyond [`SWITCHES`] share that of the process.
    pub(crate) fn take(&self) -> usize {
        let mut taken = self.taken.lock();
        let Some(number) = (1..=SWITCHES).find(|number| !taken.contains(number)) else { return OF_PROCESS };
        self.get(number).closed.store(self.of_process().closed.load(Ordering::SeqCst), Ordering::SeqCst);
        self.since[number].store(self.since[OF_PROCESS].load(Ordering::Relaxed), Ordering::Relaxed);
        taken.push(number);
        number
    }

    /// The end of the context that had taken it.
    pub(crate) fn give_back(&self, number: usize) {
        self.taken.lock().retain(|taken| *taken != number);
    }

    /// The switch of this number.
    pub(crate) fn get(&self, number: usize) -> &Switch {
        if number == OF_PROCESS { &self.header.switch } else { &self.more[number - 1] }
    }

    /// Offset of switch `number` in the arena.
    pub(crate) fn offset(&self, number: usize) -> u64 {
        match number {
            OF_PROCESS => offset_of!(Header, switch) as u64,
            _ => self.offset + ((number - 1) * size_of::<Switch>()) as u64,
        }
    }

    pub(crate) fn of_process(&self) -> &Switch {
        &self.header.switch
    }

    /// All of them, taken or not.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Switch> {
        (0..=SWITCHES).map(|number| self.get(number))
    }

    /// Closes all once more.
    pub(crate) fn close(&self) {
        self.of_all(|number| _ = self.get(number).closed.fetch_add(1, Ordering::SeqCst));
    }

    /// Takes one [`Switches::close`] back.
    pub(crate) fn open(&self) {
        self.of_all(|number| _ = self.get(number).closed.fetch_sub(1, Ordering::SeqCst));
    }

    /// Stops what has this switch, the process with all its contexts; false if that was done before.
    pub(crate) fn stop(&self, number: usize) -> bool {
        let bit = if number == OF_PROCESS { closed::PROCESS } else { closed::CONTEXT };
        if self.get(number).closed.load(Ordering::Relaxed) & bit != 0 {
            return false;
        }
        let now = now_ns();
        self.of(number, |number| {
            let before = self.get(number).closed.fetch_or(bit, Ordering::SeqCst);
            if before & closed::STOPPED == 0 {
                self.since[number].store(now, Ordering::Relaxed);
            }
        });
        true
    }

    /// Takes [`Switches::stop`] back; false if there was none.
    pub(crate) fn go(&self, number: usize) -> bool {
        let bit = if number == OF_PROCESS { closed::PROCESS } else { closed::CONTEXT };
        if self.get(number).closed.load(Ordering::Relaxed) & bit == 0 {
            return false;
        }
        let now = now_ns();
        self.of(number, |number| {
            let switch = self.get(number);
            if switch.closed.load(Ordering::Relaxed) & closed::STOPPED == bit {
                switch.closed.fetch_and(!closed::SAVED, Ordering::SeqCst);
            }
            // Stored before the time is looked at again.
            if switch.closed.load(Ordering::Relaxed) & closed::STOPPED == bit {
                // Restored on another host, the clock may have gone back: what counts is its distance to this.
                let stood = now.wrapping_sub(self.since[number].load(Ordering::Relaxed));
                switch.stood.fetch_add(stood, Ordering::SeqCst);
            }
            switch.closed.fetch_and(!bit, Ordering::SeqCst);
        });
        true
    }

    /// Marks what has this switch, which is stopped, as saved.
    pub(crate) fn mark_saved(&self, number: usize) {
        self.of(number, |number| _ = self.get(number).closed.fetch_or(closed::SAVED, Ordering::SeqCst));
    }

    /// Takes [`Switches::mark_saved`] back.
    pub(crate) fn unmark_saved(&self, number: usize) {
        self.of(number, |number| _ = self.get(number).closed.fetch_and(!closed::SAVED, Ordering::SeqCst));
    }

    /// Returns true if any that is in use is marked so.
    pub(crate) fn is_any_saved(&self) -> bool {
        let taken = self.taken.lock();
        taken.iter().chain([&OF_PROCESS]).any(|number| gate::is_saved(self.get(*number)))
    }

    /// Keeps other stops from beginning or ending.
    pub(crate) fn one_at_a_time(&self) -> OwnerGuard<'_, ()> {
        self.stopping.lock()
    }

    /// Has the request of the lane with this attention number wait until its QP goes on.
    pub(crate) fn keep_request(&self, number: u32) {
        self.requests.lock().push(number);
    }

    pub(crate) fn take_requests(&self) -> Vec<u32> {
        std::mem::take(&mut *self.requests.lock())
    }

    /// Does `f` to the numbers that `number` stands for.
    fn of(&self, number: usize, f: impl Fn(usize)) {
        if number == OF_PROCESS {
            self.of_all(f);
        } else {
            let _taken = self.taken.lock();
            f(number);
        }
    }

    /// Does `f` to the number of the process and to those that are taken, none of which comes or goes meanwhile.
    fn of_all(&self, f: impl Fn(usize)) {
        let taken = self.taken.lock();
        f(OF_PROCESS);
        taken.iter().for_each(|number| f(*number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed(switches: &Switches, number: usize) -> u32 {
        switches.get(number).closed.load(Ordering::SeqCst)
    }

    #[test]
    fn whoever_comes_while_the_process_is_closed_is_closed_too() {
        let arena = Arena::create(size_of::<Header>() as u64).unwrap();
        let switches = Switches::new(&arena).unwrap();
        let first = switches.take();
        assert_ne!(first, OF_PROCESS);
        switches.close();
        let second = switches.take();
        switches.close();
        assert_eq!([OF_PROCESS, first, second].map(|n| closed(&switches, n)), [2, 2, 2]);
        // One that goes takes its number along, and the next has nothing of it.
        switches.give_back(first);
        switches.open();
        let third = switches.take();
        assert_eq!([OF_PROCESS, second, third].map(|n| closed(&switches, n)), [1, 1, 1]);
        switches.open();
        assert_eq!([OF_PROCESS, second, third].map(|n| closed(&switches, n)), [0, 0, 0]);
    }

    #[test]
    fn each_has_its_own_until_there_are_none_left() {
        let arena = Arena::create(size_of::<Header>() as u64).unwrap();
        let switches = Switches::new(&arena).unwrap();
        let mut numbers: Vec<usize> = (0..SWITCHES).map(|_| switches.take()).collect();
        assert_eq!(switches.take(), OF_PROCESS);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!((numbers.len(), numbers[0]), (SWITCHES, 1));
        for number in 0..=SWITCHES {
            // The owner and a peer, which uses the offset, must find it at the same place.
            let found = arena.view().get::<Switch>(switches.offset(number)).unwrap();
            assert!(std::ptr::eq(found, switches.get(number)), "{number}");
        }
        assert_eq!(switches.each().count(), SWITCHES + 1);
        switches.give_back(17);
        assert_eq!(switches.take(), 17);
    }

    #[test]
    fn a_context_that_is_stopped_twice_goes_on_when_both_stops_are_over() {
        let arena = Arena::create(size_of::<Header>() as u64).unwrap();
        let switches = Switches::new(&arena).unwrap();
        let [one, other] = [switches.take(), switches.take()];
        let stood = |number: usize| switches.get(number).stood.load(Ordering::SeqCst);
        assert!(!switches.go(one) && !switches.go(OF_PROCESS));
        assert!(switches.stop(one) && !switches.stop(one));
        assert_eq!([OF_PROCESS, one, other].map(|n| closed(&switches, n)), [0, closed::CONTEXT, 0]);
        // Another context is free to be stopped, and a pause adds to what there is.
        assert!(switches.stop(OF_PROCESS) && !switches.stop(OF_PROCESS) && switches.stop(other));
        switches.close();
        let newcomer = switches.take();
        assert_eq!(
            [one, other, newcomer].map(|n| closed(&switches, n) & closed::STOPPED),
            [closed::STOPPED, closed::STOPPED, closed::PROCESS]
        );
        assert!(switches.go(one));
        assert_eq!((closed(&switches, one), stood(one)), (closed::PROCESS + 1, 0), "it is stopped still");
        assert!(switches.go(OF_PROCESS));
        switches.open();
        assert_eq!([OF_PROCESS, one, newcomer].map(|n| closed(&switches, n)), [0; 3]);
        assert_eq!((closed(&switches, other), stood(other)), (closed::CONTEXT, 0));
        // The time of both together, each moment once.
        assert!(stood(one) >= stood(newcomer) && stood(newcomer) > 0 && stood(OF_PROCESS) > 0);
        assert!(stood(one) > stood(OF_PROCESS));
    }
}
