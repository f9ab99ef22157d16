//! Asynchronous events: what happens to a device, a port, a QP, a CQ or an SRQ outside of any request;
//! `ibv_get_async_event(3)`.

use std::fmt;
use std::mem::MaybeUninit;

use vervain_abi::*;

use crate::cq::CqId;
use crate::device::{Context, set_nonblocking};
use crate::error::{Error, Result};
use crate::srq::SrqId;

/// The object that an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSource {
    /// The QP of that number.
    Qp(u32),
    /// A CQ.
    Cq(CqId),
    /// An SRQ.
    Srq(SrqId),
    /// A port, from 1.
    Port(u8),
    /// The device, or something of it that this crate does not make.
    Device,
}

macro_rules! kinds {
    ($($name:ident = $number:ident, $source:ident, $words:literal;)+) => {
        /// The kind of an event; `enum ibv_event_type`, IBA volume 1, 11.6.3.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventKind {
            $(#[doc = concat!("The ", $words, ".")] $name,)+
            /// A number that is newer than this crate.
            Other(u32),
        }

        impl EventKind {
            fn of(number: ibv_event_type) -> (Self, Arm) {
                match number {
                    $($number => (Self::$name, Arm::$source),)+
                    other => (Self::Other(other), Arm::Device),
                }
            }
        }

        impl fmt::Display for EventKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => write!(f, "{} (event {})", $words, $number),)+
                    Self::Other(number) => write!(f, "unknown event (event {number})"),
                }
            }
        }
    };
}

/// Which arm of the event's union counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    Qp,
    Cq,
    Srq,
    Port,
    Device,
}

kinds! {
    CqError = IBV_EVENT_CQ_ERR, Cq, "CQ is in error: it overran";
    QpFatal = IBV_EVENT_QP_FATAL, Qp, "QP failed, and no completion could tell";
    QpRequestError = IBV_EVENT_QP_REQ_ERR, Qp, "QP got a request that it must not take";
    QpAccessError = IBV_EVENT_QP_ACCESS_ERR, Qp, "QP got a request without the right to it";
    Established = IBV_EVENT_COMM_EST, Qp, "QP got its first message before it was in RTS";
    SendQueueDrained = IBV_EVENT_SQ_DRAINED, Qp, "QP's send queue is drained";
    PathMigrated = IBV_EVENT_PATH_MIG, Qp, "QP went over to its alternate path";
    PathMigrationFailed = IBV_EVENT_PATH_MIG_ERR, Qp, "QP could not go over to its alternate path";
    DeviceFatal = IBV_EVENT_DEVICE_FATAL, Device, "device failed";
    PortActive = IBV_EVENT_PORT_ACTIVE, Port, "port became active";
    PortError = IBV_EVENT_PORT_ERR, Port, "port went down";
    LidChange = IBV_EVENT_LID_CHANGE, Port, "port got another LID";
    PkeyChange = IBV_EVENT_PKEY_CHANGE, Port, "port's P_Keys changed";
    SubnetManagerChange = IBV_EVENT_SM_CHANGE, Port, "port has another subnet manager";
    SrqError = IBV_EVENT_SRQ_ERR, Srq, "SRQ is in error";
    SrqLimit = IBV_EVENT_SRQ_LIMIT_REACHED, Srq, "SRQ fell to its limit";
    LastWqeReached = IBV_EVENT_QP_LAST_WQE_REACHED, Qp, "QP took its last receive from an SRQ";
    ClientReregister = IBV_EVENT_CLIENT_REREGISTER, Port, "port's subnet manager wants new registrations";
    GidChange = IBV_EVENT_GID_CHANGE, Port, "port's GIDs changed";
    WqFatal = IBV_EVENT_WQ_FATAL, Device, "work queue failed";
    SpeedChange = IBV_EVENT_DEVICE_SPEED_CHANGE, Port, "port's speed changed";
}

/// One asynchronous event. It is acknowledged already, so that the destruction of its object need not wait for the
/// holder of this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Its kind.
    pub kind: EventKind,
    /// Its object.
    pub source: EventSource,
}

impl Context {
    /// Waits for the next asynchronous event of this device, takes and acknowledges it. None if there is none and
    /// [`set_async_nonblocking`](Context::set_async_nonblocking) is on. `ibv_get_async_event(3)`.
    ///
    /// # Errors
    /// EINTR, when a signal handler ran.
    pub fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        let functions = &self.0.library.0;
        let mut raw = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: an open context and room for the struct that the call fills.
        if unsafe { (functions.device.get_async_event)(self.0.raw, raw.as_mut_ptr()) } != 0 {
            let error = Error::last("ibv_get_async_event", self.name());
            return if error.errno() == Some(libc::EAGAIN) { Ok(None) } else { Err(error) };
        }
        // SAFETY: zeroed, then filled: pointers and integers, for which zero is a value.
        let mut raw = unsafe { raw.assume_init() };
        let (kind, arm) = EventKind::of(raw.event_type);
        // SAFETY: the kind names the field of the union that is valid. A QP, CQ or SRQ that an event names is not
        // destroyed before the acknowledgement below (ibv_get_async_event(3)), and its number and cookie never change.
        let source = unsafe {
            match arm {
                Arm::Qp => EventSource::Qp((*raw.element.qp).qp_num),
                Arm::Cq => EventSource::Cq(CqId::of((*raw.element.cq).cq_context)),
                Arm::Srq => EventSource::Srq(SrqId::of((*raw.element.srq).srq_context)),
                Arm::Port => EventSource::Port(u8::try_from(raw.element.port_num).unwrap_or(0)),
                Arm::Device => EventSource::Device,
            }
        };
        // SAFETY: taken above, acknowledged once.
        unsafe { (functions.device.ack_async_event)(&mut raw) };
        Ok(Some(AsyncEvent { kind, source }))
    }

    /// Chooses that [`next_async_event`](Context::next_async_event) returns at once if there is no event.
    ///
    /// # Errors
    /// fcntl(2)'s, which no healthy descriptor gives.
    pub fn set_async_nonblocking(&self, on: bool) -> Result<()> {
        set_nonblocking(self.async_fd(), on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_kind_of_its_own_and_words() {
        let mut seen = std::collections::HashSet::new();
        for number in 0..=IBV_EVENT_DEVICE_SPEED_CHANGE {
            let (kind, _) = EventKind::of(number);
            assert!(!matches!(kind, EventKind::Other(_)), "event {number}");
            assert!(kind.to_string().ends_with(&format!("(event {number})")), "{kind}");
            assert!(seen.insert(kind));
        }
        assert_eq!(EventKind::of(99), (EventKind::Other(99), Arm::Device));
    }
}
