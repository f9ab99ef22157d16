//! The library's settings, read from the environment once.

use crate::choices::{LinkChoice, LinkLayer, LogLevel, MemoryWay, Share, Switch};
use crate::table::{
    ADOPT, DEVICES, FAULTS, INTERFACE, LINK, LINK_LAYER, LOG, MEMORY, PCAP, PORTS, SHARE, SYSFS, WINDOW,
};
use crate::variable::{Variable, Wrong};
use crate::window::WindowSpec;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The library's settings from the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Number of devices.
    pub devices: u32,
    /// Ports of each device.
    pub ports: u32,
    /// The link layer of the ports.
    pub link_layer: LinkLayer,
    /// How peers are reached.
    pub link: LinkChoice,
    /// The window by which nodes without a common kernel are reached.
    pub window: Option<WindowSpec>,
    /// The network interfaces that count; `None` for all.
    pub interfaces: Option<Vec<String>>,
    /// How a peer's memory that is not mapped is reached.
    pub memory: MemoryWay,
    /// Which processes allocate from shared memory.
    pub share: Share,
    /// True if private memory is moved onto shared pages while it is registered.
    pub adopt: bool,
    /// Faults made on purpose on packets, as they are written.
    pub faults: Option<String>,
    /// The file that packets are written to, as it is written.
    pub pcap: Option<String>,
    /// The tree that `vervain run` made for the preload.
    pub sysfs: Option<PathBuf>,
}

/// The settings of this process.
struct Process {
    log: Option<LogLevel>,
    config: Result<Config, Wrong<'static>>,
}

impl Process {
    fn get() -> &'static Process {
        static PROCESS: OnceLock<Process> = OnceLock::new();
        PROCESS.get_or_init(|| Process {
            log: LOG.value().map(|_| parsed(&LOG, &Variable::value, LogLevel::of).unwrap_or(LogLevel::Warn)),
            config: Config::read(Variable::value),
        })
    }
}

/// This process's log level, fixed by [`Config::of_process`]'s first call. It is valid even if another variable is
/// wrong, so that the message about that one can be shown; if `VERVAIN_LOG` itself is wrong it is `Warn`.
pub fn log_level() -> LogLevel {
    Process::get().log.unwrap_or(LogLevel::Warn)
}

/// Returns true if the program was started with a log level of the user's choice.
pub fn is_log_level_chosen() -> bool {
    Process::get().log.is_some()
}

impl Config {
    /// The window, if anything may go through it: by `VERVAIN_LINK=local` and `roce` nothing does.
    pub fn window_in_use(&self) -> Option<&WindowSpec> {
        let by_link = matches!(self.link, LinkChoice::Auto | LinkChoice::Window);
        self.window.as_ref().filter(|_| by_link)
    }

    /// The settings that this process's environment had at the first call.
    ///
    /// # Errors
    /// The first variable with an invalid value.
    pub fn of_process() -> Result<&'static Config, &'static Wrong<'static>> {
        Process::get().config.as_ref()
    }

    /// The settings for variables with the values that `get` returns.
    ///
    /// # Errors
    /// The first variable with an invalid value.
    pub fn read(get: impl Fn(&Variable) -> Option<OsString>) -> Result<Config, Wrong<'static>> {
        let get = |variable: &Variable| get(variable).filter(|value| !value.is_empty());
        let text = |variable| get(variable).map(|value| value.to_string_lossy().into_owned());
        let number = |variable: &'static Variable| parsed(variable, &get, |value| variable.syntax.number(value));
        parsed(&LOG, &get, LogLevel::of)?;
        Ok(Config {
            devices: number(&DEVICES)?,
            ports: number(&PORTS)?,
            link_layer: parsed(&LINK_LAYER, &get, LinkLayer::of)?,
            link: parsed(&LINK, &get, LinkChoice::of)?,
            window: get(&WINDOW)
                .map(|value| {
                    let value = value.as_bytes();
                    WindowSpec::parse(value).map_err(|word| WINDOW.wrong(value).by(word).into_owned())
                })
                .transpose()?,
            interfaces: text(&INTERFACE).map(|names| names.split(',').map(|name| name.trim().to_owned()).collect()),
            memory: parsed(&MEMORY, &get, MemoryWay::of)?,
            share: parsed(&SHARE, &get, Share::of)?,
            adopt: parsed(&ADOPT, &get, Switch::of)? == Switch::On,
            faults: text(&FAULTS),
            pcap: text(&PCAP),
            sysfs: get(&SYSFS).map(PathBuf::from),
        })
    }
}

/// The value of a variable as `of` reads it, or the default if it is not set.
fn parsed<T>(
    variable: &'static Variable,
    get: &impl Fn(&Variable) -> Option<OsString>,
    of: impl Fn(&[u8]) -> Option<T>,
) -> Result<T, Wrong<'static>> {
    let value = get(variable);
    let value = value.as_ref().map_or(variable.default.as_bytes(), |value| value.as_bytes());
    of(value).ok_or_else(|| variable.wrong(value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Result<Config, String> {
        let get = |variable: &Variable| set.iter().find(|(name, _)| *name == variable.name()).map(|(_, v)| (*v).into());
        Config::read(get).map_err(|wrong| wrong.to_string())
    }

    #[test]
    fn nothing_that_is_set_is_the_defaults() {
        let defaults = Config {
            devices: 1,
            ports: 1,
            link_layer: LinkLayer::Ethernet,
            link: LinkChoice::Auto,
            window: None,
            interfaces: None,
            memory: MemoryWay::Auto,
            share: Share::Auto,
            adopt: false,
            faults: None,
            pcap: None,
            sysfs: None,
        };
        assert_eq!(of(&[]).as_ref(), Ok(&defaults));
        let empty = crate::TABLE.map(|variable| (variable.name(), ""));
        assert_eq!(of(&empty), Ok(defaults), "an empty value counts as none");
    }

    #[test]
    fn each_variable_is_heard() {
        let config = of(&[
            ("VERVAIN_DEVICES", "3"),
            ("VERVAIN_PORTS", "4"),
            ("VERVAIN_LINK_LAYER", "infiniband"),
            ("VERVAIN_LINK", "Local"),
            ("VERVAIN_WINDOW", "/tmp/w,node=1"),
            ("VERVAIN_INTERFACE", "eth0, lo"),
            ("VERVAIN_MEMORY", "owner"),
            ("VERVAIN_SHARE", "off"),
            ("VERVAIN_ADOPT", "on"),
            ("VERVAIN_FAULTS", "drop=1%"),
            ("VERVAIN_PCAP", "/tmp/x"),
            ("VERVAIN_SYSFS", "/tmp/y"),
        ]);
        let wanted = Config {
            devices: 3,
            ports: 4,
            link_layer: LinkLayer::Infiniband,
            link: LinkChoice::Local,
            window: Some(WindowSpec {
                path: "/tmp/w".into(),
                peach2: None,
                size: None,
                node: Some(1),
                heap: false,
                direct: true,
            }),
            interfaces: Some(vec!["eth0".into(), "lo".into()]),
            memory: MemoryWay::Owner,
            share: Share::Off,
            adopt: true,
            faults: Some("drop=1%".into()),
            pcap: Some("/tmp/x".into()),
            sysfs: Some("/tmp/y".into()),
        };
        assert_eq!(config, Ok(wanted));
    }

    #[test]
    fn a_wrong_word_of_a_window_is_named() {
        let said = of(&[("VERVAIN_WINDOW", "/tmp/w,node=1,sise=4M")]);
        let wanted = "VERVAIN_WINDOW is '/tmp/w,node=1,sise=4M'; 'sise=4M': there is no option 'sise'; a file has size=BYTES, \
                      node=N, heap=on and direct=off";
        assert_eq!(said, Err(wanted.to_owned()));
    }

    #[test]
    fn each_variable_that_has_wrong_values_is_refused() {
        for variable in crate::TABLE.into_iter().filter(|v| v.readers.contains(&crate::Reader::Library)) {
            if matches!(variable.syntax, crate::Syntax::Text(_)) {
                continue;
            }
            let said = of(&[(variable.name(), "nonsense")]);
            assert_eq!(said, Err(format!("{} is 'nonsense'; it can be {}", variable.name(), variable.syntax)));
        }
    }
}
