//! Devices: `pmOpenDevice`, `pmCloseDevice`.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use vervain_pm::{Error, Settings};

use crate::error::{null, status, watch_forks};

/// The object behind `pmDevice *`.
pub enum Device {
    /// One that contexts are opened on.
    Verbs(Arc<vervain_pm::Device>),
    /// The device of composite contexts, which need none; open ones keep it.
    Composite(Arc<()>),
}

impl Device {
    /// Finds a device by its type and arguments.
    pub fn open(kind: &str, arguments: &[String]) -> Result<Device, Error> {
        watch_forks();
        match kind {
            "ib" | "vervain" => Ok(Device::Verbs(vervain_pm::Device::open(Settings::from_environment(arguments)?)?)),
            "composite" => match arguments.first() {
                None => Ok(Device::Composite(Arc::new(()))),
                Some(option) => {
                    Err(Error::new(libc::EINVAL, format!("{option} is no option of a composite device: it has none")))
                }
            },
            other => Err(Error::new(
                libc::ENODEV,
                format!("there is no device of type '{other}': 'ib', also called 'vervain', or 'composite'"),
            )),
        }
    }

    /// Returns true if a context is open on it.
    fn is_used(&self) -> bool {
        match self {
            Device::Verbs(device) => device.is_used(),
            Device::Composite(device) => Arc::strong_count(device) > 1,
        }
    }
}

/// The string at `text`; "ib" for null.
///
/// # Safety
/// It is null or a string.
pub unsafe fn kind<'a>(text: *const c_char) -> Result<&'a str, Error> {
    if text.is_null() {
        return Ok("ib");
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::new(libc::ENODEV, "the type of a device is a text"))
}

/// # Safety
/// `argv` has `argc` strings.
unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Result<Vec<String>, Error> {
    let count = usize::try_from(argc).map_err(|_| Error::new(libc::EINVAL, format!("argc is {argc}")))?;
    if count > 0 && argv.is_null() {
        return Err(null("argv"));
    }
    let mut all = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: the caller's promise.
        let argument = unsafe { *argv.add(at) };
        if argument.is_null() {
            return Err(null("an argument"));
        }
        // SAFETY: the caller's promise.
        all.push(unsafe { CStr::from_ptr(argument) }.to_string_lossy().into_owned());
    }
    Ok(all)
}

/// Finds a device.
///
/// # Safety
/// `kind` is null or a string, `argv` has `argc` strings, `device` is null or a place for a pointer.
pub unsafe extern "C" fn pmOpenDevice(
    kind: *const c_char,
    argc: c_int,
    argv: *const *const c_char,
    device: *mut *mut Device,
) -> c_int {
    status("pmOpenDevice", || {
        if device.is_null() {
            return Err(null("pmdp"));
        }
        // SAFETY: the caller's promise.
        let (kind, arguments) = unsafe { (self::kind(kind)?, arguments(argc, argv)?) };
        let opened = Box::new(Device::open(kind, &arguments)?);
        // SAFETY: a place for a pointer.
        unsafe { *device = Box::into_raw(opened) };
        Ok(())
    })
}

/// Closes a device.
///
/// # Safety
/// `device` is null or open, and no other thread uses it.
pub unsafe extern "C" fn pmCloseDevice(device: *mut Device) -> c_int {
    status("pmCloseDevice", || {
        if device.is_null() {
            return Err(null("pmd"));
        }
        // SAFETY: made by pmOpenDevice, and not closed yet.
        if unsafe { &*device }.is_used() {
            return Err(Error::new(libc::EBUSY, "a context of the device is open"));
        }
        // SAFETY: as above, and this closes it.
        match *unsafe { Box::from_raw(device) } {
            Device::Verbs(device) => device.close(),
            Device::Composite(_) => Ok(()),
        }
    })
}
