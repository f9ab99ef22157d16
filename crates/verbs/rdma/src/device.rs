//! Devices; attributes of open ones and of their ports.

use std::ffi::{c_char, c_int};
use std::fs;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use vervain_abi::*;

use crate::error::{Error, Result, check};
use crate::gid::{self, Gid, GidEntry, GidType};
use crate::library::Library;
use crate::port::PortAttr;
use crate::transport::Transport;

/// A device that the library found; not yet open. Its entry in the library's list lives as long as it.
#[derive(Clone)]
pub struct Device {
    list: Arc<DeviceList>,
    raw: *mut ibv_device,
    name: String,
}

/// The list that `ibv_get_device_list(3)` returned; freed with the last device of it.
struct DeviceList {
    library: Library,
    list: *mut *mut ibv_device,
}

// SAFETY: the library does not write to a list or its devices once it has handed them out, and frees and opens under a
// lock of its own.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}
// SAFETY: the entry lives as long as `list`, of which the above holds.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from get_device_list, freed once; contexts that are open outlive it (ibv_free_device_list(3)).
        unsafe { (self.library.0.device.free_list)(self.list) };
    }
}

impl Library {
    /// The devices of this machine, in the library's order.
    ///
    /// # Errors
    /// What `ibv_get_device_list(3)` left in errno: EPERM, ENOMEM; ENOSYS where the kernel has no RDMA.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let mut count: c_int = 0;
        // SAFETY: `count` is valid for the write.
        let list = unsafe { (self.0.device.get_list)(&mut count) };
        if list.is_null() {
            return Err(Error::last("ibv_get_device_list", "this machine"));
        }
        let list = Arc::new(DeviceList { library: self.clone(), list });
        let entries = 0..usize::try_from(count).unwrap_or(0);
        Ok(entries
            .map(|i| {
                // SAFETY: the list has `count` entries.
                let raw = unsafe { *list.list.add(i) };
                // SAFETY: an entry is a device until the list is freed.
                let name = text(unsafe { &(*raw).name });
                Device { list: list.clone(), raw, name }
            })
            .collect())
    }
}

impl Device {
    /// Its name, as in `/sys/class/infiniband`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The NUMA node of the device, by sysfs; None if there is one node only, or no hardware.
    pub fn numa_node(&self) -> Option<u32> {
        numa_node(&self.name)
    }

    /// The character device's name, as in `/dev/infiniband`: "uverbs0".
    pub fn uverbs(&self) -> String {
        // SAFETY: the entry lives as long as `self.list`.
        text(unsafe { &(*self.raw).dev_name })
    }

    /// `enum ibv_node_type`: 1 is a channel adapter.
    pub fn node_type(&self) -> i32 {
        // SAFETY: the entry lives as long as `self.list`.
        unsafe { (*self.raw).node_type }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// `ibv_open_device(3)`: EACCES, ENOMEM, ENODEV and the driver's.
    pub fn open(&self) -> Result<Context> {
        let library = self.list.library.clone();
        // SAFETY: an entry of a list that is not freed yet.
        let raw = unsafe { (library.0.device.open)(self.raw) };
        if raw.is_null() {
            return Err(Error::last("ibv_open_device", &self.name));
        }
        let inner = ContextInner { raw, name: self.name.clone(), library };
        Ok(Context(Arc::new(inner)))
    }
}

/// An open device. Objects that are made on it keep it open.
#[derive(Clone)]
pub struct Context(pub(crate) Arc<ContextInner>);

pub(crate) struct ContextInner {
    pub raw: *mut ibv_context,
    pub name: String,
    pub library: Library,
}

// SAFETY: the functions of libibverbs may be called from any thread, and lock what they share (RDMA verbs(7), "thread
// safe").
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; every object on it holds an Arc of this, so none is left.
        unsafe { (self.library.0.device.close)(self.raw) };
    }
}

impl ContextInner {
    /// The operations that the header's inline functions call through.
    pub fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the context is open as long as `self`, and the library changes `ops` only while it opens one.
        unsafe { &(*self.raw).ops }
    }
}

impl Context {
    /// Opens the device called `name`, or the first one where that is None.
    ///
    /// # Errors
    /// Where there is no such device, with the names that there are; else as [`Device::open`].
    pub fn open(library: &Library, name: Option<&str>) -> Result<Context> {
        let devices = library.devices()?;
        let found = devices.iter().find(|d| name.is_none_or(|n| n == d.name));
        match (found, name) {
            (Some(device), _) => device.open(),
            (None, None) => Err(Error::invalid("no RDMA device on this machine")),
            (None, Some(name)) => {
                let names: Vec<_> = devices.iter().map(Device::name).collect();
                let there = if names.is_empty() { "none".into() } else { names.join(", ") };
                Err(Error::invalid(format!("no RDMA device called {name}; there is {there}")))
            }
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The NUMA node that the device hangs on, by sysfs.
    pub fn numa_node(&self) -> Option<u32> {
        numa_node(&self.0.name)
    }

    /// The descriptor that is readable when there is an asynchronous event.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library closes it with the context, which `self` keeps open.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).async_fd) }
    }

    /// The device's limits and identity; `ibv_query_device(3)`.
    ///
    /// # Errors
    /// The driver's.
    pub fn attr(&self) -> Result<DeviceAttr> {
        let mut raw = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: an open context and room for the struct that the call fills.
        let rc = unsafe { (self.0.library.0.device.query)(self.0.raw, raw.as_mut_ptr()) };
        check(rc, "ibv_query_device", || self.0.name.clone())?;
        // SAFETY: numbers and bytes only, zeroed before the call filled them.
        let raw = unsafe { raw.assume_init() };
        Ok(DeviceAttr::of(&raw))
    }

    /// The attributes of port `port` (from 1); `ibv_query_port(3)`.
    ///
    /// # Errors
    /// EINVAL where the device has no such port.
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        self.raw_port(port).map(|raw| PortAttr::of(&raw))
    }

    /// All attributes of the port, in the library's own numbers; 0 in fields that the library is too old for.
    ///
    /// # Errors
    /// As [`port`](Context::port).
    pub fn raw_port(&self, port: u8) -> Result<ibv_port_attr> {
        let mut raw = ibv_port_attr::default();
        // The newest layout where the library has the operation for it, else the oldest, as the header does it.
        let extended = self.extended(offset_of!(verbs_context, query_port));
        // SAFETY: the library's struct reaches up to this operation.
        let rc = match extended.and_then(|extended| unsafe { (*extended).query_port }) {
            // SAFETY: an open context, and a struct of the length that is passed along.
            Some(query) => unsafe { query(self.0.raw, port, &mut raw, size_of::<ibv_port_attr>()) },
            // SAFETY: an open context, and a struct that is longer than what the call fills.
            None => unsafe { (self.0.library.0.device.query_port)(self.0.raw, port, &mut raw) },
        };
        check(rc, "ibv_query_port", || format!("port {port} of {}", self.0.name))?;
        Ok(raw)
    }

    /// `verbs_get_ctx_op(context, op)` of the header: the surrounding struct, where the library's reaches up to the
    /// operation that is `offset` bytes into ours.
    fn extended(&self, offset: usize) -> Option<*mut verbs_context> {
        // SAFETY: an open context.
        if unsafe { (*self.0.raw).abi_compat } != VERBS_ABI_IS_EXTENDED {
            return None;
        }
        let extended = verbs_context::of(self.0.raw);
        // SAFETY: an extended context lies inside a verbs_context, of which the part at the end, `sz` with it, is there
        // in every version.
        let there = unsafe { (*extended).sz };
        (there >= size_of::<verbs_context>() - offset).then_some(extended)
    }

    /// The operations of a transport that the device can do to memory that is registered
    /// [`ON_DEMAND`](crate::Access::ON_DEMAND); empty if it has no on-demand paging, or if the library is too old to
    /// ask. `ibv_query_device_ex(3)`.
    ///
    /// # Errors
    /// The driver's.
    pub fn on_demand(&self, transport: Transport) -> Result<OnDemand> {
        let extended = self.extended(offset_of!(verbs_context, query_device_ex));
        // SAFETY: the library's struct reaches up to this operation.
        let Some(query) = extended.and_then(|extended| unsafe { (*extended).query_device_ex }) else {
            return Ok(OnDemand::empty());
        };
        let mut raw = MaybeUninit::<ibv_device_attr_ex>::zeroed();
        // SAFETY: an open context, no input, and a struct of the length that is passed along.
        let rc = unsafe { query(self.0.raw, ptr::null(), raw.as_mut_ptr(), size_of::<ibv_device_attr_ex>()) };
        check(rc, "ibv_query_device_ex", || self.0.name.clone())?;
        // SAFETY: numbers and bytes only, zeroed before the call filled them.
        let caps = unsafe { raw.assume_init() }.odp_caps;
        if caps.general_caps & IBV_ODP_SUPPORT == 0 {
            return Ok(OnDemand::empty());
        }
        Ok(OnDemand::from_bits_truncate(match transport {
            Transport::Rc => caps.rc_odp_caps,
            Transport::Uc => caps.uc_odp_caps,
            Transport::Ud => caps.ud_odp_caps,
        }))
    }

    /// The P_Key at `index` of a port's table, in host order; `ibv_query_pkey(3)`.
    ///
    /// # Errors
    /// EINVAL where there is no such port or entry.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: an open context and a valid place for the answer.
        let rc = unsafe { (self.0.library.0.device.query_pkey)(self.0.raw, port, index.into(), &mut pkey) };
        check(rc, "ibv_query_pkey", || format!("P_Key {index} of port {port} of {}", self.0.name))?;
        Ok(u16::from_be(pkey))
    }

    /// The valid GIDs of all ports; `ibv_query_gid_table(3)`.
    ///
    /// # Errors
    /// The driver's.
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        let mut room = 0;
        for port in 1..=self.attr()?.ports {
            room += self.port(port)?.gid_table as usize;
        }
        let mut raw = vec![ibv_gid_entry::default(); room];
        // SAFETY: an open context, and `room` entries of the size that is passed along.
        let found = unsafe {
            (self.0.library.0.device.query_gid_table)(self.0.raw, raw.as_mut_ptr(), room, 0, size_of::<ibv_gid_entry>())
        };
        let Ok(found) = usize::try_from(found) else {
            let errno = c_int::try_from(-found).unwrap_or(libc::EIO);
            return Err(Error::call("ibv_query_gid_table", &self.0.name, errno));
        };
        raw.truncate(found);
        let entry = |e: &ibv_gid_entry| GidEntry {
            index: e.gid_index,
            port: e.port_num,
            gid: Gid(e.gid.raw),
            kind: GidType::of(e.gid_type),
            interface: e.ndev_ifindex,
        };
        Ok(raw.iter().map(entry).collect())
    }

    /// The GID that a connection from `port` should use ([`gid::best`]); None on InfiniBand.
    ///
    /// # Errors
    /// As [`gids`](Context::gids).
    pub fn best_gid(&self, port: u8) -> Result<Option<GidEntry>> {
        let mut entries = self.gids()?;
        entries.retain(|e| e.port == u32::from(port));
        Ok(gid::best(&entries))
    }
}

bitflags::bitflags! {
    /// Operations that a device can do to memory that is not pinned; `enum ibv_odp_transport_cap_bits`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OnDemand: u32 {
        /// Send from it.
        const SEND = IBV_ODP_SUPPORT_SEND;
        /// Receive into it, from a queue of the QP's own.
        const RECEIVE = IBV_ODP_SUPPORT_RECV;
        /// Write, from it and into it.
        const WRITE = IBV_ODP_SUPPORT_WRITE;
        /// Read, from it and into it.
        const READ = IBV_ODP_SUPPORT_READ;
        /// Atomics on it.
        const ATOMIC = IBV_ODP_SUPPORT_ATOMIC;
        /// Receive into it, from an SRQ.
        const SRQ_RECEIVE = IBV_ODP_SUPPORT_SRQ_RECV;
    }

    /// Features that not every device has; `enum ibv_device_cap_flags`, as far as this crate can use them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// An SRQ can be [resized](crate::Srq::resize).
        const SRQ_RESIZE = IBV_DEVICE_SRQ_RESIZE;
        /// Memory windows of type 1.
        const WINDOWS = IBV_DEVICE_MEM_WINDOW;
        /// Invalidations, here and of the peer's windows.
        const EXTENSIONS = IBV_DEVICE_MEM_MGT_EXTENSIONS;
        /// Memory windows of type 2A: of a QP.
        const WINDOWS_2A = IBV_DEVICE_MEM_WINDOW_TYPE_2A;
        /// Memory windows of type 2B: of a QP in its domain.
        const WINDOWS_2B = IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        /// A device asks a peer to wait if it has no receive for its message (RC).
        const RNR_NAK = IBV_DEVICE_RC_RNR_NAK_GEN;
    }
}

/// The atomic operations of a device; `enum ibv_atomic_cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicCap {
    /// Not at all.
    None,
    /// Atomic among the operations of this device.
    Device,
    /// Atomic also beside the CPUs and other devices.
    Global,
}

/// The identity of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The firmware's version, as the vendor writes it.
    pub firmware: String,
    /// EUI-64 of the device.
    pub node_guid: [u8; 8],
    /// EUI-64 of the board, which may have several devices.
    pub system_guid: [u8; 8],
    /// The vendor's PCI number.
    pub vendor: u32,
    /// The vendor's number of the part.
    pub part: u32,
    /// The vendor's version of the hardware.
    pub hardware: u32,
}

/// The limits of shared receive queues; 0: the device does not give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqLimits {
    /// SRQs.
    pub max: u32,
    /// Receives in one.
    pub max_queue: u32,
    /// SGEs of a receive.
    pub max_sge: u32,
}

/// The identity and limits of a device; `ibv_query_device(3)`. A limit of 0 is one that the device does not give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttr {
    /// What it is.
    pub identity: DeviceIdentity,
    /// The longest memory region, in bytes.
    pub max_region: u64,
    /// QPs.
    pub max_qp: u32,
    /// Work requests in one queue of a QP.
    pub max_queue: u32,
    /// SGEs of one request.
    pub max_sge: u32,
    /// SGEs of one RDMA Read.
    pub max_read_sge: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of one CQ.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Reads and atomics that a QP can be the target of at once.
    pub max_dest_rd_atomic: u8,
    /// Reads and atomics that a QP can have under way.
    pub max_rd_atomic: u8,
    /// Its atomic operations.
    pub atomics: AtomicCap,
    /// Address handles.
    pub max_ah: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Memory windows.
    pub max_windows: u32,
    /// Those of SRQs.
    pub srq: SrqLimits,
    /// Page sizes that it can map, a bit for each; 0: unknown.
    pub page_sizes: u64,
    /// Optional features.
    pub capabilities: Capabilities,
    /// Ports, from 1.
    pub ports: u8,
}

impl DeviceAttr {
    fn of(raw: &ibv_device_attr) -> Self {
        let limit = |n: c_int| u32::try_from(n).unwrap_or(0);
        // They are attributes of 8 bits where a QP takes them.
        let narrow = |n: c_int| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
        Self {
            identity: DeviceIdentity {
                firmware: text(&raw.fw_ver),
                node_guid: raw.node_guid.to_ne_bytes(),
                system_guid: raw.sys_image_guid.to_ne_bytes(),
                vendor: raw.vendor_id,
                part: raw.vendor_part_id,
                hardware: raw.hw_ver,
            },
            max_region: raw.max_mr_size,
            max_qp: limit(raw.max_qp),
            max_queue: limit(raw.max_qp_wr),
            max_sge: limit(raw.max_sge),
            max_read_sge: limit(raw.max_sge_rd),
            max_cq: limit(raw.max_cq),
            max_cqe: limit(raw.max_cqe),
            max_mr: limit(raw.max_mr),
            max_dest_rd_atomic: narrow(raw.max_qp_rd_atom),
            max_rd_atomic: narrow(raw.max_qp_init_rd_atom),
            atomics: match raw.atomic_cap {
                IBV_ATOMIC_NONE => AtomicCap::None,
                IBV_ATOMIC_HCA => AtomicCap::Device,
                _ => AtomicCap::Global,
            },
            max_ah: limit(raw.max_ah),
            max_pd: limit(raw.max_pd),
            max_windows: limit(raw.max_mw),
            srq: SrqLimits {
                max: limit(raw.max_srq),
                max_queue: limit(raw.max_srq_wr),
                max_sge: limit(raw.max_srq_sge),
            },
            page_sizes: raw.page_size_cap,
            capabilities: Capabilities::from_bits_truncate(raw.device_cap_flags),
            ports: raw.phys_port_cnt,
        }
    }
}

fn numa_node(device: &str) -> Option<u32> {
    // -1 where the bus does not know.
    fs::read_to_string(format!("/sys/class/infiniband/{device}/device/numa_node")).ok()?.trim().parse().ok()
}

/// A fixed array with a C string in it, which a foreign library may have filled to the brim.
fn text(field: &[c_char]) -> String {
    // c_char is signed on some machines.
    let bytes: Vec<u8> = field.iter().map(|&c| c.to_ne_bytes()[0]).collect();
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Makes calls on a descriptor return at once, or wait.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> Result<()> {
    // SAFETY: fcntl on a descriptor that is open as long as it is borrowed; no memory is involved.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, wanted) } < 0 {
        return Err(Error::last("fcntl", "the descriptor of events"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_the_first_zero_or_with_its_field() {
        let field = |bytes: &[u8]| bytes.iter().map(|&b| c_char::from_ne_bytes([b])).collect::<Vec<_>>();
        assert_eq!(text(&field(b"mlx5_0\0rest")), "mlx5_0");
        assert_eq!(text(&field(b"full")), "full");
    }
}
