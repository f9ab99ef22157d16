//! The requester's side of owner copies (DESIGN decision 4d): leaves a request in the target's lane, passes the data
//! through the lane's bounce buffer, and looks if the owner has carried it out (see `service`). No call waits for the
//! owner.

use crate::arena::layout::request;
use crate::host::clock::now_ns;
use crate::mr::transfer::{self, Direction, Pieces};
use crate::owner_copy::bounce::Stream;
use crate::owner_copy::owner::result_of;
use crate::process::send_work::Settled;
use crate::qp::base::QpBase;
use crate::qp::sq::SendQueue;
use crate::qp::sq::exec::{Asked, Step};
use crate::qp::sq::requester::Stop;
use crate::responder::Responder;
use std::sync::atomic::Ordering;
use vervain_iba::{Nak, Status, access};

/// Delay before the first looks at a request, in ns.
const FIRST_LOOK_NS: u64 = 20_000;

/// Remote memory in a request to the owner.
#[derive(Clone, Copy)]
pub(crate) struct Remote {
    pub key: u32,
    pub addr: u64,
    /// True: the key is that of one of the owner's own receives.
    pub local: bool,
}

/// The request at place `i` of a send queue, of which the owner of `target` carries out a piece.
pub(crate) struct OwnerCopy<'a> {
    sq: &'a mut SendQueue,
    i: usize,
    target: &'a Responder,
}

impl<'a> OwnerCopy<'a> {
    pub(crate) fn of(sq: &'a mut SendQueue, i: usize, target: &'a Responder) -> OwnerCopy<'a> {
        OwnerCopy { sq, i, target }
    }

    /// Asks the owner to do `op` on `n` bytes, or goes on with the earlier request; `Wait` until it is done. At most
    /// `budget` bytes are copied by this call.
    pub(crate) fn ask(&mut self, op: u32, remote: Remote, n: u64, budget: &mut u64) -> Result<u64, Stop> {
        let target = self.target;
        let r = &target.lane.request;
        loop {
            let Some(asked) = self.sq.exec.asked else {
                self.request(op, remote, n, budget)?;
                continue;
            };
            let state = r.state.load(Ordering::Acquire);
            if state == request::DONE {
                if self.sq.exec.has_answer(self.sq.wq[self.i].request.length, target) {
                    // The answer is taken outside of the mark, which may have been cut off.
                    return Err(Stop::Step(Step::Again));
                }
                if let Err(nak) = result_of(r.status.load(Ordering::Relaxed)) {
                    self.sq.exec.over(target);
                    return Err(nak.into());
                }
                if asked.op == request::BOUNCE {
                    self.sq.exec.over(target);
                    self.sq.exec.bounced = true;
                    continue;
                }
            }
            let asked = self.pass(asked, budget)?;
            if state == request::DONE && (asked.op != request::READ || asked.moved == asked.len) {
                self.sq.exec.by_owner += asked.len;
                self.sq.exec.over(target);
                return Ok(asked.len);
            }
            // The owner ran out of data, or of room. It has looked once more after it announced that, and so does this
            // side.
            if r.state.load(Ordering::SeqCst) == request::WAITING
                && Self::owner_can_pass(target, &asked)
                && r.state
                    .compare_exchange(request::WAITING, request::POSTED, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            {
                target.space.raise(target.lane.attention.load(Ordering::Relaxed));
            }
            if state != request::DONE
                && (target.space.is_dead() || target.lane.initiator.load(Ordering::Relaxed) as u32 == 0)
            {
                if r.state.load(Ordering::Acquire) == request::DONE {
                    continue;
                }
                self.sq.exec.asked = None;
                return Err(Stop::Nak(Nak::Silence));
            }
            return Err(Stop::Step(if *budget == 0 { Step::Again } else { self.wait() }));
        }
    }

    /// Leaves the request in the lane.
    fn request(&mut self, op: u32, remote: Remote, n: u64, budget: &mut u64) -> Result<(), Stop> {
        let target = self.target;
        let r = &target.lane.request;
        // An earlier request that was given up may still be carried out; its words must stay until then.
        if target.withdraw() {
            return Err(Stop::Step(self.wait()));
        }
        let copies = op == request::WRITE || op == request::READ;
        let want = if n > request::BOUNCE_BYTES { request::LARGE_BOUNCE_BYTES } else { request::BOUNCE_BYTES };
        // Asked once per message: an owner that is short of memory may have no larger buffer. A request that was taken
        // back does not count.
        let small = target.lane.bounce_len.load(Ordering::Acquire) < want && !self.sq.exec.bounced;
        let (op, n) = if copies && small { (request::BOUNCE, want) } else { (op, n) };
        r.op.store(op, Ordering::Relaxed);
        r.key.store(remote.key, Ordering::Relaxed);
        r.local.store(u32::from(remote.local), Ordering::Relaxed);
        r.addr.store(remote.addr, Ordering::Relaxed);
        r.len.store(n, Ordering::Relaxed);
        r.compare.store(self.sq.wq[self.i].request.compare_add, Ordering::Relaxed);
        r.swap.store(self.sq.wq[self.i].request.swap, Ordering::Relaxed);
        r.moved.store(0, Ordering::Relaxed);
        r.taken.store(0, Ordering::Relaxed);
        let mut asked = Asked { op, len: n, moved: 0, seen: 0 };
        // A short message is in the buffer when the owner looks. A long one is filled in while the owner wakes.
        if op == request::WRITE && n <= request::BOUNCE_BYTES {
            asked = self.pass(asked, budget)?;
        }
        self.sq.exec.asked = Some(asked);
        r.state.store(request::POSTED, Ordering::SeqCst);
        target.space.raise(target.lane.attention.load(Ordering::Relaxed));
        Ok(())
    }

    /// The extent of the message in the bounce buffer, and the buffer's offset in the owner's arena.
    fn stream(target: &Responder, asked: &Asked) -> (Stream, u64) {
        let ring = target.lane.bounce_len.load(Ordering::Acquire);
        (Stream { len: asked.len, ring }, target.lane.bounce.load(Ordering::Acquire))
    }

    /// Bytes that this side can pass through next.
    fn next(target: &Responder, asked: &Asked) -> Result<u64, Nak> {
        let (stream, _) = Self::stream(target, asked);
        let theirs = target.lane.request.taken.load(Ordering::SeqCst);
        match asked.op {
            request::WRITE => stream.fill(asked.moved, theirs).ok_or(Nak::RemoteOperation),
            request::READ => stream.empty(theirs, asked.moved).ok_or(Nak::RemoteOperation),
            _ => Ok(0),
        }
    }

    /// Returns true if the owner has bytes to pass in the bounce buffer.
    fn owner_can_pass(target: &Responder, asked: &Asked) -> bool {
        let (stream, _) = Self::stream(target, asked);
        let theirs = target.lane.request.taken.load(Ordering::SeqCst);
        let next = match asked.op {
            request::WRITE => stream.empty(asked.moved, theirs),
            request::READ => stream.fill(theirs, asked.moved),
            _ => None,
        };
        next.is_some_and(|n| n > 0)
    }

    /// Passes the bytes through the bounce buffer that can be passed now.
    fn pass(&mut self, mut asked: Asked, budget: &mut u64) -> Result<Asked, Stop> {
        let target = self.target;
        let r = &target.lane.request;
        let (stream, bounce) = Self::stream(target, &asked);
        while *budget > 0 {
            let n = Self::next(target, &asked)?;
            if n == 0 {
                break;
            }
            let at = target.space.view.at(bounce + asked.moved % stream.ring, n).filter(|_| bounce != 0);
            let at = at.ok_or(Nak::RemoteOperation)?;
            let (direction, need) = match asked.op {
                request::READ => (Direction::Read, access::LOCAL_WRITE),
                _ => (Direction::Write, 0),
            };
            let mut pieces = Pieces::new();
            self.sq.collect(self.i, self.sq.exec.done + asked.moved, n, need, &mut pieces).map_err(Stop::Local)?;
            // SAFETY: `at` lies inside the owner's arena as just checked, in a range that no key covers while it is a
            // bounce buffer; the pieces are checked local memory.
            unsafe { transfer::copy_direct(direction, at, &pieces, false)? };
            asked.moved += n;
            r.moved.store(asked.moved, Ordering::SeqCst);
            *budget = budget.saturating_sub(n);
            self.sq.exec.asked = self.sq.exec.asked.map(|_| asked);
        }
        let seen = r.taken.load(Ordering::Relaxed);
        if seen != asked.seen {
            // The owner is at work, which is no silence.
            asked.seen = seen;
            self.sq.exec.retry.answered();
            self.sq.exec.asked = self.sq.exec.asked.map(|_| asked);
        }
        Ok(asked)
    }

    /// Waits for a slow owner, but no longer than for a silent peer.
    fn wait(&mut self) -> Step {
        if self.sq.exec.retry.deadline_passed(&self.sq.params, self.sq.switch) {
            // The request is not forgotten: its answer may have come since the last look.
            self.target.withdraw();
            return Step::Done(Status::RetryExceeded);
        }
        // If the program does not poll, the progress thread looks: soon at first, since an owner takes some 30 µs.
        Step::Wait(now_ns() + (FIRST_LOOK_NS << (self.sq.exec.retry.count_look() / 4).min(6)))
    }
}

/// Ends the request to an owner of a QP that is stopped. An answer that completes the work request is taken, so
/// that no atomic is done twice; a request that is not begun is taken back, and made anew when the QP goes on.
/// Bytes of a message that were moved by then are moved again.
#[cold]
pub(crate) fn settle(sq: &mut SendQueue, qp: &QpBase) -> Settled {
    if sq.exec.asked.is_none() {
        qp.asks(false);
        return Settled::Yes;
    }
    let i = sq.wq.place(sq.wq.head());
    let length = sq.wq[i].request.length;
    let (mut at_it, mut has_answer) = (false, false);
    sq.path.each_peer(|target| {
        at_it |= target.withdraw();
        has_answer |= sq.exec.has_answer(length, target);
    });
    if has_answer {
        // The step takes the answer first, and goes no further.
        if let Step::Done(status) = sq.step(qp, &mut 0) {
            sq.finish(qp, status);
        }
    }
    if at_it && sq.exec.asked.is_some() {
        return Settled::NotYet;
    }
    sq.exec.asked = None;
    qp.asks(false);
    Settled::Yes
}

/// Takes back a request that the owner has not begun.
pub(crate) fn cancel(sq: &mut SendQueue) {
    if sq.exec.asked.take().is_some() {
        sq.path.each_peer(|t| {
            t.withdraw();
        });
    }
}
