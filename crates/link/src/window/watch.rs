//! The watch: a thread that sleeps until a peer on this kernel wakes it, and takes in what has come where nobody polls. It asks to be
//! woken before it sleeps ([`vervain_window::pairs::waking`]); where the program has polled and taken everything before it was there,
//! it does not ask again for a while.

use super::Engine;
use super::pace::{FIRST_LOOK_NS, polls_steadily};
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

/// How long it stays away after it was woken in vain, at first and at last.
const FIRST_REST: Duration = Duration::from_nanos(FIRST_LOOK_NS);
const LAST_REST: Duration = Duration::from_millis(4);
const STACK: usize = 256 << 10;

/// What there is of it besides the thread.
#[derive(Default)]
pub struct Watch {
    begun: AtomicBool,
    stands: AtomicBool,
    /// How often the own process has woken it.
    stirred: AtomicU64,
}

impl Watch {
    /// Whether somebody sleeps who is woken.
    pub fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }
}

impl Engine {
    /// Starts the watch, where there can be one. Called by the progress thread, whose signal mask the new one has too.
    pub fn set_watch(self: &Arc<Self>, process: &'static Process) {
        if self.watch.begun.swap(true, Ordering::Relaxed)
            || !self.pairs.device().wakes(self.facts().node)
            || !barrier::is_registered()
        {
            return;
        }
        let engine = Arc::clone(self);
        let thread = std::thread::Builder::new().name("vervain-watch".into()).stack_size(STACK);
        // Before it begins: it sleeps once it has looked, and a pair that begins meanwhile stirs it.
        self.watch.stands.store(true, Ordering::SeqCst);
        if let Err(e) = thread.spawn(move || engine.stand_watch(process)) {
            self.watch.stands.store(false, Ordering::SeqCst);
            log::info!("what comes through the window is looked for now and then, as nobody can be woken: {e}");
        }
    }

    /// Whether nothing comes to this process of which the watch is not told.
    pub fn is_guarded(&self) -> bool {
        let claims = self.pairs.device().claims();
        let is_known = |node| self.pairs.device().wakes(node) || !claims.has_node(node);
        self.watch.stands() && (0..self.facts().layout.nodes()).all(is_known)
    }

    /// Has the watch come by.
    pub fn stir(&self) {
        if self.watch.stands()
            && let Ok(mut channel) = self.pairs.device().channel(self.facts().node)
        {
            let count = self.watch.stirred.fetch_add(1, Ordering::Relaxed) + 1;
            Waking::new(self.facts().layout, self.pairs.me(), self.pairs.me(), Occasion::Door)
                .wake(channel.as_mut(), count);
        }
    }

    fn stand_watch(&self, process: &'static Process) {
        let waking_word = Rendezvous::waking_word(self.facts().layout, self.pairs.me());
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
            let seen = self.region.word(waking_word).load(Ordering::Acquire) as u32;
            let (looks, begin) = (process.packet_looks(), now_ns());
            let Some(mut found) = self.last_look(process) else { continue };
            if !found {
                let begin = now_ns();
                self.pairs.device().sleep(waking_word, seen);
                patience.slept(now_ns() - begin);
            }
            while patience.look_out(|| self.look(process)) {
                found = true;
            }
            let looks = process.packet_looks().wrapping_sub(looks);
            rest = next_rest(rest, looks, Duration::from_nanos(now_ns() - begin), found);
        }
    }
}

/// How long the watch stays away next, after a round of `took` in which threads of the program have looked so often.
///
/// Where the program polls without a pause, it takes in what comes. Where it looks now and then, something that was `found` here may be
/// what it did not take in, as whoever put it had this thread woken and run in its stead.
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
