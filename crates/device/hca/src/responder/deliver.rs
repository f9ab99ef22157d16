//! Messages into receives (IBA 9.4.1, 10.8.3.3): a receive is claimed, filled and completed, or spoilt.

use crate::arena::ArenaRef;
use crate::arena::layout::{self, CqShared, INLINE_RECEIVE, Inline};
use crate::cq::completion::watched;
use crate::cq::recv_ring::Deliveries;
use crate::host::guarded;
use crate::host::prefetch::prefetch;
use crate::mr::transfer::{Direction, Pieces, Policy};
use crate::process::peer::{Location, PeerProcess, plain_region};
use crate::responder::{Refusal, Responder, Spoilt, refused};
use crate::rq::{Receipt, RqView};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{Nak, Status, access};

/// A wake-up that is due: a completion was published for a program that may wait for an event of its CQ.
#[must_use]
pub(crate) struct WakeCall {
    /// Keeps the memory of `cq` mapped.
    space: Arc<PeerProcess>,
    cq: ArenaRef<CqShared>,
    /// Identity of the CQ: its channel, and its event's number there.
    which: [u32; 2],
    slot: u32,
    solicited_or_error: bool,
}

impl WakeCall {
    /// Raises the event, if the program has asked for one.
    #[cold]
    pub(crate) fn make(self) {
        // Raised outside of the mark, so the CQ may be gone, and its memory that of another one.
        if which(&self.cq) != self.which {
            return;
        }
        let raise = || crate::cq::peer_events::raise(&self.space, &self.cq, self.slot);
        crate::cq::notify::fire(&self.cq, self.solicited_or_error, raise);
    }
}

/// The identity of a CQ, which no other CQ of the process shares, if it has a channel.
fn which(cq: &CqShared) -> [u32; 2] {
    [&cq.channel, &cq.event].map(|word| word.load(Ordering::Relaxed))
}

impl Responder {
    /// Claims a receive for the initiator's message.
    #[inline]
    pub fn claim(&self) -> Result<u32, Nak> {
        if self.is_cut_off() {
            return Err(Nak::Silence);
        }
        let rnr = || Nak::ReceiverNotReady(self.qp.min_rnr_timer.load(Ordering::Relaxed) as u8);
        let rq = self.rq.as_ref().ok_or_else(rnr)?;
        let wqe = rq.claim(self.me as u32).ok_or_else(rnr)?;
        let limit = rq.shared.limit.load(Ordering::Relaxed);
        if limit != 0 && rq.waiting() < u64::from(limit) {
            self.limit_reached(rq, limit);
        }
        Ok(wqe)
    }

    /// Gives claimed receive `wqe` to the next message, since this one will not be finished. In a queue that other
    /// initiators claim from too, it stays claimed until the QP goes to ERR.
    #[cold]
    pub fn unclaim(&self, wqe: u32) {
        if let Ok(_mark) = self.enter() {
            self.give_back(wqe);
        }
    }

    /// [`Responder::unclaim`] inside a mark.
    pub fn give_back(&self, wqe: u32) {
        if let Some(rq) = self.rq.as_ref().filter(|rq| rq.exclusive) {
            rq.unclaim_exclusive(wqe);
        }
    }

    /// Raises the event of an SRQ below its limit, once, and disarms the limit (IBA 10.2.9.1, `man ibv_modify_srq`).
    #[cold]
    fn limit_reached(&self, rq: &RqView, limit: u32) {
        if rq.shared.limit.compare_exchange(limit, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            rq.shared.limit_reached.store(1, Ordering::SeqCst);
            self.space.raise(rq.shared.attention.load(Ordering::Relaxed));
        }
    }

    /// Returns true if a receive waits. Does not claim it.
    pub fn has_receive(&self) -> bool {
        self.rq.as_ref().is_some_and(|rq| rq.waiting() != 0)
    }

    /// Writes `data`, a piece of a message, into claimed receive `wqe` at `offset`, inside the mark. `last`: the
    /// message ends with it. For packets: the destination is this process's own memory. The data is read once, and may
    /// change meanwhile.
    pub fn fill(&self, wqe: u32, offset: u64, data: &Pieces, last: bool) -> Result<(), Nak> {
        let mut done = 0;
        while done < data.len() {
            let to = self.reach_receive(wqe, offset + done, data.len() - done)?.ok_or(Nak::RemoteOperation)?;
            let mut part = Pieces::new();
            let from = if to.len == data.len() {
                data
            } else {
                data.slice_into(done, to.len, &mut part);
                &part
            };
            done += to.len;
            let ends = last && done == data.len();
            // SAFETY: the pieces are memory of this process that stays during the call; as many bytes were reached.
            whole(unsafe { to.transfer(to.way(Policy::Auto), Direction::Write, from, ends, false, Policy::Auto) })
                .map_err(|nak| if nak == Nak::RemoteAccess { Nak::RemoteOperation } else { nak })?;
        }
        Ok(())
    }

    /// Makes the checks of [`Responder::fill`] for data that is in the receive already.
    pub fn check_fill(&self, wqe: u32, offset: u64, len: u64) -> Result<(), Nak> {
        let mut done = 0;
        while done < len {
            done += self.reach_receive(wqe, offset + done, len - done)?.ok_or(Nak::RemoteOperation)?.len;
        }
        Ok(())
    }

    /// The memory of claimed receive `wqe` and its key. None unless it is one piece of this process's memory.
    pub fn receive_range(&self, wqe: u32) -> Option<(u32, Range<u64>)> {
        match self.receive_memory(wqe, 0, u64::MAX) {
            Ok(Some((Location::Mapped(at), len, key, _))) if len == self.receive_room(wqe) => {
                Some((key, at as u64..at as u64 + len))
            }
            _ => None,
        }
    }

    /// Publishes the completion of claimed receive `wqe`, and wakes the owner's channel if it is armed for it.
    #[inline]
    pub fn complete_receive(&self, wqe: u32, receipt: &Receipt, solicited: bool) {
        if let Some(call) = self.publish_receive(wqe, receipt, solicited) {
            call.make();
        }
    }

    /// Publishes the completion of claimed receive `wqe` without waking: a requester's own completion comes first,
    /// since a program that wakes may answer at once.
    #[inline(never)]
    pub(crate) fn publish_receive(&self, wqe: u32, receipt: &Receipt, solicited: bool) -> Option<WakeCall> {
        self.publish(wqe, receipt, None, solicited)
    }

    /// [`Responder::publish_receive`] with the `message` itself in the completion, for one that
    /// [`Responder::is_inline`].
    #[inline]
    pub(crate) fn publish_inline(
        &self,
        wqe: u32,
        receipt: &Receipt,
        message: &Inline,
        solicited: bool,
    ) -> Option<WakeCall> {
        self.publish(wqe, receipt, Some(message), solicited)
    }

    #[inline(always)]
    fn publish(&self, wqe: u32, receipt: &Receipt, inline: Option<&Inline>, solicited: bool) -> Option<WakeCall> {
        let (rq, w) = self.rq.as_ref().and_then(|rq| Some((rq, rq.wqe(wqe)?)))?;
        // The receive was flushed, and may be that of another connection now.
        if self.is_cut_off() {
            return None;
        }
        let asks = self.deliveries().push(rq, wqe, w, receipt, inline);
        let call = if asks { self.tell(solicited || receipt.status != Status::Success.to_verbs()) } else { None };
        if let Some(next) = rq.fetch_next()
            && inline.is_none()
        {
            self.fetch_memory(rq, next, receipt.byte_len);
        }
        call
    }

    #[inline(always)]
    fn deliveries(&self) -> Deliveries<'_> {
        let (lane, ring, cqes) = (&*self.lane, &self.ring, self.cqes.as_ref());
        Deliveries { lane, ring, cqes, cq: &self.cq, full_barrier: &self.full_barrier }
    }

    /// Returns true if a message of `len` bytes for claimed receive `wqe` goes into its completion, inside the mark: it
    /// is short enough for that, and for the first SGE, whose memory is a plain region. The lane is that of a connected
    /// QP.
    #[inline(always)]
    pub(crate) fn is_inline(&self, wqe: u32, len: u32) -> bool {
        // A queue with a single claimer, and a CQ with timestamps, have no such completions.
        self.cqes.is_some() && (1..=INLINE_RECEIVE as u32).contains(&len) && self.may_be_inline(wqe, len)
    }

    #[inline(never)]
    fn may_be_inline(&self, wqe: u32, len: u32) -> bool {
        let Some(rq) = &self.rq else { return false };
        let Some(sge) = rq.sges(wqe).and_then(|sges| sges.first()).map(RqView::sge) else { return false };
        let pd = rq.shared.pd.load(Ordering::Relaxed);
        len <= sge.length
            && self.deliveries().has_cqe()
            && self.name_next(sge.lkey, sge.addr)
            && plain_region(&self.keys, sge.lkey, sge.addr, len.into(), access::LOCAL_WRITE, pd).is_some()
    }

    /// Prefetches the memory that the next message will probably be written to, if it is as long as this one of `len`
    /// bytes. Programs post thousands of receives to a shared queue, each in a page of its own, long before it is used.
    /// A page that is not mapped here yet is read before it is written: for a read the kernel maps the pages around it
    /// too, if the owner has them. The present message is published already.
    #[inline]
    fn fetch_memory(&self, rq: &RqView, wqe: u32, len: u32) {
        let pd = rq.shared.pd.load(Ordering::Relaxed);
        if let Some(sge) = rq.sges(wqe).and_then(|sges| sges.first()).map(RqView::sge)
            && let len = u64::from(len.clamp(1, sge.length.max(1)))
            && let Some((entry, offset)) = plain_region(&self.keys, sge.lkey, sge.addr, len, 0, pd)
            && let Some(memory) = self.space.mapped_at(entry, offset, len)
        {
            prefetch(memory.cast());
            let last = memory.wrapping_add(len as usize - 1);
            // SAFETY: both bytes lie in memory that is mapped as long as the mark lasts; their values do not matter,
            // and a load from pages that are gone is caught.
            unsafe {
                let _ = guarded::load1(memory);
                let _ = guarded::load1(last);
            }
        }
    }

    /// Handles a receive CQ that counts its completions or asks for events. Some: the wake-up to make.
    #[cold]
    #[inline(never)]
    fn tell(&self, solicited_or_error: bool) -> Option<WakeCall> {
        let news = watched(&self.cq);
        if news.overrun {
            self.cq.overrun.store(1, Ordering::SeqCst);
            self.space.raise(self.cq.attention.load(Ordering::Relaxed));
        }
        news.event.then(|| WakeCall {
            space: Arc::clone(&self.space),
            cq: self.cq.clone(),
            which: which(&self.cq),
            slot: layout::slot_of(self.qp.qpn.load(Ordering::Relaxed)),
            solicited_or_error,
        })
    }

    /// Completes a receive that was taken and cannot be filled with this status, and moves its QP to ERR (IBA 9.9.3).
    #[cold]
    pub fn spoil_receive(&self, wqe: u32, receipt: &Receipt, spoilt: Spoilt) {
        if self.is_cut_off() {
            return;
        }
        self.qp.refused.note_spoilt(spoilt, self.receive_room(wqe), || self.bad_piece(wqe, spoilt.length));
        // A program that polls the completion finds the QP in ERR; the owner flushes nothing before this mark ends.
        let has_failed = self.qp.fail(None);
        self.complete_receive(wqe, &Receipt { status: spoilt.status.to_verbs(), ..*receipt }, true);
        if has_failed {
            self.raise_qp();
        }
    }

    /// The first piece of a message of `left` bytes whose place in receive `wqe` the keys do not allow: lkey, address,
    /// length.
    fn bad_piece(&self, wqe: u32, mut left: u64) -> Option<(u32, u64, u64)> {
        let sges = self.rq.as_ref().and_then(|rq| rq.sges(wqe)).unwrap_or(&[]);
        sges.iter().map(RqView::sge).find_map(|sge| {
            let len = left.min(u64::from(sge.length));
            left -= len;
            let used = refused::in_receive(sge.lkey, sge.addr, len, self.pd());
            (len > 0 && used.fault(&*self.keys).is_some()).then_some((sge.lkey, sge.addr, len))
        })
    }

    /// Invalidates the type 2 window `rkey` for a Send with Invalidate (IBA 10.6.7.2, 9.4.1.1.3).
    pub fn invalidate(&self, rkey: u32) -> Result<(), Nak> {
        if self.is_cut_off() {
            return Err(Nak::Silence);
        }
        let entry = self.space.keys.get((rkey >> 8) as usize).ok_or(Nak::RemoteAccess)?;
        let good = u64::from(rkey);
        self.space.write_key(rkey);
        if entry.key.load(Ordering::Acquire) != good
            || entry.flags() & layout::KEY_WINDOW2 == 0
            || entry.qpn.load(Ordering::Relaxed) != self.qp.qpn.load(Ordering::Relaxed)
            || entry.key.compare_exchange(good, 0, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            return Err(Nak::RemoteAccess);
        }
        Ok(())
    }
}

/// The result of a move in the calling process's own memory, which no other owner has to do.
fn whole(moved: Result<bool, Refusal>) -> Result<(), Nak> {
    match moved {
        Ok(true) => Ok(()),
        Ok(false) => Err(Nak::RemoteAccess),
        Err(Refusal::Nak(nak)) => Err(nak),
        Err(Refusal::Fault(_)) => Err(Nak::RemoteOperation),
    }
}
