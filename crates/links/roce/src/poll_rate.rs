//! Rate at which polling threads ask the kernel for packets. A question costs some 0.5 µs, several times what the local
//! link needs for a message. A process that gets its messages by memory must not pay that with every poll, and one that
//! gets packets must not wait for them.
//!
//! While packets come or go, every poll asks. After a while without any, polls ask now and then by the clock: often if
//! QPs are connected to other hosts, seldom if there are only QPs for datagrams, which most programs make for the
//! beginning of a conversation. Once the progress thread has come by meanwhile, it watches for packets in a sleep that
//! nothing else ends, and no poll asks: messages by memory then cost no system call, and the first packet costs a
//! wake-up.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Nanoseconds without a packet after which the link is idle.
const IDLE_AFTER_NS: u64 = 1_000_000;
/// Nanoseconds between two polls that ask on an idle link, with connected QPs and without.
const CONNECTED_NS: u64 = 2_000;
const DATAGRAMS_NS: u64 = 20_000;
/// One poll in as many looks at the clock, which is expensive too; while only datagrams can come, at most one asks.
const POLLS: u32 = 16;
/// One poll in as many finds that the progress thread watches, and does not ask.
const WATCHED_POLLS: u32 = 1 << 16;
/// Nanoseconds without a packet after which the progress thread watches for packets of connected QPs; one more wake-up
/// is little for a peer that sends so seldom. For datagrams it watches as soon as the link is idle.
const WATCH_CONNECTED_NS: u64 = 100_000_000;

/// A port at which `PORT_EMPTY_POLLS` polls in a row found nothing is included only in one poll in `PORT_INTERVAL`. A
/// QP for datagrams has a port at each address of the host, while a conversation uses one of them.
const PORT_EMPTY_POLLS: u32 = 64;
const PORT_INTERVAL: u32 = 16;

/// After `REPEAT_EMPTY` further questions in a row that found nothing, one poll in `REPEAT_INTERVAL` asks again.
const REPEAT_EMPTY: u32 = 4;
const REPEAT_INTERVAL: u32 = 16;

/// Poll rate of one port: the number of polls in a row that have found nothing there.
#[derive(Default)]
pub(super) struct PortPollRate(AtomicU32);

impl PortPollRate {
    /// Returns true if poll `n` includes the port, which is the `index`th of all.
    #[inline]
    pub(super) fn is_due(&self, n: u32, index: usize) -> bool {
        self.0.load(Ordering::Relaxed) < PORT_EMPTY_POLLS || n.wrapping_add(index as u32).is_multiple_of(PORT_INTERVAL)
    }

    /// Notes that the port was asked, and if it had packets.
    #[inline]
    pub(super) fn polled(&self, found: bool) {
        let polls = if found { 0 } else { self.0.load(Ordering::Relaxed).saturating_add(1) };
        self.0.store(polls, Ordering::Relaxed);
    }
}

/// Rate at which polls that have found packets ask once more before they end: as long as that finds some. A program
/// that polls all the time gets one train after the other, and a question that finds nothing costs it as much as a
/// packet; one that polls seldom has to find all that has come meanwhile.
#[derive(Default)]
pub(super) struct RepeatRate {
    /// Polls that have found packets (wraps).
    polls: u32,
    /// Further questions, up to the last, that found nothing in a row.
    empty: u32,
}

impl RepeatRate {
    /// Returns true if this poll asks once more.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.empty < REPEAT_EMPTY || self.polls.is_multiple_of(REPEAT_INTERVAL)
    }

    /// Notes whether the question found packets.
    #[inline]
    pub(super) fn asked(&mut self, found: bool) {
        self.empty = if found { 0 } else { self.empty.saturating_add(1) };
    }
}

/// Packet traffic of a process, in [`PollRate::stage`].
mod stage {
    /// Packets come or go.
    pub(super) const BUSY: u8 = 0;
    /// None has come or gone for a while.
    pub(super) const IDLE: u8 = 1;
    /// Idle, and no poll asks: the progress thread watches for the next packet.
    pub(super) const WATCHED: u8 = 2;
}

/// Rate at which polls ask for packets, shared by all polling threads. A count or a time lost between two of them does
/// no harm.
#[derive(Default)]
pub(super) struct PollRate {
    /// Polls that asked and found nothing.
    empty_polls: AtomicU32,
    /// A [`stage`]. One word, so that activity ends the watch and the idleness together.
    stage: AtomicU8,
    /// True if a packet has come or gone since `active_at`.
    active: AtomicBool,
    active_at: AtomicU64,
    polled_at: AtomicU64,
}

impl PollRate {
    /// Polls without a completion after which one calls [`PollRate::is_due`], in a process with connected QPs or
    /// without.
    #[inline]
    pub(super) fn interval(&self, connected: bool) -> u32 {
        match (self.is_watched(), self.is_idle()) {
            (true, _) => WATCHED_POLLS,
            (false, false) if connected => 1,
            _ => POLLS,
        }
    }

    /// Returns true if this poll is to ask for packets.
    #[inline]
    pub(super) fn is_due(&self, connected: bool, now: impl FnOnce() -> u64) -> bool {
        if self.is_watched() {
            return false;
        }
        if !self.is_idle() {
            return true;
        }
        let (now, apart) = (now(), if connected { CONNECTED_NS } else { DATAGRAMS_NS });
        let due = now.wrapping_sub(self.polled_at.load(Ordering::Relaxed)) >= apart;
        if due {
            self.polled_at.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Returns true if no packet has come or gone for a while.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.stage.load(Ordering::Relaxed) != stage::BUSY
    }

    /// Begins the progress thread's watch, if packets have stayed away long enough. Returns true if it may sleep until
    /// packets come. No poll asks from then on until [`PollRate::activity`].
    pub(super) fn watch(&self, connected: bool, now: u64) -> bool {
        // Another thread's time may be a later one.
        let quiet = now.saturating_sub(self.active_at.load(Ordering::Relaxed));
        if self.active.load(Ordering::Relaxed) || connected && quiet < WATCH_CONNECTED_NS {
            return false;
        }
        let begun = self.stage.compare_exchange(stage::IDLE, stage::WATCHED, Ordering::Relaxed, Ordering::Relaxed);
        begun.unwrap_or_else(|before| before) != stage::BUSY
    }

    /// Returns true if no poll asks because the progress thread watches.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == stage::WATCHED
    }

    /// Notes that a poll has asked, and if it found packets.
    #[inline]
    pub(super) fn polled(&self, found: bool, now: impl FnOnce() -> u64) {
        if found {
            self.activity();
            return;
        }
        if self.is_idle() {
            return;
        }
        let polls = self.empty_polls.load(Ordering::Relaxed).wrapping_add(1);
        self.empty_polls.store(polls, Ordering::Relaxed);
        if !polls.is_multiple_of(POLLS) {
            return;
        }
        let now = now();
        if self.active.swap(false, Ordering::Relaxed) {
            self.active_at.store(now, Ordering::Relaxed);
        } else if now.wrapping_sub(self.active_at.load(Ordering::Relaxed)) >= IDLE_AFTER_NS {
            self.stage.store(stage::IDLE, Ordering::Relaxed);
        }
    }

    /// Notes that a packet has come, or that one was sent, which others may answer.
    #[inline]
    pub(super) fn activity(&self) {
        if self.is_idle() {
            self.stage.store(stage::BUSY, Ordering::Relaxed);
        }
        if !self.active.load(Ordering::Relaxed) {
            self.active.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of polls that ask for packets and find none, out of `polls` polls of `each` ns.
    fn asked(rate: &PollRate, connected: bool, polls: u32, each: u64, now: &mut u64) -> u32 {
        let mut asked = 0;
        for poll in 1..=polls {
            *now += each;
            if poll.is_multiple_of(rate.interval(connected)) && rate.is_due(connected, || *now) {
                asked += 1;
                rate.polled(false, || *now);
            }
        }
        asked
    }

    #[test]
    fn every_poll_asks_until_packets_stay_away() {
        let (rate, mut now) = (PollRate::default(), 1 << 40);
        rate.activity();
        assert_eq!(asked(&rate, true, 1000, 500, &mut now), 1000);
        asked(&rate, true, 5000, 500, &mut now);
        // 2 µs apart, by a clock that is looked at every 16th poll: 8 µs.
        assert_eq!(asked(&rate, true, 1600, 500, &mut now), 100);
        assert_eq!(asked(&rate, true, 16_000, 20, &mut now), 16_000 / 112);
    }

    #[test]
    fn after_a_packet_every_poll_asks_again() {
        let (rate, mut now) = (PollRate::default(), 1 << 40);
        asked(&rate, true, 10_000, 500, &mut now);
        assert!(asked(&rate, true, 100, 500, &mut now) < 10);
        rate.polled(true, || now);
        assert_eq!(asked(&rate, true, 100, 500, &mut now), 100);
        asked(&rate, true, 10_000, 500, &mut now);
        rate.activity();
        assert_eq!(asked(&rate, true, 100, 500, &mut now), 100);
    }

    #[test]
    fn a_port_where_nothing_comes_is_left_out_of_most_polls() {
        let ports = [PortPollRate::default(), PortPollRate::default()];
        let mut polls = [0; 2];
        for n in 0..PORT_EMPTY_POLLS + 1600 {
            for (index, port) in ports.iter().enumerate().filter(|(index, port)| port.is_due(n, *index)) {
                polls[index] += 1;
                // The second port gets packets.
                port.polled(index == 1 && n % PORT_EMPTY_POLLS == 0);
            }
        }
        assert_eq!(polls, [PORT_EMPTY_POLLS + 100, PORT_EMPTY_POLLS + 1600]);
        ports[0].polled(true);
        assert!((0..PORT_EMPTY_POLLS).all(|n| ports[0].is_due(n, 0)));
    }

    #[test]
    fn a_poll_asks_for_more_while_that_finds_some_and_seldom_else() {
        let mut rate = RepeatRate::default();
        let asked = |rate: &mut RepeatRate, polls: u32, finds: &mut dyn FnMut() -> bool| {
            (0..polls)
                .filter(|_| {
                    let due = rate.is_due();
                    if due {
                        rate.asked(finds());
                    }
                    due
                })
                .count() as u32
        };
        assert_eq!(asked(&mut rate, 100, &mut || true), 100, "a program that polls seldom");
        let wasted = asked(&mut rate, 16 * REPEAT_INTERVAL, &mut || false);
        assert!((16..=16 + REPEAT_EMPTY).contains(&wasted), "{wasted}");
        // The first that finds some is followed by others.
        let mut late = 0;
        while !rate.is_due() {
            late += 1;
        }
        rate.asked(true);
        assert!(late < REPEAT_INTERVAL);
        assert_eq!(asked(&mut rate, 100, &mut || true), 100);
    }

    #[test]
    fn no_poll_asks_while_the_progress_thread_watches() {
        let (rate, mut now) = (PollRate::default(), 1 << 40);
        rate.activity();
        assert!(!rate.watch(false, now), "a packet has just come");
        asked(&rate, true, 10_000, 500, &mut now);
        assert!(rate.is_idle() && !rate.watch(true, now), "the peers of connected QPs may speak soon");
        now += WATCH_CONNECTED_NS;
        assert!(rate.watch(true, now));
        assert_eq!(asked(&rate, true, 1_000_000, 500, &mut now), 0);
        rate.activity();
        assert_eq!(asked(&rate, true, 100, 500, &mut now), 100);
        // Datagrams only: at once.
        asked(&rate, false, 100_000, 40, &mut now);
        assert!(rate.watch(false, now));
        assert_eq!(asked(&rate, false, 1_000_000, 40, &mut now), 0);
    }

    #[test]
    fn a_process_with_datagrams_only_asks_seldom() {
        let (rate, mut now) = (PollRate::default(), 1 << 40);
        assert_eq!(asked(&rate, false, 160, 40, &mut now), 10);
        asked(&rate, false, 100_000, 40, &mut now);
        // 20 µs apart: 500 polls of 40 ns, in steps of 16.
        assert_eq!(asked(&rate, false, 51_200, 40, &mut now), 100);
        // And by the clock, where polls are slow.
        assert_eq!(asked(&rate, false, 1600, 10_000, &mut now), 100);
    }
}
