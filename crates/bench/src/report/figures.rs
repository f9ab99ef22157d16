//! The figures and tables of the paper, drawn for this device: of whatever cases there are.

use anyhow::Result;

use super::axis::Spacing;
use super::bars::BarChart;
use super::canvas::{PaperValue, RightScale};
use super::chart::{Line, LineChart};
use super::findings;
use super::ink::SERIES;
use super::interference::{self, Target};
use super::number::{number, unit};
use super::orders;
use super::query::{Seen, Setting, flags, name, over_size, place, seen, single, stream, streams};
use super::reference::DEVICES;
use super::{Cell, Drawing, Figure, Table};
use crate::case::{Interference, Measure, Operation, Placement, Service};
use crate::compare::ratio::Ratio;
use crate::results::Results;

/// The operations of figure 2.
const OPERATIONS: [Operation; 5] =
    [Operation::Send, Operation::Write, Operation::Read, Operation::FetchAdd, Operation::CompareSwap];

/// Figures 1 to 4 and tables 2 and 3.
pub fn of_the_paper(results: &Results) -> Result<Vec<Figure>> {
    let seen = seen(results);
    let seed = results.header.seed;
    let mut figures = Vec::new();
    for placement in Placement::ALL {
        figures.extend(figure_1(&seen, *placement)?);
    }
    for (name, measure) in [("fig2a", Measure::Bandwidth), ("fig2b", Measure::Latency)] {
        figures.extend(figure_2(&seen, name, measure, seed)?);
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

/// The chart on both scales.
pub fn twice(chart: &LineChart, fits: Spacing) -> Result<Drawing> {
    Ok(Drawing::Two { linear: chart.draw(Spacing::Linear)?, decades: chart.draw(Spacing::Decades)?, fits })
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

fn figure_2(seen: &[Seen<'_>], id: &str, measure: Measure, seed: u64) -> Result<Option<Figure>> {
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
        paper: DEVICES.iter().enumerate().filter_map(paper).collect(),
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
    let (title, caption) = match measure {
        Measure::Bandwidth => {
            ("Figure 2a: bandwidth of 8 B messages", "As many requests under way as were measured at most.")
        }
        Measure::Latency => (
            "Figure 2b: latency of 8 B messages",
            "Half the round trip for Send and Write, the whole one for Read and atomics, as in the paper.",
        ),
    };
    Ok(Some(Figure {
        name: id.to_owned(),
        title: title.to_owned(),
        caption: format!("RC, one QP, with nothing beside. {caption} The paper’s values are those of FAA."),
        findings: findings::atomics(seen, measure, seed),
        drawing: Drawing::One(chart.draw()?),
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
    let of_this = |case: &crate::case::Case| setting.fits(case) && case.operation == operation && case.qps == 1;
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

/// By what each small stream multiplies the value of an operation, at each size.
fn beside_small(
    seen: &[Seen<'_>],
    setting: Setting,
    operation: Operation,
    seed: u64,
) -> Vec<(Interference, Vec<Ratio>)> {
    let of_this = |case: &crate::case::Case| setting.fits(case) && case.operation == operation && case.qps == 1;
    let small: Vec<Interference> = streams(seen, of_this).into_iter().filter(|s| s.size == 8).collect();
    let lines: Vec<_> =
        small.iter().map(|s| (stream(Some(*s)), over_size(seen, setting, operation, Some(*s)))).collect();
    findings::ratios(&small, &findings::left(&over_size(seen, setting, operation, None), &lines, seed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{latency, nothing, write_case};

    #[test]
    fn a_figure_comes_only_with_cases_for_it() {
        let mut results = nothing();
        let case = crate::case::Case { measure: Measure::Latency, depth: 1, ..write_case(8) };
        results.cases.push(latency(case, &[900.0]));
        let figures = of_the_paper(&results).expect("figures");
        assert_eq!(figures.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["fig2b"]);
        assert_eq!(figures[0].table.rows.len(), 1);
    }
}
