//! The search for other leaders: a rank asks its own leader, a leader asks another one of its group, and one of each
//! group asks the job's store. Launchers' libraries keep memory for good for each process whose values were fetched
//! (libpmix 4.2: 2 KiB), so few ranks fetch values, and each of them few.

use std::time::Instant;

use super::directory::leader_of;
use super::locate::Locator;
use super::message::Message;
use super::node::Node;
use super::repeat::Repeat;
use super::wants::Wants;
use super::{Config, Fabric};
use crate::address::{Door, Doors};
use crate::error::Error;

/// Askers that may wait at a leader; others ask again.
const MOST: usize = 1024;
/// Leaders of a group; the last one has those that are left, too.
const GROUP: u32 = 32;
/// Questions to the leader leave by the first port.
const PORT: usize = 0;

/// The groups of `leaders` leaders: how many there are, at least one.
fn groups(leaders: u32) -> u32 {
    (leaders / GROUP).max(1)
}

/// Leaders of a group: the first one's index, and how many.
fn group(index: u32, leaders: u32) -> (u32, u32) {
    let last = groups(leaders) - 1;
    let group = (index / GROUP).min(last);
    let first = group * GROUP;
    (first, if group == last { leaders - first } else { GROUP })
}

/// The leader that knows the address of `leader` for leader `own`; `own`: it fetches that itself. A leader fetches the
/// addresses of its group, and for the group a share of all others. `size` are the ranks of the job, `block` those of a
/// block.
pub fn teller(own: u32, leader: u32, size: u32, block: u32) -> u32 {
    let leaders = size.div_ceil(block);
    let ((first, count), index) = (group(own / block, leaders), leader / block);
    if (first..first + count).contains(&index) { own } else { (first + index % count) * block }
}

/// Addresses of `leaders` leaders that one of them fetches at most, its own counted.
pub fn fetched(leaders: u32) -> u32 {
    let of = |index| {
        let (_, count) = group(index, leaders);
        count + (leaders - count).div_ceil(count)
    };
    of(0).max(of(leaders - 1))
}

/// Leaders that are looked for.
#[derive(Default)]
pub struct Seeking {
    /// Leaders that this rank looks for, by the one that knows them.
    asked: Vec<(u32, Repeat)>,
    /// By ranks of this leader's block: which one, and where the answer goes.
    askers: Vec<(u32, usize, Door)>,
}

impl Seeking {
    pub fn next_deadline(&self) -> Option<Instant> {
        self.asked.iter().map(|(_, repeat)| repeat.next()).min()
    }
}

impl Locator {
    /// Asks for those that are wanted; of a leader's, those that it is to fetch are left to its owner.
    pub fn seek_leaders<F: Fabric>(&mut self, node: &mut Node<F>, now: Instant) {
        let Config { job_rank, size, block, .. } = node.config;
        let leads = self.directory.is_some();
        let is_told = |leader| !leads || teller(job_rank, leader, size, block) != job_rank;
        while let Some(leader) = self.known.take_wanted(is_told) {
            self.seeking.asked.push((leader, Repeat::new(now, &mut node.rng)));
            self.say_seek(node, leader);
        }
    }

    /// The rank that knows the address of a leader for this one.
    fn teller(&self, config: &Config, leader: u32) -> u32 {
        let Config { rank, job_rank, size, block, .. } = *config;
        if self.directory.is_some() { teller(job_rank, leader, size, block) } else { leader_of(rank, block) }
    }

    /// Asks for the address of `leader`, if that of its teller is known. The own leader's is, since this rank was
    /// introduced; that of another leader of the group is fetched first.
    fn say_seek<F: Fabric>(&mut self, node: &mut Node<F>, leader: u32) {
        let teller = self.teller(&node.config, leader);
        if let Some(doors) = self.known.leader(teller) {
            node.say(PORT, &doors.of(0), Message::SeekLeader { leader });
        }
    }

    /// Asks `teller`, whose address is known by now, for the leaders that it knows.
    pub(super) fn ask_teller<F: Fabric>(&mut self, node: &mut Node<F>, teller: u32) {
        let asked = self.seeking.asked.iter().map(|(leader, _)| *leader);
        let asked: Vec<u32> = asked.filter(|leader| self.teller(&node.config, *leader) == teller).collect();
        for leader in asked {
            self.say_seek(node, leader);
        }
    }

    pub fn repeat_seeking<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, now: Instant) {
        let (mut again, mut silent) = (Vec::new(), Vec::new());
        for (leader, repeat) in &mut self.seeking.asked {
            if repeat.is_due(now, &mut node.rng) {
                let list = if repeat.is_silent(now, node.config.give_up) { &mut silent } else { &mut again };
                list.push(*leader);
            }
        }
        again.into_iter().for_each(|leader| self.say_seek(node, leader));
        for leader in silent {
            let give_up = node.config.give_up;
            let sentence = match self.teller(&node.config, leader) {
                teller if self.directory.is_some() => format!("process {teller} has not told it for {give_up:?}"),
                _ => format!("this rank's leader has not told it for {give_up:?}"),
            };
            self.give_up_seeking(node, wants, leader, &Error::new(sentence));
        }
    }

    /// The owner could not fetch the address of `teller`: the leaders that it knows are not found either.
    pub(super) fn lose_teller<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, teller: u32, error: &Error) {
        let asked = self.seeking.asked.iter().map(|(leader, _)| *leader);
        let lost: Vec<u32> = asked.filter(|leader| self.teller(&node.config, *leader) == teller).collect();
        for leader in lost {
            let sentence = format!("it is told by process {teller}, whose own cannot be had: {error}");
            self.give_up_seeking(node, wants, leader, &Error::new(sentence));
        }
    }

    fn give_up_seeking<F: Fabric>(&mut self, node: &mut Node<F>, wants: &mut Wants, leader: u32, error: &Error) {
        self.seeking.asked.retain(|(there, _)| *there != leader);
        self.answer_askers(node, leader, None);
        self.lose_block(node, wants, leader, error);
    }

    pub fn on_seek<F: Fabric>(&mut self, node: &mut Node<F>, port: usize, door: Door, leader: u32) {
        let Config { job_rank, size, block, doors, .. } = node.config;
        if self.directory.is_none() || leader >= size || leader_of(leader, block) != leader {
            return;
        }
        let found = if leader == job_rank { Some(doors) } else { self.known.leader(leader) };
        if let Some(doors) = found {
            return node.say(port, &door, Message::LeaderFound { leader, doors });
        }
        let asker = (leader, port, door);
        if self.seeking.askers.len() < MOST && !self.seeking.askers.contains(&asker) {
            self.seeking.askers.push(asker);
        }
    }

    /// Answers those who have asked for a leader whose address the owner has fetched, or could not fetch: they ask
    /// again.
    pub(super) fn answer_askers<F: Fabric>(&mut self, node: &mut Node<F>, leader: u32, doors: Option<Doors>) {
        let all = std::mem::take(&mut self.seeking.askers);
        let (these, others) = all.into_iter().partition(|(wanted, _, _)| *wanted == leader);
        self.seeking.askers = others;
        let these: Vec<(u32, usize, Door)> = these;
        let Some(doors) = doors else { return };
        for (_, port, door) in these {
            node.say(port, &door, Message::LeaderFound { leader, doors });
        }
    }

    pub fn on_leader_found<F: Fabric>(&mut self, node: &mut Node<F>, leader: u32, doors: Doors) {
        let before = self.seeking.asked.len();
        self.seeking.asked.retain(|(there, _)| *there != leader);
        // Only what was asked.
        if self.seeking.asked.len() < before {
            self.known.learn_leader(leader, doors);
            self.answer_askers(node, leader, Some(doors));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_leader_fetches_few_and_every_other_is_told_by_one_that_fetches() {
        const BLOCK: u32 = 1024;
        for leaders in [1, 2, 31, 32, 63, 64, 65, 977, 2048] {
            let size = (leaders - 1) * BLOCK + 1;
            let mut most = 0;
            for own in 0..leaders {
                let told = |leader: u32| teller(own * BLOCK, leader * BLOCK, size, BLOCK);
                most = most.max((0..leaders).filter(|leader| told(*leader) == own * BLOCK).count() as u32);
                for leader in (0..leaders).filter(|leader| told(*leader) != own * BLOCK) {
                    let teller_of = |own| teller(own, leader * BLOCK, size, BLOCK);
                    assert_eq!(teller_of(told(leader)), told(leader), "{leader} for {own} of {leaders}");
                    // Which is fetched, too.
                    assert_eq!(told(told(leader) / BLOCK), own * BLOCK, "{leader} for {own} of {leaders}");
                }
            }
            assert!(most <= fetched(leaders), "{most} of {leaders}");
        }
        assert_eq!([1, 63, 977, 2048].map(fetched), [1, 63, 68, 95]);
    }
}
