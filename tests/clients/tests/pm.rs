//! libpm: the C programs of `tests/pm`, one for each part of the interface, as nodes under `vervain launch`; the header, and how programs
//! are compiled and linked.

use std::fs;
use std::process::Command;

use vervain_tests::pm::{Program, prefix};
use vervain_tests::{Failures, Job, acp, alone, beside_others, have, must_be_clean, pm_program, under_vervain, way};

/// By memory, by process_vm calls, in packets and through a window.
const WAYS: [&str; 4] = ["auto", "vm", "roce", "window"];

#[test]
fn messages_of_all_lengths_go_from_every_node_to_every_node() {
    let _turn = beside_others();
    Program { name: "exchange", ways: &WAYS, ranks: &[1, 2, 4], ..Default::default() }.holds(&["200", "spin", "1"]);
}

#[test]
fn sixteen_nodes_exchange_messages() {
    let _turn = beside_others();
    let exchange = Program { name: "exchange", ways: &["auto", "roce"], ranks: &[16], ..Default::default() };
    exchange.holds(&["60", "sleep", "2"]);
}

#[test]
fn messages_get_through_with_few_buffers_small_ones_and_none_inline() {
    let _turn = beside_others();
    for variables in [
        [("PM_SEND_BUFFER", "64k"), ("PM_RECEIVE_BUFFER", "128k")],
        [("PM_MTU", "64"), ("PM_SEND_BUFFER", "4k")],
        [("PM_MTU", "64k"), ("PM_INLINE", "0")],
    ] {
        let exchange = Program {
            name: "exchange",
            ways: &["auto", "roce"],
            variables: &variables,
            ranks: &[3],
            ..Default::default()
        };
        exchange.holds(&["300", "sleep", "3"]);
    }
}

#[test]
fn messages_get_through_where_each_connection_has_its_own_receives() {
    let _turn = beside_others();
    let exchange = Program {
        name: "exchange",
        ways: &WAYS,
        variables: &[("PM_SRQ", "off")],
        ranks: &[1, 4],
        ..Default::default()
    };
    exchange.holds(&["200", "sleep", "9"]);
    // With connections that are closed and made while the program has messages of theirs; and with contexts that are brought back.
    let variables = [("PM_SRQ", "off"), ("PM_CONNECTIONS", "3")];
    let few = Program { variables: &variables, ranks: &[6], ..exchange };
    few.holds(&["200", "sleep", "10"]);
    Program { name: "save", ..few }.holds(&["same", "5"]);
    Program { name: "flood", ways: &WAYS, variables: &[("PM_SRQ", "off")], ..Default::default() }.holds(&["1500"]);
}

#[test]
fn messages_are_in_order_while_connections_are_closed_and_made() {
    let _turn = beside_others();
    let exchange =
        Program { name: "exchange", variables: &[("PM_CONNECTIONS", "3")], ranks: &[6], ..Default::default() };
    exchange.holds(&["200", "sleep", "4"]);
}

#[test]
fn composite_contexts_reach_each_node_by_its_member() {
    let _turn = beside_others();
    let exchange = Program { name: "exchange", ways: &["auto", "roce"], ranks: &[1, 4], ..Default::default() };
    exchange.holds(&["150", "spin", "5", "mixed"]);
    exchange.holds(&["150", "sleep", "6", "mixed"]);
    exchange.holds(&["50", "sleep", "7", "reversed"]);
}

#[test]
fn packets_that_are_lost_cost_no_message() {
    let _turn = beside_others();
    let options = ["--link", "roce", "--interface", "lo", "--faults", "drop=1%,dup=1%,reorder=2%"];
    Program { name: "exchange", options: &options, ranks: &[3], ..Default::default() }.holds(&["100", "sleep", "8"]);
}

#[test]
fn a_sleeper_is_woken() {
    let _turn = alone();
    Program { name: "select", ways: &WAYS, ranks: &[2, 3], ..Default::default() }.holds(&[]);
}

#[test]
fn a_flood_waits_for_buffers_and_nothing_is_lost() {
    let _turn = beside_others();
    Program { name: "flood", ways: &WAYS, ranks: &[2, 4], ..Default::default() }.holds(&["1500"]);
}

#[test]
fn locked_memory_is_written_and_read() {
    let _turn = beside_others();
    Program { name: "rdma", ways: &WAYS, ranks: &[1, 3], ..Default::default() }.holds(&[]);
}

#[test]
fn what_is_not_locked_is_refused_and_messages_go_on() {
    let _turn = beside_others();
    let rdma = Program { name: "rdma", ways: &WAYS, ranks: &[2, 3], ..Default::default() };
    rdma.holds(&["write"]);
    rdma.holds(&["read"]);
}

#[test]
fn mistakes_are_told() {
    let _turn = beside_others();
    Program { name: "mistakes", ways: &["auto", "roce"], ranks: &[1, 3], ..Default::default() }.holds(&[]);
}

#[test]
fn a_process_without_a_launcher_is_node_0_of_1() {
    if !have(&["cc"]) {
        return;
    }
    let end = Job::start(&mut under_vervain(pm_program("cc", &[], "mistakes"))).finish(acp::LIMIT);
    assert!(end.success() && end.output.contains("OK rank 0"), "{}", end.describe());
}

#[test]
fn sentences_are_in_the_log_if_it_is_on() {
    if !have(&["cc"]) {
        return;
    }
    let program = pm_program("cc", &[], "mistakes");
    for (log, lines) in [("on", true), ("off", false)] {
        let end = Job::start(under_vervain(&program).env("PM_LOG", log)).finish(acp::LIMIT);
        assert!(end.success(), "{}", end.describe());
        let told = end.output.lines().any(|line| line == "pm: pmSend: no send buffer was taken");
        assert_eq!(told, lines, "{}", end.describe());
        assert!(!end.output.contains("pm: pmReceive: no message has come"), "{}", end.describe());
    }
}

#[test]
fn nodes_with_other_settings_are_told_apart() {
    if !have(&["cc"]) {
        return;
    }
    let program = pm_program("cc", &[], "score");
    let script = "PM_MTU=$((4096 * (VERVAIN_JOB_RANK + 1))) exec \"$0\"";
    let mut command = acp::launch(2, &[], "sh".as_ref());
    let end = Job::start(command.args(["-c", script]).arg(program)).finish(acp::LIMIT);
    assert!(end.status.is_some_and(|status| status.code() == Some(1)), "{}", end.describe());
    assert!(end.output.contains("nodes have other settings") && end.output.contains("mtu 8192"), "{}", end.describe());
}

#[test]
fn the_variables_of_score_are_set_and_a_program_that_ends_leaves_its_job() {
    let _turn = beside_others();
    Program { name: "score", ways: &["auto", "roce"], ranks: &[1, 2, 4], ..Default::default() }.holds(&["1"]);
}

#[test]
fn a_node_that_dies_is_lost_to_those_who_send_to_it_and_to_no_others() {
    let _turn = beside_others();
    for variables in [&[][..], &[("PM_SRQ", "off")]] {
        let ways = ["auto", "roce", "window"];
        let lost = Program { name: "lost", ways: &ways, variables, ranks: &[3, 4], ..Default::default() };
        // The shell is the rank's process, and ends well if the program holds, or was killed by SIGKILL. Then the shell leaves
        // the job for the program, by Request::Finalize: else the launcher would end the others.
        let script = r#""$0" || { test $? = 137 && printf '\1\0\0\0\5' >&"$VERVAIN_JOB_FD"; }"#;
        lost.run(|program| {
            let arguments = ["-c", script, &program.display().to_string()].map(str::to_owned);
            ("bash".into(), arguments.to_vec())
        });
    }
}

#[test]
fn memory_does_not_grow_with_the_buffers_of_peers() {
    let _turn = beside_others();
    // So few receives that all are posted and used in turn.
    let variables = [("PM_RECEIVE_BUFFER", "256k")];
    let memory = Program { name: "memory", variables: &variables, ranks: &[2, 16], ..Default::default() };
    let ends = memory.run(|program| (program.into(), vec![]));
    let most = |output: &str| {
        let told = output.lines().filter_map(|line| line.split_once("memory ")?.1.parse::<u64>().ok());
        told.max().expect("each rank says how much")
    };
    let [few, many] = &ends[..] else { return };
    let each = (most(&many.output) - most(&few.output)) / 14;
    println!("{} B with 2 nodes, {} with 16: {each} for each", most(&few.output), most(&many.output));
    // The buffers of 128 messages for each sender would be 1 MiB; two QPs with their queues are here.
    assert!(each < 160 << 10, "{each} B for each node");
}

#[test]
fn who_tries_until_it_is_connected_gets_there_whatever_the_others_do() {
    let _turn = beside_others();
    // 8 receives for all, or 128 for each.
    let shared = [("PM_RECEIVE_BUFFER", "64k"), ("PM_CONNECTIONS", "2")];
    let own = [("PM_SRQ", "off"), ("PM_CONNECTIONS", "2")];
    for (variables, each) in [(shared, "60"), (own, "200")] {
        let crowded =
            Program { name: "crowded", ways: &WAYS, variables: &variables, ranks: &[5], ..Default::default() };
        crowded.holds(&["star", each]);
        crowded.holds(&["ring", each]);
        crowded.holds(&["still"]);
    }
}

#[test]
fn a_context_that_stands_still_sends_nothing_and_keeps_what_comes() {
    let _turn = beside_others();
    let rest = Program { name: "rest", ways: &WAYS, ranks: &[1, 2, 4], ..Default::default() };
    rest.holds(&["300"]);
    rest.holds(&["100", "mixed"]);
    // Few receives, and few connections, so that some close meanwhile.
    let variables = [("PM_RECEIVE_BUFFER", "64k"), ("PM_SEND_BUFFER", "64k"), ("PM_CONNECTIONS", "3")];
    Program { name: "rest", variables: &variables, ranks: &[6], ..Default::default() }.holds(&["100"]);
}

#[test]
fn what_cannot_be_saved_or_restored_is_told_to_all_and_changes_nothing() {
    let _turn = beside_others();
    Program { name: "save", ways: &["auto", "roce"], ranks: &[1, 3], ..Default::default() }.holds(&["mistakes"]);
}

#[test]
fn a_context_is_saved_and_brought_back_under_traffic() {
    let _turn = beside_others();
    for seed in ["1", "2", "3"] {
        Program { name: "save", ways: &WAYS, ranks: &[1, 4], ..Default::default() }.holds(&["same", seed]);
    }
    let variables = [("PM_RECEIVE_BUFFER", "128k"), ("PM_CONNECTIONS", "3")];
    Program { name: "save", variables: &variables, ranks: &[6], ..Default::default() }.holds(&["same", "4"]);
    let options = ["--link", "roce", "--interface", "lo", "--faults", "drop=1%,dup=1%,reorder=2%"];
    Program { name: "save", options: &options, ranks: &[4], ..Default::default() }.holds(&["same", "6"]);
}

/// A program in a job of four ranks, one after another, with these arguments; all but the last are killed.
fn one_job_after_another(name: &str, by: &str, variables: &[(&str, &str)], lives: &[&[&str]]) -> Vec<String> {
    let program = pm_program("cc", &[], name);
    let mut outputs = vec![];
    for (life, arguments) in lives.iter().enumerate() {
        let mut command = acp::launch(4, &[], &program);
        command.args(*arguments).envs(way(by)).envs(variables.iter().copied());
        let end = Job::start(&mut command).finish(acp::LIMIT);
        if life + 1 < lives.len() {
            let killed = end.code() == Some(128 + 9);
            assert!(killed && !end.output.contains("FAIL"), "{name} by {by}, life {life}: {}", end.describe());
        } else {
            let held = end.output.matches("OK rank").count() == 4 && !end.output.contains("FAIL");
            assert!(end.success() && held, "{name} by {by}, life {life}: {}", end.describe());
        }
        outputs.push(end.output);
    }
    outputs
}

#[test]
fn other_processes_go_on_from_where_killed_ones_were_saved() {
    if !have(&["cc"]) {
        return;
    }
    let _turn = beside_others();
    for by in ["auto", "roce"] {
        for seed in ["1", "2", "3", "4"] {
            let directory = tempfile::tempdir().expect("a directory");
            let directory = directory.path().to_str().expect("a name in UTF-8");
            one_job_after_another("save", by, &[], &[&["write", seed, directory], &["read", seed, directory]]);
        }
    }
}

#[test]
fn what_is_under_way_is_saved_and_begins_anew_in_the_same_process() {
    let _turn = beside_others();
    let moment = Program { name: "moment", ways: &WAYS, ranks: &[1, 3], ..Default::default() };
    for how in ["stopped", "traffic", "apart"] {
        moment.holds(&["same", how, "1"]);
    }
    // Few buffers, few connections, of which some close meanwhile; receives of each connection's own.
    let few = [("PM_RECEIVE_BUFFER", "128k"), ("PM_CONNECTIONS", "3")];
    Program { name: "moment", variables: &few, ranks: &[5], ..Default::default() }.holds(&["same", "traffic", "2"]);
    let own = [("PM_SRQ", "off")];
    Program { name: "moment", variables: &own, ranks: &[3], ..Default::default() }.holds(&["same", "stopped", "3"]);
    let options = ["--link", "roce", "--interface", "lo", "--faults", "drop=2%,dup=1%,reorder=2%"];
    Program { name: "moment", options: &options, ranks: &[3], ..Default::default() }.holds(&["same", "traffic", "4"]);
}

#[test]
fn what_is_under_way_is_saved_and_begins_anew_in_other_processes() {
    if !have(&["cc"]) {
        return;
    }
    let _turn = beside_others();
    for by in WAYS {
        for (how, seed) in [("stopped", "1"), ("stopped", "2"), ("traffic", "3"), ("apart", "4")] {
            let directory = tempfile::tempdir().expect("a directory");
            let directory = directory.path().to_str().expect("a name in UTF-8");
            let write = ["write", how, seed, directory];
            let (read, read_again) = (["read", how, seed, directory], ["read", how, seed, directory, "again"]);
            // The images are as good for the second restart as for the first.
            one_job_after_another("moment", by, &[], &[&write, &read_again, &read]);
        }
    }
}

#[test]
fn a_job_goes_on_from_its_last_whole_checkpoint() {
    if !have(&["cc"]) {
        return;
    }
    let _turn = beside_others();
    for by in ["auto", "roce"] {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = directory.path().to_str().expect("a name in UTF-8");
        // Killed after the third, when all know that it is whole, and while the fifth is made.
        let lives: [&[&str]; 3] = [&["200", "step", "79"], &["200", "checkpoint", "5"], &["200"]];
        let outputs = one_job_after_another("checkpoint", by, &[("PM_CHECKPOINT", directory)], &lives);
        for (output, step) in outputs.iter().zip([0, 60, 80]) {
            let begun = output.matches(&format!("begins with step {step}\n")).count();
            assert_eq!(begun, 4, "by {by}: {output}");
        }
        // Of the checkpoints the last one is left.
        let mut left: Vec<_> = fs::read_dir(directory)
            .expect("the directory")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("pm."))
            .collect();
        left.sort();
        assert_eq!(left, ["pm.0.0.10", "pm.0.1.10", "pm.0.2.10", "pm.0.3.10", "pm.0.complete"]);
    }
}

#[test]
fn the_header_is_clean_in_c_and_cxx() {
    // Twice, to see that it is read once; by itself, in standards in which no other header has caddr_t, and beside the one that has.
    let text = "#include <pm.h>\n#include <pm.h>\n#include <sys/types.h>\n\
                int f(pmContext *c);\nint f(pmContext *c) { caddr_t b; return pmGetSendBuffer(c, score_self_node, &b, 1); }\n\
                typedef char types[sizeof(pmAddrHandle) == 8 && PM_SUCCESS == 0 && PM_NODE_ANY < 0 ? 1 : -1];\n";
    must_be_clean(text, &prefix(), &["c11", "c17", "gnu11"], &["c++17", "c++20"]);
}

#[test]
fn a_program_in_cxx_uses_it() {
    if !have(&["c++"]) {
        return;
    }
    let mut failures = Failures::default();
    for name in ["rdma", "score"] {
        let program = pm_program("c++", &["-xc++", "-std=c++17"], name);
        let end = Job::start(&mut acp::launch(2, &[], &program)).finish(acp::LIMIT);
        acp::judge(&format!("{name} in C++"), 2, &end, &mut failures);
    }
    failures.assert_none();
}

#[test]
fn pkg_config_says_how_programs_are_compiled_and_linked() {
    if !have(&["cc", "pkg-config"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("score");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../pm/score.c");
    let script = r#"cc -D_GNU_SOURCE "$0" -o "$1" $(pkg-config --cflags --libs pm) -Wl,-rpath,"$(pkg-config --variable=libdir pm)""#;
    let mut command = Command::new("sh");
    command.args(["-ec", script, source]).arg(&program).env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let end = Job::start(&mut command).finish(acp::LIMIT);
    assert!(end.success(), "{}", end.describe());
    let end = Job::start(&mut acp::launch(2, &[], &program)).finish(acp::LIMIT);
    assert!(end.success() && end.output.matches("OK rank").count() == 2, "{}", end.describe());
}
