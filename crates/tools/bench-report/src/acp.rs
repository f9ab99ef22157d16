//! ACP beside the MPI ping-pong: the figures of Ajima et al. 2015, drawn for this device, with what the paper says of
//! its own beside what was measured; and copies between two other ranks, which it did not measure.

use std::ops::RangeInclusive;

use anyhow::Result;
use vervain_bench::case::{Interface, Measure, Operation, bytes};
use vervain_bench::number::number;
use vervain_bench::results::Results;

use super::axis::Spacing;
use super::canvas::Point;
use super::chart::{Line, LineChart};
use super::figures::twice;
use super::findings::times;
use super::query::{Seen, flags, seen_through};
use super::{Cell, Figure, Table, interval};
use crate::compare::ratio::{Ratio, ratio};

/// The paper that the figures follow.
pub const PAPER: &str = "Ajima et al. 2015, on the basic layer of ACP over InfiniBand";

/// The MPI libraries whose ping-pongs there may be, the paper's first: its Open MPI used the device.
const MPIS: [Interface; 4] = [Interface::OpenMpi, Interface::OpenMpiOwn, Interface::Mpich, Interface::MpichOwn];

/// Sizes of which the paper says that Open MPI is ahead, and those of which it says by how much; and where ACP is.
const SMALL: RangeInclusive<u64> = 1..=1024;
const SMALLEST: RangeInclusive<u64> = 1..=64;
const MIDDLE: u64 = 8192;
const LARGE: RangeInclusive<u64> = 128 << 20..=u64::MAX;

/// A series over the sizes.
struct Series<'a> {
    label: String,
    points: Vec<Seen<'a>>,
}

impl<'a> Series<'a> {
    /// The latencies of an operation, by ascending size.
    fn of(results: &'a Results, interface: Interface, operation: Operation) -> Self {
        let mut points = seen_through(results, interface);
        points.retain(|s| s.case().operation == operation && s.case().measure == Measure::Latency);
        points.sort_by_key(|s| s.case().size);
        let label = match interface {
            Interface::Acp => format!("ACP {}", operation.word()),
            mpi => mpi.name().to_owned(),
        };
        Self { label, points }
    }
}

/// All figures that there are cases for.
pub fn figures(results: &Results) -> Result<Vec<Figure>> {
    let acp = |operation| Series::of(results, Interface::Acp, operation);
    let mpis =
        || MPIS.iter().map(|mpi| Series::of(results, *mpi, Operation::PingPong)).filter(|s| !s.points.is_empty());
    let mut figures = Vec::new();
    for (number, operation) in [(4, Operation::Put), (5, Operation::Get)] {
        let all: Vec<_> = [acp(operation)].into_iter().chain(mpis()).collect();
        if all[0].points.is_empty() {
            continue;
        }
        let what = operation.word();
        let title = match all.len() {
            1 => format!("Figure {number}: ACP {what} on starter memory"),
            _ => format!("Figure {number}: ACP {what} on starter memory and MPI ping-pong"),
        };
        let caption = format!(
            "ACP: a {what} and its completion, by rank 0 on starter memory of rank 1, which sleeps. MPI: half the round trip of \
             the Intel MPI Benchmarks’ PingPong, as often as they make it: 1000 times, of up to 40 MiB in all unless the plan \
             says otherwise."
        );
        figures.extend(pair(what, &title, &caption, &all, against_mpi(&all, results.header.seed))?);
    }
    let copy = acp(Operation::Copy);
    if !copy.points.is_empty() {
        let others = [acp(Operation::Put), acp(Operation::Get)].into_iter().filter(|s| !s.points.is_empty());
        let all: Vec<_> = others.chain([copy]).collect();
        let caption = "From starter memory of rank 1 to that of rank 2, by rank 0; both others sleep. A short copy goes through \
            the memory of rank 0, a longer one is a command to rank 1. The paper has this operation and did not measure it.";
        let said = against_put(&all, results.header.seed);
        figures.extend(pair("copy", "ACP copy between two other ranks", caption, &all, said)?);
    }
    Ok(figures)
}

/// The bandwidth and the time of the same series, a figure each.
fn pair(name: &str, title: &str, caption: &str, all: &[Series<'_>], findings: Vec<String>) -> Result<[Figure; 2]> {
    let table = values(all);
    let figure = |suffix: &str, what: &str, unit: &str, findings, of: fn(&Seen<'_>) -> Point| -> Result<Figure> {
        let line = |series: &Series<'_>| Line {
            label: series.label.clone(),
            points: series.points.iter().map(of).collect(),
            tail: Vec::new(),
        };
        let chart = LineChart {
            x_label: "message size".to_owned(),
            x: Spacing::Bytes,
            unit: unit.to_owned(),
            lines: all.iter().map(line).collect(),
            paper: Vec::new(),
            right: None,
            level: None,
        };
        Ok(Figure {
            name: format!("acp-{name}-{suffix}"),
            title: format!("{title}: {what} over size"),
            caption: caption.to_owned(),
            findings,
            drawing: twice(&chart, Spacing::Decades)?,
            table: table.clone(),
            table_first: false,
        })
    };
    let bandwidth =
        figure("bandwidth", "bandwidth", "MB/s", findings, |s| as_bandwidth(s.point(s.case().size as f64)))?;
    Ok([bandwidth, figure("time", "time", "µs", Vec::new(), |s| s.point(s.case().size as f64))?])
}

/// A point of time (µs) over size (bytes) as a point of bandwidth (MB/s) over size.
pub fn as_bandwidth(point: Point) -> Point {
    let Point { x, y, interval: (low, high), doubtful } = point;
    Point { x, y: x / y, interval: (x / high, x / low), doubtful }
}

fn values(all: &[Series<'_>]) -> Table {
    let columns =
        ["series", "size (B)", "time (µs)", "low (µs)", "high (µs)", "mean (µs)", "bandwidth (MB/s)", "runs", "flags"];
    let mut table = Table::new(&columns);
    for (series, point) in all.iter().flat_map(|series| series.points.iter().map(move |point| (series, point))) {
        let [low, high] = interval(point.interval(), point.has_too_few_rounds());
        let value = if point.is_doubtful() { Cell::Doubtful } else { Cell::Number };
        let size = point.case().size;
        table.push(vec![
            series.label.as_str().into(),
            Cell::Count(size),
            value(point.value()),
            low,
            high,
            Cell::maybe(Some(point.summary.mean / 1e3)),
            value(size as f64 / point.value()),
            Cell::Count(point.result.runs.len() as u64),
            flags(point.summary).into(),
        ]);
    }
    table
}

/// The bandwidth of the first series as a multiple of that of `other`, at each size that both have.
fn leads(first: &Series<'_>, other: &Series<'_>, seed: u64) -> Vec<(u64, Ratio)> {
    let of = |point: &Seen<'_>| {
        let size = point.case().size;
        let same = other.points.iter().find(|other| other.case().size == size)?;
        Some((size, ratio(point.result, same.result, seed)?))
    };
    first.points.iter().filter_map(of).collect()
}

/// Ahead or behind for sure, or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ahead,
    Same,
    Behind,
}

impl Verdict {
    fn of(lead: &Ratio) -> Self {
        match lead.interval {
            (low, _) if low > 1.0 => Self::Ahead,
            (_, high) if high < 1.0 => Self::Behind,
            _ => Self::Same,
        }
    }
}

/// The paper's findings on Open MPI, then the goal: ahead of each ping-pong at every size.
fn against_mpi(all: &[Series<'_>], seed: u64) -> Vec<String> {
    let Some((acp, mpis)) = all.split_first() else { return Vec::new() };
    let mut said = Vec::new();
    if let Some(open_mpi) = mpis.first() {
        let leads = leads(acp, open_mpi, seed);
        said.extend(the_papers(&acp.label, &open_mpi.label, &leads));
    }
    said.extend(mpis.iter().filter_map(|mpi| goal(&acp.label, &mpi.label, &leads(acp, mpi, seed))));
    said
}

fn the_papers(acp: &str, mpi: &str, leads: &[(u64, Ratio)]) -> Vec<String> {
    let within = |sizes: RangeInclusive<u64>| -> Vec<(u64, Ratio)> {
        leads.iter().filter(|(size, _)| sizes.contains(size)).copied().collect()
    };
    let mut said = Vec::new();
    if let [(_, lead)] = within(MIDDLE..=MIDDLE)[..] {
        let here = match Verdict::of(&lead) {
            Verdict::Ahead => "ahead here too",
            Verdict::Same => "no difference beyond chance here",
            Verdict::Behind => "behind here",
        };
        let (size, lead) = (bytes(MIDDLE), times(lead));
        said.push(format!(
            "At {size} {acp} has {lead} times the bandwidth of {mpi}. Paper: ahead by up to some 20 %; {here}."
        ));
    }
    let (small, smallest, large) = (within(SMALL), within(SMALLEST), within(LARGE));
    if let Some(range) = range(&small) {
        let less = self::range(&smallest).map_or_else(String::new, |range| format!(", {range} at 64 B and below"));
        said.push(format!(
            "Up to {} {acp} has {range} times the bandwidth of {mpi}{less}. Paper: Open MPI ahead, by some 50 % at 64 B and \
             below; {}.",
            bytes(*SMALL.end()),
            behind_in_the_paper(&small),
        ));
    }
    if let Some(range) = range(&large) {
        said.push(format!(
            "From {} on {acp} has {range} times the bandwidth of {mpi}. Paper: Open MPI ahead by some 10 %; {}.",
            bytes(*LARGE.start()),
            behind_in_the_paper(&large),
        ));
    }
    said
}

/// The range, from the least to the most: "1.20 to 2.34"; one number if they are the same. None if it is empty.
fn range(leads: &[(u64, Ratio)]) -> Option<String> {
    let values = || leads.iter().map(|(_, lead)| lead.value);
    let (low, high) = (values().min_by(f64::total_cmp)?, values().max_by(f64::total_cmp)?);
    let (low, high) = (number(low), number(high));
    Some(if low == high { low } else { format!("{low} to {high}") })
}

/// The finding at sizes at which ACP is behind in the paper.
fn behind_in_the_paper(leads: &[(u64, Ratio)]) -> String {
    let count = |verdict| leads.iter().filter(|(_, lead)| Verdict::of(lead) == verdict).count();
    match [Verdict::Ahead, Verdict::Same, Verdict::Behind].map(count) {
        [0, 0, _] => "here too".to_owned(),
        [_, 0, 0] => "the other way round here".to_owned(),
        [0, _, 0] => "no difference beyond chance here".to_owned(),
        [ahead, _, behind] => format!("of {} sizes ahead at {ahead} here and behind at {behind}", leads.len()),
    }
}

/// The sentence that it is ahead at every size, or the sizes at which it is not.
fn goal(acp: &str, mpi: &str, leads: &[(u64, Ratio)]) -> Option<String> {
    let range = range(leads)?;
    let of = |verdict| leads.iter().filter(move |(_, lead)| Verdict::of(lead) == verdict);
    let (ahead, all) = (of(Verdict::Ahead).count(), leads.len());
    let mut said = format!(
        "Goal: {acp} ahead of {mpi} at every size. Ahead at {ahead} of {all}, with {range} times its bandwidth"
    );
    let size = |(size, lead): &(u64, Ratio)| format!("{} ({})", bytes(*size), number(lead.value));
    for (words, verdict) in [("behind at", Verdict::Behind), ("neither for sure at", Verdict::Same)] {
        let missed = of(verdict).map(size).collect::<Vec<_>>().join(", ");
        if !missed.is_empty() {
            said += &format!("; {words} {missed}");
        }
    }
    Some(said + ".")
}

/// The excess time of a copy between two others over a put, at both ends of the sizes and at its maximum.
fn against_put(all: &[Series<'_>], seed: u64) -> Vec<String> {
    let find = |operation: Operation| {
        all.iter().find(|series| series.points.first().is_some_and(|s| s.case().operation == operation))
    };
    let (Some(put), Some(copy)) = (find(Operation::Put), find(Operation::Copy)) else { return Vec::new() };
    let longer = leads(put, copy, seed);
    let (Some(first), Some(last)) = (longer.first(), longer.last()) else { return Vec::new() };
    let most = longer.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let mut sizes: Vec<&(u64, Ratio)> = [Some(first), most, Some(last)].into_iter().flatten().collect();
    sizes.dedup_by_key(|(size, _)| *size);
    let each: Vec<_> = sizes.iter().map(|(size, longer)| format!("{} at {}", times(*longer), bytes(*size))).collect();
    vec![format!("A copy takes so many times as long as a put: {}.", each.join(", "))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::case::Case;
    use vervain_bench::sample::{latency, nothing, write_case};

    /// A run with these times in ns at each size, of ACP's put and of Open MPI over the device.
    fn run(sizes: &[u64], put: impl Fn(u64) -> f64, ping_pong: impl Fn(u64) -> f64) -> Results {
        let mut results = nothing();
        for &size in sizes {
            for (interface, operation, ns) in [
                (Interface::Acp, Operation::Put, put(size)),
                (Interface::OpenMpi, Operation::PingPong, ping_pong(size)),
            ] {
                let case = Case { interface, operation, measure: Measure::Latency, depth: 1, ..write_case(size) };
                results.cases.push(latency(case, &[ns * 0.995, ns, ns, ns, ns * 1.005]));
            }
        }
        results
    }

    const SIZES: [u64; 6] = [8, 64, 1024, 8192, 128 << 20, 256 << 20];

    fn told(put: impl Fn(u64) -> f64, ping_pong: impl Fn(u64) -> f64) -> Vec<String> {
        let figures = figures(&run(&SIZES, put, ping_pong)).expect("figures");
        assert_eq!(figures.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["acp-put-bandwidth", "acp-put-time"]);
        figures[0].findings.clone()
    }

    #[test]
    fn the_papers_device_is_told_as_the_paper_has_it() {
        let put = |size| match size {
            8192 => 1000.0 / 1.2,
            ..=64 => 2000.0,
            65..=8191 => 1300.0,
            _ => 1100.0,
        };
        let said = told(put, |_| 1000.0);
        assert!(said[0].starts_with("At 8 KiB ACP put has 1.20 (1.1"), "{said:?}");
        assert!(said[0].ends_with(
            "times the bandwidth of Open MPI over this device. Paper: ahead by up to some 20 %; ahead here too."
        ));
        assert_eq!(
            said[1],
            "Up to 1 KiB ACP put has 0.500 to 0.769 times the bandwidth of Open MPI over this device, 0.500 at 64 B and \
             below. Paper: Open MPI ahead, by some 50 % at 64 B and below; here too."
        );
        assert!(said[2].starts_with("From 128 MiB on ACP put has 0.909 times") && said[2].ends_with("10 %; here too."));
        let goal = "Goal: ACP put ahead of Open MPI over this device at every size. Ahead at 1 of 6, with 0.500 to 1.20 times its \
            bandwidth; behind at 8 B (0.500), 64 B (0.500), 1 KiB (0.769), 128 MiB (0.909), 256 MiB (0.909).";
        assert_eq!(said[3..], [goal]);
    }

    #[test]
    fn a_device_that_is_ahead_everywhere_meets_the_goal() {
        let said = told(|_| 100.0, |_| 300.0);
        assert!(said[0].contains("3.00 (") && said[0].ends_with("ahead here too."), "{said:?}");
        assert!(said[1].ends_with("the other way round here.") && said[2].ends_with("the other way round here."));
        assert!(said[3].ends_with("Ahead at 6 of 6, with 3.00 times its bandwidth."), "{said:?}");
    }

    #[test]
    fn what_chance_explains_is_neither_ahead_nor_behind() {
        let said = told(|_| 1000.0, |size| if size == 1024 { 2000.0 } else { 1000.0 });
        assert!(said[0].ends_with("no difference beyond chance here."), "{said:?}");
        assert!(said[1].ends_with("of 3 sizes ahead at 1 here and behind at 0."), "{said:?}");
        assert!(said[3].contains("Ahead at 1 of 6") && said[3].contains("; neither for sure at 8 B (1.00)"));
    }

    #[test]
    fn bandwidth_is_size_by_time_with_its_ends_turned_round() {
        let point = as_bandwidth(Point { x: 8192.0, y: 2.0, interval: (1.0, 4.0), doubtful: true });
        assert_eq!((point.y, point.interval, point.doubtful), (4096.0, (2048.0, 8192.0), true));
        let figures = figures(&run(&[8192], |_| 2000.0, |_| 4000.0)).expect("figures");
        let csv = figures[0].table.csv().expect("csv");
        assert!(csv.contains("ACP put,8192,2,") && csv.contains(",4096,5,"), "{csv}");
    }

    #[test]
    fn a_copy_is_held_against_a_put_and_runs_without_acp_have_no_such_figure() {
        let mut results = run(&[8, 1 << 20], |_| 100.0, |_| 300.0);
        let copies: Vec<_> = results.cases.iter().filter(|c| c.case.interface == Interface::Acp).cloned().collect();
        for copy in copies {
            let case = Case { operation: Operation::Copy, ..copy.case };
            let ns = if case.size == 8 { 300.0 } else { 250.0 };
            results.cases.push(latency(case, &[ns; 5]));
        }
        let all = figures(&results).expect("figures");
        let names: Vec<_> = all.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["acp-put-bandwidth", "acp-put-time", "acp-copy-bandwidth", "acp-copy-time"]);
        assert!(
            all[2].findings[0].starts_with("A copy takes so many times as long as a put: 3.00 ("),
            "{:?}",
            all[2].findings
        );
        assert!(all[2].findings[0].contains(" at 8 B, 2.50 ("));
        results.cases.retain(|c| c.case.interface != Interface::Acp);
        assert!(figures(&results).expect("figures").is_empty());
    }
}
