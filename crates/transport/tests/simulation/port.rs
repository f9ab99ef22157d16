//! A host's way out: packets with their ICRC, and the hash of everything that happened.

use vervain_wire::Headers;

use crate::codec;
use crate::random::Random;

pub struct Port {
    host: usize,
    random: Random,
    /// How often in a thousand packets the socket is full.
    full: u64,
    deaf: u64,
    /// Packets that leave now, and for whom.
    pub out: Vec<(usize, Vec<u8>)>,
    pub trace: Trace,
}

impl Port {
    pub fn new(host: usize, full: u64, deaf: u64, random: Random) -> Self {
        Self { host, random, full, deaf, out: Vec::new(), trace: Trace::default() }
    }

    pub fn is_full(&mut self) -> bool {
        self.full > 0 && self.random.permille(self.full)
    }

    pub fn is_deaf(&mut self) -> bool {
        self.deaf > 0 && self.random.permille(self.deaf)
    }

    pub fn send(&mut self, to: usize, headers: &Headers, payload: &[u8]) {
        let bth = &headers.bth;
        assert_eq!(usize::from(bth.pad), payload.len().wrapping_neg() % 4, "wrong padding");
        assert!(bth.psn < 1 << 24, "PSN {:#x} of more than 24 bits", bth.psn);
        let packet = codec::encode(self.host, to, headers, payload);
        self.out.push((to, packet));
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
