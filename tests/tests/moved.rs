//! Processes that go on where their addresses are others, as a job does that is restarted elsewhere: two of them, between two hosts, are
//! parked in the middle of their messages, the hosts get other interfaces and addresses, and they are told which have become which.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use vervain_names::AddressMap;
use vervain_names::parking::{Step, ask, begin_rejoin};
use vervain_tests::netns::{Host, Network};
use vervain_tests::{Job, alone, have, moved, tool, under_vervain};

const PATIENCE: Duration = Duration::from_secs(20);
/// How long a process may be silent.
const LIMIT: Duration = Duration::from_secs(60);
/// Rounds that make sure that messages go on.
const MORE: u64 = 20;

/// A process under way.
struct End {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl End {
    fn start(host: &Host, role: &str) -> End {
        let mut command = under_vervain(env!("CARGO_BIN_EXE_vervain-moved-end"));
        command.arg(role);
        let mut command = host.enter(&command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let (input, output) = (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
        let (send, lines) = channel();
        thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        End { child, input, lines }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    fn hear(&mut self) -> String {
        self.lines.recv_timeout(LIMIT).expect("it answers")
    }

    fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.hear()
    }

    fn rounds(&mut self) -> u64 {
        self.ask("rounds").parse().expect("a number")
    }

    /// Waits until messages have come and gone by all of its QPs.
    fn goes_on(&mut self) {
        let (before, until) = (self.rounds(), Instant::now() + LIMIT);
        while self.rounds() < before + MORE {
            assert!(Instant::now() < until, "messages do not go on");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its input ends, and so does it.
    fn finish(self) {
        let (mut child, until) = (self.child, Instant::now() + LIMIT);
        drop(self.input);
        loop {
            match child.try_wait().expect("a child") {
                Some(status) => break assert!(status.success(), "{status}"),
                None if Instant::now() > until => break,
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
        self.lines.try_iter().for_each(|line| println!("{line}"));
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A slot of the process that is there.
fn slot() -> u32 {
    let prefix = vervain_names::slots(0);
    let holders = vervain_names::holders(rustix::net::SocketType::SEQPACKET, &prefix).expect("the list of sockets");
    holders.iter().find_map(|holder| holder.name.strip_prefix(&prefix)?.parse().ok()).expect("a process")
}

fn step(host: &Host, step: Step) {
    let taken = host.act(|| ask(0, slot(), step, PATIENCE));
    assert!(taken.expect("the step is taken"), "a process is there");
}

fn rejoin(host: &Host, map: &AddressMap) -> Result<bool, Option<i32>> {
    host.act(|| begin_rejoin(0, slot(), map)?.expect("a process").answer(PATIENCE)).map_err(|e| e.raw_os_error())
}

/// Parks both, has the hosts changed, and lets both go on.
fn parked_while(network: &Network, change: impl FnOnce(), map: &str) {
    let hosts = [network.first(), network.second()];
    let map: AddressMap = map.parse().expect("a map");
    hosts.iter().for_each(|host| step(host, Step::Stop));
    hosts.iter().for_each(|host| step(host, Step::Leave));
    change();
    for host in hosts {
        assert_eq!(rejoin(host, &AddressMap::default()), Err(Some(libc::EADDRNOTAVAIL)), "where no address is known");
    }
    hosts.iter().for_each(|host| assert_eq!(rejoin(host, &map), Ok(true)));
    hosts.iter().for_each(|host| step(host, Step::Go));
}

/// Gives a host these addresses in place of all that the interface has, known to nobody yet.
fn address(host: &Host, interface: &str, addresses: [&str; 2]) {
    host.ip(&["address", "flush", "dev", interface]);
    host.ip(&["address", "add", &format!("{}/24", addresses[0]), "dev", interface]);
    host.ip(&["address", "add", &format!("{}/64", addresses[1]), "dev", interface, "nodad"]);
    host.ip(&["neighbour", "flush", "dev", interface]);
}

fn rename(host: &Host, from: &str, to: &str) {
    host.ip(&["link", "set", from, "down"]);
    host.ip(&["link", "set", from, "name", to]);
    host.ip(&["link", "set", to, "up"]);
}

const OLD: [[&str; 2]; 2] = [["10.47.91.1", "fd47:91::1"], ["10.47.91.2", "fd47:91::2"]];
const NEW: [[&str; 2]; 2] = [["10.47.92.1", "fd47:92::1"], ["10.47.92.2", "fd47:92::2"]];

fn pairs(old: [[&str; 2]; 2], new: [[&str; 2]; 2]) -> String {
    let all = old.as_flattened().iter().zip(new.as_flattened());
    all.map(|(old, new)| format!("{old}={new}")).collect::<Vec<_>>().join(",")
}

/// What is on a cable while `act` is done: its addresses are these, and all ICRCs are right.
fn on_the_wire(hosts: [&Host; 2], interface: &str, addresses: [[&str; 2]; 2], act: impl FnOnce()) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("packets.pcap");
    // Trains are cut apart before they leave.
    hosts.iter().for_each(|host| host.ip(&["link", "set", interface, "gso_max_segs", "1"]));
    let mut command = Command::new(tool("dumpcap").expect("looked for before"));
    command.args(["-i", interface, "-P", "-q", "-f", "udp port 4791", "-w"]).arg(&file);
    let mut job = Job::start(&mut hosts[1].enter(&command));
    assert!(job.wait_output("File:", LIMIT), "{}", job.finish(Duration::ZERO).describe());
    act();
    job.signal_group(libc::SIGINT);
    let end = job.finish(LIMIT);
    assert!(end.success(), "{}", end.describe());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/icrc.py");
    let end = Job::start(Command::new("python3").arg(script).arg(&file)).finish(LIMIT);
    assert!(end.success() && end.output.contains(" 0 wrong"), "{}", end.describe());
    let mut command = Command::new("tshark");
    command.args(["-T", "fields", "-e", "ip.src", "-e", "ipv6.src", "-r"]).arg(&file);
    let end = Job::start(&mut command).finish(LIMIT);
    let sources: std::collections::BTreeSet<IpAddr> =
        end.output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let expected = addresses.as_flattened().iter().map(|ip| ip.parse().expect("an address")).collect();
    assert_eq!(sources, expected, "{}", end.describe());
}

#[test]
fn processes_go_on_where_their_addresses_are_others() {
    if !have(&["dumpcap", "tshark", "python3"]) {
        return;
    }
    let _turn = alone();
    let Some(network) = Network::of_two(1500) else { return };
    if !network.first().takes_threads() {
        return;
    }
    let hosts = [network.first(), network.second()];
    let mut ends = [("first", hosts[0]), ("second", hosts[1])].map(|(role, host)| End::start(host, role));
    let said = ends.each_mut().map(End::hear);
    ends.iter_mut().zip(said.iter().rev()).for_each(|(end, said)| end.say(said));
    ends.iter_mut().for_each(End::goes_on);
    let before = ends.each_mut().map(|end| end.ask("gids"));
    for (gids, own) in before.iter().zip(OLD) {
        assert!(own.iter().all(|ip| gids.contains(ip)) && gids.ends_with(" []"), "{gids}");
    }

    // To other interfaces.
    let to_others = || {
        let peer = hosts[1].pid().to_string();
        hosts[0].ip(&["link", "add", "wan0", "type", "veth", "peer", "name", "wan0", "netns", &peer]);
        hosts[0].ip(&["link", "delete", "eth0"]);
        for (host, addresses) in hosts.iter().zip(NEW) {
            host.ip(&["link", "set", "wan0", "addrgenmode", "none"]);
            host.ip(&["link", "set", "wan0", "up"]);
            address(host, "wan0", addresses);
        }
    };
    parked_while(&network, to_others, &pairs(OLD, NEW));
    goes_on_as_before(&mut ends, &before);
    on_the_wire(hosts, "wan0", NEW, || {
        introduce_more(&mut ends, |line| line.to_owned());
        goes_on_as_before(&mut ends, &before);
    });
    // To the addresses that the other one has had, and to the first ones again.
    let swapped = [NEW[1], NEW[0]];
    let swap = || {
        hosts.iter().for_each(|host| host.ip(&["address", "flush", "dev", "wan0"]));
        hosts.iter().zip(swapped).for_each(|(host, addresses)| address(host, "wan0", addresses));
    };
    parked_while(&network, swap, &pairs(NEW, swapped));
    goes_on_as_before(&mut ends, &before);
    on_the_wire(hosts, "wan0", NEW, || goes_on_as_before(&mut ends, &before));
    // A program may learn the addresses of its peer anew.
    let map: AddressMap = pairs(OLD, swapped).parse().expect("a map");
    introduce_more(&mut ends, |line| moved::known_by(line, |ip| map.of(ip)));
    goes_on_as_before(&mut ends, &before);
    let back = || {
        for (host, addresses) in hosts.iter().zip(OLD) {
            rename(host, "wan0", "eth0");
            address(host, "eth0", addresses);
        }
    };
    parked_while(&network, back, &pairs(swapped, OLD));
    introduce_more(&mut ends, |line| line.to_owned());
    goes_on_as_before(&mut ends, &before);
    on_the_wire(hosts, "eth0", OLD, || goes_on_as_before(&mut ends, &before));
    ends.into_iter().for_each(End::finish);
}

/// Makes more connections. The one that begins rounds is between two of them while the other one hears nothing.
fn introduce_more(ends: &mut [End; 2], tell: impl Fn(&str) -> String) {
    let said = ends.each_mut().map(|end| end.ask("more"));
    for n in [1, 0] {
        ends[n].say(&tell(&said[1 - n]));
    }
}

fn goes_on_as_before(ends: &mut [End; 2], before: &[String; 2]) {
    ends.iter_mut().for_each(End::goes_on);
    assert_eq!(&ends.each_mut().map(|end| end.ask("gids")), before);
}
