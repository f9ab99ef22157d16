//! The places of a pool: which are free, which change, and by which a peer is found.

use std::time::Instant;

use super::message::Id;
use super::place::{Peer, Place, State};
use crate::options::{Link, MAX_HELLO};
use crate::table::{Table, key};

pub struct Places {
    places: Box<[Place]>,
    peers: Box<[Peer]>,
    /// Places that are open, by rank and color, of which the owner has heard: it may have to learn something of the
    /// peer first.
    open: Table<Link>,
    /// Places that are not free.
    used: Table<u32>,
    free: Vec<u32>,
    /// Places that are neither free nor open.
    changing: Vec<u32>,
    closing: usize,
    stamp: u64,
}

impl Places {
    pub fn new(places: usize) -> Self {
        Self {
            places: vec![Place::FREE; places].into(),
            peers: (0..places).map(|_| Peer::NONE).collect(),
            open: Table::new(places, Link { index: 0, life: 0 }),
            used: Table::new(places, 0),
            free: (0..places as u32).rev().collect(),
            changing: Vec::new(),
            closing: 0,
            stamp: 0,
        }
    }

    /// Bytes of so many places, their peers, and who finds them.
    pub fn bytes(places: usize) -> usize {
        let place = size_of::<Place>() + size_of::<Peer>() + MAX_HELLO + 2 * size_of::<u32>();
        places * place + Table::<Link>::bytes(places) + Table::<u32>::bytes(places)
    }

    #[inline]
    pub fn place(&self, index: u32) -> &Place {
        &self.places[index as usize]
    }

    #[inline]
    pub fn place_mut(&mut self, index: u32) -> &mut Place {
        &mut self.places[index as usize]
    }

    #[inline]
    pub fn peer(&self, index: u32) -> &Peer {
        &self.peers[index as usize]
    }

    pub fn peer_mut(&mut self, index: u32) -> &mut Peer {
        &mut self.peers[index as usize]
    }

    /// A place, and the peer that it is for.
    pub fn both_mut(&mut self, index: u32) -> (&mut Place, &mut Peer) {
        (&mut self.places[index as usize], &mut self.peers[index as usize])
    }

    /// The open connection that the owner has heard of.
    #[inline]
    pub fn find_open(&self, rank: u32, color: u32) -> Option<Link> {
        self.open.get(key(rank, color))
    }

    /// The place that is used for a peer.
    pub fn find(&self, rank: u32, color: u32) -> Option<u32> {
        self.used.get(key(rank, color))
    }

    /// The place of that attempt, where it is known.
    pub fn of(&self, from: u32, id: &Id) -> Option<u32> {
        let index = self.find(from, id.color)?;
        (self.peer(index).id == *id).then_some(index)
    }

    /// None if there is no such place.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Place> {
        self.places.get(index as usize)
    }

    /// The connections by which a peer may post.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        let places = self.places.iter().zip(0..);
        let reached = places.filter(|(place, _)| !matches!(place.state, State::Free | State::Connecting));
        reached.map(|(place, index)| Link { index, life: place.life })
    }

    /// Gives a hold back.
    #[inline]
    pub fn release(&mut self, link: Link) -> &Place {
        self.stamp += 1;
        let place = &mut self.places[link.index as usize];
        debug_assert!(place.life == link.life && place.holds > 0, "{link:?} is released, and is not held: {place:?}");
        place.holds -= 1;
        place.stamp = self.stamp;
        place.let_go |= place.holds == 0;
        place
    }

    /// Places that are neither free nor open.
    pub fn changing(&self) -> &[u32] {
        &self.changing
    }

    /// The number of places that are closing.
    #[inline]
    pub fn closing(&self) -> usize {
        self.closing
    }

    /// The number of places that are free, or will be.
    pub fn free_soon(&self) -> usize {
        self.free.len() + self.closing
    }

    /// The open place that nobody holds, and that was unused for longest.
    pub fn oldest_idle(&self) -> Option<u32> {
        let idle = self.places.iter().zip(0..);
        let idle = idle.filter(|(place, _)| place.state == State::Open && place.holds == 0 && !place.unseen);
        idle.min_by_key(|(place, _)| place.stamp).map(|(_, index)| index)
    }

    /// When a peer of a place that changes is to be asked again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let repeats = self.changing.iter().filter_map(|index| self.peer(*index).repeat.as_ref());
        repeats.map(|repeat| repeat.next()).min()
    }

    /// A free place, if possible one for which `is_made` is true.
    pub fn take_free(&mut self, is_made: impl Fn(u32) -> bool) -> Option<u32> {
        let made = self.free.iter().rposition(|index| is_made(*index));
        let at = made.or_else(|| self.free.len().checked_sub(1))?;
        Some(self.free.swap_remove(at))
    }

    /// Begins a life of a place that was free.
    pub fn occupy(&mut self, index: u32, state: State, peer: Peer) {
        self.used.insert(key(peer.rank, peer.color), index);
        self.changing.push(index);
        let place = self.place_mut(index);
        *place = Place { state, life: place.life, ..Place::FREE };
        *self.peer_mut(index) = peer;
    }

    /// The place is open at both ends.
    pub fn open(&mut self, index: u32) -> Link {
        self.changing.retain(|there| *there != index);
        self.stamp += 1;
        let stamp = self.stamp;
        let (place, peer) = self.both_mut(index);
        (place.state, place.unseen, place.stamp) = (State::Open, true, stamp);
        (peer.repeat, peer.wanted) = (None, None);
        Link { index, life: place.life }
    }

    /// The owner has heard of the open connection, and finds it from now on.
    pub fn seen(&mut self, link: Link) {
        // A connection whose event the owner has not taken is not closed, so it is that life.
        self.place_mut(link.index).unseen = false;
        let peer = &self.peers[link.index as usize];
        self.open.insert(key(peer.rank, peer.color), link);
    }

    /// Takes the connection out of all searches.
    pub fn shut(&mut self, index: u32) {
        let peer = &self.peers[index as usize];
        self.open.remove(key(peer.rank, peer.color));
        let place = self.place_mut(index);
        (place.state, place.let_go) = (State::Closing, false);
        self.changing.push(index);
        self.closing += 1;
    }

    /// Ends the life of a place that is not open any more, or never was: the place as it was, and its peer.
    pub fn vacate(&mut self, index: u32) -> (Place, Peer) {
        let place = self.place_mut(index);
        let was = *place;
        *place = Place { life: was.life.wrapping_add(1), ..Place::FREE };
        if was.state == State::Closing {
            self.closing -= 1;
        }
        let peer = std::mem::replace(self.peer_mut(index), Peer::NONE);
        self.changing.retain(|there| *there != index);
        self.used.remove(key(peer.rank, peer.color));
        self.free.push(index);
        (was, peer)
    }
}
