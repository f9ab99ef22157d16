//! The links by which a QP reaches its peer, put together for a process. The rendezvous (`vervain-rendezvous`) joins
//! processes of one user on one host: it finds them, maps their arenas and notices their end. The carriers RoCE
//! (`vervain-roce`) and window (`vervain-window-link`) bring packets to peers that memory does not reach, QP 1
//! (`vervain-qp1`) those of connection managers. `vervain-hca` does the work in an arena; nothing here knows C structs.

pub mod gsi;

use log::{LevelFilter, Record};
use std::io;
use std::sync::{Arc, Once, OnceLock};
use vervain_config::{Config, LINK, LogLevel, Unknown, WINDOW};
use vervain_hca::device::{LinkChoice, gids};
use vervain_hca::hang::Watch;
use vervain_hca::host::cancel::Uncancelled;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::process::poller::Poller;
use vervain_hca::process::{Identity, Ways};
use vervain_hca::qp::carrier::Carrier;
use vervain_hca::qp::router::Router;
use vervain_hca::qp::table;
use vervain_hca::{Context, Device, Error, Result};
use vervain_qp1::Gsi;
use vervain_rendezvous::Local;
use vervain_roce::Roce;
use vervain_sockets::user::User;
use vervain_window_link::Window;

/// The RoCE carrier of the calling process, for readers of its counters.
static ROCE: OwnerLock<Option<Arc<Roce>>> = OwnerLock::new(None);
/// Carriers beyond RoCE.
static MORE: OnceLock<fn() -> Result<More>> = OnceLock::new();

/// A carrier with what is polled for it.
pub struct More {
    /// The carrier.
    pub carrier: Arc<dyn Carrier>,
    /// Its receiving side.
    pub poller: Arc<dyn Poller>,
}

/// Names a carrier that is preferred to RoCE, before the first device is opened; `make` makes it for a process.
pub fn prefer(make: fn() -> Result<More>) {
    let _ = MORE.set(make);
}

/// Opens a device, with the ways that this host has.
pub fn open(device: &Arc<Device>) -> Result<Arc<Context>> {
    start_logging();
    vervain_roce::net::check_environment()?;
    Context::open(device, table::start(ways)?)
}

/// The devices, as the environment configures them: with the GID that this node has in the window, if there is one.
///
/// # Errors
/// Invalid settings of the environment, in a sentence.
pub fn devices() -> Result<Vec<Arc<Device>>> {
    let config = Config::of_process()?;
    if config.link == LinkChoice::Window && config.window.is_none() {
        let (link, window) = (LINK.name(), WINDOW.name());
        return Err(Error::invalid(format!("{link} is 'window', which needs {window}=FILE")));
    }
    if let Some(gid) = vervain_window_link::gid()? {
        gids::set_window(gid);
    }
    vervain_hca::devices()
}

fn ways(identity: &Identity) -> Result<(Ways, Router)> {
    let choice = Config::of_process()?.link;
    let devices = devices()?;
    let mut carriers: Vec<Arc<dyn Carrier>> = Vec::new();
    let mut pollers: Vec<Arc<dyn Poller>> = Vec::new();
    let user = Arc::new(User::of_process());
    let gsi = Gsi::new(&devices, Arc::clone(&user))?;
    let window = vervain_window_link::of_process()?.map(|device| Window::new(device, Arc::clone(&gsi))).transpose()?;
    if let Some(window) = &window {
        carriers.push(Arc::new(window.clone()));
        pollers.push(Arc::new(window.clone()));
    }
    if choice != LinkChoice::Window {
        let roce = Roce::new(&devices, choice == LinkChoice::Roce, Arc::clone(&gsi))?;
        *ROCE.lock() = Some(Arc::clone(&roce));
        carriers.push(roce.clone());
        pollers.push(roce);
    }
    if let Some(make) = MORE.get() {
        let More { carrier, poller } = make()?;
        carriers.insert(0, carrier);
        pollers.push(poller);
    }
    let rendezvous = Arc::new(Local::new(identity, user, window.map_or((1, 0), |window| window.slots()))?);
    let ways = Ways { rendezvous, pollers, handlers: vec![gsi, Arc::new(Watch::begin())] };
    Ok((ways, Router::new(choice, devices, carriers)))
}

/// The RoCE carrier of this process, to look at what it counts. None before a device is open.
pub fn roce_link() -> Option<Arc<Roce>> {
    ROCE.lock().clone()
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
        let logger = env_logger::Builder::new().filter_level(level).format(write_line).build();
        let most = logger.filter();
        if log::set_boxed_logger(Box::new(Logger(logger))).is_ok() {
            log::set_max_level(most);
        }
        // `vervain run` has reported it once, for all processes of a job.
        if vervain_config::SYSFS.value().is_none() {
            for unknown in Unknown::of_process() {
                log::warn!("{unknown}");
            }
        }
    });
}

/// A message as one line, which begins as those of the command and of the preload do.
fn write_line(out: &mut impl io::Write, record: &Record<'_>) -> io::Result<()> {
    writeln!(out, "vervain: [{:<5} {}] {}", record.level(), record.target(), record.args())
}

/// Messages by env_logger, in verbs that are no cancellation points.
struct Logger(env_logger::Logger);

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.0.enabled(metadata)
    }

    fn log(&self, record: &log::Record<'_>) {
        let _whole = Uncancelled::begin();
        self.0.log(record);
    }

    fn flush(&self) {
        self.0.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_begins_with_the_name_of_the_library() {
        let mut line = Vec::new();
        let record = |args| Record::builder().level(log::Level::Warn).target("vervain_link").args(args).build();
        write_line(&mut line, &record(format_args!("it is so"))).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), "vervain: [WARN  vervain_link] it is so\n");
    }
}
