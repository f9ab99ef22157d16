//! The congestion window of a path: how many bytes all requesters of this process may have under way to one other
//! process. Loss decides its size (RFC 5681 in shape): slow start up to the first loss, then additive growth and a
//! decrease once per round trip. Plain networks and receive buffers drop packets where InfiniBand would hold them back.
//! Over a channel that drops nothing it is a bound that stays.

use crate::drain::Drain;
use crate::host::Nanos;
use crate::marks::Marks;
use crate::rtt::Rtt;

/// Bytes that count for a packet beyond its payload: about as many as a small one takes of a socket's receive buffer.
pub(crate) const PACKET_OVERHEAD: u64 = 512;
/// Packets of full size at the start.
const INITIAL_PACKETS: u64 = 32;
/// Packets of full size that are always let through.
const LEAST_PACKETS: u64 = 2;

/// Where only lost packets are sent again, and no queue is found, the window stays as it is if in a round trip no more
/// than such a part of it is lost, and a packet. A path with random loss of 1 % loses so little.
const TOLERATED_PART: u64 = 32;
/// A window of fewer packets of full size follows all losses: with 1 % it grows beyond that nevertheless.
const LEAST_TOLERANT: u64 = 16;

/// Bytes that are under way at most within a host after a loss. The peer keeps a copy of each packet that comes behind
/// it, and so many stay in the second level of a cache: with 1 % loss 1 MiB gave 3,230 MiB/s, 8 MiB 2,910, and both the
/// same where other programs had taken the processors.
const MOST_BEHIND_LOSS: u64 = 1 << 20;

/// Growth per round trip after slow start: so many packets, and one such part of the window. Go-back-N sends a whole
/// window again for each loss, so that under random loss of rate p the goodput is w / (1 + p w) packets per round trip:
/// with these and the decrease to eight tenths w settles at 46 packets under 1 % loss, where growth by one packet and
/// halving give 15. After a notification the part is left out: it is what a large window has before a small one, and
/// two flows of 10 Gbit/s differed by a fifth with it.
const GROWTH_PACKETS: u64 = 2;
const GROWTH_PART: u64 = 64;

/// How a window grows after slow start. Go-back-N with growth by a packet would leave too little of a path with random
/// loss; where only what is lost is sent again, more would fill a queue that overflows with packets for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// By packets and a part.
    Fast,
    /// After a notification: by packets.
    Even,
    /// After the loss of packets that alone are sent again: by a packet.
    Slow,
}

/// What lies between the two processes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    /// Queues that drop what they have no room for.
    Network,
    /// Nothing but the peer's socket, which notifies of what it drops.
    Host,
    /// A ring that drops nothing.
    Lossless,
}

/// Bytes under way on one path, and how many may be.
#[derive(Clone, Debug)]
pub struct Window {
    size: u64,
    in_flight: u64,
    /// Requesters that the window keeps from sending.
    held_back: u64,
    /// Slow start ends here.
    threshold: u64,
    /// A packet of full size, as it is counted.
    packet: u64,
    most: u64,
    /// Losses before this time belong to the one that was answered last.
    quiet_until: Nanos,
    /// Bytes lost since a round trip began that ends then, of those that are sent again alone.
    lost_in_round: u64,
    round_ends: Nanos,
    drain: Drain,
    rtt: Rtt,
    marks: Marks,
    growth: Growth,
    /// The size before the last decrease for a notification; 0 after one for a loss.
    before: u64,
    channel: Channel,
}

impl Window {
    /// A window for packets of at most `mtu` bytes of payload that never grows beyond `most` bytes.
    pub fn new(mtu: u32, most: u64) -> Window {
        let packet = u64::from(mtu) + PACKET_OVERHEAD;
        let most = most.max(LEAST_PACKETS * packet);
        Window {
            size: (INITIAL_PACKETS * packet).min(most),
            in_flight: 0,
            held_back: 0,
            threshold: most,
            packet,
            most,
            quiet_until: 0,
            lost_in_round: 0,
            round_ends: 0,
            drain: Drain::None,
            rtt: Rtt::default(),
            marks: Marks::default(),
            growth: Growth::Fast,
            before: 0,
            channel: Channel::Network,
        }
    }

    /// The same for a peer on this host, whose packets pass no queue but its socket's. That notifies of its overflow
    /// ([`Window::notified`]), so a few lost packets are lost at random, however long round trips are: they are as long
    /// as the two processes wait for a processor, and a smaller window leaves those idle.
    pub fn within_host(mtu: u32, most: u64) -> Window {
        Window { channel: Channel::Host, ..Window::new(mtu, most) }
    }

    /// A window for a channel that delivers every packet once and in order, such as a ring in memory. A requester that
    /// is given it knows by it: it sends no probes, and after a timeout sends again only what the peer has taken
    /// ([`crate::RequesterHost::is_taken`]); and what its host refuses as [`crate::Refused::Full`] is waited for no
    /// longer than what has been sent.
    ///
    /// It has `size` bytes (less than 2^32), whatever is late. With more than the channel holds, the channel alone
    /// holds a sender back. A quarter is what a long message sends between two packets that ask for an acknowledgement,
    /// and a half the most that a READ asks for at once.
    pub fn lossless(mtu: u32, size: u64) -> Window {
        let mut window = Window::new(mtu, size);
        window.size = window.most;
        window.channel = Channel::Lossless;
        window
    }

    /// Returns true if the channel delivers every packet once and in order.
    #[inline(always)]
    pub fn is_lossless(&self) -> bool {
        self.channel == Channel::Lossless
    }

    /// Bytes that may be under way, with 512 added to each packet's payload.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that are under way, counted so.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Round trip times of the path.
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Returns true if a requester that has `own` bytes under way may send `bytes` more. Those that the window holds
    /// back share it evenly; and each may have a packet under way, so that its own answers let it go on and none is
    /// starved.
    #[inline(always)]
    pub(crate) fn admits(&self, own: u64, bytes: u64) -> bool {
        own == 0 || bytes <= self.room(own)
    }

    /// Bytes that a requester with `own` bytes under way may send now.
    #[inline(always)]
    pub(crate) fn room(&self, own: u64) -> u64 {
        let room = self.size.saturating_sub(self.in_flight);
        if self.held_back < 2 { room } else { room.min((self.size / self.held_back).saturating_sub(own)) }
    }

    /// A requester is held back from now on, or is no longer.
    #[inline(always)]
    pub(crate) fn hold_back(&mut self, was: bool, is: bool) {
        self.held_back = self.held_back + u64::from(is) - u64::from(was);
    }

    #[inline(always)]
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// `bytes` have arrived. The window grows only if it was what held the sender back (RFC 7661).
    #[inline]
    pub(crate) fn acknowledged(&mut self, bytes: u64) {
        let was_used = self.in_flight * 2 >= self.size;
        self.released(bytes);
        if was_used && self.size < self.most {
            self.grow(bytes);
        }
    }

    #[inline(never)]
    fn grow(&mut self, bytes: u64) {
        if self.drain.full().is_some() {
            if self.drain.acknowledged(bytes) {
                self.undrain();
            }
            return;
        }
        let per_window = match self.size < self.threshold {
            true => self.size,
            false => match self.growth {
                Growth::Fast => GROWTH_PACKETS * self.packet + self.size / GROWTH_PART,
                Growth::Even => GROWTH_PACKETS * self.packet,
                Growth::Slow => self.packet,
            },
        };
        self.size = (self.size + per_window * bytes / self.size).min(self.most);
    }

    /// `bytes` are no longer under way, whatever became of them.
    #[inline(always)]
    pub(crate) fn released(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// Reacts to the loss of a packet, which a NAK or a gap has shown. One decrease per round trip, to eight tenths.
    pub(crate) fn lost(&mut self, now: Nanos) {
        if self.is_lossless() || now < self.quiet_until {
            return;
        }
        self.undrain();
        // What the notifications of this round trip have taken is part of it.
        let before = if self.marks.is_answered(now) { self.size.max(self.before) } else { self.size };
        self.size = self.size.min(before * 8 / 10).max(LEAST_PACKETS * self.packet);
        (self.threshold, self.growth, self.before) = (self.size, Growth::Fast, 0);
        let round_trip = self.rtt.smoothed().unwrap_or(0);
        self.quiet_until = now + round_trip;
        self.marks.answered(now, round_trip);
    }

    /// A congestion notification packet has come from the peer, or a marked answer to a READ. The window closes by half
    /// of the share of round trips that had one, once per round trip. Where nothing is under way it is not to blame.
    pub fn notified(&mut self, now: Nanos) {
        if self.is_lossless() || self.in_flight == 0 {
            return;
        }
        self.undrain();
        let Some(share) = self.marks.notified(now, self.rtt.smoothed().unwrap_or(0)) else { return };
        self.before = self.size;
        self.size = share.taken_from(self.size).max(LEAST_PACKETS * self.packet);
        (self.threshold, self.growth) = (self.size, Growth::Even);
    }

    /// Reacts to the loss of `bytes`, which alone are sent again: as to any loss, if a queue has overflowed. The path
    /// is measured for that, unless the window is small, or so much is lost that it cannot be at random.
    pub(crate) fn lost_in_part(&mut self, now: Nanos, bytes: u64) {
        if self.is_lossless() || self.drain.full().is_some() {
            return;
        }
        if now >= self.round_ends {
            self.lost_in_round = 0;
            self.round_ends = now + self.rtt.smoothed().unwrap_or(0);
        }
        self.lost_in_round += bytes;
        let is_small = self.size < LEAST_TOLERANT * self.packet;
        let has_queue = match is_small || self.lost_in_round > self.size / TOLERATED_PART + self.packet {
            true => Some(true),
            false if self.channel == Channel::Host => Some(false),
            false => self.drain.has_queue(now, &self.rtt),
        };
        match has_queue {
            Some(true) => self.overflowed(now),
            Some(false) => {
                if self.growth == Growth::Slow {
                    self.growth = Growth::Fast;
                }
                if self.channel == Channel::Host && self.size > MOST_BEHIND_LOSS {
                    (self.size, self.threshold) = (MOST_BEHIND_LOSS, MOST_BEHIND_LOSS);
                }
            }
            None => self.size = self.drain.begin(now, self.size),
        }
    }

    /// A queue has overflowed, and only what is lost is sent again.
    fn overflowed(&mut self, now: Nanos) {
        self.lost(now);
        self.growth = Growth::Slow;
    }

    /// Ends a measurement of the path that has failed.
    fn undrain(&mut self) {
        if let Some(full) = self.drain.full() {
            (self.size, self.drain) = (full, Drain::None);
        }
    }

    /// Begins anew after all answers have stayed away (RFC 5681, 3.1).
    pub(crate) fn collapsed(&mut self, now: Nanos) {
        self.lost(now);
        if !self.is_lossless() {
            self.undrain();
            self.size = LEAST_PACKETS * self.packet;
        }
    }

    /// A packet that was sent at `sent` has been answered. Without loss nothing follows from the time.
    pub(crate) fn sample(&mut self, now: Nanos, sent: Nanos) {
        if self.is_lossless() {
            return;
        }
        if let Some(full) = self.drain.sample(now, sent) {
            self.size = full;
            if self.drain.has_queue(now, &self.rtt) == Some(true) {
                self.overflowed(now);
            }
        }
        self.rtt.sample(now.saturating_sub(sent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 4096 + PACKET_OVERHEAD;

    #[test]
    fn it_doubles_per_round_trip_until_a_loss_and_then_grows_slowly() {
        let mut w = Window::new(4096, 1 << 30);
        let start = w.size();
        w.sent(start);
        w.acknowledged(start);
        assert_eq!(w.size(), 2 * start);
        w.lost(1);
        let after = w.size();
        assert_eq!(after, 2 * start * 8 / 10);
        w.sent(after);
        w.acknowledged(after);
        assert_eq!(w.size(), after + 2 * PACKET + after / 64);
    }

    #[test]
    fn losses_of_one_round_trip_count_once() {
        let mut w = Window::new(4096, 1 << 30);
        w.sample(1000, 0);
        w.lost(10_000);
        let size = w.size();
        w.lost(10_999);
        assert_eq!(w.size(), size);
        w.lost(11_000);
        assert!(w.size() < size);
    }

    #[test]
    fn a_part_that_is_lost_at_random_is_tolerated_and_more_is_not() {
        let mut w = Window::new(4096, 1 << 30);
        w.sample(100_000, 0);
        let size = w.size();
        let tolerated = size / TOLERATED_PART + PACKET;
        w.lost_in_part(1_000_000, tolerated);
        assert_eq!(w.size(), size / 4, "the path is measured");
        // What was sent before tells nothing; what is sent after it took as long as ever.
        w.sample(1_090_000, 990_000);
        w.lost_in_part(1_100_000, size);
        assert_eq!(w.size(), size / 4);
        w.sample(1_200_000, 1_100_000);
        assert_eq!(w.size(), size);
        for round in 13..100 {
            w.lost_in_part(round * 100_000, tolerated);
        }
        assert_eq!(w.size(), size);
        w.lost_in_part(9_950_000, 1);
        assert_eq!(w.size(), size * 8 / 10, "together in one round trip");
        w.lost_in_part(9_960_000, size);
        assert_eq!(w.size(), size * 8 / 10, "once");
    }

    /// A window of a path of 100 us, in whose queue packets wait for twice as long, after a loss.
    fn behind_a_queue() -> (Window, u64) {
        let mut w = Window::new(4096, 1 << 30);
        (0..50).for_each(|_| w.sample(300_000, 0));
        let size = w.size();
        w.lost_in_part(1_000_000, PACKET);
        assert_eq!(w.size(), size / 4);
        (w, size)
    }

    #[test]
    fn where_packets_wait_in_a_queue_each_loss_counts_and_growth_is_slow() {
        let (mut w, size) = behind_a_queue();
        w.sample(1_300_000, 1_200_000);
        assert_eq!(w.size(), size * 8 / 10);
        let after = w.size();
        w.sent(after);
        w.acknowledged(after);
        assert_eq!(w.size(), after + PACKET);
        let before = w.size();
        w.lost_in_part(2_000_000, 1);
        assert_eq!(w.size(), before * 8 / 10);
        // The queue is empty: round trips are as short as that one.
        (0..50).for_each(|_| w.sample(2_100_000, 2_000_000));
        let before = w.size();
        w.lost_in_part(3_000_000, 1);
        assert_eq!(w.size(), before);
        // The measurement does not hold for ever.
        w.lost_in_part(12_100_000_000, 1);
        assert_eq!(w.size(), before / 4);
    }

    #[test]
    fn within_a_host_a_few_losses_are_at_random_however_long_round_trips_are() {
        let mut w = Window::within_host(4096, 1 << 30);
        let (size, tolerated) = (w.size(), w.size() / TOLERATED_PART + PACKET);
        for round in 1..100 {
            w.sample(round * 1_000_000, (round - 1) * 1_000_000 + 500_000 + round * 5_000);
            w.lost_in_part(round * 1_000_000, tolerated);
            assert_eq!(w.size(), size, "round trip {round}");
        }
        w.lost_in_part(99_000_001, 1);
        assert_eq!(w.size(), size * 8 / 10, "more is lost than that");
        let size = w.size();
        w.sent(PACKET);
        w.notified(200_000_000);
        assert!(w.size() < size, "the socket was full");
    }

    #[test]
    fn within_a_host_little_is_under_way_behind_a_loss_and_all_again_without() {
        let mut w = Window::within_host(4096, 8 << 20);
        let round_trip = |w: &mut Window| {
            w.sent(w.size());
            w.acknowledged(w.size());
        };
        (0..10).for_each(|_| round_trip(&mut w));
        assert_eq!(w.size(), 8 << 20);
        w.sample(1_000_000, 0);
        w.lost_in_part(1_000_000, PACKET);
        assert_eq!(w.size(), MOST_BEHIND_LOSS);
        round_trip(&mut w);
        assert_eq!(w.size(), MOST_BEHIND_LOSS * 65 / 64 + 2 * PACKET);
        w.lost_in_part(2_000_000, PACKET);
        assert_eq!(w.size(), MOST_BEHIND_LOSS);
        (0..200).for_each(|_| round_trip(&mut w));
        assert_eq!(w.size(), 8 << 20);
    }

    #[test]
    fn a_measurement_that_fails_gives_back_the_window() {
        let (mut w, size) = behind_a_queue();
        for _ in 0..8 {
            w.sent(w.size());
            w.acknowledged(w.size());
        }
        assert_eq!(w.size(), size, "twice the window has been acknowledged");
        let (mut w, size) = behind_a_queue();
        w.lost(1_100_000);
        assert_eq!(w.size(), size * 8 / 10, "of all");
        let (mut w, size) = behind_a_queue();
        w.sent(PACKET);
        w.notified(1_100_000);
        assert_eq!(w.size(), size / 2, "of all");
        let (mut w, _) = behind_a_queue();
        w.quiet_until = 2_000_000;
        w.collapsed(1_100_000);
        w.sample(1_400_000, 1_200_000);
        assert_eq!(w.size(), 2 * PACKET);
    }

    #[test]
    fn it_does_not_grow_for_a_sender_that_does_not_use_it() {
        let mut w = Window::new(4096, 1 << 30);
        let size = w.size();
        for _ in 0..1000 {
            w.sent(PACKET);
            w.acknowledged(PACKET);
        }
        assert_eq!(w.size(), size);
    }

    #[test]
    fn each_requester_may_always_have_a_packet_under_way() {
        let mut w = Window::new(4096, 0);
        w.collapsed(0);
        assert_eq!(w.size(), 2 * PACKET);
        w.sent(100 * PACKET);
        assert!(w.admits(0, PACKET) && !w.admits(1, 1) && w.room(0) == 0);
        w.released(99 * PACKET);
        assert!(w.admits(PACKET, PACKET) && !w.admits(PACKET, PACKET + 1));
    }

    #[test]
    fn those_that_are_held_back_share_it_evenly() {
        let mut w = Window::new(4096, 1 << 20);
        let half = w.size() / 2;
        w.hold_back(false, true);
        assert_eq!(w.room(half), 2 * half);
        w.hold_back(false, true);
        assert_eq!((w.room(0), w.room(half)), (half, 0));
        w.hold_back(true, false);
        assert_eq!(w.room(half), 2 * half);
    }

    #[test]
    fn a_notification_in_each_round_trip_halves_it_and_a_rare_one_takes_little() {
        let mut w = Window::new(4096, 1 << 30);
        let size = w.size();
        w.sample(100_000, 0);
        w.notified(1);
        assert_eq!(w.size(), size, "nothing is under way");
        w.sent(size);
        w.notified(1_000_000);
        assert_eq!(w.size(), size / 2, "it ends slow start");
        w.notified(1_099_999);
        assert_eq!(w.size(), size / 2, "once per round trip");
        w.notified(1_100_000);
        assert_eq!(w.size(), size / 4);
        // A hundred round trips without one.
        w.notified(11_200_000);
        assert!((size / 4 * 96 / 100..size / 4).contains(&w.size()), "{}", w.size());
        let after = w.size();
        w.acknowledged(after);
        assert!(w.size() < after + 3 * PACKET, "it grows slowly from then on");
        w.sent(PACKET);
        (0..1000).for_each(|n| w.notified(20_000_000 + n * 100_000));
        assert_eq!(w.size(), 2 * PACKET);
    }

    #[test]
    fn a_loss_and_the_notifications_of_its_round_trip_count_once() {
        let mut w = Window::new(4096, 1 << 30);
        w.sample(100_000, 0);
        w.sent(w.size());
        let size = w.size();
        w.lost(1_000_000);
        w.notified(1_050_000);
        assert_eq!(w.size(), size * 8 / 10);
        // A notification that takes more than a loss does.
        let size = w.size();
        w.notified(1_100_000);
        w.lost(1_110_000);
        assert_eq!(w.size(), size / 2);
        // One that takes less, after a hundred round trips without.
        let size = w.size();
        w.notified(11_200_000);
        assert!(w.size() > size * 9 / 10);
        w.lost(11_210_000);
        assert_eq!(w.size(), size * 8 / 10);
        // Round trips may be shorter than what a receiver waits between notifications.
        let mut w = Window::new(4096, 1 << 30);
        w.sample(1_000, 0);
        w.sent(w.size());
        w.notified(1_000_000);
        let after = w.size();
        (0..3).for_each(|n| w.lost(1_001_000 + n * 1_000));
        assert_eq!(w.size(), after * 8 / 10 * 8 / 10);
    }

    #[test]
    fn that_of_a_lossless_channel_keeps_its_size() {
        let mut w = Window::lossless(4096, 1 << 20);
        w.sent(1 << 20);
        w.acknowledged(1 << 20);
        w.sample(1000, 0);
        w.lost(1_000_000);
        w.sent(PACKET);
        w.notified(1_500_000);
        w.acknowledged(PACKET);
        w.collapsed(2_000_000);
        assert_eq!((w.size(), w.in_flight(), w.rtt().smoothed()), (1 << 20, 0, None));
        assert_eq!(Window::lossless(4096, 0).size(), 2 * PACKET, "two packets always");
    }
}
