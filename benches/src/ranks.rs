//! Small messages, windows and collectives of Open MPI over Vervain among two, four and eight ranks, beside Open MPI's shared
//! memory: `ranks.c`, as the OSU benchmarks measure them. Means, for what people wait for is the whole; of two ranks the
//! medians too.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use vervain_bench::case::bytes as size_name;

use crate::messages::{Way, both, mpirun};
use crate::process::numbers;
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::Measure;
use crate::setup::{Setup, installed};

/// A run of `ranks.c`.
struct Case {
    what: &'static str,
    mode: &'static str,
    ranks: u32,
    /// Bytes, calls, and what is promised of their mean.
    sizes: &'static [(usize, usize, Option<Target>)],
}

const fn case(
    what: &'static str,
    mode: &'static str,
    ranks: u32,
    sizes: &'static [(usize, usize, Option<Target>)],
) -> Case {
    Case { what, mode, ranks, sizes }
}

const fn at_most(ratio: f64) -> Option<Target> {
    Some(Target::RatioAtMost(ratio))
}

/// Small, middle and large for two ranks that have a processor each.
const LATENCIES: &[(usize, usize, Option<Target>)] =
    &[(8, 20_000, at_most(2.0)), (4096, 10_000, None), (262_144, 500, None)];
const RATES: &[(usize, usize, Option<Target>)] = &[(8, 2_000, at_most(2.0)), (4096, 1_000, None), (262_144, 50, None)];
const ALLOCATED: &[(usize, usize, Option<Target>)] = &[(8, 20_000, at_most(2.0)), (262_144, 500, at_most(2.0))];
const CREATED: &[(usize, usize, Option<Target>)] = &[(8, 20_000, at_most(1.0)), (262_144, 500, at_most(1.0))];
const WORDS: &[(usize, usize, Option<Target>)] = &[(8, 10_000, None)];
const COLLECTIVES: &[(usize, usize, Option<Target>)] =
    &[(8, 20_000, at_most(2.5)), (4096, 5_000, None), (262_144, 200, at_most(1.0))];
/// More ranks than processors: they take turns.
const CROWDED: &[(usize, usize, Option<Target>)] = &[(8, 2_000, at_most(2.0)), (4096, 1_000, at_most(2.0))];
const CROWDED_RATES: &[(usize, usize, Option<Target>)] = &[(8, 500, at_most(2.0)), (4096, 200, None)];
const EMPTY: &[(usize, usize, Option<Target>)] = &[(0, 10_000, None)];
const CROWDED_EMPTY: &[(usize, usize, Option<Target>)] = &[(0, 2_000, at_most(2.0))];

const CASES: [Case; 21] = [
    case("latency", "lat", 2, LATENCIES),
    case("message in windows of 64", "bw", 2, RATES),
    case("put, allocated window", "put", 2, ALLOCATED),
    case("get, allocated window", "get", 2, ALLOCATED),
    case("fetch and add, allocated window", "fetch-add", 2, WORDS),
    case("compare and swap, allocated window", "swap", 2, WORDS),
    case("put, created window", "put-created", 2, CREATED),
    case("get, created window", "get-created", 2, CREATED),
    case("fetch and add, created window", "fetch-add-created", 2, WORDS),
    case("compare and swap, created window", "swap-created", 2, WORDS),
    case("barrier", "barrier", 2, EMPTY),
    case("allreduce", "allreduce", 2, COLLECTIVES),
    case("alltoall", "alltoall", 2, COLLECTIVES),
    case("message in windows of 64, two pairs", "bw", 4, CROWDED_RATES),
    case("barrier", "barrier", 4, CROWDED_EMPTY),
    case("allreduce", "allreduce", 4, CROWDED),
    case("alltoall", "alltoall", 4, CROWDED),
    case("message in windows of 64, four pairs", "bw", 8, CROWDED_RATES),
    case("barrier", "barrier", 8, CROWDED_EMPTY),
    case("allreduce", "allreduce", 8, CROWDED),
    case("alltoall", "alltoall", 8, CROWDED),
];

/// Modes on windows that Open MPI allocates in a segment of its own: its way by messages, which it takes by itself, crashes in
/// compare and swap.
const ALLOCATED_MODES: [&str; 4] = ["put", "get", "fetch-add", "swap"];

/// The means and medians, and what a rank costs.
pub fn sections(setup: &Setup) -> Vec<Section> {
    vec![times(setup), costs(setup)]
}

fn times(setup: &Setup) -> Section {
    let measure = |way| -> Measure {
        Box::new(move || {
            let mut all = Vec::new();
            for case in &CASES {
                let sizes = case.sizes.iter().map(|(bytes, calls, _)| format!("{bytes}:{calls}"));
                let got = numbers(&mut command(setup, way, case.ranks, case.mode, sizes, [])?, None)?;
                ensure!(got.len() == 2 * case.sizes.len(), "{} of {} ranks: {got:?}", case.what, case.ranks);
                all.extend(got);
            }
            Ok(all)
        })
    };
    let names = CASES.iter().flat_map(|case| {
        case.sizes.iter().flat_map(|(bytes, _, target)| {
            let size = if *bytes == 0 { String::new() } else { format!(" of {}", size_name(*bytes as u64)) };
            let name = |which| format!("{}{size}, {} ranks: {which}", case.what, case.ranks);
            [(name("mean"), *target, true), (name("median"), None, case.ranks == 2)]
        })
    });
    let rows = both(setup, measure).map(|both| {
        let shown = names.zip(both).filter(|((.., is_shown), _)| *is_shown);
        let row = |((what, target, _), (ours, own)): ((String, _, _), (Vec<f64>, Vec<f64>))| {
            Row::beside(what, Unit::Ns, &ours, ("its shared memory", &own), target)
        };
        shown.map(row).collect()
    });
    let how = "ranks.c: half a round trip, one of a window of 64 messages, an operation with its flush, a collective (mean over the\n\
         ranks), in batches of 20. Two ranks have a processor each; four and eight share the same two.";
    Section::new("Open MPI over Vervain, few and many ranks, beside its shared memory", how, rows)
}

fn costs(setup: &Setup) -> Section {
    let measure = |way| -> Measure {
        Box::new(move || {
            let got = numbers(&mut command(setup, way, 2, "cost", ["8:200000".to_owned()], [])?, None)?;
            let [voluntary, involuntary, _faults, init, pss, _private] = got[..] else {
                anyhow::bail!("the cost of a rank: {got:?}")
            };
            Ok(vec![(voluntary + involuntary) / 1000.0, init, pss])
        })
    };
    let rows = both(setup, measure).and_then(|both| {
        let kinds = [
            ("switches of context in a message of 8 B", Unit::PerOperation, None),
            ("MPI_Init", Unit::Ms, Some(Target::RatioAtMost(1.3))),
            ("memory of a rank (PSS)", Unit::Kib, Some(Target::AtMost(16.0 * 1024.0))),
        ];
        let row = |((what, unit, target), (ours, own)): ((&str, _, _), (Vec<f64>, Vec<f64>))| {
            Row::beside(what, unit, &ours, ("its shared memory", &own), target)
        };
        let mut rows: Vec<_> = kinds.into_iter().zip(both).map(row).collect();
        // What is left is threads that look up a few times a second.
        let calls = (0..setup.fewer_rounds()).map(|_| system_calls(setup)).collect::<Result<Vec<_>>>()?;
        let what = "system calls in a message of 8 B";
        rows.push(Row::new(what, Unit::PerOperation, &calls, Target::AtMost(0.001)));
        Ok(rows)
    });
    let how = "Of rank 0 of two, by getrusage(2) and /proc/self/smaps_rollup, over 200,000 ping-pongs of 8 bytes. System calls of\n\
         all its threads by strace, the difference between a short run and a long one.";
    Section::new("What a rank of Open MPI over Vervain costs, beside its shared memory", how, rows)
}

/// System calls of rank 0 for each message of its ping-pongs. Those of its start differ from run to run; fewer than none is none.
fn system_calls(setup: &Setup) -> Result<f64> {
    const FEW: f64 = 20_000.0;
    const MANY: f64 = 220_000.0;
    installed("strace", "strace")?;
    let directory = tempfile::tempdir()?;
    let calls = |pings: f64| -> Result<f64> {
        let count = directory.path().join("calls");
        let tool = "exec strace -f -c -U calls,name -o \"$0.$OMPI_COMM_WORLD_RANK\" \"$@\"";
        let tool = ["sh", "-c", tool].map(OsString::from).into_iter().chain([count.clone().into_os_string()]);
        let mut command = command(setup, Way::Vervain, 2, "cost", [format!("8:{pings}")], tool)?;
        numbers(&mut command, None)?;
        let text = fs::read_to_string(count.with_extension("0"))?;
        let total =
            text.lines().find_map(|line| line.trim().strip_suffix(" total")?.split_whitespace().next()?.parse().ok());
        total.with_context(|| format!("no total in {text:?}"))
    };
    Ok((calls(MANY)? - calls(FEW)?).max(0.0) / (2.0 * (MANY - FEW)))
}

fn command(
    setup: &Setup,
    way: Way,
    ranks: u32,
    mode: &str,
    sizes: impl IntoIterator<Item = String>,
    tool: impl IntoIterator<Item = OsString>,
) -> Result<Command> {
    let mut command = mpirun(setup, way, ranks, ranks > 2)?;
    let (first, second) = (setup.cpus.client, setup.cpus.server);
    let cpus: Vec<_> = (0..ranks).map(|rank| if rank % 2 == 0 { first } else { second }.to_string()).collect();
    if way == Way::Own && ALLOCATED_MODES.contains(&mode) {
        command.args(["--mca", "osc", "sm"]);
    }
    command.args(tool).arg(setup.program("ranks-openmpi")?).arg(mode).args(sizes).env("RANKS_CPUS", cpus.join(","));
    Ok(command)
}

/// A size, and how many operations of it two ranks with a processor each are to measure.
pub(crate) type Operations = (usize, usize);

/// Messages, or puts, in a window.
const WINDOW: usize = 64;

fn is_stream(mode: &str) -> bool {
    mode.contains("bw")
}

/// Has a launcher of two ranks measure a mode of `ranks.c` for one number of each size: batches of enough operations to hide
/// the clock, and windows one by one.
pub(crate) fn of_two<'c>(
    launcher: &'c mut Command,
    setup: &Setup,
    library: &str,
    mode: &str,
    sizes: &[Operations],
) -> Result<&'c mut Command> {
    let size = |&(bytes, operations): &Operations| match bytes {
        _ if is_stream(mode) => format!("{bytes}:{}:1", operations.div_ceil(WINDOW)),
        ..=4096 => format!("{bytes}:{operations}:100"),
        4097..=65536 => format!("{bytes}:{operations}:10"),
        _ => format!("{bytes}:{operations}:1"),
    };
    launcher.arg(setup.program(&format!("ranks-{library}"))?).arg(mode).args(sizes.iter().map(size));
    Ok(launcher.env("RANKS_CPUS", setup.cpus.words().join(",")))
}

/// The number of a size, of the mean and the median that are printed: the median in ns, or MiB/s of all windows together.
pub(crate) fn number_of(mode: &str, (bytes, _): Operations, printed: &[f64]) -> Result<f64> {
    match *printed {
        [mean, _] if is_stream(mode) => Ok(bytes as f64 / f64::from(1 << 20) * 1e9 / mean),
        [_, median] => Ok(median),
        _ => bail!("{mode}: not a mean and a median"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_a_rate_and_an_operation_a_median() {
        assert_eq!(number_of("put-bw-created", (1 << 20, 1), &[2e6, 1e6]).unwrap(), 500.0);
        assert_eq!(number_of("put-created", (8, 1), &[200.0, 100.0]).unwrap(), 100.0);
        assert!(number_of("lat", (8, 1), &[1.0]).is_err());
    }
}
