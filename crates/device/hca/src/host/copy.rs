//! Long copies. The C library's are made for copies of one size each; a device moves messages in chunks, and what its
//! memcpy picks for a chunk can be far off. Measured on an AMD EPYC (Zen 3), from private into shared memory, in GB/s
//! (no ARM processor has been measured):
//!
//! | 64 KiB chunks of | memcpy | 32-byte loop | streaming loop |
//! |---|---|---|---|
//! | 64 KiB, aligned alike | 33 | 33 | 11 |
//! | 64 KiB, target 16 bytes ahead modulo a page | 2.0 | 46 | 10 |
//! | 1 MiB | 24 | 33 | 14 |
//! | 1 MiB, target 16 bytes ahead modulo a page | 2.9 | 27 | 10 |
//! | 16 MiB | 11.0 | 9.5 | 12.4 |
//!
//! The second row is `rep movsb`, which `memmove` uses from 2 KiB up, and malloc's 16-byte header makes it common.
//! Messages that no cache holds stream past it.

use crate::host::guarded::{self, Access};

/// From so many bytes on the loops are better than memcpy.
const LONG: usize = 1024;
/// Messages from this length on are streamed: they displace more of the cache than the reader finds in it.
pub const STREAM_FROM: u64 = 8 << 20;
/// One turn of a loop.
const TURN: usize = 128;

/// Copies `n` bytes; ranges may overlap, as those of a looped QP do. `stream` says that the bytes belong to a message
/// of [`STREAM_FROM`] or more. Memory that is not there is an answer, on either side; part of the bytes may be copied
/// then.
///
/// # Safety
/// No reference is to the bytes at `to`, nor one that excludes others to those at `from`.
#[inline]
pub unsafe fn bulk(from: *const u8, to: *mut u8, n: usize, stream: bool) -> Access {
    let overlaps = (to as usize).wrapping_sub(from as usize) < n || (from as usize).wrapping_sub(to as usize) < n;
    // SAFETY: the caller vouches for both ranges; the processor has the loops, and there is no overlap.
    unsafe {
        if n >= LONG && !overlaps && guarded::has_turns() {
            return if stream { by_turns::<true>(from, to, n) } else { by_turns::<false>(from, to, n) };
        }
        guarded::copy(from, to, n)
    }
}

/// Copies by turns of 128 bytes; with `STREAM` past the caches, and so that what was stored is visible before
/// anything that is stored after it.
///
/// # Safety
/// As for [`bulk`]; no overlap, at least [`LONG`] bytes, [`guarded::has_turns`].
#[inline(never)]
unsafe fn by_turns<const STREAM: bool>(from: *const u8, to: *mut u8, n: usize) -> Access {
    let before = to.align_offset(64);
    let turns = (n - before) / TURN * TURN;
    let end = before + turns;
    // SAFETY: `before` is below 64, so that there is a turn, and `end` is at most `n`; from `before` on the target is
    // aligned.
    unsafe {
        guarded::copy(from, to, before)?;
        guarded::turns::<STREAM>(from.add(before), to.add(before), turns)?;
        guarded::copy(from.add(end), to.add(end), n - end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    #[test]
    fn any_length_and_alignment_arrives() {
        let from = source(6000);
        for stream in [false, true] {
            for (a, b) in [(0, 0), (0, 16), (16, 0), (1, 33), (63, 5), (7, 64)] {
                for n in [0, 1, 31, 1023, 1024, 1025, 1151, 1152, 1153, 4096, 5001] {
                    let mut to = vec![0xee; 6200];
                    // SAFETY: both vectors are longer than offset and length.
                    let copied = unsafe { bulk(from.as_ptr().add(a), to.as_mut_ptr().add(b), n, stream) };
                    assert_eq!(copied, Ok(()));
                    assert_eq!(&to[b..b + n], &from[a..a + n], "{a} {b} {n} {stream}");
                    assert!(to[..b].iter().chain(&to[b + n..]).all(|&byte| byte == 0xee), "{a} {b} {n} {stream}");
                }
            }
        }
    }

    #[test]
    fn overlapping_ranges_move_as_a_whole() {
        for (a, b) in [(0, 100), (100, 0), (0, 1), (1, 0), (0, 4000), (500, 500)] {
            let mut memory = source(10_000);
            let want = memory[a..a + 5000].to_vec();
            // SAFETY: both ranges lie in the vector.
            let copied = unsafe { bulk(memory.as_ptr().add(a), memory.as_mut_ptr().add(b), 5000, true) };
            assert_eq!(copied, Ok(()));
            assert_eq!(&memory[b..b + 5000], &want, "{a} to {b}");
        }
    }
}
