//! The C programs of `tests/c` against the device: the table of operations and faults, the state machine, the objects
//! and the data, in one process and between two, over every way to a peer's memory.

use std::time::Duration;

use vervain_tests::{Failures, Job, c_program, failure, have_c, under_vervain, way};

const WAYS: &[&str] = &["auto", "vm", "owner", "shared", "adopt", "roce"];

/// Runs a program with arguments and variables.
fn run(failures: &mut Failures, program: &str, args: &[&str], vars: &[(&str, &str)], limit: u64) {
    let mut command = under_vervain(c_program(program));
    command.args(args).envs(vars.iter().copied());
    let end = Job::start(&mut command).finish(Duration::from_secs(limit));
    if let Some(why) = failure(&end) {
        failures.add(&format!("{program} {} {vars:?}", args.join(" ")), why);
    }
}

fn in_one_process(program: &str, limit: u64) {
    if !have_c() {
        return;
    }
    let mut failures = Failures::default();
    for name in ["auto", "roce"] {
        run(&mut failures, program, &[], &way(name), limit);
    }
    failures.assert_none();
}

fn between_two(program: &str, cases: &[&str], limit: u64) {
    if !have_c() {
        return;
    }
    let mut failures = Failures::default();
    for name in WAYS {
        let args = [&["--two"], cases].concat();
        run(&mut failures, program, &args, &way(name), limit);
    }
    failures.assert_none();
}

#[test]
fn every_operation_and_fault_in_one_process() {
    in_one_process("conformance", 120);
}

#[test]
fn every_operation_and_fault_between_two_processes() {
    between_two("conformance", &[], 120);
}

#[test]
fn every_operation_and_fault_on_infiniband() {
    if !have_c() {
        return;
    }
    let mut failures = Failures::default();
    let vars = [("VERVAIN_LINK_LAYER", "infiniband")];
    run(&mut failures, "conformance", &["--two"], &vars, 120);
    run(&mut failures, "objects_ud", &[], &vars, 60);
    run(&mut failures, "state_machine", &[], &vars, 60);
    failures.assert_none();
}

#[test]
fn faults_of_the_posting_call() {
    in_one_process("posting", 60);
}

#[test]
fn retries_order_and_revocation_in_one_process() {
    in_one_process("sequences", 120);
}

#[test]
fn retries_order_and_revocation_between_two_processes() {
    between_two("sequences", &[], 120);
}

#[test]
fn memory_windows_in_one_process() {
    in_one_process("mw", 60);
}

#[test]
fn memory_windows_between_two_processes() {
    between_two("mw", &[], 60);
}

#[test]
fn state_machine() {
    in_one_process("state_machine", 60);
}

#[test]
fn limits_and_refusals() {
    in_one_process("objects_limits", 60);
}

#[test]
fn completion_queues() {
    in_one_process("objects_cq", 60);
}

#[test]
fn memory_objects() {
    in_one_process("objects_mr", 60);
}

#[test]
fn memory_taken_away_in_one_process() {
    in_one_process("withdrawn", 120);
}

#[test]
fn memory_taken_away_between_two_processes() {
    between_two("withdrawn", &[], 120);
}

#[test]
fn ud_multicast_and_xrc() {
    in_one_process("objects_ud", 60);
}

#[test]
fn data_between_two_processes() {
    if !have_c() {
        return;
    }
    let mut failures = Failures::default();
    for name in WAYS {
        run(&mut failures, "data", &[], &way(name), 180);
    }
    failures.assert_none();
}

#[test]
fn threads_share_objects() {
    if !have_c() {
        return;
    }
    let mut failures = Failures::default();
    for name in WAYS {
        run(&mut failures, "threads", &[], &way(name), 180);
    }
    failures.assert_none();
}
