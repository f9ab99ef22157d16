//! The figures and tables of the paper, drawn for this device: of whatever cases there are.

use anyhow::Result;
use vervain_bench::case::{Case, Interference, Measure, Operation, Placement, Service};
use vervain_bench::number::{number, unit};
use vervain_bench::results::Results;

use super::axis::Spacing;
use super::bars::BarChart;
use super::canvas::{PaperValue, RightScale};
use super::chart::{Line, LineChart};
use super::findings;
use super::ink::SERIES;
use super::interference::{self, Target};
use super::orders;
use super::query::{Seen, Setting, flags, name, over_size, place, seen, single, stream, streams};
use super::reference::DEVICES;
use super::{Cell, Drawing, Figure, Picture, Table};
use crate::compare::ratio::Ratio;

/// The operations of figure 2.
const OPERATIONS: [Operation; 5] =
    [Operation::Send, Operation::Write, Operation::Read, Operation::FetchAdd, Operation::CompareSwap];

/// Returns true if the paper's own matter was measured: FAA beside small streams (tables 2 and 3), or Write or Read
/// over sizes beside any (figures 3 and 4). Bandwidths over sizes and latencies of small messages alone are
/// everybody's.
fn has_the_papers_matter(seen: &[Seen<'_>]) -> bool {
    let target = |measure| Target { operation: Operation::FetchAdd, service: Service::Rc, measure, size: 8 };
    let is_of_tables = |case: &Case| {
        case.interference.is_some_and(|s| s.size == 8) && Target::of(case) == target(case.measure) && case.qps == 1
    };
    let is_over_sizes = |placement: &Placement, operation: Operation| {
        let setting = Setting::rc(Measure::Bandwidth, *placement);
        let of_this = |case: &Case| setting.fits(case) && case.operation == operation && case.qps == 1;
        streams(seen, of_this).into_iter().any(|s| over_size(seen, setting, operation, Some(s)).len() > 1)
    };
    seen.iter().any(|s| is_of_tables(s.case()))
        || Placement::ALL.iter().any(|p| [Operation::Write, Operation::Read].iter().any(|o| is_over_sizes(p, *o)))
}

const MOST_UNDER_WAY: &str = "As many requests under way as were measured at most.";
const ROUND_TRIPS: &str = "Half the round trip for Send and Write, the whole one for Read and atomics.";

/// Figures 1 to 4 and tables 2 and 3; none for a run that did not measure what the paper is about.
pub fn of_the_paper(results: &Results) -> Result<Vec<Figure>> {
    let seen = seen(results);
    if !has_the_papers_matter(&seen) {
        return Ok(Vec::new());
    }
    let seed = results.header.seed;
    let mut figures = Vec::new();
    for placement in Placement::ALL {
        figures.extend(figure_1(&seen, *placement)?);
    }
    for (name, measure) in [("fig2a", Measure::Bandwidth), ("fig2b", Measure::Latency)] {
        figures.extend(small_messages(&seen, name, measure, Some(seed))?);
    }
    for (number, operation) in [("3", Operation::Write), ("4", Operation::Read)] {
        for placement in Placement::ALL {
            let setting = Setting::rc(Measure::Bandwidth, *placement);
            figures.extend(under_interference(&seen, setting, operation, Some(number), seed)?);
        }
    }
    for (name, measure) in [("table2", Measure::Bandwidth), ("table3", Measure::Latency)] {
        for operation in [Operation::FetchAdd, Operation::CompareSwap] {
            let target = Target { operation, service: Service::Rc, measure, size: 8 };
            figures.extend(interference::tables(&seen, target, Some(name), seed)?);
        }
    }
    Ok(figures)
}

/// The values of a chart, a row each.
pub fn values<'a>(x: &str, series: impl IntoIterator<Item = (&'a str, u64, Seen<'a>)>) -> Table {
    let mut table = Table::default();
    for (label, at, seen) in series {
        let measure = seen.case().measure;
        if table.columns.is_empty() {
            let unit = unit(measure);
            let also = if measure == Measure::Latency { format!("p99 ({unit})") } else { "messages/s".to_owned() };
            let interval = ["low", "high"].map(|end| format!("{end} ({unit})"));
            table.columns = vec!["series".to_owned(), x.to_owned(), format!("value ({unit})")];
            table.columns.extend(interval);
            table.columns.extend([also, "runs".to_owned(), "flags".to_owned()]);
        }
        let [low, high] = super::interval(seen.interval(), seen.has_too_few_rounds());
        let also = match measure {
            Measure::Latency => seen.summary.p99.map(|p| p / 1e3),
            Measure::Bandwidth => seen.summary.rate,
        };
        let value = if seen.is_doubtful() { Cell::Doubtful } else { Cell::Number };
        table.push(vec![
            label.into(),
            Cell::Count(at),
            value(seen.value()),
            low,
            high,
            Cell::maybe(also),
            Cell::Count(seen.result.runs.len() as u64),
            flags(seen.summary).into(),
        ]);
    }
    table
}

/// A chart of series over sizes, as a picture and as values.
pub fn over_sizes(
    lines: &[(String, Vec<Seen<'_>>)],
    paper: Vec<PaperValue>,
    fits: Spacing,
) -> Result<(Drawing, Table)> {
    let measure = lines.iter().find_map(|(_, points)| points.first()).map_or(Measure::Bandwidth, |s| s.case().measure);
    let line = |(label, points): &(String, Vec<Seen<'_>>)| Line {
        label: label.clone(),
        points: points.iter().map(|s| s.point(s.case().size as f64)).collect(),
        tail: points.iter().filter_map(|s| Some((s.case().size as f64, s.summary.p99? / 1e3))).collect(),
    };
    let chart = LineChart {
        x_label: "message size".to_owned(),
        x: Spacing::Bytes,
        unit: unit(measure).to_owned(),
        lines: lines.iter().map(line).collect(),
        paper,
        right: None,
        level: None,
    };
    let rows = lines.iter().flat_map(|(label, points)| points.iter().map(|s| (label.as_str(), s.case().size, *s)));
    Ok((twice(&chart, fits)?, values("size (B)", rows)))
}

/// The chart on both scales. By decades is what fits if the smallest values would vanish on the other.
pub fn twice(chart: &LineChart, fits: Spacing) -> Result<Drawing> {
    let fits = if chart.hides_a_value() { Spacing::Decades } else { fits };
    let picture = |spacing| Picture::of(|width| chart.draw(spacing, width));
    Ok(Drawing::Two { linear: picture(Spacing::Linear)?, decades: picture(Spacing::Decades)?, fits })
}

/// The paper's plateaus, as they are or as what they are without interference.
fn plateaus() -> Vec<PaperValue> {
    let value = |(device, d): (usize, &super::reference::Device)| PaperValue {
        device,
        label: format!("{} {} MB/s", d.name, number(d.plateau)),
        y: d.plateau,
    };
    DEVICES.iter().enumerate().map(value).collect()
}

fn depth_note(seen: &[Seen<'_>]) -> String {
    seen.first().map_or_else(String::new, |s| format!("{} requests under way on one QP.", s.case().depth))
}

fn figure_1(seen: &[Seen<'_>], placement: Placement) -> Result<Option<Figure>> {
    let setting = Setting::rc(Measure::Bandwidth, placement);
    let of = |operation| (name(operation).to_owned(), over_size(seen, setting, operation, None));
    let mut lines: Vec<_> = [Operation::Send, Operation::Write, Operation::Read].map(of).to_vec();
    lines.retain(|(_, points)| !points.is_empty());
    // One size is no line; figure 2 has it.
    let Some((_, first)) = lines.iter().find(|(_, points)| points.len() > 1) else { return Ok(None) };
    let depth = depth_note(first);
    let (drawing, table) = over_sizes(&lines, plateaus(), Spacing::Linear)?;
    Ok(Some(Figure {
        name: format!("fig1-{placement}"),
        title: format!("Figure 1: bandwidth over message size, {}", place(placement)),
        caption: format!("Send, Write and Read over RC, with nothing beside. {depth}"),
        findings: findings::plateau(&lines),
        drawing,
        table,
        table_first: false,
    }))
}

/// Each operation with 8 bytes, as bars; figure 2 of the paper, with its values and findings, if there is a seed.
pub fn small_messages(
    seen: &[Seen<'_>],
    id: &str,
    measure: Measure,
    paper_seed: Option<u64>,
) -> Result<Option<Figure>> {
    let at = |placement, operation| single(seen, Setting::rc(measure, placement), operation, 8, None);
    let there = |operation: &Operation| Placement::ALL.iter().any(|p| at(*p, *operation).is_some());
    let groups: Vec<Operation> = OPERATIONS.into_iter().filter(there).collect();
    if groups.is_empty() {
        return Ok(None);
    }
    let series: Vec<(Placement, Vec<(usize, Seen<'_>)>)> = [Placement::Peer, Placement::Loopback]
        .map(|p| (p, groups.iter().enumerate().filter_map(|(i, o)| Some((i, at(p, *o)?))).collect()))
        .to_vec();
    let (series, _): (Vec<_>, Vec<_>) = series.into_iter().partition(|(_, points)| !points.is_empty());
    let faa = groups.iter().position(|o| *o == Operation::FetchAdd);
    let paper = |(device, d): (usize, &super::reference::Device)| {
        let y = if measure == Measure::Latency { d.latency(None)? } else { d.bandwidth(None)? };
        let label = format!("{} {} {}", d.name, number(y), unit(measure));
        Some((faa?, PaperValue { device, label, y }))
    };
    let chart = BarChart {
        groups: groups.iter().map(|o| name(*o).to_owned()).collect(),
        bars: series
            .iter()
            .map(|(p, points)| (place(*p).to_owned(), points.iter().map(|(i, s)| s.point(*i as f64)).collect()))
            .collect(),
        unit: unit(measure).to_owned(),
        paper: DEVICES.iter().enumerate().filter_map(paper).filter(|_| paper_seed.is_some()).collect(),
        // All messages are of 8 bytes, so bytes and messages differ by a factor only.
        right: (measure == Measure::Bandwidth)
            .then(|| RightScale { unit: "million messages/s".to_owned(), factor: 1.0 / 8.0 }),
    };
    let labels: Vec<String> = series
        .iter()
        .flat_map(|(p, points)| points.iter().map(move |(_, s)| format!("{}, {p}", name(s.case().operation))))
        .collect();
    let all = series.iter().flat_map(|(_, points)| points.iter().map(|(_, s)| *s));
    let table = values("size (B)", labels.iter().zip(all).map(|(label, s)| (label.as_str(), 8, s)));
    let (title, caption) = match (measure, paper_seed) {
        (Measure::Bandwidth, Some(_)) => ("Figure 2a: bandwidth of 8 B messages", MOST_UNDER_WAY),
        (Measure::Bandwidth, None) => ("Bandwidth of 8 B messages", MOST_UNDER_WAY),
        (Measure::Latency, Some(_)) => ("Figure 2b: latency of 8 B messages", ROUND_TRIPS),
        (Measure::Latency, None) => ("Latency of 8 B messages", ROUND_TRIPS),
    };
    let paper = if paper_seed.is_some() { " The paper’s values are those of FAA." } else { "" };
    Ok(Some(Figure {
        name: id.to_owned(),
        title: title.to_owned(),
        caption: format!("RC, one QP, with nothing beside. {caption}{paper}"),
        findings: paper_seed.map_or_else(Vec::new, |seed| findings::atomics(seen, measure, seed)),
        drawing: Drawing::One(Picture::of(|width| chart.draw(width))?),
        table,
        table_first: false,
    }))
}

/// An operation over sizes beside each stream: as it is, and as a share of what it is alone. `number` is the paper's;
/// other operations have a name of their own.
pub fn under_interference(
    seen: &[Seen<'_>],
    setting: Setting,
    operation: Operation,
    number: Option<&str>,
    seed: u64,
) -> Result<Vec<Figure>> {
    let alone = over_size(seen, setting, operation, None);
    let of_this = |case: &vervain_bench::case::Case| setting.fits(case) && case.operation == operation && case.qps == 1;
    let (small, long): (Vec<_>, Vec<_>) = streams(seen, of_this).into_iter().partition(|s| s.size == 8);
    let Setting { placement, service, measure } = setting;
    let mut figures = Vec::new();
    for (letter, streams) in [("", small), ("b", long)] {
        for (part, streams) in streams.chunks(SERIES - 1).enumerate() {
            let mut lines = vec![("no interference".to_owned(), alone.clone())];
            let beside = |s: &Interference| (stream(Some(*s)), over_size(seen, setting, operation, Some(*s)));
            lines.extend(streams.iter().map(beside));
            lines.retain(|(_, points)| !points.is_empty());
            let what = name(operation);
            let part = if part > 0 { format!("-{}", part + 1) } else { String::new() };
            let (id, label) = match number {
                Some(number) => (format!("fig{number}{letter}"), format!("Figure {number}{letter}: {what} {measure}")),
                None => {
                    let id = format!("interference{letter}-{}-{measure}-{service}", operation.word().replace('+', "-"));
                    (id, format!("{what} {measure} ({})", service.word().to_uppercase()))
                }
            };
            let said = match (letter, number) {
                ("b", Some(_)) => {
                    format!("The paper does not draw these; it says: {}", findings::long_streams(operation))
                }
                _ => format!(
                    "Another process streams small messages over the same device and port. {}",
                    depth_note(&alone)
                ),
            };
            let paper = if number.is_some() { plateaus() } else { Vec::new() };
            let beside = lines.iter().position(|(_, p)| p.iter().any(|s| s.case().interference.is_some()));
            let left = findings::left(&alone, &lines[beside.unwrap_or(lines.len())..], seed);
            let fits = if measure == Measure::Latency { Spacing::Decades } else { Spacing::Linear };
            let (drawing, table) = over_sizes(&lines, paper, fits)?;
            let mut said_by_values = findings::costs(operation, measure, &left);
            if number.is_some() {
                let ratios = findings::ratios(streams, &left);
                said_by_values.extend(match letter {
                    "b" => orders::of_long(operation, measure, &ratios),
                    _ => orders::of_figures(operation, measure, &ratios),
                });
                if letter.is_empty() && operation == Operation::Read {
                    let write = beside_small(seen, setting, Operation::Write, seed);
                    said_by_values.extend(orders::of_atomics(&write, &ratios, measure));
                }
            }
            let figure = Figure {
                name: format!("{id}-{placement}{part}"),
                title: format!("{label} over size beside a stream, {}", place(placement)),
                caption: said,
                findings: said_by_values,
                drawing,
                table,
                table_first: false,
            };
            figures.push(figure);
            if let Some((drawing, table)) = findings::shares(&left)? {
                figures.push(Figure {
                    name: format!("{id}-share-{placement}{part}"),
                    title: format!("{label}, as a share of what it is alone, {}", place(placement)),
                    caption: "The same values, each divided by the one with nothing beside; 100 % is no change."
                        .to_owned(),
                    findings: Vec::new(),
                    drawing,
                    table,
                    table_first: false,
                });
            }
        }
    }
    Ok(figures)
}

/// The factor by which each small stream multiplies the value of an operation, at each size.
fn beside_small(
    seen: &[Seen<'_>],
    setting: Setting,
    operation: Operation,
    seed: u64,
) -> Vec<(Interference, Vec<Ratio>)> {
    let of_this = |case: &vervain_bench::case::Case| setting.fits(case) && case.operation == operation && case.qps == 1;
    let small: Vec<Interference> = streams(seen, of_this).into_iter().filter(|s| s.size == 8).collect();
    let lines: Vec<_> =
        small.iter().map(|s| (stream(Some(*s)), over_size(seen, setting, operation, Some(*s)))).collect();
    findings::ratios(&small, &findings::left(&over_size(seen, setting, operation, None), &lines, seed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::sample::{latency, nothing, write_case};

    #[test]
    fn a_figure_comes_only_with_cases_for_it() {
        let mut results = nothing();
        let case = Case { measure: Measure::Latency, depth: 1, operation: Operation::FetchAdd, ..write_case(8) };
        results.cases.push(latency(case, &[900.0]));
        assert!(of_the_paper(&results).expect("figures").is_empty(), "no stream beside it");
        let interference = Some(Interference { operation: Operation::Read, size: 8 });
        results.cases.push(latency(Case { interference, ..case }, &[1800.0]));
        let figures = of_the_paper(&results).expect("figures");
        assert_eq!(figures.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["fig2b", "table3"]);
        assert_eq!(figures[0].table.rows.len(), 1);
    }

    #[test]
    fn sizes_from_8_bytes_up_are_drawn_by_decades() {
        let mut results = nothing();
        results.cases = [(8, 5e6), (4096, 2e9), (1 << 20, 12e9)]
            .map(|(size, value)| vervain_bench::sample::bandwidth(write_case(size), &[value; 3]))
            .to_vec();
        let drawn = |results: &Results| {
            let seen = seen(results);
            let setting = Setting::rc(Measure::Bandwidth, Placement::Loopback);
            let line = (String::new(), over_size(&seen, setting, Operation::Write, None));
            match over_sizes(&[line], Vec::new(), Spacing::Linear).expect("a drawing").0 {
                Drawing::Two { fits, .. } => fits,
                Drawing::One(_) => panic!("two scales"),
            }
        };
        assert_eq!(drawn(&results), Spacing::Decades);
        results.cases.remove(0);
        assert_eq!(drawn(&results), Spacing::Linear);
    }
}
