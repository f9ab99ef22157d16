//! Owner copies (DESIGN decision 4d): where no mapping exists and the kernel refuses process_vm calls, and for atomics on
//! memory that is not mapped, the initiator leaves a request in its lane and the owner carries it out, through the same
//! checks that the initiator would make.

use crate::lane::OwnedLane;
use crate::layout::request;
use crate::memory::{Direction, Pieces, atomic, copy_direct};
use crate::process::Process;
use crate::responder::{Nak, Seen, Target};
use crate::space::Place;
use crate::types::{QpState, QpType, access, wc};
use std::sync::atomic::Ordering;

/// `Request::status` for each refusal; 0 is success.
pub fn status_of(result: Result<(), Nak>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(Nak::InvalidRequest) => 1,
        Err(Nak::RemoteAccess) => 2,
        Err(Nak::RemoteOperation) => 3,
        Err(Nak::Silence | Nak::ReceiverNotReady(_) | Nak::Paused) => 4,
    }
}

/// The reverse of [`status_of`].
pub fn result_of(status: u32) -> Result<(), Nak> {
    match status {
        0 => Ok(()),
        1 => Err(Nak::InvalidRequest),
        2 => Err(Nak::RemoteAccess),
        3 => Err(Nak::RemoteOperation),
        _ => Err(Nak::Silence),
    }
}

/// Carries out the request that waits in `lane`, if one does. The caller holds the process's serving lock, so that a
/// revocation can wait for it.
pub(crate) fn serve(process: &Process, lane: &OwnedLane) {
    let state = &lane.shared.request.state;
    if state.compare_exchange(request::POSTED, request::RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let result = carry_out(process, lane);
    lane.shared.request.status.store(status_of(result), Ordering::Relaxed);
    state.store(request::DONE, Ordering::Release);
}

fn carry_out(process: &Process, lane: &OwnedLane) -> Result<(), Nak> {
    let r = &lane.shared.request;
    let op = r.op.load(Ordering::Relaxed);
    // A QP that does not receive any more answers nothing; whoever stopped it waits until we are through.
    let state = process.own.qp(lane.qp_num).map_or(0, |qp| qp.state.load(Ordering::SeqCst));
    if lane.shared.open.load(Ordering::SeqCst) == 0 || !(QpState::Rtr as u32..=QpState::Sqe as u32).contains(&state) {
        return Err(Nak::Silence);
    }
    if op == request::BOUNCE {
        return lane.bounce(request::BOUNCE_BYTES).map(|_| ()).ok_or(Nak::RemoteOperation);
    }
    if op == request::DATAGRAM {
        return datagram(process, lane);
    }
    let (key, addr, len) =
        (r.key.load(Ordering::Relaxed), r.addr.load(Ordering::Relaxed), r.len.load(Ordering::Relaxed));
    let local = r.local.load(Ordering::Relaxed) != 0;
    let need = match op {
        _ if local => access::LOCAL_WRITE,
        request::WRITE => access::REMOTE_WRITE,
        request::READ => access::REMOTE_READ,
        request::COMPARE_SWAP | request::FETCH_ADD => access::REMOTE_ATOMIC,
        _ => return Err(Nak::InvalidRequest),
    };
    let qp = process.own.qp(lane.qp_num).ok_or(Nak::Silence)?;
    let of_srq = qp.qp_type.load(Ordering::Relaxed) == QpType::XrcRecv.to_verbs();
    let pd =
        if local || of_srq { lane.rq.view.shared.pd.load(Ordering::Relaxed) } else { qp.pd.load(Ordering::Relaxed) };
    let refusal = if local { Nak::RemoteOperation } else { Nak::RemoteAccess };
    let place = process.own.resolve(key, addr, len, need, pd, lane.qp_num);
    let at = match place {
        Some(Place::Direct(p)) => p,
        Some(Place::Null) if local => return Ok(()),
        _ => return Err(refusal),
    };
    if op == request::COMPARE_SWAP || op == request::FETCH_ADD {
        if len != 8 || !(at as usize).is_multiple_of(8) {
            return Err(Nak::InvalidRequest);
        }
        let (compare, swap) = (r.compare.load(Ordering::Relaxed), r.swap.load(Ordering::Relaxed));
        // SAFETY: eight bytes of registered memory of this process, aligned.
        let old = unsafe { atomic(at, op == request::COMPARE_SWAP, compare, swap) };
        r.result.store(old, Ordering::Relaxed);
        return Ok(());
    }
    let offset = r.at.load(Ordering::Relaxed);
    let bounce = bounce_at(process, lane, offset, len)?;
    let mut pieces = Pieces::new();
    pieces.push(bounce, len);
    let direction = if op == request::READ { Direction::Read } else { Direction::Write };
    // SAFETY: `at` is registered memory of this process, `bounce` a checked range of its arena.
    unsafe { copy_direct(direction, at, &pieces, true) };
    Ok(())
}

fn bounce_at(process: &Process, lane: &OwnedLane, offset: u64, len: u64) -> Result<*mut u8, Nak> {
    let bounce = lane.bounce(request::BOUNCE_BYTES).ok_or(Nak::RemoteOperation)?;
    if offset.checked_add(len).is_none_or(|end| end > bounce.end - bounce.start) {
        return Err(Nak::InvalidRequest);
    }
    process.own.view.at(bounce.start + offset, len).ok_or(Nak::RemoteOperation)
}

/// Finishes a datagram for an initiator that cannot reach this process's memory. Until the request is done, the
/// initiator leaves its lane to us.
fn datagram(process: &Process, lane: &OwnedLane) -> Result<(), Nak> {
    let r = &lane.shared.request;
    let (wqe, total) = (r.key.load(Ordering::Relaxed), r.len.load(Ordering::Relaxed));
    let from = bounce_at(process, lane, 0, total)?;
    let me = lane.shared.initiator.load(Ordering::Acquire);
    let seen = Seen::now(process.own.qp(lane.qp_num).ok_or(Nak::Silence)?);
    let target = Target::bind(&process.own, lane.offset, me, seen).ok_or(Nak::Silence)?;
    let claimer = lane.rq.view.wqe(wqe).ok_or(Nak::InvalidRequest)?.claimer.load(Ordering::Acquire);
    if claimer != me as u32 {
        return Err(Nak::InvalidRequest);
    }
    let receipt = lane.rq.receipt(wqe);
    let mut done = 0;
    while done < total {
        let Ok(Some((place, room, _, _))) = target.receive_memory(wqe, done) else {
            target.spoil_receive(wqe, &receipt, wc::LOC_PROT_ERR);
            return Ok(());
        };
        let n = room.min(total - done);
        if let Place::Direct(at) = place {
            let mut part = Pieces::new();
            part.push(from.wrapping_add(done as usize), n);
            // SAFETY: the place was just checked against its key; the bounce buffer holds `total` bytes.
            unsafe { copy_direct(Direction::Write, at, &part, true) };
        }
        done += n;
    }
    target.complete_receive(wqe, &receipt, r.local.load(Ordering::Relaxed) != 0);
    Ok(())
}
