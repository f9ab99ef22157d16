//! Packets that this process's responders owe. Acknowledgements wait for a packet in the same direction, as a program
//! that has just got a message often answers. Answers to READs and atomics do not wait.

use super::{FEW, Receiver};
use crate::connection::Connection;
use crate::net::packets_in_train;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::now_ns;
use vervain_hca::process::Process;
use vervain_transport::Nanos;
use vervain_wire::{BTH_LEN, Bth, ICRC_LEN, opcode};

/// Nanoseconds that an acknowledgement may wait for a program that has polled recently.
pub(crate) const ACK_DELAY_NS: u64 = 20_000;
/// Trains of a READ's answer that leave before others get their turn.
const TRAINS_IN_TURN: u32 = 4;
/// Most messages whose acknowledgement waits for another packet.
const MAX_UNACKNOWLEDGED: u32 = 32;

/// Connections whose responders owe packets, and the counts that limit their wait.
#[derive(Default)]
pub(super) struct AcksDue {
    connections: Vec<Arc<Connection>>,
    /// Time from which the first of them has owed packets, or an acknowledgement, if one is owed.
    since: Nanos,
    /// True if one of them owes more than an acknowledgement, or has kept packets whose turn has come.
    urgent: bool,
    /// Packets that requested an acknowledgement.
    unacknowledged: u32,
    /// Packets of requests since the last responses; messages that have ended; and true if another has begun.
    requests: u32,
    messages: u32,
    in_message: bool,
}

/// Packets of a READ's answer of this path MTU that leave before others get their turn: what is left of a train costs
/// the kernel as much as a train.
fn turn(mtu: u32) -> u32 {
    TRAINS_IN_TURN * packets_in_train(BTH_LEN + mtu as usize + ICRC_LEN) as u32
}

/// Takes `connection` out of those that owe packets.
pub(super) fn forget(connection: &Connection) {
    connection.owed.in_acks_due.store(false, Ordering::Relaxed);
}

impl AcksDue {
    /// Time from which packets are owed; None: none are.
    pub(super) fn since(&self) -> Option<Nanos> {
        (!self.connections.is_empty()).then_some(self.since)
    }

    /// Returns true if the rest of a message is still to come.
    pub(super) fn is_in_message(&self) -> bool {
        self.in_message
    }

    /// Returns true if a READ's answer is not all sent, or the turn of kept packets has come.
    pub(super) fn has_more(&self) -> bool {
        self.urgent && !self.connections.is_empty()
    }

    /// Returns true if the requests look like a stream, which needs its acknowledgements to go on. A few packets, or
    /// one message of any length, may be answered at once. In the middle of a message an acknowledgement leaves only if
    /// the sender has asked for one, as it does before its window closes.
    pub(super) fn is_stream(&self) -> bool {
        self.requests > FEW && (self.in_message && self.unacknowledged > 0 || self.messages > 1)
    }

    /// Returns true if the owed packets must leave at once.
    #[inline]
    pub(super) fn must_leave(&self, now: Nanos) -> bool {
        let waits_long = !self.connections.is_empty() && now.saturating_sub(self.since) > ACK_DELAY_NS;
        self.urgent || self.unacknowledged >= MAX_UNACKNOWLEDGED || waits_long
    }

    /// Notes that the responder of `connection` has taken a request's packet.
    #[inline]
    pub(super) fn add(&mut self, connection: &Arc<Connection>, now: Nanos, bth: &Bth) {
        let in_acks_due = &connection.owed.in_acks_due;
        if !in_acks_due.load(Ordering::Relaxed) && !in_acks_due.swap(true, Ordering::Relaxed) {
            self.connections.push(Arc::clone(connection));
            if self.connections.len() == 1 {
                self.since = now;
            }
        } else if self.connections.len() == 1 && connection.owed.piggybacked.load(Ordering::Relaxed) {
            // A packet of a post has acknowledged those before.
            self.begin(now);
        }
        connection.owed.piggybacked.store(false, Ordering::Relaxed);
        connection.owed.note(now, bth.opcode);
        self.count(now, bth);
    }

    /// Notes whether what is owed must leave at once, for more than an acknowledgement is.
    #[inline]
    pub(super) fn hurry(&mut self, is_urgent: bool) {
        self.urgent |= is_urgent;
    }

    /// Counts a request's packet.
    #[inline]
    fn count(&mut self, now: Nanos, bth: &Bth) {
        self.urgent |= !(opcode::is_send(bth.opcode) || opcode::is_write(bth.opcode));
        self.requests += 1;
        self.in_message = !opcode::ends(bth.opcode);
        self.messages += u32::from(!self.in_message);
        if bth.ack_request {
            // The wait is for the program's answer to a message. A long one takes longer to come than that may last,
            // and may ask for acknowledgements on its way.
            let ends_first = self.messages == 1 && !self.in_message;
            if self.unacknowledged == 0 || ends_first {
                self.since = now;
            }
            self.unacknowledged += 1;
        }
    }

    /// Restarts the counts; the rest has waited since `now`.
    fn begin(&mut self, now: Nanos) {
        (self.unacknowledged, self.requests, self.messages, self.since) = (0, 0, 0, now);
    }

    /// Makes each responder put its packets into the batch of its port, but for an acknowledgement that waits for the
    /// last packet of an answer.
    fn respond(&mut self, now: Nanos) {
        let (mut more, urgent) = (false, self.urgent);
        self.connections.retain(|connection| {
            if !urgent && connection.owed.is_held(|| now) {
                return true;
            }
            let packets = turn(connection.terms.mtu);
            let again = connection.qp.upgrade().is_some_and(|qp| connection.answer(&qp, packets));
            connection.owed.in_acks_due.store(again, Ordering::Relaxed);
            more |= again;
            again
        });
        self.urgent = more;
        self.begin(now);
    }

    /// Puts due acknowledgements into the batches of the ports without waiting. Returns false if other threads hold a
    /// lock for that.
    pub(super) fn acknowledge_if_free(&self) -> bool {
        self.connections.iter().fold(true, |all, connection| {
            let done = connection.qp.upgrade().is_none_or(|qp| connection.acknowledge_if_free(&qp));
            done & all
        })
    }
}

impl Receiver {
    /// Sends the packets that the responders owe.
    pub(crate) fn send_responses(&mut self) {
        let acks = &mut self.state.acks;
        if acks.connections.is_empty() {
            return;
        }
        let now = now_ns();
        if Process::current().and_then(|p| p.handle_packets(|| acks.respond(now))).is_some() {
            self.flush_ports();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_waits_from_the_first_packet_that_asks_for_it() {
        let mut acks = AcksDue::default();
        let packet = |op, ack_request| Bth { opcode: opcode::RC | op, ack_request, ..Bth::default() };
        acks.count(100, &packet(opcode::WRITE_FIRST, false));
        acks.count(200, &packet(opcode::WRITE_MIDDLE, false));
        acks.count(300, &packet(opcode::WRITE_LAST, true));
        assert_eq!(acks.since, 300, "a long message may take longer than its acknowledgement may wait");
        acks.count(400, &packet(opcode::WRITE_ONLY, true));
        assert_eq!(acks.since, 300, "the second makes the first wait no longer");
    }

    #[test]
    fn what_a_long_message_asks_for_on_its_way_does_not_shorten_the_wait_for_its_answer() {
        let mut acks = AcksDue::default();
        let packet = |op, ack_request| Bth { opcode: opcode::RC | op, ack_request, ..Bth::default() };
        acks.count(100, &packet(opcode::WRITE_FIRST, true));
        assert_eq!(acks.since, 100);
        acks.count(200, &packet(opcode::WRITE_MIDDLE, true));
        assert_eq!(acks.since, 100, "its sender waits from then on");
        acks.count(300, &packet(opcode::WRITE_LAST, true));
        assert_eq!(acks.since, 300);
        acks.count(400, &packet(opcode::WRITE_FIRST, true));
        acks.count(500, &packet(opcode::WRITE_LAST, true));
        assert_eq!(acks.since, 300, "the end of the second");
    }

    #[test]
    fn a_turn_is_of_whole_trains() {
        let turns = [(256, 256), (512, 256), (1024, 248), (2048, 124), (4096, 60)];
        assert_eq!(turns.map(|(mtu, _)| (mtu, turn(mtu))), turns);
    }

    #[test]
    fn one_message_is_no_stream_however_long_and_its_beginning_is() {
        let acks = |requests, messages, in_message| AcksDue {
            requests,
            messages,
            in_message,
            unacknowledged: 1,
            ..AcksDue::default()
        };
        assert!(!acks(FEW, 0, true).is_stream());
        assert!(!acks(FEW, FEW, false).is_stream(), "a few small messages");
        assert!(!acks(64, 1, false).is_stream());
        assert!(acks(64, 0, true).is_stream(), "its sender's window may be closed");
        assert!(acks(64, 1, true).is_stream());
        assert!(acks(64, 2, false).is_stream());
        assert!(!AcksDue { unacknowledged: 0, ..acks(64, 0, true) }.is_stream(), "nobody waits for an acknowledgement");
    }
}
