//! Debian's perftest, server and client unmodified: every tool over every transport it knows, and its options. perftest
//! does not look at the data (the C programs do); here the exit status, the absence of errors and a result row count. The lines
//! with all sizes are in `tests/clients/tests/longer.rs`.

use std::time::Duration;

use vervain_tests::matrix::CONNECTED;
use vervain_tests::pairs::{complaint, each_line, has_all_sizes, pair, perftest, perftest_options, words};
use vervain_tests::{Failures, alone, have, way};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs `tool` with each of its lines of options.
fn matrix(tool: &str) {
    perftest(tool, |line| !has_all_sizes(line));
}

#[test]
fn ib_send_lat() {
    matrix("ib_send_lat");
}

#[test]
fn ib_send_bw() {
    matrix("ib_send_bw");
}

#[test]
fn ib_write_lat() {
    matrix("ib_write_lat");
}

#[test]
fn ib_write_bw() {
    matrix("ib_write_bw");
}

#[test]
fn ib_read_lat() {
    matrix("ib_read_lat");
}

#[test]
fn ib_read_bw() {
    matrix("ib_read_bw");
}

#[test]
fn ib_atomic_lat() {
    matrix("ib_atomic_lat");
}

#[test]
fn ib_atomic_bw() {
    matrix("ib_atomic_bw");
}

/// By librdmacm, through memory and in packets.
#[test]
fn connected_by_librdmacm() {
    let _turn = alone();
    let mut failures = Failures::default();
    for (tool, lines) in CONNECTED.iter().filter(|(tool, _)| have(&[tool])) {
        for name in ["auto", "roce"] {
            each_line(tool, lines, &mut failures, |line| {
                let args = perftest_options(tool, line, 0);
                let (server, client) = pair(tool, &args, &way(name), LIMIT);
                println!("{name} {tool} {line}: {:.2} s", client.took.as_secs_f64());
                complaint(tool, &server, &client)
            });
        }
    }
    failures.assert_none();
}

/// Without -x: perftest chooses the GID by itself, and on InfiniBand goes by LID.
#[test]
fn by_default_gid_and_by_lid() {
    if !have(&["ib_write_bw", "ib_send_lat", "ib_read_lat"]) {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    for vars in [&[][..], &[("VERVAIN_LINK_LAYER", "infiniband")][..]] {
        for (tool, options) in [
            ("ib_write_bw", "-n 300 -F"),
            ("ib_send_lat", "-n 200 -F"),
            ("ib_send_lat", "-n 200 -F -c UD"),
            ("ib_read_lat", "-n 200 -F -c XRC"),
        ] {
            let (server, client) = pair(tool, &words(options), vars, LIMIT);
            for end in [&server, &client] {
                if !end.success() {
                    failures.add(options, end.describe());
                }
            }
        }
    }
    failures.assert_none();
}
