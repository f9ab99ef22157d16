//! Settings of the job, from its environment.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use vervain_config::bytes;

use crate::error::{Error, Result};

/// Default bytes of the user's starter memory.
const STARTER: u64 = 4096;
/// Bytes of the starter memories of channels and of the data library.
const LIBRARY_STARTER: u64 = 4096;
/// The most bytes of starter memory; a larger number is a mistake.
const MAX_STARTER: u64 = 1 << 40;

/// A minute, plus a few seconds in which a rank that goes on may answer.
const TIMEOUT: Duration = Duration::from_secs(65);
/// The longest timeout, in seconds.
const MAX_TIMEOUT: u64 = 3600;

/// Settings of a job. All ranks must have the same sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of starter memory of each rank: the user's, that of channels, that of the data library
    /// (ACP_STARTER_MEMORY, ACP_STARTER_MEMORY_CL, ACP_STARTER_MEMORY_DL).
    pub starter: [u64; 3],
    /// Connections that a rank keeps at a time (ACP_CONNECTIONS).
    pub connections: usize,
    /// Names of the devices to use, at most two (ACP_DEVICES, separated by commas); empty: those that are present.
    pub devices: Vec<String>,
    /// True: this rank's processor carries out the atomics on its words, as for a device that is not atomic with
    /// processors (ACP_ATOMICS=owner).
    pub owner_atomics: bool,
    /// The most bytes of memory that this rank's heap may have (ACP_HEAP).
    pub heap: u64,
    /// The longest silence of another rank, for example one that is stopped, before the job ends (ACP_TIMEOUT).
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            starter: [STARTER, LIBRARY_STARTER, LIBRARY_STARTER],
            connections: 256,
            devices: vec![],
            owner_atomics: false,
            heap: u64::MAX,
            timeout: TIMEOUT,
        }
    }
}

/// The variables of the starter memories, in the order of [`Settings::starter`].
const STARTERS: [&str; 3] = ["ACP_STARTER_MEMORY", "ACP_STARTER_MEMORY_CL", "ACP_STARTER_MEMORY_DL"];

impl Settings {
    /// The settings that the environment names, and defaults for the rest.
    ///
    /// # Errors
    /// A variable has an invalid value: the sentence names it.
    pub fn from_environment() -> Result<Settings> {
        Self::from(|name| env::var_os(name))
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings> {
        let text = |name: &str| match variable(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) if text.is_empty() => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => Err(Error::refused(format!("{name} is no text"))),
        };
        let mut settings = Self::default();
        for (size, name) in settings.starter.iter_mut().zip(STARTERS) {
            if let Some(text) = text(name)? {
                *size = bytes(text.as_bytes()).filter(|size| *size <= MAX_STARTER).ok_or_else(|| {
                    Error::refused(format!(
                        "{name}={text} is no size: a number of bytes, with k, M or G behind it, up to 1024G"
                    ))
                })?;
            }
        }
        if let Some(text) = text("ACP_HEAP")? {
            settings.heap = bytes(text.as_bytes()).ok_or_else(|| {
                Error::refused(format!("ACP_HEAP={text} is no size: a number of bytes, with k, M or G behind it"))
            })?;
        }
        if let Some(text) = text("ACP_CONNECTIONS")? {
            settings.connections = text.parse().ok().filter(|n| (2..=65_536).contains(n)).ok_or_else(|| {
                Error::refused(format!("ACP_CONNECTIONS={text} is no number of connections: 2 to 65536"))
            })?;
        }
        if let Some(text) = text("ACP_TIMEOUT")? {
            let seconds = text.parse().ok().filter(|seconds| (1..=MAX_TIMEOUT).contains(seconds));
            settings.timeout = seconds.map(Duration::from_secs).ok_or_else(|| {
                Error::refused(format!("ACP_TIMEOUT={text} is no number of seconds: 1 to {MAX_TIMEOUT}"))
            })?;
        }
        if let Some(text) = text("ACP_DEVICES")? {
            settings.devices = text.split(',').map(|name| name.trim().to_owned()).collect();
            if settings.devices.len() > 2 || settings.devices.iter().any(String::is_empty) {
                return Err(Error::refused(format!("ACP_DEVICES={text} is no list of one or two devices")));
            }
        }
        if let Some(text) = text("ACP_ATOMICS")? {
            settings.owner_atomics = match text.as_str() {
                "owner" => true,
                "device" => false,
                _ => return Err(Error::refused(format!("ACP_ATOMICS={text} is neither 'device' nor 'owner'"))),
            };
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::from(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn sizes_are_numbers_with_or_without_a_unit() {
        assert_eq!(of(&[]).unwrap(), Settings::default());
        let set = of(&[("ACP_STARTER_MEMORY", "64k"), ("ACP_STARTER_MEMORY_CL", "0"), ("ACP_STARTER_MEMORY_DL", "2G")]);
        assert_eq!(set.unwrap().starter, [65536, 0, 2 << 30]);
        for wrong in ["-1", "2T", "k", "1.5M", "99999999999999999999", "2048G"] {
            let error = of(&[("ACP_STARTER_MEMORY_CL", wrong)]).unwrap_err().to_string();
            assert!(error.contains("ACP_STARTER_MEMORY_CL") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn devices_and_connections() {
        let set = of(&[("ACP_DEVICES", "a, b"), ("ACP_CONNECTIONS", "2")]).unwrap();
        assert_eq!((set.devices, set.connections), (vec!["a".to_owned(), "b".to_owned()], 2));
        for (name, wrong) in [
            ("ACP_DEVICES", "a,b,c"),
            ("ACP_DEVICES", ","),
            ("ACP_CONNECTIONS", "1"),
            ("ACP_CONNECTIONS", "x"),
            ("ACP_ATOMICS", "cpu"),
            ("ACP_HEAP", "much"),
            ("ACP_TIMEOUT", "0"),
            ("ACP_TIMEOUT", "1.5"),
            ("ACP_TIMEOUT", "3601"),
        ] {
            assert!(of(&[(name, wrong)]).unwrap_err().to_string().contains(wrong), "{name}");
        }
    }

    #[test]
    fn a_rank_may_be_silent_for_a_minute_unless_told_otherwise() {
        let outlasts = |variables, seconds| {
            let options = crate::progress::options(&of(variables).unwrap());
            options.give_up > Duration::from_secs(seconds) && options.silence == options.give_up
        };
        assert!(outlasts(&[], 60));
        assert!(outlasts(&[("ACP_TIMEOUT", "3600")], 3599));
        assert!(!outlasts(&[("ACP_TIMEOUT", "1")], 1));
    }
}
