//! The place of Vervain's libraries: beside the command. No other place is searched, so that a command never runs with
//! another version's library.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{StatVfsMountFlags, statvfs};

/// The verbs library's file in the library directory.
pub const LIBIBVERBS: &str = "libibverbs.so.1";
/// The connection manager's file in the library directory.
pub const LIBRDMACM: &str = "librdmacm.so.1";
/// The preload library's file in the library directory.
pub const PRELOAD: &str = "libvervain_preload.so";
/// ThreadSanitizer's suppressions in the library directory.
pub const TSAN_SUPPRESSIONS: &str = "tsan.supp";
/// Valgrind's suppressions there.
pub const VALGRIND_SUPPRESSIONS: &str = "valgrind.supp";

/// The library directory: `given`, else `lib/vervain` beside the command, else `../lib/vervain` (installed).
pub fn directory(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(dir) => first_with_library(&[dir.to_owned()]),
        None => {
            let exe = env::current_exe().context("cannot tell where this command lies (is /proc mounted?)")?;
            let dir = exe.parent().unwrap_or(Path::new("/"));
            first_with_library(&[dir.join("lib/vervain"), dir.join("../lib/vervain")])
        }
    }
}

fn first_with_library(dirs: &[PathBuf]) -> Result<PathBuf> {
    for dir in dirs {
        if dir.join(LIBIBVERBS).is_file() {
            let dir = dir.canonicalize().with_context(|| format!("cannot resolve {}", dir.display()))?;
            return loadable(expressible(dir)?);
        }
    }
    let looked: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
    bail!("{LIBIBVERBS} is missing: looked in {} (`make build` puts it beside the command)", looked.join(" and "))
}

/// LD_LIBRARY_PATH separates by colon and semicolon, without an escape (ld.so(8)); `$` starts a token such as $ORIGIN.
fn expressible(dir: PathBuf) -> Result<PathBuf> {
    match dir.to_string_lossy().chars().find(|c| matches!(c, ':' | ';' | '$')) {
        Some(c) => bail!(
            "the library directory {} has a '{c}' in its path, which LD_LIBRARY_PATH cannot express",
            dir.display()
        ),
        None => Ok(dir),
    }
}

/// The dynamic linker maps libraries executable, which the kernel refuses on a filesystem mounted noexec (mmap(2),
/// EPERM).
fn loadable(dir: PathBuf) -> Result<PathBuf> {
    let noexec = statvfs(&dir).is_ok_and(|of| of.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if noexec {
        bail!(
            "no library can be loaded from {}: its filesystem is mounted noexec; install Vervain elsewhere",
            dir.display()
        );
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_first_directory_that_has_the_library_is_taken() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::create_dir_all(&a).unwrap();
        fs::create_dir_all(&b).unwrap();
        fs::write(b.join(LIBIBVERBS), "").unwrap();
        assert_eq!(first_with_library(&[a.clone(), b.clone()]).unwrap(), b.canonicalize().unwrap());
        fs::write(a.join(LIBIBVERBS), "").unwrap();
        assert_eq!(first_with_library(&[a.clone(), b]).unwrap(), a.canonicalize().unwrap());
    }

    #[test]
    fn missing_libraries_are_told_with_every_place() {
        let e = first_with_library(&["/nowhere/a".into(), "/nowhere/b".into()]).unwrap_err().to_string();
        assert!(e.contains("/nowhere/a and /nowhere/b"), "{e}");
    }

    #[test]
    fn a_colon_in_the_path_is_refused() {
        assert!(expressible("/opt/a:b".into()).is_err());
        assert!(expressible("/opt/a b".into()).is_ok());
    }
}
