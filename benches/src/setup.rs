//! What a run needs before it measures: the `vervain` command, the C programs compiled here, two processors.

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::machine::{Cpus, two_cpus};
use crate::process::Running;

/// How long a program may take that normally takes about a second.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Everything that the measurements share.
pub struct Setup {
    /// The `vervain` command.
    pub vervain: PathBuf,
    /// The processors of the two sides.
    pub cpus: Cpus,
    /// Rounds in which ours and raw are measured alternately.
    pub rounds: usize,
    /// Where the compiled programs lie; gone with this value.
    pub directory: TempDir,
    /// Programs that did not compile, and why.
    missing: HashMap<&'static str, String>,
}

impl Setup {
    /// Finds and compiles everything.
    pub fn new(vervain: Option<PathBuf>, rounds: usize) -> Result<Setup> {
        let package = package_directory()?;
        let vervain = vervain.unwrap_or_else(|| package.join("../target/release/vervain"));
        ensure!(vervain.is_file(), "there is no vervain command at {}: run `make build` first", vervain.display());
        let directory = tempfile::tempdir()?;
        let mut missing = HashMap::new();
        for (name, libraries) in [("raw", &[][..]), ("idle", &[]), ("looped", &["-libverbs"])] {
            let source = package.join("c").join(name).with_extension("c");
            if let Err(e) = compile(&source, &directory.path().join(name), libraries) {
                missing.insert(name, format!("{e:#}"));
            }
        }
        Ok(Setup { vervain, cpus: two_cpus()?, rounds, directory, missing })
    }

    /// A program compiled from `c/`, or why it could not be.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        match self.missing.get(name) {
            Some(why) => bail!("{why}"),
            None => Ok(self.directory.path().join(name)),
        }
    }

    /// `vervain run` of `program`, with `options` of its own.
    pub fn under_vervain(&self, options: &[&str], program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(&self.vervain);
        command.arg("run").args(options).arg("--").arg(program.as_ref());
        command
    }
}

fn compile(source: &Path, to: &Path, libraries: &[&str]) -> Result<()> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(to).arg(source).args(libraries);
    let compiled = Running::start(&mut command, None, LIMIT).and_then(Running::finish);
    compiled.map(drop).context("compiling a measuring program (Debian: apt install gcc libc6-dev libibverbs-dev)")
}

/// The directory of this package. Cargo tells it at run time, so that no path is built into the program.
pub fn package_directory() -> Result<PathBuf> {
    match env::var_os("CARGO_MANIFEST_DIR") {
        Some(directory) => Ok(directory.into()),
        None => bail!("start this with `make bench` or `cargo run --release --package vervain-benches`"),
    }
}

/// Whether `program` can be run from here.
pub fn is_installed(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|directory| directory.join(program).is_file()))
}
