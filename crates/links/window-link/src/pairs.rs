//! The pairs of this process: how they begin and end, by the doors ([`vervain_window::pairs::rendezvous`]), and the one
//! with each peer.

use super::pair::Pair;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vervain_hca::host::barrier;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::now_ns;
use vervain_window::pairs::memory::Memory;
use vervain_window::pairs::rendezvous::{Bell, Event, PeerId, Rendezvous};
use vervain_window::pairs::ring::Outgoing;
use vervain_window::pairs::waking::{Barrier, Occasion, Waking};
use vervain_window::{Facts, GRANULE, PROCESSES, Process, PutDevice, Region};

/// The pairs, by peer, with the doors at which they begin and end.
pub struct Pairs {
    device: Arc<dyn PutDevice>,
    process: Arc<Process>,
    meeting: OwnerLock<Meeting>,
    /// Rung when there is something to see at the doors.
    bell: Bell,
    by_peer: OwnerLock<HashMap<PeerId, Arc<Pair>>>,
    /// Events of calls other than looks, in their order; and whether there are any.
    news: OwnerLock<Vec<Event>>,
    has_news: AtomicBool,
}

/// The doors, and the memory that is given out by them.
struct Meeting {
    rendezvous: Rendezvous,
    memory: Memory,
}

impl Pairs {
    /// For this process of the window, which has no pair yet.
    pub fn new(device: Arc<dyn PutDevice>, process: Arc<Process>) -> Pairs {
        let me = PeerId { node: device.facts().node, process: process.number() };
        let rendezvous = Rendezvous::new(Arc::clone(&device), me, process.incarnation());
        let memory = Memory::new(Arc::clone(&device), Arc::clone(&process), Box::new(now_ns));
        let bell = rendezvous.bell();
        Pairs {
            device,
            process,
            meeting: OwnerLock::new(Meeting { rendezvous, memory }),
            bell,
            by_peer: OwnerLock::default(),
            news: OwnerLock::default(),
            has_news: AtomicBool::new(false),
        }
    }

    /// The window.
    pub fn device(&self) -> &Arc<dyn PutDevice> {
        &self.device
    }

    /// The window's facts.
    pub fn facts(&self) -> &Facts {
        self.device.facts()
    }

    /// This process.
    pub fn me(&self) -> PeerId {
        PeerId { node: self.facts().node, process: self.process.number() }
    }

    fn region(&self) -> &Region {
        self.device.own()
    }

    /// The pair with a process, if there is one.
    pub fn get(&self, peer: PeerId) -> Option<Arc<Pair>> {
        self.by_peer.lock().get(&peer).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Pair>> {
        self.by_peer.lock().values().cloned().collect()
    }

    /// Returns true if there is a process of this number.
    pub fn has_process(&self, peer: PeerId) -> bool {
        self.device.claims().has_process(peer.node, peer.process) == Ok(true)
    }

    /// Asks a process for a pair; false where there is no room for it.
    pub fn request(&self, peer: PeerId) -> bool {
        let mut meeting = self.meeting.lock();
        let Meeting { rendezvous, memory } = &mut *meeting;
        let mut events = Vec::new();
        let has_room = rendezvous.request_pair(now_ns(), peer, memory, &mut |event| events.push(event));
        self.note(events);
        has_room
    }

    /// Asks every process of the window for a pair.
    pub fn request_all(&self) {
        for node in 0..self.facts().layout.nodes() {
            for process in 0..PROCESSES {
                if self.has_process(PeerId { node, process }) {
                    self.request(PeerId { node, process });
                }
            }
        }
    }

    /// Returns true if a process may have changed its state at its door, or an event waits.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.bell.is_rung() || self.has_news.load(Ordering::Acquire)
    }

    /// The events at the doors since the last look, in order.
    pub fn look(&self) -> Vec<Event> {
        let mut meeting = self.meeting.lock();
        let Meeting { rendezvous, memory } = &mut *meeting;
        let mut events = Vec::new();
        rendezvous.look(memory, &mut |event| events.push(event));
        self.note(events);
        self.has_news.store(false, Ordering::Release);
        std::mem::take(&mut *self.news.lock())
    }

    /// The next look handles these, in the order in which they have happened. Called under the lock of the meeting: a
    /// connection that is made after it finds no pair any more that is over.
    fn note(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        for event in &events {
            if let Event::Down { peer, .. } = event {
                self.forget(*peer);
            }
        }
        self.news.lock().extend(events);
        self.has_news.store(true, Ordering::Release);
    }

    /// Begins the pair of [`Event::Up`]; None where the peer's memory cannot be held.
    pub fn begin(&self, peer: PeerId, incarnation: u64, theirs: u64, own: u64) -> Option<Arc<Pair>> {
        let granule = (theirs / GRANULE) as u32;
        let used = self.device.claims().use_of(peer.node, granule..granule + 1, incarnation);
        let channel = self.device.channel(peer.node);
        match (used, channel) {
            (Ok(used), Ok(channel)) => {
                let mut outgoing = Outgoing::new(channel, theirs, self.region().clone(), own);
                self.waking(peer).iter().for_each(|(waking, barrier)| outgoing.wakes(*waking, *barrier));
                let words = (self.region().clone(), own);
                let pair = Arc::new(Pair::new((peer, incarnation), outgoing, words, used));
                log::info!("process {} of node {} is reached through the window", peer.process, peer.node);
                self.by_peer.lock().insert(peer, Arc::clone(&pair));
                Some(pair)
            }
            (Err(e), _) | (_, Err(e)) => {
                log::info!("process {} of node {} is not reached through the window: {e}", peer.process, peer.node);
                None
            }
        }
    }

    /// The way to wake a peer, if there is one.
    fn waking(&self, peer: PeerId) -> Option<(Waking, Barrier)> {
        let barrier = if barrier::is_registered() { Barrier::Compiler } else { Barrier::Full };
        let waking = || Waking::new(self.facts().layout, peer, self.me(), Occasion::Pair);
        self.device.wakes(peer.node).then(|| (waking(), barrier))
    }

    /// A pair that has come up cannot be used, so it has to become another one.
    pub fn give_up(&self, peer: PeerId, own: u64) {
        let mut meeting = self.meeting.lock();
        let Meeting { rendezvous, memory } = &mut *meeting;
        let mut events = Vec::new();
        rendezvous.end_pair(peer, own, memory, &mut |event| events.push(event));
        self.note(events);
    }

    fn forget(&self, peer: PeerId) {
        if let Some(pair) = self.by_peer.lock().remove(&peer) {
            pair.end();
        }
    }

    /// A pair is over, and may have begun after another one was forgotten.
    pub fn end(&self, pair: &Arc<Pair>) {
        pair.end();
        let mut pairs = self.by_peer.lock();
        if pairs.get(&pair.peer).is_some_and(|known| Arc::ptr_eq(known, pair)) {
            pairs.remove(&pair.peer);
        }
    }

    /// Block `own`, which this process had for a peer, serves no pair any more.
    pub fn give_back(&self, own: u64, peer: PeerId, incarnation: u64) {
        self.meeting.lock().memory.give_back(own, peer, incarnation);
    }

    /// A high-bandwidth ring of the own region for a peer, if there is room for one.
    pub fn long_ring(&self, peer: PeerId) -> Option<u64> {
        self.meeting.lock().memory.long_ring(peer)
    }

    /// Announces that this process lives, and looks whether its peers do: by the kernel's locks, or by the beats of
    /// other kernels'.
    pub fn beat(&self) {
        self.process.beat();
        let mut events = Vec::new();
        {
            let mut meeting = self.meeting.lock();
            let Meeting { rendezvous, memory } = &mut *meeting;
            rendezvous.drop_dead_pairs(memory, &mut |event| events.push(event));
            self.note(events);
        }
        let is_elsewhere = |pair: &&Arc<Pair>| self.device.claims().is_here(pair.peer.node) == Some(false);
        self.all().iter().filter(is_elsewhere).for_each(|pair| pair.beat());
    }

    /// Announces states again that have no answer. When the next of these is due.
    pub fn announce_again(&self, now: u64) -> Option<u64> {
        self.meeting.lock().rendezvous.announce_again(now)
    }
}
