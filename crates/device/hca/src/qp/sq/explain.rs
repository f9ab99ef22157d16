//! The reasons of failed work requests, in a sentence each (DESIGN decision 11).

use crate::device::LIMITS;
use crate::device::gids;
use crate::device::grh::is_ipv4;
use crate::qp::base::QpBase;
use crate::qp::sq::path::Path;
use crate::qp::sq::{SendQueue, local_need};
use crate::reasons;
use crate::responder::refused::KeyUse;
use std::borrow::Cow;
use std::net::Ipv6Addr;
use vervain_config::{Config, FAULTS};
use vervain_iba::{Opcode, Status};

/// A request that ends with an error.
pub(super) struct Failure<'a> {
    pub sq: &'a SendQueue,
    /// Its place in the ring.
    pub i: usize,
    pub status: Status,
}

impl Failure<'_> {
    /// Reports the reason.
    #[cold]
    pub(super) fn explain(&self, qp: &QpBase) {
        let (status, request) = (self.status, &self.sq.wq[self.i].request);
        let (own, peer, opcode) = (qp.qp_num(), self.sq.params.dest_qpn, request.opcode);
        let refused = self.refused_by_the_peer().or_else(|| self.leads_nowhere());
        let refused = refused.or_else(|| self.wrong_here());
        let why = match refused {
            Some(why) => Cow::Owned(why),
            None if status == Status::RetryExceeded => nobody_answers(self.way()),
            None => Cow::Borrowed(in_general(status)),
        };
        reasons::tell_of_completion(format_args!("QP {own:#x}, {opcode} to QP {peer:#x}: {status}: {why}"));
    }

    /// The way by which the peer is, or would be, reached.
    fn way(&self) -> Way<'static> {
        if !self.sq.is_remote() {
            Way::Memory
        } else if gids::is_in_window(&self.sq.params.ah) {
            Way::Window
        } else {
            Way::Packets(Config::of_process().ok().and_then(|config| config.faults.as_deref()))
        }
    }

    /// The peer's reason to refuse the request, if memory reaches the peer.
    fn refused_by_the_peer(&self) -> Option<String> {
        let peer = match &self.sq.path {
            Path::Memory(peer) => peer,
            Path::Xrc(peers) => peers.get(&self.sq.wq[self.i].request.srqn)?,
            _ => return None,
        };
        match self.status {
            Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => peer.why_refused(),
            _ => None,
        }
    }

    /// The fault of an address that no peer can answer from.
    fn leads_nowhere(&self) -> Option<String> {
        let ah = &self.sq.params.ah;
        if self.status != Status::RetryExceeded || self.sq.params.has_memory || self.sq.is_remote() {
            return None;
        }
        if ah.is_global && is_ipv4(&ah.grh.dgid) {
            let address = Ipv6Addr::from(ah.grh.dgid);
            return Some(format!(
                "the peer's address {address} is of an Ethernet port, and this port is InfiniBand; use one --link-layer on \
                 both sides"
            ));
        }
        let or_window = if gids::window().is_some() { ", and of no node of the window" } else { "" };
        Some(format!("LID {:#x} is of no port of this host{or_window}", ah.dlid))
    }

    /// The fault of the request itself.
    fn wrong_here(&self) -> Option<String> {
        let SendQueue { wq, params, is_ud, .. } = self.sq;
        let (w, max_rd_atomic) = (&wq[self.i].request, params.max_rd_atomic);
        let (opcode, length) = (w.opcode, w.length);
        match self.status {
            Status::LocalProtection => self.bad_sge(),
            Status::LocalQpOperation if opcode.answers() && max_rd_atomic == 0 => {
                Some(format!("max_rd_atomic of the QP is {max_rd_atomic}, and this operation takes 1"))
            }
            Status::LocalLength if *is_ud && length > u64::from(params.mtu_bytes) => {
                Some(format!("the datagram of {length} bytes is longer than the path MTU, {}", params.mtu_bytes))
            }
            Status::LocalLength if length > u64::from(LIMITS.qp.max_msg_sz) => {
                Some(format!("the message of {length} bytes is longer than max_msg_sz, {}", LIMITS.qp.max_msg_sz))
            }
            Status::LocalLength if matches!(opcode, Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite) => {
                Some(format!("an atomic takes 8 bytes, the SGEs have {length}"))
            }
            _ => None,
        }
    }

    /// The first SGE of the request that its lkey does not allow, with the reason.
    fn bad_sge(&self) -> Option<String> {
        let SendQueue { wq, pd, process, .. } = self.sq;
        if wq.inline_data(self.i).is_some() {
            return None;
        }
        let need = local_need(wq[self.i].request.opcode);
        wq.sges(self.i).iter().enumerate().filter(|(_, sge)| sge.length > 0).find_map(|(n, sge)| {
            let used = KeyUse {
                name: "lkey",
                key: sge.lkey,
                addr: sge.addr,
                len: u64::from(sge.length),
                need,
                pd: *pd,
                qp: "the QP",
                place: "",
            };
            used.fault(&*process.own.keys).map(|fault| format!("SGE {n}: {fault}"))
        })
    }
}

/// The ways to a peer.
enum Way<'a> {
    Memory,
    Window,
    /// With the faults that are injected on purpose.
    Packets(Option<&'a str>),
}

/// The text for RETRY_EXC_ERR, if nothing more is known.
fn nobody_answers(way: Way<'_>) -> Cow<'static, str> {
    let (who, faults) = match way {
        Way::Memory => ("no process of this user on this host", None),
        Way::Window => ("no process of that node of the window, or one that is stopped", None),
        Way::Packets(faults) => ("no process of that host, or packets are lost on the way", faults),
    };
    let faults =
        faults.map_or_else(String::new, |faults| format!("; faults are made on purpose ({}={faults})", FAULTS.name()));
    format!(
        "nobody answers under that QP number: {who}, or the QP not ready, in error, connected to another or expecting another \
         PSN{faults}"
    )
    .into()
}

/// The text for a status, if nothing more is known.
fn in_general(status: Status) -> &'static str {
    match status {
        Status::LocalLength => "the message has a length that the operation or the path does not allow",
        Status::LocalQpOperation => "the QP does not allow the operation",
        Status::LocalProtection => {
            "an SGE names memory that its lkey does not cover or allow, or that is mapped no longer"
        }
        Status::MwBind => "the window or key does not allow the bind or invalidation",
        Status::RemoteInvalidRequest => "the peer's QP or receive does not take this request",
        Status::RemoteAccess => "the rkey does not cover or allow the remote memory",
        Status::RemoteOperation => "the peer's receive buffer or memory is not accessible",
        Status::RnrRetryExceeded => "the peer has no receive posted",
        _ => "error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_answer_is_told_by_the_way_to_him() {
        for (way, says, is_of_host) in [
            (Way::Memory, "no process of this user on this host, or the QP not ready", true),
            (Way::Window, "no process of that node of the window, or one that is stopped, or the QP", false),
            (Way::Packets(None), "packets are lost on the way, or the QP not ready", false),
            (Way::Packets(Some("drop=1%")), "another PSN; faults are made on purpose (VERVAIN_FAULTS=drop=1%)", false),
        ] {
            let told = nobody_answers(way);
            assert!(told.starts_with("nobody answers under that QP number: ") && told.contains(says), "{told}");
            assert_eq!(told.contains("on this host"), is_of_host, "{told}");
            assert_eq!(told.contains("faults"), says.contains("faults"), "{told}");
        }
    }
}
