//! The way from a QP number to a lane into that QP: its process, the QP, and a check that it is connected to ours.

use crate::arena::layout::{QpShared, RqShared, slot_of};
use crate::host::cancel::Uncancelled;
use crate::process::Process;
use crate::process::lanes::{LaneReply, LaneRequest};
use crate::process::peer::PeerProcess;
use crate::process::rendezvous::Peer;
use crate::qp::base::QpBase;
use crate::qp::sq::path::Params;
use crate::responder::{QpIncarnation, Responder};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{QpState, QpType};

/// The result of a search.
pub(crate) enum Resolved {
    /// The way into the QP.
    Responder(Box<Responder>),
    /// A handshake is under way.
    Connecting,
    /// A process that may be restored.
    Suspended,
    /// No QP that would answer.
    Nobody,
    /// The XRC target answers that it knows no such SRQ.
    NoSuchSrq,
}

/// The process of this host that owns QP `qpn`.
pub(crate) fn peer_of(process: &'static Process, qpn: u32) -> Result<Arc<PeerProcess>, Resolved> {
    if process.owns_slot(slot_of(qpn)) {
        return Ok(Arc::clone(&process.own));
    }
    // Out of date mappings may be closed here, which must not be cancelled.
    let _whole = Uncancelled::begin();
    match process.rendezvous.peer(process, slot_of(qpn)) {
        Peer::Ready(peer) => Ok(peer),
        Peer::Connecting => Err(Resolved::Connecting),
        Peer::Suspended => Err(Resolved::Suspended),
        Peer::Absent => Err(Resolved::Nobody),
    }
}

fn receives(qp: &QpShared) -> bool {
    (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&qp.state.load(Ordering::Acquire))
}

/// The QP that `qp` is connected to, or the way into SRQ `srqn` behind it.
pub(crate) fn find(process: &'static Process, qp: &QpBase, params: &Params, srqn: Option<u32>) -> Resolved {
    if !params.has_memory {
        return Resolved::Nobody;
    }
    let space = match peer_of(process, params.dest_qpn) {
        Ok(space) => space,
        Err(found) => return found,
    };
    let Some(theirs) = space.qp(params.dest_qpn) else {
        return Resolved::Nobody;
    };
    // Read first: taking the lane notices a reset after this.
    let seen = QpIncarnation::now(theirs);
    let wanted = if qp.qp_type() == QpType::XrcSend { QpType::XrcRecv } else { qp.qp_type() };
    if theirs.qp_type.load(Ordering::Relaxed) != wanted.to_verbs()
        || theirs.dest_qpn.load(Ordering::Acquire) != qp.qp_num()
        || !receives(theirs)
    {
        return Resolved::Nobody;
    }
    let me = process.initiator_id(qp.qp_num(), qp.generation());
    match srqn {
        None => bind(&space, theirs.lane.load(Ordering::Acquire), me, seen),
        Some(n) => find_srq(process, qp, &space, theirs, n, (me, seen)),
    }
}

fn bind(space: &Arc<PeerProcess>, lane: u64, me: u64, seen: QpIncarnation) -> Resolved {
    Responder::bind(space, lane, me, seen).map_or(Resolved::Nobody, |t| Resolved::Responder(Box::new(t)))
}

/// Takes a lane that was made on request. A lane that cannot be taken is forgotten, so that another is requested.
fn bind_granted(
    process: &'static Process,
    space: &Arc<PeerProcess>,
    request: LaneRequest,
    reply: LaneReply,
    me: (u64, QpIncarnation),
) -> Resolved {
    match reply {
        LaneReply::Lane(offset) => {
            let found = bind(space, offset, me.0, me.1);
            if matches!(found, Resolved::Nobody) && !space.is_own() {
                process.rendezvous.forget_lane(&request);
            }
            found
        }
        LaneReply::Pending => Resolved::Connecting,
        LaneReply::Refused if request.srqn != 0 => Resolved::NoSuchSrq,
        LaneReply::Refused => Resolved::Nobody,
    }
}

fn find_srq(
    process: &'static Process,
    qp: &QpBase,
    space: &Arc<PeerProcess>,
    theirs: &QpShared,
    srqn: u32,
    me: (u64, QpIncarnation),
) -> Resolved {
    // IBA A14.4.3: the SRQ must exist and belong to the XRC domain of the target QP.
    let same_domain = |rq: &&RqShared| rq.xrcd.load(Ordering::Relaxed) == theirs.xrcd.load(Ordering::Relaxed);
    if slot_of(srqn) != 0 && space.xrc_srq(srqn).filter(same_domain).is_none() {
        return Resolved::NoSuchSrq;
    }
    let request = LaneRequest { initiator: qp.qp_num(), qpn: theirs.qpn.load(Ordering::Relaxed), srqn };
    bind_granted(process, space, request, lane(process, space, request), me)
}

/// The lane into a UD QP or an XRC SRQ, which its owner makes on request.
pub(crate) fn lane(process: &'static Process, space: &Arc<PeerProcess>, request: LaneRequest) -> LaneReply {
    if space.is_own() {
        return process.lanes.make(&request).map_or(LaneReply::Refused, LaneReply::Lane);
    }
    process.rendezvous.lane(slot_of(request.qpn), request)
}

/// The datagram QP `qpn`, through a lane for `qp` alone.
pub(crate) fn find_ud(process: &'static Process, qp: &QpBase, qpn: u32) -> Resolved {
    let space = match peer_of(process, qpn) {
        Ok(space) => space,
        Err(found) => return found,
    };
    let Some(theirs) = space.qp(qpn) else {
        return Resolved::Nobody;
    };
    let seen = QpIncarnation::now(theirs);
    if theirs.qp_type.load(Ordering::Relaxed) != QpType::Ud.to_verbs() || !receives(theirs) {
        return Resolved::Nobody;
    }
    let request = LaneRequest { initiator: qp.qp_num(), qpn, srqn: 0 };
    let me = process.initiator_id(qp.qp_num(), qp.generation());
    bind_granted(process, &space, request, lane(process, &space, request), (me, seen))
}
