//! UC and UD messages that came before there was a receive for them. A poll may find more of them than the program has
//! posted receives for, and by IBA 9.8.2.2 and 9.8.3.2 they are dropped; but the program cannot post more before it has
//! seen what the poll has found. So they are kept until it has had time to. Messages for a QP that never had a receive
//! are dropped at once. Messages for a QP that is stopped are kept until it goes on.

use super::RxState;
use super::demux::{Addressees, RxPacket};
use crate::net::Datagram;
use crate::pacing::PeerKey;
use crate::ports::LocalPort;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use vervain_carrier::closed::Closed;
use vervain_hca::Qp;
use vervain_transport::Nanos;
use vervain_wire::{Packet, opcode, parse};

/// Nanoseconds that a QP may be without a receive: longer than a program that shares its CPU waits for its turn.
const MAX_WAIT_NS: u64 = 50_000_000;
/// Most bytes that are kept; senders have less under way.
const MAX_BYTES: usize = 8 << 20;
/// Bytes that a packet counts beyond its length.
const OVERHEAD: usize = 512;

/// The packets that wait for a receive.
#[derive(Default)]
pub(super) struct AwaitingReceive {
    queues: Vec<QpQueue>,
    /// Bytes of all packets.
    bytes: usize,
    /// QPs that had a receive for a message, and have not let one wait too long since.
    served: HashSet<u32>,
    /// The last of them.
    last_served: Option<u32>,
    /// True if packets were kept since the last [`AwaitingReceive::take_grown`].
    grown: bool,
}

/// The packets for one QP, in the order of arrival, and later probes.
struct QpQueue {
    qpn: u32,
    /// Set when the QP is reset or destroyed: they are not for a later QP with its number.
    closed: Closed,
    until: Nanos,
    packets: VecDeque<EarlyPacket>,
}

impl QpQueue {
    fn is_for(&self, qpn: u32) -> bool {
        self.qpn == qpn && !self.closed.is_set()
    }
}

/// A packet, which is intact.
struct EarlyPacket {
    port: Arc<LocalPort>,
    sender: PeerKey,
    /// The datagram without its bytes.
    like: Datagram<'static>,
    bytes: Vec<u8>,
}

impl EarlyPacket {
    fn datagram(&self) -> Datagram<'_> {
        Datagram { bytes: &self.bytes, ..self.like }
    }

    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

impl AwaitingReceive {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns true if packets wait for QP `qpn`: later ones wait too.
    #[inline]
    pub(super) fn holds(&self, qpn: u32) -> bool {
        self.queues.iter().any(|queue| queue.is_for(qpn))
    }

    /// A QP for which packets of `sender` wait, and the flag of its end.
    pub(super) fn holds_from(&self, sender: PeerKey) -> Option<(u32, Closed)> {
        let holds =
            |queue: &&QpQueue| !queue.closed.is_set() && queue.packets.iter().any(|packet| packet.sender == sender);
        self.queues.iter().find(holds).map(|queue| (queue.qpn, queue.closed.clone()))
    }

    /// Keeps a packet of `sender` with those for `qpn`, until that is `closed`. Returns false if it is to be dropped.
    /// The time for which a QP is stopped (`stands`) is added to its wait.
    pub(super) fn keep(&mut self, rx: &RxPacket<'_>, qpn: u32, closed: &Closed, sender: PeerKey, stands: bool) -> bool {
        let like = Datagram { bytes: &[], ..*rx.datagram };
        let packet = EarlyPacket { port: Arc::clone(rx.port), sender, like, bytes: rx.datagram.bytes.to_vec() };
        if self.bytes + packet.cost() > MAX_BYTES || !(stands || self.served.contains(&qpn)) {
            return false;
        }
        self.bytes += packet.cost();
        self.grown = true;
        match self.queues.iter_mut().find(|queue| queue.is_for(qpn)) {
            Some(queue) => queue.packets.push_back(packet),
            None => {
                let (closed, until) = (closed.clone(), rx.now + MAX_WAIT_NS);
                self.queues.push(QpQueue { qpn, closed, until, packets: VecDeque::from([packet]) });
            }
        }
        true
    }

    /// Returns true if packets were kept since the last call: then the program is to get its turn.
    #[inline]
    pub(super) fn take_grown(&mut self) -> bool {
        std::mem::take(&mut self.grown)
    }

    /// Notes that QP `qpn` has a receive.
    #[inline]
    pub(super) fn has_receives(&mut self, qpn: u32) {
        if self.last_served != Some(qpn) {
            self.served.insert(qpn);
            self.last_served = Some(qpn);
        }
    }

    fn give_up(&mut self, qpn: u32) {
        self.served.remove(&qpn);
        self.last_served = self.last_served.filter(|last| *last != qpn);
    }
}

impl Addressees {
    /// Retries the packets that wait for a receive, and drops those that have waited long enough.
    pub(super) fn retry_awaiting_receive(&self, state: &mut RxState, now: Nanos) {
        for mut queue in std::mem::take(&mut state.awaiting_receive.queues) {
            let ended = queue.closed.is_set();
            let mut may_wait = !ended;
            let stands = !ended && self.is_stopped(queue.qpn);
            if stands {
                queue.until = now + MAX_WAIT_NS;
            }
            while let Some(early) = queue.packets.front().filter(|_| !stands) {
                if let Ok(packet) = parse(&early.bytes) {
                    if may_wait && self.lacks_receive(queue.qpn, &packet) {
                        if now < queue.until {
                            break;
                        }
                        may_wait = false;
                        state.awaiting_receive.give_up(queue.qpn);
                    }
                    let (port, datagram, bth) = (&early.port, &early.datagram(), &packet.headers.bth);
                    let rx = RxPacket { port, datagram, packet: &packet, now, is_retry: true };
                    if !ended || bth.opcode == opcode::PROBE {
                        self.demux(state, &rx, &mut std::iter::empty());
                    } else if bth.is_vervain() {
                        // Its sender waits for the echo, with all its QPs.
                        self.answer_probe(state, &rx);
                    }
                }
                state.awaiting_receive.bytes -= early.cost();
                queue.until = now + MAX_WAIT_NS;
                queue.packets.pop_front();
            }
            if !queue.packets.is_empty() {
                state.awaiting_receive.queues.push(queue);
            }
        }
    }

    fn is_stopped(&self, qpn: u32) -> bool {
        let qp = self.connections.get(qpn).map_or_else(|| self.datagrams.qp(qpn), |connection| connection.qp.upgrade());
        qp.is_some_and(|qp| qp.is_stopped())
    }

    /// Returns true if such a packet takes a receive and its QP has none.
    fn lacks_receive(&self, qpn: u32, packet: &Packet<'_>) -> bool {
        let lacks = |qp: Option<Arc<Qp>>| qp.is_some_and(|qp| qp.lacks_receive());
        takes_receive(packet.headers.bth.opcode)
            && match self.connections.get(qpn) {
                Some(connection) => lacks(connection.qp.upgrade()),
                None => lacks(self.datagrams.qp(qpn)),
            }
    }
}

/// Returns true if a packet of UC or UD takes a receive (IBA 9.8.2.2): the first of a SEND, the last of a WRITE with
/// immediate data.
pub(super) fn takes_receive(op: u8) -> bool {
    opcode::is_send(op) && opcode::starts(op) || opcode::is_write(op) && opcode::has_imm(op)
}
