//! The life of a queue pair: errors, reset, the end of its peer, and its own (IBA 10.3). Each closes the way in first,
//! then waits until no initiator is in flight, and only then touches shared memory.

use crate::arena::Block;
use crate::arena::numbers::Kind;
use crate::error::{Error, Result};
use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::process::doorbell::{Attend, Looked, Looker};
use crate::process::send_work::Progress;
use crate::qp::sq::LOOK_BUDGET;
use crate::qp::{Qp, SendSide};
use crate::reasons;
use crate::responder::refused::{self, End};
use crate::rq::RecvQueue;
use crate::srq::XrcTarget;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_iba::{Gid, QpState, QpType, event};

/// The longest wait of a reset or destroy for posted sends to leave, in ns, and the nap between two looks.
const SENDS_LEAVE_NS: u64 = 1_000_000_000;
const LOOK_AT_SENDS: Duration = Duration::from_micros(100);

impl Qp {
    // ---- errors ----------------------------------------------------------------------------------------------------

    /// Handles a failed send request; the QP's state shows it already.
    #[cold]
    pub(super) fn send_error(&self, sends: &mut SendSide) {
        if self.qp_type.is_reliable() {
            self.enter_error(sends);
        } else {
            sends.sq.flush(&self.base);
        }
    }

    /// Does the work of ERR, after the state was set: waits until no initiator is in flight, keeps messages that
    /// arrived, and flushes the rest.
    pub(super) fn enter_error(&self, sends: &mut SendSide) {
        self.receives.settle_lanes(&self.base);
        if let (Some(send_cq), Some(recv_cq)) = (&self.send_cq, &self.receives.cq)
            && Arc::ptr_eq(send_cq, recv_cq)
        {
            send_cq.sends_first(&self.ring);
        }
        self.receives.flush_taken(&self.base, sends.sq.is_remote());
        sends.sq.flush(&self.base);
        sends.disconnect(&self.base);
        self.receives.flush(&self.base);
        if self.receives.srq.is_some() && self.events.take_last_wqe() {
            self.raise(event::QP_LAST_WQE_REACHED);
        }
    }

    /// Moves the QP to ERR by decision of this process, with an async event.
    pub(crate) fn fail(&self, event: u32) {
        let is_over = || matches!(self.state(), QpState::Reset | QpState::Err);
        if is_over() {
            return;
        }
        let mut sends = self.lock_sends();
        // A reset takes the lock too.
        if is_over() {
            return;
        }
        self.shared.state.store(QpState::Err as u32, Ordering::SeqCst);
        self.enter_error(&mut sends);
        drop(sends);
        self.raise(event);
    }

    // ---- life ------------------------------------------------------------------------------------------------------

    /// Moves the QP back to RESET: no initiator in flight, nothing kept. The caller holds the attributes.
    pub(crate) fn enter_reset(&self) {
        let mut sends = self.lock_sends();
        self.shared.state.store(QpState::Reset as u32, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        self.receives.settle_lanes(&self.base);
        self.table.router.unregister_qp(self.number);
        // Purged before the send queue is reset: a thread that polls must not count old completions into the new queue.
        if let Some(cq) = &self.receives.cq {
            cq.purge(self.number, None);
        }
        if let Some(cq) = &self.send_cq {
            cq.purge(self.number, Some(&self.ring));
        }
        let is_remote = sends.sq.is_remote();
        sends.sq.abandon();
        sends.disconnect(&self.base);
        sends.sq.reset(self.qp_type);
        self.receives.reset(&self.base, is_remote, self.gone.load(Ordering::Relaxed));
        self.shared.rq_psn.store(0, Ordering::Relaxed);
        self.shared.fault.store(0, Ordering::Relaxed);
        self.shared.refused.kind.store(0, Ordering::Relaxed);
        self.shared.established.store(0, Ordering::Relaxed);
        self.events.set_last_wqe_told(false);
        self.pending.set(false);
    }

    /// Begins what waits to go together with what is posted next: an adapter has sent it before it carries out the
    /// command that ends or drains the send queue.
    pub(super) fn begin_waiting(&self) {
        let mut sends = self.lock_sends();
        if sends.connection.is_some() {
            sends.start(self, LOOK_BUDGET);
        }
    }

    /// Finishes requests posted to a peer that lives: an adapter has sent them before it carries out the command that
    /// ends the QP. They may wait for the handshake with the peer's process, for their turn, or for room on the way,
    /// which packets of the peer's make.
    pub(super) fn let_sends_leave(&self) {
        let until = now_ns() + SENDS_LEAVE_NS;
        loop {
            let mut sends = self.lock_sends();
            if !sends.is_leaving(self) || now_ns() >= until {
                return;
            }
            let progress = sends.start(self, LOOK_BUDGET);
            let is_carried = sends.connection.is_some();
            drop(sends);
            match progress {
                Progress::More => {}
                Progress::Stopped => return,
                Progress::Idle if !is_carried => return,
                Progress::Idle | Progress::Wait(_) => {
                    if !(is_carried && self.process.poll_packets()) {
                        nap(LOOK_AT_SENDS);
                    }
                }
            }
        }
    }

    /// Lets requests of the peer arrive first: a program that has seen data that a peer has written may well be done
    /// with the QP.
    pub(super) fn let_requests_arrive(&self) {
        if matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) && !self.is_gone() {
            self.table.router.let_arrive(self.process, self.number);
        }
    }

    /// Runs `f` on the sending half, and starts the work that may go on afterwards.
    pub(super) fn change_sends<R>(&self, f: impl FnOnce(&mut SendSide) -> R) -> R {
        let mut sends = self.lock_sends();
        let result = f(&mut sends);
        sends.start(self, LOOK_BUDGET);
        result
    }

    /// Returns true while the send queue still works on a request that it has begun (SQD that drains).
    pub(crate) fn is_draining(&self) -> bool {
        self.sends.lock().has_begun()
    }

    pub(crate) fn announce_if_drained(&self) {
        let sends = self.lock_sends();
        if !sends.has_begun() && self.events.take_drained() {
            drop(sends);
            self.raise(event::SQ_DRAINED);
        }
    }

    /// Enters a multicast group (`man ibv_attach_mcast`).
    ///
    /// # Errors
    /// EINVAL for a QP that is not UD or an address that is no multicast group's.
    pub fn attach_mcast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        self.check_group(gid)?;
        self.table.router.join(gid, self)?;
        let mut groups = self.groups.lock();
        if !groups.contains(gid) {
            groups.push(*gid);
        }
        Ok(())
    }

    /// Leaves a multicast group.
    pub fn detach_mcast(&self, gid: &Gid, _lid: u16) -> Result<()> {
        self.check_group(gid)?;
        self.table.router.leave(gid, self)?;
        let mut groups = self.groups.lock();
        if let Some(i) = groups.iter().position(|group| group == gid) {
            groups.swap_remove(i);
        }
        Ok(())
    }

    /// Takes it out of all multicast groups.
    pub fn leave_groups(&self) {
        let groups = self.groups.lock().clone();
        groups.iter().for_each(|group| _ = self.detach_mcast(group, 0));
    }

    fn check_group(&self, gid: &Gid) -> Result<()> {
        self.process.check()?;
        if self.qp_type != QpType::Ud {
            return Err(Error::invalid("only datagram QPs enter multicast groups"));
        }
        if !crate::device::is_multicast(gid) {
            return Err(Error::invalid("the address is not that of a multicast group"));
        }
        Ok(())
    }

    /// Destroys the QP. Waits until its async events were acknowledged.
    ///
    /// # Errors
    /// EBUSY while it is in a multicast group; EINVAL if it was destroyed.
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        if !self.process.is_current() {
            return Ok(());
        }
        let groups = self.groups.lock().len();
        if groups != 0 {
            return Err(Error::busy(format!("QP {:#x} is in multicast groups: {groups}", self.number)));
        }
        self.let_sends_leave();
        self.let_requests_arrive();
        if self.gone.swap(true, Ordering::AcqRel) {
            return Err(Error::invalid("the QP was destroyed already"));
        }
        self.process.publish_number(Kind::Qp, self.number, 0);
        let attr = self.attr.lock();
        self.enter_reset();
        drop(attr);
        self.receives.close_lanes();
        self.table.remove(self.number);
        self.process.send_work.remove(self.number);
        self.process.progress.remove(&**self);
        self.leave_cqs();
        if let Some(cq) = &self.send_cq {
            cq.drop_if_idle(&**self);
        }
        self.process.attention.remove(self.shared.attention.load(Ordering::Relaxed));
        self.events.end(&self.context);
        self.count_users(u32::MAX);
        self.process.numbers.free(Kind::Qp, self.number);
        Ok(())
    }
}

impl Drop for Qp {
    /// The last holder releases the shared memory: the progress thread may have looked at it until now.
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        if !self.gone.load(Ordering::Acquire) {
            self.process.attention.remove(self.shared.attention.load(Ordering::Relaxed));
        }
        self.process.release(std::mem::replace(&mut self.block, Block::empty()));
    }
}

impl Attend for Qp {
    /// Handles the marks that peers have left in this QP: communication established, or an error.
    fn attend(&self, by: Looker) -> Looked {
        if by == Looker::Poll {
            return Looked::NotHere;
        }
        if self.shared.established.compare_exchange(1, 2, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            && self.qp_type.is_connected()
        {
            self.raise(event::COMM_EST);
        }
        if self.shared.fault.load(Ordering::SeqCst) == 0 {
            return Looked::Done;
        }
        let mut sends = self.lock_sends();
        // The program may have reset the QP meanwhile, which takes the fault back; what it has posted since belongs to
        // another connection.
        let fault = self.shared.fault.swap(0, Ordering::SeqCst);
        if fault != 0 && self.state() == QpState::Err {
            self.tell_of_fault(fault);
            self.enter_error(&mut sends);
            drop(sends);
            if fault != u32::MAX {
                self.raise(fault - 1);
            }
        }
        Looked::Done
    }
}

impl Qp {
    /// Reports the peer's request for which the QP is in ERR.
    #[cold]
    fn tell_of_fault(&self, fault: u32) {
        let (own, peer) = (self.number, self.shared.dest_qpn.load(Ordering::Relaxed));
        let pd = self.shared.pd.load(Ordering::Relaxed);
        let why = refused::why(self.shared, &*self.process.own.keys, pd, End::Responder);
        let from = if self.qp_type.is_connected() { format!(" of QP {peer:#x}") } else { String::new() };
        match (fault, why) {
            (u32::MAX, Some(why)) => {
                let status = refused::receive_status(self.shared);
                reasons::tell_of_completion(format_args!("QP {own:#x}, receive of a message{from}: {status}: {why}"));
            }
            (_, Some(why)) => {
                reasons::tell(format_args!("QP {own:#x} is now in ERR: it has refused a request{from}: {why}"));
            }
            (_, None) => reasons::tell(format_args!("QP {own:#x} is now in ERR: a request{from} was not valid")),
        }
    }
}

impl XrcTarget for Qp {
    fn close_lanes_into(&self, rq: &Arc<RecvQueue>) {
        self.receives.close_lanes_into(&self.base, rq);
    }
}
