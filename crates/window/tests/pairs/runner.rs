//! Runs seeds on all cores and tells of those that fail, with the command that replays them.

use crate::fabric::{Fabric, Outcome};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// So many failures are told; then it is enough.
const ENOUGH: usize = 2;

/// Held while seeds are run: there is one panic hook.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// The message of a panic in a thread that runs seeds, and the step.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    static STEP: Cell<u64> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
pub enum Until {
    Count(u64),
    Elapsed(Duration),
}

/// A number that the environment sets.
pub fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

pub fn run_seed(seed: u64, print: bool) -> Outcome {
    let mut fabric = Fabric::new(seed, print);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| fabric.run()));
    STEP.set(fabric.now());
    outcome.unwrap_or_else(|panic| {
        if print {
            println!("{:>6}  fails", fabric.now());
        }
        // What it holds may be what a panic was about.
        std::mem::forget(fabric);
        panic::resume_unwind(panic)
    })
}

/// Runs seeds from `first` on, on all cores. Panics if one fails.
pub fn run_seeds(first: u64, until: Until) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let (next, enough) = (AtomicU64::new(first), AtomicBool::new(false));
    let (failures, total) = (Mutex::new(Vec::new()), Mutex::new(Outcome::default()));
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let what = owned.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").replace('\n', ";");
        let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
        MESSAGE.set(Some(format!("{what}{place}")));
    }));
    let work = || {
        let mut own = Outcome::default();
        while !enough.load(Relaxed) {
            let seed = next.fetch_add(1, Relaxed);
            let over = match until {
                Until::Count(count) => seed >= first + count,
                Until::Elapsed(limit) => begin.elapsed() >= limit,
            };
            if over {
                break;
            }
            match panic::catch_unwind(|| run_seed(seed, false)) {
                Ok(outcome) => own.add(&outcome),
                Err(_) => {
                    let mut failures = failures.lock().unwrap();
                    failures.push((seed, format!("step {}: {}", STEP.get(), MESSAGE.take().unwrap_or_default())));
                    enough.fetch_or(failures.len() >= ENOUGH, Relaxed);
                }
            }
        }
        total.lock().unwrap().add(&own);
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    panic::set_hook(usual);
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    for (seed, message) in &failures {
        eprintln!("seed {seed} of pairs: {message}\n    replay: make soak SEED={seed}");
    }
    let seeds = next.load(Relaxed) - first;
    println!("up to {seeds} seeds in {:.1?}: {:?}", begin.elapsed(), total.into_inner().unwrap());
    assert!(
        failures.is_empty(),
        "{} seeds of pairs failed; the first: make soak SEED={}",
        failures.len(),
        failures[0].0
    );
}
