//! A shared receive queue that stands still, as a record from which another is made.

use crate::context::{Context, Pd};
use crate::cq::Cq;
use crate::error::{Error, Result};
use crate::rq::saved::SavedReceive;
use crate::srq::xrcd::Xrcd;
use crate::srq::{Srq, SrqInit};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The contents of an SRQ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSrq {
    /// Its number; 0 for one that is not XRC.
    pub number: u32,
    /// Receives that may be outstanding.
    pub max_wr: u32,
    /// Pieces in each.
    pub max_sge: u32,
    /// The limit that is armed, 0 for none.
    pub srq_limit: u32,
    /// Outstanding receives, the oldest first.
    pub receives: Vec<SavedReceive>,
}

impl Srq {
    /// The state that another SRQ needs to take its place. Its CQs were saved before, for completed receives are not
    /// outstanding any more.
    pub fn save(&self) -> SavedSrq {
        let (max_wr, max_sge, srq_limit) = self.query();
        SavedSrq { number: self.number, max_wr, max_sge, srq_limit, receives: self.rq.outstanding_receives() }
    }

    /// The XRC domain and the CQ of an XRC SRQ.
    pub fn xrc(&self) -> Option<(&Arc<Xrcd>, &Arc<Cq>)> {
        self.xrc.as_ref().map(|(xrcd, cq)| (xrcd, cq))
    }

    /// Makes the SRQ of `saved`; `xrc` as in [`SrqInit`]. EEXIST if its number is in use.
    pub fn restore(
        context: &Arc<Context>,
        pd: &Arc<Pd>,
        xrc: Option<(&Arc<Xrcd>, &Arc<Cq>)>,
        cookie: usize,
        saved: &SavedSrq,
    ) -> Result<Arc<Srq>> {
        let &SavedSrq { number, max_wr, max_sge, srq_limit, .. } = saved;
        if (number != 0) != xrc.is_some() {
            return Err(Error::invalid("an SRQ has a number if it is XRC"));
        }
        if srq_limit > max_wr {
            return Err(Error::invalid("the SRQ limit is above its size"));
        }
        let init = SrqInit { max_wr, max_sge, cookie, xrc };
        let srq = Self::with_number(context, pd, &init, Some(number))?;
        // Armed while the queue is empty: nothing can be taken from it before.
        srq.rq.view.shared.limit.store(srq_limit, Ordering::Relaxed);
        let posted = srq.rq.post_again(&saved.receives);
        if let Err(e) = posted {
            let _ = srq.destroy();
            return Err(e);
        }
        Ok(srq)
    }
}
