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
