//! The send queue of a QP as its carrier sees it, if memory does not reach the peer: under its lock, in a visit
//! ([`Qp::with_sends`]).

use crate::device::LIMITS;
use crate::mr::transfer::{self, Direction, Pieces};
use crate::qp::Qp;
use crate::qp::sq::exec::Step;
use crate::qp::sq::path::PathAttr;
use crate::qp::sq::{SendQueue, local_need};
use std::ops::Range;
use std::sync::atomic::Ordering;
use vervain_iba::{Opcode, QpState, Request, Status};

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

/// The send queue, locked, in the hands of a [`crate::qp::carrier::Connection`]. Requests are named by a counter that
/// wraps.
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
        if w.length > u64::from(LIMITS.qp.max_msg_sz) {
            return Err(Status::LocalLength);
        }
        self.sq.check_local(i, local_need(w.opcode))?;
        match w.opcode {
            Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite if w.length != 8 => Err(Status::LocalLength),
            opcode if opcode.answers() && self.sq.params.max_rd_atomic == 0 => Err(Status::LocalQpOperation),
            _ => Ok(()),
        }
    }

    /// Checks request `n` as [`Sends::check`] does and adds its first `len` bytes as [`Sends::gather`] does.
    ///
    /// # Errors
    /// The status that the request fails with.
    #[inline]
    pub fn gather_first(&self, n: u32, len: u64, pieces: &mut Pieces) -> std::result::Result<(), Status> {
        let w = &self.sq.wq[self.sq.wq.place(n)].request;
        // Of a Send or Write in one packet there is nothing to check but the memory, which is checked as it is added.
        let is_posted =
            matches!(w.opcode, Opcode::Send | Opcode::SendImm | Opcode::SendInv | Opcode::Write | Opcode::WriteImm);
        if !is_posted || len != w.length || len > u64::from(LIMITS.qp.max_msg_sz) {
            self.check(n)?;
        }
        self.gather(n, 0, len, pieces)
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
