//! Random programs against a model. Each rank has a strip of every rank's region, in which it alone copies and counts; so its program
//! has a meaning of its own. Operations that meet in memory are ordered, by whichever kind of order; the others may overtake each
//! other. The model carries them out one after the other.

use std::ops::Range;

use fastrand::Rng;
use vervain_acp::{Error, GlobalPtr, Handle, Order, Result, World};

use super::regions;

/// Bytes of a strip.
const STRIP: usize = 256 << 10;
/// Bytes at its beginning that atomics are for, and as many at the end of the own strip, to which they bring what they find.
const WORDS: usize = 256;

/// An operation that may be under way: what it reads and writes, of which ranks.
struct Under {
    handle: i64,
    ends: (usize, usize),
    reads: (usize, Range<usize>),
    writes: Vec<(usize, Range<usize>)>,
    /// All up to this were over when it started.
    after: i64,
}

fn meets(a: &(usize, Range<usize>), b: &(usize, Range<usize>)) -> bool {
    a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end
}

impl Under {
    fn conflicts(&self, other: &Under) -> bool {
        let written = |a: &Under, b: &Under| {
            a.writes.iter().any(|w| meets(w, &b.reads) || b.writes.iter().any(|other| meets(w, other)))
        };
        written(self, other) || written(other, self)
    }
}

struct Program<'w> {
    world: &'w World,
    strips: Vec<GlobalPtr<u8>>,
    me: usize,
    random: Rng,
    model: Vec<Vec<u8>>,
    under: Vec<Under>,
    /// All up to this are known to be over.
    over: i64,
}

/// What is drawn.
enum Act {
    Copy { dst: (usize, usize), src: (usize, usize), len: usize },
    Atomic { dst: usize, src: (usize, usize), wide: bool, kind: u32, a: u64, b: u64 },
}

/// `count` operations, then all strips are what the model says.
pub fn run(world: &World, count: u64, seed: u64) -> Result<()> {
    let size = world.size() as usize;
    let (_region, all) = regions(world, STRIP * size)?;
    let me = world.rank() as usize;
    let strips = all.iter().map(|region| region.add(STRIP * me)).collect();
    let model = vec![vec![0; STRIP]; size];
    let random = Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(me as u64));
    let mut program = Program { world, strips, me, random, model, under: vec![], over: 0 };
    program.fill()?;
    for _ in 0..count {
        let act = program.draw();
        program.issue(&act)?;
        if program.random.u32(..64) == 0 {
            program.complete()?;
        }
        if program.random.u32(..4000) == 0 {
            program.compare(seed)?;
        }
    }
    program.compare(seed)?;
    world.sync()
}

impl Program<'_> {
    /// Something to copy.
    fn fill(&mut self) -> Result<()> {
        for word in self.model[self.me].chunks_exact_mut(8) {
            word.copy_from_slice(&self.random.u64(..).to_ne_bytes());
        }
        self.world.write(self.strips[self.me], &self.model[self.me])
    }

    fn draw(&mut self) -> Act {
        let size = self.strips.len();
        let random = &mut self.random;
        let rank = |random: &mut Rng| random.usize(..size);
        if random.u32(..4) == 0 {
            let wide = random.bool();
            let width = if wide { 8 } else { 4 };
            let words = WORDS / width;
            let dst = STRIP - WORDS + random.usize(..words) * width;
            let src = (rank(random), random.usize(..words) * width);
            // Small numbers, so that comparisons hold now and then.
            return Act::Atomic { dst, src, wide, kind: random.u32(..6), a: random.u64(..4), b: random.u64(..4) };
        }
        let len = match random.u32(..100) {
            0..50 => random.usize(..=64),
            50..90 => random.usize(..=4096),
            90..99 => random.usize(..=32 << 10),
            // Alone, two such strips of one region would not fit.
            _ => random.usize(..=if size > 1 { 200 << 10 } else { 100 << 10 }),
        };
        let end = |random: &mut Rng| (rank(random), WORDS + random.usize(..=STRIP - 2 * WORDS - len));
        let dst = end(random);
        let mut src = end(random);
        // Overlapping ends leave anything.
        while meets(&(dst.0, dst.1..dst.1 + len), &(src.0, src.1..src.1 + len)) {
            src = end(random);
        }
        Act::Copy { dst, src, len }
    }

    fn issue(&mut self, act: &Act) -> Result<()> {
        let mut new = self.under_way(act);
        let last = self.under.last();
        let end = last.map_or(self.over, |last| last.handle);
        let continues = last.is_some_and(|last| last.ends == new.ends);
        let order = match self.random.u32(..4) {
            0 => Order::Now,
            1 => {
                let after = self.over.max(end - self.random.i64(0..16));
                Handle::new(after).map_or(Order::Now, Order::After)
            }
            2 => Order::All,
            _ => Order::Continue,
        };
        let after = match order {
            Order::Now => 0,
            Order::After(handle) => handle.get(),
            Order::All => end,
            Order::Continue if continues => last.map_or(0, |last| last.after),
            Order::Continue => end,
        };
        new.after = after.max(self.over);
        // It must not meet what may be under way beside it.
        let met = self.under.iter().rev().find(|under| {
            let behind = order == Order::Continue && continues && under.handle == end;
            under.handle > new.after && !behind && under.conflicts(&new)
        });
        let order = match met {
            None => order,
            Some(met) => {
                new.after = met.handle;
                Handle::new(met.handle).map_or(Order::All, Order::After)
            }
        };
        let handle = self.begin(act, order)?;
        new.handle = handle.get();
        self.under.push(new);
        self.imitate(act);
        Ok(())
    }

    fn under_way(&self, act: &Act) -> Under {
        match *act {
            Act::Copy { dst, src, len } => Under {
                handle: 0,
                ends: (src.0, dst.0),
                reads: (src.0, src.1..src.1 + len),
                writes: vec![(dst.0, dst.1..dst.1 + len)],
                after: 0,
            },
            Act::Atomic { dst, src, wide, .. } => {
                let width = if wide { 8 } else { 4 };
                let word = (src.0, src.1..src.1 + width);
                let writes = vec![(self.me, dst..dst + width), word.clone()];
                Under { handle: 0, ends: (src.0, self.me), reads: word, writes, after: 0 }
            }
        }
    }

    fn begin(&self, act: &Act, order: Order) -> Result<Handle> {
        let at = |(rank, offset): (usize, usize)| self.strips[rank].add(offset);
        match *act {
            Act::Copy { dst, src, len } => self.world.copy_values(at(dst), at(src), len, order),
            Act::Atomic { dst, src, wide, kind, a, b } => {
                let (dst, src) = (at((self.me, dst)), at(src));
                macro_rules! begin {
                    ($word:ty) => {{
                        let (world, old, word) = (self.world, dst.cast::<$word>(), src.cast::<$word>());
                        let (a, b) = (a as $word, b as $word);
                        match kind {
                            0 => world.fetch_add(old, word, a.wrapping_sub(b), order),
                            1 => world.compare_swap(old, word, a, b, order),
                            2 => world.swap(old, word, a, order),
                            3 => world.fetch_xor(old, word, a, order),
                            4 => world.fetch_or(old, word, a, order),
                            _ => world.fetch_and(old, word, a, order),
                        }
                    }};
                }
                if wide { begin!(u64) } else { begin!(u32) }
            }
        }
    }

    fn imitate(&mut self, act: &Act) {
        match *act {
            Act::Copy { dst, src, len } => {
                let bytes = self.model[src.0][src.1..src.1 + len].to_vec();
                self.model[dst.0][dst.1..dst.1 + len].copy_from_slice(&bytes);
            }
            Act::Atomic { dst, src, wide, kind, a, b } => {
                let width = if wide { 8 } else { 4 };
                let mut word = [0; 8];
                word[..width].copy_from_slice(&self.model[src.0][src.1..src.1 + width]);
                let old = u64::from_le_bytes(word);
                let new = match kind {
                    0 => old.wrapping_add(a.wrapping_sub(b)),
                    1 if old == a => b,
                    1 => old,
                    2 => a,
                    3 => old ^ a,
                    4 => old | a,
                    _ => old & a,
                };
                self.model[self.me][dst..dst + width].copy_from_slice(&old.to_le_bytes()[..width]);
                self.model[src.0][src.1..src.1 + width].copy_from_slice(&new.to_le_bytes()[..width]);
            }
        }
    }

    /// Waits for one of those under way.
    fn complete(&mut self) -> Result<()> {
        let Some(last) = self.under.last() else { return Ok(()) };
        let some = (last.handle - self.random.i64(0..64)).max(self.over);
        if let Some(handle) = Handle::new(some) {
            self.world.complete(handle)?;
            self.over = some;
            self.under.retain(|under| under.handle > some);
        }
        Ok(())
    }

    fn compare(&mut self, seed: u64) -> Result<()> {
        self.world.complete_all()?;
        if let Some(last) = self.under.last() {
            self.over = last.handle;
        }
        self.under.clear();
        let region = self.world.region(STRIP, 0)?;
        for (rank, model) in self.model.iter().enumerate() {
            self.world.complete(self.world.copy_values(region.at(0), self.strips[rank], STRIP, Order::Now)?)?;
            let mut seen = vec![0; STRIP];
            self.world.read(region.at(0), &mut seen)?;
            if let Some(at) = (0..STRIP).find(|i| seen[*i] != model[*i]) {
                return Err(Error::from(format!(
                    "seed {seed}: after operation {} byte {at} of rank {}'s strip at rank {rank} is {:#x}, not {:#x}",
                    self.over, self.me, seen[at], model[at]
                )));
            }
        }
        drop(region);
        // Its operations have handles too.
        let probe = self.world.copy(self.strips[self.me].address(), self.strips[self.me].address(), 0, Order::Now)?;
        self.world.complete(probe)?;
        self.over = probe.get();
        Ok(())
    }
}
