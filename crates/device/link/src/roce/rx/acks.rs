//! What the responders of this process have to say: acknowledgements, which wait for a packet that goes the same way,
//! for a program that has just got a message often answers; and what READs and atomics are answered with, which does
//! not wait.

use super::{FEW, Receiver};
use crate::roce::connection::Connection;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::now_ns;
use vervain_hca::process::Process;
use vervain_transport::Nanos;
use vervain_wire::{Bth, opcode};

/// Nanoseconds that an acknowledgement may wait for a program that was at it a moment ago.
pub(in crate::roce) const ACK_DELAY_NS: u64 = 20_000;
/// Packets that a READ's answer may put out before others get their turn.
const MAX_RESPONSE_PACKETS: u32 = 64;
/// Messages whose acknowledgement may wait for another packet.
const MAX_UNACKNOWLEDGED: u32 = 32;

/// The connections whose responder has something to say, and what tells how long that may wait.
#[derive(Default)]
pub(super) struct AcksDue {
    connections: Vec<Arc<Connection>>,
    /// When the first of them had something to say.
    since: Nanos,
    /// One of them has more to say than an acknowledgement.
    urgent: bool,
    /// Packets that asked for an acknowledgement.
    unacknowledged: u32,
    /// Packets of requests since responses were sent last, messages that have ended, and whether another has begun.
    requests: u32,
    messages: u32,
    in_message: bool,
}

/// `connection` is no longer among those that have something to say.
pub(super) fn forget(connection: &Connection) {
    connection.owed.in_acks_due.store(false, Ordering::Relaxed);
}

impl AcksDue {
    /// Since when something waits to be said.
    pub(super) fn since(&self) -> Option<Nanos> {
        (!self.connections.is_empty()).then_some(self.since)
    }

    /// Whether the rest of a message is still to come.
    pub(super) fn is_in_message(&self) -> bool {
        self.in_message
    }

    /// Whether a READ's answer is not all sent.
    pub(super) fn has_more(&self) -> bool {
        self.urgent && !self.connections.is_empty()
    }

    /// Whether the requests look like a stream, which needs its acknowledgements to go on. To a few packets, or to one
    /// message, however long, an answer may follow at once.
    pub(super) fn is_stream(&self) -> bool {
        self.requests > FEW && (self.in_message || self.messages > 1)
    }

    /// Whether what waits is to leave at once.
    #[inline]
    pub(super) fn must_leave(&self, now: Nanos) -> bool {
        let waits_long = !self.connections.is_empty() && now.saturating_sub(self.since) > ACK_DELAY_NS;
        self.urgent || self.unacknowledged >= MAX_UNACKNOWLEDGED || waits_long
    }

    /// The responder of `connection` has taken a request's packet.
    #[inline]
    pub(super) fn add(&mut self, connection: &Arc<Connection>, now: Nanos, bth: &Bth) {
        if !connection.owed.in_acks_due.swap(true, Ordering::Relaxed) {
            self.connections.push(Arc::clone(connection));
            if self.connections.len() == 1 {
                self.since = now;
            }
        } else if self.connections.len() == 1 && connection.owed.piggybacked.load(Ordering::Relaxed) {
            // Those before have been acknowledged by a packet of a post.
            self.begin(now);
        }
        connection.owed.piggybacked.store(false, Ordering::Relaxed);
        self.urgent |= !(opcode::is_send(bth.opcode) || opcode::is_write(bth.opcode));
        self.requests += 1;
        self.in_message = !opcode::ends(bth.opcode);
        self.messages += u32::from(!self.in_message);
        self.unacknowledged += u32::from(bth.ack_request);
    }

    /// What has been said is not counted any more; what is left waits since `now`.
    fn begin(&mut self, now: Nanos) {
        (self.unacknowledged, self.requests, self.messages, self.since) = (0, 0, 0, now);
    }

    /// Has each responder put what it has to say into the batch of its port.
    fn respond(&mut self, now: Nanos) {
        let mut more = false;
        self.connections.retain(|connection| {
            let again = connection.qp.upgrade().is_some_and(|qp| connection.answer(&qp, MAX_RESPONSE_PACKETS));
            connection.owed.in_acks_due.store(again, Ordering::Relaxed);
            more |= again;
            again
        });
        self.urgent = more;
        self.begin(now);
    }

    /// Has acknowledgements that are due put into the batches of the ports without waiting for anybody; false while
    /// other threads have what that takes.
    pub(super) fn acknowledge_if_free(&self) -> bool {
        self.connections.iter().fold(true, |all, connection| {
            let done = connection.qp.upgrade().is_none_or(|qp| connection.acknowledge_if_free(&qp));
            done & all
        })
    }
}

impl Receiver {
    /// Sends what the responders have to send.
    pub(in crate::roce) fn send_responses(&mut self) {
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
    fn one_message_is_no_stream_however_long_and_its_beginning_is() {
        let acks = |requests, messages, in_message| AcksDue { requests, messages, in_message, ..AcksDue::default() };
        assert!(!acks(FEW, 0, true).is_stream());
        assert!(!acks(FEW, FEW, false).is_stream(), "a few small messages");
        assert!(!acks(64, 1, false).is_stream());
        assert!(acks(64, 0, true).is_stream(), "its sender's window may be closed");
        assert!(acks(64, 1, true).is_stream());
        assert!(acks(64, 2, false).is_stream());
    }
}
