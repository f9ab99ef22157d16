//! The mesh over devices: ranks of `vervain launch` with fewer places for connections than peers. The ranks are `tests/src/mesh`.

use std::time::Duration;

use vervain_tests::{Finished, Job, unswayed, vervain, way};

/// Far more than any of these takes: a hang is what it finds.
const LIMIT: Duration = Duration::from_secs(120);
const RANK: &str = env!("CARGO_BIN_EXE_vervain-mesh-rank");

fn run(ranks: u32, options: &[&str], variables: &[(&str, &str)], what: &str) -> Finished {
    let mut command = unswayed(vervain());
    command.args(["launch", "-n", &ranks.to_string()]).args(options).args(["--", RANK, what]);
    Job::start(command.envs(variables.iter().copied())).finish(LIMIT)
}

/// What a rank printed: operations, answers, connections opened and closed, operations by each port.
fn counts(end: &Finished, epoch: u32) -> Vec<[u32; 6]> {
    assert!(end.success(), "{}", end.describe());
    let start = format!("epoch {epoch}: rank ");
    let lines = end.output.lines().filter_map(|line| line.split_once(&start));
    let mut all: Vec<_> = lines
        .map(|(_, rest)| {
            let numbers = rest.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
            let numbers: Vec<u32> = numbers.collect();
            <[u32; 7]>::try_from(numbers).unwrap_or_else(|n| panic!("{n:?}: {}", end.describe()))
        })
        .collect();
    all.sort_unstable();
    assert!(all.iter().zip(0..).all(|(counts, rank)| counts[0] == rank), "{}", end.describe());
    all.into_iter().map(|[_, rest @ ..]| rest).collect()
}

/// Three ranks, each of which has four ends to reach with two places: connections are closed and opened all the time.
fn evicts(end: &Finished, epoch: u32) {
    let all = counts(end, epoch);
    assert_eq!(all.len(), 3, "{}", end.describe());
    for [done, _, opened, closed, ..] in &all {
        assert_eq!(*done, 600);
        assert!(*closed >= 20 && *opened >= 20, "{}", end.describe());
    }
    let answered: u32 = all.iter().map(|counts| counts[1]).sum();
    assert!((600..1200).contains(&answered), "half of all operations ask: {}", end.describe());
}

#[test]
fn three_ranks_with_two_places_each() {
    evicts(&run(3, &[], &[], "exchange"), 0);
}

#[test]
fn three_ranks_with_two_places_each_in_packets() {
    evicts(&run(3, &[], &way("roce"), "exchange"), 0);
}

#[test]
fn three_ranks_with_two_places_each_on_infiniband() {
    evicts(&run(3, &["--link-layer", "infiniband"], &[], "exchange"), 0);
}

#[test]
fn ranks_are_renumbered_by_a_second_mesh() {
    let end = run(3, &[], &[], "renumbered");
    evicts(&end, 0);
    evicts(&end, 1);
}

#[test]
fn a_color_is_a_device() {
    let end = run(3, &["--devices", "2"], &[], "exchange");
    evicts(&end, 0);
    assert!(counts(&end, 0).iter().all(|counts| counts[4] > 200 && counts[5] > 200), "{}", end.describe());
}

#[test]
fn with_room_for_all_nothing_is_closed() {
    let end = run(4, &[], &[], "roomy");
    let all = counts(&end, 0);
    assert!(all.len() == 4 && all.iter().all(|counts| counts[2] == 4 && counts[3] == 0), "{}", end.describe());
}

#[test]
fn one_rank_alone_reaches_itself() {
    let all = counts(&run(1, &[], &[], "exchange"), 0);
    assert_eq!((all.len(), all[0][0], all[0][2]), (1, 600, 1));
}

/// The job ends with this sentence.
fn refused(end: &Finished, sentence: &str) {
    assert_eq!(end.code(), Some(3), "{}", end.describe());
    assert!(end.output.contains(sentence), "{}", end.describe());
}

#[test]
fn what_cannot_be_is_one_sentence() {
    refused(&run(3, &[], &[], "twice"), "mesh: two processes of the job say that they are rank 1");
    refused(&run(2, &[], &[], "differ"), "mesh: rank 1 has other settings than process 0 of the job");
    refused(&run(1, &[], &[], "no device"), "mesh: no RDMA device called none_0");
    refused(&run(1, &[], &[], "too many"), "mesh: 1048576 connections are too many for vervain0: ");
}

#[test]
fn ranks_on_two_link_layers_are_one_sentence() {
    let rank = "test $VERVAIN_JOB_RANK = 1 && export VERVAIN_LINK_LAYER=infiniband; exec \"$0\" exchange";
    let mut command = unswayed(vervain());
    command.args(["launch", "-n", "2", "--", "sh", "-c", rank, RANK]);
    let end = Job::start(&mut command).finish(LIMIT);
    refused(&end, "mesh: rank 1 is on InfiniBand, and process 0 of the job on Ethernet: these do not reach each other");
}
