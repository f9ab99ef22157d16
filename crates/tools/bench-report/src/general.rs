//! Figures that the paper has not: latency over size, other services and operations, queue depths, numbers of QPs, and
//! interference with whatever else was measured.

use anyhow::Result;
use vervain_bench::case::{Case, Measure, Operation, Service, bytes};
use vervain_bench::number::{percent, unit};
use vervain_bench::results::Results;

use super::axis::Spacing;
use super::canvas::RightScale;
use super::chart::{Line, LineChart};
use super::figures::{over_sizes, small_messages, twice, under_interference, values};
use super::findings::highest;
use super::ink::SERIES;
use super::interference::{self, Target};
use super::query::{Seen, Setting, most_common, name, over_size, place, seen, settings, streams};
use super::{Drawing, Figure, Table};

/// Series with at least so many sizes make a figure of their own.
const LEAST_SIZES: usize = 2;

/// All figures that there are cases for, or only those beyond the paper's.
pub fn of_the_rest(results: &Results, beyond_the_paper: bool) -> Result<Vec<Figure>> {
    let seen = seen(results);
    let settings = settings(&seen);
    let mut figures = Vec::new();
    if !beyond_the_paper {
        for (name, measure) in [("latency-8B", Measure::Latency), ("bandwidth-8B", Measure::Bandwidth)] {
            figures.extend(small_messages(&seen, name, measure, None)?);
        }
    }
    for setting in &settings {
        figures.extend(sizes(&seen, *setting, beyond_the_paper)?);
    }
    for setting in settings.iter().filter(|s| s.measure == Measure::Bandwidth) {
        figures.extend(scaling(&seen, *setting, &DEPTH)?);
        figures.extend(scaling(&seen, *setting, &QPS)?);
    }
    for setting in &settings {
        for operation in Operation::ALL {
            let is_the_papers = beyond_the_paper
                && setting.service == Service::Rc
                && setting.measure == Measure::Bandwidth
                && matches!(operation, Operation::Write | Operation::Read);
            if !is_the_papers && has_sizes(&seen, *setting, *operation) {
                figures.extend(under_interference(&seen, *setting, *operation, None, results.header.seed)?);
            }
        }
    }
    for target in at_one_size(&seen, beyond_the_paper) {
        figures.extend(interference::tables(&seen, target, None, results.header.seed)?);
    }
    Ok(figures)
}

/// Returns true if it was measured beside some stream over sizes.
fn has_sizes(seen: &[Seen<'_>], setting: Setting, operation: Operation) -> bool {
    let of_this = |case: &Case| setting.fits(case) && case.operation == operation && case.qps == 1;
    let beside = streams(seen, of_this).into_iter();
    beside.map(|s| over_size(seen, setting, operation, Some(s))).any(|points| points.len() >= LEAST_SIZES)
}

/// Cases that were measured beside streams at one size only, and are not in the paper's tables.
fn at_one_size(seen: &[Seen<'_>], beyond_the_paper: bool) -> Vec<Target> {
    let is_table_2_or_3 = |t: &Target| beyond_the_paper && t.operation.is_atomic() && t.service == Service::Rc;
    let drawn = |case: &Case| {
        let is_the_papers = beyond_the_paper
            && matches!(case.operation, Operation::Write | Operation::Read)
            && (case.service, case.measure) == (Service::Rc, Measure::Bandwidth);
        is_the_papers || has_sizes(seen, Setting::of(case), case.operation)
    };
    let beside = seen.iter().map(Seen::case).filter(|case| case.interference.is_some() && !drawn(case));
    let mut targets: Vec<Target> = beside.map(Target::of).filter(|t| !is_table_2_or_3(t)).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

fn sizes(seen: &[Seen<'_>], setting: Setting, beyond_the_paper: bool) -> Result<Vec<Figure>> {
    let mut lines: Vec<_> =
        Operation::ALL.iter().map(|o| (name(*o).to_owned(), over_size(seen, setting, *o, None))).collect();
    lines.retain(|(_, points)| !points.is_empty());
    let is_figure_1 = beyond_the_paper
        && setting.service == Service::Rc
        && setting.measure == Measure::Bandwidth
        && !lines
            .iter()
            .flat_map(|(_, p)| p)
            .any(|s| matches!(s.case().operation, Operation::SendImm | Operation::WriteImm));
    if is_figure_1 || lines.iter().all(|(_, points)| points.len() < LEAST_SIZES) {
        return Ok(Vec::new());
    }
    let Setting { placement, service, measure } = setting;
    let (fits, caption) = match measure {
        Measure::Latency => (
            Spacing::Decades,
            "One message at a time; the median, and dotted the 99th percentile of all iterations. Half the \
                round trip for Send and Write, the whole one for Read and atomics.",
        ),
        Measure::Bandwidth => (Spacing::Linear, "One QP, with nothing beside."),
    };
    let figure = |(part, lines): (usize, &[(String, Vec<Seen<'_>>)])| {
        let (drawing, table) = over_sizes(lines, Vec::new(), fits)?;
        let part = if part > 0 { format!("-{}", part + 1) } else { String::new() };
        Ok(Figure {
            name: format!("{measure}-{service}-{placement}{part}"),
            title: format!(
                "{} over message size, {}, {}",
                capital(measure.word()),
                capitals(service),
                place(placement)
            ),
            caption: caption.to_owned(),
            findings: if measure == Measure::Latency { tails(lines) } else { Vec::new() },
            drawing,
            table,
            table_first: false,
        })
    };
    lines.chunks(SERIES).enumerate().map(figure).collect()
}

/// The distance of the 99th percentile from the median for the smallest messages.
fn tails(lines: &[(String, Vec<Seen<'_>>)]) -> Vec<String> {
    let tail = |(label, points): &(String, Vec<Seen<'_>>)| {
        let first = points.first()?;
        let more = percent(first.summary.p99? / first.summary.value - 1.0);
        Some(format!("{label} at {}: the 99th percentile is {more} above the median.", bytes(first.case().size)))
    };
    lines.iter().filter_map(tail).collect()
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn capitals(service: Service) -> String {
    service.word().to_uppercase()
}

/// The quantity that a scaling figure varies.
struct Over {
    id: &'static str,
    label: &'static str,
    /// The value along the axis.
    of: fn(&Case) -> u32,
    /// The settings that must be the same along it.
    fixed: fn(&Case) -> u32,
    fixed_label: &'static str,
}

const DEPTH: Over = Over {
    id: "depth",
    label: "requests under way (queue depth)",
    of: |case| case.depth,
    fixed: |case| case.qps,
    fixed_label: "Number of QPs",
};
const QPS: Over = Over {
    id: "qps",
    label: "number of QPs",
    of: |case| case.qps,
    fixed: |case| case.depth,
    fixed_label: "Requests under way on each QP",
};

/// Bandwidth and message rate over queue depths or numbers of QPs, a figure for each size.
fn scaling(seen: &[Seen<'_>], setting: Setting, over: &Over) -> Result<Vec<Figure>> {
    let fits = |s: &&Seen<'_>| setting.fits(s.case()) && s.case().interference.is_none();
    let all: Vec<Seen<'_>> = seen.iter().filter(fits).copied().collect();
    let mut sizes: Vec<u64> = all.iter().map(|s| s.case().size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut figures = Vec::new();
    for size in sizes {
        let mut lines: Vec<(String, Vec<Seen<'_>>)> = Vec::new();
        let mut fixed = Vec::new();
        for operation in Operation::ALL {
            let of_it: Vec<_> =
                all.iter().filter(|s| s.case().size == size && s.case().operation == *operation).copied().collect();
            let Some(value) = longest_row(&of_it, over) else { continue };
            let mut points: Vec<_> = of_it.into_iter().filter(|s| (over.fixed)(s.case()) == value).collect();
            points.sort_by_key(|s| (over.of)(s.case()));
            if points.len() > 1 {
                fixed.push(format!("{value} for {}", name(*operation)));
                lines.push((name(*operation).to_owned(), points));
            }
        }
        if lines.is_empty() {
            continue;
        }
        let (drawing, table) = over_counts(&lines, over, size)?;
        let Setting { placement, service, .. } = setting;
        let what = if over.id == "depth" { "queue depth" } else { "number of QPs" };
        figures.push(Figure {
            name: format!("{}-{size}B-{service}-{placement}", over.id),
            title: format!(
                "Bandwidth over {what}, {} messages, {}, {}",
                bytes(size),
                capitals(service),
                place(placement)
            ),
            caption: format!("{}: {}.", over.fixed_label, fixed.join(", ")),
            findings: lines.iter().filter_map(|(label, points)| gain(label, points, over)).collect(),
            drawing,
            table,
            table_first: false,
        });
    }
    Ok(figures)
}

/// The fixed value that most points share.
fn longest_row(points: &[Seen<'_>], over: &Over) -> Option<u32> {
    most_common(points.iter().map(|s| (over.fixed)(s.case())))
}

fn over_counts(lines: &[(String, Vec<Seen<'_>>)], over: &Over, size: u64) -> Result<(Drawing, Table)> {
    let at = |s: &Seen<'_>| f64::from((over.of)(s.case()));
    let line = |(label, points): &(String, Vec<Seen<'_>>)| Line {
        label: label.clone(),
        points: points.iter().map(|s| s.point(at(s))).collect(),
        tail: Vec::new(),
    };
    let chart = LineChart {
        x_label: over.label.to_owned(),
        x: Spacing::Powers,
        unit: unit(Measure::Bandwidth).to_owned(),
        lines: lines.iter().map(line).collect(),
        paper: Vec::new(),
        // MB/s to million messages/s: one size, so one factor.
        right: Some(RightScale { unit: "million messages/s".to_owned(), factor: 1.0 / size as f64 }),
        level: None,
    };
    let rows = lines
        .iter()
        .flat_map(|(label, points)| points.iter().map(|s| (label.as_str(), u64::from((over.of)(s.case())), *s)));
    Ok((twice(&chart, Spacing::Linear)?, values(over.id, rows)))
}

fn gain(label: &str, points: &[Seen<'_>], over: &Over) -> Option<String> {
    let (first, best) = (points.first()?, highest(points)?);
    let times = vervain_bench::number::number(best.value() / first.value());
    let at = |s: &Seen<'_>| (over.of)(s.case());
    Some(format!("{label} is highest at {}, {times} times what it is at {}.", at(best), at(first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{bandwidth, everything, nothing, write_case};

    #[test]
    fn everything_else_has_its_figures_too() {
        let figures = of_the_rest(&everything(1.0), true).expect("figures");
        let names: Vec<_> = figures.iter().map(|f| f.name.as_str()).collect();
        for name in
            ["latency-rc-peer", "latency-ud-loopback", "bandwidth-ud-peer", "depth-8B-rc-loopback", "qps-8B-rc-peer"]
        {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        assert!(!names.contains(&"bandwidth-rc-loopback"), "that is figure 1: {names:?}");
    }

    #[test]
    fn a_scaling_figure_tells_where_it_is_highest() {
        let mut results = nothing();
        for (depth, value) in [(1, 1e8), (16, 4e8), (64, 3e8)] {
            results.cases.push(bandwidth(Case { depth, ..write_case(8) }, &[value; 3]));
        }
        let figures = of_the_rest(&results, true).expect("figures");
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].findings, ["Write is highest at 16, 4.00 times what it is at 1."]);
        assert_eq!(figures[0].caption, "Number of QPs: 1 for Write.");
        let flags = &mut results.cases[1].summary.as_mut().expect("a summary").flags;
        flags.push(vervain_bench::results::Flag::Noisy);
        let figures = of_the_rest(&results, true).expect("figures");
        assert_eq!(figures[0].findings, ["Write is highest at 64, 3.00 times what it is at 1."]);
    }
}
