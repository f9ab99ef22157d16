//! Datagrams over any carrier (IBA 9.8.3, 10.5): their headers, the UD QPs that receive them, and multicast groups.

use super::by_qp::ByQp;
use super::closed::Closed;
use super::responder::Lanes;
use super::terms::PKEY;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};
use vervain_hca::arena::layout::MULTICAST_QPN;
use vervain_hca::device::grh;
use vervain_hca::device::port_counters::Word;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::carrier::Datagram;
use vervain_hca::responder::datagram::{self, Delivered};
use vervain_hca::rq::Receipt;
use vervain_hca::{Qp, QpType, wc};
use vervain_transport::Nak;
use vervain_wire::{Bth, Deth, Headers, opcode};

/// The headers of a datagram that `qp` sends.
#[inline]
pub fn headers(qp: &Qp, datagram: &Datagram<'_>, psn: u32) -> Headers {
    let operation = if datagram.imm.is_some() { opcode::SEND_ONLY_IMM } else { opcode::SEND_ONLY };
    Headers {
        bth: Bth {
            opcode: opcode::UD | operation,
            solicited: datagram.solicited,
            pad: (datagram.data.len().wrapping_neg() & 3) as u8,
            pkey: PKEY,
            // There is no other path.
            migration: true,
            dest_qpn: datagram.qpn,
            psn: psn & 0x00ff_ffff,
            ..Bth::default()
        },
        deth: Some(Deth { qkey: datagram.qkey, source_qpn: qp.qp_num() }),
        imm: datagram.imm.map(u32::to_ne_bytes),
        ..Headers::default()
    }
}

/// A datagram that has come.
pub struct Arrival<'a> {
    /// Its headers.
    pub headers: &'a Headers,
    /// That of them which only datagrams have.
    pub deth: Deth,
    /// Its payload.
    pub payload: &'a [u8],
    /// Its way through the network.
    pub route: grh::Route<'a>,
    /// LID of its sender, 0 on Ethernet.
    pub slid: u16,
    /// Its service level, 0 on Ethernet.
    pub service_level: u8,
    /// It came with a GRH, as all do on Ethernet.
    pub has_grh: bool,
}

/// Fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has its receive, perhaps spoilt.
    Received,
    /// Nothing was done: there is no receive, or the QP is stopped.
    Kept,
    /// Dropped: there is no receive (IBA 9.8.3.2).
    NoReceive,
    /// Dropped: it has another Q_Key than the QP (IBA 9.8.3.2).
    BadQkey,
    /// The QP receives no longer.
    Closed,
}

/// A UD QP that receives, with the carrier's own state of it.
pub struct Listener<S = ()> {
    qp: Weak<Qp>,
    lanes: OwnerLock<Lanes>,
    /// It receives no longer. Changed under the lock of `lanes`.
    closed: Closed,
    /// The carrier's own.
    pub state: S,
}

impl<S> Listener<S> {
    /// The QP, while there is one.
    #[inline]
    pub fn qp(&self) -> Option<Arc<Qp>> {
        self.qp.upgrade().filter(|qp| qp.qp_type() == QpType::Ud)
    }

    /// Set once it receives no longer.
    pub fn closed(&self) -> &Closed {
        &self.closed
    }

    /// Lets nothing more into the QP, and gives the lanes back.
    fn close(&self) {
        let mut lanes = self.lanes.lock();
        self.closed.set();
        lanes.release();
    }

    /// Delivers a datagram to `qp`, which is that of the listener, and counts it there. If it `may_wait` it is kept
    /// rather than dropped.
    pub fn deliver(&self, qp: &Qp, arrival: &Arrival<'_>, may_wait: bool) -> Fate {
        let Arrival { headers, deth, payload, route, .. } = arrival;
        let immediate = headers.imm.map(u32::from_ne_bytes);
        let header = grh::build(route, payload.len() + if immediate.is_some() { 4 } else { 0 });
        let receipt = Receipt {
            opcode: wc::OP_RECV,
            byte_len: (payload.len() + grh::GRH_BYTES) as u32,
            imm: immediate.unwrap_or(0),
            src_qp: deth.source_qpn,
            slid: arrival.slid,
            sl: route.service_level(arrival.service_level),
            wc_flags: if arrival.has_grh { wc::FLAG_GRH } else { 0 }
                | if immediate.is_some() { wc::FLAG_IMM } else { 0 },
            ..Receipt::default()
        };
        let mut lanes = self.lanes.lock();
        if lanes.stolen() {
            lanes.leave();
        }
        if self.closed.is_set() {
            return Fate::Closed;
        }
        let delivered = lanes.get(qp, 0).and_then(|lane| {
            let payload = Pieces::of(payload);
            datagram::deliver(lane, &header, &payload, &receipt, deth.qkey, headers.bth.solicited)
        });
        match delivered {
            Ok(Delivered::Yes) => {
                qp.tally.add(Word::Sends, 1);
                Fate::Received
            }
            Ok(Delivered::Stopped) | Err(Nak::ReceiverNotReady(_)) if may_wait => Fate::Kept,
            Err(Nak::InvalidRequest) => {
                datagram::tell_dropped(deth.source_qpn, qp.qp_num(), (deth.qkey, qp.qkey()), false);
                Fate::BadQkey
            }
            Ok(Delivered::OwnerIsBusy | Delivered::Stopped) | Err(_) => {
                datagram::tell_dropped(deth.source_qpn, qp.qp_num(), (deth.qkey, deth.qkey), true);
                qp.tally.add(Word::OutOfBuffer, 1);
                Fate::NoReceive
            }
        }
    }
}

/// The UD QPs of this process that receive, and the multicast groups that they are in; `G` is the address of a group.
pub struct Listeners<G, S = ()> {
    qps: ByQp<Listener<S>>,
    /// The QPs' groups.
    pub groups: Groups<G>,
}

impl<G, S> Default for Listeners<G, S> {
    fn default() -> Self {
        Listeners { qps: ByQp::default(), groups: Groups::default() }
    }
}

impl<G: Copy + Eq + Hash, S: Default> Listeners<G, S> {
    /// `qp` receives from now on.
    pub fn register_qp(&self, qp: &Arc<Qp>) {
        let (lanes, closed) = (OwnerLock::default(), Closed::default());
        let listener = Listener { qp: Arc::downgrade(qp), lanes, closed, state: S::default() };
        self.qps.insert(qp.qp_num(), Arc::new(listener));
    }

    /// QP `qpn` receives no longer.
    pub fn unregister_qp(&self, qpn: u32) {
        self.qps.remove(qpn).iter().for_each(|listener| listener.close());
    }

    /// QP `qpn`; None: it does not receive.
    pub fn get(&self, qpn: u32) -> Option<Arc<Listener<S>>> {
        self.qps.get(qpn)
    }

    /// The QPs that a datagram to `qpn`, or to a group, is for.
    pub fn addressees(&self, group: &G, qpn: u32) -> impl Iterator<Item = (Arc<Listener<S>>, Arc<Qp>)> {
        let listeners = self.groups.addressees(group, qpn).into_iter().filter_map(|qpn| self.get(qpn));
        listeners.filter_map(|listener| listener.qp().map(|qp| (listener, qp)))
    }

    /// Returns true if no QP receives.
    pub fn is_empty(&self) -> bool {
        !self.qps.has_any()
    }
}

/// The QPs of this process that are in multicast groups; `G` is the address of one.
pub struct Groups<G>(OwnerLock<HashMap<G, Vec<u32>>>);

impl<G> Default for Groups<G> {
    fn default() -> Self {
        Groups(OwnerLock::default())
    }
}

impl<G: Copy + Eq + Hash> Groups<G> {
    /// Enters `qpn` into a group. Returns true if it is the first of this process.
    pub fn join(&self, group: G, qpn: u32) -> bool {
        let mut groups = self.0.lock();
        let members = groups.entry(group).or_default();
        if !members.contains(&qpn) {
            members.push(qpn);
        }
        members.len() == 1
    }

    /// Takes `qpn` out of a group. Returns true if it was the last of this process.
    pub fn leave(&self, group: G, qpn: u32) -> bool {
        let mut groups = self.0.lock();
        let Some(members) = groups.get_mut(&group) else { return false };
        members.retain(|member| *member != qpn);
        let is_empty = members.is_empty();
        if is_empty {
            groups.remove(&group);
        }
        is_empty
    }

    /// The QPs that a datagram to `qpn`, or to a group, is for.
    fn addressees(&self, group: &G, qpn: u32) -> Vec<u32> {
        if qpn != MULTICAST_QPN {
            return vec![qpn];
        }
        self.0.lock().get(group).cloned().unwrap_or_default()
    }

    /// The groups that QPs of this process are in.
    pub fn all(&self) -> Vec<G> {
        self.0.lock().keys().copied().collect()
    }
}
