//! The counters of /sys/class/infiniband: they count what passes, by memory and in packets, of all processes, at once, and keep
//! it when a process is killed; and every way of opening a file finds them.

use std::time::{Duration, Instant};

use vervain_tests::counters::Counters;
use vervain_tests::pairs::{pair, words};
use vervain_tests::{Job, c_program, free_port, have, have_c, way};

const LIMIT: Duration = Duration::from_secs(60);

/// A pair of perftest's programs that counts in `counters`.
fn perftest(counters: &Counters, tool: &str, arguments: &str, more: &[(&str, &str)]) {
    let variables = [counters.variables(), more.to_vec()].concat();
    let (server, client) = pair(tool, &words(arguments), &variables, LIMIT);
    assert!(server.success() && client.success(), "{}\n{}", server.describe(), client.describe());
}

#[test]
fn what_goes_by_memory_is_counted_to_the_byte() {
    if !have(&["ib_write_bw", "ib_send_bw", "ib_read_lat", "ib_atomic_bw"]) {
        return;
    }
    let counters = Counters::new(&way("auto"));
    let read = |names: [&str; 4]| names.map(|name| counters.read(name));
    let memory = ["memory_bytes", "port_xmit_data", "port_rcv_data", "sent_pkts"];
    assert_eq!(read(memory), [0; 4], "nothing has passed yet");
    perftest(&counters, "ib_write_bw", "-F -s 65536 -n 1000", &[]);
    assert_eq!(read(memory), [65_536_000, 16_384_000, 16_384_000, 0]);
    assert_eq!(counters.read("rx_write_requests"), 1000);
    perftest(&counters, "ib_send_bw", "-F -s 4 -n 1000 -c UD", &[]);
    perftest(&counters, "ib_read_lat", "-F -s 8 -n 1000", &[]);
    perftest(&counters, "ib_atomic_bw", "-F -n 1000", &[]);
    let kinds = ["rx_send_requests", "rx_read_requests", "rx_atomic_requests", "port_xmit_packets"];
    assert_eq!(read(kinds), [1000, 1000, 1000, 4000]);
}

#[test]
fn what_goes_in_packets_is_counted_as_packets() {
    if !have(&["ib_write_bw"]) {
        return;
    }
    let counters = Counters::new(&way("roce"));
    perftest(&counters, "ib_write_bw", "-F -s 65536 -n 1000", &[]);
    assert_eq!((counters.read("memory_bytes"), counters.read("rx_write_requests")), (0, 1000));
    // Data, headers and acknowledgements, at the interface's MTU of 4096 bytes.
    let (data, packets) = (counters.read("port_xmit_data"), counters.read("port_xmit_packets"));
    assert!((16_384_000..17_500_000).contains(&data), "{data} words");
    assert!((16_000..40_000).contains(&packets), "{packets} packets");
    assert_eq!(counters.read("port_rcv_errors"), 0);
    perftest(&counters, "ib_write_bw", "-F -s 65536 -n 1000", &[("VERVAIN_FAULTS", "seed=1,drop=2%")]);
    assert!(counters.read("resent_pkts") > 0 && counters.read("out_of_sequence") > 0);
    perftest(&counters, "ib_write_bw", "-F -s 65536 -n 1000", &[("VERVAIN_FAULTS", "seed=1,corrupt=1%")]);
    assert!(counters.read("rx_icrc_encapsulated") > 0);
}

#[test]
fn a_running_program_is_seen_and_a_killed_one_is_not_forgotten() {
    if !have(&["ib_write_bw"]) {
        return;
    }
    let counters = Counters::new(&way("auto"));
    let port = free_port();
    let side = |peer: &[&str]| {
        let mut command = counters.command("ib_write_bw");
        command.args(["-F", "-s", "4096", "-D", "60", "-p", &port.to_string()]).args(peer);
        command
    };
    let mut server = Job::start(&mut side(&[]));
    assert!(server.listens(port, LIMIT));
    let mut client = Job::start(&mut side(&["127.0.0.1"]));
    let until = Instant::now() + LIMIT;
    let mut last = 0;
    // Twice more, while both run.
    for _ in 0..2 {
        loop {
            let now = counters.read("memory_bytes");
            if now > last {
                last = now;
                break;
            }
            assert!(Instant::now() < until && client.running(), "nothing is counted");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    client.signal_group(libc::SIGKILL);
    server.signal_group(libc::SIGKILL);
    client.finish(LIMIT);
    server.finish(LIMIT);
    let end = counters.read("memory_bytes");
    assert!(end >= last);
    // The next ones count on, where those were.
    perftest(&counters, "ib_write_bw", "-F -s 4096 -n 1000", &[]);
    assert_eq!(counters.read("memory_bytes"), end + 4_096_000);
}

#[test]
fn each_port_has_its_own() {
    if !have(&["ib_write_bw"]) {
        return;
    }
    let counters = Counters::new(&[("VERVAIN_PORTS", "2"), ("VERVAIN_DEVICES", "2")]);
    perftest(&counters, "ib_write_bw", "-F -s 64 -n 1000 -i 2", &[]);
    assert_eq!([1, 2].map(|port| counters.read_of_port("rx_write_requests", port)), [0, 1000]);
}

#[test]
fn refusals_retries_and_flushes_are_counted_over_both_links() {
    if !have_c() {
        return;
    }
    let (conformance, sequences) = (c_program("conformance"), c_program("sequences"));
    for link in ["auto", "roce"] {
        let counters = Counters::new(&way(link));
        for counter in vervain_counters::REAL {
            assert_eq!(counters.read(counter.name), 0, "{}", counter.name);
        }
        let mut run = counters.command(conformance.to_str().expect("a plain path"));
        let end = Job::start(run.args(["--two"])).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        for name in [
            "req_cqe_error",
            "resp_cqe_flush_error",
            "req_remote_access_errors",
            "req_remote_invalid_request",
            "rnr_nak_retry_err",
            "out_of_buffer",
            "rx_send_requests",
            "rx_write_requests",
            "rx_read_requests",
            "rx_atomic_requests",
        ] {
            assert!(counters.read(name) > 0, "{link}: nothing is counted as {name}");
        }
        let mut run = counters.command(sequences.to_str().expect("a plain path"));
        let end = Job::start(&mut run).finish(LIMIT);
        assert!(end.success(), "{}", end.describe());
        let flushed = counters.read("req_cqe_flush_error");
        assert!((1..counters.read("req_cqe_error")).contains(&flushed), "{link}: {flushed} flushed requests");
    }
}

#[test]
fn every_way_of_opening_finds_the_value() {
    if !have(&["ib_write_bw", "python3", "grep"]) {
        return;
    }
    let counters = Counters::new(&way("auto"));
    perftest(&counters, "ib_write_bw", "-F -s 64 -n 1000", &[]);
    const PORT: &str = "/sys/class/infiniband/vervain0/ports/1";
    let python = format!(
        "import os; d = os.open('{PORT}', os.O_RDONLY); f = os.open('hw_counters/rx_write_requests', os.O_RDONLY, dir_fd=d); \
         print(os.read(f, 99).decode(), open('{PORT}/hw_counters/rx_write_requests').read())"
    );
    for (script, times) in [
        (format!("cat {PORT}/hw_counters/rx_write_requests"), 1),
        (format!("cd {PORT} && cat hw_counters/rx_write_requests"), 1),
        (format!("cd {PORT}/hw_counters && read value < rx_write_requests && echo $value"), 1),
        ("cd /sys/class/infiniband && grep -r . vervain0/ports/1/hw_counters/rx_write_requests".to_owned(), 1),
        (format!("grep -rh . {PORT}/hw_counters | grep -x 1000"), 1),
        (format!("find {PORT}/ -name rx_write_requests -exec head -n 1 {{}} ';'"), 1),
        (format!("python3 -c \"{python}\""), 2),
    ] {
        let end = Job::start(counters.command("sh").args(["-c", &script])).finish(LIMIT);
        assert!(end.success() && end.output.matches("1000").count() == times, "{}", end.describe());
    }
    // perftest opens them first, and goes back to the start at the end.
    let variables = [counters.variables(), vec![]].concat();
    let arguments = words("-F -s 64 -n 500 -W counters/port_xmit_packets,hw_counters/rx_write_requests");
    let (_, client) = pair("ib_write_bw", &arguments, &variables, LIMIT);
    assert!(client.success() && client.output.contains("rx_write_requests=500"), "{}", client.describe());
    // A file of the program's own in its place is not taken for one.
    let own =
        Job::start(counters.command("sh").args(["-c", &format!("ls {PORT} >/dev/null; cd /tmp && cat /etc/hostname")]));
    assert!(own.finish(LIMIT).success());
}
