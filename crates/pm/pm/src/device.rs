//! Devices, of which contexts are made.

use std::sync::Arc;

use vervain_rdma::Library;

use crate::error::{Error, Result};
use crate::job;
use crate::settings::Settings;

/// A device that was found, with the settings for contexts on it.
#[derive(Debug)]
pub struct Device {
    pub(crate) settings: Settings,
    is_open: bool,
}

const IN_USE: Error = Error::plain(libc::EBUSY, "a context of the device is open");

impl Device {
    /// Looks for the device that the settings name, or any. The context opens it.
    ///
    /// # Errors
    /// ENODEV: there is no such device, or no library of verbs.
    pub fn open(settings: Settings) -> Result<Arc<Device>> {
        let no_device = |sentence: String| Error::new(libc::ENODEV, sentence);
        let devices = Library::load()
            .and_then(|library| library.devices())
            .map_err(|error| no_device(format!("{error}; `vervain run` provides a device")))?;
        match &settings.device {
            Some(name) if !devices.iter().any(|device| device.name() == *name) => {
                return Err(no_device(format!("there is no RDMA device called {name}")));
            }
            None if devices.is_empty() => {
                return Err(no_device("this machine has no RDMA device; `vervain run` provides one".into()));
            }
            _ => {}
        }
        job::add_device();
        Ok(Arc::new(Device { settings, is_open: true }))
    }

    /// Returns true if somebody else has it: a context.
    pub fn is_used(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1
    }

    /// Closes the device; with the last one this process leaves its job for good.
    ///
    /// # Errors
    /// EBUSY: a context uses it, and it is closed with that. EIO: the launcher is gone.
    pub fn close(self: Arc<Self>) -> Result<()> {
        let mut device = Arc::try_unwrap(self).map_err(|_| IN_USE)?;
        device.is_open = false;
        job::remove_device()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_open {
            // Drop cannot report an error.
            let _ = job::remove_device();
        }
    }
}
