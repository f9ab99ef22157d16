//! libacp: the C programs of `tests/acp`, one for each part of the interface, as ranks under `vervain launch`; the header, and how
//! programs are compiled and linked.

use std::fs;
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Failures, Finished, Job, acp, acp_program, have, must_be_clean, under_vervain, unswayed, windows};

/// Far more than any of these takes: a hang is what it finds.
const LIMIT: Duration = Duration::from_secs(120);
/// Packets over the loopback interface, to no other host.
const PACKETS: [&str; 4] = ["--link", "roce", "--interface", "lo"];

const ALL: [u32; 4] = [1, 2, 3, 4];

/// How many lines begin with this, behind the number of a rank.
fn lines(end: &Finished, start: &str) -> usize {
    let texts = end.output.lines().map(|line| line.split_once("] ").map_or(line, |(_, text)| text));
    texts.filter(|text| text.starts_with(start)).count()
}

#[test]
fn every_function_fails_outside_of_a_job_and_in_a_child() {
    if !have(&["cc"]) {
        return;
    }
    let program = acp_program("cc", &[], "life");
    for ranks in ALL {
        let end = Job::start(&mut acp::launch(ranks, &[], &program)).finish(LIMIT);
        let mut failures = Failures::default();
        acp::judge("life", ranks, &end, &mut failures);
        failures.assert_none();
        // Joining a second time, twice in the child, and after the end.
        for (sentence, times) in [
            ("acp: acp_init has been called before", 1),
            ("acp: this process was forked from a rank, and is none itself", 2),
            ("acp: acp_finalize has been called, and a process is a rank only once", 1),
        ] {
            assert_eq!(lines(&end, sentence), times * ranks as usize, "{sentence}: {}", end.describe());
        }
        assert_eq!(lines(&end, "acp: "), 4 * ranks as usize, "{}", end.describe());
    }
}

#[test]
fn a_process_without_a_launcher_is_rank_0_of_1() {
    if !have(&["cc"]) {
        return;
    }
    let end = Job::start(&mut under_vervain(acp_program("cc", &[], "life"))).finish(LIMIT);
    assert!(end.success() && lines(&end, "OK rank 0") == 1, "{}", end.describe());
}

#[test]
fn a_job_that_cannot_be_joined_is_one_sentence() {
    if !have(&["cc"]) {
        return;
    }
    let program = acp_program("cc", &[], "life");
    for (name, value) in [("ACP_STARTER_MEMORY", "much"), ("PMI_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "2")] {
        let end = Job::start(under_vervain(&program).arg("refused").env(name, value)).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        let sentences: Vec<_> = end.output.lines().filter(|line| line.starts_with("acp: ")).collect();
        assert!(sentences.len() == 1 && sentences[0].contains(name), "{}", end.describe());
    }
}

#[test]
fn a_process_without_a_device_is_told_so() {
    if !have(&["cc"]) {
        return;
    }
    let mut command = unswayed(acp_program("cc", &[], "life"));
    // A library that is none, whatever the machine has.
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("libibverbs.so.1"), "").expect("a file");
    let end = Job::start(command.arg("refused").env("LD_LIBRARY_PATH", dir.path())).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    assert_eq!(lines(&end, "acp: "), 1, "{}", end.describe());
    assert!(end.output.contains("libibverbs.so.1"), "{}", end.describe());
}

#[test]
fn regions_have_keys_and_addresses() {
    acp::holds("memory", &[], &ALL, &[]);
}

#[test]
fn a_sparse_region_of_20_gib_is_reached_everywhere() {
    acp::holds("sparse", &[], &ALL, &[]);
}

#[test]
fn copies_go_from_every_rank_to_every_rank() {
    acp::holds("copy", &[], &ALL, &[]);
}

#[test]
fn copies_go_in_packets() {
    acp::holds("copy", &PACKETS, &[3], &[]);
}

#[test]
fn orders_and_completion_have_their_outcome() {
    acp::holds("order", &[], &ALL, &[]);
}

#[test]
fn atomics_change_words_of_every_rank() {
    acp::holds("atomics", &[], &ALL, &[]);
}

#[test]
fn atomics_go_in_packets() {
    acp::holds("atomics", &PACKETS, &[3], &[]);
}

#[test]
fn nothing_is_lost_of_what_all_ranks_add_at_once() {
    acp::holds("sums", &[], &[1, 2, 3, 4, 8], &[]);
}

#[test]
fn ranks_are_renumbered_and_begin_anew() {
    acp::holds("reset", &[], &ALL, &[]);
}

#[test]
fn a_rank_that_sleeps_is_served() {
    acp::holds("pause", &[], &ALL, &[]);
}

#[test]
fn a_rank_that_is_stopped_for_seconds_goes_on_with_the_job() {
    let window = ["--link", "window", "--window", windows::memory()];
    for options in [&[][..], &PACKETS, &window] {
        acp::holds("stopped", options, &[3], &[]);
    }
}

#[test]
fn deferred_accesses_go_on_by_themselves() {
    acp::holds("deferred", &[], &ALL, &[]);
}

#[test]
fn floods_of_accesses_between_others_get_through() {
    acp::holds("flood", &[], &ALL, &[]);
}

#[test]
fn threads_issue_at_the_same_time() {
    acp::holds("threads", &[], &ALL, &[]);
    // Late packets have them sleep, and poll what another sleeps for.
    acp::holds("threads", &[&PACKETS[..], &["--faults", "delay=100us..2ms"]].concat(), &[2], &[]);
}

#[test]
fn an_abort_ends_all_ranks_with_its_sentence() {
    if !have(&["cc"]) {
        return;
    }
    let program = acp_program("cc", &[], "abort");
    for (how, sentence) in [
        ("sentence", "no more of this"),
        ("null", "acp_abort was called"),
        ("before", "nothing has begun"),
        ("after", "all is over"),
    ] {
        let end = Job::start(acp::launch(3, &[], &program).arg(how)).finish(LIMIT);
        assert!(end.status.is_some_and(|status| status.code() == Some(1)), "{}", end.describe());
        let said = end.output.lines().filter(|line| line.contains(sentence)).count();
        // All three say it where there is no job yet, as far as they come to it.
        assert!(if how == "before" { said >= 1 } else { said == 1 }, "{}", end.describe());
        assert_eq!(lines(&end, "FAIL"), 0, "{}", end.describe());
    }
    let end = Job::start(acp::launch(3, &[], &program).arg("kill")).finish(LIMIT);
    assert!(end.status.is_some_and(|status| !status.success()), "{}", end.describe());
    let said = end.output.lines().filter(|line| line.contains("was killed by SIGKILL")).count();
    assert_eq!((said, lines(&end, "FAIL")), (1, 0), "{}", end.describe());
    let mut failures = Failures::default();
    let end = Job::start(acp::launch(2, &[], &program).arg("child")).finish(LIMIT);
    acp::judge("abort child", 2, &end, &mut failures);
    failures.assert_none();
}

#[test]
fn a_rank_that_ends_without_acp_finalize_ends_the_others_with_a_sentence() {
    if !have(&["cc"]) {
        return;
    }
    let program = acp_program("cc", &[], "quits");
    let mut failures = Failures::default();
    for how in ["return", "exit", "_exit", "signal"] {
        for others in ["sync", "finalize"] {
            let end = Job::start(acp::launch(3, &[], &program).args([how, others])).finish(LIMIT);
            let sentence = "ended with status 0 and without leaving its job (acp_finalize, pmCloseDevice); \
                            the other ranks are ended";
            // Besides this, a rank may have reported that rank 2 does not answer.
            let told: Vec<_> = end.output.lines().filter(|line| line.starts_with("vervain: rank ")).collect();
            let named = told.len() == 1 && told[0].starts_with("vervain: rank 2 ") && told[0].ends_with(sentence);
            let failed = end.status.is_some_and(|status| status.code() == Some(1));
            let words = usize::from(how != "_exit");
            if !named || !failed || lines(&end, "LAST WORDS") != words || lines(&end, "FAIL") > 0 {
                failures.add(&format!("{how}, the others in {others}"), end.describe());
            }
        }
    }
    for how in ["atexit", "child"] {
        let end = Job::start(acp::launch(3, &[], &program).arg(how)).finish(LIMIT);
        acp::judge(how, 3, &end, &mut failures);
    }
    failures.assert_none();
}

#[test]
fn an_access_that_cannot_be_is_refused_or_ends_the_job_with_a_sentence() {
    if !have(&["cc"]) {
        return;
    }
    let program = acp_program("cc", &[], "faults");
    let mut failures = Failures::default();
    for what in ["get", "put", "third", "far", "add", "unregistered", "duplicate"] {
        for ranks in [2, 3] {
            let end = Job::start(acp::launch(ranks, &[], &program).arg(what)).finish(LIMIT);
            let failed = end.status.is_some_and(|status| !status.success());
            // In place of the refusal at once, the sentence about the one that was found later.
            let told = lines(&end, "REFUSED ") >= 1 || end.output.contains("aborted the job with status");
            if !failed || !told || lines(&end, "FAIL") > 0 || end.output.contains("no error") {
                failures.add(&format!("{what}, {ranks} ranks"), end.describe());
            }
        }
    }
    failures.assert_none();
}

#[test]
fn programs_of_the_original_compile_by_its_names_and_run() {
    if !have(&["cc", "readelf"]) {
        return;
    }
    let prefix = acp::prefix();
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("original");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/acp/original.c");
    let [include, library] = ["include", "lib"].map(|folder| prefix.join(folder).display().to_string());
    let by_names = [format!("-I{include}"), format!("-L{library}"), format!("-Wl,-rpath,{library}")];
    let wrapper = prefix.join("bin/acpcc");
    let object = dir.path().join("original.o");
    let mut by_name = Command::new("cc");
    by_name.arg(source).args(by_names).args(["-lacpbl", "-lacpml", "-o"]).arg(&program);
    let mut by_wrapper = Command::new(&wrapper);
    by_wrapper.args([source, "-O2", "-o"]).arg(&program);
    let mut in_two_steps = Command::new("sh");
    in_two_steps.args(["-ec", r#""$0" -c "$1" -o "$2"; "$0" "$2" -o "$3""#]);
    in_two_steps.arg(&wrapper).arg(source).arg(&object).arg(&program);
    for compile in [&mut by_name, &mut by_wrapper, &mut in_two_steps] {
        let end = Job::start(compile).finish(LIMIT);
        assert!(end.success() && end.output.is_empty(), "{}", end.describe());
        let needed = Job::start(Command::new("readelf").arg("-d").arg(&program)).finish(LIMIT);
        assert!(needed.output.contains("[libacp.so.3]"), "{}", needed.describe());
        let end = Job::start(acp::launch(3, &[], &program).args(["--acp-nprocs", "3"])).finish(LIMIT);
        assert!(end.success() && lines(&end, "OK rank") == 3, "{}", end.describe());
        fs::remove_file(&program).expect("the program");
    }
}

#[test]
fn the_header_is_clean_in_c_and_cxx() {
    // Twice, to see that it is read once, and by itself: it includes what it needs.
    let text = "#include <acp.h>\n#include <acp.h>\n\
                acp_handle_t f(void);\nacp_handle_t f(void) { return acp_copy(ACP_GA_NULL, ACP_GA_NULL, 0, ACP_HANDLE_ALL); }\n\
                typedef char all[(acp_handle_t)ACP_HANDLE_ALL == -1 && ACP_HANDLE_ALL == 0xffffffffffffffff ? 1 : -1];\n\
                typedef char cont[(acp_handle_t)ACP_HANDLE_CONT == -2 && ACP_HANDLE_CONT == 0xfffffffffffffffe ? 1 : -1];\n\
                typedef char none[ACP_HANDLE_NULL == 0 && ACP_GA_NULL == 0 && ACP_ATKEY_NULL == 0 ? 1 : -1];\n\
                typedef char types[sizeof(acp_ga_t) == 8 && sizeof(acp_atkey_t) == 8 && (acp_handle_t)-1 < 0 ? 1 : -1];\n";
    must_be_clean(text, &acp::prefix(), &["c99", "c11", "c17"], &["c++11", "c++17", "c++20"]);
}

#[test]
fn a_program_in_cxx_uses_it() {
    if !have(&["c++"]) {
        return;
    }
    let mut failures = Failures::default();
    for name in ["life", "copy"] {
        let program = acp_program("c++", &["-xc++", "-std=c++17"], name);
        let end = Job::start(&mut acp::launch(2, &[], &program)).finish(LIMIT);
        acp::judge(&format!("{name} in C++"), 2, &end, &mut failures);
    }
    failures.assert_none();
}
