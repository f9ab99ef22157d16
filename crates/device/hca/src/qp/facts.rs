//! The state of a QP's queues, for the reports of [`crate::hang`].

use crate::qp::Qp;
use vervain_iba::{Opcode, QpType};

/// The queues of a QP at one moment.
pub(crate) struct QpFacts {
    pub(crate) qpn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) rnr_retry: u8,
    pub(crate) sq_sig_all: bool,
    /// Sends posted and not done.
    pub(crate) waiting: u32,
    /// Sends done since RESET.
    pub(crate) done: u32,
    /// Completions of sends that it has ever made.
    pub(crate) completed: u32,
    /// The operation of the oldest send, if it waits for a receive of the peer's.
    pub(crate) not_ready: Option<Opcode>,
    /// Posted receives that no message has taken.
    pub(crate) receives: u64,
}

impl QpFacts {
    /// The state of the queues of `qp`; never waits. None for a QP that was destroyed, and while another thread holds
    /// the send queue for long, for example within a batch.
    pub(crate) fn of(qp: &Qp) -> Option<QpFacts> {
        if qp.is_gone() {
            return None;
        }
        let sends = qp.sends.try_lock_briefly()?;
        let sq = &sends.sq;
        let is_not_ready = match &sends.connection {
            Some(connection) => connection.waits_for_receive(),
            None => sq.exec.waits_for_receive(),
        };
        let first = sq.wq.get(sq.wq.head()).map(|first| first.request.opcode);
        Some(QpFacts {
            qpn: qp.number,
            dest_qpn: sq.params.dest_qpn,
            rnr_retry: sq.params.rnr_retry,
            sq_sig_all: sq.sq_sig_all,
            waiting: sq.wq.waiting(),
            done: sq.wq.head(),
            completed: qp.ring.produced(),
            not_ready: first.filter(|_| is_not_ready && qp.qp_type != QpType::Ud),
            receives: qp.receives.waiting(),
        })
    }
}
