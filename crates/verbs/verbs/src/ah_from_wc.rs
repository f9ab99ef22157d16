//! The logic of `ibv_init_ah_from_wc(3)`: the address vector that answers a UD message.
//!
//! A UD receive has 40 bytes in front of the payload. On InfiniBand and with RoCE over IPv6 they are a GRH. With RoCE
//! v2 over IPv4 the last 20 of them are the IPv4 header and the first 20 undefined (annex A17.4.5.1 of the IBA
//! specification), so the two must be told apart by looking.

use core::mem::size_of;

use crate::abi::{IBV_WC_GRH, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_grh, ibv_wc};

const GRH_LEN: usize = size_of::<ibv_grh>();
const _: () = assert!(GRH_LEN == 40);

/// UDP's protocol number, which a RoCE v2 packet has as its next header.
const IPPROTO_UDP: u8 = 17;
/// IBA 8.3: the next header value of a GRH before a BTH.
const IBA_NEXT_HEADER: u8 = 0x1b;

/// The sender's address, as the 40 bytes give it.
struct Source {
    /// The sender's address: where the answer goes.
    from: ibv_gid,
    /// The address it was sent to: what the answer comes from.
    to: ibv_gid,
    /// True if that address is to be used with RoCE v2.
    v2: bool,
    flow_label: u32,
    traffic_class: u8,
}

/// The address vector for an answer to the message that `wc` completed and whose first 40 bytes are `grh`.
///
/// `gid_index` finds an address in the port's GID table, given whether the type must be RoCE v2. `None` when the
/// message came with addresses that the port does not have, or with no IP or GRH header at all.
pub fn ah_attr_from_wc(
    port_num: u8,
    wc: &ibv_wc,
    grh: &[u8; GRH_LEN],
    gid_index: impl Fn(&ibv_gid, bool) -> Option<u8>,
) -> Option<ibv_ah_attr> {
    let mut attr =
        ibv_ah_attr { dlid: wc.slid, sl: wc.sl, src_path_bits: wc.dlid_path_bits, port_num, ..Default::default() };
    if wc.wc_flags & IBV_WC_GRH != 0 {
        let source = from_ipv4(grh).or_else(|| from_grh(grh))?;
        // A multicast message was sent to an address that is no one's own: the answer comes from the first entry.
        let sgid_index = if is_multicast(&source.to) { 0 } else { gid_index(&source.to, source.v2)? };
        attr.is_global = 1;
        attr.grh = ibv_global_route {
            dgid: source.from,
            flow_label: source.flow_label,
            sgid_index,
            hop_limit: 0xff,
            traffic_class: source.traffic_class,
        };
    }
    Some(attr)
}

fn from_grh(grh: &[u8; GRH_LEN]) -> Option<Source> {
    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    if word >> 28 != 6 {
        return None;
    }
    let next_header = grh[6];
    if next_header != IBA_NEXT_HEADER && next_header != IPPROTO_UDP {
        return None;
    }
    Some(Source {
        from: gid(&grh[8..24]),
        to: gid(&grh[24..40]),
        v2: next_header == IPPROTO_UDP,
        flow_label: word & 0xf_ffff,
        traffic_class: (word >> 20) as u8,
    })
}

/// An IPv4 header in the last 20 bytes. Its checksum tells it from the low half of an IPv6 address that happens to
/// begin with 0x45.
fn from_ipv4(grh: &[u8; GRH_LEN]) -> Option<Source> {
    let ip = &grh[20..];
    if ip[0] != 0x45 || ip[9] != IPPROTO_UDP || ones_complement_sum(ip) != 0xffff {
        return None;
    }
    Some(Source {
        from: v4_mapped(&ip[12..16]),
        to: v4_mapped(&ip[16..20]),
        v2: true,
        flow_label: 0,
        traffic_class: ip[1],
    })
}

fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    // Ten words carry at most once more after the first fold.
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn gid(bytes: &[u8]) -> ibv_gid {
    let mut raw = [0; 16];
    raw.copy_from_slice(bytes);
    ibv_gid { raw }
}

fn v4_mapped(bytes: &[u8]) -> ibv_gid {
    let mut raw = [0; 16];
    raw[10..12].fill(0xff);
    raw[12..].copy_from_slice(bytes);
    ibv_gid { raw }
}

fn is_multicast(gid: &ibv_gid) -> bool {
    let v4 = gid.raw[..10] == [0; 10] && gid.raw[10..12] == [0xff; 2];
    if v4 { gid.raw[12] >> 4 == 0xe } else { gid.raw[0] == 0xff }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv6(next_header: u8) -> [u8; GRH_LEN] {
        let mut b = [0; GRH_LEN];
        b[..4].copy_from_slice(&0x6123_4567_u32.to_be_bytes());
        b[6] = next_header;
        b[8..24].fill(0xa);
        b[24..40].fill(0xb);
        b
    }

    fn ipv4() -> [u8; GRH_LEN] {
        let mut b = [0xee; GRH_LEN];
        b[20..].copy_from_slice(&[0x45, 7, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = !ones_complement_sum(&b[20..]);
        b[30..32].copy_from_slice(&sum.to_be_bytes());
        b
    }

    fn wc(flags: u32) -> ibv_wc {
        ibv_wc { wc_flags: flags, slid: 9, sl: 3, dlid_path_bits: 1, ..Default::default() }
    }

    #[test]
    fn without_a_grh_the_answer_goes_back_by_lid() {
        let attr = ah_attr_from_wc(2, &wc(0), &[0; GRH_LEN], |_, _| None).expect("needs no GID");
        assert_eq!((attr.dlid, attr.sl, attr.src_path_bits, attr.port_num, attr.is_global), (9, 3, 1, 2, 0));
    }

    #[test]
    fn a_grh_is_turned_round() {
        let attr = ah_attr_from_wc(1, &wc(IBV_WC_GRH), &ipv6(IBA_NEXT_HEADER), |g, v2| {
            (g.raw == [0xb; 16] && !v2).then_some(4)
        })
        .expect("the GID is in the table");
        assert_eq!(attr.grh.dgid.raw, [0xa; 16]);
        assert_eq!((attr.grh.sgid_index, attr.grh.flow_label, attr.grh.traffic_class), (4, 0x3_4567, 0x12));
    }

    #[test]
    fn roce_v2_over_ipv6_asks_for_a_v2_gid() {
        assert!(ah_attr_from_wc(1, &wc(IBV_WC_GRH), &ipv6(IPPROTO_UDP), |_, v2| v2.then_some(0)).is_some());
    }

    #[test]
    fn an_ipv4_header_becomes_mapped_gids() {
        let attr = ah_attr_from_wc(1, &wc(IBV_WC_GRH), &ipv4(), |g, v2| {
            (v2 && g.raw == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]).then_some(1)
        })
        .expect("the GID is in the table");
        assert_eq!(attr.grh.dgid.raw[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!((attr.grh.sgid_index, attr.grh.traffic_class), (1, 7));
    }

    #[test]
    fn an_unknown_address_or_no_header_gives_nothing() {
        assert!(ah_attr_from_wc(1, &wc(IBV_WC_GRH), &ipv4(), |_, _| None).is_none());
        assert!(ah_attr_from_wc(1, &wc(IBV_WC_GRH), &[0; GRH_LEN], |_, _| Some(0)).is_none());
        let mut broken = ipv4();
        broken[32] ^= 1;
        assert!(ah_attr_from_wc(1, &wc(IBV_WC_GRH), &broken, |_, _| Some(0)).is_none());
    }
}
