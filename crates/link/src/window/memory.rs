//! Memory of this process in the window: blocks for its peers, and the rings for long messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vervain_hca::now_ns;
use vervain_window::pairs::block;
use vervain_window::pairs::rendezvous::{Blocks, PeerId};
use vervain_window::{Claim, GRANULE, Process, PutDevice, REST_MS};

/// What this process has claimed.
pub struct Memory {
    device: Arc<dyn PutDevice>,
    process: Arc<Process>,
    blocks: Vec<Claim>,
    free: Vec<u64>,
    /// Blocks that are free from then on.
    resting: Vec<(u64, u64)>,
    long_rings: HashMap<PeerId, Claim>,
    /// Those of peers that are no more, until then.
    resting_rings: Vec<(u64, Claim)>,
}

impl Memory {
    /// Nothing yet.
    pub fn new(device: Arc<dyn PutDevice>, process: Arc<Process>) -> Self {
        let (blocks, free, resting) = (Vec::new(), Vec::new(), Vec::new());
        Memory { device, process, blocks, free, resting, long_rings: HashMap::new(), resting_rings: Vec::new() }
    }

    /// Where the ring for long messages of a peer is; None where there is no room.
    pub fn long_ring(&mut self, peer: PeerId) -> Option<u64> {
        if !self.long_rings.contains_key(&peer) {
            let claim = self.process.claim((block::LONG_BYTES / GRANULE) as u32);
            let claim = claim.inspect_err(|e| log::info!("no ring for long messages: {e}")).ok()?;
            self.long_rings.insert(peer, claim);
        }
        self.long_rings.get(&peer).map(|claim| claim.bytes().start)
    }

    /// What has rested long enough is free.
    fn wake_up(&mut self) {
        let now = now_ns();
        let rested = self.resting.extract_if(.., |(_, until)| *until <= now).map(|(block, _)| block);
        self.free.extend(rested);
        self.resting_rings.retain(|(until, _)| *until > now);
    }
}

impl Blocks for Memory {
    fn take(&mut self) -> Option<u64> {
        self.wake_up();
        if self.free.is_empty() {
            let claim = self.process.claim(1);
            let claim = claim.inspect_err(|e| log::warn!("there is no memory for another peer: {e}")).ok()?;
            let bytes = claim.bytes();
            self.free.extend((bytes.start..bytes.end).step_by(block::LEN as usize));
            self.blocks.push(claim);
        }
        let block = self.free.pop()?;
        // Nothing has come yet.
        let words = (block / 8) as usize..((block + block::LEN) / 8) as usize;
        self.device.own().words()[words].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Some(block)
    }

    fn give_back(&mut self, block: u64, peer: PeerId, incarnation: u64) {
        let alive =
            if incarnation == 0 { Ok(Some(false)) } else { self.device.claims().is_alive(peer.node, incarnation) };
        // Who is dead puts nothing any more. Of others nobody knows what is under way.
        let until = if alive == Ok(Some(false)) { 0 } else { now_ns() + REST_MS * 1_000_000 };
        self.resting.push((block, until));
        let ring = self.long_rings.remove(&peer);
        self.resting_rings.extend(ring.map(|ring| (until, ring)));
    }
}
