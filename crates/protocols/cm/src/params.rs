//! The program's parameters of a connection, with defaults that are those of the kernel's rdma_cm.

use vervain_wire::cm::{EXTENDED, RC, UC, XRC};

/// How messages are transported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection: of an initiator to a target.
    Xrc,
}

impl Service {
    /// Its form in a REQ: the transport service and its extension.
    pub fn to_wire(self) -> (u8, u8) {
        match self {
            Service::Rc => (RC, 0),
            Service::Uc => (UC, 0),
            Service::Xrc => (EXTENDED, XRC),
        }
    }

    /// From a REQ; none if it is another.
    pub fn from_wire(service: u8, extension: u8) -> Option<Service> {
        match (service, extension) {
            (RC, _) => Some(Service::Rc),
            (UC, _) => Some(Service::Uc),
            (EXTENDED, XRC) => Some(Service::Xrc),
            _ => None,
        }
    }
}

/// What enhanced connection establishment says of an end; 0 where it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor's ID.
    pub vendor: u32,
    /// Its options.
    pub options: u32,
}

/// The properties of a path. The default is that of rdma_cm over RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathParams {
    /// 1 to 5: 256 to 4096 bytes.
    pub mtu: u8,
    /// Partition.
    pub pkey: u16,
    /// Service level.
    pub sl: u8,
    /// As `enum ibv_rate`; 0: that of the port.
    pub packet_rate: u8,
    /// Longest time that a packet takes: 4.096 µs · 2^n.
    pub packet_life_time: u8,
}

impl Default for PathParams {
    fn default() -> PathParams {
        PathParams { mtu: 3, pkey: 0xffff, sl: 0, packet_rate: 0, packet_life_time: 18 }
    }
}

/// The parameters of a REQ, apart from the path's addresses. The default is that of rdma_cm over RoCE; `service_id`,
/// `qpn`, `starting_psn` and `ca_guid` have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReqParams {
    /// The service that is asked for: see [`vervain_wire::cm::service_id`].
    pub service_id: u64,
    /// GUID of this end's adapter.
    pub ca_guid: u64,
    /// How messages are transported.
    pub service: Service,
    /// This end's QP.
    pub qpn: u32,
    /// PSN of the first packet that this end expects.
    pub starting_psn: u32,
    /// READs and atomics that this end takes at once.
    pub responder_resources: u8,
    /// READs and atomics that this end will have under way.
    pub initiator_depth: u8,
    /// Retries of the other end's QP, up to 7.
    pub retry_count: u8,
    /// RNR retries of the other end's QP, up to 7.
    pub rnr_retry_count: u8,
    /// This end grants credits.
    pub flow_control: bool,
    /// This end's QP has an SRQ.
    pub srq: bool,
    /// The way of its packets.
    pub path: PathParams,
    /// Time in which a packet is acknowledged: 4.096 µs · 2^n.
    pub ack_timeout: u8,
    /// Time in which the other end's connection manager answers after it has received a MAD: 4.096 µs · 2^n.
    pub remote_response_timeout: u8,
    /// The same for this end's.
    pub local_response_timeout: u8,
    /// How often a message is sent again, up to 15.
    pub max_retries: u8,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// Begins with an [`vervain_wire::cm::IpHeader`], for the IP CM service.
    pub private_data: [u8; 92],
}

impl Default for ReqParams {
    fn default() -> ReqParams {
        ReqParams {
            service_id: 0,
            ca_guid: 0,
            service: Service::Rc,
            qpn: 0,
            starting_psn: 0,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: false,
            srq: false,
            path: PathParams::default(),
            ack_timeout: 19,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            max_retries: 15,
            ece: Ece::default(),
            private_data: [0; 92],
        }
    }
}

/// The parameters of a REP. `qpn`, `starting_psn` and `ca_guid` have no default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepParams {
    /// GUID of this end's adapter.
    pub ca_guid: u64,
    /// This end's QP.
    pub qpn: u32,
    /// PSN of the first packet that this end expects.
    pub starting_psn: u32,
    /// READs and atomics that this end takes at once.
    pub responder_resources: u8,
    /// READs and atomics that this end will have under way.
    pub initiator_depth: u8,
    /// Time that this end's adapter takes to acknowledge: 4.096 µs · 2^n.
    pub target_ack_delay: u8,
    /// The fate of the other path.
    pub failover_accepted: u8,
    /// This end grants credits.
    pub flow_control: bool,
    /// RNR retries of the other end's QP, up to 7.
    pub rnr_retry_count: u8,
    /// This end's QP has an SRQ.
    pub srq: bool,
    /// Queue key.
    pub qkey: u32,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// The program's.
    pub private_data: [u8; 196],
}

impl Default for RepParams {
    fn default() -> RepParams {
        RepParams {
            ca_guid: 0,
            qpn: 0,
            starting_psn: 0,
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 15,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            qkey: 0,
            ece: Ece::default(),
            private_data: [0; 196],
        }
    }
}

/// The parameters of a SIDR_REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReqParams {
    /// The service that is asked for: see [`vervain_wire::cm::service_id`].
    pub service_id: u64,
    /// Partition.
    pub pkey: u16,
    /// Time in which an answer comes: 4.096 µs · 2^n.
    pub response_timeout: u8,
    /// How often the message is sent again.
    pub max_retries: u8,
    /// Begins with an [`vervain_wire::cm::IpHeader`], for the IP CM service.
    pub private_data: [u8; 216],
}

impl Default for SidrReqParams {
    fn default() -> SidrReqParams {
        SidrReqParams { service_id: 0, pkey: 0xffff, response_timeout: 20, max_retries: 15, private_data: [0; 216] }
    }
}

/// The parameters of a SIDR_REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRepParams {
    /// A number of [`vervain_wire::cm::sidr`].
    pub status: u8,
    /// The QP.
    pub qpn: u32,
    /// Its queue key.
    pub qkey: u32,
    /// Details that the status calls for.
    pub ari: crate::Ari,
    /// Enhanced connection establishment.
    pub ece: Ece,
    /// The program's.
    pub private_data: [u8; 136],
}

impl Default for SidrRepParams {
    fn default() -> SidrRepParams {
        SidrRepParams { status: 0, qpn: 0, qkey: 0, ari: crate::Ari::NONE, ece: Ece::default(), private_data: [0; 136] }
    }
}
