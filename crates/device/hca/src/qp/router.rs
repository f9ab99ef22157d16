//! The router chooses the way to a peer: memory or a carrier. It alone has the rule (`VERVAIN_LINK` may force either).

use crate::context::Pd;
use crate::device::{Device, LinkChoice, is_multicast, is_this_host};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::qp::Qp;
use crate::qp::ah::{Ah, Route, check_address};
use crate::qp::carrier::{Carrier, Connection, ServiceClaim};
use crate::qp::table::QpTable;
use std::sync::Arc;
use std::time::Duration;
use vervain_config::LINK;
use vervain_iba::{AhAttr, Gid, QpAttr};

/// The carriers of a process, and the rule by which one is chosen.
pub struct Router {
    choice: LinkChoice,
    devices: Vec<Arc<Device>>,
    /// In the order of preference.
    carriers: Vec<Arc<dyn Carrier>>,
}

impl Router {
    /// A router for `devices`, by index.
    pub fn new(choice: LinkChoice, devices: Vec<Arc<Device>>, carriers: Vec<Arc<dyn Carrier>>) -> Router {
        Router { choice, devices, carriers }
    }

    /// The way to an address.
    pub(crate) fn route(&self, device: u32, ah: &AhAttr) -> Route {
        let device = self.devices.get(device as usize);
        let carrier = device.and_then(|d| self.carriers.iter().position(|carrier| carrier.carries(d, ah)));
        let here = is_this_host(&self.devices, ah);
        match (self.choice, carrier) {
            (LinkChoice::Roce | LinkChoice::Window, Some(n)) => Route::Carrier(n),
            (LinkChoice::Auto, Some(n)) if is_multicast(&ah.grh.dgid) => {
                if self.carriers[n].reaches_this_host() {
                    Route::Carrier(n)
                } else {
                    Route::Both(n)
                }
            }
            (LinkChoice::Window, None) => Route::Unreachable,
            _ if here => Route::Memory,
            (LinkChoice::Auto, Some(n)) => Route::Carrier(n),
            _ => Route::Unreachable,
        }
    }

    /// The carrier of a route.
    pub(crate) fn carrier(&self, route: Route) -> Option<&dyn Carrier> {
        self.carriers.get(route.carrier()?).map(|carrier| &**carrier)
    }

    /// Connects `qp`, which goes to RTR with these attributes, if a carrier reaches its peer. None if memory does.
    pub(crate) fn connect(&self, qp: &Arc<Qp>, attr: &QpAttr) -> Result<Option<Arc<dyn Connection>>> {
        let Some(carrier) = self.carrier(self.route(qp.device_index(), &attr.ah)) else { return Ok(None) };
        let connection = carrier.connect(qp, attr)?;
        qp.process().expect_packets();
        Ok(Some(connection))
    }

    /// Registers `qp`, which goes to RTR, with the carriers for datagrams. Their errors count only if `VERVAIN_LINK`
    /// forces a carrier.
    pub(crate) fn register_qp(&self, qp: &Arc<Qp>) -> Result<()> {
        let register = |carrier: &Arc<dyn Carrier>| carrier.register_qp(qp).map(|()| qp.process().expect_packets());
        let mut registered = self.carriers.iter().map(register);
        match self.choice {
            LinkChoice::Local => Ok(()),
            LinkChoice::Auto => {
                // Every carrier is asked; some may fail.
                registered.for_each(drop);
                Ok(())
            }
            LinkChoice::Roce | LinkChoice::Window => registered.try_for_each(|registered| registered),
        }
    }

    /// Sends the datagrams that the calling thread has queued.
    pub(crate) fn flush(&self) {
        self.carriers.iter().for_each(|carrier| carrier.flush());
    }

    /// See [`Carrier::let_arrive`].
    pub(crate) fn let_arrive(&self, process: &'static Process, qpn: u32) {
        self.carriers.iter().for_each(|carrier| carrier.let_arrive(process, qpn));
    }

    /// QP `qpn` is reset or destroyed.
    pub(crate) fn unregister_qp(&self, qpn: u32) {
        self.carriers.iter().for_each(|carrier| carrier.unregister_qp(qpn));
    }

    /// The way to an address, after a check that messages can leave from its source and that its host can be reached,
    /// as far as a carrier knows.
    fn check(&self, process: &'static Process, device: u32, ah: &AhAttr) -> Result<Route> {
        let route = self.route(device, ah);
        if let (Route::Carrier(_), Some(carrier)) = (route, self.carrier(route)) {
            carrier.check_source(process, device, ah)?;
            carrier.resolve(device, ah, Duration::ZERO)?;
        }
        Ok(route)
    }

    /// The carrier of management datagrams to an address; None for an address of this host, whose processes reach each
    /// other without one. Errors as of [`Ah::create`].
    pub fn way_of_mads(&self, device: u32, ah: &AhAttr) -> Result<Option<&dyn Carrier>> {
        let from = self.devices.get(device as usize);
        let from = from.ok_or_else(|| Error::invalid(format!("there is no device {device}")))?;
        check_address(from, ah, 0)?;
        if is_multicast(&ah.grh.dgid) {
            return Err(Error::invalid("QP 1 is in no multicast group"));
        }
        match self.route(device, ah) {
            Route::Memory => Ok(None),
            Route::Unreachable => Err(Error::new(libc::ENETUNREACH, format!("no way leads there ({})", LINK.name()))),
            route => Ok(self.carrier(route)),
        }
    }

    /// Has the carriers lead management datagrams to this process ([`Carrier::serve`]). Their errors count only if
    /// `VERVAIN_LINK` forces a carrier; else they are logged.
    pub fn serve(&self, process: &'static Process, slot: u32, services: &[ServiceClaim]) -> Result<()> {
        let mut served = self.carriers.iter().map(|carrier| carrier.serve(process, slot, services));
        match self.choice {
            LinkChoice::Local => Ok(()),
            LinkChoice::Auto => {
                served
                    .filter_map(std::result::Result::err)
                    .for_each(|e| log::info!("no connection manager elsewhere reaches it: {e}"));
                Ok(())
            }
            LinkChoice::Roce | LinkChoice::Window => served.try_for_each(|served| served),
        }
    }

    /// Adds `qp` to a multicast group; when this returns, senders of this host know.
    pub(crate) fn join(&self, group: &Gid, qp: &Qp) -> Result<()> {
        if self.choice != LinkChoice::Local {
            self.carriers.iter().try_for_each(|carrier| carrier.join(group, qp))?;
        }
        qp.process.rendezvous.join(qp.process, group, qp.qp_num())
    }

    /// Removes `qp` from the group.
    ///
    /// # Errors
    /// EINVAL if it was not a member.
    pub(crate) fn leave(&self, group: &Gid, qp: &Qp) -> Result<()> {
        let (process, qpn) = (qp.process, qp.qp_num());
        if !process.rendezvous.members(process, group).contains(&qpn) {
            return Err(Error::invalid("the QP is not in that multicast group"));
        }
        process.rendezvous.leave(process, group, qpn);
        self.carriers.iter().for_each(|carrier| carrier.leave(group, qpn));
        Ok(())
    }
}

impl Ah {
    /// Makes an address handle (`man ibv_create_ah`).
    pub fn create(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<Ah>> {
        pd.process.check()?;
        check_address(pd.device(), attr, 0)?;
        // Checked once, as an HCA does: datagrams are posted often.
        let route = QpTable::of(pd.process)?.router.check(pd.process, pd.device().index(), attr)?;
        Ok(Ah::new(pd, attr, route))
    }
}
