//! A window with its processes in virtual time: what a seed decides, what happens to them, and what must hold.

use crate::process::{Process, Rules, Tally};
use crate::random::Random;
use crate::scribbler::Scribbler;
use crate::simulated::{Plan, World};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use vervain_window::pairs::block::{self, MTU};
use vervain_window::pairs::rendezvous::PeerId;
use vervain_window::{CELL, GRANULE, Layout, PROCESSES, PutDevice, REST_MS};

/// Processes of a node at most.
const MOST: u64 = 3;
/// Steps after which a stall is over.
const STALL: u64 = 100;
/// Steps in which all that is wanted must come up, and all that was sent must be taken, once nothing goes wrong any
/// more.
const PATIENCE: u64 = 40_000;

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub steps: u64,
    pub deaths: u64,
    pub scribbled: u64,
    pub tally: Tally,
}

impl vervain_seeds::Outcome for Outcome {
    fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.deaths += other.deaths;
        self.scribbled += other.scribbled;
        self.tally.add(&other.tally);
    }
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.pairs += other.pairs;
        self.full += other.full;
        self.ends += other.ends;
    }
}

pub struct Fabric {
    world: World,
    random: Random,
    rules: Rules,
    plan: Plan,
    nodes: u32,
    processes: Vec<Process>,
    scribblers: Vec<Scribbler>,
    /// Steps in which things go wrong; and how seldom each does.
    busy: u64,
    deaths: u64,
    stops: u64,
    stalls: u64,
    /// Those who have died and come again later, with the step.
    unborn: Vec<(u64, u32, BTreeSet<PeerId>)>,
    outcome: Outcome,
    print: bool,
}

impl Fabric {
    pub fn new(seed: u64, print: bool) -> Fabric {
        let mut random = Random::new(seed);
        let nodes = 2 + random.up_to(4).min(random.up_to(4)) as u32;
        let delay = random.one_of(&[0, 0, 0, 1, 2, 3, 4, 6, 10]);
        let plan =
            Plan { delay, torn_words: random.one_in(2), kernel_each: delay > 0 || random.one_in(3), steps_per_ms: 1 };
        let world = World::new(Layout::new(nodes, u64::from(nodes) << 25).expect("a layout"), plan, random.word());
        let hostile = (0..nodes).filter(|node| *node > 0 && nodes > 2 && random.one_in(6));
        let hostile = hostile.flat_map(|node| (0..MOST as u32).map(move |process| PeerId { node, process })).collect();
        // All that is under way in a channel has come by then: a full ring and what was told of it.
        let rest_steps = 500 + 400 * delay + 4 * STALL;
        let rules = Rules {
            hostile,
            // Fewer than a ring has slots, or several laps.
            packets: random.one_of(&[40, 40, 40, 250]),
            usual: random.one_of(&[8, 300, 1000]),
            seldom: random.one_of(&[100, 4096, MTU.into(), 2000]),
            ns: random.one_of(&[50_000, 500_000, 2_000_000]),
            rest_ns: REST_MS * 1_000_000 / rest_steps,
        };
        let mut fabric = Fabric {
            world,
            rules,
            plan,
            nodes,
            processes: Vec::new(),
            scribblers: Vec::new(),
            busy: 200 + random.up_to(1500),
            deaths: random.one_of(&[0, 100, 300, 1000]),
            stops: random.one_of(&[0, 50, 300]),
            // A put that is visible at once cannot be held up.
            stalls: if delay == 0 { 0 } else { random.one_of(&[0, 100, 300]) },
            unborn: Vec::new(),
            outcome: Outcome::default(),
            random,
            print,
        };
        for node in 0..nodes {
            for _ in 0..1 + fabric.random.up_to(MOST - 1).min(fabric.random.up_to(MOST - 1)) {
                fabric.start(node, BTreeSet::new());
            }
        }
        let ids: Vec<_> = fabric.processes.iter().map(|process| process.id).collect();
        for i in 0..ids.len() {
            let wants = ids.iter().copied().filter(|id| *id != ids[i] && fabric.random.one_in(2)).collect();
            fabric.processes[i].wants = wants;
        }
        fabric
    }

    fn start(&mut self, node: u32, wants: BTreeSet<PeerId>) {
        let device = self.world.device(node).expect("a node");
        let (world, rest_ns) = (self.world.clone(), self.rules.rest_ns);
        let clock = Box::new(move || world.now() * rest_ns);
        let mut process = Process::new(device, &self.rules, clock);
        process.wants = wants;
        self.say(|| format!("{:?} comes as {}", process.id, process.incarnation()));
        if self.rules.hostile.contains(&process.id) {
            self.scribblers.push(Scribbler::new(&process));
        }
        self.processes.push(process);
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.print {
            println!("{:>6}  {}", self.world.now(), what());
        }
    }

    pub fn now(&self) -> u64 {
        self.world.now()
    }

    pub fn run(&mut self) -> Outcome {
        self.say(|| format!("{} nodes, {:?}, hostile: {:?}", self.nodes, self.plan, self.rules.hostile));
        while self.now() < self.busy {
            self.go_wrong();
            self.step(false);
        }
        self.come_right();
        self.wait_while(|fabric| fabric.lacks().or_else(|| fabric.errs()));
        // Else there is always something under way.
        self.processes.iter_mut().for_each(|process| process.is_quiet = true);
        self.wait_while(|fabric| fabric.lacks().or_else(|| fabric.waits()));
        self.check_at_rest();
        self.outcome.steps = self.now();
        let tallies: Vec<_> = self.processes.iter().map(|process| process.tally).collect();
        tallies.iter().for_each(|tally| self.outcome.tally.add(tally));
        self.outcome
    }

    /// Goes on while there is something to say of what has not come about.
    fn wait_while(&mut self, wrong: impl Fn(&mut Self) -> Option<String>) {
        let end = self.now() + PATIENCE;
        while let Some(what) = wrong(self) {
            if self.now() >= end {
                self.processes.iter().for_each(|process| self.say(|| format!("{process:?}")));
                panic!("{what}");
            }
            self.step(true);
        }
    }

    fn step(&mut self, all: bool) {
        self.world.step();
        let now = self.now();
        for process in &mut self.processes {
            if process.stopped <= now && (all || self.random.one_in(2)) {
                process.act(now, all, &self.rules, &mut self.random);
            }
        }
        for scribbler in &mut self.scribblers {
            let process = self.processes.iter().find(|process| process.id == scribbler.id);
            if let Some(process) = process.filter(|_| self.random.one_in(4)) {
                self.outcome.scribbled += scribbler.scribble(process, &self.processes, &mut self.random);
            }
        }
        if all || now.is_multiple_of(8) {
            self.check();
        }
    }

    fn happens(&mut self, seldom: u64) -> bool {
        seldom > 0 && self.random.one_in(seldom)
    }

    fn go_wrong(&mut self) {
        let now = self.now();
        if self.happens(self.deaths) && !self.processes.is_empty() && self.outcome.deaths < 8 {
            let victim = self.random.up_to(self.processes.len() as u64 - 1) as usize;
            self.kill(victim);
        }
        if self.happens(self.deaths * 8) && self.outcome.deaths < 8 {
            // A machine with all its processes.
            let node = self.random.up_to(u64::from(self.nodes) - 1) as u32;
            self.say(|| format!("node {node} is gone"));
            self.world.lose(node);
            while let Some(victim) = self.processes.iter().position(|process| process.id.node == node) {
                self.kill(victim);
            }
            self.world.find(node);
        }
        if self.happens(self.stops) && !self.processes.is_empty() {
            let victim = self.random.up_to(self.processes.len() as u64 - 1) as usize;
            self.processes[victim].stopped = now + self.random.up_to(4 * STALL);
        }
        if self.happens(self.stalls) {
            let node = self.random.up_to(u64::from(self.nodes) - 1) as u32;
            self.world.stall(node, self.random.up_to(STALL));
        }
        while let Some(i) = self.unborn.iter().position(|(at, ..)| *at <= now) {
            let (_, node, wants) = self.unborn.swap_remove(i);
            self.start(node, wants);
        }
    }

    fn kill(&mut self, victim: usize) {
        let process = self.processes.swap_remove(victim);
        self.say(|| format!("{:?} dies", process.id));
        process.device.kill();
        self.outcome.deaths += 1;
        self.outcome.tally.add(&process.tally);
        self.scribblers.retain(|scribbler| scribbler.id != process.id);
        if !self.random.one_in(4) {
            let at = self.now() + self.random.one_of(&[0, 1, 10, 200]);
            self.unborn.push((at, process.id.node, process.wants.clone()));
        }
    }

    /// Nothing goes wrong any more; whoever is left talks to whom it wants.
    fn come_right(&mut self) {
        for (_, node, wants) in std::mem::take(&mut self.unborn) {
            self.start(node, wants);
        }
        while let Some(hostile) = self.processes.iter().position(|process| self.rules.hostile.contains(&process.id)) {
            self.kill(hostile);
        }
        self.unborn.clear();
        for process in &mut self.processes {
            process.stopped = 0;
            process.links.values_mut().for_each(|link| link.budget += 3);
        }
        self.say(|| "nothing goes wrong any more".to_owned());
    }

    /// The processes that can have a pair with each other.
    fn couples(&self) -> impl Iterator<Item = (&Process, &Process)> {
        let honest = self.processes.iter().filter(|process| !self.rules.hostile.contains(&process.id));
        honest.clone().flat_map(move |a| honest.clone().filter(|b| a.id != b.id).map(move |b| (a, b)))
    }

    /// The goals that are not reached yet.
    fn lacks(&self) -> Option<String> {
        for (a, b) in self.couples() {
            let (ab, ba) = (a.links.get(&b.id), b.links.get(&a.id));
            let between = || format!("between {:?} and {:?}", a.id, b.id);
            let (Some(ab), Some(ba)) = (ab, ba) else {
                let is_one =
                    [ab, ba].iter().flatten().any(|link| [a, b].iter().any(|p| p.incarnation() == link.incarnation));
                if is_one || a.wants.contains(&b.id) || b.wants.contains(&a.id) {
                    return Some(format!("no pair {}", between()));
                }
                continue;
            };
            if (ab.theirs, ab.own, ab.incarnation, ba.incarnation)
                != (ba.own, ba.theirs, b.incarnation(), a.incarnation())
            {
                return Some(format!("no common pair {}", between()));
            }
            if ab.budget > 0 || ab.out.sent() != ba.taken || ab.out.taken() != ba.taken {
                return Some(format!("{} sent, {} taken {}", ab.out.sent(), ba.taken, between()));
            }
        }
        None
    }

    /// Processes that take a dead peer for a living one, or the other way round.
    fn errs(&self) -> Option<String> {
        let lives = |peer, incarnation| self.processes.iter().any(|p| p.id == peer && p.incarnation() == incarnation);
        let mut links = self.processes.iter().flat_map(|process| process.links.iter().map(move |link| (process, link)));
        let wrong = links.find(|(_, (peer, link))| lives(**peer, link.incarnation) == link.is_silent);
        wrong.map(|(process, (peer, link))| {
            let what = if link.is_silent { "dead" } else { "alive" };
            format!("{:?} holds {peer:?} for {what}", process.id)
        })
    }

    /// Processes that wait for an answer although all peers that they have asked are there.
    fn waits(&mut self) -> Option<String> {
        let there: BTreeSet<_> = self.processes.iter().map(|process| process.id).collect();
        let asking = self.processes.iter_mut().filter(|process| process.wants.is_subset(&there));
        let mut waits = asking.filter_map(|process| process.rendezvous.announce_again(0).map(|_| process.id));
        let waits = waits.next().map(|id| format!("{id:?} waits for an answer"));
        let asks_dead = self.processes.iter().any(|process| !process.wants.is_subset(&there));
        let is_moving = self.world.is_moving() && !asks_dead || self.processes.iter().any(|p| p.bell.is_rung());
        waits.or_else(|| is_moving.then(|| "what was put is not all visible".to_owned()))
    }

    /// Checks the invariants of any time.
    fn check(&self) {
        for (a, b) in self.couples() {
            let (Some(ab), Some(ba)) = (a.links.get(&b.id), b.links.get(&a.id)) else { continue };
            if ab.incarnation != b.incarnation() || ba.incarnation != a.incarnation() || ab.theirs != ba.own {
                continue;
            }
            let (sent, taken) = (ab.out.sent(), ba.taken);
            assert!(
                sent - taken <= block::SLOTS,
                "{:?} overruns the ring at {:?}: {sent} sent, {taken} taken",
                a.id,
                b.id
            );
            assert!(ab.out.taken() <= taken, "{:?} has heard of {} taken by {:?}", a.id, ab.out.taken(), b.id);
        }
        let peers = u64::from(self.nodes) * MOST;
        // A block each and those that rest, a ring for long messages each and those that rest.
        let most = peers * (9 * block::LEN / GRANULE + 1 + 3 * block::LONG_BYTES / GRANULE);
        for process in &self.processes {
            assert!(process.memory.granules() as u64 <= most, "{:?} has claimed too much", process.id);
        }
    }

    /// Checks the invariants of the end, when nothing moves any more.
    fn check_at_rest(&mut self) {
        // A process whose bell is not rung has nothing to see.
        let is_moving = self.world.is_moving();
        for process in self.processes.iter_mut().filter(|_| !is_moving) {
            let is_rung = process.bell.is_rung();
            let with = process.meet(true);
            // A scribbler does not always ring.
            let honest = with.iter().find(|peer| !self.rules.hostile.contains(peer));
            assert!(is_rung || honest.is_none(), "{:?} was not woken up by {honest:?}", process.id);
        }
        assert!(is_moving || !self.world.is_moving() || !self.rules.hostile.is_empty(), "somebody was not woken up");
        // Nobody has written where nobody is, but where one that is not believed has named it.
        for node in (0..self.nodes).filter(|node| !self.rules.hostile.contains(&PeerId { node: *node, process: 0 })) {
            let device = self.world.device(node).expect("a node");
            let (facts, region) = (device.facts(), device.own());
            let is_clean =
                |at: u64, len: u64| (at..at + len).step_by(8).all(|at| region.word(at).load(Ordering::Relaxed) == 0);
            assert!(is_clean(facts.layout.region_len() - GRANULE, GRANULE), "the end of region {node} is written");
            for door in 0..MOST as u32 {
                for writers in 0..self.nodes {
                    let cells = u64::from(PROCESSES) - MOST;
                    let at = facts.layout.door(door) + (u64::from(writers * PROCESSES) + MOST) * CELL;
                    assert!(is_clean(at, cells * CELL), "cells of nobody are written in region {node}");
                }
            }
        }
    }
}
