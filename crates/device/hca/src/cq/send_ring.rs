//! Completions of a QP's own work, from the thread that carries it out to the thread that polls: a ring of one producer
//! (the holder of the send queue) and one consumer (the holder of the CQ's queue), so that completing takes no lock.
//!
//! It is to a send queue what a lane is to a receive queue, and a CQ merges both in the same way.

use crate::arena::layout::CqShared;
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::host::clock::hca_clock_ns;
use vervain_iba::{Completion, Status};

/// One completion.
#[derive(Default)]
struct Entry {
    wr_id: AtomicU64,
    /// [`Status`] in the low byte, `enum ibv_wc_opcode` above, the bytes in the high half.
    outcome: AtomicU64,
    /// Send WQEs that are free again once this completion was polled, counted for ever.
    count: AtomicU32,
    timestamp: AtomicU64,
}

/// Words written by one side, on a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
struct Line<T>(T);

/// The fields that the consumer writes.
#[derive(Default)]
struct Consumer {
    consumed: AtomicU32,
    /// WQEs whose completion the program has polled, or that came before one.
    freed: AtomicU32,
    mode: AtomicU32,
}

/// The ring of one send queue.
pub(crate) struct SendRing {
    produced: Line<AtomicU32>,
    consumer: Line<Consumer>,
    entries: Box<[Entry]>,
    /// One less than their number, a power of two.
    mask: u32,
    pub(crate) qp_num: u32,
    pub(crate) ready_bit: u32,
    timestamps: bool,
    full_barrier: bool,
    /// Either of the two.
    unusual: bool,
}

impl SendRing {
    /// A ring with room for the completions of `slots` WQEs, a power of two.
    pub(crate) fn new(slots: u32, qp_num: u32, ready_bit: u32, timestamps: bool) -> SendRing {
        assert!(slots.is_power_of_two());
        let mut entries = Vec::new();
        entries.resize_with(slots as usize, Entry::default);
        let full_barrier = !crate::host::barrier::is_registered();
        SendRing {
            produced: Line::default(),
            consumer: Line::default(),
            entries: entries.into_boxed_slice(),
            mask: slots - 1,
            qp_num,
            ready_bit,
            timestamps,
            full_barrier,
            unusual: timestamps || full_barrier,
        }
    }

    #[inline(always)]
    fn entry(&self, at: u32) -> &Entry {
        // SAFETY: a power of two of entries, as `new` asserts, so the masked index is below their number.
        unsafe { self.entries.get_unchecked((at & self.mask) as usize) }
    }

    /// WQEs that the program may use again, counted for ever.
    #[inline]
    pub(crate) fn freed(&self) -> u32 {
        self.consumer.0.freed.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn mode(&self) -> &AtomicU32 {
        &self.consumer.0.mode
    }

    /// Completions to be polled.
    #[inline]
    pub(crate) fn pending(&self) -> u32 {
        self.produced.0.load(Ordering::Acquire).wrapping_sub(self.consumer.0.consumed.load(Ordering::Relaxed))
    }

    /// Completions added, counted for ever.
    pub(crate) fn produced(&self) -> u32 {
        self.produced.0.load(Ordering::Acquire)
    }

    /// Completions to be polled of those that were there when [`SendRing::produced`] was `until`.
    pub(crate) fn pending_until(&self, until: u32) -> usize {
        // As a distance, for the counts wrap; negative when more were polled since.
        (until.wrapping_sub(self.consumer.0.consumed.load(Ordering::Relaxed)) as i32).max(0) as usize
    }

    /// Adds a completion; `count` WQEs will be free when it was polled. The caller holds the send queue, whose size
    /// bounds what is here. True when `cq` wants to be told.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        cq: &CqShared,
        wr_id: u64,
        status: Status,
        opcode: u32,
        byte_len: u32,
        count: u32,
    ) -> bool {
        let produced = self.produced.0.load(Ordering::Relaxed);
        let entry = self.entry(produced);
        entry.wr_id.store(wr_id, Ordering::Relaxed);
        entry.outcome.store(u64::from(status.to_verbs() | opcode << 8) | u64::from(byte_len) << 32, Ordering::Relaxed);
        entry.count.store(count, Ordering::Relaxed);
        if self.unusual {
            return self.publish_unusual(cq, produced);
        }
        crate::cq::completion::publish(
            cq,
            &self.produced.0,
            produced.wrapping_add(1),
            self.mode(),
            self.ready_bit,
            &false,
        )
    }

    #[cold]
    #[inline(never)]
    fn publish_unusual(&self, cq: &CqShared, produced: u32) -> bool {
        if self.timestamps {
            self.entry(produced).timestamp.store(hca_clock_ns(), Ordering::Relaxed);
        }
        let next = produced.wrapping_add(1);
        crate::cq::completion::publish(cq, &self.produced.0, next, self.mode(), self.ready_bit, &self.full_barrier)
    }

    /// Hands up to `max` completions, oldest first, to `sink`; returns how many. The caller holds the CQ's queue.
    #[inline(always)]
    pub(crate) fn take(&self, max: usize, sink: &mut impl FnMut(&Completion)) -> usize {
        let consumer = &self.consumer.0;
        let mut at = consumer.consumed.load(Ordering::Relaxed);
        let n = (self.produced.0.load(Ordering::Acquire).wrapping_sub(at) as usize).min(max);
        let end = at.wrapping_add(n as u32);
        while at != end {
            let entry = self.entry(at);
            let outcome = entry.outcome.load(Ordering::Relaxed);
            sink(&Completion {
                wr_id: entry.wr_id.load(Ordering::Relaxed),
                status: outcome as u32 & 0xff,
                opcode: outcome as u32 >> 8,
                byte_len: (outcome >> 32) as u32,
                qp_num: self.qp_num,
                timestamp: entry.timestamp.load(Ordering::Relaxed),
                ..Completion::default()
            });
            at = at.wrapping_add(1);
            consumer.consumed.store(at, Ordering::Release);
            consumer.freed.store(entry.count.load(Ordering::Relaxed), Ordering::Release);
        }
        n
    }

    /// Forgets everything. The caller holds both the send queue and the CQ's queue.
    pub(crate) fn clear(&self) {
        self.consumer.0.consumed.store(self.produced.0.load(Ordering::Relaxed), Ordering::Relaxed);
        self.consumer.0.freed.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cq() -> &'static CqShared {
        // SAFETY: zeros are a valid value of a struct of atomics.
        Box::leak(Box::new(unsafe { std::mem::zeroed() }))
    }

    #[test]
    fn completions_come_out_in_order_and_free_their_requests() {
        let (ring, cq) = (SendRing::new(4, 7, 0, false), cq());
        for round in 0..10u32 {
            for k in 0..3 {
                ring.push(cq, u64::from(round * 3 + k), Status::Success, 1, 8, round * 3 + k + 1);
            }
            let mut seen = Vec::new();
            assert_eq!((ring.pending(), ring.take(2, &mut |c| seen.push(c.wr_id))), (3, 2));
            assert_eq!(ring.freed(), round * 3 + 2);
            assert_eq!((ring.pending(), ring.take(1, &mut |c| seen.push(c.wr_id))), (1, 1));
            assert_eq!(seen, (0..3).map(|k| u64::from(round * 3 + k)).collect::<Vec<_>>());
        }
        assert_eq!(ring.pending(), 0);
    }

    #[test]
    fn what_was_there_before_a_moment_is_told_from_what_came_after() {
        let (ring, cq) = (SendRing::new(4, 7, 0, false), cq());
        ring.push(cq, 1, Status::Success, 1, 8, 1);
        ring.push(cq, 2, Status::Success, 1, 8, 2);
        let until = ring.produced();
        ring.push(cq, 3, Status::Success, 1, 8, 3);
        assert_eq!(ring.pending_until(until), 2);
        ring.take(1, &mut |_| ());
        assert_eq!(ring.pending_until(until), 1);
        ring.take(2, &mut |_| ());
        assert_eq!(ring.pending_until(until), 0);
    }

    #[test]
    fn what_was_cleared_is_not_polled() {
        let (ring, cq) = (SendRing::new(4, 7, 0, false), cq());
        ring.push(cq, 1, Status::Success, 1, 8, 1);
        ring.clear();
        assert_eq!(ring.pending(), 0);
        assert_eq!(ring.freed(), 0);
    }
}
