//! Request packets that have come before an earlier one that is missing, of a requester that takes reports of gaps.
//! They are executed when their turn comes, as packets that arrive then; until then nothing is done with them. What
//! finds no room is dropped, as it is for other requesters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vervain_wire::gaps::{self, Gap};
use vervain_wire::{Headers, Packet};

use crate::host::Data;
use crate::psn;
use crate::window::PACKET_OVERHEAD;

/// Most bytes that one responder keeps: two of the largest windows, so that its requester can go on while a packet is
/// resent twice.
pub(crate) const MOST_KEPT: u64 = 16 << 20;

/// Room for kept packets, shared by the responders of a process.
#[derive(Debug)]
pub struct KeptRoom {
    left: AtomicU64,
}

impl KeptRoom {
    /// Room for `bytes`, with 512 added to each packet's payload.
    pub const fn new(bytes: u64) -> KeptRoom {
        KeptRoom { left: AtomicU64::new(bytes) }
    }

    /// Bytes that are free.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// A packet that waits for its turn.
#[derive(Debug)]
pub(super) struct KeptPacket {
    pub headers: Headers,
    pub payload: Box<[u8]>,
    /// PSNs that it takes.
    psns: u32,
}

impl KeptPacket {
    fn psn(&self) -> u32 {
        self.headers.bth.psn
    }

    /// Bytes that it counts for.
    fn cost(&self) -> u64 {
        self.payload.len() as u64 + PACKET_OVERHEAD
    }
}

/// What became of a packet beyond the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Kept; packets are missing between it and those before, which the requester does not know.
    OpensGap,
    /// Kept.
    Fits,
    /// It is kept already.
    Again,
    /// Dropped: there is no room.
    Dropped,
}

/// The kept packets of a responder, in PSN order.
#[derive(Debug)]
pub(super) struct Kept {
    room: Arc<KeptRoom>,
    packets: VecDeque<KeptPacket>,
    bytes: u64,
    /// Bytes of payload that have come out of sequence since the last report, which is not to be longer.
    since_report: usize,
}

impl Kept {
    pub fn new(room: &Arc<KeptRoom>) -> Kept {
        Kept { room: Arc::clone(room), packets: VecDeque::new(), bytes: 0, since_report: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps a packet of `psns` PSNs beyond `expected`.
    pub fn add<D: Data + ?Sized>(&mut self, expected: u32, packet: &Packet<'_, D>, psns: u32) -> Fate {
        let Some(bytes) = packet.payload.bytes() else { return Fate::Dropped };
        self.since_report = self.since_report.saturating_add(bytes.len());
        let from = psn::distance(expected, packet.headers.bth.psn);
        let to = from.saturating_add(psns);
        if to > gaps::REACH {
            return Fate::Dropped;
        }
        let start = |kept: &KeptPacket| psn::distance(expected, kept.psn());
        let place = self.packets.partition_point(|kept| start(kept) < from);
        let end_before =
            place.checked_sub(1).map_or(0, |before| start(&self.packets[before]) + self.packets[before].psns);
        if end_before > from || self.packets.get(place).is_some_and(|next| start(next) < to) {
            return Fate::Again;
        }
        let kept = KeptPacket { headers: packet.headers, payload: bytes.into(), psns };
        if self.bytes + kept.cost() > MOST_KEPT || !self.room.take(kept.cost()) {
            return Fate::Dropped;
        }
        let opens_gap = place == self.packets.len() && end_before < from;
        self.bytes += kept.cost();
        self.packets.insert(place, kept);
        if opens_gap { Fate::OpensGap } else { Fate::Fits }
    }

    /// Takes out the packet whose turn it is. One whose turn has passed is dropped.
    pub fn take(&mut self, expected: u32) -> Option<KeptPacket> {
        while let Some(first) = self.packets.front() {
            let is_next = first.psn() == expected;
            if !is_next && !psn::is_before(first.psn(), expected) {
                return None;
            }
            let first = self.packets.pop_front()?;
            self.give_back(first.cost());
            if is_next {
                return Some(first);
            }
        }
        None
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.give_back(self.bytes);
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.room.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The payload of a report, and its length: the first gaps from `expected` on. At most one more than what has come
    /// out of sequence since the last report would hold, so that nobody is sent much more than was sent here.
    pub fn report(&mut self, expected: u32) -> ([u8; gaps::MOST * Gap::LEN], usize) {
        let most = gaps::MOST.min(1 + std::mem::take(&mut self.since_report) / Gap::LEN);
        let mut payload = [0; gaps::MOST * Gap::LEN];
        let (mut count, mut end) = (0, 0);
        let mut gap = Gap { missing: 0, kept: 0 };
        for kept in &self.packets {
            let from = psn::distance(expected, kept.psn());
            if from > end {
                if count == most {
                    break;
                }
                // All of it lies within the reach of a report, and fits 16 bits.
                gap = Gap { missing: (from - end) as u16, kept: 0 };
                count += 1;
            }
            gap.kept += kept.psns as u16;
            end = from + kept.psns;
            payload[(count.max(1) - 1) * Gap::LEN..][..Gap::LEN].copy_from_slice(&gap.bytes());
        }
        (payload, count * Gap::LEN)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.clear();
    }
}
