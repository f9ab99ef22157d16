//! Peers' requests for grants of this process's memory, their answers to this one's, and revocation
//! ([`vervain_window::pairs::grant`]).

use super::connection::Connection;
use super::connections::Connections;
use super::grantees::Grantees;
use super::landing::{QUESTION, Told};
use super::pair::Pair;
use super::pairs::Pairs;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vervain_carrier::terms::takes;
use vervain_hca::host::cancel::nap;
use vervain_hca::process::grants::Grantor;
use vervain_hca::{Qp, now_ns};
use vervain_window::Region;
use vervain_window::pairs::block;
use vervain_window::pairs::grant::{Grant, Want};
use vervain_window::pairs::ring::{Class, HEADERS, Message};
use vervain_window::pairs::slot::Kind;
use vervain_wire::parse_headers;

/// Looks for an answer before the clock is asked, and then the time between two.
const SPINS: u32 = 2000;
const LOOK: Duration = Duration::from_micros(20);
/// A look that comes so late begins anew: this process stood still itself, and so may the peer have.
const LATE_NS: u64 = 50_000_000;
/// Between two looks whether a peer lives.
const LIFE_NS: u64 = 1_000_000;

/// Grants of this process's memory to its peers, and of theirs to its connections.
pub struct Grants {
    /// The peers that were granted memory.
    pub grantees: Arc<Grantees>,
    pairs: Arc<Pairs>,
    connections: Arc<Connections>,
    region: Region,
}

impl Grants {
    /// Grants of a process with these pairs and connections. `direct`: true if data may be put directly to its
    /// destination.
    pub fn new(direct: bool, pairs: Arc<Pairs>, connections: Arc<Connections>) -> Arc<Grants> {
        let (device, region) = (Arc::clone(pairs.device()), pairs.device().own().clone());
        Arc::new_cyclic(|me: &Weak<Grants>| {
            let grantees = Arc::new(Grantees::new(direct, device, Weak::clone(me) as Weak<dyn Grantor>));
            Grants { grantees, pairs, connections, region }
        })
    }

    /// A word of a message's payload.
    fn word(&self, message: &Message, n: u64) -> u64 {
        self.region.word(message.payload + n * block::WORD).load(Ordering::Relaxed)
    }

    /// A peer asks for a grant, to write memory of this process directly.
    pub fn answer_grant(&self, pair: &Arc<Pair>, want: Want) {
        // Before the grant: if it is taken back at once, the peer does not take it for a new one.
        let count = pair.taken_back();
        let mut reply = Grant { qpn: want.from, rkey: want.rkey, count, at: 0, len: 0, iova: 0, owner: 0 };
        let connection = self.connections.by_pair(want.qpn, pair);
        let qp = connection.as_ref().and_then(|c| c.qp().upgrade());
        let grantor = self.grantees.grantor().filter(|_| self.grantees.may_grant(pair, count));
        self.grantees.note(pair);
        connection.iter().for_each(|c| c.path.put_psns.note_grant());
        let grantable = match (qp, grantor) {
            (Some(qp), Some(grantor)) => qp.grant(want.rkey, pair.id, &grantor),
            _ => None,
        };
        let kind = match grantable {
            Some(grantable) => {
                (reply.at, reply.len, reply.iova) = (grantable.offset, grantable.len, grantable.iova);
                reply.owner = grantable.owner;
                Kind::Grant
            }
            None => Kind::NoGrant,
        };
        // Without room the peer asks again later.
        pair.say(Class::Control, kind, &reply.encode());
    }

    /// A peer has answered for a grant.
    pub fn take_grant(&self, pair: &Arc<Pair>, kind: Kind, headers: &[u8; HEADERS]) {
        let grant = Grant::decode(headers);
        let Some(connection) = self.connections.by_pair(grant.qpn, pair) else { return };
        let way = (kind == Kind::Grant).then(|| self.grantees.take_in(pair, &grant)).flatten();
        connection.path.direct.writes.take_answer(grant, way);
    }

    /// The sender of a long message asks where it belongs.
    pub fn answer_landing(&self, pair: &Arc<Pair>, message: &Message) {
        if message.len != QUESTION as u64 || !message.payload.is_multiple_of(block::WORD) {
            return pair.distrust();
        }
        let (length, number) = (self.word(message, 0), self.word(message, 1));
        let Ok(headers) = parse_headers(&message.headers, block::MTU as usize) else { return pair.distrust() };
        let bth = &headers.bth;
        let Some(connection) = self.connections.by_pair(bth.dest_qpn, pair) else { return };
        let Some(qp) = connection.qp().upgrade().filter(|qp| takes(qp, bth.opcode)) else { return };
        let memory = connection.announced(&qp, &headers, length);
        self.tell_landing(&connection, &qp, pair, (bth.psn, number), memory);
    }

    /// Announces the destination of a long message to its sender: `memory` of this process, found by a key.
    fn tell_landing(
        &self,
        connection: &Connection,
        qp: &Qp,
        pair: &Arc<Pair>,
        (psn, number): (u32, u64),
        memory: Option<(u32, Range<u64>)>,
    ) {
        let landing = &connection.path.direct.landing;
        landing.end(qp, pair);
        let count = pair.taken_back();
        let mut reply =
            Grant { qpn: connection.path.peer.qpn, rkey: psn, count, at: 0, len: 0, iova: number, owner: 0 };
        let grantor = self.grantees.grantor().filter(|_| self.grantees.may_grant(pair, count));
        self.grantees.note(pair);
        let told = grantor.zip(memory).and_then(|(grantor, (key, memory))| {
            let found = qp.grant_memory(key, &memory, pair.id, &grantor)?;
            reply.owner = found.owner;
            Some(Told { psn, at: found.offset, memory })
        });
        let kind = match &told {
            Some(told) => {
                (reply.at, reply.len) = (told.at, told.memory.end - told.memory.start);
                Kind::Landing
            }
            None => Kind::NoLanding,
        };
        landing.tell(told);
        if !pair.say(Class::Control, kind, &reply.encode()) {
            landing.end(qp, pair);
        }
    }

    /// A peer has answered where a message belongs: the connection of that message.
    pub fn take_landing(&self, pair: &Arc<Pair>, kind: Kind, headers: &[u8; HEADERS]) -> Option<Arc<Connection>> {
        let grant = Grant::decode(headers);
        let connection = self.connections.by_pair(grant.qpn, pair)?;
        let way = (kind == Kind::Landing).then(|| self.grantees.take_in(pair, &grant)).flatten();
        connection.path.direct.landing.take_answer(grant, way);
        Some(connection)
    }

    /// Handles a READ with the PSN `first`, whose payload names the destination of its answer.
    pub fn take_read(&self, pair: &Arc<Pair>, connection: &Connection, first: u32, message: &Message) {
        let word = |n| self.word(message, n);
        let (at, len, count, owner) = (word(0), word(1), word(2) as u32, word(3));
        let grant = Grant { qpn: 0, rkey: first, count, at, len, iova: 0, owner };
        if self.grantees.direct
            && let Some(way) = self.grantees.take_in(pair, &grant)
        {
            connection.path.direct.reads.answers_to(grant, way);
        }
    }
}

impl Grantor for Grants {
    fn take_back(&self, peers: &[u64], patience: u64) -> Vec<u64> {
        let pairs = self.pairs.all();
        let mut waited = self.grantees.among(peers);
        waited.iter().for_each(|pair| pair.take_back());
        let mut last = now_ns();
        let (mut limit, mut next_life, mut spins) = (last + patience, last + LIFE_NS, 0);
        loop {
            waited.retain(|pair| self.grantees.may_put(pair));
            if waited.is_empty() {
                return Vec::new();
            }
            // Two may take back from each other at once, in whatever they do.
            pairs.iter().for_each(|pair| self.connections.follow(pair));
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            let now = now_ns();
            if now - last > LATE_NS {
                limit = now + patience;
            }
            last = now;
            if now >= next_life {
                next_life = now + LIFE_NS;
                waited.retain(|pair| self.grantees.lives(pair));
            }
            if now >= limit {
                return waited.iter().map(|pair| pair.id).collect();
            }
            nap(LOOK);
        }
    }

    fn is_silent(&self, peer: u64) -> bool {
        let pair = self.grantees.among(&[peer]).into_iter().next();
        pair.is_some_and(|pair| self.grantees.may_put(&pair) && self.grantees.lives(&pair))
    }
}
