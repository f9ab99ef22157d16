//! A window between kernels, of which none tells whether a process of the other lives: who writes into the memory of one that has died, or
//! stands still, is told so in time.

use std::time::{Duration, Instant};

use vervain_tests::counters::Counters;
use vervain_tests::kernels::Elsewhere;
use vervain_tests::{Failures, Job, alone, c_program, free_port, have, have_c, must_hold, under_vervain};

const LIMIT: Duration = Duration::from_secs(60);
/// By then a Write to one that has died has failed: a second and a half, and what a loaded machine adds. perftest asks for 7 times 67 ms,
/// and would go on for [`LONG`] else.
const TOLD: Duration = Duration::from_secs(60);
/// What no test takes, in seconds.
const LONG: &str = "1000";

/// ib_write_bw to a process on the other kernel, both with their memory in the window.
struct Writes {
    counters: Counters,
    client: Job,
    server: Job,
}

impl Writes {
    fn begin(elsewhere: &Elsewhere, seconds: &str) -> Writes {
        let window = |node| elsewhere.window(node, ",heap=on");
        let port = free_port();
        let args = ["-F", "-D", seconds, "-p", &port.to_string()];
        let mut server = under_vervain("ib_write_bw");
        server.args(args).envs([("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &window(1))]);
        let mut server = Job::start(&mut elsewhere.enter(&server));
        assert!(server.listens(port, LIMIT), "{}", server.finish(Duration::ZERO).describe());
        let counters = Counters::new(&[("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &window(0))]);
        let client = Job::start(counters.command("ib_write_bw").args(args).arg("127.0.0.1"));
        Writes { counters, client, server }
    }

    /// MiB that were put where they belong.
    fn put(&self) -> u64 {
        self.counters.read("window_direct_bytes") >> 20
    }

    /// Waits until the client puts its Writes.
    fn wait(&mut self) {
        let until = Instant::now() + LIMIT;
        while self.put() == 0 {
            assert!(Instant::now() < until && self.client.running(), "nothing is put: {}", self.client.output());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn memory_of_a_process_on_another_kernel_is_put_to_while_it_lives() {
    let Some(elsewhere) = Elsewhere::new().filter(|_| have(&["ib_write_bw"])) else { return };
    let _turn = alone();
    let Writes { counters, client, server } = Writes::begin(&elsewhere, "3");
    let [client, server] = [client, server].map(|job| job.finish(LIMIT));
    assert!(client.success() && server.success(), "{}\n{}", client.describe(), server.describe());
    let [put, ring] = ["window_direct_bytes", "window_ring_bytes"].map(|name| counters.read(name) >> 20);
    assert!(put > ring, "{put} MiB were put, {ring} went through the ring");
}

#[test]
fn who_writes_to_a_process_on_another_kernel_that_dies_or_stops_is_told_so() {
    let Some(elsewhere) = Elsewhere::new().filter(|_| have(&["ib_write_bw"])) else { return };
    let _turn = alone();
    let mut failures = Failures::default();
    for (what, signal) in [("killed", libc::SIGKILL), ("stopped", libc::SIGSTOP)] {
        let mut writes = Writes::begin(&elsewhere, LONG);
        writes.wait();
        writes.server.signal_group(signal);
        let begin = Instant::now();
        while writes.client.running() && begin.elapsed() < TOLD {
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("{what}: {:.2} s", begin.elapsed().as_secs_f64());
        let end = writes.client.finish(Duration::ZERO);
        // IBV_WC_RETRY_EXC_ERR.
        if end.success() || !end.output.contains("status 12") {
            failures.add(what, end.describe());
        }
    }
    failures.assert_none();
}

#[test]
fn who_outlives_a_process_on_another_kernel_goes_on_with_the_next_one() {
    let Some(elsewhere) = Elsewhere::new().filter(|_| have_c()) else { return };
    let _turn = alone();
    let port = free_port().to_string();
    let program = |node| {
        let mut program = under_vervain(c_program("outlives"));
        let at = format!("127.0.0.1:{port}");
        program.envs([("VERVAIN_LINK", "window"), ("VT_PEER_AT", &at)]);
        program.env("VERVAIN_WINDOW", elsewhere.window(node, ",heap=on"));
        program
    };
    let serve = || Job::start(&mut elsewhere.enter(program(1).args(["--serve", &port])));
    let (first, mut here) = (serve(), Job::start(&mut program(0)));
    assert!(here.wait_output("peer 1 may die", LIMIT), "{}", here.output());
    // With all that runs there, as power is lost.
    drop(first);
    let told = here.wait_output("peer 1 is dead", TOLD);
    let _second = serve();
    let end = here.finish(2 * LIMIT);
    must_hold(&end);
    assert!(told, "{}", end.describe());
}
