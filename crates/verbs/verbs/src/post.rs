//! Posting: `ibv_post_send(3)` and `ibv_post_recv(3)`. This is the hot path: no allocation, and one pass over the
//! chain.

use core::ffi::c_int;
use core::slice;

use vervain_hca::{self as hca, Data, Error, Opcode, SendRequest, Sge, UdDest};

use crate::abi::*;
use crate::errno;
use crate::mw::type_2_bind;
use crate::object::{failed, state};
use crate::qp::hca_qp;

// `sges` below reads the client's elements as the device model's.
const _: () = {
    assert!(size_of::<ibv_sge>() == size_of::<Sge>() && align_of::<ibv_sge>() == align_of::<Sge>());
    assert!(core::mem::offset_of!(ibv_sge, length) == core::mem::offset_of!(Sge, length));
    assert!(core::mem::offset_of!(ibv_sge, lkey) == core::mem::offset_of!(Sge, lkey));
};

/// Posts a chain of sends. The first that cannot be posted goes to `bad_wr`; those before it stay posted.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the client's QP, its chain of requests and what they name.
    unsafe {
        let mut next = wr;
        let is_ud = (*qp).qp_type == IBV_QPT_UD;
        let posted = hca_qp(qp).post_send(|poster| {
            while let Some(wr) = next.as_ref() {
                if !fast(poster, wr) {
                    push(poster, wr, is_ud)?;
                }
                next = wr.next;
            }
            Ok(())
        });
        match posted {
            Ok(()) => 0,
            Err(e) => refuse(e, next, bad_wr),
        }
    }
}

/// A C work request with at most one piece of data.
struct Posted<'a>(&'a ibv_send_wr);

impl hca::WorkRequest for Posted<'_> {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        self.0.send_flags
    }

    #[inline(always)]
    fn data(&self) -> Sge {
        if self.0.num_sge == 0 {
            return Sge { addr: 0, length: 0, lkey: 0 };
        }
        // SAFETY: the client's list, which has an element; laid out as asserted above.
        unsafe { *self.0.sg_list.cast::<Sge>() }
    }

    #[inline(always)]
    fn imm(&self) -> u32 {
        self.0.imm_data
    }

    #[inline(always)]
    fn remote(&self) -> (u64, u32) {
        // SAFETY: asked for reads and writes only.
        let rdma = unsafe { &self.0.wr.rdma };
        (rdma.remote_addr, rdma.rkey)
    }

    #[inline(always)]
    fn atomic(&self) -> (u64, u32, u64, u64) {
        // SAFETY: asked for atomics only.
        let atomic = unsafe { &self.0.wr.atomic };
        (atomic.remote_addr, atomic.rkey, atomic.compare_add, atomic.swap)
    }
}

/// Carries out a request with one piece of data at once, if the device model can; most can.
#[inline(always)]
fn fast(poster: &mut hca::Poster<'_>, wr: &ibv_send_wr) -> bool {
    if wr.num_sge != 0 && (wr.num_sge != 1 || wr.sg_list.is_null()) {
        return fast_pieces(poster, wr);
    }
    if wr.opcode == IBV_WR_RDMA_WRITE {
        return poster.fast_write(&Posted(wr));
    }
    fast_other(poster, wr)
}

/// [`fast`] for what is not a Write, out of the way of Writes.
#[inline(never)]
fn fast_other(poster: &mut hca::Poster<'_>, wr: &ibv_send_wr) -> bool {
    Opcode::from_verbs(wr.opcode).is_some_and(|opcode| poster.fast_other(opcode, &Posted(wr)))
}

/// The most inline bytes that are gathered from several pieces for that.
const GATHERED: usize = 256;

/// [`fast`] for inline data in several pieces, such as UCX's headers and what follows them.
#[inline(never)]
fn fast_pieces(poster: &mut hca::Poster<'_>, wr: &ibv_send_wr) -> bool {
    let Some(opcode) = Opcode::from_verbs(wr.opcode).filter(|_| wr.send_flags & IBV_SEND_INLINE != 0) else {
        return false;
    };
    // SAFETY: the client's list of `num_sge` elements.
    let Ok(pieces) = (unsafe { sges(wr.sg_list, wr.num_sge) }) else { return false };
    if pieces.len() > poster.max_send_sge() as usize {
        return false;
    }
    let mut bytes = [0_u8; GATHERED];
    let mut length = 0;
    for piece in pieces {
        let Some(room) = bytes.get_mut(length..length + piece.length as usize) else { return false };
        // SAFETY: the program vouches for inline data as for any buffer that it passes to a C function
        // (`man ibv_post_send`, IBV_SEND_INLINE); the room is ours.
        unsafe { core::ptr::copy_nonoverlapping(piece.addr as *const u8, room.as_mut_ptr(), room.len()) };
        length += room.len();
    }
    let data = Sge { addr: bytes.as_ptr() as u64, length: length as u32, lkey: 0 };
    poster.fast(opcode, &Gathered(Posted(wr), data))
}

/// A C work request whose data was gathered.
struct Gathered<'a>(Posted<'a>, Sge);

impl hca::WorkRequest for Gathered<'_> {
    fn wr_id(&self) -> u64 {
        self.0.wr_id()
    }

    fn flags(&self) -> u32 {
        self.0.flags()
    }

    fn data(&self) -> Sge {
        self.1
    }

    fn imm(&self) -> u32 {
        self.0.imm()
    }

    fn remote(&self) -> (u64, u32) {
        self.0.remote()
    }

    fn atomic(&self) -> (u64, u32, u64, u64) {
        self.0.atomic()
    }
}

/// Translates one request and pushes it.
#[inline(never)]
unsafe fn push(poster: &mut hca::Poster<'_>, wr: &ibv_send_wr, is_ud: bool) -> Result<(), Error> {
    let opcode = Opcode::from_verbs(wr.opcode).ok_or_else(|| unknown_opcode(wr.opcode))?;
    // SAFETY: the client's request: `sg_list` has `num_sge` elements, and the unions hold what opcode and QP type say.
    unsafe {
        let mut request = SendRequest {
            wr_id: wr.wr_id,
            opcode,
            flags: wr.send_flags,
            imm_or_rkey: wr.imm_data,
            data: Data::Sges(sges(wr.sg_list, wr.num_sge)?),
            ..Default::default()
        };
        if is_ud {
            request.ud = Some(ud_dest(&wr.wr.ud)?);
        } else {
            match opcode {
                Opcode::CompareSwap | Opcode::FetchAdd => {
                    let atomic = wr.wr.atomic;
                    (request.remote_addr, request.rkey) = (atomic.remote_addr, atomic.rkey);
                    (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
                }
                Opcode::BindMw => {
                    let bind = &wr.tail.bind_mw;
                    request.bind = Some(type_2_bind(bind.mw, bind.rkey, &bind.bind_info)?);
                }
                _ => (request.remote_addr, request.rkey) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
            }
            request.srqn = wr.remote_srqn;
        }
        // With IBV_SEND_INLINE the device model copies the bytes before `push` returns.
        poster.push(&request)
    }
}

#[cold]
fn unknown_opcode(opcode: u32) -> Error {
    match opcode {
        IBV_WR_TSO => Error::unsupported("there is no segmentation offload"),
        _ => Error::invalid(format!("send opcode {opcode}")),
    }
}

/// The destination of a UD message.
pub(crate) unsafe fn ud_dest<'a>(ud: &ibv_send_wr_ud) -> Result<UdDest<'a>, Error> {
    if ud.ah.is_null() {
        return Err(Error::invalid("a UD send without an address handle"));
    }
    // SAFETY: the client's address handle.
    let ah = unsafe { &state(ud.ah).hca };
    Ok(UdDest { ah, qpn: ud.remote_qpn, qkey: ud.remote_qkey })
}

/// A client's SGE list.
#[inline]
unsafe fn sges<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [Sge], Error> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the client's list of `count` elements, laid out as asserted above.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts(list.cast(), count) }),
        _ => Err(Error::invalid("an SGE list of negative length or at NULL")),
    }
}

/// Posts a chain of receives on a QP.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the client's QP and chain.
    unsafe {
        let qp = hca_qp(qp);
        post_chain(wr, bad_wr, |wr_id, sges| qp.post_recv(wr_id, sges))
    }
}

/// Posts each receive of a chain; the first that cannot be posted goes to `bad_wr`.
pub(crate) unsafe fn post_chain(
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> Result<(), Error>,
) -> c_int {
    let mut next = wr;
    // SAFETY: the client's chain, each with a list of `num_sge` elements.
    unsafe {
        while let Some(wr) = next.as_ref() {
            if let Err(e) = sges(wr.sg_list, wr.num_sge).and_then(|sges| post(wr.wr_id, sges)) {
                return refuse(e, next, bad_wr);
            }
            next = wr.next;
        }
    }
    0
}

/// Reports the request that could not be posted.
#[cold]
unsafe fn refuse<T>(e: Error, wr: *mut T, bad_wr: *mut *mut T) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: the client's pointer, to be set.
        unsafe { *bad_wr = wr };
    }
    errno::code(failed(&e))
}
