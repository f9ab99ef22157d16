//! The connection of two QPs: the addresses that the two sides exchange, and the settings of the path.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::device::Context;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::port::{LinkLayer, Mtu};
use crate::region::RemoteMemory;

/// The address of one side, for the other. The program exchanges it by means of its own (TCP, a file) before the QPs
/// connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// QP number, 24 bits.
    pub qpn: u32,
    /// The PSN of the first packet that it sends, 24 bits.
    pub psn: u32,
    /// LID of its port; 0 on RoCE.
    pub lid: u16,
    /// GID of its port; None if LIDs are the addresses.
    pub gid: Option<Gid>,
    /// The memory that the peer may use, if any.
    pub memory: Option<RemoteMemory>,
}

/// The most retries that there can be: three bits (IBA 9.7.6.1.3).
const MOST_RETRIES: u8 = 7;
/// Nanoseconds of the ACK timeout 0, each further one taking twice as long (IBA 9.7.6.1.3).
const TIMEOUT_NS: u128 = 4096;

/// A path's settings, in the units of `ibv_modify_qp(3)`; IBA volume 1, 12.7. [`PathOptions::of`] fits them to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathOptions {
    /// The port to leave by, from 1.
    pub port: u8,
    /// The GID to leave with, by its place in the port's table; None: no GRH, the peer is found by its LID.
    pub gid_index: Option<u8>,
    /// Place of the P_Key in the port's table.
    pub pkey_index: u16,
    /// Bytes of payload in a packet, at most. Both sides must set the same (RC, UC).
    pub mtu: Mtu,
    /// Time to wait for an acknowledgement: 4.096 µs times 2 to this power, 1 to 31; 0: no limit (RC).
    pub timeout: u8,
    /// How often to send again where none came, 0 to 7 (RC).
    pub retry_count: u8,
    /// How often to send again where the peer had no receive posted, 0 to 6; 7 never gives up (RC).
    pub rnr_retry: u8,
    /// Time that a peer must wait after it found no receive here, as an index into the table in `ibv_modify_qp(3)`, 0
    /// to 31: 0 is 655 ms, 1 is 10 µs, 12 is 640 µs (RC).
    pub min_rnr_timer: u8,
    /// Reads and atomics that may be under way from this side; at most the peer's
    /// [`max_dest_rd_atomic`](PathOptions::max_dest_rd_atomic) (RC).
    pub max_rd_atomic: u8,
    /// Reads and atomics that may be under way from the peer (RC).
    pub max_dest_rd_atomic: u8,
    /// Service level, 0 to 15; on RoCE the priority of the VLAN.
    pub sl: u8,
    /// Routers that a packet may pass, with a GRH.
    pub hop_limit: u8,
    /// With a GRH; on RoCE v2 the DSCP and ECN bits of the IP header.
    pub traffic_class: u8,
}

impl Default for PathOptions {
    /// Port 1 by LID; MTU 1024; 67 ms (14) and 7 retries; RNR waits of 640 µs without end; one Read or atomic each way;
    /// 64 hops.
    fn default() -> Self {
        Self {
            port: 1,
            gid_index: None,
            pkey_index: 0,
            mtu: Mtu::B1024,
            timeout: 14,
            retry_count: MOST_RETRIES,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            sl: 0,
            hop_limit: 64,
            traffic_class: 0,
        }
    }
}

impl PathOptions {
    /// The default, from `port` (from 1), with the port's active MTU, its best GID where it needs one
    /// ([`Context::best_gid`]), and as many Reads and atomics as the device can do. Sides that differ in
    /// the MTU must agree on the smaller one.
    ///
    /// # Errors
    /// Where the port cannot be queried, or needs a GID and has none.
    pub fn of(context: &Context, port: u8) -> Result<PathOptions> {
        let attr = context.port(port)?;
        let device = context.attr()?;
        let mut options = PathOptions {
            port,
            mtu: attr.active_mtu.unwrap_or(Mtu::B1024),
            max_rd_atomic: device.max_rd_atomic,
            max_dest_rd_atomic: device.max_dest_rd_atomic,
            ..Self::default()
        };
        if attr.needs_gid() {
            let index = match context.best_gid(port)? {
                Some(best) => u8::try_from(best.index).map_err(|_| Error::invalid("a GID index is below 256"))?,
                // An InfiniBand port whose subnet wants a GRH always: the first GID is the port's own (IBA 4.1.1).
                None if attr.link_layer != LinkLayer::Ethernet => 0,
                None => return Err(Error::invalid(format!("port {port} of {} has no RoCE GID", context.name()))),
            };
            options.gid_index = Some(index);
        }
        Ok(options)
    }

    /// The same with 7 retries and the shortest [`timeout`](PathOptions::timeout) with which requests outlast a
    /// `silence` of the peer: 8 tries take at least as long, and up to four times that (IBA 9.7.6.1.3). 19 hours are
    /// the most (RC).
    #[must_use]
    pub fn outlasting(self, silence: Duration) -> Self {
        let tries = u128::from(MOST_RETRIES) + 1;
        let outlasts = |timeout: &u8| (tries * TIMEOUT_NS) << *timeout >= silence.as_nanos();
        let timeout = (1..31).find(outlasts).unwrap_or(31);
        Self { timeout, retry_count: MOST_RETRIES, ..self }
    }

    /// The address of this side without memory: LID and GID of the port.
    pub(crate) fn local(&self, context: &Context, qpn: u32, psn: u32) -> Result<Endpoint> {
        let lid = context.port(self.port)?.lid;
        let gid = match self.gid_index {
            None => None,
            Some(index) => {
                let is_it = |e: &&_| {
                    matches!(e, crate::GidEntry { index: i, port: p, .. }
                    if (*p, *i) == (self.port.into(), index.into()))
                };
                let entries = context.gids()?;
                let entry = entries.iter().find(is_it).ok_or_else(|| {
                    Error::invalid(format!("port {} of {} has no GID {index}", self.port, context.name()))
                })?;
                Some(entry.gid)
            }
        };
        Ok(Endpoint { qpn, psn, lid, gid, memory: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ah::AddressVector;

    fn remote(lid: u16, gid: Option<&str>) -> Endpoint {
        let gid = gid.map(|g| g.parse().expect("a GID"));
        Endpoint { qpn: 0x12, psn: 7, lid, gid, memory: Some(RemoteMemory { addr: 1 << 40, rkey: 3, len: 9 }) }
    }

    #[test]
    fn the_timeout_is_the_shortest_with_which_8_tries_outlast_a_silence() {
        let usual = PathOptions { retry_count: 0, ..Default::default() };
        // 8 tries of 14 take 536.87 ms, of 21 68.72 s.
        for (ms, timeout) in [
            (0, 1),
            (500, 14),
            (536, 14),
            (537, 15),
            (1_000, 15),
            (65_000, 21),
            (68_719, 21),
            (68_720, 22),
            (3_600_000, 27),
            (u64::MAX, 31),
        ] {
            let path = usual.outlasting(Duration::from_millis(ms));
            assert_eq!(path, PathOptions { timeout, retry_count: 7, ..usual }, "{ms} ms");
        }
    }

    #[test]
    fn an_endpoint_survives_text() {
        for endpoint in [remote(0, Some("::ffff:10.0.0.1")), remote(9, None)] {
            let text = serde_json::to_string(&endpoint).expect("text");
            assert_eq!(serde_json::from_str::<Endpoint>(&text).expect("the same"), endpoint);
        }
    }

    #[test]
    fn roce_goes_by_gid_and_infiniband_by_lid() {
        let by_gid = PathOptions { gid_index: Some(3), hop_limit: 9, ..Default::default() };
        let vector = AddressVector::new(&remote(0, Some("::ffff:10.0.0.1")), &by_gid).expect("a path").raw();
        assert_eq!((vector.is_global, vector.grh.sgid_index, vector.grh.hop_limit, vector.dlid), (1, 3, 9, 0));
        let by_lid = PathOptions { sl: 4, ..Default::default() };
        let vector = AddressVector::new(&remote(9, None), &by_lid).expect("a path").raw();
        assert_eq!((vector.is_global, vector.dlid, vector.sl, vector.port_num), (0, 9, 4, 1));
    }

    #[test]
    fn a_path_to_nowhere_is_refused() {
        let by_gid = PathOptions { gid_index: Some(3), ..Default::default() };
        assert!(AddressVector::new(&remote(9, None), &by_gid).is_err());
        assert!(AddressVector::new(&remote(0, Some("::1")), &PathOptions::default()).is_err());
    }
}
