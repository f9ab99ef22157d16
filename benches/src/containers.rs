//! The libraries above ACP's basic layer (`containers.c`): messages over channels, global allocation, containers; beside what they stand
//! on, and a map of all ranks beside one process's and one-sided MPI's.

use std::collections::BTreeMap;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::acp::{STATISTICS, launched};
use crate::mpi;
use crate::perftest::Test;
use crate::report::{Rows, Section, Target, Unit};
use crate::rounds::{Measure, Measured, single};
use crate::setup::Setup;

const WORD_LAT: Test = Test::new("ib_send_lat", 8, 20_000);
const PAGE_LAT: Test = Test::new("ib_send_lat", 4096, 10_000);
const LONG_LAT: Test = Test::new("ib_send_lat", 1 << 20, 500);

/// Of all ranks.
const KEYS: usize = 1_000_000;
const RANKS: usize = 4;
/// MPICH's ranks poll for each other, which takes milliseconds where they share processors.
const KEYS_OF_MPICH: usize = 1_000;
/// osc/rdma of Open MPI 4.1 crashes in compare and swap.
const OPEN_MPI: &[&str] = &["--mca", "osc", "sm", "--bind-to", "none", "--oversubscribe"];

/// All tables.
pub fn sections(setup: &Setup) -> Vec<Section> {
    let ours = |name, ranks, mode: &'static [&'static str]| (name, launched(setup, "containers", ranks, mode));
    let named: Vec<(&'static str, Measure)> = vec![
        ours("channel", 2, &["channel", "8:20000", "4096:10000", "1048576:500"]),
        ("send 8", single(|| WORD_LAT.typical_ns(setup))),
        ("send 4096", single(|| PAGE_LAT.typical_ns(setup))),
        ("send 1 MiB", single(|| LONG_LAT.typical_ns(setup))),
        ours("malloc", 2, &["malloc", "64:20000", "4096:20000"]),
        ("get", launched(setup, "acp", 2, &["get", "8:20000"])),
        ours("map", 2, &["map", "8:20000"]),
        ours("push", 2, &["push", "8:20000"]),
        ours("keys", RANKS, &["keys", "8:1000000"]),
        ("BTreeMap", single(behind_a_mutex)),
        ("Open MPI", Box::new(|| mpi::inserts(setup, "openmpi", OPEN_MPI, RANKS, KEYS))),
        ("MPICH", Box::new(|| mpi::inserts(setup, "mpich", mpi::MPICH, RANKS, KEYS_OF_MPICH))),
    ];
    let measured = Measured::of(setup.fewer_rounds(), named);
    vec![
        measured.section(
            "ACP: channels, beside Send",
            "containers.c: half a ping-pong by acp_send_ch and acp_recv_ch over two channels; medians. Beside it ib_send_lat.",
            channels,
        ),
        measured.section(
            "ACP: global allocation and containers",
            "containers.c: by rank 0, of its own memory and of rank 1's, which sleeps; keys and elements of 8 B. Batches of 20.",
            allocation_and_containers,
        ),
        measured.section(
            "ACP: a map of four ranks",
            "10^6 different keys of 8 B with values of 8 B, by four ranks on two processors. Beside it a BTreeMap behind a mutex, by four\n\
             threads, and rma_map.c, a hash table in windows of MPI_Win_allocate: compare and swap, put; 1,000 keys with MPICH.",
            keys,
        ),
    ]
}

fn channels(measured: &Measured) -> Rows {
    let sizes = [("8 B", "send 8", Some(1.5)), ("4 KiB", "send 4096", None), ("1 MiB", "send 1 MiB", None)];
    let mut rows = Vec::new();
    for (i, (what, raw, most)) in sizes.into_iter().enumerate() {
        let target = most.map(Target::RatioAtMost);
        let ours = ("channel", i * STATISTICS.len());
        rows.push(measured.pair(format!("half a round trip, {what}"), Unit::Ns, ours, ("ib_send_lat", raw, 0), target));
    }
    rows
}

fn allocation_and_containers(measured: &Measured) -> Rows {
    let mut rows = Vec::new();
    // malloc and free of the own memory, then of the other's, for each size.
    let single = |what: String, name, index, most: Option<f64>| {
        measured.row(what, Unit::Ns, (name, index), most.map(Target::AtMost))
    };
    let at = |size: usize, what: usize| (4 * size + what) * STATISTICS.len();
    for (size, bytes) in ["64 B", "4 KiB"].into_iter().enumerate() {
        let most = Some(1_000.0);
        rows.push(single(format!("acp_malloc of {bytes}, own memory"), "malloc", at(size, 0), most));
        rows.push(single(format!("acp_free of {bytes}, own memory"), "malloc", at(size, 1), None));
        for (i, (what, target)) in
            [("acp_malloc", Some(Target::RatioAtMost(10.0))), ("acp_free", None)].into_iter().enumerate()
        {
            let ours = ("malloc", at(size, 2 + i));
            let what = format!("{what} of {bytes}, another's memory");
            rows.push(measured.pair(what, Unit::Ns, ours, ("get of 8 B", "get", 0), target));
        }
    }
    for (i, what) in ["acp_insert_map", "acp_retrieve_map", "acp_find_map"].into_iter().enumerate() {
        for (j, statistic) in STATISTICS.into_iter().enumerate() {
            let most = (j == 0 && what != "acp_retrieve_map").then_some(5_000.0);
            rows.push(single(format!("{what}: {statistic}"), "map", i * STATISTICS.len() + j, most));
        }
    }
    for (j, statistic) in STATISTICS.into_iter().enumerate() {
        rows.push(single(format!("acp_push_back_vector: {statistic}"), "push", j, (j == 0).then_some(5_000.0)));
    }
    rows
}

fn keys(measured: &Measured) -> Rows {
    let beside =
        |peer| measured.pair(format!("inserts, {peer}"), Unit::MillionPerS, ("keys", 0), (peer, peer, 0), None);
    ["BTreeMap", "Open MPI", "MPICH"].into_iter().map(beside).collect()
}

/// Millions of inserts a second into a map of one process, by as many threads as there are ranks.
fn behind_a_mutex() -> Result<f64> {
    let map = Mutex::new(BTreeMap::new());
    let start = Barrier::new(RANKS + 1);
    let share = (KEYS / RANKS) as u64;
    let took = std::thread::scope(|scope| {
        for rank in 0..RANKS as u64 {
            let (map, start) = (&map, &start);
            scope.spawn(move || {
                start.wait();
                for number in share * rank..share * (rank + 1) {
                    let key = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    map.lock().expect("nobody panics").insert(key, key);
                }
                start.wait();
            });
        }
        start.wait();
        let began = Instant::now();
        start.wait();
        began.elapsed()
    });
    let made = map.into_inner().expect("nobody panics").len();
    ensure!(made == KEYS, "{made} keys, not {KEYS}");
    Ok(made as f64 / took.as_secs_f64() / 1e6)
}
