//! UCX's transports inside a host, by its own ucx_perftest, beside perftest over Vervain: the same sizes, counts and
//! processors. perftest's memory is malloc'd. UCX's posix and sysv work in shared segments that ucx_perftest allocates
//! through UCX; cma works in ordinary memory by process_vm calls.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use vervain_tests::free_port;

use crate::peers::{Operation, Peer, Promise, Size, for_each, names, sizes};
use crate::perftest::Test;
use crate::process::Pair;
use crate::report::{Section, Summary, Unit};
use crate::rounds::Measure;
use crate::setup::{Setup, installed};

/// A way of UCX: below its protocols (UCT, the fastest it has) or with them (UCP, what its users see).
#[derive(Debug, Clone, Copy)]
enum Way {
    /// `-x TRANSPORT -d memory`.
    Uct(&'static str),
    /// Transports for `UCX_TLS`.
    Ucp(&'static str),
    /// The transport tcp over the loopback interface.
    Tcp,
    /// The transport rc_verbs, over Vervain's device.
    Vervain,
}

/// One measurement of ucx_perftest, and the number of its line that counts.
#[derive(Debug, Clone)]
struct Ask {
    test: &'static str,
    layout: &'static str,
    bytes: usize,
    operations: usize,
}

/// Fields of ucx_perftest's CSV after the name of the test.
#[derive(Debug, Clone, Copy)]
enum Field {
    /// Median latency, in µs: half a round trip.
    Typical = 1,
    /// Mean latency of a run, in µs: the whole operation. The middle one of `SHORT_RUNS`.
    Mean = 3,
    /// Bandwidth of the run, in MiB/s.
    Bandwidth = 5,
}

const MEDIAN: &str = "UCT transports by ucx_perftest; posix and sysv in memory allocated by UCX (target: within\n\
     10 %), cma and Vervain in memory that was simply allocated (target: ahead). UCX on Vervain: its transport\n\
     rc_verbs under vervain run, on memory allocated by UCX, for information.";
const HOT_PATH: &str = "posix and sysv store with a pointer, in the test's own loop; a verbs request has to be posted \
     and completed (part looped says what that costs)";

/// ucx_perftest's median of operations that wait for nobody is a multiple of the clock's 10 ns, and its mean has every
/// pause of the machine in it; so the middle of a few short runs stands for it.
const SHORT_RUNS: usize = 5;

/// Up to here rc_verbs goes through buffers of its own, as UCX's protocols let it.
const COPIED_BY_UCX: usize = 4096;

/// All tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    vec![put(setup), get(setup), put_bandwidth(setup), atomics(setup), messages(setup)]
}

fn put(setup: &Setup) -> Section {
    let sizes = sizes(setup);
    Operation {
        title: "RDMA Write against UCX put: latency, half a round trip, median",
        how: MEDIAN,
        unit: Unit::Ns,
        lines: names(&sizes),
        ours: ours("ib_write_lat", &sizes, |test| test.typical_ns(setup)),
        peers: one_sided(setup, "put_lat", ["short", "zcopy", "bcopy"], &sizes, Field::Typical),
        limit: Some(HOT_PATH),
    }
    .section(setup)
}

fn get(setup: &Setup) -> Section {
    let sizes = sizes(setup);
    Operation {
        title: "RDMA Read against UCX get: latency of the operation",
        how: "As above. UCX: the middle mean of five short runs, its medians have steps of 10 ns; perftest: its median.",
        unit: Unit::Ns,
        lines: names(&sizes),
        ours: ours("ib_read_lat", &sizes, |test| test.typical_ns(setup)),
        peers: one_sided(setup, "get", ["bcopy", "zcopy", "bcopy"], &sizes, Field::Mean),
        limit: Some(HOT_PATH),
    }
    .section(setup)
}

fn put_bandwidth(setup: &Setup) -> Section {
    let mut sizes = sizes(setup);
    sizes.iter_mut().for_each(|size| size.operations = size.streamed);
    Operation {
        title: "RDMA Write against UCX put: bandwidth",
        how: "ib_write_bw and put_bw, as above.",
        unit: Unit::MibPerS,
        lines: names(&sizes),
        ours: ours("ib_write_bw", &sizes, |test| test.bandwidth(setup)),
        peers: one_sided(setup, "put_bw", ["short", "zcopy", "bcopy"], &sizes, Field::Bandwidth),
        limit: Some(HOT_PATH),
    }
    .section(setup)
}

fn atomics(setup: &Setup) -> Section {
    const KINDS: [(&str, &str, &str); 2] =
        [("fetch and add", "FETCH_AND_ADD", "fadd"), ("compare and swap", "CMP_AND_SWAP", "cswap")];
    const OPERATIONS: usize = 20_000;
    let ours = || {
        let latency = |kind: &(_, &'static str, _)| {
            let extra: &[&str] =
                if kind.1 == "FETCH_AND_ADD" { &["-A", "FETCH_AND_ADD"] } else { &["-A", "CMP_AND_SWAP"] };
            Test { size: None, extra, ..Test::new("ib_atomic_lat", 8, OPERATIONS) }.typical_ns(setup)
        };
        KINDS.iter().map(latency).collect()
    };
    let asks = KINDS.map(|(.., test)| Ask { test, layout: "short", bytes: 8, operations: OPERATIONS }).to_vec();
    let peer = |name, promise, way| peer(setup, name, promise, way, asks.clone(), Field::Mean);
    Operation {
        title: "Atomics against UCX: latency of the operation, 8 bytes",
        how: "ib_atomic_lat against fadd and cswap, as above; cma has no atomics.",
        unit: Unit::Ns,
        lines: KINDS.iter().map(|kind| kind.0).collect(),
        ours: Box::new(ours),
        peers: vec![
            peer("UCX posix", Promise::Near, Way::Uct("posix")),
            peer("UCX sysv", Promise::Near, Way::Uct("sysv")),
        ],
        limit: Some(HOT_PATH),
    }
    .section(setup)
}

fn messages(setup: &Setup) -> Section {
    /// The longest active message of UCT's shared-memory transports is a little over this.
    const ACTIVE_MESSAGE: usize = 4096;
    let sizes = sizes(setup);
    let short: Vec<Size> = sizes.iter().filter(|size| size.bytes <= ACTIVE_MESSAGE).copied().collect();
    let tag =
        |name, tls| peer(setup, name, Promise::None, Way::Ucp(tls), asks("tag_lat", "short", &sizes), Field::Typical);
    Operation {
        title: "Send against UCX messages: latency, half a round trip, median",
        how: "ib_send_lat; UCT active messages up to 4 KiB; tagged messages of UCP, which is what UCX's users see.",
        unit: Unit::Ns,
        lines: names(&sizes),
        ours: ours("ib_send_lat", &sizes, |test| test.typical_ns(setup)),
        peers: vec![
            peer(
                setup,
                "UCX posix am",
                Promise::None,
                Way::Uct("posix"),
                asks("am_lat", "bcopy", &short),
                Field::Typical,
            ),
            tag("UCX posix tag", "posix,self"),
            tag("UCX sysv tag", "sysv,self"),
            tag("UCX posix and cma tag", "posix,cma,self"),
        ],
        limit: Some(HOT_PATH),
    }
    .section(setup)
}

/// Half a round trip of an active message of 8 bytes over TCP, in nanoseconds.
pub fn tcp_am_latency(setup: &Setup) -> Result<f64> {
    over_tcp(setup, Ask { test: "am_lat", layout: "short", bytes: 8, operations: 20_000 }, Field::Typical)
}

/// Half a round trip of a put of 8 bytes over TCP, in nanoseconds.
pub fn tcp_put_latency(setup: &Setup) -> Result<f64> {
    over_tcp(setup, Ask { test: "put_lat", layout: "zcopy", bytes: 8, operations: 20_000 }, Field::Typical)
}

/// MiB/s of puts of 1 MiB over TCP.
pub fn tcp_bandwidth(setup: &Setup) -> Result<f64> {
    over_tcp(setup, Ask { test: "put_bw", layout: "zcopy", bytes: 1 << 20, operations: 3_000 }, Field::Bandwidth)
}

fn over_tcp(setup: &Setup, ask: Ask, field: Field) -> Result<f64> {
    Ok(run(setup, Way::Tcp, &[ask], field)?[0])
}

/// A program of perftest over all sizes.
fn ours<'a>(program: &'static str, sizes: &[Size], number: impl Fn(&Test) -> Result<f64> + 'a) -> Measure<'a> {
    let sizes = sizes.to_vec();
    Box::new(move || for_each(&sizes, |size| number(&Test::new(program, size.bytes, size.operations))))
}

/// The columns of a put or get; layouts are those of the shared segments, of cma and of rc_verbs for little.
fn one_sided<'a>(
    setup: &'a Setup,
    test: &'static str,
    layouts: [&'static str; 3],
    sizes: &[Size],
    field: Field,
) -> Vec<Peer<'a>> {
    let [segments, cma, mut verbs] = layouts.map(|layout| asks(test, layout, sizes));
    verbs.iter_mut().filter(|ask| ask.bytes > COPIED_BY_UCX).for_each(|ask| ask.layout = "zcopy");
    vec![
        peer(setup, "UCX cma", Promise::Ahead, Way::Uct("cma"), cma, field),
        peer(setup, "UCX posix", Promise::Near, Way::Uct("posix"), segments.clone(), field),
        peer(setup, "UCX sysv", Promise::Near, Way::Uct("sysv"), segments, field),
        peer(setup, "UCX on Vervain", Promise::None, Way::Vervain, verbs, field),
    ]
}

fn asks(test: &'static str, layout: &'static str, sizes: &[Size]) -> Vec<Ask> {
    sizes.iter().map(|size| Ask { test, layout, bytes: size.bytes, operations: size.operations }).collect()
}

fn peer<'a>(
    setup: &'a Setup,
    name: &'static str,
    promise: Promise,
    way: Way,
    asks: Vec<Ask>,
    field: Field,
) -> Peer<'a> {
    Peer { name, promise, measure: Box::new(move || run(setup, way, &asks, field)) }
}

/// All of `asks` by one pair of processes.
fn run(setup: &Setup, way: Way, asks: &[Ask], field: Field) -> Result<Vec<f64>> {
    installed("ucx_perftest", "ucx-utils")?;
    let batch = setup.directory.path().join("ucx.batch");
    let runs = if matches!(field, Field::Mean) { SHORT_RUNS } else { 1 };
    let line = |(i, ask): (usize, &Ask)| {
        let Ask { test, layout, bytes, operations } = ask;
        let operations = operations.div_ceil(runs);
        // The protocols of UCP choose the layout themselves.
        let layout = if matches!(way, Way::Ucp(_)) { String::new() } else { format!("-D {layout} ") };
        format!("ask{i} -t {test} {layout}-s {bytes} -n {operations} -w {}\n", operations / 10 + 1).repeat(runs)
    };
    fs::write(&batch, asks.iter().enumerate().map(line).collect::<String>()).context("writing the list of tests")?;

    // Both sides read the list.
    let port = free_port();
    let side = || {
        let mut command = command(setup, way);
        command.args(["-p", &port.to_string(), "-v", "-f", "-b"]).arg(&batch);
        command
    };
    let Pair { server, client } = Pair::start(setup.cpus, port, &mut side(), side().arg("127.0.0.1"))?;
    // The server's complaint is the better one; it ends by itself and takes its shared segments with it.
    let (of_client, of_server) = (client.finish(), server.finish());
    let told = match (of_client, of_server) {
        (Ok(told), _) => told,
        (Err(_), Err(e)) | (Err(e), Ok(_)) => return Err(e),
    };
    let scale = if matches!(field, Field::Bandwidth) { 1.0 } else { 1e3 };
    (0..asks.len()).map(|i| Ok(middle(&told, i, field)? * scale)).collect()
}

fn command(setup: &Setup, way: Way) -> Command {
    const PROGRAM: &str = "ucx_perftest";
    let mut command =
        if matches!(way, Way::Vervain) { setup.under_vervain(&[], PROGRAM) } else { Command::new(PROGRAM) };
    match way {
        Way::Vervain => command.args(["-x", "rc_verbs", "-d", "vervain0:1"]),
        Way::Uct(transport) => command.args(["-x", transport, "-d", "memory"]),
        Way::Tcp => command.args(["-x", "tcp", "-d", "lo"]),
        Way::Ucp(transports) => command.env("UCX_TLS", transports),
    };
    command
}

/// The middle one of the numbers of the test `ask<i>` in what the client printed.
fn middle(told: &str, i: usize, field: Field) -> Result<f64> {
    let name = format!("ask{i},");
    let lines = told.lines().filter_map(|line| line.strip_prefix(&name));
    let numbers = lines.filter_map(|line| line.split(',').nth(field as usize)?.trim().parse().ok());
    let summary = Summary::of(&numbers.collect::<Vec<f64>>());
    Ok(summary
        .with_context(|| format!("ucx_perftest told no number: {}", told.lines().last().unwrap_or("nothing")))?
        .median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_among_warnings() {
        let told = "[1] UCX WARN x\nucx.batch,iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw\n\
                    ask0,20000,0.230,0.513,0.514,14.86,14.87,1,1\nask1,2000,1.563,6.229,6.229,1.0,2.0,3,4\n\
                    ask2,9,1,1,5,1\nask2,9,1,1,900,1\nask2,9,1,1,6,1\n";
        assert_eq!(middle(told, 0, Field::Typical).unwrap(), 0.230);
        assert_eq!(middle(told, 0, Field::Mean).unwrap(), 0.514);
        assert_eq!(middle(told, 1, Field::Bandwidth).unwrap(), 2.0);
        assert_eq!(middle(told, 2, Field::Mean).unwrap(), 6.0);
        assert!(middle(told, 3, Field::Mean).is_err());
    }
}
