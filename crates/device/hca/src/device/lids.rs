//! LIDs, and GUIDs derived from them. The ports of a host have 2 to 65; in a window each node has 64 of its own, so
//! that a LID names a node. In a window GUIDs follow from the node's GID there: hosts with one name and one machine-id,
//! as copies of a container image have, get different ones, and the GID of a port follows from its LID.

use std::ops::RangeInclusive;
use vervain_iba::Gid;

/// LIDs of a node: as many as there can be ports, 16 devices of 4.
const OF_NODE: u16 = 64;
/// The first one of the first node in a window.
const IN_WINDOW: u16 = 0x1000;
/// Nodes that a window can have.
const NODES: u16 = 64;
/// Those of multicast groups (IBA 4.1.3).
const MULTICAST: RangeInclusive<u16> = 0xc000..=0xfffe;
/// The first bits of the GUIDs of all hosts: locally administered.
const GUID_PREFIX: u16 = 0x0256;

/// The LID of a port; `node` is that in the window, if there is one.
pub(crate) fn of_port(node: Option<u32>, device: u32, port: u8) -> u16 {
    node.map_or(2, |node| IN_WINDOW + node as u16 * OF_NODE) + device as u16 * 4 + u16::from(port.max(1)) - 1
}

/// The node of a window that has a LID.
pub fn node(lid: u16) -> Option<u32> {
    let within = lid.checked_sub(IN_WINDOW)?;
    (within < NODES * OF_NODE).then_some(u32::from(within / OF_NODE))
}

/// Which of its node's ports has a LID, from 0.
pub fn place(lid: u16) -> u16 {
    lid % OF_NODE
}

/// The LID of a port of a node in a window, and the GID of that port; `node_gid` is the node's own.
pub fn at(node: u32, node_gid: &Gid, place: u16) -> (u16, Gid) {
    let (device, port) = (u32::from(place % OF_NODE / 4), (place % 4) as u8 + 1);
    (of_port(Some(node), device, port), gid(guid(node_gid, device), port))
}

/// Returns true if a LID is that of a group.
pub fn is_multicast(lid: u16) -> bool {
    MULTICAST.contains(&lid)
}

/// The GUID of a device; `identity` is that of its host.
pub(crate) fn guid(identity: &[u8], device: u32) -> u64 {
    // FNV-1a: any spread of bits will do.
    let hash =
        identity.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
    u64::from(GUID_PREFIX) << 48 | (hash & 0xffff_ffff) << 16 | u64::from(device) << 8
}

/// The GID of a port of a device with that GUID.
pub(crate) fn gid(guid: u64, port: u8) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&(guid | u64::from(port)).to_be_bytes());
    gid
}

/// Returns true if a GID is that of an InfiniBand port of Vervain's: the default subnet and a GUID.
pub fn is_of_infiniband(gid: &Gid) -> bool {
    gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0] && gid[8..10] == GUID_PREFIX.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_port_of_each_node_has_a_lid_and_a_gid_of_its_own() {
        let mut seen = HashSet::new();
        for n in 0..64 {
            let mut node_gid = [0xfd; 16];
            node_gid[8..].copy_from_slice(&(u64::from(n) + 1).to_be_bytes());
            for (device, port) in (0..16).flat_map(|device| (1..=4).map(move |port| (device, port))) {
                let lid = of_port(Some(n), device, port);
                let gid = gid(guid(&node_gid, device), port);
                assert_eq!((node(lid), at(n, &node_gid, place(lid))), (Some(n), (lid, gid)));
                assert!(is_of_infiniband(&gid) && !is_multicast(lid));
                assert!(seen.insert((lid, gid)) && lid < 0xc000);
            }
        }
        let lids: HashSet<_> = seen.iter().map(|(lid, _)| lid).collect();
        let gids: HashSet<_> = seen.iter().map(|(_, gid)| gid).collect();
        assert_eq!((lids.len(), gids.len()), (4096, 4096));
    }

    #[test]
    fn lids_of_a_host_are_those_of_no_node() {
        let lids: Vec<_> = (0..16).flat_map(|device| (1..=4).map(move |port| of_port(None, device, port))).collect();
        assert_eq!(lids, (2..=65).collect::<Vec<_>>());
        assert!(lids.iter().all(|lid| node(*lid).is_none()));
        assert_eq!([0, 1, 0xfff, 0x2000, 0xc001].map(node), [None; 5]);
    }
}
