//! Notes of what the command is built, for `vervain --version`: the commit of the sources, the target, and the features
//! of the CPU that the compiler takes for granted. It runs again when the tree's HEAD moves, and with it this crate is
//! compiled again, on which no other depends.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../../..");
    println!("cargo:rustc-env=BUILD_COMMIT={}", commit(&root).unwrap_or_else(|| "unknown".to_owned()));
    println!("cargo:rustc-env=BUILD_TARGET={}", variable("TARGET"));
    println!("cargo:rustc-env=BUILD_CPU_FEATURES={}", variable("CARGO_CFG_TARGET_FEATURE").replace(',', " "));
}

/// The commit of the tree at `root`, with "+dirty" if a tracked file differs from it; None if git knows of none. A tree
/// that was unpacked below another project's has no commit.
fn commit(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    // Git names the paths, since a worktree has its own. The log of HEAD grows with every commit and checkout, also if
    // HEAD keeps the name of its branch; without a log, that branch's own file changes. Cargo would take a file that is
    // not there for one that always changes.
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD"].into_iter().chain(branch.as_deref()) {
        let path = root.join(git(root, &["rev-parse", "--git-path", name])?);
        if path.is_file() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(root, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { commit + "+dirty" })
}

/// The output of git, without the newline; None if it fails or is not there.
fn git(root: &Path, words: &[&str]) -> Option<String> {
    // It may write to the index otherwise, and another git may be at work in this tree.
    let output = Command::new("git").arg("--no-optional-locks").arg("-C").arg(root).args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
