//! Errors: one sentence each, for people.

use std::fmt;

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
