//! Runs seeds on all cores and tells of those that fail, with the command that replays them.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::generate;
use crate::plan::Plan;
use crate::world::{Outcome, World};

/// So many failures are told; then it is enough.
const ENOUGH: usize = 5;

/// Held while seeds are run.
static ALONE: Mutex<()> = Mutex::new(());

thread_local! {
    /// The message of a panic in a thread that runs seeds.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The QP that is at work in this thread.
    static AT_WORK: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Says which QP is at work, for the message of a failure.
pub fn at_work(end: Option<usize>) {
    AT_WORK.set(end);
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

/// The plan of a seed, and the name of what is simulated.
#[derive(Clone, Copy)]
pub struct Scene {
    pub name: &'static str,
    pub plan: fn(u64) -> Plan,
}

/// Packets over networks.
pub const NETWORK: Scene = Scene { name: "networks", plan: generate::plan };
/// Packets through rings.
pub const RINGS: Scene = Scene { name: "rings", plan: generate::rings };

pub fn run_seed(scene: Scene, seed: u64, print: bool) -> Outcome {
    let plan = (scene.plan)(seed);
    if print {
        println!("{plan:#?}");
    }
    at_work(None);
    let mut world = World::new(plan, print);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    outcome.unwrap_or_else(|panic| {
        if print {
            println!("{:>12.3} us  QP {:?} fails", world.now() as f64 / 1e3, AT_WORK.get());
        }
        panic::resume_unwind(panic)
    })
}

/// Runs seeds from `first` on, on all cores. Panics if one fails.
pub fn run_seeds(scene: Scene, first: u64, until: Until) {
    // There is one panic hook, and all processors are in use.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let next = AtomicU64::new(first);
    let enough = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let total = Mutex::new(Outcome::default());
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let owned = payload.downcast_ref::<String>().map(String::as_str);
        let what = owned.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").replace('\n', ";");
        let place = info.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
        let who = AT_WORK.get().map(|end| format!("QP {end}: ")).unwrap_or_default();
        MESSAGE.set(Some(format!("{who}{what}{place}")));
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
            match panic::catch_unwind(AssertUnwindSafe(|| run_seed(scene, seed, false))) {
                Ok(outcome) => own.add(&outcome),
                Err(_) => {
                    let mut failures = failures.lock().unwrap();
                    failures.push((seed, MESSAGE.take().unwrap_or_default()));
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
        eprintln!("seed {seed} over {}: {message}\n    replay: make soak SEED={seed}", scene.name);
    }
    let seeds = next.load(Relaxed) - first;
    println!("up to {seeds} seeds in {:.1?}: {:?}", begin.elapsed(), total.into_inner().unwrap());
    assert!(
        failures.is_empty(),
        "{} seeds over {} failed; the first: make soak SEED={}",
        failures.len(),
        scene.name,
        failures[0].0
    );
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.again += other.again;
        self.spans += other.spans;
        self.requests += other.requests;
        self.receives += other.receives;
        self.failures += other.failures;
        self.done = self.done.max(other.done);
        self.trace ^= other.trace;
    }
}
