//! Addresses of ranks and of their QPs, as ranks exchange them.

use serde::{Deserialize, Serialize};
use vervain_rdma::{Endpoint, Gid, Mtu};

use crate::error::{Error, Result};

/// The most devices that a rank uses.
pub const MAX_DEVICES: usize = 2;

/// QP numbers and PSNs have 24 bits.
const LIMIT: u32 = 1 << 24;

/// The address of a port: IBA volume 1, 4.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Site {
    /// On Ethernet, and where a subnet wants a GRH always: the LID too, which is 0 on Ethernet.
    Gid([u8; 16], u16),
    /// On InfiniBand.
    Lid(u16),
}

impl Site {
    /// The layer below the transport there. The LID is 0 on Ethernet, and never on InfiniBand (IBA 4.1.3).
    fn link_layer(&self) -> &'static str {
        if matches!(self, Site::Gid(_, 0)) { "Ethernet" } else { "InfiniBand" }
    }
}

/// The address at which a rank is asked for connections: a UD QP, one at each port that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Door {
    /// The port.
    pub site: Site,
    /// The number of the QP.
    pub qpn: u32,
    /// Its Q_Key, below 2^31.
    pub qkey: u32,
}

impl Door {
    pub(crate) fn is_possible(&self) -> bool {
        self.qpn < LIMIT && self.qkey < 1 << 31
    }

    /// The QP `qpn` at this door's port.
    pub(crate) fn endpoint(&self, qpn: u32, psn: u32) -> Endpoint {
        let (gid, lid) = match self.site {
            Site::Gid(gid, lid) => (Some(Gid(gid)), lid),
            Site::Lid(lid) => (None, lid),
        };
        Endpoint { qpn, psn, lid, gid, memory: None }
    }
}

/// A rank's doors, in the order of its devices: one or two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doors {
    first: Door,
    second: Option<Door>,
}

impl Doors {
    /// The doors of a rank.
    ///
    /// # Panics
    /// Where they are none, or more than [`MAX_DEVICES`].
    pub fn new(doors: &[Door]) -> Doors {
        assert!((1..=MAX_DEVICES).contains(&doors.len()), "a rank has one or two doors");
        Doors { first: doors[0], second: doors.get(1).copied() }
    }

    /// The one for this color: the last where there are fewer.
    pub fn of(&self, color: u32) -> Door {
        self.second.filter(|_| color > 0).unwrap_or(self.first)
    }

    /// Checks that the doors of process 0 of the job are on the same link layers as these, of `rank`: a datagram to a
    /// door on another one gets lost, and nothing answers.
    ///
    /// # Errors
    /// They are not: the sentence names both.
    pub(crate) fn check_link_layers(&self, rank: u32, first: &Doors) -> Result<()> {
        for color in 0..MAX_DEVICES as u32 {
            let [own, other] = [self, first].map(|doors| doors.of(color).site.link_layer());
            if own != other {
                let device = if color == 0 { "" } else { "'s second device" };
                return Err(Error::new(format!(
                    "rank {rank}{device} is on {own}, and process 0 of the job on {other}: these do not reach each other, and all \
                     ranks must have devices of one link layer"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.first.is_possible() && self.second.is_none_or(|door| door.is_possible())
    }
}

/// One end of a connection: its two QPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lanes {
    /// Number and first PSN of the QP for RDMA.
    pub data: (u32, u32),
    /// Number and first PSN of the QP for commands.
    pub commands: (u32, u32),
    /// The largest MTU of this end's port, in bytes: both ends take the smaller one.
    pub mtu: u16,
    /// Reads and atomics that this end answers at once.
    pub reads: u8,
}

impl Lanes {
    pub(crate) fn mtu(&self) -> Option<Mtu> {
        Mtu::try_from(u32::from(self.mtu)).ok()
    }

    pub(crate) fn is_possible(&self) -> bool {
        let ends = [self.data, self.commands];
        ends.iter().all(|(qpn, psn)| *qpn < LIMIT && *psn < LIMIT) && self.mtu().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doors(sites: &[Site]) -> Doors {
        let doors: Vec<_> = sites.iter().map(|&site| Door { site, qpn: 1, qkey: 1 }).collect();
        Doors::new(&doors)
    }

    #[test]
    fn ranks_of_two_link_layers_are_one_sentence() {
        let (ethernet, lid, with_grh) = (Site::Gid([1; 16], 0), Site::Lid(7), Site::Gid([2; 16], 7));
        let said = |own: &[Site], first: &[Site]| {
            let checked = doors(own).check_link_layers(3, &doors(first));
            checked.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!((said(&[ethernet], &[ethernet]), said(&[lid], &[with_grh])), (String::new(), String::new()));
        assert_eq!(said(&[lid, ethernet], &[with_grh, ethernet]), "");
        // A rank with one device has it for both colors.
        assert_eq!(said(&[lid], &[lid, lid]), "");
        for infiniband in [lid, with_grh] {
            let sentence = said(&[infiniband], &[ethernet]);
            assert!(
                sentence.starts_with("rank 3 is on InfiniBand, and process 0 of the job on Ethernet: "),
                "{sentence}"
            );
        }
        assert!(
            said(&[ethernet], &[lid]).starts_with("rank 3 is on Ethernet, and process 0 of the job on InfiniBand: ")
        );
        for (own, first) in [(&[lid, ethernet][..], &[lid][..]), (&[lid, ethernet][..], &[lid, with_grh][..])] {
            let sentence = said(own, first);
            assert!(sentence.starts_with("rank 3's second device is on Ethernet, and process 0"), "{sentence}");
        }
    }
}
