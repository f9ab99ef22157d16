//! Meeting of a window's processes, by their doors ([`super::door`]). A process that requests a pair puts its state
//! into the peer's door, again and again until the peer has answered. The peer makes a block for that end of a pair and
//! no other, and announces it; then the first one does the same. A side can send once it knows the other's block for
//! it: the pair is up.
//!
//! A process that reuses a number has another incarnation: pairs with the one before are over. So is a pair of which
//! one side announces a different end. No block serves two pairs before it has rested.

use super::block;
use super::door::{self, End, State};
use super::memory::Memory;
use super::waking::{Occasion, Waking};
use crate::device::{Channel, Origin, Put, PutDevice, Region};
use crate::error::Result;
use crate::layout::{CELL, Layout, PROCESSES};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A process of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    /// Its node.
    pub node: u32,
    /// Its number there.
    pub process: u32,
}

impl PeerId {
    /// Offset of this process's cell in each door.
    pub(super) fn cell(self) -> u64 {
        u64::from(self.node * PROCESSES + self.process) * CELL
    }
}

/// First and longest interval between states to a peer that does not answer, in nanoseconds.
const FIRST_NS: u64 = 200_000;
const LONGEST_NS: u64 = 100_000_000;
/// Pairs whose processes are checked for life in one call.
const LOOKS: usize = 4;

/// Changes of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A pair is up: both blocks are known.
    Up {
        /// The peer.
        peer: PeerId,
        /// Incarnation of the peer's process.
        incarnation: u64,
        /// The peer's block for this process, in the peer's region.
        theirs: u64,
        /// This process's block for the peer.
        own: u64,
    },
    /// A pair is over: the process has ended, or it has another pair, or another process has its number. The block is
    /// to be given back when nobody reads it any more ([`Memory::give_back`]).
    Down {
        /// The peer.
        peer: PeerId,
        /// Incarnation of the peer's process.
        incarnation: u64,
        /// This process's block for it.
        own: u64,
    },
    /// A peer has no room for a block.
    NoRoom(PeerId),
}

/// Knowledge about the processes of one number.
#[derive(Default, Debug)]
struct Peer {
    /// Count and incarnation of the last state received.
    last: Option<(u64, u64)>,
    pair: Option<Pair>,
}

/// A pair, or a request for one.
#[derive(Debug)]
struct Pair {
    number: u64,
    /// The own block for it.
    own: u64,
    /// The other end, once known. A different end gets a different block, and a different pair if this one is up.
    with: Option<End>,
    /// The other end's block. The pair is up once it is known.
    theirs: Option<u64>,
    /// True if the other end knows its block too.
    is_answered: bool,
    /// True if this side has requested it.
    is_requested: bool,
    has_no_room: bool,
    /// Time of the next put of the state, and the interval after it, in nanoseconds.
    next: u64,
    pause: u64,
}

impl Pair {
    fn new(number: u64, own: u64, is_requested: bool) -> Pair {
        let (with, theirs, is_answered, has_no_room) = (None, None, false, false);
        Pair { number, own, with, theirs, is_answered, is_requested, has_no_room, next: 0, pause: FIRST_NS }
    }

    fn is_due(&self) -> bool {
        self.is_requested && !(self.theirs.is_some() && self.is_answered)
    }

    /// Returns true if the other end, as far as it is known, is that of this state.
    fn is_with(&self, state: &State) -> bool {
        let is_same = |with| with == state.from && (self.theirs.is_none() || self.theirs == state.block);
        self.with.is_none_or(is_same)
    }
}

/// The sender of this process's states to its peers' doors.
struct Announcer {
    device: Arc<dyn PutDevice>,
    me: PeerId,
    incarnation: u64,
    /// States put so far.
    count: u64,
    channels: HashMap<u32, Box<dyn Channel>>,
}

/// A word that every peer changes after it has put a state into a door of this process.
#[derive(Clone, Debug)]
pub struct Bell {
    region: Region,
    at: u64,
    /// Its value at the last look at the doors.
    seen: Arc<AtomicU64>,
}

impl Bell {
    /// Returns true if a state may have come since the last look.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.rung() != self.seen.load(Ordering::Relaxed)
    }

    #[inline]
    fn rung(&self) -> u64 {
        self.region.word(self.at).load(Ordering::Acquire)
    }

    /// Offset of the bell: in the cell that a process would have for itself.
    fn place(layout: Layout, of: PeerId) -> u64 {
        layout.door(of.process) + of.cell()
    }
}

/// The doors of a process, and its knowledge of its peers.
pub struct Rendezvous {
    announcer: Announcer,
    bell: Bell,
    /// Number of pairs begun so far.
    pairs: u64,
    peers: BTreeMap<PeerId, Peer>,
    /// The last peer that was checked for life.
    looked_at: PeerId,
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous").field("me", &self.announcer.me).field("peers", &self.peers).finish_non_exhaustive()
    }
}

impl Rendezvous {
    /// The doors of process `me`. Its `incarnation` is not zero and was never another process's. States for earlier
    /// ones are cleared; a peer that means this process puts its own again. The new incarnation is announced to each
    /// peer, so that none goes on with the previous one.
    pub fn new(device: Arc<dyn PutDevice>, me: PeerId, incarnation: u64) -> Self {
        let layout = device.facts().layout;
        let (begin, words) = (layout.door(me.process) / 8, layout.door_len() / 8);
        for word in &device.own().words()[begin as usize..(begin + words) as usize] {
            word.store(0, Ordering::Release);
        }
        let bell = Bell { region: device.own().clone(), at: Bell::place(layout, me), seen: Arc::default() };
        let mut announcer = Announcer { device, me, incarnation, count: 0, channels: HashMap::new() };
        for peer in all(layout).filter(|peer| *peer != me) {
            announcer.announce(peer, announcer.nothing());
        }
        Rendezvous { announcer, bell, pairs: 0, peers: BTreeMap::new(), looked_at: me }
    }

    /// A handle on the bell, which can be read without the doors.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Requests a pair with `peer` unless there is one. Returns false if there is no room for a block.
    pub fn request_pair(&mut self, now: u64, peer: PeerId, memory: &mut Memory, event: &mut impl FnMut(Event)) -> bool {
        let mut lives = None;
        if peer != self.announcer.me {
            // The number may belong to another process by now.
            self.receive(peer, memory, event);
            lives = self.drop_if_dead(peer, memory, event);
        }
        if self.pair(peer).is_none() && !self.begin(peer, false, memory) {
            return false;
        }
        let (me, incarnation) = (self.announcer.me, self.announcer.incarnation);
        let Some(pair) = self.peers.get_mut(&peer).and_then(|known| known.pair.as_mut()) else { return false };
        if peer == me {
            // A process needs only one block for itself.
            if pair.theirs.is_none() {
                let own = pair.own;
                (pair.theirs, pair.is_answered) = (Some(own), true);
                event(Event::Up { peer, incarnation, theirs: own, own });
            }
            return true;
        }
        if pair.is_due() {
            return true;
        }
        pair.is_requested = true;
        if pair.with.is_some() && !pair.is_due() && lives != Some(true) {
            // The peer may be gone: another process with its number would answer.
            pair.is_answered = false;
        }
        (pair.next, pair.pause) = (now, FIRST_NS);
        self.announce_again(now);
        true
    }

    fn pair(&self, peer: PeerId) -> Option<&Pair> {
        self.peers.get(&peer)?.pair.as_ref()
    }

    /// Begins a new pair. Returns false if there is no room for its block.
    fn begin(&mut self, peer: PeerId, is_requested: bool, memory: &mut Memory) -> bool {
        let Some(own) = memory.take(peer) else { return false };
        self.pairs += 1;
        self.peers.entry(peer).or_default().pair = Some(Pair::new(self.pairs, own, is_requested));
        true
    }

    /// Offset of the word by which process `of` is woken, in the cell of its bell. Each put there has a new value.
    pub fn waking_word(layout: Layout, of: PeerId) -> u64 {
        Bell::place(layout, of) + 8
    }

    /// Ends pairs with dead peers. Each call checks only a few peers: the kernel searches the locks of all processes to
    /// answer, which takes the longer the more pairs there are between them.
    pub fn drop_dead_pairs(&mut self, memory: &mut Memory, event: &mut impl FnMut(Event)) {
        let has_other = |(peer, known): (&PeerId, &Peer)| {
            let is_other = *peer != self.announcer.me && known.pair.as_ref().is_some_and(|pair| pair.with.is_some());
            is_other.then_some(*peer)
        };
        let after = self.peers.range((Bound::Excluded(self.looked_at), Bound::Unbounded)).filter_map(has_other);
        let next: Vec<_> = after.chain(self.peers.range(..=self.looked_at).filter_map(has_other)).take(LOOKS).collect();
        for peer in next {
            self.looked_at = peer;
            self.drop_if_dead(peer, memory, event);
        }
    }

    /// Ends the pair with a peer that is known to be dead. Returns true if the peer lives; None: unknown.
    fn drop_if_dead(&mut self, peer: PeerId, memory: &mut Memory, event: &mut impl FnMut(Event)) -> Option<bool> {
        let with = self.pair(peer)?.with?;
        let lives = self.announcer.device.claims().is_alive(peer.node, with.incarnation).ok()?;
        if lives == Some(false) {
            self.over(peer, memory, event);
        }
        lives
    }

    /// Reads all doors; `event` is called for each change.
    pub fn look(&mut self, memory: &mut Memory, event: &mut impl FnMut(Event)) {
        // Read before the doors, so that a later ring is found later.
        self.bell.seen.store(self.bell.rung(), Ordering::Relaxed);
        let me = self.announcer.me;
        for peer in all(self.announcer.layout()).filter(|peer| *peer != me) {
            self.receive(peer, memory, event);
        }
    }

    /// Reads the state of one peer.
    #[inline]
    fn receive(&mut self, peer: PeerId, memory: &mut Memory, event: &mut impl FnMut(Event)) {
        if let Some((count, state)) = self.announcer.read(peer) {
            self.take_in(peer, count, state, memory, event);
        }
    }

    fn take_in(&mut self, peer: PeerId, count: u64, state: State, memory: &mut Memory, event: &mut impl FnMut(Event)) {
        let known = self.peers.entry(peer).or_default();
        let incarnation = state.from.incarnation;
        if known.last.replace((count, incarnation)) == Some((count, incarnation)) {
            return;
        }
        if known.pair.as_ref().is_some_and(|pair| !pair.is_with(&state)) {
            self.over(peer, memory, event);
        }
        if state.from.pair == 0 {
            return self.take_in_none(peer, state, event);
        }
        let mine = |pair: &Pair| End { incarnation: self.announcer.incarnation, pair: pair.number };
        let means_mine = self.pair(peer).is_some_and(|pair| state.to == mine(pair));
        if !means_mine && state.to != End::default() {
            // The peer still uses an ended pair. Answer only a question, or both answer for ever.
            if state.asks {
                self.announce(peer, false);
            }
            return;
        }
        let is_known = self.pair(peer).is_some_and(|pair| pair.with.is_some());
        if !is_known && self.announcer.device.claims().is_alive(peer.node, incarnation) == Ok(Some(false)) {
            // The state is not a living process's. A block for that one would be free again while the real writer can
            // put there.
            return;
        }
        if self.pair(peer).is_none() && !self.begin(peer, false, memory) {
            return self.announcer.announce(peer, State { to: state.from, ..self.announcer.nothing() });
        }
        let Some(pair) = self.peers.get_mut(&peer).and_then(|known| known.pair.as_mut()) else { return };
        pair.with = Some(state.from);
        let mut has_changed = !means_mine;
        if let Some(theirs) = state.block.filter(|_| means_mine) {
            if pair.theirs.replace(theirs).is_none() {
                has_changed = true;
                event(Event::Up { peer, incarnation, theirs, own: pair.own });
            }
            pair.is_answered |= state.is_up;
        }
        if has_changed || state.asks {
            self.announce(peer, false);
        }
    }

    /// Handles a state by which the peer has no pair with this process.
    fn take_in_none(&mut self, peer: PeerId, state: State, event: &mut impl FnMut(Event)) {
        let incarnation = self.announcer.incarnation;
        let Some(pair) = self.peers.get_mut(&peer).and_then(|known| known.pair.as_mut()) else { return };
        if (state.to == End { incarnation, pair: pair.number }) {
            if !std::mem::replace(&mut pair.has_no_room, true) {
                event(Event::NoRoom(peer));
            }
        } else if pair.is_due() {
            // The peer has just started, and cannot have seen the earlier states.
            pair.pause = FIRST_NS;
            self.announce(peer, true);
        }
    }

    /// Ends the pair that has the block `own`, which cannot be used, and announces that to the peer.
    pub fn end_pair(&mut self, peer: PeerId, own: u64, memory: &mut Memory, event: &mut impl FnMut(Event)) {
        if self.pair(peer).is_some_and(|pair| pair.own == own) {
            self.over(peer, memory, event);
        }
    }

    /// Ends the pair with a peer.
    fn over(&mut self, peer: PeerId, memory: &mut Memory, event: &mut impl FnMut(Event)) {
        let Some(mut pair) = self.peers.get_mut(&peer).and_then(|known| known.pair.take()) else { return };
        let incarnation = pair.with.take().map_or(0, |with| with.incarnation);
        if pair.theirs.is_some() {
            event(Event::Down { peer, incarnation, own: pair.own });
            // The state may be a dead process's; the living one must learn that the pair is over.
            return self.announce(peer, false);
        }
        memory.give_back(pair.own, peer, incarnation);
        // A request that was not met stays.
        if pair.is_requested
            && let Some(own) = memory.take(peer)
        {
            pair.own = own;
            self.peers.entry(peer).or_default().pair = Some(pair);
        }
    }

    /// Puts the unanswered states again that are due. Returns the time at which the next is due, in nanoseconds; None:
    /// none is.
    pub fn announce_again(&mut self, now: u64) -> Option<u64> {
        let (mut due, mut next) = (Vec::new(), None);
        for (peer, known) in &mut self.peers {
            let Some(pair) = known.pair.as_mut().filter(|pair| pair.is_due()) else { continue };
            if pair.next <= now {
                due.push(*peer);
                pair.next = now + pair.pause;
                pair.pause = (pair.pause * 2).min(LONGEST_NS);
            }
            next = next.into_iter().chain([pair.next]).min();
        }
        due.into_iter().for_each(|peer| self.announce(peer, true));
        next
    }

    /// Puts the state of the pair with a peer into its door.
    fn announce(&mut self, peer: PeerId, asks: bool) {
        let state = self.pair(peer).map(|pair| State {
            from: End { incarnation: self.announcer.incarnation, pair: pair.number },
            to: pair.with.unwrap_or_default(),
            block: pair.with.map(|_| pair.own),
            is_up: pair.theirs.is_some(),
            asks,
        });
        self.announcer.announce(peer, state.unwrap_or(self.announcer.nothing()));
    }
}

/// All processes that there can be.
fn all(layout: Layout) -> impl Iterator<Item = PeerId> {
    (0..layout.nodes()).flat_map(|node| (0..PROCESSES).map(move |process| PeerId { node, process }))
}

impl Announcer {
    fn layout(&self) -> Layout {
        self.device.facts().layout
    }

    /// The state of a process without a pair.
    fn nothing(&self) -> State {
        State { from: End { incarnation: self.incarnation, pair: 0 }, ..State::default() }
    }

    /// The count and state of `from`; None: there is none.
    fn read(&self, from: PeerId) -> Option<(u64, State)> {
        let layout = self.layout();
        let at = layout.door(self.me.process) + from.cell();
        let region = self.device.own();
        let mut words = [0; door::WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = region.word(at + 8 * i as u64).load(Ordering::Acquire);
            if i == 0 && *word == 0 {
                return None;
            }
        }
        let last = layout.region_len() - block::LEN;
        let fits = |block: u64| block.is_multiple_of(block::LEN) && (layout.door(PROCESSES)..=last).contains(&block);
        State::decode(&words).filter(|(_, state)| state.block.is_none_or(fits))
    }

    fn announce(&mut self, peer: PeerId, state: State) {
        self.count += 1;
        let words = state.encode(self.count);
        let layout = self.layout();
        // Each half is new each time, and unlike any other process's, as words of several processes may arrive in
        // halves.
        let ring = [door::check(&[self.incarnation, self.count])];
        let chain = [
            Put { to: layout.door(peer.process) + self.me.cell(), from: Origin::Words(&words) },
            Put { to: Bell::place(layout, peer), from: Origin::Words(&ring) },
        ];
        let wakes = self.device.wakes(peer.node).then(|| Waking::new(layout, peer, self.me, Occasion::Door));
        let count = self.count;
        if let Ok(channel) = self.channel(peer.node) {
            // A peer that is not reached does not answer, so the state is put again.
            let _ = channel.put(&chain);
            if let Some(waking) = wakes {
                waking.wake(channel.as_mut(), count);
            }
        }
    }

    fn channel(&mut self, node: u32) -> Result<&mut Box<dyn Channel>> {
        Ok(match self.channels.entry(node) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.device.channel(node)?),
        })
    }
}
