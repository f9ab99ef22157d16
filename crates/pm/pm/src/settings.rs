//! The settings of a context, from its environment and the arguments of `pmOpenDevice`.

use std::env;
use std::ffi::OsString;

use vervain_config::bytes;

use crate::error::{Error, Result};

/// How a context is set up. All nodes must have the same MTU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of all send buffers (PM_SEND_BUFFER), 4 MiB unless said otherwise.
    pub send_bytes: usize,
    /// Bytes of all receive buffers (PM_RECEIVE_BUFFER), which all who send share; 8 MiB unless said otherwise.
    pub receive_bytes: usize,
    /// True if all connections share the receive buffers, by an SRQ (PM_SRQ); else each has 128 of its own.
    pub shared: bool,
    /// The longest message in bytes (PM_MTU, `-mtu`): 8 KiB unless said otherwise, 64 to 65,536, a multiple of 8.
    pub mtu: usize,
    /// The most bytes of a message that go inside its work request (PM_INLINE, `-inline`): as many as the device takes,
    /// up to 1024, unless said otherwise.
    pub inline: usize,
    /// Connections that are kept at a time (PM_CONNECTIONS), 2 to 65,536.
    pub connections: usize,
    /// The device by its name (PM_DEVICE, `-device`); the first usable one unless said otherwise.
    pub device: Option<String>,
}

/// The send and the receive buffers of Sumimoto et al. 2004, 3.2.
const SEND_BYTES: usize = 4 << 20;
const RECEIVE_BYTES: usize = 8 << 20;
/// Its MTU.
const MTU: usize = 8 << 10;
const MAX_MTU: usize = 64 << 10;
/// More is no buffer but a mistake; and as many receives as devices take in one queue.
const MAX_BUFFER: usize = 1 << 30;
const MAX_RECEIVES: usize = 32_768;
/// Receive buffers of each connection where they are not shared: as many as messages to a node would have had in
/// Sumimoto et al. 2004, 3.2.
const OWN_RECEIVES: usize = 128;
/// Fewer buffers keep no two ends busy.
const MIN_BUFFERS: usize = 4;

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_bytes: SEND_BYTES,
            receive_bytes: RECEIVE_BYTES,
            shared: true,
            mtu: MTU,
            inline: usize::MAX,
            connections: 256,
            device: None,
        }
    }
}

impl Settings {
    /// The settings that the environment names, then `arguments`, and defaults for the rest.
    ///
    /// # Errors
    /// EINVAL: a variable or an argument whose value is none; the sentence names it.
    pub fn from_environment(arguments: &[String]) -> Result<Settings> {
        Self::from(|name| env::var_os(name), arguments)
    }

    fn from(variable: impl Fn(&str) -> Option<OsString>, arguments: &[String]) -> Result<Settings> {
        let mut settings = Self::default();
        for name in
            ["PM_SEND_BUFFER", "PM_RECEIVE_BUFFER", "PM_MTU", "PM_INLINE", "PM_CONNECTIONS", "PM_DEVICE", "PM_SRQ"]
        {
            match variable(name).map(OsString::into_string) {
                Some(Ok(text)) if !text.is_empty() => settings.set(name, name, &text)?,
                Some(Err(_)) => return Err(Error::invalid(format!("{name} is no text"))),
                _ => {}
            }
        }
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            let name = match option.as_str() {
                "-device" => "PM_DEVICE",
                "-mtu" => "PM_MTU",
                "-inline" => "PM_INLINE",
                _ => return Err(Error::invalid(format!("{option} is no option of a device: -device, -mtu, -inline"))),
            };
            let value = rest.next().ok_or_else(|| Error::invalid(format!("{option} wants a value behind it")))?;
            settings.set(name, option, value)?;
        }
        settings.check()
    }

    /// Sets what the variable `name` does, which the user knows as `called`.
    fn set(&mut self, name: &str, called: &str, text: &str) -> Result<()> {
        let size = |least: usize, most: usize| {
            let size = bytes(text.as_bytes()).and_then(|size| usize::try_from(size).ok());
            size.filter(|size| (least..=most).contains(size)).ok_or_else(|| {
                Error::invalid(format!(
                    "{called}={text} is no size: a number of bytes, with k or M behind it, from {least} to {most}"
                ))
            })
        };
        match name {
            "PM_SEND_BUFFER" => self.send_bytes = size(1, MAX_BUFFER)?,
            "PM_RECEIVE_BUFFER" => self.receive_bytes = size(1, MAX_BUFFER)?,
            "PM_MTU" => self.mtu = size(64, MAX_MTU)?,
            "PM_SRQ" => {
                self.shared = match text {
                    "on" => true,
                    "off" => false,
                    _ => return Err(Error::invalid(format!("{called}={text} is neither 'on' nor 'off'"))),
                };
            }
            "PM_INLINE" if text == "most" => self.inline = usize::MAX,
            "PM_INLINE" => self.inline = size(0, MAX_MTU)?,
            "PM_CONNECTIONS" => {
                self.connections = text.parse().ok().filter(|n| (2..=65_536).contains(n)).ok_or_else(|| {
                    Error::invalid(format!("{called}={text} is no number of connections: 2 to 65536"))
                })?;
            }
            _ => self.device = Some(text.to_owned()),
        }
        Ok(())
    }

    fn check(self) -> Result<Settings> {
        if !self.mtu.is_multiple_of(8) {
            return Err(Error::invalid(format!("an MTU of {} bytes: it is a multiple of 8", self.mtu)));
        }
        for (what, count) in [("send", self.sends()), ("receive", self.receives())] {
            if count < MIN_BUFFERS {
                let mtu = self.mtu;
                return Err(Error::invalid(format!(
                    "{count} {what} buffers of {mtu} bytes: at least {MIN_BUFFERS} are needed"
                )));
            }
        }
        Ok(self)
    }

    /// Send buffers, each for one message.
    pub(crate) fn sends(&self) -> usize {
        (self.send_bytes / self.mtu).min(MAX_RECEIVES)
    }

    /// Receive buffers, of all connections or of each.
    pub(crate) fn receives(&self) -> usize {
        if self.shared { (self.receive_bytes / self.mtu).min(MAX_RECEIVES) } else { OWN_RECEIVES }
    }

    /// The settings that all nodes must have alike.
    pub(crate) fn agreed(&self) -> Vec<u8> {
        format!("pm {} mtu {}", env!("CARGO_PKG_VERSION"), self.mtu).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)], arguments: &[&str]) -> Result<Settings> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        Settings::from(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()), &arguments)
    }

    #[test]
    fn the_defaults_are_those_of_the_paper() {
        let settings = of(&[], &[]).unwrap();
        assert_eq!(settings, Settings::default());
        assert_eq!((settings.sends(), settings.receives(), settings.mtu), (512, 1024, 8192));
    }

    #[test]
    fn arguments_come_after_the_environment() {
        let settings =
            of(&[("PM_MTU", "4k"), ("PM_INLINE", "0"), ("PM_DEVICE", "a")], &["-mtu", "1024", "-device", "b"]);
        let settings = settings.unwrap();
        assert_eq!((settings.mtu, settings.inline, settings.device.as_deref()), (1024, 0, Some("b")));
        assert_eq!(of(&[("PM_INLINE", "0")], &["-inline", "most"]).unwrap().inline, usize::MAX);
        assert_eq!(of(&[("PM_RECEIVE_BUFFER", "16M")], &[]).unwrap().receives(), 2048);
        assert_eq!(of(&[("PM_RECEIVE_BUFFER", "16M"), ("PM_SRQ", "off")], &[]).unwrap().receives(), 128);
    }

    #[test]
    fn what_is_no_value_is_named() {
        for (variables, arguments, named) in [
            (&[("PM_MTU", "1")][..], &[][..], "PM_MTU=1"),
            (&[("PM_MTU", "128k")], &[], "PM_MTU=128k"),
            (&[("PM_MTU", "100")], &[], "100 bytes"),
            (&[("PM_SEND_BUFFER", "much")], &[], "PM_SEND_BUFFER=much"),
            (&[("PM_RECEIVE_BUFFER", "2G")], &[], "PM_RECEIVE_BUFFER=2G"),
            (&[("PM_SEND_BUFFER", "16k")], &[], "2 send buffers"),
            (&[("PM_CONNECTIONS", "1")], &[], "PM_CONNECTIONS=1"),
            (&[("PM_SRQ", "no")], &[], "PM_SRQ=no"),
            (&[], &["-inline", "-1"], "-inline=-1"),
            (&[], &["-inline"], "-inline wants a value"),
            (&[], &["-nosuch", "1"], "-nosuch is no option"),
        ] {
            let error = of(variables, arguments).unwrap_err();
            assert!(error.errno() == libc::EINVAL && error.to_string().contains(named), "{named}: {error}");
        }
    }
}
