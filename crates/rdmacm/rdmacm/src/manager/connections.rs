//! Connections, as the program makes and ends them.

use std::ffi::c_int;
use std::net::SocketAddr;

use vervain_abi::*;
use vervain_cm::message::{IpHeader, sidr};
use vervain_cm::{CommId, Ece, Machine, RepParams, ReqParams, SidrRepParams, SidrReqParams};
use vervain_gsi::Path;

use super::ident::Phase;
use super::{Manager, State, now, service};
use crate::abi::*;
use crate::address::any_like;
use crate::reports::{ConnParam, Handle};

/// Requests that wait for a program that has named no backlog, as the kernel has it.
const DEFAULT_BACKLOG: usize = 1024;

/// Private data in the room that a message has for it; EINVAL where it has not.
fn room<const N: usize>(parts: &[&[u8]]) -> Result<[u8; N], c_int> {
    let all = parts.concat();
    let mut room = [0; N];
    room.get_mut(..all.len()).ok_or(libc::EINVAL)?.copy_from_slice(&all);
    Ok(room)
}

/// Time for which a request for a service without a listener is repeated, and the pauses in between, each twice as
/// long. Programs tell each other by other means when to connect, some before they listen: with the kernel and an
/// adapter, the connecting side takes longer to get there.
const PATIENCE_NS: u64 = 1_000_000_000;
const FIRST_PAUSE_NS: u64 = 1_000_000;
const LONGEST_PAUSE_NS: u64 = 64_000_000;

/// The request of `rdma_connect`.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    path: Path,
    ask: Ask,
    /// Time at which the request for a service without a listener is given up, and the pause before the next one.
    until: u64,
    pause: u64,
}

#[derive(Clone, Copy)]
#[allow(clippy::large_enum_variant, reason = "one of each is as rare as the other")]
enum Ask {
    Connection(ReqParams),
    Datagrams(SidrReqParams),
}

impl Attempt {
    /// Asks.
    fn start(&self, machine: &mut Machine) -> CommId {
        match &self.ask {
            Ask::Connection(params) => machine.connect(now(), self.path, params),
            Ask::Datagrams(params) => machine.sidr_request(now(), self.path, params),
        }
    }
}

impl State {
    /// Has it asked again what nobody had, unless that has been for long enough.
    pub(super) fn asks_again(&mut self, conn: CommId) -> bool {
        let Some(id) = self.by_conn.get(&conn).copied() else { return false };
        let Some(ident) = self.ids.get_mut(&id).filter(|ident| ident.phase == Phase::Connecting) else { return false };
        let Some(attempt) = ident.attempt.as_mut() else { return false };
        let at = now() + attempt.pause;
        if at > attempt.until {
            return false;
        }
        attempt.pause = (attempt.pause * 2).min(LONGEST_PAUSE_NS);
        self.by_conn.remove(&conn);
        let _ = self.machine.destroy(now(), conn);
        self.again.push((at, id));
        true
    }

    /// Asks again for those whose time has come.
    pub(super) fn ask_again(&mut self, at: u64) {
        for (due, id) in std::mem::take(&mut self.again) {
            // The program may have destroyed it meanwhile.
            let Some(ident) = self.ids.get_mut(&id).filter(|ident| ident.phase == Phase::Connecting) else { continue };
            let Some(attempt) = &ident.attempt else { continue };
            if due > at {
                self.again.push((due, id));
                continue;
            }
            let conn = attempt.start(&mut self.machine);
            ident.conn = Some(conn);
            self.by_conn.insert(conn, id);
        }
    }
}

impl Manager {
    /// `rdma_listen(3)`.
    pub fn listen(&self, id: Handle, backlog: c_int) -> Result<(), c_int> {
        if self.with(id, |_, ident, _| Ok(ident.phase))? == Phase::Idle {
            self.bind(id, any_like(&SocketAddr::from(([0, 0, 0, 0], 0)), 0))?;
        }
        let mut state = self.state();
        let ident = state.ids.get(&id).ok_or(libc::EINVAL)?;
        if ident.phase != Phase::Bound {
            return Err(libc::EINVAL);
        }
        let claim = ident.claim.ok_or(libc::EINVAL)?;
        let listeners = state.listeners.get(&claim.service()).cloned().unwrap_or_default();
        if listeners.iter().any(|other| {
            state.ids.get(other).and_then(|other| other.claim).is_some_and(|other| !claim.is_apart_from(&other))
        }) {
            return Err(libc::EADDRINUSE);
        }
        state.listeners.entry(claim.service()).or_default().push(id);
        let ident = state.ids.get_mut(&id).ok_or(libc::EINVAL)?;
        ident.phase = Phase::Listening;
        ident.backlog.open(usize::try_from(backlog).ok().filter(|n| *n > 0).unwrap_or(DEFAULT_BACKLOG));
        Ok(())
    }

    /// `rdma_connect(3)`.
    pub fn connect(&self, id: Handle, param: &ConnParam) -> Result<(), c_int> {
        let mut state = self.state();
        let State { machine, ids, by_conn, .. } = &mut *state;
        let ident = ids.get_mut(&id).ok_or(libc::EINVAL)?;
        if ident.phase != Phase::RouteResolved {
            return Err(libc::EINVAL);
        }
        let (Some(path), Some(from), Some(to), Some(route)) = (ident.path(), ident.from, ident.to, ident.route) else {
            return Err(libc::EINVAL);
        };
        let header = IpHeader { source: from.ip(), source_port: from.port(), destination: to.ip() }.encode();
        let service_id = service(ident.space, to.port());
        let ask = if ident.is_datagram() {
            let private_data = room(&[&header, &param.private_data])?;
            Ask::Datagrams(SidrReqParams { service_id, private_data, ..SidrReqParams::default() })
        } else {
            let private_data = room(&[&header, &param.private_data])?;
            let parameters = ident.parameters.ask(param, route.mtu);
            Ask::Connection(ReqParams {
                service_id,
                service: ident.service(),
                private_data,
                ca_guid: u64::from_be(self.devices[route.source.device].guid),
                ece: Ece { vendor: ident.own_ece.vendor_id, options: ident.own_ece.options },
                ..parameters
            })
        };
        let attempt = Attempt { path, ask, until: now() + PATIENCE_NS, pause: FIRST_PAUSE_NS };
        let conn = attempt.start(machine);
        ident.attempt = Some(attempt);
        ident.conn = Some(conn);
        ident.phase = Phase::Connecting;
        by_conn.insert(conn, id);
        self.go_on(state);
        Ok(())
    }

    /// `rdma_accept(3)` of a request, and of a response where the program moves its QP itself.
    pub fn accept(&self, id: Handle, param: &ConnParam) -> Result<(), c_int> {
        self.with(id, |machine, ident, now| {
            let conn = ident.conn.ok_or(libc::EINVAL)?;
            if ident.phase != Phase::Requested {
                return Err(libc::EINVAL);
            }
            let ece = Ece { vendor: ident.own_ece.vendor_id, options: ident.own_ece.options };
            if ident.is_datagram() {
                let params = SidrRepParams {
                    status: sidr::SUCCESS,
                    qpn: param.qpn,
                    qkey: param.qkey,
                    ece,
                    private_data: room(&[&param.private_data])?,
                    ..SidrRepParams::default()
                };
                machine.sidr_reply(now, conn, &params).map_err(|_| libc::EINVAL)?;
                ident.phase = Phase::Connected;
                return Ok(());
            }
            let device = ident.route.map(|route| &self.devices[route.source.device]);
            let params = RepParams {
                ca_guid: device.map_or(0, |device| u64::from_be(device.guid)),
                ece,
                private_data: room(&[&param.private_data])?,
                ..ident.parameters.answer(param)
            };
            machine.accept(now, conn, &params).map_err(|_| libc::EINVAL)?;
            ident.parameters.take(param);
            ident.phase = Phase::Accepted;
            Ok(())
        })
    }

    /// The QP of who has asked is ready: the response is confirmed.
    pub fn ready(&self, id: Handle) -> Result<(), c_int> {
        self.with(id, |machine, ident, now| {
            let conn = ident.conn.filter(|_| ident.phase == Phase::Connecting).ok_or(libc::EINVAL)?;
            machine.ready(now, conn, &[]).map_err(|_| libc::EINVAL)?;
            ident.phase = Phase::Connected;
            Ok(())
        })
    }

    /// `rdma_reject(3)`, and `rdma_reject_ece(3)` by another reason.
    pub fn reject(&self, id: Handle, reason: u16, private_data: &[u8]) -> Result<(), c_int> {
        self.with(id, |machine, ident, now| {
            let conn = ident.conn.ok_or(libc::EINVAL)?;
            if ident.is_datagram() {
                let private_data = room(&[private_data])?;
                let params = SidrRepParams { status: sidr::REJECT, private_data, ..SidrRepParams::default() };
                machine.sidr_reply(now, conn, &params).map_err(|_| libc::EINVAL)?;
            } else {
                machine.reject(now, conn, reason, &[], private_data).map_err(|_| libc::EINVAL)?;
            }
            ident.phase = Phase::Disconnected;
            Ok(())
        })
    }

    /// `rdma_disconnect(3)`: of a connection that has ended, or is none yet, too, as the kernel has it.
    pub fn disconnect(&self, id: Handle) -> Result<(), c_int> {
        self.with(id, |machine, ident, now| {
            let conn = ident.conn.ok_or(libc::EINVAL)?;
            if !ident.is_datagram() {
                let _ = machine.disconnect(now, conn, &[]);
            }
            Ok(())
        })
    }

    /// `rdma_notify(3)`: the QP has taken a message before the confirmation came.
    pub fn is_established(&self, id: Handle) -> Result<(), c_int> {
        self.with(id, |machine, ident, now| {
            let conn = ident.conn.ok_or(libc::EINVAL)?;
            machine.established(now, conn).map_err(|why| match why {
                vervain_cm::Error::Established => libc::EISCONN,
                _ => libc::EINVAL,
            })
        })
    }

    /// The attributes, and their mask, with which the QP of an identifier is moved to `to`. EINVAL if it is too early
    /// for that.
    pub fn qp_attr(&self, id: Handle, to: ibv_qp_state) -> Result<(ibv_qp_attr, c_int), c_int> {
        self.with(id, |_, ident, _| {
            let route = ident.route.ok_or(libc::EINVAL)?;
            let mut attr = ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() };
            // A QP of RC asks and answers, an end of XRC does one of it, one of UC neither, and has attributes of that
            // only (ibv_modify_qp(3)).
            let asks = matches!(ident.qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND);
            let answers = matches!(ident.qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV);
            let mask = match to {
                IBV_QPS_INIT if ident.is_datagram() => {
                    attr.port_num = route.source.port;
                    attr.qkey = RDMA_UDP_QKEY;
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
                }
                IBV_QPS_INIT => {
                    attr.port_num = route.source.port;
                    if ident.conn.is_some() {
                        attr.qp_access_flags = ident.parameters.access();
                    }
                    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
                }
                IBV_QPS_RTR if ident.is_datagram() => IBV_QP_STATE,
                IBV_QPS_RTS if ident.is_datagram() => IBV_QP_STATE | IBV_QP_SQ_PSN,
                _ if ident.conn.is_none() => return Err(libc::EINVAL),
                IBV_QPS_RTR => {
                    attr.ah_attr = route.ah();
                    ident.parameters.set_rtr(&mut attr);
                    let all = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
                    if answers { all | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER } else { all }
                }
                IBV_QPS_RTS => {
                    ident.parameters.set_rts(&mut attr);
                    let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
                    if asks || answers {
                        mask |= IBV_QP_TIMEOUT;
                    }
                    if asks {
                        mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
                    }
                    mask
                }
                _ => return Err(libc::EINVAL),
            };
            Ok((attr, mask as c_int))
        })
    }
}
