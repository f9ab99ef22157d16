//! A process of the simulation: it does with pairs what a carrier does with them, and checks each message that it
//! takes.

use crate::message::{Buffer, Stamp};
use crate::random::Random;
use crate::simulated::MemoryDevice;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use vervain_window::pairs::block::{self, MTU};
use vervain_window::pairs::heartbeat::Heartbeat;
use vervain_window::pairs::memory::Memory;
use vervain_window::pairs::rendezvous::{Bell, Event, PeerId, Rendezvous};
use vervain_window::pairs::ring::{Class, HEADERS, Incoming, Message, NO_BYTES, Outgoing, Unsent};
use vervain_window::pairs::slot::Kind;
use vervain_window::{GRANULE, Process as Claimed, PutDevice, UseGuard};

/// Settings shared by all processes of a run.
pub struct Rules {
    /// Those of which nothing is believed.
    pub hostile: BTreeSet<PeerId>,
    /// Packets of a pair, before nothing goes wrong any more.
    pub packets: u64,
    /// The most bytes of a usual payload, and of one in `seldom`.
    pub usual: u64,
    pub seldom: u64,
    /// Nanoseconds of a step for whom time matters, and for memory that rests.
    pub ns: u64,
    pub rest_ns: u64,
}

/// A pair as its owner has it.
pub struct Link {
    pub incarnation: u64,
    /// The block of the peer, and its own.
    pub theirs: u64,
    pub own: u64,
    pub out: Outgoing,
    incoming: Incoming,
    uses: Vec<UseGuard>,
    /// The peer's own number for this pair, once a message has come.
    heard_as: Option<u64>,
    serial: u64,
    /// Messages that were made for it, and packets that it has taken.
    pub sent: u64,
    pub taken_packets: u64,
    /// All messages taken.
    pub taken: u64,
    owes_ring: bool,
    /// The ring that the peer has given.
    pub long: Option<u64>,
    /// Memory that the device may read until so many messages were taken.
    used: VecDeque<(u64, Buffer)>,
    /// A peer that is not believed has put what cannot be.
    pub over: bool,
    /// Heartbeats of the two, and true if the peer has been silent for long.
    heartbeat: Heartbeat,
    pub is_silent: bool,
    /// Packets that are still to be sent.
    pub budget: u64,
}

pub struct Process {
    pub id: PeerId,
    pub device: Arc<MemoryDevice>,
    pub claimed: Arc<Claimed>,
    pub rendezvous: Rendezvous,
    pub memory: Memory,
    pub bell: Bell,
    pub links: BTreeMap<PeerId, Link>,
    pub wants: BTreeSet<PeerId>,
    /// Steps until which it is stopped.
    pub stopped: u64,
    /// True if it does not announce its life any more.
    pub is_quiet: bool,
    news: Vec<Event>,
    serials: u64,
    is_hostile: bool,
    /// Packets for each of its pairs.
    budget: u64,
    pub tally: Tally,
}

/// Counts of a process's actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub packets: u64,
    pub bytes: u64,
    pub pairs: u64,
    pub full: u64,
    pub ends: u64,
}

impl Link {
    fn beat(&mut self) {
        self.out.tell(block::BEAT, self.heartbeat.beat().into());
        self.is_silent = self.heartbeat.look(self.out.told(block::BEAT));
    }

    /// A message of `peer` to the process with incarnation `own`.
    fn handle(
        &mut self,
        (peer, own): (PeerId, u64),
        device: &MemoryDevice,
        message: &Message,
        believes: bool,
        tally: &mut Tally,
    ) {
        let at = device.own().bytes(message.payload..message.payload + message.len).expect("inside of the region");
        // SAFETY: inside of the region; a simulation has one thread.
        let payload = unsafe { std::slice::from_raw_parts(at, message.len as usize) };
        match message.kind {
            Kind::Packet if believes => {
                let stamp = Stamp::decode(&message.headers);
                let stamp = stamp.unwrap_or_else(|| panic!("headers of no message: {:?}", message.headers));
                let pair = *self.heard_as.get_or_insert(stamp.pair);
                let (from, number) = (self.incarnation, self.taken_packets);
                assert_eq!(stamp, Stamp { from, pair, to: own, number, len: message.len }, "from {peer:?}");
                assert_eq!(stamp.wrong(payload), None, "bytes of {stamp:?}");
                self.taken_packets += 1;
                tally.packets += 1;
                tally.bytes += message.len;
            }
            Kind::WantLongRing => self.owes_ring = true,
            Kind::LongRing => {
                let at = message.headers.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                let granule = (at / GRANULE).min(1 << 30) as u32;
                let granules = granule..granule + (block::LONG_BYTES / GRANULE) as u32;
                let used = device.claims().use_of(peer.node, granules, self.incarnation);
                if let Ok(used) = used
                    && at.is_multiple_of(GRANULE)
                    && self.out.got_long(at)
                {
                    self.uses.push(used);
                    self.long = Some(at);
                }
            }
            _ => assert!(!believes, "a {:?}, which nobody sends", message.kind),
        }
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let links: Vec<_> = self.links.iter().map(|(peer, link)| (peer, link.incarnation)).collect();
        let (rendezvous, memory) = (&self.rendezvous, &self.memory);
        write!(f, "{} {rendezvous:?}, {memory:?}, wants {:?}, has {links:?}", self.incarnation(), self.wants)
    }
}

impl Process {
    pub fn new(device: MemoryDevice, rules: &Rules, clock: Box<dyn Fn() -> u64 + Send>) -> Process {
        let device = Arc::new(device);
        let claimed = Arc::new(device.claims().process().expect("a number"));
        let id = PeerId { node: device.facts().node, process: claimed.number() };
        let rendezvous = Rendezvous::new(device.clone(), id, claimed.incarnation());
        let (memory, bell) = (Memory::new(device.clone(), claimed.clone(), clock), rendezvous.bell());
        Process {
            id,
            device,
            claimed,
            rendezvous,
            memory,
            bell,
            links: BTreeMap::new(),
            wants: BTreeSet::new(),
            stopped: 0,
            is_quiet: false,
            news: Vec::new(),
            serials: 0,
            is_hostile: rules.hostile.contains(&id),
            budget: rules.packets,
            tally: Tally::default(),
        }
    }

    pub fn incarnation(&self) -> u64 {
        self.claimed.incarnation()
    }

    /// Returns true if this peer's messages are checked, and not only survived.
    fn believes(&self, rules: &Rules, peer: PeerId) -> bool {
        !self.is_hostile && !rules.hostile.contains(&peer)
    }

    /// Takes a turn; with `all` it does everything that there is to do.
    pub fn act(&mut self, step: u64, all: bool, rules: &Rules, random: &mut Random) {
        let now = step * rules.ns;
        if all || random.one_in(3) {
            self.keep_time(now, random);
        }
        if all || random.one_in(2) {
            self.meet(false);
        }
        // Programs connect also where there is a pair already, which may be with one that is dead.
        let Process { wants, links, rendezvous, memory, news, .. } = self;
        for peer in wants.iter() {
            let connects = match links.contains_key(peer) {
                true if all => step.is_multiple_of(4096),
                true => random.one_in(200),
                false => random.one_in(20),
            };
            if connects {
                rendezvous.request_pair(now, *peer, memory, &mut |event| news.push(event));
            }
        }
        for peer in self.links.keys().copied().collect::<Vec<_>>() {
            if all || random.one_in(2) {
                self.take(peer, rules, if all { u64::MAX } else { random.up_to(6) });
            }
            if all || random.one_in(2) {
                self.send(peer, rules, random.up_to(6), random);
            }
        }
        // It does not always come to the end of its events.
        if all || !random.one_in(4) {
            self.handle_news();
        }
    }

    fn keep_time(&mut self, now: u64, random: &mut Random) {
        if random.one_in(10) {
            self.claimed.beat();
            if !self.is_quiet {
                self.links.values_mut().for_each(Link::beat);
            }
            let news = &mut self.news;
            self.rendezvous.drop_dead_pairs(&mut self.memory, &mut |event| news.push(event));
        }
        self.rendezvous.announce_again(now);
    }

    /// Looks at the doors if the bell is rung, or `anyway`; with whom something has happened.
    pub fn meet(&mut self, anyway: bool) -> Vec<PeerId> {
        let before = self.news.len();
        if anyway || self.bell.is_rung() {
            let news = &mut self.news;
            self.rendezvous.look(&mut self.memory, &mut |event| news.push(event));
        }
        let peer = |event: &Event| match *event {
            Event::Up { peer, .. } | Event::Down { peer, .. } | Event::NoRoom(peer) => peer,
        };
        self.news[before..].iter().map(peer).collect()
    }

    fn handle_news(&mut self) {
        for event in std::mem::take(&mut self.news) {
            match event {
                Event::Up { peer, incarnation, theirs, own } => self.begin(peer, incarnation, theirs, own),
                Event::Down { peer, incarnation, own } => {
                    self.links.remove(&peer);
                    self.memory.give_back(own, peer, incarnation);
                }
                Event::NoRoom(_) => {}
            }
        }
    }

    fn begin(&mut self, peer: PeerId, incarnation: u64, theirs: u64, own: u64) {
        let granule = (theirs / GRANULE) as u32;
        let Ok(used) = self.device.claims().use_of(peer.node, granule..granule + 1, incarnation) else {
            let news = &mut self.news;
            return self.rendezvous.end_pair(peer, own, &mut self.memory, &mut |event| news.push(event));
        };
        let channel = self.device.channel(peer.node).expect("a node");
        self.serials += 1;
        self.tally.pairs += 1;
        let link = Link {
            incarnation,
            theirs,
            own,
            out: Outgoing::new(channel, theirs, self.device.own().clone(), own),
            incoming: Incoming::new(own),
            uses: vec![used],
            heard_as: None,
            serial: self.serials,
            sent: 0,
            taken_packets: 0,
            taken: 0,
            owes_ring: false,
            long: None,
            used: VecDeque::new(),
            over: false,
            heartbeat: Heartbeat::default(),
            is_silent: false,
            budget: self.budget,
        };
        let before = self.links.insert(peer, link);
        assert!(before.is_none(), "two pairs with {peer:?}");
    }

    /// Takes up to `most` messages.
    fn take(&mut self, peer: PeerId, rules: &Rules, most: u64) {
        let believes = self.believes(rules, peer);
        let Process { links, device, memory, tally, .. } = self;
        let own = self.claimed.incarnation();
        let Some(link) = links.get_mut(&peer) else { return };
        for _ in 0..most.min(block::SLOTS) {
            if link.over {
                break;
            }
            match link.incoming.next(device.own()) {
                Ok(Some(message)) => {
                    link.handle((peer, own), device, &message, believes, tally);
                    link.taken += 1;
                    if let Some(taken) = link.incoming.took(&message) {
                        link.out.tell_taken(taken);
                    }
                }
                Ok(None) => {
                    if let Some(taken) = link.incoming.untold(true) {
                        link.out.tell_taken(taken);
                    }
                    break;
                }
                Err(_) => {
                    assert!(!believes, "{peer:?} has put what is no message");
                    link.over = true;
                }
            }
        }
        if std::mem::take(&mut link.owes_ring)
            && let Some(at) = memory.long_ring(peer)
        {
            link.incoming.has_long(at);
            let mut headers = [0; HEADERS];
            headers[..8].copy_from_slice(&at.to_le_bytes());
            link.owes_ring = !link.over && link.out.send(Kind::LongRing, &headers, &NO_BYTES).is_err();
        }
    }

    /// Sends up to `most` messages.
    fn send(&mut self, peer: PeerId, rules: &Rules, most: u64, random: &mut Random) {
        let (own, believes) = (self.claimed.incarnation(), self.believes(rules, peer));
        let Some(link) = self.links.get_mut(&peer) else { return };
        for _ in 0..most {
            if link.over || link.budget == 0 {
                break;
            }
            let longest = if random.one_in(30) { rules.seldom } else { rules.usual };
            let most = random.one_of(&[8, block::INLINE + 1, longest, longest]);
            let len = random.up_to(most).min(MTU.into());
            let stamp = Stamp { from: own, pair: link.serial, to: link.incarnation, number: link.sent, len };
            let mut buffer = stamp.buffer();
            buffer.late = random.one_in(2);
            let class = if random.one_in(2) { Class::Request } else { Class::Answer };
            let done = link.out.packet(class, &stamp.encode(), &buffer);
            match done {
                Ok(()) => {
                    link.sent += 1;
                    link.budget -= 1;
                    link.used.push_back((link.out.sent(), buffer));
                }
                Err(Unsent::Full) => {
                    self.tally.full += 1;
                    break;
                }
                Err(other) => {
                    assert!(!believes, "{peer:?} makes the ring {other:?}");
                    link.over = true;
                }
            }
        }
        if !link.over && link.out.look().is_err() {
            assert!(!believes, "{peer:?} tells what it cannot have taken to {:?} {}", self.id, link.own);
            link.over = true;
        }
        // Memory of messages that were taken is the program's again.
        while let Some((until, buffer)) = link.used.front()
            && *until <= link.out.taken()
        {
            buffer.reuse();
            link.used.pop_front();
        }
    }
}
