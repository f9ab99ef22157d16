//! Owner copies (DESIGN decision 4d): where no mapping exists and the kernel refuses process_vm calls, and for atomics
//! on memory that is not mapped, the initiator leaves a request in its lane and the owner carries it out, through the
//! same checks that the initiator would make.

use crate::arena::layout::{OwnerRequest, request};
use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::host::copy::bulk;
use crate::host::guarded::Access;
use crate::lane::OwnedLane;
use crate::mr::transfer::{Direction, Pieces, atomic, copy_direct, copy_tail_last};
use crate::owner_copy::bounce::Stream;
use crate::process::doorbell::{Attend, Looked, Looker};
use crate::process::peer::Location;
use crate::process::{Process, gate};
use crate::responder::{QpIncarnation, Responder, Spoilt};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_iba::{Nak, QpState, QpType, Status, access};

/// `OwnerRequest::status` for each refusal; 0 is success.
pub fn status_of(result: Result<(), Nak>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(Nak::InvalidRequest) => 1,
        Err(Nak::RemoteAccess) => 2,
        Err(Nak::RemoteOperation) => 3,
        Err(Nak::Silence | Nak::ReceiverNotReady(_)) => 4,
    }
}

/// The result that a [`status_of`] stands for.
pub fn result_of(status: u32) -> Result<(), Nak> {
    match status {
        0 => Ok(()),
        1 => Err(Nak::InvalidRequest),
        2 => Err(Nak::RemoteAccess),
        3 => Err(Nak::RemoteOperation),
        _ => Err(Nak::Silence),
    }
}

/// The limits of one turn at a request.
#[derive(Clone, Copy)]
struct Turn {
    /// Bytes after which others get their turn.
    pub bytes: u64,
    /// Nanoseconds to wait for the initiator's next piece before leaving the request alone.
    pub patience: u64,
}

impl Turn {
    /// The progress thread's. A piece takes an initiator on another CPU about 2 µs, one that was just preempted longer.
    pub(crate) const PROGRESS: Turn = Turn { bytes: 4 << 20, patience: 20_000 };
    /// A thread's that polls a CQ for the program: what is there, and the progress thread does the rest.
    pub(crate) const POLL: Turn = Turn { bytes: 256 << 10, patience: 0 };
}

/// How often the progress thread looks whether a pause is over.
const PAUSED: Duration = Duration::from_micros(50);

/// The result of one step of a request.
enum Step {
    Over(Result<(), Nak>),
    Moved(u64),
    /// The bounce buffer has nothing, or no room.
    Dry,
    /// This process's memory may not be accessed now.
    Paused,
    /// The QP is stopped.
    Stopped,
    /// The request is gone.
    Gone,
}

impl Attend for OwnedLane {
    fn attend(&self, by: Looker) -> Looked {
        let turn = if by == Looker::Progress { Turn::PROGRESS } else { Turn::POLL };
        serve(self.process, self, turn);
        Looked::Served
    }
}

/// Carries out the request that waits in `lane`, if one does. Each piece is moved under the process's serving lock, so
/// that a revocation can wait for it; between two pieces the next one is checked anew.
fn serve(process: &Process, lane: &OwnedLane, turn: Turn) {
    let _one_at_a_time = lane.server.lock();
    let r = &lane.shared.request;
    if r.state.compare_exchange(request::POSTED, request::RUNNING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let mut moved = 0;
    let mut dry_since = 0;
    loop {
        match process.lanes.serve(|| answered(step(process, lane), r)) {
            Step::Gone | Step::Over(_) => return,
            Step::Stopped => {
                leave(process, lane);
                return;
            }
            Step::Paused if turn.patience > 0 => nap(PAUSED),
            Step::Paused => {
                queue_again(process, lane);
                return;
            }
            Step::Moved(n) => {
                (moved, dry_since) = (moved + n, 0);
                if moved >= turn.bytes {
                    queue_again(process, lane);
                    return;
                }
            }
            Step::Dry => {
                let now = now_ns();
                dry_since = if dry_since == 0 { now } else { dry_since };
                if now - dry_since < turn.patience {
                    crate::host::spin_budget::rest((now - dry_since) / 1024);
                    continue;
                }
                // Said before the last look, as the initiator adds before it looks: one of the two sees the other.
                let said = (request::RUNNING, request::WAITING);
                if r.state.compare_exchange(said.0, said.1, Ordering::SeqCst, Ordering::Relaxed).is_err()
                    || !has_work(r, lane)
                    || r.state.compare_exchange(said.1, said.0, Ordering::SeqCst, Ordering::Relaxed).is_err()
                {
                    return;
                }
                dry_since = 0;
            }
        }
    }
}

/// Stores the result of a request for the initiator, if it is over. In the same turn: the program sees the last byte
/// and may end its QP at once, which waits for this turn and no longer.
fn answered(step: Step, r: &OwnerRequest) -> Step {
    if let Step::Over(result) = step {
        r.status.store(status_of(result), Ordering::Relaxed);
        // Not over a request of the lane's next initiator.
        let _ = r.state.compare_exchange(request::RUNNING, request::DONE, Ordering::AcqRel, Ordering::Relaxed);
    }
    step
}

/// The rest of the request gets another turn.
fn queue_again(process: &Process, lane: &OwnedLane) {
    let state = &lane.shared.request.state;
    let _ = state.compare_exchange(request::RUNNING, request::POSTED, Ordering::SeqCst, Ordering::Relaxed);
    process.own.raise(lane.shared.attention.load(Ordering::Relaxed));
}

/// The QP is stopped: the request waits in the lane until it goes on. Its initiator may take it back meanwhile.
#[cold]
fn leave(process: &Process, lane: &OwnedLane) {
    let state = &lane.shared.request.state;
    let _ = state.compare_exchange(request::RUNNING, request::POSTED, Ordering::SeqCst, Ordering::Relaxed);
    process.keep_request(lane.shared.attention.load(Ordering::Relaxed), lane.switch);
}

/// The stream of a copy, and the bytes that may be moved next.
fn next(r: &OwnerRequest, lane: &OwnedLane) -> Option<(Stream, Range<u64>, u64)> {
    let bounce = lane.bounce()?;
    let stream = Stream { len: r.len.load(Ordering::Relaxed), ring: bounce.end - bounce.start };
    let (ours, theirs) = (r.taken.load(Ordering::Relaxed), r.moved.load(Ordering::SeqCst));
    let n = match r.op.load(Ordering::Relaxed) {
        request::READ => stream.fill(ours, theirs),
        _ => stream.empty(theirs, ours),
    }?;
    Some((stream, bounce, n))
}

fn has_work(r: &OwnerRequest, lane: &OwnedLane) -> bool {
    next(r, lane).is_none_or(|(_, _, n)| n > 0)
}

fn step(process: &Process, lane: &OwnedLane) -> Step {
    let r = &lane.shared.request;
    if r.state.load(Ordering::Acquire) != request::RUNNING {
        return Step::Gone;
    }
    if gate::is_closed(lane.switch) {
        return if gate::is_stopped(lane.switch) { Step::Stopped } else { Step::Paused };
    }
    // A QP that does not receive any more answers nothing; the thread that stopped it waits for the end of this step.
    let state = process.own.qp(lane.qp_num).map_or(0, |qp| qp.state.load(Ordering::SeqCst));
    if lane.shared.open.load(Ordering::SeqCst) == 0 || !(QpState::Rtr as u32..=QpState::Sqe as u32).contains(&state) {
        return Step::Over(Err(Nak::Silence));
    }
    match r.op.load(Ordering::Relaxed) {
        request::BOUNCE => {
            let bytes = r.len.load(Ordering::Relaxed).clamp(request::BOUNCE_BYTES, request::LARGE_BOUNCE_BYTES);
            Step::Over(lane.make_bounce(bytes).map(|_| ()).ok_or(Nak::RemoteOperation))
        }
        request::DATAGRAM => Step::Over(datagram(process, lane)),
        request::COMPARE_SWAP | request::FETCH_ADD => Step::Over(fetch_atomic(process, lane)),
        request::WRITE | request::READ => copy(process, lane).unwrap_or_else(|nak| Step::Over(Err(nak))),
        _ => Step::Over(Err(Nak::InvalidRequest)),
    }
}

/// The memory that the request names, all of it, found through the same checks that the initiator would make.
fn memory(process: &Process, lane: &OwnedLane) -> Result<Location, Nak> {
    let r = &lane.shared.request;
    let (key, addr, len) =
        (r.key.load(Ordering::Relaxed), r.addr.load(Ordering::Relaxed), r.len.load(Ordering::Relaxed));
    let local = r.local.load(Ordering::Relaxed) != 0;
    let need = match r.op.load(Ordering::Relaxed) {
        _ if local => access::LOCAL_WRITE,
        request::WRITE => access::REMOTE_WRITE,
        request::READ => access::REMOTE_READ,
        _ => access::REMOTE_ATOMIC,
    };
    let qp = process.own.qp(lane.qp_num).ok_or(Nak::Silence)?;
    let of_srq = qp.qp_type.load(Ordering::Relaxed) == QpType::XrcRecv.to_verbs();
    let pd =
        if local || of_srq { lane.rq.view.shared.pd.load(Ordering::Relaxed) } else { qp.pd.load(Ordering::Relaxed) };
    match process.own.resolve(key, addr, len, need, pd, lane.qp_num) {
        Some(Location::Null) if local => Ok(Location::Null),
        Some(Location::Mapped(p)) => Ok(Location::Mapped(p)),
        _ if local => Err(Nak::RemoteOperation),
        _ => Err(Nak::RemoteAccess),
    }
}

fn fetch_atomic(process: &Process, lane: &OwnedLane) -> Result<(), Nak> {
    let r = &lane.shared.request;
    let Location::Mapped(at) = memory(process, lane)? else { return Ok(()) };
    if r.len.load(Ordering::Relaxed) != 8 || !(at as usize).is_multiple_of(8) {
        return Err(Nak::InvalidRequest);
    }
    let (compare, swap) = (r.compare.load(Ordering::Relaxed), r.swap.load(Ordering::Relaxed));
    let compare_swap = r.op.load(Ordering::Relaxed) == request::COMPARE_SWAP;
    // SAFETY: eight bytes of registered memory of this process, aligned.
    let old = unsafe { atomic(at, compare_swap, compare, swap) }.map_err(|_| Nak::RemoteOperation)?;
    r.result.store(old, Ordering::Relaxed);
    Ok(())
}

/// One piece of a write or read.
fn copy(process: &Process, lane: &OwnedLane) -> Result<Step, Nak> {
    let r = &lane.shared.request;
    let place = memory(process, lane)?;
    let done = r.taken.load(Ordering::Relaxed);
    let (stream, bounce, n) = next(r, lane).ok_or(Nak::InvalidRequest)?;
    if done == stream.len {
        return Ok(Step::Over(Ok(())));
    }
    if n == 0 {
        return Ok(Step::Dry);
    }
    let last = done + n == stream.len;
    if let Location::Mapped(base) = place {
        let through = process.own.view.at(bounce.start + done % stream.ring, n).ok_or(Nak::RemoteOperation)?;
        let at = base.wrapping_add(done as usize);
        // SAFETY: `base` is registered memory of this process for the whole message, of which `done + n` is within;
        // `through` is a checked range of its arena.
        let moved = unsafe {
            match r.op.load(Ordering::Relaxed) {
                request::READ => bulk(at, through, n as usize, false),
                _ if last => copy_end(through, at, n as usize),
                _ => bulk(through, at, n as usize, false),
            }
        };
        moved.map_err(|_| Nak::RemoteOperation)?;
    }
    r.taken.store(done + n, Ordering::SeqCst);
    Ok(if last { Step::Over(Ok(())) } else { Step::Moved(n) })
}

/// The last piece of a write, its last word last.
///
/// # Safety
/// As for [`bulk`].
unsafe fn copy_end(from: *const u8, to: *mut u8, n: usize) -> Access {
    let body = n.saturating_sub(64);
    // SAFETY: the caller's promise.
    unsafe {
        bulk(from, to, body, false)?;
        copy_tail_last(from.add(body), to.add(body), n - body)
    }
}

/// Finishes a datagram for an initiator that cannot reach this process's memory. Until the request is done, the
/// initiator leaves its lane to us.
fn datagram(process: &Process, lane: &OwnedLane) -> Result<(), Nak> {
    let r = &lane.shared.request;
    let (wqe, total) = (r.key.load(Ordering::Relaxed), r.len.load(Ordering::Relaxed));
    let bounce = lane.bounce().filter(|b| total <= b.end - b.start).ok_or(Nak::RemoteOperation)?;
    let from = process.own.view.at(bounce.start, total).ok_or(Nak::RemoteOperation)?;
    let me = lane.shared.initiator.load(Ordering::Acquire);
    let seen = QpIncarnation::now(process.own.qp(lane.qp_num).ok_or(Nak::Silence)?);
    let target = Responder::bind(&process.own, lane.offset, me, seen).ok_or(Nak::Silence)?;
    if lane.rq.claimer(wqe) != Some(me as u32) {
        return Err(Nak::InvalidRequest);
    }
    let receipt = lane.rq.receipt(wqe);
    let spoilt = Spoilt { status: Status::LocalProtection, length: total, whole: true };
    let mut done = 0;
    while done < total {
        let Ok(Some((place, n, ..))) = target.receive_memory(wqe, done, total - done) else {
            target.spoil_receive(wqe, &receipt, spoilt);
            return Ok(());
        };
        if let Location::Mapped(at) = place {
            let mut part = Pieces::new();
            part.push(from.wrapping_add(done as usize), n);
            // SAFETY: the place was just checked against its key; the bounce buffer holds `total` bytes.
            if unsafe { copy_direct(Direction::Write, at, &part, true) }.is_err() {
                target.spoil_receive(wqe, &receipt, spoilt);
                return Ok(());
            }
        }
        done += n;
    }
    target.complete_receive(wqe, &receipt, r.local.load(Ordering::Relaxed) != 0);
    Ok(())
}
