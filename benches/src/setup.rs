//! What a run needs: the `vervain` command, two processors, and the C programs, each compiled when it is first
//! asked for.

use std::cell::RefCell;
use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, bail, ensure};
use tempfile::TempDir;
use vervain_tests::tool;

use crate::machine::Cpus;
use crate::process::{LIMIT, output};

/// The programs of `c/`: name, source without `.c`, compiler (None: `$CC` or `cc`), what it is linked to. Nothing here
/// asks for `allocation`, whose numbers are in `docs/shared-memory.md`.
const PROGRAMS: [(&str, &str, Option<&str>, &[&str]); 22] = [
    ("raw", "raw", None, &[]),
    ("memory", "memory", None, &[]),
    ("allocation", "allocation", None, &[]),
    ("udp", "udp", None, &[]),
    ("idle", "idle", None, &[]),
    ("bystander", "bystander", None, &[]),
    ("looped", "looped", None, VERBS),
    ("onesided", "onesided", None, VERBS),
    ("register", "register", None, VERBS),
    ("many", "many", None, VERBS),
    ("paired", "paired", None, VERBS),
    ("standing", "standing", None, VERBS),
    ("connected", "connected", None, VERBS),
    ("acp", "acp", None, ACP),
    ("containers", "containers", None, ACP),
    ("pmtest", "../../examples/pm/pmtest", None, PM),
    ("pmix", "pmix", None, &[]),
    ("ranks-openmpi", "ranks", Some("mpicc.openmpi"), &[]),
    ("wavefront", "../../tests/apps/wavefront", Some("mpicc.openmpi"), &["-lm"]),
    ("ranks-mpich", "ranks", Some("mpicc.mpich"), &[]),
    ("rma-openmpi", "rma_map", Some("mpicc.openmpi"), &[]),
    ("rma-mpich", "rma_map", Some("mpicc.mpich"), &[]),
];
const VERBS: &[&str] = &["-libverbs", "-ldl"];
const ACP: &[&str] = &["-lacp"];
const PM: &[&str] = &["-lpm"];

/// Everything that the measurements share.
pub struct Setup {
    /// The `vervain` command.
    pub vervain: PathBuf,
    /// The processors of the two sides.
    pub cpus: Cpus,
    /// Rounds of each comparison.
    pub rounds: usize,
    /// Whether a rough picture is enough: fewer sizes where there are many.
    pub quick: bool,
    /// Where the compiled programs lie; gone with this value.
    pub directory: TempDir,
    /// Programs compiled so far, and those that did not compile, with the reason.
    compiled: RefCell<HashMap<&'static str, Result<PathBuf, String>>>,
}

impl Setup {
    /// Finds the command and the processors.
    pub fn new(vervain: Option<PathBuf>, rounds: usize, quick: bool) -> Result<Setup> {
        let vervain =
            vervain.map_or_else(|| Ok(package_directory()?.join("../target/release/vervain")), Ok::<_, Error>)?;
        ensure!(vervain.is_file(), "there is no vervain command at {}: run `make build` first", vervain.display());
        let (directory, compiled) = (tempfile::tempdir()?, RefCell::default());
        Ok(Setup { vervain, cpus: Cpus::two()?, rounds, quick, directory, compiled })
    }

    /// Rounds of what takes long: about half as many, an odd number.
    pub fn fewer_rounds(&self) -> usize {
        self.rounds.min(self.rounds.div_ceil(2) | 1)
    }

    /// A program compiled from `c/`, or why it could not be.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let entry = PROGRAMS.iter().find(|program| program.0 == name);
        let (name, source, compiler, libraries) = *entry.with_context(|| format!("there is no program {name}"))?;
        let mut compiled = self.compiled.borrow_mut();
        let program = compiled.entry(name).or_insert_with(|| {
            let to = self.directory.path().join(name);
            let source = package_directory().map(|package| package.join("c").join(source).with_extension("c"));
            let places = if libraries == ACP || libraries == PM { self.libraries() } else { Ok(Vec::new()) };
            let done = source.and_then(|source| compile(&source, &to, compiler, &places?, libraries));
            done.map(|()| to).map_err(|e| format!("{e:#}"))
        });
        program.clone().map_err(Error::msg)
    }

    /// How a compiler finds libacp and libpm that are built, or installed, with the command.
    fn libraries(&self) -> Result<Vec<String>> {
        let beside = self.vervain.parent().unwrap_or(Path::new("."));
        let roots = [beside.to_owned(), beside.join("..")];
        let root = roots.iter().find(|root| root.join("include/acp.h").is_file());
        let root = root.context("there are no libraries beside the vervain command: run `make build` first")?;
        let lib = root.join("lib").canonicalize()?;
        Ok(vec![
            format!("-I{}", root.join("include").display()),
            format!("-L{}", lib.display()),
            format!("-Wl,-rpath,{}", lib.display()),
        ])
    }

    /// `vervain run` of `program`, with `options` of its own.
    pub fn under_vervain(&self, options: &[&str], program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(&self.vervain);
        command.arg("run").args(options).arg("--").arg(program.as_ref());
        command
    }

    /// `vervain run` of a program of `c/`.
    pub fn ours(&self, program: &str) -> Result<Command> {
        Ok(self.under_vervain(&[], self.program(program)?))
    }
}

fn compile(source: &Path, to: &Path, compiler: Option<&str>, places: &[String], libraries: &[&str]) -> Result<()> {
    compiler.map_or(Ok(()), |wrapper| installed(wrapper, "libopenmpi-dev openmpi-bin libmpich-dev mpich"))?;
    let compiler = compiler.map(Into::into).or_else(|| env::var_os("CC")).unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-o"]).arg(to).args(places).arg(source).args(libraries);
    output(&mut command, None, LIMIT)
        .map(drop)
        .context("compiling a measuring program (Debian: apt install gcc libc6-dev libibverbs-dev)")
}

/// The directory of this package. Cargo tells it at run time, so that no path is built into the program.
pub fn package_directory() -> Result<PathBuf> {
    match env::var_os("CARGO_MANIFEST_DIR") {
        Some(directory) => Ok(directory.into()),
        None => bail!("start this with `make bench` or `cargo run --release --package vervain-benches`"),
    }
}

/// An error if `program` is not there, which names the packages that have it.
pub fn installed(program: &str, packages: &str) -> Result<()> {
    ensure!(tool(program).is_some(), "{program} is not installed (Debian: apt install {packages})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fs;

    #[test]
    fn each_source_is_a_program_and_those_without_libraries_compile() {
        let sources = package_directory().expect("the package").join("c");
        let names = fs::read_dir(&sources).expect("the sources").map(|entry| entry.expect("an entry").path());
        let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "c");
        let stem = |path: PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
        let there: BTreeSet<String> = names.filter(is_source).map(stem).collect();
        let own = PROGRAMS.iter().filter(|program| !program.1.contains('/'));
        assert_eq!(there, own.map(|program| program.1.to_owned()).collect::<BTreeSet<_>>());
        let directory = tempfile::tempdir().expect("a directory");
        for (name, source, ..) in PROGRAMS.iter().filter(|program| program.2.is_none() && program.3.is_empty()) {
            let source = sources.join(source).with_extension("c");
            compile(&source, &directory.path().join(name), None, &[], &[]).expect(name);
        }
    }
}
