//! How a QP reaches its peer. The local link ([`local`]) joins processes of one user on one host; it finds them, maps their
//! arenas and hears of their end. What is done in an arena stands in `vervain-hca`; nothing here knows C structs.

pub mod local;

use std::sync::{Arc, Once};
use vervain_hca::{Context, Device, Process, Result};

/// Opens a device, with the links that this host has.
pub fn open(device: &Arc<Device>) -> Result<Arc<Context>> {
    start_logging();
    let process = Process::start(|init| Ok(Box::new(local::Local::new(init)?)))?;
    Context::open(device, process)
}

/// Messages go to standard error, as many as `VERVAIN_LOG` asks for; warnings and errors by default.
pub fn start_logging() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let level = std::env::var("VERVAIN_LOG").unwrap_or_default();
        // A wrong level is refused with a sentence by the list of devices; that sentence must be seen.
        let level = level.parse().unwrap_or(log::LevelFilter::Warn);
        let _ = env_logger::Builder::new().filter_level(level).format_timestamp_micros().try_init();
    });
}
