//! The devices: one context of each for the whole program, as `rdma_get_devices` promises, and the addresses that they
//! have.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use vervain_abi::*;

use crate::address::{gid_of, socket_at, source_for};
use crate::verbs::Verbs;

/// GIDs of a port that are looked at.
const GIDS: usize = 256;

/// A device that is open.
pub(crate) struct Device {
    pub context: *mut ibv_context,
    /// In network byte order.
    pub guid: u64,
    /// Most READs and atomics of a peer that a QP takes at once, and of its own that it has under way.
    pub most_responder: u8,
    pub most_initiator: u8,
    /// The protection domain of identifiers that are given none, and how many have it.
    pd: Mutex<(*mut ibv_pd, usize)>,
}

// SAFETY: contexts and protection domains may be used by any thread (ibv_open_device(3)).
unsafe impl Send for Device {}
// SAFETY: as above; the fields that change are behind a lock.
unsafe impl Sync for Device {}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub device: usize,
    pub port: u8,
    pub index: u8,
    pub gid: ibv_gid,
    pub interface: u32,
}

/// The way to another address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub source: Source,
    pub dgid: ibv_gid,
    /// It is an address of this host.
    pub is_local: bool,
    /// The path MTU, by the port's.
    pub mtu: ibv_mtu,
    pub traffic_class: u8,
}

impl Device {
    /// The protection domain for who brings none; to be given back.
    pub fn pd(&self, verbs: &Verbs) -> Result<*mut ibv_pd, c_int> {
        let mut pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.1 == 0 {
            // SAFETY: an open context.
            pd.0 = unsafe { (verbs.memory.alloc_pd)(self.context) };
            if pd.0.is_null() {
                return Err(last_errno());
            }
        }
        pd.1 += 1;
        Ok(pd.0)
    }

    /// Gives back what [`Device::pd`] gave, if that is it.
    pub fn give_pd_back(&self, verbs: &Verbs, of: *mut ibv_pd) {
        let mut pd = self.pd.lock().unwrap_or_else(PoisonError::into_inner);
        if pd.0 != of || pd.1 == 0 {
            return;
        }
        pd.1 -= 1;
        if pd.1 == 0 {
            // SAFETY: made above, and nobody has it any more; what the program has made in it itself keeps it (EBUSY).
            unsafe { (verbs.memory.dealloc_pd)(pd.0) };
            pd.0 = ptr::null_mut();
        }
    }
}

impl Route {
    /// The kernel's default.
    pub fn hop_limit(&self) -> u8 {
        64
    }

    /// An address vector for it.
    pub fn ah(&self) -> ibv_ah_attr {
        ibv_ah_attr {
            grh: ibv_global_route {
                dgid: self.dgid,
                flow_label: 0,
                sgid_index: self.source.index,
                hop_limit: self.hop_limit(),
                traffic_class: self.traffic_class,
            },
            is_global: 1,
            port_num: self.source.port,
            ..ibv_ah_attr::default()
        }
    }
}

/// The value of errno.
pub(crate) fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Opens all devices.
pub(crate) fn open_all(verbs: &Verbs) -> Result<Vec<Device>, c_int> {
    let mut count = 0;
    // SAFETY: of ibv_get_device_list(3).
    let list = unsafe { (verbs.device.get_list)(&raw mut count) };
    if list.is_null() {
        return Err(last_errno());
    }
    let mut devices = Vec::new();
    for i in 0..count.unsigned_abs() as usize {
        // SAFETY: the list has so many, and is freed below.
        let (context, guid) = unsafe {
            let device = *list.add(i);
            ((verbs.device.open)(device), (verbs.device.get_guid)(device))
        };
        // SAFETY: an array of integers.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and room for the answer.
        if context.is_null() || unsafe { (verbs.device.query)(context, &raw mut attr) } != 0 {
            continue;
        }
        let most = |n: c_int| u8::try_from(n).unwrap_or(u8::MAX - 1);
        devices.push(Device {
            context,
            guid,
            most_responder: most(attr.max_qp_rd_atom),
            most_initiator: most(attr.max_qp_init_rd_atom),
            pd: Mutex::new((ptr::null_mut(), 0)),
        });
    }
    // SAFETY: the list above.
    unsafe { (verbs.device.free_list)(list) };
    Ok(devices)
}

/// All addresses of all devices, as they are now.
pub(crate) fn sources(verbs: &Verbs, devices: &[Device]) -> Vec<Source> {
    let mut all = Vec::new();
    for (i, device) in devices.iter().enumerate() {
        let mut table = [ibv_gid_entry::default(); GIDS];
        let entry_size = size_of::<ibv_gid_entry>();
        // SAFETY: an open context, and room for so many entries of that size.
        let n = unsafe { (verbs.device.query_gid_table)(device.context, table.as_mut_ptr(), GIDS, 0, entry_size) };
        for entry in table.iter().take(usize::try_from(n).unwrap_or(0)) {
            let (Ok(port), Ok(index)) = (u8::try_from(entry.port_num), u8::try_from(entry.gid_index)) else { continue };
            all.push(Source { device: i, port, index, gid: entry.gid, interface: entry.ndev_ifindex });
        }
    }
    all
}

/// The device's address that an IP address is; on the interface that a link-local one names.
pub(crate) fn source_of(sources: &[Source], address: &SocketAddr) -> Option<Source> {
    let gid = gid_of(address.ip());
    let interface = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    sources.iter().find(|s| s.gid == gid && (interface == 0 || s.interface == interface || s.interface == 0)).copied()
}

/// The address by which one of a window is reached: they are of one subnet, and none of them is an interface's
/// (docs/window-link.md).
fn source_in_window(sources: &[Source], to: &SocketAddr) -> Option<Source> {
    let gid = gid_of(to.ip()).raw;
    let is_interfaces = |source: &&Source| socket_at(&SocketAddr::new(ip_of(&source.gid), 0)).is_ok();
    let mut near = sources.iter().filter(|s| to.is_ipv6() && s.gid.raw[..8] == gid[..8]);
    near.find(|source| !is_link_local(&to.ip()) && !is_interfaces(source)).copied()
}

/// Returns true if an address has a meaning on one interface only.
pub(crate) fn is_link_local(ip: &IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns true if it stands for this host whatever its addresses are, as the kernel's rdma_cm has it: the unspecified
/// one and the loopback's.
pub(crate) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.to_canonical().is_loopback()
}

/// Returns true if all addresses of devices are the loopback's (`VERVAIN_INTERFACE=lo`).
pub(crate) fn are_of_the_loopback(sources: &[Source]) -> bool {
    sources.iter().all(|source| ip_of(&source.gid).to_canonical().is_loopback())
}

/// The way from `from`, if that is said, to `to`; and both addresses. ENETUNREACH and the like where there is no route,
/// ENODEV where it leads over an interface that no device has.
pub(crate) fn route(
    verbs: &Verbs,
    devices: &[Device],
    from: Option<SocketAddr>,
    to: &SocketAddr,
) -> Result<(Route, SocketAddr, SocketAddr), c_int> {
    let sources = sources(verbs, devices);
    let from = from.filter(|from| !from.ip().is_unspecified());
    if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
        return Err(libc::EINVAL);
    }
    let named = from.map(|from| (source_of(&sources, &from), from));
    let (source, from, to) = match named {
        Some((Some(source), from)) => {
            let to = if to.ip().is_unspecified() { SocketAddr::new(from.ip(), to.port()) } else { *to };
            if source_of(&sources, &to).is_none() && !is_any(to.ip()) && source_in_window(&sources, &to).is_none() {
                source_for(Some(&from), &to)?;
            }
            (source, from, to)
        }
        Some((None, from)) if !is_any(from.ip()) => return Err(libc::ENODEV),
        _ => {
            let by_kernel = || -> Result<Option<(Source, SocketAddr)>, c_int> {
                let from = if to.ip().is_unspecified() { return Ok(None) } else { source_for(None, to)? };
                Ok(source_of(&sources, &from).map(|source| (source, from)))
            };
            let in_window = source_in_window(&sources, to);
            let found = in_window.map(|source| (source, SocketAddr::new(ip_of(&source.gid), 0)));
            match found.map_or_else(by_kernel, |found| Ok(Some(found)))? {
                Some((source, from)) => (source, from, *to),
                // The loopback is of no device here, and stands for the first address of one.
                None if is_any(to.ip()) => {
                    let source = sources.iter().find(|s| ip_of(&s.gid).is_ipv4() == to.is_ipv4());
                    let source = *source.ok_or(libc::ENODEV)?;
                    let ip = ip_of(&source.gid);
                    (source, SocketAddr::new(ip, 0), SocketAddr::new(ip, to.port()))
                }
                None => return Err(libc::ENODEV),
            }
        }
    };
    // The loopback's address is that of the source where no device has it.
    let to = match source_of(&sources, &to) {
        None if is_any(to.ip()) => SocketAddr::new(from.ip(), to.port()),
        _ => to,
    };
    let is_local = source_of(&sources, &to).is_some();
    let device = &devices[source.device];
    // SAFETY: a struct of integers.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, and room for the answer.
    let failed = unsafe { (verbs.device.query_port)(device.context, source.port, &raw mut attr) } != 0;
    let mtu = if failed { IBV_MTU_1024 } else { attr.active_mtu };
    Ok((Route { source, dgid: gid_of(to.ip()), is_local, mtu, traffic_class: 0 }, from, to))
}

/// The IP address that a GID is.
pub(crate) fn ip_of(gid: &ibv_gid) -> IpAddr {
    let v6 = std::net::Ipv6Addr::from(gid.raw);
    v6.to_ipv4_mapped().map_or(v6.into(), IpAddr::V4)
}
