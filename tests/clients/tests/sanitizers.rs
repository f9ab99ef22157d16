//! Sanitizers, memcheck, gdb and strace on a small verbs program (`tests/c/checked.c`): right traffic is left in peace, and
//! each mistake of the program is found as it would be without a device. docs/sanitizers.md is the page for users.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use vervain_tests::pairs::serve;
use vervain_tests::{
    Failures, Finished, Job, c_program, free_port, have, have_c, sanitized_program, skip, under_vervain, unswayed,
    vervain, way,
};

/// Memcheck's search for leaks once took three minutes; all of this takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

const ADDRESS: &str = "-fsanitize=address";
const LEAK: &str = "-fsanitize=leak";
const THREAD: &str = "-fsanitize=thread";
const UNDEFINED: &str = "-fsanitize=undefined";

/// The sanitizers of both compilers, with the runtime as a shared library and linked into the program.
const BUILDS: [(&str, &[&str]); 11] = [
    ("gcc", &[ADDRESS]),
    ("gcc", &[ADDRESS, "-static-libasan"]),
    ("gcc", &[THREAD]),
    ("gcc", &[LEAK]),
    ("gcc", &[UNDEFINED]),
    ("clang", &[ADDRESS]),
    ("clang", &[ADDRESS, "-shared-libasan"]),
    ("clang", &[THREAD]),
    ("clang", &[LEAK]),
    ("clang", &[UNDEFINED]),
    ("clang", &[ADDRESS, UNDEFINED_TOO]),
];
const UNDEFINED_TOO: &str = "-fsanitize=undefined,leak";

/// The cases in which the program makes no mistake.
const RIGHT: [&str; 5] = ["looped", "apart", "threads", "threads_ex", "only_known_to_the_device"];

fn build((compiler, options): (&str, &[&str])) -> Option<PathBuf> {
    let mut options = options.to_vec();
    let mut place = String::new();
    if options.contains(&"-shared-libasan") {
        // Clang does not say in the program where its own libraries are.
        let runtime = format!("-print-file-name=libclang_rt.asan-{}.so", std::env::consts::ARCH);
        let asked = Command::new(compiler).arg(runtime).output().ok()?;
        let library = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
        place = format!("-Wl,-rpath,{}", library.parent()?.display());
    }
    if !place.is_empty() {
        options.push(&place);
    }
    sanitized_program(compiler, &options, "checked")
}

/// Without what the person who runs the tests has told the checkers.
fn end(command: &mut Command) -> Finished {
    for name in ["ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "VALGRIND_OPTS"] {
        if !command.get_envs().any(|(set, _)| set == name) {
            command.env_remove(name);
        }
    }
    Job::start(command).finish(LIMIT)
}

/// Whether it ended well and no sanitizer said a word.
fn in_peace(run: &Finished) -> bool {
    run.success() && !["ERROR: ", "WARNING: ", "runtime error"].iter().any(|word| run.output.contains(word))
}

#[test]
fn programs_with_a_sanitizer_run_and_are_left_in_peace() {
    let mut failures = Failures::default();
    for what in BUILDS {
        let Some(program) = build(what) else { continue };
        let run = end(under_vervain(&program).args(RIGHT));
        if !in_peace(&run) || !run.output.contains("5 cases, 0 failed") {
            failures.add(&format!("{what:?}"), run.describe());
        }
    }
    failures.assert_none();
}

#[test]
fn they_are_left_in_peace_on_every_way_to_memory() {
    let mut failures = Failures::default();
    for sanitizer in [ADDRESS, THREAD] {
        let Some(program) = build(("gcc", &[sanitizer])) else { continue };
        for name in ["vm", "owner", "adopt", "roce"] {
            let run = end(under_vervain(&program).args(&RIGHT[..4]).envs(way(name)));
            if !in_peace(&run) {
                failures.add(&format!("{sanitizer}, {name}"), run.describe());
            }
        }
    }
    failures.assert_none();
}

/// Test runners set the variables themselves, and start programs from programs.
#[test]
fn programs_that_others_start_with_options_of_their_own_run_too() {
    let mut failures = Failures::default();
    for options in [&[ADDRESS][..], &[THREAD]] {
        let Some(program) = build(("gcc", options)) else { continue };
        let shell = "ASAN_OPTIONS=detect_stack_use_after_return=1 TSAN_OPTIONS=history_size=3 \"$0\" looped apart";
        let run = end(under_vervain("sh").args(["-c", shell]).arg(&program));
        if !in_peace(&run) {
            failures.add(&format!("{options:?}"), run.describe());
        }
    }
    failures.assert_none();
}

#[test]
fn what_the_user_has_told_a_sanitizer_holds() {
    let Some(program) = build(("gcc", &[ADDRESS])) else { return };
    let run = end(under_vervain(&program).arg("overflow").env("ASAN_OPTIONS", "exitcode=77"));
    assert_eq!(run.code(), Some(77), "{}", run.describe());
    // Who wants the runtime to be first can have that said.
    let run = end(under_vervain(&program).arg("looped").env("ASAN_OPTIONS", "verify_asan_link_order=1"));
    assert!(!run.success() && run.output.contains("initial library list"), "{}", run.describe());
}

#[test]
fn each_sanitizer_finds_the_programs_own_mistakes() {
    let found: [(&str, &str, &[&str]); 9] = [
        (ADDRESS, "overflow", &["heap-buffer-overflow", "0 bytes to the right of 300000-byte region", "case_overflow"]),
        (ADDRESS, "after_free", &["heap-use-after-free", "5 bytes inside of 300000-byte region", "case_after_free"]),
        (ADDRESS, "leak", &["detected memory leaks", "300001 byte(s) leaked in 1 allocation(s)", "case_leak"]),
        (ADDRESS, "null", &["SEGV on unknown address 0x000000000000", "case_null"]),
        (LEAK, "leak", &["detected memory leaks", "300001 byte(s) leaked in 1 allocation(s)", "case_leak"]),
        (LEAK, "null", &["SEGV on unknown address 0x000000000000", "case_null"]),
        (THREAD, "race", &["data race", "'raced'", "racer"]),
        (THREAD, "null", &["SEGV on unknown address 0x000000000000"]),
        (UNDEFINED, "undefined", &["runtime error: signed integer overflow", "checked.c"]),
    ];
    let mut failures = Failures::default();
    for what in BUILDS {
        let Some(program) = build(what) else { continue };
        for (sanitizer, case, words) in found {
            if what.1[0] != sanitizer {
                continue;
            }
            let run = end(under_vervain(&program).arg(case));
            // UndefinedBehaviorSanitizer only tells.
            let status = run.success() == (sanitizer == UNDEFINED);
            // A race on a variable of a file's own has no name where the program says nothing of it to the linker.
            let said = |word: &&str| *word == "'raced'" || run.output.contains(*word);
            if !status || !words.iter().all(said) {
                failures.add(&format!("{what:?}, {case}"), run.describe());
            }
        }
    }
    failures.assert_none();
}

const MEMCHECK: [&str; 3] = ["--leak-check=full", "--error-exitcode=9", "--trace-children=yes"];

fn have_valgrind() -> bool {
    have(&["valgrind"]) && have_c()
}

/// Its words of every process that it ran: no errors.
fn memcheck_is_content(run: &Finished) -> bool {
    let sums: Vec<_> = run.output.lines().filter(|line| line.contains("ERROR SUMMARY:")).collect();
    run.success() && !sums.is_empty() && sums.iter().all(|line| line.contains("ERROR SUMMARY: 0 errors"))
}

#[test]
fn memcheck_finds_nothing_in_what_the_device_writes_and_in_the_library() {
    if !have_valgrind() {
        return;
    }
    let program = c_program("checked");
    let mut failures = Failures::default();
    // Plain, both processes under it, and one beside a peer that is not.
    for options in [&["--leak-check=full"][..], &MEMCHECK, &MEMCHECK[..2]] {
        let run = end(under_vervain("valgrind").args(options).arg(&program).args(&RIGHT[..4]));
        if !memcheck_is_content(&run) || !run.output.contains("4 cases, 0 failed") {
            failures.add(&options.join(" "), run.describe());
        }
    }
    for name in ["owner", "roce"] {
        let mut command = under_vervain("valgrind");
        let run = end(command.args(&MEMCHECK[..2]).arg(&program).args(["looped", "apart"]).envs(way(name)));
        if !memcheck_is_content(&run) {
            failures.add(name, run.describe());
        }
    }
    failures.assert_none();
}

#[test]
fn memcheck_is_content_with_both_ends_of_a_connection_by_librdmacm() {
    if !have_valgrind() || !have(&["rdma_server", "rdma_client", "rdma_xserver", "rdma_xclient"]) {
        return;
    }
    let mut failures = Failures::default();
    for (name, tool) in [("auto", "rdma_"), ("roce", "rdma_"), ("auto", "rdma_x")] {
        let port = free_port();
        let [server, client] = ["server", "client"].map(|end| {
            let mut side = under_vervain("valgrind");
            side.args(&MEMCHECK[..2]).arg(format!("{tool}{end}")).args(["-p", &port.to_string()]).envs(way(name));
            side
        });
        let (server, client) = serve(server, client, port, LIMIT);
        for end in [&server, &client] {
            if !memcheck_is_content(end) {
                failures.add(&format!("{name}, {tool}"), end.describe());
            }
        }
    }
    failures.assert_none();
}

#[test]
fn valgrind_may_also_stand_before_the_command() {
    if !have_valgrind() {
        return;
    }
    let mut command = unswayed("valgrind");
    command.args(["--trace-children=yes", "--leak-check=no"]).arg(vervain()).args(["run", "--"]);
    let run = end(command.arg(c_program("checked")).arg("looped"));
    assert!(memcheck_is_content(&run) && run.output.contains("1 cases, 0 failed"), "{}", run.describe());
    assert!(!run.output.contains("no view of"), "{}", run.describe());
}

#[test]
fn memcheck_finds_the_programs_own_mistakes() {
    if !have_valgrind() {
        return;
    }
    let found: [(&str, &[&str]); 5] = [
        ("overflow", &["Invalid write of size 1", "0 bytes after a block of size 300,000 alloc'd", "case_overflow"]),
        ("after_free", &["Invalid read of size 1", "5 bytes inside a block of size 300,000 free'd", "case_after_free"]),
        ("leak", &["300,001 bytes in 1 blocks are definitely lost", "case_leak"]),
        ("uninitialised", &["Conditional jump or move depends on uninitialised value(s)", "case_uninitialised"]),
        ("null", &["Process terminating with default action of signal 11", "case_null"]),
    ];
    let mut failures = Failures::default();
    for (case, words) in found {
        let run = end(under_vervain("valgrind").args(&MEMCHECK[..2]).arg(c_program("checked")).arg(case));
        if run.success() || !words.iter().all(|word| run.output.contains(word)) {
            failures.add(case, run.describe());
        }
    }
    failures.assert_none();
}

/// What the user has set is read beside what the command adds.
#[test]
fn memchecks_options_of_the_user_hold() {
    if !have_valgrind() {
        return;
    }
    let mut command = under_vervain("valgrind");
    let run = end(command
        .arg(c_program("checked"))
        .arg("leak")
        .env("VALGRIND_OPTS", "--leak-check=full --error-exitcode=33"));
    assert_eq!(run.code(), Some(33), "{}", run.describe());
}

fn gdb(commands: &[&str], cases: &[&str]) -> Option<Finished> {
    if !have(&["gdb"]) || !have_c() {
        return None;
    }
    let mut command = under_vervain("gdb");
    command.args(["-nx", "--batch"]);
    for line in ["set confirm off", "set debuginfod enabled off"].iter().chain(commands) {
        command.args(["-ex", line]);
    }
    command.arg("--args").arg(c_program("checked")).args(cases);
    // gdb asks for the registers of a thread that may have ended meanwhile.
    let mut runs = std::iter::repeat_with(|| end(&mut command)).take(3);
    let ran = |run: &Finished| !run.output.contains("Couldn't get registers: No such process");
    let run = runs.find(ran).expect("gdb that meets no thread's end, in three tries");
    if run.output.contains("Couldn't get registers") || run.output.contains("ptrace: Operation not permitted") {
        skip("this machine forbids ptrace");
        return None;
    }
    Some(run)
}

#[test]
fn gdb_runs_a_program_without_a_stop_that_nobody_asked_for() {
    let Some(run) = gdb(&["run"], &RIGHT[..4]) else { return };
    assert!(run.output.contains("4 cases, 0 failed") && run.output.contains("exited normally"), "{}", run.describe());
    assert!(!run.output.contains("received signal"), "{}", run.describe());
}

#[test]
fn gdb_stops_at_breakpoints_and_steps_through_a_post() {
    let commands = ["break ibv_post_send", "run", "backtrace", "delete", "stepi 400", "info symbol $pc", "continue"];
    let Some(run) = gdb(&commands, &["looped"]) else { return };
    for words in ["case_looped", "libibverbs.so.1", "1 cases, 0 failed", "exited normally"] {
        assert!(run.output.contains(words), "no {words:?}: {}", run.describe());
    }
}

#[test]
fn gdb_stops_where_the_program_faults() {
    let Some(run) = gdb(&["run", "backtrace"], &["null"]) else { return };
    assert!(run.output.contains("received signal SIGSEGV") && run.output.contains("case_null"), "{}", run.describe());
}

#[test]
fn strace_follows_all_threads_and_children() {
    if !have(&["strace"]) || !have_c() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let record = dir.path().join("record");
    let mut command = under_vervain("strace");
    let run = end(command.args(["-f", "-o"]).arg(&record).arg(c_program("checked")).args(&RIGHT[..4]));
    if run.output.contains("Operation not permitted") && !run.success() {
        skip("this machine forbids ptrace");
        return;
    }
    assert!(run.success() && run.output.contains("4 cases, 0 failed"), "{}", run.describe());
    let text = std::fs::read_to_string(&record).expect("what strace wrote");
    assert!(text.contains("process_vm_") || text.contains("memfd_create"), "the record has no call of the device's");
}
