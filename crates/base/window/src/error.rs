//! Errors of windows: a sentence about what was found, and the errno for it.

use std::fmt;
use std::io;

/// A window, or a part of it, could not be provided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    errno: i32,
    what: String,
}

/// Result of every fallible call of this crate but puts.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with this errno and sentence.
    pub fn new(errno: i32, what: impl Into<String>) -> Self {
        Error { errno, what: what.into() }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, what)
    }

    /// The kernel's error for a call; EIO if it has no errno.
    pub(crate) fn of(what: impl fmt::Display, error: impl Into<io::Error>) -> Self {
        let error: io::Error = error.into();
        Self::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {error}"))
    }

    /// The errno for a C caller.
    pub fn errno(&self) -> i32 {
        self.errno
    }
}
