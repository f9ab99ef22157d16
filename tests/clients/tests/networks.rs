//! The unmodified clients and the C programs between two hosts over a cable that carries a path MTU of 4096, and over the
//! loopback in packets: what `tests/tests/network.rs` does over an ordinary cable; and over that the lines of perftest that it
//! leaves out.

use vervain_tests::matrix::{PERFTEST, PING_PONGS};
use vervain_tests::wire::{Wire, matrix, programs};

#[test]
fn ping_pongs_over_a_cable_of_9000_bytes() {
    matrix(Wire::Cable(9000), PING_PONGS, 0, 3);
}

#[test]
fn ping_pongs_over_the_loopback_in_packets() {
    matrix(Wire::Loopback, PING_PONGS, 0, usize::MAX);
}

#[test]
fn perftest_over_a_cable_of_1500_bytes_with_every_option() {
    matrix(Wire::Cable(1500), PERFTEST, 0, usize::MAX);
}

#[test]
fn perftest_over_a_cable_of_9000_bytes() {
    matrix(Wire::Cable(9000), PERFTEST, 0, 2);
}

#[test]
fn perftest_over_the_loopback_in_packets() {
    matrix(Wire::Loopback, PERFTEST, 0, usize::MAX);
}

#[test]
fn programs_over_a_cable_of_9000_bytes() {
    programs(Wire::Cable(9000), &["conformance --two", "data"]);
}
