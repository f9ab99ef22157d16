//! Unix sockets between the processes of one user on one host, and the user by whom they know each other.

pub mod socket;
pub mod unix;
pub mod user;

use vervain_hca::Error;

/// An errno of rustix as an error of the device.
pub fn os_error(what: &str, e: rustix::io::Errno) -> Error {
    Error::new(e.raw_os_error(), format!("{what}: {}", std::io::Error::from(e)))
}
