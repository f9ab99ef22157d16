//! Timers whose length is a code of five bits.

/// min_rnr_timer codes, in units of 10 µs (IBA table 45).
static RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Nanoseconds of an RNR NAK timer code (its lower five bits): 10 µs (code 1) to 655.36 ms (code 0).
#[inline]
pub fn rnr_timer_ns(code: u8) -> u64 {
    u64::from(RNR_TIMERS[usize::from(code & 0x1f)]) * 10_000
}

/// Nanoseconds of a Local ACK Timeout code (its lower five bits): 4.096 µs × 2^code (IBA 9.7.6.1.3). None for code 0:
/// no timeout.
#[inline]
pub fn ack_timeout_ns(code: u8) -> Option<u64> {
    (code & 0x1f != 0).then(|| 4096 << (code & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_are_those_of_the_specification() {
        assert_eq!([0, 1, 12, 31].map(rnr_timer_ns), [655_360_000, 10_000, 640_000, 491_520_000]);
        assert!(
            (1..31).all(|code| rnr_timer_ns(code) < rnr_timer_ns(code + 1)),
            "but for 0 a longer timer has a higher code"
        );
        assert_eq!([0, 1, 14, 31].map(ack_timeout_ns), [None, Some(8192), Some(67_108_864), Some(4096 << 31)]);
    }
}
