//! `vervain doctor`: what this machine allows, what is lost where it does not, and the remedy. This file owns the form
//! of a finding, the verdict and how both are printed; the trials are in `access.rs` (what Vervain needs between
//! processes), `memory.rs` (the ways to a peer's memory), `window.rs` (memory that nodes share), `network.rs` (what it
//! needs between hosts), `jobs.rs` (what saves whole jobs) and `machine.rs` (limits and surroundings).

mod access;
mod jobs;
mod machine;
mod memory;
mod network;
mod window;

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::output;

/// The importance of a finding for Vervain.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Not tested, or not visible from here.
    #[serde(rename = "not tested")]
    NotTested,
    /// Nothing gets slower, but some program or some use may meet it.
    Note,
    Slower,
    /// Vervain cannot run.
    Broken,
}

#[derive(Serialize, Debug)]
struct Finding {
    check: &'static str,
    status: Status,
    found: String,
    /// The loss, or possible loss; empty for a good finding.
    cost: String,
    remedy: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, status: Status::Ok, found: found.into(), cost: String::new(), remedy: String::new() }
    }

    fn not_tested(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { status: Status::NotTested, ..Finding::ok(check, found) }
    }

    fn with(
        status: Status,
        check: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { check, status, found: found.into(), cost: cost.into(), remedy: remedy.into() }
    }
}

#[derive(Serialize)]
struct Report {
    verdict: String,
    runs: bool,
    findings: Vec<Finding>,
}

pub fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    let findings = vec![
        machine::build(),
        machine::libraries(args.lib_dir.as_deref()),
        machine::library_path(args.lib_dir.as_deref()),
        machine::variables(),
        access::memfd(),
        access::rendezvous(),
        access::names(),
        memory::allocated_shared(args.lib_dir.as_deref()),
        memory::programs_own(),
        access::process_vm(),
        memory::owner_copies(),
        access::pidfd(),
        machine::userfaultfd(),
        window::window(),
        network::port(),
        network::interfaces(),
        network::segmentation(),
        network::buffers(),
        network::checksums(),
        network::translation(),
        jobs::criu(),
        machine::cpus(),
        machine::descriptors(),
        machine::memlock(),
        machine::shm(),
        machine::huge_pages(),
        machine::surroundings(),
        machine::hardware(),
        machine::kernel(),
    ];
    let report = Report { verdict: verdict(&findings), runs: !has(&findings, Status::Broken), findings };
    if args.json {
        output::print(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    } else {
        output::print_styled(&text(&report, output::columns()))?;
    }
    Ok(if report.runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn has(findings: &[Finding], status: Status) -> bool {
    findings.iter().any(|f| f.status == status)
}

fn verdict(findings: &[Finding]) -> String {
    let names = |status| {
        let names: Vec<_> = findings.iter().filter(|f| f.status == status).map(|f| f.check).collect();
        names.join(", ")
    };
    match findings.iter().map(|f| f.status).max() {
        Some(Status::Broken) => format!("Vervain cannot run here: {}.", names(Status::Broken)),
        Some(Status::Slower) => {
            let limits = findings.iter().filter(|f| f.status == Status::Slower).count();
            let checks = findings.len();
            let names = names(Status::Slower);
            format!("Vervain runs here, but {limits} of {checks} checks find that it is slower than it could: {names}.")
        }
        _ => {
            let costly = findings.iter().filter(|f| f.status == Status::NotTested && !f.cost.is_empty());
            match costly.map(|f| f.check).collect::<Vec<_>>().join(", ").as_str() {
                "" => "Vervain runs here, and nothing makes it slower.".to_owned(),
                names => {
                    format!("Vervain runs here; it may be slower than it could, since this was not tested: {names}.")
                }
            }
        }
    }
}

/// The verdict, then each finding: on a terminal wrapped at its width, with cost and remedy below it, else one line
/// each.
fn text(report: &Report, columns: Option<usize>) -> String {
    let mut out = output::hanging("", &report.verdict, columns) + "\n";
    for f in &report.findings {
        let (mark, style) = mark(f.status);
        let mut text = format!("{}: {}", f.check, f.found);
        let mut details = String::new();
        for (what, words) in
            [("cost", &f.cost), ("remedy", &f.remedy)].into_iter().filter(|(_, words)| !words.is_empty())
        {
            match columns {
                Some(_) => details += &output::hanging(&format!("{:WIDTH$}{what}: ", ""), words, columns),
                None => text += &format!("; {what}: {words}"),
            }
        }
        let line = output::hanging(&format!("{mark:WIDTH$}"), &text, columns);
        // Coloured behind the wrapping, which counts letters.
        out += &line.replacen(mark, &format!("{style}{mark}{style:#}"), 1);
        out += &details;
    }
    out
}

/// Columns of the mark, with the blanks behind it.
const WIDTH: usize = 12;

fn mark(status: Status) -> (&'static str, Style) {
    match status {
        Status::Ok => ("ok", AnsiColor::Green.on_default()),
        Status::NotTested => ("not tested", AnsiColor::Cyan.on_default()),
        Status::Note => ("note", AnsiColor::Cyan.on_default()),
        Status::Slower => ("slower", AnsiColor::Yellow.on_default()),
        Status::Broken => ("fails", AnsiColor::Red.on_default().bold()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(check: &'static str, status: Status) -> Finding {
        Finding::with(status, check, "f", "c", "r")
    }

    #[test]
    fn the_worst_finding_decides_the_verdict() {
        let good = || finding("a", Status::Ok);
        assert!(verdict(&[good(), finding("b", Status::Note)]).contains("nothing makes it slower"));
        let slower =
            verdict(&[good(), finding("b", Status::Slower), finding("n", Status::Note), finding("c", Status::Slower)]);
        assert_eq!(slower, "Vervain runs here, but 2 of 4 checks find that it is slower than it could: b, c.");
        let broken = verdict(&[finding("s", Status::Slower), finding("b", Status::Broken)]);
        assert_eq!(broken, "Vervain cannot run here: b.");
    }

    #[test]
    fn a_check_that_was_not_made_is_not_ok_and_is_named_where_it_may_cost() {
        let unseen = || Finding::not_tested("n", "f");
        assert!(verdict(&[unseen()]).contains("nothing makes it slower"));
        let costly = verdict(&[finding("p", Status::NotTested)]);
        assert_eq!(costly, "Vervain runs here; it may be slower than it could, since this was not tested: p.");
        let report = Report { verdict: "v".into(), runs: true, findings: vec![unseen()] };
        assert_eq!(plain(&text(&report, None)), "v\n\nnot tested  n: f\n");
        assert_eq!(serde_json::to_value(Status::NotTested).unwrap(), "not tested");
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn the_report_is_one_line_for_each_check_and_on_a_terminal_a_paragraph() {
        let findings = vec![
            finding("good", Status::Ok),
            Finding::with(Status::Slower, "bad", "two of them", "some time", "a cure"),
            finding("worse", Status::Broken),
        ];
        let findings = findings.into_iter().map(|f| match f.status {
            Status::Ok => Finding::ok(f.check, f.found),
            _ => f,
        });
        let report = Report { verdict: "It runs.".into(), runs: true, findings: findings.collect() };
        assert_eq!(
            plain(&text(&report, None)),
            "It runs.\n\nok          good: f\nslower      bad: two of them; cost: some time; remedy: a cure\n\
             fails       worse: f; cost: c; remedy: r\n"
        );
        assert_eq!(
            plain(&text(&report, Some(22))),
            "It runs.\n\nok          good: f\nslower      bad: two\n            of them\n            cost: some\n                  time\n\
            \x20           remedy: a\n                    cure\nfails       worse: f\n            cost: c\n            remedy: r\n"
        );
        assert!(text(&report, None).contains("\x1b["), "colours are there for a terminal");
    }
}
