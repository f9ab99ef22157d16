//! Random numbers from the system.

use crate::error::{Error, Result};

/// A random word.
pub(crate) fn word() -> Result<u64> {
    let mut word = [0; 8];
    fill(&mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// Fills `bytes` with random ones.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| Error::new(libc::EIO, format!("no random numbers: {e}")))
}
