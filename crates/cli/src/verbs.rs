//! The few libibverbs calls that `vervain devices` and `vervain run` need, on a library opened by path: they show what a
//! program would be answered, not what this command believes. Layouts are those of <infiniband/verbs.h>. All unsafe code of
//! the command is here, but for one system call in `doctor/machine.rs`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The leading fields of `struct ibv_device`; the library owns it and it is only read.
#[repr(C)]
struct RawDevice {
    _ops: [*const c_void; 2],
    node_type: c_int,
    transport_type: c_int,
    name: [c_char; 64],
    dev_name: [c_char; 64],
}

/// `struct ibv_device_attr`.
#[repr(C)]
struct RawDeviceAttr {
    fw_ver: [c_char; 64],
    node_guid: [u8; 8],
    sys_image_guid: [u8; 8],
    max_mr_size: u64,
    page_size_cap: u64,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    limits: [c_int; 29],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    phys_port_cnt: u8,
    _pad: u32,
}
const _: () = assert!(size_of::<RawDeviceAttr>() == 232 && std::mem::offset_of!(RawDeviceAttr, phys_port_cnt) == 227);

/// `struct ibv_port_attr` as the exported `ibv_query_port` fills it: 48 bytes, without `port_cap_flags2` and later.
#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    /// Room for a library that fills the newer layout.
    _newer: [u32; 4],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
const _: () = assert!(size_of::<GidEntry>() == 32);

/// A libibverbs opened by path.
pub struct Verbs {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut RawDevice,
    free_device_list: unsafe extern "C" fn(*mut *mut RawDevice),
    open_device: unsafe extern "C" fn(*mut RawDevice) -> *mut c_void,
    close_device: unsafe extern "C" fn(*mut c_void) -> c_int,
    query_device: unsafe extern "C" fn(*mut c_void, *mut RawDeviceAttr) -> c_int,
    query_port: unsafe extern "C" fn(*mut c_void, u8, *mut PortAttr) -> c_int,
    query_pkey: unsafe extern "C" fn(*mut c_void, u8, c_int, *mut u16) -> c_int,
    query_gid_table: unsafe extern "C" fn(*mut c_void, *mut GidEntry, usize, u32, usize) -> isize,
    // Last, so that it is dropped after the functions that live in it.
    _library: Library,
}

/// What does not change while a device is open.
pub struct DeviceAttr {
    pub name: String,
    pub uverbs: String,
    pub node_type: i32,
    pub fw_ver: String,
    pub node_guid: [u8; 8],
    pub sys_image_guid: [u8; 8],
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub ports: u8,
}

/// An open device; closed on drop.
pub struct Device<'a> {
    verbs: &'a Verbs,
    context: *mut c_void,
    pub attr: DeviceAttr,
}

impl Verbs {
    /// Opens the library at `path`; the error is the dynamic linker's sentence.
    pub fn open(path: &Path) -> Result<Verbs> {
        // SAFETY: loading runs the library's constructors; it is Vervain's own, or one the caller named to be asked.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .with_context(|| format!("cannot load {}", path.display()))?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the field's type repeats the function's declaration in <infiniband/verbs.h>, and the pointer
                // is dropped before the library.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .with_context(|| format!("{} lacks {}", path.display(), $name))?
            };
        }
        Ok(Verbs {
            get_device_list: symbol!("ibv_get_device_list"),
            free_device_list: symbol!("ibv_free_device_list"),
            open_device: symbol!("ibv_open_device"),
            close_device: symbol!("ibv_close_device"),
            query_device: symbol!("ibv_query_device"),
            query_port: symbol!("ibv_query_port"),
            query_pkey: symbol!("ibv_query_pkey"),
            query_gid_table: symbol!("_ibv_query_gid_table"),
            _library: library,
        })
    }

    /// Opens every device of the list, in its order.
    pub fn devices(&self) -> Result<Vec<Device<'_>>> {
        let mut count = 0;
        // SAFETY: `count` is valid for the write.
        let list = unsafe { (self.get_device_list)(&mut count) };
        ensure!(!list.is_null(), "ibv_get_device_list failed: {}", std::io::Error::last_os_error());
        let devices = (0..usize::try_from(count)?)
            // SAFETY: the list has `count` entries, and lives until it is freed below.
            .map(|i| self.open_device(unsafe { *list.add(i) }))
            .collect();
        // SAFETY: it came from get_device_list and is freed once; open contexts outlive the list (ibv_free_device_list(3)).
        unsafe { (self.free_device_list)(list) };
        devices
    }

    fn open_device(&self, raw: *mut RawDevice) -> Result<Device<'_>> {
        // SAFETY: an entry of the device list, whose leading fields are those of RawDevice.
        let (name, uverbs, node_type) = unsafe { (text(&(*raw).name), text(&(*raw).dev_name), (*raw).node_type) };
        // SAFETY: `raw` is an entry of the list that is not freed yet.
        let context = unsafe { (self.open_device)(raw) };
        ensure!(!context.is_null(), "cannot open {name}: {}", std::io::Error::last_os_error());
        let attr = DeviceAttr {
            name,
            uverbs,
            node_type,
            fw_ver: String::new(),
            node_guid: [0; 8],
            sys_image_guid: [0; 8],
            vendor_id: 0,
            vendor_part_id: 0,
            hw_ver: 0,
            ports: 0,
        };
        let mut device = Device { verbs: self, context, attr };
        device.query()?;
        Ok(device)
    }
}

impl Device<'_> {
    fn query(&mut self) -> Result<()> {
        // SAFETY: plain numbers and bytes; all zeros is a value of each field.
        let mut raw: RawDeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context and a struct of the layout that the call fills.
        let rc = unsafe { (self.verbs.query_device)(self.context, &mut raw) };
        self.check(rc, "ibv_query_device")?;
        let attr = &mut self.attr;
        attr.fw_ver = text(&raw.fw_ver);
        attr.node_guid = raw.node_guid;
        attr.sys_image_guid = raw.sys_image_guid;
        attr.vendor_id = raw.vendor_id;
        attr.vendor_part_id = raw.vendor_part_id;
        attr.hw_ver = raw.hw_ver;
        attr.ports = raw.phys_port_cnt;
        Ok(())
    }

    /// The attributes of port `port` (from 1).
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        let mut attr = PortAttr::default();
        // SAFETY: an open context and room for the layout that the call fills.
        let rc = unsafe { (self.verbs.query_port)(self.context, port, &mut attr) };
        self.check(rc, "ibv_query_port")?;
        Ok(attr)
    }

    /// The P_Key at `index`, in host order.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: an open context and a valid place for the answer.
        let rc = unsafe { (self.verbs.query_pkey)(self.context, port, index.into(), &mut pkey) };
        self.check(rc, "ibv_query_pkey")?;
        Ok(u16::from_be(pkey))
    }

    /// The valid GIDs of all ports; `room` is at least the sum of their tables' lengths.
    pub fn gids(&self, room: usize) -> Result<Vec<GidEntry>> {
        let mut entries = vec![GidEntry::default(); room];
        let found =
            // SAFETY: an open context, and `room` entries of the size that is passed along.
            unsafe { (self.verbs.query_gid_table)(self.context, entries.as_mut_ptr(), room, 0, size_of::<GidEntry>()) };
        let found = usize::try_from(found).map_err(|_| {
            let cause = std::io::Error::from_raw_os_error(i32::try_from(-found).unwrap_or(0));
            anyhow::anyhow!("{}: ibv_query_gid_table failed: {cause}", self.attr.name)
        })?;
        entries.truncate(found);
        Ok(entries)
    }

    fn check(&self, rc: c_int, call: &str) -> Result<()> {
        // These calls return the errno, or -1 with errno set (the man pages allow both).
        let error = || {
            if rc > 0 { std::io::Error::from_raw_os_error(rc) } else { std::io::Error::last_os_error() }
        };
        ensure!(rc == 0, "{}: {call} failed: {}", self.attr.name, error());
        Ok(())
    }
}

impl Drop for Device<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by open_device, closed once, and no object was made on it.
        unsafe { (self.verbs.close_device)(self.context) };
    }
}

/// A fixed array with a C string in it, which a foreign library may have filled to the brim.
fn text(field: &[c_char]) -> String {
    // SAFETY: c_char and u8 have the same size, and every byte is a value of both.
    let bytes = unsafe { std::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    match CStr::from_bytes_until_nul(bytes) {
        Ok(s) => s.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
