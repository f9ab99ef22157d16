//! A QP as its carrier sees it, if memory does not reach the peer: the send queue under its lock ([`Sends`]), the way
//! in for packets ([`Qp::way_in`]), and the values that an acknowledgement carries.

use crate::arena::layout::BY_PACKETS;
use crate::device::LIMITS;
use crate::error::Result;
use crate::host::lock::OwnerGuard;
use crate::mr::transfer::{self, Direction, Pieces};
use crate::process::Progress;
use crate::process::send_work::SendWork;
use crate::qp::ah::Route;
use crate::qp::carrier::Connection;
use crate::qp::sq::path::PathAttr;
use crate::qp::sq::requester::Step;
use crate::qp::sq::ud::{Datagram, DatagramOut};
use crate::qp::sq::{LOOK_BUDGET, SendQueue, local_need};
use crate::qp::{Qp, SendSide};
use crate::responder::{QpIncarnation, Responder};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{Nak, Opcode, QpAttr, QpState, QpType, Request, Status};

/// The number of tries to lock a send queue that another thread holds.
const SOON_TRIES: u32 = 200;

/// The result of a visit to a QP's sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderAccess {
    /// The visit took place.
    Ran,
    /// The QP is not connected, or has another connection.
    NoSender,
    /// Another thread holds the send queue, the process is paused or the QP is stopped: to be tried again.
    Busy,
}

/// The send queue, locked, in the hands of a [`Connection`]. Requests are named by a counter that wraps.
pub struct Sends<'a> {
    sq: &'a mut SendQueue,
    qp: &'a Qp,
}

impl<'a> Sends<'a> {
    pub(super) fn of(sq: &'a mut SendQueue, qp: &'a Qp) -> Sends<'a> {
        Sends { sq, qp }
    }

    /// The QP.
    pub fn qp(&self) -> &'a Qp {
        self.qp
    }

    /// The number of the oldest request that has not completed.
    #[inline]
    pub fn head(&self) -> u32 {
        self.sq.wq.head()
    }

    /// One past the last request posted.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.sq.wq.tail()
    }

    /// Returns true if new requests may begin: only in RTS.
    #[inline]
    pub fn may_begin(&self) -> bool {
        self.qp.shared.state.load(Ordering::Acquire) == QpState::Rts as u32 && !self.sq.has_failed()
    }

    /// The current attributes of the path.
    pub fn path(&self) -> PathAttr {
        self.sq.path_attr()
    }

    /// Request `n`, if it is posted and has not completed.
    #[inline]
    pub fn get(&self, n: u32) -> Option<&Request> {
        self.sq.wq.get(n).map(|wqe| &wqe.request)
    }

    /// Checks request `n` before anything of it is sent. The error is the status that it fails with (IBA 10.10.2.2).
    #[inline(always)]
    pub fn check(&self, n: u32) -> std::result::Result<(), Status> {
        let i = self.sq.wq.place(n);
        let w = &self.sq.wq[i].request;
        if w.length > u64::from(LIMITS.max_msg_sz) {
            return Err(Status::LocalLength);
        }
        self.sq.check_local(i, local_need(w.opcode))?;
        match w.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite if w.length != 8 => Err(Status::LocalLength),
            opcode if opcode.answers() && self.sq.params.max_rd_atomic == 0 => Err(Status::LocalQpOperation),
            _ => Ok(()),
        }
    }

    /// Adds the local memory of bytes `[from, from + len)` of request `n`, checked against its keys, to `pieces`. It
    /// stays valid until the sender returns.
    #[inline]
    pub fn gather(&self, n: u32, from: u64, len: u64, pieces: &mut Pieces) -> std::result::Result<(), Status> {
        self.sq.collect(self.sq.wq.place(n), from, len, 0, pieces)
    }

    /// Writes fetched data into the local memory of request `n`, from byte `from` on. The data is read once, and may
    /// change meanwhile.
    pub fn scatter(&mut self, n: u32, mut from: u64, data: &Pieces) -> std::result::Result<(), Status> {
        let i = self.sq.wq.place(n);
        let need = local_need(self.sq.wq[i].request.opcode);
        for (at, len) in data.iter() {
            let mut pieces = Pieces::new();
            self.sq.collect(i, from, len as u64, need, &mut pieces)?;
            // SAFETY: `collect` has checked the pieces, `len` bytes in all, against this process's keys, inside the
            // mark of send work; the data is only read.
            unsafe { transfer::copy_direct(Direction::Read, at.cast_mut(), &pieces, true) }
                .map_err(|_| Status::LocalProtection)?;
            from += len as u64;
        }
        Ok(())
    }

    /// The key and the address range in this process at which bytes `[from, from + len)` of the data fetched by request
    /// `n` belong. None if they are in more than one element, or if the key does not allow it.
    pub fn destination(&self, n: u32, from: u64, len: u64) -> Option<(u32, Range<u64>)> {
        let i = self.sq.wq.place(n);
        let mut skip = from;
        let sge = self.sq.wq.sges(i).iter().find(|sge| {
            let length = u64::from(sge.length);
            let is_here = skip < length;
            skip -= if is_here { 0 } else { length };
            is_here
        })?;
        if len > u64::from(sge.length) - skip {
            return None;
        }
        let need = local_need(self.sq.wq[i].request.opcode);
        let addr = sge.addr.wrapping_add(skip);
        let at = crate::mr::local_memory(self.sq.process, sge.lkey, addr, len, need, self.sq.pd)? as u64;
        Some((sge.lkey, at..at + len))
    }

    /// Checks that the keys still allow the write to the [`Sends::destination`] of these bytes.
    pub fn check_destination(&self, n: u32, from: u64, len: u64) -> std::result::Result<(), Status> {
        let i = self.sq.wq.place(n);
        self.sq.each_piece(i, from, len, local_need(self.sq.wq[i].request.opcode), |_, _| {})
    }

    /// Returns true if this process alone carries out request `n`: a bind or an invalidation.
    pub fn is_local(&self, n: u32) -> bool {
        self.sq.wq[self.sq.wq.place(n)].request.opcode.is_local()
    }

    /// Carries out the request at the head, which is local.
    pub fn do_local(&mut self) {
        let i = self.sq.wq.place(self.sq.wq.head());
        let opcode = self.sq.wq[i].request.opcode;
        if let Step::Done(status) = self.sq.local_operation(&self.qp.base, i, opcode) {
            self.sq.finish(&self.qp.base, status);
        }
    }

    /// Completes the request at the head. Unless `status` is success, all others are flushed and the QP is disconnected
    /// when the sender returns.
    #[inline]
    pub fn finish(&mut self, status: Status) {
        self.sq.finish(&self.qp.base, status);
    }
}

impl Qp {
    /// [`SendQueue::advance`] for a QP whose carrier sends.
    #[cold]
    #[inline(never)]
    pub(super) fn advance_connection(&self, sq: &mut SendQueue, connection: &dyn Connection) -> Progress {
        let has_begun = |sq: &SendQueue| sq.has_begun() || connection.has_begun();
        if !sq.wq.is_empty() && self.state() != QpState::Rts && !sq.goes_on(&self.base, has_begun(sq)) {
            return Progress::Idle;
        }
        connection.advance(&mut Sends { sq, qp: self })
    }

    /// Runs `f` on the send queue of this QP as send work, if it is connected by `connection`. A carrier calls it for
    /// answers and timers.
    pub fn with_sends<C: Connection + 'static>(
        &self,
        connection: &Arc<C>,
        f: impl FnOnce(&mut Sends<'_>) -> Progress,
    ) -> SenderAccess {
        let Some(mut sends) = self.lock_sends_soon() else { return SenderAccess::Busy };
        let is_its = |own: &Arc<dyn Connection>| std::ptr::addr_eq(Arc::as_ptr(own), Arc::as_ptr(connection));
        if !sends.connection.as_ref().is_some_and(is_its) {
            return SenderAccess::NoSender;
        }
        match self.work_on(&mut sends, |sends| f(&mut Sends { sq: &mut sends.sq, qp: self })) {
            Some(progress) => {
                self.note_if_needed(&sends, progress);
                SenderAccess::Ran
            }
            None => SenderAccess::Busy,
        }
    }

    /// Goes on with send work that the carrier has held back. Returns false if another thread holds the send queue.
    /// That thread may have passed the point already, so the caller tries again.
    pub fn go_on(&self) -> bool {
        let sends = self.lock_sends_soon();
        sends.map(|mut sends| self.start(&mut sends, LOOK_BUDGET)).is_some()
    }

    /// The send queue, if it comes free soon. A thread that handles packets does not wait for a batch (`ibv_wr_start`)
    /// that is not ended, least of all its own, nor for a thread that was preempted.
    pub(super) fn lock_sends_soon(&self) -> Option<OwnerGuard<'_, SendSide>> {
        for _ in 0..SOON_TRIES {
            if let Some(sends) = self.sends.try_lock() {
                return Some(sends);
            }
            std::hint::spin_loop();
        }
        (!self.sends.raw().held_by_me() && self.thread_is_gone()).then(|| self.lock_sends())
    }

    /// The way in for messages by a carrier: a lane of this QP, or through this XRC target into SRQ `srqn`. The errors:
    /// silence if there is none now; an invalid request if there is no such SRQ (IBA A14.4.3).
    pub fn way_in(&self, srqn: u32) -> std::result::Result<Responder, Nak> {
        let me = self.process.initiator_id(self.number | BY_PACKETS, self.generation());
        let seen = QpIncarnation::now(self.shared);
        let lane = match self.qp_type {
            QpType::Rc | QpType::Uc => self.shared.lane.load(Ordering::Acquire),
            QpType::Ud => self.make_lane(self.number | BY_PACKETS, None).map_err(|_| Nak::Silence)?,
            QpType::XrcRecv => {
                let srq = self.xrcd().and_then(|xrcd| xrcd.srq(srqn)).ok_or(Nak::InvalidRequest)?;
                self.make_lane(self.number | BY_PACKETS, Some(&srq)).map_err(|_| Nak::Silence)?
            }
            QpType::XrcSend => return Err(Nak::Silence),
        };
        Responder::bind(&self.process.own, lane, me, seen).ok_or(Nak::Silence)
    }

    /// Handles the refusal of a packet by the responder that ends the QP (IBA 9.9.3, class C).
    pub fn refused(&self, nak: Nak) {
        let Some(event) = nak.event() else { return };
        if self.qp_type.is_reliable() && self.shared.fail(Some(event)) {
            self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
        }
    }

    /// Returns true if it takes requests in its state (IBA 10.3.1).
    pub fn receives(&self) -> bool {
        (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&self.shared.state.load(Ordering::Acquire))
    }

    /// Connects to the peer that the attributes of a move to RTR name, if a carrier reaches it.
    pub(super) fn connect(&self, a: &QpAttr) -> Result<Option<Arc<dyn Connection>>> {
        let Some(me) = self.handle() else { return Ok(None) };
        if self.qp_type == QpType::Ud {
            return self.table.router.register_qp(&me).map(|()| None);
        }
        self.table.router.connect(&me, a)
    }

    /// Its Q_Key (IBA 10.2.5).
    pub fn qkey(&self) -> u32 {
        self.shared.qkey.load(Ordering::Relaxed)
    }

    /// Returns true if no receive waits for the next message, although the QP has a receive queue.
    pub fn lacks_receive(&self) -> bool {
        let Some(rq) = self.srq.as_ref().map(|srq| &srq.rq).or(self.rq.as_ref()) else { return false };
        let rq = &rq.view.shared;
        rq.tail.load(Ordering::Acquire) <= rq.head.load(Ordering::Acquire)
    }

    /// Receives posted to an own queue and not taken, for the credits of an acknowledgement (IBA 9.7.7.2). None with an
    /// SRQ, and if there has never been a receive: a QP that is only for RDMA has no credits to give.
    pub fn receives_waiting(&self) -> Option<u32> {
        if self.srq.is_some() {
            return None;
        }
        let rq = &self.rq.as_ref()?.view;
        rq.has_had_any().then(|| rq.waiting().min(u64::from(u32::MAX)) as u32)
    }

    /// A counted reference to the QP, to be kept beyond a call. None while it is dropped.
    pub fn handle(&self) -> Option<Arc<Qp>> {
        self.me.upgrade()
    }
}

impl DatagramOut for Qp {
    fn send(&self, route: Route, datagram: &Datagram<'_>) -> Option<u64> {
        self.table.router.carrier(route)?.send_datagram(self, datagram)
    }

    fn flush(&self) {
        self.table.router.flush();
    }
}
