//! `vervain_restore` (`vervain.h`): the objects of an image, made again with their numbers and keys.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::collections::HashMap;
use std::sync::Arc;

use vervain_hca::mr::saved::Over;
use vervain_hca::qp::saved::Parts;
use vervain_hca::qp::sq::saved::Restored;
use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::comp_channel::new_channel;
use crate::image::{self, Image, Index};
use crate::object::{Blank, errno_of, state};
use crate::opening::{Opening, opening};
use crate::save::{Direction, copy};
use crate::{comp_channel, cq, cq_ex, dm, mr, mw, pd, qp, srq, xrcd};

/// `enum vervain_object_kind`.
mod kind {
    pub const PD: u32 = 1;
    pub const DM: u32 = 2;
    pub const MR: u32 = 3;
    pub const MW: u32 = 4;
    pub const COMP_CHANNEL: u32 = 5;
    pub const CQ: u32 = 6;
    pub const XRCD: u32 = 7;
    pub const SRQ: u32 = 8;
    pub const QP: u32 = 9;
}

/// An object that was restored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct vervain_object {
    /// `enum vervain_object_kind`.
    pub kind: u32,
    /// Its `handle` when it was saved; the descriptor of a completion channel; 0 of an XRC domain.
    pub handle: u32,
    /// QP number, SRQ number of an XRC SRQ, or key; else 0.
    pub number: u32,
    /// 0.
    pub reserved: u32,
    /// `cq_context`, `srq_context` or `qp_context` when it was saved, which it has again.
    pub user_context: u64,
    /// `struct ibv_pd *` and so on.
    pub object: *mut c_void,
}

/// Gives the present address of memory of the image: `length` bytes that were at `addr`. NULL refuses.
type MemoryFn = unsafe extern "C" fn(user: *mut c_void, addr: u64, length: u64) -> *mut c_void;
type RestoredFn = unsafe extern "C" fn(user: *mut c_void, object: *const vervain_object);

/// How an image is restored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct vervain_restore_attr {
    /// Attributes beyond these; there are none.
    pub comp_mask: u32,
    /// 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user: *mut c_void,
    /// NULL: memory is where it was.
    pub memory: Option<MemoryFn>,
    /// Called for each object after all of them exist; NULL: not called.
    pub restored: Option<RestoredFn>,
}

/// Makes the objects of an image in a context.
pub unsafe extern "C" fn vervain_restore(
    context: *mut ibv_context,
    fd: c_int,
    attr: *const vervain_restore_attr,
) -> c_int {
    errno_of(|| {
        if context.is_null() {
            return Err(Error::invalid("vervain_restore needs a context"));
        }
        let nothing =
            vervain_restore_attr { comp_mask: 0, reserved: 0, user: ptr::null_mut(), memory: None, restored: None };
        // SAFETY: NULL or the client's struct.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or(nothing);
        if attr.comp_mask != 0 || attr.reserved != 0 {
            return Err(Error::invalid("vervain_restore knows no such attributes"));
        }
        let (image, mut kept) = image::read(fd)?;
        // SAFETY: the client's context.
        let opening = unsafe { opening(context) };
        // The context that was saved may be the one that it is restored in, and stand still since.
        let is_mine = match opening.hca.stop(None) {
            Err(e) if e.errno() == libc::EALREADY => false,
            stopped => stopped.map(|()| true)?,
        };
        let mut objects = Objects::new(context, opening, &attr);
        let made = objects.make(&image, &mut kept).and_then(|()| opening.hca.take_the_place(&image.process));
        if let Err(e) = made {
            objects.unmake();
            if is_mine {
                opening.hca.unmark_saved();
                let _ = opening.hca.go();
            }
            return Err(e);
        }
        objects.tell(&image);
        Ok(())
    })
}

/// The objects of an image so far, each kind in the order of the image.
struct Objects<'a> {
    context: *mut ibv_context,
    opening: &'a Opening,
    attr: &'a vervain_restore_attr,
    /// Memory of the image: its address then, its length, its address now.
    memory: Vec<(u64, u64, u64)>,
    pds: Vec<*mut ibv_pd>,
    dms: Vec<*mut ibv_dm>,
    mrs: Vec<*mut ibv_mr>,
    mws: Vec<*mut ibv_mw>,
    channels: Vec<*mut ibv_comp_channel>,
    cqs: Vec<*mut ibv_cq_ex>,
    xrcds: Vec<*mut ibv_xrcd>,
    srqs: Vec<*mut ibv_srq>,
    qps: Vec<*mut ibv_qp>,
    regions: HashMap<u32, Arc<hca::Mr>>,
    windows: HashMap<u32, Arc<hca::Mw>>,
}

impl Restored for Objects<'_> {
    fn window(&self, index: u32) -> Option<&Arc<hca::Mw>> {
        self.windows.get(&index)
    }

    fn region(&self, key: u32) -> Option<&Arc<hca::Mr>> {
        self.regions.get(&key)
    }
}

/// The object that `index` refers to.
fn earlier<T: Copy>(objects: &[T], index: Index) -> Result<T, Error> {
    let missing = || Error::new(libc::EBADMSG, "the image is damaged: an object refers to one that is not there");
    objects.get(index as usize).copied().ok_or_else(missing)
}

/// [`earlier`] of what there may be none of.
fn perhaps<T>(objects: &[*mut T], index: Option<Index>) -> Result<*mut T, Error> {
    index.map_or(Ok(ptr::null_mut()), |index| earlier(objects, index))
}

/// The pointer that a client had stored in `cq_context` and the like.
fn user_context(value: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(value as usize)
}

impl<'a> Objects<'a> {
    fn new(context: *mut ibv_context, opening: &'a Opening, attr: &'a vervain_restore_attr) -> Self {
        Objects {
            context,
            opening,
            attr,
            memory: Vec::new(),
            pds: Vec::new(),
            dms: Vec::new(),
            mrs: Vec::new(),
            mws: Vec::new(),
            channels: Vec::new(),
            cqs: Vec::new(),
            xrcds: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            regions: HashMap::new(),
            windows: HashMap::new(),
        }
    }

    fn make(&mut self, image: &Image, kept: &mut [u8]) -> Result<(), Error> {
        self.opening.hca.claim_slots_again(&image.process)?;
        for pd in &image.pds {
            self.make_pd(pd)?;
        }
        self.find_memory(image, kept)?;
        for dm in &image.dms {
            let hca = hca::Dm::restore(&self.opening.hca, &dm.saved)?;
            // SAFETY: the client's context.
            self.dms.push(unsafe { dm::new_dm(self.context, hca) });
        }
        image.mrs.iter().try_for_each(|mr| self.make_mr(mr))?;
        image.mws.iter().try_for_each(|mw| self.make_mw(mw))?;
        for _ in &image.channels {
            let hca = hca::CompChannel::create(&self.opening.hca)?;
            // SAFETY: the client's context.
            self.channels.push(unsafe { new_channel(self.context, hca) });
        }
        image.cqs.iter().try_for_each(|cq| self.make_cq(cq))?;
        for id in &image.xrcds {
            let hca = hca::Xrcd::restore(&self.opening.hca, *id)?;
            // SAFETY: the client's context.
            self.xrcds.push(unsafe { xrcd::new_xrcd(self.context, hca) });
        }
        image.srqs.iter().try_for_each(|srq| self.make_srq(srq))?;
        image.qps.iter().try_for_each(|qp| self.make_qp(qp))?;
        for event in image.channels.iter().flat_map(|channel| &channel.events) {
            let cq = earlier(&self.cqs, *event)?;
            // SAFETY: made above.
            unsafe { state(cq) }.hca.raise_event();
        }
        Ok(())
    }

    fn make_pd(&mut self, saved: &image::Pd) -> Result<(), Error> {
        let parent_of = saved.parent_of.map(|index| earlier(&self.pds, index)).transpose()?;
        // SAFETY: the client's context, and a PD made here.
        let pd = unsafe {
            match parent_of {
                Some(of) => pd::new_parent_domain(self.context, of, ptr::null_mut())?,
                None => pd::new_pd(self.context, self.opening.hca.alloc_pd()?, None),
            }
        };
        self.pds.push(pd);
        Ok(())
    }

    /// Asks the program where the memory of the image is, and puts there what was kept of it.
    fn find_memory(&mut self, image: &Image, mut kept: &mut [u8]) -> Result<(), Error> {
        for memory in &image.memory {
            let &image::Memory { addr, length, .. } = memory;
            if addr.checked_add(length).is_none() {
                return Err(Error::invalid("the image has memory that wraps around the address space"));
            }
            let at = match self.attr.memory {
                None => addr,
                // SAFETY: the client's function, with what it asked to be given.
                Some(find) => unsafe { find(self.attr.user, addr, length) }.addr() as u64,
            };
            if at == 0 || at.checked_add(length).is_none() {
                let why = format!("the program has no memory for {length} bytes that were at {addr:#x}");
                return Err(Error::new(libc::ENOMEM, why));
            }
            // All of it is there ([`image::read`]).
            if memory.kept
                && let Some(bytes) = kept.split_off_mut(..length as usize)
            {
                copy(at, bytes, Direction::To)?;
            }
            self.memory.push((addr, length, at));
        }
        Ok(())
    }

    /// The present address of memory of the image.
    fn place(&self, addr: u64, length: u64) -> Result<u64, Error> {
        let inside = |&&(start, all, _): &&(u64, u64, u64)| {
            addr.checked_sub(start).is_some_and(|offset| offset <= all && length <= all - offset)
        };
        match self.memory.iter().find(inside) {
            Some((start, _, at)) => Ok(at + (addr - start)),
            None if length == 0 => Ok(addr),
            None => Err(Error::invalid("a region of the image lies outside of its memory")),
        }
    }

    fn make_mr(&mut self, saved: &image::Mr) -> Result<(), Error> {
        let pd = earlier(&self.pds, saved.pd)?;
        let dm = perhaps(&self.dms, saved.dm)?;
        // SAFETY: objects made here.
        let dm = (!dm.is_null()).then(|| unsafe { &state(dm).hca });
        let record = &saved.saved;
        let addr = if record.over == Over::Memory { self.place(record.addr, record.length)? } else { 0 };
        // SAFETY: a PD made here.
        let hca = hca::Mr::restore(unsafe { pd::hca_pd(pd) }?, record, addr, dm)?;
        let length = if record.over == Over::Nothing { 0 } else { record.length as usize };
        self.regions.insert(record.key, Arc::clone(&hca));
        // SAFETY: as above.
        self.mrs.push(unsafe { mr::new_mr(pd, user_context(addr), length, hca) });
        Ok(())
    }

    fn make_mw(&mut self, saved: &image::Mw) -> Result<(), Error> {
        let pd = earlier(&self.pds, saved.pd)?;
        let mr = saved.saved.binding.and_then(|binding| self.regions.get(&binding.mr));
        // SAFETY: a PD made here.
        let hca = hca::Mw::restore(unsafe { pd::hca_pd(pd) }?, &saved.saved, mr)?;
        self.windows.insert(saved.saved.key >> 8, Arc::clone(&hca));
        // SAFETY: as above.
        self.mws.push(unsafe { mw::new_mw(pd, hca) });
        Ok(())
    }

    fn make_cq(&mut self, saved: &image::Cq) -> Result<(), Error> {
        let channel = perhaps(&self.channels, saved.channel)?;
        let blank = Blank::<ibv_cq_ex>::new();
        // SAFETY: a channel made here.
        let hca_channel = (!channel.is_null()).then(|| unsafe { &state(channel).hca });
        let hca = hca::Cq::restore(&self.opening.hca, hca_channel, 0, blank.cookie(), &saved.saved)?;
        // SAFETY: the client's context, and a channel made here.
        let cq = unsafe { cq::fill(blank, self.context, channel, user_context(saved.cq_context), hca) };
        if saved.extended {
            // SAFETY: made just now.
            cq_ex::set_operations(unsafe { &mut *cq });
        }
        self.cqs.push(cq);
        Ok(())
    }

    fn make_srq(&mut self, saved: &image::Srq) -> Result<(), Error> {
        let pd = earlier(&self.pds, saved.pd)?;
        let xrc = saved.xrc.map(|(xrcd, cq)| Ok::<_, Error>((earlier(&self.xrcds, xrcd)?, earlier(&self.cqs, cq)?)));
        // SAFETY: objects made here.
        let xrc = xrc.transpose()?.map(|(xrcd, cq)| unsafe { (&state(xrcd).hca, &state(cq).hca) });
        let blank = Blank::<ibv_srq>::new();
        // SAFETY: a PD made here.
        let hca_pd = unsafe { pd::hca_pd(pd) }?;
        let hca = hca::Srq::restore(&self.opening.hca, hca_pd, xrc, blank.cookie(), &saved.saved)?;
        // SAFETY: as above.
        self.srqs.push(unsafe { srq::fill(blank, pd, user_context(saved.srq_context), hca) });
        Ok(())
    }

    fn make_qp(&mut self, saved: &image::Qp) -> Result<(), Error> {
        let pd = perhaps(&self.pds, saved.pd)?;
        let (send_cq, recv_cq) = (perhaps(&self.cqs, saved.send_cq)?, perhaps(&self.cqs, saved.recv_cq)?);
        let (srq, xrcd) = (perhaps(&self.srqs, saved.srq)?, perhaps(&self.xrcds, saved.xrcd)?);
        let blank = Blank::<ibv_qp_ex>::new();
        let record = &saved.saved;
        // SAFETY: objects made here.
        let hca = unsafe {
            let parts = Parts {
                pd: if pd.is_null() { None } else { Some(pd::hca_pd(pd)?) },
                send_cq: cq::hca_cq(send_cq.cast()),
                recv_cq: cq::hca_cq(recv_cq.cast()),
                srq: srq::hca_srq(srq),
                xrcd: if xrcd.is_null() { None } else { Some(&state(xrcd).hca) },
                cookie: blank.cookie(),
            };
            match parts.xrcd {
                Some(xrcd) if saved.opened && record.qp_type == hca::QpType::XrcRecv => {
                    hca::Qp::open(&self.opening.hca, xrcd, record.number)?
                }
                _ => record.restore(&self.opening.hca, &parts, self)?,
            }
        };
        let init = ibv_qp_init_attr {
            qp_context: user_context(saved.qp_context),
            send_cq: send_cq.cast(),
            recv_cq: recv_cq.cast(),
            srq,
            cap: qp::cap_to_c(&hca.cap()),
            qp_type: record.qp_type.to_verbs(),
            sq_sig_all: c_int::from(record.sq_sig_all),
        };
        // SAFETY: the client's context, and objects made here.
        self.qps.push(unsafe { qp::fill(blank, self.context, pd, &init, hca, saved.extended) });
        Ok(())
    }

    /// Destroys all, the last one first.
    fn unmake(&mut self) {
        // SAFETY: the objects were made here, and no other thread knows them.
        unsafe {
            self.qps.drain(..).rev().for_each(|qp| {
                qp::hca_qp(qp).leave_groups();
                let _ = qp::ibv_destroy_qp(qp);
            });
            self.srqs.drain(..).rev().for_each(|srq| _ = srq::ibv_destroy_srq(srq));
            self.xrcds.drain(..).rev().for_each(|xrcd| _ = xrcd::close_xrcd(xrcd));
            self.cqs.drain(..).rev().for_each(|cq| _ = cq::ibv_destroy_cq(cq.cast()));
            self.channels.drain(..).rev().for_each(|channel| _ = comp_channel::ibv_destroy_comp_channel(channel));
            self.windows.clear();
            self.mws.drain(..).rev().for_each(|mw| _ = mw::dealloc_mw(mw));
            self.regions.clear();
            self.mrs.drain(..).rev().for_each(|mr| _ = mr::ibv_dereg_mr(mr));
            self.dms.drain(..).rev().for_each(|dm| _ = dm::free_dm(dm));
            self.pds.drain(..).rev().for_each(|pd| _ = pd::ibv_dealloc_pd(pd));
        }
    }

    /// Names all to the program.
    fn tell(&self, image: &Image) {
        let Some(restored) = self.attr.restored else { return };
        let tell = |kind, handle, number, user_context, object: *mut c_void| {
            let object = vervain_object { kind, handle, number, reserved: 0, user_context, object };
            // SAFETY: the client's function.
            unsafe { restored(self.attr.user, &raw const object) };
        };
        for (saved, pd) in image.pds.iter().zip(&self.pds) {
            tell(kind::PD, saved.handle, 0, 0, pd.cast());
        }
        for (saved, dm) in image.dms.iter().zip(&self.dms) {
            tell(kind::DM, saved.handle, 0, 0, dm.cast());
        }
        for (saved, mr) in image.mrs.iter().zip(&self.mrs) {
            tell(kind::MR, saved.handle, saved.saved.key, 0, mr.cast());
        }
        for (saved, mw) in image.mws.iter().zip(&self.mws) {
            tell(kind::MW, saved.handle, saved.saved.key, 0, mw.cast());
        }
        for (saved, channel) in image.channels.iter().zip(&self.channels) {
            tell(kind::COMP_CHANNEL, saved.fd, 0, 0, channel.cast());
        }
        for (saved, cq) in image.cqs.iter().zip(&self.cqs) {
            tell(kind::CQ, saved.handle, 0, saved.cq_context, cq.cast());
        }
        for xrcd in &self.xrcds {
            tell(kind::XRCD, 0, 0, 0, xrcd.cast());
        }
        for (saved, srq) in image.srqs.iter().zip(&self.srqs) {
            tell(kind::SRQ, saved.handle, saved.saved.number, saved.srq_context, srq.cast());
        }
        for (saved, qp) in image.qps.iter().zip(&self.qps) {
            tell(kind::QP, saved.handle, saved.saved.number, saved.qp_context, qp.cast());
        }
    }
}

#[cfg(test)]
mod hostile;
