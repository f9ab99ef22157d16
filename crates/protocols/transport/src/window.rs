//! The congestion window of a path: how many bytes all requesters of this process may have under way to one other
//! process. Loss decides its size (RFC 5681 in shape): slow start up to the first loss, then additive growth and a
//! decrease once per round trip. Plain networks and receive buffers drop packets where InfiniBand would hold them back.
//! Over a channel that drops nothing it is a bound that stays.

use crate::host::Nanos;
use crate::marks::Marks;
use crate::rtt::Rtt;

/// Bytes that count for a packet beyond its payload: about as many as a small one takes of a socket's receive buffer.
pub(crate) const PACKET_OVERHEAD: u64 = 512;
/// Packets of full size at the start.
const INITIAL_PACKETS: u64 = 32;
/// Packets of full size that are always let through.
const LEAST_PACKETS: u64 = 2;

/// Where only lost packets are sent again, the window stays as it is if in a round trip no more than such a part of it
/// is lost, and a packet. A queue that overflows does not lose so little for long; a path with random loss of 1 % does.
const TOLERATED_PART: u64 = 32;

/// Growth per round trip after slow start: so many packets, and one such part of the window. Go-back-N sends a whole
/// window again for each loss, so that under random loss of rate p the goodput is w / (1 + p w) packets per round trip:
/// with these and the decrease to eight tenths w settles at 46 packets under 1 % loss, where growth by one packet and
/// halving give 15. After a notification the part is left out: it is what a large window has before a small one, and
/// two flows of 10 Gbit/s differed by a fifth with it.
const GROWTH_PACKETS: u64 = 2;
const GROWTH_PART: u64 = 64;

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
    rtt: Rtt,
    marks: Marks,
    /// The last decrease was for a notification; and the size before the last one that was.
    marked: bool,
    before: u64,
    lossless: bool,
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
            rtt: Rtt::default(),
            marks: Marks::default(),
            marked: false,
            before: 0,
            lossless: false,
        }
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
        window.lossless = true;
        window
    }

    /// Returns true if the channel delivers every packet once and in order.
    #[inline(always)]
    pub fn is_lossless(&self) -> bool {
        self.lossless
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
        let per_window = match self.size < self.threshold {
            true => self.size,
            false if self.marked => GROWTH_PACKETS * self.packet,
            false => GROWTH_PACKETS * self.packet + self.size / GROWTH_PART,
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
        if self.lossless || now < self.quiet_until {
            return;
        }
        // What the notifications of this round trip have taken is part of it.
        let before = if self.marks.is_answered(now) { self.size.max(self.before) } else { self.size };
        self.size = self.size.min(before * 8 / 10).max(LEAST_PACKETS * self.packet);
        (self.threshold, self.marked, self.before) = (self.size, false, 0);
        let round_trip = self.rtt.smoothed().unwrap_or(0);
        self.quiet_until = now + round_trip;
        self.marks.answered(now, round_trip);
    }

    /// A congestion notification packet has come from the peer, or a marked answer to a READ. The window closes by half
    /// of the share of round trips that had one, once per round trip. Where nothing is under way it is not to blame.
    pub fn notified(&mut self, now: Nanos) {
        if self.lossless || self.in_flight == 0 {
            return;
        }
        let Some(share) = self.marks.notified(now, self.rtt.smoothed().unwrap_or(0)) else { return };
        self.before = self.size;
        self.size = share.taken_from(self.size).max(LEAST_PACKETS * self.packet);
        (self.threshold, self.marked) = (self.size, true);
    }

    /// Reacts to the loss of `bytes`, which alone are sent again: as to any loss, if more of the window is lost in a
    /// round trip than a path may lose at random.
    pub(crate) fn lost_in_part(&mut self, now: Nanos, bytes: u64) {
        if now >= self.round_ends {
            self.lost_in_round = 0;
            self.round_ends = now + self.rtt.smoothed().unwrap_or(0);
        }
        self.lost_in_round += bytes;
        if self.lost_in_round > self.size / TOLERATED_PART + self.packet {
            self.lost(now);
        }
    }

    /// Begins anew after all answers have stayed away (RFC 5681, 3.1).
    pub(crate) fn collapsed(&mut self, now: Nanos) {
        self.lost(now);
        if !self.lossless {
            self.size = LEAST_PACKETS * self.packet;
        }
    }

    /// A round trip took so long. Without loss nothing follows from that.
    pub(crate) fn sample(&mut self, time: Nanos) {
        if !self.lossless {
            self.rtt.sample(time);
        }
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
        w.sample(1000);
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
        w.sample(1000);
        let size = w.size();
        for round in 1..100 {
            w.lost_in_part(round * 1000, size / TOLERATED_PART + PACKET);
        }
        assert_eq!(w.size(), size);
        w.lost_in_part(99_500, 1);
        assert_eq!(w.size(), size * 8 / 10, "together in one round trip");
        w.lost_in_part(99_600, size);
        assert_eq!(w.size(), size * 8 / 10, "once");
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
        w.sample(100_000);
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
        w.sample(100_000);
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
        w.sample(1_000);
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
        w.sample(1000);
        w.lost(1_000_000);
        w.sent(PACKET);
        w.notified(1_500_000);
        w.acknowledged(PACKET);
        w.collapsed(2_000_000);
        assert_eq!((w.size(), w.in_flight(), w.rtt().smoothed()), (1 << 20, 0, None));
        assert_eq!(Window::lossless(4096, 0).size(), 2 * PACKET, "two packets always");
    }
}
