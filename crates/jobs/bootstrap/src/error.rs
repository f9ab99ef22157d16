//! Errors: one sentence each, for people.

use std::fmt;
use std::io::{self, Write};

/// The reason why a call failed. As text one sentence, without a full stop, with a remedy if there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

/// The result of the calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(sentence: impl Into<String>) -> Error {
        Error(sentence.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Prints a sentence on standard error in one write: all ranks share what the launcher reads, and `eprintln!` writes
/// piece by piece, between which another rank's line may come.
pub(crate) fn print(sentence: &str) {
    // The program may have closed it.
    let _ = io::stderr().write_all(format!("vervain: {sentence}\n").as_bytes());
}
