//! Runs simulations that a seed decides, on all cores, and tells of the seeds that fail, with the command that replays them.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// So many failures are told; then it is enough.
const ENOUGH: usize = 5;

/// Held while seeds are run: there is one panic hook, and all processors are in use.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// The message of a panic in a thread that runs seeds.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    static AT: Cell<Option<(&'static str, u64)>> = const { Cell::new(None) };
}

/// Says where the simulation of this thread is, for the message of a failure.
pub fn at(place: Option<(&'static str, u64)>) {
    AT.set(place);
}

/// Where it was last, before what is said of it.
pub fn place() -> String {
    AT.get().map(|(what, n)| format!("{what} {n}: ")).unwrap_or_default()
}

/// Which seeds are run.
#[derive(Clone, Copy)]
pub enum Until {
    /// So many.
    Count(u64),
    /// As many as can be in that time.
    Elapsed(Duration),
}

/// A number that the environment sets.
///
/// # Panics
/// If it is none.
pub fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// What a simulation came to.
pub trait Outcome: Debug + Default + Send {
    /// Adds that of another.
    fn add(&mut self, other: &Self);
}

/// Runs seeds of what `name` says, from `first` on.
///
/// # Panics
/// If one fails.
pub fn run_seeds<O: Outcome>(name: &str, first: u64, until: Until, run_seed: impl Fn(u64) -> O + Sync) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let (next, enough) = (AtomicU64::new(first), AtomicBool::new(false));
    let (failures, total) = (Mutex::new(Vec::new()), Mutex::new(O::default()));
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let what = owned.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").replace('\n', ";");
        let line = info.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
        MESSAGE.set(Some(format!("{what}{line}")));
    }));
    let work = || {
        let mut own = O::default();
        while !enough.load(Relaxed) {
            let seed = next.fetch_add(1, Relaxed);
            let over = match until {
                Until::Count(count) => seed >= first + count,
                Until::Elapsed(limit) => begin.elapsed() >= limit,
            };
            if over {
                break;
            }
            at(None);
            match panic::catch_unwind(AssertUnwindSafe(|| run_seed(seed))) {
                Ok(outcome) => own.add(&outcome),
                Err(_) => {
                    let mut failures = failures.lock().unwrap();
                    failures.push((seed, format!("{}{}", place(), MESSAGE.take().unwrap_or_default())));
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
        eprintln!("seed {seed} of {name}: {message}\n    replay: make soak SEED={seed}");
    }
    let seeds = next.load(Relaxed) - first;
    println!("up to {seeds} seeds in {:.1?}: {:?}", begin.elapsed(), total.into_inner().unwrap());
    let (count, seed) = (failures.len(), failures.first().map_or(0, |failure| failure.0));
    assert!(count == 0, "{count} seeds of {name} failed; the first: make soak SEED={seed}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Sum(u64);

    impl Outcome for Sum {
        fn add(&mut self, other: &Sum) {
            self.0 += other.0;
        }
    }

    #[test]
    fn each_seed_runs_once_and_those_that_fail_are_told() {
        let ran = Mutex::new(Vec::new());
        let run = |seed| {
            ran.lock().unwrap().push(seed);
            at(Some(("step", 3)));
            assert!(seed % 40 != 39, "no\nmore");
            Sum(seed)
        };
        run_seeds("numbers", 10, Until::Count(29), run);
        let mut seeds = ran.lock().unwrap().clone();
        seeds.sort_unstable();
        assert_eq!(seeds, (10..39).collect::<Vec<_>>());
        let failed = panic::catch_unwind(AssertUnwindSafe(|| run_seeds("numbers", 39, Until::Count(41), run)));
        let told = failed.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(*told, "2 seeds of numbers failed; the first: make soak SEED=39");
    }
}
