//! Addresses: ports that are claimed, routes that are found, groups that are joined.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use vervain_abi::*;
use vervain_gsi::ANY;

use super::Manager;
use super::ident::{Group, Phase};
use crate::abi::*;
use crate::address::{group_gid_of, socket_at};
use crate::device::{Route, are_of_the_loopback, is_any, route, source_of};
use crate::reports::{Handle, Report, What};

/// Bytes of the stack of a thread that asks whether a host answers.
const RESOLVE_STACK: usize = 256 << 10;

/// A setting of an identifier by the program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Setting {
    TrafficClass(u8),
    /// 4.096 us x 2^n, up to 31.
    AckTimeout(u8),
    ReusesAddress(bool),
    OnlyItsFamily(bool),
    OwnEce(ibv_ece),
}

impl Manager {
    /// The address that QP 1 knows for one of the program's.
    fn claimed_address(&self, address: &SocketAddr) -> Result<[u8; 16], c_int> {
        match source_of(&self.sources(), address) {
            _ if address.ip().is_unspecified() => Ok(ANY),
            Some(source) => Ok(source.gid.raw),
            None if is_any(address.ip()) => Ok(ANY),
            // It may be an address of the host that no device has.
            None if socket_at(&SocketAddr::new(address.ip(), 0)).is_ok() => Err(libc::ENODEV),
            None => Err(libc::EADDRNOTAVAIL),
        }
    }

    /// `rdma_bind_addr(3)`.
    pub fn bind(&self, id: Handle, address: SocketAddr) -> Result<(), c_int> {
        let (space, sharing) = self.with(id, |_, ident, _| {
            (ident.phase == Phase::Idle).then_some((ident.space, ident.sharing)).ok_or(libc::EINVAL)
        })?;
        let (claim, port) = self.claims.take(space, &address, self.claimed_address(&address)?, sharing)?;
        // The loopback's address stands for no device, as the kernel has it: libfabric, which binds to it to learn
        // that, would tell it to the peers of other hosts. Unless devices have no other.
        let sources = self.sources();
        let is_of_none = address.ip().is_unspecified() || is_any(address.ip()) && !are_of_the_loopback(&sources);
        let found = if is_of_none { None } else { source_of(&sources, &address) };
        let bound = self.with(id, |_, ident, _| {
            if ident.phase != Phase::Idle {
                return Err(libc::EINVAL);
            }
            ident.phase = Phase::Bound;
            ident.claim = Some(claim);
            ident.from = Some(SocketAddr::new(address.ip(), port));
            if let SocketAddr::V6(v6) = &mut ident.from.insert(address) {
                v6.set_port(port);
            } else if let Some(from) = &mut ident.from {
                from.set_port(port);
            }
            ident.route = found.map(|source| Route {
                source,
                dgid: ibv_gid::default(),
                is_local: true,
                mtu: IBV_MTU_1024,
                traffic_class: 0,
            });
            Ok(())
        });
        if bound.is_err() {
            self.claims.release(claim);
        }
        bound
    }

    /// `rdma_resolve_addr(3)`: errors that the kernel knows at once are returned, others are events. A host may take
    /// this long to answer.
    pub fn resolve_address(
        &'static self,
        id: Handle,
        from: Option<SocketAddr>,
        to: SocketAddr,
        patience_ms: u32,
    ) -> Result<(), c_int> {
        if let Some(from) = from
            && self.with(id, |_, ident, _| Ok(ident.phase))? == Phase::Idle
            && from.port() != 0
        {
            self.bind(id, from)?;
        }
        let from = self.with(id, |_, ident, _| match ident.phase {
            Phase::Idle => Ok(from),
            Phase::Bound => Ok(ident.from),
            _ => Err(libc::EINVAL),
        })?;
        let (found, from, to) = match route(self.verbs, &self.devices, from, &to) {
            Ok(found) => found,
            Err(libc::ENODEV) => {
                return self.with(id, |_, ident, _| {
                    ident.to = Some(to);
                    ident.events.push(Report::plain(RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV));
                    Ok(())
                });
            }
            Err(errno) => return Err(errno),
        };
        let mut port = 0;
        {
            let mut state = self.state();
            let ident = state.ids.get(&id).ok_or(libc::EINVAL)?;
            if ident.claim.is_none() {
                port = state.unclaimed_port();
            }
        }
        let path = self.with(id, |_, ident, _| {
            if !matches!(ident.phase, Phase::Idle | Phase::Bound) {
                return Err(libc::EINVAL);
            }
            ident.phase = Phase::ResolvingAddress;
            let mut from = from;
            from.set_port(ident.claim.and(ident.from).map_or(port, |bound| bound.port()));
            ident.from = Some(from);
            ident.to = Some(to);
            ident.route = Some(Route { traffic_class: ident.traffic_class, ..found });
            ident.path().ok_or(libc::EINVAL)
        })?;
        if found.is_local || to.ip().is_multicast() {
            self.address_is_resolved(id, 0);
            return Ok(());
        }
        // It takes that long to learn that a host does not answer.
        let ask = move || {
            // SAFETY: a path.
            let failed = unsafe { (self.verbs.gsi.resolve)(&raw const path, patience_ms) };
            self.address_is_resolved(id, failed);
        };
        let asking = vervain_scheduler::spawn("rdma-resolve", RESOLVE_STACK, ask);
        asking.map(drop).map_err(|_| libc::ENOMEM)
    }

    fn address_is_resolved(&self, id: Handle, errno: c_int) {
        // The program may have destroyed it meanwhile.
        let _ = self.with(id, |_, ident, _| {
            if ident.phase != Phase::ResolvingAddress {
                return Ok(());
            }
            if errno == 0 {
                ident.phase = Phase::AddressResolved;
                ident.events.push(Report::plain(RDMA_CM_EVENT_ADDR_RESOLVED, 0));
            } else {
                ident.phase = if ident.claim.is_some() { Phase::Bound } else { Phase::Idle };
                ident.events.push(Report::plain(RDMA_CM_EVENT_ADDR_ERROR, -errno));
            }
            Ok(())
        });
    }

    /// `rdma_resolve_route(3)`: with RoCE there is nothing to ask.
    pub fn resolve_route(&self, id: Handle) -> Result<(), c_int> {
        self.with(id, |_, ident, _| {
            if ident.phase != Phase::AddressResolved {
                return Err(libc::EINVAL);
            }
            ident.phase = Phase::RouteResolved;
            ident.events.push(Report::plain(RDMA_CM_EVENT_ROUTE_RESOLVED, 0));
            Ok(())
        })
    }

    /// `rdma_set_option(3)` and `rdma_set_local_ece(3)`.
    pub fn set(&self, id: Handle, to: Setting) -> Result<(), c_int> {
        self.with(id, |_, ident, _| {
            match to {
                Setting::TrafficClass(class) => {
                    ident.traffic_class = class;
                    ident.route.iter_mut().for_each(|route| route.traffic_class = class);
                }
                Setting::AckTimeout(exponent) if exponent < 32 => ident.parameters.set_ack_timeout(exponent),
                // The rule of rdma_set_reuseaddr in the kernel.
                Setting::ReusesAddress(yes) if ident.phase == Phase::Idle || yes && ident.phase != Phase::Listening => {
                    ident.sharing.reuses_address = yes;
                }
                Setting::OnlyItsFamily(yes) if matches!(ident.phase, Phase::Idle | Phase::Bound) => {
                    ident.sharing.only_its_family = yes;
                }
                Setting::OwnEce(ece) => ident.own_ece = ece,
                _ => return Err(libc::EINVAL),
            }
            Ok(())
        })
    }

    /// `rdma_get_remote_ece(3)`.
    pub fn peer_ece(&self, id: Handle) -> Result<ibv_ece, c_int> {
        self.with(id, |_, ident, _| Ok(ident.peer_ece))
    }

    /// `rdma_join_multicast(3)`: the event names the group to attach the QP to.
    pub fn join(&self, id: Handle, group: IpAddr, context: usize) -> Result<(), c_int> {
        self.with(id, |_, ident, _| {
            let route = ident.route.ok_or(libc::EINVAL)?;
            if matches!(ident.phase, Phase::Idle | Phase::Listening) {
                return Err(libc::EINVAL);
            }
            let mgid = group_gid_of(group);
            let mut ah = route.ah();
            ah.grh.dgid = mgid;
            ident.groups.push(Group { mgid, address: group });
            let what = What::Group { mgid, ah, context };
            ident.events.push(Report { kind: RDMA_CM_EVENT_MULTICAST_JOIN, status: 0, what });
            Ok(())
        })
    }

    /// `rdma_leave_multicast(3)`: the GID of the group. EADDRNOTAVAIL where it is in none.
    pub fn leave(&self, id: Handle, group: IpAddr) -> Result<ibv_gid, c_int> {
        self.with(id, |_, ident, _| {
            let at = ident.groups.iter().position(|is| is.address == group).ok_or(libc::EADDRNOTAVAIL)?;
            let left = ident.groups.remove(at).mgid;
            // A join that the program has not heard of yet is not told any more.
            let is_its = |what: &What| matches!(what, What::Group { mgid, .. } if *mgid == left);
            ident.events.withdraw_if(is_its);
            Ok(left)
        })
    }
}
