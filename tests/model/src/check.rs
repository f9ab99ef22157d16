//! How a model is checked: it is run many times, and chance decides each time which thread goes on and which store a load sees.
//! A number decides both (a seed), so that what was found is found again.

use crate::arena::Arena;
use crate::host::barrier;
use crate::memory;
use crate::process::{Keys, Process};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Runs of each seed by either way to choose who goes on: any thread at each step, or one thread until it waits, interrupted
/// a few times.
const RUNS: usize = 25;
const INTERRUPTIONS: usize = 3;
/// Steps after which a run goes round in circles.
const STEPS: usize = 100_000;

fn config() -> Config {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    config
}

/// Runs `model` with each of the seeds. It is called with a process of zeros, and ends when all its threads have.
pub(crate) fn check(name: &str, seeds: Range<u64>, model: impl Fn(&'static Process) + Send + Sync + 'static) {
    let process: &'static Process = Box::leak(Box::new(Process { arena: Arena::new(), keys: Keys::default() }));
    let model = Arc::new(move || {
        memory::clear();
        process.arena.clear();
        process.keys.take_scattered();
        model(process);
    });
    // Machines with a barrier for everybody and without take turns.
    for (seed, registered) in seeds.flat_map(|seed| [true, false].map(|registered| (seed, registered))) {
        barrier::set_registered(registered);
        let run = |scheduler: Box<dyn Scheduler + Send>| {
            let model = Arc::clone(&model);
            let runner = Runner::new(scheduler, config());
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| runner.run(move || model()))) {
                eprintln!("{name}: seed {seed}, membarrier {registered}");
                resume_unwind(panic);
            }
        };
        run(Box::new(RandomScheduler::new_from_seed(seed, RUNS)));
        run(Box::new(PctScheduler::new_from_seed(seed, INTERRUPTIONS, RUNS)));
    }
}
