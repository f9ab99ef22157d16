//! What this process grants its peers, and takes back; and how it follows peers that do so ([`vervain_window::pairs::grant`]).

use super::Engine;
use super::pair::Pair;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vervain_hca::host::cancel::nap;
use vervain_hca::now_ns;
use vervain_hca::process::grants::Grantor;
use vervain_window::pairs::block;
use vervain_window::pairs::grant::{Grant, Want};
use vervain_window::pairs::ring::{Class, HEADERS};
use vervain_window::pairs::slot::Kind;
use vervain_window::{Channel, GRANULE, UseGuard};

/// Looks for an answer before the clock is asked, and then the time between two.
const SPINS: u32 = 2000;
const LOOK: Duration = Duration::from_micros(20);
/// A look that comes so late begins anew: this process stood still itself, and so may the peer have.
const LATE_NS: u64 = 50_000_000;
/// How often it is looked whether a peer lives.
const LIFE_NS: u64 = 1_000_000;

impl Engine {
    /// A peer would write memory of this process directly.
    pub fn wants_grant(&self, pair: &Arc<Pair>, want: Want) {
        // Before the grant: if it is taken back at once, the peer does not take it for a new one.
        let count = pair.taken_back();
        let mut reply = Grant { qpn: want.from, rkey: want.rkey, count, at: 0, len: 0, iova: 0, owner: 0 };
        let connection = self.connection(want.qpn).filter(|c| c.is_with(pair));
        let qp = connection.as_ref().and_then(|c| c.qp.upgrade());
        let grantor = self.me.upgrade().filter(|_| self.may_grant(pair, count));
        self.note_grantee(pair);
        connection.iter().for_each(|c| c.put_psns.is_granted.store(true, Ordering::Relaxed));
        let grantable = match (qp, grantor) {
            (Some(qp), Some(me)) => qp.grant(want.rkey, pair.id, &(me as Arc<dyn Grantor>)),
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
        // Where there is no room the peer asks again some time.
        pair.say(Class::Control, kind, &reply.encode());
    }

    /// Whether a peer may be granted anything that has followed so many times.
    pub fn may_grant(&self, pair: &Pair, count: u32) -> bool {
        self.direct && pair.told(block::GIVEN_BACK) == count
    }

    /// A peer has answered.
    pub fn granted(&self, pair: &Arc<Pair>, kind: Kind, headers: &[u8; HEADERS]) {
        let grant = Grant::decode(headers);
        let Some(connection) = self.connection(grant.qpn).filter(|c| c.is_with(pair)) else { return };
        let taken_in = (kind == Kind::Grant).then(|| self.take_in_grant(pair, &grant)).flatten();
        let mut granted = connection.granted.lock();
        match taken_in {
            Some((used, channel)) => granted.add(grant, used, channel),
            None => granted.refuse(grant.rkey),
        }
    }

    /// The hold on the memory of a grant, and the way there; None where it cannot be.
    pub fn take_in_grant(&self, pair: &Pair, grant: &Grant) -> Option<(Arc<UseGuard>, Box<dyn Channel>)> {
        let end = grant.at.checked_add(grant.len).filter(|end| *end <= self.facts().layout.region_len())?;
        let granules = (grant.at / GRANULE) as u32..end.div_ceil(GRANULE) as u32;
        let used = pair.hold(granules, grant.owner, |granules| {
            self.pairs.device().claims().use_of(pair.peer.node, granules, grant.owner)
        });
        let used = used.inspect_err(|e| log::info!("a grant is not taken: {e}")).ok()?;
        Some((used, self.pairs.device().channel(pair.peer.node).ok()?))
    }

    /// Follows a peer that has taken its grants back: nothing more goes there by them.
    #[inline]
    pub fn follow(&self, pair: &Arc<Pair>) {
        if pair.is_asked_back() {
            self.give_back(pair, pair.told(block::TAKEN_BACK));
        }
    }

    #[cold]
    fn give_back(&self, pair: &Arc<Pair>, count: u32) {
        // With the lock nothing is under way, and whoever takes it next finds the new count.
        self.connected_with(pair.peer).iter().filter(|c| c.is_with(pair)).for_each(|c| {
            c.granted.lock().forget();
            c.forget_landing();
            c.forget_answers();
        });
        pair.follow(count);
    }

    /// Notes that a peer is granted something, before it is: what is taken back from it is waited for even when the pair is over, as long
    /// as it lives.
    pub fn note_grantee(&self, pair: &Arc<Pair>) {
        let mut grantees = self.grantees.lock();
        if !grantees.iter().any(|known| known.id == pair.id) {
            grantees.retain(|known| !known.is_over() || self.lives(known));
            grantees.push(Arc::clone(pair));
        }
    }

    /// Whether a peer may still put by what it was granted. What it tells of a pair that is over is not seen any more.
    fn may_put(&self, pair: &Pair) -> bool {
        pair.is_over() || pair.told(block::GIVEN_BACK) != pair.taken_back()
    }

    fn lives(&self, pair: &Pair) -> bool {
        self.pairs.device().claims().is_alive(pair.peer.node, pair.incarnation) != Ok(Some(false))
    }
}

impl Grantor for Engine {
    fn take_back(&self, peers: &[u64], patience: u64) -> Vec<u64> {
        let pairs: Vec<_> = self.pairs.all();
        let mut waited: Vec<_> = self.grantees.lock().iter().filter(|pair| peers.contains(&pair.id)).cloned().collect();
        waited.iter().for_each(|pair| pair.take_back());
        let mut last = now_ns();
        let (mut limit, mut next_life, mut spins) = (last + patience, last + LIFE_NS, 0);
        loop {
            waited.retain(|pair| self.may_put(pair));
            if waited.is_empty() {
                return Vec::new();
            }
            // Two may take back from each other at once, in whatever they do.
            pairs.iter().for_each(|pair| self.follow(pair));
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
                waited.retain(|pair| self.lives(pair));
            }
            if now >= limit {
                return waited.iter().map(|pair| pair.id).collect();
            }
            nap(LOOK);
        }
    }

    fn is_silent(&self, peer: u64) -> bool {
        let pair = self.grantees.lock().iter().find(|pair| pair.id == peer).cloned();
        pair.is_some_and(|pair| self.may_put(&pair) && self.lives(&pair))
    }
}
