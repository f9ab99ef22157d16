//! Connections that the owner wants and that have no place yet, oldest first.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use super::repeat::Repeat;
use crate::address::Doors;
use crate::table::key;

/// The number of them, the oldest, that are in progress at once.
pub const WINDOW: usize = 64;

/// The stage of one.
#[derive(Debug, Clone, Copy)]
pub enum Stage {
    /// The address has not been asked for.
    New,
    /// The leader was asked.
    Locating(Repeat),
    /// It can have a place.
    Located(Doors),
    /// The peer was busy.
    Resting(Doors, Instant),
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    pub rank: u32,
    pub color: u32,
    /// Its turn; less is earlier.
    pub turn: u64,
    /// How often the peer was busy.
    pub rounds: u32,
    pub stage: Stage,
}

/// All of them.
#[derive(Default)]
pub struct Wants {
    by_turn: BTreeMap<u64, Want>,
    turns: HashMap<u64, u64>,
}

impl Wants {
    pub fn contains(&self, rank: u32, color: u32) -> bool {
        self.turns.contains_key(&key(rank, color))
    }

    pub fn insert(&mut self, want: Want) {
        self.turns.insert(key(want.rank, want.color), want.turn);
        self.by_turn.insert(want.turn, want);
    }

    pub fn remove(&mut self, rank: u32, color: u32) -> Option<Want> {
        let turn = self.turns.remove(&key(rank, color))?;
        self.by_turn.remove(&turn)
    }

    /// Those that are worked on, oldest first.
    pub fn active(&mut self) -> impl Iterator<Item = &mut Want> {
        self.by_turn.values_mut().take(WINDOW)
    }

    /// Those that could have a place at once, oldest first.
    pub fn located(&self) -> impl Iterator<Item = &Want> {
        self.by_turn.values().take(WINDOW).filter(|want| matches!(want.stage, Stage::Located(_)))
    }

    /// Tells those that wait for it where a rank is, and says whether there was one.
    pub fn found(&mut self, rank: u32, doors: Doors) -> bool {
        let mut was_asked = false;
        for want in self.active().filter(|want| want.rank == rank) {
            if matches!(want.stage, Stage::New | Stage::Locating(_)) {
                want.stage = Stage::Located(doors);
                was_asked = true;
            }
        }
        was_asked
    }

    /// Takes out all that are as `is_it` says.
    pub fn remove_all(&mut self, is_it: impl Fn(&Want) -> bool) -> Vec<Want> {
        let found: Vec<_> = self.by_turn.values().filter(|want| is_it(want)).copied().collect();
        for want in &found {
            self.remove(want.rank, want.color);
        }
        found
    }

    pub fn next_deadline(&mut self) -> Option<Instant> {
        let deadline = |want: &mut Want| match &want.stage {
            Stage::Locating(repeat) => Some(repeat.next()),
            Stage::Resting(_, until) => Some(*until),
            _ => None,
        };
        self.active().filter_map(deadline).min()
    }
}
