//! What went wrong: one sentence, for people.

use std::fmt;

/// Why a call failed. As text one sentence, without a full stop, that says what to do where there is something to be
/// done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(String);

/// What the calls of this crate return.
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
