//! The versioned symbols of a built library, for the tests of the cdylibs: what `readelf` sees is what ld.so sees.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The names with versions (`f@@NODE`, `f@NODE`) that the library at `path` defines.
///
/// # Errors
/// When readelf (of binutils, which every linker set-up has) cannot be run or does not like the file.
pub fn versioned_exports(path: &Path) -> Result<BTreeSet<String>, String> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(path)
        .output()
        .map_err(|e| format!("readelf: {e}"))?;
    if !output.status.success() {
        return Err(format!("readelf {}: {}", path.display(), String::from_utf8_lossy(&output.stderr)));
    }
    // Columns: number, value, size, type, binding, visibility, section, name. The nodes themselves are ABS symbols in
    // GNU ld's libraries; lld makes none.
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|c| c.len() >= 8 && c[6] != "UND" && c[6] != "ABS" && c[6] != "Ndx")
        .map(|c| c[7].to_owned())
        .collect())
}

/// Builds the cdylib `name` of `package` as the running test was built, and says where it is. `cargo test` itself builds
/// libraries only that a test can link.
///
/// # Errors
/// When cargo fails.
pub fn built_library(name: &str, package: &str) -> Result<PathBuf, String> {
    let exe = env::current_exe().map_err(|e| e.to_string())?;
    // The test is <target>/<profile>/deps/<test>-<hash>.
    let profile_dir = exe.ancestors().nth(2).ok_or("the test has no directory")?;
    let target_dir = profile_dir.parent().ok_or("the test has no target directory")?;
    let profile = match profile_dir.file_name().and_then(|p| p.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", package, "--profile", profile, "--target-dir"])
        .arg(target_dir)
        .output()
        .map_err(|e| format!("cargo: {e}"))?;
    if output.status.success() {
        Ok(profile_dir.join(name))
    } else {
        Err(format!("cargo build: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The lines of lists of exports, without comments.
///
/// # Errors
/// When a list cannot be read.
pub fn expected_exports(lists: &[PathBuf]) -> Result<BTreeSet<String>, String> {
    let mut all = BTreeSet::new();
    for list in lists {
        let text = fs::read_to_string(list).map_err(|e| format!("{}: {e}", list.display()))?;
        all.extend(text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned));
    }
    Ok(all)
}

/// Compares the library `name` of `package` with the lists in the package's `tests/data`.
///
/// # Errors
/// Says which exports are missing and which are too many.
pub fn check_exports(name: &str, package: &str, manifest_dir: &str) -> Result<(), String> {
    let data = Path::new(manifest_dir).join("tests/data");
    let expected = expected_exports(&[data.join("exports-v44.txt"), data.join("exports-newer.txt")])?;
    let found = versioned_exports(&built_library(name, package)?)?;
    let missing: Vec<_> = expected.difference(&found).collect();
    let surplus: Vec<_> = found.difference(&expected).collect();
    if missing.is_empty() && surplus.is_empty() {
        Ok(())
    } else {
        Err(format!("{name}: missing {missing:?}, too many {surplus:?}"))
    }
}
