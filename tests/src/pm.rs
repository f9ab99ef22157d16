//! Programs that use PM: where libpm is, and the programs of `tests/pm` as nodes of a job.

use std::path::{Path, PathBuf};

use crate::{Failures, Finished, Job, acp, have, pm_program, vervain, way};

/// The directory that libpm and its header are installed below: that of the command under test.
///
/// # Panics
/// When they are not there.
pub fn prefix() -> PathBuf {
    let command = vervain();
    let dir = command.parent().expect("the command lies somewhere");
    let found = [dir.to_path_buf(), dir.join("..")].into_iter().find(|dir| dir.join("lib/libpm.so.2").is_file());
    found.expect("libpm is not built: run make build")
}

/// A program of `tests/pm`, over ways to the other ranks' memory.
pub struct Program<'a> {
    /// Its name.
    pub name: &'a str,
    /// What stands before the ranks' numbers of options of `vervain launch`.
    pub options: &'a [&'a str],
    /// See [`way`].
    pub ways: &'a [&'a str],
    /// Variables of its environment.
    pub variables: &'a [(&'a str, &'a str)],
    /// How many ranks.
    pub ranks: &'a [u32],
}

impl Default for Program<'_> {
    /// Two ranks that reach each other's memory.
    fn default() -> Self {
        Self { name: "", options: &[], ways: &["auto"], variables: &[], ranks: &[2] }
    }
}

impl Program<'_> {
    /// It holds with these arguments, by each of its ways and on each of its numbers of ranks.
    ///
    /// # Panics
    /// It does not.
    pub fn holds(&self, arguments: &[&str]) {
        self.run(|program| (program.to_path_buf(), arguments.iter().map(|text| (*text).to_owned()).collect()));
    }

    /// What each rank runs for the compiled program, and with which arguments. Its output, of each run.
    ///
    /// # Panics
    /// It does not hold.
    pub fn run(&self, what: impl Fn(&Path) -> (PathBuf, Vec<String>)) -> Vec<Finished> {
        if !have(&["cc"]) {
            return vec![];
        }
        let program = pm_program("cc", &[], self.name);
        let mut failures = Failures::default();
        let mut ends = vec![];
        for name in self.ways {
            for &ranks in self.ranks {
                let (program, arguments) = what(&program);
                let mut command = acp::launch(ranks, self.options, &program);
                command.args(&arguments).envs(way(name)).envs(self.variables.iter().copied());
                let end = Job::start(&mut command).finish(acp::LIMIT);
                let run = format!("{} {} by {name} {}", self.name, arguments.join(" "), self.options.join(" "));
                acp::judge(&run, ranks, &end, &mut failures);
                ends.push(end);
            }
        }
        failures.assert_none();
        ends
    }
}
