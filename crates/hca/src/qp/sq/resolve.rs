//! From a QP number to the lane that leads there: which process, which QP, and whether it is connected to us.

use crate::arena::layout::{QpShared, RqShared, slot_of};
use crate::process::Process;
use crate::process::link::{LaneReply, LaneRequest, Peer, Route};
use crate::process::peer::Space;
use crate::qp::Qp;
use crate::qp::sq::Params;
use crate::responder::{Seen, Target};
use crate::types::{AhAttr, QpState, QpType};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What was found.
pub(crate) enum Found {
    /// The way in.
    Target(Box<Target>),
    /// A handshake is under way.
    Connecting,
    /// Nobody who would answer.
    Nobody,
    /// The XRC target answers that it knows no such SRQ.
    NoSuchSrq,
}

/// The process that owns QP `qpn`, on the host that the address names.
pub(crate) fn space_of(process: &'static Process, device: u32, ah: &AhAttr, qpn: u32) -> Result<Arc<Space>, Found> {
    if !matches!(process.link.route(device, ah), Route::Near | Route::Everywhere) {
        return Err(Found::Nobody);
    }
    if process.owns_slot(slot_of(qpn)) {
        return Ok(Arc::clone(&process.own));
    }
    match process.link.peer(process, slot_of(qpn)) {
        Peer::Ready(space) => Ok(space),
        Peer::Connecting => Err(Found::Connecting),
        Peer::Absent => Err(Found::Nobody),
    }
}

fn receives(qp: &QpShared) -> bool {
    (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&qp.state.load(Ordering::Acquire))
}

/// The connected QP of `qp`, or the way into SRQ `srqn` behind it.
pub(crate) fn find(process: &'static Process, qp: &Qp, params: &Params, srqn: Option<u32>) -> Found {
    let space = match space_of(process, qp.device_index(), &params.ah, params.dest_qpn) {
        Ok(space) => space,
        Err(found) => return found,
    };
    let Some(theirs) = space.qp(params.dest_qpn) else {
        return Found::Nobody;
    };
    // Read first: a reset after this is noticed when the lane is taken.
    let seen = Seen::now(theirs);
    let wanted = if qp.qp_type() == QpType::XrcSend { QpType::XrcRecv } else { qp.qp_type() };
    if theirs.qp_type.load(Ordering::Relaxed) != wanted.to_verbs()
        || theirs.dest_qpn.load(Ordering::Acquire) != qp.qp_num()
        || !receives(theirs)
    {
        return Found::Nobody;
    }
    let me = process.initiator_id(qp.qp_num(), qp.generation());
    match srqn {
        None => bind(&space, theirs.lane.load(Ordering::Relaxed), me, seen),
        Some(n) => find_srq(process, qp, &space, theirs, n, (me, seen)),
    }
}

fn bind(space: &Arc<Space>, lane: u64, me: u64, seen: Seen) -> Found {
    Target::bind(space, lane, me, seen).map_or(Found::Nobody, |t| Found::Target(Box::new(t)))
}

/// Takes a lane that was made on request. One that cannot be taken is forgotten, so that another is asked for.
fn bind_granted(
    process: &'static Process,
    space: &Arc<Space>,
    request: LaneRequest,
    reply: LaneReply,
    me: (u64, Seen),
) -> Found {
    match reply {
        LaneReply::Lane(offset) => {
            let found = bind(space, offset, me.0, me.1);
            if matches!(found, Found::Nobody) && !space.is_own() {
                process.link.forget_lane(&request);
            }
            found
        }
        LaneReply::Pending => Found::Connecting,
        LaneReply::Refused if request.srqn != 0 => Found::NoSuchSrq,
        LaneReply::Refused => Found::Nobody,
    }
}

fn find_srq(
    process: &'static Process,
    qp: &Qp,
    space: &Arc<Space>,
    theirs: &QpShared,
    srqn: u32,
    me: (u64, Seen),
) -> Found {
    // IBA A14.4.3: the SRQ must exist and belong to the XRC domain of the target QP.
    let same_domain = |rq: &&RqShared| rq.xrcd.load(Ordering::Relaxed) == theirs.xrcd.load(Ordering::Relaxed);
    if slot_of(srqn) != 0 && space.xrc_srq(srqn).filter(same_domain).is_none() {
        return Found::NoSuchSrq;
    }
    let request = LaneRequest { initiator: qp.qp_num(), qpn: theirs.qpn.load(Ordering::Relaxed), srqn };
    bind_granted(process, space, request, lane(process, space, request), me)
}

/// The lane into a UD QP or an XRC SRQ, which its owner makes on request.
pub(crate) fn lane(process: &'static Process, space: &Arc<Space>, request: LaneRequest) -> LaneReply {
    if space.is_own() {
        return process.make_lane(&request).map_or(LaneReply::Refused, LaneReply::Lane);
    }
    process.link.lane(slot_of(request.qpn), request)
}

/// The datagram QP `qpn`, through a lane of `qp`'s own.
pub(crate) fn find_ud(process: &'static Process, qp: &Qp, ah: &AhAttr, qpn: u32) -> Found {
    let space = match space_of(process, qp.device_index(), ah, qpn) {
        Ok(space) => space,
        Err(found) => return found,
    };
    let Some(theirs) = space.qp(qpn) else {
        return Found::Nobody;
    };
    let seen = Seen::now(theirs);
    if theirs.qp_type.load(Ordering::Relaxed) != QpType::Ud.to_verbs() || !receives(theirs) {
        return Found::Nobody;
    }
    let request = LaneRequest { initiator: qp.qp_num(), qpn, srqn: 0 };
    let me = process.initiator_id(qp.qp_num(), qp.generation());
    bind_granted(process, &space, request, lane(process, &space, request), (me, seen))
}
