//! The times of the protocol.

/// Time, in ns since whenever.
pub type Nanos = u64;

/// The largest exponent that is obeyed, 69 s, so that no peer can have this end keep something for hours. The kernel's
/// MRA has this one.
const LARGEST: u8 = 24;

/// The shortest interval between repetitions, in ns: the kernel's clock is no finer.
const SHORTEST: Nanos = 1_000_000;

/// The time of an exponent of the protocol: 4.096 µs · 2^n, within bounds.
pub(crate) fn of(exponent: u8) -> Nanos {
    (4096 << exponent.min(LARGEST)).max(SHORTEST)
}

/// The time in which a packet is acknowledged, as an exponent, from the delay of the adapter at the other end and the
/// life time of packets. They are added as in the kernel's ib_cm: one more than the larger if the smaller equals it or
/// is one less.
pub(crate) fn ack_timeout(target_ack_delay: u8, packet_life_time: u8) -> u8 {
    let there_and_back = packet_life_time + 1;
    let (larger, smaller) = (there_and_back.max(target_ack_delay), there_and_back.min(target_ack_delay));
    (larger + u8::from(smaller + 1 >= larger)).min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_specification_within_bounds() {
        assert_eq!(of(20), 4096 << 20);
        assert_eq!(of(0), SHORTEST);
        assert_eq!(of(31), 4096 << 24);
    }

    /// 19 is what the golden REQ has.
    #[test]
    fn acknowledgements_take_as_long_as_the_kernel_says() {
        assert_eq!(ack_timeout(15, 18), 19);
        assert_eq!(ack_timeout(18, 18), 20);
        assert_eq!(ack_timeout(19, 18), 20);
        assert_eq!(ack_timeout(25, 18), 25);
        assert_eq!(ack_timeout(31, 30), 31);
    }
}
