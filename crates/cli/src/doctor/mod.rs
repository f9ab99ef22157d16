//! `vervain doctor`: what this machine allows, what is lost where it does not, and the remedy. This file owns the form of a
//! finding, the verdict and how both are printed; the trials are in `access.rs` (what Vervain needs between processes),
//! `memory.rs` (the ways to a peer's memory), `network.rs` (what it needs between hosts) and `machine.rs` (limits and
//! surroundings).

mod access;
mod machine;
mod memory;
mod network;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::output;

/// How much a finding matters to Vervain.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Nothing slower, but some program or some use may meet it.
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
    /// What is lost; empty for a good finding.
    cost: String,
    remedy: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, status: Status::Ok, found: found.into(), cost: String::new(), remedy: String::new() }
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
        machine::libraries(args.lib_dir.as_deref()),
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
        network::port(),
        network::interfaces(),
        network::segmentation(),
        network::buffers(),
        network::checksums(),
        network::translation(),
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
    output::print(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { text(&report) })?;
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
        Some(Status::Slower) => format!("Vervain runs here, but slower than it could: {}.", names(Status::Slower)),
        _ => "Vervain runs here, and nothing makes it slower.".to_owned(),
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["check", "", "found"]);
    for f in &report.findings {
        table.add_row([f.check, mark(f.status), &f.found]);
    }
    let mut out = format!("{}\n\n{table}\n", report.verdict);
    for f in report.findings.iter().filter(|f| f.status != Status::Ok) {
        let _ = write!(out, "\n{} ({})\n  cost:   {}\n  remedy: {}\n", f.check, mark(f.status), f.cost, f.remedy);
    }
    out
}

fn mark(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Note => "note",
        Status::Slower => "slower",
        Status::Broken => "BROKEN",
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
        assert!(verdict(&[good(), finding("b", Status::Slower)]).ends_with("slower than it could: b."));
        let broken = verdict(&[finding("s", Status::Slower), finding("b", Status::Broken)]);
        assert_eq!(broken, "Vervain cannot run here: b.");
    }

    #[test]
    fn the_report_begins_with_the_verdict_and_gives_a_remedy_for_each_lack() {
        let findings = vec![finding("good", Status::Ok), finding("bad", Status::Slower)];
        let text = text(&Report { verdict: verdict(&findings), runs: true, findings });
        assert!(text.starts_with("Vervain runs here"));
        assert!(text.contains("bad (slower)\n  cost:   c\n  remedy: r\n"), "{text}");
        assert!(!text.contains("good (ok)"));
    }
}
