//! A simulated host and a QP of it: how they are made from their plans. `world.rs` runs them.

use std::collections::VecDeque;
use std::sync::Arc;

use vervain_fault::{Direction, Faults, Line};
use vervain_transport::{
    KeptRoom, KeptShare, Nanos, Requester, RequesterConfig, Responder, ResponderConfig, Service as Protocol, Window,
};

use crate::landing::{Parcel, Putter};
use crate::plan::{ConnectionPlan, EndPlan, Gaps, HostPlan, Plan, Rings, Service, keys};
use crate::port::{Port, Ring};
use crate::random::{Random, mix};
use crate::receive::{ReceiveQueue, Shared, Target};
use crate::send::SendQueue;

/// QP numbers are counted from here.
pub const FIRST_QPN: u32 = 0x11;
/// Bytes under way to one host, at most.
const WINDOW: u64 = 4 << 20;

pub struct Host {
    pub plan: HostPlan,
    pub ends: Vec<usize>,
    pub shared: Shared,
    pub port: Port,
    pub windows: Vec<Window>,
    pub transmit: Option<Line<usize>>,
    pub receive: Option<Line<usize>>,
    pub inbox: VecDeque<(usize, Parcel)>,
    pub random: Random,
    pub awaited: Awaited,
    pub stopped: bool,
    /// Room for packets that wait for a missing one, and how much there is in all.
    pub kept: (Arc<KeptShare>, u64),
}

/// Which events are on their way, so that each is only once.
#[derive(Default)]
pub struct Awaited {
    pub progress: bool,
    pub acknowledge: bool,
    pub resume: bool,
    pub transmitted: Option<Nanos>,
    pub received: Option<Nanos>,
}

/// A QP.
pub struct End {
    pub plan: EndPlan,
    pub peer: usize,
    pub qpn: u32,
    pub requester: Requester,
    pub responder: Responder,
    /// The configurations that they are made from.
    configs: (RequesterConfig, ResponderConfig),
    pub send: SendQueue,
    pub target: Target,
    /// Gone: its host has stopped, or it is in the error state.
    pub dead: bool,
    /// Has more to answer.
    pub streaming: bool,
    /// When it will be woken.
    pub timer: Option<Nanos>,
    /// A post is on its way.
    pub posting: bool,
    /// Completions that have been looked at.
    pub judged: usize,
    /// It keeps packets, and reports gaps, if the peer takes that.
    pub keeps: bool,
    /// UC: the PSN, counted without wrapping, at which each request of the peer begins.
    pub starts: Vec<u64>,
}

impl Host {
    pub fn new(plan: &Plan, host: usize) -> Self {
        let HostPlan { faults, full, deaf, shared, .. } = &plan.hosts[host];
        let faults: Faults = faults.parse().unwrap_or_else(|error| panic!("{error}"));
        let line = |direction: Direction| {
            faults.any(direction).then(|| Line::new(&faults, direction, mix(plan.seed, host as u64), 0))
        };
        let mut random = Random::new(mix(plan.seed, 0x4057 + host as u64));
        let mut port = Port::new(host, *full, *deaf, Random::new(random.bits()));
        let ring = |rings: &Rings| Ring { slots: rings.slots, put: 0, taken: 0, known: 0 };
        port.rings = plan.rings.iter().flat_map(|rings| plan.hosts.iter().map(move |_| ring(rings))).collect();
        let room = match plan.gaps {
            Gaps::Everybody => 1 << 30,
            _ => Random::new(mix(plan.seed, 0x6a8_0000 + host as u64)).magnitude(1 << 10, 1 << 24),
        };
        let window = |to: usize| match plan.rings {
            None => Window::new(plan.mtu_between(host, to), WINDOW),
            Some(rings) => Window::lossless(plan.mtu_between(host, to), rings.window),
        };
        Self {
            plan: plan.hosts[host].clone(),
            ends: Vec::new(),
            shared: Shared { host, words: [0; keys::WORD_COUNT as usize], receives: ReceiveQueue::new(*shared) },
            port,
            windows: (0..plan.hosts.len()).map(window).collect(),
            transmit: line(Direction::Transmit),
            receive: line(Direction::Receive),
            inbox: VecDeque::new(),
            random,
            awaited: Awaited::default(),
            stopped: false,
            kept: (Arc::new(KeptRoom::new(room)).share(), room),
        }
    }
}

impl End {
    pub fn new(connection: &ConnectionPlan, side: usize, index: usize, seed: u64, gaps: Gaps) -> Self {
        let (plan, peer) = (&connection.ends[side], &connection.ends[1 - side]);
        let service = match connection.service {
            Service::Reliable | Service::ReliableShared => Protocol::Rc,
            Service::Extended => Protocol::Xrc,
            Service::Unreliable => Protocol::Uc,
        };
        let mut random = Random::new(mix(seed, 0x6a9_0000 + index as u64));
        let takes_reports = gaps != Gaps::ByChance || random.permille(800);
        let keeps = gaps == Gaps::Everybody || gaps == Gaps::ByChance && random.permille(800);
        let dest_qpn = FIRST_QPN + (index ^ 1) as u32;
        let mtu = connection.mtu;
        let requester = RequesterConfig {
            service,
            dest_qpn,
            pkey: 0xffff,
            migrated: true,
            introduces: takes_reports,
            first_psn: plan.first_psn,
            first_request: plan.first_request,
            mtu,
            timeout: plan.timeout,
            retry_cnt: plan.retries,
            rnr_retry: plan.rnr_retries,
            max_rd_atomic: plan.depth,
        };
        let responder = ResponderConfig {
            service,
            dest_qpn,
            pkey: 0xffff,
            migrated: true,
            expected_psn: peer.first_psn,
            mtu,
            max_dest_rd_atomic: peer.depth,
            // One of each pair.
            acks_first: side == 1,
        };
        let script = peer.operations.clone().into();
        let limits = (plan.room, plan.rnr_timer, mtu);
        let key = keys::REGION | index as u32;
        let mut starts = vec![0];
        for op in &peer.operations {
            starts.push(starts[starts.len() - 1] + op.request.length.div_ceil(u64::from(mtu)).max(1));
        }
        let mut send = SendQueue::new(plan, peer.region, mtu);
        let mut target = Target::new(connection.service, script, key, plan.region, plan.receives, limits);
        if let Some(landings) = connection.landings {
            let random = |what| Random::new(mix(seed, what + index as u64));
            send.putter = Some(Putter::new(random(0x5e4d_0000), mtu, landings));
            target.putter = Some(Putter::new(random(0x7a46_0000), mtu, landings));
        }
        Self {
            peer: index ^ 1,
            qpn: FIRST_QPN + index as u32,
            requester: Requester::new(&requester),
            responder: Responder::new(&responder),
            configs: (requester, responder),
            send,
            target,
            dead: false,
            streaming: false,
            timer: None,
            posting: true,
            judged: 0,
            keeps,
            starts,
            plan: plan.clone(),
        }
    }
}

impl End {
    /// The configuration of the requester of a QP that has ended this number of requests.
    pub fn requester_config(&self) -> RequesterConfig {
        let config = self.configs.0;
        RequesterConfig { first_request: config.first_request.wrapping_add(self.send.completed as u32), ..config }
    }

    pub fn responder_config(&self) -> &ResponderConfig {
        &self.configs.1
    }

    /// Packets sent that stood for several.
    pub fn spans(&self) -> u64 {
        [&self.send.putter, &self.target.putter].into_iter().flatten().map(|putter| putter.spans).sum()
    }
}

/// The request and the offset in it that a PSN stands for.
pub fn locate(starts: &[u64], first_psn: u32, psn: u32, mtu: u32) -> (usize, u64) {
    let packet = u64::from(psn.wrapping_sub(first_psn) & 0xff_ffff);
    let message = starts.partition_point(|&start| start <= packet) - 1;
    (message, (packet - starts[message]) * u64::from(mtu))
}
