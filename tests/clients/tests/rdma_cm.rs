//! Programs of our own that connect by librdmacm, `tests/c/cm_*.c`: by memory, in packets within a host, and between two hosts, over IPv4 and
//! IPv6. What a peer's host cannot tell, the end of a process that was killed, is not expected from another one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vervain_tests::netns::{Host, Network};
use vervain_tests::pairs::{pair_between, words};
use vervain_tests::wire::Wire;
use vervain_tests::{
    Failures, Job, alone, beside_others, c_program, failure, have, have_cm, must_hold, side_by_side, under_vervain,
};
use vervain_wire::cm::Message;

const LIMIT: Duration = Duration::from_secs(180);
const MTU: u32 = 1500;

/// Where the two ends are.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In one host, by memory.
    Memory,
    /// In one host, in packets.
    Packets,
    /// In two hosts.
    Hosts,
}

impl Place {
    fn network(self) -> Option<Network> {
        match self {
            Place::Memory | Place::Packets => Network::of_one(),
            Place::Hosts => Network::of_two(MTU),
        }
    }

    /// A program there, its server at an address of that family.
    fn start(self, network: &Network, is_ipv6: bool, program: &str, vars: &[(&str, &str)], cases: &[&str]) -> Job {
        let server = if matches!(self, Place::Hosts) { network.second() } else { network.first() };
        let mut command = under_vervain(c_program(program));
        command.args(cases).env("VT_ADDRESS", if is_ipv6 { server.v6 } else { server.v4 });
        command.envs(vars.iter().copied());
        match self {
            Place::Memory => {}
            Place::Packets => {
                command.envs(Wire::Loopback.variables());
            }
            Place::Hosts => {
                command.env("VT_PEER_NETNS", server.path());
            }
        }
        Job::start(&mut network.first().enter(&command))
    }
}

/// Runs a program over IPv4 and IPv6, at once, each in hosts of its own: both mostly wait.
fn over_both(place: Place, program: &str) {
    if !have_cm() {
        return;
    }
    let _turn = beside_others();
    let failures = std::sync::Mutex::new(Failures::default());
    side_by_side(2, &[false, true], |is_ipv6| {
        let Some(network) = place.network() else { return };
        let end = place.start(&network, *is_ipv6, program, &[], &[]).finish(LIMIT);
        println!("{program} {place:?} IPv6 {is_ipv6}: {:.1} s", end.took.as_secs_f64());
        if let Some(why) = failure(&end) {
            failures.lock().expect("the failures").add(&format!("{place:?}, IPv6: {is_ipv6}"), why);
        }
    });
    failures.into_inner().expect("the failures").assert_none();
}

/// Each program of calls and their events.
fn calls(place: Place) {
    ["cm_calls", "cm_channels", "cm_qps"].into_iter().for_each(|program| over_both(place, program));
}

#[test]
fn calls_return_what_they_should_and_events_follow_by_memory() {
    calls(Place::Memory);
}

#[test]
fn calls_return_what_they_should_and_events_follow_in_packets() {
    calls(Place::Packets);
}

#[test]
fn calls_return_what_they_should_and_events_follow_between_hosts() {
    calls(Place::Hosts);
}

#[test]
fn those_who_are_left_go_on_when_a_process_is_killed_or_stands_still_by_memory() {
    over_both(Place::Memory, "cm_killed");
}

#[test]
fn those_who_are_left_go_on_when_a_process_is_killed_or_stands_still_in_packets() {
    over_both(Place::Packets, "cm_killed");
}

#[test]
fn those_who_are_left_go_on_when_a_process_is_killed_or_stands_still_between_hosts() {
    over_both(Place::Hosts, "cm_killed");
}

/// Many connections one after the other, and many at once.
fn many(place: Place, cycles: &str) {
    if !have_cm() {
        return;
    }
    let _turn = alone();
    let Some(network) = place.network() else { return };
    must_hold(&place.start(&network, false, "cm_cycles", &[("VT_CYCLES", cycles)], &[]).finish(LIMIT));
}

#[test]
fn ten_thousand_connections_leave_nothing_behind_and_a_thousand_are_there_at_once_by_memory() {
    many(Place::Memory, "10000");
}

#[test]
fn thousands_of_connections_leave_nothing_behind_and_a_thousand_are_there_at_once_in_packets() {
    many(Place::Packets, "4000");
}

#[test]
fn thousands_of_connections_leave_nothing_behind_and_a_thousand_are_there_at_once_between_hosts() {
    many(Place::Hosts, "4000");
}

/// The MADs and the requests of RC in a file that a program has written (`VERVAIN_PCAP`), of IPv4: destination QP, PSN and payload of each.
fn packets(file: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let (mut found, mut rest) = (Vec::new(), &file[24..]);
    while let Some((head, after)) = rest.split_first_chunk::<16>() {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let (packet, after) = after.split_at(length);
        rest = after;
        let Ok(packet) = vervain_wire::parse(&packet[28..]) else { continue };
        let bth = &packet.headers.bth;
        // SENDs, RDMA Writes, RDMA READ requests of RC, and datagrams to QP 1 (IBA table 38).
        if bth.opcode <= 0x0c || bth.dest_qpn == 1 {
            found.push((bth.dest_qpn, bth.psn, packet.payload.to_vec()));
        }
    }
    found
}

/// Each end says at which PSN the other is to begin, as the kernel's do (IBA 12.7.31): two of ours that had it the wrong way round would not
/// notice.
#[test]
fn each_end_begins_with_the_psn_that_the_other_has_asked_for() {
    if !have(&["ib_send_lat"]) {
        return;
    }
    let Some(network) = Network::of_two(MTU) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let name = folder.path().join("%p.pcap");
    let variables = [("VERVAIN_PCAP", name.to_str().expect("a plain path"))];
    let (server, client) = pair_between(&network, "ib_send_lat", &words("-R -F -n 5"), &variables, LIMIT);
    assert!(server.success() && client.success(), "{}\n{}", server.describe(), client.describe());
    let files = std::fs::read_dir(folder.path()).expect("the folder").flatten();
    let all: Vec<_> = files.filter_map(|file| std::fs::read(file.path()).ok()).map(|file| packets(&file)).collect();
    let said: BTreeMap<u32, u32> = all
        .iter()
        .flatten()
        .filter(|(to, ..)| *to == 1)
        .filter_map(|(.., mad)| match vervain_wire::cm::parse(mad.as_slice().try_into().ok()?).ok()?.1 {
            Message::Req(req) => Some((req.local_qpn, req.starting_psn)),
            Message::Rep(rep) => Some((rep.local_qpn, rep.starting_psn)),
            _ => None,
        })
        .collect();
    // perftest has a connection of its own for what both ends say of themselves.
    assert_eq!(said.len(), 4, "{said:?}");
    for (qpn, psn) in said {
        let first = all.iter().flatten().find(|(to, ..)| *to == qpn).map(|(_, psn, _)| *psn);
        assert_eq!(first, Some(psn), "the first request to QP {qpn:#x}");
    }
}

/// The program gives the peer's address two seconds to be resolved; the kernel asks for it each second.
#[test]
fn a_host_that_answers_late_is_found() {
    if !have_cm() || !have(&["nft"]) {
        return;
    }
    let Some(network) = Network::of_two(MTU) else { return };
    let (first, second) = (network.first(), network.second());
    let wait = || std::thread::sleep(Duration::from_millis(10));
    // The first question on a link that is just up may not get there.
    let until = Instant::now() + LIMIT;
    let is_up = |host: &Host| host.run("ip", &["-brief", "link", "show", "eth0"]).output.contains(" UP ");
    while !is_up(first) || !is_up(second) {
        assert!(Instant::now() < until, "the link does not come up");
        wait();
    }
    second.drop_incoming("icmpv6 type nd-neighbor-solicit");
    first.ip(&["-6", "neighbour", "del", second.v6, "dev", "eth0"]);
    let mut running = Place::Hosts.start(&network, true, "cm_calls", &[], &["nobody_listens"]);
    // The first question stays without an answer; from the second one a second is left.
    while second.dropped() == 0 {
        assert!(running.running(), "nobody has asked: {}", running.finish(Duration::ZERO).describe());
        wait();
    }
    second.drop_nothing();
    must_hold(&running.finish(LIMIT));
}
