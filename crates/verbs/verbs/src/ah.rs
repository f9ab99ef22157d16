//! Address handles: `ibv_create_ah(3)`, `ibv_create_ah_from_wc(3)`.

use core::ffi::c_int;
use std::sync::Arc;

use vervain_hca::device::GidType;
use vervain_hca::{self as hca, Error};

use crate::abi::*;
use crate::ah_from_wc::ah_attr_from_wc;
use crate::object::{self, Handle, errno_of, minus_one_of, pointer_of, state};
use crate::opening::opening;
use crate::pd::{Use, hca_pd, use_pd};
use crate::query::gid_entries;
use crate::same::same;

/// Behind an `ibv_ah`.
pub(crate) struct AhState {
    pub(crate) hca: Arc<hca::Ah>,
    _pd: Option<Use>,
}

impl Handle for ibv_ah {
    type State = AhState;
}

/// Creates an address handle.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer_of(|| {
        // SAFETY: the client's PD and attributes.
        let (context, hca_pd, attr) = unsafe { (opening_of(pd)?, hca_pd(pd)?, ah_attr_from_c(&*attr)) };
        let hca = hca::Ah::create(hca_pd, &attr)?;
        // SAFETY: the client's PD.
        let state = AhState { hca, _pd: unsafe { use_pd(pd) } };
        Ok(object::new(ibv_ah { context: context.0, pd, handle: context.1.handle() }, state))
    })
}

unsafe fn opening_of<'a>(pd: *mut ibv_pd) -> Result<(*mut ibv_context, &'a crate::opening::Opening), Error> {
    if pd.is_null() {
        return Err(Error::invalid("the PD is NULL"));
    }
    // SAFETY: the client's PD, and its context.
    unsafe { Ok(((*pd).context, opening((*pd).context))) }
}

/// Destroys an address handle. Sends posted with it go on.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    errno_of(|| {
        // SAFETY: the client's address handle, which it gives up if this succeeds.
        unsafe {
            state(ah).hca.destroy()?;
            object::free(ah);
        }
        Ok(())
    })
}

/// The address of the sender of a UD message.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    minus_one_of(|| {
        // SAFETY: the client's context, completion and, if the completion says so, the 40 bytes before the payload.
        let (wc, bytes) = unsafe {
            let wc = *wc;
            (wc, if wc.wc_flags & IBV_WC_GRH != 0 { *grh.cast::<[u8; 40]>() } else { [0; 40] })
        };
        // SAFETY: the client's context.
        let gids = unsafe { gid_entries(context, port_num)? };
        let index = |gid: &ibv_gid, v2: bool| {
            let found = gids.iter().find(|e| e.gid == gid.raw && (e.gid_type == GidType::RoceV2) == v2)?;
            u8::try_from(found.index).ok()
        };
        let attr = ah_attr_from_wc(port_num, &wc, &bytes, index)
            .ok_or_else(|| Error::invalid("the message was not sent to an address of this port"))?;
        // SAFETY: the client's attributes, to be set.
        unsafe { *ah_attr = attr };
        Ok(0)
    })
}

/// An address handle for the sender of a UD message.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let mut attr = ibv_ah_attr::default();
    // SAFETY: the client's PD, completion and bytes, passed on.
    unsafe {
        if ibv_init_ah_from_wc((*pd).context, port_num, wc, grh, &raw mut attr) != 0 {
            return core::ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}

pub(crate) fn ah_attr_from_c(c: &ibv_ah_attr) -> hca::AhAttr {
    same!(c => hca::AhAttr {
        dlid, sl, src_path_bits, static_rate, port_num;
        is_global: c.is_global != 0,
        grh: hca::Grh {
            dgid: c.grh.dgid.raw,
            flow_label: c.grh.flow_label,
            sgid_index: c.grh.sgid_index,
            hop_limit: c.grh.hop_limit,
            traffic_class: c.grh.traffic_class,
        },
    })
}

pub(crate) fn ah_attr_to_c(h: &hca::AhAttr) -> ibv_ah_attr {
    same!(h => ibv_ah_attr {
        dlid, sl, src_path_bits, static_rate, port_num;
        grh: ibv_global_route {
            dgid: ibv_gid { raw: h.grh.dgid },
            flow_label: h.grh.flow_label,
            sgid_index: h.grh.sgid_index,
            hop_limit: h.grh.hop_limit,
            traffic_class: h.grh.traffic_class,
        },
        is_global: h.is_global.into(),
    })
}
