//! The memory that an operation touches at the far side: named for threads that revoke it, checked against its key, and
//! moved by the best way there is; and the operations that a peer's key allows on it, RDMA Write (IBA 9.4.3), RDMA Read
//! (IBA 9.4.4) and atomics (IBA 9.4.5).

use crate::mr::transfer::{self, Direction, Fault, Pieces, Policy, Way};
use crate::process::gate;
use crate::process::peer::{Location, plain_region};
use crate::responder::Responder;
use crate::rq::RqView;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use vervain_iba::{Nak, QpType, Right, access};

/// Memory at the far side that an initiator has reached inside its mark.
pub(crate) struct Reached<'a> {
    responder: &'a Responder,
    named: Named,
    /// Its location, seen from this process.
    pub location: Location,
    /// Contiguous bytes at the location.
    pub len: u64,
    /// The owner's key for it.
    pub key: u32,
    /// Its address as users of the key name it.
    pub addr: u64,
}

/// Compare and swap, or fetch and add.
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    /// True: compare and swap; else fetch and add.
    pub compare_swap: bool,
    /// The compare value, or the addend.
    pub compare_add: u64,
    /// The new value.
    pub swap: u64,
}

/// The reference by which memory was reached.
enum Named {
    /// An rkey, with these rights.
    Rkey(u32),
    /// A receive, from this byte on.
    Receive { wqe: u32, offset: u64 },
}

/// The reasons why memory was not moved.
pub(crate) enum Refusal {
    /// The responder refuses.
    Nak(Nak),
    /// Memory of one of the two sides is not mapped.
    Fault(Fault),
}

impl Reached<'_> {
    /// Returns true if it belongs to one of the owner's own receives.
    pub(crate) fn is_receive(&self) -> bool {
        matches!(self.named, Named::Receive { .. })
    }

    /// The way that reaches it now.
    #[inline]
    pub(crate) fn way(&self, policy: Policy) -> Way {
        transfer::way(&self.responder.space, self.location, policy)
    }

    fn find_again(&self) -> Result<Location, Nak> {
        match self.named {
            Named::Rkey(need) => self.responder.remote_memory(self.key, self.addr, self.len, need),
            Named::Receive { wqe, offset } => {
                let found = self.responder.receive_memory(wqe, offset, self.len)?;
                found.map(|(location, ..)| location).ok_or(Nak::RemoteOperation)
            }
        }
    }

    /// Moves `pieces` to or from its beginning by `way`. Returns false if only the owner can. `ends`: the message ends
    /// with them. `stream`: the message is long enough to be streamed past the caches.
    ///
    /// # Safety
    /// The pieces are memory of this process that was checked against its keys or is vouched for, with at most as many
    /// bytes as were reached; the mark inside which the memory was reached has not ended.
    pub(crate) unsafe fn transfer(
        &self,
        way: Way,
        direction: Direction,
        pieces: &Pieces,
        ends: bool,
        stream: bool,
        policy: Policy,
    ) -> Result<bool, Refusal> {
        match way {
            Way::Null => Ok(true),
            Way::Owner => Ok(false),
            Way::Direct(p) => {
                // SAFETY: both sides were checked against their keys inside the in-flight mark, see above.
                let moved = unsafe { transfer::copy_direct_of(direction, p, pieces, ends, stream) };
                moved.map(|()| true).map_err(Refusal::Fault)
            }
            Way::Vm(_) if pieces.has_null() => Ok(false),
            Way::Vm(host) => self.transfer_by_vm(host, direction, pieces, ends, policy),
        }
    }

    /// Moves `pieces` by a process_vm call to or from `host`, an address of the owner's.
    fn transfer_by_vm(
        &self,
        host: u64,
        direction: Direction,
        pieces: &Pieces,
        ends: bool,
        policy: Policy,
    ) -> Result<bool, Refusal> {
        let responder = self.responder;
        transfer::bring_in(direction, pieces).map_err(Refusal::Fault)?;
        transfer::aim(&responder.lane, direction, host, pieces.len(), ends);
        // The address now lies in the lane, where the owner can take it away; the key is checked once more before the
        // address is used.
        responder.barrier();
        // Memory that has been mapped meanwhile is still valid.
        let still = match self.find_again().map_err(Refusal::Nak)? {
            Location::Unmapped(now) => now == host,
            Location::Mapped(_) => true,
            Location::Null => false,
        };
        if responder.lane.open.load(Ordering::Relaxed) == 0 || !still {
            return Err(Refusal::Nak(Nak::Silence));
        }
        match transfer::copy_vm(&responder.space, &responder.lane, direction, pieces) {
            Ok(()) => Ok(true),
            Err(Fault::Refused) if policy != Policy::Vm => Ok(false),
            Err(fault) => Err(Refusal::Fault(fault)),
        }
    }
}

impl Responder {
    /// Names the memory that is touched next, inside the mark. Returns false once the lane was cut off.
    #[inline]
    pub(super) fn name_next(&self, key: u32, addr: u64) -> bool {
        gate::name_next(&self.lane, key, addr, &self.full_barrier)
    }

    /// Remote memory for an RDMA operation (IBA 9.7.4.1.5, 9.7.4.1.6): both the QP and the key must allow the access.
    #[inline]
    pub fn remote_memory(&self, rkey: u32, addr: u64, len: u64, need: u32) -> Result<Location, Nak> {
        if !self.name_next(rkey, addr) {
            return Err(Nak::Silence);
        }
        if self.qp.access.load(Ordering::Relaxed)
            & need
            & (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC)
            != need & (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC)
        {
            // An operation that the QP does not allow at all is an invalid request, not an access violation (IBA
            // 9.7.4.1.2).
            return Err(Nak::InvalidRequest);
        }
        self.space
            .resolve(rkey, addr, len, need, self.pd(), self.qp.qpn.load(Ordering::Relaxed))
            .filter(|place| *place != Location::Null)
            .ok_or(Nak::RemoteAccess)
    }

    /// Remote memory in the plain case: a connected QP, a region that is mapped here. None for all others and for
    /// refusals. The caller entered by [`Responder::enter_at`].
    #[inline(always)]
    pub fn mapped(&self, rkey: u32, addr: u64, len: u64, need: u32) -> Option<*mut u8> {
        if self.qp.access.load(Ordering::Relaxed) & need != need {
            return None;
        }
        let (entry, offset) = plain_region(&self.keys, rkey, addr, len, need, self.qp.pd.load(Ordering::Relaxed))?;
        if self.own {
            return Some(entry.host.load(Ordering::Relaxed).wrapping_add(offset) as *mut u8);
        }
        self.space.mapped_at(entry, offset, len)
    }

    /// Checks a request before it is carried out. A request of no bytes touches no memory, and its key is not looked at
    /// (IBA 9.7.4.1.5); a Flush of no bytes is one of the whole region.
    pub fn check(&self, rkey: u32, addr: u64, len: u64, right: Right) -> Result<(), Nak> {
        match right {
            Right::Flush(placement) => self.check_flush(rkey, addr, len, placement),
            _ if len == 0 => Ok(()),
            right => self.remote_memory(rkey, addr, len, right.access()).map(drop),
        }
    }

    /// Makes the checks of a Flush (IBA annex A19.4.2). Each placement is a right of the region, and a request for one
    /// that the region lacks is an access error; only then the QP's rights are checked.
    fn check_flush(&self, rkey: u32, addr: u64, len: u64, placement: u32) -> Result<(), Nak> {
        if placement & !3 != 0 {
            return Err(Nak::InvalidRequest);
        }
        let need = Right::Flush(placement).access();
        self.remote_memory(rkey, addr, len, need)?;
        if self.qp.access.load(Ordering::Relaxed) & need != need { Err(Nak::InvalidRequest) } else { Ok(()) }
    }

    /// The protection domain that keys are checked against: over XRC that of the SRQ (IBA A14.5.2).
    #[inline]
    pub(super) fn pd(&self) -> u32 {
        match &self.rq {
            Some(rq) if self.qp_type == QpType::XrcRecv => rq.shared.pd.load(Ordering::Relaxed),
            _ => self.qp.pd.load(Ordering::Relaxed),
        }
    }

    /// The memory of claimed receive `wqe` at `offset`, at most `most` bytes: location, contiguous bytes, key and
    /// address. None beyond its end. Only the bytes that are stored are checked against the key: a receive may be
    /// longer than its region. Silence once the lane was cut off, since the receive is then no longer the caller's.
    #[inline]
    pub fn receive_memory(
        &self,
        wqe: u32,
        mut offset: u64,
        most: u64,
    ) -> Result<Option<(Location, u64, u32, u64)>, Nak> {
        let Some(rq) = &self.rq else { return Ok(None) };
        let pd = rq.shared.pd.load(Ordering::Relaxed);
        for sge in rq.sges(wqe).unwrap_or(&[]) {
            let sge = RqView::sge(sge);
            if offset < u64::from(sge.length) {
                let len = (u64::from(sge.length) - offset).min(most);
                let addr = sge.addr.wrapping_add(offset);
                if !self.name_next(sge.lkey, addr) {
                    return Err(Nak::Silence);
                }
                let place =
                    self.space.resolve(sge.lkey, addr, len, access::LOCAL_WRITE, pd, 0).ok_or(Nak::RemoteOperation)?;
                return Ok(Some((place, len, sge.lkey, addr)));
            }
            offset -= u64::from(sge.length);
        }
        Ok(None)
    }

    /// Bytes of room in claimed receive `wqe`.
    #[inline]
    pub fn receive_room(&self, wqe: u32) -> u64 {
        let sges = self.rq.as_ref().and_then(|rq| rq.sges(wqe)).unwrap_or(&[]);
        sges.iter().map(|sge| u64::from(RqView::sge(sge).length)).sum()
    }

    /// Reaches `len` bytes at `addr` under the peer's key `rkey`, for the rights `need`.
    #[inline]
    pub(crate) fn reach(&self, rkey: u32, addr: u64, len: u64, need: u32) -> Result<Reached<'_>, Nak> {
        let location = self.remote_memory(rkey, addr, len, need)?;
        Ok(Reached { responder: self, named: Named::Rkey(need), location, len, key: rkey, addr })
    }

    /// Reaches the memory of claimed receive `wqe` at `offset`, at most `most` bytes. None beyond its end.
    #[inline]
    pub(crate) fn reach_receive(&self, wqe: u32, offset: u64, most: u64) -> Result<Option<Reached<'_>>, Nak> {
        let found = self.receive_memory(wqe, offset, most)?;
        let named = Named::Receive { wqe, offset };
        Ok(found.map(|(location, len, key, addr)| Reached { responder: self, named, location, len, key, addr }))
    }

    /// Checks that the QP has room for the answer to a Read or an atomic at all (IBA 9.7.4.1.2). Called inside the
    /// mark: outside, the QP may be gone and its memory reused.
    pub(crate) fn answers(&self) -> Result<(), Nak> {
        if self.qp.max_dest_rd_atomic.load(Ordering::Relaxed) == 0 { Err(Nak::InvalidRequest) } else { Ok(()) }
    }

    /// The memory that a Write goes to and its key. None if it is not mapped in this process, or if the Write is
    /// refused.
    pub fn write_range(&self, rkey: u32, addr: u64, len: u64) -> Option<(u32, Range<u64>)> {
        match self.remote_memory(rkey, addr, len, access::REMOTE_WRITE).ok()? {
            Location::Mapped(at) => Some((rkey, at as u64..at as u64 + len)),
            _ => None,
        }
    }

    /// Writes `data`, a piece of a message, inside the mark. `last`: the message ends with it. For packets: the
    /// destination is this process's own memory. The data is read once, and may change meanwhile.
    pub fn write(&self, rkey: u32, addr: u64, data: &Pieces, last: bool) -> Result<(), Nak> {
        let Location::Mapped(at) = self.remote_memory(rkey, addr, data.len(), access::REMOTE_WRITE)? else {
            // This process's own memory is all mapped, and the null MR is for local use.
            return Err(Nak::RemoteAccess);
        };
        // SAFETY: the pieces are memory of this process that stays during the call; as many bytes were reached, inside
        // the mark.
        let written = unsafe { transfer::copy_direct(Direction::Write, at, data, last) };
        written.map_err(|_| Nak::RemoteOperation)
    }

    /// The memory that a Read fetches, valid until the end of the mark. For an answer in packets: the memory is this
    /// process's own.
    pub fn read(&self, rkey: u32, addr: u64, len: u64) -> Result<Pieces, Nak> {
        match self.remote_memory(rkey, addr, len, access::REMOTE_READ)? {
            Location::Mapped(p) => {
                // Behind earlier writes of this thread for packets (IBA 9.5): a load may pass a store.
                fence(Ordering::SeqCst);
                let mut pieces = Pieces::new();
                pieces.push(p, len);
                Ok(pieces)
            }
            // This process's own memory is all mapped, and the null MR is for local use.
            Location::Unmapped(_) | Location::Null => Err(Nak::RemoteAccess),
        }
    }

    /// Carries out an atomic inside the mark. Returns the earlier value; None if only the owner can do it.
    #[inline]
    pub(crate) fn fetch_atomic(&self, rkey: u32, addr: u64, atomic: Atomic) -> Result<Option<u64>, Nak> {
        let location = self.remote_memory(rkey, addr, 8, access::REMOTE_ATOMIC);
        if !addr.is_multiple_of(8) && location != Err(Nak::InvalidRequest) {
            return Err(Nak::InvalidRequest);
        }
        match location? {
            Location::Mapped(p) if (p as usize).is_multiple_of(8) => {
                // SAFETY: eight aligned bytes, just checked against their key inside the mark, which keeps them so.
                let before = unsafe { transfer::atomic(p, atomic.compare_swap, atomic.compare_add, atomic.swap) };
                before.map(Some).map_err(|_| Nak::RemoteOperation)
            }
            _ => Ok(None),
        }
    }

    /// Carries out an atomic from a packet: compare and swap, or fetch and add without `compare`. Returns the earlier
    /// value.
    pub fn atomic(&self, rkey: u32, addr: u64, compare: Option<u64>, swap_add: u64) -> Result<u64, Nak> {
        let (compare_add, swap) = compare.map_or((swap_add, 0), |c| (c, swap_add));
        let atomic = Atomic { compare_swap: compare.is_some(), compare_add, swap };
        // None: the region's addresses are aligned, but its memory is not.
        self.fetch_atomic(rkey, addr, atomic)?.ok_or(Nak::InvalidRequest)
    }
}
