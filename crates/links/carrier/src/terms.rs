//! The terms of a connection, from which a carrier makes both of its ends, and the packets that its QPs take.

use vervain_hca::qp::carrier::PathAttr;
use vervain_hca::{Qp, QpAttr, QpState, QpType};
use vervain_transport::{RequesterConfig, ResponderConfig, Service};
use vervain_wire::opcode;

/// The only P_Key there is, of full membership.
pub const PKEY: u16 = 0xffff;

/// Terms of the packets between two QPs.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The service of both QPs.
    pub service: Service,
    /// Number of the peer's QP.
    pub peer_qpn: u32,
    /// Most bytes of payload in a packet.
    pub mtu: u32,
    /// [`RequesterConfig::introduces`].
    pub introduces: bool,
    /// [`ResponderConfig::acks_first`].
    pub acks_first: bool,
}

impl Terms {
    /// The terms of `qp`, which becomes ready to receive by `attr`: packets of the path MTU.
    pub fn new(qp: &Qp, attr: &QpAttr) -> Terms {
        let service = match qp.qp_type() {
            QpType::Uc => Service::Uc,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            _ => Service::Rc,
        };
        Terms { service, peer_qpn: attr.dest_qp_num, mtu: 128 << attr.path_mtu, introduces: false, acks_first: false }
    }

    /// The configuration of a requester; `first_psn` and `first_request` matter at its start only.
    pub fn requester(&self, path: &PathAttr, first_psn: u32, first_request: u32) -> RequesterConfig {
        RequesterConfig {
            service: self.service,
            dest_qpn: self.peer_qpn,
            pkey: PKEY,
            migrated: true,
            introduces: self.introduces,
            first_psn,
            first_request,
            mtu: self.mtu,
            timeout: path.timeout,
            retry_cnt: path.retry_cnt,
            rnr_retry: path.rnr_retry,
            max_rd_atomic: path.max_rd_atomic,
        }
    }

    /// The configuration of the responder of a QP that becomes ready to receive by `attr`.
    pub fn responder(&self, attr: &QpAttr) -> ResponderConfig {
        ResponderConfig {
            service: self.service,
            dest_qpn: self.peer_qpn,
            pkey: PKEY,
            migrated: true,
            expected_psn: attr.rq_psn,
            mtu: self.mtu,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            acks_first: self.acks_first,
        }
    }
}

/// Returns true if the QP has the half that such packets are for: an XRC initiator has no responder, its target no
/// requester (IBA A14.2.1), and a QP in error drops what comes in (IBA 10.3.1).
#[inline]
pub fn takes(qp: &Qp, opcode: u8) -> bool {
    if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Err) {
        return false;
    }
    match qp.qp_type() {
        QpType::XrcSend => !opcode::is_request(opcode),
        QpType::XrcRecv => opcode::is_request(opcode),
        _ => true,
    }
}
