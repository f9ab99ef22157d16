//! Sequences of packets into a QP: a bounded run of what the fuzz target `conversation` runs without end.

#[path = "../../../../fuzz/checks/conversation/mod.rs"]
mod conversation;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_qp_keeps_its_rules_whatever_is_sent_to_it(script in prop::collection::vec(any::<u8>(), 0..400)) {
        conversation::check(&script);
    }
}

/// A message behind a gap, which is reported, and refused when the gap has closed.
#[test]
fn a_kept_packet_is_reported_and_answered_later() {
    let (config, post) = ([32, 128, 4, 0, 0], [61, 150, 7, 0]);
    let (ahead, flush) = ([42, 192, 190, 0, 0, 0, 0], [104, 252, 0, 16, 0, 0, 0, 0]);
    conversation::check(&[&config[..], &post, &ahead, &flush].concat());
}
