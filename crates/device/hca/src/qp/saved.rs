//! A stopped queue pair as a record, and another made from it with the same number. Restoring uses the verbs that a
//! program would use, so that the same values are refused.

use crate::arena::layout::{ANY_PSN, BY_PACKETS};
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
use crate::rq::RecvQueue;
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

impl Qp {
    pub(crate) fn pd(&self) -> Option<&Arc<Pd>> {
        self.pd.as_ref()
    }

    /// The CQ of its receives.
    pub fn recv_cq(&self) -> Option<&Arc<Cq>> {
        self.recv_cq.as_ref()
    }

    /// The SRQ that it receives from.
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.srq.as_ref()
    }

    /// Returns true if it was made in `context`.
    pub fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    /// The record that another QP needs to take its place. It is stopped, and its CQs were saved.
    ///
    /// # Errors
    /// ENOTSUP if a carrier reaches its peer whose connections cannot be saved; EBUSY within a batch.
    pub fn save(&self) -> Result<SavedQp> {
        drop(self.lock_sends_at_rest()?);
        let attr = self.query();
        let sends = self.lock_sends_at_rest()?;
        let connection = sends.connection.as_ref().map(|connection| {
            let why = || {
                format!(
                    "QP {:#x}: its peer is reached through a window, whose connections are not saved",
                    self.qp_num()
                )
            };
            connection.save(self).ok_or_else(|| Error::new(libc::ENOTSUP, why()))
        });
        let connection = connection.transpose()?;
        let (saved, progress) = sends.sq.save();
        let own = self.rq.as_ref().filter(|_| self.srq.is_none());
        Ok(SavedQp {
            number: self.qp_num(),
            qp_type: self.qp_type(),
            cap: self.cap,
            sq_sig_all: sends.sq.sq_sig_all,
            attr,
            established: self.shared.established.load(Ordering::Relaxed),
            last_wqe_told: self.last_wqe_told.load(Ordering::Relaxed),
            wants_drained: self.notify_drained.load(Ordering::Relaxed),
            sends: saved,
            progress,
            receives: own.map_or_else(Vec::new, |rq| rq.outstanding_receives()),
            groups: self.groups.lock().clone(),
            connection,
        })
    }

    /// The send queue, while no thread is within a batch (`ibv_wr_start`).
    ///
    /// # Errors
    /// EBUSY if one is, such as this thread itself.
    fn lock_sends_at_rest(&self) -> Result<OwnerGuard<'_, SendSide>> {
        let until = now_ns() + PATIENCE_NS;
        loop {
            if let Some(sends) = self.lock_sends_soon() {
                return Ok(sends);
            }
            if self.sends.raw().held_by_me() || now_ns() > until {
                let why = format!("QP {:#x}: a batch of requests is begun and not ended (ibv_wr_start)", self.qp_num());
                return Err(Error::busy(why));
            }
            nap(NAP);
        }
    }

    /// Makes the QP that `saved` describes. `context` is stopped.
    ///
    /// # Errors
    /// EEXIST if its number is in use.
    pub fn restore(
        context: &Arc<Context>,
        parts: &Parts<'_>,
        saved: &SavedQp,
        objects: &impl Restored,
    ) -> Result<Arc<Qp>> {
        let &SavedQp { number, qp_type, cap, sq_sig_all, .. } = saved;
        let &Parts { pd, send_cq, recv_cq, srq, xrcd, cookie } = parts;
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all, cookie };
        let qp = Self::with_number(context, pd, &init, Some(number))?;
        let resumed = qp.resume(saved, objects);
        if let Err(e) = resumed {
            qp.leave_groups();
            let _ = qp.destroy();
            return Err(e);
        }
        Ok(qp)
    }

    /// Takes it out of all multicast groups.
    pub fn leave_groups(&self) {
        let groups = self.groups.lock().clone();
        groups.iter().for_each(|group| _ = self.detach_mcast(group, 0));
    }

    fn resume(&self, saved: &SavedQp, objects: &impl Restored) -> Result<()> {
        let state = saved.attr.qp_state;
        if state == QpState::Reset {
            return if saved.sends.is_empty() && saved.receives.is_empty() { Ok(()) } else { Err(misplaced()) };
        }
        self.step(QpState::Init, &saved.attr)?;
        if state != QpState::Err && !saved.receives.is_empty() {
            let own = self.rq.as_ref().filter(|_| self.srq.is_none()).ok_or_else(misplaced)?;
            own.post_again(&saved.receives)?;
        }
        let runs = matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe);
        if runs || state == QpState::Rtr {
            self.step(QpState::Rtr, &saved.attr)?;
        }
        if runs {
            self.step(QpState::Rts, &saved.attr)?;
            self.post_again(&saved.sends, objects)?;
        } else if state != QpState::Err && !saved.sends.is_empty() {
            return Err(misplaced());
        }
        self.resume_sends(saved)?;
        match state {
            QpState::Sqd => self.step(QpState::Sqd, &saved.attr)?,
            QpState::Sqe if !self.qp_type().is_reliable() => {
                self.shared.state.store(QpState::Sqe as u32, Ordering::SeqCst);
            }
            QpState::Sqe => return Err(misplaced()),
            QpState::Err => {
                // Else the program would get the event once more.
                self.last_wqe_told.store(true, Ordering::Relaxed);
                self.step(QpState::Err, &saved.attr)?;
                // Posted while the QP was stopped, and to be flushed when it goes on.
                self.post_again(&saved.sends, objects)?;
            }
            _ => {}
        }
        self.take_attributes(&saved.attr)?;
        for group in &saved.groups {
            self.attach_mcast(group, 0)?;
        }
        // Only the peer knows the PSN of its next request: its last published one may be that of an access that was no
        // request.
        self.shared.rq_psn.store(ANY_PSN, Ordering::Relaxed);
        self.shared.established.store(saved.established.min(2), Ordering::Relaxed);
        self.last_wqe_told.store(saved.last_wqe_told, Ordering::Relaxed);
        self.want_drained_event(saved.wants_drained && state == QpState::Sqd);
        Ok(())
    }

    /// Has the requester go on from its saved progress.
    fn resume_sends(&self, saved: &SavedQp) -> Result<()> {
        let mut sends = self.lock_sends();
        let SendSide { sq, connection } = &mut *sends;
        match (connection, &saved.connection) {
            (Some(connection), Some(saved)) => connection.resume(saved, &mut Sends::of(sq, self)),
            (None, None) => {
                sq.resume(saved.progress);
                Ok(())
            }
            // The way has changed, for example to a peer that was on this host and is on another now.
            _ => Err(Error::invalid(format!("QP {:#x}: its peer is not reached as it was", saved.number))),
        }
    }

    /// The queue that messages by a carrier take their receives from: SRQ `srqn`, or its own queue if that is 0.
    fn queue_of(&self, srqn: u32) -> Option<Arc<RecvQueue>> {
        if srqn == 0 {
            self.rq.clone()
        } else {
            self.xrcd().and_then(|xrcd| xrcd.srq(srqn)).map(|srq| Arc::clone(&srq.rq))
        }
    }

    /// The place among the saved receives of a claimed one. `receive`: the number that a carrier's responder has for
    /// it.
    pub fn receive_place(&self, srqn: u32, receive: u32) -> Option<u32> {
        self.queue_of(srqn)?.place_of(receive)
    }

    /// Claims the receive at that place again. Returns its new number and its room in bytes.
    pub fn claim_receive(&self, srqn: u32, place: u32) -> Option<(u32, u64)> {
        self.queue_of(srqn)?.claim_place(place, self.qp_num() | BY_PACKETS)
    }

    /// One step of the state machine, with the attributes that it needs.
    fn step(&self, to: QpState, attr: &QpAttr) -> Result<()> {
        let needed = crate::qp::state::needed(self.qp_type(), self.state(), to)?;
        self.change(&QpAttr { qp_state: to, ..*attr }, needed | attr::STATE)
    }
}

fn misplaced() -> Error {
    Error::invalid("a QP has requests or receives that its state does not allow")
}
