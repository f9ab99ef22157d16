//! How much code the hot path runs: a regression check that does not depend on the machine's mood.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use vervain_tests::callgrind::{INSTRUCTIONS_AT_MOST, PACKET_INSTRUCTIONS_AT_MOST, per_operation, per_packet};
use vervain_tests::{bench_program, have, have_c, under_vervain};

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
    let looped = looped();
    for (operation, at_most) in INSTRUCTIONS_AT_MOST {
        let (count, program) =
            per_operation(|| under_vervain("valgrind"), looped, operation).unwrap_or_else(|e| panic!("{e}"));
        assert!(count <= at_most, "{operation}: {count:.0} instructions from post to completion, more than {at_most}");
        // A count of next to nothing would be that of a program that did not do the work.
        assert!(count > 50.0, "{operation}: {count:.0} instructions cannot be all");
        eprintln!("{operation}: {count:.0} instructions, and {program:.0} of the program around it");
    }
}

#[test]
fn packets_take_no_more_instructions_than_their_bounds() {
    if !have(&["valgrind"]) || !have_c() {
        return;
    }
    let looped = looped();
    for (function, what, at_most) in PACKET_INSTRUCTIONS_AT_MOST {
        let count = per_packet(|| under_vervain("valgrind"), looped, function).unwrap_or_else(|e| panic!("{e}"));
        assert!(count <= at_most, "{what}: {count} instructions, more than {at_most}");
        // A call that moves no packet takes a few hundred.
        assert!(count > 1000.0, "{what}: {count} instructions cannot be all");
        eprintln!("{what}: {count} instructions");
    }
}
