//! Death, stopping, forking, many of everything, and wrong input: nothing hangs, nothing is left behind, one clear
//! sentence for each wrong value. These run one by one: they load the machine and look at what else is on it.

use std::time::Duration;

use vervain_config::{Setter, TABLE, Variable};
use vervain_tests::{
    Job, Leftovers, Runs, alone, c_program, have, have_c, is_whole, must_hold, under_vervain, unswayed, vervain, way,
};

/// Every way to memory but the best.
const OTHERS: &[&str] = &["vm", "owner", "shared", "adopt"];

fn run(program: &str, cases: &[&str]) {
    Runs { program, cases: &[cases], ..Runs::default() }.must_hold();
}

#[test]
fn peers_are_killed_under_load() {
    let kill = Runs { program: "kill", cases: &[&["kill_under_load"]], ..Runs::default() };
    Runs { vars: &[("VT_ROUNDS", "100")], ..kill }.must_hold();
    Runs { ways: OTHERS, vars: &[("VT_ROUNDS", "25")], ..kill }.must_hold();
}

#[test]
fn a_stopped_peer_harms_no_other() {
    let stop = Runs { program: "kill", cases: &[&["stop_and_continue"]], ..Runs::default() };
    stop.must_hold();
    Runs { ways: OTHERS, vars: &[("VT_ROUNDS", "20")], at_once: 2, ..stop }.must_hold();
}

/// By the ways that need nothing of the owner.
#[test]
fn the_first_request_to_a_stopped_process_succeeds() {
    Runs { program: "first_contact", ways: &["auto", "vm", "shared", "adopt"], ..Runs::default() }.must_hold();
}

#[test]
fn processes_that_give_up_roots_rights_reach_each_other_and_let_nobody_else_in() {
    Runs { program: "users", ways: &["auto", "owner"], ..Runs::default() }.must_hold();
}

#[test]
fn who_stands_still_in_a_copy_has_no_success_and_stores_nothing_later() {
    // The seconds that a revocation waits are the same for all of them.
    let stands = Runs {
        program: "stands_still",
        cases: &[
            &["no_success_and_no_store_after_the_end"],
            &["memory_in_use_is_taken_from_one_alone"],
            &["a_key_that_stays_leads_to_the_programs_memory"],
            &["what_is_elsewhere_is_left_alone"],
            &["what_was_seen_has_arrived"],
        ],
        at_once: 6,
        ..Runs::default()
    };
    Runs { ways: &["auto", "owner", "vm"], ..stands }.must_hold();
    Runs { ways: &["shared"], vars: &[("VT_LATE_STORES", "1")], ..stands }.must_hold();
    let asks = Runs { cases: &[&["what_the_owner_has_done_counts_wherever_the_sender_stood"]], ..stands };
    Runs { ways: &["owner", "vm"], ..asks }.must_hold();
}

#[test]
fn a_program_that_sleeps_on_a_channel_is_woken_whatever_becomes_of_its_peers() {
    let sleepers = Runs {
        program: "wake",
        cases: &[
            &["two_sleepers"],
            &["stopped_senders_wake_nobody_less"],
            &["killed_senders_leave_no_silent_completion"],
            &["channels_come_and_go"],
        ],
        at_once: 4,
        ..Runs::default()
    };
    sleepers.must_hold();
    Runs { ways: &["owner", "shared"], vars: &[("VT_ROUNDS", "20")], ..sleepers }.must_hold();
}

#[test]
fn an_owner_that_copies_shows_no_torn_tail_and_keeps_no_revoked_key() {
    let cases: &[&[&str]] = &[&["the_tail_comes_last", "revoked_half_way"]];
    Runs { program: "wake", cases, ways: &["owner", "vm", "auto"], ..Runs::default() }.must_hold();
}

/// By the CPU, the kernel, the owner and in packets. `tests/clients/tests/multicore.rs` has the other ways, for longer.
#[test]
fn of_two_that_write_and_then_read_one_sees_the_other() {
    let ways = &["auto", "vm", "owner", "roce"];
    Runs { program: "store_buffering", ways, vars: &[("VT_LIMIT_MS", "100")], ..Runs::default() }.must_hold();
}

#[test]
fn a_peer_becomes_another_program() {
    run("kill", &["exec_while_connected"]);
}

#[test]
fn a_whole_job_is_killed_and_leaves_nothing() {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let before = Leftovers::watch();
    for delay in [30, 100, 200] {
        let mut endless = under_vervain(c_program("kill"));
        let mut job = Job::start(endless.arg("endless").envs(before.variables()));
        assert!(job.wait_output("running", Duration::from_secs(20)), "{}", job.finish(Duration::ZERO).describe());
        std::thread::sleep(Duration::from_millis(delay));
        job.signal_group(libc::SIGKILL);
        let end = job.finish(Duration::from_secs(60));
        assert!(end.status.is_some(), "{}", end.describe());
    }
    let left = before.new_ones();
    assert!(left.is_empty(), "left behind: {left:#?}");
}

#[test]
fn threads_vanish_inside_calls() {
    run("lifecycle", &["thread_sys_exit"]);
    // What ships lets pthread_exit pass through its frames; the tests' build, whose panics unwind, aborts there.
    if is_whole() {
        run("lifecycle", &["thread_pthread_exit"]);
    }
}

#[test]
fn cancelled_threads_end_between_verbs() {
    let ways = &["auto", "roce"];
    Runs { program: "lifecycle", cases: &[&["thread_cancel"]], ways, ..Runs::default() }.must_hold();
    // As with pthread_exit, which passes through the frames of the wait.
    if is_whole() {
        Runs { program: "lifecycle", cases: &[&["thread_cancel_wait"]], ways, ..Runs::default() }.must_hold();
    }
}

#[test]
fn fork_exec_and_exit_do_no_harm() {
    run("lifecycle", &["fork_harmless", "exit_open"]);
}

#[test]
fn an_open_device_costs_little() {
    run("lifecycle", &["idle_cost", "open_again"]);
}

#[test]
fn file_descriptors_run_out() {
    run("lifecycle", &["fd_limit"]);
}

#[test]
fn many_processes_send_into_one_queue() {
    Runs { program: "fan_in", ways: &["auto", "vm", "owner", "adopt"], ..Runs::default() }.must_hold();
}

#[test]
fn sixty_four_processes_talk_all_to_all() {
    run("scale", &["all_to_all"]);
}

#[test]
fn ten_thousand_qps_in_one_process() {
    run("scale", &["many_qps", "numbers"]);
}

/// A wrong value of each variable: the command refuses it with one sentence, and the library if it meets it without the
/// command's check: no device, no hang.
#[test]
fn a_wrong_variable_is_told_in_one_sentence() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    let _turn = alone();
    let wrong = [
        ("VERVAIN_DEVICES", "17"),
        ("VERVAIN_DEVICES", "zero"),
        ("VERVAIN_PORTS", "0"),
        ("VERVAIN_LINK_LAYER", "token-ring"),
        ("VERVAIN_LINK", "wireless"),
        ("VERVAIN_INTERFACE", "lo,nonsuch0"),
        ("VERVAIN_MEMORY", "magic"),
        ("VERVAIN_SHARE", "sometimes"),
        ("VERVAIN_ADOPT", "perhaps"),
        ("VERVAIN_LOG", "loud"),
        ("VERVAIN_FORK_LIMIT", "lots"),
        ("VERVAIN_FAULTS", "drop=1"),
        ("VERVAIN_WINDOW", "/dev/shm/nonsuch,size=lots"),
        ("VERVAIN_PCAP", "/no/such/directory/x.pcap"),
    ];
    let users = TABLE.into_iter().filter(|variable| variable.setter == Setter::User).map(Variable::name);
    // As in rdma-core, any text is a value of SYSFS_PATH.
    let untried: Vec<_> = users.filter(|name| *name != "SYSFS_PATH" && !wrong.iter().any(|(n, _)| n == name)).collect();
    assert!(untried.is_empty(), "{untried:?}");
    for (name, value) in wrong {
        // By the command: refused before the program starts. By env inside of it: the library meets it.
        let mut bare = unswayed(vervain());
        let without = Job::start(bare.args(["run", "--no-preload", "--", "ibv_devinfo"]).env(name, value))
            .finish(Duration::from_secs(10));
        let by_command = Job::start(under_vervain("ibv_devinfo").env(name, value)).finish(Duration::from_secs(10));
        let by_library = Job::start(under_vervain("env").arg(format!("{name}={value}")).arg("ibv_devinfo"))
            .finish(Duration::from_secs(10));
        for end in [&by_command, &without] {
            assert_eq!(end.code(), Some(2), "{}", end.describe());
            assert!(
                end.output.starts_with(&format!("vervain: {name}")) && end.output.lines().count() == 1,
                "{}",
                end.describe()
            );
        }
        for end in [by_command, without, by_library] {
            assert!(end.status.is_some(), "{}", end.describe());
            let sentences =
                end.output.lines().filter(|l| l.contains(value) && (l.contains(name) || l.contains("--"))).count();
            assert_eq!(sentences, 1, "{name}={value}:\n{}", end.describe());
            assert!(!end.output.contains("panicked"), "{}", end.describe());
        }
    }
}

/// Without the command in front, as in an image that has LD_LIBRARY_PATH alone, nobody else would say it.
#[test]
fn the_library_tells_of_a_variable_that_nobody_reads_unless_the_command_has() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    let _turn = alone();
    for (option, lines) in [("--no-preload", 1), ("-v", 0)] {
        let mut command = unswayed(vervain());
        command.args(["run", option, "--", "env", "VERVAIN_LNK=roce", "ibv_devinfo"]);
        let end = Job::start(&mut command).finish(Duration::from_secs(10));
        assert!(end.success(), "{}", end.describe());
        let told = end.output.matches("VERVAIN_LNK: unknown variable; did you mean VERVAIN_LINK?").count();
        assert_eq!(told, lines, "{}", end.describe());
    }
}

#[test]
fn an_unknown_device_is_refused_by_its_program() {
    if !have(&["ibv_devinfo", "ibv_rc_pingpong"]) {
        return;
    }
    let _turn = alone();
    for (tool, args) in [("ibv_devinfo", &["-d", "vervain7"][..]), ("ibv_rc_pingpong", &["-d", "mlx5_0"][..])] {
        let end = Job::start(under_vervain(tool).args(args)).finish(Duration::from_secs(10));
        assert!(end.status.is_some_and(|s| !s.success()), "{}", end.describe());
        assert!(end.output.contains(args[1]), "{}", end.describe());
    }
}

/// A sandbox's network stack may not know trains: the option is refused (ENOPROTOOPT), and packets come one by one.
#[test]
fn packets_pass_where_trains_are_not_received_whole() {
    if !have_c() {
        return;
    }
    let refused = format!("{}/2:{}={}", libc::SYS_setsockopt, libc::UDP_GRO, libc::ENOPROTOOPT);
    let mut command = under_vervain(c_program("refuse"));
    command.arg(refused).arg(c_program("data")).arg("--two").envs(way("roce"));
    must_hold(&Job::start(&mut command).finish(Duration::from_secs(120)));
}
