//! The directory of ranks: the leader of a rank's block knows its address.

use std::collections::{BTreeMap, VecDeque};

use crate::address::Doors;

/// Ranks of one block. The process whose job rank is the block's first number is its leader.
pub const BLOCK: u32 = 1024;

/// The job rank of the leader of this rank's block, where a block has `block` ranks.
pub fn leader_of(rank: u32, block: u32) -> u32 {
    rank / block * block
}

/// The directory of a leader: the addresses of the ranks of its block, as they come.
pub struct Directory {
    first: u32,
    block: u32,
    ranks: BTreeMap<u32, Doors>,
}

impl Directory {
    pub fn new(first: u32, block: u32) -> Self {
        Self { first, block, ranks: BTreeMap::new() }
    }

    /// Bytes of a whole block; half as much again, since the nodes of the tree are seldom full.
    pub fn bytes() -> usize {
        BLOCK as usize * size_of::<(u32, Doors)>() * 3 / 2
    }

    /// Enters a rank; true if it is there now with this address, false if with another one. None if it is not of this
    /// block.
    pub fn register(&mut self, rank: u32, doors: Doors) -> Option<bool> {
        (leader_of(rank, self.block) == self.first).then(|| *self.ranks.entry(rank).or_insert(doors) == doors)
    }

    pub fn find(&self, rank: u32) -> Option<Doors> {
        self.ranks.get(&rank).copied()
    }
}

/// Leaders whose addresses are kept, those of 2^21 ranks; of more, some are fetched again. That is to be rare: each
/// fetch costs two changes of threads, and libpmix 4.2 keeps more than 100 bytes for good of each, also of a value that
/// it has.
const LEADERS: usize = 2048;

/// Addresses that a rank has learned: of ranks in a cache of fixed size, since they may be many; of all leaders.
pub struct Known {
    /// The own leader, which knows the others: it is never forgotten.
    home: Option<(u32, Doors)>,
    leaders: BTreeMap<u32, Doors>,
    /// Leaders that the owner is to fetch, and has not taken up yet.
    wanted: VecDeque<u32>,
    /// Leaders that it is fetching, or is to.
    awaited: Vec<u32>,
    /// By the low bits of the rank.
    ranks: Box<[Option<(u32, Doors)>]>,
}

impl Known {
    fn room(connections: usize) -> usize {
        (connections * 4).next_power_of_two().min(1024)
    }

    /// Bytes of the cache of ranks, in a pool with so many places.
    pub fn bytes(connections: usize) -> usize {
        Self::room(connections) * size_of::<Option<(u32, Doors)>>()
    }

    /// Bytes of the addresses of so many leaders; half as much again, since the nodes of the tree are seldom full.
    pub fn leader_bytes(leaders: usize) -> usize {
        leaders.min(LEADERS) * size_of::<(u32, Doors)>() * 3 / 2
    }

    pub fn new(connections: usize) -> Self {
        let room = Self::room(connections);
        let (leaders, wanted, awaited) = (BTreeMap::new(), VecDeque::new(), Vec::new());
        Self { home: None, leaders, wanted, awaited, ranks: vec![None; room].into() }
    }

    fn slot(&self, rank: u32) -> usize {
        rank as usize & (self.ranks.len() - 1)
    }

    pub fn find(&self, rank: u32) -> Option<Doors> {
        self.ranks[self.slot(rank)].filter(|(there, _)| *there == rank).map(|(_, doors)| doors)
    }

    pub fn learn(&mut self, rank: u32, doors: Doors) {
        self.ranks[self.slot(rank)] = Some((rank, doors));
    }

    /// The address of the leader with this job rank; where it is not known, the owner will be asked for it.
    pub fn leader(&mut self, leader: u32) -> Option<Doors> {
        let home = self.home.filter(|(home, _)| *home == leader).map(|(_, doors)| doors);
        let found = home.or_else(|| self.leaders.get(&leader).copied());
        if found.is_none() && !self.awaited.contains(&leader) {
            self.awaited.push(leader);
            self.wanted.push_back(leader);
        }
        found
    }

    pub fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The next leader that is wanted, which is awaited from now on.
    pub fn wanted_leader(&mut self) -> Option<u32> {
        self.wanted.pop_front()
    }

    /// As [`wanted_leader`](Known::wanted_leader), among those for which `is` is true.
    pub fn take_wanted(&mut self, is: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.wanted.iter().position(|leader| is(*leader))?;
        self.wanted.remove(at)
    }

    /// The address of the own leader.
    pub fn learn_home(&mut self, leader: u32, doors: Doors) {
        self.fetched(leader);
        self.home = Some((leader, doors));
    }

    pub fn learn_leader(&mut self, leader: u32, doors: Doors) {
        self.fetched(leader);
        if self.leaders.len() == LEADERS && !self.leaders.contains_key(&leader) {
            self.leaders.pop_first();
        }
        self.leaders.insert(leader, doors);
    }

    pub fn fetched(&mut self, leader: u32) {
        self.awaited.retain(|there| *there != leader);
        self.wanted.retain(|there| *there != leader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Door, Site};

    fn doors(n: u32) -> Doors {
        Doors::new(&[Door { site: Site::Lid(1), qpn: n, qkey: 1 }])
    }

    #[test]
    fn a_rank_is_one_process() {
        let mut directory = Directory::new(1024, BLOCK);
        assert_eq!(directory.register(1024, doors(1)), Some(true));
        assert_eq!(directory.register(1024, doors(1)), Some(true), "it says so again");
        assert_eq!(directory.register(1024, doors(2)), Some(false));
        assert_eq!((directory.register(1023, doors(3)), directory.register(2048, doors(3))), (None, None));
        assert_eq!((directory.find(1024), directory.find(1025)), (Some(doors(1)), None));
    }

    #[test]
    fn leaders_are_asked_for_once_and_those_of_the_largest_job_are_kept() {
        let mut known = Known::new(2);
        assert_eq!((known.leader(1024), known.leader(1024), known.leader(0)), (None, None, None));
        assert_eq!((known.wanted_leader(), known.wanted_leader(), known.wanted_leader()), (Some(1024), Some(0), None));
        assert_eq!((known.leader(0), known.wanted_leader()), (None, None), "it is being fetched");
        for block in 0..(1 << 21) / BLOCK {
            known.learn_leader(block * BLOCK, doors(block));
        }
        for block in 0..(1 << 21) / BLOCK {
            assert_eq!((known.leader(block * BLOCK), known.wanted_leader()), (Some(doors(block)), None));
        }
        known.learn_leader(1 << 21, doors(1));
        assert_eq!((known.leader(1 << 21), known.leaders.len()), (Some(doors(1)), LEADERS));
        assert_eq!((known.leader(0), known.wanted_leader()), (None, Some(0)));
    }

    #[test]
    fn the_own_leader_is_not_forgotten_for_others() {
        let mut known = Known::new(2);
        known.learn_home(0, doors(7));
        for block in 1..(1 << 21) / BLOCK + 9 {
            known.learn_leader(block * BLOCK, doors(block));
        }
        assert_eq!((known.leader(0), known.wanted_leader()), (Some(doors(7)), None));
    }

    #[test]
    fn what_was_learned_of_a_rank_is_never_told_of_another() {
        let mut known = Known::new(1);
        known.learn(1, doors(1));
        known.learn(5, doors(5));
        assert_eq!((known.find(1), known.find(5), known.find(9)), (None, Some(doors(5)), None));
    }
}
