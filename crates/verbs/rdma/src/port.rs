//! The attributes of a port: `ibv_query_port(3)`.

use std::fmt;

use serde::{Deserialize, Serialize};
use vervain_abi::*;

/// A path MTU: the payload of one packet, without headers; `enum ibv_mtu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    const ALL: [(Mtu, ibv_mtu, u32); 5] = [
        (Mtu::B256, IBV_MTU_256, 256),
        (Mtu::B512, IBV_MTU_512, 512),
        (Mtu::B1024, IBV_MTU_1024, 1024),
        (Mtu::B2048, IBV_MTU_2048, 2048),
        (Mtu::B4096, IBV_MTU_4096, 4096),
    ];

    /// The MTU in bytes.
    pub fn bytes(self) -> u32 {
        256 << self as u32
    }

    pub(crate) fn raw(self) -> ibv_mtu {
        self as u32 + IBV_MTU_256
    }

    pub(crate) fn of_raw(raw: ibv_mtu) -> Option<Self> {
        Self::ALL.iter().find(|(_, number, _)| *number == raw).map(|(mtu, ..)| *mtu)
    }
}

impl TryFrom<u32> for Mtu {
    type Error = String;

    /// The MTU of `bytes` bytes.
    fn try_from(bytes: u32) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(.., size)| *size == bytes).map(|(mtu, ..)| *mtu);
        found.ok_or_else(|| format!("{bytes} is no MTU: 256, 512, 1024, 2048 or 4096 are"))
    }
}

impl From<Mtu> for u32 {
    fn from(mtu: Mtu) -> u32 {
        mtu.bytes()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The state of a port, which says if it can carry data; `enum ibv_port_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No cable, or switched off.
    Down,
    /// InfiniBand: waits for the subnet manager.
    Init,
    /// InfiniBand: configured, not yet released.
    Armed,
    /// Carries data.
    Active,
    /// InfiniBand: lost its link a moment ago and hopes to have it back.
    ActiveDefer,
    /// Another number, or none.
    Other(u32),
}

/// The layer below the transport; the `link_layer` of `ibv_query_port(3)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// Addresses are LIDs, given by a subnet manager.
    InfiniBand,
    /// RoCE: addresses are GIDs, and every packet has a GRH.
    Ethernet,
    /// Another number, or none: treated as InfiniBand, as the library does for what is older than RoCE.
    Other(u8),
}

/// The attributes of a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PortAttr {
    /// Its state; data can be carried in [`PortState::Active`].
    pub state: PortState,
    /// The largest MTU that the port could have.
    pub max_mtu: Option<Mtu>,
    /// The largest MTU that paths from it can have now.
    pub active_mtu: Option<Mtu>,
    /// The length of the GID table; not all of it need be valid.
    pub gid_table: u32,
    /// The length of the P_Key table.
    pub pkey_table: u16,
    /// The longest message, in bytes.
    pub max_message: u32,
    /// The LID; 0 on Ethernet.
    pub lid: u16,
    /// The layer below the transport.
    pub link_layer: LinkLayer,
    /// Lanes of the link; 0 where the device gave a number that has no meaning.
    pub lanes: u32,
    /// Data rate of one lane in Gbit/s; 0.0 where the device gave a number that has no meaning.
    pub lane_gbps: f64,
    /// True if every address needs a GRH, on any link layer.
    pub grh_required: bool,
}

impl PortAttr {
    /// The data rate of the port in Gbit/s, all lanes together; 0.0 where it is not known.
    pub fn gbps(&self) -> f64 {
        f64::from(self.lanes) * self.lane_gbps
    }

    /// Returns true if an address of this port needs a GID.
    pub fn needs_gid(&self) -> bool {
        self.grh_required || self.link_layer == LinkLayer::Ethernet
    }

    pub(crate) fn of(raw: &ibv_port_attr) -> Self {
        Self {
            state: match raw.state {
                IBV_PORT_DOWN => PortState::Down,
                IBV_PORT_INIT => PortState::Init,
                IBV_PORT_ARMED => PortState::Armed,
                IBV_PORT_ACTIVE => PortState::Active,
                IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
                other => PortState::Other(other),
            },
            max_mtu: Mtu::of_raw(raw.max_mtu),
            active_mtu: Mtu::of_raw(raw.active_mtu),
            gid_table: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_table: raw.pkey_tbl_len,
            max_message: raw.max_msg_sz,
            lid: raw.lid,
            link_layer: match raw.link_layer {
                IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                other => LinkLayer::Other(other),
            },
            lanes: lanes(raw.active_width),
            // A lane of 200 Gbit/s does not fit the older field; the newer one is 0 in libraries before v64.
            lane_gbps: lane_gbps(raw.active_speed_ex.max(raw.active_speed.into())),
            grh_required: raw.flags & IBV_QPF_GRH_REQUIRED != 0,
        }
    }
}

/// PortInfo:LinkWidthActive, IBA volume 1, 14.2.5.6.
fn lanes(width: u8) -> u32 {
    match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// PortInfo:LinkSpeedActive and its extension, in the numbers of `ibv_query_port(3)`.
fn lane_gbps(speed: u32) -> f64 {
    match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        256 => 200.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_is_its_bytes_in_text_and_its_number_in_the_call() {
        for (mtu, raw, bytes) in Mtu::ALL {
            assert_eq!((mtu.raw(), mtu.bytes()), (raw, bytes));
            assert_eq!((Mtu::of_raw(raw), Mtu::try_from(bytes)), (Some(mtu), Ok(mtu)));
        }
        assert!(Mtu::try_from(1500).unwrap_err().contains("1500"));
        assert_eq!((Mtu::of_raw(0), Mtu::of_raw(6)), (None, None));
    }

    #[test]
    fn width_and_speed_make_the_rate_of_the_port() {
        let rate = |active_width, active_speed, active_speed_ex| {
            PortAttr::of(&ibv_port_attr { active_width, active_speed, active_speed_ex, ..Default::default() }).gbps()
        };
        assert_eq!(rate(2, 32, 0), 100.0);
        assert_eq!(rate(2, 128, 0), 400.0);
        assert_eq!(rate(2, 128, 256), 800.0);
        assert_eq!(rate(1, 4, 0), 10.0);
        assert_eq!(rate(0, 32, 0), 0.0);
    }

    #[test]
    fn ethernet_needs_a_gid_and_so_does_who_says_so() {
        let attr = |link_layer, flags| PortAttr::of(&ibv_port_attr { link_layer, flags, ..Default::default() });
        assert!(attr(IBV_LINK_LAYER_ETHERNET, 0).needs_gid());
        assert!(attr(IBV_LINK_LAYER_INFINIBAND, IBV_QPF_GRH_REQUIRED).needs_gid());
        assert!(!attr(IBV_LINK_LAYER_INFINIBAND, 0).needs_gid());
    }
}
