//! Containers, without an engine (`vervain_tests::container`): data byte for byte between processes of one, of two in a pod,
//! and of two with networks of their own, under each limit that engines set; stock clients between two.

use std::process::Command;
use std::time::Duration;

use vervain_tests::container::{Container, Limits, PROGRAMS, docker_refuses, podman_refuses};
use vervain_tests::netns::{Host, Network};
use vervain_tests::pairs::{complaint, serve};
use vervain_tests::{Failures, Finished, Job, alone, c_program, failure, free_port, have, have_c, skip, under_vervain};

const LIMIT: Duration = Duration::from_secs(40);
const PORT: &str = "5047";

fn refusing(calls: &[libc::c_long]) -> Limits {
    Limits { refused: calls.iter().map(|call| (*call, libc::EPERM)).collect(), ..Limits::default() }
}

/// Every limit by itself, some that come together, and what the engines have by default.
fn limits() -> Vec<(&'static str, Limits)> {
    let (none, copies) = (Limits::default(), [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev]);
    let everything = [&copies[..], &[libc::SYS_userfaultfd, libc::SYS_pidfd_getfd, libc::SYS_pidfd_open]].concat();
    vec![
        ("nothing but the namespaces", none.clone()),
        ("userfaultfd refused", refusing(&[libc::SYS_userfaultfd])),
        ("process_vm calls refused", refusing(&copies)),
        ("pidfd calls refused", refusing(&[libc::SYS_pidfd_getfd, libc::SYS_pidfd_open])),
        ("membarrier refused", refusing(&[libc::SYS_membarrier])),
        ("another user than root", Limits { uid: Some(1000), ..none.clone() }),
        ("a read-only root", Limits { read_only_root: true, ..none.clone() }),
        ("other processes hidden", Limits { hidden_processes: true, ..none.clone() }),
        ("Docker", Limits { few_capabilities: true, refused: docker_refuses(), ..none.clone() }),
        ("rootless Podman", Limits { rootless: true, refused: podman_refuses(), ..none.clone() }),
        (
            "all at once",
            Limits {
                uid: Some(1000),
                few_capabilities: true,
                read_only_root: true,
                hidden_processes: true,
                refused: refusing(&everything).refused,
                ..none
            },
        ),
    ]
}

/// Those limits that this user can impose.
fn imposable() -> Vec<(&'static str, Limits)> {
    limits().into_iter().filter(|(_, limits)| limits.can_be_had()).collect()
}

/// Random operations, every byte of which is compared, between `here` and a process of `there`; in one container where
/// they are the same. The variables are those of both.
fn data(here: &Container, there: Option<(&Container, &Host)>, cases: &[&str], vars: &[(&str, &str)]) -> Finished {
    let program = format!("{PROGRAMS}/data");
    let vars = [vars, &[("VT_GID", "0"), ("VT_ROUNDS", "250")]].concat();
    let Some((there, host)) = there else {
        return Job::start(&mut here.under_vervain(&program, cases, &vars)).finish(LIMIT);
    };
    let server = Job::start(&mut there.under_vervain(&program, &["--serve", PORT], &vars));
    let at = format!("{}:{PORT}", host.v4);
    let mut end = Job::start(&mut here.under_vervain(&program, cases, &[&vars[..], &[("VT_PEER_AT", &at)]].concat()))
        .finish(LIMIT);
    end.output += &server.finish(Duration::ZERO).output;
    end
}

fn judge(what: &str, end: &Finished, failures: &mut Failures) {
    println!("{what}: {:.2} s", end.took.as_secs_f64());
    if let Some(why) = failure(end) {
        failures.add(what, why);
    }
}

/// Whether the tests can run at all; compiles what they run.
fn ready() -> bool {
    let ready = have_c() && have(&["nsenter", "unshare", "setpriv", "mount"]);
    if ready {
        c_program("data");
        c_program("refuse");
    }
    ready
}

#[test]
fn processes_of_one_container_reach_each_other_by_memory() {
    if !ready() {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let mut failures = Failures::default();
    for (what, limits) in imposable() {
        let container = Container::start(network.first(), &limits);
        judge(what, &data(&container, None, &["random_ops", "order"], &[]), &mut failures);
        // Memory that peers cannot map: copied by process_vm calls or, where these are refused, by its owner.
        judge(what, &data(&container, None, &["random_ops"], &[("VERVAIN_SHARE", "off")]), &mut failures);
    }
    let datagrams = network.first().datagrams_sent();
    if datagrams > 0 {
        failures.add("memory", format!("{datagrams} datagrams were sent"));
    }
    failures.assert_none();
}

#[test]
fn containers_of_one_pod_reach_each_other_by_memory() {
    if !ready() {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let (mut failures, host) = (Failures::default(), network.first());
    for (what, limits) in imposable() {
        let pod = [Container::start(host, &limits), Container::start(host, &limits)];
        judge(what, &data(&pod[0], Some((&pod[1], host)), &["random_ops"], &[]), &mut failures);
        if limits.refused.is_empty() {
            let private = &[("VERVAIN_SHARE", "off")];
            judge(what, &data(&pod[0], Some((&pod[1], host)), &["random_ops"], private), &mut failures);
        }
    }
    let datagrams = host.datagrams_sent();
    if datagrams > 0 {
        failures.add("memory", format!("{datagrams} datagrams were sent"));
    }
    failures.assert_none();
}

#[test]
fn containers_with_addresses_of_their_own_reach_each_other_in_packets() {
    if !ready() {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let mut failures = Failures::default();
    for (what, limits) in imposable() {
        let containers = [network.first(), network.second()].map(|host| Container::start(host, &limits));
        let before = network.first().datagrams_sent();
        let end = data(&containers[0], Some((&containers[1], network.second())), &["random_ops", "order"], &[]);
        judge(what, &end, &mut failures);
        if network.first().datagrams_sent() == before {
            failures.add(what, "no datagrams were sent");
        }
    }
    failures.assert_none();
}

/// What an unchanged image has: perftest and ibverbs-utils.
#[test]
fn stock_clients_run_between_containers() {
    if !ready() || !have(&["ib_write_bw", "ib_send_lat", "ibv_devinfo"]) {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let mut failures = Failures::default();
    for (what, limits) in imposable().into_iter().skip_while(|(what, _)| *what != "Docker") {
        let [here, there] = [network.first(), network.second()].map(|host| Container::start(host, &limits));
        for tool in ["ib_write_bw", "ib_send_lat"] {
            let port = free_port();
            let args = ["-p", &port.to_string(), "-x", "0", "-F", "-n", "500", "-s", "65536"].map(str::to_owned);
            let mut args: Vec<_> = args.iter().map(String::as_str).collect();
            let server = there.under_vervain(tool, &args, &[]);
            args.push(network.second().v4);
            let (server, client) = serve(server, here.under_vervain(tool, &args, &[]), port, LIMIT);
            println!("{what}: {tool}: {:.2} s", client.took.as_secs_f64());
            for why in complaint(tool, &server, &client) {
                failures.add(&format!("{what}: {tool}"), why);
            }
        }
        // The view of sysfs too, which needs a directory that can be written to.
        for (tool, args, wanted) in [
            ("ibv_devinfo", &[][..], "PORT_ACTIVE"),
            ("cat", &["/sys/class/infiniband/vervain0/ports/1/state"], "4: ACTIVE"),
        ] {
            let end = Job::start(&mut here.under_vervain(tool, args, &[])).finish(LIMIT);
            if !end.success() || !end.output.contains(wanted) || end.output.contains("warning") {
                failures.add(&format!("{what}: {tool}"), end.describe());
            }
        }
    }
    failures.assert_none();
}

/// Whether a program failed soon, and its first words that are Vervain's say why.
fn fails_with(what: &str, end: &Finished, sentence: &[&str], failures: &mut Failures) {
    let first = end.output.lines().find(|line| line.contains("vervain")).unwrap_or_default();
    let failed = end.status.is_some_and(|status| !status.success());
    if !failed || sentence.iter().any(|words| !first.contains(words)) {
        failures.add(what, end.describe());
    }
}

#[test]
fn where_nothing_can_work_a_sentence_says_so() {
    if !ready() || !have(&["ib_write_bw"]) {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    let mut failures = Failures::default();
    let limits = Limits { refused: vec![(libc::SYS_memfd_create, libc::EPERM)], ..Limits::default() };
    if limits.can_be_had() {
        let container = Container::start(network.first(), &limits);
        let end = data(&container, None, &["order"], &[]);
        let sentence = ["cannot open the device", "memfd_create", "vervain doctor", "not permitted"];
        fails_with("data without memfd_create", &end, &sentence, &mut failures);
        let end = Job::start(&mut container.under_vervain("ib_write_bw", &[], &[])).finish(LIMIT);
        fails_with("ib_write_bw without memfd_create", &end, &sentence, &mut failures);
    }
    // Without a map, all users look like the overflow user, and its processes cannot know whose memory they would share.
    let mut anybody = Command::new("unshare");
    let inside = under_vervain(c_program("data"));
    anybody.arg("--user").arg(inside.get_program()).args(inside.get_args()).arg("order");
    if have_user_namespaces() {
        let end = Job::start(&mut anybody).finish(LIMIT);
        fails_with("data by a user without a number", &end, &["does not tell users apart"], &mut failures);
    }
    failures.assert_none();
}

fn have_user_namespaces() -> bool {
    let can = Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|status| status.success());
    if !can {
        skip("this user may not make user namespaces");
    }
    can
}
