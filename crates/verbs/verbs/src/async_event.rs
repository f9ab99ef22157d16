//! Asynchronous events: `ibv_get_async_event(3)`.

use core::ffi::c_int;

use vervain_hca::Element;

use crate::abi::*;
use crate::cq::cq_state;
use crate::object::{from_cookie, state, waiting};
use crate::opening::opening;
use crate::qp::hca_qp;

/// Waits for the next event by reading the context's descriptor; EAGAIN if that is non-blocking and nothing is there.
pub unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    waiting(|| {
        // SAFETY: the client's context.
        let got = unsafe { opening(context) }.hca.next_event()?;
        let element = match got.element {
            Element::Cq(cookie) => ibv_async_event_element { cq: from_cookie(cookie) },
            Element::Qp(cookie) => ibv_async_event_element { qp: from_cookie(cookie) },
            Element::Srq(cookie) => ibv_async_event_element { srq: from_cookie(cookie) },
            Element::Port(port) => ibv_async_event_element { port_num: c_int::from(port) },
        };
        // SAFETY: the client's event, to be set.
        unsafe { *event = ibv_async_event { element, event_type: got.event_type } };
        Ok(0)
    })
}

/// Acknowledges an event. Those about a port or the device need none.
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the client's event, and the object that it is about: that cannot be destroyed before this.
    unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => cq_state(element.cq).hca.ack_async_event(),
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => hca_qp(element.qp).ack_async_event(),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => state(element.srq).hca.ack_async_event(),
            _ => {}
        }
    }
}
