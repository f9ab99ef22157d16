//! Machines, the network between their doors, and what RC carries by open connections. Time is virtual, in
//! microseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use vervain_mesh::protocol::{Config, Pool, decode, leader_of};
use vervain_mesh::{Error, Event, Link};

use crate::fabric::{End, Fake, behind, doors, whose};

pub const KEY: [u8; 16] = [0x5a; 16];
pub const EPOCH: u32 = 3;

/// How the network treats datagrams, and what the machines are like.
#[derive(Debug, Clone)]
pub struct Setting {
    pub seed: u64,
    pub machines: u32,
    pub colors: u32,
    pub block: u32,
    pub connections: usize,
    /// Of 100 datagrams, those that are lost.
    pub lost: u32,
    pub repeated: u32,
    /// Of 100 datagrams, those that take much longer than others.
    pub late: u32,
    /// The longest time that a connection is held after its messages.
    pub hold: u64,
    /// Wishes of each machine, and how many it has under way at once.
    pub jobs: u32,
    pub at_once: usize,
    /// Prints what happens.
    pub verbose: bool,
}

/// The action of a machine by a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// RDMA: the peer's software does not see it.
    Write,
    /// A message.
    Command,
    /// A message that is answered by one, for which the sender holds the connection.
    Question,
    /// An answer to it.
    Answer,
}

/// A message under way.
#[derive(Debug, Clone, Copy)]
struct Parcel {
    kind: Kind,
    from: usize,
    link: Link,
    ends: (End, End),
}

#[derive(Debug)]
enum Action {
    Datagram(usize, usize, Vec<u8>),
    Progress(usize),
    LeaderFound(usize, u32),
    /// RC has brought it.
    Arrive(Parcel),
    /// The peer's owner polls its completion.
    Receive(Parcel),
    /// The sender's owner polls its completion.
    Complete(Parcel),
    /// The owner answers what it has taken in.
    Reply(usize, Link),
    Release(usize, Link),
    Job(usize),
}

pub struct Machine {
    pub pool: Pool<Fake>,
    /// Wishes that wait for a connection.
    waiting: HashMap<(u32, u32), Vec<Kind>>,
    jobs_left: u32,
    under_way: usize,
    pub done: u32,
    progress_at: Option<u64>,
}

pub struct World {
    pub setting: Setting,
    rng: fastrand::Rng,
    base: Instant,
    pub now: u64,
    turn: u64,
    actions: BinaryHeap<Reverse<(u64, u64)>>,
    bodies: HashMap<u64, Action>,
    pub machines: Vec<Machine>,
    /// Job rank of each rank.
    places_of_ranks: Vec<usize>,
    /// Outstanding work of an end: requests, messages to it, completions that were not polled.
    outstanding: HashMap<End, u32>,
    pub datagrams: u64,
    pub closed: u64,
    pub trace: u64,
}

impl World {
    pub fn new(setting: Setting) -> World {
        let mut rng = fastrand::Rng::with_seed(setting.seed);
        let mut ranks: Vec<u32> = (0..setting.machines).collect();
        rng.shuffle(&mut ranks);
        let mut places_of_ranks = vec![0; ranks.len()];
        ranks.iter().enumerate().for_each(|(machine, rank)| places_of_ranks[*rank as usize] = machine);
        let machines = ranks.iter().zip(0..).map(|(rank, machine)| Machine {
            pool: Pool::new(config(&setting, *rank, machine), Fake::new(machine, setting.seed ^ u64::from(machine))),
            waiting: HashMap::new(),
            jobs_left: setting.jobs,
            under_way: 0,
            done: 0,
            progress_at: None,
        });
        let machines = machines.collect();
        let mut world = World {
            rng,
            base: Instant::now(),
            now: 0,
            turn: 0,
            actions: BinaryHeap::new(),
            bodies: HashMap::new(),
            machines,
            places_of_ranks,
            outstanding: HashMap::new(),
            datagrams: 0,
            closed: 0,
            trace: 0,
            setting,
        };
        for machine in 0..world.machines.len() {
            let begin = world.rng.u64(0..20_000);
            world.after(begin, Action::Job(machine));
        }
        world
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn after(&mut self, delay: u64, action: Action) {
        self.turn += 1;
        self.actions.push(Reverse((self.now + delay, self.turn)));
        self.bodies.insert(self.turn, action);
    }

    /// Does the next thing; false where there is none.
    pub fn step(&mut self) -> bool {
        let Some(Reverse((at, turn))) = self.actions.pop() else { return false };
        self.now = at;
        let action = self.bodies.remove(&turn).expect("each has a body");
        if self.setting.verbose && !matches!(action, Action::Datagram(..) | Action::Progress(_) | Action::Job(_)) {
            println!("{} {action:?}", self.now);
        }
        self.trace = (self.trace ^ at ^ turn << 32).wrapping_mul(0x100_0000_01b3);
        let machine = self.act(action);
        self.attend(machine);
        self.check(machine);
        true
    }

    fn act(&mut self, action: Action) -> usize {
        let now = self.instant();
        match action {
            Action::Datagram(to, port, bytes) => {
                self.machines[to].pool.datagram(now, port, &bytes);
                to
            }
            Action::Progress(machine) => {
                self.machines[machine].progress_at = None;
                machine
            }
            Action::LeaderFound(machine, leader) => {
                let found = doors(leader, self.colors_of(leader));
                self.machines[machine].pool.leader_found(now, leader, Ok(found));
                machine
            }
            Action::Arrive(parcel) => self.arrive(parcel),
            Action::Receive(parcel) => self.receive(parcel),
            Action::Complete(parcel) => self.complete(parcel),
            Action::Reply(machine, link) => {
                self.post(machine, link, Kind::Answer);
                machine
            }
            Action::Release(machine, link) => {
                self.machines[machine].pool.release(link);
                machine
            }
            Action::Job(machine) => {
                self.begin_jobs(machine);
                machine
            }
        }
    }

    fn colors_of(&self, machine: u32) -> u32 {
        colors_of(&self.setting, machine)
    }

    fn begin_jobs(&mut self, machine: usize) {
        let now = self.instant();
        if !self.machines[machine].pool.registered() && self.now < 20_000 {
            let leader = leader_of(self.machines[machine].pool.config().rank, self.setting.block);
            let found = doors(leader, self.colors_of(leader));
            self.machines[machine].pool.set_key(KEY);
            self.machines[machine].pool.introduce(now, found);
        }
        while self.machines[machine].jobs_left > 0 && self.machines[machine].under_way < self.setting.at_once {
            self.machines[machine].jobs_left -= 1;
            self.machines[machine].under_way += 1;
            let (rank, color) = (self.rng.u32(0..self.setting.machines), self.rng.u32(0..self.setting.colors));
            let kind = [Kind::Write, Kind::Command, Kind::Question][self.rng.usize(0..3)];
            match self.machines[machine].pool.find(rank, color) {
                Some(link) => self.begin(machine, link, kind),
                None => {
                    self.machines[machine].waiting.entry((rank, color)).or_default().push(kind);
                    self.machines[machine].pool.want(now, rank, color);
                }
            }
        }
    }

    /// A wish has its connection.
    fn begin(&mut self, machine: usize, link: Link, kind: Kind) {
        self.machines[machine].pool.hold(link);
        if kind == Kind::Question {
            // For the answer.
            self.machines[machine].pool.hold(link);
        }
        self.post(machine, link, kind);
    }

    /// Posts by a connection that is held.
    fn post(&mut self, machine: usize, link: Link, kind: Kind) {
        let ends = self.machines[machine].pool.fabric().connection(link.index).expect("a connection that is held");
        if kind != Kind::Write {
            self.machines[machine].pool.sent(link);
        }
        *self.outstanding.entry(ends.0).or_default() += 1;
        let delay = self.rng.u64(2..2_000);
        self.after(delay, Action::Arrive(Parcel { kind, from: machine, link, ends }));
    }

    fn arrive(&mut self, parcel: Parcel) -> usize {
        let (to, place) = whose(parcel.ends.1.0);
        let there = self.machines[to].pool.fabric().connection(place);
        assert_eq!(there, Some((parcel.ends.1, parcel.ends.0)), "{parcel:?} at {}", self.now);
        if parcel.kind != Kind::Write {
            *self.outstanding.entry(parcel.ends.1).or_default() += 1;
            let delay = self.rng.u64(0..3_000);
            self.after(delay, Action::Receive(parcel));
        }
        let delay = self.rng.u64(1..3_000);
        self.after(delay, Action::Complete(parcel));
        to
    }

    fn receive(&mut self, parcel: Parcel) -> usize {
        let (to, place) = whose(parcel.ends.1.0);
        let pool = &mut self.machines[to].pool;
        let link = pool.link(place).expect("a connection whose completion waits");
        pool.received(link);
        self.finish(parcel.ends.1);
        match parcel.kind {
            Kind::Question => {
                self.machines[to].pool.hold(link);
                let delay = self.rng.u64(0..4_000);
                self.after(delay, Action::Reply(to, link));
            }
            Kind::Answer => self.over(to, link),
            Kind::Command | Kind::Write => {}
        }
        to
    }

    fn complete(&mut self, parcel: Parcel) -> usize {
        self.finish(parcel.ends.0);
        match parcel.kind {
            Kind::Question | Kind::Answer => self.machines[parcel.from].pool.release(parcel.link),
            Kind::Command | Kind::Write => self.over(parcel.from, parcel.link),
        }
        parcel.from
    }

    fn finish(&mut self, end: End) {
        *self.outstanding.get_mut(&end).expect("counted") -= 1;
    }

    /// A wish is fulfilled.
    fn over(&mut self, machine: usize, link: Link) {
        let delay = self.rng.u64(0..=self.setting.hold);
        self.after(delay, Action::Release(machine, link));
        self.machines[machine].under_way -= 1;
        self.machines[machine].done += 1;
        let delay = self.rng.u64(0..2_000);
        self.after(delay, Action::Job(machine));
    }

    /// The owner's work after each call.
    fn attend(&mut self, machine: usize) {
        let now = self.instant();
        let mut rounds = 0;
        let deadline = loop {
            let deadline = self.machines[machine].pool.progress(now);
            while let Some(event) = self.machines[machine].pool.next_event() {
                self.event(machine, event);
            }
            if !self.machines[machine].pool.is_due() {
                break deadline;
            }
            rounds += 1;
            assert!(rounds < 1000, "machine {machine} is due for ever");
        };
        while let Some(leader) = self.machines[machine].pool.wanted_leader() {
            let delay = self.rng.u64(0..5_000);
            self.after(delay, Action::LeaderFound(machine, leader));
        }
        self.send_all(machine);
        let Some(deadline) = deadline else { return };
        // Rounded up: to the microsecond after it.
        let at =
            u64::try_from(deadline.duration_since(self.base).as_nanos().div_ceil(1000)).expect("soon").max(self.now);
        if self.machines[machine].progress_at.is_none_or(|before| at < before) {
            self.machines[machine].progress_at = Some(at);
            self.after(at - self.now, Action::Progress(machine));
        }
    }

    fn event(&mut self, machine: usize, event: Event) {
        match event {
            Event::Opened(link) => {
                let pool = &self.machines[machine].pool;
                assert!(pool.is_open(link), "it is not closed before it was seen");
                let hello: [u8; 4] = pool.hello(link).try_into().expect("a hello");
                let peer = pool.peer(link);
                assert_eq!(u32::from_le_bytes(hello), peer.0);
                for kind in self.machines[machine].waiting.remove(&peer).unwrap_or_default() {
                    self.begin(machine, link, kind);
                }
            }
            Event::Closed { .. } => self.closed += 1,
            Event::Failed { rank, color, error } => self.failed(machine, rank, color, &error),
        }
    }

    fn failed(&self, machine: usize, rank: u32, color: u32, error: &Error) {
        panic!("machine {machine}, to {rank} by {color}, at {}: {error}", self.now);
    }

    fn send_all(&mut self, machine: usize) {
        for (_, door, bytes) in std::mem::take(&mut self.machines[machine].pool.fabric_mut().sent) {
            self.datagrams += 1;
            if self.setting.verbose {
                println!("{} {machine} -> {:?} {:?}", self.now, behind(&door), decode(&bytes, &KEY, EPOCH));
            }
            let (to, port) = behind(&door);
            if self.rng.u32(0..100) < self.setting.lost {
                continue;
            }
            let copies = if self.rng.u32(0..100) < self.setting.repeated { 2 } else { 1 };
            for _ in 0..copies {
                let longest = if self.rng.u32(0..100) < self.setting.late { 400_000 } else { 500 };
                let delay = self.rng.u64(5..longest);
                self.after(delay, Action::Datagram(to, port, bytes.clone()));
            }
        }
    }

    /// The invariants of each moment.
    fn check(&mut self, machine: usize) {
        for end in std::mem::take(&mut self.machines[machine].pool.fabric_mut().reset) {
            let left = self.outstanding.remove(&end).unwrap_or(0);
            assert_eq!(left, 0, "{end:?} of machine {machine} is reset at {}", self.now);
        }
        let own = self.machines[machine].pool.config().rank;
        for rank in 0..self.setting.machines {
            let peer = self.places_of_ranks[rank as usize];
            for color in 0..self.setting.colors {
                let there = self.open_end(peer, own, color);
                let (Some((here, to)), Some((theirs, back))) = (self.open_end(machine, rank, color), there) else {
                    continue;
                };
                assert_eq!((to, back), (theirs, here), "ranks {own} and {rank} have different connections open");
            }
        }
    }

    fn open_end(&self, machine: usize, rank: u32, color: u32) -> Option<(End, End)> {
        let pool = &self.machines[machine].pool;
        pool.fabric().connection(pool.find(rank, color)?.index)
    }

    pub fn is_done(&self) -> bool {
        self.machines.iter().all(|machine| machine.done == self.setting.jobs)
    }

    pub fn unfinished(&self) -> VecDeque<String> {
        let jobs = self.machines.iter().enumerate().filter(|(_, machine)| machine.done < self.setting.jobs);
        jobs.map(|(i, m)| format!("machine {i}: {} done, {} under way, waits {:?}", m.done, m.under_way, m.waiting))
            .collect()
    }
}

/// Some have one device less.
fn colors_of(setting: &Setting, machine: u32) -> u32 {
    if machine % 3 == 2 { 1 } else { setting.colors }
}

pub fn config(setting: &Setting, rank: u32, machine: u32) -> Config {
    Config {
        rank,
        size: setting.machines,
        epoch: EPOCH,
        job_rank: machine,
        block: setting.block,
        connections: setting.connections,
        doors: doors(machine, colors_of(setting, machine)),
        colors: colors_of(setting, machine),
        hello: rank.to_le_bytes().to_vec(),
        give_up: Duration::from_secs(30),
        seed: setting.seed.wrapping_mul(31).wrapping_add(u64::from(rank)),
    }
}
