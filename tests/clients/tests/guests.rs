//! Two guests of one host, each with a kernel of its own, that share memory: as a PCI device (ivshmem) and as an NVDIMM (device-DAX).
//! Data goes by the memory, and the interfaces' counters show that.

use std::time::{Duration, Instant};

use vervain_tests::guest::{Guest, Guests};
use vervain_tests::{Failures, alone, c_program, have, have_c, vervain};

const LIMIT: Duration = Duration::from_secs(60);
const PORT: u16 = 18515;
/// Each window, what is said behind it, what it is told to be, and programs of `tests/c` with what of them does not measure time: the
/// whole tables of `conformance` take an emulated machine minutes.
const WINDOWS: [(&str, &str, &str, [&str; 2]); 2] = [
    ("ivshmem", ",heap=on", "memory of an ivshmem device", ["data random_ops order", "conformance --two uc"]),
    (
        "/dev/dax0.0",
        ",heap=on",
        "device-DAX",
        [
            "data random_ops order",
            "sequences --two late_peer rnr_recover flush_order flush_after_cause modify_to_err modify_to_reset sqe fence revoke overhang \
         many_reads next_psns other_psn",
        ],
    ),
];
/// In what a program prints whose heap is not in the window that it was to be in.
const NO_HEAP: &str = "the heap is not in it";
/// By then who writes to a guest that has died is told so: a second and a half, and what emulation and a loaded machine add.
const TOLD: Duration = Duration::from_secs(60);

/// `vervain run` with a window, as the node with the number of the guest.
fn under_vervain(window: &str, node: usize, line: &str) -> String {
    let at = if node == 0 { format!("VT_ROUNDS=20 VT_PEER_AT={}:{PORT}", Guests::address(1)) } else { String::new() };
    let variables = format!("VERVAIN_LINK=window VERVAIN_WINDOW={window},node={node} {at}");
    format!("env {variables} {} run -- {line}", vervain().canonicalize().expect("a path").display())
}

/// Runs a tool as server on the second guest and as client on the first; the client's output, or what went wrong.
fn pair(guests: &mut [Guest; 2], window: [&str; 2], line: &str) -> Result<String, String> {
    let line = format!("{line} -p {PORT}");
    let [first, second] = guests;
    serve(second, &under_vervain(window[1], 1, &line));
    let client = first.try_run(&under_vervain(window[0], 0, &format!("{line} {}", Guests::address(1))), LIMIT);
    let server = end_server(second, if matches!(client, Some((0, _))) { 200 } else { 5 });
    match client {
        Some((0, output)) if server.contains("status 0\n") => Ok(output),
        other => Err(format!("{line}: client {other:?}\nserver {server}")),
    }
}

/// Ends what [`serve`] has started, if it does not end by itself in so many tenths of a second: its status and output.
fn end_server(guest: &mut Guest, tenths: u32) -> String {
    let wait = format!("for i in $(seq {tenths}); do kill -0 $server 2>/dev/null || break; sleep 0.1; done");
    guest.must(&format!("{wait}; kill -9 $server 2>/dev/null; wait $server; echo status $?; cat /tmp/server"))
}

/// Runs a program of `tests/c`, whose other processes are the second guest's.
fn c_pair(guests: &mut [Guest; 2], window: &str, line: &str) -> Result<String, String> {
    let (program, arguments) = line.split_once(' ').unwrap_or((line, ""));
    let program = c_program(program).canonicalize().expect("a path").display().to_string();
    let [first, second] = guests;
    serve(second, &under_vervain(window, 1, &format!("{program} --serve {PORT}")));
    let here = first.try_run(&under_vervain(window, 0, &format!("{program} {arguments} 2>&1")), 2 * LIMIT);
    let there = end_server(second, 0);
    match here {
        Some((0, output)) if output.contains(" cases, 0 failed") => Ok(output),
        other => Err(format!("{line}: {other:?}\nthere: {there}")),
    }
}

/// A program of the first guest writes to the second, which loses power in the midst of it, and to the next machine in its place.
fn outlive(machines: &Guests, guests: [Guest; 2], window: &str, failures: &mut Failures) -> [Guest; 2] {
    let program = c_program("outlives").canonicalize().expect("a path").display().to_string();
    let server = under_vervain(window, 1, &format!("{program} --serve {PORT}"));
    let says = |what: &str| {
        let grep = format!("grep -q '{what}' /tmp/client");
        format!("for i in $(seq 600); do {grep} && break; kill -0 $client || break; sleep 0.1; done; {grep}")
    };
    let [mut first, mut second] = guests;
    serve(&mut second, &server);
    let client = under_vervain(window, 0, &program);
    let may_die = first.try_run(&format!("{client} > /tmp/client 2>&1 & client=$!; {}", says("peer 1 may die")), LIMIT);
    second.kill();
    let killed = Instant::now();
    let starting = machines.start(1);
    let told = first.try_run(&says("peer 1 is dead"), LIMIT);
    let after = killed.elapsed();
    println!("{window}: told {:.1} s after the other's end", after.as_secs_f64());
    let mut second = starting.ready();
    second.must(HAS_DAX);
    serve(&mut second, &server);
    let end = first.try_run("wait $client", LIMIT);
    let there = end_server(&mut second, 0);
    if [&may_die, &told, &end].iter().any(|end| !matches!(end, Some((0, _)))) || after > TOLD {
        let here = first.must("kill -9 $client 2>/dev/null; cat /tmp/client");
        failures.add(window, format!("{may_die:?}, {told:?} after {after:?}, {end:?}: {here}\nthere: {there}"));
    }
    [first, second]
}

/// Starts a server on a guest, and waits until it listens.
fn serve(guest: &mut Guest, line: &str) {
    let listens = format!("grep -q ':{PORT:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6");
    let wait =
        format!("for i in $(seq 200); do {listens} && break; kill -0 $server || break; sleep 0.1; done; {listens}");
    let start = format!("{line} > /tmp/server 2>&1 & server=$!; {wait}");
    match guest.try_run(&start, LIMIT) {
        Some((0, _)) => {}
        other => panic!("{line} does not listen: {other:?}\n{}", guest.must("cat /tmp/server")),
    }
}

/// The typical time in the row of results of a tool for latencies, in microseconds.
fn typical(output: &str) -> f64 {
    let row = output.lines().rfind(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    let field = row.and_then(|row| row.split_whitespace().nth(4)?.parse().ok());
    field.unwrap_or_else(|| panic!("no row of times in\n{output}"))
}

/// Has the NVDIMM of both guests become /dev/dax0.0: the first says so in its memory, the second looks again. What a kernel notes of
/// pages may not lie there, where the other kernel does the same.
fn make_dax(guests: &mut [Guest; 2]) {
    guests[0].must("ndctl create-namespace -f -e namespace0.0 -m devdax --map=mem --align=4k && ls /dev/dax0.0");
    let again =
        "cd /sys/bus/nd/drivers/nd_pmem; echo namespace0.0 > unbind; echo namespace0.0 > bind 2>/dev/null; cd /";
    guests[1].must(&format!("{again}; {HAS_DAX}"));
}

const HAS_DAX: &str = "for i in $(seq 100); do [ -c /dev/dax0.0 ] && break; sleep 0.1; done; ls /dev/dax0.0";

/// The kernel of the guests, 6.1, has a userfaultfd that adoption cannot use.
fn doctor(guest: &mut Guest, failures: &mut Failures) {
    let line = format!("{} doctor 2>&1", vervain().canonicalize().expect("a path").display());
    match guest.try_run(&line, LIMIT) {
        Some((_, output)) if output.contains("without UFFDIO_MOVE") => {}
        other => failures.add(&line, format!("{other:?} does not say that adoption has no effect")),
    }
}

/// What a window says that cannot be opened.
fn refusals(guest: &mut Guest, failures: &mut Failures) {
    let devices = format!("{} devices", vervain().canonicalize().expect("a path").display());
    for (who, window, says) in [
        ("", "ivshmem:0000:00:1e.0", "there is no PCI device 0000:00:1e.0: name one of 0000:00:"),
        ("", "ivshmem:00:00.0", "and no ivshmem device (1af4:1110): name one of"),
        ("", "/dev/null", "a character device, and none of device-DAX"),
        ("", "/dev/dax0.0,size=1G", "bytes, not 1073741824"),
        ("setpriv --reuid=1234 --regid=1234 --clear-groups ", "ivshmem", "run as root, or give this user the right"),
        (
            "setpriv --reuid=1234 --regid=1234 --clear-groups ",
            "/dev/dax0.0",
            "/dev/dax0.0 cannot be opened: Permission denied",
        ),
    ] {
        let line = format!("{who}env VERVAIN_LINK=window VERVAIN_WINDOW={window},node=0 {devices} 2>&1");
        match guest.try_run(&line, LIMIT) {
            Some((_, output)) if output.contains(says) => {}
            other => failures.add(&line, format!("{other:?} does not say {says:?}")),
        }
    }
}

#[test]
fn guests_that_share_memory_exchange_data_by_it_and_outlive_each_other() {
    if !have_c() || !have(&["ib_write_lat", "ib_read_lat", "ib_send_bw", "setpriv"]) {
        return;
    }
    let _turn = alone();
    let begin = Instant::now();
    let Some(machines) = Guests::prepare() else { return };
    let mut guests = [0, 1].map(|number| machines.start(number)).map(|starting| starting.ready());
    println!("two guests after {:.1} s", begin.elapsed().as_secs_f64());
    make_dax(&mut guests);
    let mut failures = Failures::default();

    for (window, more, kind, programs) in WINDOWS {
        let command = vervain().canonicalize().expect("a path");
        let told = guests[0]
            .must(&format!("VERVAIN_LINK=window VERVAIN_WINDOW={window},node=0 {} devices", command.display()));
        if !told.contains(&format!("window {window}: {kind}\n")) || !told.contains("nodes, read with ") {
            failures.add(window, format!("what it is is not told: {told}"));
        }
        let cable = guests[0].bytes_on_cable();
        let window = format!("{window}{more}");
        for line in ["ib_write_lat -F -s 8 -n 500", "ib_read_lat -F -s 8 -n 200", "ib_send_bw -F -s 65536 -n 1024"] {
            let start = Instant::now();
            match pair(&mut guests, [&window; 2], line) {
                Ok(output) if output.contains(NO_HEAP) => failures.add(&window, output),
                // Not judged: how fast it is depends on what else the machine does.
                Ok(output) if line.contains("_lat") => {
                    println!(
                        "{window} {line}: {} us typical, {:.1} s",
                        typical(&output),
                        start.elapsed().as_secs_f64()
                    );
                }
                Ok(_) => println!("{window} {line}: {:.1} s", start.elapsed().as_secs_f64()),
                Err(why) => failures.add(&window, why),
            }
        }
        let bytes = guests[0].bytes_on_cable() - cable;
        println!("{window}: {bytes} bytes on the cable");
        if bytes > 1 << 20 {
            failures.add(&window, format!("{bytes} bytes went by the cable"));
        }
        for line in programs {
            let start = Instant::now();
            match c_pair(&mut guests, &window, line) {
                Ok(_) => println!("{window} {line}: {:.1} s", start.elapsed().as_secs_f64()),
                Err(why) => failures.add(&window, why),
            }
        }
    }
    // One puts where the other's data belongs, and gets its own out of a ring, for which the progress thread looks.
    match pair(&mut guests, ["/dev/dax0.0", "/dev/dax0.0,heap=on"], "ib_write_lat -F -s 8 -n 50") {
        Ok(output) => println!("by a ring one way: {} us typical", typical(&output)),
        Err(why) => failures.add("a heap on one side", why),
    }
    refusals(&mut guests[0], &mut failures);
    doctor(&mut guests[0], &mut failures);
    println!("the tools are done after {:.1} s", begin.elapsed().as_secs_f64());

    for window in ["ivshmem,heap=on", "/dev/dax0.0,heap=on"] {
        guests = outlive(&machines, guests, window, &mut failures);
    }
    println!("all is done after {:.1} s", begin.elapsed().as_secs_f64());
    failures.assert_none();
}
