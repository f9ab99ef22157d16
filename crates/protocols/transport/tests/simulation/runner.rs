//! The choices of a seed: networks, or rings.

use std::panic::{self, AssertUnwindSafe};

use crate::generate;
use crate::plan::Plan;
use crate::world::{Outcome, World};

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

/// Says which QP is at work, for the message of a failure.
pub fn at_work(end: Option<usize>) {
    vervain_seeds::at(end.map(|end| ("QP", end as u64)));
}

pub fn run_seed(scene: Scene, seed: u64, print: bool) -> Outcome {
    let plan = (scene.plan)(seed);
    if print {
        println!("{plan:#?}");
    }
    let mut world = World::new(plan, print);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    outcome.unwrap_or_else(|panic| {
        if print {
            println!("{:>12.3} us  {}fails", world.now as f64 / 1e3, vervain_seeds::place());
        }
        panic::resume_unwind(panic)
    })
}

impl vervain_seeds::Outcome for Outcome {
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
