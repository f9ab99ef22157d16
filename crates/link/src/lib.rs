//! How a QP reaches its peer. The local link ([`local`]) joins processes of one user on one host; it finds them, maps their
//! arenas and hears of their end. What is done in an arena stands in `vervain-hca`; nothing here knows C structs.

mod links;
pub mod local;
pub mod roce;
mod user;

use log::LevelFilter;
use std::any::Any;
use std::sync::{Arc, Once};
use vervain_config::LogLevel;
use vervain_hca::{Context, Device, Process, Result};

/// Opens a device, with the links that this host has.
pub fn open(device: &Arc<Device>) -> Result<Arc<Context>> {
    start_logging();
    roce::net::check_environment()?;
    let process = Process::start(|init| Ok(Box::new(links::Links::new(init)?)))?;
    Context::open(device, process)
}

/// The RoCE link of this process, to look at what it counts. None before a device is open.
pub fn roce_link() -> Option<&'static roce::Roce> {
    let link: &dyn Any = &*Process::current()?.link;
    link.downcast_ref::<links::Links>().map(links::Links::roce)
}

/// Messages go to standard error, as many as `VERVAIN_LOG` asks for; warnings and errors by default.
pub fn start_logging() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let level = match vervain_config::log_level() {
            LogLevel::Off => LevelFilter::Off,
            LogLevel::Error => LevelFilter::Error,
            LogLevel::Warn => LevelFilter::Warn,
            LogLevel::Info => LevelFilter::Info,
            LogLevel::Debug => LevelFilter::Debug,
            LogLevel::Trace => LevelFilter::Trace,
        };
        let _ = env_logger::Builder::new().filter_level(level).format_timestamp_micros().try_init();
    });
}

/// An errno of rustix as an error of the device.
pub(crate) fn os_error(what: &str, e: rustix::io::Errno) -> vervain_hca::Error {
    vervain_hca::Error::new(e.raw_os_error(), format!("{what}: {}", std::io::Error::from(e)))
}
