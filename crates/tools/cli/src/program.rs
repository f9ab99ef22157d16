//! The program that `vervain run` starts: where it is, which ELF file the kernel really executes for it (scripts are
//! followed to their interpreter), and whether the environment reaches it at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use vervain_elf as elf;

use crate::libs;

/// The reason why there is nothing to execute.
#[derive(Debug, thiserror::Error)]
pub enum NotRunnable {
    /// Exit status 127.
    #[error("{0}")]
    NotFound(String),
    /// Exit status 126.
    #[error("{0}")]
    NotExecutable(String),
}

/// Finds `name` the way execvp(3) does: as a path if it has a slash, else in PATH.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotRunnable> {
    let shown = name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        return executable(Path::new(name)).map(|()| PathBuf::from(name)).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                NotRunnable::NotFound(format!("{shown} does not exist"))
            }
            _ => NotRunnable::NotExecutable(format!("cannot execute {shown}: {e}")),
        });
    }
    let mut refused = None;
    for dir in path.unwrap_or(OsStr::new("/bin:/usr/bin")).as_bytes().split(|&b| b == b':') {
        // An empty entry of PATH is the working directory.
        let dir = if dir.is_empty() { b".".as_slice() } else { dir };
        let candidate = Path::new(OsStr::from_bytes(dir)).join(name);
        match executable(&candidate) {
            Ok(()) if !name.is_empty() => return Ok(candidate),
            // A directory of PATH that may not be searched hides nothing that could be run.
            Err(e) if candidate.exists() => refused = refused.or(Some((candidate, e))),
            _ => {}
        }
    }
    Err(match refused {
        Some((path, e)) => NotRunnable::NotExecutable(format!("cannot execute {}: {e}", path.display())),
        None => NotRunnable::NotFound(format!("program '{shown}' was not found in PATH")),
    })
}

fn executable(path: &Path) -> io::Result<()> {
    let denied = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if fs::metadata(path)?.is_dir() {
        return denied("it is a directory");
    }
    match rustix::fs::access(path, rustix::fs::Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::ACCESS) => denied("it is not executable (chmod +x)"),
        Err(e) => Err(e.into()),
    }
}

/// The file that the kernel executes in the end.
#[derive(Debug)]
pub struct Executed {
    pub path: PathBuf,
    pub elf: elf::Elf,
}

/// Follows `program` through `#!` lines to the ELF file behind it; None if that cannot be found out.
pub fn executed(program: &Path, path: Option<&OsStr>) -> Option<Executed> {
    let mut file = program.to_owned();
    // Linux follows four nested interpreters; env(1) may add one of ours for each.
    for _ in 0..8 {
        if let Some(elf) = elf::read(&file).ok()? {
            return Some(Executed { path: file, elf });
        }
        file = match interpreter(&file)? {
            (env, Some(name)) if env.file_name() == Some(OsStr::new("env")) => find(&name, path).ok()?,
            (interpreter, _) => interpreter,
        };
    }
    None
}

/// The interpreter of a script, and for `#!/usr/bin/env NAME` the name that env looks for.
fn interpreter(script: &Path) -> Option<(PathBuf, Option<OsString>)> {
    let mut line = Vec::new();
    // The kernel reads 256 bytes (BINPRM_BUF_SIZE).
    BufReader::new(File::open(script).ok()?.take(256)).read_until(b'\n', &mut line).ok()?;
    let Some(line) = line.strip_prefix(b"#!") else {
        // execvp(3) hands a file of no known format to the shell.
        return Some((PathBuf::from("/bin/sh"), None));
    };
    let mut words = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty());
    let interpreter = PathBuf::from(OsString::from_vec(words.next()?.to_vec()));
    let name = words.find(|w| !w.starts_with(b"-") && !w.contains(&b'='));
    Some((interpreter, name.map(|n| OsString::from_vec(n.to_vec()))))
}

impl Executed {
    /// The reason why ld.so will not see LD_LIBRARY_PATH and LD_PRELOAD (AT_SECURE), if so.
    pub fn secure(&self) -> Option<&'static str> {
        let meta = fs::metadata(&self.path).ok()?;
        // Under no_new_privs the kernel ignores all three.
        if rustix::thread::no_new_privs().unwrap_or(false) {
            return None;
        }
        gains_ids(&meta).or_else(|| self.has_capabilities().then_some("has file capabilities"))
    }

    fn has_capabilities(&self) -> bool {
        // Root has them anyway, so nothing is gained and AT_SECURE stays clear (capabilities(7)).
        !rustix::process::geteuid().is_root()
            && rustix::fs::getxattr(&self.path, "security.capability", &mut [0_u8; 64]).is_ok()
    }

    /// Reasons, each a sentence, why this program will not get the libibverbs in `dir`.
    pub fn obstacles(&self, dir: &Path) -> Vec<String> {
        let shown = self.path.display();
        if let Some(why) = self.secure() {
            return vec![format!(
                "{shown} {why}: the dynamic linker ignores LD_LIBRARY_PATH and LD_PRELOAD, so it gets the system's \
                 libibverbs (run a copy without that)"
            )];
        }
        if !self.elf.native {
            return vec![format!("{shown} is built for another machine than Vervain's libraries and cannot load them")];
        }
        // The dynamic linker has no interpreter either. The program that it is to load is one of its arguments.
        if self.is_dynamic_linker() {
            return Vec::new();
        }
        let Some(interpreter) = &self.elf.interpreter else {
            return vec![format!("{shown} is statically linked: no library of Vervain's reaches it")];
        };
        if interpreter.to_string_lossy().contains("ld-musl") {
            return vec![format!("{shown} uses musl; Vervain's libraries are built for the GNU C library")];
        }
        self.overriding_rpath(dir).into_iter().collect()
    }

    /// Returns true if it is the GNU C library's `ld.so`, by the name of its file: ld-linux-x86-64.so.2, or ld-2.31.so.
    fn is_dynamic_linker(&self) -> bool {
        let file = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        self.elf.interpreter.is_none()
            && (name.starts_with("ld-linux") || name.starts_with("ld-2.") && name.ends_with(".so"))
    }

    /// DT_RPATH wins over LD_LIBRARY_PATH, unless the file has a DT_RUNPATH, which makes ld.so ignore DT_RPATH.
    fn overriding_rpath(&self, dir: &Path) -> Option<String> {
        if !self.elf.runpath.is_empty() {
            return None;
        }
        let file = self.path.canonicalize().ok()?;
        let places = self.elf.rpath.iter().map(|entry| elf::expand_origin(entry, file.parent().unwrap_or(&file)));
        let other = places.map(|p| p.join(libs::LIBIBVERBS)).find(|p| p.exists())?;
        let ours = dir.join(libs::LIBIBVERBS);
        (other.canonicalize().ok() != ours.canonicalize().ok()).then(|| {
            format!(
                "{} has a DT_RPATH, which wins over LD_LIBRARY_PATH: it gets {} (remove it with `patchelf \
                 --remove-rpath` or `chrpath -d` on a copy)",
                self.path.display(),
                other.display()
            )
        })
    }
}

fn gains_ids(meta: &Metadata) -> Option<&'static str> {
    let mode = meta.permissions().mode();
    if mode & 0o4000 != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
        return Some("is set-user-ID");
    }
    // Without group execute permission the bit means mandatory locking.
    if mode & 0o2010 == 0o2010 && meta.gid() != rustix::process::getegid().as_raw() {
        return Some("is set-group-ID");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn path_is_searched_in_order_and_for_executables_only() {
        let tmp = tempfile::tempdir().unwrap();
        for dir in ["a", "b"] {
            fs::create_dir(tmp.path().join(dir)).unwrap();
        }
        write(&tmp.path().join("a/tool"), "", 0o644);
        write(&tmp.path().join("b/tool"), "", 0o755);
        let path = OsString::from(format!("{0}/a:{0}/b", tmp.path().display()));
        // Root may execute a file only if some x bit is set, so this holds for root too.
        assert_eq!(find(OsStr::new("tool"), Some(&path)).unwrap(), tmp.path().join("b/tool"));
        fs::remove_file(tmp.path().join("b/tool")).unwrap();
        assert!(matches!(find(OsStr::new("tool"), Some(&path)), Err(NotRunnable::NotExecutable(_))));
        assert!(matches!(find(OsStr::new("nothing"), Some(&path)), Err(NotRunnable::NotFound(_))));
    }

    #[test]
    fn a_directory_is_not_executable() {
        assert!(matches!(find(OsStr::new("/tmp"), None), Err(NotRunnable::NotExecutable(_))));
    }

    #[test]
    fn scripts_are_followed_to_the_interpreter() {
        let tmp = tempfile::tempdir().unwrap();
        let (outer, inner, env) = (tmp.path().join("outer"), tmp.path().join("inner"), tmp.path().join("env-script"));
        write(&inner, "#!/bin/sh -e\n", 0o755);
        write(&outer, &format!("#! {}\n", inner.display()), 0o755);
        write(&env, "#!/usr/bin/env -S sh -e\n", 0o755);
        assert_eq!(executed(&outer, None).unwrap().path, Path::new("/bin/sh"));
        assert_eq!(executed(&env, None).unwrap().path, Path::new("/bin/sh"));
    }

    #[test]
    fn an_interpreter_that_names_itself_ends() {
        let tmp = tempfile::tempdir().unwrap();
        let script = tmp.path().join("loop");
        write(&script, &format!("#!{}\n", script.display()), 0o755);
        assert!(executed(&script, None).is_none());
    }

    #[test]
    fn a_plain_program_has_no_obstacles() {
        let executed = executed(Path::new("/bin/sh"), None).unwrap();
        assert!(executed.obstacles(Path::new("/nowhere")).is_empty());
    }

    #[test]
    fn the_dynamic_linker_is_not_taken_for_a_static_program() {
        let linker = executed(Path::new("/bin/sh"), None).unwrap().elf.interpreter.unwrap();
        let executed = executed(&linker, None).unwrap();
        assert!(executed.elf.interpreter.is_none());
        assert_eq!(executed.obstacles(Path::new("/nowhere")), [""; 0]);
        let other = Executed { path: "/nowhere/tool".into(), elf: executed.elf };
        assert!(other.obstacles(Path::new("/nowhere"))[0].contains("statically linked"));
    }
}
