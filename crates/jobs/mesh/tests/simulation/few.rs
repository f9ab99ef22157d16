//! Some machines whose datagrams go where a test says.

use std::time::{Duration, Instant};

use vervain_mesh::protocol::{Config, Decoded, Envelope, Key, MAX_DATAGRAM, Message, Pool, decode, encode};
use vervain_mesh::{Door, Event, Lanes, Link};

use crate::fabric::{Fake, behind, door, doors};
use crate::world::{EPOCH, KEY, Setting, config};

/// Two to some machines, whose datagrams go where the test says.
pub struct Few {
    pub now: Instant,
    pub pools: Vec<Pool<Fake>>,
}

fn setting(connections: usize) -> Setting {
    Setting {
        seed: 1,
        machines: 16,
        colors: 1,
        block: 1024,
        connections,
        lost: 0,
        repeated: 0,
        late: 0,
        hold: 0,
        jobs: 0,
        at_once: 0,
        verbose: false,
    }
}

pub fn pool(rank: u32, machine: u32, change: impl FnOnce(&mut Config)) -> Pool<Fake> {
    let mut config = config(&setting(2), rank, machine);
    change(&mut config);
    Pool::new(config, Fake::new(machine, u64::from(machine)))
}

impl Few {
    /// Makes this number of machines, of the same ranks, all registered.
    pub fn new(machines: u32) -> Few {
        let pools = (0..machines).map(|machine| pool(machine, machine, |_| ())).collect();
        let mut few = Few { now: Instant::now(), pools };
        for machine in 0..machines as usize {
            few.pools[machine].set_key(KEY);
            few.pools[machine].introduce(few.now, doors(0, 1));
        }
        few.exchange();
        assert!(few.pools.iter().all(Pool::registered));
        few
    }

    /// The datagrams that a machine has sent.
    pub fn sent(&mut self, machine: usize) -> Vec<(Door, Vec<u8>)> {
        let sent = std::mem::take(&mut self.pools[machine].fabric_mut().sent);
        sent.into_iter().map(|(_, door, bytes)| (door, bytes)).collect()
    }

    pub fn deliver(&mut self, (door, bytes): (Door, Vec<u8>)) {
        let (to, port) = behind(&door);
        self.pools[to].datagram(self.now, port, &bytes);
    }

    /// Delivers all, and what comes of it, at once.
    pub fn exchange(&mut self) {
        self.exchange_but(|_| false);
    }

    /// Delivers all but those that are `lost`, and what comes of it, at once.
    pub fn exchange_but(&mut self, mut lost: impl FnMut(&Message<'_>) -> bool) {
        loop {
            let mut all: Vec<_> = (0..self.pools.len()).flat_map(|machine| self.sent(machine)).collect();
            if all.is_empty() {
                return;
            }
            all.retain(|(_, bytes)| !lost(&ours(bytes).message));
            all.into_iter().for_each(|datagram| self.deliver(datagram));
            for pool in &mut self.pools {
                pool.progress(self.now);
            }
        }
    }

    /// Lets time pass; what is sent meanwhile stays where it is.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(1);
            for pool in &mut self.pools {
                pool.progress(self.now);
            }
        }
    }

    pub fn events(&mut self, machine: usize) -> Vec<Event> {
        std::iter::from_fn(|| self.pools[machine].next_event()).collect()
    }

    /// The connection that the machine's owner finds, having heard of all.
    pub fn found(&mut self, machine: usize, rank: u32) -> Option<Link> {
        self.events(machine);
        self.pools[machine].find(rank, 0)
    }

    /// Connects two, and has both owners see it.
    pub fn open(&mut self, machine: usize, rank: u32) -> Link {
        self.pools[machine].want(self.now, rank, 0);
        self.exchange();
        let seen: Vec<_> = (0..self.pools.len()).map(|machine| self.events(machine)).collect();
        let opened = seen[machine].iter().find_map(|event| match event {
            Event::Opened(link) => Some(*link),
            _ => None,
        });
        opened.unwrap_or_else(|| panic!("{seen:?}"))
    }
}

pub fn ours(bytes: &[u8]) -> Envelope<'_> {
    match decode(bytes, &KEY, EPOCH) {
        Decoded::Ours(envelope) => envelope,
        other => panic!("{other:?}"),
    }
}

pub fn encoded(key: &Key, epoch: u32, from: u32, message: Message<'_>) -> Vec<u8> {
    let mut room = [0; MAX_DATAGRAM];
    encode(&mut room, key, epoch, &Envelope { from, door: door(7, 0), message }).to_vec()
}

pub const LANES: Lanes = Lanes { data: (1, 2), commands: (3, 4), mtu: 1024, reads: 1 };
