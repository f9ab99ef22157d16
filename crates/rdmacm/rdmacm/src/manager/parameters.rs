//! The parameters of a connection, by which the QP of an identifier is moved.

use vervain_abi::*;
use vervain_cm::message::{Rep, Req};
use vervain_cm::{PathParams, RepParams, ReqParams};

use crate::reports::ConnParam;

/// Exponent of the local ACK timeout that the kernel's rdma_cm gives RoCE: the packet lifetime of 2^18 x 4.096 us,
/// twice.
const ACK_TIMEOUT: u8 = 19;

pub(super) struct Parameters {
    own_psn: u32,
    peer_psn: u32,
    peer_qpn: u32,
    own_depth: u8,
    own_resources: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    ack_timeout: u8,
    mtu: ibv_mtu,
}

impl Parameters {
    pub fn new() -> Parameters {
        Parameters {
            own_psn: 0,
            peer_psn: 0,
            peer_qpn: 0,
            own_depth: 0,
            own_resources: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            ack_timeout: ACK_TIMEOUT,
            mtu: IBV_MTU_1024,
        }
    }

    /// The parameters of an end to which a request has come; `req`: for a connection.
    pub fn of_request(req: Option<&Req>) -> Parameters {
        let own_psn = fastrand::u32(..) & 0x00ff_ffff;
        let Some(req) = req else { return Parameters { own_psn, ..Parameters::new() } };
        Parameters {
            own_psn,
            peer_psn: req.starting_psn,
            peer_qpn: req.local_qpn,
            // The number that one end takes is the number that the other may have outstanding (IBA 12.6.5).
            own_depth: req.responder_resources,
            own_resources: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            ack_timeout: req.primary_local_ack_timeout,
            mtu: req.path_mtu.into(),
        }
    }

    /// Exponent of the local ACK timeout.
    pub fn ack_timeout(&self) -> u8 {
        self.ack_timeout
    }

    pub fn set_ack_timeout(&mut self, exponent: u8) {
        self.ack_timeout = exponent;
    }

    /// Takes the parameters of the program's request, for its REQ.
    pub fn ask(&mut self, param: &ConnParam, mtu: ibv_mtu) -> ReqParams {
        self.own_psn = fastrand::u32(..) & 0x00ff_ffff;
        self.take(param);
        self.retry_count = param.retry_count.min(7);
        self.rnr_retry_count = param.rnr_retry_count.min(7);
        self.mtu = mtu;
        ReqParams {
            qpn: param.qpn,
            starting_psn: self.own_psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            flow_control: param.flow_control != 0,
            srq: param.srq,
            path: PathParams { mtu: mtu as u8, ..PathParams::default() },
            ack_timeout: self.ack_timeout,
            ..ReqParams::default()
        }
    }

    /// Takes the depths that the program has chosen.
    pub fn take(&mut self, param: &ConnParam) {
        self.own_depth = param.initiator_depth;
        self.own_resources = param.responder_resources;
    }

    /// The parameters of the program's answer, for its REP.
    pub fn answer(&self, param: &ConnParam) -> RepParams {
        RepParams {
            qpn: param.qpn,
            starting_psn: self.own_psn,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control != 0,
            rnr_retry_count: param.rnr_retry_count.min(7),
            srq: param.srq,
            ..RepParams::default()
        }
    }

    /// The peer has answered, with this QP.
    pub fn answered(&mut self, rep: &Rep, qpn: u32) {
        self.peer_psn = rep.starting_psn;
        self.peer_qpn = qpn;
        // The number that one end takes is the number that the other may have outstanding (IBA 12.6.8).
        self.own_resources = rep.initiator_depth;
        self.own_depth = rep.responder_resources;
        self.rnr_retry_count = rep.rnr_retry_count;
    }

    /// The path MTU.
    pub fn mtu(&self) -> ibv_mtu {
        self.mtu
    }

    /// The operations of the peer that a QP in INIT allows.
    pub fn access(&self) -> u32 {
        let reads = if self.own_resources > 0 { IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC } else { 0 };
        IBV_ACCESS_REMOTE_WRITE | reads
    }

    /// Sets the attributes with which a QP is moved to RTR, but the address vector.
    pub fn set_rtr(&self, attr: &mut ibv_qp_attr) {
        attr.path_mtu = self.mtu;
        attr.dest_qp_num = self.peer_qpn;
        // Each end says at which PSN the other is to begin (IBA 12.7.31).
        attr.rq_psn = self.own_psn;
        attr.max_dest_rd_atomic = self.own_resources;
    }

    /// Sets the attributes with which a QP is moved to RTS.
    pub fn set_rts(&self, attr: &mut ibv_qp_attr) {
        attr.sq_psn = self.peer_psn;
        attr.timeout = self.ack_timeout;
        attr.retry_cnt = self.retry_count;
        attr.rnr_retry = self.rnr_retry_count;
        attr.max_rd_atomic = self.own_depth;
    }
}
