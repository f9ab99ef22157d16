//! How much code the hot path runs: a regression check that does not depend on the machine's mood.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use vervain_tests::callgrind::{CALL_INSTRUCTIONS_AT_MOST, INSTRUCTIONS_AT_MOST, per_call, per_operation};
use vervain_tests::{bench_program, have, have_c, under_vervain};

/// One at a time: where the other test takes the second processor, polls in vain look around more often.
static ALONE: Mutex<()> = Mutex::new(());
/// Other work on the machine does the same, and only ever adds: one count of so many within the bound is enough.
const TRIES: usize = 3;

/// A count that is at most so much, or the first of [`TRIES`].
fn within<T>(at_most: f64, count: impl Fn() -> Result<T, String>, of: impl Fn(&T) -> f64) -> T {
    let mut counts = (0..TRIES).map(|_| count().unwrap_or_else(|e| panic!("{e}")));
    let first = counts.next().expect("one at least");
    if of(&first) <= at_most { first } else { counts.find(|c| of(c) <= at_most).unwrap_or(first) }
}

/// So much more than a bound is within it: compilers inline code that did not change now here, now there.
const SLACK: f64 = 1.02;

/// The program whose operations are counted, compiled once.
fn looped() -> &'static Path {
    static LOOPED: OnceLock<PathBuf> = OnceLock::new();
    LOOPED.get_or_init(|| bench_program("looped"))
}

#[test]
fn operations_take_no_more_instructions_than_their_bounds() {
    if !have(&["valgrind"]) || !have_c() {
        return;
    }
    let (_alone, looped) = (ALONE.lock().unwrap_or_else(PoisonError::into_inner), looped());
    for (operation, bound) in INSTRUCTIONS_AT_MOST {
        let at_most = bound * SLACK;
        let (count, program) =
            within(at_most, || per_operation(|| under_vervain("valgrind"), looped, operation), |count| count.0);
        assert!(count <= at_most, "{operation}: {count:.0} instructions from post to completion, more than {at_most}");
        // A count of next to nothing would be that of a program that did not do the work.
        assert!(count > 50.0, "{operation}: {count:.0} instructions cannot be all");
        eprintln!("{operation}: {count:.0} instructions, and {program:.0} of the program around it");
    }
}

#[test]
fn calls_take_no_more_instructions_than_their_bounds() {
    if !have(&["valgrind"]) || !have_c() {
        return;
    }
    let (_alone, looped) = (ALONE.lock().unwrap_or_else(PoisonError::into_inner), looped());
    for call in &CALL_INSTRUCTIONS_AT_MOST {
        let (what, at_most) = (call.what, call.at_most * SLACK);
        let count = within(at_most, || per_call(|| under_vervain("valgrind"), looped, call), |count| *count);
        assert!(count <= at_most, "{what}: {count} instructions, more than {at_most}");
        eprintln!("{what}: {count} instructions");
    }
}
