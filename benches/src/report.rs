//! The tables that are printed and the file that is kept.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::machine::Machine;
use crate::stats::{Summary, ratios};

/// The whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Version of the perftest programs.
    pub perftest: Option<String>,
    /// What was measured.
    pub sections: Vec<Section>,
}

/// Rows that belong together.
#[derive(Debug, Serialize)]
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// How it was measured, in a sentence or two.
    pub how: &'static str,
    /// The numbers.
    pub rows: Vec<Row>,
    /// Why there are no more rows.
    pub skipped: Option<String>,
}

/// Units of what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Milliseconds.
    Ms,
    /// MiB per second.
    MibPerS,
    /// KiB.
    Kib,
    /// Machine instructions.
    Instructions,
    /// Context switches per operation.
    PerOperation,
}

/// One measurement, with the raw one beside it if there is one.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What it is.
    pub what: String,
    /// Unit of `ours` and of the raw value.
    pub unit: Unit,
    /// Vervain's.
    pub ours: Summary,
    /// The operation that bounds it.
    pub beside: Option<Beside>,
    /// What was promised.
    pub target: Option<Target>,
    /// Whether the medians keep the promise.
    pub met: Option<bool>,
    /// A remark.
    pub note: Option<String>,
}

/// The raw operation measured alternately with ours.
#[derive(Debug, Serialize)]
pub struct Beside {
    /// What it is.
    pub what: &'static str,
    /// Its value.
    pub value: Summary,
    /// Ours divided by it, round by round.
    pub ratio: Summary,
}

/// A promise about the median of `ours`, or of the ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Ours at most this.
    AtMost(f64),
    /// The ratio at most this.
    RatioAtMost(f64),
    /// The ratio at least this.
    RatioAtLeast(f64),
}

impl Row {
    /// A row of `ours`, one value a round. None for no rounds.
    pub fn new(what: impl Into<String>, unit: Unit, ours: &[f64]) -> Option<Row> {
        let ours = Summary::of(ours)?;
        Some(Row { what: what.into(), unit, ours, beside: None, target: None, met: None, note: None })
    }

    /// A row with the raw values of the same rounds.
    pub fn beside(
        what: impl Into<String>,
        unit: Unit,
        ours: &[f64],
        raw_what: &'static str,
        raw: &[f64],
    ) -> Option<Row> {
        let (value, ratio) = (Summary::of(raw)?, Summary::of(&ratios(ours, raw))?);
        Some(Row { beside: Some(Beside { what: raw_what, value, ratio }), ..Row::new(what, unit, ours)? })
    }

    /// Holds the row against a promise.
    #[must_use]
    pub fn target(mut self, target: Target) -> Row {
        let ratio = self.beside.as_ref().map(|b| b.ratio.median);
        self.met = match target {
            Target::AtMost(most) => Some(self.ours.median <= most),
            Target::RatioAtMost(most) => ratio.map(|r| r <= most),
            Target::RatioAtLeast(least) => ratio.map(|r| r >= least),
        };
        self.target = Some(target);
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.note = Some(note.into());
        self
    }

    fn cells(&self) -> [String; 6] {
        let raw = self.beside.as_ref();
        let target = self.target.map(|t| match t {
            Target::AtMost(most) => format!("≤ {}", value(most, self.unit)),
            Target::RatioAtMost(most) => format!("ratio ≤ {most}"),
            Target::RatioAtLeast(least) => format!("ratio ≥ {least}"),
        });
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        [
            self.what.clone(),
            spread(&self.ours, self.unit),
            raw.map(|b| format!("{}\n{}", spread(&b.value, self.unit), b.what)).unwrap_or_default(),
            raw.map(|b| ratio(&b.ratio)).unwrap_or_default(),
            target.unwrap_or_default(),
            verdict.to_owned(),
        ]
    }
}

impl Section {
    /// Rows, or the reason why there are none.
    pub fn new(title: &'static str, how: &'static str, rows: Result<Vec<Row>>) -> Section {
        match rows {
            Ok(rows) => Section { title, how, rows, skipped: None },
            Err(e) => Section { title, how, rows: Vec::new(), skipped: Some(format!("{e:#}")) },
        }
    }

    /// Prints the section.
    pub fn print(&self) {
        println!("\n{}\n{}", self.title, self.how);
        if !self.rows.is_empty() {
            println!("{}", self.table());
        }
        for note in self.rows.iter().filter_map(|row| row.note.as_ref().map(|note| (row, note))) {
            println!("  {}: {}", note.0.what, note.1);
        }
        if let Some(why) = &self.skipped {
            println!("  not measured: {why}");
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        let compared = self.rows.iter().any(|row| row.beside.is_some());
        let promised = self.rows.iter().any(|row| row.target.is_some());
        let shown = [true, true, compared, compared, promised, promised];
        let pick =
            |cells: [String; 6]| cells.into_iter().zip(shown).filter(|(_, s)| *s).map(|(c, _)| c).collect::<Vec<_>>();
        table.set_header(pick(
            ["measured", "Vervain", "raw, beside it", "Vervain / raw", "target", ""].map(String::from),
        ));
        for row in &self.rows {
            table.add_row(pick(row.cells()));
        }
        for column in table.column_iter_mut().skip(1).take(if compared { 3 } else { 1 }) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

impl Report {
    /// Prints what the machine is.
    pub fn print_head(machine: &Machine) {
        println!(
            "Vervain {} on {} ({} processors), Linux {} {}, load {:.1}, {}",
            machine.vervain,
            machine.cpu,
            machine.cpus,
            machine.kernel,
            machine.architecture,
            machine.load,
            machine.date
        );
        println!("Each value is the median of the rounds, with the lowest and the highest in brackets.");
    }

    /// Prints how many promises were kept.
    pub fn print_verdict(&self) {
        let verdicts: Vec<&Row> = self.sections.iter().flat_map(|s| &s.rows).filter(|row| row.met.is_some()).collect();
        let missed: Vec<&&Row> = verdicts.iter().filter(|row| row.met == Some(false)).collect();
        if verdicts.is_empty() {
            println!("\nNothing with a target was measured.");
            return;
        }
        println!("\n{} of {} targets met.", verdicts.len() - missed.len(), verdicts.len());
        for row in missed {
            println!("  MISSED: {}", row.what);
        }
    }

    /// Writes the report to `path`.
    pub fn save(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        }
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

fn spread(s: &Summary, unit: Unit) -> String {
    if s.rounds == 1 {
        return value(s.median, unit);
    }
    format!("{} ({}–{})", value(s.median, unit), bare(s.min, unit), bare(s.max, unit))
}

fn ratio(s: &Summary) -> String {
    format!("{:.2} ({:.2}–{:.2})", s.median, s.min, s.max)
}

fn value(v: f64, unit: Unit) -> String {
    let name = match unit {
        Unit::Ns => "ns",
        Unit::Ms => "ms",
        Unit::MibPerS => "MiB/s",
        Unit::Kib => "KiB",
        Unit::Instructions => "instructions",
        Unit::PerOperation => "per op",
    };
    format!("{} {name}", bare(v, unit))
}

fn bare(v: f64, unit: Unit) -> String {
    match unit {
        Unit::Ns if v < 1000.0 => format!("{v:.1}"),
        Unit::Ns | Unit::MibPerS | Unit::Kib | Unit::Instructions => format!("{v:.0}"),
        Unit::Ms => format!("{v:.2}"),
        Unit::PerOperation if v == 0.0 => "0".to_owned(),
        Unit::PerOperation => format!("{v:.6}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_held_against_its_target() {
        let row = || Row::beside("x", Unit::Ns, &[110.0, 130.0, 120.0], "y", &[100.0, 100.0, 100.0]).unwrap();
        assert_eq!(row().target(Target::RatioAtMost(1.2)).met, Some(true));
        assert_eq!(row().target(Target::RatioAtMost(1.1)).met, Some(false));
        assert_eq!(row().target(Target::RatioAtLeast(1.3)).met, Some(false));
        assert_eq!(row().target(Target::AtMost(100.0)).met, Some(false));
        assert_eq!(row().target(Target::AtMost(120.0)).met, Some(true));
    }

    #[test]
    fn values_are_written_for_readers() {
        assert_eq!(value(99.96, Unit::Ns), "100.0 ns");
        assert_eq!(value(2270.4, Unit::Ns), "2270 ns");
        assert_eq!(value(0.0, Unit::PerOperation), "0 per op");
        assert_eq!(value(0.000_020, Unit::PerOperation), "0.00002 per op");
    }
}
