//! The error of a call, in one sentence: the call, its object and the errno.

use std::ffi::c_int;
use std::fmt;
use std::io;

/// The reason of a failure. One word in size, so that a `Result` of the hot path stays in registers.
pub struct Error(Box<Kind>);

/// The result of every fallible call of this crate; posting has an error of its own, [`PostError`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

enum Kind {
    /// The library is absent, or lacks a function.
    Library(String),
    /// A call of the library or of the system failed with an errno.
    Call { call: &'static str, about: String, errno: c_int },
    /// An argument that cannot be; nothing was called.
    Invalid(String),
    /// There is no such memory of a GPU, or the device does not reach it: a whole sentence.
    Gpu { what: String, errno: Option<c_int> },
}

impl Error {
    pub(crate) fn library(what: impl Into<String>) -> Self {
        Self(Box::new(Kind::Library(what.into())))
    }

    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self(Box::new(Kind::Invalid(what.into())))
    }

    pub(crate) fn gpu(what: String, errno: Option<c_int>) -> Self {
        Self(Box::new(Kind::Gpu { what, errno }))
    }

    pub(crate) fn call(call: &'static str, about: impl Into<String>, errno: c_int) -> Self {
        Self(Box::new(Kind::Call { call, about: about.into(), errno }))
    }

    /// The error of a call that left its reason in `errno`.
    pub(crate) fn last(call: &'static str, about: impl Into<String>) -> Self {
        Self::call(call, about, errno())
    }

    /// The errno of the call that failed. None if no call was made, or one without errno: a library that is not there,
    /// an impossible argument, an error of the CUDA driver.
    pub fn errno(&self) -> Option<i32> {
        match *self.0 {
            Kind::Call { errno, .. } => Some(errno),
            Kind::Gpu { errno, .. } => errno,
            Kind::Library(_) | Kind::Invalid(_) => None,
        }
    }

    /// The reason without the object: "ibv_reg_mr: Bad address (os error 14)".
    pub(crate) fn cause(&self) -> String {
        match &*self.0 {
            Kind::Call { call, errno, .. } => format!("{call}: {}", io::Error::from_raw_os_error(*errno)),
            _ => self.to_string(),
        }
    }

    /// Returns true if libibverbs itself is missing or too old, so that no device can be had on this machine.
    pub fn is_library(&self) -> bool {
        matches!(*self.0, Kind::Library(_))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Library(what) | Kind::Invalid(what) | Kind::Gpu { what, .. } => f.write_str(what),
            Kind::Call { call, about, errno } => {
                write!(f, "{call} failed for {about}: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::call(error.call, format!("work request {} of the list", error.posted + 1), error.errno)
    }
}

/// The reason why not all of a list of work requests was posted; `ibv_post_send(3)`, `ibv_post_recv(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call} refused work request {} of the list: {}", self.posted + 1, io::Error::from_raw_os_error(self.errno))]
pub struct PostError {
    /// ENOMEM: the queue is full. EINVAL: the request does not fit the QP's type or state.
    pub errno: i32,
    /// The number of requests that were posted: those of the list before the one that failed.
    pub posted: usize,
    pub(crate) call: &'static str,
}

impl PostError {
    /// The result of a call that returned `rc` and posted the first `posted` requests.
    #[cold]
    pub(crate) fn of(call: &'static str, rc: c_int, posted: usize) -> Self {
        Self { errno: code(rc), posted, call }
    }

    /// A request that cannot be posted there; nothing was called.
    #[cold]
    pub(crate) fn misplaced(call: &'static str) -> Self {
        Self { errno: libc::EINVAL, posted: 0, call }
    }

    /// Returns true if the queue had no room; polling the CQ makes some.
    pub fn is_full(&self) -> bool {
        self.errno == libc::ENOMEM
    }
}

/// The calls that answer 0, an errno, or -1 with `errno` set: man pages and providers differ, so both are understood.
pub(crate) fn code(rc: c_int) -> c_int {
    if rc > 0 { rc } else { errno() }
}

/// Checks such an answer.
pub(crate) fn check(rc: c_int, call: &'static str, about: impl FnOnce() -> String) -> Result<()> {
    if rc == 0 { Ok(()) } else { Err(Error::call(call, about(), code(rc))) }
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_the_call_the_object_and_the_errno() {
        let error = check(libc::ENOMEM, "ibv_create_cq", || "a CQ of 7 entries on mlx5_0".into()).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("ibv_create_cq failed for a CQ of 7 entries on mlx5_0: "), "{text}");
        assert!(text.contains("os error 12"), "{text}");
        assert_eq!((error.errno(), error.is_library()), (Some(libc::ENOMEM), false));
    }

    #[test]
    fn a_refused_request_is_named_by_its_place() {
        let error = PostError { errno: libc::ENOMEM, posted: 4, call: "ibv_post_send" };
        assert!(error.is_full() && error.to_string().contains("work request 5"));
        assert!(Error::from(error).to_string().contains("work request 5"));
    }

    #[test]
    fn a_result_of_the_hot_path_fits_registers() {
        assert!(size_of::<Result<usize>>() <= 16);
    }
}
