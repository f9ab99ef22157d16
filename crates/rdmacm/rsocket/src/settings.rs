//! Defaults that an administrator may change: files of one number each, in /etc/rdma/rsocket (rsocket(7)).

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use crate::protocol::wire::{scale, unscale};

const FOLDER: &str = "/etc/rdma/rsocket";

/// The least that a send buffer is chosen to be, when less was asked for.
pub const LEAST_SEND_BYTES: u32 = 4096;

/// The initial settings of new sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// mem_default: bytes of the receive buffer.
    pub receive_bytes: u32,
    /// wmem_default: bytes of the send buffer.
    pub send_bytes: u32,
    /// sqsize_default: requests of the send queue.
    pub send_requests: u16,
    /// rqsize_default: of the receive queue.
    pub receives: u16,
    /// inline_default: bytes that go into a request.
    pub inline_bytes: u16,
    /// iomap_size: buffers that a peer may map.
    pub io_maps: u16,
    /// polling_time, in microseconds: for how long a call that waits looks for itself before it sleeps.
    pub polling: Duration,
    /// wake_up_interval, in milliseconds: the longest sleep before it looks again.
    pub wake_up: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            receive_bytes: 1 << 17,
            send_bytes: 1 << 17,
            send_requests: 384,
            receives: 384,
            inline_bytes: 64,
            io_maps: 0,
            polling: Duration::from_micros(10),
            wake_up: Duration::from_secs(5),
        }
    }
}

impl Settings {
    /// Those of this process, read when first asked for.
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Settings::read(Path::new(FOLDER)))
    }

    /// Reads the settings from the files of a folder. A file that is not there, or holds no number, changes nothing.
    pub fn read(folder: &Path) -> Settings {
        let number = |name: &str| -> Option<u64> { fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
        let to_u16 = |n: u64| u16::try_from(n).unwrap_or(u16::MAX);
        let to_u32 = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let default = Settings::default();
        Settings {
            receive_bytes: number("mem_default").map_or(default.receive_bytes, |n| to_u32(n).max(1)),
            send_bytes: number("wmem_default").map_or(default.send_bytes, |n| to_u32(n).max(LEAST_SEND_BYTES)),
            send_requests: number("sqsize_default").map_or(default.send_requests, to_u16),
            receives: number("rqsize_default").map_or(default.receives, to_u16),
            inline_bytes: number("inline_default").map_or(default.inline_bytes, to_u16),
            io_maps: number("iomap_size").map_or(default.io_maps, |n| unscale(scale(to_u16(n)))),
            polling: number("polling_time").map_or(default.polling, Duration::from_micros),
            wake_up: number("wake_up_interval").map_or(default.wake_up, |n| Duration::from_millis(n.max(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_defaults() {
        let folder = std::env::temp_dir().join(format!("rsocket-settings-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(Settings::read(&folder), Settings::default());
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("wmem_default", "1"),
            ("sqsize_default", "100000"),
            ("rqsize_default", "twelve"),
            ("iomap_size", "1000"),
            ("polling_time", "0"),
            ("wake_up_interval", "20"),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        let expected = Settings {
            receive_bytes: 1_000_000,
            send_bytes: LEAST_SEND_BYTES,
            send_requests: u16::MAX,
            io_maps: 768,
            polling: Duration::ZERO,
            wake_up: Duration::from_millis(20),
            ..Settings::default()
        };
        assert_eq!(Settings::read(&folder), expected);
        fs::remove_dir_all(&folder).unwrap();
    }
}
