//! Another user that has taken the names by which a port is shared, or the port itself: a join does not wait for it,
//! and its error names the owner.

use super::world::{Member, address};
use super::{member, turn};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use vervain_skip::skip;

const NOBODY: u32 = 65534;
/// Most time that a stranger costs; a join takes some milliseconds. Less than the 10 s for which processes of one's own
/// user are waited for.
const AT_MOST: Duration = Duration::from_secs(8);

/// Runs this as another user; None, with a message, where that is not allowed.
fn as_nobody<T: Send>(make: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can act as another user");
        return None;
    }
    let all = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: all.maximum, ..all };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: unlike libc's function, the bare system call changes the user of this thread only, which ends
            // here.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
            make()
        });
        Some(thread.join().unwrap())
    })
}

fn named(kind: SocketType, name: &str) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

/// Wants to join as slot 5, and is told why not within the time.
fn refusal(at: SocketAddr) -> String {
    let begin = Instant::now();
    let said = Member::start(at, &[5], None).joined().unwrap_err();
    println!("{said}");
    assert!(begin.elapsed() < AT_MOST, "{:?}", begin.elapsed());
    assert!(said.starts_with("failed 98 "), "{said}");
    let who = format!("uid {NOBODY}, process {} (", std::process::id());
    assert!(said.contains(&who), "{said}");
    said
}

#[test]
fn doors_of_another_user_are_not_asked_and_nobody_waits_for_them() {
    let _turn = turn();
    let at = address();
    let free = [7, 9];
    let squat = || (1..1023).filter(|slot| !free.contains(slot)).map(|slot| mailbox(at, slot)).collect::<Vec<_>>();
    let Some(mailboxes) = as_nobody(squat) else { return };
    let begin = Instant::now();
    let members = free.map(|slot| member(at, slot));
    assert!(begin.elapsed() < AT_MOST, "{:?}", begin.elapsed());
    let said = refusal(at);
    assert!(said.contains(&format!("another user has the name @vervain/udp/{at}/5 ")), "{said}");
    drop(mailboxes);
    member(at, 5);
    drop(members);
}

fn mailbox(at: SocketAddr, slot: u32) -> OwnedFd {
    named(SocketType::DGRAM, &format!("vervain/udp/{at}/{slot}"))
}

#[test]
fn a_turn_of_another_user_is_not_waited_for_whether_it_listens_or_not() {
    let _turn = turn();
    for listens in [false, true] {
        let at = address();
        let squat = || {
            let socket = named(SocketType::SEQPACKET, &format!("vervain/udp/{at}"));
            if listens {
                listen(&socket, 1).unwrap();
            }
            socket
        };
        let Some(turn) = as_nobody(squat) else { return };
        let said = refusal(at);
        let expected = if listens { "processes of another user have that port" } else { "another user has the name" };
        assert!(said.contains(expected), "{said}");
        drop(turn);
        member(at, 5);
    }
}

#[test]
fn a_port_of_another_user_is_told_at_once_with_its_process() {
    let _turn = turn();
    let at = address();
    let Some(port) = as_nobody(|| std::net::UdpSocket::bind(at).unwrap()) else { return };
    let said = refusal(at);
    assert!(said.contains("processes of another user have that port"), "{said}");
    drop(port);
    member(at, 5);
}
