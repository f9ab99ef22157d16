//! Death, stopping, forking, many of everything, and wrong input: nothing hangs, nothing is left behind, one clear
//! sentence for each wrong value. These run one by one: they load the machine and look at what else is on it.

use std::time::Duration;

use vervain_tests::{Job, Leftovers, alone, c_program, have, have_c, under_vervain, way};

fn run(program: &str, cases: &[&str], vars: &[(&str, &str)], limit: u64) {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let before = Leftovers::watch();
    let mut command = under_vervain(c_program(program));
    command.args(cases).envs(vars.iter().copied());
    let end = Job::start(&mut command).finish(Duration::from_secs(limit));
    for line in end.output.lines().filter(|l| l.starts_with("note ")) {
        println!("{line}");
    }
    assert!(end.success(), "{}", end.describe());
    let left = before.new_ones();
    assert!(left.is_empty(), "{program} {cases:?} left behind: {left:#?}");
}

#[test]
fn peers_are_killed_under_load_500_times() {
    run("kill", &["kill_under_load"], &[], 180);
}

#[test]
fn peers_are_killed_under_load_on_every_other_way() {
    for name in ["vm", "owner", "shared", "adopt"] {
        run("kill", &["kill_under_load"], &[way(name), vec![("VT_ROUNDS", "100")]].concat(), 90);
    }
}

#[test]
fn a_stopped_peer_harms_no_other() {
    run("kill", &["stop_and_continue"], &[], 60);
    for name in ["vm", "owner", "shared", "adopt"] {
        run("kill", &["stop_and_continue"], &[way(name), vec![("VT_ROUNDS", "20")]].concat(), 60);
    }
}

#[test]
fn who_stands_still_in_a_copy_has_no_success_and_stores_nothing_later() {
    for name in ["auto", "owner", "vm"] {
        run("stands_still", &[], &way(name), 120);
    }
    run("stands_still", &[], &[way("shared"), vec![("VT_LATE_STORES", "1")]].concat(), 120);
}

#[test]
fn a_program_that_sleeps_on_a_channel_is_woken_whatever_becomes_of_its_peers() {
    let cases = [
        "two_sleepers",
        "stopped_senders_wake_nobody_less",
        "killed_senders_leave_no_silent_completion",
        "channels_come_and_go",
    ];
    run("wake", &cases, &[], 120);
    for name in ["owner", "shared"] {
        run("wake", &cases, &[way(name), vec![("VT_ROUNDS", "20")]].concat(), 120);
    }
}

#[test]
fn an_owner_that_copies_shows_no_torn_tail_and_keeps_no_revoked_key() {
    for name in ["owner", "vm", "auto"] {
        run("wake", &["the_tail_comes_last", "revoked_half_way"], &way(name), 120);
    }
}

#[test]
fn a_peer_becomes_another_program() {
    run("kill", &["exec_while_connected"], &[], 60);
}

#[test]
fn a_whole_job_is_killed_and_leaves_nothing() {
    if !have_c() {
        return;
    }
    let _turn = alone();
    let before = Leftovers::watch();
    for delay in [30, 100, 200] {
        let mut job = Job::start(under_vervain(c_program("kill")).arg("endless"));
        assert!(job.wait_output("running", Duration::from_secs(20)), "{}", job.finish(Duration::ZERO).describe());
        std::thread::sleep(Duration::from_millis(delay));
        job.signal_group(libc::SIGKILL);
        let end = job.finish(Duration::from_secs(5));
        assert!(end.status.is_some(), "{}", end.describe());
    }
    let left = before.new_ones();
    assert!(left.is_empty(), "left behind: {left:#?}");
}

#[test]
fn threads_vanish_inside_calls() {
    run("lifecycle", &["thread_sys_exit"], &[], 60);
    run("lifecycle", &["thread_pthread_exit"], &[], 60);
}

#[test]
fn fork_exec_and_exit_do_no_harm() {
    run("lifecycle", &["fork_harmless", "exit_open"], &[], 60);
}

#[test]
fn an_open_device_costs_little() {
    run("lifecycle", &["idle_cost", "open_again"], &[], 60);
}

#[test]
fn file_descriptors_run_out() {
    run("lifecycle", &["fd_limit"], &[], 60);
}

#[test]
fn many_processes_send_into_one_queue() {
    for name in ["auto", "vm", "owner", "adopt"] {
        run("fan_in", &[], &way(name), 90);
    }
}

#[test]
fn sixty_four_processes_talk_all_to_all() {
    run("scale", &["all_to_all"], &[], 120);
}

#[test]
fn ten_thousand_qps_in_one_process() {
    run("scale", &["many_qps", "numbers"], &[], 120);
}

/// A wrong value of a variable, set without the command's own check: one sentence that names it, no device, no hang.
#[test]
fn a_wrong_variable_is_told_in_one_sentence() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    let _turn = alone();
    for (name, value) in [
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
    ] {
        // By the command: refused before the program starts. By env inside of it: the library meets it.
        let by_command = Job::start(under_vervain("ibv_devinfo").env(name, value)).finish(Duration::from_secs(10));
        let by_library = Job::start(under_vervain("env").arg(format!("{name}={value}")).arg("ibv_devinfo"))
            .finish(Duration::from_secs(10));
        assert!(by_command.status.is_some_and(|s| !s.success()), "{}", by_command.describe());
        for end in [by_command, by_library] {
            assert!(end.status.is_some(), "{}", end.describe());
            let sentences =
                end.output.lines().filter(|l| l.contains(value) && (l.contains(name) || l.contains("--"))).count();
            assert_eq!(sentences, 1, "{name}={value}:\n{}", end.describe());
            assert!(!end.output.contains("panicked"), "{}", end.describe());
        }
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
