//! Completion channels: `ibv_create_comp_channel(3)`, `ibv_get_cq_event(3)`.

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use vervain_hca as hca;

use crate::abi::*;
use crate::cq::cq_state;
use crate::object::{self, Handle, errno_of, from_cookie, pointer_of, state, waiting};
use crate::opening::opening;
use crate::registry::Entry;

/// Behind an `ibv_comp_channel`.
pub(crate) struct ChannelState {
    _entry: Entry<ibv_comp_channel>,
    pub(crate) hca: Arc<hca::CompChannel>,
}

impl Handle for ibv_comp_channel {
    type State = ChannelState;
}

/// Wraps a new channel and gives it a handle.
pub(crate) unsafe fn new_channel(context: *mut ibv_context, hca: Arc<hca::CompChannel>) -> *mut ibv_comp_channel {
    // SAFETY: the client's context.
    let opening = unsafe { opening(context) };
    let handle = opening.handle();
    let c = ibv_comp_channel { context, fd: hca.fd(), refcnt: 0 };
    opening.channels.publish(handle, object::new(c, ChannelState { _entry: opening.channels.entry(handle), hca }))
}

/// Creates a channel.
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer_of(|| {
        // SAFETY: the client's context.
        let hca = hca::CompChannel::create(unsafe { &opening(context).hca })?;
        // SAFETY: as above.
        Ok(unsafe { new_channel(context, hca) })
    })
}

/// Destroys a channel; EBUSY while a CQ uses it.
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    errno_of(|| {
        // SAFETY: the client's channel, which it gives up if this succeeds.
        unsafe {
            state(channel).hca.destroy()?;
            object::free(channel);
        }
        Ok(())
    })
}

/// Waits for a channel's next event by reading its descriptor; EAGAIN if that is non-blocking and nothing is there.
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    waiting(|| {
        // SAFETY: the client's channel and out parameters. The event's CQ is alive: destroying it waits until its
        // events are acknowledged, and drops those not yet read.
        unsafe {
            let from: *mut ibv_cq = from_cookie(state(channel).hca.next_event()?);
            *cq = from;
            *cq_context = (*from).cq_context;
        }
        Ok(0)
    })
}

/// Acknowledges events. More than there were does no harm: fio does that.
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: the client's CQ.
    unsafe { cq_state(cq) }.hca.ack_events(nevents);
}
