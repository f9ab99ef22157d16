//! Address handles (IBA 11.2.2).

use crate::context::Pd;
use crate::device::Device;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::AhAttr;

/// The way to an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// To this host: its processes are reached by memory.
    Memory,
    /// Away, by the carrier of this number.
    Carrier(usize),
    /// To both, by the carrier of this number: a multicast group.
    Both(usize),
    /// Nowhere.
    #[default]
    Unreachable,
}

impl Route {
    /// Returns true if it leads to processes of this host, perhaps among others.
    pub(crate) fn has_memory(self) -> bool {
        matches!(self, Route::Memory | Route::Both(_))
    }

    /// The carrier that it leads by.
    pub(crate) fn carrier(self) -> Option<usize> {
        match self {
            Route::Carrier(n) | Route::Both(n) => Some(n),
            Route::Memory | Route::Unreachable => None,
        }
    }
}

/// An address handle: the destination of datagrams.
pub struct Ah {
    pd: Arc<Pd>,
    attr: AhAttr,
    route: Route,
}

impl Ah {
    /// A handle of an address that is good for the device of `pd`, and leads by `route`.
    pub(crate) fn new(pd: &Arc<Pd>, attr: &AhAttr, route: Route) -> Arc<Ah> {
        pd.users.fetch_add(1, Ordering::Relaxed);
        Arc::new(Ah { pd: Arc::clone(pd), attr: *attr, route })
    }

    /// The address.
    #[inline]
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// The way to the address.
    #[inline]
    pub(crate) fn route(&self) -> Route {
        self.route
    }

    /// Destroys it. Datagrams posted with it are not affected: they carry the address.
    pub fn destroy(&self) -> Result<()> {
        self.pd.users.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Checks that the port can use the address: Ethernet needs a GRH, and the source GID must exist (IBA 11.2.2.1, annex
/// A17.4).
pub(crate) fn check_address(device: &Device, ah: &AhAttr, port: u8) -> Result<()> {
    let port = if ah.port_num == 0 { port } else { ah.port_num };
    if port == 0 || port > device.ports() {
        return Err(Error::invalid(format!("the address names port {port}")));
    }
    if device.is_ethernet() && !ah.is_global {
        return Err(Error::invalid("on Ethernet an address needs a GID (is_global); perftest: -x, pingpong: -g"));
    }
    if ah.is_global && device.gid(port, u32::from(ah.grh.sgid_index)).map_or(true, |g| g == [0; 16]) {
        return Err(Error::invalid(format!("the port has no GID at index {}", ah.grh.sgid_index)));
    }
    Ok(())
}
