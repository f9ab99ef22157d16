//! The requester's side of owner copies (DESIGN decision 4d): leaves a request in the target's lane, and looks whether the
//! owner has carried it out (see `service`). Nobody waits inside a call.

use crate::layout::request;
use crate::memory::{self, Direction, Pieces};
use crate::requester::{Step, Stop};
use crate::responder::{Nak, Target};
use crate::send_queue::SendQueue;
use crate::service::result_of;
use crate::types::{access, wc};
use std::sync::atomic::Ordering;

/// Remote memory as the owner is asked for it.
pub(crate) struct Remote {
    pub key: u32,
    pub addr: u64,
    /// The key is one of the owner's own receive.
    pub local: bool,
}

impl SendQueue {
    /// Asks the owner to do `op` on `n` bytes, or looks whether it has; `Wait` until then.
    pub(crate) fn ask(&mut self, i: usize, target: &Target, op: u32, remote: &Remote, n: u64) -> Result<u64, Stop> {
        let r = &target.lane.request;
        if let Some(asked) = self.exec.asked {
            if r.state.load(Ordering::Acquire) != request::DONE {
                if target.space.is_dead() || target.lane.initiator.load(Ordering::Relaxed) as u32 == 0 {
                    self.exec.asked = None;
                    return Err(Stop::Nak(Nak::Silence));
                }
                return Err(Stop::Step(self.wait_for_owner(target)));
            }
            r.state.store(request::IDLE, Ordering::Relaxed);
            self.exec.asked = None;
            self.exec.deadline = 0;
            self.exec.looks = 0;
            result_of(r.status.load(Ordering::Relaxed))?;
            if asked > 0 {
                if op == request::READ {
                    self.fetch_bounce(i, target, asked)?;
                }
                return Ok(asked);
            }
        }
        // An earlier request that was given up may still be carried out; its words must stay until then.
        if target.withdraw() {
            return Err(Stop::Step(self.wait_for_owner(target)));
        }
        let bounce = target.lane.bounce.load(Ordering::Acquire);
        let copies = op == request::WRITE || op == request::READ;
        let (op, n) = if copies && bounce == 0 { (request::BOUNCE, 0) } else { (op, n) };
        if op == request::WRITE {
            let mut pieces = Pieces::new();
            self.collect(i, self.exec.done, n, 0, &mut pieces).map_err(Stop::Local)?;
            let to = target.space.view.at(bounce, n).ok_or(Nak::RemoteOperation)?;
            // SAFETY: the bounce buffer lies inside the owner's arena as just checked; the pieces are checked memory.
            unsafe { memory::copy_direct(Direction::Write, to, &pieces, false) };
        }
        r.op.store(op, Ordering::Relaxed);
        r.key.store(remote.key, Ordering::Relaxed);
        r.local.store(u32::from(remote.local), Ordering::Relaxed);
        r.addr.store(remote.addr, Ordering::Relaxed);
        r.len.store(n, Ordering::Relaxed);
        r.at.store(0, Ordering::Relaxed);
        r.compare.store(self.wqes[i].compare_add, Ordering::Relaxed);
        r.swap.store(self.wqes[i].swap, Ordering::Relaxed);
        r.state.store(request::POSTED, Ordering::SeqCst);
        self.exec.asked = Some(n);
        target.space.raise(target.lane.attention.load(Ordering::Relaxed));
        Err(Stop::Step(self.wait_for_owner(target)))
    }

    fn fetch_bounce(&self, i: usize, target: &Target, n: u64) -> Result<(), Stop> {
        let mut pieces = Pieces::new();
        self.collect(i, self.exec.done, n, access::LOCAL_WRITE, &mut pieces).map_err(Stop::Local)?;
        let from = target.space.view.at(target.lane.bounce.load(Ordering::Acquire), n).ok_or(Nak::RemoteOperation)?;
        // SAFETY: as in `ask`.
        unsafe { memory::copy_direct(Direction::Read, from, &pieces, true) };
        Ok(())
    }

    /// Takes back a request that the owner has not begun.
    pub(crate) fn cancel_request(&mut self) {
        if self.exec.asked.take().is_some() {
            self.target.iter().chain(self.xrc.values()).for_each(|t| {
                t.withdraw();
            });
        }
    }

    /// The owner is slow: wait, but no longer than for a silent peer.
    fn wait_for_owner(&mut self, target: &Target) -> Step {
        if self.deadline_passed() {
            self.exec.asked = None;
            target.withdraw();
            return Step::Done(wc::RETRY_EXC_ERR);
        }
        Step::Wait(self.exec.next_look())
    }
}
