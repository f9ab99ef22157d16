//! The protocol of the doors, without I/O, clock and verbs: a pool of connections, the handshakes that open and close
//! them, and the directory. The mesh drives it over a device, `tests/simulation` over a network that loses, repeats and
//! reorders.

mod close;
mod connect;
mod directory;
mod knocks;
mod leaders;
mod locate;
mod message;
mod place;
mod repeat;
mod wants;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::address::{Door, Doors, Lanes};
use crate::error::{Error, Result};
use crate::options::{Event, Link, MAX_HELLO};
use crate::table::{Table, key};

pub use directory::{BLOCK, leader_of};
pub(crate) use leaders::fetched;
pub use leaders::teller;
pub use message::{Decoded, Envelope, Id, Key, MAX_DATAGRAM, Message, VERSION, decode, encode};

use directory::{Directory, Known};
use knocks::Knocks;
use leaders::Seeking;
use locate::Registration;
use place::{Closed, Peer, Place, State};
use wants::{Stage, Wants};

/// The devices, as the protocol needs them. A place has two QPs at each port, made when they are first needed.
pub trait Fabric {
    /// Sends a datagram from the door of `port`; it may be lost.
    fn send(&mut self, port: usize, to: &Door, datagram: &[u8]);
    /// Returns true if the place has QPs at this port already.
    fn is_made(&self, place: u32, port: usize) -> bool;
    /// Takes the place's QPs to INIT, with the receives of the data lane posted.
    ///
    /// # Errors
    /// What verbs says.
    fn prepare(&mut self, place: u32, port: usize, life: u32) -> Result<Lanes>;
    /// Takes them to RTS, connected to `lanes` behind the port of `door`; both may be this place's own.
    ///
    /// # Errors
    /// What verbs says.
    fn connect(&mut self, place: u32, port: usize, door: &Door, lanes: &Lanes) -> Result<()>;
    /// Takes them to RESET. Nothing of theirs is outstanding.
    ///
    /// # Errors
    /// What verbs says.
    fn reset(&mut self, place: u32, port: usize) -> Result<()>;
}

/// The identity of this rank, and its limits.
#[derive(Debug, Clone)]
pub struct Config {
    /// This process's number.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// How often ranks were renumbered.
    pub epoch: u32,
    /// Its number in the job, which does not change.
    pub job_rank: u32,
    /// Ranks of a block of the directory: [`BLOCK`].
    pub block: u32,
    /// Places in the pool, at least 2.
    pub connections: usize,
    /// Its doors.
    pub doors: Doors,
    /// The number of colors.
    pub colors: u32,
    /// The hello that peers get with each connection.
    pub hello: Vec<u8>,
    /// Time for which a peer may leave a request unanswered.
    pub give_up: Duration,
    /// For jitter.
    pub seed: u64,
}

/// The connections of one process.
pub struct Pool<F> {
    config: Config,
    fabric: F,
    key: Option<Key>,
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
    wants: Wants,
    knocks: Knocks,
    registration: Registration,
    directory: Option<Directory>,
    known: Known,
    seeking: Seeking,
    closed: Closed,
    events: VecDeque<Event>,
    rng: fastrand::Rng,
    nonce: u64,
    turn: u64,
    stamp: u64,
    /// Somebody waits for a place, and none closes for it.
    hungry: bool,
    due: bool,
    deadline: Option<Instant>,
}

/// Bytes that a pool of this size holds, in a job with this number of leaders.
pub(crate) struct PoolBytes {
    /// Places, their peers, and who finds them.
    pub places: usize,
    /// Addresses of ranks.
    pub known: usize,
    /// Addresses of leaders.
    pub leaders: usize,
    /// Connections that were closed.
    pub closed: usize,
    /// A leader's directory of its block.
    pub directory: usize,
}

impl PoolBytes {
    pub fn of(places: usize, leaders: usize) -> Self {
        let place = size_of::<Place>() + size_of::<Peer>() + MAX_HELLO + 2 * size_of::<u32>();
        Self {
            places: places * place + Table::<Link>::bytes(places) + Table::<u32>::bytes(places),
            known: Known::bytes(places),
            leaders: Known::leader_bytes(leaders),
            closed: Closed::bytes(),
            directory: Directory::bytes(),
        }
    }
}

impl<F: Fabric> Pool<F> {
    /// A pool with nothing in it. It hears and says nothing before it has the job's key.
    pub fn new(config: Config, fabric: F) -> Self {
        let places = config.connections;
        let is_leader = leader_of(config.job_rank, config.block) == config.job_rank;
        Self {
            fabric,
            key: None,
            places: vec![Place::FREE; places].into(),
            peers: (0..places).map(|_| Peer::NONE).collect(),
            open: Table::new(places, Link { index: 0, life: 0 }),
            used: Table::new(places, 0),
            free: (0..places as u32).rev().collect(),
            changing: Vec::new(),
            closing: 0,
            wants: Wants::default(),
            knocks: Knocks::default(),
            registration: Registration::Not,
            directory: is_leader.then(|| Directory::new(config.job_rank, config.block)),
            known: Known::new(places),
            seeking: Seeking::default(),
            closed: Closed::new(),
            events: VecDeque::new(),
            rng: fastrand::Rng::with_seed(config.seed),
            nonce: 0,
            turn: 0,
            stamp: 0,
            hungry: false,
            due: false,
            deadline: None,
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The devices.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The devices.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.fabric
    }

    /// The port that connections of this color leave by.
    pub fn port_for(&self, color: u32) -> usize {
        color.min(self.config.colors - 1) as usize
    }

    /// The open connection to `rank` by `color`, whose [`Event::Opened`] was taken.
    #[inline]
    pub fn find(&self, rank: u32, color: u32) -> Option<Link> {
        self.open.get(key(rank, color))
    }

    /// Returns true if the place is in this life, and open.
    #[inline]
    pub fn is_open(&self, link: Link) -> bool {
        let place = &self.places[link.index as usize];
        place.life == link.life && place.state == State::Open
    }

    /// Returns true if the place is in this life.
    #[inline]
    pub fn is_alive(&self, link: Link) -> bool {
        self.places.get(link.index as usize).is_some_and(|place| place.life == link.life)
    }

    /// The life that the place is in; None if it is free.
    #[inline]
    pub fn link(&self, index: u32) -> Option<Link> {
        let place = self.places.get(index as usize)?;
        (place.state != State::Free).then_some(Link { index, life: place.life })
    }

    /// Returns true if the connection is held.
    pub fn is_held(&self, link: Link) -> bool {
        let place = &self.places[link.index as usize];
        place.life == link.life && place.holds > 0
    }

    /// Keeps the connection from being closed.
    #[inline]
    pub fn hold(&mut self, link: Link) {
        let place = &mut self.places[link.index as usize];
        debug_assert_eq!(place.life, link.life, "a connection that was is held");
        place.holds += 1;
    }

    /// Gives a hold back.
    #[inline]
    pub fn release(&mut self, link: Link) {
        self.stamp += 1;
        let place = &mut self.places[link.index as usize];
        debug_assert!(place.life == link.life && place.holds > 0, "{link:?} is released, and is not held: {place:?}");
        place.holds -= 1;
        place.stamp = self.stamp;
        place.let_go |= place.holds == 0;
        self.due |= place.holds == 0 && (self.hungry | (place.state == State::Closing));
    }

    /// Counts a message that takes a receive of the peer.
    #[inline]
    pub fn sent(&mut self, link: Link) {
        let place = &mut self.places[link.index as usize];
        debug_assert_eq!(place.life, link.life, "a connection that was sends");
        place.sent = place.sent.wrapping_add(1);
    }

    /// Counts a message that has taken a receive.
    #[inline]
    pub fn received(&mut self, link: Link) {
        let place = &mut self.places[link.index as usize];
        debug_assert_eq!(place.life, link.life, "a connection that was receives");
        place.received = place.received.wrapping_add(1);
        if place.state != State::Open {
            self.received_early_or_late(link.index);
        }
    }

    #[cold]
    fn received_early_or_late(&mut self, index: u32) {
        match self.places[index as usize].state {
            // It was said after the Ready that was lost, or is late.
            State::Accepted => self.opened(index),
            _ => self.due = true,
        }
    }

    /// The connections by which a peer may post.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        let places = self.places.iter().zip(0..);
        let reached = places.filter(|(place, _)| !matches!(place.state, State::Free | State::Connecting));
        reached.map(|(place, index)| Link { index, life: place.life })
    }

    /// Returns true if a connection is closing.
    pub fn is_draining(&self) -> bool {
        self.closing > 0
    }

    /// Sets the hello that peers get with each connection from now on.
    pub fn set_hello(&mut self, hello: Vec<u8>) {
        self.config.hello = hello;
    }

    /// The hello that the peer has passed.
    pub fn hello(&self, link: Link) -> &[u8] {
        &self.peers[link.index as usize].hello
    }

    /// The rank at the other end, and the color.
    pub fn peer(&self, link: Link) -> (u32, u32) {
        let peer = &self.peers[link.index as usize];
        (peer.rank, peer.color)
    }

    /// The port of a connection, by its place in the list.
    pub fn port_of(&self, link: Link) -> usize {
        self.peers[link.index as usize].port
    }

    /// The next of what has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if let Some(Event::Opened(link)) = event {
            // A connection whose event the owner has not taken is not closed, so it is that life.
            self.places[link.index as usize].unseen = false;
            let (rank, color) = self.peer(link);
            self.open.insert(key(rank, color), link);
            self.due |= self.hungry;
        }
        event
    }

    /// Returns true if the owner has something to do at once: [`progress`](Pool::progress), an event to take, a leader
    /// to fetch.
    pub fn needs_owner(&self) -> bool {
        self.due || !self.events.is_empty() || self.known.has_wanted()
    }

    /// Returns true if [`progress`](Pool::progress) has something to do at once.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Does what is due, and says when to call it next, if nothing else happens before.
    pub fn progress(&mut self, now: Instant) -> Option<Instant> {
        let is_time = self.deadline.is_some_and(|deadline| deadline <= now);
        if is_time {
            self.repeat_registration(now);
            self.repeat_lookups(now);
            self.repeat_seeking(now);
            self.repeat_handshakes(now);
        }
        if is_time || self.due {
            self.settle(now);
        }
        self.deadline
    }

    /// Takes a datagram that came to the door of `port`; it may be anything.
    pub fn datagram(&mut self, now: Instant, port: usize, bytes: &[u8]) {
        let Some(own) = self.key else { return };
        let envelope = match decode(bytes, &own, self.config.epoch) {
            Decoded::Ours(envelope) => envelope,
            Decoded::OtherVersion(version) => return self.other_version(version),
            Decoded::Foreign => return,
        };
        let (from, door) = (envelope.from, envelope.door);
        let is_registering = matches!(envelope.message, Message::Register { .. } | Message::Refused);
        // A second process with this process's rank gets an answer to its registration; its other messages are ignored.
        if from >= self.config.size || from == self.config.rank && !is_registering {
            return;
        }
        match envelope.message {
            Message::Register { doors } => self.on_register(port, from, door, doors),
            Message::Registered => self.registered_by(door),
            Message::Refused => self.refused(door),
            Message::Lookup { rank } => self.on_lookup(port, door, rank),
            Message::Found { rank, doors } => self.on_found(rank, doors),
            Message::SeekLeader { leader } => self.on_seek(port, door, leader),
            Message::LeaderFound { leader, doors } => self.on_leader_found(leader, doors),
            Message::Connect { id, to, lanes, hello } if to == self.config.rank && id.initiator == from => {
                self.on_connect(now, port, knocks::Knock { rank: from, door, id, lanes, hello: hello.to_vec() });
            }
            Message::Connect { .. } => return,
            Message::Accept { id, lanes, hello } => self.on_accept(port, from, door, &id, &lanes, hello),
            Message::Ready { id } => self.on_ready(from, &id),
            Message::Busy { id } => self.on_busy(now, from, &id),
            Message::Wait { id, round } => self.on_wait(now, from, &id, round),
            Message::Stale { id } => self.on_stale(from, &id),
            Message::Disconnect { id, sent, round } => self.on_disconnect(port, from, door, &id, (sent, round)),
            Message::Disconnected { id, sent } => self.on_disconnected(from, &id, sent),
        }
        self.settle(now);
    }

    /// One sentence for the whole job is enough.
    fn other_version(&mut self, version: u16) {
        if self.registration.is_refused() {
            return;
        }
        self.registration = Registration::Refused;
        let sentence = format!(
            "two versions of Vervain are in one job: rank {} speaks version {VERSION} of the mesh, another {version}",
            self.config.rank
        );
        self.fail(self.config.rank, 0, Error::new(sentence));
    }

    fn fail(&mut self, rank: u32, color: u32, error: Error) {
        self.events.push_back(Event::Failed { rank, color, error });
    }

    /// Carries out the consequences of any change: free places go to the ranks that wait, and others are freed for the
    /// rest.
    fn settle(&mut self, now: Instant) {
        self.due = false;
        loop {
            self.finish_closings();
            // Requests that came while it closed are among them.
            self.locate(now);
            self.seek_leaders(now);
            self.serve(now);
            if !self.evict(now) {
                break;
            }
        }
        self.turn_away(now);
        self.deadline = self.next_deadline();
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let places = self.changing.iter().filter_map(|index| self.peers[*index as usize].repeat.as_ref());
        let next = places.map(|repeat| repeat.next()).min();
        let seeking = self.seeking.next_deadline();
        [next, self.wants.next_deadline(), self.registration.next_deadline(), seeking].into_iter().flatten().min()
    }

    /// Sends a message from `port`.
    fn say(&mut self, port: usize, to: &Door, message: Message<'_>) {
        say(&mut self.fabric, &self.config, self.key, port, to, message);
    }

    /// The place of that attempt, where it is known.
    fn place_of(&self, from: u32, id: &Id) -> Option<u32> {
        let index = self.used.get(key(from, id.color))?;
        (self.peers[index as usize].id == *id).then_some(index)
    }

    /// A free place, if possible one that has QPs at this port.
    fn take_free(&mut self, port: usize) -> Option<u32> {
        let made = self.free.iter().rposition(|index| self.fabric.is_made(*index, port));
        let at = made.or_else(|| self.free.len().checked_sub(1))?;
        Some(self.free.swap_remove(at))
    }

    /// Begins a life of a place that was free.
    fn occupy(&mut self, index: u32, state: State, peer: Peer) {
        self.used.insert(key(peer.rank, peer.color), index);
        self.changing.push(index);
        let place = &mut self.places[index as usize];
        *place = Place { state, life: place.life, ..Place::FREE };
        self.peers[index as usize] = peer;
    }

    /// The place is open at both ends.
    fn opened(&mut self, index: u32) {
        self.changing.retain(|there| *there != index);
        self.stamp += 1;
        let (place, peer) = (&mut self.places[index as usize], &mut self.peers[index as usize]);
        (place.state, place.unseen, place.stamp) = (State::Open, true, self.stamp);
        (peer.repeat, peer.wanted) = (None, None);
        let link = Link { index, life: place.life };
        self.events.push_back(Event::Opened(link));
    }

    /// Ends the life of a place that is not open any more, or never was. Its pending request is made again.
    fn vacate(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if place.state == State::Closing {
            self.closing -= 1;
        }
        if place.state != State::Connecting {
            let peer = &self.peers[index as usize];
            let link = Link { index, life: place.life };
            self.events.push_back(Event::Closed { link, rank: peer.rank, color: peer.color });
        }
        *place = Place { life: place.life.wrapping_add(1), ..Place::FREE };
        let peer = std::mem::replace(&mut self.peers[index as usize], Peer::NONE);
        self.changing.retain(|there| *there != index);
        self.used.remove(key(peer.rank, peer.color));
        self.free.push(index);
        if let Err(error) = self.fabric.reset(index, peer.port) {
            self.fail(peer.rank, peer.color, error);
        }
        if let Some(mut want) = peer.wanted {
            if matches!(want.stage, Stage::Locating(_)) {
                want.stage = Stage::New;
            }
            self.wants.insert(want);
        }
    }
}

/// [`Pool::say`], for when a part of the pool is in the message.
fn say<F: Fabric>(fabric: &mut F, config: &Config, key: Option<Key>, port: usize, to: &Door, message: Message<'_>) {
    let Some(key) = key else { return };
    let envelope = Envelope { from: config.rank, door: config.doors.of(port as u32), message };
    let mut room = [0; MAX_DATAGRAM];
    fabric.send(port, to, encode(&mut room, &key, config.epoch, &envelope));
}
