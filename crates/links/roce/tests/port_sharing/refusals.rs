//! Those who cannot join are told why, in one sentence, and disturb nobody.

use super::world::{Member, Traffic, address};
use super::{member, turn};
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use vervain_roce::net::Port;
use vervain_roce::port_sharing::Sharing;
use vervain_skip::skip;

/// The reason why a process cannot join.
fn refusal(mut process: Member) -> String {
    let said = process.joined().unwrap_err();
    println!("{said}");
    said
}

#[test]
fn a_port_that_another_program_has_is_refused() {
    let _turn = turn();
    let at = address();
    let other = UdpSocket::bind(at).unwrap();
    let said = refusal(Member::start(at, &[1], None));
    assert!(said.starts_with("failed 98 ") && said.contains("another program has that port"), "{said}");
    drop(other);
    member(at, 1);
}

#[test]
fn an_address_that_the_host_has_not_is_refused() {
    let _turn = turn();
    let said = refusal(Member::start("192.0.2.77:4791".parse().unwrap(), &[1], None));
    assert!(said.starts_with("failed 99 ") && said.contains("192.0.2.77:4791"), "{said}");
}

#[test]
fn somebody_who_shares_the_port_uninvited_stops_those_who_come_later_and_disturbs_nobody() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let members = [1, 2].map(|slot| (slot, member(at, slot)));
    for (slot, member) in &members {
        traffic.open(*slot, member.pid());
    }
    let uninvited = Port::bind(at.ip(), 0).unwrap();
    traffic.flows(20);
    let said = refusal(Member::start(at, &[3], None));
    assert!(said.starts_with("failed 98 ") && said.contains("not Vervain"), "{said}");
    traffic.flows(20);
    drop(uninvited);
    traffic.flows(20);
    let third = member(at, 3);
    traffic.open(3, third.pid());
    traffic.flows(20);
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn an_uninvited_first_is_refused_too() {
    let _turn = turn();
    let at = address();
    let uninvited = Port::bind(at.ip(), 0).unwrap();
    let said = refusal(Member::start(at, &[3], None));
    assert!(said.starts_with("failed 98 ") && said.contains("another program"), "{said}");
    drop(uninvited);
}

#[test]
fn one_user_at_a_time_has_the_port() {
    let _turn = turn();
    if !rustix::process::geteuid().is_root() {
        skip("only root can start processes of another user");
        return;
    }
    let at = address();
    let theirs = match start_as_user(at, 3) {
        Some(member) => member,
        None => return,
    };
    let said = refusal(Member::start(at, &[1], None));
    assert!(
        said.starts_with("failed 98 ") && said.contains("of another user have") && said.contains("uid 65534"),
        "{said}"
    );
    drop(theirs);
    let ours = member(at, 1);
    let said = refusal(Member::start(at, &[3], Some(65534)));
    assert!(
        said.starts_with("failed 98 ") && said.contains("of another user have") && said.contains("uid 0"),
        "{said}"
    );
    drop(ours);
}

fn start_as_user(at: SocketAddr, slot: u32) -> Option<Member> {
    let mut member = Member::start(at, &[slot], Some(65534));
    match member.joined() {
        Ok(()) => Some(member),
        Err(said) => panic!("{said}"),
    }
}

/// A command that runs this binary under `unshare` with these arguments; None, with a message, where that is not
/// allowed.
fn apart(arguments: &[&str]) -> Option<Command> {
    let allowed = Command::new("unshare").args(arguments).arg("true").output().is_ok_and(|o| o.status.success());
    if !allowed {
        skip(format_args!("unshare {} does not work here", arguments.join(" ")));
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(arguments).arg(std::env::current_exe().unwrap());
    Some(command)
}

#[test]
fn a_user_namespace_that_sees_other_user_ids_is_refused() {
    let _turn = turn();
    let at = address();
    let other_uid = format!("--map-user={}", rustix::process::geteuid().as_raw() + 1000);
    let Some(command) = apart(&["--user", &other_uid]) else { return };
    let ours = member(at, 1);
    let said = refusal(Member::start_as(command, at, &[2]));
    assert!(said.starts_with("failed 98 ") && said.contains("another user namespace"), "{said}");
    drop(ours);
    let mut theirs = Member::start_as(apart(&["--user", &other_uid]).unwrap(), at, &[2]);
    theirs.joined().unwrap();
    let said = refusal(Member::start(at, &[1], None));
    assert!(said.starts_with("failed 98 ") && said.contains("another user namespace"), "{said}");
}

#[test]
fn a_user_namespace_that_does_not_tell_users_apart_is_refused() {
    let _turn = turn();
    // Without a map, its processes see themselves as the overflow user, and all others too.
    let Some(command) = apart(&["--user"]) else { return };
    let said = refusal(Member::start_as(command, address(), &[2]));
    assert!(said.starts_with("failed 1 ") && said.contains("tell users apart"), "{said}");
}

#[test]
fn a_user_namespace_that_sees_the_same_user_ids_shares() {
    let _turn = turn();
    let at = address();
    let Some(command) = apart(&["--user", "--map-current-user"]) else { return };
    let traffic = Traffic::start(at);
    let ours = member(at, 1);
    let mut theirs = Member::start_as(command, at, &[2]);
    theirs.joined().unwrap();
    traffic.open(1, ours.pid());
    traffic.open(2, theirs.pid());
    traffic.flows(20);
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn another_network_namespace_with_the_same_address_is_another_world() {
    let _turn = turn();
    let at = address();
    let namespaces = ["--user", "--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];
    let Some(command) = apart(&namespaces) else { return };
    let traffic = Traffic::start(at);
    let mut theirs = Member::start_as(command, at, &[1]);
    theirs.joined().unwrap();
    let mut ours = member(at, 1);
    traffic.open(1, ours.pid());
    traffic.flows(20);
    assert_eq!(traffic.finish().1, 0);
    assert_eq!([theirs.counts(), ours.counts()], [[0; 5]; 2]);
}

#[test]
fn members_without_descriptors_are_not_taken_for_absent() {
    let _turn = turn();
    let at = address();
    let ours = member(at, 1);
    let limit = |most| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: 1024 };
        let (pid, none) = (ours.pid() as i32, std::ptr::null_mut());
        // SAFETY: changes a limit of a child that has not been waited for; the struct lives on this stack.
        let set = unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, none) };
        assert_eq!(set, 0);
    };
    limit(3);
    let said = refusal(Member::start(at, &[2], None));
    assert!(said.starts_with("failed 16 ") && said.contains("do not answer"), "{said}");
    limit(1024);
    member(at, 2);
}

#[test]
fn ipv6_addresses_are_shared_in_the_same_way() {
    let _turn = turn();
    // The one loopback address of IPv6, so not the usual port.
    let at: SocketAddr = format!("[::1]:{}", 20_000 + std::process::id() % 10_000).parse().unwrap();
    let bind = || {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::INET6,
            rustix::net::SocketType::DGRAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &at).map_err(|e| vervain_hca::Error::new(e.raw_os_error(), "bind"))?;
        Ok(socket)
    };
    if let Err(e) = UdpSocket::bind("[::1]:0") {
        skip(format_args!("no IPv6 here: {e}"));
        return;
    }
    let (first, socket) = Sharing::join(at, &[1], None, &bind).unwrap();
    // Another process needs an answer from the first, whose progress thread this is.
    let first = std::sync::Arc::new(first);
    let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let progress = std::thread::spawn({
        let (first, end) = (std::sync::Arc::clone(&first), std::sync::Arc::clone(&end));
        move || {
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                first.handle_events(Some(&mut |_: &_| panic!("a misrouted packet")));
                std::thread::yield_now();
            }
        }
    });
    let (second, other) = Sharing::join(at, &[2], None, &bind).unwrap();
    end.store(true, std::sync::atomic::Ordering::Relaxed);
    progress.join().unwrap();
    let sender = UdpSocket::bind("[::1]:0").unwrap();
    for slot in [1, 2, 3] {
        sender.send_to(&super::packet(slot, u64::from(slot)), at).unwrap();
    }
    for (slot, socket) in [(1, socket), (2, other)] {
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 64];
        assert_eq!((socket.recv(&mut bytes).unwrap(), bytes[16]), (super::member::PACKET, slot));
        assert!(socket.recv(&mut bytes).is_err(), "one packet each");
    }
    assert!(first.owns(1) && second.owns(2) && !first.owns(2));
}
