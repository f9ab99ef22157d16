//! Memory windows: keys to a part of a region, that change faster than a registration; IBA volume 1, 10.6.6.2 and
//! 10.6.7.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::Arc;

use vervain_abi::*;

use crate::error::{Error, PostError, Result};
use crate::pd::{Access, Pd};
use crate::qp::Qp;
use crate::region::{Part, RemoteMemory};
use crate::transport::Transport;

/// The two kinds of windows; `enum ibv_mw_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Open to every QP of the domain; bound again without more ado, to nothing to close it. The device gives the key.
    One,
    /// Open to the peer of the QP that bound it only; 2A asks for that QP, 2B for its domain too. Closed by an
    /// invalidation, here
    /// ([`SendRequest::local_invalidate`](crate::SendRequest::local_invalidate)) or by the peer
    /// ([`SendRequest::send_invalidate`](crate::SendRequest::send_invalidate)), and bound again after that only. RC,
    /// UC.
    Two,
}

/// A memory window; `ibv_alloc_mw(3)`. Dropping it closes it.
pub struct Window {
    raw: *mut ibv_mw,
    pd: Pd,
    kind: WindowType,
    rkey: u32,
    bind: BindWindow,
    dealloc: unsafe extern "C" fn(*mut ibv_mw) -> c_int,
}

type BindWindow = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;

// SAFETY: the functions of libibverbs may be called from any thread; those that write to a window take it as `&mut`.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: allocated once, given back once; the library reads it while a bind is posted, which borrows it, and
        // the device knows it by its number.
        if unsafe { (self.dealloc)(self.raw) } != 0 {
            // It may still be open: what it shows stays for good.
            mem::forget(self.pd.clone());
        }
    }
}

impl Window {
    /// A window that shows nothing yet.
    ///
    /// # Errors
    /// EOPNOTSUPP: the device has none of this kind (see [`Capabilities`](crate::Capabilities)). ENOMEM.
    pub fn new(pd: &Pd, kind: WindowType) -> Result<Window> {
        let context = pd.context();
        let about = || format!("a memory window of type {kind:?} on {}", context.name());
        let ops = context.0.ops();
        let (Some(alloc), Some(bind), Some(dealloc)) = (ops.alloc_mw, ops.bind_mw, ops.dealloc_mw) else {
            return Err(Error::call("ibv_alloc_mw", about(), libc::EOPNOTSUPP));
        };
        let number = match kind {
            WindowType::One => IBV_MW_TYPE_1,
            WindowType::Two => IBV_MW_TYPE_2,
        };
        // SAFETY: an allocated domain, which the window keeps.
        let raw = unsafe { alloc(pd.0.raw, number) };
        if raw.is_null() {
            return Err(Error::last("ibv_alloc_mw", about()));
        }
        // SAFETY: the library's, made just now.
        let rkey = unsafe { (*raw).rkey };
        Ok(Window { raw, pd: pd.clone(), kind, rkey, bind, dealloc })
    }

    /// The key of the last bind that was posted, or the one that it was made with.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Which kind it is.
    pub fn kind(&self) -> WindowType {
        self.kind
    }
}

/// Parameters of a bind: the memory that a window shows, and the rights.
#[derive(Clone, Copy)]
pub struct BindRequest<'a> {
    part: Part<'a>,
    access: Access,
    id: u64,
    flags: u32,
}

impl<'a> BindRequest<'a> {
    /// Shows `part`, whose region needs [`WINDOW_BIND`](Access::WINDOW_BIND), with the remote rights of `access`. For
    /// writes and atomics the region needs [`LOCAL_WRITE`](Access::LOCAL_WRITE) too. A part of no bytes closes a window
    /// of type 1.
    pub fn new(part: Part<'a>, access: Access) -> Self {
        Self { part, access, id: 0, flags: 0 }
    }

    /// The number that the completion will carry; 0 unless set.
    pub fn id(mut self, id: u64) -> Self {
        self.id = id;
        self
    }

    /// With a completion also when it ends well; one that fails always has one.
    pub fn signaled(mut self) -> Self {
        self.flags |= IBV_SEND_SIGNALED;
        self
    }

    /// Waits until the Reads and atomics before it are done.
    pub fn fence(mut self) -> Self {
        self.flags |= IBV_SEND_FENCE;
        self
    }
}

impl Qp {
    /// Posts the bind of `window`, and returns the memory that a peer can access when it is done. Later requests on
    /// this QP wait for the bind, so a Send of the returned value may be posted at once. `ibv_bind_mw(3)` for type 1, a
    /// work request of `ibv_post_send(3)` for type 2. It borrows the window mutably, since libraries write the new key
    /// there; so binds are posted one by one, and never from two threads or lists.
    ///
    /// A key is the window's number and 8 bits that change with each bind: after 256 binds an old key is valid again.
    ///
    /// # Errors
    /// ENOMEM: the send queue is full. EINVAL: window, memory and QP are not of one domain; UD; the driver's checks.
    /// Else the completion has the status [`WindowBind`](crate::Status::WindowBind) or
    /// [`LocalProtection`](crate::Status::LocalProtection), and the window is as before.
    pub fn bind(&self, window: &mut Window, request: BindRequest<'_>) -> Result<RemoteMemory, PostError> {
        let (domain, part) = (Arc::as_ptr(&self.pd.0), request.part);
        if self.transport == Transport::Ud || Arc::as_ptr(&window.pd.0) != domain || part.domain != domain {
            return Err(PostError::misplaced("ibv_bind_mw"));
        }
        // The right of the device itself is the region's, and refused here.
        let access = request.access & !Access::LOCAL_WRITE;
        let bind_info =
            ibv_mw_bind_info { mr: part.mr, addr: part.addr, length: part.len, mw_access_flags: access.bits() };
        match window.kind {
            WindowType::One => {
                let mut bind = ibv_mw_bind { wr_id: request.id, send_flags: request.flags, bind_info };
                // SAFETY: a QP and a window of one domain that live as long as they are borrowed, as does the region;
                // the window is borrowed mutably.
                let rc = unsafe { (window.bind)(self.raw, window.raw, &mut bind) };
                if rc != 0 {
                    return Err(PostError::of("ibv_bind_mw", rc, 0));
                }
                // SAFETY: the window, whose key the call has set.
                window.rkey = unsafe { (*window.raw).rkey };
            }
            WindowType::Two => {
                let rkey = next_key(window.rkey);
                let bind_mw = ibv_send_wr_bind_mw { mw: window.raw, rkey, bind_info };
                let rdma = ibv_send_wr_rdma { remote_addr: 0, rkey: 0 };
                let mut raw = ibv_send_wr {
                    wr_id: request.id,
                    next: ptr::null_mut(),
                    sg_list: ptr::null_mut(),
                    num_sge: 0,
                    opcode: IBV_WR_BIND_MW,
                    send_flags: request.flags,
                    imm_data: 0,
                    wr: ibv_send_wr_target { rdma },
                    remote_srqn: 0,
                    tail: ibv_send_wr_tail { bind_mw },
                };
                let mut bad = ptr::null_mut();
                // SAFETY: as above; a request that ends the chain.
                let rc = unsafe { (self.post_send)(self.raw, &mut raw, &mut bad) };
                if rc != 0 {
                    return Err(PostError::of("ibv_post_send", rc, 0));
                }
                window.rkey = rkey;
            }
        }
        Ok(RemoteMemory { addr: part.addr, rkey: window.rkey, len: part.len })
    }
}

/// `ibv_inc_rkey(3)`: the low 8 bits are the program's.
fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_low_byte_of_a_key_changes() {
        assert_eq!(
            (next_key(0x1234_5600), next_key(0x1234_56ff), next_key(u32::MAX)),
            (0x1234_5601, 0x1234_5600, !0xff)
        );
    }
}
