//! Grants: registered memory that a peer may write without asking each time, because the carrier's device puts there by
//! itself. Before a right is taken away, a key or the state of a QP, they are taken back, with a wait until nothing
//! more can come by them. The wait for a peer that does not answer is as long as that of a revocation for an initiator
//! that stands still.

use crate::host::lock::OwnerLock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

/// A carrier whose peers write granted memory unasked. Peers are named by numbers that are never used again.
pub trait Grantor: Send + Sync {
    /// Takes back all that these peers were granted, and waits until nothing more is put there, for `patience`
    /// nanoseconds at most. Those that live and did not answer.
    fn take_back(&self, peers: &[u64], patience: u64) -> Vec<u64>;

    /// Returns true if a peer that did not answer may still put there.
    fn is_silent(&self, peer: u64) -> bool;
}

/// A region of memory that may be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grantable {
    /// How its first byte is addressed under its key.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Its offset in the region of this node.
    pub offset: u64,
    /// The incarnation that has claimed it there, which need not be that of the process (`vervain_share::api::Place`).
    pub owner: u64,
}

/// A grant that stands.
pub(crate) struct Grant {
    pub(crate) key: u32,
    pub(crate) qpn: u32,
    pub(crate) memory: Range<u64>,
    peer: u64,
    grantor: Arc<dyn Grantor>,
}

/// A peer that did not answer when its grants were taken back.
pub(crate) struct Silent {
    peer: u64,
    grantor: Arc<dyn Grantor>,
    /// The memory that it may still write.
    pub(crate) memory: Range<u64>,
}

impl Silent {
    /// Returns true if it may still put there.
    pub(crate) fn remains(&self) -> bool {
        self.grantor.is_silent(self.peer)
    }
}

/// The grants of a process.
#[derive(Default)]
pub(crate) struct Grants {
    /// The number of grants that are made or being made.
    count: AtomicUsize,
    /// Held while grants are taken back: a revocation of another right of the same peer waits for that too.
    list: OwnerLock<Vec<Grant>>,
}

impl Grants {
    /// Takes back the grants for which `which` is true, and with them all others of the same peers. Returns the memory
    /// that peers that do not answer within `patience` nanoseconds may still write; the writes of all others have
    /// landed.
    pub(crate) fn take_back(&self, which: impl Fn(&Grant) -> bool, patience: u64) -> Vec<Silent> {
        self.take(which, patience, |_| true)
            .into_iter()
            .filter_map(|(silent, is_silent)| is_silent.then_some(silent))
            .collect()
    }

    /// Asks for the grants for which `which` is true, and waits for `patience` nanoseconds. Those of peers that do not
    /// answer stand; whether there are none such.
    pub(crate) fn ask_back(&self, which: impl Fn(&Grant) -> bool, patience: u64) -> bool {
        self.take(&which, patience, |is_silent| !is_silent);
        self.count.load(Ordering::SeqCst) == 0 || !self.list.lock().iter().any(which)
    }

    /// Grants that were taken from the list, where `ends` is true of whether the peer was silent.
    fn take(&self, which: impl Fn(&Grant) -> bool, patience: u64, ends: impl Fn(bool) -> bool) -> Vec<(Silent, bool)> {
        // The change that makes `which` true was stored before; a grantor counts before it looks at that. One of the
        // two sees the other.
        fence(Ordering::SeqCst);
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

    /// Adds a grant of what `find` finds, if it does; none while grants are being taken back.
    pub(crate) fn add(
        &self,
        (key, qpn): (u32, u32),
        peer: u64,
        grantor: &Arc<dyn Grantor>,
        find: impl FnOnce() -> Option<(Grantable, Range<u64>)>,
    ) -> Option<Grantable> {
        let mut list = self.list.try_lock()?;
        // Before `find` looks whether the key is good and the QP receives: see `take`.
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let Some((grantable, memory)) = find() else {
            self.count.fetch_sub(1, Ordering::SeqCst);
            return None;
        };
        list.push(Grant { key, qpn, memory, peer, grantor: Arc::clone(grantor) });
        Some(grantable)
    }

    /// Ends the grant of `memory` by a QP to a peer that does not use it any more.
    pub(crate) fn end(&self, qpn: u32, memory: &Range<u64>, peer: u64) {
        // If it is being taken back just now, it ends by that.
        let Some(mut list) = self.list.try_lock() else { return };
        if let Some(at) = list.iter().position(|g| g.peer == peer && g.qpn == qpn && g.memory == *memory) {
            list.swap_remove(at);
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants of peers, of which those with even numbers answer.
    #[derive(Default)]
    struct Fake(OwnerLock<Vec<u64>>);

    impl Grantor for Fake {
        fn take_back(&self, peers: &[u64], _patience: u64) -> Vec<u64> {
            self.0.lock().extend(peers);
            peers.iter().copied().filter(|peer| peer % 2 == 1).collect()
        }

        fn is_silent(&self, peer: u64) -> bool {
            peer % 2 == 1
        }
    }

    #[test]
    fn what_is_taken_back_is_all_of_the_peers_that_have_some_of_it() {
        let (grants, fake) = (Grants::default(), Arc::new(Fake::default()));
        let grantor: Arc<dyn Grantor> = Arc::clone(&fake) as _;
        let add = |key: u32, qpn: u32, peer: u64| {
            let memory = u64::from(key) << 12..(u64::from(key) << 12) + 64;
            grants
                .add((key, qpn), peer, &grantor, || Some((Grantable { iova: 0, len: 64, offset: 0, owner: 0 }, memory)))
        };
        let left = || grants.list.lock().iter().map(|g| (g.key, g.peer)).collect::<Vec<_>>();
        for (key, qpn, peer) in [(1, 7, 2), (2, 7, 2), (1, 8, 3), (3, 9, 4)] {
            assert!(add(key, qpn, peer).is_some());
        }
        assert!(grants.add((5, 5), 4, &grantor, || None).is_none());
        // Peers are not asked for grants that they do not have.
        assert!(grants.take_back(|g| g.key == 9, 0).is_empty());
        assert!(fake.0.lock().is_empty());
        // Those that do not answer keep theirs when they were only asked.
        assert!(!grants.ask_back(|_| true, 0));
        assert_eq!((left(), std::mem::take(&mut *fake.0.lock())), (vec![(1, 3)], vec![2, 3, 4]));
        for (key, qpn, peer) in [(1, 7, 2), (2, 7, 2), (3, 9, 4)] {
            assert!(add(key, qpn, peer).is_some());
        }
        let silent = grants.take_back(|g| g.key == 1, 0);
        assert_eq!(silent.iter().map(|s| (s.peer, s.memory.start)).collect::<Vec<_>>(), [(3, 1 << 12)]);
        assert!(silent.iter().all(Silent::remains));
        assert_eq!(left(), [(3, 4)], "with the key of another region of the same peer");
        assert!(grants.ask_back(|g| g.key == 1, 0));
        grants.end(9, &(3 << 12..(3 << 12) + 64), 4);
        assert_eq!((left(), grants.count.load(Ordering::SeqCst)), (vec![], 0));
    }

    #[test]
    fn nothing_is_granted_while_grants_are_taken_back() {
        let grants = Grants::default();
        let grantor: Arc<dyn Grantor> = Arc::new(Fake::default());
        let _taking = grants.list.lock();
        let found = || Some((Grantable { iova: 0, len: 8, offset: 0, owner: 0 }, 0..8));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| grants.add((1, 1), 2, &grantor, found));
            assert!(other.join().unwrap().is_none());
        });
    }
}
