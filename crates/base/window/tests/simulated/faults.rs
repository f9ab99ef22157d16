//! Puts on their way through a simulated device: late, in pieces, and in any order that a device may choose. The puts
//! of one channel become visible one after the other; nothing else is promised.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use vervain_window::{Faulted, Origin, Put, Refused, Region, Source};

/// Effects of a simulated device on puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Most steps that a put takes once its predecessor in the channel is visible; 0: it is visible at once.
    pub delay: u64,
    /// True if words become visible in halves of 4 bytes.
    pub torn_words: bool,
    /// True if each node has a kernel of its own, so that locks do not show it the others.
    pub kernel_each: bool,
    /// Steps in a millisecond of the kernels' clocks.
    pub steps_per_ms: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { delay: 0, torn_words: false, kernel_each: false, steps_per_ms: 1000 }
    }
}

/// Decisions drawn from a seed.
#[derive(Debug)]
pub struct Chance(Xoshiro256PlusPlus);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A number from 0 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * (u128::from(most) + 1)) >> 64) as u64
    }
}

/// The puts of one channel that are not all visible.
pub struct Way {
    pub from: u32,
    pub to: u32,
    /// True once the channel is dropped: no more puts come.
    pub closed: bool,
    puts: VecDeque<Waiting>,
    /// Fault of a source that could not be read when its turn came. Later puts never become visible.
    broken: Option<Faulted>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Way({} to {}, {} puts)", self.from, self.to, self.puts.len())
    }
}

struct Waiting {
    to: u64,
    bytes: Bytes,
    /// Grain in bytes: those of one aligned piece of this length become visible together.
    whole: u64,
    /// None until its turn; then the step at which all of it is visible, and a stack of the pieces that are not yet.
    begun: Option<(u64, Vec<std::ops::Range<u64>>)>,
}

enum Bytes {
    Here(Vec<u8>),
    /// A source that is read as it becomes visible.
    There(Box<dyn Source + Send>),
}

impl Bytes {
    fn of(origin: Origin<'_>) -> Result<Bytes, Faulted> {
        match origin {
            Origin::Words(words) => Ok(Bytes::Here(words.iter().flat_map(|word| word.to_ne_bytes()).collect())),
            Origin::Source(source) => {
                source.keep().map_or_else(|| read(source).map(Bytes::Here), |k| Ok(Bytes::There(k)))
            }
        }
    }
}

fn read(source: &dyn Source) -> Result<Vec<u8>, Faulted> {
    let mut bytes = vec![0; source.len()];
    // SAFETY: the vector has as many bytes.
    unsafe { source.store_to(bytes.as_mut_ptr()) }?;
    Ok(bytes)
}

impl Waiting {
    /// The pieces in which it becomes visible, in a random order.
    fn pieces(&self, len: u64, chance: &mut Chance) -> Vec<std::ops::Range<u64>> {
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < len {
            let end = ((self.to + at + 1).next_multiple_of(self.whole) - self.to).min(len);
            pieces.push(at..end);
            at = end;
        }
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, chance.up_to(i as u64) as usize);
        }
        pieces
    }

    /// Makes more of it visible. Returns true if that was the rest.
    fn go_on(&mut self, now: u64, plan: &Plan, into: &Region, chance: &mut Chance) -> Result<bool, Faulted> {
        if self.begun.is_none() {
            let len = match &self.bytes {
                Bytes::Here(bytes) => bytes.len(),
                Bytes::There(source) => source.len(),
            };
            self.begun = Some((now + chance.up_to(plan.delay), self.pieces(len as u64, chance)));
        }
        let (until, pieces) = self.begun.as_mut().expect("just begun");
        let left = pieces.len() as u64;
        let stay = if now >= *until { 0 } else { left - chance.up_to(left) };
        let shown = pieces.split_off(stay as usize);
        let is_done = now >= *until;
        if !shown.is_empty() {
            let late;
            let bytes = match &self.bytes {
                Bytes::Here(bytes) => bytes,
                Bytes::There(source) => {
                    late = read(&**source)?;
                    &late
                }
            };
            for piece in shown {
                let to = into.bytes(self.to + piece.start..self.to + piece.end).expect("a put that was checked");
                for (i, byte) in bytes[piece.start as usize..piece.end as usize].iter().enumerate() {
                    // SAFETY: inside the region; all references to its bytes are to atomics, and a simulation has one
                    // thread.
                    unsafe { AtomicU8::from_ptr(to.add(i)) }.store(*byte, Ordering::Relaxed);
                }
            }
        }
        Ok(is_done)
    }
}

impl Way {
    pub fn new(from: u32, to: u32) -> Way {
        Way { from, to, closed: false, puts: VecDeque::new(), broken: None }
    }

    /// Takes over a chain that was checked.
    pub fn push(&mut self, chain: &[Put<'_>], plan: &Plan) -> Result<(), Refused> {
        if let Some(fault) = self.broken {
            return Err(Refused::Faulted(fault));
        }
        for put in chain {
            let whole = if matches!(put.from, Origin::Words(_)) && !plan.torn_words { 8 } else { 4 };
            let bytes = Bytes::of(put.from).map_err(Refused::Faulted)?;
            self.puts.push_back(Waiting { to: put.to, bytes, whole, begun: None });
        }
        Ok(())
    }

    /// Makes some of the puts visible.
    pub fn go_on(&mut self, now: u64, plan: &Plan, into: &Region, chance: &mut Chance) {
        while let Some(first) = self.puts.front_mut() {
            match first.go_on(now, plan, into, chance) {
                Ok(true) => drop(self.puts.pop_front()),
                Ok(false) => return,
                Err(fault) => {
                    self.broken = Some(fault);
                    self.puts.clear();
                }
            }
        }
    }

    /// Drops the puts that are not visible.
    pub fn lose(&mut self) {
        self.puts.clear();
    }

    /// The nodes at its ends.
    pub fn nodes(&self) -> [u32; 2] {
        [self.from, self.to]
    }

    pub fn is_empty(&self) -> bool {
        self.puts.is_empty()
    }

    pub fn is_over(&self) -> bool {
        self.closed && self.is_empty()
    }
}
