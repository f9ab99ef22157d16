//! Address handles (IBA 11.2.2).

use crate::device::context::Pd;
use crate::error::Result;
use crate::process::link::Route;
use crate::types::AhAttr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a datagram goes.
pub struct Ah {
    pd: Arc<Pd>,
    attr: AhAttr,
    route: Route,
}

impl Ah {
    pub(crate) fn create(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<Ah>> {
        pd.process.check()?;
        crate::qp::modify::check_address(pd.device(), attr, 0)?;
        // Once, as an HCA does: datagrams are posted often.
        let route = pd.process.link.route(pd.device().index(), attr);
        if route == Route::Packets {
            pd.process.link.check_source(pd.process, pd.device().index(), attr)?;
            pd.process.link.resolve(pd.device().index(), attr)?;
        }
        pd.users.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Ah { pd: Arc::clone(pd), attr: *attr, route }))
    }

    /// The address.
    #[inline]
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// Where it leads.
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
