//! Runs of a C program over several ways to a peer's memory, which leave nothing behind.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{Failures, Job, Leftovers, alone, c_program, failure, have_c, side_by_side, under_vervain, way};

/// A program of `tests/c`, run once for each set of cases and each way.
pub struct Runs<'a> {
    /// Its name.
    pub program: &'a str,
    /// Sets of cases; an empty set is all of them.
    pub cases: &'a [&'a [&'a str]],
    /// Ways to a peer's memory ([`way`]).
    pub ways: &'a [&'a str],
    /// Variables of every run.
    pub vars: &'a [(&'a str, &'a str)],
    /// How many runs there are at a time: more than one where they mostly wait.
    pub at_once: usize,
    /// The limit of one run.
    pub seconds: u64,
}

impl Default for Runs<'_> {
    fn default() -> Self {
        Self { program: "", cases: &[&[]], ways: &["auto"], vars: &[], at_once: 1, seconds: 120 }
    }
}

impl Runs<'_> {
    /// Runs it, with the machine for itself.
    ///
    /// # Panics
    /// When a run fails, or leaves something behind.
    pub fn must_hold(&self) {
        if !have_c() {
            return;
        }
        let _turn = alone();
        // What stands behind a way stays for the next runs.
        let ways: Vec<_> = self.ways.iter().map(|name| (name, way(name))).collect();
        let before = Leftovers::watch();
        let all: Vec<_> = self.cases.iter().flat_map(|cases| ways.iter().map(move |way| (cases, way))).collect();
        let failures = Mutex::new(Failures::default());
        side_by_side(self.at_once, &all, |(cases, (name, vars))| {
            let mut command = under_vervain(c_program(self.program));
            command.args(**cases).envs(before.variables()).envs(vars.iter().copied()).envs(self.vars.iter().copied());
            let end = Job::start(&mut command).finish(Duration::from_secs(self.seconds));
            if let Some(why) = failure(&end) {
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.add(&format!("{} {cases:?} {name}", self.program), why);
            }
        });
        let mut failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
        let left = before.new_ones();
        if !left.is_empty() {
            failures.add(self.program, format!("left behind: {left:#?}"));
        }
        failures.assert_none();
    }
}
