//! The rings that report to a completion queue, and how a poll finds those with completions: a few are looked at in
//! each poll (watched), the others are found by their ready bits. The caller holds the CQ's queue.

use crate::arena::layout::{CqShared, READY_BITS};
use crate::cq::completion::Source;
use crate::host::atomic::Ordering;
use crate::host::bits::{bits, bits_from};
use vervain_iba::Completion;

/// Empty looks at a watched ring before another may take its place.
const COOL_AFTER: u32 = 4096;
/// Rings that are looked at in each poll, without a ready bit being set and cleared for each completion.
const WATCHED: usize = 8;

/// A ring that every poll looks at, and the number of empty looks since its last completion.
struct Watched {
    source: Source,
    idle: u32,
}

struct WatchList {
    rings: Vec<Watched>,
    most: usize,
    cool_after: u32,
}

impl WatchList {
    /// Puts `source` among the watched rings, in the place of an idle one if there is no room; whether it is there now.
    fn take_in(&mut self, source: &Source) -> bool {
        if self.rings.iter().any(|w| w.source.is(source)) {
            return true;
        }
        if self.rings.len() == self.most {
            let idle = self.rings.iter().position(|w| w.idle > self.cool_after && !w.source.is_ready());
            let Some(idle) = idle else { return false };
            if !self.rings[idle].source.stop_watching() {
                self.rings[idle].idle = 0;
                return false;
            }
            self.rings.swap_remove(idle);
        }
        self.push(source);
        true
    }

    fn push(&mut self, source: &Source) {
        source.begin_watching();
        self.rings.push(Watched { source: source.clone(), idle: 0 });
    }
}

pub(crate) struct Rings {
    /// Has the ready bits.
    shared: &'static CqShared,
    /// By ready bit.
    sources: Vec<Vec<Source>>,
    watched: WatchList,
    next_bit: u32,
    /// The ready bit to begin with, so that no ring waits for ever behind others that are always busy.
    first: u32,
    /// The next poll does not begin with the watched rings: others were left ([`Rings::poll`]), or the CQ has
    /// completions that come before.
    pub(crate) aside: bool,
}

impl Rings {
    /// No rings yet.
    pub(crate) fn new(shared: &'static CqShared) -> Rings {
        Rings::watching(shared, WATCHED, COOL_AFTER)
    }

    /// No rings yet; up to `most` will be watched. One that was empty for more than `cool_after` looks makes room for
    /// another.
    pub(crate) fn watching(shared: &'static CqShared, most: usize, cool_after: u32) -> Rings {
        let watched = WatchList { rings: Vec::new(), most, cool_after };
        Rings { shared, sources: Vec::new(), watched, next_bit: 0, first: 0, aside: false }
    }

    /// The ready bit for one more ring.
    pub(crate) fn next_ready_bit(&mut self) -> u32 {
        let bit = self.next_bit;
        self.next_bit = (bit + 1) % READY_BITS as u32;
        bit
    }

    pub(crate) fn add(&mut self, source: Source) {
        let bit = source.ready_bit() as usize;
        if self.sources.len() <= bit {
            self.sources.resize_with(bit + 1, Vec::new);
        }
        if self.watched.rings.len() < self.watched.most {
            self.watched.push(&source);
        }
        self.sources[bit].push(source);
    }

    pub(crate) fn remove(&mut self, source: &Source) {
        if let Some(list) = self.sources.get_mut(source.ready_bit() as usize) {
            list.retain(|s| !s.is(source));
        }
        self.watched.rings.retain(|w| !w.source.is(source));
    }

    /// Completions in all rings.
    pub(crate) fn pending(&self) -> u64 {
        self.sources.iter().flatten().map(|s| u64::from(s.pending())).sum()
    }

    /// Returns true if there is something in a ring. Those that are not watched are added up only where there is a sign
    /// of something, or a ready bit, which may have been taken since.
    pub(crate) fn hold_any(&self) -> bool {
        self.watched.rings.iter().any(|w| w.source.is_ready())
            || (self.aside || self.shared.summary.load(Ordering::SeqCst) != 0) && self.pending() > 0
    }

    /// Hands completions to `sink`, until there are `max` with the `n` from elsewhere, and to `count` how many of each
    /// ring; how many then. Sets [`Rings::aside`] where rings that are not watched were not looked at because the
    /// others had enough: the caller begins with them the next time ([`Rings::poll_ready`]).
    #[inline(always)]
    pub(crate) fn poll(
        &mut self,
        mut n: usize,
        max: usize,
        sink: &mut impl FnMut(&Completion),
        count: impl Fn(usize),
    ) -> usize {
        let mut rings = self.watched.rings.iter_mut();
        while let Some(Watched { source, idle }) = rings.next() {
            let Some(got) = source.take_if_ready(max - n, sink) else {
                *idle += 1;
                continue;
            };
            *idle = 0;
            count(got);
            n += got;
            if n >= max {
                let behind = rings.len();
                if behind > 0 {
                    // They come first the next time.
                    self.watched.rings.rotate_right(behind);
                }
                break;
            }
        }
        if self.shared.summary.load(Ordering::SeqCst) == 0 { n } else { self.poll_ready(n, max, sink, count) }
    }

    /// [`Rings::poll`] of the rings whose ready bits are set.
    #[inline(never)]
    pub(crate) fn poll_ready(
        &mut self,
        mut n: usize,
        max: usize,
        sink: &mut impl FnMut(&Completion),
        count: impl Fn(usize),
    ) -> usize {
        if n >= max {
            self.aside = true;
            return n;
        }
        let shared = self.shared;
        let (first, before) = (self.first / 64, (1 << (self.first % 64)) - 1);
        let words = shared.summary.swap(0, Ordering::SeqCst);
        let last = (words >> first & 1 == 1).then_some((first, before));
        let round = bits_from(words, first).map(|w| (w, if w == first { !before } else { u64::MAX }));
        for (w, part) in round.chain(last) {
            let word = &shared.ready[w as usize];
            for b in bits(word.fetch_and(!part, Ordering::SeqCst) & part) {
                let bit = w * 64 + b;
                let mut served = 0;
                for source in self.sources.get(bit as usize).into_iter().flatten() {
                    if n < max {
                        let got = source.take(max - n, sink);
                        count(got);
                        n += got;
                        served += 1;
                        self.first = (bit + 1) % READY_BITS as u32;
                    }
                    if !self.watched.take_in(source) && !source.rest() {
                        // More came meanwhile, or did not fit: keep the ring findable.
                        word.fetch_or(1 << b, Ordering::SeqCst);
                        shared.summary.fetch_or(1 << w, Ordering::SeqCst);
                    }
                }
                if let Some(sources) = self.sources.get_mut(bit as usize)
                    && served < sources.len()
                {
                    sources.rotate_left(served);
                }
            }
        }
        n
    }
}
