//! Environments beside each other: a line for each over sizes, and a row for each of those that were measured at a few
//! sizes only, as a multiple of the first.

use anyhow::Result;
use vervain_bench::case::{Case, EnvironmentName, Interface, Measure, bytes};
use vervain_bench::number::{in_unit, unit};
use vervain_bench::results::Results;

use super::acp::as_bandwidth;
use super::axis::Spacing;
use super::chart::{Line, LineChart};
use super::figures::{over_sizes, twice};
use super::findings::times;
use super::forest::{self, Tone};
use super::ink::SERIES;
use super::query::{Seen, flags, seen_where};
use super::{Cell, Drawing, Figure, Picture, Table, interval};
use crate::compare::ratio::{Ratio, ratio};

/// The most sizes that are rows; more make a line.
const FEW: usize = 2;

/// Cases measured in several environments: they differ in size and environment only.
struct Group<'a> {
    /// Without size and environment.
    what: Case,
    /// In the order of the plan, each by ascending size.
    series: Vec<Series<'a>>,
}

struct Series<'a> {
    environment: Option<EnvironmentName>,
    points: Vec<Seen<'a>>,
}

impl<'a> Series<'a> {
    fn is_line(&self) -> bool {
        self.points.len() > FEW
    }

    fn at(&self, size: u64) -> Option<Seen<'a>> {
        self.points.iter().copied().find(|seen| seen.case().size == size)
    }

    fn label(&self) -> String {
        self.environment.map_or_else(|| "usual".to_owned(), |name| name.to_string())
    }
}

impl Group<'_> {
    /// "Send RC latency, loopback".
    fn title(&self) -> String {
        let words = self.what.to_string();
        let words = words.strip_prefix(&format!("{} ", bytes(0))).unwrap_or(&words).to_owned();
        let mut letters = words.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    }
}

/// All figures that there are cases for.
pub fn figures(results: &Results) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (i, group) in groups(results).iter().enumerate() {
        let number = i + 1;
        figures.extend(lines(group, number, results)?);
        figures.extend(rows(group, number, results)?);
    }
    Ok(figures)
}

fn groups(results: &Results) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    // A kernel on grids of ranks has figures of its own, and so has PM.
    for seen in seen_where(results, |case| case.grid.is_none() && case.interface != Interface::Pm) {
        let (environment, what) = (seen.case().environment, Case { size: 0, environment: None, ..*seen.case() });
        let place = groups.iter().position(|group| group.what == what).unwrap_or_else(|| {
            groups.push(Group { what, series: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[place];
        match group.series.iter_mut().find(|series| series.environment == environment) {
            Some(series) => series.points.push(seen),
            None => group.series.push(Series { environment, points: vec![seen] }),
        }
    }
    groups.retain(|group| group.series.iter().any(|series| series.environment.is_some()));
    for series in groups.iter_mut().flat_map(|group| &mut group.series) {
        series.points.sort_by_key(|seen| seen.case().size);
    }
    groups
}

/// Over sizes, those environments that have several.
fn lines(group: &Group<'_>, number: usize, results: &Results) -> Result<Vec<Figure>> {
    let lines: Vec<(String, Vec<Seen<'_>>)> = group
        .series
        .iter()
        .filter(|series| series.is_line())
        .map(|series| (series.label(), series.points.clone()))
        .collect();
    let mut figures = Vec::new();
    for (part, lines) in lines.chunks(SERIES).enumerate() {
        let part = if part > 0 { format!("-{}", part + 1) } else { String::new() };
        let fits = if group.what.measure == Measure::Latency { Spacing::Decades } else { Spacing::Linear };
        let (drawing, table) = over_sizes(lines, Vec::new(), fits)?;
        let name = format!("environments-{number}-{}{part}", group.what.measure);
        let figure = |name: String, what: &str, drawing| Figure {
            name,
            title: format!("{}: {what} over size in each environment", group.title()),
            caption: notes(lines.iter().map(|(label, _)| label.as_str()), results),
            findings: Vec::new(),
            drawing,
            table: table.clone(),
            table_first: false,
        };
        // Operations that are measured one after the other have times only.
        if group.what.interface != Interface::Verbs {
            let drawing = twice(&bandwidths(lines), Spacing::Linear)?;
            figures.push(figure(format!("environments-{number}-bandwidth{part}"), "bandwidth", drawing));
        }
        figures.push(figure(name, group.what.measure.word(), drawing));
    }
    Ok(figures)
}

/// The bandwidths that follow from the times of messages.
fn bandwidths(lines: &[(String, Vec<Seen<'_>>)]) -> LineChart {
    let line = |(label, points): &(String, Vec<Seen<'_>>)| Line {
        label: label.clone(),
        points: points.iter().map(|seen| as_bandwidth(seen.point(seen.case().size as f64))).collect(),
        tail: Vec::new(),
    };
    LineChart {
        x_label: "message size".to_owned(),
        x: Spacing::Bytes,
        unit: unit(Measure::Bandwidth).to_owned(),
        lines: lines.iter().map(line).collect(),
        paper: Vec::new(),
        right: None,
        level: None,
    }
}

/// At each size at which an environment was measured that is no line: those, and the first of all, which they are held
/// against.
fn rows(group: &Group<'_>, number: usize, results: &Results) -> Result<Vec<Figure>> {
    let few = || group.series.iter().filter(|series| !series.is_line());
    let mut sizes: Vec<u64> = few().flat_map(|series| &series.points).map(|seen| seen.case().size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut figures = Vec::new();
    for size in sizes {
        let Some((first, base)) = group.series.iter().find_map(|series| Some((series.label(), series.at(size)?)))
        else {
            continue;
        };
        let others: Vec<(String, Seen<'_>, Ratio)> = few()
            .filter_map(|series| {
                let seen = series.at(size).filter(|seen| seen.case() != base.case())?;
                let ratio = ratio(base.result, seen.result, results.header.seed)?;
                Some((described(&series.label(), results), seen, ratio))
            })
            .collect();
        if !others.is_empty() {
            figures.push(held_against(group, number, size, (&first, base), &others)?);
        }
    }
    Ok(figures)
}

/// The name of an environment with its note.
fn described(label: &str, results: &Results) -> String {
    let note = results.header.environments.get(label).and_then(|environment| environment.note.as_ref());
    note.map_or_else(|| label.to_owned(), |note| format!("{label}: {note}"))
}

/// Those of all that have one: "board: a board; less: one part left out."
fn notes<'l>(labels: impl Iterator<Item = &'l str>, results: &Results) -> String {
    let noted = labels.filter(|label| results.header.environments.get(*label).is_some_and(|of| of.note.is_some()));
    let noted: Vec<String> = noted.map(|label| described(label, results)).collect();
    if noted.is_empty() { String::new() } else { noted.join("; ") + "." }
}

fn held_against(
    group: &Group<'_>,
    number: usize,
    size: u64,
    (first, base): (&str, Seen<'_>),
    others: &[(String, Seen<'_>, Ratio)],
) -> Result<Figure> {
    let measure = group.what.measure;
    let row = |(label, _, ratio): &(String, Seen<'_>, Ratio)| forest::Row {
        label: label.clone(),
        value: ratio.value,
        interval: ratio.interval,
        tone: tone(measure, ratio),
    };
    let forest: Vec<forest::Row> = others.iter().map(row).collect();
    let means = match measure {
        Measure::Latency => format!("latency as a multiple of that in {first}; left is faster"),
        Measure::Bandwidth => format!("bandwidth as a multiple of that in {first}; right is faster"),
    };
    Ok(Figure {
        name: format!("environments-{number}-{size}B"),
        title: format!("{}: each environment beside {first}", Case { size, ..group.what }),
        caption: format!("In {first} it is {} {}.", vervain_bench::number::number(base.value()), unit(measure)),
        findings: Vec::new(),
        drawing: Drawing::One(Picture::below_values(|width| forest::draw(&forest, &means, width))?),
        table: values((first, base), others),
        table_first: true,
    })
}

fn tone(measure: Measure, ratio: &Ratio) -> Tone {
    let (low, high) = ratio.interval;
    match (measure, low > 1.0, high < 1.0) {
        (Measure::Latency, true, _) | (Measure::Bandwidth, _, true) => Tone::Worse,
        (Measure::Latency, _, true) | (Measure::Bandwidth, true, _) => Tone::Better,
        _ => Tone::Same,
    }
}

fn values((first, base): (&str, Seen<'_>), others: &[(String, Seen<'_>, Ratio)]) -> Table {
    let unit = unit(base.case().measure);
    let columns = [
        "environment".to_owned(),
        format!("value ({unit})"),
        format!("low ({unit})"),
        format!("high ({unit})"),
        format!("times {first}"),
        "runs".to_owned(),
        "flags".to_owned(),
    ];
    let mut table = Table { columns: columns.to_vec(), rows: Vec::new() };
    let mut push = |label: &str, seen: &Seen<'_>, ratio: Cell| {
        let value = in_unit(seen.case().measure, seen.summary.value);
        let [low, high] = interval(seen.interval(), seen.has_too_few_rounds());
        table.push(vec![
            label.into(),
            if seen.is_doubtful() { Cell::Doubtful(value) } else { Cell::Number(value) },
            low,
            high,
            ratio,
            Cell::Count(seen.result.runs.len() as u64),
            flags(seen.summary).into(),
        ]);
    };
    push(first, &base, Cell::None);
    for (label, seen, ratio) in others {
        push(label, seen, times(*ratio).into());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::environment::Environment;
    use vervain_bench::sample::{bandwidth, latency, nothing, write_case};

    fn case(size: u64, name: &str) -> Case {
        let environment = EnvironmentName::from(name).ok();
        Case { measure: Measure::Latency, depth: 1, environment, ..write_case(size) }
    }

    fn run() -> Results {
        let mut results = nothing();
        for (size, name, ns) in [
            (8, "board", 3000.0),
            (8, "local", 500.0),
            (8, "less", 4500.0),
            (64, "board", 3100.0),
            (64, "local", 600.0),
        ] {
            results.cases.push(latency(case(size, name), &[ns * 0.99, ns, ns, ns, ns * 1.01]));
        }
        for name in ["board", "local"] {
            results.cases.push(latency(case(4096, name), &[5000.0; 5]));
        }
        let note = Some("one part left out".to_owned());
        results.header.environments.insert("less".to_owned(), Environment { note, ..Environment::default() });
        let note = Some("a board".to_owned());
        results.header.environments.insert("board".to_owned(), Environment { note, ..Environment::default() });
        results
    }

    #[test]
    fn environments_of_many_sizes_are_lines_and_those_of_few_are_held_against_the_first() {
        let figures = figures(&run()).expect("figures");
        let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["environments-1-latency", "environments-1-8B"]);
        assert_eq!((figures[0].table.rows.len(), figures[0].caption.as_str()), (6, "board: a board."));
        assert_eq!(figures[1].title, "8 B write RC latency, loopback: each environment beside board");
        let cells = |row: usize| figures[1].table.rows[row].cells.iter().map(Cell::shown).collect::<Vec<_>>();
        assert_eq!(cells(0)[..2], ["board", "3.00"]);
        let less = cells(1);
        assert_eq!(less[..2], ["less: one part left out", "4.50"]);
        assert!(less[4].starts_with("1.50 (1."), "{less:?}");
        assert_eq!(figures[1].table.rows.len(), 2, "what has lines is no row");
    }

    #[test]
    fn without_environments_there_is_no_figure_and_pm_has_its_own() {
        let mut results = nothing();
        let by_pm =
            Case { interface: Interface::Pm, operation: vervain_bench::case::Operation::PingPong, ..case(8, "board") };
        results.cases.push(latency(by_pm, &[1e3; 3]));
        results.cases.push(bandwidth(write_case(8), &[1e9; 3]));
        assert!(figures(&results).expect("figures").is_empty());
    }

    #[test]
    fn slower_is_worse_whatever_the_measure() {
        let of = |measure, low, high| tone(measure, &Ratio { value: 1.0, interval: (low, high) });
        assert_eq!([of(Measure::Latency, 1.1, 1.2), of(Measure::Bandwidth, 0.8, 0.9)], [Tone::Worse; 2]);
        assert_eq!([of(Measure::Latency, 0.8, 0.9), of(Measure::Bandwidth, 1.1, 1.2)], [Tone::Better; 2]);
        assert_eq!(of(Measure::Latency, 0.9, 1.1), Tone::Same);
    }
}
