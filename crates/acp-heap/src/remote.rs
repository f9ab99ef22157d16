//! The words of a segment at whatever rank.

use vervain_acp::{Atomic, Error, GlobalAddress, Order, Result, World};

use crate::geometry::LEVELS;
use crate::tree::{Swap, Words};

/// Words that are compared and swapped together, far below the accesses that may be outstanding.
const TOGETHER: usize = 256;

/// Reached by accesses to global memory: each function is a round trip, to this rank's own memory none.
pub struct Remote<'w> {
    pub world: &'w World,
    pub rank: u32,
    pub base: GlobalAddress,
}

impl Words for Remote<'_> {
    type Error = Error;

    fn load(&self, at: u64, into: &mut [u64]) -> Result<()> {
        let mut batch = self.world.batch();
        let place = batch.get(self.base.add(at), size_of_val(into), Order::Now)?;
        batch.wait()?;
        for (i, word) in into.iter_mut().enumerate() {
            *word = batch.word(place, i);
        }
        Ok(())
    }

    fn load_each<const N: usize>(&self, at: [u64; N], count: usize) -> Result<[u64; N]> {
        let mut batch = self.world.batch();
        let mut places = [None; LEVELS];
        for (at, place) in at[..count].iter().zip(&mut places) {
            *place = Some(batch.get(self.base.add(*at), 8, Order::Now)?);
        }
        batch.wait()?;
        let mut words = [0; N];
        for (word, place) in words.iter_mut().zip(places.iter().flatten()) {
            *word = batch.word(*place, 0);
        }
        Ok(words)
    }

    fn swap(&self, swaps: &mut [Swap]) -> Result<()> {
        let mut batch = self.world.batch();
        for swaps in swaps.chunks_mut(TOGETHER) {
            let mut first = None;
            for swap in &*swaps {
                let what = Atomic::CompareSwap8 { expected: swap.expected, new: swap.new };
                let place = batch.atomic(self.base.add(swap.at), what, Order::Now)?;
                first.get_or_insert(vec![]).push(place);
            }
            batch.wait()?;
            for (swap, place) in swaps.iter_mut().zip(first.unwrap_or_default()) {
                swap.found = batch.word(place, 0);
            }
            batch.clear()?;
        }
        Ok(())
    }

    fn broken(&self, at: u64, value: u64) -> Error {
        let place = self.base.add(at);
        Error::from(format!("the heap of rank {} is broken: the word at {place} is {value:#x}", self.rank))
    }
}
