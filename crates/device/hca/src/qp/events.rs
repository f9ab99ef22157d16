//! The async events of a QP (`man ibv_get_async_event`), and which of them the program still gets.

use crate::context::Context;
use crate::context::async_events::{Element, EventCount};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The async events of a QP.
pub(crate) struct QpEvents {
    /// The program's name for the QP.
    cookie: AtomicUsize,
    count: Arc<EventCount>,
    /// True: SQ_DRAINED is raised when the send queue has drained.
    wants_drained: AtomicBool,
    /// True: QP_LAST_WQE_REACHED was raised since the last RESET.
    last_wqe_told: AtomicBool,
}

impl QpEvents {
    /// Those of a new QP.
    pub(super) fn new(cookie: usize) -> QpEvents {
        QpEvents {
            cookie: AtomicUsize::new(cookie),
            count: Arc::default(),
            wants_drained: AtomicBool::new(false),
            last_wqe_told: AtomicBool::new(false),
        }
    }

    /// Changes the program's name for the QP.
    pub(super) fn set_cookie(&self, cookie: usize) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Raises `event` (`IBV_EVENT_*`).
    pub(super) fn raise(&self, context: &Context, event: u32) {
        context.raise(event, Element::Qp(self.cookie.load(Ordering::Relaxed)), &self.count);
    }

    /// The program has acknowledged one event.
    pub(super) fn ack(&self) {
        self.count.ack();
    }

    /// Forgets the events that the program has not got, and waits until it has acknowledged the others.
    pub(super) fn end(&self, context: &Context) {
        context.forget_events(&self.count);
        self.count.wait();
    }

    /// SQ_DRAINED is raised when the send queue has drained, or not.
    pub(super) fn want_drained(&self, yes: bool) {
        self.wants_drained.store(yes, Ordering::Release);
    }

    /// Returns true if SQ_DRAINED is to be raised when the send queue has drained.
    pub(super) fn wants_drained(&self) -> bool {
        self.wants_drained.load(Ordering::Relaxed)
    }

    /// Returns true once if SQ_DRAINED is to be raised; the send queue has drained.
    pub(super) fn take_drained(&self) -> bool {
        self.wants_drained.swap(false, Ordering::AcqRel)
    }

    /// Returns true if QP_LAST_WQE_REACHED was raised since the last RESET.
    pub(super) fn last_wqe_told(&self) -> bool {
        self.last_wqe_told.load(Ordering::Relaxed)
    }

    /// Notes whether QP_LAST_WQE_REACHED was raised since the last RESET.
    pub(super) fn set_last_wqe_told(&self, told: bool) {
        self.last_wqe_told.store(told, Ordering::Relaxed);
    }

    /// Returns true once after a RESET: QP_LAST_WQE_REACHED is to be raised.
    pub(super) fn take_last_wqe(&self) -> bool {
        !self.last_wqe_told.swap(true, Ordering::AcqRel)
    }
}
