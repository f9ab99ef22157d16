//! Errors: an errno value, as the functions of C return, and a sentence.

use std::borrow::Cow;
use std::fmt;

/// The reason why a call did nothing.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{sentence}")]
pub struct Error {
    errno: i32,
    sentence: Cow<'static, str>,
}

/// A result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a sentence that is made for it.
    #[cold]
    pub fn new(errno: i32, sentence: impl Into<String>) -> Self {
        Self { errno, sentence: Cow::Owned(sentence.into()) }
    }

    /// One that costs nothing: for what a program asks over and over.
    pub(crate) const fn plain(errno: i32, sentence: &'static str) -> Self {
        Self { errno, sentence: Cow::Borrowed(sentence) }
    }

    /// An argument that cannot be.
    #[cold]
    pub(crate) fn invalid(sentence: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, sentence)
    }

    /// The device or the launcher has failed.
    #[cold]
    pub(crate) fn broken(sentence: impl fmt::Display) -> Self {
        Self::new(libc::EIO, sentence.to_string())
    }

    /// The errno value.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// The sentence, where it was not made for this error: it can be kept without a copy.
    pub fn as_static(&self) -> Option<&'static str> {
        match self.sentence {
            Cow::Borrowed(sentence) => Some(sentence),
            Cow::Owned(_) => None,
        }
    }

    /// Returns true if the same call may succeed later without anything being changed: ENOBUFS or EBUSY.
    pub fn is_temporary(&self) -> bool {
        matches!(self.errno, libc::ENOBUFS | libc::EBUSY)
    }
}

macro_rules! broken_by {
    ($($source:ty),+) => {
        $(impl From<$source> for Error {
            fn from(error: $source) -> Self {
                Self::broken(error)
            }
        })+
    };
}

broken_by!(vervain_bootstrap::Error, vervain_mesh::Error, vervain_rdma::Error, vervain_rdma::PostError);
