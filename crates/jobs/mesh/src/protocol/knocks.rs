//! Connects that came while no place was free, oldest first.

use std::collections::VecDeque;

use super::message::Id;
use crate::address::{Door, Lanes};

/// The most that may wait.
const MOST: usize = 64;

/// A peer that asks for a connection.
pub struct Knock {
    pub rank: u32,
    pub door: Door,
    pub id: Id,
    pub lanes: Lanes,
    pub hello: Vec<u8>,
}

impl Knock {
    fn is_for(&self, rank: u32, color: u32) -> bool {
        (self.rank, self.id.color) == (rank, color)
    }
}

/// Those that wait: one of each rank and color.
#[derive(Default)]
pub struct Knocks {
    queue: VecDeque<Knock>,
    /// A want had the last place, so that it is a knock's turn.
    pub are_next: bool,
}

impl Knocks {
    /// Lets it wait, in place of an earlier attempt of the same peer. It comes back where there is no room.
    pub fn push(&mut self, knock: Knock) -> Result<(), Knock> {
        let has_room = self.queue.len() < MOST;
        match self.queue.iter_mut().find(|there| there.is_for(knock.rank, knock.id.color)) {
            Some(there) if there.id.nonce <= knock.id.nonce => *there = knock,
            Some(_) => {}
            None if has_room => self.queue.push_back(knock),
            None => return Err(knock),
        }
        Ok(())
    }

    pub fn contains(&self, id: &Id) -> bool {
        self.queue.iter().any(|there| there.id == *id)
    }

    pub fn pop(&mut self) -> Option<Knock> {
        self.queue.pop_front()
    }

    pub fn remove(&mut self, rank: u32, color: u32) -> Option<Knock> {
        let at = self.queue.iter().position(|there| there.is_for(rank, color))?;
        self.queue.remove(at)
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The color of the oldest.
    pub fn first_color(&self) -> Option<u32> {
        self.queue.front().map(|first| first.id.color)
    }

    /// Takes those out that will not have one of `places` places that are going to be free, of which `wants` others
    /// want some: both are served in turn.
    pub fn without_hope(&mut self, places: usize, wants: usize) -> Vec<Knock> {
        let served_before = |at: usize| (at + usize::from(!self.are_next)).min(wants);
        let hopeful = (0..self.queue.len()).take_while(|at| at + 1 + served_before(*at) <= places).count();
        self.queue.split_off(hopeful).into()
    }
}
