//! The findings of a figure, as sentences: those of the paper, checked on this device.

use anyhow::Result;
use vervain_bench::case::{Interference, Measure, Operation, Placement, bytes};
use vervain_bench::number::{number, percent};
use vervain_bench::results::Flag;
use vervain_bench::stats::WIDEST;

use super::axis::Spacing;
use super::canvas::Point;
use super::chart::{Line, LineChart};
use super::query::{Seen, Setting, name, place, single, stream};
use super::reference::DEVICES;
use super::{Cell, Drawing, Picture, Table};
use crate::compare::ratio::{Ratio, ratio};

/// "0.61 (0.58 to 0.64)", or without an interval if that would end above twice the value.
pub fn times(ratio: Ratio) -> String {
    let (low, high) = ratio.interval;
    let value = number(ratio.value);
    if high > WIDEST * ratio.value {
        return format!("{value} ({})", Flag::TooFewRounds);
    }
    format!("{value} ({} to {})", number(low), number(high))
}

/// The highest of the values that are not doubtful, or of all if all are.
pub fn highest<'a, 'b>(points: &'b [Seen<'a>]) -> Option<&'b Seen<'a>> {
    let is_sound = |point: &&Seen<'_>| !point.is_doubtful();
    let of = |sound: bool| {
        points.iter().filter(move |p| !sound || is_sound(p)).max_by(|a, b| a.value().total_cmp(&b.value()))
    };
    of(true).or_else(|| of(false))
}

/// The size at which each series of figure 1 is highest, and the first one with half of that.
pub fn plateau(lines: &[(String, Vec<Seen<'_>>)]) -> Vec<String> {
    let mut said: Vec<String> = lines
        .iter()
        .filter_map(|(label, points)| {
            let best = highest(points)?;
            let (low, high) = best.interval();
            let interval = match best.has_too_few_rounds() {
                true => Flag::TooFewRounds.to_string(),
                false => format!("{} to {}", number(low), number(high)),
            };
            let half = points.iter().find(|p| p.value() >= best.value() / 2.0)?.case().size;
            Some(format!(
                "{label} reaches {} MB/s ({interval}) at {}, and half of that from {} on.",
                number(best.value()),
                bytes(best.case().size),
                bytes(half),
            ))
        })
        .collect();
    said.extend(rises(lines));
    let paper: Vec<_> = DEVICES.iter().map(|d| format!("{} MB/s ({})", number(d.plateau), d.name)).collect();
    said.push(format!("Paper: {}.", paper.join(", ")));
    said
}

/// Atomics against Read, FAA against CAS, and one placement against the other.
pub fn atomics(seen: &[Seen<'_>], measure: Measure, seed: u64) -> Vec<String> {
    let at = |placement, operation| single(seen, Setting::rc(measure, placement), operation, 8, None);
    let mut said = Vec::new();
    for placement in [Placement::Peer, Placement::Loopback] {
        let [read, faa, cas] =
            [Operation::Read, Operation::FetchAdd, Operation::CompareSwap].map(|operation| at(placement, operation));
        let place = place(placement);
        match (measure, read, faa) {
            (Measure::Bandwidth, Some(read), Some(faa)) => {
                said.extend(
                    ratio(read.result, faa.result, seed).map(|r| {
                        format!("FAA reaches {} of Read's 8 B bandwidth, {place}; paper: about half.", times(r))
                    }),
                );
            }
            (Measure::Latency, Some(read), Some(faa)) => {
                let ns = |value: f64| format!("{} ns", number(value * 1000.0));
                let [low, high] = [faa.interval().0 - read.interval().1, faa.interval().1 - read.interval().0];
                said.push(format!(
                    "FAA takes {} more than Read ({} to {} by the ends of both intervals), {place}; paper: 200 to 300 ns.",
                    ns(faa.value() - read.value()),
                    ns(low),
                    ns(high),
                ));
            }
            _ => {}
        }
        if let (Some(faa), Some(cas)) = (faa, cas) {
            let what = if measure == Measure::Latency { "takes" } else { "reaches" };
            said.extend(
                ratio(faa.result, cas.result, seed)
                    .map(|r| format!("CAS {what} {} times what FAA does, {place}; paper: about the same.", times(r))),
            );
        }
    }
    for operation in [Operation::Write, Operation::FetchAdd] {
        if let (Some(peer), Some(loopback)) = (at(Placement::Peer, operation), at(Placement::Loopback, operation)) {
            said.extend(ratio(peer.result, loopback.result, seed).map(|r| {
                let what = name(operation);
                format!("{what}'s {measure} in loopback is {} times that to the peer; paper: about the same.", times(r))
            }));
        }
    }
    said
}

/// The paper's finding about long streams against this operation.
pub fn long_streams(operation: Operation) -> &'static str {
    match operation {
        Operation::Write => "a long Write beside Write halves it, a long Read costs it about 10 % at most.",
        _ => "a long Read beside Read halves it; of a long Write beside Read it gives no number.",
    }
}

/// From which size on Read has half of its highest bandwidth, and from which the others.
fn rises(lines: &[(String, Vec<Seen<'_>>)]) -> Option<String> {
    let half = |points: &[Seen<'_>]| {
        let best = points.iter().map(Seen::value).fold(0.0, f64::max);
        Some(points.iter().find(|p| p.value() >= best / 2.0)?.case().size)
    };
    let of = |(label, points): &(String, Vec<Seen<'_>>)| Some((label.clone(), half(points)?));
    let halves: Vec<(String, u64)> = lines.iter().filter_map(of).collect();
    let (read, others): (Vec<_>, Vec<_>) = halves.iter().partition(|(label, _)| label == name(Operation::Read));
    let (&(_, read), first, last) =
        (read.first()?, others.iter().map(|o| o.1).min()?, others.iter().map(|o| o.1).max()?);
    let here = match () {
        () if *read > last => "here too",
        () if *read < first => "earlier here",
        () => "not so here",
    };
    let others = others.iter().map(|(label, size)| format!("{label} from {}", bytes(*size)));
    Some(format!(
        "Read has half of its highest bandwidth from {} on, {}. Paper: Read's rises somewhat later; {here}.",
        bytes(*read),
        others.collect::<Vec<_>>().join(", "),
    ))
}

/// A case beside a stream, and what is left of what it is alone.
pub struct Left {
    size: u64,
    ratio: Ratio,
    doubtful: bool,
}

/// The share that each stream leaves, at the sizes that were measured alone too. The lines are of the same operation as
/// `alone`.
pub fn left(alone: &[Seen<'_>], beside: &[(String, Vec<Seen<'_>>)], seed: u64) -> Vec<(String, Vec<Left>)> {
    let of = |point: &Seen<'_>| {
        let case = point.case();
        let same = alone.iter().find(|a| a.case().size == case.size && a.case().depth == case.depth)?;
        let ratio = ratio(same.result, point.result, seed)?;
        Some(Left { size: case.size, ratio, doubtful: same.is_doubtful() || point.is_doubtful() })
    };
    beside.iter().map(|(label, points)| (label.clone(), points.iter().filter_map(of).collect())).collect()
}

/// The factor by which each of these streams multiplies the value, at each size.
pub fn ratios(streams: &[Interference], left: &[(String, Vec<Left>)]) -> Vec<(Interference, Vec<Ratio>)> {
    let of = |beside: &Interference| {
        let (_, left) = left.iter().find(|(label, _)| *label == stream(Some(*beside)))?;
        Some((*beside, left.iter().map(|left| left.ratio).collect()))
    };
    streams.iter().filter_map(of).collect()
}

/// The size at which each stream costs most, of those where the values are not doubtful and the cost is surely there.
pub fn costs(operation: Operation, measure: Measure, left: &[(String, Vec<Left>)]) -> Vec<String> {
    let is_latency = measure == Measure::Latency;
    // The lost part of a bandwidth, or the added part of a latency.
    let cost = |ratio: f64| if is_latency { ratio - 1.0 } else { 1.0 - ratio };
    let what = name(operation);
    let sentence = |(label, points): &(String, Vec<Left>)| {
        let mut points: Vec<&Left> = points.iter().collect();
        points.sort_by(|a, b| cost(a.ratio.value).total_cmp(&cost(b.ratio.value)));
        let middle = points.get(points.len() / 2)?;
        let ends = |left: &Left| {
            let ends = [left.ratio.interval.0, left.ratio.interval.1].map(cost);
            (ends[0].min(ends[1]), ends[0].max(ends[1]))
        };
        let Some(worst) = points.iter().rfind(|left| !left.doubtful && ends(left).0 > 0.0) else {
            return Some(format!("{label} beside costs {what} nothing that is surely more than chance at any size."));
        };
        let (low, high) = ends(worst);
        Some(format!(
            "{label} beside costs {what} most at {}: {} {} ({} to {}); over the sizes the middle cost is {}.",
            bytes(worst.size),
            percent(cost(worst.ratio.value)),
            if is_latency { "more latency" } else { "of its bandwidth" },
            percent(low),
            percent(high),
            percent(cost(middle.ratio.value)),
        ))
    };
    left.iter().filter_map(sentence).collect()
}

/// The remaining share as percents over size; None if nothing can be compared.
pub fn shares(left: &[(String, Vec<Left>)]) -> Result<Option<(Drawing, Table)>> {
    let mut table = Table::new(&["series", "size (B)", "share (%)", "low (%)", "high (%)"]);
    // The first has no points, so that each stream has the same colour as in the figure of the values.
    let mut lines = vec![Line { label: "no interference".to_owned(), points: Vec::new(), tail: Vec::new() }];
    for (label, points) in left {
        let percents = |left: &Left| {
            let Ratio { value, interval: (low, high) } = left.ratio;
            let interval = (low * 100.0, high * 100.0);
            Point { x: left.size as f64, y: value * 100.0, interval, doubtful: left.doubtful }
        };
        for left in points {
            let point = percents(left);
            let value = if point.doubtful { Cell::Doubtful } else { Cell::Number };
            let ends = [point.interval.0, point.interval.1].map(Cell::Number);
            table.push(
                [label.as_str().into(), Cell::Count(left.size), value(point.y)].into_iter().chain(ends).collect(),
            );
        }
        let points = points.iter().map(percents).collect();
        lines.push(Line { label: label.clone(), points, tail: Vec::new() });
    }
    if table.rows.is_empty() {
        return Ok(None);
    }
    let chart = LineChart {
        x_label: "message size".to_owned(),
        x: Spacing::Bytes,
        unit: "%".to_owned(),
        lines,
        paper: Vec::new(),
        right: None,
        level: Some(100.0),
    };
    let picture = Picture::of(|width| chart.draw(Spacing::Linear, width))?;
    Ok(Some((Drawing::One(picture), table)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{over_size, seen};
    use vervain_bench::case::Case;
    use vervain_bench::sample::{bandwidth, nothing, write_case};

    const BESIDE: Option<Interference> = Some(Interference { operation: Operation::Write, size: 8 });

    #[test]
    fn the_cost_is_told_at_the_size_where_it_is_highest() {
        let mut results = nothing();
        for (size, left) in [(64, 0.9), (65536, 0.5), (1 << 20, 0.7)] {
            results.cases.push(bandwidth(write_case(size), &[1.0e9, 1.01e9, 0.99e9]));
            let case = Case { interference: BESIDE, ..write_case(size) };
            results.cases.push(bandwidth(case, &[1.0e9 * left, 1.01e9 * left, 0.99e9 * left]));
        }
        let seen = seen(&results);
        let setting = Setting::rc(Measure::Bandwidth, Placement::Loopback);
        let series = |beside| over_size(&seen, setting, Operation::Write, beside);
        let left = left(&series(None), &[("8 B Write".to_owned(), series(BESIDE))], 1);
        let said = costs(Operation::Write, Measure::Bandwidth, &left);
        let begins = "8 B Write beside costs Write most at 64 KiB: 50\u{a0}% of its bandwidth (";
        assert!(said[0].starts_with(begins) && said[0].ends_with("the middle cost is 30\u{a0}%."), "{said:?}");
    }

    #[test]
    fn where_read_rises_is_held_against_the_others() {
        let told = |read_half: u64| {
            let mut results = nothing();
            for operation in [Operation::Send, Operation::Write, Operation::Read] {
                for size in (3..=12).map(|power| 1 << power) {
                    let half = if operation == Operation::Read { read_half } else { 64 };
                    let value = if size >= half { 1e9 } else { 1e8 };
                    results.cases.push(bandwidth(Case { operation, ..write_case(size) }, &[value; 3]));
                }
            }
            let seen = seen(&results);
            let setting = Setting::rc(Measure::Bandwidth, Placement::Loopback);
            let line = |operation| (name(operation).to_owned(), over_size(&seen, setting, operation, None));
            rises(&[Operation::Send, Operation::Write, Operation::Read].map(line)).expect("three lines")
        };
        let paper = "Paper: Read's rises somewhat later;";
        let later = "Read has half of its highest bandwidth from 256 B on, Send from 64 B, Write from 64 B.";
        assert_eq!(told(256), format!("{later} {paper} here too."));
        assert!(told(64).ends_with("not so here.") && told(32).ends_with("earlier here."), "{}", told(64));
    }

    #[test]
    fn a_cost_within_chance_is_not_told_as_one() {
        let mut results = nothing();
        results.cases.push(bandwidth(write_case(64), &[1.0e9, 1.2e9, 0.8e9]));
        results.cases.push(bandwidth(Case { interference: BESIDE, ..write_case(64) }, &[0.99e9, 1.19e9, 0.79e9]));
        let seen = seen(&results);
        let setting = Setting::rc(Measure::Bandwidth, Placement::Loopback);
        let series = |beside| over_size(&seen, setting, Operation::Write, beside);
        let left = left(&series(None), &[("8 B Write".to_owned(), series(BESIDE))], 1);
        let said = costs(Operation::Write, Measure::Bandwidth, &left);
        assert_eq!(said, ["8 B Write beside costs Write nothing that is surely more than chance at any size."]);
    }
}
