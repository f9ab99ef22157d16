//! A model of peers that remember entries. Whatever they do, and however late their requests arrive, an rkey that one
//! has read never leads to another region than the one that it was read for.
//!
//! The table is the real one. The model of the device has keys, which it uses again as soon as it may. Its peers do as
//! the engine does: they read entries, keep them for their connection, forget them when they are asked, and answer
//! behind their requests.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ptr::NonNull;

use proptest::prelude::*;

use super::*;

/// Keys of the device: so few that each comes back at once.
const RKEYS: u32 = 6;
const PEERS: usize = 3;
/// Ranks of the largest job: there the table is smallest.
const RANKS: u32 = 1 << 21;
const SIZE: usize = 64;

/// A step of the model; a number selects one of several, modulo their count.
#[derive(Debug, Clone, Copy)]
enum Act {
    Register,
    /// It waits for no peer.
    RegisterAtOnce,
    Unregister(usize),
    /// A peer accesses the region of this number, whether that still exists or not.
    Access(usize, usize),
    /// The next request of a peer arrives.
    Arrive(usize),
    /// A peer receives the request to forget.
    Hear(usize),
    Connect(usize),
    Disconnect(usize),
}

/// A request of a peer under way; each connection keeps their order.
enum Request {
    ReadEntry { key: u32, stamp: u64 },
    Access(Entry),
    HasForgotten,
}

#[derive(Default)]
struct Peer {
    connected: bool,
    stamp: u64,
    entries: HashMap<u32, (u64, Entry)>,
    requests: VecDeque<Request>,
    /// True: it is asked to forget, and has not received the request.
    asked: bool,
    /// A round waits for it.
    awaited: bool,
}

/// A round of asking, as the engine has it.
struct Round {
    waits: usize,
    keys: usize,
}

struct Model {
    table: Table,
    peers: Vec<Peer>,
    round: Option<Round>,
    /// Keys that the device can give, the last one first, and the start of the region that each used key has.
    rkeys: Vec<u32>,
    device: BTreeMap<u32, u64>,
    /// The addresses of all regions that there have been, in the order of their starts, which never repeat; and those
    /// that exist, with their rkeys.
    regions: Vec<GlobalAddress>,
    live: Vec<(GlobalAddress, u32)>,
    reused: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            table: Table::new(&[], 1, Layout::of(RANKS).expect("a layout")).expect("a table"),
            peers: (0..PEERS).map(|_| Peer { connected: true, ..Peer::default() }).collect(),
            round: None,
            rkeys: (1..=RKEYS).collect(),
            device: BTreeMap::new(),
            regions: vec![],
            live: vec![],
            reused: 0,
        }
    }

    /// As `World::register_foreign`, which tries again after the round, and `World::register_at_once`.
    fn register(&mut self, at_once: bool) {
        if at_once && self.table.wants_round() {
            self.begin_round();
        }
        let Some(rkey) = self.rkeys.pop() else { return };
        let key = match () {
            () if self.table.remembers(rkey) => Ok(KeyFor::AfterRound),
            () if at_once => self.table.key_at_once(),
            () => self.table.key(),
        };
        let Ok(KeyFor::Key(key)) = key else {
            self.rkeys.push(rkey);
            return self.begin_round();
        };
        let start = (self.regions.len() as u64 + 1) * SIZE as u64;
        let place = NonNull::new(std::ptr::without_provenance_mut(start as usize)).expect("not 0");
        let address = self.table.insert(key, Registration::of_nobody(place, SIZE, rkey), 0);
        self.device.insert(rkey, start);
        self.reused += u64::from(self.regions.contains(&address));
        self.regions.push(address);
        self.live.push((address, rkey));
    }

    fn unregister(&mut self, which: usize) {
        if self.live.is_empty() {
            return;
        }
        let (address, rkey) = self.live.swap_remove(which % self.live.len());
        // Starter memories stay.
        if self.table.remove(address).is_err() {
            return self.live.push((address, rkey));
        }
        self.device.remove(&rkey);
        self.rkeys.push(rkey);
    }

    fn begin_round(&mut self) {
        if self.round.is_some() {
            return;
        }
        let connected = self.peers.iter_mut().filter(|peer| peer.connected);
        let waits = 1 + connected.map(|peer| (peer.asked, peer.awaited) = (true, true)).count();
        self.round = Some(Round { waits, keys: self.table.given_up() });
        self.forgotten();
    }

    fn forgotten(&mut self) {
        let round = self.round.as_mut().expect("a round");
        round.waits -= 1;
        if round.waits == 0 {
            let keys = round.keys;
            self.round = None;
            self.table.round_done(keys);
        }
    }

    fn access(&mut self, peer: usize, which: usize) {
        if self.regions.is_empty() || !self.peers[peer].connected {
            return;
        }
        let address = self.regions[which % self.regions.len()];
        let key = self.table.layout.parts(address).expect("parts").key;
        let peer = &mut self.peers[peer];
        let known = peer.entries.get(&key).filter(|(stamp, _)| *stamp == peer.stamp);
        peer.requests.push_back(match known {
            Some((_, entry)) => Request::Access(*entry),
            None => Request::ReadEntry { key, stamp: peer.stamp },
        });
    }

    fn arrive(&mut self, of: usize) {
        let peer = &mut self.peers[of];
        match peer.requests.pop_front() {
            Some(Request::ReadEntry { key, stamp }) => {
                let words = [0, 8, 16, 24].map(|word| self.table.published.word(key as usize * Entry::BYTES + word));
                if let Ok(Some(entry)) = read_entry(words)
                    && stamp == peer.stamp
                {
                    peer.entries.insert(key, (stamp, entry));
                }
            }
            Some(Request::Access(entry)) => {
                let reached = self.device.get(&entry.rkey);
                assert!(
                    reached.is_none_or(|region| *region == entry.start),
                    "rkey {} of {:#x} leads to {reached:x?}",
                    entry.rkey,
                    entry.start
                );
            }
            Some(Request::HasForgotten) => {
                peer.awaited = false;
                self.forgotten();
            }
            None => {}
        }
    }

    fn hear(&mut self, of: usize) {
        let peer = &mut self.peers[of];
        if std::mem::take(&mut peer.asked) {
            peer.stamp += 1;
            peer.requests.push_back(Request::HasForgotten);
        }
    }

    /// Connections end when nothing is under way on them.
    fn disconnect(&mut self, of: usize) {
        if !self.peers[of].connected {
            return;
        }
        while !self.peers[of].requests.is_empty() {
            self.arrive(of);
        }
        let peer = &mut self.peers[of];
        (peer.connected, peer.asked) = (false, false);
        peer.stamp += 1;
        if std::mem::take(&mut peer.awaited) {
            self.forgotten();
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Register => self.register(false),
            Act::RegisterAtOnce => self.register(true),
            Act::Unregister(which) => self.unregister(which),
            Act::Access(peer, which) => self.access(peer % PEERS, which),
            Act::Arrive(peer) => self.arrive(peer % PEERS),
            Act::Hear(peer) => self.hear(peer % PEERS),
            Act::Connect(peer) => self.peers[peer % PEERS].connected = true,
            Act::Disconnect(peer) => self.disconnect(peer % PEERS),
        }
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => Just(Act::Register),
        2 => Just(Act::RegisterAtOnce),
        4 => any::<usize>().prop_map(Act::Unregister),
        8 => (any::<usize>(), any::<usize>()).prop_map(|(peer, which)| Act::Access(peer, which)),
        8 => any::<usize>().prop_map(Act::Arrive),
        3 => any::<usize>().prop_map(Act::Hear),
        1 => any::<usize>().prop_map(Act::Connect),
        1 => any::<usize>().prop_map(Act::Disconnect),
    ]
}

proptest! {
    #[test]
    fn an_rkey_leads_to_the_region_it_was_read_for_or_nowhere(acts in prop::collection::vec(act(), 1..600)) {
        let mut model = Model::new();
        acts.into_iter().for_each(|act| model.act(act));
    }
}

#[test]
fn keys_come_back() {
    let mut model = Model::new();
    for i in 0..20_000 {
        model.register(i % 2 == 0);
        model.unregister(i);
        (0..PEERS).for_each(|peer| model.access(peer, i));
        (0..PEERS).for_each(|peer| model.hear(peer));
        (0..3 * PEERS).for_each(|peer| model.arrive(peer % PEERS));
    }
    assert!(model.reused > 5_000, "{} of {} regions had an old address", model.reused, model.regions.len());
}
