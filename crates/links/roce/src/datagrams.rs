//! Datagrams and multicast (IBA 9.8.3, 10.5): one packet each, to a UD QP that knows its senders only from it.

use super::net::{Counters, Datagram as Arrived};
use super::pacing::Paces;
use super::packet_sink::{Destination, PacketSink};
use super::ports::LocalPort;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vervain_carrier::PacketOut;
use vervain_carrier::closed::Closed;
use vervain_carrier::datagrams::{Arrival, Fate, Listeners, headers};
use vervain_hca::arena::layout::MULTICAST_QPN;
use vervain_hca::device::gids::is_of_this_host;
use vervain_hca::device::grh;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::qp::carrier::Datagram;
use vervain_hca::{Qp, now_ns};
use vervain_qp1::gid_of;
use vervain_transport::Nanos;
use vervain_wire::Packet;

/// UD QPs that receive, and the groups they are in.
pub(super) struct Datagrams {
    /// Members of multicast groups on this host get their copies by memory, and so none in packets.
    spares_own_members: bool,
    /// The QPs, with the PSN of the next datagram of each.
    pub listeners: Listeners<IpAddr, AtomicU32>,
}

impl Datagrams {
    /// None so far.
    pub(super) fn new(spares_own_members: bool) -> Datagrams {
        Datagrams { spares_own_members, listeners: Listeners::default() }
    }

    /// UD QP `qpn`, if it receives.
    pub(super) fn qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.listeners.get(qpn)?.qp()
    }

    /// The flag of UD QP `qpn` that is set once it receives no longer; None: it does not receive now.
    pub(super) fn closed(&self, qpn: u32) -> Option<Closed> {
        self.listeners.get(qpn).map(|listener| listener.closed().clone())
    }

    /// Puts a datagram from address `local` to `remote` into the batch of `port`. A time if its receiver has no room
    /// for it now: it is to be tried again then.
    pub(super) fn send(
        &self,
        paces: &Paces,
        qp: &Qp,
        datagram: &Datagram<'_>,
        port: &LocalPort,
        (local, remote): (IpAddr, IpAddr),
    ) -> Option<Nanos> {
        let psn = self.listeners.get(qp.qp_num()).map_or(0, |own| own.state.fetch_add(1, Ordering::Relaxed));
        let headers = headers(qp, datagram, psn);
        let grh = &datagram.ah.grh;
        let to = Destination::new(remote, grh);
        // Nobody of a group answers for the others.
        if remote.is_multicast() {
            if local.is_loopback() && self.spares_own_members {
                // It would come back to this host, and to nobody else.
                return None;
            }
            let _ = PacketSink::new(&mut port.batch(), to, &qp.tally).push(&headers, datagram.data);
            return None;
        }
        let pace = paces.with(remote, datagram.qpn);
        let mut paced = pace.lock(qp.qp_num(), now_ns());
        let to = paced.destination(to);
        let _ = paced.push(&mut PacketSink::new(&mut port.batch(), to, &qp.tally), &headers, datagram.data);
        if paced.held_back_until.is_some() {
            paced.wait(qp);
        }
        paced.held_back_until
    }

    /// A datagram that has come. False if it was for one QP, which has no receive for it: nothing was done then, nor
    /// counted, for it may be tried again.
    pub(super) fn receive(&self, counters: &Counters, arrived: &Arrived<'_>, packet: &Packet<'_>) -> bool {
        let headers = &packet.headers;
        let Some(deth) = headers.deth else { return true };
        let mut known = false;
        let (from, to) = (gid_of(arrived.from.ip()), gid_of(arrived.to));
        let is_for_group = headers.bth.dest_qpn == MULTICAST_QPN;
        if is_for_group && self.spares_own_members && is_of_this_host(&from) {
            // Members on this host got it by memory. It has come back by another interface, or the network floods
            // multicast packets.
            return true;
        }
        for (listener, qp) in self.listeners.addressees(&arrived.to, headers.bth.dest_qpn) {
            known = true;
            let route = grh::Route {
                sgid: &from,
                dgid: &to,
                traffic_class: arrived.tos,
                flow_label: arrived.label,
                hop_limit: arrived.hop_limit,
                roce: true,
            };
            let payload = packet.payload;
            let arrival = Arrival { headers, deth, payload, route, slid: 0, service_level: 0, has_grh: true };
            // One for a group may be for others too, and is lost for this one.
            match listener.deliver(&qp, &arrival, !is_for_group) {
                Fate::Received => {}
                Fate::Kept => return false,
                Fate::NoReceive => counters.no_receive.add(1),
                Fate::BadQkey => counters.bad_qkey.add(1),
                Fate::Closed => continue,
            }
            count_received(&qp, arrived);
        }
        if !known {
            counters.unwanted.add(1);
        }
        true
    }

    /// A datagram for `qpn` that is dropped because that has no receive.
    pub(super) fn drop_without_receive(&self, counters: &Counters, arrived: &Arrived<'_>, qpn: u32) {
        if let Some(qp) = self.qp(qpn) {
            count_received(&qp, arrived);
        }
        counters.no_receive.add(1);
        FIRST.add(Word::OutOfBuffer, 1);
    }
}

/// Counts a datagram, once for each QP that it is for.
fn count_received(qp: &Qp, arrived: &Arrived<'_>) {
    qp.tally.add_both((Word::ReceivedPackets, 1), (Word::ReceivedBytes, arrived.bytes.len() as u64));
}
