//! Debian's perftest, server and client unmodified: every tool over every transport it knows, and its options. perftest
//! does not look at the data (the C programs do); here the exit status, the absence of errors and a result row count.

mod common;

use std::time::Duration;

use common::{loopback_gid, pair, words};
use vervain_tests::{Failures, Finished, alone, have, way};

const LIMIT: Duration = Duration::from_secs(60);

/// Complaints that perftest prints and may yet end with status 0.
const COMPLAINTS: &[&str] =
    &["Completion with error", "completion with error", "Failed", "Couldn't", "Unable", "error", "Conflicting"];

/// A row of results: the size, the number of iterations, and rates or times above zero.
fn has_row(run: &Finished) -> bool {
    run.output.lines().any(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map_while(|w| w.parse().ok()).collect();
        numbers.len() >= 4 && numbers[0] >= 1.0 && numbers[1] >= 5.0 && numbers[2..].iter().any(|&x| x > 0.0)
    })
}

/// Runs `tool` with each line of options; lines may begin with a memory way as `vm:` or `owner:`.
fn matrix(tool: &str, lines: &[&str]) {
    if !have(&[tool, "ibv_devinfo"]) {
        return;
    }
    // Both ends spin: two pairs at once on two cores would wait for each other's time slices.
    let _turn = alone();
    let gid = loopback_gid().to_string();
    let mut failures = Failures::default();
    for line in lines {
        let (name, options) = line.split_once(": ").unwrap_or(("auto", line));
        let mut args = words(options);
        args.push("-F".to_owned());
        if !args.iter().any(|a| a == "-x") {
            args.extend(["-x".to_owned(), gid.clone()]);
        }
        let (server, client) = pair(tool, &args, &way(name.trim()), LIMIT);
        println!("{tool} {line}: {:.2} s", client.took.as_secs_f64());
        for end in [&server, &client] {
            let complaint = COMPLAINTS.iter().find(|c| end.output.contains(**c));
            if !end.success() || complaint.is_some() {
                failures.add(line, end.describe());
            }
        }
        if client.success() && !has_row(&client) {
            failures.add(line, format!("no result row\n{}", client.describe()));
        }
    }
    failures.assert_none();
}

#[test]
fn ib_send_lat() {
    matrix(
        "ib_send_lat",
        &[
            "-n 500",
            "-n 100 -a",
            "-n 200 -e",
            "-n 200 -s 64 -I 64",
            "-n 200 -s 4096 -r 16",
            "-n 200 -c UC",
            "-n 50 -c UC -s 1000000",
            "-n 200 -c UD",
            "-n 100 -c UD -a",
            "-n 200 -c UD -e",
            "-n 200 -c XRC",
            "-n 50 -c XRC -s 1000000",
            "-n 200 -c XRC -e",
            "-n 200 --use-srq",
            "-n 200 -c UD -g",
            "vm: -n 50 -s 8388608",
            "owner: -n 100 -s 100",
            "owner: -n 20 -s 1000000",
        ],
    );
}

#[test]
fn ib_send_bw() {
    matrix(
        "ib_send_bw",
        &[
            "-n 500",
            "-n 50 -s 8388608",
            "-n 300 -b",
            "-n 300 -e",
            "-n 300 -b -e",
            "-n 300 -q 8",
            "-n 300 -q 8 -b",
            "-n 300 -s 32 -I 64",
            "-n 300 -t 16 -r 32",
            "-n 300 -Q 1",
            "-n 320 -l 8 --recv_post_list=8",
            "-n 300 --use-srq",
            "-n 300 --use-srq -q 4 -r 256",
            "-n 300 --reversed",
            "-n 300 -c UC",
            "-n 300 -c UC -b -q 2",
            "-n 300 -c UD -s 2048",
            "-n 200 -c UD -s 4096",
            "-n 300 -c UD -s 1024 -b",
            "-n 300 -c XRC",
            "-n 300 -c XRC -q 4 -b",
            "-n 300 -c UD -g -s 1024 -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1",
            "vm: -n 50 -a",
            "owner: -n 50 -s 1000000",
        ],
    );
}

#[test]
fn ib_write_lat() {
    matrix(
        "ib_write_lat",
        &[
            "-n 500",
            "-n 50 -s 8388608",
            "-n 200 -s 64 -I 64",
            "-n 200 -c UC",
            "-n 100 -c UC -a",
            "-n 200 -c XRC",
            "-n 50 -c XRC -s 1000000",
            "-n 200 -m 256 -s 10000",
            "vm: -n 50 -s 1000000",
            "owner: -n 100 -s 100",
            "owner: -n 20 -s 1000000",
        ],
    );
}

#[test]
fn ib_write_bw() {
    matrix(
        "ib_write_bw",
        &[
            "-n 500",
            "-n 50 -s 8388608",
            "-n 300 -b",
            "-n 50 -a -b",
            "-n 300 -q 8",
            "-n 300 -q 8 -b",
            "-n 300 -s 32 -I 64",
            "-n 300 -t 16",
            "-n 300 -t 512 -s 4096",
            "-n 320 -l 8",
            "-n 300 -Q 1",
            "-n 300 --mr_per_qp -q 2",
            "-n 300 -c UC",
            "-n 300 -c UC -b",
            "-n 300 -c XRC",
            "-n 300 -c XRC -q 4 -b",
            "vm: -n 100 -s 1000000",
            "owner: -n 50 -s 1000000",
        ],
    );
}

#[test]
fn ib_read_lat() {
    matrix(
        "ib_read_lat",
        &[
            "-n 500",
            "-n 50 -s 8388608",
            "-n 200 -e",
            "-n 200 -o 1",
            "-n 200 -c XRC",
            "-n 50 -c XRC -s 1000000",
            "vm: -n 100 -s 100000",
            "owner: -n 100 -a",
        ],
    );
}

#[test]
fn ib_read_bw() {
    matrix(
        "ib_read_bw",
        &[
            "-n 500",
            "-n 50 -s 8388608",
            "-n 300 -b",
            "-n 300 -e",
            "-n 300 -q 8",
            "-n 300 -o 1",
            "-n 300 -t 16",
            "-n 300 -c XRC",
            "-n 300 -c XRC -b -q 2",
            "vm: -n 100 -s 1000000",
            "owner: -n 50 -a",
        ],
    );
}

#[test]
fn ib_atomic_lat() {
    matrix(
        "ib_atomic_lat",
        &["-n 500", "-n 200 -A CMP_AND_SWAP", "-n 200 -e", "-n 200 -c XRC", "vm: -n 200", "owner: -n 200"],
    );
}

#[test]
fn ib_atomic_bw() {
    matrix(
        "ib_atomic_bw",
        &[
            "-n 500",
            "-n 300 -A CMP_AND_SWAP",
            "-n 300 -b",
            "-n 300 -q 8",
            "-n 300 -e",
            "-n 300 -t 16 -o 1",
            "-n 300 -c XRC",
            "vm: -n 300",
            "owner: -n 300",
        ],
    );
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
