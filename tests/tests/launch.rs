//! `vervain launch`: ranks that find each other, output, signals, and the end of all where one fails. The ranks are
//! `tests/src/rank.rs`.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vervain_tests::{Finished, Job, unswayed, vervain};

/// Far more than any of these takes: a hang is what it finds.
const LIMIT: Duration = Duration::from_secs(60);
const RANK: &str = env!("CARGO_BIN_EXE_vervain-rank");

/// `vervain launch -n RANKS` on the system's verbs, which the program does not use.
fn launch(ranks: u32, options: &[&str]) -> Command {
    let mut command = unswayed(vervain());
    command.args(["launch", "-n", &ranks.to_string(), "--verbs", "system"]).args(options).arg("--").arg(RANK);
    command
}

fn run(ranks: u32, what: &str) -> Finished {
    Job::start(launch(ranks, &[]).arg(what)).finish(LIMIT)
}

/// The launcher's sentences.
fn sentences(end: &Finished) -> Vec<&str> {
    end.output.lines().filter(|line| line.starts_with("vervain: ")).collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name: the state. A zombie has ended.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Whether all of them end soon.
fn all_end(pids: &[u32]) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(|pid| is_alive(*pid)) {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The numbers behind `what` in the output, once there are `count`.
fn numbers(job: &mut Job, what: &str, count: usize) -> Vec<u32> {
    let until = Instant::now() + LIMIT;
    loop {
        let output = job.output();
        let found: Vec<u32> = output.lines().filter_map(|l| l.split_once(what)?.1.parse().ok()).collect();
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < until && job.running(), "{found:?} of {count}: {output}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn exchange(end: &Finished, ranks: u32) {
    assert!(end.success(), "{}", end.describe());
    let mut jobs: Vec<_> = end.output.lines().filter_map(|line| line.rsplit_once(", job ")).collect();
    jobs.sort_unstable();
    assert!(jobs.windows(2).all(|pair| pair[0].1 == pair[1].1), "one job, one name: {}", end.describe());
    let mut wanted: Vec<_> =
        (0..ranks).map(|rank| format!("[{rank}] rank {rank} of {ranks}, local Some({ranks})")).collect();
    wanted.sort_unstable();
    assert_eq!(jobs.iter().map(|job| job.0).collect::<Vec<_>>(), wanted, "{}", end.describe());
}

#[test]
fn four_ranks_exchange_values() {
    exchange(&run(4, "exchange"), 4);
    exchange(&run(1, "exchange"), 1);
}

#[test]
fn sixty_four_ranks_exchange_values() {
    exchange(&run(64, "exchange"), 64);
}

#[test]
fn ranks_have_vervains_devices() {
    let mut command = unswayed(vervain());
    let script = "grep . /sys/class/infiniband/vervain1/node_guid && echo $VERVAIN_JOB_RANK of $VERVAIN_JOB_SIZE";
    let job = Job::start(command.args(["launch", "-n", "2", "--devices", "2", "--", "sh", "-c", script]));
    let end = job.finish(LIMIT);
    assert!(
        end.success() && end.output.contains("[0] 0 of 2") && end.output.contains("[1] 1 of 2"),
        "{}",
        end.describe()
    );
}

#[test]
fn ranks_get_the_sizes_of_starter_memories_as_variables() {
    let run = |options: &[&str]| {
        let mut command = unswayed(vervain());
        command.args(["launch", "-n", "2", "--verbs", "system"]).args(options);
        // What the user's environment says stays where no option says otherwise.
        command.env("ACP_STARTER_MEMORY_DL", "3M").env_remove("ACP_STARTER_MEMORY").env_remove("ACP_STARTER_MEMORY_CL");
        let script = "echo user ${ACP_STARTER_MEMORY-none} channels ${ACP_STARTER_MEMORY_CL-none} data \
                      ${ACP_STARTER_MEMORY_DL-none}";
        Job::start(command.args(["--", "sh", "-c", script])).finish(LIMIT)
    };
    for (options, wanted) in [
        (&[][..], "user none channels none data 3M"),
        (&["--starter", "64k", "--starter-cl", "0"], "user 65536 channels 0 data 3M"),
        (&["--starter", "100", "--starter-dl", "1G"], "user 100 channels none data 1073741824"),
    ] {
        let end = run(options);
        assert!(end.success(), "{}", end.describe());
        for rank in 0..2 {
            assert!(end.output.lines().any(|line| line == format!("[{rank}] {wanted}")), "{}", end.describe());
        }
    }
    for (option, wrong) in [("--starter", "64kB"), ("--starter-cl", "2048G"), ("--starter-dl", "much")] {
        let end = run(&[option, wrong]);
        assert_eq!((end.code(), end.output.lines().count()), (Some(2), 1), "{}", end.describe());
        let sentence = format!("vervain: {option} is '{wrong}'; it can be a number of bytes");
        assert!(end.output.starts_with(&sentence), "{}", end.describe());
    }
}

#[test]
fn without_a_launcher_a_process_is_rank_0_of_1() {
    let end = Job::start(unswayed(RANK).arg("exchange")).finish(LIMIT);
    assert!(end.success() && end.output.starts_with("rank 0 of 1, local Some(1), job "), "{}", end.describe());
}

#[test]
fn a_pmi_that_is_not_spoken_is_one_sentence() {
    for (name, value) in
        [("PMI_RANK", "0"), ("PMI_FD", "5"), ("SLURM_STEP_NUM_TASKS", "2"), ("OMPI_COMM_WORLD_SIZE", "2")]
    {
        let end = Job::start(unswayed(RANK).arg("exchange").env(name, value)).finish(LIMIT);
        assert_eq!((end.code(), end.output.lines().count()), (Some(3), 1), "{}", end.describe());
        assert!(end.output.contains(name) && end.output.contains("vervain launch"), "{}", end.describe());
    }
}

#[test]
fn a_launcher_around_this_one_does_not_count() {
    let around = [("PMI_RANK", "0"), ("PMI_FD", "5"), ("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let end = Job::start(launch(2, &[]).arg("exchange").envs(around)).finish(LIMIT);
    exchange(&end, 2);
}

#[test]
fn a_rank_that_fails_ends_the_others_with_one_sentence() {
    for (what, wanted, how) in [
        ("exit", 7, "ended with status 7"),
        ("kill", 137, "was killed by SIGKILL"),
        ("abort", 9, "aborted the job with status 9: no more of this"),
        ("forget", 1, "ended with status 0 and without leaving its job (acp_finalize, pmCloseDevice)"),
        ("_exit", 1, "ended with status 0 and without leaving its job (acp_finalize, pmCloseDevice)"),
    ] {
        let end = run(4, what);
        let sentences = sentences(&end);
        assert_eq!((end.code(), sentences.len()), (Some(wanted), 1), "{}", end.describe());
        assert!(sentences[0].starts_with("vervain: rank 3 (process "), "{}", end.describe());
        assert!(sentences[0].ends_with(&format!(") {how}; the other ranks are ended")), "{}", end.describe());
    }
}

#[test]
fn a_fence_without_a_rank_that_has_ended_in_order_is_an_error() {
    let end = run(3, "leave");
    assert_eq!(end.code(), Some(3), "{}", end.describe());
    assert!(end.output.contains("rank: the fence cannot be completed: rank 2 has left the job"), "{}", end.describe());
}

#[test]
fn rubbish_from_a_rank_ends_the_job() {
    let end = run(2, "rubbish");
    let sentences = sentences(&end);
    assert_eq!((end.code(), sentences.len()), (Some(1), 1), "{}", end.describe());
    assert!(sentences[0].contains("has spoilt its connection"), "{}", end.describe());
}

#[test]
fn only_the_process_itself_joins_and_once() {
    for (what, said) in [("twice", "] again: rank"), ("child", "] child: rank: ")] {
        let end = run(2, what);
        assert!(end.success(), "{}", end.describe());
        let sentences: Vec<_> = end.output.lines().filter(|line| line.contains(&said[..6])).collect();
        assert_eq!(sentences.len(), 2, "{}", end.describe());
        assert!(sentences.iter().all(|sentence| sentence.ends_with(", and only once")), "{}", end.describe());
    }
}

#[test]
fn lines_stay_whole() {
    for prefix in [true, false] {
        let options: &[&str] = if prefix { &[] } else { &["--no-prefix"] };
        let end = Job::start(launch(4, options).arg("lines")).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        let mut next = BTreeMap::new();
        let mut unfinished = 0;
        for line in end.output.lines() {
            let (rank, text) = match line.strip_prefix('[').and_then(|l| l.split_once("] ")) {
                Some((rank, text)) => (Some(rank), text),
                None => (None, line),
            };
            assert_eq!(rank.is_some(), prefix, "{line}");
            unfinished += text.matches("no newline").count();
            let text = text.trim_start_matches("no newline");
            if text.is_empty() {
                continue;
            }
            let own = &text[1..2];
            assert!(rank.is_none_or(|rank| rank == own), "{line}");
            let n: &mut u32 = next.entry(own.to_owned()).or_default();
            assert_eq!(text, format!("<{own}:{n}:{}>", own.repeat(50)));
            *n += 1;
        }
        assert_eq!((next.into_values().collect::<Vec<_>>(), unfinished), (vec![200; 4], 4));
    }
}

#[test]
fn standard_input_is_rank_0s() {
    let mut command = launch(2, &[]);
    let mut child = command.arg("input").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("vervain");
    child.stdin.take().expect("a pipe").write_all(b"hello\n").expect("written");
    let output = child.wait_with_output().expect("its end");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] read 6: hello", "[1] read 0: "]);
}

#[test]
fn signals_reach_all_ranks() {
    for (signal, name) in [(libc::SIGINT, "SIGINT"), (libc::SIGTERM, "SIGTERM"), (libc::SIGUSR1, "SIGUSR1")] {
        let mut job = Job::start(launch(3, &[]).arg("wait"));
        let ranks = numbers(&mut job, "waits as ", 3);
        kill(job.pid(), signal);
        let end = job.finish(LIMIT);
        assert_eq!(end.code(), Some(128 + signal), "{}", end.describe());
        assert!(sentences(&end)[0].contains(&format!("was killed by {name}")), "{}", end.describe());
        assert!(all_end(&ranks));
    }
}

#[test]
fn ranks_stop_and_continue_with_the_launcher() {
    let mut job = Job::start(launch(2, &[]).arg("wait"));
    let ranks = numbers(&mut job, "waits as ", 2);
    let all: Vec<u32> = ranks.iter().copied().chain([job.pid()]).collect();
    let state = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
    };
    let until = |stopped: bool| {
        let until = Instant::now() + LIMIT;
        while all.iter().any(|pid| (state(pid) == 'T') != stopped) {
            assert!(Instant::now() < until, "{:?}", all.iter().map(state).collect::<Vec<_>>());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    kill(job.pid(), libc::SIGTSTP);
    until(true);
    kill(job.pid(), libc::SIGCONT);
    until(false);
    kill(job.pid(), libc::SIGTERM);
    assert_eq!(job.finish(LIMIT).code(), Some(143));
}

#[test]
fn a_rank_that_is_killed_from_outside_ends_the_others() {
    let mut job = Job::start(launch(3, &[]).arg("wait"));
    let ranks = numbers(&mut job, "waits as ", 3);
    kill(ranks[1], libc::SIGKILL);
    let end = job.finish(LIMIT);
    assert_eq!((end.code(), sentences(&end).len()), (Some(137), 1), "{}", end.describe());
    assert!(sentences(&end)[0].contains(&format!("(process {})", ranks[1])), "{}", end.describe());
    assert!(all_end(&ranks));
}

#[test]
fn nothing_is_left_of_a_launcher_that_is_killed() {
    let mut job = Job::start(launch(3, &[]).arg("shell"));
    // What the ranks have started, which the kernel does not end with the launcher.
    let children = numbers(&mut job, "waits with ", 3);
    kill(job.pid(), libc::SIGKILL);
    assert!(all_end(&children), "{:?}", children.iter().map(|pid| is_alive(*pid)).collect::<Vec<_>>());
}

#[test]
fn what_a_rank_leaves_behind_ends_with_it() {
    let mut command = unswayed(vervain());
    let script = "sleep 1000 & echo leaves $!";
    let end = Job::start(command.args(["launch", "-n", "2", "--verbs", "system", "sh", "-c", script])).finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    let left: Vec<u32> = end.output.lines().filter_map(|l| l.split_once("leaves ")?.1.parse().ok()).collect();
    assert_eq!(left.len(), 2, "{}", end.describe());
    assert!(all_end(&left));
}

#[test]
fn a_program_that_does_not_start_is_one_sentence() {
    for (program, wanted) in [("/nonexistent", 127), ("/etc/passwd", 126)] {
        let mut command = unswayed(vervain());
        let end = Job::start(command.args(["launch", "-n", "2", "--verbs", "system", program])).finish(LIMIT);
        assert_eq!((end.code(), end.output.lines().count()), (Some(wanted), 1), "{}", end.describe());
    }
}

fn kill(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).expect("a pid");
    // SAFETY: kill has no memory effects; the process is one that this test has started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}
