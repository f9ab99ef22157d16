//! What was measured and what was promised: rows, sections, and the file that is kept. `table` prints them, `render` puts
//! them into the documents.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use vervain_bench::stats::median;

use crate::machine::Machine;
use crate::table;

/// The whole run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Where it was measured.
    pub machine: Machine,
    /// Version of the perftest programs.
    pub perftest: Option<String>,
    /// How long the run took.
    pub seconds: u64,
    /// What was measured.
    pub sections: Vec<Section>,
}

/// Rows that belong together.
#[derive(Debug, Serialize, Deserialize)]
pub struct Section {
    /// Heading.
    pub title: Cow<'static, str>,
    /// How it was measured, in a sentence or two.
    pub how: Cow<'static, str>,
    /// The numbers.
    pub rows: Vec<Row>,
    /// What was not measured, and why.
    pub skipped: Vec<String>,
    /// How the rows are printed.
    pub layout: Layout,
}

/// How a section is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// A line for each row.
    List,
    /// A line for all rows of one name, with a column for each thing that stands beside Vervain.
    Grid,
}

/// Units of what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Millions per second.
    MillionPerS,
}

/// One measurement, with the raw one beside it if there is one.
#[derive(Debug, Serialize, Deserialize)]
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
    /// What bounds the row where the promise is not kept.
    pub limit: Option<String>,
    /// A remark.
    pub note: Option<String>,
}

/// The raw operation measured alternately with ours.
#[derive(Debug, Serialize, Deserialize)]
pub struct Beside {
    /// What it is.
    pub what: Cow<'static, str>,
    /// Its value.
    pub value: Summary,
    /// Ours divided by it, round by round.
    pub ratio: Summary,
    /// Ours less it, round by round.
    pub difference: Summary,
}

/// A promise about the median of `ours`, of the ratio or of the difference.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Ours at most this.
    AtMost(f64),
    /// Ours at least this.
    AtLeast(f64),
    /// Ours more than what is beside it by at most this.
    OverByAtMost(f64),
    /// The ratio at most this.
    RatioAtMost(f64),
    /// The ratio at least this.
    RatioAtLeast(f64),
}

/// What several rounds gave: the middle one, and the lowest and highest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
    /// How many values there were.
    pub rounds: usize,
}

impl Summary {
    /// An error for no values at all. A round without a value is NaN.
    pub fn of(values: &[f64]) -> Result<Summary> {
        let mut values: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        let median = median(&mut values);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { bail!("no round has a value") };
        Ok(Summary { median, min, max, rounds: values.len() })
    }
}

/// The rows of a section, each with the reason if there is none.
pub type Rows = Vec<Result<Row>>;

impl Row {
    /// A row of `ours`, one value a round, held against a promise if there is one.
    pub fn new(what: impl Into<String>, unit: Unit, ours: &[f64], target: impl Into<Option<Target>>) -> Result<Row> {
        Row::held(what.into(), unit, ours, None, target.into())
    }

    /// A row with the values of something else in the same rounds, `raw`, under its name. Ratio and difference are those
    /// of each round, so that what disturbs a whole round leaves them alone.
    pub fn beside(
        what: impl Into<String>,
        unit: Unit,
        ours: &[f64],
        raw: (&'static str, &[f64]),
        target: impl Into<Option<Target>>,
    ) -> Result<Row> {
        Row::held(what.into(), unit, ours, Some(raw), target.into())
    }

    fn held(
        what: String,
        unit: Unit,
        ours: &[f64],
        raw: Option<(&'static str, &[f64])>,
        target: Option<Target>,
    ) -> Result<Row> {
        let beside = raw.map(|(name, raw)| Beside::of(name, ours, raw)).transpose().with_context(|| what.clone())?;
        let ours = Summary::of(ours).with_context(|| what.clone())?;
        let (ratio, difference) = beside.as_ref().map(|b| (b.ratio.median, b.difference.median)).unzip();
        let met = target.and_then(|target| match target {
            Target::AtMost(most) => Some(ours.median <= most),
            Target::AtLeast(least) => Some(ours.median >= least),
            Target::OverByAtMost(most) => difference.map(|d| d <= most),
            Target::RatioAtMost(most) => ratio.map(|r| r <= most),
            Target::RatioAtLeast(least) => ratio.map(|r| r >= least),
        });
        Ok(Row { what, unit, ours, beside, target, met, limit: None, note: None })
    }

    /// Says what bounds the row, for a reader who finds the promise not kept.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<Option<&'static str>>) -> Row {
        self.limit = limit.into().map(String::from);
        self
    }

    /// The name of the row where nothing around it tells what it is held against.
    pub fn full_name(&self, layout: Layout) -> String {
        match (layout, &self.beside) {
            (Layout::Grid, Some(beside)) => format!("{} against {}", self.what, beside.what),
            _ => self.what.clone(),
        }
    }

    /// Adds a remark.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.note = Some(note.into());
        self
    }
}

impl Beside {
    fn of(what: &'static str, ours: &[f64], raw: &[f64]) -> Result<Beside> {
        let rounds = || ours.iter().zip(raw);
        let ratios: Vec<f64> = rounds().filter(|(_, raw)| **raw > 0.0).map(|(ours, raw)| ours / raw).collect();
        let differences: Vec<f64> = rounds().map(|(ours, raw)| ours - raw).collect();
        let (ratio, difference) = (Summary::of(&ratios)?, Summary::of(&differences)?);
        Ok(Beside { what: what.into(), value: Summary::of(raw)?, ratio, difference })
    }
}

impl Section {
    /// Rows, or the reasons why there are none.
    pub fn new(title: &'static str, how: &'static str, rows: Result<Rows>) -> Section {
        let mut section = Section {
            title: title.into(),
            how: how.into(),
            rows: Vec::new(),
            skipped: Vec::new(),
            layout: Layout::List,
        };
        for row in rows.unwrap_or_else(|e| vec![Err(e)]) {
            match row {
                Ok(row) => section.rows.push(row),
                Err(e) => section.skipped.push(format!("{e:#}")),
            }
        }
        section.skipped.dedup();
        section
    }

    /// A section with a column for each thing beside Vervain.
    pub fn grid(title: &'static str, how: &'static str, rows: Rows) -> Section {
        Section { layout: Layout::Grid, ..Section::new(title, how, Ok(rows)) }
    }

    /// Prints the section.
    pub fn print(&self) {
        println!("\n{}\n{}", self.title, self.how);
        if !self.rows.is_empty() {
            println!("{}", table::of(self));
        }
        self.remarks().for_each(|remark| println!("  {remark}"));
    }

    /// What stands below the table: remarks on rows, what bounds those that missed their target, what is not there.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let note = |row: &Row| Some(format!("{}: {}", row.full_name(self.layout), row.note.as_ref()?));
        let missed = self.rows.iter().filter(|row| row.met == Some(false));
        let mut limits: Vec<&String> = missed.filter_map(|row| row.limit.as_ref()).collect();
        limits.dedup();
        let limits = limits.into_iter().map(|limit| format!("the limit where missed: {limit}"));
        let skipped = self.skipped.iter().map(|what| format!("not measured: {what}"));
        self.rows.iter().filter_map(note).chain(limits).chain(skipped)
    }
}

impl Report {
    /// Prints what the machine is.
    pub fn print_head(machine: &Machine) {
        println!("{machine}");
        println!("Each value is the median of the rounds, with the lowest and the highest in brackets.");
    }

    /// How many promises were kept, of how many.
    pub fn verdict(&self) -> (usize, usize) {
        let verdicts: Vec<bool> = self.sections.iter().flat_map(|s| &s.rows).filter_map(|row| row.met).collect();
        (verdicts.iter().filter(|met| **met).count(), verdicts.len())
    }

    /// Prints how many promises were kept, and what was reached where one was not.
    pub fn print_verdict(&self) {
        let (met, promised) = self.verdict();
        if promised == 0 {
            println!("\nNothing with a target was measured.");
            return;
        }
        println!("\n{met} of {promised} targets met, in {} s.", self.seconds);
        for section in &self.sections {
            let mut missed = section.rows.iter().filter(|row| row.met == Some(false)).peekable();
            if missed.peek().is_some() {
                println!("MISSED in \"{}\":", section.title);
            }
            for row in missed {
                println!("  {}: {}", row.full_name(section.layout), table::against_target(row));
            }
        }
        let skipped = self.sections.iter().flat_map(|s| s.skipped.iter().map(move |why| (&s.title, why)));
        for (title, why) in skipped {
            println!("not measured in \"{title}\": {why}");
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

    /// Reads the report of a run.
    pub fn load(path: &Path) -> Result<Report> {
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not the file of a run", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_holds_the_middle_and_both_ends() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.rounds), (2.0, 1.0, 3.0, 3));
        assert_eq!(Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[f64::NAN, 1.0]).unwrap().rounds, 1);
        assert!(Summary::of(&[]).is_err());
    }

    #[test]
    fn a_row_is_held_against_its_target_by_ratios_and_differences_of_each_round() {
        let held = |target| {
            let row = Row::beside("x", Unit::Ns, &[110.0, 130.0, 240.0], ("y", &[100.0, 100.0, 200.0]), target);
            row.unwrap().met
        };
        assert_eq!(held(Target::RatioAtMost(1.2)), Some(true));
        assert_eq!(held(Target::RatioAtMost(1.1)), Some(false));
        assert_eq!(held(Target::RatioAtLeast(1.3)), Some(false));
        assert_eq!(held(Target::AtMost(100.0)), Some(false));
        assert_eq!(held(Target::AtMost(130.0)), Some(true));
        assert_eq!(held(Target::AtLeast(131.0)), Some(false));
        assert_eq!(held(Target::OverByAtMost(30.0)), Some(true));
        assert_eq!(held(Target::OverByAtMost(29.0)), Some(false));
        assert_eq!(Row::new("x", Unit::Ns, &[1.0], Target::OverByAtMost(1.0)).unwrap().met, None);
    }
}
