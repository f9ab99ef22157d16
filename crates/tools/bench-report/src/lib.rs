//! The report of `vervain bench`: what a run measured as one page that needs nothing else, and its figures as files.
//! `figures` and `general` choose the cases of each figure, `chart`, `bars` and `forest` draw, `html` puts the page
//! together. [`compare`] is what two files of results say of each other, [`doubt`] what makes values doubtful.
//! Measuring is the business of `vervain_bench`, which knows nothing of this.

#![forbid(unsafe_code)]

mod acp;
mod axis;
mod bars;
mod canvas;
mod cases;
mod chart;
pub mod compare;
mod differences;
pub mod doubt;
mod environments;
mod figures;
mod findings;
mod forest;
mod general;
mod html;
mod ink;
mod interference;
mod jacobi;
mod machine;
mod orders;
mod pm;
mod query;
mod reference;
mod tca;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use vervain_bench::number::{number, thousands};
use vervain_bench::results::Results;
use vervain_bench::terminal::Screen;

use axis::Spacing;

/// Writes `report.html`, and each figure as `figures/NAME.svg` (by decades where that is of use: `NAME-log.svg`) with
/// its values in `figures/NAME.csv`, and all cases in `figures/cases.csv`, below `dir`, which must exist. Returns the
/// files, the page first.
///
/// # Errors
/// When a file cannot be written.
pub fn write(results: &Results, dir: &Path) -> Result<Vec<PathBuf>> {
    let figures = all(results)?;
    let page = dir.join("report.html");
    save(&page, html::page(results, &figures)?.as_bytes())?;
    let mut files = vec![page];
    let below = dir.join("figures");
    fs::create_dir_all(&below).with_context(|| format!("cannot make the directory {}", below.display()))?;
    for figure in figures.iter().flat_map(|(_, figures)| figures) {
        for (suffix, svg) in figure.drawing.files() {
            let file = below.join(format!("{}{suffix}.svg", figure.name));
            save(&file, html::standalone(svg, &figure.title).as_bytes())?;
            files.push(file);
        }
        let file = below.join(format!("{}.csv", figure.name));
        save(&file, figure.table.csv()?.as_bytes())?;
        files.push(file);
    }
    let cases = cases::all(results);
    if !cases.rows.is_empty() {
        let file = below.join("cases.csv");
        save(&file, cases.csv()?.as_bytes())?;
        files.push(file);
    }
    Ok(files)
}

/// What is shown on the terminal beside a run's values: kernels on ranks, and values beside those of papers, as tables.
pub fn tables(results: &Results) -> Vec<String> {
    let mut tables =
        vec![jacobi::text(results, Screen::Out), tca::text(results, Screen::Out), pm::text(results, Screen::Out)];
    tables.retain(|table| !table.is_empty());
    tables
}

pub(crate) fn save(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

/// The figures of the page under their headings.
type Chapters = Vec<(&'static str, Vec<Figure>)>;

/// The heading of the figures of the paper, which a run has only if it measured what the paper is about.
const OF_THE_PAPER: &str = "The figures of the paper";

/// The heading of the figures of ranks of jobs, which a run has only if it measured ACP.
const OF_ACP: &str = "ACP beside the MPI ping-pong";

/// The heading of what stands beside the paper on PEACH2, which a run has only if it measured in an environment that is
/// its model.
const OF_TCA: &str = "A model of PEACH2 beside TCA Verbs";

/// The heading of what stands beside the paper on PM, which a run has only if it measured through PM.
const OF_PM: &str = "PM beside Sumimoto et al. 2004";

fn all(results: &Results) -> Result<Chapters> {
    let paper = figures::of_the_paper(results)?;
    let (is_of_paper, rest) = if paper.is_empty() { (false, "Figures") } else { (true, "More of this device") };
    let acp = acp::figures(results)?;
    let environments = environments::figures(results)?;
    let mut chapters = vec![
        (OF_TCA, tca::figures(results)?),
        (OF_ACP, acp),
        (OF_PM, pm::figures(results)?),
        (OF_THE_PAPER, paper),
        ("A Jacobi kernel on grids of ranks", jacobi::figures(results)?),
        ("Environments beside each other", environments),
        (rest, general::of_the_rest(results, is_of_paper)?),
    ];
    chapters.retain(|(_, figures)| !figures.is_empty());
    Ok(chapters)
}

/// A figure or a table of the page.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// Its file's name and its place in the page.
    pub name: String,
    /// One line.
    pub title: String,
    /// The description, in a sentence or two.
    pub caption: String,
    /// The findings, one sentence each.
    pub findings: Vec<String>,
    /// The picture.
    pub drawing: Drawing,
    /// Its values.
    pub table: Table,
    /// True if the values are the point, and the picture goes with them. Such a figure takes the whole width of the
    /// page.
    pub table_first: bool,
}

/// The picture of a figure, as SVG.
#[derive(Debug, Clone)]
pub(crate) enum Drawing {
    /// There is one.
    One(Picture),
    /// Evenly spaced and by decades, and which of them fits better.
    Two { linear: Picture, decades: Picture, fits: Spacing },
}

/// A picture, whose letters are as large on a phone.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    /// [`canvas::WIDE`] across, or [`canvas::WHOLE`].
    pub wide: String,
    /// [`canvas::NARROW`] across.
    pub narrow: String,
}

impl Picture {
    /// Drawn so many pixels wide.
    fn of(draw: impl Fn(i32) -> Result<String>) -> Result<Self> {
        Ok(Self { wide: draw(canvas::WIDE)?, narrow: draw(canvas::NARROW)? })
    }

    /// The drawing of a figure whose [values are first](Figure::table_first): as wide as the page, as they are.
    fn below_values(draw: impl Fn(i32) -> Result<String>) -> Result<Self> {
        Ok(Self { wide: draw(canvas::WHOLE)?, narrow: draw(canvas::NARROW)? })
    }
}

impl Drawing {
    /// Each with the end of its file's name: the one that fits better has none.
    fn files(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::One(picture) => vec![("", &picture.wide)],
            Self::Two { linear, decades, fits: Spacing::Linear } => {
                vec![("", &linear.wide), ("-log", &decades.wide)]
            }
            Self::Two { linear, decades, .. } => vec![("", &decades.wide), ("-linear", &linear.wide)],
        }
    }
}

/// Values in rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    /// Headings, units included.
    pub columns: Vec<String>,
    /// The rows, each with a cell for every column.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    /// From left to right.
    pub cells: Vec<Cell>,
    /// The device of the paper it is of; shown only when that is asked for.
    pub paper: Option<usize>,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    /// Words.
    Text(String),
    /// A number, or a name.
    Count(u64),
    /// Rounded in the page, whole in CSV.
    Number(f64),
    /// A doubtful number: with an asterisk in the page.
    Doubtful(f64),
    /// A number that the page does not show, and what it shows instead.
    Instead(f64, &'static str),
    /// No content.
    None,
}

impl Cell {
    fn maybe(value: Option<f64>) -> Self {
        value.filter(|v| v.is_finite()).map_or(Self::None, Self::Number)
    }

    /// The text on the page.
    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => thousands(*count as f64),
            Self::Number(value) => number(*value),
            Self::Doubtful(value) => format!("{}*", number(*value)),
            Self::Instead(_, words) => (*words).to_owned(),
            Self::None => "–".to_owned(),
        }
    }

    fn csv(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Number(value) | Self::Doubtful(value) | Self::Instead(value, _) => value.to_string(),
            Self::None => String::new(),
        }
    }
}

/// Both ends of an interval, or that the rounds are too few for one.
fn interval((low, high): (f64, f64), too_few_rounds: bool) -> [Cell; 2] {
    if too_few_rounds {
        return [Cell::Instead(low, "too few rounds"), Cell::Instead(high, "–")];
    }
    [low, high].map(|end| Cell::maybe(Some(end)))
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl Table {
    fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|c| (*c).to_owned()).collect(), rows: Vec::new() }
    }

    fn push(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row { cells, paper: None });
    }

    pub(crate) fn csv(&self) -> Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(&self.columns)?;
        for row in &self.rows {
            writer.write_record(row.cells.iter().map(Cell::csv))?;
        }
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}

#[cfg(test)]
mod tests {
    use vervain_bench::sample;

    use super::*;

    fn written(results: &Results) -> (Vec<String>, String) {
        let dir = tempfile::tempdir().expect("a directory");
        let files = write(results, dir.path()).expect("a report");
        let page = fs::read_to_string(&files[0]).expect("the page");
        assert!(files.iter().all(|f| f.is_file()));
        let names = files.iter().map(|f| f.file_name().expect("a name").to_string_lossy().into_owned()).collect();
        (names, page)
    }

    #[test]
    fn a_run_of_everything_gets_every_figure_of_the_paper() {
        let (names, page) = written(&sample::everything(1.0));
        let mut expected: Vec<String> = ["fig2a", "fig2b"].map(str::to_owned).to_vec();
        for table in ["table2", "table3"] {
            expected.extend(["", "b", "b-cas"].map(|of| format!("{table}{of}")));
        }
        for figure in ["fig1", "fig3", "fig3b", "fig4", "fig4b"] {
            expected.extend(["loopback", "peer"].map(|placement| format!("{figure}-{placement}")));
        }
        for name in expected {
            assert!(
                names.contains(&format!("{name}.svg")) && names.contains(&format!("{name}.csv")),
                "{name}: {names:?}"
            );
            assert!(page.contains(&format!("id=\"{name}\"")), "{name} is not in the page");
        }
        assert!(!page.contains("NaN") && !page.contains(">inf"), "a value that is none");
    }

    #[test]
    fn the_paper_is_spoken_of_only_with_what_it_measured() {
        let (names, page) = written(&sample::quick());
        let body = page.split_once("<body>").and_then(|(_, body)| body.split_once("<script>")).expect("a body").0;
        assert!(!body.to_lowercase().contains("paper") && !body.contains("Akimoto"), "{body}");
        assert!(!page.contains("data-choice=\"reference\"") && page.contains("<h2>Figures</h2>"));
        let figures: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".csv")).collect();
        let expected = [
            "latency-8B",
            "bandwidth-8B",
            "latency-rc-loopback",
            "bandwidth-rc-loopback",
            "beside-write-8B-latency-rc",
            "beside-write-8B-bandwidth-rc",
            "cases",
        ];
        assert_eq!(figures, expected);
        let (_, page) = written(&sample::everything(1.0));
        assert!(page.contains("<h2>The figures of the paper</h2>") && page.contains("<h2>More of this device</h2>"));
        assert!(page.contains("data-choice=\"reference\""));
    }

    #[test]
    fn values_that_are_the_point_have_the_whole_page() {
        let (names, page) = written(&sample::boards());
        for (name, is_wide) in [("tca-latency", true), ("tca-bandwidth", true), ("environments-1-latency", false)] {
            assert!(names.contains(&format!("{name}.csv")), "{name}: {names:?}");
            let id = format!("id=\"{name}\"");
            let mut tags = page.split("<figure").skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
            let tag = tags.find(|tag| tag.contains(&id)).expect("a figure");
            assert_eq!(tag.contains("values-first"), is_wide, "{tag}");
        }
    }

    #[test]
    fn nothing_at_all_is_a_page_that_says_so() {
        let (names, page) = written(&sample::nothing());
        assert_eq!(names, ["report.html"]);
        assert!(page.contains("Nothing has been measured"), "{page}");
    }

    #[test]
    fn failures_are_told_with_their_reasons_and_nothing_is_run() {
        let (names, page) = written(&sample::failures());
        assert_eq!(names, ["report.html"]);
        assert!(page.contains("the peer said &lt;script&gt;alert(2)&lt;/script&gt; &amp; closed"), "{page}");
        assert!(page.contains("the device has no atomics") && page.contains("The peer was lost."));
        assert!(!page.contains("<script>alert"), "a name became a script");
    }

    #[test]
    fn values_beyond_all_measure_make_a_page_without_nonsense() {
        let mut results = sample::nothing();
        for (size, value) in [(8, 1e-12), (64, 1e25), (4096, f64::NAN), (8192, f64::INFINITY), (16384, 0.0)] {
            results.cases.push(sample::bandwidth(sample::write_case(size), &[value; 3]));
        }
        let (_, page) = written(&results);
        assert!(page.contains("id=\"bandwidth-rc-loopback\""));
        let text = page.split("<script>").next().expect("text");
        assert!(!text.contains("NaN") && !text.contains(">inf"), "{page}");
    }

    #[test]
    fn csv_has_whole_numbers_and_quotes() {
        let mut table = Table::new(&["what", "value"]);
        table.push(vec!["a, \"b\"".into(), Cell::Number(1.0 / 3.0)]);
        table.push(vec![Cell::None, Cell::Doubtful(2.0)]);
        assert_eq!(table.csv().expect("csv"), "what,value\n\"a, \"\"b\"\"\",0.3333333333333333\n,2\n");
    }
}
