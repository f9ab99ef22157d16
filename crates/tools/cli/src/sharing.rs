//! The check that programs allocate from shared memory. A child process that has the preload tries: it allocates, and
//! asks the preload for the place of the memory.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use vervain_share::api::{Entry, KIND_MEMFD, KIND_WINDOW, Place, SYMBOL, ShareApi, VERSION};

use crate::{environment, libs, output};

/// Bytes that the child allocates: large enough for any threshold.
const TRIED: usize = 4 << 20;

/// The findings of a process under the preload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// Its large allocations lie in a sealed memfd.
    Served,
    /// They lie in a window.
    InWindow,
    /// The preload serves none: sharing is off, or the machine refuses it.
    Off,
    /// The preload knows nothing of sharing, or was not loaded.
    Absent,
    /// The preload is another version's.
    OtherVersion,
}

impl Serving {
    const ALL: [Serving; 5] =
        [Serving::Served, Serving::InWindow, Serving::Off, Serving::Absent, Serving::OtherVersion];

    fn word(self) -> &'static str {
        match self {
            Serving::Served => "served",
            Serving::InWindow => "in-window",
            Serving::Off => "off",
            Serving::Absent => "absent",
            Serving::OtherVersion => "other-version",
        }
    }
}

/// Asks a child in the environment that `vervain run` gives with the libraries of `dir`.
pub fn under(dir: &Path) -> Result<Serving> {
    let preload = dir.join(libs::PRELOAD);
    ensure!(preload.is_file(), "{} is missing", preload.display());
    let child = Command::new(env::current_exe()?)
        .arg("sharing")
        .env("LD_LIBRARY_PATH", environment::library_path(dir, env::var_os("LD_LIBRARY_PATH").as_deref()))
        .env("LD_PRELOAD", environment::preload(dir, env::var_os("LD_PRELOAD").as_deref()))
        .stdin(Stdio::null())
        .output()
        .context("cannot start a second process")?;
    ensure!(child.status.success(), "the second process failed: {}", String::from_utf8_lossy(&child.stderr).trim());
    parse(&String::from_utf8_lossy(&child.stdout))
}

fn parse(answer: &str) -> Result<Serving> {
    let found = Serving::ALL.into_iter().find(|s| s.word() == answer.trim());
    found.with_context(|| format!("the second process answered '{}'", answer.trim()))
}

/// The child's side: prints what it finds.
pub fn look() -> Result<ExitCode> {
    output::print(&format!("{}\n", found().word()))
}

fn found() -> Serving {
    // SAFETY: looks a name up in the libraries that are loaded.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SYMBOL.as_ptr()) };
    if symbol.is_null() {
        return Serving::Absent;
    }
    // SAFETY: the name is this project's own, and stands for a function of this type (`vervain_share::api`); the table
    // that it returns is null or lives as long as the process.
    let api = unsafe {
        let table = std::mem::transmute::<*mut libc::c_void, Entry>(symbol);
        table().as_ref()
    };
    let Some(api) = api else { return Serving::Off };
    if api.version != VERSION || (api.size as usize) < size_of::<ShareApi>() {
        return Serving::OtherVersion;
    }
    let memory = vec![0u8; TRIED];
    let mut place = Place::default();
    // SAFETY: the function only looks up the range and fills the struct on this stack.
    let rc = unsafe { (api.find)(memory.as_ptr().addr(), TRIED, &raw mut place) };
    match place.kind {
        KIND_MEMFD if rc == 0 => Serving::Served,
        KIND_WINDOW if rc == 0 => Serving::InWindow,
        _ => Serving::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childs_answer_is_a_word() {
        for s in Serving::ALL {
            assert_eq!(parse(&format!("{}\n", s.word())).unwrap(), s);
        }
        assert!(parse("").is_err());
    }
}
