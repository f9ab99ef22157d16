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
mod node;
mod place;
mod places;
mod repeat;
mod wants;

use std::time::{Duration, Instant};

use crate::address::{Door, Doors, Lanes};
use crate::error::Result;
use crate::options::{Event, Link};

pub use directory::{BLOCK, leader_of};
pub(crate) use leaders::fetched;
pub use leaders::teller;
pub use message::{Decoded, Envelope, Id, Key, MAX_DATAGRAM, Message, VERSION, decode, encode};

use directory::{Directory, Known};
use knocks::Knocks;
use locate::Locator;
use node::Node;
use place::{Closed, State};
use places::Places;
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
    node: Node<F>,
    places: Places,
    wants: Wants,
    knocks: Knocks,
    locator: Locator,
    closed: Closed,
    nonce: u64,
    turn: u64,
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
        Self {
            places: Places::bytes(places),
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
        Self {
            places: Places::new(config.connections),
            wants: Wants::default(),
            knocks: Knocks::default(),
            locator: Locator::new(&config),
            closed: Closed::new(),
            nonce: 0,
            turn: 0,
            hungry: false,
            due: false,
            deadline: None,
            node: Node::new(config, fabric),
        }
    }

    /// The job's key: from now on datagrams are heard and sent.
    pub fn set_key(&mut self, key: Key) {
        self.node.set_key(key);
    }

    /// Registers with the leader of the own block, which is there.
    pub fn introduce(&mut self, now: Instant, leader: Doors) {
        self.locator.introduce(&mut self.node, &mut self.wants, now, leader);
        self.settle(now);
    }

    /// Returns true if this rank is in the directory.
    pub fn registered(&self) -> bool {
        self.locator.registered()
    }

    /// The job rank of a leader whose address the owner is to fetch; of leaders only.
    pub fn wanted_leader(&mut self) -> Option<u32> {
        self.locator.wanted_leader()
    }

    /// Goes on with those who waited for the leader's address.
    pub fn leader_found(&mut self, now: Instant, leader: u32, found: Result<Doors>) {
        self.locator.leader_found(&mut self.node, &mut self.wants, leader, found);
        self.settle(now);
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.node.config
    }

    /// The devices.
    pub fn fabric(&self) -> &F {
        &self.node.fabric
    }

    /// The devices.
    pub fn fabric_mut(&mut self) -> &mut F {
        &mut self.node.fabric
    }

    /// The port that connections of this color leave by.
    pub fn port_for(&self, color: u32) -> usize {
        self.node.port_for(color)
    }

    /// The open connection to `rank` by `color`, whose [`Event::Opened`] was taken.
    #[inline]
    pub fn find(&self, rank: u32, color: u32) -> Option<Link> {
        self.places.find_open(rank, color)
    }

    /// Returns true if the place is in this life, and open.
    #[inline]
    pub fn is_open(&self, link: Link) -> bool {
        let place = self.places.place(link.index);
        place.life == link.life && place.state == State::Open
    }

    /// Returns true if the place is in this life.
    #[inline]
    pub fn is_alive(&self, link: Link) -> bool {
        self.places.get(link.index).is_some_and(|place| place.life == link.life)
    }

    /// The life that the place is in; None if it is free.
    #[inline]
    pub fn link(&self, index: u32) -> Option<Link> {
        let place = self.places.get(index)?;
        (place.state != State::Free).then_some(Link { index, life: place.life })
    }

    /// Returns true if the connection is held.
    pub fn is_held(&self, link: Link) -> bool {
        let place = self.places.place(link.index);
        place.life == link.life && place.holds > 0
    }

    /// Keeps the connection from being closed.
    #[inline]
    pub fn hold(&mut self, link: Link) {
        let place = self.places.place_mut(link.index);
        debug_assert_eq!(place.life, link.life, "a connection that was is held");
        place.holds += 1;
    }

    /// Gives a hold back.
    #[inline]
    pub fn release(&mut self, link: Link) {
        let place = self.places.release(link);
        self.due |= place.holds == 0 && (self.hungry | (place.state == State::Closing));
    }

    /// Counts a message that takes a receive of the peer.
    #[inline]
    pub fn sent(&mut self, link: Link) {
        let place = self.places.place_mut(link.index);
        debug_assert_eq!(place.life, link.life, "a connection that was sends");
        place.sent = place.sent.wrapping_add(1);
    }

    /// Counts a message that has taken a receive.
    #[inline]
    pub fn received(&mut self, link: Link) {
        let place = self.places.place_mut(link.index);
        debug_assert_eq!(place.life, link.life, "a connection that was receives");
        place.received = place.received.wrapping_add(1);
        if place.state != State::Open {
            self.received_early_or_late(link.index);
        }
    }

    #[cold]
    fn received_early_or_late(&mut self, index: u32) {
        match self.places.place(index).state {
            // It was said after the Ready that was lost, or is late.
            State::Accepted => self.opened(index),
            _ => self.due = true,
        }
    }

    /// The connections by which a peer may post.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.places.links()
    }

    /// Returns true if a connection is closing.
    pub fn is_draining(&self) -> bool {
        self.places.closing() > 0
    }

    /// Sets the hello that peers get with each connection from now on.
    pub fn set_hello(&mut self, hello: Vec<u8>) {
        self.node.config.hello = hello;
    }

    /// The hello that the peer has passed.
    pub fn hello(&self, link: Link) -> &[u8] {
        &self.places.peer(link.index).hello
    }

    /// The rank at the other end, and the color.
    pub fn peer(&self, link: Link) -> (u32, u32) {
        let peer = self.places.peer(link.index);
        (peer.rank, peer.color)
    }

    /// The port of a connection, by its place in the list.
    pub fn port_of(&self, link: Link) -> usize {
        self.places.peer(link.index).port
    }

    /// The next of what has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.node.next_event();
        if let Some(Event::Opened(link)) = event {
            self.places.seen(link);
            self.due |= self.hungry;
        }
        event
    }

    /// Returns true if the owner has something to do at once: [`progress`](Pool::progress), an event to take, a leader
    /// to fetch.
    pub fn needs_owner(&self) -> bool {
        self.due || self.node.has_events() || self.locator.has_wanted()
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
            self.locator.repeat_registration(&mut self.node, now);
            self.locator.repeat_lookups(&mut self.node, &mut self.wants, now);
            self.locator.repeat_seeking(&mut self.node, &mut self.wants, now);
            self.repeat_handshakes(now);
        }
        if is_time || self.due {
            self.settle(now);
        }
        self.deadline
    }

    /// Takes a datagram that came to the door of `port`; it may be anything.
    pub fn datagram(&mut self, now: Instant, port: usize, bytes: &[u8]) {
        let envelope = match self.node.decode(bytes) {
            Some(Decoded::Ours(envelope)) => envelope,
            Some(Decoded::OtherVersion(version)) => return self.other_version(version),
            Some(Decoded::Foreign) | None => return,
        };
        let (from, door) = (envelope.from, envelope.door);
        let is_registering = matches!(envelope.message, Message::Register { .. } | Message::Refused);
        // A second process with this process's rank gets an answer to its registration; its other messages are ignored.
        let Self { node, wants, locator, .. } = self;
        if from >= node.config.size || from == node.config.rank && !is_registering {
            return;
        }
        match envelope.message {
            Message::Register { doors } => locator.on_register(node, wants, port, (from, door), doors),
            Message::Registered => locator.registered_by(door),
            Message::Refused => locator.refused(node, door),
            Message::Lookup { rank } => locator.on_lookup(node, port, door, rank),
            Message::Found { rank, doors } => locator.on_found(wants, rank, doors),
            Message::SeekLeader { leader } => locator.on_seek(node, port, door, leader),
            Message::LeaderFound { leader, doors } => locator.on_leader_found(node, leader, doors),
            Message::Connect { id, to, lanes, hello } if to == node.config.rank && id.initiator == from => {
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
        if self.locator.is_refused() {
            return;
        }
        let sentence = format!(
            "two versions of Vervain are in one job: rank {} speaks version {VERSION} of the mesh, another {version}",
            self.node.config.rank
        );
        self.locator.refuse(&mut self.node, sentence);
    }

    /// Carries out the consequences of any change: free places go to the ranks that wait, and others are freed for the
    /// rest.
    fn settle(&mut self, now: Instant) {
        self.due = false;
        loop {
            self.finish_closings();
            // Requests that came while it closed are among them.
            self.locator.locate(&mut self.node, &mut self.wants, now);
            self.locator.seek_leaders(&mut self.node, now);
            self.serve(now);
            if !self.evict(now) {
                break;
            }
        }
        self.turn_away(now);
        self.deadline = self.next_deadline();
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        [self.places.next_deadline(), self.wants.next_deadline(), self.locator.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// A free place, if possible one that has QPs at this port.
    fn take_free(&mut self, port: usize) -> Option<u32> {
        self.places.take_free(|index| self.node.fabric.is_made(index, port))
    }

    /// The place is open at both ends.
    fn opened(&mut self, index: u32) {
        let link = self.places.open(index);
        self.node.report(Event::Opened(link));
    }

    /// Ends the life of a place that is not open any more, or never was. Its pending request is made again.
    fn vacate(&mut self, index: u32) {
        let (place, peer) = self.places.vacate(index);
        if place.state != State::Connecting {
            let link = Link { index, life: place.life };
            self.node.report(Event::Closed { link, rank: peer.rank, color: peer.color });
        }
        if let Err(error) = self.node.fabric.reset(index, peer.port) {
            self.node.fail(peer.rank, peer.color, error);
        }
        if let Some(mut want) = peer.wanted {
            if matches!(want.stage, Stage::Locating(_)) {
                want.stage = Stage::New;
            }
            self.wants.insert(want);
        }
    }
}
