//! `vervain_save` (`vervain.h`): an image of a context that stands still.

use core::ffi::c_int;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use vervain_hca::mr::saved::Over;
use vervain_hca::mr::transfer::{self, Pieces};
use vervain_hca::qp::saved::SavedQp;
use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::image::{self, Image, Index};
use crate::object::{errno_of, state};
use crate::opening::{Opening, opening};

/// The bytes of registered memory go into the image.
const WITH_MEMORY: u32 = 1;

/// How a context is saved.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct vervain_save_attr {
    /// Attributes beyond these; there are none.
    pub comp_mask: u32,
    /// `VERVAIN_SAVE_MEMORY`.
    pub flags: u32,
    /// Seconds that peers wait for the process when it has ended; 0 for 600.
    pub suspense_s: u32,
    /// 0.
    pub reserved: u32,
}

/// Saves a context.
pub unsafe extern "C" fn vervain_save(context: *mut ibv_context, fd: c_int, attr: *const vervain_save_attr) -> c_int {
    errno_of(|| {
        if context.is_null() {
            return Err(Error::invalid("vervain_save needs a context"));
        }
        // SAFETY: NULL or the client's struct.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if attr.comp_mask != 0 || attr.flags & !WITH_MEMORY != 0 || attr.reserved != 0 {
            return Err(Error::invalid("vervain_save knows no such attributes or flags"));
        }
        image::check_file(fd)?;
        if vervain_link::gsi::slot() != 0 {
            return Err(Error::unsupported(
                "what librdmacm knows of the connections of this process is in no image; `vervain checkpoint` saves it, with the process",
            ));
        }
        // SAFETY: the client's context.
        let opening = unsafe { opening(context) };
        if !opening.hca.is_stopped() {
            return Err(Error::busy("the context is not stopped (vervain_stop)"));
        }
        // SAFETY: the client's objects stay during the call.
        let mut image = unsafe { collect(opening) }?;
        let bytes = if attr.flags & WITH_MEMORY != 0 { keep(&mut image)? } else { Vec::new() };
        // A mark that an earlier image has set stays if this one fails: that image is still good.
        let was_saved = opening.hca.is_saved();
        // Last, for peers wait from now on.
        image.process = opening.hca.mark_saved(attr.suspense_s)?;
        let written = image::write(fd, &image, &bytes);
        if written.is_err() && !was_saved {
            opening.hca.unmark_saved();
        }
        written
    })
}

/// The places in the image of the objects of one kind.
struct Places<K>(HashMap<K, Index>);

impl<K: Hash + Eq> Places<K> {
    fn of(keys: impl IntoIterator<Item = K>) -> Self {
        Places(keys.into_iter().zip(0..).collect())
    }

    /// The place of an object of this context; an error for an object of another one.
    fn find(&self, key: &K, what: &str) -> Result<Index, Error> {
        let other =
            || Error::new(libc::ENOTSUP, format!("{what} belongs to another context, and is not saved with this one"));
        self.0.get(key).copied().ok_or_else(other)
    }
}

/// The address of an object of the device model, by which the image tells it from others.
fn identity<T>(object: &Arc<T>) -> usize {
    Arc::as_ptr(object).addr()
}

/// All objects of a context, in the order in which they are made again.
unsafe fn collect(opening: &Opening) -> Result<Image, Error> {
    // SAFETY: the objects in a registry are there while it is locked, which it is while they are looked at.
    unsafe {
        // CQs first, for what they hold is not in receive queues any more.
        let cq_states = opening.cqs.each(|_, cq| Ok((identity(&state(cq).hca), state(cq).hca.save())))?;
        let cq_places = Places::of(cq_states.iter().map(|(identity, _)| *identity));
        let mut saved_cqs = cq_states.into_iter().map(|(_, saved)| saved);
        let channel_places = Places::of(opening.channels.each(|_, channel| Ok(channel))?);
        let cqs = opening.cqs.each(|handle, cq| {
            let base = &(*cq).base;
            let channel = base.channel;
            let channel =
                (!channel.is_null()).then(|| channel_places.find(&channel, "a completion channel")).transpose()?;
            let saved =
                saved_cqs.next().ok_or_else(|| Error::busy("completion queues are made while they are saved"))?;
            let (cq_context, extended) = (base.cq_context.addr() as u64, (*cq).start_poll.is_some());
            Ok(image::Cq { handle, cq_context, channel, extended, saved })
        })?;
        let channels = opening.channels.each(|_, channel| {
            let unread = state(channel).hca.unread()?;
            let events = unread.iter().filter_map(|cq| cq_places.find(&identity(cq), "").ok()).collect();
            Ok(image::Channel { fd: (*channel).fd as u32, events })
        })?;

        let pd_places = Places::of(opening.pds.each(|handle, _| Ok(handle))?);
        let pds = opening.pds.each(|handle, pd| {
            let parent_of = state(pd).parts.as_ref().map(|parts| pd_places.find(&parts.of, "a PD")).transpose()?;
            Ok(image::Pd { handle, parent_of })
        })?;
        let pd_of = |pd: *mut ibv_pd| pd_places.find(&(*pd).handle, "a PD");
        let dm_places = Places::of(opening.dms.each(|_, dm| Ok(identity(&state(dm).hca)))?);
        let dms = opening.dms.each(|handle, dm| Ok(image::Dm { handle, saved: state(dm).hca.save()? }))?;
        let mrs = opening.mrs.each(|handle, mr| {
            let hca = &state(mr).hca;
            let dm = hca.dm().map(|dm| dm_places.find(&identity(dm), "device memory")).transpose()?;
            Ok(image::Mr { handle, pd: pd_of((*mr).pd)?, dm, saved: hca.save() })
        })?;
        let mws = opening
            .mws
            .each(|handle, mw| Ok(image::Mw { handle, pd: pd_of((*mw).pd)?, saved: state(mw).hca.save() }))?;
        let xrcds = opening.xrcds.each(|_, xrcd| Ok(state(xrcd).hca.id()))?;
        let xrcd_places = Places::of(xrcds.iter().copied());
        let cq_of = |cq: &Arc<hca::Cq>| cq_places.find(&identity(cq), "a completion queue");
        let srq_places = Places::of(opening.srqs.each(|_, srq| Ok(identity(&state(srq).hca)))?);
        let srqs = opening.srqs.each(|handle, srq| {
            let hca = &state(srq).hca;
            let xrc = hca
                .xrc()
                .map(|(xrcd, cq)| Ok::<_, Error>((xrcd_places.find(&xrcd.id(), "an XRC domain")?, cq_of(cq)?)));
            let (srq_context, pd) = ((*srq).srq_context.addr() as u64, pd_of((*srq).pd)?);
            Ok(image::Srq { handle, srq_context, pd, xrc: xrc.transpose()?, saved: hca.save() })
        })?;
        let mut known = HashSet::new();
        let qps = opening.qps.each(|handle, qp| {
            let (base, state) = (&(*qp).qp_base, state(qp));
            let hca = &state.hca;
            if !hca.is_of(&opening.hca) {
                let why = format!("QP {:#x} belongs to another context, and is not saved with this one", hca.qp_num());
                return Err(Error::new(libc::ENOTSUP, why));
            }
            Ok(image::Qp {
                handle,
                qp_context: base.qp_context.addr() as u64,
                pd: (!base.pd.is_null()).then(|| pd_of(base.pd)).transpose()?,
                send_cq: hca.send_cq().map(&cq_of).transpose()?,
                recv_cq: hca.recv_cq().map(&cq_of).transpose()?,
                srq: hca.srq().map(|srq| srq_places.find(&identity(srq), "an SRQ")).transpose()?,
                xrcd: hca.xrcd().map(|xrcd| xrcd_places.find(&xrcd.id(), "an XRC domain")).transpose()?,
                extended: state.extended,
                opened: !known.insert(hca.qp_num()),
                saved: SavedQp::of(hca)?,
            })
        })?;
        let device = opening.hca.device().name().to_owned();
        let memory = ranges(&mrs);
        let process = hca::process::SavedProcess::default();
        Ok(Image { process, device, pds, memory, dms, mrs, mws, channels, cqs, xrcds, srqs, qps })
    }
}

/// The memory that regions lie in, in whole pieces.
fn ranges(mrs: &[image::Mr]) -> Vec<image::Memory> {
    let in_memory = |mr: &&image::Mr| mr.saved.over == Over::Memory && mr.saved.length != 0;
    let mut all: Vec<_> = mrs.iter().filter(in_memory).map(|mr| (mr.saved.addr, mr.saved.length)).collect();
    all.sort_unstable();
    let mut whole: Vec<image::Memory> = Vec::new();
    for (addr, length) in all {
        match whole.last_mut().filter(|last| addr <= last.addr + last.length) {
            Some(last) => last.length = last.length.max(addr + length - last.addr),
            None => whole.push(image::Memory { addr, length, kept: false }),
        }
    }
    whole
}

/// The bytes of all memory of an image. EFAULT where there is none any more.
fn keep(image: &mut Image) -> Result<Vec<Vec<u8>>, Error> {
    let read = |memory: &mut image::Memory| {
        memory.kept = true;
        let mut bytes = vec![0; memory.length as usize];
        copy(memory.addr, &mut bytes, Direction::From).map(|()| bytes)
    };
    image.memory.iter_mut().map(read).collect()
}

/// Direction of a copy between the image and memory of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    From,
    To,
}

/// Copies memory of this process that may not be there: then it is EFAULT.
pub(crate) fn copy(addr: u64, bytes: &mut [u8], direction: Direction) -> Result<(), Error> {
    let mut program = Pieces::new();
    program.push(core::ptr::with_exposed_provenance_mut(addr as usize), bytes.len() as u64);
    let towards = match direction {
        Direction::From => transfer::Direction::Write,
        Direction::To => transfer::Direction::Read,
    };
    // SAFETY: the slice is ours; the other side is memory that the program has registered, or says that it has for
    // that, and that it does not use during the call.
    let copied = unsafe { transfer::copy_direct(towards, bytes.as_mut_ptr(), &program, false) };
    let missing = || Error::new(libc::EFAULT, format!("{} bytes of memory at {addr:#x} are not there", bytes.len()));
    copied.map_err(|_| missing())
}
