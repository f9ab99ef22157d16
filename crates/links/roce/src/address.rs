//! Addresses as RoCE has them: IP addresses, and the GIDs that they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use vervain_hca::Gid;

/// A local address, as the program knows it, and the interface that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub ip: IpAddr,
    pub interface: u32,
}

/// The IP address that a RoCE v2 GID stands for (IBA annex A17.4.3).
///
/// An IPv4 multicast group has a second form, `ff0e::ffff:a.b.c.d`, by which the kernel's rdma_cm names it.
pub(super) fn ip_of(gid: &Gid) -> IpAddr {
    const IPV4_GROUP: [u8; 12] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let v6 = Ipv6Addr::from(*gid);
    match (gid.strip_prefix(&IPV4_GROUP), v6.to_ipv4_mapped()) {
        (Some(&[a, b, c, d]), _) => Ipv4Addr::new(a, b, c, d).into(),
        (_, Some(v4)) => v4.into(),
        _ => v6.into(),
    }
}
