//! Addresses of a window: the GID of a node, and the process of a QP number.

use vervain_hca::Gid;
use vervain_hca::arena::layout::slot_of;
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::{Facts, PROCESSES};

/// A GID that only one window of the world has: a local IPv6 address (RFC 4193), whose global part is 40 bits of the window's
/// random number.
fn prefix(uuid: &[u8; 16]) -> [u8; 8] {
    let mut prefix = [0; 8];
    prefix[0] = 0xfd;
    prefix[1..6].copy_from_slice(&uuid[..5]);
    prefix
}

/// The GID of `node`, whose interface part is its number and one.
pub fn gid(facts: &Facts, node: u32) -> Gid {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&prefix(&facts.uuid));
    gid[8..].copy_from_slice(&(u64::from(node) + 1).to_be_bytes());
    gid
}

/// The node with a GID, if that is of this window.
pub fn node(facts: &Facts, gid: &Gid) -> Option<u32> {
    let (subnet, interface) = gid.split_at(8);
    let number = u64::from_be_bytes(interface.try_into().ok()?).checked_sub(1)?;
    let node = u32::try_from(number).ok().filter(|node| *node < facts.layout.nodes())?;
    (subnet == prefix(&facts.uuid)).then_some(node)
}

/// Which of its node's processes has a QP: the slots of process p are those with remainder p.
pub fn process(qpn: u32) -> u32 {
    slot_of(qpn) % PROCESSES
}

/// The process that has QP `qpn` of `node`.
pub fn peer(node: u32, qpn: u32) -> PeerId {
    PeerId { node, process: process(qpn) }
}
