//! Arithmetic of packet sequence numbers, modulo 2^24 (IBA 9.7.1).

/// All bits of a PSN.
pub const MASK: u32 = 0xff_ffff;
/// Half of the PSN space: a packet at most this far behind the expected one is a duplicate (IBA 9.7.2, figure 86).
const HALF: u32 = 1 << 23;

/// `psn + packets`.
#[inline(always)]
pub fn add(psn: u32, packets: u32) -> u32 {
    psn.wrapping_add(packets) & MASK
}

/// The number of packets from `from` to `to`, 0 to 2^24 - 1.
#[inline(always)]
pub fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from) & MASK
}

/// Returns true if `psn` comes before `other`, in the half of the space that lies behind it.
#[inline(always)]
pub fn is_before(psn: u32, other: u32) -> bool {
    distance(psn, other).wrapping_sub(1) < HALF
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn distance_undoes_add(psn in 0..=MASK, packets in 0..=MASK) {
            prop_assert_eq!(distance(psn, add(psn, packets)), packets);
            prop_assert!(add(psn, packets) <= MASK);
        }

        #[test]
        fn before_is_as_for_integers_that_do_not_wrap(psn in 0..=MASK, packets in 1..HALF) {
            prop_assert!(is_before(psn, add(psn, packets)));
            prop_assert!(!is_before(add(psn, packets), psn));
            prop_assert!(!is_before(psn, psn));
        }

        #[test]
        fn additions_add_up(psn in 0..=MASK, a in 0..=MASK, b in 0..=MASK) {
            prop_assert_eq!(add(add(psn, a), b), add(psn, a.wrapping_add(b)));
        }
    }

    #[test]
    fn half_of_the_space_is_behind() {
        assert!(is_before(0, HALF));
        assert!(is_before(HALF, 0));
        assert!(is_before(0xff_fff0, 0x10));
        assert!(!is_before(0x10, 0xff_fff0));
    }
}
