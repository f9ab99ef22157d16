//! Environments: variables that a plan has its workers run with, so that one run holds devices against each other that
//! are chosen by variables, or one device with parts of it left out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::case::words;

/// The word in a value for a file that only the processes that carry out cases together share.
const FILE: &str = "{file}";
/// The folder of such a file if the host has it: the file may be memory that processes share, which is not to be
/// written to a disk.
const MEMORY: &str = "/dev/shm";

words! {
    /// A device of "TCA Verbs" (2015), whose values the report sets beside.
    PaperDevice {
        /// PEACH2 boards, the memory that of the processor.
        Cpu = "tca-cpu",
        /// PEACH2 boards, the memory that of a GPU.
        Gpu = "tca-gpu",
        /// PEACH2 boards, whose descriptors lie in the memory of the host.
        HostDescriptors = "tca-host",
        /// The adapter that the boards were compared with: InfiniBand.
        Other = "tca-other",
    }
}

/// The environment of workers, besides their usual one.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Environment {
    /// Variables. `{file}` in a value is the path of a file that does not exist yet, another one for each pair of
    /// workers and each job.
    pub variables: BTreeMap<String, String>,
    /// Its description, in one line.
    pub note: Option<String>,
    /// The device of TCA Verbs whose values belong beside those in it.
    pub paper: Option<PaperDevice>,
}

impl Environment {
    /// The variables for workers that share their file.
    ///
    /// # Errors
    /// No folder can be made for the file.
    pub fn prepare(&self) -> io::Result<Prepared> {
        let folder = match self.variables.values().any(|value| value.contains(FILE)) {
            true => Some(folder()?),
            false => None,
        };
        let file = folder.as_ref().map_or_else(PathBuf::new, |folder| folder.path().join("file"));
        let variable = |(name, value): (&String, &String)| (name.clone(), with_file(value, &file));
        Ok(Prepared { variables: self.variables.iter().map(variable).collect(), _folder: folder })
    }
}

/// The variables of some workers. Their file is taken away with this: who has it open keeps it, and who is killed
/// leaves nothing.
#[derive(Debug, Default)]
pub struct Prepared {
    /// With the file's path in them.
    pub variables: Vec<(String, OsString)>,
    _folder: Option<TempDir>,
}

fn folder() -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("vervain-bench-");
    if Path::new(MEMORY).is_dir() { builder.tempdir_in(MEMORY) } else { builder.tempdir() }
}

fn with_file(value: &str, file: &Path) -> OsString {
    let mut whole = OsString::new();
    for (i, part) in value.split(FILE).enumerate() {
        if i > 0 {
            whole.push(file);
        }
        whole.push(part);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(&str, &str)]) -> Environment {
        let variables = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment { variables, ..Environment::default() }
    }

    #[test]
    fn a_file_is_one_for_all_variables_and_another_each_time_and_goes() {
        let environment = of(&[("A", "x:{file},y={file}"), ("B", "{file}"), ("C", "plain")]);
        let (first, second) = (environment.prepare().expect("a folder"), environment.prepare().expect("a folder"));
        let value = |of: &Prepared, i: usize| of.variables[i].1.to_str().expect("UTF-8").to_owned();
        let file = value(&first, 1);
        assert_eq!([value(&first, 0), value(&first, 2)], [format!("x:{file},y={file}"), "plain".to_owned()]);
        assert_ne!(file, value(&second, 1));
        let folder = Path::new(&file).parent().expect("a folder").to_owned();
        assert!(folder.is_dir() && !Path::new(&file).exists());
        std::fs::write(&file, "").expect("written");
        drop(first);
        assert!(!folder.exists());
    }

    #[test]
    fn without_a_file_nothing_is_made() {
        let prepared = of(&[("A", "file}")]).prepare().expect("nothing to make");
        assert!(prepared._folder.is_none());
        assert_eq!(prepared.variables, [("A".to_owned(), OsString::from("file}"))]);
    }
}
