//! Prints sections as tables, values with their units and spreads.

use std::ops::Range;

use vervain_bench::terminal::{Kind, Screen, table};

use crate::report::{Layout, Row, Section, Summary, Target, Unit};

/// What stands in the table of a section, wherever it is shown.
pub struct Cells {
    /// Of each column.
    pub head: Vec<String>,
    /// As many cells in each as in the head; a line break parts what is better read in two lines.
    pub lines: Vec<Vec<String>>,
    /// The columns that hold numbers.
    numbers: Range<usize>,
}

/// The table of a section, for a terminal.
pub fn of(section: &Section) -> String {
    let cells = cells_of(section);
    let kind = |i| if cells.numbers.contains(&i) { Kind::Number } else { Kind::Words };
    let columns: Vec<(&str, Kind)> = cells.head.iter().enumerate().map(|(i, head)| (head.as_str(), kind(i))).collect();
    table(&columns, &cells.lines, Screen::Out)
}

/// The cells of a section.
pub fn cells_of(section: &Section) -> Cells {
    match section.layout {
        Layout::List => list(&section.rows),
        Layout::Grid => grid(&section.rows),
    }
}

fn list(rows: &[Row]) -> Cells {
    let compared = rows.iter().any(|row| row.beside.is_some());
    let promised = rows.iter().any(|row| row.target.is_some());
    let shown = [true, true, compared, compared, promised, promised];
    let pick =
        |cells: [String; 6]| cells.into_iter().zip(shown).filter(|(_, s)| *s).map(|(c, _)| c).collect::<Vec<_>>();
    Cells {
        head: pick(HEAD.map(String::from)),
        lines: rows.iter().map(|row| pick(line(row))).collect(),
        numbers: 1..if compared { 4 } else { 2 },
    }
}

/// What the cells of a line are.
pub const HEAD: [&str; 6] = ["measured", "Vervain", "beside it", "against it", "target", ""];

/// A row by itself.
pub fn line(row: &Row) -> [String; 6] {
    let beside = row.beside.as_ref();
    [
        row.what.clone(),
        spread(&row.ours, row.unit),
        beside.map(|b| format!("{}\n{}", spread(&b.value, row.unit), b.what)).unwrap_or_default(),
        beside.map(|_| against(row)).unwrap_or_default(),
        row.target.map(|t| promise(t, row.unit)).unwrap_or_default(),
        verdict(row).to_owned(),
    ]
}

/// One line for each name; a cell has the other's value and Vervain's ratio to it.
fn grid(rows: &[Row]) -> Cells {
    let mut names: Vec<&str> = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.what.as_str()) {
            names.push(&row.what);
        }
        if let Some(beside) = row.beside.as_ref().filter(|b| !others.contains(&&*b.what)) {
            others.push(&beside.what);
        }
    }
    let head = ["", "Vervain"].into_iter().chain(others.iter().copied());
    let head: Vec<String> = head.map(String::from).collect();
    let mut lines = Vec::new();
    for name in names {
        let of_name = || rows.iter().filter(|row| row.what == name);
        let ours = of_name().next().map(|row| on_two_lines(&row.ours, row.unit));
        let mut line = vec![name.to_owned(), ours.unwrap_or_default()];
        for other in &others {
            let row = of_name().find(|row| row.beside.as_ref().is_some_and(|b| b.what == *other));
            line.push(row.map(grid_cell).unwrap_or_default());
        }
        lines.push(line);
    }
    Cells { numbers: 1..head.len(), head, lines }
}

fn grid_cell(row: &Row) -> String {
    let Some(beside) = &row.beside else { return String::new() };
    let against = match (row.target, verdict(row)) {
        (None, _) => String::new(),
        (Some(Target::RatioAtMost(most)), verdict) => format!(", ≤ {most} {verdict}"),
        (Some(Target::RatioAtLeast(least)), verdict) => format!(", ≥ {least} {verdict}"),
        (Some(target), verdict) => format!(", {} {verdict}", promise(target, row.unit)),
    };
    format!("{}\n× {:.2}{against}", on_two_lines(&beside.value, row.unit), beside.ratio.median)
}

fn on_two_lines(s: &Summary, unit: Unit) -> String {
    spread(s, unit).replacen(" (", "\n(", 1)
}

/// What a row has reached, and what was promised.
pub fn against_target(row: &Row) -> String {
    let Some(target) = row.target else { return String::new() };
    let reached = match target {
        Target::AtMost(_) | Target::AtLeast(_) => spread(&row.ours, row.unit),
        Target::OverByAtMost(_) | Target::RatioAtMost(_) | Target::RatioAtLeast(_) => against(row),
    };
    format!("{reached}, target {}", promise(target, row.unit))
}

/// The difference where it was the difference that was promised, else the ratio.
fn against(row: &Row) -> String {
    let Some(beside) = &row.beside else { return String::new() };
    match row.target {
        Some(Target::OverByAtMost(_)) => {
            let sign = if beside.difference.median < 0.0 { "" } else { "+" };
            format!("{sign}{}", spread(&beside.difference, row.unit))
        }
        _ => {
            let s = &beside.ratio;
            if s.rounds == 1 {
                format!("{:.2}", s.median)
            } else {
                format!("{:.2} ({:.2}–{:.2})", s.median, s.min, s.max)
            }
        }
    }
}

fn promise(target: Target, unit: Unit) -> String {
    match target {
        Target::AtMost(most) => format!("≤ {}", value(most, unit)),
        Target::AtLeast(least) => format!("≥ {}", value(least, unit)),
        Target::OverByAtMost(most) => format!("≤ +{}", value(most, unit)),
        Target::RatioAtMost(most) => format!("ratio ≤ {most}"),
        Target::RatioAtLeast(least) => format!("ratio ≥ {least}"),
    }
}

fn verdict(row: &Row) -> &'static str {
    match row.met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "",
    }
}

/// Median, lowest and highest, all in the unit that suits the median.
fn spread(s: &Summary, unit: Unit) -> String {
    if s.rounds == 1 {
        return value(s.median, unit);
    }
    let scale = scale(s.median, unit);
    let [median, min, max] = [s.median, s.min, s.max].map(|v| number(v / scale.divisor, scale.places));
    format!("{median} {} ({min}–{max})", scale.name)
}

fn value(v: f64, unit: Unit) -> String {
    let scale = scale(v, unit);
    format!("{} {}", number(v / scale.divisor, scale.places), scale.name)
}

/// How a value is written.
struct Scale {
    name: &'static str,
    divisor: f64,
    places: usize,
}

fn scale(v: f64, unit: Unit) -> Scale {
    let (name, divisor, places) = match unit {
        Unit::Ns if v.abs() < 1e3 => ("ns", 1.0, 1),
        Unit::Ns if v.abs() < 1e6 => ("µs", 1e3, 2),
        Unit::Ns => ("ms", 1e6, 2),
        Unit::Ms => ("ms", 1.0, 2),
        Unit::MibPerS => ("MiB/s", 1.0, 0),
        Unit::Kib => ("KiB", 1.0, 0),
        Unit::Instructions => ("instructions", 1.0, 0),
        Unit::PerOperation => ("per op", 1.0, 6),
        Unit::MillionPerS => ("M/s", 1.0, 2),
    };
    Scale { name, divisor, places }
}

/// Rounded to `places`, without zeros that say nothing.
fn number(v: f64, places: usize) -> String {
    let text = format!("{v:.places$}");
    if places > 2 { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_for_readers() {
        assert_eq!(value(99.96, Unit::Ns), "100.0 ns");
        assert_eq!(value(2270.4, Unit::Ns), "2.27 µs");
        assert_eq!(value(3_471_328.0, Unit::Ns), "3.47 ms");
        assert_eq!(value(0.0, Unit::PerOperation), "0 per op");
        assert_eq!(value(0.000_020, Unit::PerOperation), "0.00002 per op");
    }

    #[test]
    fn a_spread_keeps_to_one_unit() {
        let s = Summary::of(&[900.0, 1100.0, 2000.0]).unwrap();
        assert_eq!(spread(&s, Unit::Ns), "1.10 µs (0.90–2.00)");
    }

    #[test]
    fn a_difference_is_shown_where_it_was_promised() {
        let row = |target: Option<Target>| {
            Row::beside("x", Unit::Ns, &[110.0, 130.0, 120.0], ("y", &[100.0, 100.0, 100.0]), target).unwrap()
        };
        assert_eq!(against(&row(Some(Target::OverByAtMost(80.0)))), "+20.0 ns (10.0–30.0)");
        assert_eq!(against(&row(None)), "1.20 (1.10–1.30)");
        assert_eq!(against_target(&row(Some(Target::RatioAtMost(1.1)))), "1.20 (1.10–1.30), target ratio ≤ 1.1");
    }
}
