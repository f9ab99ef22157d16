//! The tests of pyverbs, rdma-core's own test-suite, unmodified as Debian 12 ships them: each does what
//! `tests/clients/data/pyverbs.txt` says, by memory, in packets and through windows.

use vervain_tests::Failures;
use vervain_tests::pyverbs::{as_listed, have_tests};

#[test]
fn each_test_of_pyverbs_does_what_is_listed() {
    if !have_tests() {
        return;
    }
    let mut failures = Failures::default();
    for name in ["auto", "owner", "roce", "window", "write_only"] {
        as_listed(&mut failures, name);
    }
    failures.assert_none();
}
