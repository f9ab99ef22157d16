//! How often a thread that polls asks the kernel for packets. Each look costs some 0.5 µs, several times what the local link
//! needs for a message, so a process that gets its messages by memory is not to pay it with every poll, and one that gets
//! packets is not to wait for them.
//!
//! While packets come or go, every poll looks. After a while without any, a look is made now and then by the clock: soon
//! where QPs are connected to other hosts, seldom where there are only QPs for datagrams, which most programs make for the
//! beginning of a conversation.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Without a packet for so long, none is expected any moment.
const CALM_NS: u64 = 1_000_000;
/// The time between two looks then, with QPs that are connected and without.
const CONNECTED_NS: u64 = 2_000;
const LISTENING_NS: u64 = 20_000;
/// Of so many polls one looks at the clock, which is dear too; and while only datagrams can come, at most one at the socket.
const POLLS: u32 = 16;

/// A port where so many looks in a row found nothing is left out of the most, but for one in so many. A QP for datagrams has
/// a port at each address of the host, while a conversation goes on at one of them.
const STILL_LOOKS: u32 = 64;
const STILL_APART: u32 = 16;

/// Looks at one port in a row that found nothing.
#[derive(Default)]
pub(super) struct Stillness(AtomicU32);

impl Stillness {
    /// Whether look `n` is to include the port, which has `place` among the others.
    #[inline]
    pub(super) fn is_in_look(&self, n: u32, place: usize) -> bool {
        self.0.load(Ordering::Relaxed) < STILL_LOOKS || n.wrapping_add(place as u32).is_multiple_of(STILL_APART)
    }

    /// A look was made there; whether there was anything.
    #[inline]
    pub(super) fn looked(&self, found: bool) {
        let looks = if found { 0 } else { self.0.load(Ordering::Relaxed).saturating_add(1) };
        self.0.store(looks, Ordering::Relaxed);
    }
}

/// What is known of it. Of whatever thread polls: a value that is lost between two of them does no harm.
#[derive(Default)]
pub(super) struct Eagerness {
    /// Looks in vain.
    looks: AtomicU32,
    /// No packet is expected.
    calm: AtomicBool,
    /// There was one since `active_at`.
    active: AtomicBool,
    active_at: AtomicU64,
    looked_at: AtomicU64,
}

impl Eagerness {
    /// Of so many polls in vain one is to ask [`Eagerness::wants`], in a process with QPs that are connected or without.
    #[inline]
    pub(super) fn polls_apart(&self, connected: bool) -> u32 {
        if connected && !self.calm.load(Ordering::Relaxed) { 1 } else { POLLS }
    }

    /// Whether this poll is to look.
    #[inline]
    pub(super) fn wants(&self, connected: bool, now: impl FnOnce() -> u64) -> bool {
        if !self.calm.load(Ordering::Relaxed) {
            return true;
        }
        let (now, apart) = (now(), if connected { CONNECTED_NS } else { LISTENING_NS });
        let due = now.wrapping_sub(self.looked_at.load(Ordering::Relaxed)) >= apart;
        if due {
            self.looked_at.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Whether no packet is expected: looks are seldom.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    /// A look was made; whether there was anything.
    #[inline]
    pub(super) fn looked(&self, found: bool, now: impl FnOnce() -> u64) {
        if found {
            self.active();
            return;
        }
        if self.calm.load(Ordering::Relaxed) {
            return;
        }
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if !looks.is_multiple_of(POLLS) {
            return;
        }
        let now = now();
        if self.active.swap(false, Ordering::Relaxed) {
            self.active_at.store(now, Ordering::Relaxed);
        } else if now.wrapping_sub(self.active_at.load(Ordering::Relaxed)) >= CALM_NS {
            self.calm.store(true, Ordering::Relaxed);
        }
    }

    /// A packet has come, or one was sent, which others may answer.
    #[inline]
    pub(super) fn active(&self) {
        if self.calm.load(Ordering::Relaxed) {
            self.calm.store(false, Ordering::Relaxed);
        }
        if !self.active.load(Ordering::Relaxed) {
            self.active.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks made in `polls` polls of `each` ns that find nothing.
    fn looks(eagerness: &Eagerness, connected: bool, polls: u32, each: u64, now: &mut u64) -> u32 {
        let mut looks = 0;
        for poll in 1..=polls {
            *now += each;
            if poll.is_multiple_of(eagerness.polls_apart(connected)) && eagerness.wants(connected, || *now) {
                looks += 1;
                eagerness.looked(false, || *now);
            }
        }
        looks
    }

    #[test]
    fn every_poll_looks_until_packets_stay_away() {
        let (eagerness, mut now) = (Eagerness::default(), 1 << 40);
        eagerness.active();
        assert_eq!(looks(&eagerness, true, 1000, 500, &mut now), 1000);
        looks(&eagerness, true, 5000, 500, &mut now);
        // 2 µs apart, by a clock that is looked at every 16th poll: 8 µs.
        assert_eq!(looks(&eagerness, true, 1600, 500, &mut now), 100);
        assert_eq!(looks(&eagerness, true, 16_000, 20, &mut now), 16_000 / 112);
    }

    #[test]
    fn a_packet_makes_it_eager_again() {
        let (eagerness, mut now) = (Eagerness::default(), 1 << 40);
        looks(&eagerness, true, 10_000, 500, &mut now);
        assert!(looks(&eagerness, true, 100, 500, &mut now) < 10);
        eagerness.looked(true, || now);
        assert_eq!(looks(&eagerness, true, 100, 500, &mut now), 100);
        looks(&eagerness, true, 10_000, 500, &mut now);
        eagerness.active();
        assert_eq!(looks(&eagerness, true, 100, 500, &mut now), 100);
    }

    #[test]
    fn a_port_where_nothing_comes_is_left_out_of_most_looks() {
        let ports = [Stillness::default(), Stillness::default()];
        let mut looks = [0; 2];
        for n in 0..STILL_LOOKS + 1600 {
            for (place, port) in ports.iter().enumerate().filter(|(place, port)| port.is_in_look(n, *place)) {
                looks[place] += 1;
                // To the second one come packets.
                port.looked(place == 1 && n % STILL_LOOKS == 0);
            }
        }
        assert_eq!(looks, [STILL_LOOKS + 100, STILL_LOOKS + 1600]);
        ports[0].looked(true);
        assert!((0..STILL_LOOKS).all(|n| ports[0].is_in_look(n, 0)));
    }

    #[test]
    fn who_only_listens_looks_seldom() {
        let (eagerness, mut now) = (Eagerness::default(), 1 << 40);
        assert_eq!(looks(&eagerness, false, 160, 40, &mut now), 10);
        looks(&eagerness, false, 100_000, 40, &mut now);
        // 20 µs apart: 500 polls of 40 ns, in steps of 16.
        assert_eq!(looks(&eagerness, false, 51_200, 40, &mut now), 100);
        // And by the clock, where polls are slow.
        assert_eq!(looks(&eagerness, false, 1600, 10_000, &mut now), 100);
    }
}
