//! Where other leaders are: a rank asks its own leader, and only leaders ask the job's store. What launchers' libraries keep of each
//! process whose values were fetched (libpmix 4.2: 2 KiB) is so kept by few.

use std::time::Instant;

use super::directory::leader_of;
use super::message::Message;
use super::repeat::Repeat;
use super::{Fabric, Pool};
use crate::address::{Door, Doors};
use crate::error::Error;

/// Askers that may wait at a leader; others ask again.
const MOST: usize = 1024;
/// Questions to the leader leave by the first port.
const PORT: usize = 0;

/// Leaders that are looked for.
#[derive(Default)]
pub struct Seeking {
    /// By this rank, from its own leader.
    asked: Vec<(u32, Repeat)>,
    /// By ranks of this leader's block: which one, and where the answer goes.
    askers: Vec<(u32, usize, Door)>,
}

impl Seeking {
    pub fn next_deadline(&self) -> Option<Instant> {
        self.asked.iter().map(|(_, repeat)| repeat.next()).min()
    }
}

impl<F: Fabric> Pool<F> {
    /// Asks the own leader for those that are wanted; a leader's owner is asked.
    pub(super) fn seek_leaders(&mut self, now: Instant) {
        if self.directory.is_some() {
            return;
        }
        while let Some(leader) = self.known.wanted_leader() {
            self.seeking.asked.push((leader, Repeat::new(now, &mut self.rng)));
            self.say_seek(leader);
        }
    }

    fn say_seek(&mut self, leader: u32) {
        // Known since this rank was introduced.
        let home = leader_of(self.config.rank, self.config.block);
        if let Some(doors) = self.known.leader(home) {
            self.say(PORT, &doors.of(0), Message::SeekLeader { leader });
        }
    }

    pub(super) fn repeat_seeking(&mut self, now: Instant) {
        let (mut again, mut silent) = (Vec::new(), Vec::new());
        for (leader, repeat) in &mut self.seeking.asked {
            if repeat.is_due(now, &mut self.rng) {
                let list = if repeat.is_silent(now, self.config.give_up) { &mut silent } else { &mut again };
                list.push(*leader);
            }
        }
        again.into_iter().for_each(|leader| self.say_seek(leader));
        for leader in silent {
            self.seeking.asked.retain(|(there, _)| *there != leader);
            let sentence = format!("this rank's leader has not told it for {:?}", self.config.give_up);
            self.lose_block(leader, &Error::new(sentence));
        }
    }

    pub(super) fn on_seek(&mut self, port: usize, door: Door, leader: u32) {
        if self.directory.is_none() || leader >= self.config.size || leader_of(leader, self.config.block) != leader {
            return;
        }
        let found = if leader == self.config.job_rank { Some(self.config.doors) } else { self.known.leader(leader) };
        if let Some(doors) = found {
            return self.say(port, &door, Message::LeaderFound { leader, doors });
        }
        let asker = (leader, port, door);
        if self.seeking.askers.len() < MOST && !self.seeking.askers.contains(&asker) {
            self.seeking.askers.push(asker);
        }
    }

    /// Answers those who have asked for a leader whose address the owner has fetched, or could not fetch: they ask again.
    pub(super) fn answer_askers(&mut self, leader: u32, doors: Option<Doors>) {
        let all = std::mem::take(&mut self.seeking.askers);
        let (these, others) = all.into_iter().partition(|(wanted, _, _)| *wanted == leader);
        self.seeking.askers = others;
        let these: Vec<(u32, usize, Door)> = these;
        let Some(doors) = doors else { return };
        for (_, port, door) in these {
            self.say(port, &door, Message::LeaderFound { leader, doors });
        }
    }

    pub(super) fn on_leader_found(&mut self, leader: u32, doors: Doors) {
        let before = self.seeking.asked.len();
        self.seeking.asked.retain(|(there, _)| *there != leader);
        // Only what was asked.
        if self.seeking.asked.len() < before {
            self.known.learn_leader(leader, doors);
        }
    }
}
