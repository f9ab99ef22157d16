//! Python wheels that carry verbs, unmodified as the package index has them: NIXL, with a UCX and a libibverbs of its own,
//! and Mooncake's transfer engine. They move data in memory of the CPU, in one process and between two, by memory and in
//! packets; the scripts check every byte.

use std::path::Path;
use std::time::Duration;

use vervain_tests::counters::Counters;
use vervain_tests::{Finished, Job, alone, fetched, skip, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(60);

/// The end of a script of `tests/clients/python`, which has succeeded and moved its data by `link`; None if the wheels of that
/// name were not fetched, or lack a library.
fn run(wheels: &str, script: &str, link: &str, args: &[&str], vars: &[(&str, &str)]) -> Option<Finished> {
    let _turn = alone();
    let python = fetched(wheels)?.join("bin/python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
    let counters = Counters::new(&way(link));
    let mut command = under_vervain(python);
    command.arg("-B").arg(script).args(args).envs(counters.variables()).envs(vars.iter().copied());
    let end = Job::start(&mut command).finish(LIMIT);
    if let Some(library) = missing(&end.output) {
        skip(format_args!("{} needs {library}, which this machine lacks", wheels));
        return None;
    }
    assert!(end.success(), "{link} {args:?} {vars:?}: {}", end.describe());
    println!("{link} {args:?} {vars:?}: {:.2} s", end.took.as_secs_f64());
    // The lines of the package's log, on standard error, may begin in the middle of one.
    let moved = end.output.split("moved ").find_map(|rest| rest.split_once(" bytes")?.0.parse().ok());
    let moved: u64 = moved.unwrap_or_else(|| panic!("{}", end.describe()));
    let by_memory = counters.read("memory_bytes");
    // A word of this counter is 4 bytes.
    let sent = 4 * (counters.read("port_xmit_data") + 1);
    let right_way = if link == "auto" { by_memory >= moved } else { by_memory == 0 && sent >= moved };
    assert!(right_way, "{link}: {by_memory} by memory, {sent} in all, of {}", end.describe());
    Some(end)
}

/// A library of the system's that an import of the package's wanted and the dynamic linker did not find. Those that
/// Vervain has are there.
fn missing(output: &str) -> Option<&str> {
    let why = output.lines().find_map(|l| l.strip_prefix("ImportError: "))?;
    let (library, _) = why.split_once(": cannot open shared object file")?;
    (!["libibverbs", "libmlx5", "libefa"].iter().any(|ours| library.contains(ours))).then_some(library)
}

fn nixl(link: &str) {
    let rc = ("rc_v,self", "rma(rc_verbs/vervain0:1)");
    let ud = ("ud_v,self", "rma_am(ud_verbs/vervain0:1)");
    for ((tls, transport), processes) in [(rc, "one"), (rc, "two"), (ud, "two")] {
        let vars = [("UCX_TLS", tls), ("UCX_LOG_LEVEL", "info")];
        let Some(end) = run("nixl", "nixl_agents.py", link, &[processes], &vars) else { return };
        // UCX says by what it reaches a peer; both agents say so.
        let connected = |l: &&str| l.contains("intra-node cfg#1 ") && l.contains(transport);
        assert_eq!(end.output.lines().filter(connected).count(), 2, "{tls}: {}", end.describe());
    }
}

fn mooncake(link: &str) {
    for processes in ["one", "two"] {
        let Some(end) = run("mooncake", "mooncake_engines.py", link, &[processes], &[]) else { return };
        assert!(end.output.contains("RDMA device: vervain0"), "{}", end.describe());
    }
}

#[test]
fn nixl_moves_data_by_memory() {
    nixl("auto");
}

#[test]
fn nixl_moves_data_in_packets() {
    nixl("roce");
}

#[test]
fn mooncake_moves_data_by_memory() {
    mooncake("auto");
}

#[test]
fn mooncake_moves_data_in_packets() {
    mooncake("roce");
}
