//! The device list: `ibv_get_device_list(3)` and what can be asked of a device that is not open.
//!
//! Devices live as long as the process, so each has one address, whatever list it is in and whether any list is left.

use core::ffi::{CStr, c_char, c_int};
use core::mem::size_of;
use core::ptr;
use std::sync::{Arc, OnceLock};

use vervain_hca as hca;
use vervain_hca::host::cancel::Uncancelled;

use crate::abi::*;
use crate::errno;
use crate::sysfs::{ibv_get_sysfs_path, warn_of_absent_view};

/// A device. The words behind the C struct stay NULL: a real libmlx5 reads the first of them (offset 664) as a pointer
/// to its operations, to see whether the device is its own.
#[repr(C)]
struct Entry {
    c: ibv_device,
    behind: [usize; 8],
    device: Arc<hca::Device>,
}

/// The C struct is written once, before anyone sees it.
struct Devices(Vec<*mut Entry>);

// SAFETY: the entries are leaked and never written again; `hca::Device` is shared between threads by itself.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

/// All devices, found on the first call; an error is remembered, since the environment that it came from does not
/// change.
fn devices() -> Result<&'static Devices, c_int> {
    static DEVICES: OnceLock<Result<Devices, c_int>> = OnceLock::new();
    DEVICES
        .get_or_init(|| {
            let _whole = Uncancelled::begin();
            vervain_link::start_logging();
            warn_of_absent_view();
            match vervain_link::devices() {
                Ok(list) => Ok(Devices(list.into_iter().map(|d| Box::into_raw(Box::new(Entry::new(d)))).collect())),
                Err(e) => {
                    log::error!("no device: {e}");
                    Err(e.errno())
                }
            }
        })
        .as_ref()
        .map_err(|&e| e)
}

impl Entry {
    fn new(device: Arc<hca::Device>) -> Self {
        // SAFETY: `ibv_device` is integers, bytes and NULL pointers.
        let mut c: ibv_device = unsafe { crate::object::zeros() };
        c.node_type = IBV_NODE_CA;
        c.transport_type = IBV_TRANSPORT_IB;
        // SAFETY: `ibv_get_sysfs_path` returns a C string that lives as long as the process.
        let sysfs = unsafe { CStr::from_ptr(ibv_get_sysfs_path()) }.to_string_lossy();
        let (name, uverbs) = (device.name(), device.uverbs_name());
        copy(&mut c.name, name);
        copy(&mut c.dev_name, uverbs);
        copy(&mut c.dev_path, &format!("{sysfs}/class/infiniband_verbs/{uverbs}"));
        copy(&mut c.ibdev_path, &format!("{sysfs}/class/infiniband/{name}"));
        Entry { c, behind: [0; 8], device }
    }
}

/// Copies `from` as a C string, cut to the room there is.
fn copy(to: &mut [c_char], from: &str) {
    let room = to.len() - 1;
    for (to, &from) in to[..room].iter_mut().zip(from.as_bytes()) {
        *to = from as c_char;
    }
}

/// The device model's device behind a C struct.
pub(crate) unsafe fn device<'a>(c: *mut ibv_device) -> &'a Arc<hca::Device> {
    // SAFETY: every `ibv_device` that a client can have is the head of a leaked `Entry`.
    unsafe { &(*c.cast::<Entry>()).device }
}

/// The list of all devices, ended by NULL; to be freed by [`ibv_free_device_list`].
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let devices = match devices() {
        Ok(devices) => &devices.0,
        Err(e) => return errno::null(e),
    };
    // SAFETY: calloc gives zeroed memory for the pointers and the NULL behind them, or NULL; `num_devices` may be NULL,
    // else it is valid by ibv_get_device_list(3).
    unsafe {
        let list: *mut *mut ibv_device = libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()).cast();
        if list.is_null() {
            return errno::null(libc::ENOMEM);
        }
        ptr::copy_nonoverlapping(devices.as_ptr().cast(), list, devices.len());
        if !num_devices.is_null() {
            *num_devices = devices.len() as c_int;
        }
        list
    }
}

/// Frees a list; the devices stay.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list came from `calloc` above, or is NULL.
    unsafe { libc::free(list.cast()) }
}

/// A device's name, as "vervain0".
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the client's device; only an address is taken.
    unsafe { (&raw const (*device).name).cast() }
}

/// A device's number.
pub unsafe extern "C" fn ibv_get_device_index(c: *mut ibv_device) -> c_int {
    // SAFETY: the client's device.
    unsafe { device(c) }.index() as c_int
}

/// A device's node GUID, in network byte order.
pub unsafe extern "C" fn ibv_get_device_guid(c: *mut ibv_device) -> u64 {
    // SAFETY: the client's device.
    unsafe { device(c) }.guid().to_be()
}
