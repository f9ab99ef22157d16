//! Open MPI and MPICH over two hosts, which their own launchers start ranks on: network namespaces, with a script in place of
//! ssh that passes no environment on. Ranks of one host talk by memory and those of two in packets.

use std::process::Command;
use std::time::Duration;

use vervain_tests::mpi::{OPEN_MPI_OVER_LIBFABRIC, judge, verbs_only};
use vervain_tests::netns::Network;
use vervain_tests::{Failures, Job, MPICH, Mpi, OPEN_MPI, alone, mpi_program, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(120);

const PARTS: &[&str] = &["point", "collective", "onesided"];

/// What makes a launcher start ranks over there, but for the list of hosts.
fn remote_start(mpi: &Mpi) -> Vec<String> {
    let ssh = concat!(env!("CARGO_MANIFEST_DIR"), "/../mpi/ssh.sh").to_owned();
    let words: &[&str] = if mpi.launcher == OPEN_MPI.launcher {
        // Its own variables it carries over, others only when told.
        &["-x", "UCX_TLS", "--mca", "plm_rsh_agent"]
    } else {
        // Its own host's name is in no DNS.
        &["-iface", "eth0", "-launcher", "ssh", "-launcher-exec"]
    };
    words.iter().map(|w| (*w).to_owned()).chain([ssh]).collect()
}

/// The launcher on the first host, for `places` ranks on each of the two.
fn job(mpi: &Mpi, network: &Network, places: [u32; 2], parts: &[&str]) -> Command {
    let hosts = [network.first(), network.second()];
    let list: Vec<_> =
        hosts.iter().zip(places).filter(|(_, n)| *n > 0).map(|(host, n)| format!("{}:{n}", host.v4)).collect();
    let mut command = unswayed(mpi.launcher);
    command.args(["-n", &places.iter().sum::<u32>().to_string()]).args(mpi.arguments).args(remote_start(mpi));
    command.args([if mpi.launcher == OPEN_MPI.launcher { "--host" } else { "-hosts" }, &list.join(",")]);
    command.arg(vervain()).args(["run", "--"]).arg(mpi_program(mpi.compiler, "check")).args(parts);
    let who = hosts.map(|host| format!("{}={}", host.v4, host.pid()));
    verbs_only(&mut command).env("VT_HOSTS", who.join(" "));
    network.first().enter(&command)
}

/// Runs `parts`, on a rank at each host those of `with_threads` too.
fn over_two_hosts(mpi: &Mpi, parts: &[&str], with_threads: &[&str]) {
    if !mpi.is_there() {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let mut failures = Failures::default();
    for (places, more) in [([1, 1], with_threads), ([2, 2], &[]), ([0, 2], &[])] {
        let parts = &[parts, more].concat();
        let sent = || [network.first().datagrams_sent(), network.second().datagrams_sent()];
        let (what, before) = (format!("{} {places:?} {parts:?}", mpi.launcher), sent());
        let end = Job::start(&mut job(mpi, &network, places, parts)).finish(LIMIT);
        judge(&what, places.iter().sum(), &end, &mut failures);
        let packets: Vec<_> = before.iter().zip(sent()).map(|(before, after)| after - before).collect();
        println!("{what}: {packets:?} datagrams");
        // Each part is megabytes both ways, of which a datagram here, a train, carries up to 64 KiB.
        let least = 100 * parts.len() as u64;
        if places[0] > 0 && packets.iter().any(|n| *n < least) {
            failures.add(&what, format!("few packets between the hosts: {packets:?}"));
        }
        if places[0] == 0 && packets.iter().any(|n| *n > 0) {
            failures.add(&what, format!("ranks of one host talk in packets: {packets:?}"));
        }
    }
    failures.assert_none();
}

#[test]
fn open_mpi_over_two_hosts() {
    // Its threads wait for each other's turn to poll: half a minute on two processors, and long over UCX's TCP too.
    over_two_hosts(&OPEN_MPI, PARTS, &[]);
}

#[test]
fn mpich_over_two_hosts() {
    over_two_hosts(&MPICH, PARTS, &["threads"]);
}

/// Its windows need what no component of Debian's has over libfabric's messages.
#[test]
fn open_mpi_by_libfabric_over_two_hosts() {
    over_two_hosts(&OPEN_MPI_OVER_LIBFABRIC, &["point", "collective"], &[]);
}
