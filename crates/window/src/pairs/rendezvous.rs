//! How the processes of a window find each other: by their doors ([`super::door`]). Who wants a pair makes a block for the peer and puts
//! its state into the peer's door, again and again until the peer answers with a state that means it. Whoever finds a state with an
//! incarnation that it does not know makes a block and answers. Both know each other's block then, and the pair is up.
//!
//! A process that comes after another one of the same number has another incarnation: what was with the other one is over.

use super::block;
use super::door::{self, State};
use crate::device::{Channel, Origin, Put, PutDevice};
use crate::error::Result;
use crate::layout::{CELL, Layout, PROCESSES};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// A process of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    /// Its node.
    pub node: u32,
    /// Its number there.
    pub process: u32,
}

impl PeerId {
    /// Which of all the cells of a door is this process's.
    fn cell(self) -> u64 {
        u64::from(self.node * PROCESSES + self.process) * CELL
    }
}

/// The first and the longest time between two states to a peer that does not answer, in nanoseconds.
const FIRST_NS: u64 = 200_000;
const LONGEST_NS: u64 = 100_000_000;

/// Memory for blocks.
pub trait Blocks {
    /// A block of zeros: its place in the region of this node. None where there is no room.
    fn take(&mut self) -> Option<u64>;
    /// The process of `node` with this incarnation, for which the block was, has ended, or is thought to have: when nothing can be
    /// put there any more, the block may be taken again. Zero for one that was never heard of.
    fn give_back(&mut self, block: u64, peer: PeerId, incarnation: u64);
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a pair: the blocks are known.
    Up {
        /// With whom.
        peer: PeerId,
        /// Which process of this number that is.
        incarnation: u64,
        /// The block that it has for this process, in its region; and the one that this process has for it.
        theirs: u64,
        /// See there.
        own: u64,
    },
    /// A pair is over: the process has ended, or another one has its number.
    Down(PeerId),
    /// A peer has no room for a block.
    NoRoom(PeerId),
}

/// What is known of a process.
struct Peer {
    /// The block that it is told of.
    own: u64,
    /// The count and the incarnation of what it said last.
    said: Option<(u64, u64)>,
    is_up: bool,
    /// When it is to be told again, and how long after that.
    next: Option<u64>,
    pause: u64,
}

/// The doors of a process, and what it knows of its peers by them.
pub struct Rendezvous {
    device: Arc<dyn PutDevice>,
    me: PeerId,
    incarnation: u64,
    /// States told so far.
    count: u64,
    /// What the bell was last.
    bell: u64,
    channels: HashMap<u32, Box<dyn Channel>>,
    peers: HashMap<PeerId, Peer>,
}

impl Rendezvous {
    /// For process `me`, whose `incarnation`, not zero, no process had before. What earlier ones were told is wiped out: who means
    /// this one tells it again. Everybody is told that it is another one now, so that nobody goes on with the one before.
    pub fn new(device: Arc<dyn PutDevice>, me: PeerId, incarnation: u64) -> Self {
        let layout = device.facts().layout;
        let (begin, words) = (layout.door(me.process) / 8, layout.door_len() / 8);
        for word in &device.own().words()[begin as usize..(begin + words) as usize] {
            word.store(0, Ordering::Release);
        }
        let (channels, peers) = (HashMap::new(), HashMap::new());
        let mut new = Rendezvous { device, me, incarnation, count: 0, bell: 0, channels, peers };
        for node in 0..layout.nodes() {
            for process in 0..PROCESSES {
                let peer = PeerId { node, process };
                if peer != me {
                    new.tell(peer, State { incarnation, ..State::default() });
                }
            }
        }
        new
    }

    /// Makes a pair with `peer`, if there is none; false where there is no room for a block.
    pub fn want(&mut self, now: u64, peer: PeerId, blocks: &mut impl Blocks, event: &mut impl FnMut(Event)) -> bool {
        let (me, incarnation) = (self.me, self.incarnation);
        let Some(known) = self.peer(peer, blocks) else { return false };
        if known.is_up || known.next.is_some() {
            return true;
        }
        if peer == me {
            // One block is all that a process needs for itself.
            known.is_up = true;
            let own = known.own;
            event(Event::Up { peer, incarnation, theirs: own, own });
            return true;
        }
        (known.next, known.pause) = (Some(now), FIRST_NS);
        self.tell_again(now);
        true
    }

    /// The peer, with a block for it. None where there is no room.
    fn peer(&mut self, peer: PeerId, blocks: &mut impl Blocks) -> Option<&mut Peer> {
        Some(match self.peers.entry(peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let own = blocks.take()?;
                new.insert(Peer { own, said: None, is_up: false, next: None, pause: FIRST_NS })
            }
        })
    }

    /// Where the bell of a process is, which everybody rings who has told it something: in the cell that it would have for itself.
    fn bell(layout: Layout, node: u32, process: u32) -> u64 {
        layout.door(process) + PeerId { node, process }.cell()
    }

    /// Whether somebody may have told something since the last look.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.rung() != self.bell
    }

    #[inline]
    fn rung(&self) -> u64 {
        let at = Self::bell(self.device.facts().layout, self.me.node, self.me.process);
        self.device.own().word(at).load(Ordering::Acquire)
    }

    /// Who there is a pair with, and which process of that number.
    pub fn up(&self) -> Vec<(PeerId, u64)> {
        let is_other = |peer: &PeerId| *peer != self.me;
        let up = self.peers.iter().filter(|(peer, known)| known.is_up && is_other(peer));
        up.filter_map(|(peer, known)| Some((*peer, known.said?.1))).collect()
    }

    /// Reads all doors, and says what has changed.
    pub fn look(&mut self, blocks: &mut impl Blocks, event: &mut impl FnMut(Event)) {
        // Before the doors: who rings later is found later.
        self.bell = self.rung();
        for node in 0..self.device.facts().layout.nodes() {
            for process in 0..PROCESSES {
                let peer = PeerId { node, process };
                if peer != self.me
                    && let Some((count, state)) = self.read(peer)
                {
                    self.heard(peer, count, state, blocks, event);
                }
            }
        }
    }

    /// What `from` says; None where that is nothing.
    fn read(&self, from: PeerId) -> Option<(u64, State)> {
        let layout = self.device.facts().layout;
        let at = layout.door(self.me.process) + from.cell();
        let region = self.device.own();
        let mut words = [0; door::WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = region.word(at + 8 * i as u64).load(Ordering::Acquire);
            if i == 0 && *word == 0 {
                return None;
            }
        }
        fence(Ordering::Acquire);
        let fits = |block: u64| {
            block.is_multiple_of(CELL) && block >= layout.door(PROCESSES) && block <= layout.region_len() - block::LEN
        };
        State::decode(&words).filter(|(_, state)| state.block.is_none_or(fits))
    }

    fn heard(
        &mut self,
        peer: PeerId,
        count: u64,
        state: State,
        blocks: &mut impl Blocks,
        event: &mut impl FnMut(Event),
    ) {
        let said = (count, state.incarnation);
        let before = self.peers.get(&peer).and_then(|known| known.said);
        if before == Some(said) {
            return;
        }
        if before.is_some_and(|(_, incarnation)| incarnation != state.incarnation) {
            self.over(peer, blocks, event);
        }
        if state.meant == 0 && state.block.is_none() {
            // It is new, and wants nothing yet.
            return;
        }
        let means_me = state.meant == self.incarnation;
        let answer = |incarnation, block| State { incarnation, meant: state.incarnation, block };
        let incarnation = self.incarnation;
        let Some(known) = self.peer(peer, blocks) else {
            return self.tell(peer, answer(incarnation, None));
        };
        known.said = Some(said);
        let own = known.own;
        match state.block {
            Some(theirs) if !known.is_up => {
                known.is_up = true;
                event(Event::Up { peer, incarnation: state.incarnation, theirs, own });
            }
            None if means_me => event(Event::NoRoom(peer)),
            _ => {}
        }
        // Who does not mean this process yet tells again until it is answered.
        known.next = None;
        if !means_me {
            self.tell(peer, answer(incarnation, Some(own)));
        }
    }

    /// The process of this number has ended.
    pub fn ended(&mut self, peer: PeerId, blocks: &mut impl Blocks, event: &mut impl FnMut(Event)) {
        self.over(peer, blocks, event);
    }

    fn over(&mut self, peer: PeerId, blocks: &mut impl Blocks, event: &mut impl FnMut(Event)) {
        if let Some(known) = self.peers.remove(&peer) {
            if known.is_up {
                event(Event::Down(peer));
            }
            blocks.give_back(known.own, peer, known.said.map_or(0, |(_, incarnation)| incarnation));
        }
    }

    /// Tells those again who have not answered. When the next is to be told.
    pub fn tell_again(&mut self, now: u64) -> Option<u64> {
        let mut due = Vec::new();
        let mut next = None;
        for (peer, known) in &mut self.peers {
            if known.next.is_some_and(|at| at <= now) {
                due.push((*peer, known.said.map_or(0, |(_, incarnation)| incarnation), known.own));
                known.next = Some(now + known.pause);
                known.pause = (known.pause * 2).min(LONGEST_NS);
            }
            next = next.into_iter().chain(known.next).min();
        }
        for (peer, meant, own) in due {
            self.tell(peer, State { incarnation: self.incarnation, meant, block: Some(own) });
        }
        next
    }

    fn tell(&mut self, peer: PeerId, state: State) {
        self.count += 1;
        let words = state.encode(self.count);
        let layout = self.device.facts().layout;
        let at = layout.door(peer.process) + self.me.cell();
        // Another one each time, and no other process's.
        let ring = [self.me.cell() << 32 | self.count & 0xffff_ffff];
        let last = door::WORDS - 1;
        let chain = [
            Put { to: at + 8 * last as u64, from: Origin::Words(&words[last..]) },
            Put { to: at + 8, from: Origin::Words(&words[1..last]) },
            Put { to: at, from: Origin::Words(&words[..1]) },
            Put { to: Self::bell(layout, peer.node, peer.process), from: Origin::Words(&ring) },
        ];
        if let Ok(channel) = self.channel(peer.node) {
            // Who cannot be reached does not answer.
            let _ = channel.put(&chain);
        }
    }

    fn channel(&mut self, node: u32) -> Result<&mut Box<dyn Channel>> {
        Ok(match self.channels.entry(node) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.device.channel(node)?),
        })
    }
}
