//! The Jacobi kernel on grids of ranks: how long a step takes, and which part of it.

use anyhow::Result;
use vervain_bench::case::{Case, EnvironmentName, Grid, Interface, Operation, bytes};
use vervain_bench::number::number;
use vervain_bench::results::Results;
use vervain_bench::terminal::{self, Kind, Screen};
use vervain_bench::worker::Problem;

use super::bars::BarChart;
use super::canvas::Point;
use super::query::{Seen, flags, seen_where};
use super::{Cell, Drawing, Figure, Picture, Table, interval};

/// The carrier of a kernel, beside others in its figure.
type Who = (Interface, Option<EnvironmentName>);

/// A figure for each size that was measured.
pub fn figures(results: &Results) -> Result<Vec<Figure>> {
    let steps = seen_where(results, |case| case.operation == Operation::Jacobi);
    let mut sizes: Vec<u64> = steps.iter().map(|seen| seen.case().size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(|size| figure(results, size, &steps)).collect()
}

fn figure(results: &Results, size: u64, steps: &[Seen<'_>]) -> Result<Figure> {
    let steps: Vec<&Seen<'_>> = steps.iter().filter(|seen| seen.case().size == size).collect();
    let mut grids: Vec<Grid> = steps.iter().filter_map(|seen| seen.case().grid).collect();
    grids.sort_unstable_by_key(|grid| (grid.ranks(), *grid));
    grids.dedup();
    let mut whos: Vec<Who> = Vec::new();
    for who in steps.iter().map(|seen| of(seen.case())) {
        if !whos.contains(&who) {
            whos.push(who);
        }
    }
    let bars = whos.iter().map(|who| {
        let points = steps.iter().filter(|seen| of(seen.case()) == *who).map(|seen| {
            let x = grids.iter().position(|grid| Some(*grid) == seen.case().grid).unwrap_or(0) as f64;
            in_ms(seen.point(x))
        });
        (label(*who), points.collect())
    });
    let chart = BarChart {
        groups: grids.iter().map(Grid::to_string).collect(),
        bars: bars.collect(),
        unit: "ms".to_owned(),
        paper: Vec::new(),
        right: None,
    };
    let [i, j, k] = Problem::of(size).map_or([0; 3], |problem| problem.cells);
    Ok(Figure {
        name: format!("jacobi-{}", bytes(size).replace(' ', "-")),
        title: format!("A Jacobi kernel of {i} × {j} × {k} cells: a step"),
        caption: "After the Himeno benchmark: 19 points, single precision, 34 floating-point operations a cell. Medians of a rank’s steps \
                  on grids of ranks, and of the parts of a step, each measured by itself. Ranks that are more than the processors of the \
                  host take turns, and wait for each other."
            .to_owned(),
        findings: Vec::new(),
        drawing: Drawing::One(Picture::below_values(|width| chart.draw(width))?),
        table: table(results, size, &steps, &grids),
        table_first: true,
    })
}

/// For the terminal; empty if there is nothing.
pub fn text(results: &Results, screen: Screen) -> String {
    let steps = seen_where(results, |case| case.operation == Operation::Jacobi);
    let row = |seen: &Seen<'_>| {
        let part = |operation| part_ms(results, seen, operation).map_or_else(String::new, number);
        let mark = if seen.is_doubtful() { "*" } else { "" };
        vec![
            bytes(seen.case().size),
            seen.case().grid.map_or_else(String::new, |grid| grid.to_string()),
            label(of(seen.case())),
            format!("{}{mark}", number(seen.value() / 1e3)),
            part(Operation::JacobiCalculation),
            part(Operation::JacobiExchange),
            part(Operation::JacobiAllreduce),
        ]
    };
    let rows: Vec<_> = steps.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = [
        ("pressure", Kind::Number),
        ("ranks", Kind::Name),
        ("by", Kind::Name),
        ("step", Kind::Number),
        ("calculation", Kind::Number),
        ("exchange", Kind::Number),
        ("allreduce", Kind::Number),
    ];
    format!("A Jacobi kernel, ms; * doubtful\n{}\n", terminal::table(&columns, &rows, screen))
}

/// The time of a part of the kernel of `step`, in ms.
fn part_ms(results: &Results, step: &Seen<'_>, operation: Operation) -> Option<f64> {
    let parts = seen_where(results, |case| *case == Case { operation, ..*step.case() });
    parts.first().map(|part| part.value() / 1e3)
}

fn of(case: &Case) -> Who {
    (case.interface, case.environment)
}

fn label((interface, environment): Who) -> String {
    environment.map_or_else(|| interface.to_string(), |name| format!("{interface}, {name}"))
}

fn in_ms(point: Point) -> Point {
    let Point { x, y, interval: (low, high), doubtful } = point;
    Point { x, y: y / 1e3, interval: (low / 1e3, high / 1e3), doubtful }
}

fn table(results: &Results, size: u64, steps: &[&Seen<'_>], grids: &[Grid]) -> Table {
    let columns = [
        "ranks",
        "by",
        "step (ms)",
        "low (ms)",
        "high (ms)",
        "calculation (ms)",
        "halo exchange (ms)",
        "allreduce (ms)",
        "MFLOPS",
        "",
        "flags",
    ];
    let mut table = Table { columns: columns.map(str::to_owned).to_vec(), rows: Vec::new() };
    let processors = results.header.host.cpus;
    for (grid, seen) in grids.iter().flat_map(|grid| steps.iter().map(move |seen| (grid, seen))) {
        if seen.case().grid != Some(*grid) {
            continue;
        }
        let part = |operation| Cell::maybe(part_ms(results, seen, operation));
        let ms = seen.value() / 1e3;
        let (low, high) = seen.interval();
        let [low, high] = interval((low / 1e3, high / 1e3), seen.has_too_few_rounds());
        let flops = Problem::of(size).map_or(0, Problem::operations) as f64;
        let crowded = grid.ranks() > processors;
        table.push(vec![
            grid.to_string().as_str().into(),
            label(of(seen.case())).as_str().into(),
            if seen.is_doubtful() { Cell::Doubtful(ms) } else { Cell::Number(ms) },
            low,
            high,
            part(Operation::JacobiCalculation),
            part(Operation::JacobiExchange),
            part(Operation::JacobiAllreduce),
            Cell::Number(flops / ms / 1e3),
            if crowded { "oversubscribed" } else { "" }.into(),
            flags(seen.summary).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use vervain_bench::case::Measure;
    use vervain_bench::sample::{latency, nothing, write_case};

    #[test]
    fn a_step_stands_beside_its_parts_and_who_is_crowded_is_told() {
        let mut results = nothing();
        results.header.host.cpus = 2;
        let case = |operation, grid, name: &str| Case {
            operation,
            measure: Measure::Latency,
            depth: 1,
            interface: Interface::OpenMpi,
            environment: EnvironmentName::from(name).ok(),
            grid: Some(grid),
            ..write_case(2 << 20)
        };
        for (operation, ns) in [
            (Operation::Jacobi, 20e6),
            (Operation::JacobiCalculation, 15e6),
            (Operation::JacobiExchange, 4e6),
            (Operation::JacobiAllreduce, 1e6),
        ] {
            results.cases.push(latency(case(operation, Grid(1, 2), "board"), &[ns; 5]));
        }
        results.cases.push(latency(case(Operation::Jacobi, Grid(2, 2), "board"), &[30e6; 5]));
        results.cases.push(latency(case(Operation::Jacobi, Grid(1, 2), "local"), &[18e6; 5]));
        let figures = figures(&results).expect("figures");
        assert_eq!(figures.len(), 1);
        assert_eq!(
            (&*figures[0].name, &*figures[0].title),
            ("jacobi-2-MiB", "A Jacobi kernel of 64 × 64 × 128 cells: a step")
        );
        let rows: Vec<Vec<String>> =
            figures[0].table.rows.iter().map(|row| row.cells.iter().map(Cell::shown).collect()).collect();
        let picked = |row: usize| [0, 1, 2, 5, 6, 7, 9].map(|column: usize| rows[row][column].as_str());
        assert_eq!(picked(0), ["1x2", "openmpi, board", "20.0", "15.0", "4.00", "1.00", ""]);
        assert_eq!(picked(1), ["1x2", "openmpi, local", "18.0", "–", "–", "–", ""]);
        assert_eq!(picked(2), ["2x2", "openmpi, board", "30.0", "–", "–", "–", "oversubscribed"]);
        let text = text(&results, Screen::Columns(80));
        let line = text.lines().find(|line| line.contains("2 MiB") && line.contains("board")).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["2", "MiB", "1x2", "openmpi,", "board", "20.0", "15.0", "4.00", "1.00"], "{text}");
        // 62 x 62 x 126 cells of 34 operations in 20 ms.
        assert_eq!(rows[0][8], "823");
    }
}
