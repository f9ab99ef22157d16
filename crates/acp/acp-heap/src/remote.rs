//! The words of a segment at whatever rank.

use vervain_acp::{Atomic, Error, GlobalAddress, Order, Result, World};

use crate::geometry::LEVELS;
use crate::tree::{Swap, Words};
use crate::word::UNITS;

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

    fn swap(&self, swaps: &mut [Swap], in_turn: bool) -> Result<()> {
        let mut batch = self.world.batch();
        let mut places = [None; UNITS as usize];
        for swaps in swaps.chunks_mut(places.len()) {
            for (i, (swap, place)) in swaps.iter().zip(&mut places).enumerate() {
                let what = Atomic::CompareSwap8 { expected: swap.expected, new: swap.new };
                let order = if in_turn && i > 0 { Order::All } else { Order::Now };
                *place = Some(batch.atomic(self.base.add(swap.at), what, order)?);
            }
            batch.wait()?;
            for (swap, place) in swaps.iter_mut().zip(places.iter().flatten()) {
                swap.found = batch.word(*place, 0);
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
