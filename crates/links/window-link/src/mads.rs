//! QP 1 through a window: a management datagram is a datagram to QP 1 of a process. An identifier in it begins with the
//! slot of the process that it goes to; a request for a service goes to any process of its node, which hands it on
//! (`vervain-qp1`): to another one each time, so that one that stands still does not keep what is sent again and again.

use super::address;
use super::pair::{Pair, encode};
use super::pairs::Pairs;
use super::route::{Lrh, Route};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vervain_carrier::terms::PKEY;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::process::Process;
use vervain_hca::qp::carrier::Mad;
use vervain_hca::{AhAttr, Error, Result, now_ns};
use vervain_qp1::mad::{Addressee, QKEY, QPN, addressee};
use vervain_qp1::{Gsi, Message, Origin};
use vervain_transport::Refused;
use vervain_window::PROCESSES;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::ring::Class;
use vervain_wire::{Bth, Deth, Headers, opcode};

/// MADs that wait for a pair with their receiver, or for room there, at most, and how long.
const MOST_WAITING: usize = 1024;
const PATIENCE_NS: u64 = 3_000_000_000;
/// Between two tries.
const AGAIN_NS: u64 = 200_000;

/// Destination of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Process(PeerId),
    /// Any process of a node.
    Node(u32),
}

struct Waiting {
    to: Receiver,
    payload: Vec<u8>,
    since: u64,
}

/// MADs through a window.
pub struct Mads {
    /// Takes those that come for QP 1.
    gsi: Arc<Gsi>,
    waiting: OwnerLock<Vec<Waiting>>,
    /// Turn among the processes of a node.
    turn: AtomicUsize,
}

impl Mads {
    /// None on their way so far.
    pub fn new(gsi: Arc<Gsi>) -> Mads {
        Mads { gsi, waiting: OwnerLock::default(), turn: AtomicUsize::new(0) }
    }

    /// Sends a MAD from a port of device number `device`, or has it wait for its receiver.
    pub fn send(&self, pairs: &Pairs, process: &'static Process, device: u32, ah: &AhAttr, mad: &Mad) -> Result<()> {
        let device = self.gsi.device(device)?;
        let node = address::destination(pairs.facts(), device, ah)
            .ok_or_else(|| Error::new(libc::ENETUNREACH, "the address is none of the window's nodes"))?;
        let whom = addressee(mad).ok_or_else(|| Error::invalid("no MAD of communication management"))?;
        if node == pairs.facts().node {
            // Those are of one kernel.
            return self.gsi.send_here(process, device.index(), ah, whom, mad);
        }
        let to = match whom {
            Addressee::Slot(slot) => Receiver::Process(PeerId { node, process: slot % PROCESSES }),
            Addressee::Service(_) => Receiver::Node(node),
        };
        let lrh = Lrh::of(ah, device, device.lid(ah.port_num), pairs.facts());
        let payload = [&Route::of(ah, lrh).encode()[..], mad].concat();
        if !self.push(pairs, to, &payload) {
            let mut waiting = self.waiting.lock();
            if waiting.len() == MOST_WAITING {
                return Err(Error::new(libc::EAGAIN, "many MADs wait for their receivers"));
            }
            waiting.push(Waiting { to, payload, since: now_ns() });
        }
        process.expect_packets();
        Ok(())
    }

    /// Puts a MAD into the ring of its receiver; false if there is no pair with that yet, which is asked for, or no
    /// room.
    fn push(&self, pairs: &Pairs, to: Receiver, payload: &[u8]) -> bool {
        let headers = Headers {
            bth: Bth { opcode: opcode::UD | opcode::SEND_ONLY, pkey: PKEY, dest_qpn: QPN, ..Bth::default() },
            deth: Some(Deth { qkey: QKEY, source_qpn: QPN }),
            ..Headers::default()
        };
        let (headers, pieces) = (encode(&headers), Pieces::of(payload));
        let push = |pair: &Pair| {
            let pushed = pair.push(Class::Request, &headers, &pieces);
            if pushed.is_ok() {
                FIRST.add_both((Word::SentPackets, 1), (Word::WindowRingBytes, payload.len() as u64));
            }
            // A datagram that a pair refuses for good is lost.
            pushed != Err(Refused::Full)
        };
        match to {
            Receiver::Process(peer) => match pairs.get(peer) {
                Some(pair) => push(&pair),
                None => {
                    pairs.request(peer);
                    false
                }
            },
            Receiver::Node(node) => {
                let mut peers: Vec<PeerId> = (0..PROCESSES).map(|process| PeerId { node, process }).collect();
                peers.retain(|peer| pairs.has_process(*peer));
                if peers.is_empty() {
                    return false;
                }
                let turn = self.turn.fetch_add(1, Ordering::Relaxed) % peers.len();
                peers.rotate_left(turn);
                // The one whose turn it is may be reached the next time, if it is not now.
                let first_is_there = pairs.get(peers[0]).is_some() || !pairs.request(peers[0]);
                let sent = peers.iter().filter_map(|peer| pairs.get(*peer)).any(|pair| push(&pair));
                if !sent && !first_is_there {
                    let others = peers[1..].iter().filter(|peer| pairs.get(**peer).is_none());
                    others.for_each(|peer| {
                        pairs.request(*peer);
                    });
                }
                sent
            }
        }
    }

    /// Tries again to send the MADs that wait. When it is to be called next.
    pub fn push_waiting(&self, pairs: &Pairs, now: u64) -> Option<u64> {
        let mut waiting = self.waiting.lock();
        waiting.retain(|mad| {
            let is_late = now.saturating_sub(mad.since) > PATIENCE_NS;
            if is_late {
                log::info!("a MAD is dropped: nobody takes it in the window ({:?})", mad.to);
            }
            !is_late && !self.push(pairs, mad.to, &mad.payload)
        });
        (!waiting.is_empty()).then_some(now + AGAIN_NS)
    }

    /// A datagram for QP 1 has come by `pair`.
    pub fn receive(&self, pairs: &Pairs, pair: &Pair, qkey: u32, route: &Route, payload: &[u8]) {
        let Some(mad) = Mad::try_from(payload).ok().filter(|_| qkey == QKEY) else { return };
        FIRST.add_both((Word::ReceivedPackets, 1), (Word::ReceivedBytes, payload.len() as u64));
        self.gsi.arrived(Message {
            origin: Origin::Carrier,
            // The one that leads there without a LID.
            from: pairs.facts().gid(pair.peer.node),
            to: route.dgid,
            flow_label: route.flow_label,
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit.max(1),
            mad,
        });
    }
}
