//! Peers that were granted memory of this process, and this process as a grantee of theirs
//! ([`vervain_window::pairs::grant`]).

use super::pair::Pair;
use std::sync::{Arc, Weak};
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::grants::Grantor;
use vervain_window::pairs::block;
use vervain_window::pairs::grant::Grant;
use vervain_window::{Channel, GRANULE, PutDevice, UseGuard};

/// A hold on a peer's memory, and a channel that puts there.
pub type Way = (Arc<UseGuard>, Box<dyn Channel>);

/// The peers that were granted memory of this process.
pub struct Grantees {
    /// True if peers may put data directly to its destination here, and this process at theirs.
    pub direct: bool,
    device: Arc<dyn PutDevice>,
    /// Takes back what was granted.
    grantor: Weak<dyn Grantor>,
    noted: OwnerLock<Vec<Arc<Pair>>>,
}

impl Grantees {
    /// None so far. `grantor` takes back what they are granted.
    pub fn new(direct: bool, device: Arc<dyn PutDevice>, grantor: Weak<dyn Grantor>) -> Grantees {
        Grantees { direct, device, grantor, noted: OwnerLock::default() }
    }

    /// The revoker of grants.
    pub fn grantor(&self) -> Option<Arc<dyn Grantor>> {
        self.grantor.upgrade()
    }

    /// Returns true if a peer may get grants that has followed `count` revocations.
    pub fn may_grant(&self, pair: &Pair, count: u32) -> bool {
        self.direct && pair.told(block::GIVEN_BACK) == count
    }

    /// Notes that a peer is granted something, before it is: taking back waits for it even when the pair is over, as
    /// long as it lives.
    pub fn note(&self, pair: &Arc<Pair>) {
        let mut noted = self.noted.lock();
        if !noted.iter().any(|known| known.id == pair.id) {
            noted.retain(|known| !known.is_over() || self.lives(known));
            noted.push(Arc::clone(pair));
        }
    }

    /// Those of the pairs with these numbers.
    pub fn among(&self, ids: &[u64]) -> Vec<Arc<Pair>> {
        self.noted.lock().iter().filter(|pair| ids.contains(&pair.id)).cloned().collect()
    }

    /// Returns true if a peer may still put by its grants. Its answer in a pair that is over is not seen any more.
    pub fn may_put(&self, pair: &Pair) -> bool {
        pair.is_over() || pair.told(block::GIVEN_BACK) != pair.taken_back()
    }

    /// Returns true if the process of a pair lives.
    pub fn lives(&self, pair: &Pair) -> bool {
        self.device.claims().is_alive(pair.peer.node, pair.incarnation) != Ok(Some(false))
    }

    /// The way to the memory of a grant of the peer's; None where there cannot be one.
    pub fn take_in(&self, pair: &Pair, grant: &Grant) -> Option<Way> {
        let region_len = self.device.facts().layout.region_len();
        let end = grant.at.checked_add(grant.len).filter(|end| *end <= region_len)?;
        let granules = (grant.at / GRANULE) as u32..end.div_ceil(GRANULE) as u32;
        let claims = self.device.claims();
        let used = pair.hold(granules, grant.owner, |granules| claims.use_of(pair.peer.node, granules, grant.owner));
        let used = used.inspect_err(|e| log::info!("a grant is not taken: {e}")).ok()?;
        Some((used, self.device.channel(pair.peer.node).ok()?))
    }
}
