//! The counters of a device's ports, as sysfs shows them: of all processes that have used the device, those that were
//! killed included, and up to date while they run.
//!
//! They lie in one file beside the view of sysfs that `vervain run` makes. It is a row of *blocks*; a block belongs to
//! one thread of one process at a time, which alone adds to it, so that counting takes no atomic instruction. A block
//! has one [`Line`] for each port. Counts stay when their thread has ended, and the next thread that gets the block
//! counts on; a counter's value is the sum over all blocks. A process holds its blocks by locks of the open file
//! (fcntl(2), F_OFD_SETLK), which the kernel takes back however it ends.
//!
//! The numbers of present objects are counted there too: a thread that makes one adds one in its block, a thread that
//! destroys one takes one away in its own. Those of a process that has ended are gone, so [`held_sums`] takes only
//! blocks that a process holds, and a process that takes a block over begins at 0.
//!
//! The file is its user's own and written by programs under Vervain only. Its numbers are summed and shown, and nothing
//! else depends on them.

mod file;
mod names;

pub use file::{Block, CountersFile, held_sums, sums};
pub use names::{Counter, Directory, OBJECTS, REAL, find, parse_placeholder, placeholder, sum};

use std::sync::atomic::{AtomicU64, Ordering};

/// The file's name in the directory that `VERVAIN_SYSFS` names.
///
/// The number is that of its format, for programs of an earlier release may still run.
pub const FILE: &str = "counters.4";

/// The mode of the files that stand in a counter's place: readable, and distinguished from others by the sticky bit,
/// which means nothing for a file.
pub const PLACEHOLDER_MODE: u32 = 0o1444;

/// Words in a line.
pub const WORDS: usize = 56;

/// A counter. Its number is the place in a line and part of the file's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// Bytes of messages that went by memory.
    MemoryBytes = 0,
    /// Sends that were carried out by memory, UD included.
    MemorySends,
    /// RDMA Writes by memory.
    MemoryWrites,
    /// RDMA Reads by memory.
    MemoryReads,
    /// Atomics by memory; and flushes and atomic writes.
    MemoryAtomics,
    /// Packets sent; and their bytes from the BTH to the ICRC.
    SentPackets,
    /// See [`Word::SentPackets`].
    SentBytes,
    /// Packets that came and were for a QP.
    ReceivedPackets,
    /// Their bytes.
    ReceivedBytes,
    /// Sends that came in packets and were carried out.
    Sends,
    /// RDMA Writes in packets.
    Writes,
    /// RDMA Reads in packets.
    Reads,
    /// Atomics, flushes and atomic writes in packets.
    Atomics,
    /// Packets with a wrong ICRC.
    BadIcrc,
    /// Packets that arrived and were not RoCE.
    Malformed,
    /// Packets that the host's network did not take: no room, no route, larger than the MTU.
    Discarded,
    /// Requests that had been carried out before.
    Duplicates,
    /// Requests beyond the expected one.
    OutOfSequence,
    /// NAKs "PSN sequence error" received.
    SequenceNaks,
    /// Answers that showed that an earlier one is missing (IBA 9.7.5.1).
    ImpliedNaks,
    /// RNR NAKs received, or a peer by memory found without a receive.
    RnrNaks,
    /// Messages that found no receive.
    OutOfBuffer,
    /// Expired ACK timeouts.
    Timeouts,
    /// Packets sent more than once.
    Resent,
    /// Requests that ended in an error, other than flushed ones.
    Errors,
    /// Requests that ended with a remote access error.
    RemoteAccess,
    /// Requests that ended with a remote invalid request error.
    RemoteInvalid,
    /// Requests that were flushed.
    Flushed,
    /// Receives that were flushed.
    FlushedReceives,
    /// Objects that there are: protection domains. They are counted at the first port of their device.
    Pds,
    /// Completion queues.
    Cqs,
    /// Queue pairs.
    Qps,
    /// Memory regions.
    Mrs,
    /// Open devices.
    Contexts,
    /// Shared receive queues.
    Srqs,
    /// RDMA Writes that were put into a peer's memory in a window, and so need no packet.
    WindowWrites,
    /// Data put into a window where it belongs: of those Writes, and of long messages.
    WindowDirectBytes,
    /// Data of shorter messages, put into rings of a window.
    WindowRingBytes,
    /// Data of long messages that was put into rings all the same.
    WindowStagedBytes,
    /// Bytes that a sender copied first, as where they lay broke a limit of its device; and as the device could not
    /// read them there.
    WindowCopiedAlignment,
    /// See [`Word::WindowCopiedAlignment`].
    WindowCopiedMemory,
    /// Descriptors carried out by the board of a window, in its own memory and in that of the host.
    WindowInternalDescriptors,
    /// See [`Word::WindowInternalDescriptors`].
    WindowHostDescriptors,
    /// Links between boards that puts have passed.
    WindowHops,
    /// Chains that a board has refused.
    WindowRefusals,
    /// Bytes among [`Word::MemoryBytes`] that process_vm calls moved; without datagrams.
    VmBytes,
    /// Bytes among [`Word::MemoryBytes`] that the owner of the memory moved; without datagrams.
    OwnerBytes,
    /// Congestion notification packets sent.
    NotificationsSent,
    /// Packets that the network had marked.
    MarkedPackets,
    /// Congestion notification packets that came from a QP's peer.
    NotificationsHandled,
}

/// The words that count objects.
pub(crate) const OF_OBJECTS: std::ops::RangeInclusive<usize> = Word::Pds as usize..=Word::Srqs as usize;

/// The counters of one port in one block. Only the block's thread writes.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line {
    words: [AtomicU64; WORDS],
}

impl Line {
    /// A line whose counters are all 0.
    pub const fn new() -> Line {
        Line { words: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// Adds `n`. To be called by the thread that has the block.
    #[inline(always)]
    pub fn add(&self, word: Word, n: u64) {
        let word = &self.words[word as usize];
        word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes one away, of what another thread may have added. To be called by the thread that has the block.
    pub fn subtract_one(&self, word: Word) {
        self.add(word, u64::MAX);
    }

    /// No objects: the block's last process has ended with those that it had.
    pub(crate) fn begin(&self) {
        for word in OF_OBJECTS {
            self.words[word].store(0, Ordering::Relaxed);
        }
    }

    /// Counts on where another line stood that had said `left` before it came to `now`; its objects are this one's.
    pub(crate) fn go_on(&self, now: &[u64; WORDS], left: &[u64; WORDS]) {
        for (word, (now, left)) in now.iter().zip(left).enumerate() {
            let counted = if OF_OBJECTS.contains(&word) { *now } else { now.wrapping_sub(*left) };
            let before = self.words[word].load(Ordering::Relaxed);
            self.words[word].store(before.wrapping_add(counted), Ordering::Relaxed);
        }
    }

    /// The value.
    pub fn get(&self, word: Word) -> u64 {
        self.words[word as usize].load(Ordering::Relaxed)
    }
}

impl Default for Line {
    fn default() -> Line {
        Line::new()
    }
}
