//! Errors of the device model: what was wanted and what was found, and the errno that the verbs man pages promise for
//! it.

/// The reason why a call on the device failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    errno: i32,
    what: String,
}

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with the errno `errno` and one clear sentence.
    pub fn new(errno: i32, what: impl Into<String>) -> Self {
        Error { errno, what: what.into() }
    }

    /// EINVAL: an argument that the man page does not allow.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, what)
    }

    /// ENOMEM: a queue is full, or memory for it could not be had.
    pub fn no_memory(what: impl Into<String>) -> Self {
        Self::new(libc::ENOMEM, what)
    }

    /// EOPNOTSUPP: the device does not do this, and says so in its capabilities.
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::new(libc::EOPNOTSUPP, what)
    }

    /// EBUSY: other objects still use this one.
    pub fn busy(what: impl Into<String>) -> Self {
        Self::new(libc::EBUSY, what)
    }

    /// The calling thread's errno, with the call that set it.
    pub fn last_os(what: &str) -> Self {
        let os = std::io::Error::last_os_error();
        Self::new(os.raw_os_error().unwrap_or(libc::EIO), format!("{what}: {os}"))
    }

    /// The errno for the C caller.
    pub fn errno(&self) -> i32 {
        self.errno
    }
}

/// A variable of the environment has a value that it cannot have.
impl From<&vervain_config::Wrong<'_>> for Error {
    fn from(wrong: &vervain_config::Wrong<'_>) -> Self {
        Self::invalid(wrong.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self::new(e.raw_os_error().unwrap_or(libc::EIO), e.to_string())
    }
}
