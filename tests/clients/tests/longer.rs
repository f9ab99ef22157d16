//! Longer forms of what `tests/tests` checks in seconds: more deaths, more objects that come and go, more messages whose end is
//! polled, more bytes under loss, and perftest's lines that go through all sizes.

use vervain_tests::Runs;
use vervain_tests::pairs::{has_all_sizes, perftest};
use vervain_tests::wire::flood_under_loss;

const EACH_WAY: &[&str] = &["auto", "vm", "owner", "shared", "adopt"];

#[test]
fn peers_are_killed_under_load_500_times() {
    let kill = Runs { program: "kill", cases: &[&["kill_under_load"]], seconds: 900, ..Runs::default() };
    Runs { vars: &[("VT_ROUNDS", "500")], ..kill }.must_hold();
    Runs { ways: &EACH_WAY[1..], vars: &[("VT_ROUNDS", "100")], ..kill }.must_hold();
}

#[test]
fn objects_come_and_go_50_000_times_beside_others_in_use() {
    Runs {
        program: "fan_in",
        cases: &[&["churning"]],
        ways: EACH_WAY,
        seconds: 600,
        vars: &[("VT_CHURNS", "50000")],
        ..Runs::default()
    }
    .must_hold();
}

#[test]
fn nobody_who_polls_the_end_of_a_message_for_half_a_second_sees_older_bytes() {
    Runs { program: "torn_tail", ways: EACH_WAY, vars: &[("VT_LIMIT_MS", "500")], ..Runs::default() }.must_hold();
}

#[test]
fn a_gibibyte_each_way_over_64_qps_under_one_percent_of_loss() {
    // That is more than a million packets of 1024 bytes each way.
    flood_under_loss(1024, 5_000);
}

#[test]
fn perftest_goes_through_all_sizes() {
    for tool in ["ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw", "ib_read_bw"] {
        perftest(tool, has_all_sizes);
    }
}
