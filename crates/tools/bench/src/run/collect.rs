//! The measurements so far, by case: the journal's lines in, results out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result};

use super::journal::{self, Begin, Entry};
use crate::case::{Case, Placement};
use crate::plan::{self, Plan, Settings};
use crate::results::{CaseResult, RawFigures, Results, SCHEMA, Skipped, Summary};
use crate::stats;

/// The measurements so far.
pub struct Collector {
    begin: Begin,
    spread: f64,
    cases: Vec<Collected>,
    index: BTreeMap<Case, usize>,
    raw: Vec<RawFigures>,
    skipped: Vec<Skipped>,
}

struct Collected {
    result: CaseResult,
    /// True if `result.summary` is of all its runs.
    summed: bool,
}

impl Collector {
    /// A collector without measurements, for the cases of `plan`.
    pub fn new(begin: Begin, plan: &Plan, cases: &[(Case, Settings)]) -> Self {
        let new = |case: &Case| Collected {
            result: CaseResult { case: *case, iterations: 0, runs: vec![], failures: vec![], summary: None },
            summed: true,
        };
        let index = cases.iter().enumerate().map(|(i, (case, _))| (*case, i)).collect();
        let cases = cases.iter().map(|(case, _)| new(case)).collect();
        Self { begin, spread: plan.spread, cases, index, raw: vec![], skipped: vec![] }
    }

    /// All of what the journal in `dir` says.
    ///
    /// # Errors
    /// As [`journal::read`]; a plan that this version cannot read.
    pub fn of_journal(dir: &Path) -> Result<(Self, Plan)> {
        let (begin, entries, _) = journal::read(dir)?;
        let plan = plan_of(&begin)?;
        let mut collected = Self::new(begin.clone(), &plan, &plan.cases(default_placement(&begin)));
        entries.into_iter().for_each(|entry| collected.add(entry));
        Ok((collected, plan))
    }

    /// Takes in a line of the journal. A line of another plan is left out.
    pub fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Run { case, planned, run } => {
                if let Some(found) = self.get(&case) {
                    found.result.iterations = planned;
                    found.result.runs.push(run);
                    found.summed = false;
                }
            }
            Entry::Failure { case, failure } => {
                if let Some(found) = self.get(&case) {
                    found.result.failures.push(failure);
                }
            }
            Entry::Raw(figures) => self.raw.push(figures),
            Entry::Skipped(skipped) => self.skipped.push(skipped),
            Entry::Begin(_) | Entry::Resumed(_) => {}
        }
    }

    fn get(&mut self, case: &Case) -> Option<&mut Collected> {
        self.index.get(case).map(|i| &mut self.cases[*i])
    }

    /// The head.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// How often a case is measured.
    pub fn rounds(&self) -> u32 {
        self.begin.header.rounds
    }

    /// Seconds since the run began, the first time.
    pub fn now(&self) -> f64 {
        let began = humantime::parse_rfc3339(&self.begin.header.started).unwrap_or(SystemTime::UNIX_EPOCH);
        began.elapsed().map_or(0.0, |d| d.as_secs_f64())
    }

    /// The results of a case so far.
    pub fn result(&self, case: &Case) -> Option<&CaseResult> {
        self.index.get(case).map(|i| &self.cases[*i].result)
    }

    /// Iterations that the case has had in a run.
    pub fn iterations(&self, case: &Case) -> Option<u64> {
        self.result(case).map(|r| r.iterations).filter(|n| *n > 0)
    }

    /// Returns true if the case needs no measurement in `round`: it had it, or it fails each time.
    pub fn is_settled(&self, case: &Case, round: u32) -> bool {
        self.result(case).is_none_or(|r| {
            r.runs.iter().any(|run| run.round == round)
                || r.failures.iter().any(|f| f.round == round)
                || (r.runs.is_empty() && r.failures.len() >= 2)
        })
    }

    /// Returns true if the machine's own figures are there for `round`.
    pub fn has_raw(&self, round: u32) -> bool {
        self.raw.iter().any(|r| r.round == round)
    }

    /// The summary of a case so far with the number of its runs and of its failures; None if there is neither.
    pub fn summary(&mut self, case: &Case) -> Option<(Option<Summary>, usize, usize)> {
        let (rounds, spread, seed) = (self.rounds(), self.spread, self.begin.header.seed);
        let found = self.get(case)?;
        found.sum(rounds, spread, seed);
        let result = &found.result;
        let (runs, failures) = (result.runs.len(), result.failures.len());
        (runs + failures > 0).then(|| (result.summary.clone(), runs, failures))
    }

    /// Everything, with why it is not complete, if it is not.
    pub fn results(&mut self, interrupted: Option<String>) -> Results {
        let (rounds, spread, seed) = (self.rounds(), self.spread, self.begin.header.seed);
        self.cases.iter_mut().for_each(|case| case.sum(rounds, spread, seed));
        let skipped = |case: &Case| self.skipped.iter().any(|s| s.case == *case);
        let cases: Vec<_> = self.cases.iter().map(|c| c.result.clone()).filter(|r| !skipped(&r.case)).collect();
        let complete = cases.iter().all(|r| (0..rounds).all(|round| self.is_settled(&r.case, round)));
        Results {
            schema: SCHEMA,
            header: self.begin.header.clone(),
            ended: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            complete,
            interrupted,
            raw: self.raw.clone(),
            cases: cases.into_iter().filter(|r| !r.runs.is_empty() || !r.failures.is_empty()).collect(),
            skipped: self.skipped.clone(),
        }
    }
}

impl Collected {
    fn sum(&mut self, rounds: u32, spread: f64, seed: u64) {
        if !std::mem::replace(&mut self.summed, true) {
            let result = &mut self.result;
            result.summary = stats::summarise(&result.case, &result.runs, rounds, spread, seed);
        }
    }
}

/// The plan that a run was begun with.
///
/// # Errors
/// This version cannot read it.
pub fn plan_of(begin: &Begin) -> Result<Plan> {
    let text = &begin.header.plan;
    plan::parse(&text.name, &text.text).context("the plan of this run cannot be read by this version")
}

/// The placement of the responder if the plan names none.
pub fn default_placement(begin: &Begin) -> Placement {
    if begin.setup.peer.is_some() { Placement::Peer } else { Placement::Loopback }
}
