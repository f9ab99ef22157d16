//! Programs that use ACP: where libacp is, and the programs of `tests/acp` as ranks of a job.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Failures, Finished, unswayed, vervain};

/// The directory that libacp, its header and its wrapper are installed below: that of the command under test.
///
/// # Panics
/// When they are not there.
pub fn prefix() -> PathBuf {
    let command = vervain();
    let dir = command.parent().expect("the command lies somewhere");
    let found = [dir.to_path_buf(), dir.join("..")].into_iter().find(|dir| dir.join("lib/libacp.so.3").is_file());
    found.expect("libacp is not built: run make build")
}

/// `vervain launch -n RANKS OPTIONS -- PROGRAM`, to which arguments may be added.
pub fn launch(ranks: u32, options: &[&str], program: &Path) -> Command {
    let mut command = unswayed(vervain());
    command.args(["launch", "-n", &ranks.to_string()]).args(options).arg("--").arg(program);
    command
}

/// Prints how long a run of a program of `tests/acp` took, and notes it where not all ranks said that all held.
pub fn judge(what: &str, ranks: u32, end: &Finished, failures: &mut Failures) {
    println!("{what}, {ranks} ranks: {:.2} s", end.took.as_secs_f64());
    let held = (0..ranks).all(|rank| end.output.lines().any(|line| line.ends_with(&format!("OK rank {rank}"))));
    if !end.success() || !held || end.output.contains("FAIL") {
        let failed: Vec<_> = end.output.lines().filter(|line| line.contains("FAIL")).take(20).collect();
        failures.add(&format!("{what}, {ranks} ranks"), format!("{}\n{}", failed.join("\n"), end.describe()));
    }
}
