//! The model of PEACH2 beside the boards: what "TCA Verbs" (2015) prints, next to what was measured in environments
//! that a plan says to be models of them. Only values that its text prints are here; the points of its curves are not.

use anyhow::Result;
use vervain_bench::case::{Case, Interface, Measure, Operation};
use vervain_bench::environment::{Environment, PaperDevice};
use vervain_bench::number::number;
use vervain_bench::results::Results;
use vervain_bench::terminal::{self, Kind, Screen};

use super::bars::BarChart;
use super::canvas::Point;
use super::findings::highest;
use super::query::{Seen, flags, name, seen_where};
use super::{Cell, Drawing, Figure, Picture, Table, interval};

/// The paper that the figures follow.
pub const PAPER: &str = "“TCA Verbs” (2015), Verbs on boards that can only put";
/// The label above all values that are measured here.
pub const LABEL: &str = "These are values of a model of PEACH2 in software, not of the board: the processor moves the bytes, in the \
    time that the paper says the board takes. The paper’s values are those of its boards.";

/// Bytes of a message whose latency the paper prints.
const SMALL: u64 = 8;

/// The paper's values of an operation: on the boards with memory of the processor and with that of a GPU, and on the
/// adapter that it compares them with.
struct Printed {
    operation: Operation,
    measure: Measure,
    cpu: f64,
    gpu: Option<f64>,
    /// With descriptors in the memory of the host.
    host: Option<f64>,
    other: Option<f64>,
}

const fn printed(operation: Operation, measure: Measure, cpu: f64, gpu: Option<f64>, other: Option<f64>) -> Printed {
    Printed { operation, measure, cpu, gpu, host: None, other }
}

/// Latencies in µs, bandwidths in GB/s. For GPU memory the paper prints 2.7 to 2.8 GB/s; the better one is here.
const PRINTED: [Printed; 12] = [
    Printed { host: Some(2.2), ..printed(Operation::RawPut, Measure::Latency, 2.0, None, None) },
    printed(Operation::Send, Measure::Latency, 3.5, Some(4.2), None),
    printed(Operation::WriteImm, Measure::Latency, 3.5, Some(4.2), None),
    printed(Operation::Read, Measure::Latency, 6.5, Some(7.2), None),
    printed(Operation::FetchAdd, Measure::Latency, 6.5, None, Some(1.5)),
    printed(Operation::CompareSwap, Measure::Latency, 6.5, None, Some(1.5)),
    printed(Operation::PingPong, Measure::Latency, 3.6, Some(4.6), None),
    printed(Operation::Send, Measure::Bandwidth, 3.5, Some(2.8), None),
    printed(Operation::WriteImm, Measure::Bandwidth, 3.5, Some(2.8), None),
    printed(Operation::Write, Measure::Bandwidth, 3.5, Some(2.8), None),
    printed(Operation::Read, Measure::Bandwidth, 3.5, Some(2.8), None),
    printed(Operation::PingPong, Measure::Bandwidth, 3.5, Some(2.6), None),
];

impl Printed {
    fn of(&self, device: PaperDevice) -> Option<f64> {
        match device {
            PaperDevice::Cpu => Some(self.cpu),
            PaperDevice::Gpu => self.gpu,
            PaperDevice::HostDescriptors => self.host,
            PaperDevice::Other => self.other,
        }
    }

    fn what(&self) -> &'static str {
        if self.operation == Operation::PingPong { "MPI ping-pong" } else { name(self.operation) }
    }

    /// Returns true if a case is one of those that the value is of. The paper's MPI uses the device.
    fn fits(&self, case: &Case) -> bool {
        let alone = case.operation == self.operation && case.interference.is_none();
        alone
            && match (case.interface, self.measure) {
                (Interface::Verbs, Measure::Latency) => case.measure == self.measure && case.size == SMALL,
                (Interface::Verbs, Measure::Bandwidth) => case.measure == self.measure && case.qps == 1,
                (Interface::Window | Interface::OpenMpi | Interface::Mpich, Measure::Latency) => case.size == SMALL,
                (Interface::OpenMpi | Interface::Mpich, Measure::Bandwidth) => true,
                _ => false,
            }
    }
}

fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Latency => "µs",
        Measure::Bandwidth => "GB/s",
    }
}

/// A value of this device with what the paper prints, if it does.
struct Beside<'a> {
    what: &'static str,
    environment: &'a str,
    device: PaperDevice,
    measure: Measure,
    seen: Seen<'a>,
    paper: Option<f64>,
}

impl Beside<'_> {
    /// In the unit of the paper.
    fn converted(&self, value: f64) -> f64 {
        match (self.measure, self.seen.case().measure) {
            (Measure::Latency, _) => value,
            (Measure::Bandwidth, Measure::Bandwidth) => value / 1e3,
            // Bytes by µs are MB/s.
            (Measure::Bandwidth, Measure::Latency) => self.seen.case().size as f64 / value / 1e3,
        }
    }

    fn here(&self) -> f64 {
        self.converted(self.seen.value())
    }

    fn interval(&self) -> (f64, f64) {
        let (low, high) = self.seen.interval();
        let (low, high) = (self.converted(low), self.converted(high));
        (low.min(high), low.max(high))
    }
}

/// All that the paper prints and was measured in environments that stand for its devices; nothing without a model of
/// the boards.
fn beside(results: &Results) -> Vec<Beside<'_>> {
    let mut all = Vec::new();
    let is_board = |environment: &Environment| environment.paper.is_some_and(|paper| paper != PaperDevice::Other);
    if !results.header.environments.values().any(is_board) {
        return all;
    }
    let stands = |(name, environment): (_, &Environment)| Some((environment.paper?, name));
    let mut models: Vec<(PaperDevice, &String)> = results.header.environments.iter().filter_map(stands).collect();
    models.sort_unstable();
    for printed in &PRINTED {
        for &(device, environment) in &models {
            // For these descriptors the paper prints values of some operations only.
            if device == PaperDevice::HostDescriptors && printed.host.is_none() {
                continue;
            }
            let is_in = |case: &Case| case.environment.is_some_and(|name| name.as_str() == *environment);
            let seen = seen_where(results, |case| is_in(case) && printed.fits(case));
            let best = match printed.measure {
                Measure::Latency => seen.first(),
                Measure::Bandwidth if printed.operation == Operation::PingPong => {
                    let rate = |seen: &Seen<'_>| seen.case().size as f64 / seen.value();
                    seen.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)))
                }
                Measure::Bandwidth => highest(&seen),
            };
            all.extend(best.map(|seen| Beside {
                what: printed.what(),
                environment,
                device,
                measure: printed.measure,
                seen: *seen,
                paper: printed.of(device),
            }));
        }
    }
    all
}

/// A figure of the latencies and one of the bandwidths; none without values.
pub fn figures(results: &Results) -> Result<Vec<Figure>> {
    let all = beside(results);
    let mut figures = Vec::new();
    for measure in Measure::ALL {
        let rows: Vec<&Beside<'_>> = all.iter().filter(|row| row.measure == *measure).collect();
        if !rows.is_empty() {
            figures.push(figure(*measure, &rows)?);
        }
    }
    Ok(figures)
}

fn figure(measure: Measure, rows: &[&Beside<'_>]) -> Result<Figure> {
    let mut groups: Vec<&str> = rows.iter().map(|row| row.what).collect();
    groups.dedup();
    // Rows without a value of the paper would only set the scale, and one value makes no bars; the table has them.
    let drawn = rows.iter().filter(|row| row.paper.is_some() && row.device != PaperDevice::HostDescriptors);
    let mut series: Vec<(PaperDevice, &str)> = drawn.map(|row| (row.device, row.environment)).collect();
    series.sort_unstable();
    series.dedup();
    let place = |row: &Beside<'_>| groups.iter().position(|group| *group == row.what).unwrap_or(0) as f64;
    let mut bars: Vec<(String, Vec<Point>)> = Vec::new();
    for (device, environment) in series {
        let of = || rows.iter().filter(move |row| row.environment == environment);
        let here = of().map(|row| {
            let interval = if row.seen.has_too_few_rounds() { (row.here(), row.here()) } else { row.interval() };
            Point { x: place(row), y: row.here(), interval, doubtful: row.seen.is_doubtful() }
        });
        bars.push((environment.to_owned(), here.collect()));
        let paper = of().filter_map(|row| {
            let y = row.paper?;
            Some(Point { x: place(row), y, interval: (y, y), doubtful: false })
        });
        let paper: Vec<Point> = paper.collect();
        if !paper.is_empty() {
            bars.push((format!("paper: {}", described(device)), paper));
        }
    }
    let chart = BarChart {
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        bars,
        unit: unit(measure).to_owned(),
        paper: Vec::new(),
        right: None,
    };
    let (what, caption) = match measure {
        Measure::Latency => (
            "latency of 8 B",
            "Half the round trip of puts, Send, Write with immediate data and the ping-pong; the whole one of Read and atomics.",
        ),
        Measure::Bandwidth => {
            ("highest bandwidth", "Of the sizes that were measured, the one with the highest bandwidth.")
        }
    };
    Ok(Figure {
        name: format!("tca-{measure}"),
        title: format!("A model of PEACH2 beside the board: {what}"),
        caption: caption.to_owned(),
        findings: if measure == Measure::Latency { added(rows) } else { Vec::new() },
        drawing: Drawing::One(Picture::below_values(|width| chart.draw(width))?),
        table: values(measure, rows),
        table_first: true,
    })
}

fn described(device: PaperDevice) -> &'static str {
    match device {
        PaperDevice::Cpu => "PEACH2, CPU memory",
        PaperDevice::Gpu => "PEACH2, GPU memory",
        PaperDevice::HostDescriptors => "PEACH2, host descriptors",
        PaperDevice::Other => "InfiniBand",
    }
}

/// The time that an operation takes beyond the one that it is made of, by the paper, in µs.
struct Added {
    what: &'static str,
    operation: Operation,
    to: Operation,
    cpu: f64,
    gpu: f64,
}

const ADDED: [Added; 2] = [
    Added { what: "verbs add", operation: Operation::Send, to: Operation::RawPut, cpu: 1.5, gpu: 2.2 },
    Added { what: "MPI adds", operation: Operation::PingPong, to: Operation::Send, cpu: 0.1, gpu: 0.4 },
];

fn added(rows: &[&Beside<'_>]) -> Vec<String> {
    let mut said = Vec::new();
    for Added { what, operation, to, cpu, gpu } in &ADDED {
        for row in rows.iter().filter(|row| row.seen.case().operation == *operation) {
            let paper = match row.device {
                PaperDevice::Cpu => cpu,
                PaperDevice::Gpu => gpu,
                PaperDevice::HostDescriptors | PaperDevice::Other => continue,
            };
            let is_its =
                |other: &&&Beside<'_>| other.seen.case().operation == *to && other.environment == row.environment;
            if let Some(base) = rows.iter().find(is_its) {
                let (more, paper, to) = (number(row.here() - base.here()), number(*paper), name(*to));
                said.push(format!("In {} {what} {more} µs to a {to} of 8 B. Paper: {paper} µs.", row.environment));
            }
        }
    }
    said
}

fn values(measure: Measure, rows: &[&Beside<'_>]) -> Table {
    let unit = unit(measure);
    let columns = [
        "operation".to_owned(),
        "environment".to_owned(),
        format!("here ({unit})"),
        format!("low ({unit})"),
        format!("high ({unit})"),
        "device of the paper".to_owned(),
        format!("paper ({unit})"),
        "here / paper".to_owned(),
        "flags".to_owned(),
    ];
    let mut table = Table { columns: columns.to_vec(), rows: Vec::new() };
    for row in rows {
        let [low, high] = interval(row.interval(), row.seen.has_too_few_rounds());
        table.push(vec![
            row.what.into(),
            row.environment.into(),
            if row.seen.is_doubtful() { Cell::Doubtful(row.here()) } else { Cell::Number(row.here()) },
            low,
            high,
            described(row.device).into(),
            Cell::maybe(row.paper),
            Cell::maybe(row.paper.map(|paper| row.here() / paper)),
            flags(row.seen.summary).into(),
        ]);
    }
    table
}

/// For the terminal; empty if there is nothing.
pub fn text(results: &Results, screen: Screen) -> String {
    let rows: Vec<Vec<String>> = beside(results)
        .iter()
        .filter_map(|row| {
            let (paper, unit) = (row.paper?, unit(row.measure));
            let mark = if row.seen.is_doubtful() { "*" } else { "" };
            Some(vec![
                format!("{} {}", row.what, row.measure),
                row.environment.to_owned(),
                format!("{}{mark}\u{a0}{unit}", number(row.here())),
                format!("{}\u{a0}{unit}", number(paper)),
                number(row.here() / paper),
            ])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        ("operation", Kind::Words),
        ("environment", Kind::Name),
        ("model", Kind::Number),
        ("paper", Kind::Number),
        ("ratio", Kind::Number),
    ];
    format!("A model of PEACH2, not the board, beside TCA Verbs (2015)\n{}\n", terminal::table(&columns, &rows, screen))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::case::EnvironmentName;
    use vervain_bench::sample::{bandwidth, latency, nothing, write_case};

    fn run() -> Results {
        let mut results = nothing();
        for (name, paper) in [
            ("board", Some(PaperDevice::Cpu)),
            ("host", Some(PaperDevice::HostDescriptors)),
            ("gpu", Some(PaperDevice::Gpu)),
            ("less", None),
            ("ib", Some(PaperDevice::Other)),
        ] {
            results.header.environments.insert(name.to_owned(), Environment { paper, ..Environment::default() });
        }
        let case = |operation, size, name: &str| {
            let environment = EnvironmentName::from(name).ok();
            Case { operation, measure: Measure::Latency, depth: 1, environment, ..write_case(size) }
        };
        let by_mpi = |case| Case { interface: Interface::OpenMpi, ..case };
        let by_itself = |case| Case { interface: Interface::Window, ..case };
        for (case, ns) in [
            (case(Operation::Send, 8, "board"), 2800.0),
            (case(Operation::Send, 64, "board"), 3000.0),
            (case(Operation::Send, 8, "gpu"), 2100.0),
            (case(Operation::Send, 8, "less"), 9000.0),
            (case(Operation::FetchAdd, 8, "ib"), 750.0),
            (by_mpi(case(Operation::PingPong, 8, "board")), 3100.0),
            (by_itself(case(Operation::RawPut, 8, "board")), 2000.0),
            (by_itself(case(Operation::RawPut, 8, "host")), 2200.0),
            (case(Operation::Send, 8, "host"), 2300.0),
            (by_mpi(case(Operation::PingPong, 4 << 20, "board")), 1.5e6),
        ] {
            results.cases.push(latency(case, &[ns; 5]));
        }
        for (size, value) in [(4096, 1.0e9), (1 << 20, 3.5e9)] {
            let case = Case { measure: Measure::Bandwidth, depth: 128, ..case(Operation::Write, size, "board") };
            results.cases.push(bandwidth(case, &[value; 5]));
        }
        results
    }

    fn rows(figure: &Figure) -> Vec<Vec<String>> {
        figure.table.rows.iter().map(|row| row.cells.iter().map(Cell::shown).collect()).collect()
    }

    #[test]
    fn what_the_paper_prints_stands_beside_what_was_measured() {
        let figures = figures(&run()).expect("figures");
        let names: Vec<_> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["tca-latency", "tca-bandwidth"]);
        let latencies = rows(&figures[0]);
        let picked = |row: &[String]| [0, 1, 2, 6, 7].map(|column: usize| row[column].clone());
        assert_eq!(picked(&latencies[0]), ["raw put", "board", "2.00", "2.00", "1.00"]);
        assert_eq!(picked(&latencies[1]), ["raw put", "host", "2.20", "2.20", "1.00"]);
        assert_eq!(picked(&latencies[2]), ["Send", "board", "2.80", "3.50", "0.800"]);
        assert_eq!(picked(&latencies[3]), ["Send", "gpu", "2.10", "4.20", "0.500"]);
        assert_eq!(picked(&latencies[4]), ["FAA", "ib", "0.750", "1.50", "0.500"]);
        assert_eq!(picked(&latencies[5]), ["MPI ping-pong", "board", "3.10", "3.60", "0.861"]);
        assert_eq!(latencies.len(), 6, "other sizes, and what the paper does not print of an environment");
        let said = [
            "In board verbs add 0.800 µs to a raw put of 8 B. Paper: 1.50 µs.",
            "In board MPI adds 0.300 µs to a Send of 8 B. Paper: 0.100 µs.",
        ];
        assert_eq!(figures[0].findings, said);
        let bandwidths = rows(&figures[1]);
        assert_eq!(picked(&bandwidths[0]), ["Write", "board", "3.50", "3.50", "1.00"]);
        assert_eq!(picked(&bandwidths[1]), ["MPI ping-pong", "board", "2.80", "3.50", "0.799"]);
    }

    #[test]
    fn the_terminal_says_that_it_is_a_model() {
        let text = text(&run(), Screen::Columns(80));
        assert!(text.starts_with("A model of PEACH2, not the board"), "{text}");
        let line = text.lines().find(|line| line.contains("Send latency") && line.contains("board")).expect("a line");
        assert!(line.contains("2.80\u{a0}µs") && line.contains("3.50\u{a0}µs") && line.ends_with("0.800"), "{line}");
    }

    #[test]
    fn without_a_model_nothing_is_said() {
        let mut results = run();
        results.header.environments.retain(|_, environment| environment.paper == Some(PaperDevice::Other));
        assert!(figures(&results).expect("figures").is_empty(), "InfiniBand alone is not the model");
        assert!(text(&results, Screen::Columns(80)).is_empty());
    }
}
