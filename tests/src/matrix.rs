//! The unmodified clients and the options that each is run with, on whatever link.

/// The ping-pongs of ibverbs-utils.
pub const PING_PONGS: &[(&str, &[&str])] = &[
    (
        "ibv_rc_pingpong",
        &[
            "",
            "-e",
            "-c",
            "-c -e",
            "-c -s 1000000 -n 50 -m 4096",
            "-N",
            "-N -c -e",
            "-t",
            "-j -c",
            "-s 1 -c -n 5000",
            "-r 1 -n 200",
        ],
    ),
    ("ibv_uc_pingpong", &["", "-e", "-c", "-c -e", "-c -s 100000 -n 200"]),
    // 1024 bytes: as much as the port of a host on plain Ethernet carries.
    ("ibv_ud_pingpong", &["", "-e", "-c", "-c -e", "-c -s 1024", "-c -s 1 -n 3000"]),
    ("ibv_srq_pingpong", &["", "-e", "-c", "-c -e", "-c -q 3 -s 65536 -n 200"]),
    ("ibv_xsrq_pingpong", &["", "-e", "-s 100000 -n 50"]),
];

/// The tools of perftest. A line may begin with a way to a peer's memory (`vervain_tests::way`) and a colon.
pub const PERFTEST: &[(&str, &[&str])] = &[
    (
        "ib_send_lat",
        &[
            "-n 500",
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
    ),
    (
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
            "local: -n 300 -c UD -s 2048",
            "local: -n 200 -c UD -s 4096",
            "-n 300 -c UD -s 1024 -b",
            "-n 300 -c XRC",
            "-n 300 -c XRC -q 4 -b",
            "-n 300 -c UD -g -s 1024 -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1",
            "vm: -n 50 -a",
            "owner: -n 50 -s 1000000",
        ],
    ),
    (
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
    ),
    (
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
    ),
    (
        "ib_read_lat",
        &[
            "-n 500",
            "-n 50 -s 8388608",
            "-n 200 -e",
            "-n 200 -o 1",
            "-n 200 -c XRC",
            "-n 50 -c XRC -s 1000000",
            "vm: -n 100 -s 100000",
            "owner: -n 100 -s 3000",
        ],
    ),
    (
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
    ),
    (
        "ib_atomic_lat",
        &["-n 500", "-n 200 -A CMP_AND_SWAP", "-n 200 -e", "-n 200 -c XRC", "vm: -n 200", "owner: -n 200"],
    ),
    (
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
    ),
];

/// perftest's options by which it connects by librdmacm (-R) and speaks of the connection by it too (-z). It refuses UC and XRC, and its own
/// groups.
pub const CONNECTED: &[(&str, &[&str])] = &[
    ("ib_send_lat", &["-n 200 -R", "-n 200 -z", "-n 200 -R -z", "-n 200 -R -e", "-n 200 -R -c UD", "-n 200 -R -I 64"]),
    (
        "ib_send_bw",
        &[
            "-n 300 -R",
            "-n 300 -z",
            "-n 300 -R -z",
            "-n 300 -R -q 4",
            "-n 300 -R -b",
            "-n 300 -R -e",
            "-n 300 -R -r 64",
            "-n 300 -R -T 106",
            "-n 300 -R -c UD -s 1024",
        ],
    ),
    ("ib_write_lat", &["-n 200 -R", "-n 200 -z", "-n 200 -R -z", "-n 200 -R -m 256 -s 10000"]),
    ("ib_write_bw", &["-n 300 -R", "-n 300 -z", "-n 300 -R -z", "-n 300 -R -q 4", "-n 300 -R -b"]),
    ("ib_read_lat", &["-n 200 -R", "-n 200 -z", "-n 200 -R -z", "-n 200 -R -e"]),
    ("ib_read_bw", &["-n 300 -R", "-n 300 -z", "-n 300 -R -z", "-n 300 -R -q 4", "-n 300 -R -b"]),
    ("ib_atomic_lat", &["-n 200 -R", "-n 200 -z", "-n 200 -R -z"]),
    ("ib_atomic_bw", &["-n 300 -R", "-n 300 -z", "-n 300 -R -z", "-n 300 -R -q 4", "-n 300 -R -b"]),
];

/// The lines of one tool.
///
/// # Panics
/// When it is not in the table.
pub fn lines(table: &[(&str, &'static [&'static str])], tool: &str) -> &'static [&'static str] {
    table.iter().find(|(name, _)| *name == tool).unwrap_or_else(|| panic!("{tool} is in no table")).1
}
