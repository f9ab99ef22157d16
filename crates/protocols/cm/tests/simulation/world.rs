//! Hosts, processes, the network between them, and time.

use std::collections::BTreeMap;

use vervain_cm::message::{Message, parse, reason};
use vervain_cm::{CommId, Event, Machine, Mad, Output, Path, RepParams, ReqParams, SidrRepParams, SidrReqParams};
use vervain_seeds::Outcome;

use crate::program::{End, Stage};
use crate::random::Random;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// Until then, things go wrong, and programs begin things.
const CALM: u64 = 40 * SECOND;
/// Then all that was begun has come to its end, also what had to be given up.
const SETTLED: u64 = 160 * SECOND;
/// Longest time that a datagram takes: shorter than any timewait, as a fabric promises.
const LATEST: u64 = 300 * MILLISECOND;
/// An address that belongs to no host of the run.
const ELSEWHERE: [u8; 16] = [9; 16];
/// Services are numbered by processes from here on.
const SERVICE: u64 = 0x106_0000;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    attempts: u64,
    established: u64,
    rejected: u64,
    unreachable: u64,
    stale: u64,
    questions: u64,
    killed: u64,
    forged: u64,
    mads: u64,
}

impl Outcome for Tally {
    fn add(&mut self, other: &Tally) {
        self.attempts += other.attempts;
        self.established += other.established;
        self.rejected += other.rejected;
        self.unreachable += other.unreachable;
        self.stale += other.stale;
        self.questions += other.questions;
        self.killed += other.killed;
        self.forged += other.forged;
        self.mads += other.mads;
    }
}

/// A process, or the place of one that has died.
struct Process {
    host: usize,
    slot: u32,
    incarnation: u32,
    machine: Option<Machine>,
    ends: BTreeMap<CommId, End>,
    next_qpn: u32,
    /// QPs that may be used again.
    free: Vec<u32>,
    /// So late does it look at the clock.
    late: u64,
}

/// A wish for a connection, or a QP.
struct Attempt {
    client: (usize, u32),
    server: usize,
    qpn: u32,
    psn: u32,
    /// Few retries: the two may not hear of each other's end.
    short: bool,
    /// The server has taken back what it had granted. If that and the RTU are lost, the client does not hear of it, as
    /// with the kernel.
    withdrawn: bool,
    /// Has been a connection, as the server knows.
    was_up: bool,
    /// The server's identifiers for it, and the incarnations that had them.
    served: BTreeMap<CommId, u32>,
}

enum Happening {
    /// A MAD comes to a process.
    Deliver {
        to: usize,
        path: Path,
        mad: Box<Mad>,
    },
    /// Data comes for a connection.
    Data {
        to: usize,
        incarnation: u32,
        conn: CommId,
    },
    /// A program does something with an identifier.
    Act {
        process: usize,
        incarnation: u32,
        conn: CommId,
    },
    /// A program begins something.
    Begin {
        process: usize,
        question: bool,
    },
    Kill(usize),
    /// The others of the host hear of it.
    Gone {
        process: usize,
        slot: u32,
    },
    Restart(usize),
}

pub struct World {
    now: u64,
    random: Random,
    verbose: bool,
    processes: Vec<Process>,
    attempts: Vec<Attempt>,
    happenings: BTreeMap<(u64, u64), Happening>,
    sequence: u64,
    lost: u64,
    doubled: u64,
    forged: u64,
    /// Requests are forged too: then there are connections with somebody elsewhere, who may do with them what he likes.
    foreigners: bool,
    tally: Tally,
}

fn address(host: usize) -> [u8; 16] {
    [host as u8 + 1; 16]
}

fn guid(host: usize) -> u64 {
    host as u64 + 0x100
}

impl World {
    pub fn new(seed: u64, verbose: bool) -> World {
        let mut random = Random::new(seed);
        let places = [(0, 1), (1, 1), (0, 2)];
        let count = random.between(2, 3) as usize;
        let processes = places[..count].iter().map(|&(host, slot)| Process {
            host,
            slot,
            incarnation: 0,
            machine: Some(Machine::new(slot, random.bits())),
            ends: BTreeMap::new(),
            next_qpn: 0,
            free: Vec::new(),
            late: random.pick(&[0, 0, 20 * MILLISECOND]),
        });
        let processes: Vec<_> = processes.collect();
        let harsh = random.permille(700);
        let mut world = World {
            now: 0,
            verbose,
            processes,
            attempts: Vec::new(),
            happenings: BTreeMap::new(),
            sequence: 0,
            lost: if harsh { random.between(0, 200) } else { 0 },
            doubled: if harsh { random.between(0, 200) } else { 0 },
            forged: if harsh { random.between(0, 200) } else { 0 },
            foreigners: random.permille(500),
            tally: Tally::default(),
            random,
        };
        for _ in 0..world.random.between(1, 30) {
            let at = world.random.between(0, 20 * SECOND);
            let process = world.random.between(0, count as u64 - 1) as usize;
            let question = world.random.permille(200);
            world.at(at, Happening::Begin { process, question });
        }
        if world.random.permille(300) {
            for _ in 0..world.random.between(1, 3) {
                let at = world.random.between(0, 25 * SECOND);
                let process = world.random.between(0, count as u64 - 1) as usize;
                world.at(at, Happening::Kill(process));
            }
        }
        world
    }

    pub fn run(mut self) -> Tally {
        self.run_until(SETTLED);
        self.check_agreement();
        for process in 0..self.processes.len() {
            let ends: Vec<CommId> = self.processes[process].ends.keys().copied().collect();
            for conn in ends {
                self.destroy(process, conn);
            }
        }
        self.run_until(u64::MAX);
        for process in &self.processes {
            let machine = process.machine.as_ref().expect("a process");
            assert!(machine.is_empty(), "something is left: {machine:#?}");
        }
        self.tally
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>9.3} ms: {}", self.now as f64 / 1e6, what());
        }
    }

    fn at(&mut self, time: u64, happening: Happening) {
        self.sequence += 1;
        self.happenings.insert((time, self.sequence), happening);
    }

    /// Some time from now, mostly soon.
    fn soon(&mut self, latest: u64) -> u64 {
        let span = self.random.pick(&[0, latest / 100, latest / 10, latest]);
        self.now + self.random.between(0, span)
    }

    fn run_until(&mut self, end: u64) {
        for step in 0.. {
            assert!(step < 1_000_000, "does not end");
            let deadline = |process: &Process| Some(process.machine.as_ref()?.next_deadline()? + process.late);
            let ticks = self.processes.iter().enumerate().filter_map(|(n, process)| Some((deadline(process)?, n)));
            let tick = ticks.min();
            let next = self.happenings.first_key_value().map(|(&(time, _), _)| time);
            let time = next.unwrap_or(u64::MAX).min(tick.map_or(u64::MAX, |(time, _)| time));
            if time > end || time == u64::MAX {
                self.now = self.now.max(end.min(SETTLED));
                return;
            }
            self.now = self.now.max(time);
            match tick {
                Some((at, process)) if at == time => {
                    let now = self.now;
                    let machine = self.processes[process].machine.as_mut().expect("has a deadline");
                    machine.tick(now);
                    assert!(machine.next_deadline().is_none_or(|next| next > now), "is not over");
                    self.drain(process);
                }
                _ => {
                    let (_, happening) = self.happenings.pop_first().expect("the first");
                    self.happen(happening);
                }
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { to, path, mad } => self.deliver(to, path, &mad),
            Happening::Data { to, incarnation, conn } => {
                let now = self.now;
                let process = &mut self.processes[to];
                if process.incarnation == incarnation
                    && process.ends.get(&conn).is_some_and(|end| end.stage == Stage::Granted)
                {
                    let machine = process.machine.as_mut().expect("an incarnation");
                    machine.established(now, conn).expect("is granted");
                    self.drain(to);
                }
            }
            Happening::Act { process, incarnation, conn } => {
                if self.processes[process].incarnation == incarnation {
                    self.act(process, conn);
                }
            }
            Happening::Begin { process, question } => {
                if self.processes[process].machine.is_some() {
                    self.begin(process, question);
                }
            }
            Happening::Kill(process) => self.kill(process),
            Happening::Gone { process, slot } => {
                let (now, host) = (self.now, self.processes[process].host);
                if let Some(machine) = &mut self.processes[process].machine {
                    machine.gone(now, slot, |path| path.dgid == address(host));
                    self.drain(process);
                }
            }
            Happening::Restart(process) => {
                let seed = self.random.bits();
                let process = &mut self.processes[process];
                process.machine = Some(Machine::new(process.slot, seed));
                process.next_qpn = 0;
            }
        }
    }

    fn kill(&mut self, process: usize) {
        if self.processes[process].machine.take().is_none() {
            return;
        }
        self.say(|| format!("process {process} is killed"));
        self.tally.killed += 1;
        let killed = &mut self.processes[process];
        killed.incarnation += 1;
        killed.ends.clear();
        killed.free.clear();
        let (host, slot) = (killed.host, killed.slot);
        let heard = self.now + self.random.between(0, 50 * MILLISECOND);
        for other in 0..self.processes.len() {
            if other != process && self.processes[other].host == host {
                self.at(heard, Happening::Gone { process: other, slot });
            }
        }
        let restart = heard + self.random.between(1, 2 * SECOND);
        self.at(restart, Happening::Restart(process));
    }

    /// A QP, perhaps one that was used before.
    fn qpn(&mut self, process: usize) -> u32 {
        let again = self.random.permille(300);
        let process = &mut self.processes[process];
        if again && let Some(qpn) = process.free.pop() {
            return qpn;
        }
        process.next_qpn += 1;
        process.slot << 14 | process.next_qpn
    }

    fn begin(&mut self, process: usize, question: bool) {
        let server = self.random.between(0, self.processes.len() as u64 - 1) as usize;
        let host = self.processes[process].host;
        let path = Path {
            port: 1,
            hop_limit: 64,
            sgid: address(host),
            dgid: address(self.processes[server].host),
            ..Path::default()
        };
        let service_id = SERVICE + server as u64;
        let number = self.attempts.len();
        let name = (number as u64).to_be_bytes();
        let qpn = self.qpn(process);
        let psn = self.random.between(0, 0xff_ffff) as u32;
        let short = self.random.permille(150);
        let max_retries = if short { self.random.between(0, 3) as u8 } else { 15 };
        let mut exponent = || self.random.between(14, 18) as u8;
        let (remote_response_timeout, local_response_timeout) = (exponent(), exponent());
        let (now, incarnation) = (self.now, self.processes[process].incarnation);
        let client = (process, incarnation);
        let served = BTreeMap::new();
        self.attempts.push(Attempt { client, server, qpn, psn, short, withdrawn: false, was_up: false, served });
        let machine = self.processes[process].machine.as_mut().expect("a process");
        let (conn, stage) = if question {
            self.tally.questions += 1;
            let mut private_data = [0; 216];
            private_data[..8].copy_from_slice(&name);
            let params = SidrReqParams {
                service_id,
                response_timeout: remote_response_timeout,
                max_retries,
                private_data,
                ..SidrReqParams::default()
            };
            (machine.sidr_request(now, path, &params), Stage::SidrAsked)
        } else {
            self.tally.attempts += 1;
            let mut private_data = [0; 92];
            private_data[..8].copy_from_slice(&name);
            let params = ReqParams {
                service_id,
                ca_guid: guid(host),
                qpn,
                starting_psn: psn,
                packet_life_time: 16,
                ack_timeout: 17,
                remote_response_timeout,
                local_response_timeout,
                max_retries,
                private_data,
                ..ReqParams::default()
            };
            (machine.connect(now, path, &params), Stage::Asked)
        };
        let old = self.processes[process].ends.insert(conn, End::new(stage, Some(number), qpn));
        assert!(old.is_none(), "an identifier twice");
        self.say(|| format!("process {process} asks process {server}: {conn:#x}, attempt {number}"));
        if self.random.permille(100) {
            let at = self.soon(3 * SECOND);
            self.at(at, Happening::Act { process, incarnation, conn });
        }
        self.drain(process);
    }

    /// Takes out all that a machine hands out.
    fn drain(&mut self, process: usize) {
        let mut count = 0;
        while let Some(output) = self.processes[process].machine.as_mut().and_then(Machine::next_output) {
            count += 1;
            match output {
                Output::Send { path, mad } => self.send(process, path, mad),
                Output::Event(event) => self.hear(process, event),
            }
        }
        assert!(count <= 8 * (1 + self.processes[process].ends.len()), "{count} outputs");
    }

    /// The receiver of a MAD: the process with the slot, or the service.
    fn receiver(&self, host: usize, mad: &Mad) -> Option<usize> {
        let (_, message) = parse(mad).expect("a MAD");
        let of_slot = |id: u32| self.processes.iter().position(|p| p.host == host && p.slot == id >> 22);
        let of_service = |service: u64| Some((service - SERVICE) as usize).filter(|&n| self.processes[n].host == host);
        let found = match message {
            Message::Req(req) => of_service(req.service_id),
            Message::SidrReq(req) => of_service(req.service_id),
            Message::Mra(mra) => of_slot(mra.remote_comm_id),
            // From a peer that gives up and knows no identifier here: the connection is unknown, too.
            Message::Rej(rej) if rej.remote_comm_id == 0 => None,
            Message::Rej(rej) => of_slot(rej.remote_comm_id),
            Message::Rep(rep) => of_slot(rep.remote_comm_id),
            Message::Rtu(rtu) => of_slot(rtu.remote_comm_id),
            Message::Dreq(dreq) => of_slot(dreq.remote_comm_id),
            Message::Drep(drep) => of_slot(drep.remote_comm_id),
            Message::SidrRep(rep) => of_slot(rep.request_id),
            Message::Lap | Message::Apr => None,
        };
        found.filter(|&process| self.processes[process].machine.is_some())
    }

    fn send(&mut self, from: usize, path: Path, mad: Mad) {
        self.tally.mads += 1;
        if matches!(parse(&mad), Ok((_, Message::Rej(rej))) if rej.reason == reason::STALE_CONN) {
            self.tally.stale += 1;
        }
        let host = self.processes[from].host;
        assert_eq!((path.sgid, path.port), (address(host), 1));
        if path.dgid == ELSEWHERE {
            return;
        }
        let there = (0..2).find(|&host| address(host) == path.dgid).expect("an address");
        let receiver = self.receiver(there, &mad);
        self.say(|| format!("process {from} to {receiver:?}: {}", brief(&mad)));
        let back = Path { sgid: path.dgid, dgid: path.sgid, ..path };
        if host == there {
            let (now, busy) = (self.now, self.now < CALM && self.random.permille(self.lost / 4));
            match receiver {
                Some(_) if busy => {}
                Some(to) => {
                    self.at(now, Happening::Deliver { to, path: Path { hop_limit: 0, ..back }, mad: Box::new(mad) })
                }
                None => {
                    if let Some(machine) = &mut self.processes[from].machine {
                        machine.refused(now, &mad);
                    }
                }
            }
            return;
        }
        let calm = self.now >= CALM;
        let Some(to) = receiver else { return };
        let copies = if calm {
            1
        } else {
            u64::from(!self.random.permille(self.lost)) + u64::from(self.random.permille(self.doubled))
        };
        for _ in 0..copies {
            let at = if calm { self.now + MILLISECOND } else { self.soon(LATEST) };
            self.at(at, Happening::Deliver { to, path: Path { hop_limit: 63, ..back }, mad: Box::new(mad) });
        }
        if !calm && self.random.permille(self.forged) {
            self.forge(to, back, mad);
        }
    }

    /// Somebody elsewhere has seen a MAD, and sends it as his own, or what he makes of it.
    fn forge(&mut self, to: usize, path: Path, mut mad: Mad) {
        if matches!(parse(&mad), Ok((_, Message::Req(_) | Message::SidrReq(_)))) && !self.foreigners {
            return;
        }
        self.tally.forged += 1;
        for _ in 0..self.random.between(0, 2) {
            let at = self.random.pick(&[24, 27, 28, 31, 32, 33, 35, 60, 100]);
            mad[at] = self.random.bits() as u8;
        }
        let at = self.soon(LATEST);
        self.at(at, Happening::Deliver { to, path: Path { dgid: ELSEWHERE, ..path }, mad: Box::new(mad) });
    }

    fn deliver(&mut self, to: usize, path: Path, mad: &Mad) {
        let now = self.now;
        let foreign = path.dgid == ELSEWHERE;
        let Some(machine) = &mut self.processes[to].machine else { return };
        let before = (foreign && !self.foreigners).then(|| format!("{machine:?}"));
        machine.receive(now, &path, mad);
        if let Some(before) = before {
            while let Some(output) = machine.next_output() {
                assert!(matches!(output, Output::Send { path, .. } if path.dgid == ELSEWHERE), "{output:?}");
            }
            assert_eq!(format!("{machine:?}"), before, "who has nothing to do with it changes something");
        }
        self.drain(to);
    }

    fn hear(&mut self, process: usize, event: Event) {
        self.say(|| format!("process {process} hears {}", brief_event(&event)));
        let conn = event.conn();
        let incarnation = self.processes[process].incarnation;
        match &event {
            Event::Request { path, req, .. } => {
                let attempt = if path.dgid == ELSEWHERE {
                    None
                } else {
                    let name = *req.private_data.first_chunk().expect("a name");
                    Some(self.requested(process, conn, u64::from_be_bytes(name) as usize, req.local_comm_id, &event))
                };
                let end = End::new(Stage::Requested, attempt.map(|(attempt, _)| attempt), 0);
                let end = End { other: attempt.map(|(_, other)| other), ..end };
                assert!(self.processes[process].ends.insert(conn, end).is_none(), "an identifier twice");
            }
            Event::SidrRequest { path, req, .. } => {
                let name = u64::from_be_bytes(*req.private_data.first_chunk().expect("a name")) as usize;
                let attempt = if path.dgid == ELSEWHERE { None } else { Some(name) };
                let end = End::new(Stage::SidrRequested, attempt, 0);
                assert!(self.processes[process].ends.insert(conn, end).is_none(), "an identifier twice");
            }
            _ => self.hear_of(process, conn, &event),
        }
        let end = &self.processes[process].ends[&conn];
        // An identifier that waits for others needs nothing of the program.
        if !matches!(end.stage, Stage::Asked | Stage::Granted | Stage::Ending | Stage::SidrAsked) {
            let at = self.soon(2 * SECOND);
            self.at(at, Happening::Act { process, incarnation, conn });
        }
    }

    /// A request has come: which attempt it is of, and the client.
    fn requested(
        &mut self,
        process: usize,
        conn: CommId,
        number: usize,
        client: CommId,
        event: &Event,
    ) -> (usize, (usize, u32, CommId)) {
        let Event::Request { req, .. } = event else { unreachable!() };
        let attempt = &mut self.attempts[number];
        attempt.served.insert(conn, self.processes[process].incarnation);
        assert_eq!((attempt.server, attempt.qpn, attempt.psn), (process, req.local_qpn, req.starting_psn));
        assert!(!attempt.was_up, "attempt {number}, which was a connection, asks again: {conn:#x}");
        let again = |end: &&End| end.attempt == Some(number) && !end.is_client && end.stage != Stage::Over;
        let twice = self.processes[process].ends.values().find(again);
        assert!(twice.is_none(), "attempt {number} asks twice: {conn:#x}, {twice:?}");
        (number, (attempt.client.0, attempt.client.1, client))
    }

    fn hear_of(&mut self, process: usize, conn: CommId, event: &Event) {
        let end = self.processes[process].ends.get_mut(&conn).expect("an identifier of the program");
        let before = end.stage;
        end.hear(event);
        let end = end.clone();
        match event {
            Event::Reply { rep, .. } => {
                let attempt = &self.attempts[end.attempt.expect("own")];
                let server = attempt.server;
                let key = (server, attempt.served[&rep.local_comm_id], rep.local_comm_id);
                // The other end has granted it, with what is here, if it is still there.
                if let Some(other) = self.processes[server].ends.get(&rep.local_comm_id)
                    && other.attempt == end.attempt
                {
                    assert!(matches!(other.stage, Stage::Granted | Stage::Over), "{other:?}");
                    assert_eq!((other.qpn, rep.local_ca_guid), (rep.local_qpn, guid(self.processes[server].host)));
                }
                self.processes[process].ends.get_mut(&conn).expect("it").other = Some(key);
            }
            Event::Established { .. } => {
                self.tally.established += 1;
                if let Some(attempt) = end.attempt {
                    self.attempts[attempt].was_up = true;
                }
            }
            Event::Rejected { .. } => {
                self.tally.rejected += 1;
                assert!(before != Stage::Up || end.is_client || self.tally.killed > 0, "nobody has ended it: {end:?}");
            }
            Event::Unreachable { .. } => {
                self.tally.unreachable += 1;
                if before == Stage::Granted
                    && let Some(attempt) = end.attempt
                {
                    self.attempts[attempt].withdrawn = true;
                }
            }
            Event::Disconnected { .. } if before == Stage::Up => {
                assert!(self.tally.killed > 0 || self.tally.stale > 0, "nobody has ended it: {end:?}");
            }
            _ => {}
        }
    }

    fn destroy(&mut self, process: usize, conn: CommId) {
        let now = self.now;
        let Some(end) = self.processes[process].ends.remove(&conn) else { return };
        self.say(|| format!("process {process} destroys {conn:#x}, {:?}", end.stage));
        if let (Stage::Granted | Stage::Requested, Some(attempt)) = (end.stage, end.attempt) {
            self.attempts[attempt].withdrawn = true;
        }
        let taken = &mut self.processes[process];
        if end.qpn != 0 {
            taken.free.push(end.qpn);
        }
        taken.machine.as_mut().expect("a process").destroy(now, conn).expect("an identifier");
        self.drain(process);
    }

    /// A program does something with an identifier, if its knowledge allows anything.
    fn act(&mut self, process: usize, conn: CommId) {
        let now = self.now;
        let Some(end) = self.processes[process].ends.get(&conn).cloned() else { return };
        let choice = self.random.between(0, 999);
        self.say(|| format!("process {process} acts on {conn:#x}, {:?}: {choice}", end.stage));
        let granted = self.qpn(process);
        let host = self.processes[process].host;
        let exponent = self.random.between(14, 18) as u8;
        let machine = self.processes[process].machine.as_mut().expect("an incarnation");
        let next = match (end.stage, choice) {
            (Stage::Requested, 0..700) => {
                let params = RepParams {
                    ca_guid: guid(host),
                    qpn: granted,
                    starting_psn: granted,
                    target_ack_delay: 10,
                    ..RepParams::default()
                };
                machine.accept(now, conn, &params).expect("is requested");
                Stage::Granted
            }
            (Stage::Requested, 700..800) | (Stage::Replied, 850..920) => {
                machine.reject(now, conn, reason::CONSUMER_DEFINED, b"", b"").expect("is not established");
                Stage::Over
            }
            (Stage::Requested, 800..870) | (Stage::Replied, 920..960) => {
                machine.mra(now, conn, exponent, b"").expect("is asked");
                end.stage
            }
            (Stage::Requested, 870..940) => {
                machine.prepare_mra(now, conn, exponent, b"").expect("is asked");
                end.stage
            }
            (Stage::Replied, 0..850) => {
                machine.ready(now, conn, b"").expect("is granted");
                Stage::Up
            }
            (Stage::Up, 0..500) => {
                // A stale connection is being ended already.
                let ended = machine.disconnect(now, conn, b"");
                assert!(ended.is_ok() || self.tally.stale > 0, "is established: {end:?}");
                Stage::Ending
            }
            // Stays to the end.
            (Stage::Up, 500..800) => end.stage,
            (Stage::AskedToEnd, 0..700) => {
                // A peer that is gone needs no answer.
                let _ = machine.disconnect(now, conn, b"");
                Stage::Over
            }
            (Stage::SidrRequested, 0..800) => {
                let params = SidrRepParams { qpn: granted, qkey: 7, ..SidrRepParams::default() };
                machine.sidr_reply(now, conn, &params).expect("is asked");
                Stage::Over
            }
            _ => return self.destroy(process, conn),
        };
        let known = self.processes[process].ends.get_mut(&conn).expect("it");
        known.stage = next;
        if next == Stage::Granted {
            known.qpn = granted;
        }
        if end.stage == Stage::Replied && next == Stage::Up && self.random.permille(600) {
            let (to, incarnation, conn) = end.other.expect("granted");
            if !self.random.permille(self.lost) {
                let at = self.soon(LATEST);
                self.at(at, Happening::Data { to, incarnation, conn });
            }
        }
        if !matches!(next, Stage::Granted | Stage::Ending) && (next, end.stage) != (Stage::Up, Stage::Up) {
            let (incarnation, at) = (self.processes[process].incarnation, self.soon(2 * SECOND));
            self.at(at, Happening::Act { process, incarnation, conn });
        }
        self.drain(process);
    }

    /// All that was asked is answered, and of each connection both ends are there, or none.
    fn check_agreement(&self) {
        for (number, process) in self.processes.iter().enumerate() {
            for (conn, end) in &process.ends {
                let what = || format!("{conn:#x} of process {number}: {end:?}");
                assert!(matches!(end.stage, Stage::Up | Stage::Over), "waits: {}", what());
                // An address elsewhere may have a connection too, by guessing well.
                let (Stage::Up, Some(attempt)) = (end.stage, end.attempt) else { continue };
                let attempt = &self.attempts[attempt];
                let (other, incarnation, other_conn) = end.other.expect("a connection");
                let there = &self.processes[other];
                if there.incarnation != incarnation {
                    assert!(there.host != process.host, "is connected with the dead: {}", what());
                    continue;
                }
                let up = there.ends.get(&other_conn).filter(|end| end.stage == Stage::Up);
                if up.is_none() {
                    assert!(attempt.short || attempt.withdrawn && end.is_client, "alone: {}", what());
                    continue;
                }
                let pair = up.and_then(|end| end.other);
                assert_eq!(pair, Some((number, process.incarnation, *conn)), "another's: {}", what());
            }
        }
    }
}

fn brief(mad: &Mad) -> String {
    let (header, message) = parse(mad).expect("a MAD");
    let words = format!("{message:?}");
    let cut = words.find("private_data").unwrap_or(words.len());
    format!("{:#x} {}", header.tid, &words[..cut.min(160)])
}

fn brief_event(event: &Event) -> String {
    let words = format!("{event:?}");
    words[..words.len().min(160)].to_owned()
}
