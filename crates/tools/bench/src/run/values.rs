//! The values of cases as the terminal shows them, while a run goes on and at its end.

use std::collections::BTreeSet;

use super::collect::Collector;
use crate::case::{Case, Interface, Measure, Memory, Operation, Placement, bytes};
use crate::number::{in_unit, number};
use crate::results::{Flag, Summary};
use crate::terminal::{self, Kind, Screen};

/// The depth that the table leaves out: that of plans which do not say otherwise.
const USUAL_DEPTH: u32 = 128;

/// A case, and what its runs say so far.
struct Shown {
    case: Case,
    /// None without a run that has a value.
    summary: Option<Summary>,
    runs: usize,
    failures: usize,
}

/// The cases as tables: one for each measure and placement, and at the end one over the sizes of what ranks of jobs
/// did. While the run goes on no case is complete, and none is said not to be.
pub fn tables(so_far: &mut Collector, cases: &[Case], running: bool, screen: Screen) -> String {
    let rounds = so_far.rounds();
    let shown = |case: &Case| {
        let (summary, runs, failures) = so_far.summary(case)?;
        Some(Shown { case: *case, summary, runs, failures })
    };
    let shown: Vec<Shown> = cases.iter().filter_map(shown).collect();
    if running {
        return of(&shown, None, screen);
    }
    // Kernels on grids of ranks have a table of their own.
    let shown = shown.into_iter().filter(|s| s.case.grid.is_none());
    let (by_ranks, others): (Vec<_>, Vec<_>) = shown.partition(|s| s.case.interface.has_ranks());
    let tables = [of(&others, Some(rounds), screen)].into_iter().chain(of_ranks(by_ranks, screen));
    tables.filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}

/// The values of ranks of jobs: ACP beside MPI in one table, and each operation of PM in one with its environments.
fn of_ranks(shown: Vec<Shown>, screen: Screen) -> Vec<String> {
    let (by_pm, others): (Vec<_>, Vec<_>) = shown.into_iter().partition(|s| s.case.interface == Interface::Pm);
    let series = |case: &Case| {
        let what = if case.interface == Interface::Acp { case.operation.word() } else { case.interface.word() };
        case.environment.map_or_else(|| what.to_owned(), |name| format!("{what}, {name}"))
    };
    let title = "Latency in µs: ACP's copies on starter memory, and half an MPI round trip";
    let mut tables = vec![over_sizes(&others, title, series, screen)];
    let mut rest = by_pm;
    for operation in Operation::of(Interface::Pm) {
        let those;
        (those, rest) = rest.into_iter().partition(|s| s.case.operation == *operation);
        let title = match operation {
            Operation::PingPong => "PM: half a round trip in µs".to_owned(),
            _ => format!("PM: bandwidth of {operation} in MB/s"),
        };
        let series = |case: &Case| case.environment.map_or_else(|| "usual".to_owned(), |name| name.to_string());
        tables.push(over_sizes(&those, &title, series, screen));
    }
    tables
}

/// A row for each size: ranks are measured to be held against each other at one size.
fn over_sizes(shown: &[Shown], title: &str, series: impl Fn(&Case) -> String, screen: Screen) -> String {
    let (mut names, mut sizes) = (Vec::new(), BTreeSet::new());
    for Shown { case, .. } in shown {
        if !names.contains(&series(case)) {
            names.push(series(case));
        }
        sizes.insert(case.size);
    }
    if names.is_empty() {
        return String::new();
    }
    let cell = |size: u64, name: &str| match shown.iter().find(|s| s.case.size == size && series(&s.case) == name) {
        None => String::new(),
        Some(Shown { summary: None, .. }) => "failed".to_owned(),
        Some(Shown { case, summary: Some(summary), .. }) => {
            let mark = if summary.flags.is_empty() { "" } else { "*" };
            format!("{}{mark}", number(in_unit(case.measure, summary.value)))
        }
    };
    let columns: Vec<_> =
        ["size"].into_iter().chain(names.iter().map(String::as_str)).map(|name| (name, Kind::Number)).collect();
    let row = |size: &u64| {
        let cells = names.iter().map(|name| cell(*size, name));
        [bytes(*size)].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let rows: Vec<_> = sizes.iter().map(row).collect();
    let table = terminal::table(&columns, &rows, screen);
    format!("{title}; * doubtful\n{table}\n")
}

/// `planned`: the number of runs that each case should have; None while the run goes on.
fn of(shown: &[Shown], planned: Option<u32>, screen: Screen) -> String {
    let mut tables = Vec::new();
    for measure in Measure::ALL {
        for placement in Placement::ALL {
            let fits = |s: &&Shown| (s.case.measure, s.case.placement) == (*measure, *placement);
            let rows: Vec<_> = shown.iter().filter(fits).map(|s| row(s, planned)).collect();
            if rows.is_empty() {
                continue;
            }
            let (title, value, also) = match measure {
                Measure::Latency => ("Latency", "median", "p99"),
                Measure::Bandwidth => ("Bandwidth", "MB/s", "messages"),
            };
            let columns = [
                ("operation", Kind::Name),
                ("size", Kind::Number),
                ("how", Kind::Words),
                (value, Kind::Number),
                ("95 %", Kind::Number),
                (also, Kind::Number),
                ("note", Kind::Words),
            ];
            tables.push(format!("{title}, {placement}\n{}\n", terminal::table(&columns, &rows, screen)));
        }
    }
    tables.join("\n")
}

fn row(Shown { case, summary, runs, failures }: &Shown, planned: Option<u32>) -> Vec<String> {
    let mut notes = Vec::new();
    let mut cells = vec![case.operation.to_string(), bytes(case.size), how(case)];
    if let Some(summary) = summary {
        let few = summary.flags.contains(&Flag::TooFewRounds);
        let interval = match (few, planned) {
            (false, _) => within(summary.value, summary.interval),
            (true, Some(_)) => Flag::TooFewRounds.to_string(),
            (true, None) => String::new(),
        };
        let also = match case.measure {
            Measure::Latency => summary.p99.map(|p99| value(case.measure, p99)),
            Measure::Bandwidth => summary.rate.map(|rate| format!("{}/s", si(rate))),
        };
        cells.extend([value(case.measure, summary.value), interval, also.unwrap_or_default()]);
        for flag in &summary.flags {
            match (flag, planned) {
                // It stands in place of the interval.
                (Flag::TooFewRounds, _) | (Flag::Incomplete, None) => {}
                (Flag::Incomplete, Some(planned)) => notes.push(format!("{runs} of {planned} runs")),
                (flag, _) => notes.push(flag.to_string()),
            }
        }
    } else {
        cells.extend(["failed", "", ""].map(str::to_owned));
    }
    if *failures > 0 {
        notes.push(format!("{failures} failed"));
    }
    cells.push(notes.join(", "));
    cells
}

/// Service and neighbour of a case; depth and QPs if they are not those of most. Operations that are not of the verbs
/// API have their interface.
fn how(case: &Case) -> String {
    if case.interface != Interface::Verbs {
        let on = case.grid.map_or_else(String::new, |grid| format!(" on {grid} ranks"));
        let name = format!("{}{on}", case.interface.name());
        return case.environment.map_or_else(|| name.clone(), |environment| format!("{name}, in {environment}"));
    }
    let mut how = case.service.word().to_uppercase();
    if case.measure == Measure::Bandwidth {
        if case.depth != USUAL_DEPTH {
            how += &format!(", depth {}", case.depth);
        }
        if case.qps > 1 {
            how += &format!(", {} QPs", case.qps);
        }
    }
    if case.memory == Memory::Gpu {
        how += ", GPU memory";
    }
    if let Some(name) = case.environment {
        how += &format!(", in {name}");
    }
    if let Some(beside) = case.interference {
        // A number stays with its unit.
        how += &format!(", beside {}", beside.to_string().replacen(' ', "\u{a0}", 1));
    }
    how
}

/// The farther end of an interval, as a share of the value: "±3.0 %".
fn within(value: f64, (low, high): (f64, f64)) -> String {
    let share = 100.0 * (value - low).max(high - value) / value;
    match share {
        share if share < 10.0 => format!("±{share:.1} %"),
        share if share.is_finite() => format!("±{share:.0} %"),
        _ => "–".into(),
    }
}

/// A value of a measure: "1.23 µs", "4,567" for MB/s, which the column's heading names.
fn value(measure: Measure, value: f64) -> String {
    match measure {
        Measure::Latency if value < 1000.0 => format!("{value:.0} ns"),
        Measure::Latency if value < 1e6 => format!("{} µs", number(value / 1e3)),
        Measure::Latency => format!("{} ms", number(value / 1e6)),
        Measure::Bandwidth => number(value / 1e6),
    }
}

/// A number with three digits and its SI prefix: "1.23 M".
fn si(value: f64) -> String {
    let prefixes = [(1e9, " G"), (1e6, " M"), (1e3, " k"), (0.0, "")];
    let (unit, prefix) = prefixes.into_iter().find(|(unit, _)| value >= *unit).unwrap_or((0.0, ""));
    format!("{}{prefix}", number(value / f64::max(unit, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{Interference, Operation, Service};
    use crate::sample::{bandwidth, everything, latency, write_case};

    #[test]
    fn values_have_three_digits_and_their_unit() {
        let said = [0.4, 999.0, 1234.0, 123_400.0, 5.678e6].map(|ns| value(Measure::Latency, ns));
        assert_eq!(said, ["0 ns", "999 ns", "1.23 µs", "123 µs", "5.68 ms"]);
        assert_eq!(value(Measure::Bandwidth, 4.567e9), "4,567");
        assert_eq!([0.0, 12.3, 4567.0, 12.3e6, 4.5e9].map(si), ["0", "12.3", "4.57 k", "12.3 M", "4.50 G"]);
    }

    #[test]
    fn an_interval_is_its_farther_end() {
        assert_eq!(within(100.0, (99.0, 103.0)), "±3.0 %");
        assert_eq!(within(100.0, (70.0, 103.0)), "±30 %");
        assert_eq!(within(0.0, (0.0, 1.0)), "–");
    }

    fn shown(result: crate::results::CaseResult, flags: &[Flag]) -> Shown {
        let summary = result.summary.map(|summary| Summary { flags: flags.to_vec(), ..summary });
        Shown { case: result.case, summary, runs: result.runs.len(), failures: 0 }
    }

    #[test]
    fn at_80_columns_the_table_reads_so() {
        let lone = |size| Case { measure: Measure::Latency, depth: 1, ..write_case(size) };
        let beside = Some(Interference { operation: Operation::WriteImm, size: 8192 });
        let rows = [
            shown(latency(lone(8), &[110.0, 112.0, 108.0]), &[]),
            shown(latency(lone(8), &[110.0]), &[Flag::TooFewRounds, Flag::Incomplete]),
            shown(
                bandwidth(Case { interference: beside, qps: 16, depth: 512, ..write_case(131_072) }, &[12.3e9; 3]),
                &[Flag::Noisy, Flag::Drifting, Flag::InterferencePaused],
            ),
            Shown { failures: 2, ..shown(bandwidth(Case { service: Service::Ud, ..write_case(8) }, &[]), &[]) },
        ];
        let said = of(&rows, Some(3), Screen::Columns(80));
        let expected = "\
Latency, loopback
operation  size  how  median            95 %     p99  note
═════════════════════════════════════════════════════════════════
write       8 B  RC   110 ns          ±1.8 %  176 ns
write       8 B  RC   110 ns  too few rounds  176 ns  1 of 3 runs

Bandwidth, loopback
operation     size  how                 MB/s    95 %  messages  note
════════════════════════════════════════════════════════════════════════════════
write      128 KiB  RC, depth 512,    12,300  ±0.0 %  93.8 k/s  noisy, drifting,
                    16 QPs, beside                              interference
                    8~KiB write+imm                             paused
write          8 B  UD                failed                    2 failed
";
        assert_eq!(said.replace('\u{a0}', "~"), expected, "\n{said}");
        // While the run goes on nobody asks for the runs that are to come.
        let running = of(&rows[1..2], None, Screen::Columns(80));
        assert!(!running.contains("too few") && !running.contains("of 3"), "{running}");
    }

    #[test]
    fn what_ranks_did_is_one_table_over_the_sizes() {
        let of = |interface: Interface, operation, size, ns: f64, flags: &[Flag]| {
            let case = Case { interface, operation, measure: Measure::Latency, depth: 1, ..write_case(size) };
            shown(latency(case, &[ns; 3]), flags)
        };
        let rows = [
            of(Interface::Acp, Operation::Put, 1, 108.0, &[]),
            of(Interface::Acp, Operation::Put, 1 << 28, 24.9e6, &[Flag::Noisy]),
            of(Interface::Acp, Operation::Copy, 1, 302.0, &[]),
            of(Interface::MpichOwn, Operation::PingPong, 1 << 28, 55.1e6, &[]),
        ];
        let expected = "\
Latency in µs: ACP's copies on starter memory, and half an MPI round trip; * doubtful
   size      put   copy  mpich-own
══════════════════════════════════
    1 B    0.108  0.302
256 MiB  24,900*            55,100
";
        let said = of_ranks(rows.into(), Screen::Columns(80)).concat();
        assert_eq!(said, expected, "\n{said}");
        assert_eq!(of_ranks(vec![], Screen::Columns(80)).concat(), "");
    }

    #[test]
    fn each_operation_of_pm_is_a_table_with_a_column_for_each_environment() {
        let case = |operation, name: &str| Case {
            interface: Interface::Pm,
            operation,
            measure: operation.measure_of_pm(),
            depth: 1,
            environment: crate::case::EnvironmentName::from(name).ok().filter(|name| !name.is_empty()),
            ..write_case(8)
        };
        let rows = vec![
            shown(latency(case(Operation::PingPong, ""), &[400.0; 3]), &[]),
            shown(latency(case(Operation::PingPong, "no-inline"), &[5000.0; 3]), &[Flag::Noisy]),
            shown(bandwidth(case(Operation::Send, "no-inline"), &[2e8; 3]), &[]),
        ];
        let expected = "\
PM: half a round trip in µs; * doubtful
size  usual  no-inline
══════════════════════
 8 B  0.400      5.00*
PM: bandwidth of send in MB/s; * doubtful
size  no-inline
═══════════════
 8 B        200
";
        let said = of_ranks(rows, Screen::Columns(80)).concat();
        assert_eq!(said, expected, "\n{said}");
    }

    #[test]
    fn no_table_is_wider_than_80_columns_or_breaks_a_word_whatever_was_measured() {
        let all =
            [Flag::Noisy, Flag::Drifting, Flag::ColdStart, Flag::Incomplete, Flag::InterferencePaused, Flag::Lossy];
        for flags in [&all[..], &[Flag::TooFewRounds, Flag::Lossy], &[]] {
            let rows: Vec<_> = everything(1.0).cases.into_iter().map(|result| shown(result, flags)).collect();
            let words =
                |text: &str| text.split_whitespace().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
            let narrow = of(&rows, Some(5), Screen::Columns(80));
            let wide = of(&rows, Some(5), Screen::Columns(1000));
            let rule = |word: &String| !word.starts_with('═');
            let broken: Vec<_> = words(&narrow).difference(&words(&wide)).filter(|w| rule(w)).cloned().collect();
            assert_eq!(broken, Vec::<String>::new(), "{narrow}");
            assert_eq!(
                narrow.lines().map(|line| line.chars().count()).max().filter(|most| *most > 80),
                None,
                "{narrow}"
            );
        }
    }
}
