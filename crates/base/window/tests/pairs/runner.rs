//! A run: a fabric decided by a seed, and all that happens there.

use crate::fabric::{Fabric, Outcome};
use std::panic::{self, AssertUnwindSafe};

pub fn run_seed(seed: u64, print: bool) -> Outcome {
    let mut fabric = Fabric::new(seed, print);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| fabric.run()));
    vervain_seeds::at(Some(("step", fabric.now())));
    outcome.unwrap_or_else(|panic| {
        if print {
            println!("{:>6}  fails", fabric.now());
        }
        // Not dropped: its contents may have caused the panic.
        std::mem::forget(fabric);
        panic::resume_unwind(panic)
    })
}
