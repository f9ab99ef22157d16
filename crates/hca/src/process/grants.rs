//! Grants: registered memory that a peer may write without asking each time, because the carrier's device puts there by itself.
//! Who takes a right away, a key or the state of a QP, has them taken back first, and waits until nothing more can come by them.
//! One that does not answer is waited for [`crate::process::revocation`]'s patience, as an initiator that stands still is.

use crate::host::lock::OwnerLock;
use crate::qp::Qp;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vervain_iba::{QpType, access};
use vervain_share::api::KIND_WINDOW;

/// A carrier whose peers write granted memory unasked. Peers are named by numbers that are never used again.
pub trait Grantor: Send + Sync {
    /// Takes back all that these peers were granted, and waits until nothing more is put there, for `patience` nanoseconds at most.
    /// Those that live and did not answer.
    fn take_back(&self, peers: &[u64], patience: u64) -> Vec<u64>;

    /// Whether a peer that did not answer may still put there.
    fn is_silent(&self, peer: u64) -> bool;
}

/// A region of memory that may be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grantable {
    /// How its first byte is addressed under its key.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Where it lies in the region of this node.
    pub offset: u64,
}

/// A grant that stands.
pub(super) struct Grant {
    pub(super) key: u32,
    pub(super) qpn: u32,
    pub(super) memory: Range<u64>,
    peer: u64,
    grantor: Arc<dyn Grantor>,
}

/// A peer that did not answer when its grants were taken back.
pub(super) struct Silent {
    peer: u64,
    grantor: Arc<dyn Grantor>,
    /// What it may still write.
    pub(super) memory: Range<u64>,
}

impl Silent {
    /// Whether it may still put there.
    pub(super) fn remains(&self) -> bool {
        self.grantor.is_silent(self.peer)
    }
}

/// The grants of a process.
#[derive(Default)]
pub(crate) struct Grants {
    /// How many stand, or are being made.
    count: AtomicUsize,
    /// Held while grants are taken back: who revokes something else of the same peer waits for that too.
    list: OwnerLock<Vec<Grant>>,
}

impl Grants {
    /// Takes back the grants for which `which` is true, and with them all others of the same peers. What peers that do not answer
    /// within `patience` nanoseconds may still write; of others everything has landed.
    pub(super) fn take_back(&self, which: impl Fn(&Grant) -> bool, patience: u64) -> Vec<Silent> {
        self.take(which, patience, |_| true)
            .into_iter()
            .filter_map(|(silent, is_silent)| is_silent.then_some(silent))
            .collect()
    }

    /// Asks for all grants, and waits for `patience` nanoseconds. Those of peers that do not answer stand.
    pub(super) fn ask_back(&self, patience: u64) {
        drop(self.take(|_| true, patience, |is_silent| !is_silent));
    }

    /// Grants that were taken from the list, where `ends` is true of whether the peer was silent.
    fn take(&self, which: impl Fn(&Grant) -> bool, patience: u64, ends: impl Fn(bool) -> bool) -> Vec<(Silent, bool)> {
        // What makes `which` true was stored before; whoever grants counts before it looks at that.
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut list = self.list.lock();
        let mut peers: Vec<u64> = list.iter().filter(|g| which(g)).map(|g| g.peer).collect();
        peers.sort_unstable();
        peers.dedup();
        let Some(grantor) = list.first().map(|grant| Arc::clone(&grant.grantor)).filter(|_| !peers.is_empty()) else {
            return Vec::new();
        };
        let silent = grantor.take_back(&peers, patience);
        let taken = list.extract_if(.., |g| peers.binary_search(&g.peer).is_ok() && ends(silent.contains(&g.peer)));
        let taken = taken.map(|Grant { peer, grantor, memory, .. }| {
            let is_silent = silent.contains(&peer);
            (Silent { peer, grantor, memory }, is_silent)
        });
        let taken: Vec<_> = taken.collect();
        self.count.fetch_sub(taken.len(), Ordering::SeqCst);
        taken
    }
}

impl Qp {
    /// Grants `peer` the writing of the region of `rkey` by this QP, if the QP and the region allow it and the region lies in memory
    /// that peers can put to. None otherwise, and while grants are being taken back.
    pub fn grant(&self, rkey: u32, peer: u64, grantor: &Arc<dyn Grantor>) -> Option<Grantable> {
        self.add_grant(rkey, peer, grantor, || self.grantable(rkey))
    }

    /// Grants `peer` the writing of `memory`, addresses of this process that belong to a message in hand and were found by `key`: where
    /// in the region of this node that is. Ended by [`Qp::end_grant`] too.
    pub fn grant_memory(&self, key: u32, memory: &Range<u64>, peer: u64, grantor: &Arc<dyn Grantor>) -> Option<u64> {
        let find = || {
            let place = self.process.objects.source()?.find_range(memory.start, memory.end - memory.start);
            let offset = place.filter(|place| place.kind == KIND_WINDOW)?.offset;
            self.process.keys.find(key).filter(|_| self.may_grant())?;
            Some((Grantable { iova: 0, len: memory.end - memory.start, offset }, memory.clone()))
        };
        self.add_grant(key, peer, grantor, find).map(|grantable| grantable.offset)
    }

    /// Ends a grant of [`Qp::grant_memory`] that the peer will not use any more.
    pub fn end_grant(&self, memory: &Range<u64>, peer: u64) {
        let grants = &self.process.grants;
        // If it is being taken back just now, it ends by that.
        let Some(mut list) = grants.list.try_lock() else { return };
        if let Some(at) = list.iter().position(|g| g.peer == peer && g.qpn == self.qp_num() && g.memory == *memory) {
            list.swap_remove(at);
            grants.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn add_grant(
        &self,
        key: u32,
        peer: u64,
        grantor: &Arc<dyn Grantor>,
        find: impl FnOnce() -> Option<(Grantable, Range<u64>)>,
    ) -> Option<Grantable> {
        let grants = &self.process.grants;
        let mut list = grants.list.try_lock()?;
        grants.count.fetch_add(1, Ordering::SeqCst);
        let Some((grantable, memory)) = find() else {
            grants.count.fetch_sub(1, Ordering::SeqCst);
            return None;
        };
        list.push(Grant { key, qpn: self.qp_num(), memory, peer, grantor: Arc::clone(grantor) });
        Some(grantable)
    }

    /// Whether grants are given out now.
    fn may_grant(&self) -> bool {
        self.process.own.header.paused.load(Ordering::SeqCst) == 0 && self.receives()
    }

    /// What may be granted of `rkey`, and its addresses in this process. Windows are not: they are bound and invalidated by requests.
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
        // Revoked meanwhile, the entry may be another region's.
        process.keys.find(rkey)?;
        Some((Grantable { iova, len, offset: place.offset }, host..host + len))
    }
}
