//! PM beside its paper: what Sumimoto et al. 2004 print of PM/InfiniBand-FJ and of PM on other networks, next to what
//! was measured here; round trips and bandwidths over size; and what data inside the work request save.

use std::cmp::Reverse;

use anyhow::Result;
use vervain_bench::case::{Case, EnvironmentName, Interface, Measure, Memory, Operation, Placement, Service, bytes};
use vervain_bench::number::{number, percent, unit};
use vervain_bench::results::{Flag, Results};
use vervain_bench::stats::WIDEST;
use vervain_bench::terminal::{self, Kind, Screen};

use super::axis::Spacing;
use super::bars::BarChart;
use super::canvas::Point;
use super::chart::{Line, LineChart};
use super::figures::twice;
use super::findings::{highest, times};
use super::ink::SERIES;
use super::query::{Seen, flags, name, seen_where};
use super::{Cell, Drawing, Figure, Picture, Table, interval};
use crate::compare::ratio::{Ratio, ratio};

/// The paper that the figures follow.
pub const PAPER: &str = "Sumimoto et al. 2004, on PM/InfiniBand-FJ";

/// The variable by which PM puts no data into work requests, if it is 0.
const INLINE: &str = "PM_INLINE";

/// The networks of the paper; the first two are PM/InfiniBand-FJ, on hosts with two chip sets.
const NETWORKS: [&str; 4] = ["GC-LE", "E7501", "Myrinet", "Ethernet"];

/// The values that the paper prints, in the order of [`NETWORKS`]: µs, MB/s.
#[derive(Debug, PartialEq)]
struct Printed {
    what: &'static str,
    operation: Operation,
    /// True if data go inside the work request, as far as they are short enough.
    inline: bool,
    values: [Option<f64>; NETWORKS.len()],
}

const ROUND_TRIP: Printed = Printed {
    what: "round trip",
    operation: Operation::PingPong,
    inline: true,
    values: [Some(15.6), Some(16.8), Some(8.3), Some(29.6)],
};
const NOT_INLINE: Printed = Printed {
    what: "round trip, not inline",
    inline: false,
    values: [Some(17.9), Some(18.9), None, None],
    ..ROUND_TRIP
};
const MESSAGES: Printed = Printed {
    what: "messages",
    operation: Operation::Send,
    values: [Some(688.0), Some(586.1), Some(244.4), Some(118.4)],
    ..ROUND_TRIP
};
const RDMA: Printed = Printed {
    what: "RDMA Write",
    operation: Operation::Write,
    values: [Some(913.2), Some(820.9), Some(241.0), Some(116.4)],
    ..ROUND_TRIP
};
const PRINTED: [&Printed; 4] = [&ROUND_TRIP, &NOT_INLINE, &MESSAGES, &RDMA];

/// The saving by data inside the work request, from the paper.
const SAVED: &str = "Paper: 12.5\u{a0}% on GC-LE, 11.1\u{a0}% on E7501";

type Environment = Option<EnvironmentName>;

fn label(environment: Environment) -> String {
    environment.map_or_else(|| "usual".to_owned(), |name| name.to_string())
}

/// At the beginning of a sentence.
fn place(environment: Environment) -> String {
    environment.map_or_else(|| "In the usual environment".to_owned(), |name| format!("In {name}"))
}

/// A value of this device, and what the paper prints of its.
struct Beside<'a> {
    printed: &'static Printed,
    seen: Seen<'a>,
    /// The same operation by the verbs API, of that size and in that environment.
    verbs: Option<Seen<'a>>,
    /// The environment without the choice of what is inline.
    base: Environment,
}

impl Beside<'_> {
    fn measure(&self) -> Measure {
        self.seen.case().measure
    }

    fn value(&self) -> f64 {
        whole(self.seen.point(0.0), self.measure()).y
    }

    fn verbs_value(&self) -> Option<f64> {
        Some(whole(self.verbs?.point(0.0), self.measure()).y)
    }
}

/// A latency is half a round trip: the whole one is shown.
fn whole(point: Point, measure: Measure) -> Point {
    let factor = if measure == Measure::Latency { 2.0 } else { 1.0 };
    let Point { x, y, interval: (low, high), doubtful } = point;
    Point { x, y: y * factor, interval: (low * factor, high * factor), doubtful }
}

/// All cases of an operation of PM's, in the order of the plan.
fn of_pm(results: &Results, operation: Operation) -> Vec<Seen<'_>> {
    seen_where(results, |case| case.interface == Interface::Pm && case.operation == operation)
}

/// The cases of the verbs API that correspond to an operation of PM's.
fn of_verbs(results: &Results, operation: Operation) -> Vec<Seen<'_>> {
    let (operation, measure) = match operation {
        Operation::PingPong => (Operation::Send, Measure::Latency),
        other => (other, Measure::Bandwidth),
    };
    let like = |case: &Case| Case {
        operation,
        measure,
        service: Service::Rc,
        qps: 1,
        placement: Placement::Loopback,
        interference: None,
        memory: Memory::Host,
        interface: Interface::Verbs,
        ..*case
    };
    seen_where(results, |case| *case == like(case))
}

/// The environments of some cases, in the order of the plan.
fn environments(seen: &[Seen<'_>]) -> Vec<Environment> {
    let mut all = Vec::new();
    for environment in seen.iter().map(|seen| seen.case().environment) {
        if !all.contains(&environment) {
            all.push(environment);
        }
    }
    all
}

/// Returns true if data go inside the work request in an environment.
fn is_inline(results: &Results, environment: Environment) -> bool {
    let variables = environment.and_then(|name| results.header.environments.get(name.as_str()));
    variables.is_none_or(|of| of.variables.get(INLINE).is_none_or(|value| value != "0"))
}

/// The environment with these variables but for [`INLINE`]; the same one if there is none.
fn base(results: &Results, environment: Environment) -> Environment {
    let named = environment.and_then(|name| results.header.environments.get(name.as_str()));
    let Some(variables) = named.map(|of| &of.variables).filter(|variables| variables.contains_key(INLINE)) else {
        return environment;
    };
    let mut rest = variables.clone();
    rest.remove(INLINE);
    if rest.is_empty() {
        return None;
    }
    let like = results.header.environments.iter().find(|(_, of)| of.variables == rest);
    like.and_then(|(name, _)| EnvironmentName::from(name).ok()).or(environment)
}

/// All that the paper prints and was measured through PM.
fn beside(results: &Results) -> Vec<Beside<'_>> {
    let mut all = Vec::new();
    for printed in PRINTED {
        let (pm, verbs) = (of_pm(results, printed.operation), of_verbs(results, printed.operation));
        let fits = |environment: &Environment| is_inline(results, *environment) == printed.inline;
        for environment in environments(&pm).into_iter().filter(fits) {
            let mut points = pm.clone();
            points.retain(|seen| seen.case().environment == environment);
            let best = match printed.operation {
                Operation::PingPong => points.iter().min_by_key(|seen| seen.case().size),
                _ => highest(&points),
            };
            let Some(seen) = best.copied() else { continue };
            let like =
                |other: &&Seen<'_>| (other.case().environment, other.case().size) == (environment, seen.case().size);
            let verbs = verbs.iter().filter(like).max_by_key(|other| other.case().depth).copied();
            all.push(Beside { printed, seen, verbs, base: base(results, environment) });
        }
    }
    all
}

/// All figures that there are cases for.
pub fn figures(results: &Results) -> Result<Vec<Figure>> {
    let all = beside(results);
    let mut figures = Vec::new();
    for measure in Measure::ALL {
        let rows: Vec<&Beside<'_>> = all.iter().filter(|row| row.measure() == *measure).collect();
        if !rows.is_empty() {
            figures.push(beside_the_paper(*measure, &rows, results)?);
        }
    }
    for (name, title, caption, operations) in [
        (
            "pm-round-trip",
            "Round trip of a message of PM over size",
            "A message and its answer, which is its like; of the verbs API twice the half.",
            &[Operation::PingPong][..],
        ),
        (
            "pm-messages",
            "Bandwidth of PM’s messages over size",
            "Messages one after the other, until the other node says that it has received all.",
            &[Operation::Send],
        ),
        (
            "pm-copies",
            "Bandwidth of PM’s copies over size",
            "pmWrite or pmRead one after the other, until all are done.",
            &[Operation::Write, Operation::Read],
        ),
    ] {
        figures.extend(over_size(name, title, caption, operations, results)?);
    }
    Ok(figures)
}

fn beside_the_paper(measure: Measure, rows: &[&Beside<'_>], results: &Results) -> Result<Figure> {
    let mut groups: Vec<&Printed> = rows.iter().map(|row| row.printed).collect();
    groups.dedup();
    let mut bars: Vec<(String, Vec<Point>)> = Vec::new();
    for row in rows {
        let place = groups.iter().position(|group| *group == row.printed).unwrap_or(0) as f64;
        let (label, point) = (format!("here, {}", label(row.base)), whole(row.seen.point(place), measure));
        match bars.iter_mut().find(|(of, _)| *of == label) {
            Some((_, points)) => points.push(point),
            None => bars.push((label, vec![point])),
        }
    }
    bars.truncate(SERIES - NETWORKS.len());
    for (i, network) in NETWORKS.iter().enumerate() {
        let values = groups.iter().enumerate().filter_map(|(x, group)| Some((x as f64, group.values[i]?)));
        let points = values.map(|(x, y)| Point { x, y, interval: (y, y), doubtful: false });
        bars.push((format!("paper: {network}"), points.collect()));
    }
    let chart = BarChart {
        groups: groups.iter().map(|group| group.what.to_owned()).collect(),
        bars,
        unit: unit(measure).to_owned(),
        paper: Vec::new(),
        right: None,
    };
    let (what, caption, findings) = match measure {
        Measure::Latency => (
            "round trip",
            "Of the smallest message that was measured; the paper’s is of a short one. “Inline” is data inside the work request.",
            saved(rows, results.header.seed),
        ),
        Measure::Bandwidth => {
            ("highest bandwidth", "Of the sizes that were measured, the one with the highest bandwidth.", Vec::new())
        }
    };
    let beside_verbs = rows.iter().filter_map(|row| beside_verbs(row, results.header.seed));
    Ok(Figure {
        name: format!("pm-{measure}"),
        title: format!("PM here beside the paper: {what}"),
        caption: format!(
            "{caption} GC-LE and E7501 are PM/InfiniBand-FJ on hosts with these chip sets; Myrinet and Ethernet are PM there."
        ),
        findings: findings.into_iter().chain(beside_verbs).collect(),
        drawing: Drawing::One(Picture::below_values(|width| chart.draw(width))?),
        table: values_beside(measure, rows),
        table_first: true,
    })
}

/// The share of a round trip that data inside the work request save, in each environment that was measured without too.
fn saved(rows: &[&Beside<'_>], seed: u64) -> Vec<String> {
    let mut said = Vec::new();
    for without in rows.iter().filter(|row| !row.printed.inline) {
        let is_its = |row: &&&Beside<'_>| row.printed.inline && row.seen.case().environment == without.base;
        let Some(with) = rows.iter().find(is_its) else { continue };
        if with.seen.case().size != without.seen.case().size {
            continue;
        }
        let Some(left) = ratio(without.seen.result, with.seen.result, seed) else { continue };
        said.push(format!(
            "{}, data inside the work request {} the round trip of {}: {} µs with them, {} without. {SAVED}.",
            place(without.base),
            less(left),
            bytes(with.seen.case().size),
            number(with.value()),
            number(without.value()),
        ));
    }
    said
}

/// The words for a ratio below or above 1: "save 12 % (10 % to 14 %) of".
fn less(Ratio { value, interval: (low, high) }: Ratio) -> String {
    let (verb, share) = if value <= 1.0 { ("save", 1.0 - value) } else { ("add", value - 1.0) };
    let (share, of) = (percent(share), if value <= 1.0 { "of" } else { "to" });
    match (low, high) {
        _ if high > WIDEST * value => format!("{verb} {share} ({}) {of}", Flag::TooFewRounds),
        (_, high) if high < 1.0 => format!("save {share} ({} to {}) of", percent(1.0 - high), percent(1.0 - low)),
        (low, _) if low > 1.0 => format!("add {share} ({} to {}) to", percent(low - 1.0), percent(high - 1.0)),
        _ => "make no difference beyond chance to".to_owned(),
    }
}

/// How PM's value compares with that of the verbs API beneath.
fn beside_verbs(row: &Beside<'_>, seed: u64) -> Option<String> {
    let (verbs, case) = (row.verbs?, row.seen.case());
    let times = times(ratio(verbs.result, row.seen.result, seed)?);
    let (what, of) = match case.operation {
        Operation::PingPong => ("a round trip takes", "time"),
        Operation::Send => ("PM’s messages have", "bandwidth"),
        _ => ("PM’s Writes have", "bandwidth"),
    };
    let (place, verbs, size) = (place(case.environment), name(verbs.case().operation), bytes(case.size));
    Some(format!("{place}, {what} {times} times the {of} of {verbs} by the verbs API, at {size}."))
}

fn values_beside(measure: Measure, rows: &[&Beside<'_>]) -> Table {
    let unit = unit(measure);
    let own = ["here", "low", "high", "verbs"].map(|what| format!("{what} ({unit})"));
    let mut columns = vec!["operation".to_owned(), "environment".to_owned(), "size (B)".to_owned()];
    columns.extend(own);
    columns.extend(NETWORKS.map(|network| format!("{network} ({unit})")));
    columns.push("flags".to_owned());
    let mut table = Table { columns, rows: Vec::new() };
    for row in rows {
        let point = whole(row.seen.point(0.0), measure);
        let [low, high] = interval(point.interval, row.seen.has_too_few_rounds());
        let mut cells = vec![
            row.printed.what.into(),
            label(row.seen.case().environment).into(),
            Cell::Count(row.seen.case().size),
            value(&point),
            low,
            high,
            Cell::maybe(row.verbs_value()),
        ];
        cells.extend(row.printed.values.map(Cell::maybe));
        cells.push(flags(row.seen.summary).into());
        table.push(cells);
    }
    table
}

fn value(point: &Point) -> Cell {
    if point.doubtful { Cell::Doubtful(point.y) } else { Cell::Number(point.y) }
}

/// A line for each environment, by ascending size.
fn by_environment<'a>(who: &str, all: &[Seen<'a>]) -> Vec<(String, Vec<Seen<'a>>)> {
    let line = |environment: Environment| {
        let mut points: Vec<Seen<'a>> = all.to_vec();
        points.retain(|seen| seen.case().environment == environment);
        // The verbs API may have several depths, of which the largest counts.
        points.sort_by_key(|seen| (seen.case().size, Reverse(seen.case().depth)));
        points.dedup_by_key(|seen| seen.case().size);
        let what = points.first().map_or("", |seen| name(seen.case().operation));
        (format!("{who} {what}, {}", label(environment)), points)
    };
    environments(all).into_iter().map(line).collect()
}

/// A line for each environment and operation, PM's first; further figures if they are too many to be told apart.
fn over_size(
    name: &str,
    title: &str,
    caption: &str,
    operations: &[Operation],
    results: &Results,
) -> Result<Vec<Figure>> {
    let mut lines = Vec::new();
    for operation in operations {
        lines.extend(by_environment("PM", &of_pm(results, *operation)));
    }
    if lines.is_empty() {
        // The verbs API has no case to compare with.
        return Ok(Vec::new());
    }
    for operation in operations {
        lines.extend(by_environment("verbs", &of_verbs(results, *operation)));
    }
    let measure = lines[0].1.first().map_or(Measure::Bandwidth, |seen| seen.case().measure);
    let mut figures = Vec::new();
    for (part, lines) in lines.chunks(SERIES).enumerate() {
        let point = |seen: &Seen<'_>| whole(seen.point(seen.case().size as f64), measure);
        let line = |(label, points): &(String, Vec<Seen<'_>>)| Line {
            label: label.clone(),
            points: points.iter().map(point).collect(),
            tail: Vec::new(),
        };
        let chart = LineChart {
            x_label: "message size".to_owned(),
            x: Spacing::Bytes,
            unit: unit(measure).to_owned(),
            lines: lines.iter().map(line).collect(),
            paper: Vec::new(),
            right: None,
            level: None,
        };
        figures.push(Figure {
            name: if part > 0 { format!("{name}-{}", part + 1) } else { name.to_owned() },
            title: title.to_owned(),
            caption: caption.to_owned(),
            findings: Vec::new(),
            drawing: twice(&chart, Spacing::Decades)?,
            table: values_over_size(measure, lines),
            table_first: false,
        });
    }
    Ok(figures)
}

fn values_over_size(measure: Measure, lines: &[(String, Vec<Seen<'_>>)]) -> Table {
    let unit = unit(measure);
    let what = if measure == Measure::Latency { "round trip" } else { "bandwidth" };
    let mut columns = vec!["series".to_owned(), "size (B)".to_owned()];
    columns.extend([what, "low", "high"].map(|what| format!("{what} ({unit})")));
    columns.extend(["runs", "flags"].map(str::to_owned));
    let mut table = Table { columns, rows: Vec::new() };
    for (label, seen) in lines.iter().flat_map(|(label, points)| points.iter().map(move |seen| (label, seen))) {
        let point = whole(seen.point(0.0), measure);
        let [low, high] = interval(point.interval, seen.has_too_few_rounds());
        table.push(vec![
            label.as_str().into(),
            Cell::Count(seen.case().size),
            value(&point),
            low,
            high,
            Cell::Count(seen.result.runs.len() as u64),
            flags(seen.summary).into(),
        ]);
    }
    table
}

/// For the terminal; empty if there is nothing.
pub fn text(results: &Results, screen: Screen) -> String {
    let all = beside(results);
    if all.is_empty() {
        return String::new();
    }
    let row = |row: &Beside<'_>| {
        let mark = if row.seen.is_doubtful() { "*" } else { "" };
        let maybe = |value: Option<f64>| value.map_or_else(String::new, number);
        let unit = unit(row.measure());
        let mut cells = vec![
            format!("{}, {unit}", row.printed.what),
            label(row.seen.case().environment),
            format!("{}{mark}", number(row.value())),
            maybe(row.verbs_value()),
        ];
        cells.extend(row.printed.values.map(maybe));
        cells
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    let own = [("", Kind::Words), ("environment", Kind::Name), ("here", Kind::Number), ("verbs", Kind::Number)];
    let columns: Vec<_> = own.into_iter().chain(NETWORKS.map(|network| (network, Kind::Number))).collect();
    let mut text =
        format!("PM beside Sumimoto et al. 2004; * doubtful\n{}\n", terminal::table(&columns, &rows, screen));
    let latencies: Vec<&Beside<'_>> = all.iter().filter(|row| row.measure() == Measure::Latency).collect();
    for line in saved(&latencies, results.header.seed) {
        text += &format!("{line}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::environment::Environment as Variables;
    use vervain_bench::sample::{bandwidth, latency, nothing, write_case};

    /// Half a round trip in ns, usual and not inline; in packets both.
    fn run() -> Results {
        let mut results = nothing();
        for (name, variables) in [
            ("less", &[(INLINE, "0")][..]),
            ("wire", &[("VERVAIN_LINK", "roce")]),
            ("wire-less", &[("VERVAIN_LINK", "roce"), (INLINE, "0")]),
        ] {
            let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            results.header.environments.insert(name.to_owned(), Variables { variables, ..Variables::default() });
        }
        let case = |operation, size, name: &str| Case {
            operation,
            interface: Interface::Pm,
            environment: EnvironmentName::from(name).ok().filter(|name| !name.is_empty()),
            depth: 1,
            ..write_case(size)
        };
        let runs = |value: f64| [0.995, 1.0, 1.0, 1.0, 1.005].map(|factor| factor * value);
        for (name, size, ns) in [
            ("", 8, 400.0),
            ("", 64, 420.0),
            ("less", 8, 500.0),
            ("less", 64, 520.0),
            ("wire", 8, 5000.0),
            ("wire-less", 8, 5000.0),
        ] {
            let case = Case { measure: Measure::Latency, ..case(Operation::PingPong, size, name) };
            results.cases.push(latency(case, &runs(ns)));
        }
        for (operation, size, value) in [
            (Operation::Send, 8, 1e7),
            (Operation::Send, 8192, 1e10),
            (Operation::Write, 8192, 8e9),
            (Operation::Write, 1 << 20, 1.2e10),
            (Operation::Read, 1 << 20, 1.1e10),
        ] {
            results.cases.push(bandwidth(case(operation, size, ""), &runs(value)));
        }
        let verbs = Case { measure: Measure::Latency, depth: 1, operation: Operation::Send, ..write_case(8) };
        results.cases.push(latency(verbs, &runs(320.0)));
        results.cases.push(bandwidth(Case { operation: Operation::Send, ..write_case(8192) }, &runs(1.25e10)));
        results
    }

    fn rows(figure: &Figure) -> Vec<Vec<String>> {
        figure.table.rows.iter().map(|row| row.cells.iter().map(Cell::shown).collect()).collect()
    }

    #[test]
    fn what_the_paper_prints_stands_beside_what_was_measured() {
        let figures = figures(&run()).expect("figures");
        let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["pm-latency", "pm-bandwidth", "pm-round-trip", "pm-messages", "pm-copies"]);
        let picked = |row: &[String]| [0, 1, 2, 3, 6, 7, 8, 9, 10].map(|column: usize| row[column].clone());
        let trips = rows(&figures[0]);
        assert_eq!(picked(&trips[0]), ["round trip", "usual", "8", "0.800", "0.640", "15.6", "16.8", "8.30", "29.6"]);
        assert_eq!(picked(&trips[1])[..5], ["round trip", "wire", "8", "10.0", "–"]);
        let not = ["round trip, not inline", "less", "8", "1.00", "–", "17.9", "18.9", "–", "–"];
        assert_eq!(picked(&trips[2]), not);
        assert_eq!((picked(&trips[3])[1].as_str(), trips.len()), ("wire-less", 4));
        let most = rows(&figures[1]);
        let messages = ["messages", "usual", "8,192", "10,000", "12,500", "688", "586", "244", "118"];
        assert_eq!(picked(&most[0]), messages);
        let copies = ["RDMA Write", "usual", "1,048,576", "12,000", "–", "913", "821", "241", "116"];
        assert_eq!((picked(&most[1]), most.len()), (copies.map(str::to_owned), 2));
    }

    #[test]
    fn what_is_saved_is_told_of_each_environment_with_its_like() {
        let figures = figures(&run()).expect("figures");
        let said = &figures[0].findings;
        assert!(
            said[0].starts_with("In the usual environment, data inside the work request save 20\u{a0}% (1"),
            "{said:?}"
        );
        let rest = " of the round trip of 8 B: 0.800 µs with them, 1.00 without. \
                    Paper: 12.5\u{a0}% on GC-LE, 11.1\u{a0}% on E7501.";
        assert!(said[0].ends_with(rest), "{said:?}");
        let none =
            "In wire, data inside the work request make no difference beyond chance to the round trip of 8 B: 10.0 µs";
        assert!(said[1].starts_with(none), "{said:?}");
        assert!(said[2].starts_with("In the usual environment, a round trip takes 1.25 (1.2"), "{said:?}");
        assert!(said[2].ends_with(" times the time of Send by the verbs API, at 8 B."), "{said:?}");
        assert_eq!(said.len(), 3);
        let of_messages = &figures[1].findings[0];
        assert!(of_messages.starts_with("In the usual environment, PM’s messages have 0.800 ("), "{of_messages}");
        let ratio = |value, low, high| less(Ratio { value, interval: (low, high) });
        assert_eq!(ratio(1.1, 1.05, 1.15), "add 10\u{a0}% (5.0\u{a0}% to 15\u{a0}%) to");
        assert_eq!(ratio(0.75, 0.1, 5.0), "save 25\u{a0}% (too few rounds) of");
    }

    #[test]
    fn lines_are_of_round_trips_and_of_each_environment_with_verbs_behind() {
        let figures = figures(&run()).expect("figures");
        let trips = rows(&figures[2]);
        assert_eq!(trips[0][..3], ["PM ping-pong, usual", "8", "0.800"]);
        assert_eq!((trips.len(), trips[6][0].as_str()), (7, "verbs Send, usual"));
        let copies: Vec<_> = rows(&figures[4]).into_iter().map(|row| row[0].clone()).collect();
        assert_eq!(copies, ["PM Write, usual", "PM Write, usual", "PM Read, usual"]);
    }

    #[test]
    fn the_terminal_has_the_same_in_80_columns() {
        let text = text(&run(), Screen::Columns(80));
        let line = text.lines().find(|line| line.starts_with("messages, MB/s")).expect("a line");
        let cells: Vec<_> = line.split_whitespace().skip(2).collect();
        assert_eq!(cells, ["usual", "10,000", "12,500", "688", "586", "244", "118"], "{text}");
        let table = text.split("\nIn the usual ").next().expect("the table");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("In the usual environment, data inside the work request save 20\u{a0}%"), "{text}");
    }

    #[test]
    fn without_pm_nothing_is_said() {
        let mut results = run();
        results.cases.retain(|result| result.case.interface != Interface::Pm);
        assert!(figures(&results).expect("figures").is_empty());
        assert!(text(&results, Screen::Columns(80)).is_empty());
    }
}
