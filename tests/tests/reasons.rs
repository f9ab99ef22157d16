//! What the device says of mistakes and of ways to peers: the exact sentences, which a newcomer has for a manual. Numbers that
//! differ between runs are shown as `#`.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use vervain_tests::{Finished, Job, c_program, have, have_c, is_whole, must_hold, under_vervain, vervain, way};

const LIMIT: Duration = Duration::from_secs(60);
/// Packets between processes of one host.
const IN_PACKETS: [(&str, &str); 2] = [("VERVAIN_LINK", "roce"), ("VERVAIN_INTERFACE", "lo")];

/// A mistake of `mistakes.c`, and what is said of it by memory, at the requester and at the responder if that is told.
struct Mistake {
    name: &'static str,
    said: &'static [&'static str],
    /// In packets, if that is something else.
    in_packets: Option<&'static [&'static str]>,
    /// A failure, which a program is told of that was started without VERVAIN_LOG.
    fails: bool,
}

const fn mistake(name: &'static str, said: &'static [&'static str]) -> Mistake {
    Mistake { name, said, in_packets: None, fails: true }
}

/// What follows the first completion in error, and a failure of another kind, where nobody has asked.
const AT_ONCE: &str = "; VERVAIN_LOG=info reports all failures as they happen";
const AT_THE_END: &str = "; VERVAIN_LOG=info reports it as it happens";

const REFUSED_KEY: &str = "QP # is now in ERR: it has refused a request of QP #: rkey # is not registered";
const REFUSED_RANGE: &str = "QP # is now in ERR: it has refused a request of QP #: addresses # to # are not all inside the MR of \
                             rkey #, which is # to #";
const REFUSED_MR: &str =
    "QP # is now in ERR: it has refused a request of QP #: the MR of rkey # lacks IBV_ACCESS_REMOTE_WRITE";
const REFUSED_QP: &str = "QP # is now in ERR: it has refused a request of QP #: the QP lacks IBV_ACCESS_REMOTE_WRITE in its \
                          qp_access_flags";
const REFUSED_FLUSH: &str =
    "QP # is now in ERR: it has refused a request of QP #: the MR of rkey # lacks IBV_ACCESS_FLUSH_GLOBAL";
const TOO_LONG: &str =
    "QP #, receive of a message of QP #: IBV_WC_LOC_LEN_ERR: the message of 64 bytes is longer than the receive of 16";
const NAK_ACCESS: &str = "to QP #: IBV_WC_REM_ACCESS_ERR: the rkey does not cover or allow the remote memory";
const NAK_REQUEST: &str = "to QP #: IBV_WC_REM_INV_REQ_ERR: the peer's QP or receive does not take this request";

const MISTAKES: &[Mistake] = &[
    Mistake {
        fails: false,
        ..mistake(
            "full_queue",
            &["QP #: the send queue is full: 8 of max_send_wr 8 not yet completed; poll the CQ (ENOMEM)"],
        )
    },
    mistake("overrun", &["CQ overrun: more than its 7 entries; QP # is now in ERR"]),
    Mistake {
        in_packets: Some(&[NAK_ACCESS, REFUSED_KEY]),
        ..mistake(
            "unknown_rkey",
            &["QP #, RDMA Write to QP #: IBV_WC_REM_ACCESS_ERR: rkey # is not registered at the peer", REFUSED_KEY],
        )
    },
    Mistake {
        in_packets: Some(&[NAK_ACCESS, REFUSED_RANGE]),
        ..mistake(
            "outside_the_mr",
            &[
                "QP #, RDMA Read to QP #: IBV_WC_REM_ACCESS_ERR: addresses # to # are not all inside the MR of rkey #, which is # \
                 to #",
                REFUSED_RANGE,
            ],
        )
    },
    Mistake {
        in_packets: Some(&[NAK_ACCESS, REFUSED_MR]),
        ..mistake(
            "mr_without_the_right",
            &[
                "QP #, RDMA Write to QP #: IBV_WC_REM_ACCESS_ERR: the MR of rkey # lacks IBV_ACCESS_REMOTE_WRITE",
                REFUSED_MR,
            ],
        )
    },
    Mistake {
        in_packets: Some(&[NAK_REQUEST, REFUSED_QP]),
        ..mistake(
            "qp_without_the_right",
            &[
                "QP #, RDMA Write to QP #: IBV_WC_REM_INV_REQ_ERR: the peer's QP lacks IBV_ACCESS_REMOTE_WRITE in its \
                 qp_access_flags",
                REFUSED_QP,
            ],
        )
    },
    Mistake {
        in_packets: Some(&[NAK_ACCESS, REFUSED_FLUSH]),
        ..mistake(
            "flush_without_the_right",
            &[
                "QP #, flush to QP #: IBV_WC_REM_ACCESS_ERR: the MR of rkey # lacks IBV_ACCESS_FLUSH_GLOBAL",
                REFUSED_FLUSH,
            ],
        )
    },
    Mistake {
        in_packets: Some(&[NAK_REQUEST, TOO_LONG]),
        ..mistake(
            "long_message",
            &[
                "QP #, Send to QP #: IBV_WC_REM_INV_REQ_ERR: the message of 64 bytes is longer than the receive of 16",
                TOO_LONG,
            ],
        )
    },
    mistake("no_receive", &["QP #, Send to QP #: IBV_WC_RNR_RETRY_EXC_ERR: the peer has no receive posted"]),
    mistake("local_key", &["QP #, RDMA Write to QP #: IBV_WC_LOC_PROT_ERR: SGE 0: lkey # is not registered"]),
    mistake(
        "local_range",
        &[
            "QP #, RDMA Write to QP #: IBV_WC_LOC_PROT_ERR: SGE 1: addresses # to # are not all inside the MR of lkey #, which \
             is # to #",
        ],
    ),
    mistake(
        "local_right",
        &["QP #, RDMA Read to QP #: IBV_WC_LOC_PROT_ERR: SGE 0: the MR of lkey # lacks IBV_ACCESS_LOCAL_WRITE"],
    ),
    mistake(
        "no_reads",
        &["QP #, RDMA Read to QP #: IBV_WC_LOC_QP_OP_ERR: max_rd_atomic of the QP is 0, and this operation takes 1"],
    ),
    mistake("too_many_reads", &["modify QP: max_rd_atomic 255 is not in 0 to 128 (EINVAL)"]),
    mistake("lacking_mask", &["RC QP, INIT to RTR: attr_mask lacks IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER (EINVAL)"]),
    mistake("too_many", &["max_send_wr 16777216 exceeds 32768 (EINVAL)"]),
    mistake("too_early", &["QP #: cannot post sends in RTR (EINVAL)"]),
    mistake(
        "other_link_layer",
        &[
            "the peer's address fe80::256:102:304:1 is of an InfiniBand port, and this port is Ethernet; use one --link-layer on \
           both sides (EINVAL)",
        ],
    ),
    Mistake {
        fails: false,
        ..mistake("wrong_qkey", &["a datagram of QP # to QP # is dropped: its Q_Key # is not that of the QP, #"])
    },
    Mistake { fails: false, ..mistake("domain_in_use", &["objects left in the protection domain: 2 (EBUSY)"]) },
    Mistake { fails: false, ..mistake("nothing_wrong", &[]) },
];

/// The output with `#` for numbers in hex, and for ids of processes.
fn plain(output: &str) -> String {
    let mut plain = String::new();
    let mut rest = output;
    while let Some(at) = rest.find("0x").into_iter().chain(rest.find("process ").map(|at| at + "process ".len())).min()
    {
        plain += &rest[..at];
        let number = rest[at..].trim_start_matches("0x");
        let end = number.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(number.len());
        plain += if end == 0 { "" } else { "#" };
        rest = &number[end..];
    }
    plain + rest
}

fn run(case: &str, args: &[&str], vars: &[(&str, &str)]) -> Finished {
    let mut command = under_vervain(c_program("mistakes"));
    let end = Job::start(command.args(args).arg(case).envs(vars.iter().copied())).finish(LIMIT);
    must_hold(&end);
    end
}

/// The lines in which the device says why something has failed.
fn reasons(end: &Finished) -> Vec<String> {
    let lines = plain(&end.output);
    lines.lines().filter_map(|line| Some(line.split_once("vervain_hca::reasons] ")?.1.to_owned())).collect()
}

#[test]
fn each_mistake_has_its_sentence_at_both_ends() {
    if !have_c() {
        return;
    }
    for mistake in MISTAKES {
        let log = ("VERVAIN_LOG", "info");
        for (vars, said) in [
            (vec![log], mistake.said),
            (vec![log, IN_PACKETS[0], IN_PACKETS[1]], mistake.in_packets.unwrap_or(mistake.said)),
        ] {
            let end = run(mistake.name, &["--two"], &vars);
            let found = reasons(&end);
            let missing: Vec<_> = said.iter().filter(|said| !found.iter().any(|line| line.ends_with(*said))).collect();
            assert!(missing.is_empty(), "{}: not said: {missing:#?}\nin {found:#?}", mistake.name);
            assert_eq!(found.len(), said.len(), "{}: {found:#?}", mistake.name);
        }
    }
}

#[test]
fn a_program_that_asked_for_nothing_is_told_the_first_reason() {
    if !have_c() {
        return;
    }
    for mistake in MISTAKES {
        let end = run(mistake.name, &["--two"], &[]);
        let output = plain(&end.output);
        let mut lines: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("vervain: ")).collect();
        lines.sort_unstable();
        let said = if mistake.fails { mistake.said } else { &[] };
        let remark = |said: &str| if said.contains(": IBV_WC_") { AT_ONCE } else { AT_THE_END };
        let mut expected: Vec<_> = said.iter().map(|said| format!("{said}{}", remark(said))).collect();
        expected.sort();
        assert_eq!(lines, expected, "{}", mistake.name);
    }
    // In one process both ends fail, either first.
    let end = run("unknown_rkey", &[], &[]);
    let output = plain(&end.output);
    let lines: Vec<_> = output.lines().filter(|line| line.starts_with("vervain: ")).collect();
    let [first, last] = lines[..] else { panic!("{lines:#?}") };
    assert!(first.contains(": IBV_WC_REM_ACCESS_ERR: ") && first.ends_with(AT_ONCE), "{first}");
    assert!(last.contains("2 failures") && last.ends_with("VERVAIN_LOG=info reports each as it happens"), "{last}");
    // Whoever chose a level has chosen.
    let end = run("unknown_rkey", &[], &[("VERVAIN_LOG", "warn")]);
    assert!(!end.output.contains("vervain: ") && reasons(&end).is_empty(), "{}", end.output);
}

/// Programs that wait in vain for 5 s and exit, with what is said before and behind how long they have waited.
const HANGS: [(&str, &str, &str); 4] = [
    (
        "hang_no_receive",
        "QP #, Send to QP #: has waited ",
        " s for a receive: the peer has posted none, and rnr_retry 7 waits for ever",
    ),
    ("hang_unsignaled", "QP #: 1 send done without a completion: no IBV_SEND_SIGNALED and sq_sig_all 0", ""),
    ("hang_unpolled", "the CQ of QP # was never polled: it holds 1 completion", ""),
    (
        "hang_unarmed",
        "the CQ of QP # holds 1 completion for ",
        " s and is not polled, and there will be no event: ibv_req_notify_cq was not called again after the last one",
    ),
];
/// What follows the first wait in vain where nobody has asked.
const OTHER_WAITS: &str = "; VERVAIN_LOG=info reports all such waits, after 1 s";

#[test]
fn a_hang_explains_itself_after_a_second_and_at_the_end() {
    if !have_c() {
        return;
    }
    let start = |case: &str, vars: &[(&str, &str)]| {
        let mut command = under_vervain(c_program("mistakes"));
        Job::start(command.arg(case).envs(vars.iter().copied()))
    };
    let info = ("VERVAIN_LOG", "info");
    // All at once: they do nothing but wait.
    let mut jobs: Vec<_> = HANGS.iter().flat_map(|hang| [(hang, true, vec![info]), (hang, false, vec![])]).collect();
    jobs.push((&HANGS[0], true, vec![info, IN_PACKETS[0], IN_PACKETS[1]]));
    jobs.push((&HANGS[0], false, IN_PACKETS.to_vec()));
    let jobs: Vec<_> = jobs.into_iter().map(|(hang, asked, vars)| (hang, asked, start(hang.0, &vars))).collect();
    let quiet = start("hang_no_receive", &[("VERVAIN_LOG", "warn")]);
    for ((case, before, behind), asked, job) in jobs {
        let end = job.finish(LIMIT);
        assert!(end.status.is_some_and(|status| status.success()), "{}", end.describe());
        let found = if asked {
            reasons(&end)
        } else {
            let output = plain(&end.output);
            output.lines().filter_map(|line| Some(line.strip_prefix("vervain: ")?.to_owned())).collect()
        };
        let [line] = &found[..] else { panic!("{case}: {found:#?}\n{}", end.describe()) };
        let said = if asked { Some(&**line) } else { line.strip_suffix(OTHER_WAITS) };
        let seconds = said.and_then(|said| said.strip_prefix(before)?.strip_suffix(behind));
        let is_right =
            |seconds: &str| seconds.is_empty() == behind.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit());
        assert!(seconds.is_some_and(is_right), "{case}: {line}");
    }
    // Whoever chose a level has chosen.
    let end = quiet.finish(LIMIT);
    assert!(!end.output.contains("vervain: ") && reasons(&end).is_empty(), "{}", end.output);
}

#[test]
fn a_hang_that_is_interrupted_has_explained_itself() {
    // It takes 14 s.
    if !have_c() || !is_whole() {
        return;
    }
    let mut command = under_vervain(c_program("mistakes"));
    let end = Job::start(command.arg("hang_until_interrupted")).finish(LIMIT);
    assert!(end.status.is_some_and(|status| status.signal() == Some(2)), "{}", end.describe());
    let output = plain(&end.output);
    let lines: Vec<_> = output.lines().filter_map(|line| line.strip_prefix("vervain: ")).collect();
    let (_, before, behind) = HANGS[0];
    let is_said = |line: &str| line.starts_with(before) && line.ends_with(&format!("{behind}{OTHER_WAITS}"));
    assert!(lines.len() == 1 && is_said(lines[0]), "{lines:#?}");
}

#[test]
fn a_completion_in_error_is_reported_before_the_program_can_end() {
    if !have_c() {
        return;
    }
    let mut command = under_vervain(c_program("mistakes"));
    let end = Job::start(command.arg("local_key_and_exit")).finish(LIMIT);
    let said =
        format!("vervain: QP #, RDMA Write to QP #: IBV_WC_LOC_PROT_ERR: SGE 0: lkey # is not registered{AT_ONCE}");
    assert!(plain(&end.output).lines().any(|line| line == said), "{}", end.describe());
}

#[test]
fn ports_of_infiniband_tell_an_address_of_ethernet() {
    if !have_c() {
        return;
    }
    let end = run("other_link_layer", &[], &[("VERVAIN_LOG", "info"), ("VERVAIN_LINK_LAYER", "infiniband")]);
    assert_eq!(
        reasons(&end),
        [
            "QP #, RDMA Write to QP #: IBV_WC_RETRY_EXC_ERR: the peer's address ::ffff:192.0.2.7 is of an Ethernet port, and this \
          port is InfiniBand; use one --link-layer on both sides"
        ]
    );
}

#[test]
fn the_way_to_a_peer_and_what_was_moved_are_told_once() {
    if !have_c() {
        return;
    }
    let told = |vars: &[(&str, &str)]| {
        let end = run("nothing_wrong", &["--two"], vars);
        let lines = plain(&end.output);
        let lines = lines.lines().filter_map(|line| Some(line.split_once("] ")?.1.to_owned()));
        let mut lines: Vec<_> = lines.filter(|line| !line.contains("network interface takes")).collect();
        lines.sort();
        lines
    };
    let mut by_memory = told(&[("VERVAIN_LOG", "info")]);
    // Each tells of the other, unless it has ended before it has heard of it: its peer sends nothing.
    by_memory.dedup_by(|a, b| a == b && a.ends_with("has connected by memory"));
    assert_eq!(
        by_memory,
        [
            "QP # is connected to process # by memory",
            "process # has connected by memory",
            "this process has moved: 1 requests with 4096 bytes by memory"
        ]
    );
    let lines = told(&[("VERVAIN_LOG", "info"), IN_PACKETS[0], IN_PACKETS[1]]);
    assert_eq!(lines[..2], ["QP # is connected to 127.0.0.1 in packets"; 2]);
    assert_eq!(lines.len(), 4, "{lines:#?}");
    for line in &lines[2..] {
        assert!(line.starts_with("this process has moved: ") && line.contains(" packets with "), "{line}");
    }
}

#[test]
fn settings_for_packets_are_warned_of_where_they_have_no_effect() {
    if !have_c() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let capture = directory.path().join("%p.pcap");
    let capture = capture.to_str().expect("a name in UTF-8");
    let warnings = |vars: &[(&str, &str)]| {
        let end = run("nothing_wrong", &["--two"], vars);
        let output = plain(&end.output);
        output
            .lines()
            .filter_map(|line| Some(line.split_once("WARN ")?.1.split_once("] ")?.1.to_owned()))
            .collect::<Vec<_>>()
    };
    let remedy = "is reached by memory, without packets. For packets set VERVAIN_LINK=roce VERVAIN_INTERFACE=lo";
    let has = format!("VERVAIN_PCAP has no effect: process # {remedy}");
    assert_eq!(warnings(&[("VERVAIN_PCAP", capture)]), [&*has; 2]);
    let have_both = format!("VERVAIN_FAULTS and VERVAIN_PCAP have no effect: process # {remedy}");
    assert_eq!(warnings(&[("VERVAIN_PCAP", capture), ("VERVAIN_FAULTS", "drop=1%")]), [&*have_both; 2]);
    let through = "VERVAIN_PCAP has no effect: node 0 is reached through the window, without packets. \
                   For packets set VERVAIN_LINK=roce VERVAIN_INTERFACE=lo";
    let window = [&way("window")[..], &[("VERVAIN_PCAP", capture)]].concat();
    assert_eq!(warnings(&window), [through; 2]);
    assert!(std::fs::read_dir(directory.path()).expect("the directory").next().is_none(), "captures without a packet");
    // With the remedy there is nothing to warn of, and one capture for each process.
    assert_eq!(warnings(&[("VERVAIN_PCAP", capture), IN_PACKETS[0], IN_PACKETS[1]]), Vec::<String>::new());
    let captures = std::fs::read_dir(directory.path()).expect("the directory").flatten();
    let sizes: Vec<_> = captures.map(|file| file.metadata().expect("its size").len()).collect();
    assert!(sizes.len() == 2 && sizes.iter().all(|size| *size > 100), "captures of {sizes:?} bytes");
}

#[test]
fn a_capture_that_cannot_be_made_is_refused_before_the_program_starts() {
    for (name, why) in [
        ("/nowhere/at/all.pcap", "VERVAIN_PCAP: /nowhere/at/all.pcap: No such file or directory (os error 2)"),
        ("/tmp", "VERVAIN_PCAP: /tmp: Is a directory (os error 21)"),
    ] {
        let end =
            Job::start(Command::new(vervain()).args(["run", "--", "true"]).env("VERVAIN_PCAP", name)).finish(LIMIT);
        assert_eq!(end.code(), Some(2), "{}", end.describe());
        assert!(end.output.contains(why), "{}", end.output);
    }
}

#[test]
fn run_with_v_reports_reasons_as_they_happen() {
    if !have_c() || !have(&["ibv_devinfo"]) {
        return;
    }
    let program = c_program("mistakes");
    let end = Job::start(Command::new(vervain()).args(["run", "-v", "--"]).arg(program).arg("too_early")).finish(LIMIT);
    must_hold(&end);
    assert!(end.output.contains("vervain: VERVAIN_LOG=info\n"), "{}", end.output);
    assert_eq!(reasons(&end), ["QP #: cannot post sends in RTR (EINVAL)"]);
    assert!(!end.output.contains("; VERVAIN_LOG=info"), "{}", end.output);
}
