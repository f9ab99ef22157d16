//! Memory of this process for its peers: their blocks, and the rings for long messages.

use super::block;
use super::rendezvous::PeerId;
use crate::claims::{Claim, Process, REST_MS};
use crate::device::PutDevice;
use crate::layout::GRANULE;
use crate::reason::Reason;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most blocks and rings of one peer number that rest at once. A peer that comes and goes more often waits; one that
/// only pretends to gets no more.
const RESTING_BLOCKS: usize = 8;
const RESTING_RINGS: usize = 2;

/// Reason of the warning of a full region, as each of many peers asks again until it is answered.
static FULL: Reason = Reason::new();

/// Memory that this process has claimed for its peers.
pub struct Memory {
    device: Arc<dyn PutDevice>,
    process: Arc<Process>,
    clock: Clock,
    claims: Vec<Claim>,
    free: Vec<u64>,
    long_rings: HashMap<PeerId, Claim>,
    /// Blocks that are free from a given time on.
    resting: Vec<Resting<u64>>,
    resting_rings: Vec<Resting<Claim>>,
}

/// Nanoseconds since an arbitrary moment.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

struct Resting<T> {
    peer: PeerId,
    until: u64,
    what: T,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("granules", &self.granules()).finish_non_exhaustive()
    }
}

impl Memory {
    /// An empty account: nothing is claimed yet.
    pub fn new(device: Arc<dyn PutDevice>, process: Arc<Process>, clock: Clock) -> Self {
        let (claims, free, resting) = (Vec::new(), Vec::new(), Vec::new());
        Memory { device, process, clock, claims, free, long_rings: HashMap::new(), resting, resting_rings: Vec::new() }
    }

    /// Takes a block of zeros for `peer`. Returns its offset in this node's region; None: there is no room, or too many
    /// blocks of this peer number rest.
    pub fn take(&mut self, peer: PeerId) -> Option<u64> {
        self.wake_up();
        if self.resting.iter().filter(|block| block.peer == peer).count() >= RESTING_BLOCKS {
            log::info!("process {} of node {} comes too often", peer.process, peer.node);
            return None;
        }
        if self.free.is_empty() {
            let claim = self.process.claim(1);
            let full = |e: &_| log::log!(FULL.level(), "there is no memory for another peer: {e}");
            let claim = claim.inspect_err(full).ok()?;
            let bytes = claim.bytes();
            self.free.extend((bytes.start..bytes.end).step_by(block::LEN as usize));
            self.claims.push(claim);
        }
        let block = self.free.pop()?;
        // Clears it, so that no message seems to have come.
        let words = (block / 8) as usize..((block + block::LEN) / 8) as usize;
        self.device.own().words()[words].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Some(block)
    }

    /// Offset of the ring for long messages of a peer, claimed at the first call; None: there is no room.
    pub fn long_ring(&mut self, peer: PeerId) -> Option<u64> {
        if !self.long_rings.contains_key(&peer) {
            self.wake_up();
            if self.resting_rings.iter().filter(|ring| ring.peer == peer).count() >= RESTING_RINGS {
                return None;
            }
            let claim = self.process.claim((block::LONG_BYTES / GRANULE) as u32);
            let claim = claim.inspect_err(|e| log::info!("no ring for long messages: {e}")).ok()?;
            self.long_rings.insert(peer, claim);
        }
        self.long_rings.get(&peer).map(|claim| claim.bytes().start)
    }

    /// Gives back the block and the ring of an ended pair with the process of this incarnation, which nobody reads any
    /// more. They are free once nothing can be put there. `incarnation` 0: the block was never announced.
    pub fn give_back(&mut self, block: u64, peer: PeerId, incarnation: u64) {
        let is_dead = || self.device.claims().is_alive(peer.node, incarnation) == Ok(Some(false));
        // A dead peer puts nothing any more; a put of a living one may be under way.
        let is_free = incarnation == 0 || self.device.facts().coherent && is_dead();
        let until = if is_free { 0 } else { (self.clock)() + REST_MS * 1_000_000 };
        self.resting.push(Resting { peer, until, what: block });
        let ring = self.long_rings.remove(&peer);
        self.resting_rings.extend(ring.map(|what| Resting { peer, until, what }));
    }

    /// Frees memory that has rested long enough.
    fn wake_up(&mut self) {
        let now = (self.clock)();
        let rested = self.resting.extract_if(.., |block| block.until <= now).map(|block| block.what);
        self.free.extend(rested);
        self.resting_rings.retain(|ring| ring.until > now);
    }

    /// Granules that this process has claimed for its peers, including those that rest.
    pub fn granules(&self) -> usize {
        let rings = self.long_rings.values().chain(self.resting_rings.iter().map(|ring| &ring.what));
        self.claims.iter().chain(rings).map(|claim| claim.granules().len()).sum()
    }
}
