//! Facts that the kernel keeps for the processes of one machine: byte-range locks, which it releases when a process
//! dies, and a clock. The bytes that are locked lie beyond the end of every window.

use crate::error::{Error, Result};
use crate::layout::{MAX_NODES, MAX_SIZE, PROCESSES};
use std::ops::Range;
use std::os::fd::RawFd;
use std::time::Duration;

/// A kernel, as one holder of locks sees it: an open file description, or its substitute in a simulation. Locks cover
/// bytes; taking one never waits. A second lock of the same holder replaces its first where they overlap.
pub trait Kernel: Send + Sync {
    /// Takes a lock, shared or exclusive. Returns false, with nothing changed, if another holder's lock is in the way.
    ///
    /// # Errors
    /// Those of [`Kernel::check`], and the kernel's.
    fn try_lock(&self, bytes: Range<u64>, kind: Kind) -> Result<bool>;

    /// Releases the locks of this holder on these bytes.
    fn unlock(&self, bytes: Range<u64>);

    /// The first part of these bytes on which another holder has a lock of any kind; None: nobody has.
    ///
    /// # Errors
    /// Those of [`Kernel::try_lock`].
    fn others(&self, bytes: Range<u64>) -> Result<Option<Range<u64>>>;

    /// Milliseconds since this kernel started, including the time for which the machine was suspended.
    fn now_ms(&self) -> u64;

    /// Waits; in a simulation, not at all.
    fn pause(&self, time: Duration);

    /// A random number.
    ///
    /// # Errors
    /// The kernel's.
    fn random(&self) -> Result<u64>;

    /// Checks that the holder can use its locks.
    ///
    /// # Errors
    /// ESRCH: this is a forked child, and the locks are its parent's.
    fn check(&self) -> Result<()>;

    /// The descriptor by which locks are taken; None: not a real kernel's, or this is a forked child.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}

/// Kinds of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any number of holders at a time.
    Shared,
    /// One holder at a time.
    Alone,
}

/// Held alone while the table of nodes is changed.
pub(crate) const TABLE: u64 = MAX_SIZE;

/// Shared by all processes of a node.
pub(crate) fn node(node: u32) -> u64 {
    MAX_SIZE + 0x1_0000 + u64::from(node)
}

/// Held alone during a search for memory of a node, so that two searches do not get in each other's way.
pub(crate) fn claiming(node: u32) -> u64 {
    MAX_SIZE + 0x2_0000 + u64::from(node)
}

/// Held alone by the process that has this number on this node.
pub(crate) fn process(node: u32, process: u32) -> u64 {
    MAX_SIZE + 0x3_0000 + u64::from(node * PROCESSES + process)
}

/// Held alone by the process whose descriptors lie in this place of the memory of the node's board.
pub(crate) fn board(node: u32, place: u32) -> u64 {
    MAX_SIZE + 0x10_0000 + u64::from(node) * BOARD_PLACES + u64::from(place)
}

/// Places in the memory of a board at most.
pub(crate) const BOARD_PLACES: u64 = 1024;

/// Granules of a region at most.
const GRANULES: u64 = MAX_SIZE / crate::layout::GRANULE;

/// Held alone by the process whose memory these granules are.
pub(crate) fn owner(node: u32, granules: &Range<u32>) -> Range<u64> {
    granule_bytes(1 << 32, node, granules)
}

/// Shared by the processes that may put into these granules.
pub(crate) fn users(node: u32, granules: &Range<u32>) -> Range<u64> {
    granule_bytes(2 << 32, node, granules)
}

fn granule_bytes(from: u64, node: u32, granules: &Range<u32>) -> Range<u64> {
    let first = MAX_SIZE + from + u64::from(node) * GRANULES;
    first + u64::from(granules.start)..first + u64::from(granules.end)
}

/// Incarnations are below this, and not 0.
pub(crate) const INCARNATIONS: u64 = 1 << 61;

/// Held alone by the process of this incarnation for as long as it lives.
pub(crate) fn incarnation(incarnation: u64) -> u64 {
    (1 << 62) + incarnation % INCARNATIONS
}

const _: () = assert!(MAX_NODES as u64 * GRANULES <= 1 << 32 && MAX_NODES * PROCESSES <= 0x1_0000);

pub(crate) fn one(byte: u64) -> Range<u64> {
    byte..byte + 1
}

/// Takes an exclusive lock that others hold for moments only. Returns false if that takes longer than `patience`.
pub(crate) fn lock_soon(locks: &dyn Kernel, byte: u64, patience: Duration) -> Result<bool> {
    let (mut waited, mut next) = (Duration::ZERO, Duration::from_micros(50));
    loop {
        if locks.try_lock(one(byte), Kind::Alone)? {
            return Ok(true);
        }
        if waited >= patience {
            return Ok(false);
        }
        locks.pause(next);
        waited += next;
        next = (next * 2).min(Duration::from_millis(10));
    }
}

/// A lock of one byte, given back when dropped.
pub(crate) struct Locked<'a> {
    locks: &'a dyn Kernel,
    byte: u64,
}

impl<'a> Locked<'a> {
    /// The guard of a byte that is locked already.
    pub(crate) fn of(locks: &'a dyn Kernel, byte: u64) -> Self {
        Locked { locks, byte }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.locks.unlock(one(self.byte));
    }
}

/// EBUSY: a lock was not free in time.
pub(crate) fn stuck(what: &str) -> Error {
    Error::new(
        libc::EBUSY,
        format!(
            "{what} has been locked for too long: a process that uses the window is stopped in the midst of a change"
        ),
    )
}
