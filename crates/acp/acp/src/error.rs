//! Errors of the library.

/// The reason why an operation was refused, or why the job cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{sentence}")]
pub struct Error {
    sentence: String,
    refused: bool,
    /// True: a device has not released the memory that was to be registered.
    held: bool,
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error in the arguments: nothing has happened. For libraries above too.
    pub fn refused(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), refused: true, held: false }
    }

    /// A broken job. For libraries above too, for example if memory that peers write to has wrong contents.
    pub fn broken(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), refused: false, held: false }
    }

    /// The same reason, as a refusal of an operation that has not begun.
    pub(crate) fn into_refused(self) -> Self {
        Self { refused: true, ..self }
    }

    /// The same error; unless `free`, the device has not released the memory that was to be registered.
    pub(crate) fn held_unless(self, free: bool) -> Self {
        Self { held: !free, ..self }
    }

    /// Returns true if a device may still access the memory that was to be registered.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Returns true if the arguments were wrong: nothing has happened, and the job goes on. Otherwise it cannot: an
    /// operation that was taken has failed, or a rank is gone.
    pub fn is_refused(&self) -> bool {
        self.refused
    }
}

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
    /// A reason from the program, rather than from an operation.
    fn from(sentence: String) -> Self {
        Self::broken(sentence)
    }
}
