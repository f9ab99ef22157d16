//! Containers that share nothing but a file or a folder, and a cable for what the clients agree about by TCP: everything else goes
//! through the window, and the interfaces' counters show that.

use std::path::Path;
use std::time::Duration;

use vervain_tests::container::{Container, Limits, VOLUME, docker_refuses};
use vervain_tests::netns::Network;
use vervain_tests::pairs::{complaint, serve, words};
use vervain_tests::ucx::over_tcp;
use vervain_tests::{Failures, Finished, Job, alone, free_port, have, have_c};
use vervain_window::Options;

const LIMIT: Duration = Duration::from_secs(60);

/// Two containers with a network each, and a window that both have.
struct Apart {
    network: Network,
    containers: [Container; 2],
    window: String,
    _place: tempfile::TempDir,
}

impl Apart {
    /// None where this user cannot make them; prints why not.
    fn start(window: &str, limits: &Limits) -> Option<Apart> {
        if !have_c() || !have(&["nsenter", "unshare", "setpriv", "mount"]) || !limits.can_be_had() {
            return None;
        }
        let network = Network::of_two(1500)?;
        let place = tempfile::tempdir_in("/dev/shm").expect("a place in /dev/shm");
        let path = place.path().join(window);
        drop(vervain_window::open(&path, &Options::default()).expect("a window"));
        let containers =
            [network.first(), network.second()].map(|host| Container::with_volume(host, limits, Path::new(&path)));
        Some(Apart { network, containers, window: VOLUME.to_owned(), _place: place })
    }

    fn vars(&self) -> Vec<(&str, &str)> {
        vec![("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &self.window), ("UCX_TLS", "rc_v,self")]
    }

    /// A server in the second container and its client in the first.
    fn pair(&self, line: &str) -> (Finished, Finished) {
        let port = free_port();
        let line = format!("{line} -p {port}");
        let args = words(&line);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let at = self.network.second().v4;
        let server = self.containers[1].under_vervain(args[0], &args[1..], &self.vars());
        let client = self.containers[0].under_vervain(args[0], &[&args[1..], &[at]].concat(), &self.vars());
        serve(server, client, port, LIMIT)
    }
}

#[test]
fn a_gibibyte_goes_by_the_window_and_less_than_a_thousandth_of_it_by_the_network() {
    let docker = Limits { few_capabilities: true, refused: docker_refuses(), ..Limits::default() };
    if !have(&["ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_atomic_lat", "ucx_perftest"]) {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    for (window, limits) in [("file", docker), ("folder/", Limits::default())] {
        let Some(apart) = Apart::start(window, &limits) else { return };
        let (cable, datagrams) = (apart.network.first().bytes_on_cable(), apart.network.first().datagrams_sent());
        for line in [
            "ib_write_bw -F -s 1048576 -n 1024",
            "ib_read_bw -F -s 1048576 -n 128",
            "ib_send_lat -F -C -n 1000",
            "ib_send_lat -F -C -n 200 -c UD",
            "ib_atomic_lat -F -C -n 200",
            "ucx_perftest -t tag_bw -s 1048576 -n 100 -w 10 -f",
            "ucx_perftest -t ucp_put_lat -s 8 -n 500 -w 10 -f",
        ] {
            let tool = line.split(' ').next().expect("a tool");
            let options = if tool == "ucx_perftest" { over_tcp() } else { &[] };
            let (server, client) = apart.pair(&[&[line], options].concat().join(" "));
            println!("{window} {line}: {:.2} s", client.took.as_secs_f64());
            if tool.starts_with("ib_") {
                complaint(tool, &server, &client).iter().for_each(|why| failures.add(&format!("{window} {line}"), why));
            } else {
                let bad = [server, client].into_iter().filter(|end| !end.success());
                bad.for_each(|end| failures.add(&format!("{window} {line}"), end.describe()));
            }
        }
        let bytes = apart.network.first().bytes_on_cable() - cable;
        println!("{window}: {bytes} bytes on the cable");
        if bytes > 1 << 20 || apart.network.first().datagrams_sent() > datagrams {
            failures.add(window, format!("{bytes} bytes went by the network"));
        }
    }
    failures.assert_none();
}

#[test]
fn who_writes_to_a_container_that_ends_is_told_so() {
    if !have(&["ib_write_bw", "stdbuf"]) {
        return;
    }
    let _turn = alone();
    let Some(apart) = Apart::start("file", &Limits::default()) else { return };
    let port = free_port().to_string();
    let args = ["-F", "-D", "50", "-p", &port];
    let mut server = Job::start(&mut apart.containers[1].under_vervain("ib_write_bw", &args, &apart.vars()));
    assert!(server.listens(port.parse().expect("a port"), LIMIT), "{}", server.finish(Duration::ZERO).describe());
    let args = [&["-oL", "ib_write_bw"], &args[..], &[apart.network.second().v4]].concat();
    let mut client = Job::start(&mut apart.containers[0].under_vervain("stdbuf", &args, &apart.vars()));
    // What stands above the numbers is printed when it begins.
    assert!(client.wait_output("#bytes", LIMIT), "{}", client.finish(Duration::ZERO).describe());
    std::thread::sleep(Duration::from_secs(1));
    assert!(client.running(), "{}", client.finish(Duration::ZERO).describe());
    let [_here, there] = apart.containers;
    drop(there);
    let end = client.finish(Duration::from_secs(30));
    let failed = end.status.is_some_and(|status| !status.success());
    // IBV_WC_RETRY_EXC_ERR.
    assert!(failed && end.output.contains("status 12"), "{}", end.describe());
}
