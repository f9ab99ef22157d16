//! Puts into a window by themselves: below verbs, what everything that goes through the window is made of. A put and
//! its answer, half of the time of both; either end sees the other's in its own memory.

use std::env;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use vervain_config::{WINDOW, WindowSpec};
use vervain_window::{Channel, Claim, GRANULE, HeapOwner, Options, Origin, Put, PutDevice};

use super::clock::Clock;
use super::latency::timed;
use super::wait::{Stop, Wait};
use crate::protocol::{Ends, Measured, Side, Spec};

/// Bytes of the memory of each end, all of which a board has an image of, so that it may describe puts there
/// beforehand.
pub const MOST: u64 = GRANULE;
/// Time for a put to be seen.
const LIMIT: Duration = Duration::from_secs(20);

/// The window that the environment of this process names.
pub struct Window {
    device: Arc<dyn PutDevice>,
    /// The claim of a heap: puts there count as memory of programs, that of a GPU if a board says so.
    heap: HeapOwner,
}

impl Window {
    /// Opens it.
    pub fn open() -> Result<Self> {
        let name = WINDOW.name();
        let value = env::var_os(name).with_context(|| format!("there is no window: {name} is not set"))?;
        let spec = WindowSpec::parse(value.as_encoded_bytes());
        let spec = spec.with_context(|| format!("{name}={} is no window", value.display()))?;
        let device = vervain_window::open(&spec.path, &Options::of(&spec))?;
        let heap = device.claims().heap()?;
        Ok(Self { device, heap })
    }
}

/// One end of a case.
pub struct Puts {
    spec: Spec,
    device: Arc<dyn PutDevice>,
    /// The claim that the other end puts to.
    incoming: Claim,
    way: Option<Way>,
}

/// The way to the other end's memory.
struct Way {
    channel: Box<dyn Channel>,
    to: u64,
}

impl Puts {
    /// Claims memory for the other end.
    pub fn new(window: &Window, spec: Spec) -> Result<Self> {
        let size = spec.case.size;
        ensure!(size.is_multiple_of(8) && (8..=MOST).contains(&size), "a put is of 8 B to {MOST} B, in words of 8 B");
        let incoming = window.heap.claim((MOST / GRANULE) as u32, 1)?;
        Ok(Self { spec, device: window.device.clone(), incoming, way: None })
    }

    /// The address that the other end needs.
    pub fn end(&self) -> Ends {
        Ends::Place { node: self.device.facts().node, at: self.incoming.bytes().start }
    }

    /// Takes the way to the other end.
    pub fn connect(&mut self, other: &Ends) -> Result<()> {
        let Ends::Place { node, at } = *other else { bail!("the other end is no place of a window") };
        let mut channel = self.device.channel(node)?;
        channel.prepare(at, 0..MOST, MOST);
        self.way = Some(Way { channel, to: at });
        Ok(())
    }

    /// Which end it is.
    pub fn side(&self) -> Side {
        self.spec.side
    }

    /// Before each start, at both ends: the word that is polled is that of no put.
    pub fn reset(&self) {
        self.device.own().word(self.polled()).store(0, Ordering::Relaxed);
    }

    fn polled(&self) -> u64 {
        self.incoming.bytes().start + self.spec.case.size - 8
    }

    /// Waits until put `n` of the other end is whole. False: stopped.
    fn came(&self, n: u64, stop: &Stop) -> Result<bool> {
        let word = self.device.own().word(self.polled());
        let mut wait = Wait::new(stop, LIMIT);
        while word.load(Ordering::Acquire) != n {
            if !wait.again()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The requester: puts, and waits for the answer.
    pub fn request(&mut self, iterations: u64, stop: &Stop, clock: &Clock) -> Result<Measured> {
        let mut words = self.words();
        timed(iterations, 2, clock, |n| {
            self.put(&mut words, n)?;
            self.came(n, stop)
        })
    }

    /// The responder: waits for each put and answers it with its like.
    pub fn respond(&mut self, iterations: u64, stop: &Stop) -> Result<()> {
        let mut words = self.words();
        for n in 1..=iterations {
            if !self.came(n, stop)? {
                return Ok(());
            }
            self.put(&mut words, n)?;
        }
        Ok(())
    }

    fn words(&self) -> Vec<u64> {
        vec![0; (self.spec.case.size / 8) as usize]
    }

    /// Puts number `n`, from 1, which is its last word.
    fn put(&mut self, words: &mut [u64], n: u64) -> Result<()> {
        let Way { channel, to } = self.way.as_mut().context("no other end is known")?;
        if let Some(last) = words.last_mut() {
            *last = n;
        }
        Ok(channel.put(&[Put { to: *to, from: Origin::Words(words) }])?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    use crate::case::{Case, Interface, Measure, Operation};
    use crate::sample::write_case;

    fn spec(side: Side, size: u64) -> Spec {
        let (operation, interface, measure) = (Operation::RawPut, Interface::Window, Measure::Latency);
        let case = Case { operation, interface, measure, depth: 1, ..write_case(size) };
        Spec { side, case, mtu: 0, inline: None, signal_every: 1, endless: false, warm_up: 0 }
    }

    /// Two ends in windows of one file.
    fn ends(size: u64) -> (tempfile::TempDir, [Puts; 2]) {
        let folder = tempfile::tempdir().expect("a folder");
        let options = |node| Options { node: Some(node), size: Some(64 << 20), nodes: Some(2), peach2: None };
        let ends = [(0, Side::Requester), (1, Side::Responder)].map(|(node, side)| {
            let device = vervain_window::open(&folder.path().join("w"), &options(node)).expect("a window");
            let heap = device.claims().heap().expect("a heap");
            Puts::new(&Window { device, heap }, spec(side, size)).expect("memory")
        });
        (folder, ends)
    }

    #[test]
    fn each_put_is_seen_and_answered() {
        for size in [8, 4096, MOST] {
            let (_folder, [mut near, mut far]) = ends(size);
            near.connect(&far.end()).expect("a way");
            far.connect(&near.end()).expect("a way");
            near.reset();
            far.reset();
            let responder = thread::spawn(move || far.respond(50, &AtomicBool::new(false)));
            let measured = near.request(50, &AtomicBool::new(false), &Clock::new()).expect("a measurement");
            responder.join().expect("it ends").expect("it answers");
            assert_eq!(measured.iterations, 50);
            assert_eq!(measured.histogram.iter().map(|(_, count)| count).sum::<u64>(), 50);
        }
    }

    #[test]
    fn sizes_that_are_no_words_or_too_long_are_refused() {
        let (_folder, [near, _]) = ends(8);
        let heap = near.device.claims().heap().expect("a heap");
        let window = Window { device: near.device.clone(), heap };
        for size in [1, 12, MOST + 8] {
            assert!(Puts::new(&window, spec(Side::Requester, size)).is_err(), "{size}");
        }
    }
}
