//! What the memory of a window is made of, and what can be found out about it: how fast it is read, and whether a futex can lie
//! there.

use crate::arch;
use crate::device::Region;
use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// What holds the memory of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A file, a folder of files, or memory of a process.
    File,
    /// Device-DAX: a character device behind which memory lies that several machines can share (an NVDIMM of guests, CXL).
    Dax {
        /// Bytes: each mapping of it begins and ends at multiples of this, a page or more.
        align: u64,
    },
    /// BAR 2 of an ivshmem device: memory of the host that its guests share.
    Ivshmem,
}

/// Reads below so many bytes in a second are those of memory that no cache keeps.
pub(crate) const SLOW: u64 = 1_000_000_000;
/// Bytes that are read to see how fast that is: fewer than the smallest cache.
const SAMPLE: u64 = 16 << 10;
/// How often; the fastest counts, since others interrupt.
const PASSES: usize = 8;
/// How often a speed is measured that seems slow: a hypervisor, or another process, takes the CPU for longer than all passes.
const MEASUREMENTS: usize = 3;
/// After so long no other pass is made.
const LONG: Duration = Duration::from_millis(5);

impl Medium {
    /// Whether single pages of it can be mapped, as the heap of programs does.
    pub fn maps_pages(self) -> bool {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        !matches!(self, Medium::Dax { align } if align > page)
    }

    /// Has all stores up to here become visible before those behind it. Where the memory's type is "write-combining" (a PCI BAR), stores
    /// wait in buffers of the processor, which no ordinary order of stores concerns.
    #[inline]
    pub(crate) fn drain(self) {
        if self == Medium::Ivshmem {
            arch::drain_stores();
        } else {
            // On x86-64 that takes no instruction.
            fence(Ordering::Release);
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Medium::File => "a file",
            Medium::Dax { .. } => "device-DAX",
            Medium::Ivshmem => "memory of an ivshmem device",
        })
    }
}

/// Bytes of a region that are read in a second by loads of words, where a cache could help.
pub(crate) fn read_speed(region: &Region) -> u64 {
    let words = &region.words()[..(SAMPLE.min(region.size()) / 8) as usize];
    fastest(|| speed(words))
}

/// The highest of several speeds; the first one that is not slow suffices.
fn fastest(mut measure: impl FnMut() -> u64) -> u64 {
    let mut best = 0;
    for _ in 0..MEASUREMENTS {
        best = best.max(measure());
        if best >= SLOW {
            break;
        }
    }
    best
}

/// Whether reads with this speed are those of memory that is not cached. Where everything is slow, in an emulated machine say, the
/// memory is not to blame.
pub(crate) fn is_uncached(speed: u64) -> bool {
    speed < SLOW && {
        let private: Vec<AtomicU64> = (0..SAMPLE / 8).map(AtomicU64::new).collect();
        speed < self::speed(&private) / 4
    }
}

fn speed(words: &[AtomicU64]) -> u64 {
    let (mut best, mut all) = (Duration::MAX, Duration::ZERO);
    for _ in 0..PASSES {
        let start = Instant::now();
        black_box(words.iter().fold(0, |sum, word| sum ^ word.load(Ordering::Relaxed)));
        let took = start.elapsed();
        (best, all) = (best.min(took), all + took);
        // The time of passes alone: what is done between them for the first time may have to come from a disk.
        if all > LONG {
            break;
        }
    }
    (size_of_val(words) as u128 * 1_000_000_000 / best.as_nanos().max(1)) as u64
}

/// Says once in a process that the memory of a window is slow, and what helps.
pub(crate) fn warn_of_slow(name: &str, speed: u64) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn!(
            "{name}: this node's part is read with {} MB/s, so no cache keeps it, and each look for a message is slow: device-DAX is \
             cached (an NVDIMM of the guest), and so is an ivshmem device where KVM does not honour the memory types of the guest",
            speed / 1_000_000
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::memory;

    #[test]
    fn what_seems_slow_is_measured_again() {
        let measured = |speeds: [u64; 4]| {
            let mut rest = speeds.into_iter();
            (fastest(|| rest.next().expect("a few measurements")), rest.len())
        };
        // A time slice that was another's makes one measurement slow.
        assert_eq!(measured([3_000_000, 8_000_000_000, 1, 1]), (8_000_000_000, 2));
        assert_eq!(measured([8_000_000_000, 1, 1, 1]), (8_000_000_000, 3));
        assert_eq!(measured([40_000_000, 42_000_000, 41_000_000, 1]), (42_000_000, 1));
    }

    #[test]
    fn memory_of_the_process_is_cached_and_what_is_a_hundred_times_as_slow_is_not() {
        let speed = read_speed(&memory(1 << 20));
        assert!(speed > 0 && !is_uncached(speed), "{speed}");
        assert!(is_uncached(speed.min(SLOW) / 100), "{speed}");
        assert!(!is_uncached(SLOW));
    }
}
