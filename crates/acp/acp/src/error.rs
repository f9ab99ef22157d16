//! What can go wrong.

use std::fmt;

/// Why an operation was not taken, or why the job cannot go on.
#[derive(Debug, Clone)]
pub struct Error {
    sentence: String,
    refused: bool,
    /// A device has not let go of the memory that was to be registered.
    held: bool,
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Arguments are wrong, and nothing has happened. For libraries above too.
    pub fn refused(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), refused: true, held: false }
    }

    /// The job is broken. For libraries above too, as where memory that peers write to does not have what it should.
    pub fn broken(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), refused: false, held: false }
    }

    /// The reason, for an operation that has not begun.
    pub(crate) fn into_refused(self) -> Self {
        Self { refused: true, ..self }
    }

    /// As it is, and the device has not let go of the memory that was to be registered if it is not `free`.
    pub(crate) fn held_unless(self, free: bool) -> Self {
        Self { held: !free, ..self }
    }

    /// Whether a device may still reach the memory that was to be registered.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Whether the arguments were wrong: nothing has happened, and the job goes on. Otherwise it cannot: an operation
    /// that was taken has failed, or a rank is gone.
    pub fn is_refused(&self) -> bool {
        self.refused
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

impl From<vervain_bootstrap::Error> for Error {
    fn from(error: vervain_bootstrap::Error) -> Self {
        Self::broken(error.to_string())
    }
}

impl From<vervain_rdma::Error> for Error {
    fn from(error: vervain_rdma::Error) -> Self {
        Self::broken(error.to_string())
    }
}

impl From<vervain_rdma::PostError> for Error {
    fn from(error: vervain_rdma::PostError) -> Self {
        Self::broken(error.to_string())
    }
}

impl From<vervain_mesh::Error> for Error {
    fn from(error: vervain_mesh::Error) -> Self {
        Self::broken(error.to_string())
    }
}

impl From<String> for Error {
    /// A reason of the program's own, which is not that of an operation.
    fn from(sentence: String) -> Self {
        Self::broken(sentence)
    }
}
