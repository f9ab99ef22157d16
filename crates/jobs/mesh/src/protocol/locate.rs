//! Registration with the leader of the own block, and lookups with those of others.

use std::time::Instant;

use super::directory::{Directory, Known, leader_of};
use super::leaders::Seeking;
use super::message::Message;
use super::node::Node;
use super::repeat::Repeat;
use super::wants::{Stage, Wants};
use super::{Config, Fabric};
use crate::address::{Door, Doors};
use crate::error::{Error, Result};

/// The stage of the registration.
pub enum Registration {
    /// The leader is not known yet.
    Not,
    /// It was asked.
    Asked(Door, Repeat),
    /// This rank is in the directory.
    Done,
    /// It never will be; the owner was told.
    Refused,
}

impl Registration {
    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Asked(_, repeat) => Some(repeat.next()),
            _ => None,
        }
    }
}

/// Lookups leave by the first port.
const PORT: usize = 0;

/// The search for the doors of ranks. In the calls, `wants` are those that wait for them.
pub struct Locator {
    registration: Registration,
    pub(super) directory: Option<Directory>,
    pub(super) known: Known,
    pub(super) seeking: Seeking,
}

impl Locator {
    pub fn new(config: &Config) -> Self {
        let is_leader = leader_of(config.job_rank, config.block) == config.job_rank;
        Self {
            registration: Registration::Not,
            directory: is_leader.then(|| Directory::new(config.job_rank, config.block)),
            known: Known::new(config.connections),
            seeking: Seeking::default(),
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        [self.registration.next_deadline(), self.seeking.next_deadline()].into_iter().flatten().min()
    }

    /// Registers with the leader of the own block, which is there.
    pub fn introduce<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, now: Instant, leader: Doors) {
        let Config { rank, job_rank, block, doors, .. } = node.config;
        let home = leader_of(rank, block);
        self.known.learn_home(home, leader);
        if home == job_rank {
            match self.register(wants, rank, doors) {
                Some(true) => self.registration = Registration::Done,
                _ => self.refuse_rank(node),
            }
        } else {
            let door = leader.of(0);
            self.registration = Registration::Asked(door, Repeat::new(now, &mut node.rng));
            node.say(PORT, &door, Message::Register { doors });
        }
    }

    /// Returns true if this rank is in the directory.
    pub fn registered(&self) -> bool {
        matches!(self.registration, Registration::Done)
    }

    fn register(&mut self, wants: &mut Wants, rank: u32, doors: Doors) -> Option<bool> {
        let entered = self.directory.as_mut()?.register(rank, doors);
        if entered == Some(true) {
            wants.found(rank, doors);
        }
        entered
    }

    pub fn on_register<F: Fabric>(
        &mut self,
        node: &mut Node<F>,
        wants: &mut Wants,
        port: usize,
        (from, door): (u32, Door),
        doors: Doors,
    ) {
        match self.register(wants, from, doors) {
            Some(true) => node.say(port, &door, Message::Registered),
            Some(false) => node.say(port, &door, Message::Refused),
            None => {}
        }
    }

    fn asked(&self, door: Door) -> bool {
        matches!(self.registration, Registration::Asked(asked, _) if asked == door)
    }

    pub fn registered_by(&mut self, door: Door) {
        if self.asked(door) {
            self.registration = Registration::Done;
        }
    }

    pub fn refused<F: Fabric>(&mut self, node: &mut Node<F>, door: Door) {
        if self.asked(door) {
            self.refuse_rank(node);
        }
    }

    fn refuse_rank<F: Fabric>(&mut self, node: &mut Node<F>) {
        let rank = node.config.rank;
        self.refuse(node, format!("two processes of the job say that they are rank {rank}"));
    }

    /// This rank will never be in the directory: the owner gets to know that once.
    pub fn refuse<F: Fabric>(&mut self, node: &mut Node<F>, sentence: String) {
        self.registration = Registration::Refused;
        node.fail(node.config.rank, 0, Error::new(sentence));
    }

    pub fn is_refused(&self) -> bool {
        matches!(self.registration, Registration::Refused)
    }

    pub fn repeat_registration<F: Fabric>(&mut self, node: &mut Node<F>, now: Instant) {
        let Registration::Asked(door, repeat) = &mut self.registration else { return };
        if !repeat.is_due(now, &mut node.rng) {
            return;
        }
        let Config { rank, block, give_up, doors, .. } = node.config;
        if repeat.is_silent(now, give_up) {
            let leader = leader_of(rank, block);
            let sentence =
                format!("process {leader} of the job, where rank {rank} registers, has not answered for {give_up:?}");
            return self.refuse(node, sentence);
        }
        let door = *door;
        node.say(PORT, &door, Message::Register { doors });
    }

    pub fn on_lookup<F: Fabric>(&self, node: &mut Node<F>, port: usize, door: Door, rank: u32) {
        if let Some(doors) = self.directory.as_ref().and_then(|directory| directory.find(rank)) {
            node.say(port, &door, Message::Found { rank, doors });
        }
    }

    pub fn on_found(&mut self, wants: &mut Wants, rank: u32, doors: Doors) {
        // Only what was asked.
        if wants.found(rank, doors) {
            self.known.learn(rank, doors);
        }
    }

    /// Returns true if the owner is to fetch the address of a leader.
    pub fn has_wanted(&self) -> bool {
        self.known.has_wanted()
    }

    /// The job rank of a leader whose address the owner is to fetch; of leaders only.
    pub fn wanted_leader(&mut self) -> Option<u32> {
        self.known.wanted_leader()
    }

    /// Goes on with those who waited for the leader's address.
    pub fn leader_found<F: Fabric>(
        &mut self,
        node: &mut Node<F>,
        wants: &mut Wants,
        leader: u32,
        found: Result<Doors>,
    ) {
        self.answer_askers(node, leader, found.as_ref().ok().copied().filter(Doors::is_possible));
        let found = found.and_then(|doors| {
            let is_possible = doors.is_possible();
            is_possible.then_some(doors).ok_or_else(|| Error::new("it is no address"))
        });
        match found {
            Ok(doors) => {
                self.known.learn_leader(leader, doors);
                self.ask_teller(node, leader);
            }
            Err(error) => {
                self.lose_block(node, wants, leader, &error);
                self.lose_teller(node, wants, leader, &error);
            }
        }
    }

    /// Gives up all who are looked for in the leader's block.
    pub(super) fn lose_block<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, leader: u32, error: &Error) {
        self.known.fetched(leader);
        let block = node.config.block;
        let lost = wants.remove_all(|want| matches!(want.stage, Stage::New) && leader_of(want.rank, block) == leader);
        for want in lost {
            let sentence = format!("rank {} cannot be found, for the address of process {leader}: {error}", want.rank);
            node.fail(want.rank, want.color, Error::new(sentence));
        }
    }

    /// Looks for those that nobody has looked for yet.
    pub fn locate<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, now: Instant) {
        if !node.has_key() || matches!(self.registration, Registration::Not) {
            return;
        }
        let Config { rank: own_rank, job_rank, block, doors: own_doors, .. } = node.config;
        let directory = self.directory.as_ref();
        let mut lookups = Vec::new();
        for want in wants.active().filter(|want| matches!(want.stage, Stage::New)) {
            let leader = leader_of(want.rank, block);
            if want.rank == own_rank {
                want.stage = Stage::Located(own_doors);
            } else if let Some(doors) = find(&self.known, directory, want.rank) {
                want.stage = Stage::Located(doors);
            } else if leader == job_rank {
                // It will register here.
                want.stage = Stage::Locating(Repeat::new(now, &mut node.rng));
            } else if let Some(doors) = self.known.leader(leader) {
                want.stage = Stage::Locating(Repeat::new(now, &mut node.rng));
                lookups.push((want.rank, doors.of(0)));
            }
        }
        for (rank, door) in lookups {
            node.say(PORT, &door, Message::Lookup { rank });
        }
    }

    pub fn repeat_lookups<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, now: Instant) {
        let Config { job_rank, block, give_up, .. } = node.config;
        let (mut again, mut silent) = (Vec::new(), Vec::new());
        for want in wants.active() {
            if let Stage::Resting(doors, until) = want.stage
                && until <= now
            {
                want.stage = Stage::Located(doors);
            }
            if let Stage::Locating(repeat) = &mut want.stage
                && repeat.is_due(now, &mut node.rng)
            {
                let list = if repeat.is_silent(now, give_up) { &mut silent } else { &mut again };
                list.push((want.rank, want.color));
            }
        }
        for (rank, _) in again {
            let leader = leader_of(rank, block);
            if leader == job_rank {
                continue;
            }
            if let Some(doors) = self.known.leader(leader) {
                node.say(PORT, &doors.of(0), Message::Lookup { rank });
            }
        }
        for (rank, color) in silent {
            wants.remove(rank, color);
            let sentence = format!("rank {rank} is not known where it should be, after {give_up:?}");
            node.fail(rank, color, Error::new(sentence));
        }
    }
}

fn find(known: &Known, directory: Option<&Directory>, rank: u32) -> Option<Doors> {
    known.find(rank).or_else(|| directory?.find(rank))
}
