//! Puts runs into the documents. A document has blocks, each between a line `<!-- run FILE -->` or `<!-- headlines FILE -->`
//! and a line `<!-- end -->`; FILE is that of a run, as seen from the document. What stands between is written here and by
//! nobody else: all that the run measured, or a few rows of it for who reads no more.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::report::{Layout, Report, Row, Section};
use crate::setup::package_directory;
use crate::table;

/// The documents that have blocks, as seen from the root of the tree.
const DOCUMENTS: [&str; 1] = ["docs/results.md"];
const END: &str = "<!-- end -->";

/// The rows that stand for all: what a reader calls it, then the section, the row and what is beside it, if anything.
const HEADLINES: [(&str, &str, &str, Option<&str>); 6] = [
    ("`ib_write_lat`, 8 B", LATENCY, "ib_write_lat 8 B", Some("ping-pong of stores")),
    ("`ib_send_lat`, 8 B", LATENCY, "ib_send_lat 8 B", Some("ping-pong of stores")),
    (
        "`ib_write_bw`, 64 KiB",
        "Two processes: bandwidth against memcpy",
        "ib_write_bw 64 KiB",
        Some("memcpy to shared memory"),
    ),
    (
        "`ib_write_bw`, 8 B, post lists of 32",
        "Two processes: message rate, Writes of 8 bytes, one QP",
        "post lists of 32",
        None,
    ),
    (
        "`ib_write_lat`, 64 KiB",
        "RDMA Write against UCX put: latency, half a round trip, median",
        "64 KiB",
        Some("UCX cma"),
    ),
    (
        "RDMA Write beside `MPI_Put`, 64 KiB",
        "RDMA Write against MPI_Put: latency of the operation, median",
        "64 KiB",
        Some("Open MPI"),
    ),
];
const LATENCY: &str = "Two processes: latency of 8 bytes";

/// Writes the blocks of all documents anew.
pub fn documents() -> Result<()> {
    let root = package_directory()?.join("..");
    for name in DOCUMENTS {
        let document = root.join(name);
        let (old, new) = (read(&document)?, rendered(&document)?);
        if old != new {
            fs::write(&document, new).with_context(|| format!("writing {}", document.display()))?;
            println!("Tables: {name}");
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// The document as it is when its blocks say what its runs measured.
fn rendered(document: &Path) -> Result<String> {
    let (text, directory) = (read(document)?, document.parent().unwrap_or(Path::new("")));
    fill(&text, |kind, file| {
        let report = Report::load(&directory.join(file))?;
        if kind == "run" { Ok(run(&report)) } else { headlines(&report) }
    })
    .with_context(|| format!("in {}", document.display()))
}

/// The text with the inside of its blocks replaced by what `inside` makes of kind and file.
fn fill(text: &str, inside: impl Fn(&str, &str) -> Result<String>) -> Result<String> {
    let mut filled = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        filled.extend([line, "\n"]);
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["<!--", kind @ ("run" | "headlines"), file, "-->"] = words[..] {
            if !lines.any(|line| line == END) {
                bail!("the block of {file} has no end");
            }
            filled.extend([inside(kind, file)?.as_str(), END, "\n"]);
        }
    }
    Ok(filled)
}

/// All of a run.
fn run(report: &Report) -> String {
    let mut text = format!("{}: {}.\n", report.machine, verdict(report));
    for section in &report.sections {
        text += &format!("\n### {}\n\n{}\n", section.title, section.how);
        if !section.rows.is_empty() {
            let cells = table::cells_of(section);
            let parting = if section.layout == Layout::List { ", " } else { " " };
            text += &format!("\n{}", markdown(&cells.head, &cells.lines, parting));
        }
        let remarks: String = section.remarks().map(|remark| format!("* {remark}\n")).collect();
        if !remarks.is_empty() {
            text += &format!("\n{remarks}");
        }
    }
    text
}

fn verdict(report: &Report) -> String {
    let (met, promised) = report.verdict();
    format!("{met} of {promised} targets met")
}

/// The rows that stand for all, of a run in which they were measured.
fn headlines(report: &Report) -> Result<String> {
    let row = |(title, section, what, beside): (&str, &str, &str, Option<&str>)| {
        let row = find(report, section, what, beside)
            .with_context(|| format!("the run has no row \"{what}\" beside {beside:?} in \"{section}\""))?;
        let [_, ours, raw, against, target, verdict] = table::line(row);
        Ok(vec![title.to_owned(), ours, raw, against, target, verdict])
    };
    let lines: Vec<Vec<String>> = HEADLINES.into_iter().map(row).collect::<Result<_>>()?;
    let table = markdown(&table::HEAD.map(String::from), &lines, ", ");
    Ok(format!("{table}\n{}; of all it measured {}.\n", report.machine, verdict(report)))
}

fn find<'a>(report: &'a Report, section: &str, what: &str, beside: Option<&str>) -> Option<&'a Row> {
    let sections = report.sections.iter().filter(|s: &&Section| s.title == section);
    let is_it = |row: &&Row| row.what == what && row.beside.as_ref().map(|b| &*b.what) == beside;
    sections.flat_map(|s| &s.rows).find(is_it)
}

/// A table; `parting` stands where a cell has a line break.
fn markdown(head: &[String], lines: &[Vec<String>], parting: &str) -> String {
    let cell = |cell: &String| {
        let cell = cell.replace('|', "\\|").replace("\n(", " (").replace('\n', parting);
        if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") }
    };
    let line = |cells: &[String]| format!("|{}\n", cells.iter().map(cell).collect::<String>());
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    [line(head), rule].into_iter().chain(lines.iter().map(|cells| line(cells))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Target, Unit};

    #[test]
    fn the_documents_say_what_their_runs_measured() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in DOCUMENTS {
            let document = root.join(name);
            let text = read(&document).unwrap();
            assert!(text.contains(END), "{name} has no block");
            let fresh = rendered(&document).unwrap();
            let stale = text.lines().zip(fresh.lines()).find(|(old, new)| old != new);
            assert_eq!(stale, None, "{name} does not say what its run measured: `make results` writes it anew");
            assert_eq!(text, fresh, "{name}: `make results` writes it anew");
        }
    }

    /// Of which some are medians with their range behind them.
    #[test]
    fn every_figure_in_the_prose_of_the_readme_stands_in_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let [readme, results] = ["README.md", DOCUMENTS[0]].map(|name| read(&root.join(name)).unwrap());
        let (_, prose) = readme.split_once("## How fast").unwrap();
        let (prose, _) = prose.split_once("\n## ").unwrap();
        let words: Vec<&str> =
            prose.split_whitespace().map(|word| word.trim_matches([',', '.', ';', ':', ')', '('])).collect();
        let figures = words.windows(2).filter(|two| ["ns", "µs", "MiB/s"].contains(&two[1]));
        let mut found = 0;
        for figure in figures.map(|two| two.join(" ")) {
            let stands = [" |", " ("].iter().any(|behind| results.contains(&format!("| {figure}{behind}")));
            assert!(stands, "{figure} is not in docs/results.md");
            found += 1;
        }
        assert_eq!(found, 6, "figures in: {prose}");
    }

    #[test]
    fn a_block_is_filled_and_what_is_around_it_stays() {
        let text = "a\n<!-- run x.json -->\nold\n<!-- end -->\nb\n";
        let filled = fill(text, |kind, file| Ok(format!("{kind} of {file}\n"))).unwrap();
        assert_eq!(filled, "a\n<!-- run x.json -->\nrun of x.json\n<!-- end -->\nb\n");
        assert_eq!(fill(&filled, |kind, file| Ok(format!("{kind} of {file}\n"))).unwrap(), filled);
        assert!(fill("<!-- headlines x.json -->\nold\n", |_, _| Ok(String::new())).is_err());
    }

    #[test]
    fn a_table_has_each_figure_with_its_target() {
        let raw: (_, &[f64]) = ("raw", &[100.0, 100.0, 100.0]);
        let row = Row::beside("x | y", Unit::Ns, &[110.0, 130.0, 120.0], raw, Target::RatioAtMost(1.1));
        let cells = table::cells_of(&Section::new("t", "h", Ok(vec![row])));
        let text = markdown(&cells.head, &cells.lines, ", ");
        let last = "| x \\| y | 120.0 ns (110.0–130.0) | 100.0 ns (100.0–100.0), raw | 1.20 (1.10–1.30) | ratio ≤ 1.1 | MISSED |\n";
        assert!(text.ends_with(last), "{text}");
    }
}
