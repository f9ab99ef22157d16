//! Keeping UC and UD messages from overrunning their receiver: this side's credit with each peer process, and this
//! process's grants to its senders. The rules are in `vervain_transport::Pacer`; docs/protocol.md has the reasons.

use super::net::{Counters, Datagram};
use super::packet_sink::{Destination, PacketSink};
use super::ports::LocalPort;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use vervain_carrier::PacketOut;
use vervain_carrier::terms::PKEY;
use vervain_hca::arena::layout::slot_of;
use vervain_hca::device::port_counters::FIRST;
use vervain_hca::host::lock::{OwnerGuard, OwnerLock};
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::now_ns;
use vervain_hca::{Grh, Qp};
use vervain_transport::{Nanos, Pacer, Refused, pacer};
use vervain_wire::{Bth, Deth, Headers, ICRC_LEN, Packet, VERVAIN, opcode};

/// Peers that are remembered beyond those of connected QPs; then those are forgotten that nothing waits for.
const MOST_PEERS: usize = 1024;
/// Nanoseconds for which a sender counts among those that share the receive buffer.
const ACTIVE_NS: u64 = 1_000_000_000;
/// Most senders that are distinguished.
const MOST_SENDERS: usize = 64;
/// This part of a socket's buffer is granted; the rest is for reliable traffic, for what a sender sends before it knows
/// its share, and for what the kernel has handed out and not yet counted as free (up to a quarter).
const PART: u64 = 2;

/// A process: its address and its slot there.
pub(super) type PeerKey = (IpAddr, u32);

/// The credit of this process with all others.
#[derive(Default)]
pub(super) struct Paces {
    known: OwnerLock<HashMap<PeerKey, Arc<Pace>>>,
}

/// The credit with one process.
pub(super) struct Pace {
    state: OwnerLock<State>,
}

struct State {
    pacer: Pacer,
    /// QPs that were held back.
    waiting: Vec<Weak<Qp>>,
    /// Echoes so far: whose turn it is.
    turn: usize,
}

impl Paces {
    /// The credit with the process that has QP `qpn` at `remote`.
    pub(super) fn with(&self, remote: IpAddr, qpn: u32) -> Arc<Pace> {
        let mut known = self.known.lock();
        let key = (remote, slot_of(qpn));
        if let Some(pace) = known.get(&key) {
            return Arc::clone(pace);
        }
        if known.len() >= MOST_PEERS {
            known.retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.state.lock().waiting.is_empty());
        }
        // Any number will do; that of an earlier process with this slot is not likely to come again.
        let pacer = Pacer::new(now_ns() as u32);
        let pace = Arc::new(Pace { state: OwnerLock::new(State { pacer, waiting: Vec::new(), turn: 0 }) });
        known.insert(key, Arc::clone(&pace));
        pace
    }

    /// An echo: those that it lets go on do.
    pub(super) fn echo(&self, counters: &Counters, arrived: &Datagram<'_>, packet: &Packet<'_>) {
        let peer_qpn = packet.headers.deth.map_or(0, |deth| deth.source_qpn);
        let pace = self.find((arrived.from.ip(), slot_of(peer_qpn)));
        let credit = packet.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        if !pace.is_some_and(|pace| pace.echo(packet.headers.bth.psn, credit)) {
            counters.unwanted.add(1);
        }
    }

    /// A congestion notification packet has come from `host` for a UD QP, whose sender it does not name: all processes
    /// there that datagrams are under way to are slowed down. False if nothing is sent there.
    pub(super) fn notified(&self, host: IpAddr, now: Nanos) -> bool {
        let known = self.known.lock();
        let of_host = known.iter().filter(|((ip, _), _)| *ip == host);
        of_host.map(|(_, pace)| pace.notified(now)).count() > 0
    }

    pub(super) fn find(&self, key: PeerKey) -> Option<Arc<Pace>> {
        self.known.lock().get(&key).cloned()
    }
}

impl Pace {
    /// Takes the credit in hand, to send from `source_qpn`.
    pub(super) fn lock(&self, source_qpn: u32, now: Nanos) -> Paced<'_> {
        Paced { state: self.state.lock(), source_qpn, now, held_back_until: None }
    }

    /// An echo; false if nobody waits for it.
    fn echo(&self, sequence: u32, credit: u32) -> bool {
        let mut state = self.state.lock();
        if !state.pacer.handle_echo(sequence, credit.into()) {
            return false;
        }
        let mut waiting = std::mem::take(&mut state.waiting);
        state.turn = state.turn.wrapping_add(1);
        let turn = state.turn;
        drop(state);
        if !waiting.is_empty() {
            // The first in turn may take all there is.
            let first = turn % waiting.len();
            waiting.rotate_left(first);
            // Those that cannot now are looked at again when their time has come.
            waiting.iter().filter_map(Weak::upgrade).for_each(|qp| _ = qp.go_on());
        }
        true
    }

    /// A congestion notification packet has come from the peer.
    pub(super) fn notified(&self, now: Nanos) {
        self.state.lock().pacer.notified(now);
    }

    /// Bytes that may be under way, and that are, as the kernel counts them.
    pub(super) fn account(&self) -> (Option<u64>, u64) {
        let state = self.state.lock();
        (state.pacer.credit(), state.pacer.under_way())
    }
}

/// The credit with one process, in hand.
pub(super) struct Paced<'a> {
    state: OwnerGuard<'a, State>,
    source_qpn: u32,
    now: Nanos,
    /// A packet was refused, which is to be tried again then or after an echo.
    pub held_back_until: Option<Nanos>,
}

impl Paced<'_> {
    /// Where packets go. A peer that is not paced sends them at the program's speed, which no mark changes.
    pub(super) fn destination(&self, to: Destination) -> Destination {
        if self.state.pacer.credit().is_some() { to.ecn_capable() } else { to.not_ecn_capable() }
    }

    /// Adds a packet, with the mark or followed by a probe where that is due; `Refused::Full` when there is no credit
    /// for it.
    #[inline]
    pub(super) fn push(&mut self, out: &mut PacketSink<'_>, headers: &Headers, from: &Pieces) -> Result<(), Refused> {
        let length = opcode::headers_len(headers.bth.opcode) + from.len() as usize + ICRC_LEN;
        let (cost, now) = (pacer::cost(length), self.now);
        let pacer = &mut self.state.pacer;
        if !pacer.admits(cost) {
            if let Some(sequence) = pacer.hold_back(now) {
                self.probe(out, headers, sequence)?;
            }
            let pacer = &self.state.pacer;
            if !pacer.admits(cost) {
                self.held_back_until = Some(pacer.next_timeout().unwrap_or(now));
                return Err(Refused::Full);
            }
        }
        let pacer = &mut self.state.pacer;
        if pacer.sent(now, cost, headers.bth.psn) {
            let bth = Bth { mark: VERVAIN, ..headers.bth };
            return out.push(&Headers { bth, ..*headers }, from);
        }
        let probe = pacer.poll_probe(now);
        out.push(headers, from)?;
        probe.map_or(Ok(()), |sequence| self.probe(out, headers, sequence))
    }

    #[inline(never)]
    fn probe(&mut self, out: &mut PacketSink<'_>, like: &Headers, sequence: u32) -> Result<(), Refused> {
        // A datagram's Q_Key shows that its sender may send there.
        let deth = Deth { qkey: like.deth.map_or(0, |deth| deth.qkey), source_qpn: self.source_qpn };
        out.push(&headers(opcode::PROBE, deth, like.bth.dest_qpn, sequence), &Pieces::of(&[0; 4]))
    }

    /// `qp` waits for an echo.
    pub(super) fn wait(&mut self, qp: &Qp) {
        let waiting = &mut self.state.waiting;
        if !waiting.iter().any(|w| std::ptr::eq(w.as_ptr(), qp))
            && let Some(qp) = qp.handle()
        {
            waiting.push(Arc::downgrade(&qp));
        }
    }
}

/// The headers of a probe or an echo.
fn headers(opcode: u8, deth: Deth, dest_qpn: u32, sequence: u32) -> Headers {
    Headers {
        bth: Bth { opcode, pkey: PKEY, dest_qpn, psn: sequence, ..Bth::default() },
        deth: Some(deth),
        ..Headers::default()
    }
}

/// The echoes that this process answers probes with.
#[derive(Default)]
pub(super) struct Echoes {
    senders: Senders,
    /// Some lie in the batches of the ports.
    batched: bool,
}

impl Echoes {
    /// Returns true if some lie in the batches of the ports, which the caller sends.
    #[inline]
    pub(super) fn take_batched(&mut self) -> bool {
        std::mem::take(&mut self.batched)
    }

    /// Answers a probe of QP `source_qpn` at `from`, whose headers begin with `bth`, by an echo in the batch of `port`.
    pub(super) fn answer(&mut self, port: &LocalPort, now: Nanos, (from, source_qpn): (IpAddr, u32), bth: &Bth) {
        let credit = self.senders.share(now, (from, slot_of(source_qpn)), port.port.room());
        let headers = headers(opcode::ECHO, Deth { qkey: 0, source_qpn: bth.dest_qpn }, source_qpn, bth.psn);
        let to = Destination::new(from, &Grh::default()).ecn_capable();
        let mut batch = port.batch();
        let mut out = PacketSink::new(&mut batch, to, &FIRST);
        self.batched |= out.push(&headers, &Pieces::of(&credit.to_be_bytes())).is_ok();
    }
}

/// The processes that send unreliable messages to this one.
#[derive(Default)]
struct Senders {
    /// The senders, and when each has asked last.
    active: Vec<(PeerKey, Nanos)>,
}

impl Senders {
    /// Bytes that `sender` may have under way of a socket's `room` bytes, as it asks for its share.
    fn share(&mut self, now: Nanos, sender: PeerKey, room: u64) -> u32 {
        self.active.retain(|(key, at)| *key != sender && now.saturating_sub(*at) < ACTIVE_NS);
        if self.active.len() < MOST_SENDERS {
            self.active.push((sender, now));
        }
        (room / PART / self.active.len() as u64).min(u32::MAX.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_share_the_buffer_as_long_as_they_ask() {
        let mut senders = Senders::default();
        let sender = |n: u8| (IpAddr::from([192, 0, 2, n]), u32::from(n));
        assert_eq!(senders.share(0, sender(1), 4000), 2000);
        assert_eq!(senders.share(1, sender(2), 4000), 1000);
        assert_eq!(senders.share(2, sender(1), 4000), 1000, "it is no third");
        assert_eq!(senders.share(ACTIVE_NS + 1, sender(1), 4000), 2000, "the second is silent");
        for n in 0..=255 {
            senders.share(ACTIVE_NS + 2, sender(n), 4000);
        }
        assert_eq!(senders.active.len(), MOST_SENDERS);
    }
}
