//! A stopped queue pair as a record, and another made from it with the same number. Restoring uses the verbs that a
//! program would use, so that the same values are refused.

use crate::arena::layout::ANY_PSN;
use crate::context::{Context, Pd};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::host::cancel::nap;
use crate::host::clock::now_ns;
use crate::host::lock::OwnerGuard;
use crate::process::switches::PATIENCE_NS;
use crate::qp::remote::Sends;
use crate::qp::sq::saved::{Restored, SavedProgress, SavedSend};
use crate::qp::{Qp, QpInit, SendSide};
use crate::rq::saved::SavedReceive;
use crate::srq::Srq;
use crate::srq::xrcd::Xrcd;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_iba::{Gid, QpAttr, QpCap, QpState, QpType, attr};

/// The nap between two looks at a send queue that another thread holds.
const NAP: Duration = Duration::from_micros(50);

/// The attributes and requests of a QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQp {
    /// Its number.
    pub number: u32,
    /// Service type.
    pub qp_type: QpType,
    /// Sizes granted.
    pub cap: QpCap,
    /// True: every send completes.
    pub sq_sig_all: bool,
    /// State and attributes as of a query, so with the PSNs that come next.
    pub attr: QpAttr,
    /// 1: a message has come in RTR; 2: the program has had the event; 0: neither.
    pub established: u32,
    /// True: the program has had the event that its last receive of an SRQ was taken.
    pub last_wqe_told: bool,
    /// True: the program wants the event that the send queue is drained.
    pub wants_drained: bool,
    /// Requests that have not completed.
    pub sends: Vec<SavedSend>,
    /// Progress of the oldest request.
    pub progress: SavedProgress,
    /// Receives of its own queue that are outstanding.
    pub receives: Vec<SavedReceive>,
    /// Multicast groups that it is in.
    pub groups: Vec<Gid>,
    /// State of its connection by a carrier ([`crate::qp::carrier::Connection::save`]).
    pub connection: Option<Vec<u8>>,
}

/// The objects that a QP is made of, as they were restored.
#[derive(Default)]
#[allow(missing_docs)]
pub struct Parts<'a> {
    pub pd: Option<&'a Arc<Pd>>,
    pub send_cq: Option<&'a Arc<Cq>>,
    pub recv_cq: Option<&'a Arc<Cq>>,
    pub srq: Option<&'a Arc<Srq>>,
    pub xrcd: Option<&'a Arc<Xrcd>>,
    pub cookie: usize,
}

impl SavedQp {
    /// The record that another QP needs to take the place of `qp`, which is stopped, and whose CQs were saved.
    ///
    /// # Errors
    /// ENOTSUP if a carrier reaches its peer whose connections cannot be saved; EBUSY within a batch.
    pub fn of(qp: &Qp) -> Result<SavedQp> {
        drop(lock_sends_at_rest(qp)?);
        let attr = qp.query();
        let sends = lock_sends_at_rest(qp)?;
        let connection = sends.connection.as_ref().map(|connection| {
            let why = || {
                format!("QP {:#x}: its peer is reached through a window, whose connections are not saved", qp.qp_num())
            };
            connection.save(qp).ok_or_else(|| Error::new(libc::ENOTSUP, why()))
        });
        let connection = connection.transpose()?;
        let own = qp.receives.own_queue();
        Ok(SavedQp {
            number: qp.qp_num(),
            qp_type: qp.qp_type(),
            cap: qp.cap,
            sq_sig_all: sends.sq.sq_sig_all,
            attr,
            established: qp.shared.established.load(Ordering::Relaxed),
            last_wqe_told: qp.events.last_wqe_told(),
            wants_drained: qp.events.wants_drained(),
            sends: SavedSend::all_of(&sends.sq),
            progress: SavedProgress::of(&sends.sq),
            receives: own.map_or_else(Vec::new, |rq| rq.outstanding_receives()),
            groups: qp.groups.lock().clone(),
            connection,
        })
    }

    /// Makes the QP that the record describes. `context` is stopped.
    ///
    /// # Errors
    /// EEXIST if its number is in use.
    pub fn restore(&self, context: &Arc<Context>, parts: &Parts<'_>, objects: &impl Restored) -> Result<Arc<Qp>> {
        let &SavedQp { number, qp_type, cap, sq_sig_all, .. } = self;
        let &Parts { pd, send_cq, recv_cq, srq, xrcd, cookie } = parts;
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all, cookie };
        let qp = Qp::with_number(context, pd, &init, Some(number))?;
        if let Err(e) = self.resume(&qp, objects) {
            qp.leave_groups();
            let _ = qp.destroy();
            return Err(e);
        }
        Ok(qp)
    }

    /// Brings `qp`, which is new, to the saved state.
    fn resume(&self, qp: &Qp, objects: &impl Restored) -> Result<()> {
        let state = self.attr.qp_state;
        if state == QpState::Reset {
            return if self.sends.is_empty() && self.receives.is_empty() { Ok(()) } else { Err(misplaced()) };
        }
        self.step(qp, QpState::Init)?;
        if state != QpState::Err && !self.receives.is_empty() {
            qp.receives.own_queue().ok_or_else(misplaced)?.post_again(&self.receives)?;
        }
        let runs = matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe);
        if runs || state == QpState::Rtr {
            self.step(qp, QpState::Rtr)?;
        }
        if runs {
            self.step(qp, QpState::Rts)?;
            self.post_sends(qp, objects)?;
        } else if state != QpState::Err && !self.sends.is_empty() {
            return Err(misplaced());
        }
        self.resume_sends(qp)?;
        match state {
            QpState::Sqd => self.step(qp, QpState::Sqd)?,
            QpState::Sqe if !qp.qp_type().is_reliable() => {
                qp.shared.state.store(QpState::Sqe as u32, Ordering::SeqCst);
            }
            QpState::Sqe => return Err(misplaced()),
            QpState::Err => {
                // Else the program would get the event once more.
                qp.events.set_last_wqe_told(true);
                self.step(qp, QpState::Err)?;
                // Posted while the QP was stopped, and to be flushed when it goes on.
                self.post_sends(qp, objects)?;
            }
            _ => {}
        }
        qp.take_attributes(&self.attr)?;
        for group in &self.groups {
            qp.attach_mcast(group, 0)?;
        }
        // Only the peer knows the PSN of its next request: its last published one may be that of an access that was no
        // request.
        qp.shared.rq_psn.store(ANY_PSN, Ordering::Relaxed);
        qp.shared.established.store(self.established.min(2), Ordering::Relaxed);
        qp.events.set_last_wqe_told(self.last_wqe_told);
        qp.events.want_drained(self.wants_drained && state == QpState::Sqd);
        Ok(())
    }

    /// Posts the requests again.
    fn post_sends(&self, qp: &Qp, objects: &impl Restored) -> Result<()> {
        self.sends.iter().try_for_each(|send| send.post(qp, objects))
    }

    /// Has the requester go on from its saved progress.
    fn resume_sends(&self, qp: &Qp) -> Result<()> {
        let mut sends = qp.lock_sends();
        let SendSide { sq, connection } = &mut *sends;
        match (connection, &self.connection) {
            (Some(connection), Some(saved)) => connection.resume(saved, &mut Sends::of(sq, qp)),
            (None, None) => {
                sq.resume(self.progress.begun, self.progress.unanswered);
                Ok(())
            }
            // The way has changed, for example to a peer that was on this host and is on another now.
            _ => Err(Error::invalid(format!("QP {:#x}: its peer is not reached as it was", self.number))),
        }
    }

    /// One step of the state machine, with the attributes that it needs.
    fn step(&self, qp: &Qp, to: QpState) -> Result<()> {
        let needed = crate::qp::state::needed(qp.qp_type(), qp.state(), to)?;
        qp.change(&QpAttr { qp_state: to, ..self.attr }, needed | attr::STATE)
    }
}

/// The send queue of `qp`, while no thread is within a batch (`ibv_wr_start`).
///
/// # Errors
/// EBUSY if one is, such as this thread itself.
fn lock_sends_at_rest(qp: &Qp) -> Result<OwnerGuard<'_, SendSide>> {
    let until = now_ns() + PATIENCE_NS;
    loop {
        if let Some(sends) = qp.lock_sends_soon() {
            return Ok(sends);
        }
        if qp.sends.raw().held_by_me() || now_ns() > until {
            let why = format!("QP {:#x}: a batch of requests is begun and not ended (ibv_wr_start)", qp.qp_num());
            return Err(Error::busy(why));
        }
        nap(NAP);
    }
}

fn misplaced() -> Error {
    Error::invalid("a QP has requests or receives that its state does not allow")
}
