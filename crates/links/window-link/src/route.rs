//! Header fields of a packet that a window has no header for: RoCE's IP header, InfiniBand's LRH and GRH. Through a
//! window they stand in front of the payload of a datagram.

use vervain_hca::device::{Device, lids};
use vervain_hca::{AhAttr, Gid};
use vervain_window::Facts;

/// Bytes in front of the payload.
pub const ROUTE: usize = 24;

/// Header in front of the payload.
#[derive(Debug, PartialEq)]
pub struct Route {
    pub dgid: Gid,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
    pub lrh: Lrh,
}

/// InfiniBand's fields of a datagram besides its GRH; on Ethernet there are none, and all datagrams have a GRH.
#[derive(Debug, Default, PartialEq)]
pub struct Lrh {
    /// Port of its node from which it leaves, as in [`lids::place`].
    pub place: u16,
    /// Its service level.
    pub service_level: u8,
    /// True if it has a GRH.
    pub has_grh: bool,
    /// Its source is the GID of the node in the window, not that of the port.
    pub from_node: bool,
}

impl Lrh {
    /// The fields of datagrams that leave from the port of `device` with `lid`.
    pub fn of(ah: &AhAttr, device: &Device, lid: u16, facts: &Facts) -> Lrh {
        if device.is_ethernet() {
            return Lrh::default();
        }
        let source = || device.gid(ah.port_num.max(1), ah.grh.sgid_index.into());
        let from_node = ah.is_global && source().is_ok_and(|gid| gid == facts.gid(facts.node));
        Lrh { place: lids::place(lid), service_level: ah.sl, has_grh: ah.is_global, from_node }
    }

    fn encode(&self) -> u16 {
        let flags = u16::from(self.has_grh) << 10 | u16::from(self.from_node) << 11;
        self.place | u16::from(self.service_level & 15) << 6 | flags
    }

    fn decode(word: u16) -> Lrh {
        let (place, service_level) = (word & 63, (word >> 6 & 15) as u8);
        Lrh { place, service_level, has_grh: word & 1 << 10 != 0, from_node: word & 1 << 11 != 0 }
    }
}

impl Route {
    pub fn of(ah: &AhAttr, lrh: Lrh) -> Route {
        let grh = &ah.grh;
        let (traffic_class, hop_limit, flow_label) = (grh.traffic_class, grh.hop_limit, grh.flow_label);
        Route { dgid: grh.dgid, traffic_class, hop_limit, flow_label, lrh }
    }

    pub fn encode(&self) -> [u8; ROUTE] {
        let mut bytes = [0; ROUTE];
        bytes[..16].copy_from_slice(&self.dgid);
        bytes[16..20].copy_from_slice(&self.flow_label.to_be_bytes());
        (bytes[20], bytes[21]) = (self.traffic_class, self.hop_limit);
        bytes[22..].copy_from_slice(&self.lrh.encode().to_be_bytes());
        bytes
    }

    /// None of what no peer puts.
    pub fn decode(bytes: &[u8; ROUTE]) -> Option<Route> {
        let flow_label = u32::from_be_bytes(bytes[16..20].try_into().ok()?);
        let lrh = Lrh::decode(u16::from_be_bytes(*bytes.last_chunk()?));
        let dgid = bytes[..16].try_into().ok()?;
        Some(Route { dgid, traffic_class: bytes[20], hop_limit: bytes[21], flow_label, lrh })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_front_of_the_payload_is_read_as_it_was_written() {
        for (place, service_level) in [(0, 0), (63, 15), (5, 8)] {
            for (has_grh, from_node) in [(false, false), (true, false), (true, true)] {
                let lrh = Lrh { place, service_level, has_grh, from_node };
                let (dgid, traffic_class, hop_limit, flow_label) = ([0xfd; 16], 0xab, 0xcd, 0xf_ffff);
                let route = Route { dgid, traffic_class, hop_limit, flow_label, lrh };
                assert_eq!(Route::decode(&route.encode()), Some(route));
            }
        }
    }
}
