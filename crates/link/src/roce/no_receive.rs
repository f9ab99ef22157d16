//! UC and UD messages that came before there was a receive for them. A look may take in more of them than the program has
//! posted receives for, and IBA 9.8.2.2 and 9.8.3.2 have them dropped; but the program cannot post more before it has seen
//! what the look has found. So they are kept until it has had the time. A QP that had no receive to begin with is no such
//! case: what comes for it is dropped at once.

use super::Engine;
use super::net::Datagram;
use super::pacing::PeerKey;
use super::ports::LocalPort;
use super::receive::Found;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use vervain_hca::Qp;
use vervain_transport::Nanos;
use vervain_wire::{Packet, opcode, parse};

/// How long a QP may be without a receive. Longer than a program that shares its CPU waits for its turn.
const PATIENCE_NS: u64 = 50_000_000;
/// Bytes that are kept at most; what senders have under way is less.
const MOST_BYTES: usize = 8 << 20;
/// What a packet is counted with beyond its length.
const OVERHEAD: usize = 512;

/// The packets that wait.
#[derive(Default)]
pub(super) struct Starved {
    queues: Vec<Queue>,
    /// Of all packets.
    bytes: usize,
    /// QPs that had a receive for a message, and were not waited for in vain since.
    fed: HashSet<u32>,
    /// The last of them.
    last_fed: Option<u32>,
    /// Packets were kept since this was asked last.
    grown: bool,
}

/// Those for one QP, in the order of arrival, and probes that came behind them.
struct Queue {
    qpn: u32,
    until: Nanos,
    packets: VecDeque<Waiting>,
}

/// A packet. It is intact.
struct Waiting {
    port: Arc<LocalPort>,
    sender: PeerKey,
    /// All but the bytes.
    like: Datagram<'static>,
    bytes: Vec<u8>,
}

impl Waiting {
    fn datagram(&self) -> Datagram<'_> {
        Datagram { bytes: &self.bytes, ..self.like }
    }

    fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

impl Starved {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether something waits for QP `qpn`: what comes after it waits too.
    #[inline]
    pub(super) fn holds(&self, qpn: u32) -> bool {
        self.queues.iter().any(|queue| queue.qpn == qpn)
    }

    /// A QP for which something of `sender` waits.
    pub(super) fn holds_from(&self, sender: PeerKey) -> Option<u32> {
        let holds = |queue: &&Queue| queue.packets.iter().any(|waiting| waiting.sender == sender);
        self.queues.iter().find(holds).map(|queue| queue.qpn)
    }

    /// Keeps a packet with those for `qpn`; false if it is to be dropped.
    pub(super) fn keep(
        &mut self,
        now: Nanos,
        port: &Arc<LocalPort>,
        arrived: &Datagram<'_>,
        qpn: u32,
        sender: PeerKey,
    ) -> bool {
        let (port, bytes) = (Arc::clone(port), arrived.bytes.to_vec());
        let waiting = Waiting { port, sender, like: Datagram { bytes: &[], ..*arrived }, bytes };
        if self.bytes + waiting.cost() > MOST_BYTES || !self.fed.contains(&qpn) {
            return false;
        }
        self.bytes += waiting.cost();
        self.grown = true;
        match self.queues.iter_mut().find(|queue| queue.qpn == qpn) {
            Some(queue) => queue.packets.push_back(waiting),
            None => self.queues.push(Queue { qpn, until: now + PATIENCE_NS, packets: VecDeque::from([waiting]) }),
        }
        true
    }

    /// Whether packets were kept since this was asked last: then the program is to get its turn.
    #[inline]
    pub(super) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.grown)
    }

    /// QP `qpn` has a receive.
    #[inline]
    pub(super) fn has_receives(&mut self, qpn: u32) {
        if self.last_fed != Some(qpn) {
            self.fed.insert(qpn);
            self.last_fed = Some(qpn);
        }
    }

    fn give_up(&mut self, qpn: u32) {
        self.fed.remove(&qpn);
        self.last_fed = self.last_fed.filter(|last| *last != qpn);
    }
}

impl Engine {
    /// What waits for a receive gets another chance, or is dropped when it has waited long enough.
    pub(super) fn take_starved(&self, found: &mut Found, now: Nanos) {
        for mut queue in std::mem::take(&mut found.starved.queues) {
            let mut is_patient = true;
            while let Some(waiting) = queue.packets.front() {
                if let Ok(packet) = parse(&waiting.bytes) {
                    if is_patient && self.starves(queue.qpn, &packet) {
                        if now < queue.until {
                            break;
                        }
                        is_patient = false;
                        found.starved.give_up(queue.qpn);
                    }
                    self.lead(&waiting.port, found, now, &waiting.datagram(), &packet, true);
                }
                found.starved.bytes -= waiting.cost();
                queue.until = now + PATIENCE_NS;
                queue.packets.pop_front();
            }
            if !queue.packets.is_empty() {
                found.starved.queues.push(queue);
            }
        }
    }

    /// Whether such a packet takes a receive, and its QP has none.
    fn starves(&self, qpn: u32, packet: &Packet<'_>) -> bool {
        let lacks = |qp: Option<Arc<Qp>>| qp.is_some_and(|qp| qp.lacks_receive());
        takes_receive(packet.headers.bth.opcode)
            && match self.connection(qpn) {
                Some(connection) => lacks(connection.qp.upgrade()),
                None => lacks(self.datagrams.qp(qpn)),
            }
    }
}

/// Whether a packet of UC or UD takes a receive (IBA 9.8.2.2): the first of a SEND, the last of a WRITE with immediate data.
pub(super) fn takes_receive(op: u8) -> bool {
    opcode::is_send(op) && opcode::starts(op) || opcode::is_write(op) && opcode::has_imm(op)
}
