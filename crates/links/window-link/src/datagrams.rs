//! Datagrams and multicast through a window (IBA 9.8.3, 10.5), with a [`Route`] in front of the payload.

use super::address;
use super::mads::Mads;
use super::no_receive::NoReceive;
use super::pair::{Pair, encode};
use super::pairs::Pairs;
use super::route::{Lrh, ROUTE, Route};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use vervain_carrier::datagrams::{Arrival, Fate, Listeners, headers};
use vervain_hca::arena::layout::MULTICAST_QPN;
use vervain_hca::device::port_counters::Word;
use vervain_hca::device::{grh, lids};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::carrier::Datagram;
use vervain_hca::{Gid, Qp, now_ns};
use vervain_qp1::mad::QPN;
use vervain_transport::Refused;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::pairs::ring::{Class, HEADERS};
use vervain_wire::Packet;

/// Nanoseconds after which a datagram that was not sent is tried again.
const SOON_NS: u64 = 50_000;
/// Nanoseconds that a datagram waits for a pair with its receiver, and for room there: a receiver without a CPU of its
/// own gets its turn by then. After one has timed out, others do not wait until the receiver takes messages again.
const PAIR_NS: u64 = 1_000_000_000;
/// Nanoseconds that it waits for a receiver that lives, and may have to make pairs with many others first: beside 23
/// others on two CPUs the last pair took more than a second. Less than the time for which a QP keeps the datagram.
const BUSY_PAIR_NS: u64 = 3_000_000_000;
const ROOM_NS: u64 = 1_000_000_000;
/// Time that a process which joins a group waits, until the other members can know.
pub const JOIN: Duration = Duration::from_millis(50);

/// UD QPs that receive, and multicast groups.
#[derive(Default)]
pub struct Datagrams {
    pub listeners: Listeners<Gid, UdQp>,
    /// Peers that are in a group.
    peers: OwnerLock<HashMap<Gid, HashSet<PeerId>>>,
    /// Time from which this process knows all members of groups (CLOCK_MONOTONIC, nanoseconds); unset: it has sent to
    /// none.
    known_from: OnceLock<u64>,
}

/// State of a UD QP.
#[derive(Default)]
pub struct UdQp {
    no_receive: NoReceive,
    /// Since when a datagram for a peer, or for a group (None), waits: CLOCK_MONOTONIC, ns.
    waits: OwnerLock<HashMap<Option<PeerId>, u64>>,
    has_waits: AtomicBool,
    /// Members of a group that have that datagram already.
    served: OwnerLock<Vec<PeerId>>,
}

impl UdQp {
    /// Time of the next try of a datagram that could not be sent to a peer, or to all of a group; None: it has waited
    /// for `limit` nanoseconds.
    fn tries_again(&self, to: Option<PeerId>, limit: u64) -> Option<u64> {
        let mut waits = self.waits.lock();
        self.has_waits.store(true, Ordering::Relaxed);
        let now = now_ns();
        let since = *waits.entry(to).or_insert(now);
        if limit == 0 || now.saturating_sub(since) > limit {
            waits.remove(&to);
            return None;
        }
        Some(now + SOON_NS)
    }

    /// Returns true if a datagram has waited for a peer for `ns` nanoseconds.
    fn has_waited(&self, to: Option<PeerId>, ns: u64) -> bool {
        self.waits.lock().get(&to).is_some_and(|since| now_ns().saturating_sub(*since) > ns)
    }

    /// Something has left for a peer, or for a group.
    #[inline]
    fn has_sent(&self, to: Option<PeerId>) {
        if self.has_waits.load(Ordering::Relaxed) {
            let mut waits = self.waits.lock();
            waits.remove(&to);
            self.has_waits.store(!waits.is_empty(), Ordering::Relaxed);
        }
    }
}

impl Datagrams {
    /// A peer has joined a group, or left it.
    pub fn enter_peer(&self, peer: PeerId, group: Gid, joins: bool) {
        let mut peers = self.peers.lock();
        if joins {
            peers.entry(group).or_default().insert(peer);
        } else if let Some(members) = peers.get_mut(&group) {
            members.remove(&peer);
        }
    }

    /// A peer has ended: it is in no group any more.
    pub fn forget_peer(&self, peer: PeerId) {
        self.peers.lock().values_mut().for_each(|members| {
            members.remove(&peer);
        });
    }

    /// Pairs with the processes that are in a group.
    fn members(&self, pairs: &Pairs, group: &Gid) -> Vec<Arc<Pair>> {
        let members = self.peers.lock().get(group).cloned().unwrap_or_default();
        members.into_iter().filter_map(|peer| pairs.get(peer)).collect()
    }

    /// Sends a datagram. A time if it is to be tried again then.
    pub fn send(&self, pairs: &Pairs, qp: &Qp, datagram: &Datagram<'_>) -> Option<u64> {
        let mut headers = headers(qp, datagram, 0);
        // A slot has the length of what it holds.
        headers.bth.pad = 0;
        let headers = encode(&headers);
        let route = Route::of(datagram.ah, Lrh::of(datagram.ah, qp.device(), qp.lid(), pairs.facts())).encode();
        let mut pieces = Pieces::of(&route);
        datagram.data.slice_into(0, datagram.data.len(), &mut pieces);
        let own = self.listeners.get(qp.qp_num())?;
        let ud = &own.state;
        if datagram.qpn == MULTICAST_QPN {
            return self.send_to_group(pairs, qp, ud, &datagram.ah.grh.dgid, &headers, &pieces);
        }
        let node = address::destination(pairs.facts(), qp.device(), datagram.ah)?;
        let peer = address::peer(node, datagram.qpn);
        let limit = match pairs.get(peer) {
            Some(pair) => {
                let pushed = pair.push(Class::Request, &headers, &pieces);
                if pushed != Err(Refused::Full) {
                    count_sent(qp, pushed, datagram.data.len());
                    ud.has_sent(Some(peer));
                    return None;
                }
                if pair.is_stalled() { 0 } else { ROOM_NS }
            }
            None if !pairs.request(peer) => return None,
            None if ud.has_waited(Some(peer), PAIR_NS) && pairs.has_process(peer) => BUSY_PAIR_NS,
            None => PAIR_NS,
        };
        let again = ud.tries_again(Some(peer), limit);
        if again.is_none() {
            pairs.get(peer).iter().for_each(|pair| pair.stall());
            log::info!("QP {:#x}: a datagram to QP {:#x} is dropped: nobody takes it there", qp.qp_num(), datagram.qpn);
        }
        again
    }

    /// Sends a datagram to all members of a group, each once. One that takes nothing does not hold up the others for
    /// long.
    fn send_to_group(
        &self,
        pairs: &Pairs,
        qp: &Qp,
        from: &UdQp,
        group: &Gid,
        headers: &[u8; HEADERS],
        pieces: &Pieces,
    ) -> Option<u64> {
        // A peer that joined before this process started has not announced it to this one.
        let known_from = *self.known_from.get_or_init(|| {
            pairs.request_all();
            now_ns() + JOIN.as_nanos() as u64
        });
        if now_ns() < known_from {
            return Some(known_from);
        }
        let mut served = from.served.lock();
        let mut left = self.members(pairs, group);
        left.retain(|pair| {
            if served.contains(&pair.peer) {
                return false;
            }
            let pushed = pair.push(Class::Request, headers, pieces);
            count_sent(qp, pushed, pieces.len() - ROUTE as u64);
            let waits = pushed == Err(Refused::Full) && !pair.is_stalled();
            if !waits {
                served.push(pair.peer);
            }
            waits
        });
        if !left.is_empty() {
            if let Some(again) = from.tries_again(None, ROOM_NS) {
                return Some(again);
            }
            left.iter().for_each(|pair| pair.stall());
        }
        served.clear();
        from.has_sent(None);
        None
    }

    /// A datagram that has come by `pair`. False if it is to be looked at again later.
    pub fn receive(&self, pairs: &Pairs, mads: &Mads, pair: &Pair, packet: &Packet<'_>) -> bool {
        let headers = &packet.headers;
        let Some(deth) = headers.deth else { return true };
        let Some((route, payload)) = packet.payload.split_first_chunk::<ROUTE>() else { return true };
        let Some(route) = Route::decode(route) else { return true };
        if headers.bth.dest_qpn == QPN {
            mads.receive(pairs, pair, deth.qkey, &route, payload);
            return true;
        }
        let is_for_group = headers.bth.dest_qpn == MULTICAST_QPN;
        let node_gid = pairs.facts().gid(pair.peer.node);
        let (slid, port_gid) = lids::at(pair.peer.node, &node_gid, route.lrh.place);
        for (listener, qp) in self.listeners.addressees(&route.dgid, headers.bth.dest_qpn) {
            let no_receive = &listener.state.no_receive;
            if !is_for_group && qp.lacks_receive() && no_receive.waits(now_ns()) {
                return false;
            }
            if !is_for_group && qp.is_stopped() {
                return false;
            }
            qp.tally.add_both((Word::ReceivedPackets, 1), (Word::ReceivedBytes, payload.len() as u64));
            let roce = qp.device().is_ethernet();
            let Lrh { service_level, has_grh, from_node, .. } = route.lrh;
            let route = grh::Route {
                sgid: if roce || from_node { &node_gid } else { &port_gid },
                dgid: &route.dgid,
                traffic_class: route.traffic_class,
                flow_label: route.flow_label,
                hop_limit: route.hop_limit,
                roce,
            };
            let (slid, has_grh) = (if roce { 0 } else { slid }, roce || has_grh);
            let arrival = Arrival { headers, deth, payload, route, slid, service_level, has_grh };
            if listener.deliver(&qp, &arrival, false) == Fate::Received {
                no_receive.serve();
            }
        }
        true
    }
}

/// Counts a datagram of `len` bytes that was put into a ring.
fn count_sent(qp: &Qp, pushed: Result<u64, Refused>, len: u64) {
    if pushed.is_ok() {
        qp.tally.add_both((Word::SentPackets, 1), (Word::WindowRingBytes, len));
    }
}
