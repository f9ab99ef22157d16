//! The receiving half of a QP: the queue that its messages take receives from, and the lanes through which initiators
//! come in. A lane is taken away from its initiator before anything behind it is touched (DESIGN decision 3).

use crate::arena::layout::{ANY_PSN, BY_PACKETS, request};
use crate::cq::Cq;
use crate::cq::send_ring::SendRing;
use crate::device::port_counters::Word;
use crate::error::{Error, Result};
use crate::host::lock::OwnerLock;
use crate::lane::OwnedLane;
use crate::process::Process;
use crate::process::revocation::PATIENCE_NS;
use crate::qp::base::QpBase;
use crate::qp::init::QpInit;
use crate::responder::{QpIncarnation, Responder};
use crate::rq::RecvQueue;
use crate::srq::xrcd::Xrcd;
use crate::srq::{Srq, XrcTarget};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use vervain_iba::{Completion, Nak, QpCap, QpType, Status, wc};

/// The receiving half of a QP.
pub(crate) struct ReceiveSide {
    /// The CQ of its receives.
    pub(super) cq: Option<Arc<Cq>>,
    /// The shared queue that it receives from instead of an own one.
    pub(super) srq: Option<Arc<Srq>>,
    /// The domain of an XRC target.
    pub(super) xrcd: Option<Arc<Xrcd>>,
    /// The own queue or that of the SRQ.
    rq: Option<Arc<RecvQueue>>,
    /// Offset of the QP's shared part.
    offset: u64,
    lanes: OwnerLock<Vec<Arc<OwnedLane>>>,
    /// The QP, as SRQs know it.
    target: Weak<dyn XrcTarget>,
    /// Completions of its sends, if they come to the same CQ as those of its receives.
    sends: Option<Arc<SendRing>>,
}

impl ReceiveSide {
    /// The queue for receives of a QP: the SRQ's, a new one, or none.
    pub(super) fn make_queue(
        process: &'static Process,
        pd: u32,
        init: &QpInit<'_>,
        cap: &QpCap,
    ) -> Result<Option<Arc<RecvQueue>>> {
        if let Some(srq) = init.srq {
            return Ok(Some(Arc::clone(&srq.rq)));
        }
        if !init.receives_itself() {
            return Ok(None);
        }
        let alone = matches!(init.qp_type, QpType::Rc | QpType::Uc);
        RecvQueue::create(process, pd, cap.max_recv_wr, cap.max_recv_sge, alone).map(|rq| Some(Arc::new(rq)))
    }

    /// The half of QP `target`, whose shared part is at `offset`, without lanes. `rq`: see [`ReceiveSide::make_queue`].
    pub(super) fn new(
        init: &QpInit<'_>,
        rq: Option<Arc<RecvQueue>>,
        offset: u64,
        target: Weak<dyn XrcTarget>,
        sends: &Arc<SendRing>,
    ) -> ReceiveSide {
        let is_same = init.send_cq.zip(init.recv_cq).is_some_and(|(sent, received)| Arc::ptr_eq(sent, received));
        ReceiveSide {
            cq: init.recv_cq.cloned(),
            srq: init.srq.cloned(),
            xrcd: init.xrcd.cloned(),
            rq,
            offset,
            lanes: OwnerLock::default(),
            target,
            sends: is_same.then(|| Arc::clone(sends)),
        }
    }

    /// The QP's own receive queue.
    #[inline]
    pub(super) fn own_queue(&self) -> Option<&Arc<RecvQueue>> {
        self.rq.as_ref().filter(|_| self.srq.is_none())
    }

    /// Its CQ, the number of completions that the CQ is to expect, and the SRQ that they are counted for once.
    fn expected(&self) -> Option<(&Cq, u64, Option<usize>)> {
        let srq = self.srq.as_ref().map(|srq| Arc::as_ptr(srq) as usize);
        Some((self.cq.as_ref()?, self.rq.as_ref()?.max_wr().into(), srq))
    }

    /// Gives the CQ the number of completions to expect.
    pub(super) fn report_to_cq(&self) {
        if let Some((cq, number, srq)) = self.expected() {
            cq.expect(number, srq);
        }
    }

    /// Takes the number of [`ReceiveSide::report_to_cq`] back.
    pub(super) fn leave_cq(&self) {
        if let Some((cq, number, srq)) = self.expected() {
            cq.expect_no_more(number, srq);
        }
    }

    /// The counts of users of the objects that it is made of.
    pub(super) fn user_counts(&self) -> impl Iterator<Item = &AtomicU32> {
        let (cq, srq) = (self.cq.iter().map(|cq| &cq.users), self.srq.iter().map(|srq| &srq.rq.users));
        cq.chain(srq).chain(self.xrcd.iter().map(|xrcd| &xrcd.users))
    }

    // ---- lanes -----------------------------------------------------------------------------------------------------

    /// Makes the lane of the one peer that a connected QP has. Lanes into datagram QPs and XRC targets are made on
    /// request.
    pub(super) fn make_own_lane(&self, qp: &QpBase) -> Result<()> {
        if !matches!(qp.qp_type, QpType::Rc | QpType::Uc) {
            return Ok(());
        }
        let (Some(rq), Some(cq)) = (&self.rq, &self.cq) else {
            return Err(Error::invalid("the QP has nowhere to receive"));
        };
        let lane = OwnedLane::create(qp.process, rq, cq, self.offset, qp.number, 0, self.sends.clone())?;
        qp.shared.lane.store(lane.offset, Ordering::Release);
        self.lanes.lock().push(lane);
        Ok(())
    }

    /// Makes a lane for `initiator` into this datagram QP, or through this XRC target into `srq`, unless it has one.
    /// Returns the lane's offset.
    pub(super) fn make_lane(&self, qp: &QpBase, initiator: u32, srq: Option<&Arc<Srq>>) -> Result<u64> {
        let (rq, cq) = match (srq, &self.rq, &self.cq) {
            (Some(srq), _, _) => (&srq.rq, srq.cq().ok_or_else(|| Error::invalid("not an XRC SRQ"))?),
            (None, Some(rq), Some(cq)) if qp.qp_type == QpType::Ud => (rq, cq),
            _ => return Err(Error::invalid("the QP takes no such lane")),
        };
        if let Some(srq) = srq {
            srq.add_target(self.target.clone());
        }
        let mut lanes = self.lanes.lock();
        let same = |l: &&Arc<OwnedLane>| Arc::ptr_eq(&l.rq, rq) && l.granted == initiator && !l.gate.is_cut_off();
        if let Some(lane) = lanes.iter().find(same) {
            return Ok(lane.offset);
        }
        let lane = OwnedLane::create(qp.process, rq, cq, self.offset, qp.number, initiator, None)?;
        if qp.qp_type == QpType::Ud {
            lane.make_bounce(request::DATAGRAM_BYTES);
        }
        let at = lane.offset;
        lanes.push(lane);
        Ok(at)
    }

    /// The way in for messages by a carrier: a lane of this QP, or through this XRC target into SRQ `srqn`. The errors:
    /// silence if there is none now; an invalid request if there is no such SRQ (IBA A14.4.3).
    pub(super) fn way_in(&self, qp: &QpBase, srqn: u32) -> std::result::Result<Responder, Nak> {
        let me = qp.process.initiator_id(qp.number | BY_PACKETS, qp.generation());
        let seen = QpIncarnation::now(qp.shared);
        let lane = match qp.qp_type {
            QpType::Rc | QpType::Uc => qp.shared.lane.load(Ordering::Acquire),
            QpType::Ud => self.make_lane(qp, qp.number | BY_PACKETS, None).map_err(|_| Nak::Silence)?,
            QpType::XrcRecv => {
                let srq = self.xrcd.as_ref().and_then(|xrcd| xrcd.srq(srqn)).ok_or(Nak::InvalidRequest)?;
                self.make_lane(qp, qp.number | BY_PACKETS, Some(&srq)).map_err(|_| Nak::Silence)?
            }
            QpType::XrcSend => return Err(Nak::Silence),
        };
        Responder::bind(&qp.process.own, lane, me, seen).ok_or(Nak::Silence)
    }

    /// The PSN that the one peer's next request begins with, as the peer has published it. None before that, and for
    /// XRC targets.
    pub(super) fn expected_psn(&self) -> Option<u32> {
        self.lanes.lock().iter().find(|lane| lane.granted == 0)?.shared.next_psn()
    }

    /// Waits until no initiator is in flight into this QP, and takes over the completions that were delivered.
    pub(super) fn settle_lanes(&self, qp: &QpBase) {
        let lanes = self.lanes.lock().clone();
        let gates: Vec<_> = lanes.iter().map(|lane| Arc::clone(&lane.gate)).collect();
        qp.process.wait_for(&gates);
        qp.process.take_back_grants(|_, qpn| qpn == qp.number, PATIENCE_NS);
        for lane in &lanes {
            lane.cq.settle(&lane.ring);
        }
        qp.process.lanes.wait_serving();
    }

    /// Reaps the lanes whose initiators have ended or give them up. `lost`: messages that they have begun are lost;
    /// else they are begun anew.
    pub(super) fn reap_where(&self, qp: &QpBase, theirs: impl Fn(&OwnedLane) -> bool, lost: bool) {
        let lanes: Vec<_> = self.lanes.lock().iter().filter(|lane| theirs(lane)).cloned().collect();
        lanes.iter().for_each(|lane| self.reap(qp, lane, lane.holder(), lost));
    }

    /// Reaps `lane`, unless its initiator, QP `qpn`, has it no longer.
    fn reap(&self, qp: &QpBase, lane: &Arc<OwnedLane>, qpn: u32, lost: bool) {
        let mut lanes = self.lanes.lock();
        // The QP may have been reset and connected to another meanwhile.
        if lane.holder() != qpn || !lanes.iter().any(|l| Arc::ptr_eq(l, lane)) {
            return;
        }
        lane.cq.settle(&lane.ring);
        lane.cq.rescue();
        let is_shared = self.is_shared();
        if qp.qp_type == QpType::Ud || is_shared && !lost {
            lane.rq.reap_and_repost(qpn);
        } else if !lost {
            lane.rq.unclaim_last();
        } else if is_shared {
            for wr_id in lane.rq.reap(qpn) {
                lane.cq.push(flushed_receive(qp, wr_id));
            }
        }
        let own = qp.shared.lane.load(Ordering::Relaxed) == lane.offset;
        if own {
            lane.reset();
            if !lost {
                // The initiator's last PSN may be that of an access that was no request; a restored one begins at the
                // PSN that was saved.
                lane.shared.psn_base.store(0, Ordering::Relaxed);
                qp.shared.rq_psn.store(ANY_PSN, Ordering::Relaxed);
            }
        } else {
            lane.close();
            lanes.retain(|l| !Arc::ptr_eq(l, lane));
        }
    }

    /// Closes all lanes for good.
    pub(super) fn close_lanes(&self) {
        let lanes = std::mem::take(&mut *self.lanes.lock());
        lanes.iter().for_each(|lane| lane.close());
    }

    /// Closes the lanes into `rq`, whose SRQ is being destroyed.
    pub(super) fn close_lanes_into(&self, qp: &QpBase, rq: &Arc<RecvQueue>) {
        let into: Vec<_> = self.lanes.lock().extract_if(.., |lane| Arc::ptr_eq(&lane.rq, rq)).collect();
        let gates: Vec<_> = into.iter().map(|lane| Arc::clone(&lane.gate)).collect();
        qp.process.shut(&gates);
        into.iter().for_each(|lane| lane.close());
    }

    // ---- errors and reset ------------------------------------------------------------------------------------------

    /// Returns true if its messages take receives that other QPs could take, too.
    fn is_shared(&self) -> bool {
        self.srq.is_some() || self.xrcd.is_some()
    }

    /// Receives that the initiator of `lane` has taken from a shared queue for a message that will not be finished.
    /// `is_remote`: a carrier reaches the initiator.
    fn taken_from_srq(&self, qp: &QpBase, lane: &OwnedLane, is_remote: bool) -> Vec<u64> {
        if !self.is_shared() || qp.qp_type == QpType::Ud {
            return Vec::new();
        }
        let peer = match lane.granted {
            0 if is_remote => qp.number | BY_PACKETS,
            0 => qp.shared.dest_qpn.load(Ordering::Relaxed),
            granted => granted,
        };
        if peer == 0 { Vec::new() } else { lane.rq.reap(peer) }
    }

    /// Completes the receives with a flush error that initiators have taken from a shared queue for messages that will
    /// not be finished. `is_remote`: a carrier reaches the peer.
    pub(super) fn flush_taken(&self, qp: &QpBase, is_remote: bool) {
        for lane in self.lanes.lock().iter() {
            for wr_id in self.taken_from_srq(qp, lane, is_remote) {
                lane.cq.push(flushed_receive(qp, wr_id));
            }
        }
    }

    /// Completes the receives of an own queue with a flush error.
    pub(super) fn flush(&self, qp: &QpBase) {
        let (Some(rq), Some(cq)) = (self.own_queue(), &self.cq) else { return };
        for wr_id in rq.flush() {
            cq.push(flushed_receive(qp, wr_id));
        }
    }

    /// Returns to the state after creation, in RESET; no initiator is in flight. `is_remote`: a carrier has reached the
    /// peer. `gone`: the QP is being destroyed, and gets no new lane.
    pub(super) fn reset(&self, qp: &QpBase, is_remote: bool, gone: bool) {
        let mut lanes = self.lanes.lock();
        for lane in lanes.iter() {
            drop(self.taken_from_srq(qp, lane, is_remote));
        }
        lanes.retain_mut(|lane| self.free_or_replace(qp, lane, gone));
        drop(lanes);
        if let Some(rq) = self.own_queue() {
            rq.reset();
        }
    }

    /// Frees a lane that no initiator has. One that has an initiator stays that initiator's, which may be about to
    /// enter, and is closed until it is given back; the QP gets a new one for its next peer, and lanes that were made
    /// on request are made again later. Returns true if `lane`, or the new one in its place, stays in the QP's list.
    fn free_or_replace(&self, qp: &QpBase, lane: &mut Arc<OwnedLane>, gone: bool) -> bool {
        if lane.is_free() && !lane.gate.is_cut_off() {
            lane.reset();
            lane.shared.psn_base.store(0, Ordering::Relaxed);
            return true;
        }
        let own = qp.shared.lane.load(Ordering::Relaxed) == lane.offset;
        if own && !gone {
            let Ok(new) =
                OwnedLane::create(qp.process, &lane.rq, &lane.cq, self.offset, qp.number, 0, self.sends.clone())
            else {
                // Without memory for a new lane the QP keeps one that no initiator can take.
                lane.shared.open.store(0, Ordering::SeqCst);
                return true;
            };
            qp.shared.lane.store(new.offset, Ordering::Release);
            std::mem::replace(lane, new).close();
            return true;
        }
        lane.close();
        false
    }

    // ---- receives that are posted ----------------------------------------------------------------------------------

    /// Receives that no message has taken.
    pub(super) fn waiting(&self) -> u64 {
        self.rq.as_ref().map_or(0, |rq| rq.view.waiting())
    }

    /// Returns true if no receive waits for the next message, although the QP has a receive queue.
    #[inline]
    pub(super) fn lacks_receive(&self) -> bool {
        self.rq.as_ref().is_some_and(|rq| rq.view.waiting() == 0)
    }

    /// Receives posted to an own queue and not taken, for the credits of an acknowledgement (IBA 9.7.7.2). None with an
    /// SRQ, and if there has never been a receive: a QP that is only for RDMA has no credits to give.
    #[inline]
    pub(super) fn credits(&self) -> Option<u32> {
        if self.srq.is_some() {
            return None;
        }
        let rq = &self.rq.as_ref()?.view;
        rq.has_had_any().then(|| rq.waiting().min(u64::from(u32::MAX)) as u32)
    }

    /// The queue that messages by a carrier take their receives from: SRQ `srqn`, or its own queue if that is 0.
    fn queue_of(&self, srqn: u32) -> Option<Arc<RecvQueue>> {
        if srqn == 0 {
            self.rq.clone()
        } else {
            self.xrcd.as_ref().and_then(|xrcd| xrcd.srq(srqn)).map(|srq| Arc::clone(&srq.rq))
        }
    }

    /// The place among the saved receives of a claimed one. `receive`: the number that a carrier's responder has for
    /// it.
    pub(super) fn receive_place(&self, srqn: u32, receive: u32) -> Option<u32> {
        self.queue_of(srqn)?.place_of(receive)
    }

    /// Claims the receive at that place again for QP `qpn`. Returns its new number and its room in bytes.
    pub(super) fn claim_receive(&self, qpn: u32, srqn: u32, place: u32) -> Option<(u32, u64)> {
        self.queue_of(srqn)?.claim_place(place, qpn | BY_PACKETS)
    }
}

fn flushed_receive(qp: &QpBase, wr_id: u64) -> Completion {
    qp.tally.add(Word::FlushedReceives, 1);
    Completion {
        wr_id,
        status: Status::Flushed.to_verbs(),
        opcode: wc::OP_RECV,
        qp_num: qp.number,
        ..Completion::default()
    }
}
