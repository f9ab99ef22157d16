//! Credit for unreliable traffic: how many bytes of UC and UD messages this process may have under way to one other
//! process. A fabric holds such a sender back, hop by hop; a UDP socket drops what it has no room for. So the sender
//! asks now and then; the peer answers when it has taken the question from its socket, and with it all that went
//! before, and says how much may be under way. A peer that has answered before is asked by a probe, a packet of its own
//! behind what has been sent. Until then it may be a device that knows no such packets: it is asked by a mark in a
//! message, which others ignore. One that is not Vervain stays silent, and is not paced.

use std::collections::VecDeque;

use crate::host::Nanos;
use crate::marks::Marks;
use crate::psn;

/// Bytes that may be unconfirmed on the way to a peer that has not answered yet.
const FIRST_CREDIT: u64 = 64 << 10;
/// The least credit: two packets of the largest path MTU, as they are counted.
const LEAST_CREDIT: u64 = 2 * cost(4096 + HEADERS);
/// The largest credit, also if the peer grants more.
pub const MOST_CREDIT: u64 = 8 << 20;
/// What notifications have taken comes back by so many packets of the largest path MTU, and by this part, in the time
/// in which a credit is confirmed: as a window grows.
const GROWTH: u64 = 2 * cost(4096 + HEADERS);
const GROWTH_PART: u64 = 64;
/// A probe leaves after this part of the credit.
const PROBES_PER_CREDIT: u64 = 4;
/// Probes that are remembered. Those of a whole credit and of all tries are fewer; if not, the oldest become one.
const MOST_PROBES: usize = 32;
/// Bytes of headers and ICRC that a packet may have.
const HEADERS: usize = 48;

/// Nanoseconds to wait for the first answer of a peer, doubled with each try, and the number of tries: 30 ms in all.
const FIRST_WAIT: Nanos = 2_000_000;
const FIRST_TRIES: u32 = 4;
/// Nanoseconds to wait for a peer that has answered before, doubled with each try, and the number of tries: about half
/// a second in all.
const WAIT: Nanos = 4_000_000;
const TRIES: u32 = 7;
/// A peer that does not answer is asked again after this time, doubled with each try, without waiting for it.
const FIRST_PAUSE: Nanos = 50_000_000;
const LAST_PAUSE: Nanos = 1_000_000_000;

/// Bytes of a receive buffer that a packet of `length` bytes of UDP payload takes: the kernel counts the memory that it
/// lies in, a power of two with room before and behind the packet, and its descriptor (measured on Linux 6.18 by
/// SO_MEMINFO: 832 for 16 bytes, 2,304 for 1,052, 8,448 for 4,124). Packets that come as a train take little more than
/// their length.
pub const fn cost(length: usize) -> u64 {
    (length as u64 + 416).next_power_of_two() + 320
}

/// The state of the peer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// It has not answered yet, or not for long.
    Unknown,
    /// It answers.
    Answers,
    /// It does not; it is asked again at this time.
    Silent { ask_at: Nanos, pause: Nanos },
}

/// A probe, or a packet with the mark, that may still be answered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The PSN of the packet.
    sequence: u32,
    /// Bytes sent up to it, after the probe before.
    bytes: u64,
}

/// Unconfirmed bytes from one process to another, and the limit of them. Bytes are counted by [`cost`].
#[derive(Clone, Debug)]
pub struct Pacer {
    peer: Peer,
    credit: u64,
    /// The most that the network allows, whatever the peer grants.
    limit: u64,
    marks: Marks,
    /// Bytes that were under way when a notification has last lowered the limit, and are not confirmed yet.
    unheeded: u64,
    under_way: u64,
    /// Bytes sent after the last probe.
    since_probe: u64,
    probes: VecDeque<Probe>,
    /// Sequence number of the next probe, 24 bits.
    next: u32,
    /// When the probes count as unanswered, if there are any that matter.
    deadline: Option<Nanos>,
    /// Times in a row that they did.
    tries: u32,
    /// One packet may leave without credit, to ask.
    try_one: bool,
}

impl Pacer {
    /// For a peer that nothing is known of. `first` is the sequence number of the first probe.
    pub fn new(first: u32) -> Pacer {
        Pacer {
            peer: Peer::Unknown,
            credit: FIRST_CREDIT,
            limit: MOST_CREDIT,
            marks: Marks::default(),
            unheeded: 0,
            under_way: 0,
            since_probe: 0,
            probes: VecDeque::new(),
            next: first & psn::MASK,
            deadline: None,
            tries: 0,
            try_one: false,
        }
    }

    /// Bytes that may be under way; none for a peer that does not answer, to which all may.
    pub fn credit(&self) -> Option<u64> {
        self.is_paced().then_some(self.credit)
    }

    /// Bytes that are under way.
    pub fn under_way(&self) -> u64 {
        self.under_way
    }

    fn is_paced(&self) -> bool {
        !matches!(self.peer, Peer::Silent { .. })
    }

    /// Returns true if a packet of `cost` may leave now. If not, [`Pacer::hold_back`] is to be told so and this is to
    /// be asked again, at once, after an echo, and at [`Pacer::next_timeout`].
    #[inline]
    pub fn admits(&self, cost: u64) -> bool {
        self.under_way == 0 || self.under_way + cost <= self.credit || self.try_one || !self.is_paced()
    }

    /// Counts a packet of `cost` with this PSN that leaves. Returns true if it is to ask the peer, by the mark.
    #[inline]
    pub fn sent(&mut self, now: Nanos, cost: u64, psn: u32) -> bool {
        if self.is_paced() {
            self.under_way += cost;
            self.since_probe += cost;
        }
        let asks = match self.peer {
            Peer::Answers => false,
            Peer::Silent { ask_at, .. } => ask_at <= now,
            // The first packet of all asks.
            Peer::Unknown => self.probes.is_empty() || self.try_one || self.is_probe_due(),
        };
        if asks {
            self.asked(now, psn);
        }
        asks
    }

    #[inline]
    fn is_probe_due(&self) -> bool {
        self.since_probe * PROBES_PER_CREDIT >= self.credit
    }

    /// The sequence number of a probe, if one is to leave now, behind what has been sent.
    #[inline]
    pub fn poll_probe(&mut self, now: Nanos) -> Option<u32> {
        (self.peer == Peer::Answers && self.is_probe_due()).then(|| self.probe(now))
    }

    /// A packet was not admitted. Only then time counts, for only then somebody is sure to look for echoes. The
    /// sequence number of a probe that is to leave now, if there is one.
    pub fn hold_back(&mut self, now: Nanos) -> Option<u32> {
        let overdue = self.deadline.is_some_and(|at| at <= now);
        let answers = self.peer == Peer::Answers;
        if overdue {
            self.tries += 1;
            if self.tries >= if answers { TRIES } else { FIRST_TRIES } {
                self.give_up(now);
                return None;
            }
        }
        if overdue || self.deadline.is_none() {
            let wait = if answers { WAIT } else { FIRST_WAIT };
            self.deadline = Some(now + (wait << self.tries));
        }
        self.try_one |= overdue && !answers;
        (answers && (overdue || self.since_probe > 0 || self.probes.is_empty())).then(|| self.probe(now))
    }

    fn probe(&mut self, now: Nanos) -> u32 {
        let sequence = self.next;
        self.next = psn::add(self.next, 1);
        self.asked(now, sequence);
        sequence
    }

    /// The packet `sequence` asks.
    #[inline(never)]
    fn asked(&mut self, now: Nanos, sequence: u32) {
        self.try_one = false;
        if let Peer::Silent { ask_at, pause } = &mut self.peer {
            (*ask_at, *pause) = (now + *pause, (*pause * 2).min(LAST_PAUSE));
        }
        let probe = Probe { sequence, bytes: std::mem::take(&mut self.since_probe) };
        if self.probes.len() == MOST_PROBES
            && let Some(oldest) = self.probes.pop_front()
            && let Some(next) = self.probes.front_mut()
        {
            next.bytes += oldest.bytes;
        }
        self.probes.push_back(probe);
    }

    /// A congestion notification packet has come from the peer. The credit becomes less by half of the share of time in
    /// which some come, once until all that was under way then has been confirmed.
    pub fn notified(&mut self, now: Nanos) {
        if self.under_way == 0 || !self.is_paced() {
            return;
        }
        let Some(share) = self.marks.notified(now, 0) else { return };
        if self.unheeded == 0 {
            self.limit = share.taken_from(self.credit).max(LEAST_CREDIT);
            self.credit = self.limit;
            self.unheeded = self.under_way;
        }
    }

    /// `bytes` have been confirmed. What notifications have taken comes back if it was what held the sender back.
    fn confirmed(&mut self, bytes: u64) {
        let was_used = self.under_way * 2 >= self.limit;
        self.under_way = self.under_way.saturating_sub(bytes);
        self.unheeded = self.unheeded.saturating_sub(bytes);
        if was_used && self.limit < MOST_CREDIT {
            let growth = (GROWTH + self.limit / GROWTH_PART) * bytes / self.limit;
            self.limit = (self.limit + growth).min(MOST_CREDIT);
        }
    }

    /// When a packet that is held back is to be tried again although no echo has come.
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Counts all unconfirmed bytes as lost.
    fn give_up(&mut self, now: Nanos) {
        (self.under_way, self.since_probe, self.tries, self.unheeded) = (0, 0, 0, 0);
        self.credit = FIRST_CREDIT.min(self.limit);
        (self.deadline, self.try_one) = (None, false);
        if self.peer == Peer::Answers {
            self.peer = Peer::Unknown;
            self.probes.clear();
        } else {
            self.peer = Peer::Silent { ask_at: now + FIRST_PAUSE, pause: 2 * FIRST_PAUSE };
            // A late echo still shows that the peer is there.
            self.probes.iter_mut().for_each(|probe| probe.bytes = 0);
        }
    }

    /// The peer has taken in everything up to probe `sequence`, and `credit` bytes may be under way from now on. False
    /// for an echo that no probe waits for, which changes nothing.
    pub fn handle_echo(&mut self, sequence: u32, credit: u64) -> bool {
        let Some(last) = self.probes.iter().position(|probe| probe.sequence == sequence) else { return false };
        // Packets of one sender stay in order: what came before the later probe has come, also if an echo was lost.
        let arrived: u64 = self.probes.drain(..=last).map(|probe| probe.bytes).sum();
        self.confirmed(arrived);
        self.credit = credit.clamp(LEAST_CREDIT, MOST_CREDIT).min(self.limit);
        (self.peer, self.tries, self.deadline, self.try_one) = (Peer::Answers, 0, None, false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;
    const PACKET: u64 = cost(1024 + 16);

    /// Sends a packet, with any PSN; the sequence number of the question that went along, by its mark or a probe.
    fn send(pacer: &mut Pacer, now: Nanos, cost: u64) -> Option<u32> {
        let psn = pacer.next;
        if pacer.sent(now, cost, psn) {
            pacer.next = psn::add(psn, 1);
            return Some(psn);
        }
        pacer.poll_probe(now)
    }

    /// Sends until nothing more is admitted: how many packets, and the probes that went along.
    fn fill(pacer: &mut Pacer, now: Nanos) -> (u64, Vec<u32>) {
        let (mut packets, mut probes) = (0, Vec::new());
        while pacer.admits(PACKET) && packets < 1_000_000 {
            probes.extend(send(pacer, now, PACKET));
            packets += 1;
        }
        probes.extend(pacer.hold_back(now));
        (packets, probes)
    }

    /// A peer that has answered once, with this credit, and nothing under way.
    fn known(credit: u64) -> Pacer {
        let mut pacer = Pacer::new(0);
        let first = send(&mut pacer, 0, PACKET).expect("the first packet asks");
        assert!(pacer.handle_echo(first, credit));
        assert_eq!((pacer.credit(), pacer.under_way()), (Some(credit), 0));
        pacer
    }

    /// Tries packets that are held back whenever that is to be done; the time at which nothing is held back, and the
    /// questions.
    fn wait(pacer: &mut Pacer, mut now: Nanos) -> (Nanos, usize) {
        let mut probes = 0;
        while !pacer.admits(PACKET) {
            probes += usize::from(pacer.hold_back(now).is_some());
            if pacer.try_one {
                assert!(pacer.sent(now, PACKET, 0), "what leaves without credit asks");
                probes += 1;
            }
            now = pacer.next_timeout().unwrap_or(now);
        }
        (now, probes)
    }

    #[test]
    fn a_packet_counts_as_the_kernel_counts_it() {
        assert_eq!([16, 100, 1052, 4124].map(cost), [832, 1344, 2368, 8512]);
    }

    #[test]
    fn the_first_packet_asks_and_then_each_quarter_of_the_credit() {
        let mut pacer = Pacer::new(0xff_ffff);
        let (packets, probes) = fill(&mut pacer, 0);
        assert_eq!(packets, FIRST_CREDIT / PACKET);
        assert_eq!(probes[..3], [0xff_ffff, 0, 1], "the first, and on after the wrap");
        assert!((4..=6).contains(&probes.len()), "{probes:?}");
        assert_eq!(pacer.hold_back(0), None, "each is asked for once");
    }

    #[test]
    fn an_echo_makes_room_for_all_that_went_before_its_probe() {
        let mut pacer = known(1 << 20);
        let (packets, probes) = fill(&mut pacer, 0);
        assert_eq!(packets, (1 << 20) / PACKET);
        let before = pacer.under_way();
        // The echo of the first one is lost.
        assert!(pacer.handle_echo(probes[1], 1 << 20));
        assert!(pacer.under_way() <= before / 2 + PACKET && pacer.under_way() >= before / 2 - PACKET);
        assert!(pacer.admits(PACKET));
        assert!(!pacer.handle_echo(probes[0], 1 << 20), "it comes late");
        assert!(pacer.handle_echo(*probes.last().unwrap(), 1 << 20));
        assert_eq!(pacer.under_way(), 0);
    }

    #[test]
    fn a_peer_that_never_answers_is_not_paced_after_some_milliseconds_and_asked_now_and_then() {
        let mut pacer = Pacer::new(7);
        fill(&mut pacer, 0);
        let (now, probes) = wait(&mut pacer, 0);
        assert_eq!((now, probes), (30 * MS, 3));
        assert_eq!(pacer.credit(), None);
        let asked = |pacer: &mut Pacer, from: Nanos, to: Nanos| {
            let each = (from..to).step_by(MS as usize);
            each.filter(|&now| {
                assert!(pacer.admits(u64::MAX));
                send(pacer, now, 1 << 20).is_some()
            })
            .count()
        };
        assert_eq!(asked(&mut pacer, now, now + 1000 * MS), 4, "after 50, 150, 350, 750 ms");
        assert_eq!(asked(&mut pacer, now + 2000 * MS, now + 12_000 * MS), 10, "each second");
        assert_eq!(pacer.under_way(), 0);
    }

    #[test]
    fn a_late_answer_is_one() {
        let mut pacer = Pacer::new(0);
        let (_, probes) = fill(&mut pacer, 0);
        wait(&mut pacer, 0);
        assert!(pacer.handle_echo(probes[0], 1 << 20));
        assert_eq!((pacer.credit(), pacer.under_way()), (Some(1 << 20), 0));
    }

    #[test]
    fn a_peer_that_falls_silent_is_waited_for_half_a_second() {
        let mut pacer = known(1 << 20);
        fill(&mut pacer, 0);
        let (now, probes) = wait(&mut pacer, 0);
        assert_eq!((now, probes), (508 * MS, 6));
        assert_eq!(pacer.credit(), Some(FIRST_CREDIT), "as one that nothing is known of");
        fill(&mut pacer, now);
        let (end, _) = wait(&mut pacer, now);
        assert_eq!((end - now, pacer.credit()), (30 * MS, None));
    }

    #[test]
    fn time_in_which_nothing_is_held_back_does_not_count() {
        let mut pacer = Pacer::new(0);
        for n in 0..20 {
            send(&mut pacer, n * 1000 * MS, PACKET);
        }
        assert_eq!((pacer.credit(), pacer.tries), (Some(FIRST_CREDIT), 0));
        let mut pacer = known(1 << 20);
        fill(&mut pacer, 0);
        // Long after, one try has failed and no more.
        assert!(pacer.hold_back(10_000 * MS).is_some());
        assert_eq!((pacer.tries, pacer.next_timeout()), (1, Some(10_008 * MS)));
    }

    #[test]
    fn a_notification_lowers_the_credit_once_until_what_was_under_way_is_confirmed() {
        let mut pacer = known(1 << 20);
        pacer.notified(0);
        assert_eq!(pacer.credit(), Some(1 << 20), "nothing was under way");
        let (_, probes) = fill(&mut pacer, 0);
        pacer.notified(MS);
        assert_eq!(pacer.credit(), Some(1 << 19), "the first halves it");
        pacer.notified(2 * MS);
        assert_eq!(pacer.credit(), Some(1 << 19));
        // Whatever the peer grants, it comes back slowly, and only while it is used.
        assert!(pacer.handle_echo(*probes.last().unwrap(), 1 << 20));
        let after = pacer.credit().unwrap();
        assert!((1 << 19..=(1 << 19) + 3 * GROWTH + (1 << 15)).contains(&after), "{after}");
        let one = pacer.probe(3 * MS);
        assert!(pacer.handle_echo(one, 1 << 20));
        assert_eq!(pacer.credit(), Some(after));
        // However many of them come, some credit is left.
        for n in 0..100 {
            let (_, probes) = fill(&mut pacer, 0);
            (0..10).for_each(|i| pacer.notified((4 + n) * MS + i * 50_000));
            assert!(pacer.handle_echo(*probes.last().unwrap(), 1 << 20));
        }
        assert!((LEAST_CREDIT..8 * GROWTH).contains(&pacer.credit().unwrap()), "{pacer:?}");
    }

    #[test]
    fn a_peer_that_is_not_paced_has_no_credit_to_lower() {
        let mut pacer = Pacer::new(0);
        fill(&mut pacer, 0);
        let (now, _) = wait(&mut pacer, 0);
        pacer.notified(now);
        assert_eq!((pacer.credit(), pacer.limit), (None, MOST_CREDIT));
    }

    #[test]
    fn no_grant_passes_the_bounds() {
        for (grant, credit) in [(u64::from(u32::MAX), MOST_CREDIT), (0, LEAST_CREDIT)] {
            let mut pacer = Pacer::new(0);
            let (_, probes) = fill(&mut pacer, 0);
            assert!(pacer.handle_echo(probes[0], grant));
            assert_eq!(pacer.credit(), Some(credit));
        }
    }

    #[test]
    fn echoes_that_nobody_waits_for_change_nothing_and_what_is_remembered_is_bounded() {
        let mut pacer = known(1 << 20);
        let (_, probes) = fill(&mut pacer, 0);
        let before = pacer.under_way();
        for sequence in (0..1 << 24).filter(|sequence| !probes.contains(sequence)) {
            assert!(!pacer.handle_echo(sequence, 1 << 20));
        }
        assert_eq!(pacer.under_way(), before);
        // Nor do probes pile up, whatever happens, and no byte is forgotten.
        let last = (0..100).map(|_| pacer.probe(0)).last().unwrap();
        assert_eq!(pacer.probes.len(), MOST_PROBES);
        assert!(pacer.handle_echo(last, 1 << 20));
        assert_eq!(pacer.under_way(), 0);
    }

    #[test]
    fn a_probe_goes_to_none_but_a_peer_that_has_answered() {
        let mut pacer = Pacer::new(0);
        for now in (0..10_000 * MS).step_by(MS as usize) {
            assert_eq!((pacer.hold_back(now), pacer.poll_probe(now)), (None, None), "at {now}");
            while pacer.under_way() < FIRST_CREDIT && pacer.admits(PACKET) {
                pacer.sent(now, PACKET, 0);
                assert_eq!(pacer.poll_probe(now), None);
                if pacer.credit().is_none() {
                    break;
                }
            }
        }
        // A peer that has answered, and then falls silent, counts as unknown.
        let mut pacer = known(1 << 20);
        let (_, probes) = fill(&mut pacer, 0);
        assert!(!probes.is_empty());
        let (now, _) = wait(&mut pacer, 0);
        assert!(pacer.sent(now, PACKET, 0), "asked by the mark");
        assert_eq!(pacer.poll_probe(now), None);
    }

    #[test]
    fn one_packet_may_always_be_under_way() {
        assert!(Pacer::new(0).admits(MOST_CREDIT + 1));
    }
}
