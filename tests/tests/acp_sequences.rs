//! Vectors, deques and lists: jobs of `vervain-sequences-rank` (`tests/src/sequences_rank`), which uses the Rust crate, and the C
//! programs of `tests/acp` that call all of their functions, under `vervain launch`.

use std::process::Command;

use vervain_tests::{Failures, Job, acp, acp_program, have, tool};

const RANK: acp::Ranks = acp::Ranks(env!("CARGO_BIN_EXE_vervain-sequences-rank"));
const PACKETS: &[&str] = &["--link", "roce", "--interface", "lo"];

#[test]
fn random_programs_of_one_rank_do_what_the_model_says() {
    for (what, seed) in [("vectors", "1"), ("deques", "2")] {
        RANK.run(1, &[], &[what, "4000", seed]);
    }
    RANK.run(1, &[], &["lists", "1500", "3"]);
}

#[test]
fn ranks_that_take_turns_do_what_the_model_says() {
    for seed in ["4", "5"] {
        RANK.run(4, &[], &["vectors", "500", seed]);
        RANK.run(4, &[], &["deques", "500", seed]);
        RANK.run(4, &[], &["lists", "300", seed]);
    }
    RANK.run(3, PACKETS, &["vectors", "60", "6"]);
    RANK.run(3, PACKETS, &["deques", "60", "7"]);
    RANK.run(3, PACKETS, &["lists", "40", "8"]);
}

#[test]
fn large_ones_move_in_parts() {
    for what in ["long-vectors", "long-deques"] {
        RANK.run(3, &[], &[what, "60", "9"]);
        RANK.run(3, PACKETS, &[what, "8", "10"]);
    }
}

#[test]
fn own_bytes_and_large_moves_are_what_they_were() {
    RANK.run(1, &[], &["edges"]);
    RANK.run(3, &[], &["edges"]);
    RANK.run(2, PACKETS, &["edges"]);
}

#[test]
fn values_go_in_and_come_out() {
    RANK.run(1, &[], &["typed", "500"]);
    RANK.run(3, &[], &["typed", "3000"]);
}

#[test]
fn containers_give_all_memory_back() {
    let mut command = RANK.launch(2, &[], &["leaks", "300"]);
    let end = Job::start(command.env("ACP_HEAP", "8M")).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
}

#[test]
fn what_is_refused_changes_nothing_and_leaves_nothing() {
    for ranks in [1, 2] {
        let end = Job::start(RANK.launch(ranks, &[], &["refused"]).env("ACP_HEAP", "8M")).finish(acp::LIMIT);
        assert!(end.success(), "{}", end.describe());
    }
}

#[test]
fn operations_take_the_round_trips_that_they_say() {
    RANK.run(3, &[], &["trips"]);
}

#[test]
fn nothing_is_believed_of_what_others_have_written() {
    RANK.run(1, &[], &["broken"]);
    RANK.run(3, &[], &["broken"]);
}

#[test]
fn a_job_that_is_broken_says_so_each_time() {
    let end = Job::start(&mut RANK.launch(4, &[], &["nowhere"])).finish(acp::LIMIT);
    assert!(end.status.is_some() && !end.success(), "{}", end.describe());
    assert!(end.output.contains("it is found three times"), "{}", end.describe());
}

#[test]
fn the_end_of_a_rank_ends_those_that_work_on_its_containers() {
    for options in [&["--no-prefix"][..], &[PACKETS, &["--no-prefix"]].concat()] {
        let end = acp::end_by_a_death(Job::start(&mut RANK.launch(3, options, &["work"])), "works as ");
        assert!(!end.output.contains("panicked"), "{}", end.describe());
    }
}

/// The program, built by this compiler, on these numbers of ranks.
fn holds(compiler: &str, options: &[&str], name: &str, ranks: &[u32]) {
    if !have(&[compiler]) {
        return;
    }
    let program = acp_program(compiler, options, name);
    let mut failures = Failures::default();
    for &ranks in ranks {
        let end = Job::start(&mut acp::launch(ranks, &[], &program)).finish(acp::LIMIT);
        acp::judge(name, ranks, &end, &mut failures);
    }
    failures.assert_none();
}

#[test]
fn vectors_hold_in_c() {
    holds("cc", &[], "vector", &[1, 2, 3]);
}

#[test]
fn deques_hold_in_c() {
    holds("cc", &[], "deque", &[1, 2, 3]);
}

#[test]
fn lists_hold_in_c() {
    holds("cc", &[], "list", &[1, 2, 4]);
}

#[test]
fn generic_names_hold_in_c_and_cxx() {
    holds("cc", &[], "generic", &[1, 3]);
    for standard in ["-std=c++11", "-std=c++17"] {
        holds("c++", &["-xc++", standard], "generic", &[2]);
    }
}

#[test]
fn generic_names_are_clean_in_all_standards() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/acp/generic.c");
    let include = format!("-I{}", acp::prefix().join("include").display());
    let mut compiled = 0;
    for (compiler, language, standards) in [
        ("gcc", "-xc", &["c99", "gnu99", "c11", "c17"][..]),
        ("clang", "-xc", &["c99", "c11", "c17"]),
        ("g++", "-xc++", &["c++11", "c++17", "c++20"]),
        ("clang++", "-xc++", &["c++11", "c++17", "c++20"]),
    ] {
        if tool(compiler).is_none() {
            continue;
        }
        for standard in standards {
            let mut command = Command::new(compiler);
            command.args([&format!("-std={standard}"), "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
            let end = Job::start(command.args([language, "-fsyntax-only", &include, source])).finish(acp::LIMIT);
            assert!(end.success() && end.output.is_empty(), "{}", end.describe());
            compiled += 1;
        }
    }
    if compiled == 0 {
        vervain_tests::skip("this machine has no C or C++ compiler");
    }
}
