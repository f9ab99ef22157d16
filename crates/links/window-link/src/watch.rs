//! The watch: a thread that sleeps until a peer on this kernel wakes it, and handles messages while nobody polls. It
//! asks to be woken before it sleeps ([`vervain_window::pairs::waking`]). If the program has polled and handled
//! everything before the watch ran, it does not ask again for a while.

use super::pace::{FIRST_LOOK_NS, polls_steadily};
use super::pairs::Pairs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vervain_hca::host::barrier;
use vervain_hca::host::cancel::nap;
use vervain_hca::host::spin_budget::Patience;
use vervain_hca::now_ns;
use vervain_hca::process::Process;
use vervain_window::pairs::rendezvous::Rendezvous;
use vervain_window::pairs::waking::{Occasion, Waking};

/// Shortest and longest time that it stays away after a wake-up that found nothing.
const FIRST_REST: Duration = Duration::from_nanos(FIRST_LOOK_NS);
const LAST_REST: Duration = Duration::from_millis(4);
const STACK: usize = 256 << 10;

/// The look of the watch.
pub trait Looker: Send + Sync + 'static {
    /// The pairs that it looks at.
    fn pairs(&self) -> &Pairs;

    /// Handles the messages that have come. Returns true if there were any.
    fn look(&self, process: &'static Process) -> bool;

    /// The look before a sleep, behind which each put of a peer finds that this process sleeps. None while the process
    /// is paused.
    fn last_look(&self, process: &'static Process) -> Option<bool>;
}

/// The watch of a process, without its thread.
#[derive(Default)]
pub struct Watch {
    begun: AtomicBool,
    stands: AtomicBool,
    /// Number of wake-ups by the own process.
    woken: AtomicU64,
}

impl Watch {
    /// Returns true if there is a thread that peers wake.
    fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }

    /// Starts the thread once, if there can be one. Called by the progress thread, whose signal mask the new one
    /// inherits.
    pub fn start(&self, looker: &Arc<impl Looker>, process: &'static Process) {
        if self.begun.swap(true, Ordering::Relaxed) {
            return;
        }
        let pairs = looker.pairs();
        if !pairs.device().wakes(pairs.facts().node) || !barrier::is_registered() {
            return;
        }
        let looker = Arc::clone(looker);
        let thread = std::thread::Builder::new().name("vervain-watch".into()).stack_size(STACK);
        // Before it begins: it sleeps once it has looked, and a pair that begins meanwhile wakes it.
        self.stands.store(true, Ordering::SeqCst);
        if let Err(e) = thread.spawn(move || stand(&*looker, process)) {
            self.stands.store(false, Ordering::SeqCst);
            log::info!("what comes through the window is looked for now and then, as nobody can be woken: {e}");
        }
    }

    /// Returns true if every process of the window can wake the watch, so that no message comes without.
    pub fn sees_all(&self, pairs: &Pairs) -> bool {
        let device = pairs.device();
        let is_known = |node| device.wakes(node) || !device.claims().has_node(node);
        self.stands() && (0..pairs.facts().layout.nodes()).all(is_known)
    }

    /// Wakes it for a look.
    pub fn wake(&self, pairs: &Pairs) {
        if self.stands()
            && let Ok(mut channel) = pairs.device().channel(pairs.facts().node)
        {
            let count = self.woken.fetch_add(1, Ordering::Relaxed) + 1;
            Waking::new(pairs.facts().layout, pairs.me(), pairs.me(), Occasion::Door).wake(channel.as_mut(), count);
        }
    }
}

/// The thread.
fn stand(looker: &impl Looker, process: &'static Process) {
    let pairs = looker.pairs();
    let waking_word = Rendezvous::waking_word(pairs.facts().layout, pairs.me());
    vervain_scheduler::shorten_slice();
    vervain_scheduler::keep_time();
    let mut patience = Patience::for_puts();
    let mut rest = Duration::ZERO;
    loop {
        if !rest.is_zero() {
            nap(rest);
        }
        if process.is_paused() {
            rest = LAST_REST;
            continue;
        }
        let seen = pairs.device().own().word(waking_word).load(Ordering::Acquire) as u32;
        let (looks, begin) = (process.packets.looks(), now_ns());
        let Some(mut found) = looker.last_look(process) else { continue };
        if !found {
            let begin = now_ns();
            pairs.device().sleep(waking_word, seen);
            patience.slept(now_ns() - begin);
        }
        while patience.look_out(|| looker.look(process)) {
            found = true;
        }
        let looks = process.packets.looks().wrapping_sub(looks);
        rest = next_rest(rest, looks, Duration::from_nanos(now_ns() - begin), found);
    }
}

/// The next time that the watch stays away, after a round of `took` with `looks` looks of the program's threads.
///
/// A program that polls without a pause handles the messages that come. If it looks now and then, a message `found`
/// here may be one that it would have handled itself, had the sender not woken this thread to run in its place.
fn next_rest(rest: Duration, looks: u32, took: Duration, found: bool) -> Duration {
    let polls = polls_steadily(looks, took.as_nanos() as u64);
    match (looks, found) {
        (0, _) => Duration::ZERO,
        (_, true) if !polls => rest.max(FIRST_REST),
        _ => (rest * 2).clamp(FIRST_REST, LAST_REST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watch_stays_away_from_who_polls() {
        let after = |looks, found| {
            let round = |rest, _| next_rest(rest, looks, Duration::from_micros(500), found);
            (0..20).fold(Duration::ZERO, round)
        };
        assert_eq!(after(0, true), Duration::ZERO);
        assert_eq!(after(0, false), Duration::ZERO);
        assert_eq!(after(1, false), LAST_REST);
        assert_eq!(after(24, true), FIRST_REST, "a look each 21 us");
        assert_eq!(after(25, true), LAST_REST, "a look each 20 us");
        assert_eq!(after(u32::MAX, true), LAST_REST);
    }
}
