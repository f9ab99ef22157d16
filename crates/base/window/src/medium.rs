//! The memory of a window: its kind, and its read speed.

use crate::arch;
use crate::device::Region;
use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// Kinds of memory that a window lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A file, a folder of files, or anonymous memory.
    File,
    /// Device-DAX: a character device whose memory several machines can share (an NVDIMM of guests, CXL).
    Dax {
        /// Bytes of which each mapping's begin and end are multiples; a page or more.
        align: u64,
    },
    /// BAR 2 of an ivshmem device: memory of the host that its guests share.
    Ivshmem,
}

/// Bytes per second below which reads may be those of uncached memory.
pub(crate) const SLOW: u64 = 1_000_000_000;
/// Bytes read in one pass: fewer than the smallest cache has.
const SAMPLE: u64 = 16 << 10;
/// Passes of one measurement. The fastest counts, as others interrupt.
const PASSES: usize = 8;
/// Measurements of a speed that seems slow: a hypervisor or another process can take the CPU for longer than all
/// passes.
const MEASUREMENTS: usize = 3;
/// Duration of the passes after which no other is made.
const LONG: Duration = Duration::from_millis(5);

impl Medium {
    /// Returns true if single pages can be mapped, as the heap of programs needs.
    pub fn maps_pages(self) -> bool {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        !matches!(self, Medium::Dax { align } if align > page)
    }

    /// Makes all earlier stores visible before all later ones. In write-combining memory (a PCI BAR) stores wait in
    /// buffers of the processor, to which the ordinary order of stores does not apply.
    #[inline]
    pub(crate) fn drain(self) {
        if self == Medium::Ivshmem {
            arch::drain_stores();
        } else {
            // On x86-64 this takes no instruction.
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

/// Bytes per second that loads of words read of a region, repeatedly, so that a cache would help.
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

/// Returns true if `speed` (bytes per second) is that of uncached memory. It is compared with private memory, as
/// everything is slow in an emulated machine, say.
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
        // The sum of the passes alone: code between them may have to be paged in.
        if all > LONG {
            break;
        }
    }
    (size_of_val(words) as u128 * 1_000_000_000 / best.as_nanos().max(1)) as u64
}

/// Warns once in a process that the memory of a window is slow, with advice.
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
    use crate::parts::memory;

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
        let speed = read_speed(&memory(1 << 20).unwrap());
        assert!(speed > 0 && !is_uncached(speed), "{speed}");
        assert!(is_uncached(speed.min(SLOW) / 100), "{speed}");
        assert!(!is_uncached(SLOW));
    }
}
