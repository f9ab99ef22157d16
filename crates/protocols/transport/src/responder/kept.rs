//! Request packets that have come before an earlier one that is missing, of a requester that takes reports of gaps.
//! They are executed when their turn comes, as packets that arrive then; until then nothing is done with them. What
//! finds no room is dropped, as it is for other requesters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vervain_wire::gaps::{self, Gap};
use vervain_wire::{Headers, Packet};

use crate::host::Data;
use crate::psn;
use crate::window::PACKET_OVERHEAD;

/// Most bytes that one responder keeps: two of the largest windows, so that its requester can go on while a packet is
/// resent twice.
pub(crate) const MOST_KEPT: u64 = 16 << 20;
/// Most packets that it keeps: more than the largest window has at an MTU of 1024.
const MOST_PACKETS: usize = 8192;
/// Packets for which an empty list keeps its memory.
const FEW: usize = 64;
/// Buffers of payload that a process has in store: as many as a window within a host has packets of full size. Without
/// them glibc gives the memory of each gap back to the kernel as that closes, and page faults at the next one take
/// longer than the copies.
const MOST_SPARE: usize = 256;
/// Smaller payloads than this get memory of their own size.
const LEAST_SPARE: usize = 1024;

/// Room for kept packets of a process, of which each of its peers has a share.
#[derive(Debug)]
pub struct KeptRoom {
    left: AtomicU64,
    /// Buffers for the next packets. Who finds it locked, be it for good by a thread that has ended, does without.
    spare: Mutex<Vec<Vec<u8>>>,
}

/// What the packets of one peer take of a [`KeptRoom`]: no more than stays free. So the first peer gets half of the
/// room at most, each of n that want all of it 1 / (n + 1), and one that comes later finds as much as any other has.
#[derive(Debug)]
pub struct KeptShare {
    room: Arc<KeptRoom>,
    taken: AtomicU64,
}

impl KeptRoom {
    /// Room for `bytes`, with 512 added to each packet's payload.
    pub const fn new(bytes: u64) -> KeptRoom {
        KeptRoom { left: AtomicU64::new(bytes), spare: Mutex::new(Vec::new()) }
    }

    /// A copy of `payload`.
    fn copy(&self, payload: &[u8]) -> Vec<u8> {
        let is_large = payload.len() >= LEAST_SPARE;
        let spare = if is_large { self.spare.try_lock().ok().and_then(|mut spare| spare.pop()) } else { None };
        let mut buffer = spare.unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(payload);
        buffer
    }

    /// Takes back a buffer that [`KeptRoom::copy`] has returned.
    fn reuse(&self, buffer: Vec<u8>) {
        if buffer.capacity() >= LEAST_SPARE
            && let Ok(mut spare) = self.spare.try_lock()
            && spare.len() < MOST_SPARE
        {
            spare.push(buffer);
        }
    }

    /// The share of a peer, shared by the responders of the QPs that are connected to it.
    pub fn share(self: &Arc<KeptRoom>) -> Arc<KeptShare> {
        Arc::new(KeptShare { room: Arc::clone(self), taken: AtomicU64::new(0) })
    }
}

impl KeptShare {
    /// Bytes that are free in the room, for all peers.
    pub fn left(&self) -> u64 {
        self.room.left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        // Two threads that take at once may exceed the share by a packet.
        let taken = self.taken.load(Ordering::Relaxed) + bytes;
        let less = |left: u64| left.checked_sub(bytes).filter(|rest| taken <= *rest);
        let fits = self.room.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if fits {
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.room.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A packet that waits for its turn.
#[derive(Debug)]
pub(super) struct KeptPacket {
    pub headers: Headers,
    pub payload: Vec<u8>,
    /// PSNs that it takes.
    psns: u32,
}

impl KeptPacket {
    fn psn(&self) -> u32 {
        self.headers.bth.psn
    }

    /// Returns true if a packet that has come is this one once more. Whether it asks for an acknowledgement, and has a
    /// mark, may differ.
    fn is_copy(&self, headers: &Headers, payload: &[u8], psns: u32) -> bool {
        let mut kept = self.headers;
        (kept.bth.ack_request, kept.bth.mark) = (headers.bth.ack_request, headers.bth.mark);
        kept == *headers && self.psns == psns && *self.payload == *payload
    }

    /// Bytes that it counts for.
    fn cost(&self) -> u64 {
        self.payload.len() as u64 + PACKET_OVERHEAD
    }
}

/// Most packets in a row that may be missing before one that is kept, unless a READ takes more. A stranger who does not
/// know the PSNs has to hit one of so many, or a missing one.
const LEAST_GAP: u32 = 64;
/// The same, whatever a READ takes.
const MOST_GAP: u32 = 1024;

/// What became of a packet beyond the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Kept; packets are missing between it and those before, which the requester does not know.
    OpensGap,
    /// Kept.
    Fits,
    /// It is kept already.
    Again,
    /// Another packet with its PSN was kept: one of both is not the requester's, and both are dropped.
    Conflict,
    /// Dropped: its peer has no room left, or too much is missing before it.
    Dropped,
}

/// The kept packets of a responder, in PSN order.
#[derive(Debug)]
pub(super) struct Kept {
    share: Arc<KeptShare>,
    packets: VecDeque<KeptPacket>,
    bytes: u64,
    /// Bytes of payload that have come out of sequence since the last report, which is not to be longer.
    since_report: usize,
    /// Most packets in a row that may be missing.
    most_missing: u32,
}

impl Kept {
    pub fn new(share: &Arc<KeptShare>) -> Kept {
        Kept { share: Arc::clone(share), packets: VecDeque::new(), bytes: 0, since_report: 0, most_missing: LEAST_GAP }
    }

    /// A READ of `psns` packets was executed: two such requests in a row may be missing.
    pub fn executed_read(&mut self, psns: u32) {
        self.most_missing = self.most_missing.max(psns.saturating_mul(2).min(MOST_GAP));
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
        let is_last = self.packets.back().is_none_or(|last| start(last) + last.psns <= from);
        let find = |is_before: &dyn Fn(&KeptPacket) -> bool| match is_last {
            true => self.packets.len(),
            false => self.packets.partition_point(is_before),
        };
        let place = find(&|kept| start(kept) + kept.psns <= from);
        let behind = find(&|kept| start(kept) < to);
        if place < behind {
            if behind - place == 1 && self.packets[place].is_copy(&packet.headers, bytes, psns) {
                return Fate::Again;
            }
            let dropped = self.packets.drain(place..behind).map(|kept| kept.cost()).sum();
            self.give_back(dropped);
            return Fate::Conflict;
        }
        let end_before =
            place.checked_sub(1).map_or(0, |before| start(&self.packets[before]) + self.packets[before].psns);
        if from - end_before > self.most_missing {
            return Fate::Dropped;
        }
        let cost = bytes.len() as u64 + PACKET_OVERHEAD;
        let is_full = self.packets.len() == MOST_PACKETS || self.bytes + cost > MOST_KEPT;
        if is_full || !self.share.take(cost) {
            return Fate::Dropped;
        }
        let kept = KeptPacket { headers: packet.headers, payload: self.share.room.copy(bytes), psns };
        let opens_gap = place == self.packets.len() && end_before < from;
        self.bytes += cost;
        self.packets.insert(place, kept);
        if opens_gap { Fate::OpensGap } else { Fate::Fits }
    }

    /// Returns true if the turn of the first packet has come, or has passed.
    pub fn is_due(&self, expected: u32) -> bool {
        self.packets.front().is_some_and(|first| first.psn() == expected || psn::is_before(first.psn(), expected))
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

    /// Takes back the memory of a packet that was taken out.
    pub fn reuse(&self, packet: KeptPacket) {
        self.share.room.reuse(packet.payload);
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.give_back(self.bytes);
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.share.give_back(bytes);
        if self.packets.is_empty() && self.packets.capacity() > FEW {
            self.packets = VecDeque::new();
        }
    }

    /// Leaves the packets where they are, for a thread has ended in the middle of a change to them.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::take(&mut self.packets));
        self.bytes = 0;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_for_payload_of_any_length_and_few_lie_in_store() {
        let room = KeptRoom::new(0);
        let large = room.copy(&[1; 4096]);
        let at = large.as_ptr();
        room.reuse(large);
        let small = room.copy(&[2; LEAST_SPARE - 1]);
        assert!(small.capacity() < 4096, "of its own size");
        room.reuse(small);
        let next = room.copy(&[3; LEAST_SPARE]);
        assert_eq!((next.as_ptr(), &*next), (at, &[3; LEAST_SPARE][..]));
        (0..2 * MOST_SPARE).for_each(|_| room.reuse(vec![0; LEAST_SPARE]));
        assert_eq!(room.spare.lock().unwrap().len(), MOST_SPARE);
        let _held = room.spare.lock().unwrap();
        let other = room.copy(&[4; 4096]);
        assert_eq!(*other, [4; 4096], "without waiting");
        room.reuse(other);
    }
}
