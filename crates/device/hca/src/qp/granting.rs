//! Grants of a QP's memory, which a carrier lets its peer write unasked ([`crate::process::grants`]): the region of a
//! key, or that of a message in hand.

use crate::process::grants::{Grantable, Grantor};
use crate::qp::base::QpBase;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_iba::{QpType, access};
use vervain_share::api::KIND_WINDOW;

impl QpBase {
    /// Grants `peer` the writing of the region of `rkey` by this QP. None if the QP or the region does not allow it, if
    /// the region lies in memory that peers cannot put to, and while grants are being taken back.
    pub fn grant(&self, rkey: u32, peer: u64, grantor: &Arc<dyn Grantor>) -> Option<Grantable> {
        self.process.grants.add((rkey, self.qp_num()), peer, grantor, || self.grantable(rkey))
    }

    /// Grants `peer` the writing of `memory`, addresses of this process that belong to a message in hand and were found
    /// by `key`. [`QpBase::end_grant`] ends it too.
    pub fn grant_memory(
        &self,
        key: u32,
        memory: &Range<u64>,
        peer: u64,
        grantor: &Arc<dyn Grantor>,
    ) -> Option<Grantable> {
        let find = || {
            let place = self.process.objects.source()?.find_range(memory.start, memory.end - memory.start);
            let place = place.filter(|place| place.kind == KIND_WINDOW)?;
            self.process.keys.find(key).filter(|_| self.may_grant())?;
            let (len, offset, owner) = (memory.end - memory.start, place.offset, place.incarnation);
            Some((Grantable { iova: 0, len, offset, owner }, memory.clone()))
        };
        self.process.grants.add((key, self.qp_num()), peer, grantor, find)
    }

    /// Ends a grant of [`QpBase::grant_memory`] that the peer will not use any more.
    pub fn end_grant(&self, memory: &Range<u64>, peer: u64) {
        self.process.grants.end(self.qp_num(), memory, peer);
    }

    /// Returns true if grants may be given out now.
    fn may_grant(&self) -> bool {
        self.switch.closed.load(Ordering::SeqCst) == 0 && self.receives()
    }

    /// The grantable part of the region of `rkey`, and its addresses in this process. None for windows: requests bind
    /// and invalidate them.
    fn grantable(&self, rkey: u32) -> Option<(Grantable, Range<u64>)> {
        let process = self.process;
        let allows = self.shared.access.load(Ordering::SeqCst) & access::REMOTE_WRITE != 0;
        if !allows || !self.may_grant() || !matches!(self.qp_type(), QpType::Rc | QpType::Uc) {
            return None;
        }
        let entry = process.keys.find(rkey)?;
        let (pd, rights) = (entry.pd(), entry.access.load(Ordering::Relaxed));
        if entry.flags() != 0 || pd != self.shared.pd.load(Ordering::Relaxed) || rights & access::REMOTE_WRITE == 0 {
            return None;
        }
        let (iova, len) = (entry.iova.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
        let host = entry.host.load(Ordering::Relaxed);
        let place = process.objects.source()?.find_range(host, len).filter(|place| place.kind == KIND_WINDOW)?;
        // After a revocation meanwhile the entry may be another region's.
        process.keys.find(rkey)?;
        Some((Grantable { iova, len, offset: place.offset, owner: place.incarnation }, host..host + len))
    }
}
