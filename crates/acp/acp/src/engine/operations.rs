//! The operations of this rank: their numbers and order, and the memory and buffers that each uses.
//!
//! Operations of the program have consecutive handles. They are over in any order; the first handle that is not over is
//! published. Operations of the library's own have no handle.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use vervain_rdma::Sge;

use super::buffers::Buffers;
use crate::error::Result;
use crate::handle::Order;
use crate::memory::{Domain, Mapped};
use crate::op::{NO_BUFFER, Op, Place};

/// The most operations of the program that can be outstanding. The original has 1,024 too.
const RING: usize = 1024;
/// The most operations of the library's own: commands served, notices, entries to be forgotten, wakes.
const INTERNAL: usize = 512;
/// Bytes of an operation's place in `staged`: a command, or an answer's value.
const STAGED: usize = 32;

/// The last operation that was issued, for those that continue it.
#[derive(Default)]
struct Last {
    /// Ranks and colors of its source and destination.
    ends: (u64, u64),
    after: i64,
    is_single: bool,
}

pub(super) struct Operations {
    /// The program's operations by their handles modulo [`RING`], then the library's own.
    ops: Vec<Op>,
    /// Free places of the library's own operations.
    free: Vec<u32>,
    /// The handle of the next operation, and the first that is not over.
    next: i64,
    head: i64,
    published: Arc<AtomicI64>,
    last: Last,
    /// The number of the program's operations that are not over.
    incomplete: u32,
    /// The number of all operations that are not over, and of those that need nothing but their completion.
    live: u32,
    passive: u32,
    /// Operations whose order is not met: the handle that each waits for, and its own.
    ordered: BinaryHeap<Reverse<(i64, i64)>>,
    /// Operations that may start.
    ready: VecDeque<u32>,
    pub buffers: Buffers,
    /// Results of atomics: 8 bytes for each operation.
    scratch: Mapped,
    /// Commands, and values of answers.
    staged: Mapped,
}

impl Operations {
    /// The most operations.
    pub const COUNT: usize = RING + INTERNAL;
    /// Bytes of `COUNT` operations.
    pub const BYTES: usize = Self::COUNT * (size_of::<Op>() + size_of::<u64>() + STAGED);

    pub fn new(domains: &[Domain<'_>], published: Arc<AtomicI64>) -> Result<Self> {
        let scratch = Mapped::new(domains, Self::COUNT * size_of::<u64>())?;
        let staged = Mapped::new(domains, Self::COUNT * STAGED)?;
        published.store(1, Ordering::Relaxed);
        Ok(Self {
            ops: vec![Op::NONE; RING],
            free: vec![],
            next: 1,
            head: 1,
            published,
            last: Last::default(),
            incomplete: 0,
            live: 0,
            passive: 0,
            ordered: BinaryHeap::new(),
            ready: VecDeque::new(),
            buffers: Buffers::new(domains)?,
            scratch,
            staged,
        })
    }

    /// The first handle that is not over.
    #[inline]
    pub fn head(&self) -> i64 {
        self.head
    }

    /// The handle of the next operation.
    #[inline]
    pub fn next(&self) -> i64 {
        self.next
    }

    /// Returns true if another operation of the program can be issued.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.next - self.head < RING as i64
    }

    /// Returns true if an operation needs more than its completion.
    pub fn has_active(&self) -> bool {
        self.live > self.passive
    }

    /// The operation with the number in a request or an answer; None if there is none.
    pub fn get_mut(&mut self, i: usize) -> Option<&mut Op> {
        self.ops.get_mut(i)
    }

    /// The operation of a request that has failed.
    pub fn of_request(&self, id: u64) -> &Op {
        &self.ops[id as u32 as usize % self.ops.len()]
    }

    /// The handle that an operation issued next would wait for.
    #[inline]
    pub fn after(&self, order: Order) -> i64 {
        match order {
            Order::Now => 0,
            Order::After(handle) => handle.get().min(self.next - 1),
            Order::All | Order::Continue => self.next - 1,
        }
    }

    /// Gives an operation its handle. `ends`: ranks and colors of its source and destination.
    #[inline]
    pub fn number(&mut self, op: &mut Op, ends: (u64, u64), order: Order) {
        let before = self.next - 1;
        op.after = match order {
            Order::Now => 0,
            Order::After(handle) => handle.get().min(before),
            Order::All => before,
            Order::Continue if self.last.is_single && op.work.is_single() && self.last.ends == ends => self.last.after,
            Order::Continue => before,
        };
        self.last = Last { ends, after: op.after, is_single: op.work.is_single() };
        op.seq = self.next;
        self.next += 1;
        self.incomplete += 1;
        self.live += 1;
    }

    /// Gives the next handle to a single request that was posted at once.
    #[inline]
    pub fn number_posted(&mut self, ends: (u64, u64), after: i64) {
        self.next += 1;
        self.last = Last { ends, after, is_single: true };
    }

    /// Ends the single request that was posted at once, if it was the only operation: it takes no place.
    #[inline]
    pub fn finish_posted(&mut self) {
        self.head = self.next;
        self.published.store(self.head, Ordering::Release);
    }

    /// The place of a single request that was posted at once. Fields that the caller does not set have the values of a
    /// finished operation: none.
    #[inline]
    pub fn place_posted(&mut self, seq: i64) -> &mut Op {
        self.incomplete += 1;
        self.live += 1;
        self.passive += 1;
        &mut self.ops[index(seq) as usize]
    }

    /// Has an operation wait until its order is met.
    #[inline]
    pub fn wait(&mut self, op: &mut Op) {
        op.place = Place::Ordered;
        self[index(op.seq)] = *op;
        self.ordered.push(Reverse((op.after, op.seq)));
    }

    /// Takes an operation that may start; None if there is none.
    #[inline]
    pub fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Adds an operation of the library's own.
    pub fn add(&mut self, op: Op) -> u32 {
        self.live += 1;
        match self.free.pop() {
            Some(i) => {
                self.ops[i as usize] = op;
                i
            }
            None => {
                self.ops.push(op);
                assert!(self.ops.len() <= Self::COUNT, "one for each command served and each connection");
                (self.ops.len() - 1) as u32
            }
        }
    }

    /// Notes that all requests of an operation's step are with the device.
    #[inline]
    pub fn now_posted(&mut self, i: u32) {
        let op = &mut self.ops[i as usize];
        op.place = Place::Posted;
        if op.work.is_single() {
            self.passive += 1;
        }
    }

    /// Returns true if an operation has further steps after the one under way.
    #[inline]
    pub fn is_unfinished(&self, seq: i64) -> bool {
        let op = &self[index(seq)];
        op.seq == seq
            && op.place != Place::Done
            && op.place != Place::Free
            && !(op.place == Place::Posted && op.work.is_single())
    }

    /// Returns true if `others` are all of the program's operations except the one that was numbered last.
    #[inline]
    pub fn are_all_others(&self, others: u32) -> bool {
        self.incomplete - 1 == others
    }

    /// Ends an operation.
    pub fn finish(&mut self, i: u32) {
        let op = &mut self.ops[i as usize];
        if op.place == Place::Posted && op.work.is_single() {
            self.passive -= 1;
        }
        self.live -= 1;
        if op.buffer != NO_BUFFER {
            self.ready.extend(self.buffers.give(op.buffer));
            op.buffer = NO_BUFFER;
        }
        op.fenced = false;
        if op.seq == 0 {
            op.place = Place::Free;
            self.free.push(i);
            return;
        }
        op.place = Place::Done;
        self.incomplete -= 1;
        if op.seq == self.head {
            self.advance();
        }
    }

    /// Moves the head past all operations that are over, and makes ready those that have waited for them.
    fn advance(&mut self) {
        while self.head < self.next && self[index(self.head)].place == Place::Done {
            let head = index(self.head);
            self[head].place = Place::Free;
            self.head += 1;
        }
        self.published.store(self.head, Ordering::Release);
        while let Some(&Reverse((after, seq))) = self.ordered.peek()
            && after < self.head
        {
            self.ordered.pop();
            self.ready.push_back(index(seq));
        }
    }

    /// Address and key of the words to which peers of `port` write the values of answers.
    pub fn answers(&self, port: usize) -> (u64, u32) {
        (self.scratch.start(), self.scratch.rkey(port))
    }

    /// The word that an atomic, a Read of a word or an answer has brought.
    #[inline]
    pub fn word(&self, i: u32) -> u64 {
        self.scratch.word(i as usize * 8).load(Ordering::Acquire)
    }

    /// The word of an operation, for a request at `port`.
    #[inline]
    pub fn word_sge(&self, port: usize, i: u32) -> Sge<'_> {
        self.scratch.sge(port, i as usize * 8..i as usize * 8 + 8)
    }

    /// Copies bytes for a request of an operation at `port` into registered memory.
    #[inline]
    pub fn stage(&self, port: usize, i: u32, bytes: &[u8]) -> Sge<'_> {
        let at = i as usize * STAGED;
        for (word, bytes) in bytes.chunks(8).enumerate() {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            self.staged.word(at + 8 * word).store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
        self.staged.sge(port, at..at + bytes.len())
    }
}

impl Index<u32> for Operations {
    type Output = Op;

    #[inline]
    fn index(&self, i: u32) -> &Op {
        &self.ops[i as usize]
    }
}

impl IndexMut<u32> for Operations {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut Op {
        &mut self.ops[i as usize]
    }
}

/// The place of the program's operation with this handle.
#[inline]
pub(super) fn index(seq: i64) -> u32 {
    (seq as usize & (RING - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use crate::op::Work;

    fn operations() -> (Operations, Arc<AtomicI64>) {
        let published = Arc::new(AtomicI64::new(0));
        (Operations::new(&[], published.clone()).expect("memory"), published)
    }

    /// Issues an operation between these ends: it starts if its order is met, and waits if not.
    fn issue(operations: &mut Operations, work: Work, ends: (u64, u64), order: Order) -> i64 {
        let mut op = Op { work, ..Op::NONE };
        operations.number(&mut op, ends, order);
        if op.after >= operations.head() {
            operations.wait(&mut op);
        } else {
            operations[index(op.seq)] = op;
        }
        op.seq
    }

    fn ready(operations: &mut Operations) -> Vec<u32> {
        std::iter::from_fn(|| operations.next_ready()).collect()
    }

    #[test]
    fn handles_are_published_as_a_prefix_of_those_that_are_over() {
        let (mut operations, published) = operations();
        let seqs = [(); 4].map(|()| issue(&mut operations, Work::Here, (0, 0), Order::Now));
        assert_eq!(seqs, [1, 2, 3, 4]);
        for (over, head) in [(3, 1), (1, 2), (4, 2), (2, 5)] {
            operations.finish(index(over));
            assert_eq!((operations.head(), published.load(Ordering::Relaxed)), (head, head), "after {over}");
        }
        assert!(!operations.has_active());
    }

    #[test]
    fn an_operation_is_ready_when_all_that_it_waits_for_is_over() {
        let (mut operations, _) = operations();
        let now = [(); 2].map(|()| issue(&mut operations, Work::Here, (0, 0), Order::Now));
        let last = issue(&mut operations, Work::Here, (0, 0), Order::All);
        let first = Handle::new(now[0]).expect("a handle");
        let after_first = issue(&mut operations, Work::Here, (0, 0), Order::After(first));
        assert_eq!(ready(&mut operations), [0; 0]);
        operations.finish(index(now[0]));
        assert_eq!(ready(&mut operations), [index(after_first)]);
        operations.finish(index(after_first));
        assert_eq!(ready(&mut operations), [0; 0]);
        operations.finish(index(now[1]));
        assert_eq!(ready(&mut operations), [index(last)]);
    }

    #[test]
    fn only_single_operations_between_the_same_ends_continue_one_another() {
        let (mut operations, _) = operations();
        let mut after = |work, ends, order| {
            let seq = issue(&mut operations, work, ends, order);
            operations[index(seq)].after
        };
        assert_eq!(after(Work::Put, (0, 1), Order::Now), 0);
        assert_eq!(after(Work::Put, (0, 1), Order::Continue), 0);
        assert_eq!(after(Work::Get, (1, 0), Order::Continue), 2);
        assert_eq!(after(Work::Get, (1, 0), Order::Continue), 2);
        assert_eq!(after(Work::Bounce, (1, 0), Order::Continue), 4);
        assert_eq!(after(Work::Bounce, (1, 0), Order::Continue), 5);
    }

    #[test]
    fn the_ring_has_room_until_its_first_operation_is_in_the_way() {
        let (mut operations, _) = operations();
        for _ in 0..RING {
            assert!(operations.has_room());
            issue(&mut operations, Work::Here, (0, 0), Order::Now);
        }
        operations.finish(index(2));
        assert!(!operations.has_room());
        operations.finish(index(1));
        assert!(operations.has_room());
        assert_eq!(operations.head(), 3);
    }

    #[test]
    fn places_of_the_librarys_own_are_used_again() {
        let (mut operations, published) = operations();
        let first = operations.add(Op { work: Work::Answer, ..Op::NONE });
        let second = operations.add(Op { work: Work::Answer, ..Op::NONE });
        assert_eq!((first, second), (RING as u32, RING as u32 + 1));
        operations.finish(first);
        assert!(operations.has_active());
        assert_eq!(operations.add(Op { work: Work::Answer, ..Op::NONE }), first);
        assert_eq!(published.load(Ordering::Relaxed), 1, "they have no handles");
    }

    #[test]
    fn a_buffer_goes_to_the_operation_that_has_waited_longest() {
        let (mut operations, _) = operations();
        let with_buffer = |operations: &mut Operations| {
            let i = index(issue(operations, Work::Bounce, (1, 2), Order::Now));
            if let Some(buffer) = operations.buffers.take(i) {
                operations[i].buffer = buffer;
            }
            i
        };
        let all: Vec<u32> = (0..18).map(|_| with_buffer(&mut operations)).collect();
        let (have, wait) = all.split_at(16);
        assert!(have.iter().all(|i| operations[*i].buffer != NO_BUFFER));
        assert!(wait.iter().all(|i| operations[*i].buffer == NO_BUFFER));
        operations.finish(have[3]);
        assert_eq!(ready(&mut operations), [wait[0]]);
        operations.finish(have[0]);
        assert_eq!(ready(&mut operations), [wait[1]]);
        operations.finish(have[1]);
        assert_eq!(ready(&mut operations), [0; 0]);
    }
}
