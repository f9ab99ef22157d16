//! The two or four workers that carry out the cases of one placement and one memory, and how they do: one case, once.

use std::collections::BTreeMap;
use std::time::Duration;

use super::job::Job;
use super::worker_handle::{ANSWER_TIMEOUT, Role, WorkerError, WorkerHandle};
use crate::case::{Case, Interface, Interference, Measure, Memory, Service};
use crate::plan::{Pin, Pinning, Settings};
use crate::protocol::{Answer, Ends, Measured, Opened, Order, Side, Spec, Stream};
use crate::results::{Host, InterferenceProof, Run};
use crate::topology::{self, Assignment, Topology};
use crate::worker;

/// Bytes that warming up moves at most, as far as `LEAST` messages allow.
const WARM_UP_BYTES: u64 = 32 << 20;
/// The fewest operations that are measured, or warmed up with.
const LEAST: u64 = 16;
/// Warming up goes on until it says how long an operation takes: a run of at least this long.
const CALIBRATION: Duration = Duration::from_millis(2);
/// Requests that an interfering stream keeps under way, and those for one completion: perftest's.
const STREAM_DEPTH: u32 = 128;
const STREAM_SIGNAL_EVERY: u32 = 100;
/// Time beyond the planned one that a run may take before its worker is given up.
const SLACK: Duration = Duration::from_secs(60);
/// And a Jacobi kernel, of whose ranks several may share a processor.
const STEPS_SLACK: Duration = Duration::from_secs(3600);

/// A requester and a responder that are connected for a case.
type Pair<'p, 'a> = (&'p mut WorkerHandle<'a>, &'p mut WorkerHandle<'a>);

/// The result of a measurement: the requester's values, messages lost, and the stream that ran beside.
pub type Outcome = (Measured, u64, Option<InterferenceProof>);

/// The parameters of a team.
pub struct Needs<'n, 'a> {
    /// Makes the worker of a role.
    pub start_worker: &'n mut dyn FnMut(Role) -> Result<WorkerHandle<'a>, WorkerError>,
    /// The device of this host; None: the first.
    pub device: Option<&'n str>,
    /// From 1.
    pub port: u8,
    /// Place in the port's GID table; None: the best.
    pub gid_index: Option<u8>,
    /// The CPUs of the processes.
    pub pinning: Pinning,
    /// The owner of the measured pair's memory; that of the interfering one is the host's.
    pub memory: Memory,
    /// The interface that is measured. For a window by itself no memory of the device is
    /// needed.
    pub interface: Interface,
    /// Bytes of memory of each worker of the measured pair, and of the interfering one; 0 where there is none.
    pub bytes: (u64, u64),
}

/// The workers of one placement and one memory.
pub struct Team<'a> {
    client: WorkerHandle<'a>,
    server: WorkerHandle<'a>,
    background: Option<(WorkerHandle<'a>, WorkerHandle<'a>)>,
    /// If they are ranks of a job: the others. Dropped after requester and responder, as all ranks leave it together.
    job: Option<Job<'a>>,
    places: Places,
    mtu: u32,
    /// The host of the requesters, with where each worker is pinned.
    pub here: Host,
    /// The CPUs of the responders.
    pub there: Host,
    /// The CPU of the requester, and another one of this machine: the responder's, where that is on it.
    pub cpus: (Option<u32>, Option<u32>),
    /// Facts to know about the CPUs.
    pub notes: Vec<String>,
}

impl<'a> Team<'a> {
    /// Starts the workers, has them open their devices, pins them, makes their memory.
    pub fn new(needs: Needs<'_, 'a>) -> Result<Self, WorkerError> {
        let mut roles = vec![Role::Client, Role::Server];
        if needs.bytes.1 > 0 {
            roles.extend([Role::BackgroundClient, Role::BackgroundServer]);
        }
        let mut workers = Vec::new();
        for role in roles {
            let mut worker = (needs.start_worker)(role)?;
            let opened = worker.open(needs.device, needs.port, needs.gid_index)?;
            workers.push((role, worker, opened));
        }
        let (mut here, mut there) = (workers[0].2.host.clone(), workers[1].2.host.clone());
        let mtu = workers.iter().map(|(.., opened)| opened.host.device.mtu).min().unwrap_or(1024);
        let (requester, responder) = (&workers[0].2, &workers[1].2);
        let one_machine = !requester.boot.is_empty() && requester.boot == responder.boot;
        let places = Places::new(needs.pinning, requester, responder, one_machine);
        for (role, worker, _) in &mut workers {
            let measured = matches!(role, Role::Client | Role::Server);
            let (memory, bytes) = if measured { (needs.memory, needs.bytes.0) } else { (Memory::Host, needs.bytes.1) };
            let cpu = places.of(*role);
            let Pinning { memory_node: node, gpu, .. } = needs.pinning;
            let interface = if measured { needs.interface } else { Interface::Verbs };
            let gpu = match worker.ask(&Order::Settle { cpu, interface, memory, node, gpu, bytes }, ANSWER_TIMEOUT)? {
                Answer::Settled { gpu } => gpu,
                other => return Err(worker.out_of_order(&other)),
            };
            let host = if matches!(role, Role::Client | Role::BackgroundClient) { &mut here } else { &mut there };
            host.pinned.insert(role.word().into(), cpu);
            host.gpu = host.gpu.take().or(gpu);
        }
        // Two of this machine, where the responder is on another one.
        let other = if one_machine { Role::Server } else { Role::BackgroundClient };
        let cpus = (places.of(Role::Client), places.of(other));
        if one_machine {
            here.pinned.append(&mut there.pinned.clone());
        }
        let mut workers: BTreeMap<_, _> = workers.into_iter().map(|(role, worker, _)| (role, worker)).collect();
        let mut take = |role| workers.remove(&role);
        let background = take(Role::BackgroundClient).zip(take(Role::BackgroundServer));
        let (Some(client), Some(server)) = (take(Role::Client), take(Role::Server)) else {
            return Err(WorkerError::Failed("no requester or no responder".into()));
        };
        let mut notes: Vec<String> = places.note.iter().cloned().collect();
        // The coordinator and the requesters are on one host.
        let used: Vec<u32> = here.pinned.values().copied().flatten().collect();
        notes.extend(Topology::read().ok().and_then(|topology| topology.shared_cores(&used)));
        Ok(Self { client, server, background, job: None, places, mtu, here, there, cpus, notes })
    }

    /// A team of the ranks of a job, on the CPUs of `like`, which is on this host.
    pub fn of_job(mut ranks: Vec<WorkerHandle<'a>>, mut job: Job<'a>, like: &Team<'_>) -> Result<Self, WorkerError> {
        // If there are more ranks than processors that are known to be free, the choice is left to the scheduler.
        let is_small = ranks.iter().all(|rank| rank.role() != Role::Further);
        for rank in &mut ranks {
            let cpu = like.places.of(rank.role()).filter(|_| is_small);
            let interface = Interface::Verbs;
            let settle = Order::Settle { cpu, interface, memory: Memory::Host, node: None, gpu: None, bytes: 0 };
            match rank.ask(&settle, ANSWER_TIMEOUT)? {
                Answer::Settled { .. } => {}
                other => return Err(rank.out_of_order(&other)),
            }
        }
        let mut take = |role| {
            let place = ranks.iter().position(|rank| rank.role() == role)?;
            Some(ranks.swap_remove(place))
        };
        let (Some(client), Some(server)) = (take(Role::Client), take(Role::Server)) else {
            return Err(WorkerError::Failed("a job without two ranks".into()));
        };
        job.others = ranks;
        let (mut here, mut there) = (like.here.clone(), like.there.clone());
        // The places are those of the team that this one is like.
        here.pinned.clear();
        there.pinned.clear();
        let (places, cpus, mtu) = (like.places.clone(), like.cpus, like.mtu);
        Ok(Self { client, server, background: None, job: Some(job), places, mtu, here, there, cpus, notes: vec![] })
    }

    /// Bytes of payload in a packet.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The requester: for what needs no peer.
    pub fn client(&mut self) -> &mut WorkerHandle<'a> {
        &mut self.client
    }

    /// Measures `case` once. `iterations` are those of earlier rounds; where there were none, it is set to what this
    /// run finds to fit the settings.
    pub fn measure(
        &mut self,
        case: &Case,
        settings: &Settings,
        iterations: &mut Option<u64>,
    ) -> Result<Outcome, WorkerError> {
        let result = match self.job {
            None => self.attempt(case, settings, iterations),
            Some(_) => self.attempt_in_job(case, settings, iterations),
        };
        // Also after a failure, so that the next case finds them free; what ended the run says more than what this
        // does.
        let mut released = Ok(());
        let background = self.background.iter_mut().flat_map(|(client, server)| [client, server]);
        let others = self.job.iter_mut().filter(|_| case.operation.is_jacobi()).flat_map(|job| &mut job.others);
        for worker in [&mut self.client, &mut self.server].into_iter().chain(background).chain(others) {
            released = released.and(worker.release());
        }
        match (result, released) {
            // A failing rank gives its reason, and ends; in a pair, one that fails does so because the other one is
            // lost.
            (Err(WorkerError::Failed(why)), Err(WorkerError::Lost { remote, .. })) if self.job.is_some() => {
                Err(WorkerError::Lost { why, remote })
            }
            (Err(WorkerError::Failed(_)) | Ok(_), Err(error)) => Err(error),
            (result, _) => result,
        }
    }

    /// Measures as often as the benchmarks do that the ping-pong comes from, however long it takes: warming up is part
    /// of the measurement.
    fn attempt_in_job(
        &mut self,
        case: &Case,
        settings: &Settings,
        iterations: &mut Option<u64>,
    ) -> Result<Outcome, WorkerError> {
        let spec = Spec { warm_up: settings.warm_up, ..spec(case, settings, self.mtu) };
        pair_up((&mut self.client, &mut self.server), &spec)?;
        let planned = *iterations.get_or_insert_with(|| settings.of_ranks(case));
        let others = self.job.iter_mut().filter(|_| case.operation.is_jacobi()).flat_map(|job| &mut job.others);
        let mut others: Vec<_> = others.collect();
        for other in &mut others {
            match other.ask(&Order::Prepare(Spec { side: Side::Responder, ..spec }), ANSWER_TIMEOUT)? {
                Answer::Prepared(_) => {}
                answer => return Err(other.out_of_order(&answer)),
            }
            other.order(&Order::Start { iterations: planned })?;
            listening(other)?;
        }
        let limit = if case.operation.is_jacobi() { STEPS_SLACK } else { SLACK };
        let (measured, _) = start((&mut self.client, &mut self.server), &spec, planned, limit)?;
        for other in &mut others {
            match other.answer(limit)? {
                Answer::Served { .. } => {}
                answer => return Err(other.out_of_order(&answer)),
            }
        }
        Ok((measured, 0, None))
    }

    fn attempt(
        &mut self,
        case: &Case,
        settings: &Settings,
        iterations: &mut Option<u64>,
    ) -> Result<Outcome, WorkerError> {
        let mtu = self.mtu;
        let mut background = match (&case.interference, &mut self.background) {
            (None, _) => None,
            (Some(beside), Some((client, server))) => {
                let spec = stream_spec(case, beside, mtu);
                pair_up((client, server), &spec)?;
                server.order(&Order::Start { iterations: 0 })?;
                listening(server)?;
                client.order(&Order::Start { iterations: 0 })?;
                listening(client)?;
                Some((client, server, beside))
            }
            (Some(_), None) => return Err(WorkerError::Failed("no workers for the interference".into())),
        };

        let spec = spec(case, settings, mtu);
        pair_up((&mut self.client, &mut self.server), &spec)?;
        let limit = settings.at_most * 10 + SLACK;
        let mut run = |iterations| start((&mut self.client, &mut self.server), &spec, iterations, limit);
        let warm_up = settings.warm_up.min(WARM_UP_BYTES / spec.case.size).max(LEAST);
        let (mut warm, _) = run(warm_up)?;
        let planned = match *iterations {
            Some(known) => known,
            None => {
                let mut tried = warm_up;
                while warm.seconds < CALIBRATION.as_secs_f64() {
                    tried *= 4;
                    warm = run(tried)?.0;
                }
                *iterations.insert(fitting(settings, warm.seconds / warm.iterations as f64))
            }
        };
        let (measured, received) = run(planned)?;

        let proof = match &mut background {
            None => None,
            Some((client, server, beside)) => {
                client.order(&Order::Stop)?;
                let stream = match client.answer(ANSWER_TIMEOUT)? {
                    Answer::Stream(stream) => stream,
                    other => return Err(client.out_of_order(&other)),
                };
                server.order(&Order::Stop)?;
                Some(prove(**beside, &stream, measured.between))
            }
        };
        let counted = spec.case.operation.takes_receive() && spec.case.service != Service::Rc;
        let lost = if counted { measured.iterations.saturating_sub(received) } else { 0 };
        Ok((measured, lost, proof))
    }
}

/// A [`Run`] of what [`Team::measure`] gives.
pub fn run_of(round: u32, at: f64, what: Outcome) -> Run {
    let (measured, lost, interference) = what;
    let Measured { iterations, seconds, segments, histogram, .. } = measured;
    Run { round, at, iterations, seconds, segments, histogram, lost, interference }
}

/// Prepares and connects both ends.
fn pair_up((client, server): Pair<'_, '_>, spec: &Spec) -> Result<(), WorkerError> {
    let prepare = |worker: &mut WorkerHandle<'_>, side| -> Result<Ends, WorkerError> {
        match worker.ask(&Order::Prepare(Spec { side, ..*spec }), ANSWER_TIMEOUT)? {
            Answer::Prepared(ends) => Ok(ends),
            other => Err(worker.out_of_order(&other)),
        }
    };
    let requesters = prepare(client, Side::Requester)?;
    let responders = prepare(server, Side::Responder)?;
    // The responder first: it must take what the requester may send at once.
    server.have_done(&Order::Connect(requesters))?;
    client.have_done(&Order::Connect(responders))
}

fn listening(worker: &mut WorkerHandle<'_>) -> Result<(), WorkerError> {
    match worker.answer(ANSWER_TIMEOUT)? {
        Answer::Listening => Ok(()),
        other => Err(worker.out_of_order(&other)),
    }
}

/// One `Start` of both ends: what was measured, and how many messages the responder was told of.
fn start(
    (client, server): Pair<'_, '_>,
    spec: &Spec,
    iterations: u64,
    limit: Duration,
) -> Result<(Measured, u64), WorkerError> {
    server.order(&Order::Start { iterations })?;
    listening(server)?;
    let measured = match client.ask(&Order::Start { iterations }, limit)? {
        Answer::Run(measured) => measured,
        other => return Err(client.out_of_order(&other)),
    };
    // A lost message would be waited for without end.
    if spec.case.service != Service::Rc {
        server.order(&Order::Stop)?;
    }
    match server.answer(limit)? {
        Answer::Served { received } => Ok((measured, received)),
        other => Err(server.out_of_order(&other)),
    }
}

fn spec(case: &Case, settings: &Settings, mtu: u32) -> Spec {
    let Settings { inline, signal_every, .. } = *settings;
    Spec { side: Side::Requester, case: *case, mtu, inline, signal_every, endless: false, warm_up: 0 }
}

fn stream_spec(case: &Case, beside: &Interference, mtu: u32) -> Spec {
    let stream = Case {
        measure: Measure::Bandwidth,
        operation: beside.operation,
        service: Service::Rc,
        size: beside.size,
        depth: STREAM_DEPTH,
        qps: 1,
        interference: None,
        memory: Memory::Host,
        ..*case
    };
    let signal_every = STREAM_SIGNAL_EVERY;
    Spec { side: Side::Requester, case: stream, mtu, inline: None, signal_every, endless: true, warm_up: 0 }
}

/// Bytes of memory that the workers of a pair need for these cases: the measured one, the interfering one.
pub fn memory_for<'c>(cases: impl Iterator<Item = &'c Case>) -> (u64, u64) {
    cases.fold((0, 0), |(measured, beside), case| {
        if case.interface == Interface::Window {
            return (measured.max(1), beside);
        }
        if case.interface.has_ranks() {
            // Starter memory, in whole pages; ranks of PM and of an MPI make their buffers themselves.
            return (measured.max(case.size.next_multiple_of(4096)), beside);
        }
        let stream = case.interference.map_or(0, |i| worker::needs(i.size, 1));
        (measured.max(worker::needs(case.size, case.qps)), beside.max(stream))
    })
}

/// Iterations for a run whose operations take `each` seconds.
fn fitting(settings: &Settings, each: f64) -> u64 {
    let least = (settings.at_least.as_secs_f64() / each).ceil() as u64;
    let most = (settings.at_most.as_secs_f64() / each) as u64;
    settings.iterations.max(least).min(most.max(LEAST))
}

/// The proof of a stream's work between two moments.
fn prove(stream: Interference, did: &Stream, (from, to): (u64, u64)) -> InterferenceProof {
    let slice = did.slice.max(1);
    let index = |at: u64| (at.saturating_sub(did.start) / slice) as usize;
    let slices: Vec<u32> = did.operations.iter().skip(index(from)).take(index(to) + 1 - index(from)).copied().collect();
    let operations = slices.iter().map(|n| u64::from(*n)).sum();
    // Pauses count as far as they lie within; one that lasted to the end shows as completions that are missing there.
    let end = did.start + did.operations.len() as u64 * slice;
    let last = (end.min(to), to);
    let within = did.pauses.iter().chain([&last]).map(|&(a, b)| b.min(to).saturating_sub(a.max(from)));
    let longest = within.max().unwrap_or(0);
    let bearable = ((to - from) / 10).max(20_000_000);
    InterferenceProof {
        stream,
        operations,
        rate: operations as f64 / ((to - from).max(1) as f64 * 1e-9),
        slices,
        slice_ms: slice as f64 * 1e-6,
        longest_pause_ms: longest as f64 * 1e-6,
        throughout: did.start <= from && operations > 0 && longest <= bearable,
    }
}

/// Which CPU each role runs on.
#[derive(Clone)]
struct Places {
    pinning: Pinning,
    here: Assignment,
    there: Assignment,
    note: Option<String>,
}

impl Places {
    fn new(pinning: Pinning, here: &Opened, there: &Opened, one_machine: bool) -> Self {
        let assign = |opened: &Opened| topology::assign(&opened.cpus, one_machine);
        let (here, there) = (assign(here), assign(there));
        let automatic = pinning.client == Pin::Auto && pinning.server == Pin::Auto;
        let note = here.note.clone().or_else(|| there.note.clone()).filter(|_| automatic);
        Self { pinning, here, there, note }
    }

    fn of(&self, role: Role) -> Option<u32> {
        let (pin, automatic) = match role {
            Role::Client => (self.pinning.client, self.here.client),
            Role::Server => (self.pinning.server, self.there.server),
            // If two more processes run, a third rank has the place of the first of them.
            Role::BackgroundClient | Role::Third => (self.pinning.background_client, self.here.background_client),
            Role::BackgroundServer => (self.pinning.background_server, self.there.background_server),
            Role::Further => return None,
        };
        match pin {
            Pin::Auto => automatic,
            Pin::Free => None,
            Pin::Cpu(cpu) => Some(cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Operation;

    const MS: u64 = 1_000_000;
    const READS: Interference = Interference { operation: Operation::Read, size: 8 };

    fn settings() -> Settings {
        Settings {
            iterations: 5000,
            full_iterations: None,
            only_full: false,
            warm_up: 256,
            at_least: Duration::from_millis(20),
            at_most: Duration::from_millis(300),
            inline: None,
            signal_every: 100,
            volume: 0,
        }
    }

    #[test]
    fn iterations_are_those_of_the_plan_within_its_times() {
        let fit = |each| fitting(&settings(), each);
        assert_eq!(fit(10e-6), 5000);
        assert_eq!(fit(100e-9), 200_000);
        assert_eq!(fit(1e-3), 300);
        assert_eq!(fit(1.0), LEAST);
    }

    #[test]
    fn a_stream_that_ran_throughout_is_proven() {
        let did = Stream { start: 10 * MS, slice: MS, operations: vec![5; 100], pauses: vec![] };
        let proof = prove(READS, &did, (20 * MS, 60 * MS));
        assert!(proof.throughout, "{proof:?}");
        assert_eq!((proof.slices.len(), proof.operations), (41, 205));
        assert_eq!(proof.longest_pause_ms, 0.0);
    }

    #[test]
    fn a_stream_that_paused_or_ended_early_is_not() {
        let steady = Stream { start: 10 * MS, slice: MS, operations: vec![5; 100], pauses: vec![] };
        let paused = Stream { pauses: vec![(30 * MS, 55 * MS)], ..steady.clone() };
        let proof = prove(READS, &paused, (20 * MS, 60 * MS));
        assert!(!proof.throughout && proof.longest_pause_ms == 25.0, "{proof:?}");
        // Only the part within counts.
        let before = Stream { pauses: vec![(11 * MS, 25 * MS)], ..steady.clone() };
        assert_eq!(prove(READS, &before, (20 * MS, 60 * MS)).longest_pause_ms, 5.0);
        let ended = Stream { operations: vec![5; 20], ..steady.clone() };
        assert!(!prove(READS, &ended, (20 * MS, 60 * MS)).throughout);
        let late = Stream { start: 30 * MS, ..steady };
        assert!(!prove(READS, &late, (20 * MS, 60 * MS)).throughout);
    }
}
