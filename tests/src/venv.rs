//! Python environments with packages from the package index, made once and kept in `target`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{Job, tool};

/// Downloading and unpacking.
const LIMIT: Duration = Duration::from_secs(300);

/// The Python of an environment that has exactly `packages` (as `name==version`), without what they depend on; None, with a
/// printed reason, where it cannot be made: no Python, no module venv, no network, no wheel for this machine.
///
/// # Panics
/// When `target` cannot be written.
pub fn python_with(packages: &[&str]) -> Option<PathBuf> {
    // One at a time: tests that want the same environment find it made.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(python) = tool("python3") else {
        crate::skip("this machine has no python3");
        return None;
    };
    let version = Command::new(&python).arg("--version").output().map(|o| o.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version).trim().replace(' ', "-");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp/vervain-venv");
    let name = format!("{version}-{}", packages.join("-"));
    // Under a name of this process first: an environment that is there is complete.
    let (made, partial) = (root.join(&name), root.join(format!("{name}.{}", std::process::id())));
    if !made.is_dir() {
        std::fs::create_dir_all(&root).expect("a directory for Python environments");
        if let Err(why) = make(&python, &partial, packages) {
            crate::skip(format_args!("no {}: {why}", packages.join(", ")));
            let _ = std::fs::remove_dir_all(&partial);
            return None;
        }
        // Another run may have been faster.
        if std::fs::rename(&partial, &made).is_err() {
            let _ = std::fs::remove_dir_all(&partial);
        }
    }
    Some(made.join("bin/python"))
}

fn make(python: &Path, at: &Path, packages: &[&str]) -> Result<(), String> {
    let run = |command: &mut Command| {
        let end = Job::start(command).finish(LIMIT);
        let last = end.output.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no word why");
        if end.success() { Ok(()) } else { Err(last.trim().to_owned()) }
    };
    run(Command::new(python).args(["-m", "venv"]).arg(at))?;
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"];
    let wheels_only = ["--no-deps", "--only-binary", ":all:"];
    run(Command::new(at.join("bin/python")).args(install).args(wheels_only).args(packages))
}
