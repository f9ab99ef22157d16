//! The HPC Challenge benchmarks, as Debian ships them for Open MPI, over UCX confined to verbs: each checks its own
//! results, and all must be right. Its times say nothing here: the sizes are small.

use std::path::Path;
use std::time::Duration;

use vervain_tests::{Failures, Job, OPEN_MPI, alone, have};

/// A hang is what it finds.
const LIMIT: Duration = Duration::from_secs(300);
const INPUT: &str = include_str!("../data/hpccinf.txt");

/// Every part of HPCC 1.5.
const SECTIONS: [&str; 16] = [
    "MPIRandomAccess",
    "StarRandomAccess",
    "SingleRandomAccess",
    "MPIRandomAccess_LCG",
    "StarRandomAccess_LCG",
    "SingleRandomAccess_LCG",
    "PTRANS",
    "StarDGEMM",
    "SingleDGEMM",
    "StarSTREAM",
    "SingleSTREAM",
    "MPIFFT",
    "StarFFT",
    "SingleFFT",
    "LatencyBandwidth",
    "HPL",
];

/// What is wrong in a file `hpccoutf.txt`.
fn wrong(results: &str) -> Vec<String> {
    let lines: Vec<_> = results.lines().map(str::trim).collect();
    let mut wrong = Vec::new();
    for section in SECTIONS {
        if !lines.contains(&&*format!("End of {section} section.")) {
            wrong.push(format!("{section} has not ended"));
        }
    }
    for line in &lines {
        let first = line.split_whitespace().next().unwrap_or_default();
        // PTRANS and HPL: a word at each result, and how many there were; RandomAccess: `Found N errors in M
        // locations`.
        let bad = line.contains("FAILED")
            || line.contains("completed and failed residual checks") && first != "0"
            || line.contains("skipped because of illegal input values") && first != "0"
            || line.starts_with("Found ") && !(line.starts_with("Found 0 errors in ") && line.ends_with("(passed)."))
            || line.starts_with("Node(s) with error") && !line.ends_with(" 0");
        if bad {
            wrong.push((*line).to_owned());
        }
    }
    // The summary.
    let value = |key: &str| lines.iter().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    for (key, expected) in [("Success", "1"), ("MPIRandomAccess_Errors", "0"), ("MPIRandomAccess_LCG_Errors", "0")] {
        if value(key) != Some(expected) {
            wrong.push(format!("{key}={}", value(key).unwrap_or("nothing")));
        }
    }
    for (key, most) in [("MPIFFT_maxErr", 1e-12), ("HPL_RnormI", 1e-9), ("PTRANS_residual", 1e-9)] {
        // -1 says that nothing was computed.
        if !value(key).and_then(|v| v.parse().ok()).is_some_and(|v: f64| (0.0..=most).contains(&v)) {
            wrong.push(format!("{key}={}", value(key).unwrap_or("nothing")));
        }
    }
    for said in ["PASSED", "Solution Validates"] {
        if !results.contains(said) {
            wrong.push(format!("nothing says {said}"));
        }
    }
    wrong
}

fn hpcc(link: &str, runs: &[(u32, u32)]) {
    if !have(&["hpcc", OPEN_MPI.launcher]) {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    for (p, q) in runs {
        let ranks = p * q;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hpcc-{link}-{ranks}"));
        // It appends to results that are there.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for HPCC");
        let input = INPUT.replace("@P@", &p.to_string()).replace("@Q@", &q.to_string());
        std::fs::write(folder.join("hpccinf.txt"), input).expect("HPCC's input");
        let end = Job::start(OPEN_MPI.launch(link, ranks, "hpcc").current_dir(&folder)).finish(LIMIT);
        println!("hpcc {link} {ranks} ranks: {:.2} s", end.took.as_secs_f64());
        let results = std::fs::read_to_string(folder.join("hpccoutf.txt")).unwrap_or_default();
        let wrong = wrong(&results);
        if !end.success() || !wrong.is_empty() {
            let why = format!("{}\n{}/hpccoutf.txt:\n{}", end.describe(), folder.display(), wrong.join("\n"));
            failures.add(&format!("hpcc {link} {ranks} ranks"), why);
        }
    }
    failures.assert_none();
}

#[test]
fn hpcc_verifies_its_results_by_memory() {
    hpcc("auto", &[(1, 2), (2, 2)]);
}

#[test]
fn hpcc_verifies_its_results_in_packets() {
    hpcc("roce", &[(1, 2)]);
}

#[test]
fn what_hpcc_says_against_its_results_is_found() {
    let ends: String = SECTIONS.iter().map(|s| format!("End of {s} section.\n")).collect();
    let good = ends
        + "Found 0 errors in 8192 locations (passed).\nNode(s) with error 0\nSolution Validates: avg\n\
           WALL 50 50 16 16 1 2 0.00 PASSED 0.779 0.00\n    0 tests completed and failed residual checks.\n\
           Success=1\nMPIRandomAccess_Errors=0\nMPIRandomAccess_LCG_Errors=0\nMPIFFT_maxErr=6.8e-16\n\
           HPL_RnormI=3.4e-13\nPTRANS_residual=0\n";
    assert_eq!(wrong(&good), [""; 0]);
    for (from, to) in [
        ("End of HPL section.", ""),
        ("Found 0 errors in 8192 locations (passed)", "Found 12 errors in 8192 locations (passed)"),
        ("(passed)", "(failed)"),
        ("with error 0", "with error 2"),
        ("Solution Validates", "Failed Validation"),
        ("PASSED", "FAILED"),
        ("0 tests completed and failed", "10 tests completed and failed"),
        ("Success=1", "Success=0"),
        ("MPIRandomAccess_LCG_Errors=0", "MPIRandomAccess_LCG_Errors=7"),
        ("PTRANS_residual=0", "PTRANS_residual=-1"),
        ("6.8e-16", "0.5"),
    ] {
        assert!(!wrong(&good.replace(from, to)).is_empty(), "{to}");
    }
}
