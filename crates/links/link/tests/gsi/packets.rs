//! QP 1 between two network namespaces with a veth pair between them: MADs in packets on the wire, and MADs through a
//! window. Needs root and `ip`; without them the tests print that and pass.

use crate::member::{FIRST, Member, REP, REQ, mad};
use crate::veth::{ip, wait_for_carrier};
use crate::{park, service};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use vervain_hca::mr::transfer::Pieces;
use vervain_names::parking::Step;
use vervain_roce::net::{FlowKey, Port, SendBatch};
use vervain_skip::skip;
use vervain_wire::icrc::{Flow, Untold};
use vervain_wire::{Bth, Deth, Headers, opcode};

const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const V6: [&str; 2] = ["2001:db8::1", "2001:db8::2"];
/// Hops of a MAD that has come in a packet, where the socket does not tell.
const HOPS: u8 = 64;

/// A network namespace, with its end of the pair.
struct Host(OwnedFd);

/// Moves this thread into a network namespace.
fn enter(namespace: &OwnedFd) {
    // SAFETY: no memory is involved.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
}

fn namespace_of_thread() -> OwnedFd {
    std::fs::File::open("/proc/thread-self/ns/net").unwrap().into()
}

impl Host {
    /// Runs `f` in a thread of this host's.
    fn run<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&self.0);
                f()
            });
            thread.join().unwrap()
        })
    }

    /// Starts a process there.
    fn start(&self, address: &str, variables: &[(&str, &str)]) -> Member {
        let namespace = self.0.as_raw_fd();
        let mut command = Command::new(std::env::current_exe().unwrap());
        // SAFETY: one system call, on a descriptor that is open when the process starts.
        unsafe {
            command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Member::start_as(command, address, variables)
    }
}

/// Two hosts; none where that cannot be had here.
fn hosts() -> Option<[Host; 2]> {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    let has_ip = Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !root || !has_ip {
        skip("needs root and ip (Debian: iproute2)");
        return None;
    }
    let fresh = || {
        let thread = std::thread::spawn(|| {
            // SAFETY: no memory is involved.
            let left = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            left.then(|| Host(namespace_of_thread())).ok_or_else(std::io::Error::last_os_error)
        });
        thread.join().unwrap().map_err(|e| skip(format_args!("no network namespace: {e}"))).ok()
    };
    let hosts = [fresh()?, fresh()?];
    hosts[0].run(|| {
        ip("link add v0 type veth peer name v1");
        let (pid, fd) = (std::process::id(), hosts[1].0.as_raw_fd());
        ip(&format!("link set v1 netns /proc/{pid}/fd/{fd}"));
    });
    for (n, host) in hosts.iter().enumerate() {
        host.run(|| {
            ip("link set lo up");
            ip(&format!("addr add {}/24 dev v{n}", ADDRESSES[n]));
            ip(&format!("link set v{n} gso_max_segs 1 up"));
            ip(&format!("addr add {}/64 dev v{n} nodad", V6[n]));
        });
    }
    // Packets sent before the kernel has noticed that both ends are up are silently dropped.
    for (n, host) in hosts.iter().enumerate() {
        host.run(|| wait_for_carrier(&format!("v{n}")));
    }
    Some(hosts)
}

#[test]
fn requests_and_answers_cross_the_network_over_ipv4_and_ipv6() {
    let Some([here, there]) = hosts() else { return };
    for [from, to] in [ADDRESSES, V6] {
        let (mut client, mut server) = (here.start(from, &[]), there.start(to, &[]));
        let service = service();
        assert_eq!(server.does(&format!("claim {service} *")), 0);
        assert_eq!(client.does(&format!("resolve {to}")), 0);
        assert_eq!(client.sends(REQ, service, to, 1, 1), 0);
        assert_eq!(server.hear("mad "), server.line(REQ, 1, &client, HOPS));
        assert_eq!(server.sends(REP, client.slot.into(), from, 2, 1), 0);
        assert_eq!(client.hear("mad "), client.line(REP, 2, &server, HOPS));
        // Nobody has this one; whoever has a connection manager is to say so.
        assert_eq!(client.sends(REQ, service ^ 1 << 60, to, 3, 1), 0);
        assert_eq!(server.hear("mad "), server.line(REQ, 3, &client, HOPS));
        assert_eq!(
            client.does("resolve 192.0.2.99"),
            if from == ADDRESSES[0] { libc::ETIMEDOUT } else { libc::EINVAL }
        );
    }
}

#[test]
fn packets_go_within_a_host_too_where_they_are_the_only_way() {
    let Some([host, _]) = hosts() else { return };
    let here = "127.0.0.1";
    let [mut server, mut client] = [(); 2].map(|()| host.start(here, &[("VERVAIN_LINK", "roce")]));
    let service = service();
    assert_eq!(server.does(&format!("claim {service} *")), 0);
    assert_eq!(client.sends(REQ, service, here, 1, 1), 0);
    assert_eq!(server.hear("mad "), server.line(REQ, 1, &client, HOPS));
    assert_eq!(server.sends(REP, client.slot.into(), here, 2, 1), 0);
    assert_eq!(client.hear("mad "), client.line(REP, 2, &server, HOPS));
    // To itself.
    assert_eq!(server.sends(REQ, service, here, 3, 1), 0);
    assert_eq!(server.hear("mad "), server.line(REQ, 3, &server, HOPS));
}

#[test]
fn a_process_that_is_stopped_keeps_no_mads_of_others() {
    let Some([here, there]) = hosts() else { return };
    let [from, to] = ADDRESSES;
    let mut client = here.start(from, &[]);
    let mut servers = [(); 3].map(|()| there.start(to, &[]));
    let services = [(); 3].map(|()| service());
    for (server, service) in servers.iter_mut().zip(services) {
        assert_eq!(server.does(&format!("claim {service} {to}")), 0);
    }
    let [stopped, other, third] = &mut servers;
    stopped.signal(libc::SIGSTOP);
    for n in 0..50 {
        assert_eq!(client.sends(REQ, services[0], to, 1000 + n, 1), 0);
        assert_eq!(client.sends(REQ, services[1], to, 2 * n, 1), 0);
        assert_eq!(other.hear("mad "), other.line(REQ, 2 * n, &client, HOPS));
        assert_eq!(client.sends(REP, third.slot.into(), to, n, 1), 0);
        assert_eq!(third.hear("mad "), third.line(REP, n, &client, HOPS));
    }
    // A repeated request reaches a process that can reply that nobody has the service.
    for n in 0..50 {
        assert_eq!(client.sends(REQ, services[0] ^ 1 << 60, to, 3000 + n, 1), 0);
    }
    assert!(other.hear("mad ").contains(" 30"));
    assert!(third.hear("mad ").contains(" 30"));
    // A claim is taken over when its process has ended.
    stopped.signal(libc::SIGKILL);
    assert_eq!(third.does(&format!("claim {} {to}", services[0])), 0);
    assert_eq!(client.sends(REQ, services[0], to, 4000, 1), 0);
    while third.hear("mad ") != third.line(REQ, 4000, &client, HOPS) {}
}

#[test]
fn what_comes_to_another_process_is_handed_on() {
    let Some([host, _]) = hosts() else { return };
    // Between two addresses of the loopback interface trains stay whole.
    let [from, to] = ["127.0.0.5", "127.0.0.1"];
    let mut servers = [(); 2].map(|()| host.start(to, &[]));
    let services = [(); 2].map(|()| service());
    for (server, service) in servers.iter_mut().zip(services) {
        assert_eq!(server.does(&format!("claim {service} {to}")), 0);
    }
    let slots = servers.each_ref().map(|server| u64::from(server.slot));
    // Trains: the kernel looks at the first packet of each.
    let trains = [
        [mad(REQ, 5, services[0], 1), mad(REQ, 5, services[1], 2)],
        [mad(REQ, 5, services[1], 3), mad(REP, 5, slots[0], 4)],
        [mad(REP, 5, slots[0], 5), mad(REP, 5, slots[1], 6)],
    ];
    host.run(|| {
        let port = Arc::new(Port::open(from.parse().unwrap(), 0).unwrap());
        for train in &trains {
            let mut batch = SendBatch::new(Arc::clone(&port));
            train.iter().for_each(|mad| push(&mut batch, to.parse().unwrap(), mad, |_| {}));
            batch.flush();
        }
        // And what is for nobody: another Q_Key, P_Key, operation, length, class.
        let refuse: [fn(&mut Headers); 3] = [
            |headers| headers.deth.as_mut().unwrap().qkey = 0x11,
            |headers| headers.bth.pkey = 1,
            |headers| headers.bth.opcode = opcode::UD | opcode::SEND_ONLY_IMM,
        ];
        let mut batch = SendBatch::new(Arc::clone(&port));
        for change in refuse {
            push(&mut batch, to.parse().unwrap(), &mad(REQ, 5, services[0], 7), change);
        }
        push(&mut batch, to.parse().unwrap(), &mad(REQ, 5, services[0], 7)[..252], |_| {});
        let mut other = mad(REQ, 5, services[0], 7);
        other[1] = 4;
        push(&mut batch, to.parse().unwrap(), &other, |_| {});
        push(&mut batch, to.parse().unwrap(), &mad(REQ, 5, services[0], 8), |_| {});
        batch.flush();
    });
    let mut heard = |n: usize, count: usize| {
        let mut heard: Vec<String> = (0..count).map(|_| servers[n].hear("mad ")).collect();
        heard.sort();
        heard.iter().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(heard(0, 4), ["1", "8", "4", "5"]);
    assert_eq!(heard(1, 3), ["2", "3", "6"]);
}

/// Adds a packet for QP 1.
fn push(batch: &mut SendBatch, to: IpAddr, mad: &[u8], change: impl FnOnce(&mut Headers)) {
    let mut headers = Headers {
        bth: Bth { opcode: opcode::UD | opcode::SEND_ONLY, pkey: 0xffff, dest_qpn: 1, ..Bth::default() },
        deth: Some(Deth { qkey: 0x8001_0000, source_qpn: 1 }),
        ..Headers::default()
    };
    change(&mut headers);
    if headers.bth.opcode != opcode::UD | opcode::SEND_ONLY {
        headers.imm = Some([0; 4]);
    }
    let flow = FlowKey { to, slot: 0, spread: 0, label: 0, hop_limit: 0, tos: 0 };
    // SAFETY: the payload lives longer than the call.
    assert!(unsafe { batch.push(&flow, &headers, &Pieces::of(mad)) }.is_ok());
}

/// The packets are the kernel's rdma_rxe's (golden capture t_rping.pcap) in all fields of BTH and DETH but the first
/// PSN.
#[test]
fn on_the_wire_mads_are_as_the_kernel_s() {
    let Some([here, there]) = hosts() else { return };
    let [from, to] = ADDRESSES;
    let watch = there.run(|| {
        let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
        // SAFETY: a new descriptor belongs to whoever asked for it.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, protocol);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        }
    });
    let (mut client, mut server) = (here.start(from, &[]), there.start(to, &[]));
    let service = service();
    assert_eq!(server.does(&format!("claim {service} *")), 0);
    assert_eq!(client.sends(REQ, service, to, 1, 2), 0);
    let mut psns = Vec::new();
    while psns.len() < 2 {
        let mut packet = vec![0u8; 70_000];
        // SAFETY: the kernel writes at most as many bytes as there are.
        let length = unsafe { libc::recv(watch.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
        packet.truncate(usize::try_from(length).unwrap());
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        if packet[9] != 17 || word(22) != 4791 || packet.len() < 28 + 12 {
            continue;
        }
        let (payload, source) = (&packet[28..], word(20));
        assert!(source >= 0xc000);
        // Opcode, flags, P_Key, QPN, AckReq; Q_Key, source QPN.
        assert_eq!(payload[..9], [0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0x80]);
        assert_eq!(payload[12..20], [0x80, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(payload.len(), 20 + 256 + 4);
        assert_eq!((packet[1], packet[8]), (0, 64), "TOS and TTL");
        let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        let flow = Flow::v4((ip(from), source), (ip(to), 4791));
        assert_eq!(flow.verify(word(4), payload), Some(Untold::with_df(word(4))));
        psns.push(u32::from_be_bytes([0, payload[9], payload[10], payload[11]]));
    }
    assert_eq!(psns, [0, 1]);
    assert_eq!(server.hear("mad "), server.line(REQ, 1, &client, HOPS));
}

#[test]
fn a_process_that_was_parked_has_its_services_again() {
    let Some([here, there]) = hosts() else { return };
    let [from, to] = ADDRESSES;
    let mut client = here.start(from, &[]);
    let mut servers = [(); 2].map(|()| there.start(to, &[]));
    let services = [(); 2].map(|()| service());
    for (server, service) in servers.iter_mut().zip(services) {
        assert_eq!(server.does(&format!("claim {service} {to}")), 0);
    }
    let [server, other] = &mut servers;
    there.run(|| park(&[server], &[Step::Stop]));
    assert_eq!(client.sends(REQ, services[0], to, 1, 1), 0);
    // It lies in the socket when that is given up.
    other_has(&mut client, other, services[1], to);
    there.run(|| park(&[server], &[Step::Leave]));
    other_has(&mut client, other, services[1], to);
    there.run(|| park(&[server], &[Step::Rejoin, Step::Go]));
    assert_eq!(server.hear("mad "), server.line(REQ, 1, &client, HOPS));
    // By itself, not because it was handed on.
    other.signal(libc::SIGSTOP);
    for n in 0..20 {
        assert_eq!(client.sends(REQ, services[0], to, 2 * n, 1), 0);
        assert_eq!(server.hear("mad "), server.line(REQ, 2 * n, &client, HOPS));
        assert_eq!(client.sends(REP, server.slot.into(), to, n, 1), 0);
        assert_eq!(server.hear("mad "), server.line(REP, n, &client, HOPS));
    }
}

/// A request reaches the other server, and so does whatever was sent before it to the same host.
fn other_has(client: &mut Member, other: &mut Member, service: u64, to: &str) {
    assert_eq!(client.sends(REQ, service, to, 5, 1), 0);
    assert_eq!(other.hear("mad "), other.line(REQ, 5, client, HOPS));
}

#[test]
fn a_window_carries_mads_too() {
    let Some([here, there]) = hosts() else { return };
    let memory = vervain_window::memfd(&vervain_window::Options::default()).unwrap();
    let window = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let variables = [("VERVAIN_LINK", "window"), ("VERVAIN_WINDOW", &*window)];
    let mut client = here.start(FIRST, &variables);
    let mut servers = [(); 3].map(|()| there.start(FIRST, &variables));
    let services = [(); 3].map(|()| service());
    for (server, service) in servers.iter_mut().zip(services) {
        assert_eq!(server.does(&format!("claim {service} *")), 0);
    }
    let [to, from] = [servers[0].address.clone(), client.address.clone()];
    assert_ne!(to, from);
    for n in 0..10 {
        for (server, service) in servers.iter_mut().zip(services) {
            assert_eq!(client.sends(REQ, service, &to, 2 * n, 1), 0);
            let said = server.hear("mad ");
            // Handed on by another.
            assert_eq!(said, server.line(REQ, 2 * n, &client, HOPS));
            assert_eq!(server.sends(REP, client.slot.into(), &from, 2 * n + 1, 1), 0);
            assert_eq!(client.hear("mad "), client.line(REP, 2 * n + 1, server, HOPS));
        }
    }
    // One that stands still keeps only some of what is sent again.
    servers[0].signal(libc::SIGSTOP);
    assert_eq!(client.sends(REQ, services[1], &to, 100, 6), 0);
    assert!(servers[1].hear("mad ").contains(" 10"));
    // Within a node.
    let [_, second, third] = &mut servers;
    assert_eq!(second.sends(REP, third.slot.into(), &to, 7, 1), 0);
    assert_eq!(third.hear("mad "), third.line(REP, 7, second, 0));
    assert_eq!(client.sends(REP, u64::from(client.slot ^ 1), &from, 8, 1), libc::ECONNREFUSED);
}
