//! Errors: one sentence each, for people.

/// The reason why a call failed, or why the job cannot go on. As text one sentence, without a full stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// The result of the calls of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Error {
        Error(sentence.into())
    }
}

impl From<vervain_rdma::Error> for Error {
    fn from(error: vervain_rdma::Error) -> Error {
        Error(error.to_string())
    }
}

impl From<vervain_rdma::PostError> for Error {
    fn from(error: vervain_rdma::PostError) -> Error {
        Error(error.to_string())
    }
}

impl From<vervain_bootstrap::Error> for Error {
    fn from(error: vervain_bootstrap::Error) -> Error {
        Error(error.to_string())
    }
}
