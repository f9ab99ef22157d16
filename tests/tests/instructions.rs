//! How much code the hot path runs: a regression check that does not depend on the machine's mood.

use vervain_tests::callgrind::{WRITE_INSTRUCTIONS_AT_MOST, per_operation};
use vervain_tests::{bench_program, have, have_c, under_vervain};

#[test]
fn a_looped_write_takes_no_more_instructions_than_its_bound() {
    if !have(&["valgrind"]) || !have_c() {
        return;
    }
    let looped = bench_program("looped");
    for operation in ["write", "wr-write-inline"] {
        let (count, program) =
            per_operation(|| under_vervain("valgrind"), &looped, operation).unwrap_or_else(|e| panic!("{e}"));
        assert!(
            count <= WRITE_INSTRUCTIONS_AT_MOST,
            "{operation}: {count:.0} instructions from post to completion, more than {WRITE_INSTRUCTIONS_AT_MOST}"
        );
        // A count of next to nothing would be that of a program that did not do the work.
        assert!(count > 50.0, "{operation}: {count:.0} instructions cannot be all");
        eprintln!("{operation}: {count:.0} instructions, and {program:.0} of the program around it");
    }
}
