//! Writes that this process carries out itself, in memory that the peer has granted it
//! ([`vervain_window::pairs::grant`]): RDMA Writes without immediate data, where nothing of the connection is under way
//! before them. All others go through the ring, as do those to memory that is not granted.

use super::grantees::Way;
use super::pair::Pair;
use super::payload::PiecesSource;
use super::peer_qp::PeerQp;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use vervain_hca::device::port_counters::Word;
use vervain_hca::host::lock::OwnerLock;
use vervain_hca::mr::transfer::Pieces;
use vervain_hca::qp::remote::Sends;
use vervain_hca::{Opcode, Request};
use vervain_window::pairs::block;
use vervain_window::pairs::grant::{Grant, Want};
use vervain_window::pairs::ring::Class;
use vervain_window::pairs::slot::Kind;
use vervain_window::{Channel, Origin, Put, UseGuard};

/// Bytes of a put. Between two puts a grant can be taken back.
const CHUNK: u64 = 1 << 20;
/// Bytes below which a Write goes through the ring behind others, up to a number in a row.
const SHORT: u64 = 4096;
const FEW: u32 = 16;
/// Keys of one connection that are kept.
const KEYS: usize = 1024;
/// Writes after which a grant that was refused, or not answered, is asked for again.
const ASK_AGAIN: u32 = 1024;

/// The Writes of a connection that it may put itself.
pub struct Writes {
    is_on: bool,
    /// The connection's grants. Every put holds this lock: its holder knows that none is in flight.
    granted: OwnerLock<Granted>,
    /// Writes in a row that could have been put, and went through the ring behind others.
    behind_others: AtomicU32,
}

/// The grants of a connection.
#[derive(Default)]
struct Granted {
    channel: Option<Box<dyn Channel>>,
    keys: HashMap<u32, Key>,
    /// The grant that was used last.
    last: Option<Grant>,
}

enum Key {
    /// Asked for, and not granted so far: Writes since then.
    Asked(u32),
    /// Its memory is not claimed by another process while this is kept.
    Granted(Grant, #[allow(dead_code)] Arc<UseGuard>),
}

impl Granted {
    fn add(&mut self, grant: Grant, (used, channel): Way) {
        if self.keys.len() >= KEYS {
            self.forget();
        }
        self.channel.get_or_insert(channel);
        self.keys.insert(grant.rkey, Key::Granted(grant, used));
    }

    fn refuse(&mut self, rkey: u32) {
        self.keys.insert(rkey, Key::Asked(0));
    }

    fn forget(&mut self) {
        self.keys.clear();
        self.last = None;
    }

    /// Returns true if a grant for `rkey` is to be asked for.
    fn asks(&mut self, rkey: u32) -> bool {
        if self.keys.len() >= KEYS && !self.keys.contains_key(&rkey) {
            self.forget();
        }
        match self.keys.entry(rkey).or_insert(Key::Asked(ASK_AGAIN)) {
            Key::Asked(writes) if *writes >= ASK_AGAIN => {
                *writes = 0;
                true
            }
            Key::Asked(writes) => {
                *writes += 1;
                false
            }
            // It is there, and does not hold any more, or does not cover what is written.
            Key::Granted(..) => false,
        }
    }

    /// Returns true if the device puts so many bytes there: others go through the ring, or, if they are many, only
    /// their ends.
    #[inline]
    fn takes(&self, to: u64, len: u64) -> bool {
        self.channel.as_ref().is_some_and(|channel| (to | len).is_multiple_of(channel.traits().grain))
    }

    /// Offset of `[addr, addr + len)` of `rkey` in the peer's region, if that is granted now; `count` is the number of
    /// the peer's revocations.
    #[inline]
    fn place(&mut self, count: u32, rkey: u32, addr: u64, len: u64) -> Option<u64> {
        let grant = match self.last {
            Some(last) if last.rkey == rkey => last,
            _ => match self.keys.get(&rkey) {
                Some(Key::Granted(grant, _)) => *self.last.insert(*grant),
                _ => return None,
            },
        };
        if grant.count != count {
            self.keys.remove(&rkey);
            self.last = None;
            return None;
        }
        grant.place(addr, len)
    }
}

impl Writes {
    /// With `is_on` false there are none, and none is asked for.
    pub fn new(is_on: bool) -> Self {
        Writes { is_on, granted: OwnerLock::default(), behind_others: AtomicU32::new(0) }
    }

    /// The peer's answer for `grant`: the way there, or none where it refuses.
    pub fn take_answer(&self, grant: Grant, way: Option<Way>) {
        let mut granted = self.granted.lock();
        match way {
            Some(way) => granted.add(grant, way),
            None => granted.refuse(grant.rkey),
        }
    }

    /// Forgets all grants. Behind this no put by one of them is under way.
    pub fn forget(&self) {
        self.granted.lock().forget();
    }

    /// Carries out request `n` to `peer`, if it is a Write to granted memory: how many bytes it has, where it is done
    /// so. A Write that it has begun and does not finish goes through the ring from its beginning, as a packet that is
    /// sent again does.
    pub fn execute(&self, peer: &PeerQp, sends: &Sends<'_>, n: u32) -> Option<u64> {
        let request = sends.get(n).filter(|request| request.opcode == Opcode::Write && request.length != 0)?;
        let pair = peer.pair().filter(|pair| !pair.is_over() && !pair.is_silent())?;
        let mut from = 0;
        while from < request.length {
            let mut granted = self.granted.lock();
            let count = pair.told(block::TAKEN_BACK);
            let Some(to) = granted.place(count, request.rkey, request.remote_addr, request.length) else {
                if granted.asks(request.rkey) {
                    self.ask(peer, pair, request.rkey);
                }
                return None;
            };
            if !granted.takes(to, request.length) {
                return None;
            }
            if from == 0 {
                sends.check(n).ok()?;
            }
            let len = CHUNK.min(request.length - from);
            let mut pieces = Pieces::new();
            sends.gather(n, from, len, &mut pieces).ok()?;
            let source = PiecesSource::new(&pieces, from + len == request.length);
            let put = Put { to: to + from, from: Origin::Source(&source) };
            granted.channel.as_mut()?.put(&[put]).ok()?;
            if pair.is_over() || pair.told(block::TAKEN_BACK) != count {
                // The owner may not have waited for this one, and have given the memory to something else of its
                // program's.
                return None;
            }
            from += len;
        }
        self.behind_others.store(0, Ordering::Relaxed);
        let tally = &sends.qp().tally;
        tally.add_both((Word::WindowWrites, 1), (Word::WindowDirectBytes, request.length));
        Some(request.length)
    }

    /// Returns true if a Write waits until nothing is under way, and is put then. A short one behind few others does
    /// not: it arrives sooner through the ring.
    pub fn waits_for_turn(&self, peer: &PeerQp, request: &Request) -> bool {
        if request.opcode != Opcode::Write || request.length == 0 {
            self.behind_others.store(0, Ordering::Relaxed);
            return false;
        }
        let Some(pair) = peer.pair().filter(|pair| !pair.is_over() && !pair.is_silent()) else { return false };
        let count = pair.told(block::TAKEN_BACK);
        let mut granted = self.granted.lock();
        let place = granted.place(count, request.rkey, request.remote_addr, request.length);
        if !place.is_some_and(|to| granted.takes(to, request.length)) {
            return false;
        }
        drop(granted);
        let behind = self.behind_others.load(Ordering::Relaxed);
        if request.length < SHORT && behind < FEW {
            self.behind_others.store(behind + 1, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn ask(&self, peer: &PeerQp, pair: &Pair, rkey: u32) {
        if !self.is_on {
            return;
        }
        let want = Want { qpn: peer.qpn, from: peer.own_qpn, rkey };
        // Without room it is asked for later.
        pair.say(Class::Request, Kind::WantGrant, &want.encode());
    }
}
