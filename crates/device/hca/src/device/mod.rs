//! The devices that this host offers: their names, limits and ports. Nothing here has state; a device exists by
//! configuration (`VERVAIN_DEVICES`, `VERVAIN_PORTS`, `VERVAIN_LINK_LAYER`, `VERVAIN_LINK`). The state of the network
//! behind a port comes from `gids`.

pub mod gids;
pub mod grh;
pub mod lids;
pub mod port_counters;

use crate::device::gids::Line;
use crate::error::{Error, Result};
use std::sync::{Arc, OnceLock};
use vervain_config::{Config, LINK, LINK_LAYER};
pub use vervain_config::{LinkChoice, LinkLayer};
use vervain_iba::{AhAttr, Gid};

/// The limits of a device, enforced where the objects are made; those of `struct ibv_device_attr` by object.
#[allow(missing_docs)]
pub struct Limits {
    pub qp: QpLimits,
    pub cq: CqLimits,
    pub srq: SrqLimits,
    pub memory: MemoryLimits,
    pub multicast: MulticastLimits,
    pub max_pd: u32,
    pub max_ah: u32,
    /// Entries of a port's table of P_Keys.
    pub pkeys: u32,
    /// Entries of a port's table of GIDs.
    pub gids: u32,
}

/// Limits of QPs.
pub struct QpLimits {
    /// Number of QPs.
    pub max: u32,
    /// Requests in either queue.
    pub max_wr: u32,
    /// SGEs of a request, RDMA Reads included.
    pub max_sge: u32,
    /// Bytes that a request carries inline.
    pub max_inline: u32,
    /// Bytes of a message.
    pub max_msg_sz: u32,
    /// Reads and atomics under way, each way.
    pub max_rd_atom: u32,
}

/// Limits of CQs.
pub struct CqLimits {
    /// Number of CQs.
    pub max: u32,
    /// Completions in one.
    pub max_cqe: u32,
    /// Completion vectors to choose from.
    pub comp_vectors: u32,
}

/// Limits of SRQs.
pub struct SrqLimits {
    /// Number of SRQs.
    pub max: u32,
    /// Receives in one.
    pub max_wr: u32,
    /// SGEs of a receive.
    pub max_sge: u32,
}

/// Limits of memory regions, windows and device memory.
pub struct MemoryLimits {
    /// Number of regions.
    pub max_mr: u32,
    /// Bytes of a region.
    pub max_mr_size: u64,
    /// Number of windows.
    pub max_mw: u32,
    /// Bytes of an allocation of device memory.
    pub max_dm_size: u64,
    /// Sizes of pages, a bit each.
    pub page_sizes: u64,
}

/// Limits of multicast groups.
pub struct MulticastLimits {
    /// Number of groups.
    pub max_groups: u32,
    /// QPs in one.
    pub max_qps: u32,
}

/// The limits of every device.
pub const LIMITS: Limits = Limits {
    qp: QpLimits { max: 65_536, max_wr: 32_768, max_sge: 32, max_inline: 1_024, max_msg_sz: 1 << 31, max_rd_atom: 128 },
    cq: CqLimits { max: 65_536, max_cqe: (4 << 20) - 1, comp_vectors: 16 },
    srq: SrqLimits { max: 65_536, max_wr: 32_768, max_sge: 32 },
    memory: MemoryLimits {
        max_mr: (1 << 20) - 1,
        max_mr_size: 1 << 47,
        max_mw: (1 << 20) - 1,
        max_dm_size: 256 << 20,
        page_sizes: 0xffff_ffff_ffff_f000,
    },
    multicast: MulticastLimits { max_groups: 8_192, max_qps: 240 },
    max_pd: 1 << 20,
    max_ah: i32::MAX as u32,
    pkeys: 1,
    gids: 64,
};

/// `IBV_MTU_4096`.
pub(crate) const MTU_4096: u32 = 5;
/// The default P_Key, full membership.
const PKEY: u16 = 0xffff;

/// Type of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v2.
    RoceV2,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// Network interface it belongs to, 0 for none.
    pub ifindex: u32,
    /// Its name.
    pub ifname: String,
    /// Its type.
    pub gid_type: GidType,
}

/// A port as `ibv_query_port` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: u32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// A device.
pub struct Device {
    name: String,
    uverbs: String,
    index: u32,
    guid: u64,
    ports: u8,
    link_layer: LinkLayer,
    link: LinkChoice,
}

/// The devices, as the environment configures them. The error is one sentence about the wrong setting.
pub fn devices() -> Result<Vec<Arc<Device>>> {
    let config = Config::of_process()?;
    let (ports, link_layer, link) = (config.ports as u8, config.link_layer, config.link);
    if link == LinkChoice::Roce && link_layer == LinkLayer::Infiniband {
        let (name, link_layer) = (LINK.name(), LINK_LAYER.name());
        let link = link.word();
        return Err(Error::invalid(format!("{name} is '{link}', which needs the GIDs of {link_layer}=ethernet")));
    }
    gids::check_interfaces()?;
    let window = gids::window().filter(|_| link_layer == LinkLayer::Infiniband);
    Ok((0..config.devices)
        .map(|index| {
            Arc::new(Device {
                name: format!("vervain{index}"),
                uverbs: format!("uverbs{index}"),
                index,
                guid: window.map_or_else(|| host_guid(index), |node| lids::guid(&node, index)),
                ports,
                link_layer,
                link,
            })
        })
        .collect())
}

/// The number of ports of all devices.
pub(crate) fn port_count(config: &Config) -> u32 {
    config.devices * config.ports
}

/// The GUID of a device that stays the same on this host: it follows from the machine's identity.
fn host_guid(index: u32) -> u64 {
    static IDENTITY: OnceLock<Vec<u8>> = OnceLock::new();
    let identity = IDENTITY.get_or_init(|| {
        let mut identity = std::fs::read("/etc/machine-id").unwrap_or_default();
        identity.extend(std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default());
        identity
    });
    lids::guid(identity, index)
}

impl Device {
    /// Name, `vervain0` and so on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the device file that an adapter would have.
    pub fn uverbs_name(&self) -> &str {
        &self.uverbs
    }

    /// Number, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// GUID in host order.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Number of ports.
    pub fn ports(&self) -> u8 {
        self.ports
    }

    /// The link layer of `port`.
    pub fn link_layer(&self, _port: u8) -> LinkLayer {
        self.link_layer
    }

    /// Returns true if addresses are GIDs only.
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }

    /// Returns true if a port's state and MTU are those of a network interface, and not of memory alone.
    pub(crate) fn follows_network(&self) -> bool {
        self.is_ethernet() && matches!(self.link, LinkChoice::Auto | LinkChoice::Roce)
    }

    fn line(&self) -> Line {
        if self.follows_network() { gids::line() } else { Line { up: true, mtu: MTU_4096 } }
    }

    pub(crate) fn active_mtu(&self) -> u32 {
        self.line().mtu
    }

    /// The LID of `port`; 0 on Ethernet.
    pub fn lid(&self, port: u8) -> u16 {
        if self.is_ethernet() { 0 } else { lids::of_port(gids::node(), self.index, port) }
    }

    fn check_port(&self, port: u8) -> Result<()> {
        if port == 0 || port > self.ports {
            return Err(Error::invalid(format!("{} has no port {port}", self.name)));
        }
        Ok(())
    }

    /// The state of a port.
    pub fn port(&self, port: u8) -> Result<PortAttr> {
        self.check_port(port)?;
        let ethernet = self.is_ethernet();
        let line = self.line();
        // IBV_PORT_CM_SUP, and on Ethernet IBV_PORT_IP_BASED_GIDS.
        let caps = 1 << 16 | if ethernet { 1 << 26 } else { 0 };
        Ok(PortAttr {
            // ACTIVE or DOWN.
            state: if line.up { 4 } else { 1 },
            max_mtu: MTU_4096,
            active_mtu: line.mtu,
            gid_tbl_len: LIMITS.gids,
            port_cap_flags: caps,
            max_msg_sz: LIMITS.qp.max_msg_sz,
            pkey_tbl_len: LIMITS.pkeys as u16,
            lid: self.lid(port),
            sm_lid: u16::from(!ethernet),
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            // 4X EDR, a rate that every client knows.
            active_width: 2,
            active_speed: 32,
            // LinkUp or Disabled, as RoCE drivers have it.
            phys_state: if line.up { 5 } else { 3 },
            link_layer: if ethernet { 2 } else { 1 },
            // IBV_QPF_GRH_REQUIRED: an Ethernet port has no LIDs to go by.
            flags: u8::from(ethernet),
            port_cap_flags2: 0,
        })
    }

    /// The valid entries of a port's GID table: on Ethernet one for each address of the host's interfaces, at first
    /// those of the loopback interface last, and one of them again at index 3 ([`gids`]); on InfiniBand the port's own,
    /// and that of this node in a window.
    pub fn gids(&self, port: u8) -> Vec<GidEntry> {
        match self.link_layer {
            LinkLayer::Ethernet => gids::entries(),
            LinkLayer::Infiniband => {
                let gids = std::iter::once(lids::gid(self.guid, port)).chain(gids::window());
                let entry = |(index, gid)| {
                    let gid_type = GidType::Ib;
                    GidEntry { index, gid, ifindex: 0, ifname: String::new(), gid_type }
                };
                (0..).zip(gids).map(entry).collect()
            }
        }
    }

    /// One entry; zeros for an empty one, EINVAL beyond the table.
    pub fn gid(&self, port: u8, index: u32) -> Result<Gid> {
        self.check_port(port)?;
        if index >= LIMITS.gids {
            return Err(Error::invalid(format!("the GID table has {} entries", LIMITS.gids)));
        }
        if self.is_ethernet() {
            return Ok(gids::gid_at(index));
        }
        Ok(self.gids(port).get(index as usize).map_or([0; 16], |e| e.gid))
    }

    /// The GID at `index` of an Ethernet port and the index of the interface that has it; none for an empty entry.
    pub fn source(&self, index: u32) -> Option<(Gid, u32)> {
        gids::source(index).filter(|_| self.is_ethernet())
    }

    /// One P_Key in host order.
    pub fn pkey(&self, port: u8, index: u32) -> Result<u16> {
        self.check_port(port)?;
        if index >= LIMITS.pkeys {
            return Err(Error::invalid(format!("the P_Key table has {} entries", LIMITS.pkeys)));
        }
        Ok(PKEY)
    }
}

/// Returns true if a GID is that of a multicast group (IBA 4.1.1; RFC 1112 for the IPv4 ones).
pub fn is_multicast(gid: &Gid) -> bool {
    gid[0] == 0xff || (crate::device::grh::is_ipv4(gid) && gid[12] & 0xf0 == 0xe0)
}

/// Returns true if an address leads back to this host: by GID to one of its interface addresses, by LID to one of its
/// ports. The GID of a node in a window says which one is meant, whatever the LID.
pub fn is_this_host(devices: &[Arc<Device>], ah: &AhAttr) -> bool {
    let Some(first) = devices.first() else { return false };
    if first.is_ethernet() {
        return is_multicast(&ah.grh.dgid) || gids::is_of_this_host(&ah.grh.dgid);
    }
    if let Some(own) = gids::window().filter(|own| ah.is_global && ah.grh.dgid[..8] == own[..8]) {
        return ah.grh.dgid == own;
    }
    lids::is_multicast(ah.dlid) || devices.iter().any(|d| (1..=d.ports).any(|p| d.lid(p) == ah.dlid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_the_gid_of_its_loopback_address() {
        let mapped = "127.0.0.1".parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets();
        let entries = gids::entries();
        assert!(entries.iter().any(|e| e.gid == mapped), "{entries:?}");
        assert!(entries.iter().all(|e| gids::gid_at(e.index) == e.gid));
        assert!(gids::is_of_this_host(&mapped));
    }
}
