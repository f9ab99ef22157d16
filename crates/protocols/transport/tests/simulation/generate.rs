//! A plan from a seed: topology, parameters, requests and faults.

use vervain_transport::{Flush, Nanos, Opcode, Request, send_flags};

use crate::plan::{
    ConnectionPlan, EndPlan, Gaps, HostPlan, Landings, MS, Misdeed, Op, Plan, Receives, Rings, SECOND, Service, US,
    keys,
};
use crate::random::{Random, mix};

/// The kind of network of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    /// No losses.
    Calm,
    /// Retry counts must suffice.
    Mild,
    /// Anything may happen to single packets.
    Harsh,
    /// Copies that come very late.
    Echo,
    /// The link is down for a while.
    Partition,
    /// A slow line with a short queue.
    Narrow,
}

/// Path MTUs of a network.
const MTUS: &[u32] = &[256, 256, 512, 1024, 1024, 2048, 4096];
/// Packets of a ring may be longer.
const RING_MTUS: &[u32] = &[512, 1024, 4096, 4096, 16_384];

/// The plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let random = &mut Random::new(mix(seed, 0x91a4));
    use Weather::{Calm, Echo, Harsh, Mild, Narrow, Partition};
    let weather = random.pick(&[Calm, Calm, Mild, Mild, Mild, Harsh, Harsh, Echo, Partition, Narrow]);
    let scarce = random.permille(250);
    let misdeeds = random.permille(200);
    let stop = random.permille(60);
    let latency = random.magnitude(US, 500 * US);
    let hosts = random.pick(&[2, 2, 2, 2, 3, 3, 4, 5, 8]);
    let mut plan = Plan {
        seed,
        hosts: (0..hosts).map(|_| host(random, weather, seed, scarce)).collect(),
        connections: Vec::new(),
        latency,
        mild: false,
        patience: 100 * SECOND,
        strangers: Vec::new(),
        rings: None,
        gaps: Gaps::ByChance,
    };
    if stop {
        let host = random.between(0, hosts - 1) as usize;
        plan.hosts[host].stops = Some(random.magnitude(10 * US, 20 * MS));
    }
    // Without a timeout, a QP waits for a dead peer for ever, as IBA says.
    let endless = !stop && !misdeeds && weather != Partition && random.permille(100);
    let connections = random.between(hosts / 2, 2 * hosts).max(1);
    let budget = random.magnitude(100, 2500) / connections + 4;
    for index in 0..connections as usize {
        let connection = connection(random, index, hosts as usize, budget, (scarce, misdeeds, endless), MTUS);
        plan.connections.push(connection);
    }
    if random.permille(300) {
        for host in &mut plan.hosts {
            host.moves = (0..random.between(0, 12)).map(|_| random.magnitude(US, 100 * MS)).collect();
        }
    }
    let slack = plan.hosts.iter().map(|host| host.poll + host.acknowledge).max().unwrap_or(0);
    let around = 2 * (latency + slack) + 5 * MS;
    let patient = |end: &EndPlan| end.timeout == 0 || (end.retries == 7 && 4096 << end.timeout > 2 * around);
    plan.mild = matches!(weather, Calm | Mild) && plan.connections.iter().flat_map(|c| &c.ends).all(patient);
    plan
}

/// The plan of a seed where packets go through rings: nothing is lost, but rings are full, and hosts and QPs late.
pub fn rings(seed: u64) -> Plan {
    let random = &mut Random::new(mix(seed, 0x4149));
    let (scarce, misdeeds, stop) = (random.permille(250), random.permille(150), random.permille(100));
    let latency = random.magnitude(100, 50 * US);
    let hosts = random.pick(&[2, 2, 2, 3, 4]);
    let mut plan = Plan {
        seed,
        hosts: (0..hosts).map(|_| ring_host(random, scarce)).collect(),
        connections: Vec::new(),
        latency,
        mild: false,
        patience: 200 * SECOND,
        strangers: Vec::new(),
        rings: None,
        gaps: Gaps::Nobody,
    };
    let endless = !stop && !misdeeds && random.permille(100);
    let connections = random.between(hosts / 2, 2 * hosts).max(1);
    let budget = random.magnitude(60, 800) / connections + 4;
    for index in 0..connections as usize {
        let about = (scarce, misdeeds, endless);
        let mut connection = connection(random, index, hosts as usize, budget, about, RING_MTUS);
        for end in &mut connection.ends {
            end.ready = if random.permille(400) { random.magnitude(10 * US, 50 * MS) } else { 0 };
            // A request to an absent peer that gives no answer would never end.
            if stop && connection.service == Service::Unreliable {
                end.operations.clear();
            }
        }
        plan.connections.push(connection);
    }
    if stop {
        let host = random.between(0, hosts - 1) as usize;
        plan.hosts[host].stops = Some(random.magnitude(10 * US, 20 * MS));
    }
    let slack = plan.hosts.iter().map(|host| host.poll + host.acknowledge).max().unwrap_or(0);
    let stalled = plan.hosts.iter().filter_map(|host| host.stalls).map(|(from, to)| to - from).sum::<Nanos>();
    let ends = || plan.connections.iter().flat_map(|connection| &connection.ends);
    let timeout =
        ends().map(|end| end.timeout).filter(|timeout| *timeout > 0).min().map_or(SECOND, |t| (3 * 4096) << t);
    let around = 100 * (2 * latency + slack) + stalled + 5 * MS;
    let deaf = plan.hosts.iter().any(|host| host.deaf > 0);
    let late = ends().map(|end| end.ready).max().unwrap_or(0);
    let patient = ends().all(|end| end.timeout == 0 || end.retries == 7);
    plan.mild = patient && timeout > around + late / 4;
    // If one end drops a packet for good, and the other has no timeout, that one waits for ever.
    if endless {
        plan.hosts.iter_mut().for_each(|host| host.deaf = 0);
        plan.connections.iter_mut().flat_map(|connection| &mut connection.ends).for_each(|end| end.ready = 0);
    }
    let slots = random.pick(&[1, 2, 4, 16, 64, 256]);
    let window = random.pick(&[16 << 10, 256 << 10, 4 << 20]);
    plan.rings = Some(Rings { slots, window, prompt: timeout > around && !deaf });
    for connection in &mut plan.connections {
        let landings = Landings { most: random.magnitude(1, 500), willing: random.pick(&[500, 900, 1000]) };
        connection.landings = random.permille(500).then_some(landings);
    }
    plan
}

fn ring_host(random: &mut Random, scarce: bool) -> HostPlan {
    let from = random.magnitude(10 * US, 20 * MS);
    let stall = random.magnitude(10 * US, 500 * MS);
    HostPlan {
        faults: String::new(),
        poll: random.pick(&[0, 0, US, 20 * US, 100 * US]),
        acknowledge: random.pick(&[0, 0, US, 50 * US]),
        full: random.pick(&[0, 0, 0, 10, 200]),
        deaf: random.pick(&[0, 0, 0, 0, 10]),
        stops: None,
        moves: Vec::new(),
        stalls: random.permille(300).then_some((from, from + stall)),
        shared: receives(random, scarce),
    }
}

fn host(random: &mut Random, weather: Weather, seed: u64, scarce: bool) -> HostPlan {
    let mut faults = match weather {
        Weather::Calm => String::new(),
        Weather::Mild => format!("drop={}%", random.between(0, 20) as f64 / 10.0),
        Weather::Harsh => format!("drop={}%:x1..{}", random.between(1, 25), random.between(1, 4)),
        Weather::Echo => "dup=5%:1us..400ms,drop=1%".to_owned(),
        Weather::Partition => {
            let from = random.magnitude(10, 20_000);
            format!("down={from}us..{}us,drop=0.5%", from + random.magnitude(100, 3_000_000))
        }
        Weather::Narrow => {
            format!("rate={}Mbit,queue={}kB", random.magnitude(20, 5000), random.magnitude(10, 500))
        }
    };
    if weather != Weather::Calm {
        if random.permille(300) {
            faults += &format!(",dup={}%:0..{}us", random.between(1, 30) as f64 / 10.0, random.magnitude(1, 2000));
        }
        if random.permille(300) {
            faults += &format!(",reorder={}%:1us..{}us", random.between(1, 8), random.magnitude(2, 2000));
        }
        if random.permille(200) {
            faults += &format!(",corrupt={}%", random.between(1, 10) as f64 / 10.0);
        }
        if random.permille(200) {
            faults += &format!(",rx.delay=20%:0..{}us", random.magnitude(2, 2000));
        }
    }
    HostPlan {
        faults: format!("seed={seed},{faults}"),
        poll: random.pick(&[0, 0, US, 20 * US, 100 * US]),
        acknowledge: random.pick(&[0, 0, US, 50 * US, 200 * US]),
        full: random.pick(&[0, 0, 0, 10, 200]),
        deaf: random.pick(&[0, 0, 0, 0, 0, 20]),
        stops: None,
        moves: Vec::new(),
        stalls: None,
        shared: receives(random, scarce),
    }
}

fn receives(random: &mut Random, scarce: bool) -> Receives {
    if !scarce || random.permille(300) {
        return Receives::PLENTY;
    }
    Receives {
        first: random.between(0, 8) as u32,
        then: random.between(1, 16) as u32,
        every: random.magnitude(20 * US, 10 * MS),
    }
}

fn connection(
    random: &mut Random,
    index: usize,
    hosts: usize,
    budget: u64,
    (scarce, misdeeds, endless): (bool, bool, bool),
    mtus: &[u32],
) -> ConnectionPlan {
    use Service::{Extended, Reliable, ReliableShared, Unreliable};
    let service = random.pick(&[Reliable, Reliable, Reliable, ReliableShared, Extended, Unreliable]);
    let mtu = random.pick(mtus);
    let one = random.between(0, hosts as u64 - 1) as usize;
    // A QP may be connected to one of its own host.
    let other = if random.permille(30) { one } else { (one + random.between(1, hosts as u64 - 1) as usize) % hosts };
    let longest = random.magnitude(1, 64.max(budget / 2)) * u64::from(mtu);
    let mut ends = [one, other].map(|host| {
        let rnr_retries = if endless { 7 } else { random.pick(&[7, 7, 7, 7, 0, 1, 3]) };
        let any_psn = random.bits() as u32 & 0xff_ffff;
        EndPlan {
            host,
            ready: 0,
            first_psn: random.pick(&[0, 0xff_fff0, 0x7f_fff0, 0x80_0000, any_psn]),
            first_request: random.pick(&[0, u32::MAX - 3, 77]),
            timeout: if endless { 0 } else { random.pick(&[8, 10, 12, 13, 14, 14, 16, 18]) },
            retries: random.pick(&[7, 7, 7, 7, 7, 5, 3]),
            rnr_retries,
            rnr_timer: random.pick(&[1, 1, 2, 5, 8, 12, 14]),
            depth: random.pick(&[1, 1, 2, 4, 16]),
            queue: random.pick(&[1, 2, 8, 64, 512]),
            gap: random.magnitude(US, 200 * US),
            operations: Vec::new(),
            receives: receives(random, scarce),
            room: longest,
            region: 2 * longest.max(4096),
        }
    });
    // Requests of one end aim at the other's memory.
    for side in 0..2 {
        let peer = &ends[1 - side];
        let key = keys::REGION | (2 * index + 1 - side) as u32;
        let aim = Aim { service, mtu, longest, region: peer.region, key, host: peer.host, number: 2 * index + side };
        let share = if side == 1 && random.permille(300) { 0 } else { budget };
        ends[side].operations = operations(random, &aim, share);
        let count = ends[side].operations.len() as u64;
        if misdeeds && service.reliable() && count > 0 && random.permille(150) {
            let victim = random.between(0, count - 1) as usize;
            offend(random, &mut ends[side].operations[victim], &aim);
        }
    }
    ConnectionPlan { service, mtu, ends, landings: None }
}

/// The target of an end's requests.
struct Aim {
    service: Service,
    mtu: u32,
    longest: u64,
    region: u64,
    key: u32,
    host: usize,
    number: usize,
}

/// Requests of about so many packets.
fn operations(random: &mut Random, aim: &Aim, packets: u64) -> Vec<Op> {
    use Opcode::*;
    let choice: &[Opcode] = match (aim.service.reliable(), random.between(0, 5)) {
        (false, 0..3) => &[Send, SendImm],
        (false, _) => &[Send, SendImm, Write, WriteImm],
        (true, 0) => &[Send, SendImm, SendInv],
        (true, 1) => &[Write],
        (true, 2) => &[Read],
        (true, 3) => &[CompareSwap, FetchAdd],
        (true, _) => &[
            Send,
            Send,
            SendImm,
            SendInv,
            Write,
            Write,
            WriteImm,
            Read,
            Read,
            CompareSwap,
            FetchAdd,
            AtomicWrite,
            Flush,
        ],
    };
    let fences = random.pick(&[0, 0, 100, 500]);
    let mut operations = Vec::new();
    let mut total = 0;
    while total < packets {
        let number = mix(aim.number as u64, operations.len() as u64);
        let operation = random.pick(choice);
        let mut request = request(random, aim, operation, number);
        request.flags |= if random.permille(fences) { send_flags::FENCE } else { 0 };
        total += request.length.div_ceil(u64::from(aim.mtu)).max(1);
        operations.push(Op { request, key: number, misdeed: None });
    }
    operations
}

fn request(random: &mut Random, aim: &Aim, operation: Opcode, number: u64) -> Request {
    let mtu = u64::from(aim.mtu);
    let whole = random.between(1, (aim.longest / mtu).max(1)) * mtu;
    let mut length = match random.between(0, 9) {
        0 => 0,
        1..3 => random.between(1, 16),
        3 => whole,
        4 => whole - 1,
        5 => (whole + 1).min(aim.longest),
        6..8 => random.between(1, mtu),
        _ => random.between(1, aim.longest),
    };
    let mut rkey = aim.key;
    let offset;
    match operation {
        Opcode::CompareSwap | Opcode::FetchAdd => {
            length = 8;
            rkey = keys::WORDS | aim.host as u32;
            // Half of the words for each, so that comparisons find what they hope for now and then.
            let half = keys::WORD_COUNT / 2;
            offset = 8 * (random.between(0, half - 1) + if operation == Opcode::FetchAdd { half } else { 0 });
        }
        Opcode::AtomicWrite => {
            length = 8;
            offset = 8 * random.between(0, aim.region / 8 - 1);
        }
        Opcode::Read if random.permille(500) => {
            rkey = keys::PATTERN | aim.host as u32;
            offset = random.between(0, keys::PATTERN_LENGTH - length);
        }
        // Often the same place, so that what is done twice or in the wrong order shows.
        _ => offset = if random.permille(500) { 0 } else { random.between(0, aim.region - length) },
    }
    let imm_or_rkey = match operation {
        Opcode::SendInv => keys::INVALIDATE | (number as u32 & keys::OWNER),
        _ => number as u32,
    };
    let mut word = [0; 8];
    crate::random::pattern(number, 0, &mut word);
    Request {
        opcode: operation,
        length,
        remote_addr: keys::base(rkey) + offset,
        rkey,
        imm_or_rkey,
        // An atomic write's value is its data.
        compare_add: match operation {
            Opcode::CompareSwap => random.between(0, 3),
            Opcode::AtomicWrite => u64::from_ne_bytes(word),
            _ => number,
        },
        swap: random.between(0, 3),
        srqn: if aim.service == Service::Extended { aim.host as u32 + 1 } else { 0 },
        flags: if random.permille(200) { send_flags::SOLICITED } else { 0 },
        flush: Flush { placement: 1, ..Flush::default() },
    }
}

/// Makes a request one that must fail, if there is a way.
fn offend(random: &mut Random, op: &mut Op, aim: &Aim) {
    use Opcode::*;
    let local = op.request.length > 0 && !matches!(op.request.opcode, AtomicWrite | Flush) && random.permille(200);
    let misdeed = match op.request.opcode {
        _ if local => Misdeed::Local,
        SendInv if random.permille(500) => Misdeed::Invalidation,
        Send | SendImm | SendInv => Misdeed::Length,
        Write | WriteImm | Read if op.request.length == 0 => return,
        CompareSwap | FetchAdd if random.permille(500) => Misdeed::Alignment,
        Flush | LocalInv | BindMw => return,
        AtomicWrite | CompareSwap | FetchAdd => Misdeed::Key,
        Read => random.pick(&[Misdeed::Key, Misdeed::Range, Misdeed::Gone]),
        Write | WriteImm => random.pick(&[Misdeed::Key, Misdeed::Range]),
    };
    let request = &mut op.request;
    match misdeed {
        Misdeed::Key => request.rkey = keys::BAD,
        Misdeed::Range => {
            request.rkey = aim.key;
            request.remote_addr = keys::base(aim.key) + aim.region - request.length + random.between(1, request.length);
        }
        Misdeed::Gone => {
            request.rkey = keys::GONE | aim.host as u32;
            let before = random.between(0, request.length - 1);
            request.remote_addr = keys::base(request.rkey) + keys::PATTERN_LENGTH / 2 - before;
        }
        Misdeed::Length => request.length = aim.longest + random.between(1, 2 * u64::from(aim.mtu)),
        Misdeed::Alignment => request.remote_addr += random.between(1, 7),
        Misdeed::Local | Misdeed::Invalidation => {}
    }
    op.misdeed = Some(misdeed);
}
