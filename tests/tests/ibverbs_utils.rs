//! The unmodified programs of Debian's ibverbs-utils, and shells that read sysfs: what they print about the device; and the ping-pongs over every transport, polling and sleeping, by GID and by LID.

use std::time::Duration;

use vervain_tests::matrix::{PING_PONGS, lines};
use vervain_tests::pairs::{complaint, loopback_gid, pair, words};
use vervain_tests::{Failures, Job, have, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(30);
const INFINIBAND: &[(&str, &str)] = &[("VERVAIN_LINK_LAYER", "infiniband")];

#[test]
fn ibv_devices_lists_the_devices_that_were_asked_for() {
    if !have(&["ibv_devices"]) {
        return;
    }
    let run = Job::start(&mut under_vervain("ibv_devices")).finish(LIMIT);
    assert!(run.success() && run.output.contains("vervain0"), "{}", run.describe());
    assert!(!run.output.contains("vervain1"), "{}", run.describe());
    let run = Job::start(under_vervain("ibv_devices").env("VERVAIN_DEVICES", "3")).finish(LIMIT);
    for name in ["vervain0", "vervain1", "vervain2"] {
        assert!(run.success() && run.output.contains(name), "{}", run.describe());
    }
}

#[test]
fn ibv_devinfo_prints_an_active_port() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    // What it is where no network interface stands behind the port.
    let run = Job::start(under_vervain("ibv_devinfo").arg("-v").env("VERVAIN_LINK", "local")).finish(LIMIT);
    assert!(run.success(), "{}", run.describe());
    let field = |name: &str| {
        run.output
            .lines()
            .find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'))
            .unwrap_or_else(|| panic!("no {name} in\n{}", run.output))
            .trim()
            .to_owned()
    };
    let number = |name: &str| -> u64 {
        field(name)
            .split_whitespace()
            .next()
            .and_then(|w| w.parse().ok())
            .unwrap_or_else(|| panic!("{name} is no number in\n{}", run.output))
    };
    assert_eq!(field("hca_id"), "vervain0");
    assert!(field("transport").starts_with("InfiniBand"));
    assert_eq!(number("phys_port_cnt"), 1);
    assert!(field("state").starts_with("PORT_ACTIVE"));
    assert!(field("max_mtu").starts_with("4096"));
    assert!(field("active_mtu").starts_with("4096"));
    assert_eq!(field("link_layer"), "Ethernet");
    assert_ne!(field("node_guid"), "0000:0000:0000:0000");
    assert_eq!(number("max_qp_wr"), 32768);
    assert_eq!(number("max_sge"), 32);
    assert!(number("max_cqe") >= 4_000_000);
    assert!(number("max_qp") >= 65_536);
    assert!(number("max_qp_rd_atom") >= 1);
    assert!(field("atomic_cap").starts_with("ATOMIC_"));
    assert!(!field("atomic_cap").starts_with("ATOMIC_NONE"));
    assert!(field("phys_state").starts_with("LINK_UP"));
    for flag in ["XRC", "MEM_WINDOW", "RC_RNR_NAK_GEN"] {
        assert!(run.output.contains(flag), "no {flag} in\n{}", run.output);
    }
    assert!(run.output.contains("::ffff:127.0.0.1, RoCE v2"), "no IPv4-mapped GID of the loopback in\n{}", run.output);
}

#[test]
fn ibv_devinfo_prints_lids_on_infiniband() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    let run = Job::start(under_vervain("ibv_devinfo").arg("-v").envs(INFINIBAND.iter().copied())).finish(LIMIT);
    assert!(run.success() && run.output.contains("InfiniBand"), "{}", run.describe());
    let lid = |name: &str| {
        run.output.lines().filter_map(|l| l.trim().strip_prefix(name)).find_map(|l| l.trim().parse::<u32>().ok())
    };
    assert!(lid("port_lid:").is_some_and(|l| l > 0), "{}", run.describe());
    assert!(lid("sm_lid:").is_some_and(|l| l > 0), "{}", run.describe());
    assert!(run.output.contains("fe80:"), "{}", run.describe());
}

/// What Mellanox's ibdev2netdev does, in the shell: which network interface stands behind a port.
const IBDEV2NETDEV: &str = r#"
for port in /sys/class/infiniband/*/ports/*; do
    device=${port%/ports/*}
    netdev=$(cat "$port"/gid_attrs/ndevs/* 2>/dev/null | sort -u)
    echo "${device##*/} port ${port##*/} ==> $netdev ($(cut -d' ' -f2 "$port/state"))"
done"#;

#[test]
fn a_shell_finds_the_network_interface_of_a_port() {
    let vars = [("VERVAIN_INTERFACE", "lo"), ("VERVAIN_PORTS", "2")];
    for shell in ["sh", "bash"] {
        if !have(&[shell]) {
            continue;
        }
        let run = Job::start(under_vervain(shell).args(["-c", IBDEV2NETDEV]).envs(vars)).finish(LIMIT);
        let expected = "vervain0 port 1 ==> lo (ACTIVE)\nvervain0 port 2 ==> lo (ACTIVE)\n";
        assert!(run.success() && run.output == expected, "{}", run.describe());
    }
}

#[test]
fn sysfs_says_what_the_verbs_say() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    let base = "/sys/class/infiniband/vervain0";
    let read = |file: &str| {
        let run = Job::start(under_vervain("cat").arg(format!("{base}/{file}"))).finish(LIMIT);
        assert!(run.success(), "{}", run.describe());
        run.output.trim().to_owned()
    };
    let run = Job::start(under_vervain("ibv_devinfo").arg("-v")).finish(LIMIT);
    let says = |name: &str, value: &str| {
        let found = run.output.lines().filter_map(|l| l.trim().strip_prefix(name)).any(|l| l.trim() == value);
        assert!(found, "not {name} {value}: {}", run.describe());
    };
    for field in ["node_guid", "sys_image_guid", "fw_ver"] {
        says(&format!("{field}:"), &read(field));
    }
    says("link_layer:", &read("ports/1/link_layer"));
    assert_eq!(read("ports/1/gid_attrs/types/0"), "RoCE v2");
    for attribute in ["types", "ndevs"] {
        let last = format!("{base}/ports/1/gid_attrs/{attribute}/63");
        let run = Job::start(under_vervain("cat").arg(&last).env("LC_ALL", "C")).finish(LIMIT);
        assert!(!run.success() && run.output.contains("Invalid argument"), "{}", run.describe());
    }
    assert_eq!(read("ports/1/gids/63"), "0000:0000:0000:0000:0000:0000:0000:0000");
    // ibv_devinfo writes an IPv4-mapped GID as such; its last group is in both.
    let gid = read("ports/1/gids/0");
    let [high, low] = [&gid[gid.len() - 9..gid.len() - 5], &gid[gid.len() - 4..]];
    let byte = |at: &str| u8::from_str_radix(at, 16).expect("a byte in hexadecimal");
    let address = [&high[..2], &high[2..], &low[..2], &low[2..]].map(|b| byte(b).to_string()).join(".");
    assert!(run.output.contains(&format!("::ffff:{address}, RoCE v2")), "{gid}: {}", run.describe());
}

#[test]
fn several_ports_and_devices_are_told_apart() {
    if !have(&["ibv_devinfo"]) {
        return;
    }
    let run =
        Job::start(under_vervain("ibv_devinfo").env("VERVAIN_DEVICES", "2").env("VERVAIN_PORTS", "2")).finish(LIMIT);
    assert!(run.success(), "{}", run.describe());
    let count = |what: &str| run.output.matches(what).count();
    assert_eq!((count("hca_id:"), count("PORT_ACTIVE")), (2, 4), "{}", run.describe());
    let guids: std::collections::BTreeSet<_> =
        run.output.lines().filter_map(|l| l.trim().strip_prefix("node_guid:")).collect();
    assert_eq!(guids.len(), 2, "{}", run.describe());
}

/// One ping-pong program with each of its options, on both link layers and through windows.
fn ping_pong(tool: &str) {
    if !have(&[tool, "ibv_devinfo"]) {
        return;
    }
    let gid = loopback_gid();
    let mut failures = Failures::default();
    for option in lines(PING_PONGS, tool) {
        let ways =
            [(Some(gid), vec![]), (None, INFINIBAND.to_vec()), (Some(0), way("window")), (Some(0), way("write_only"))];
        for (gid, vars) in ways {
            let mut args = words(option);
            args.extend(gid.iter().flat_map(|gid| ["-g".to_owned(), gid.to_string()]));
            let (server, client) = pair(tool, &args, &vars, LIMIT);
            for why in complaint(tool, &server, &client) {
                failures.add(&format!("{option} {vars:?}"), why);
            }
        }
    }
    failures.assert_none();
}

#[test]
fn ibv_rc_pingpong() {
    ping_pong("ibv_rc_pingpong");
}

#[test]
fn ibv_uc_pingpong() {
    ping_pong("ibv_uc_pingpong");
}

#[test]
fn ibv_ud_pingpong() {
    ping_pong("ibv_ud_pingpong");
}

#[test]
fn datagrams_of_4096_bytes_pass_where_no_network_stands_behind_the_port() {
    if !have(&["ibv_ud_pingpong", "ibv_devinfo"]) {
        return;
    }
    let args = words(&format!("-c -s 4096 -g {}", loopback_gid()));
    let (server, client) = pair("ibv_ud_pingpong", &args, &[("VERVAIN_LINK", "local")], LIMIT);
    for end in [server, client] {
        assert!(end.success(), "{}", end.describe());
    }
}

#[test]
fn ibv_srq_pingpong() {
    ping_pong("ibv_srq_pingpong");
}

#[test]
fn ibv_xsrq_pingpong() {
    ping_pong("ibv_xsrq_pingpong");
}

#[test]
fn ibv_rc_pingpong_over_every_way_to_memory() {
    if !have(&["ibv_rc_pingpong", "ibv_devinfo"]) {
        return;
    }
    let gid = loopback_gid();
    let mut failures = Failures::default();
    for name in ["auto", "vm", "owner"] {
        for option in ["-c", "-c -e", "-c -s 300000 -n 100"] {
            let mut args = words(option);
            args.extend(["-g".to_owned(), gid.to_string()]);
            let ends = pair("ibv_rc_pingpong", &args, &way(name), LIMIT);
            for end in [&ends.0, &ends.1] {
                if !end.success() {
                    failures.add(name, end.describe());
                }
            }
        }
    }
    failures.assert_none();
}

#[test]
fn ibv_rc_pingpong_between_devices_and_ports() {
    if !have(&["ibv_rc_pingpong"]) {
        return;
    }
    let vars = [("VERVAIN_DEVICES", "2"), ("VERVAIN_PORTS", "2")];
    let mut failures = Failures::default();
    for args in ["-d vervain1 -g 0 -c", "-d vervain1 -i 2 -g 0 -c"] {
        let (server, client) = pair("ibv_rc_pingpong", &words(args), &vars, LIMIT);
        for end in [server, client] {
            if !end.success() {
                failures.add(args, end.describe());
            }
        }
    }
    failures.assert_none();
}

#[test]
fn ibv_asyncwatch_starts_and_stops() {
    if !have(&["ibv_asyncwatch"]) {
        return;
    }
    let mut watch = Job::start(&mut under_vervain("ibv_asyncwatch"));
    // Its output is buffered when it is no terminal: that it waits is what can be seen.
    std::thread::sleep(Duration::from_millis(500));
    assert!(watch.running(), "{}", watch.finish(Duration::ZERO).describe());
    // Not SIGINT: a shell starts what it puts into the background with that ignored, tests too.
    watch.signal_group(libc::SIGTERM);
    let end = watch.finish(LIMIT);
    assert!(end.status.is_some(), "{}", end.describe());
}
