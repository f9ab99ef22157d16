//! The boards of all nodes. The header of the window has the times until which their channels and links are busy, so
//! that every process of the model sees them, and thus the time at which a transfer lands. Times are of
//! CLOCK_MONOTONIC, so all nodes are of one kernel.

use super::descriptor::CHANNELS;
use super::topology::{Link, PORTS};
use crate::arch::ticks;
use crate::device::Region;
use crate::layout::BOARDS;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use vervain_config::Peach2;

/// PEACH2's time of a transfer with descriptors in the board's memory, from the call to the last byte in the other
/// node's memory.
pub(super) const INTERNAL_NS: u64 = 2000;
/// The same with descriptors in the memory of the host.
pub(super) const HOST_NS: u64 = 2200;
/// Bytes per microsecond, to and from memory of the processor.
pub(super) const CPU_RATE: u64 = 3500;
/// Bytes per microsecond if source or destination is memory of a GPU.
pub(super) const GPU_RATE: u64 = 2800;
/// The processor's time to begin a copy out of memory of a GPU, and its rate in bytes per microsecond. The paper prints
/// neither; both are of the order that copies through the PCI window of a GPU took then.
const GPU_READ_NS: u64 = 700;
const GPU_READ_RATE: u64 = 400;
/// Longest time that a board is busy. A time further away is ignored.
const LONGEST_NS: u64 = 1_000_000_000;
/// Waits longer than this yield the CPU. A thread that does not get it back in time would have had to share it anyway.
const YIELD_NS: u64 = 20_000;
/// Time for which the rate of the processor's counter is measured, once.
const CALIBRATION_NS: u64 = 200_000;

/// One board's entry in the header: the times until which its channels and links are busy.
#[repr(C)]
struct Board {
    channels: [AtomicU64; CHANNELS],
    links: [AtomicU64; PORTS],
    /// 1 if the node's programs have their heap in memory of a GPU, else 0.
    gpu_heap: AtomicU64,
}

/// The boards, as one process sees them.
#[derive(Debug, Clone)]
pub(super) struct Boards {
    header: Region,
    model: Peach2,
}

/// A transfer by a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transfer {
    /// The node of the board.
    pub from: u32,
    pub bytes: u64,
    /// True if all of its descriptors are in the memory of the board.
    pub is_internal: bool,
    /// True if memory of a GPU is read or written.
    pub is_gpu: bool,
}

impl Transfer {
    /// Nanoseconds for which the bytes move.
    pub(super) fn moves_ns(&self) -> u64 {
        self.bytes * 1000 / if self.is_gpu { GPU_RATE } else { CPU_RATE }
    }
}

impl Boards {
    pub(super) fn new(header: Region, model: Peach2) -> Boards {
        Boards { header, model }
    }

    fn board(&self, node: u32) -> &Board {
        let at = BOARDS + u64::from(node) * size_of::<Board>() as u64;
        // The entry's last word is inside, too, or this panics.
        let first = self.header.word(at);
        let _ = self.header.word(at + size_of::<Board>() as u64 - 8);
        // SAFETY: an entry consists of nothing but such words, which are all inside the region.
        unsafe { &*std::ptr::from_ref(first).cast() }
    }

    /// Sets whether the node's programs have their heap in memory of a GPU.
    pub(super) fn set_gpu_heap(&self, node: u32, is_gpu: bool) {
        self.board(node).gpu_heap.store(is_gpu.into(), Ordering::Release);
    }

    pub(super) fn has_gpu_heap(&self, node: u32) -> bool {
        self.board(node).gpu_heap.load(Ordering::Acquire) != 0
    }

    /// Time at which a transfer lands that begins at `now`, or once a channel and the links of its route are free.
    pub(super) fn land(&self, links: &[Link], now: u64, transfer: Transfer) -> u64 {
        let (wire, base) = (transfer.moves_ns(), if transfer.is_internal { INTERNAL_NS } else { HOST_NS });
        let channels = &self.board(transfer.from).channels;
        let busy = |word: &AtomicU64| believed(now, word.load(Ordering::Relaxed));
        let Some(channel) = channels.iter().min_by_key(|channel| busy(channel)) else { return now };
        let passed = links.len().saturating_sub(1) as u64 * u64::from(self.model.hop_ns);
        let begin = take(now, channel, now, base + passed + wire);
        let end =
            links.iter().fold(begin, |begin, link| take(now, self.link(*link), begin, wire)) + base + passed + wire;
        channel.fetch_max(end, Ordering::Relaxed);
        end
    }

    fn link(&self, link: Link) -> &AtomicU64 {
        &self.board(link.node).links[link.port]
    }
}

/// The time until which a channel or link is busy; 0 if it cannot be.
fn believed(now: u64, until: u64) -> u64 {
    if until > now + LONGEST_NS { 0 } else { until }
}

/// Makes a channel or link busy for `ns`, from `from` on at the earliest. Returns the begin.
fn take(now: u64, word: &AtomicU64, from: u64, ns: u64) -> u64 {
    let mut known = word.load(Ordering::Relaxed);
    loop {
        let begin = from.max(believed(now, known));
        match word.compare_exchange_weak(known, begin + ns, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return begin,
            Err(other) => known = other,
        }
    }
}

/// Nanoseconds that the processor takes to copy `bytes` out of memory of a GPU.
pub(super) fn gpu_read_ns(bytes: u64) -> u64 {
    GPU_READ_NS + bytes * 1000 / GPU_READ_RATE
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Waits until `until` without a sleep, from which a thread would return too late.
pub(super) fn wait_until(until: u64) {
    loop {
        match until.saturating_sub(now_ns()) {
            0 => return,
            YIELD_NS.. => std::thread::yield_now(),
            left => return spin(left),
        }
    }
}

/// Spins for `ns` nanoseconds by the processor's counter: each read of the clock takes up to a tenth of such a wait.
fn spin(ns: u64) {
    static TICKS_OF_MS: OnceLock<u64> = OnceLock::new();
    let begin = ticks();
    let ms = TICKS_OF_MS.get_or_init(|| {
        let (from, first) = (now_ns(), ticks());
        let end = from + CALIBRATION_NS;
        while now_ns() < end {}
        (ticks() - first) * 1_000_000 / CALIBRATION_NS
    });
    // Without the processor's spin hint, which takes as long as a whole message.
    while ticks().wrapping_sub(begin) < ns * ms / 1_000_000 {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::HEADER;
    use crate::parts::memory;
    use crate::peach2::topology::route;
    use vervain_config::Links;

    const T: u64 = 1_000_000;
    const SMALL: Transfer = Transfer { from: 0, bytes: 0, is_internal: true, is_gpu: false };
    const LONG: Transfer = Transfer { bytes: 3_500_000, is_internal: false, ..SMALL };

    fn boards(links: Links) -> Boards {
        Boards::new(memory(HEADER).unwrap(), Peach2 { links, hop_ns: 100, ..Peach2::default() })
    }

    /// Nanoseconds from `now` to the landing of a transfer to a node of eight.
    fn land(boards: &Boards, now: u64, transfer: Transfer, to: u32) -> u64 {
        let links = route(boards.model.links, 8, transfer.from, to);
        boards.land(&links, now, transfer) - now
    }

    #[test]
    fn transfers_take_the_time_of_the_paper() {
        let alone = |transfer, to| land(&boards(Links::Rings), T, transfer, to);
        assert_eq!(alone(SMALL, 1), 2000);
        assert_eq!(alone(Transfer { is_internal: false, ..SMALL }, 1), 2200);
        assert_eq!(alone(LONG, 1), 2200 + 1_000_000);
        assert_eq!(alone(Transfer { is_gpu: true, ..LONG }, 1), 2200 + 1_250_000);
        assert_eq!(alone(SMALL, 2), 2100, "one board is passed");
        assert_eq!(alone(SMALL, 6), 2200);
        assert_eq!(alone(SMALL, 0), 2000, "the own node");
        assert_eq!(land(&boards(Links::AllToAll), T, SMALL, 6), 2000);
    }

    #[test]
    fn four_channels_work_at_once_and_share_their_link() {
        let boards = boards(Links::Rings);
        let small = [(); 9].map(|()| land(&boards, T, SMALL, 1));
        assert_eq!(small, [2000, 2000, 2000, 2000, 4000, 4000, 4000, 4000, 6000]);
        // Finished transfers keep nothing busy.
        let long = [(); 3].map(|()| land(&boards, 2 * T, LONG, 1));
        assert_eq!(long, [1_002_200, 2_002_200, 3_002_200]);
        // Another route is free; one that passes the busy link is not.
        assert_eq!(land(&boards, 2 * T, LONG, 3), 1_002_200);
        assert_eq!(land(&boards, 2 * T, Transfer { from: 3, ..LONG }, 1), 4_002_200 + 100);
    }

    #[test]
    fn nobody_waits_for_a_time_that_cannot_be() {
        let boards = boards(Links::Rings);
        boards.header.words().iter().for_each(|word| word.store(u64::MAX - 7, Ordering::Relaxed));
        assert_eq!(land(&boards, T, SMALL, 1), 2000);
        boards.header.words().iter().for_each(|word| word.store(T + 5, Ordering::Relaxed));
        assert_eq!(land(&boards, T, SMALL, 1), 2005);
    }
}
