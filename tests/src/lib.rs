//! The harness of the whole-program tests: finds the built command, runs programs under it with a deadline and in a
//! process group of their own, pairs servers with clients, compiles the C programs of `tests/c`, and finds what was downloaded.
//!
//! Nothing here knows verbs; what a run must print is said in `tests/tests/*.rs`. A tool that the machine lacks makes
//! a test a skipped one, with the reason ([`skip`]); a product that was not built makes it fail with one sentence.

pub mod acp;
pub mod acp_maps;
pub mod acp_rank;
pub mod callgrind;
mod compile;
pub mod container;
pub mod counters;
mod fetched;
pub mod guest;
pub mod kernels;
mod leftovers;
pub mod matrix;
pub mod mesh;
pub mod moved;
pub mod mpi;
pub mod netns;
pub mod packages;
pub mod pairs;
pub mod pm;
mod process;
pub mod pyverbs;
pub mod rank;
mod runs;
pub mod scarce;
pub mod sequences_rank;
pub mod slurm;
pub mod supervised;
pub mod ucx;
pub mod wheel;
pub mod windows;
pub mod wire;

pub use compile::{
    acp_program, app_over_pm, app_program, bench_program, c_program, c_program_with, failure, have_c, have_cm,
    mpi_program, must_be_clean, must_hold, pm_example, pm_program, sanitized_program, stand_in,
};
pub use fetched::fetched;
pub use leftovers::Leftovers;
pub use mpi::{MPICH, Mpi, OPEN_MPI};
pub use process::{Finished, Job, free_port, listeners};
pub use runs::Runs;
pub use vervain_skip::skip;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The `vervain` command under test: `$VERVAIN_BIN`, else that of the tests' own build, which lies above the test program.
///
/// # Panics
/// When there is none.
pub fn vervain() -> PathBuf {
    let path = std::env::var_os("VERVAIN_BIN").map_or_else(
        || {
            let program = std::env::current_exe().expect("this program");
            let mut above = program.ancestors().skip(1).take(2).map(|directory| directory.join("vervain"));
            above.find(|path| path.is_file()).unwrap_or_default()
        },
        PathBuf::from,
    );
    assert!(path.is_file() && library(&path).is_some(), "Vervain is not built: run make build-checked");
    path
}

/// Whether this is `make check`, which tests every way of every program. The gate (`make test`) takes one way for each mechanism.
pub fn is_whole() -> bool {
    std::env::var("VERVAIN_TESTS_WHOLE").is_ok_and(|value| value == "1")
}

/// The library directory that belongs to a command: beside it, or in `../lib` of an installation.
fn library(command: &Path) -> Option<PathBuf> {
    let dir = command.parent()?;
    [dir.join("lib/vervain"), dir.join("../lib/vervain")].into_iter().find(|lib| lib.join("libibverbs.so.1").exists())
}

/// The directory of Vervain's libraries.
///
/// # Panics
/// When there is none.
pub fn libraries() -> PathBuf {
    library(&vervain()).expect("`vervain` has looked")
}

/// `vervain run -- program`, with none of this process's Vervain variables.
pub fn under_vervain(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = unswayed(vervain());
    command.arg("run").arg("--").arg(program);
    command
}

/// A program with none of this process's Vervain variables.
pub fn unswayed(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VERVAIN_") {
            command.env_remove(name);
        }
    }
    command
}

/// The variables that leave one way to a peer's memory: `auto`, the best there is; `vm` and `owner`, that one for all
/// memory, however it was allocated; `shared`, for the C programs, memory in an object of their own that peers map
/// (`tests/c/vt_share.c`); `adopt`, private memory that is shared while it is registered; `local`, the best, on ports that
/// no network stands behind; `roce`, packets; `window`, rings in memory that peers write and do not read; `write_only`, such
/// memory that the kernel lets peers write only; `peach2`, memory that boards write, with the program's in it; `peach2-timed`, in the time
/// that they take.
pub fn way(name: &str) -> Vec<(&'static str, &str)> {
    match name {
        "auto" => vec![("VERVAIN_MEMORY", "auto")],
        "shared" => vec![("VT_SHARED", "1")],
        "local" => vec![("VERVAIN_LINK", "local")],
        "adopt" => vec![("VERVAIN_ADOPT", "on"), ("VERVAIN_SHARE", "off")],
        // No memory at all: packets, over the loopback interface.
        "roce" => vec![("VERVAIN_LINK", "roce"), ("VERVAIN_INTERFACE", "lo")],
        "window" => vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", windows::memory())],
        // With the program's memory in it, so that others put where it belongs.
        "window-heap" => vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", windows::memory_with_heap())],
        "write_only" => vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", windows::folder())],
        "peach2" => vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", windows::boards(""))],
        "peach2-timed" => vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", windows::boards(",timing=on"))],
        other => vec![("VERVAIN_MEMORY", other), ("VERVAIN_SHARE", "off")],
    }
}

/// The path of a tool, found in `$PATH` and the directories of administrators' tools.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// Whether all tools exist; prints which are missing, and that the test is skipped for it.
pub fn have(tools: &[&str]) -> bool {
    let missing: Vec<_> = tools.iter().filter(|t| tool(t).is_none()).copied().collect();
    if !missing.is_empty() {
        skip(format_args!("this machine has no {}", missing.join(", ")));
    }
    missing.is_empty()
}

/// Who has the machine: one test for itself, or tests that leave it idle.
static TURN: RwLock<()> = RwLock::new(());

/// Held by tests that measure time or need the machine for themselves: within one test binary they run one by one.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by tests that mostly wait, and not for long enough beside one that is [`alone`].
pub fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `one` for each item, `at_once` of them beside each other: for runs that mostly wait. Its threads have the name of the
/// test, which skips are counted by.
pub fn side_by_side<T: Sync>(at_once: usize, items: &[T], one: impl Fn(&T) + Sync) {
    let (next, one) = (AtomicUsize::new(0), &one);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            one(item);
        }
    };
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(items.len()) {
            let thread = std::thread::Builder::new().name(name.clone());
            thread.spawn_scoped(scope, work).expect("a thread");
        }
    });
}

/// Collects what went wrong over many runs of one test, so that one failure does not hide the next.
#[derive(Default)]
pub struct Failures(Vec<String>);

impl Failures {
    /// Notes a failure of the run called `what`.
    pub fn add(&mut self, what: &str, why: impl AsRef<str>) {
        self.0.push(format!("== {what}\n{}", why.as_ref()));
    }

    /// Fails the test when anything was noted.
    ///
    /// # Panics
    /// When anything was noted.
    pub fn assert_none(self) {
        assert!(self.0.is_empty(), "{} of the runs failed:\n{}", self.0.len(), self.0.join("\n"));
    }
}
