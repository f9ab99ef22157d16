//! Names that begin as those of Vervain's variables do, but that no code reads: mostly a misspelt one.

use std::ffi::OsString;
use std::fmt;

use crate::table::{TABLE, find};
use crate::variable::{Setter, Variable};

/// The prefix of all of Vervain's variables.
pub const PREFIX: &str = "VERVAIN_";
/// The prefix of variables by which tests talk to their own processes.
const OF_TESTS: &str = "VERVAIN_TEST";

/// A name that begins as Vervain's do, but that no code reads. Its text is one sentence. It is no error: another
/// version may have such a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The name.
    pub name: String,
    /// The variable that was probably meant.
    pub meant: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: unknown variable; ", self.name)?;
        match self.meant {
            Some(meant) => write!(f, "did you mean {meant}?"),
            None => f.write_str("`vervain env --list` lists all"),
        }
    }
}

impl Unknown {
    /// Those of this process's environment.
    pub fn of_process() -> Vec<Unknown> {
        Unknown::among(std::env::vars_os().map(|(name, _)| name))
    }

    /// Those among `names`.
    pub fn among(names: impl Iterator<Item = OsString>) -> Vec<Unknown> {
        let names = names.filter_map(|name| name.into_string().ok());
        let unknown = |name: &String| name.starts_with(PREFIX) && !name.starts_with(OF_TESTS) && find(name).is_none();
        let mut names: Vec<_> = names.filter(unknown).collect();
        names.sort();
        names.into_iter().map(|name| Unknown { meant: near(&name), name }).collect()
    }
}

/// The variable that users set whose name differs least from this one, by a third of its letters at most.
fn near(name: &str) -> Option<&'static str> {
    let written = name.strip_prefix(PREFIX)?;
    let users = TABLE.into_iter().filter(|variable| variable.setter == Setter::User);
    let own = nearest(written, users.filter_map(|variable| variable.name().strip_prefix(PREFIX)))?;
    TABLE.into_iter().map(Variable::name).find(|name| name.strip_prefix(PREFIX) == Some(own))
}

/// The name that differs least from a word, by a third of its letters at most: the one that was probably meant.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = names.map(|name| (strsim::osa_distance(word, name), name.len(), name));
    distances.filter(|(distance, length, _)| distance * 3 <= *length).min().map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_reads_is_told_with_the_one_that_was_meant() {
        let said = |name: &str| Unknown::among([OsString::from(name)].into_iter()).pop().map(|u| u.to_string());
        for (name, meant) in [
            ("VERVAIN_LNK", "VERVAIN_LINK"),
            ("VERVAIN_DEVCIES", "VERVAIN_DEVICES"),
            ("VERVAIN_PORT", "VERVAIN_PORTS"),
            ("VERVAIN_LINKLAYER", "VERVAIN_LINK_LAYER"),
            ("VERVAIN_INTERFACES", "VERVAIN_INTERFACE"),
        ] {
            assert_eq!(said(name), Some(format!("{name}: unknown variable; did you mean {meant}?")));
        }
        let other = said("VERVAIN_FOO");
        assert_eq!(other.as_deref(), Some("VERVAIN_FOO: unknown variable; `vervain env --list` lists all"));
        for known in ["VERVAIN_LINK", "VERVAIN_SYSFS", "VERVAIN_SEED", "VERVAIN_TEST_ALONE", "VERVAINE", "PATH"] {
            assert_eq!(said(known), None);
        }
    }
}
