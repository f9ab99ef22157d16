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
/// only claims to gets no more.
const RESTING_BLOCKS: usize = 8;
const RESTING_RINGS: usize = 2;

/// The region is full: each of many peers asks again until it is answered.
static FULL: Reason = Reason::new();

/// What this process has claimed for its peers.
pub struct Memory {
    device: Arc<dyn PutDevice>,
    process: Arc<Process>,
    clock: Clock,
    claims: Vec<Claim>,
    free: Vec<u64>,
    long_rings: HashMap<PeerId, Claim>,
    /// Blocks that are free from then on.
    resting: Vec<Resting<u64>>,
    resting_rings: Vec<Resting<Claim>>,
}

/// Nanoseconds since some beginning.
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
    /// Nothing yet.
    pub fn new(device: Arc<dyn PutDevice>, process: Arc<Process>, clock: Clock) -> Self {
        let (claims, free, resting) = (Vec::new(), Vec::new(), Vec::new());
        Memory { device, process, clock, claims, free, long_rings: HashMap::new(), resting, resting_rings: Vec::new() }
    }

    /// A block for `peer`, of zeros: its place in the region of this node. None where there is no room, or the peers of
    /// this number have had too many.
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
        // Nothing has come yet.
        let words = (block / 8) as usize..((block + block::LEN) / 8) as usize;
        self.device.own().words()[words].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Some(block)
    }

    /// Where the ring for long messages of a peer is; None where there is no room.
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

    /// A pair with the process of this incarnation is over, and nobody looks at its block any more: when nothing can be
    /// put there, that is free again, and so is the ring. Zero where nobody was told of the block.
    pub fn give_back(&mut self, block: u64, peer: PeerId, incarnation: u64) {
        let is_dead = || self.device.claims().is_alive(peer.node, incarnation) == Ok(Some(false));
        // A dead peer puts nothing any more. A put of another one may be under way.
        let is_free = incarnation == 0 || self.device.facts().coherent && is_dead();
        let until = if is_free { 0 } else { (self.clock)() + REST_MS * 1_000_000 };
        self.resting.push(Resting { peer, until, what: block });
        let ring = self.long_rings.remove(&peer);
        self.resting_rings.extend(ring.map(|what| Resting { peer, until, what }));
    }

    /// What has rested long enough is free.
    fn wake_up(&mut self) {
        let now = (self.clock)();
        let rested = self.resting.extract_if(.., |block| block.until <= now).map(|block| block.what);
        self.free.extend(rested);
        self.resting_rings.retain(|ring| ring.until > now);
    }

    /// Granules that this process has claimed for its peers, those that rest too.
    pub fn granules(&self) -> usize {
        let rings = self.long_rings.values().chain(self.resting_rings.iter().map(|ring| &ring.what));
        self.claims.iter().chain(rings).map(|claim| claim.granules().len()).sum()
    }
}
