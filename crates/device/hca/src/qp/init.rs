//! The objects and sizes that a QP is made of, and the checks of them.

use crate::context::Pd;
use crate::cq::Cq;
use crate::device::LIMITS;
use crate::error::{Error, Result};
use crate::srq::Srq;
use crate::srq::xrcd::Xrcd;
use std::sync::Arc;
use vervain_iba::{QpCap, QpType};

/// Bytes of a scatter/gather element in a send request (`struct ibv_sge`).
const PIECE: u32 = 16;

/// The objects and sizes that a QP is made of.
pub struct QpInit<'a> {
    /// Service type.
    pub qp_type: QpType,
    /// Send completions.
    pub send_cq: Option<&'a Arc<Cq>>,
    /// Receive completions.
    pub recv_cq: Option<&'a Arc<Cq>>,
    /// Shared receive queue instead of an own one.
    pub srq: Option<&'a Arc<Srq>>,
    /// XRC domain (XRC targets).
    pub xrcd: Option<&'a Arc<Xrcd>>,
    /// Sizes.
    pub cap: QpCap,
    /// True: every send completes, signaled or not.
    pub sq_sig_all: bool,
    /// The program's cookie.
    pub cookie: usize,
}

impl QpInit<'_> {
    /// Refuses the values that `man ibv_create_qp` refuses: missing queues and sizes beyond the device's.
    pub(super) fn check(&self, pd: Option<&Arc<Pd>>) -> Result<()> {
        let c = &self.cap;
        let sizes = [
            ("max_send_wr", c.max_send_wr, LIMITS.qp.max_wr),
            ("max_recv_wr", c.max_recv_wr, LIMITS.qp.max_wr),
            ("max_send_sge", c.max_send_sge, LIMITS.qp.max_sge),
            ("max_recv_sge", c.max_recv_sge, LIMITS.qp.max_sge),
            ("max_inline_data", c.max_inline_data, LIMITS.qp.max_inline),
        ];
        if let Some((name, wanted, most)) = sizes.into_iter().find(|(_, wanted, most)| wanted > most) {
            return Err(Error::invalid(format!("{name} {wanted} exceeds {most}")));
        }
        let sends = self.qp_type != QpType::XrcRecv;
        if sends && (self.send_cq.is_none() || pd.is_none()) {
            return Err(Error::invalid("the QP needs a protection domain and a completion queue for sends"));
        }
        if self.recv_cq.is_none() && !matches!(self.qp_type, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Error::invalid("the QP needs a completion queue for receives"));
        }
        if self.qp_type == QpType::XrcRecv && self.xrcd.is_none() {
            return Err(Error::invalid("an XRC target needs an XRC domain"));
        }
        if self.srq.is_some() && !matches!(self.qp_type, QpType::Rc | QpType::Ud | QpType::Uc) {
            return Err(Error::invalid("this QP type takes no SRQ"));
        }
        Ok(())
    }

    /// Returns true if the QP has a receive queue of its own.
    pub(super) fn receives_itself(&self) -> bool {
        self.srq.is_none() && !matches!(self.qp_type, QpType::XrcSend | QpType::XrcRecv)
    }

    /// The sizes that the QP gets.
    pub(super) fn granted(&self) -> QpCap {
        let mut cap = self.cap;
        if !self.receives_itself() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        // The room of a send request's scatter/gather elements holds inline data instead, as on rxe and adapters: some
        // programs send a few bytes inline and have asked for no room.
        let inline = cap.max_inline_data.max(cap.max_send_sge * PIECE);
        cap.max_inline_data = if self.qp_type == QpType::XrcRecv { 0 } else { inline };
        cap
    }
}
