//! Work requests: what is posted, and lists of it for one call. Nothing here calls the library; `Qp` does.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use vervain_abi::*;

use crate::ah::Ah;
use crate::pd::PdInner;
use crate::region::{RemoteAddr, Sge};

/// Which QPs may take a request: the address of a protection domain for datagrams, whose address handle the library
/// follows; null for all others, whose target has no handle. A QP takes the requests whose domain is its own: the
/// library never reads one arm of the union as another, nor a handle of another device.
pub(crate) type Domain = *const PdInner;

/// The domain of a list whose requests differ in it; no QP has it.
const MIXED: Domain = ptr::without_provenance(1);

/// One request for a send queue. It borrows its list of SGEs (`'s`), and the memory and the address handle that it
/// names (`'a`).
#[derive(Clone, Copy)]
pub struct SendRequest<'s, 'a> {
    pub(crate) raw: ibv_send_wr,
    pub(crate) domain: Domain,
    borrows: PhantomData<(&'s (), &'a ())>,
}

/// 0 in every field, and in what lies between: then the compiler makes a request where it is posted from. It copies one
/// that is put together from unions which are set in part.
// SAFETY: integers, pointers, and unions of them.
const BLANK: ibv_send_wr = unsafe { std::mem::zeroed() };

impl<'s, 'a> SendRequest<'s, 'a> {
    #[inline]
    fn new(opcode: ibv_wr_opcode, sges: &'s [Sge<'a>]) -> Self {
        // The library reads the list only, though C has no const here.
        let sg_list = sges.as_ptr().cast::<ibv_sge>().cast_mut();
        let num_sge = c_int::try_from(sges.len()).unwrap_or(c_int::MAX);
        let mut raw = BLANK;
        (raw.sg_list, raw.num_sge, raw.opcode) = (sg_list, num_sge, opcode);
        Self { raw, domain: ptr::null(), borrows: PhantomData }
    }

    #[inline]
    fn rdma(opcode: ibv_wr_opcode, sges: &'s [Sge<'a>], at: RemoteAddr) -> Self {
        let mut request = Self::new(opcode, sges);
        request.raw.wr.rdma = ibv_send_wr_rdma { remote_addr: at.addr, rkey: at.rkey };
        request
    }

    #[inline]
    fn atomic(opcode: ibv_wr_opcode, sge: &'s [Sge<'a>; 1], at: RemoteAddr, compare_add: u64, swap: u64) -> Self {
        let mut request = Self::new(opcode, sge);
        request.raw.wr.atomic = ibv_send_wr_atomic { remote_addr: at.addr, compare_add, swap, rkey: at.rkey };
        request
    }

    #[inline]
    fn immediate(mut self, value: u32) -> Self {
        self.raw.imm_data = value.to_be();
        self
    }

    /// Sends the bytes of `sges`, in their order, into a receive of the peer (RC, UC).
    #[inline]
    pub fn send(sges: &'s [Sge<'a>]) -> Self {
        Self::rdma(IBV_WR_SEND, sges, RemoteAddr { addr: 0, rkey: 0 })
    }

    /// Sends the bytes of `sges`, with 32 bits for the peer's completion.
    #[inline]
    pub fn send_imm(sges: &'s [Sge<'a>], value: u32) -> Self {
        Self::rdma(IBV_WR_SEND_WITH_IMM, sges, RemoteAddr { addr: 0, rkey: 0 }).immediate(value)
    }

    /// Writes the bytes of `sges` to `to` (RC, UC).
    #[inline]
    pub fn write(sges: &'s [Sge<'a>], to: RemoteAddr) -> Self {
        Self::rdma(IBV_WR_RDMA_WRITE, sges, to)
    }

    /// Writes the bytes of `sges` to `to`, and takes a receive of the peer, whose completion gets 32 bits.
    #[inline]
    pub fn write_imm(sges: &'s [Sge<'a>], to: RemoteAddr, value: u32) -> Self {
        Self::rdma(IBV_WR_RDMA_WRITE_WITH_IMM, sges, to).immediate(value)
    }

    /// Reads from `from` into `sges`, whose memory needs [`LOCAL_WRITE`](crate::Access::LOCAL_WRITE) (RC).
    #[inline]
    pub fn read(sges: &'s [Sge<'a>], from: RemoteAddr) -> Self {
        Self::rdma(IBV_WR_RDMA_READ, sges, from)
    }

    /// Adds `value` to the word at `at`, an address that 8 divides; the 8 bytes of `old` get what it was (RC).
    #[inline]
    pub fn fetch_add(old: &'s [Sge<'a>; 1], at: RemoteAddr, value: u64) -> Self {
        Self::atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, old, at, value, 0)
    }

    /// Sets the word at `at`, an address that 8 divides, to `new` if it is `expected`; the 8 bytes of `old` get what it
    /// was (RC).
    #[inline]
    pub fn compare_swap(old: &'s [Sge<'a>; 1], at: RemoteAddr, expected: u64, new: u64) -> Self {
        Self::atomic(IBV_WR_ATOMIC_CMP_AND_SWP, old, at, expected, new)
    }

    /// Sends the bytes of `sges`, and closes the peer's window of type 2 with the key `rkey`, whose key the receive's
    /// completion names ([`invalidated`](crate::Completion::invalidated)). One that is not open to this connection is a
    /// remote access error (RC, where the peer has [`EXTENSIONS`](crate::Capabilities::EXTENSIONS)).
    #[inline]
    pub fn send_invalidate(sges: &'s [Sge<'a>], rkey: u32) -> Self {
        Self::send(sges).invalidating(IBV_WR_SEND_WITH_INV, rkey)
    }

    #[inline]
    fn invalidating(mut self, opcode: ibv_wr_opcode, rkey: u32) -> Self {
        // The same field as the immediate data, but in host order.
        (self.raw.opcode, self.raw.imm_data) = (opcode, rkey);
        self
    }

    /// Sends a datagram to QP `qpn` at `to`, which takes those with its own Q_Key (UD). At most an MTU.
    #[inline]
    pub fn datagram(sges: &'s [Sge<'a>], to: &'a Ah, qpn: u32, qkey: u32) -> Self {
        let mut request = Self { domain: Arc::as_ptr(&to.pd.0), ..Self::new(IBV_WR_SEND, sges) };
        request.raw.wr.ud = ibv_send_wr_ud { ah: to.raw, remote_qpn: qpn, remote_qkey: qkey };
        request
    }

    /// Sends a datagram with 32 bits for the peer's completion.
    #[inline]
    pub fn datagram_imm(sges: &'s [Sge<'a>], to: &'a Ah, qpn: u32, qkey: u32, value: u32) -> Self {
        let mut request = Self::datagram(sges, to, qpn, qkey).immediate(value);
        request.raw.opcode = IBV_WR_SEND_WITH_IMM;
        request
    }

    /// The number that the completion will carry; 0 unless set.
    #[inline]
    pub fn id(mut self, id: u64) -> Self {
        self.raw.wr_id = id;
        self
    }

    #[inline]
    fn flag(mut self, flag: u32) -> Self {
        self.raw.send_flags |= flag;
        self
    }

    /// With a completion also when it ends well; one that fails always has one.
    #[inline]
    pub fn signaled(self) -> Self {
        self.flag(IBV_SEND_SIGNALED)
    }

    /// The bytes are copied while it is posted, at most [`max_inline`](crate::QpBuilder::max_inline) of them; their
    /// memory may change at once, and its registration does not matter. Not for Reads and atomics.
    #[inline]
    pub fn inline(self) -> Self {
        self.flag(IBV_SEND_INLINE)
    }

    /// Waits until the Reads and atomics before it are done.
    #[inline]
    pub fn fence(self) -> Self {
        self.flag(IBV_SEND_FENCE)
    }

    /// Wakes a peer that asked for solicited events only ([`Cq::request_notify`](crate::Cq::request_notify)).
    #[inline]
    pub fn solicited(self) -> Self {
        self.flag(IBV_SEND_SOLICITED)
    }
}

impl SendRequest<'static, 'static> {
    /// Closes this side's window of type 2 with the key `rkey`. Requests of the peer that use it later are remote
    /// access errors; one that is not open to this QP is an error of this request.
    #[inline]
    pub fn local_invalidate(rkey: u32) -> Self {
        Self::send(&[]).invalidating(IBV_WR_LOCAL_INV, rkey)
    }
}

/// One receive. It borrows its list of SGEs (`'s`), and the memory that it names (`'a`).
#[derive(Clone, Copy)]
pub struct RecvRequest<'s, 'a> {
    pub(crate) raw: ibv_recv_wr,
    borrows: PhantomData<(&'s (), &'a ())>,
}

impl<'s, 'a> RecvRequest<'s, 'a> {
    /// A receive into `sges`, in their order; for UD the first [`GRH_BYTES`](crate::GRH_BYTES) are the GRH's.
    #[inline]
    pub fn new(sges: &'s [Sge<'a>]) -> Self {
        let raw = ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            // The library reads it only, though C has no const here.
            sg_list: sges.as_ptr().cast::<ibv_sge>().cast_mut(),
            num_sge: c_int::try_from(sges.len()).unwrap_or(c_int::MAX),
        };
        Self { raw, borrows: PhantomData }
    }

    /// The number that the completion will carry; 0 unless set.
    #[inline]
    pub fn id(mut self, id: u64) -> Self {
        self.raw.wr_id = id;
        self
    }
}

/// The common part of the two kinds of work request: a link to the next one, and SGEs.
pub(crate) trait Chained: Sized {
    fn sge_count(&self) -> usize;
    fn link(&mut self, next: *mut Self, sges: *mut ibv_sge);
}

macro_rules! chained {
    ($($request:ty),+) => {
        $(impl Chained for $request {
            fn sge_count(&self) -> usize {
                usize::try_from(self.num_sge).unwrap_or(0)
            }

            fn link(&mut self, next: *mut Self, sges: *mut ibv_sge) {
                (self.next, self.sg_list) = (next, sges);
            }
        })+
    };
}

chained!(ibv_send_wr, ibv_recv_wr);

/// Requests with SGEs of their own, chained when they are posted. It allocates while it grows, and keeps what it has.
struct Chain<R> {
    requests: Vec<R>,
    sges: Vec<ibv_sge>,
    /// True if the pointers in `requests` lead into these two vectors, as they lie now.
    linked: bool,
}

impl<R: Chained> Chain<R> {
    fn with_capacity(requests: usize) -> Self {
        Self { requests: Vec::with_capacity(requests), sges: Vec::with_capacity(requests), linked: false }
    }

    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
    }

    #[inline]
    fn push(&mut self, request: R, sges: &[ibv_sge]) {
        self.requests.push(request);
        self.sges.extend_from_slice(sges);
        self.linked = false;
    }

    /// The first of the chain; null where it is empty. Every pointer in it is valid until the list changes.
    #[inline]
    fn first(&mut self) -> *mut R {
        if self.requests.is_empty() {
            return ptr::null_mut();
        }
        let (first, mut sges) = (self.requests.as_mut_ptr(), self.sges.as_mut_ptr());
        if !self.linked {
            let last = self.requests.len() - 1;
            for i in 0..=last {
                let next = if i == last { ptr::null_mut() } else { first.wrapping_add(i + 1) };
                // SAFETY: inside the vector, which is borrowed; no reference to the whole of it comes between, so that
                // the pointers stay good.
                let request = unsafe { &mut *first.add(i) };
                request.link(next, sges);
                sges = sges.wrapping_add(request.sge_count());
            }
            self.linked = true;
        }
        first
    }

    /// The index in the list of `request`, which the library named; 0 if it named none.
    fn place(&self, request: *const R) -> usize {
        self.requests.iter().position(|r| ptr::eq(r, request)).unwrap_or(0)
    }
}

/// Requests for a send queue, posted by one call and one doorbell: [`Qp::post_list`](crate::Qp::post_list). It can be
/// posted any number of times, and filled anew after [`clear`](SendList::clear) without allocating.
pub struct SendList<'a> {
    chain: Chain<ibv_send_wr>,
    domain: Domain,
    borrows: PhantomData<&'a ()>,
}

// SAFETY: the pointers lead into the list itself, and to what it borrows: bytes behind keys and address handles, both
// of which any thread may use.
unsafe impl Send for SendList<'_> {}

impl<'a> SendList<'a> {
    /// An empty list, with room for `requests` of one SGE each; it grows when there are more.
    pub fn with_capacity(requests: usize) -> Self {
        Self { chain: Chain::with_capacity(requests), domain: ptr::null(), borrows: PhantomData }
    }

    /// Adds a request at the end. Its SGEs are copied.
    #[inline]
    pub fn push(&mut self, request: SendRequest<'_, 'a>) {
        if self.is_empty() {
            self.domain = request.domain;
        } else if self.domain != request.domain {
            self.domain = MIXED;
        }
        // SAFETY: a request is made of a slice of SGEs that is borrowed as long as the request.
        let sges = unsafe { sges(request.raw.sg_list, request.raw.num_sge) };
        self.chain.push(request.raw, sges);
    }

    /// Takes all requests out.
    #[inline]
    pub fn clear(&mut self) {
        self.chain.clear();
    }

    /// The number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.chain.requests.len()
    }

    /// Returns true if it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chain.requests.is_empty()
    }

    #[inline]
    pub(crate) fn first(&mut self) -> *mut ibv_send_wr {
        self.chain.first()
    }

    pub(crate) fn place(&self, request: *const ibv_send_wr) -> usize {
        self.chain.place(request)
    }

    #[inline]
    pub(crate) fn domain(&self) -> Domain {
        self.domain
    }
}

/// Receives, posted by one call: [`Qp::receive_list`](crate::Qp::receive_list),
/// [`Srq::receive_list`](crate::Srq::receive_list). As [`SendList`] otherwise.
pub struct RecvList<'a> {
    chain: Chain<ibv_recv_wr>,
    borrows: PhantomData<&'a ()>,
}

// SAFETY: as for SendList.
unsafe impl Send for RecvList<'_> {}

impl<'a> RecvList<'a> {
    /// An empty list, with room for `requests` of one SGE each; it grows when there are more.
    pub fn with_capacity(requests: usize) -> Self {
        Self { chain: Chain::with_capacity(requests), borrows: PhantomData }
    }

    /// Adds a receive at the end. Its SGEs are copied.
    #[inline]
    pub fn push(&mut self, request: RecvRequest<'_, 'a>) {
        // SAFETY: a request is made of a slice of SGEs that is borrowed as long as the request.
        let sges = unsafe { sges(request.raw.sg_list, request.raw.num_sge) };
        self.chain.push(request.raw, sges);
    }

    /// Takes all receives out.
    #[inline]
    pub fn clear(&mut self) {
        self.chain.clear();
    }

    /// Takes all receives out, and with them what the list borrows: its room can be used for receives into other
    /// memory.
    #[inline]
    pub fn recycled<'b>(mut self) -> RecvList<'b> {
        self.clear();
        RecvList { chain: self.chain, borrows: PhantomData }
    }

    /// The number of receives.
    #[inline]
    pub fn len(&self) -> usize {
        self.chain.requests.len()
    }

    /// Returns true if it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chain.requests.is_empty()
    }

    #[inline]
    pub(crate) fn first(&mut self) -> *mut ibv_recv_wr {
        self.chain.first()
    }

    pub(crate) fn place(&self, request: *const ibv_recv_wr) -> usize {
        self.chain.place(request)
    }
}

/// The SGEs of a request.
///
/// # Safety
/// `list` and `count` come from one slice, which is borrowed as long as the result.
#[inline]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    // SAFETY: handed on to the caller; a slice's pointer is never null.
    unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64) -> ibv_recv_wr {
        ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 }
    }

    /// The ids and the lengths of the SGEs, as the library would find them.
    fn walk(chain: &mut Chain<ibv_recv_wr>) -> Vec<(u64, Vec<u32>)> {
        let (mut at, mut found) = (chain.first(), vec![]);
        while !at.is_null() {
            // SAFETY: the chain was linked by `first`, and is borrowed.
            let wr = unsafe { &*at };
            // SAFETY: as above.
            let sges = unsafe { sges(wr.sg_list, wr.num_sge) };
            found.push((wr.wr_id, sges.iter().map(|s| s.length).collect()));
            at = wr.next;
        }
        found
    }

    fn push(chain: &mut Chain<ibv_recv_wr>, id: u64, lengths: &[u32]) {
        let sges: Vec<_> = lengths.iter().map(|&length| ibv_sge { length, ..Default::default() }).collect();
        chain.push(ibv_recv_wr { num_sge: sges.len().try_into().expect("few"), ..request(id) }, &sges);
    }

    #[test]
    fn a_chain_leads_through_its_requests_and_their_sges_also_after_growing() {
        let mut chain = Chain::<ibv_recv_wr>::with_capacity(1);
        assert!(chain.first().is_null());
        push(&mut chain, 1, &[10, 11]);
        assert_eq!(walk(&mut chain), [(1, vec![10, 11])]);
        for id in 2..40 {
            push(&mut chain, id, if id % 2 == 0 { &[] } else { &[7] });
        }
        let found = walk(&mut chain);
        assert_eq!(found.len(), 39);
        assert_eq!((&found[0], &found[1], &found[38]), (&(1, vec![10, 11]), &(2, vec![]), &(39, vec![7])));
        assert_eq!(walk(&mut chain), found);
        assert_eq!(chain.place(&chain.requests[5]), 5);
        assert_eq!(chain.place(ptr::null()), 0);
    }

    #[test]
    fn a_chain_that_was_emptied_begins_anew() {
        let mut chain = Chain::<ibv_recv_wr>::with_capacity(1);
        push(&mut chain, 1, &[10]);
        chain.first();
        chain.clear();
        assert!(chain.first().is_null());
        push(&mut chain, 2, &[20]);
        assert_eq!(walk(&mut chain), [(2, vec![20])]);
    }

    #[test]
    fn a_list_of_requests_for_different_domains_has_none() {
        let mut list = SendList::with_capacity(2);
        let plain = SendRequest::send(&[]);
        list.push(plain);
        assert!(list.domain().is_null());
        list.push(SendRequest { domain: ptr::without_provenance(8), ..plain });
        assert_eq!(list.domain(), MIXED);
        list.clear();
        list.push(plain);
        assert!(list.domain().is_null());
    }
}
