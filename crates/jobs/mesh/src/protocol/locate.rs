//! Registration with the leader of the own block, and lookups with those of others.

use std::time::Instant;

use super::directory::{Directory, Known, leader_of};
use super::message::{Key, Message};
use super::repeat::Repeat;
use super::wants::Stage;
use super::{Fabric, Pool};
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
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused)
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Asked(_, repeat) => Some(repeat.next()),
            _ => None,
        }
    }
}

/// Lookups leave by the first port.
const PORT: usize = 0;

impl<F: Fabric> Pool<F> {
    /// The job's key: from now on datagrams are heard and sent.
    pub fn set_key(&mut self, key: Key) {
        self.key = Some(key);
    }

    /// Registers with the leader of the own block, which is there.
    pub fn introduce(&mut self, now: Instant, leader: Doors) {
        let home = leader_of(self.config.rank, self.config.block);
        self.known.learn_home(home, leader);
        if self.leads(home) {
            let (rank, doors) = (self.config.rank, self.config.doors);
            match self.register(rank, doors) {
                Some(true) => self.registration = Registration::Done,
                _ => self.refuse(),
            }
        } else {
            let door = leader.of(0);
            self.registration = Registration::Asked(door, Repeat::new(now, &mut self.rng));
            self.say(PORT, &door, Message::Register { doors: self.config.doors });
        }
        self.settle(now);
    }

    /// Returns true if this rank is in the directory.
    pub fn registered(&self) -> bool {
        matches!(self.registration, Registration::Done)
    }

    fn leads(&self, leader: u32) -> bool {
        leader == self.config.job_rank
    }

    fn register(&mut self, rank: u32, doors: Doors) -> Option<bool> {
        let entered = self.directory.as_mut()?.register(rank, doors);
        if entered == Some(true) {
            self.wants.found(rank, doors);
        }
        entered
    }

    pub(super) fn on_register(&mut self, port: usize, from: u32, door: Door, doors: Doors) {
        match self.register(from, doors) {
            Some(true) => self.say(port, &door, Message::Registered),
            Some(false) => self.say(port, &door, Message::Refused),
            None => {}
        }
    }

    fn asked(&self, door: Door) -> bool {
        matches!(self.registration, Registration::Asked(asked, _) if asked == door)
    }

    pub(super) fn registered_by(&mut self, door: Door) {
        if self.asked(door) {
            self.registration = Registration::Done;
        }
    }

    pub(super) fn refused(&mut self, door: Door) {
        if self.asked(door) {
            self.refuse();
        }
    }

    fn refuse(&mut self) {
        self.registration = Registration::Refused;
        let rank = self.config.rank;
        self.fail(rank, 0, Error::new(format!("two processes of the job say that they are rank {rank}")));
    }

    pub(super) fn repeat_registration(&mut self, now: Instant) {
        let Registration::Asked(door, repeat) = &mut self.registration else { return };
        if !repeat.is_due(now, &mut self.rng) {
            return;
        }
        if repeat.is_silent(now, self.config.give_up) {
            let leader = leader_of(self.config.rank, self.config.block);
            let sentence = format!(
                "process {leader} of the job, where rank {} registers, has not answered for {:?}",
                self.config.rank, self.config.give_up
            );
            self.registration = Registration::Refused;
            return self.fail(self.config.rank, 0, Error::new(sentence));
        }
        let door = *door;
        self.say(PORT, &door, Message::Register { doors: self.config.doors });
    }

    pub(super) fn on_lookup(&mut self, port: usize, door: Door, rank: u32) {
        if let Some(doors) = self.directory.as_ref().and_then(|directory| directory.find(rank)) {
            self.say(port, &door, Message::Found { rank, doors });
        }
    }

    pub(super) fn on_found(&mut self, rank: u32, doors: Doors) {
        // Only what was asked.
        if self.wants.found(rank, doors) {
            self.known.learn(rank, doors);
        }
    }

    /// The job rank of a leader whose address the owner is to fetch; of leaders only.
    pub fn wanted_leader(&mut self) -> Option<u32> {
        self.known.wanted_leader()
    }

    /// Goes on with those who waited for the leader's address.
    pub fn leader_found(&mut self, now: Instant, leader: u32, found: Result<Doors>) {
        self.answer_askers(leader, found.as_ref().ok().copied().filter(Doors::is_possible));
        let found = found.and_then(|doors| {
            let is_possible = doors.is_possible();
            is_possible.then_some(doors).ok_or_else(|| Error::new("it is no address"))
        });
        match found {
            Ok(doors) => {
                self.known.learn_leader(leader, doors);
                self.ask_teller(leader);
            }
            Err(error) => {
                self.lose_block(leader, &error);
                self.lose_teller(leader, &error);
            }
        }
        self.settle(now);
    }

    /// Gives up all who are looked for in the leader's block.
    pub(super) fn lose_block(&mut self, leader: u32, error: &Error) {
        self.known.fetched(leader);
        let block = self.config.block;
        let lost =
            self.wants.remove_all(|want| matches!(want.stage, Stage::New) && leader_of(want.rank, block) == leader);
        for want in lost {
            let sentence = format!("rank {} cannot be found, for the address of process {leader}: {error}", want.rank);
            self.fail(want.rank, want.color, Error::new(sentence));
        }
    }

    /// Looks for those that nobody has looked for yet.
    pub(super) fn locate(&mut self, now: Instant) {
        if self.key.is_none() || matches!(self.registration, Registration::Not) {
            return;
        }
        let (own, block, directory) = (self.config.job_rank, self.config.block, self.directory.as_ref());
        let mut lookups = Vec::new();
        for want in self.wants.active().filter(|want| matches!(want.stage, Stage::New)) {
            let leader = leader_of(want.rank, block);
            if want.rank == self.config.rank {
                want.stage = Stage::Located(self.config.doors);
            } else if let Some(doors) = find(&self.known, directory, want.rank) {
                want.stage = Stage::Located(doors);
            } else if leader == own {
                // It will register here.
                want.stage = Stage::Locating(Repeat::new(now, &mut self.rng));
            } else if let Some(doors) = self.known.leader(leader) {
                want.stage = Stage::Locating(Repeat::new(now, &mut self.rng));
                lookups.push((want.rank, doors.of(0)));
            }
        }
        for (rank, door) in lookups {
            self.say(PORT, &door, Message::Lookup { rank });
        }
    }

    pub(super) fn repeat_lookups(&mut self, now: Instant) {
        let (mut again, mut silent) = (Vec::new(), Vec::new());
        for want in self.wants.active() {
            if let Stage::Resting(doors, until) = want.stage
                && until <= now
            {
                want.stage = Stage::Located(doors);
            }
            if let Stage::Locating(repeat) = &mut want.stage
                && repeat.is_due(now, &mut self.rng)
            {
                let list = if repeat.is_silent(now, self.config.give_up) { &mut silent } else { &mut again };
                list.push((want.rank, want.color));
            }
        }
        for (rank, _) in again {
            let leader = leader_of(rank, self.config.block);
            if self.leads(leader) {
                continue;
            }
            if let Some(doors) = self.known.leader(leader) {
                self.say(PORT, &doors.of(0), Message::Lookup { rank });
            }
        }
        for (rank, color) in silent {
            self.wants.remove(rank, color);
            let sentence = format!("rank {rank} is not known where it should be, after {:?}", self.config.give_up);
            self.fail(rank, color, Error::new(sentence));
        }
    }
}

fn find(known: &Known, directory: Option<&Directory>, rank: u32) -> Option<Doors> {
    known.find(rank).or_else(|| directory?.find(rank))
}
