//! The memory of a rank that has had to do with all others of a large job, in both directions.
//!
//! One rank is a real one: it has joined the job by libpmix, and does by `vervain-acp` what any program does. For the
//! others there are processes (the option `--farms`), each of which answers for many. This process is the host of their
//! PMIx server. Nothing is taken from a rank that has not been there: each of the others checks that it was reached as
//! it should.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use vervain_acp::Settings;
use vervain_bootstrap::Host;
use vervain_mesh::protocol::BLOCK;

use crate::control_group::{ControlGroup, Group};
use crate::footprint::Footprint;
use crate::part::{Part, end_on_signals, signal};
use crate::processes::{Order, RankAnswer, Ready, SimulatedAnswer, Times, Variables, process};
use crate::sizes::number;

/// The jobs' names for PMIx.
const JOB: &str = "vervain-memory";
const BARE: &str = "vervain-memory-bare";
/// Processes of simulated ranks, where nobody says how many.
const FARMS: u32 = 64;
/// Those whose ranks go on their visits at the same time.
const AT_ONCE: usize = 4;

/// What is to be measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Ranks of the job, 4 or more.
    pub ranks: u32,
    /// Processes that answer for the other ranks, at most one for each block of the directory; None: 64.
    pub farms: Option<u32>,
    /// True: measure a leader of the directory rather than one of all others.
    pub leader: bool,
}

/// The end of a measurement that has not failed.
pub enum Ended {
    /// The values are there.
    Measured(Box<Measurement>),
    /// The process got this signal, and has ended the others.
    BySignal(i32),
}

/// The values after a number of contacts.
#[derive(Debug, Serialize)]
struct Line {
    /// "visits others" or "is visited".
    direction: &'static str,
    contacts: u32,
    /// Less what the bare program holds.
    bytes: u64,
    connections: usize,
    /// Mean of the first accesses to a rank since the line before, in microseconds.
    first_access_us: f64,
    /// Bytes that the process holds in all, and their parts.
    held: u64,
    footprint: Footprint,
    /// The memory control group of the rank, all of it and what the kernel holds; null where there is none to be had.
    group: Option<Group>,
}

/// The values of a measurement.
#[derive(Debug, Serialize)]
pub struct Measurement {
    ranks: u32,
    farms: u32,
    /// The one that is measured, and whether it leads a block of the directory.
    rank: u32,
    leader: bool,
    settings_connections: usize,
    /// The footprint of a program that has joined the job and does nothing else.
    bare: Footprint,
    bare_held: u64,
    lines: Vec<Line>,
    /// In microseconds: first accesses to a rank, and accesses to one that there is a connection to.
    first_access_us: f64,
    longest_first_access_us: f64,
    next_access_us: f64,
    /// Ranks that were reached by all kinds of accesses, each of them as it should, and ranks that have visited.
    reached: u32,
    visits: u64,
    /// The most connections that the simulated ranks had at a time, together.
    farms_connections: usize,
    seconds: f64,
}

/// Measures, with processes in the environment of `variables`. `tell` gets a sentence about each step.
///
/// # Errors
/// There is no PMIx server, a process cannot be started or has ended, or a rank is not as it should be.
pub fn measure(plan: &Plan, settings: &Settings, variables: &Variables, tell: impl Fn(&str)) -> Result<Ended> {
    ensure!(plan.ranks >= 4, "--measure needs 4 ranks");
    let blocks = plan.ranks.div_ceil(BLOCK);
    let farms = plan.farms.unwrap_or(FARMS).min(blocks);
    let shares = shares(plan.ranks, farms);
    let measured = measured(plan.ranks, &shares, plan.leader)?;
    let measurement = run(plan, &shares, measured, settings, variables, tell);
    match signal() {
        Some(signal) if measurement.is_err() => Ok(Ended::BySignal(signal)),
        _ => Ok(Ended::Measured(Box::new(measurement?))),
    }
}

/// Directories of measurements begin so, with the process behind it.
const FILES: &str = "vervain-memory-";

/// Removes what measurements have left that were killed, before they could.
fn sweep(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FILES)?.split_once('-')?.0.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The ranks of each process: whole blocks, which the processes have as evenly as can be.
fn shares(ranks: u32, farms: u32) -> Vec<std::ops::Range<u32>> {
    let blocks = u64::from(ranks.div_ceil(BLOCK));
    let bound = |farm: u64| ((farm * blocks / u64::from(farms)) as u32).saturating_mul(BLOCK).min(ranks);
    (0..u64::from(farms)).map(|farm| bound(farm)..bound(farm + 1)).collect()
}

/// The rank that is measured: one that leads no block, so that it holds what most ranks do; or the leader of the second
/// block of a process, which itself is the leader of its first.
fn measured(ranks: u32, shares: &[std::ops::Range<u32>], leader: bool) -> Result<u32> {
    if !leader {
        return Ok((ranks / 2) | 1);
    }
    let seconds = shares.iter().map(|share| (share, share.start + BLOCK));
    let found = seconds.skip(shares.len() / 2).find(|(share, second)| share.contains(second));
    found.map(|(_, second)| second).with_context(|| {
        format!(
            "--leader needs two blocks of {BLOCK} ranks for each farm, and {ranks} ranks on {} farms have fewer",
            shares.len()
        )
    })
}

fn run(
    plan: &Plan,
    shares: &[std::ops::Range<u32>],
    measured: u32,
    settings: &Settings,
    variables: &Variables,
    tell: impl Fn(&str),
) -> Result<Measurement> {
    let (ranks, farms) = (plan.ranks, shares.len() as u32);
    let began = Instant::now();
    sweep(&std::env::temp_dir());
    let prefix = format!("{FILES}{}-", std::process::id());
    let files = tempfile::Builder::new().prefix(&prefix).tempdir().context("no directory for PMIx")?;
    // SAFETY: this process has no other thread yet.
    unsafe { std::env::set_var("PMIX_MCA_gds", "hash") };
    end_on_signals()?;
    let leaders: Vec<u32> = shares.iter().map(|share| share.start).collect();
    let holders = leaders.clone();
    let holder = move |rank: u32| match rank {
        rank if rank == measured => Some(measured),
        rank => holders.iter().rev().find(|leader| **leader <= rank).copied(),
    };
    let host = Host::start(files.path(), holder)?;
    host.announce(BARE, ranks, &[0])?;
    let local: Vec<u32> = leaders.iter().copied().chain([measured]).collect();
    host.announce(JOB, ranks, &local)?;
    let group = ControlGroup::make();

    let mut bare = Part::start("the bare program", process("bare", &[])?, &host.environment(BARE, 0)?)?;
    let bare: Footprint = bare.hear()?;
    tell(&format!("a program that has joined the job and nothing else holds {} bytes", number(bare.held())));

    let mut others = Vec::with_capacity(shares.len());
    for share in shares {
        let mut command = process("simulated-ranks", variables)?;
        command.args([share.start, share.end, measured].map(|rank| rank.to_string()));
        let name = format!("the farm of ranks {} to {}", share.start, share.end - 1);
        others.push(Part::start(&name, command, &host.environment(JOB, share.start)?)?);
    }
    let mut command = process("rank", variables)?;
    if let Some(group) = &group {
        group.put_in(&mut command);
    }
    let mut rank = Part::start(&format!("rank {measured}"), command, &host.environment(JOB, measured)?)?;
    let mut foreign = BTreeSet::new();
    for simulated in &mut others {
        foreign.extend(simulated.hear::<Ready>()?.memfds);
    }
    rank.hear::<Ready>()?;
    rank.order(&Order::Foreign(foreign))?;
    let start: RankAnswer = rank.hear()?;
    tell(&format!("{farms} farms answer for {} ranks; rank {measured} is measured", number(u64::from(ranks) - 1)));

    let mut lines = vec![];
    let mut all = Times::default();
    let mut add = |direction, contacts, mean: f64, answer: &RankAnswer| {
        let (held, footprint) = (answer.footprint.held(), answer.footprint);
        let line = Line {
            direction,
            contacts,
            bytes: held.saturating_sub(bare.held()),
            connections: answer.connections,
            first_access_us: mean * 1e6,
            held,
            footprint,
            group: group.as_ref().and_then(ControlGroup::read),
        };
        tell(&format!(
            "rank {measured} {direction}: {} contacts, {} bytes, {:.0} µs for each",
            number(contacts.into()),
            number(line.bytes),
            line.first_access_us
        ));
        lines.push(line);
    };
    add("visits others", 0, 0.0, &start);
    let mut done = 0;
    for goal in goals(ranks - 1) {
        rank.order(&Order::Contact(goal - done))?;
        let answer: RankAnswer = rank.hear()?;
        add("visits others", goal, answer.times.miss_sum / f64::from(answer.times.misses), &answer);
        all.add(&answer.times);
        done = goal;
    }
    let mut reached = 0;
    for simulated in &mut others {
        simulated.order(&Order::Check)?;
        reached += simulated.hear::<SimulatedAnswer>()?.right;
    }
    ensure!(reached == ranks - 1, "{reached} of {} ranks were reached as they should", ranks - 1);

    let mut left: Vec<u32> =
        shares.iter().map(|share| share.len() as u32 - u32::from(share.contains(&measured))).collect();
    let (mut done, mut visits, mut connections) = (0, 0, vec![0; others.len()]);
    for goal in goals(ranks - 1) {
        let began = Instant::now();
        let portions = portions(goal - done, &mut left);
        // A few processes at a time: with as many visitors at once as there are connections, the time would be that of
        // waiting for each other.
        for (at, portions) in portions.chunks(AT_ONCE).enumerate() {
            let these = || (at * AT_ONCE..).zip(portions).filter(|(_, count)| **count > 0);
            for (which, count) in these() {
                others[which].order(&Order::Visit(*count))?;
            }
            for (which, _) in these() {
                connections[which] = others[which].hear::<SimulatedAnswer>()?.connections;
            }
        }
        let took = began.elapsed().as_secs_f64() / f64::from(goal - done);
        done = goal;
        rank.order(&Order::Weigh)?;
        let answer: RankAnswer = rank.hear()?;
        ensure!(answer.visits == u64::from(done), "{done} ranks have visited, and {} have added 1", answer.visits);
        visits = answer.visits;
        add("is visited", done, took, &answer);
    }
    ensure!(visits == u64::from(ranks) - 1, "{visits} of {} ranks have visited", ranks - 1);
    let mean = |sum: f64, count: u32| sum / f64::from(count.max(1)) * 1e6;
    Ok(Measurement {
        ranks,
        farms,
        rank: measured,
        leader: plan.leader,
        settings_connections: settings.connections,
        bare_held: bare.held(),
        bare,
        lines,
        first_access_us: mean(all.miss_sum, all.misses),
        longest_first_access_us: all.miss_max * 1e6,
        next_access_us: mean(all.hit_sum, all.hits),
        reached,
        visits,
        farms_connections: connections.iter().sum(),
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Takes `wanted` out of what is left at each, as evenly as can be, and says how many of each.
fn portions(mut wanted: u32, left: &mut [u32]) -> Vec<u32> {
    let mut taken = vec![0; left.len()];
    while wanted > 0 {
        let mut sharers = left.iter().filter(|left| **left > 0).count() as u32;
        if sharers == 0 {
            break;
        }
        for (taken, left) in taken.iter_mut().zip(left.iter_mut()).filter(|(_, left)| **left > 0) {
            let count = wanted.div_ceil(sharers).min(*left);
            (*taken, *left) = (*taken + count, *left - count);
            (wanted, sharers) = (wanted - count, sharers - 1);
        }
    }
    taken
}

/// After how many contacts is measured: 1, then powers of ten from 1,000 on, and all.
fn goals(all: u32) -> Vec<u32> {
    let mut goals: Vec<u32> = std::iter::successors(Some(1000u32), |goal| goal.checked_mul(10)).collect();
    goals.insert(0, 1);
    goals.retain(|goal| *goal < all);
    goals.push(all);
    goals
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        let header = [
            "",
            "contacts",
            "bytes",
            "connections",
            "µs each",
            "anonymous",
            "own memfds",
            "files",
            "page tables",
            "Private",
            "Pss",
            "VmRSS",
            "cgroup",
        ];
        table.set_header(header);
        for line in &self.lines {
            let of = line.footprint;
            let mut cells = vec![line.direction.to_owned(), number(line.contacts.into()), number(line.bytes)];
            cells.push(line.connections.to_string());
            cells.push(format!("{:.0}", line.first_access_us));
            cells.extend([of.anonymous, of.memfds, of.files, of.tables, of.private, of.pss, of.rss].map(number));
            cells.push(line.group.map_or("-".into(), |group| number(group.bytes)));
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        write!(
            f,
            "One rank of {}, {}with {} connections at a time. Bytes: anonymous, own memfds, files and page tables, less the {} of a program\n\
         that has joined the job and nothing else.\n{table}\n\
         {} ranks were reached by get, put, add and a copy from another rank; {} have got, put and added here.\n\
         First access to a rank: {:.0} µs on average, {:.0} µs at most; next access {:.2} µs. {:.0} s in all.\n",
            number(self.ranks.into()),
            if self.leader { "a leader of the directory, " } else { "" },
            self.settings_connections,
            number(self.bare_held),
            number(self.reached.into()),
            number(self.visits),
            self.first_access_us,
            self.longest_first_access_us,
            self.next_access_us,
            self.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_measurements_have_left_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let made = |name: &str| {
            std::fs::create_dir_all(directory.path().join(name).join("in it")).unwrap();
            directory.path().join(name)
        };
        // Numbers of processes end before.
        let left = made("vervain-memory-4294967295-abc");
        let kept = [format!("vervain-memory-{}-abc", std::process::id()), "vervain-memory-x".into(), "x-1-a".into()];
        let kept = kept.map(|name| made(&name));
        sweep(directory.path());
        assert!(!left.exists() && kept.iter().all(|kept| kept.exists()));
    }

    #[test]
    fn processes_have_whole_blocks_and_all_ranks() {
        for (ranks, farms) in [(3000, 3), (1_000_000, 64), (5000, 2), (4, 1)] {
            let shares = shares(ranks, farms);
            assert_eq!((shares.len() as u32, shares[0].start, shares[shares.len() - 1].end), (farms, 0, ranks));
            for pair in shares.windows(2) {
                assert_eq!((pair[0].end, pair[1].start % BLOCK), (pair[1].start, 0));
            }
            assert!(shares.iter().all(|share| !share.is_empty()), "{shares:?}");
        }
    }

    #[test]
    fn a_measured_leader_is_no_process_of_simulated_ranks() {
        assert_eq!(measured(1_000_000, &shares(1_000_000, 64), false).unwrap(), 500_001);
        for (ranks, farms) in [(1_000_000, 64), (3000, 1), (5000, 2)] {
            let shares = shares(ranks, farms);
            let leader = measured(ranks, &shares, true).unwrap();
            assert!(leader.is_multiple_of(BLOCK) && shares.iter().all(|share| share.start != leader), "{leader}");
        }
        let error = measured(3000, &shares(3000, 3), true).unwrap_err().to_string();
        assert!(error.contains("two blocks of 1024 ranks for each farm"), "{error}");
    }

    #[test]
    fn all_that_is_wanted_is_taken_where_it_is_there() {
        let mut left = [1023, 1024, 952];
        assert_eq!((portions(1, &mut left), left), (vec![1, 0, 0], [1022, 1024, 952]));
        assert_eq!(portions(999, &mut left), [333, 333, 333]);
        assert_eq!((portions(1999, &mut left), left), (vec![689, 691, 619], [0, 0, 0]));
    }

    #[test]
    fn measured_is_at_powers_of_ten_and_at_the_end() {
        assert_eq!(goals(999_999), [1, 1000, 10_000, 100_000, 999_999]);
        assert_eq!((goals(3), goals(1001)), (vec![1, 3], vec![1, 1000, 1001]));
    }
}
