//! Errors: one sentence each, for people.

use std::io::{self, Write};

/// The reason why a call failed. As text one sentence, without a full stop, with a remedy if there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The result of the calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(sentence: impl Into<String>) -> Error {
        Error(sentence.into())
    }
}

/// Prints a sentence on standard error in one write: all ranks share what the launcher reads, and `eprintln!` writes
/// piece by piece, between which another rank's line may come.
pub(crate) fn print(sentence: &str) {
    // The program may have closed it.
    let _ = io::stderr().write_all(format!("vervain: {sentence}\n").as_bytes());
}
