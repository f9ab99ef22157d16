//! The work request builders of an extended QP: `ibv_wr_post(3)`.
//!
//! A builder (`wr_send`, `wr_rdma_write`, …) begins a request and setters complete it, in any order; so a request is
//! handed to the device model when the next one begins or the batch is complete. Inline data is copied by its setter.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::{mem, slice};

use vervain_hca::{self as hca, Data, Flush, Opcode, SendRequest, Sge};

use crate::abi::*;
use crate::errno;
use crate::mw::type_2_bind;
use crate::object::failed;
use crate::ordered;
use crate::post::ud_dest;
use crate::qp::{QpState, qp_state};

/// The request being built. Touched only between `wr_start` and `wr_complete`, by the thread that holds the send queue.
pub(crate) struct Builder(UnsafeCell<Batch>);

struct Batch {
    /// The request, without its data, which is below.
    request: SendRequest<'static>,
    /// True if there is one.
    building: bool,
    data: DataKind,
    /// The only piece of data, if there is one; all pieces otherwise.
    sge: Sge,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    max_sge: usize,
    max_inline: usize,
    /// The first thing that went wrong: `wr_complete` reports it and posts nothing.
    error: c_int,
}

#[derive(Clone, Copy)]
enum DataKind {
    None,
    One,
    Sges,
    Inline,
}

impl Builder {
    /// A builder for a QP of that size; its memory is allocated here, once.
    pub(crate) fn new(cap: &ibv_qp_cap) -> Self {
        let (max_sge, max_inline) = (cap.max_send_sge as usize, cap.max_inline_data as usize);
        Builder(UnsafeCell::new(Batch {
            request: SendRequest::default(),
            building: false,
            data: DataKind::None,
            sge: Sge::default(),
            sges: Vec::with_capacity(max_sge),
            // An atomic write carries 8 bytes, however little inline data the QP takes.
            inline: Vec::with_capacity(max_inline.max(8)),
            max_sge,
            max_inline,
            error: 0,
        }))
    }
}

/// The QP's state and the batch being built on it.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> (&'a QpState, &'a mut Batch) {
    // SAFETY: the client's QP, between `wr_start` and `wr_complete`; the lock taken there makes this thread the only
    // user.
    unsafe {
        let state = qp_state(qp.cast());
        (state, &mut *state.builder.0.get())
    }
}

impl Batch {
    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }

    /// The data was copied by its setter.
    #[inline(always)]
    fn is_inline(&mut self) {
        self.data = DataKind::Inline;
        self.request.flags |= IBV_SEND_INLINE;
    }

    /// The data stays where it is.
    #[inline(always)]
    fn is_in_place(&mut self, data: DataKind) {
        self.data = data;
        self.request.flags &= !IBV_SEND_INLINE;
    }

    /// Hands the request built so far to the device model.
    #[inline(never)]
    fn flush(&mut self, state: &QpState) {
        if !mem::take(&mut self.building) || self.error != 0 {
            return;
        }
        // SAFETY: both vectors stay as they are until the request is handed over, and its data is taken out of it then.
        let (sges, inline): (&'static [Sge], &'static [u8]) = unsafe {
            (
                slice::from_raw_parts(self.sges.as_ptr(), self.sges.len()),
                slice::from_raw_parts(self.inline.as_ptr(), self.inline.len()),
            )
        };
        let one = [self.sge];
        let pushed = match self.data {
            DataKind::None => state.hca.wr_push(&self.request),
            DataKind::One => {
                // SAFETY: the array is on this stack, and the request's data is taken out of it below.
                self.request.data = Data::Sges(unsafe { slice::from_raw_parts(one.as_ptr(), 1) });
                state.hca.wr_push(&self.request)
            }
            DataKind::Sges => {
                self.request.data = Data::Sges(sges);
                state.hca.wr_push(&self.request)
            }
            DataKind::Inline => {
                let buffers = [inline];
                // SAFETY: as above; the array is on this stack.
                self.request.data = Data::Inline(unsafe { slice::from_raw_parts(buffers.as_ptr(), 1) });
                state.hca.wr_push(&self.request)
            }
        };
        self.request.data = Data::None;
        if let Err(e) = pushed {
            self.fail(failed(&e));
        }
    }
}

/// A batch of one request, which most are, so that it can be carried out without being kept.
impl hca::WorkRequest for Batch {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.request.wr_id
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        self.request.flags
    }

    #[inline(always)]
    fn data(&self) -> Sge {
        match self.data {
            DataKind::None | DataKind::Sges => Sge::default(),
            DataKind::One => self.sge,
            DataKind::Inline => Sge { addr: self.inline.as_ptr() as u64, length: self.inline.len() as u32, lkey: 0 },
        }
    }

    #[inline(always)]
    fn imm(&self) -> u32 {
        self.request.imm_or_rkey
    }

    #[inline(always)]
    fn remote(&self) -> (u64, u32) {
        (self.request.remote_addr, self.request.rkey)
    }

    #[inline(always)]
    fn atomic(&self) -> (u64, u32, u64, u64) {
        let r = &self.request;
        (r.remote_addr, r.rkey, r.compare_add, r.swap)
    }
}

/// Begins a request: hands over the one before and takes `wr_id` and `wr_flags`. Fields that the operation does not use
/// keep their old values; nothing reads them.
#[inline(always)]
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: Opcode) -> &'static mut SendRequest<'static> {
    // SAFETY: the client's QP, between `wr_start` and `wr_complete`.
    unsafe {
        let (state, batch) = batch(qp);
        if batch.building {
            batch.flush(state);
        }
        batch.data = DataKind::None;
        batch.building = true;
        let request = &mut batch.request;
        request.wr_id = (*qp).wr_id;
        request.opcode = opcode;
        // Inline is said by the setter, not by this flag.
        request.flags = (*qp).wr_flags & !IBV_SEND_INLINE;
        request.ud = None;
        request.bind = None;
        request
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the client's QP. The lock comes first: after it the batch is this thread's.
    unsafe {
        qp_state(qp.cast()).hca.wr_start();
        let (_, batch) = batch(qp);
        batch.building = false;
        batch.error = 0;
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the client's QP, after `wr_start`.
    unsafe {
        let (state, batch) = batch(qp);
        let one_piece = !matches!(batch.data, DataKind::Sges);
        if batch.building && batch.error == 0 && one_piece && state.hca.wr_complete_fast(batch.request.opcode, batch) {
            return 0;
        }
        batch.flush(state);
        if batch.error != 0 {
            let error = batch.error;
            state.hca.wr_abort();
            return errno::code(error);
        }
        match state.hca.wr_complete() {
            Ok(()) => 0,
            Err(e) => errno::code(e.errno()),
        }
    }
}

/// `wr_complete` in a program with ThreadSanitizer.
unsafe extern "C" fn wr_complete_in_order(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the client's QP, after `wr_start`.
    unsafe {
        ordered::before_batch(qp);
        wr_complete(qp)
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the client's QP, after `wr_start`.
    unsafe {
        let (state, batch) = batch(qp);
        batch.building = false;
        state.hca.wr_abort();
    }
}

/// Defines builders: each begins a request of an opcode and fills in its arguments.
macro_rules! builders {
    ($($name:ident($($arg:ident: $type:ty => $field:ident),*) $opcode:ident;)+) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: the client's QP, between `wr_start` and `wr_complete`.
            let _request = unsafe { begin(qp, Opcode::$opcode) };
            $(_request.$field = $arg;)*
        })+
    };
}

builders! {
    wr_send() Send;
    wr_send_imm(imm: u32 => imm_or_rkey) SendImm;
    wr_send_inv(invalidate: u32 => imm_or_rkey) SendInv;
    wr_rdma_write(rkey: u32 => rkey, addr: u64 => remote_addr) Write;
    wr_rdma_write_imm(rkey: u32 => rkey, addr: u64 => remote_addr, imm: u32 => imm_or_rkey) WriteImm;
    wr_rdma_read(rkey: u32 => rkey, addr: u64 => remote_addr) Read;
    wr_atomic_cmp_swp(rkey: u32 => rkey, addr: u64 => remote_addr, compare: u64 => compare_add, swap: u64 => swap)
        CompareSwap;
    wr_atomic_fetch_add(rkey: u32 => rkey, addr: u64 => remote_addr, add: u64 => compare_add) FetchAdd;
    wr_local_inv(invalidate: u32 => imm_or_rkey) LocalInv;
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the client's QP in a batch, its window and its bind.
    unsafe {
        let request = begin(qp, Opcode::BindMw);
        match type_2_bind(mw, rkey, &*info) {
            Ok(bind) => request.bind = Some(bind),
            Err(e) => batch(qp).1.fail(e.errno()),
        }
    }
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: the client's QP in a batch, and the 8 bytes to write.
    unsafe {
        let request = begin(qp, Opcode::AtomicWrite);
        (request.rkey, request.remote_addr) = (rkey, addr);
        let (_, batch) = batch(qp);
        batch.inline.clear();
        batch.inline.extend_from_slice(slice::from_raw_parts(value.cast(), 8));
        batch.is_inline();
    }
}

unsafe extern "C" fn wr_flush(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, length: usize, placement: u8, level: u8) {
    // SAFETY: the client's QP in a batch.
    unsafe {
        let request = begin(qp, Opcode::Flush);
        (request.rkey, request.remote_addr) = (rkey, addr);
        request.flush = Flush { placement: placement.into(), level: level.into(), length: length as u64 };
    }
}

/// There is no segmentation offload.
unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _hdr: *mut c_void, _hdr_sz: u16, _mss: u16) {
    // SAFETY: the client's QP in a batch.
    unsafe { batch(qp) }.1.fail(libc::EOPNOTSUPP);
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the client's QP in a batch, and its address handle.
    unsafe {
        let (_, batch) = batch(qp);
        match ud_dest(&ibv_send_wr_ud { ah, remote_qpn, remote_qkey }) {
            Ok(dest) => batch.request.ud = Some(dest),
            Err(e) => batch.fail(failed(&e)),
        }
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the client's QP in a batch.
    unsafe { batch(qp) }.1.request.srqn = remote_srqn;
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the client's QP in a batch.
    let (_, batch) = unsafe { batch(qp) };
    if batch.max_sge == 0 {
        return batch.fail(libc::EINVAL);
    }
    batch.sge = Sge { addr, length, lkey };
    batch.is_in_place(DataKind::One);
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the client's QP in a batch, and its list of `count` elements, which are laid out as `Sge` is.
    unsafe {
        let (_, batch) = batch(qp);
        if count > batch.max_sge {
            return batch.fail(libc::EINVAL);
        }
        if count == 1 {
            batch.sge = *list.cast();
            batch.is_in_place(DataKind::One);
            return;
        }
        batch.sges.clear();
        if count > 0 {
            batch.sges.extend_from_slice(slice::from_raw_parts(list.cast(), count));
        }
        batch.is_in_place(DataKind::Sges);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the client's QP in a batch, and its bytes.
    unsafe {
        let (_, batch) = batch(qp);
        if length > batch.max_inline {
            return batch.fail(libc::EINVAL);
        }
        batch.inline.clear();
        if length > 0 {
            batch.inline.extend_from_slice(slice::from_raw_parts(addr.cast(), length));
        }
        batch.is_inline();
    }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the client's QP in a batch, its list of `count` buffers, and their bytes.
    unsafe {
        let (_, batch) = batch(qp);
        batch.inline.clear();
        for i in 0..count {
            let buffer = &*list.add(i);
            if buffer.length > batch.max_inline - batch.inline.len() {
                return batch.fail(libc::EINVAL);
            }
            if buffer.length > 0 {
                batch.inline.extend_from_slice(slice::from_raw_parts(buffer.addr.cast(), buffer.length));
            }
        }
        batch.is_inline();
    }
}

/// Fills in the table, which clients call without a NULL check.
pub(crate) fn set_operations(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(if ordered::order().is_some() { wr_complete_in_order } else { wr_complete });
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
    qp.wr_flush = Some(wr_flush);
}
