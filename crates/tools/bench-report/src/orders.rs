//! The costs of streams, all sizes taken together, and their order: the paper's findings on interference, checked on
//! this device.
//!
//! Sizes are averaged by the logarithms of their ratios. The error of an average follows from the intervals of its
//! parts, as if they were independent. The case without a stream is in all of them, so two costs differ less by chance
//! than is supposed here: an order is called more than chance rather too seldom than too often.

use std::cmp::Ordering;

use vervain_bench::case::{Interference, Measure, Operation};
use vervain_bench::number::percent;

use super::query::{name, stream};
use super::reference::{DEVICES, Device};
use crate::compare::ratio::Ratio;

/// The finding if two costs may be the same.
const NO_DIFFERENCE: &str = "no difference beyond chance here";

/// Half the width of a 95 % interval, in standard errors.
const ERRORS: f64 = 1.96;

/// The kind of a stream, as the paper sorts them: FAA and CAS cost the same there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Atomic,
    Write,
}

impl Kind {
    fn of(operation: Operation) -> Option<Self> {
        match operation {
            Operation::Read => Some(Self::Read),
            Operation::Write => Some(Self::Write),
            Operation::FetchAdd | Operation::CompareSwap => Some(Self::Atomic),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Read => "Read",
            Self::Atomic => "atomics",
            Self::Write => "Write",
        }
    }
}

/// The order of the paper, from the kind that costs Write and Read least to that which costs them most (figures 3 and
/// 4).
const OF_FIGURES: [Kind; 3] = [Kind::Read, Kind::Atomic, Kind::Write];

/// A stream, and the factors by which it multiplies the value of an operation, at each size.
pub type Streams = [(Interference, Vec<Ratio>)];

/// The factor by which an operation gets dearer, as a logarithm, with the standard error.
#[derive(Debug, Clone, Copy)]
struct Cost {
    log: f64,
    error: f64,
}

impl Cost {
    /// The mean over these; None if none of them has finite logarithms.
    fn mean<'a>(ratios: impl IntoIterator<Item = &'a Ratio>, measure: Measure) -> Option<Self> {
        let dearer = if measure == Measure::Latency { 1.0 } else { -1.0 };
        let logs = |ratio: &Ratio| [ratio.value, ratio.interval.0, ratio.interval.1].map(f64::ln);
        let mut logs: Vec<[f64; 3]> = ratios.into_iter().map(logs).collect();
        logs.retain(|logs| logs.iter().all(|log| log.is_finite()));
        if logs.is_empty() {
            return None;
        }
        let n = logs.len() as f64;
        let log = dearer * logs.iter().map(|[value, ..]| value).sum::<f64>() / n;
        let squares = logs.iter().map(|[_, low, high]| ((high - low) / (2.0 * ERRORS)).powi(2));
        Some(Self { log, error: squares.sum::<f64>().sqrt() / n })
    }

    /// The order of two costs: equal if their difference may be chance.
    fn against(self, other: Self) -> Ordering {
        let error = (self.error.powi(2) + other.error.powi(2)).sqrt();
        let difference = self.log - other.log;
        if difference.abs() <= ERRORS * error { Ordering::Equal } else { difference.total_cmp(&0.0) }
    }

    /// The lost part of a bandwidth, or the added part of a latency: "12 % (10 % to 13 %)".
    fn told(self, measure: Measure) -> String {
        let share = |log: f64| if measure == Measure::Latency { log.exp() - 1.0 } else { 1.0 - (-log).exp() };
        let [value, low, high] =
            [self.log, self.log - ERRORS * self.error, self.log + ERRORS * self.error].map(|log| percent(share(log)));
        format!("{value} ({low} to {high})")
    }
}

fn costs(streams: &Streams, measure: Measure) -> Vec<(Kind, Cost)> {
    let of = |kind: Kind| {
        let ratios = streams.iter().filter(|(stream, _)| Kind::of(stream.operation) == Some(kind));
        Some((kind, Cost::mean(ratios.flat_map(|(_, ratios)| ratios), measure)?))
    };
    OF_FIGURES.into_iter().filter_map(of).collect()
}

/// From the least on, with "≈" between those that only chance may part.
fn told(costs: &[(Kind, Cost)], measure: Measure) -> String {
    let mut costs = costs.to_vec();
    costs.sort_by(|(_, a), (_, b)| a.log.total_cmp(&b.log));
    let mut text = String::new();
    for (i, (kind, cost)) in costs.iter().enumerate() {
        if i > 0 {
            text.push_str(if costs[i - 1].1.against(*cost) == Ordering::Less { " < " } else { " ≈ " });
        }
        text.push_str(&format!("{} {}", kind.word(), cost.told(measure)));
    }
    text
}

/// The finding about an order that the paper has.
fn verdict(order: &[Kind], costs: &[(Kind, Cost)]) -> &'static str {
    let cost = |kind: Kind| costs.iter().find(|(of, _)| *of == kind).map(|(_, cost)| *cost);
    let pairs = order.iter().enumerate().flat_map(|(i, less)| order[i + 1..].iter().map(move |more| (*less, *more)));
    let found: Vec<Ordering> = pairs.filter_map(|(less, more)| Some(cost(less)?.against(cost(more)?))).collect();
    match [Ordering::Less, Ordering::Equal, Ordering::Greater].map(|found_here| found.contains(&found_here)) {
        [_, _, true] => "not the order here",
        [true, true, false] => "here too in part, the rest within chance",
        [true, false, false] => "here too",
        _ => NO_DIFFERENCE,
    }
}

fn words(order: &[Kind]) -> String {
    order.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(" < ")
}

/// The costs of small streams for an operation of figures 3 and 4, beside the paper's finding.
pub fn of_figures(operation: Operation, measure: Measure, streams: &Streams) -> Vec<String> {
    let what = name(operation);
    let costs = costs(streams, measure);
    let mut said = Vec::new();
    if costs.len() == OF_FIGURES.len() {
        said.push(format!(
            "What 8 B streams cost {what} over all sizes: {}. Paper: {}; {}.",
            told(&costs, measure),
            words(&OF_FIGURES),
            verdict(&OF_FIGURES, &costs),
        ));
    }
    let cost = |operation| {
        let (_, ratios) = streams.iter().find(|(stream, _)| stream.operation == operation)?;
        Cost::mean(ratios, measure)
    };
    if let (Some(faa), Some(cas)) = (cost(Operation::FetchAdd), cost(Operation::CompareSwap)) {
        let here = if faa.against(cas) == Ordering::Equal { NO_DIFFERENCE } else { "not so here" };
        let (faa, cas) = (faa.told(measure), cas.told(measure));
        said.push(format!("FAA costs {what} {faa}, CAS {cas}. Paper: the same; {here}."));
    }
    said
}

/// The sentence that compares the costs of atomics for Write and for Read.
pub fn of_atomics(write: &Streams, read: &Streams, measure: Measure) -> Option<String> {
    let atomics = |streams| costs(streams, measure).into_iter().find(|(kind, _)| *kind == Kind::Atomic);
    let ((_, write), (_, read)) = (atomics(write)?, atomics(read)?);
    let here = match write.against(read) {
        Ordering::Greater => "here too",
        Ordering::Equal => NO_DIFFERENCE,
        Ordering::Less => "the other way round here",
    };
    let [write, read] = [write, read].map(|cost| cost.told(measure));
    Some(format!("8 B atomics cost Write {write} over all sizes, Read {read}. Paper: Write more than Read; {here}."))
}

/// The costs of long streams for an operation, beside the paper's finding about it.
pub fn of_long(operation: Operation, measure: Measure, streams: &Streams) -> Vec<String> {
    let sentence = |(beside, ratios): &(Interference, Vec<Ratio>)| {
        let paper = match (operation, beside.operation) {
            (Operation::Write, Operation::Write) | (Operation::Read, Operation::Read) => "about half",
            (Operation::Write, Operation::Read) => "about 10 % at most",
            _ => "no number",
        };
        let cost = Cost::mean(ratios, measure)?.told(measure);
        Some(format!("{} costs {} {cost} over all sizes. Paper: {paper}.", stream(Some(*beside)), name(operation)))
    };
    streams.iter().filter_map(sentence).collect()
}

/// The costs of small streams for FAA, beside the paper's tables; `paper` is a device's value beside a stream.
pub fn of_tables(
    measure: Measure,
    place: &str,
    streams: &Streams,
    paper: impl Fn(&Device, Option<Interference>) -> Option<f64>,
) -> Option<String> {
    let costs = costs(streams, measure);
    if costs.len() < OF_FIGURES.len() {
        return None;
    }
    let mut orders: Vec<(Vec<Kind>, Vec<&str>)> = Vec::new();
    for device in &DEVICES {
        let Some(order) = order_of(device, measure, &paper) else { continue };
        match orders.iter_mut().find(|(known, _)| *known == order) {
            Some((_, devices)) => devices.push(device.short),
            None => orders.push((order, vec![device.short])),
        }
    }
    let said = |(order, devices): &(Vec<Kind>, Vec<&str>)| {
        format!("{} ({}), {}", words(order), devices.join(", "), verdict(order, &costs))
    };
    let said: Vec<String> = orders.iter().map(said).collect();
    Some(format!("What 8 B streams cost FAA, {place}: {}. Paper: {}.", told(&costs, measure), said.join("; ")))
}

/// The order that a device of the paper has in its table.
fn order_of(
    device: &Device,
    measure: Measure,
    paper: impl Fn(&Device, Option<Interference>) -> Option<f64>,
) -> Option<Vec<Kind>> {
    let alone = paper(device, None)?;
    let ratio = |operation| {
        let value = paper(device, Some(Interference { operation, size: 8 }))? / alone;
        Some((Interference { operation, size: 8 }, vec![Ratio { value, interval: (value, value) }]))
    };
    let streams = [Operation::Write, Operation::Read, Operation::FetchAdd, Operation::CompareSwap].map(ratio);
    let mut costs = costs(&streams.into_iter().collect::<Option<Vec<_>>>()?, measure);
    costs.sort_by(|(_, a), (_, b)| a.log.total_cmp(&b.log));
    Some(costs.into_iter().map(|(kind, _)| kind).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(operation: Operation, values: &[f64]) -> (Interference, Vec<Ratio>) {
        let ratio = |value: &f64| Ratio { value: *value, interval: (value * 0.99, value / 0.99) };
        (Interference { operation, size: 8 }, values.iter().map(ratio).collect())
    }

    fn streams(read: f64, faa: f64, cas: f64, write: f64) -> Vec<(Interference, Vec<Ratio>)> {
        let of = |operation, value| beside(operation, &[value; 4]);
        vec![
            of(Operation::Write, write),
            of(Operation::Read, read),
            of(Operation::FetchAdd, faa),
            of(Operation::CompareSwap, cas),
        ]
    }

    #[test]
    fn the_papers_order_is_held_against_what_was_measured() {
        let told = |read, faa, cas, write| {
            of_figures(Operation::Write, Measure::Bandwidth, &streams(read, faa, cas, write)).join("\n")
        };
        let same = told(0.88, 0.7, 0.7, 0.5);
        assert!(
            same.contains("Read 12\u{a0}% (")
                && same.contains(" < atomics 30\u{a0}% (")
                && same.contains(" < Write 50")
        );
        assert!(same.contains("Paper: Read < atomics < Write; here too."), "{same}");
        assert!(
            same.contains("FAA costs Write 30") && same.contains("Paper: the same; no difference beyond chance here."),
            "{same}"
        );
        let close = told(0.9, 0.5, 0.5, 0.5);
        assert!(close.contains(" ≈ ") && close.contains("here too in part, the rest within chance"), "{close}");
        assert!(told(0.7, 0.7, 0.7, 0.7).contains("Paper: Read < atomics < Write; no difference beyond chance here."));
        let other = told(0.5, 0.9, 0.7, 0.8);
        assert!(other.contains("not the order here") && other.contains("not so here"), "{other}");
    }

    #[test]
    fn the_order_of_the_tables_is_read_from_them() {
        let bandwidth = |d: &Device, s| d.bandwidth(s);
        let streams = streams(0.97, 0.5, 0.5, 0.7);
        let said = of_tables(Measure::Bandwidth, "here", &streams, bandwidth).expect("all kinds");
        assert!(said.ends_with("Paper: Read < Write < atomics (X1 DDR, X1 QDR), here too."), "{said}");
        let longer: Vec<_> = [(1.1, Operation::Read), (1.5, Operation::Write), (4.0, Operation::FetchAdd)]
            .map(|(value, operation)| beside(operation, &[value]))
            .into();
        let said = of_tables(Measure::Latency, "here", &longer, |d, s| d.latency(s)).expect("all kinds");
        // On the QDR adapter a Write costs less latency than a Read.
        let expected =
            "Paper: Read < Write < atomics (X1 DDR), here too; Write < Read < atomics (X1 QDR), not the order here.";
        assert!(said.ends_with(expected), "{said}");
        assert_eq!(of_tables(Measure::Latency, "here", &longer[..2], |d, s| d.latency(s)), None);
    }

    #[test]
    fn atomics_against_write_and_read_and_long_streams_have_the_papers_words() {
        let said = of_atomics(&streams(0.9, 0.6, 0.6, 0.5), &streams(0.9, 0.8, 0.8, 0.5), Measure::Bandwidth);
        assert!(said.expect("atomics").ends_with("Paper: Write more than Read; here too."));
        let long = [beside(Operation::Write, &[0.5, 0.5]), beside(Operation::Read, &[0.95])];
        let paper = |operation| {
            let said = of_long(operation, Measure::Bandwidth, &long);
            said.iter().filter_map(|s| Some(s.split_once("Paper: ")?.1.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(paper(Operation::Write), ["about half.", "about 10 % at most."]);
        assert_eq!(paper(Operation::Read), ["no number.", "about half."]);
    }
}
