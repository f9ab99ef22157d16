//! Hosts, processes and time: what happens when, until all that was begun has come to its end.

mod network;
mod programs;

use std::collections::BTreeMap;

use vervain_cm::{CommId, Machine, Mad, Output, Path};
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
