//! Modify and query of a QP: checks the values, applies them to the attributes, the shared part and the requester, and
//! changes the state (IBA 11.2.5.2, `man ibv_modify_qp`).

use crate::arena::layout::ANY_PSN;
use crate::device::{LIMITS, MTU_4096};
use crate::error::{Error, Result};
use crate::host::lock::OwnerGuard;
use crate::process::revocation::PATIENCE_NS;
use crate::qp::Qp;
use crate::qp::ah::{Route, check_address};
use crate::qp::carrier::Connection;
use crate::qp::sq::path::Params;
use crate::qp::sq::resolve;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{AhAttr, PSN_MASK, QpAttr, QpState, QpType, access, attr};

/// Rights that a QP may have. Programs set that of persistence on every QP; only a region's right decides if it can be
/// used.
const OF_QP: u32 = access::KNOWN | access::FLUSH_PERSISTENT;

/// Bits of an RNR timer code (IBA table 45). Higher bits are cut off, as mlx5 and rxe do: dlslime asks for 0x20.
const RNR_TIMER_MASK: u8 = 0x1f;

impl Qp {
    /// Changes attributes and state.
    ///
    /// # Errors
    /// EINVAL for values that the state table or the device does not allow; nothing is changed then.
    pub fn modify(&self, new: &QpAttr, mask: u32) -> Result<()> {
        self.change(new, mask)?;
        match new.qp_state {
            QpState::Rtr if mask & attr::STATE != 0 => self.meet_peer(),
            QpState::Rts if mask & attr::STATE != 0 => self.process.qp_is_ready(),
            _ => {}
        }
        Ok(())
    }

    /// Begins the handshake with the process of a peer that memory reaches, so that the first request finds it done,
    /// even if that process has no CPU or is stopped by then.
    fn meet_peer(&self) {
        if !matches!(self.qp_type(), QpType::Rc | QpType::Uc | QpType::XrcSend) {
            return;
        }
        let Params { dest_qpn, has_memory, .. } = self.lock_sends().sq.params;
        if has_memory {
            // The first request looks for a peer that is absent now.
            let _ = resolve::peer_of(self.process, dest_qpn);
        }
    }

    /// [`Qp::modify`] without the handshake with the peer: a QP that is restored learns only later if its peer is
    /// there.
    pub(super) fn change(&self, new: &QpAttr, mask: u32) -> Result<()> {
        self.process.check()?;
        if self.is_gone() {
            return Err(Error::invalid("the QP was destroyed"));
        }
        if mask & attr::STATE != 0 && matches!(new.qp_state, QpState::Sqd | QpState::Err) {
            self.begin_waiting();
        }
        if mask & attr::STATE != 0 && matches!(new.qp_state, QpState::Reset | QpState::Err) {
            if new.qp_state == QpState::Reset {
                self.let_sends_leave();
            }
            self.let_requests_arrive();
        }
        let mut a = self.attr.lock();
        let from = self.state();
        let to = if mask & attr::STATE != 0 { new.qp_state } else { from };
        crate::qp::state::check(self.qp_type(), from, to, mask)?;
        if mask & attr::CUR_STATE != 0 && new.cur_qp_state != from {
            return Err(Error::invalid(format!("the QP is in {from:?}, not in {:?}", new.cur_qp_state)));
        }
        self.check_values(from, &a, new, mask)?;
        match to {
            QpState::Reset => {
                *a = QpAttr { cap: a.cap, ..QpAttr::default() };
                self.enter_reset();
                return Ok(());
            }
            QpState::Err => {
                self.shared.state.store(QpState::Err as u32, Ordering::SeqCst);
                self.change_sends(|sends| self.enter_error(sends));
                return Ok(());
            }
            _ => {}
        }
        let before = *a;
        apply(&mut a, new, mask);
        let connection = match (from, to) {
            (QpState::Init, QpState::Rtr) => match self.connect(&a) {
                Ok(connection) => connection,
                Err(e) => {
                    *a = before;
                    return Err(e);
                }
            },
            _ => None,
        };
        self.publish(&a);
        self.change_state(&a, from, to, new, mask, connection)
    }

    /// Connects to the peer that the attributes of a move to RTR name, if a carrier reaches it.
    fn connect(&self, a: &QpAttr) -> Result<Option<Arc<dyn Connection>>> {
        let Some(me) = self.handle() else { return Ok(None) };
        if self.qp_type == QpType::Ud {
            return self.table.router.register_qp(&me).map(|()| None);
        }
        self.table.router.connect(&me, a)
    }

    fn change_state(
        &self,
        a: &OwnerGuard<'_, QpAttr>,
        from: QpState,
        to: QpState,
        new: &QpAttr,
        mask: u32,
        connection: Option<Arc<dyn Connection>>,
    ) -> Result<()> {
        let params = self.params(a);
        if to == QpState::Sqd && from != QpState::Sqd {
            let wants = mask & attr::EN_SQD_ASYNC_NOTIFY != 0 && new.en_sqd_async_notify != 0;
            self.events.want_drained(wants);
        }
        // State and parameters change together under the lock of the send queue: a late packet of an earlier
        // connection, taken in by another thread, must not start the requester in RTS from a PSN that is not set yet.
        let stored = self.change_sends(|sends| {
            // A peer may move the QP to ERR at the same moment; then ERR stands.
            self.shared.state.compare_exchange(from as u32, to as u32, Ordering::SeqCst, Ordering::SeqCst)?;
            sends.sq.set_params(params);
            if let Some(connection) = connection {
                sends.sq.go_remote();
                sends.connection = Some(connection);
            } else if let Some(connection) = &sends.connection {
                connection.modified(&sends.sq.path_attr());
            }
            if mask & attr::SQ_PSN != 0 {
                sends.sq.begin_psns();
            }
            Ok::<(), u32>(())
        });
        if stored.is_err() {
            return Err(Error::invalid("the QP went to the error state meanwhile"));
        }
        if to == QpState::Sqd && from != QpState::Sqd {
            self.announce_if_drained();
        }
        Ok(())
    }

    fn params(&self, a: &QpAttr) -> Params {
        let device = self.context.device();
        let mtu = if self.qp_type().is_connected() { a.path_mtu } else { device.active_mtu() };
        self.set_lid(device.lid(a.port_num.max(1)));
        self.tally.set(device.index(), device.ports(), a.port_num);
        Params {
            dest_qpn: a.dest_qp_num,
            ah: a.ah,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            mtu_bytes: 128 << mtu,
            qkey: a.qkey,
            sq_psn: a.sq_psn,
            has_memory: self.table.router.route(self.device_index(), &a.ah).has_memory(),
        }
    }

    /// Publishes the attributes that initiators read.
    fn publish(&self, a: &QpAttr) {
        let s = self.shared;
        s.dest_qpn.store(a.dest_qp_num, Ordering::Relaxed);
        s.qkey.store(a.qkey, Ordering::Relaxed);
        if s.rq_psn.load(Ordering::Relaxed) != ANY_PSN {
            s.rq_psn.store(a.rq_psn, Ordering::Relaxed);
        }
        if s.access.swap(a.qp_access_flags, Ordering::SeqCst) & !a.qp_access_flags & access::REMOTE_WRITE != 0 {
            self.process.take_back_grants(|_, qpn| qpn == self.qp_num(), PATIENCE_NS);
        }
        s.min_rnr_timer.store(u32::from(a.min_rnr_timer), Ordering::Relaxed);
        s.max_dest_rd_atomic.store(u32::from(a.max_dest_rd_atomic), Ordering::Relaxed);
        s.port.store(self.device_index() << 8 | u32::from(a.port_num), Ordering::Release);
    }

    fn check_values(&self, from: QpState, old: &QpAttr, new: &QpAttr, mask: u32) -> Result<()> {
        let device = self.context.device();
        let named = |bit: u32| mask & bit != 0;
        let port = if named(attr::PORT) { new.port_num } else { old.port_num };
        // Attribute, name, value and the allowed values. The MTU is not bounded by that of the port's interface: the
        // path may lead over another one.
        let bounds = [
            (attr::PORT, "port_num", u32::from(new.port_num), 1..=u32::from(device.ports())),
            (attr::PKEY_INDEX, "pkey_index", u32::from(new.pkey_index), 0..=LIMITS.pkeys - 1),
            (attr::PATH_MTU, "path_mtu", new.path_mtu, 1..=MTU_4096),
            (attr::TIMEOUT, "timeout", u32::from(new.timeout), 0..=31),
            (attr::RETRY_CNT, "retry_cnt", u32::from(new.retry_cnt), 0..=7),
            (attr::RNR_RETRY, "rnr_retry", u32::from(new.rnr_retry), 0..=7),
            (attr::MAX_QP_RD_ATOMIC, "max_rd_atomic", u32::from(new.max_rd_atomic), 0..=LIMITS.qp.max_rd_atom),
            (
                attr::MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                u32::from(new.max_dest_rd_atomic),
                0..=LIMITS.qp.max_rd_atom,
            ),
            (attr::DEST_QPN, "dest_qp_num", new.dest_qp_num, 0..=0x00ff_ffff),
        ];
        if let Some((_, name, value, allowed)) =
            bounds.into_iter().find(|(bit, _, value, allowed)| named(*bit) && !allowed.contains(value))
        {
            let (first, last) = allowed.into_inner();
            return Err(Error::invalid(format!("modify QP: {name} {value} is not in {first} to {last}")));
        }
        let unknown = new.qp_access_flags & !(OF_QP | access::OPTIONAL_RANGE);
        if named(attr::ACCESS_FLAGS) && unknown != 0 {
            return Err(Error::invalid(format!("modify QP: qp_access_flags {unknown:#x} are none of a QP")));
        }
        if named(attr::AV) {
            check_address(device, &new.ah, port)?;
            let leads_away = matches!(self.table.router.route(device.index(), &new.ah), Route::Carrier(_));
            if from == QpState::Sqd && new.ah != old.ah && (self.lock_sends().sq.is_remote() || leads_away) {
                return Err(Error::unsupported("the path of a QP whose peer is on another host cannot be changed"));
            }
        }
        if named(attr::ALT_PATH) || named(attr::PATH_MIG_STATE) {
            return Err(Error::unsupported("automatic path migration is not offered"));
        }
        Ok(())
    }

    /// Takes the attributes of a saved QP, whose state this one has, including those that no step to that state has
    /// set.
    pub(crate) fn take_attributes(&self, saved: &QpAttr) -> Result<()> {
        let mut a = self.attr.lock();
        let state = self.state();
        // Port, MTU and address are checked only if they are set: a QP that goes no further, or that has failed, may
        // still have their defaults.
        let set = |bit: u32, is_set: bool| if is_set { bit } else { 0 };
        self.check_values(
            state,
            saved,
            saved,
            set(attr::PORT, saved.port_num != 0)
                | set(attr::PATH_MTU, saved.path_mtu != 0)
                | set(attr::AV, saved.ah != AhAttr::default())
                | attr::ACCESS_FLAGS
                | attr::PKEY_INDEX
                | attr::TIMEOUT
                | attr::RETRY_CNT
                | attr::RNR_RETRY
                | attr::MAX_QP_RD_ATOMIC
                | attr::MAX_DEST_RD_ATOMIC
                | attr::DEST_QPN,
        )?;
        *a = QpAttr { cap: a.cap, qp_state: state, ..*saved };
        a.rq_psn &= PSN_MASK;
        a.sq_psn &= PSN_MASK;
        a.min_rnr_timer &= RNR_TIMER_MASK;
        self.publish(&a);
        let params = self.params(&a);
        self.change_sends(|sends| {
            sends.sq.set_params(params);
            sends.sq.begin_psns();
        });
        Ok(())
    }

    /// Returns the current attributes (`man ibv_query_qp`).
    pub fn query(&self) -> QpAttr {
        let mut a = *self.attr.lock();
        a.qp_state = self.state();
        a.cur_qp_state = a.qp_state;
        if !matches!(a.qp_state, QpState::Reset | QpState::Init) {
            let (next, expected) = self.psns();
            a.sq_psn = if a.qp_state == QpState::Rtr { a.sq_psn } else { next };
            a.rq_psn = expected.or_else(|| self.receives.expected_psn()).unwrap_or(a.rq_psn);
        }
        a.sq_draining = u8::from(a.qp_state == QpState::Sqd && self.is_draining());
        a
    }
}

impl Qp {
    /// The PSN of the next request, and with a carrier the PSN that is expected of the peer.
    fn psns(&self) -> (u32, Option<u32>) {
        let connection = if self.sends.raw().held_by_me() { None } else { self.lock_sends().connection.clone() };
        connection.iter().for_each(|connection| connection.ask_psns());
        if self.sends.raw().held_by_me() {
            // In the middle of a batch (`ibv_wr_start`).
            // SAFETY: this thread holds the lock, and no other reference is alive while it is in this call.
            return unsafe { self.sends.held() }.psns();
        }
        self.lock_sends().psns()
    }
}

/// Copies the attributes that `mask` names.
fn apply(a: &mut QpAttr, new: &QpAttr, mask: u32) {
    let named = |bit: u32| mask & bit != 0;
    macro_rules! take {
        ($($bit:ident => $field:ident),+ $(,)?) => { $(if named(attr::$bit) { a.$field = new.$field; })+ };
    }
    take!(
        ACCESS_FLAGS => qp_access_flags,
        PKEY_INDEX => pkey_index,
        PORT => port_num,
        QKEY => qkey,
        AV => ah,
        PATH_MTU => path_mtu,
        TIMEOUT => timeout,
        RETRY_CNT => retry_cnt,
        RNR_RETRY => rnr_retry,
        RQ_PSN => rq_psn,
        SQ_PSN => sq_psn,
        MAX_QP_RD_ATOMIC => max_rd_atomic,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
        MIN_RNR_TIMER => min_rnr_timer,
        DEST_QPN => dest_qp_num,
        EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
    );
    if named(attr::AV) && a.ah.port_num == 0 {
        a.ah.port_num = a.port_num;
    }
    a.qp_access_flags &= OF_QP;
    a.rq_psn &= PSN_MASK;
    a.sq_psn &= PSN_MASK;
    a.min_rnr_timer &= RNR_TIMER_MASK;
}
