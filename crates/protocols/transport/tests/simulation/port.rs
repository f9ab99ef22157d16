//! A host's way out: packets with their ICRC, and the hash of everything that happened.

use vervain_wire::Headers;

use crate::codec;
use crate::landing::{Note, Parcel};
use crate::random::Random;

/// A ring to another host, as its sender sees it.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub slots: u64,
    /// Packets put into it since the start.
    pub put: u64,
    /// Packets that the other host has taken out of it, and those that this one knows of.
    pub taken: u64,
    pub known: u64,
}

impl Ring {
    pub fn is_full(&self) -> bool {
        self.put - self.known >= self.slots
    }
}

pub struct Port {
    host: usize,
    random: Random,
    /// How often in a thousand packets the socket is full.
    full: u64,
    deaf: u64,
    /// Packets that leave now, and for whom.
    pub out: Vec<(usize, Parcel)>,
    /// The rings to other hosts, if there are any.
    pub rings: Vec<Ring>,
    pub trace: Trace,
}

impl Port {
    pub fn new(host: usize, full: u64, deaf: u64, random: Random) -> Self {
        Self { host, random, full, deaf, out: Vec::new(), rings: Vec::new(), trace: Trace::default() }
    }

    /// Returns true if a packet to host `to` finds no room.
    pub fn is_full(&mut self, to: usize) -> bool {
        self.rings.get(to).is_some_and(Ring::is_full) || self.full > 0 && self.random.permille(self.full)
    }

    pub fn is_deaf(&mut self) -> bool {
        self.deaf > 0 && self.random.permille(self.deaf)
    }

    pub fn send(&mut self, to: usize, headers: &Headers, payload: &[u8], note: Option<Note>) {
        let bth = &headers.bth;
        assert_eq!(usize::from(bth.pad), payload.len().wrapping_neg() % 4, "wrong padding");
        assert!(bth.psn < 1 << 24, "PSN {:#x} of more than 24 bits", bth.psn);
        if let Some(ring) = self.rings.get_mut(to) {
            ring.put += 1;
        }
        let packet = codec::encode(self.host, to, headers, payload);
        self.out.push((to, Parcel { packet, note }));
    }

    pub fn note(&mut self, what: &[u64]) {
        self.trace.note(what);
    }
}

/// A hash of events, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace(u64);

impl Trace {
    pub fn note(&mut self, what: &[u64]) {
        for word in what {
            self.0 = crate::random::mix(self.0, *word);
        }
    }

    pub fn value(self) -> u64 {
        self.0
    }
}
