//! The way from a send queue to its peer, and the known state of the peer.

use crate::qp::sq::ud::UdPeers;
use crate::responder::Responder;
use std::collections::HashMap;
use vervain_iba::{AhAttr, QpType};

/// The attributes of its QP that the requester needs; set by modify.
#[derive(Clone, Copy, Default)]
pub(crate) struct Params {
    pub dest_qpn: u32,
    pub ah: AhAttr,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub mtu_bytes: u32,
    pub qkey: u32,
    pub sq_psn: u32,
    /// True: memory reaches the address, which is of this host.
    pub has_memory: bool,
}

/// The attributes of the QP that a carrier's requester needs (`struct ibv_qp_attr`).
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct PathAttr {
    pub dest_qpn: u32,
    pub ah: AhAttr,
    pub sq_psn: u32,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub mtu_bytes: u32,
}

impl Params {
    pub(crate) fn path_attr(&self) -> PathAttr {
        PathAttr {
            dest_qpn: self.dest_qpn,
            ah: self.ah,
            sq_psn: self.sq_psn,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            mtu_bytes: self.mtu_bytes,
        }
    }
}

/// The PSNs of a queried QP.
#[derive(Clone, Copy, Debug)]
pub struct Psns {
    /// PSN of the next packet that is to be sent for the first time; None until the QP was ready to send.
    pub next: Option<u32>,
    /// PSN of the request packet that is expected next.
    pub expected: u32,
}

/// The way to the peer, or the peers.
pub(crate) enum Path {
    /// None yet, or none at this moment: the first request finds the way of a connected QP.
    Unconnected,
    /// By memory, to the one peer of a connected QP. Boxed, so that moving it out and back for each request moves a
    /// pointer.
    Memory(Box<Responder>),
    /// By a carrier, which the QP has.
    Remote,
    /// By a carrier's connection that ended when the QP went to ERR, with its last PSNs.
    RemoteEnded(Psns),
    /// To many peers, each message to its own (UD).
    Datagrams(Box<UdPeers>),
    /// By memory, into the peer's XRC SRQs, by their numbers.
    Xrc(HashMap<u32, Box<Responder>>),
}

impl Path {
    /// The path of a QP that is not connected.
    pub(crate) fn start(qp_type: QpType) -> Path {
        match qp_type {
            QpType::Ud => Path::Datagrams(Box::default()),
            QpType::XrcSend => Path::Xrc(HashMap::new()),
            QpType::Rc | QpType::Uc | QpType::XrcRecv => Path::Unconnected,
        }
    }

    /// The one peer of a connected QP, if memory reaches it.
    #[inline(always)]
    pub(crate) fn peer(&self) -> Option<&Responder> {
        match self {
            Path::Memory(peer) => Some(peer),
            _ => None,
        }
    }

    /// Takes the one peer out, to be put back.
    #[inline]
    pub(crate) fn take_peer(&mut self) -> Option<Box<Responder>> {
        if !matches!(self, Path::Memory(_)) {
            return None;
        }
        match std::mem::replace(self, Path::Unconnected) {
            Path::Memory(peer) => Some(peer),
            _ => None,
        }
    }

    /// Returns true if a carrier has, or had, the messages.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Path::Remote | Path::RemoteEnded(_))
    }

    /// The peers of a UD QP.
    pub(crate) fn datagrams(&self) -> Option<&UdPeers> {
        match self {
            Path::Datagrams(peers) => Some(peers),
            _ => None,
        }
    }

    /// The peers of a UD QP, to be changed.
    pub(crate) fn datagrams_mut(&mut self) -> Option<&mut UdPeers> {
        match self {
            Path::Datagrams(peers) => Some(peers),
            _ => None,
        }
    }

    /// The lanes into other QPs that stay between two requests.
    pub(crate) fn each_peer(&self, mut f: impl FnMut(&Responder)) {
        match self {
            Path::Memory(peer) => f(peer),
            Path::Xrc(peers) => peers.values().for_each(|peer| f(peer)),
            Path::Datagrams(peers) => peers.each(f),
            Path::Unconnected | Path::Remote | Path::RemoteEnded(_) => {}
        }
    }

    /// Gives up the lanes into other QPs. Returns true if any was made on request.
    pub(crate) fn disconnect(&mut self) -> bool {
        self.each_peer(Responder::release);
        match self {
            Path::Memory(_) => {
                *self = Path::Unconnected;
                false
            }
            Path::Xrc(peers) => !std::mem::take(peers).is_empty(),
            Path::Datagrams(peers) => peers.disconnect(),
            Path::Unconnected | Path::Remote | Path::RemoteEnded(_) => false,
        }
    }
}
