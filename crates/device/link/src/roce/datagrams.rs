//! Datagrams and multicast (IBA 9.8.3, 10.5): one packet each, to a UD QP that knows its senders only from it.

use super::address::gid_of;
use super::net::{Counters, Datagram as Arrived};
use super::pacing::Paces;
use super::packet_sink::{Destination, PacketSink};
use super::ports::LocalPort;
use crate::endpoint::PacketOut;
use crate::endpoint::responder::Lanes;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use vervain_hca::arena::layout::MULTICAST_QPN;
use vervain_hca::device::gids::is_of_this_host;
use vervain_hca::device::grh;
use vervain_hca::device::port_counters::{FIRST, Word};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::carrier::Datagram;
use vervain_hca::responder::datagram::{self, Delivered};
use vervain_hca::rq::Receipt;
use vervain_hca::{Qp, QpType, now_ns, wc};
use vervain_transport::{Nak, Nanos};
use vervain_wire::{Bth, Deth, Headers, Packet, opcode};

/// UD QPs that receive, and the groups they are in.
pub(super) struct Datagrams {
    /// Members of multicast groups on this host get their copies by memory, and so none in packets.
    spares_own_members: bool,
    listeners: OwnerLock<HashMap<u32, Arc<Listener>>>,
    groups: OwnerLock<HashMap<IpAddr, Vec<u32>>>,
}

/// A UD QP.
struct Listener {
    qp: Weak<Qp>,
    lanes: OwnerLock<Lanes>,
    psn: AtomicU32,
    /// It receives no longer. Changed under the lock of `lanes`.
    closed: Arc<AtomicBool>,
}

impl Datagrams {
    /// None so far.
    pub(super) fn new(spares_own_members: bool) -> Datagrams {
        Datagrams { spares_own_members, listeners: OwnerLock::default(), groups: OwnerLock::default() }
    }

    /// `qp` receives from now on.
    pub(super) fn register_qp(&self, qp: &Arc<Qp>) {
        let (lanes, psn) = (OwnerLock::default(), AtomicU32::new(0));
        let (qpn, qp, closed) = (qp.qp_num(), Arc::downgrade(qp), Arc::default());
        self.listeners.lock().insert(qpn, Arc::new(Listener { qp, lanes, psn, closed }));
    }

    /// UD QP `qpn` receives no longer.
    pub(super) fn unregister_qp(&self, qpn: u32) {
        let listener = self.listeners.lock().remove(&qpn);
        if let Some(listener) = listener {
            let mut lanes = listener.lanes.lock();
            listener.closed.store(true, Ordering::Relaxed);
            lanes.release();
        }
    }

    /// UD QP `qpn`, if it receives.
    pub(super) fn qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.listener(qpn)?.qp.upgrade()
    }

    /// The flag of UD QP `qpn` that is set once it receives no longer; None: it does not receive now.
    pub(super) fn ended(&self, qpn: u32) -> Option<Arc<AtomicBool>> {
        self.listener(qpn).map(|listener| Arc::clone(&listener.closed))
    }

    fn listener(&self, qpn: u32) -> Option<Arc<Listener>> {
        self.listeners.lock().get(&qpn).cloned()
    }

    /// The QPs of this process that a packet is for.
    fn addressees(&self, group: IpAddr, qpn: u32) -> Vec<u32> {
        if qpn != MULTICAST_QPN {
            return vec![qpn];
        }
        self.groups.lock().get(&group).cloned().unwrap_or_default()
    }

    /// Enters `qpn` into a group. Returns true if it is the first of this process.
    pub(super) fn join(&self, group: IpAddr, qpn: u32) -> bool {
        let mut groups = self.groups.lock();
        let members = groups.entry(group).or_default();
        if !members.contains(&qpn) {
            members.push(qpn);
        }
        members.len() == 1
    }

    /// Takes `qpn` out of a group. Returns true if it was the last of this process.
    pub(super) fn leave(&self, group: IpAddr, qpn: u32) -> bool {
        let mut groups = self.groups.lock();
        let Some(members) = groups.get_mut(&group) else { return false };
        members.retain(|m| *m != qpn);
        let is_empty = members.is_empty();
        if is_empty {
            groups.remove(&group);
        }
        is_empty
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
        let psn = self.listener(qp.qp_num()).map_or(0, |l| l.psn.fetch_add(1, Ordering::Relaxed));
        let operation = if datagram.imm.is_some() { opcode::SEND_ONLY_IMM } else { opcode::SEND_ONLY };
        let headers = Headers {
            bth: Bth {
                opcode: opcode::UD | operation,
                solicited: datagram.solicited,
                pad: (datagram.data.len().wrapping_neg() & 3) as u8,
                pkey: super::packet_sink::PKEY,
                // There is no other path.
                migration: true,
                dest_qpn: datagram.qpn,
                psn: psn & 0x00ff_ffff,
                ..Bth::default()
            },
            deth: Some(Deth { qkey: datagram.qkey, source_qpn: qp.qp_num() }),
            imm: datagram.imm.map(u32::to_ne_bytes),
            ..Headers::default()
        };
        let grh = &datagram.ah.grh;
        let to = Destination::new(remote, grh);
        // Nobody of a group answers for the others.
        if remote.is_multicast() {
            if local.is_loopback() && self.spares_own_members {
                // It would come back to this host, and to nobody else.
                return None;
            }
            let _ =
                PacketSink { batch: &mut port.batch(), to, tally: &qp.tally, pushed: 0 }.push(&headers, datagram.data);
            return None;
        }
        let pace = paces.with(remote, datagram.qpn);
        let mut paced = pace.lock(qp.qp_num(), now_ns());
        let _ = paced.push(
            &mut PacketSink { batch: &mut port.batch(), to, tally: &qp.tally, pushed: 0 },
            &headers,
            datagram.data,
        );
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
        for qpn in self.addressees(arrived.to, headers.bth.dest_qpn) {
            let Some(listener) = self.listener(qpn) else { continue };
            let Some(qp) = listener.qp.upgrade().filter(|qp| qp.qp_type() == QpType::Ud) else { continue };
            known = true;
            let route = grh::Route {
                sgid: &from,
                dgid: &to,
                traffic_class: arrived.tos,
                flow_label: arrived.label,
                hop_limit: arrived.hop_limit,
                roce: true,
            };
            let immediate = headers.imm.map(u32::from_ne_bytes);
            let header = grh::build(&route, packet.payload.len() + if immediate.is_some() { 4 } else { 0 });
            let receipt = Receipt {
                opcode: wc::OP_RECV,
                byte_len: (packet.payload.len() + grh::GRH_BYTES) as u32,
                imm: immediate.unwrap_or(0),
                src_qp: deth.source_qpn,
                sl: route.service_level(0),
                wc_flags: wc::FLAG_GRH | if immediate.is_some() { wc::FLAG_IMM } else { 0 },
                ..Receipt::default()
            };
            let mut lanes = listener.lanes.lock();
            if lanes.stolen() {
                lanes.leave();
            }
            if listener.closed.load(Ordering::Relaxed) {
                continue;
            }
            // A datagram without a receive, or with another Q_Key, is silently dropped (IBA 9.8.3.2).
            let delivered = lanes.get(&qp, 0).and_then(|lane| {
                let (payload, solicited) = (Pieces::of(packet.payload), headers.bth.solicited);
                datagram::deliver(lane, &header, &payload, &receipt, deth.qkey, solicited)
            });
            match delivered {
                // It is kept; one for a group may be for others too, and is lost for this one.
                Ok(Delivered::Stopped) if headers.bth.dest_qpn == qpn => return false,
                Ok(Delivered::Yes) => qp.tally.add(Word::Sends, 1),
                Err(Nak::InvalidRequest) => {
                    datagram::tell_dropped(deth.source_qpn, qpn, (deth.qkey, qp.qkey()), false);
                    counters.bad_qkey.add(1);
                }
                Err(Nak::ReceiverNotReady(_)) if headers.bth.dest_qpn == qpn => return false,
                Ok(Delivered::OwnerIsBusy | Delivered::Stopped) | Err(_) => {
                    datagram::tell_dropped(deth.source_qpn, qpn, (deth.qkey, deth.qkey), true);
                    counters.no_receive.add(1);
                    qp.tally.add(Word::OutOfBuffer, 1);
                }
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
