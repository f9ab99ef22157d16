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

impl SendQueue {
    /// Reports the reason why the request at place `i` ends with `status`.
    #[cold]
    pub(crate) fn explain(&self, qp: &QpBase, i: usize, status: Status) {
        let (own, peer, opcode) = (qp.qp_num(), self.params.dest_qpn, self.wq[i].request.opcode);
        let refused = self.refused_by_the_peer(i, status).or_else(|| self.leads_nowhere(status));
        let refused = refused.or_else(|| self.wrong_here(i, status));
        let why = match refused {
            Some(why) => Cow::Owned(why),
            None if status == Status::RetryExceeded => nobody_answers(self.way()),
            None => Cow::Borrowed(in_general(status)),
        };
        reasons::tell_of_completion(format_args!("QP {own:#x}, {opcode} to QP {peer:#x}: {status}: {why}"));
    }

    /// The way by which the peer is, or would be, reached.
    fn way(&self) -> Way<'static> {
        if !self.is_remote() {
            Way::Memory
        } else if gids::is_in_window(&self.params.ah) {
            Way::Window
        } else {
            Way::Packets(Config::of_process().ok().and_then(|config| config.faults.as_deref()))
        }
    }

    /// The peer's reason to refuse the request at place `i`, if memory reaches the peer.
    fn refused_by_the_peer(&self, i: usize, status: Status) -> Option<String> {
        let peer = match &self.path {
            Path::Memory(peer) => peer,
            Path::Xrc(peers) => peers.get(&self.wq[i].request.srqn)?,
            _ => return None,
        };
        match status {
            Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation => peer.why_refused(),
            _ => None,
        }
    }

    /// The fault of an address that no peer can answer from.
    fn leads_nowhere(&self, status: Status) -> Option<String> {
        let ah = &self.params.ah;
        if status != Status::RetryExceeded || self.params.has_memory || self.is_remote() {
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

impl SendQueue {
    /// The fault of the request at place `i` itself.
    fn wrong_here(&self, i: usize, status: Status) -> Option<String> {
        let (w, max_rd_atomic) = (&self.wq[i].request, self.params.max_rd_atomic);
        let (opcode, length) = (w.opcode, w.length);
        match status {
            Status::LocalProtection => self.bad_sge(i),
            Status::LocalQpOperation if opcode.answers() && max_rd_atomic == 0 => {
                Some(format!("max_rd_atomic of the QP is {max_rd_atomic}, and this operation takes 1"))
            }
            Status::LocalLength if self.is_ud && length > u64::from(self.params.mtu_bytes) => {
                Some(format!("the datagram of {length} bytes is longer than the path MTU, {}", self.params.mtu_bytes))
            }
            Status::LocalLength if length > u64::from(LIMITS.max_msg_sz) => {
                Some(format!("the message of {length} bytes is longer than max_msg_sz, {}", LIMITS.max_msg_sz))
            }
            Status::LocalLength if matches!(opcode, Opcode::CompareSwap | Opcode::FetchAdd | Opcode::AtomicWrite) => {
                Some(format!("an atomic takes 8 bytes, the SGEs have {length}"))
            }
            _ => None,
        }
    }

    /// The first SGE of the request at place `i` that its lkey does not allow, with the reason.
    fn bad_sge(&self, i: usize) -> Option<String> {
        if self.wq.inline_data(i).is_some() {
            return None;
        }
        let need = local_need(self.wq[i].request.opcode);
        self.wq.sges(i).iter().enumerate().filter(|(_, sge)| sge.length > 0).find_map(|(n, sge)| {
            let used = KeyUse {
                name: "lkey",
                key: sge.lkey,
                addr: sge.addr,
                len: u64::from(sge.length),
                need,
                pd: self.pd,
                qp: "the QP",
                place: "",
            };
            used.fault(&*self.process.own.keys).map(|fault| format!("SGE {n}: {fault}"))
        })
    }
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
