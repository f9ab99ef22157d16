//! Peers that memory does not reach, seen by the device model: a link carries their QPs' messages in packets. Sending, the
//! link gets the send queue in hand ([`Sends`]); receiving, it acts on this process's own QPs through the one responder,
//! as an initiator of this process ([`Qp::far_target`]). What a packet is, only the link knows.

use crate::arena::layout::BY_PACKETS;
use crate::context::ah::Route;
use crate::device::LIMITS;
use crate::error::Result;
use crate::host::lock::OwnerGuard;
use crate::mr::transfer::{self, Direction, Pieces};
use crate::qp::Qp;
pub use crate::qp::sq::Progress;
use crate::qp::sq::requester::Step;
use crate::qp::sq::wqe::Flush;
use crate::qp::sq::{LOOK_BUDGET, Params, SendQueue, local_need};
use crate::responder::{Nak, QpIncarnation, Responder};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{AhAttr, Opcode, QpAttr, QpState, QpType, event, send_flags, wc};

/// How often a send queue that another thread has is tried.
const SOON_TRIES: u32 = 200;

/// The sending half of a QP whose peer is far. Owned by the send queue, used under its lock; dropped when the QP is
/// disconnected.
pub trait Sender: Any + Send {
    /// Goes on with the send queue: begins what may begin, and sends what may be sent.
    fn advance(&mut self, sends: &mut Sends<'_>) -> Progress;

    /// The QP's attributes have changed (IBA 11.2.5.2: retries and depths may while the queue is drained).
    fn modified(&mut self, path: &PathAttr);

    /// Where it is in its packets and those of the peer.
    fn psns(&self) -> Psns;

    /// Whether a request has been begun that has not completed (IBA 10.3.1.5: SQD finishes those).
    fn has_begun(&self) -> bool;
}

/// What a queried QP tells of its packets.
#[derive(Clone, Copy, Debug)]
pub struct Psns {
    /// Of the next packet that is to be sent for the first time, once the QP was ready to send.
    pub next: Option<u32>,
    /// Of the request packet that is expected next.
    pub expected: u32,
}

/// What became of a visit to a QP's sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenderAccess {
    /// It was there.
    Ran,
    /// The QP has none.
    NoSender,
    /// Another thread has the send queue, or the process is paused: come again.
    Busy,
}

/// A posted request, as a link sees it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct RemoteRequest {
    pub opcode: Opcode,
    pub length: u64,
    pub remote_addr: u64,
    pub rkey: u32,
    pub imm_or_rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
    pub srqn: u32,
    pub fence: bool,
    pub solicited: bool,
    pub flush: Flush,
}

/// What a requester needs of the QP's attributes (`struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PathAttr {
    pub dest_qpn: u32,
    pub ah: AhAttr,
    pub sq_psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub mtu_bytes: u32,
}

/// A send queue in the hands of a [`Sender`]. Requests are named by a counter that wraps.
pub struct Sends<'a> {
    sq: &'a mut SendQueue,
    qp: &'a Qp,
}

impl<'a> Sends<'a> {
    /// The QP.
    pub fn qp(&self) -> &'a Qp {
        self.qp
    }

    /// The oldest request that has not completed.
    #[inline]
    pub fn head(&self) -> u32 {
        self.sq.head
    }

    /// One past the last request posted.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.sq.tail
    }

    /// Whether new requests may begin: only in RTS.
    #[inline]
    pub fn may_begin(&self) -> bool {
        self.qp.shared.state.load(Ordering::Acquire) == QpState::Rts as u32
    }

    /// The attributes that were set last.
    pub fn path(&self) -> PathAttr {
        self.sq.params.path()
    }

    /// Request `n`, if it is posted and has not completed.
    #[inline]
    pub fn get(&self, n: u32) -> Option<RemoteRequest> {
        if n.wrapping_sub(self.sq.head) >= self.sq.tail.wrapping_sub(self.sq.head) {
            return None;
        }
        let w = &self.sq.wqes[self.sq.index(n)];
        Some(RemoteRequest {
            opcode: w.opcode,
            length: w.length,
            remote_addr: w.remote_addr,
            rkey: w.rkey,
            imm_or_rkey: w.imm_or_rkey,
            compare_add: w.compare_add,
            swap: w.swap,
            srqn: w.srqn,
            fence: w.flags & send_flags::FENCE != 0,
            solicited: w.flags & send_flags::SOLICITED != 0,
            flush: w.flush,
        })
    }

    /// The status that request `n` fails with before anything of it is sent, if it does (IBA 10.10.2.2).
    pub fn check(&self, n: u32) -> std::result::Result<(), u32> {
        let i = self.sq.index(n);
        let w = &self.sq.wqes[i];
        if w.length > u64::from(LIMITS.max_msg_sz) {
            return Err(wc::LOC_LEN_ERR);
        }
        self.sq.check_local(i, local_need(w.opcode))?;
        match w.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite if w.length != 8 => Err(wc::LOC_LEN_ERR),
            opcode if opcode.answers() && self.sq.params.max_rd_atomic == 0 => Err(wc::LOC_QP_OP_ERR),
            _ => Ok(()),
        }
    }

    /// Adds the local memory of bytes `[from, from + len)` of request `n`, checked against its keys, to `pieces`. It stays
    /// valid until the sender returns.
    #[inline]
    pub fn gather(&self, n: u32, from: u64, len: u64, pieces: &mut Pieces) -> std::result::Result<(), u32> {
        self.sq.collect(self.sq.index(n), from, len, 0, pieces)
    }

    /// Puts fetched data where request `n` wants it.
    pub fn scatter(&mut self, n: u32, from: u64, data: &[u8]) -> std::result::Result<(), u32> {
        let i = self.sq.index(n);
        let mut pieces = Pieces::new();
        self.sq.collect(i, from, data.len() as u64, local_need(self.sq.wqes[i].opcode), &mut pieces)?;
        // SAFETY: `collect` has checked the pieces, `data.len()` bytes in all, against this process's keys, inside the mark
        // of send work; the data is only read.
        unsafe { transfer::copy_direct(Direction::Read, data.as_ptr().cast_mut(), &pieces, true) }
            .map_err(|_| wc::LOC_PROT_ERR)
    }

    /// Whether request `n` is done by this process alone: a bind or an invalidation.
    pub fn is_local(&self, n: u32) -> bool {
        matches!(self.sq.wqes[self.sq.index(n)].opcode, Opcode::LocalInv | Opcode::BindMw)
    }

    /// Carries out the request at the head, which is local.
    pub fn do_local(&mut self) {
        let i = self.sq.index(self.sq.head);
        let opcode = self.sq.wqes[i].opcode;
        if let Step::Done(status) = self.sq.local_operation(self.qp, i, opcode) {
            self.sq.finish(self.qp, status);
        }
    }

    /// The request at the head is done. Unless it succeeded, everything else is flushed and the QP disconnected.
    #[inline]
    pub fn finish(&mut self, status: u32) {
        self.sq.finish(self.qp, status);
    }
}

impl Params {
    fn path(&self) -> PathAttr {
        PathAttr {
            dest_qpn: self.dest_qpn,
            ah: self.ah,
            sq_psn: self.sq_psn,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            mtu_bytes: self.mtu_bytes,
        }
    }
}

impl SendQueue {
    /// Takes new attributes, and the sender of a peer that the QP is being connected to.
    pub(crate) fn set_params(&mut self, params: Params, way: Option<Box<dyn Sender>>) {
        self.params = params;
        if way.is_some() {
            self.far = way;
        } else if let Some(far) = &mut self.far {
            far.modified(&params.path());
        }
    }

    /// [`SendQueue::advance`] where the peer is far.
    #[cold]
    #[inline(never)]
    pub(crate) fn advance_far(&mut self, qp: &Qp) -> Progress {
        if self.head != self.tail && qp.state() != QpState::Rts && !self.goes_on(qp) {
            return Progress::Idle;
        }
        self.with_sender(qp, |sender, sends| sender.advance(sends)).unwrap_or(Progress::Idle)
    }

    /// Runs `f` with the sender, if the queue has one. `f` may end in the QP being disconnected: then the sender is dropped.
    pub(crate) fn with_sender<R>(
        &mut self,
        qp: &Qp,
        f: impl FnOnce(&mut dyn Sender, &mut Sends<'_>) -> R,
    ) -> Option<R> {
        let mut sender = self.far.take()?;
        self.far_in_hand = true;
        let r = f(&mut *sender, &mut Sends { sq: self, qp });
        if std::mem::take(&mut self.far_in_hand) {
            self.far = Some(sender);
        } else {
            self.last_psns = Some(sender.psns());
        }
        Some(r)
    }

    /// Whether a request has been begun and not finished.
    pub(crate) fn has_begun(&self) -> bool {
        self.exec.begun() || self.far.as_ref().is_some_and(|far| far.has_begun())
    }
}

impl Qp {
    /// Runs `f` on the sending half of this QP, as send work.
    pub fn with_sender(&self, f: impl FnOnce(&mut dyn Sender, &mut Sends<'_>) -> Progress) -> SenderAccess {
        let Some(mut sq) = self.lock_sq_soon() else { return SenderAccess::Busy };
        if sq.far.is_none() {
            return SenderAccess::NoSender;
        }
        match self.executing(&mut sq, |sq| sq.with_sender(self, f)).flatten() {
            Some(progress) => {
                self.note_if_needed(&sq, progress);
                SenderAccess::Ran
            }
            None => SenderAccess::Busy,
        }
    }

    /// Goes on with send work that the link has held back. Where another thread has the send queue just now, the next poll
    /// does, or the progress thread.
    pub fn go_on(&self) {
        if let Some(mut sq) = self.lock_sq_soon() {
            self.start(&mut sq, LOOK_BUDGET);
        }
    }

    /// The send queue, if it can be had soon: whoever has packets in hand does not wait for a program that has begun a
    /// batch (`ibv_wr_start`) and not ended it, least of all when that is itself, nor for a thread that was preempted.
    fn lock_sq_soon(&self) -> Option<OwnerGuard<'_, SendQueue>> {
        for _ in 0..SOON_TRIES {
            if let Some(sq) = self.sq.try_lock() {
                return Some(sq);
            }
            std::hint::spin_loop();
        }
        let raw = self.sq.raw();
        (!raw.held_by_me() && raw.holder_is_gone()).then(|| self.lock_sq())
    }

    /// The way in for packets: a lane of this QP, or through this XRC target into SRQ `srqn`. Silence when there is none now;
    /// an invalid request when there is no such SRQ (IBA A14.4.3).
    pub fn far_target(&self, srqn: u32) -> std::result::Result<Responder, Nak> {
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

    /// The responder has refused a packet in a way that ends the QP (IBA 9.9.3, class C).
    pub fn refused(&self, nak: Nak) {
        let event = match nak {
            Nak::RemoteAccess => event::QP_ACCESS_ERR,
            Nak::InvalidRequest => event::QP_REQ_ERR,
            Nak::RemoteOperation => event::QP_FATAL,
            Nak::Silence | Nak::ReceiverNotReady(_) | Nak::Paused => return,
        };
        if self.qp_type.is_reliable() && crate::responder::fail(self.shared, Some(event)) {
            self.process.own.raise(self.shared.attention.load(Ordering::Relaxed));
        }
    }

    /// Whether it takes requests in its state (IBA 10.3.1).
    pub fn receives(&self) -> bool {
        (QpState::Rtr as u32..=QpState::Sqe as u32).contains(&self.shared.state.load(Ordering::Acquire))
    }

    /// Whether its peer is reached by packets.
    pub(crate) fn is_far(&self) -> bool {
        self.far.load(Ordering::Relaxed)
    }

    /// Opens the way to the peer that the attributes of a move to RTR name, if it leads away from this host.
    pub(crate) fn open_way(&self, a: &QpAttr) -> Result<Option<Box<dyn Sender>>> {
        let Some(me) = self.handle() else { return Ok(None) };
        if self.qp_type == QpType::Ud {
            return self.process.link.listen(self.process, &me).map(|()| None);
        }
        if self.process.link.route(self.device_index(), &a.ah) != Route::Packets {
            return Ok(None);
        }
        let sender = self.process.link.connect(self.process, &me, a)?;
        self.far.store(true, Ordering::Relaxed);
        Ok(Some(sender))
    }

    /// Its Q_Key (IBA 10.2.5).
    pub fn qkey(&self) -> u32 {
        self.shared.qkey.load(Ordering::Relaxed)
    }

    /// Whether no receive waits for the next message, although there could be one.
    pub fn lacks_receive(&self) -> bool {
        let Some(rq) = self.srq.as_ref().map(|srq| &srq.rq).or(self.rq.as_ref()) else { return false };
        let rq = &rq.view.shared;
        rq.tail.load(Ordering::Acquire) <= rq.head.load(Ordering::Acquire)
    }

    /// Receives posted to an own queue and not taken, for the credits of an acknowledgement (IBA 9.7.7.2). None with an SRQ, and
    /// where there has never been a receive: a QP that is only for RDMA has no credits to give.
    pub fn receives_waiting(&self) -> Option<u32> {
        if self.srq.is_some() {
            return None;
        }
        let rq = &self.rq.as_ref()?.view;
        rq.has_had_any().then(|| rq.waiting().min(u64::from(u32::MAX)) as u32)
    }

    /// The QP itself, for whoever keeps it beyond a call.
    pub fn handle(&self) -> Option<Arc<Qp>> {
        self.me.upgrade()
    }
}
