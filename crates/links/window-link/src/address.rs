//! Addresses of a window: the GID or a LID of a node, and the process of a QP number.

use vervain_hca::arena::layout::slot_of;
use vervain_hca::device::{Device, is_multicast, lids};
use vervain_hca::{AhAttr, Gid};
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::{Facts, PROCESSES};

/// The node with a GID; None: no GID of this window.
pub fn node(facts: &Facts, gid: &Gid) -> Option<u32> {
    let number = u64::from_be_bytes(*gid.last_chunk()?).checked_sub(1)?;
    let node = u32::try_from(number).ok().filter(|node| *node < facts.layout.nodes())?;
    (facts.gid(node) == *gid).then_some(node)
}

/// The node of an address; None: not of this window. The GID decides; on InfiniBand the LID does if the GID is not the
/// window's.
pub fn destination(facts: &Facts, device: &Device, ah: &AhAttr) -> Option<u32> {
    let by_gid = node(facts, &ah.grh.dgid).filter(|_| ah.is_global);
    if device.is_ethernet() {
        return by_gid;
    }
    by_gid.or_else(|| lids::node(ah.dlid).filter(|node| *node < facts.layout.nodes()))
}

/// Returns true if packets to this group go through the window. It may have members everywhere: on Ethernet the source
/// address decides.
pub fn is_group(facts: &Facts, device: &Device, ah: &AhAttr) -> bool {
    if !is_multicast(&ah.grh.dgid) || !ah.is_global {
        return false;
    }
    if !device.is_ethernet() {
        return lids::is_multicast(ah.dlid);
    }
    let source = device.source(ah.grh.sgid_index.into());
    source.is_some_and(|(gid, _)| node(facts, &gid) == Some(facts.node))
}

/// Number of the process, among those of its node, that has a QP: the slots of process p are those with remainder p.
pub fn process(qpn: u32) -> u32 {
    slot_of(qpn) % PROCESSES
}

/// The process that has QP `qpn` of `node`.
pub fn peer(node: u32, qpn: u32) -> PeerId {
    PeerId { node, process: process(qpn) }
}
