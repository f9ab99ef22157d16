//! One row of each client that users ask for most. `make check` has all of them, in all that they do: `tests/clients`.

use std::time::Duration;

use vervain_tests::container::{Container, Limits, docker_refuses};
use vervain_tests::netns::Network;
use vervain_tests::pairs::{complaint, serve};
use vervain_tests::ucx::{RC, perftest};
use vervain_tests::{Failures, MPICH, OPEN_MPI, alone, free_port, have, have_c, mpi, pyverbs, skip};

const LIMIT: Duration = Duration::from_secs(60);
const PARTS: &[&str] = &["point", "collective", "onesided"];

#[test]
fn two_ranks_of_open_mpi() {
    mpi::run(&OPEN_MPI, "auto", PARTS, &[2]);
    mpi::run(&OPEN_MPI, "roce", PARTS, &[2]);
}

#[test]
fn two_ranks_of_mpich() {
    mpi::run(&MPICH, "auto", PARTS, &[2]);
    mpi::run(&MPICH, "roce", PARTS, &[2]);
}

#[test]
fn messages_of_ucx() {
    perftest("auto", RC, &[&["tag_lat", "ucp_put_bw", "ucp_get", "ucp_fadd"]], &["8"], "300");
    perftest("roce", RC, &[&["tag_lat", "ucp_put_bw", "ucp_get"]], &["8192"], "100");
}

#[test]
fn the_tests_of_pyverbs_by_memory() {
    if !pyverbs::have_tests() {
        return;
    }
    let _turn = alone();
    let mut failures = Failures::default();
    pyverbs::as_listed(&mut failures, "auto");
    failures.assert_none();
}

/// With Docker's limits, as far as this user can impose them.
#[test]
fn perftest_between_two_containers() {
    if !have_c() || !have(&["ib_write_bw", "nsenter", "unshare", "setpriv", "mount"]) {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let docker = Limits { few_capabilities: true, refused: docker_refuses(), ..Limits::default() };
    let Some(limits) = [docker, Limits::default()].into_iter().find(|limits| limits.can_be_had_on(network.first()))
    else {
        return skip("this user cannot make containers");
    };
    let [here, there] = [network.first(), network.second()].map(|host| Container::start(host, &limits));
    let port = free_port().to_string();
    // By the index that programs for adapters take by default: the IPv4 address of the first interface is there too.
    let args = ["-p", &port, "-x", "3", "-F", "-n", "500", "-s", "65536"];
    let server = there.under_vervain("ib_write_bw", &args, &[]);
    let client = here.under_vervain("ib_write_bw", &[&args[..], &[network.second().v4]].concat(), &[]);
    let (server, client) = serve(server, client, port.parse().expect("a number"), LIMIT);
    let wrong = complaint("ib_write_bw", &server, &client);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(network.first().datagrams_sent() > 100, "no packets");
}
