//! QP 1 between real processes: MADs find the process that they are for, claims conflict, ends are told.

mod member;
mod packets;
#[path = "../../../roce/tests/veth/mod.rs"]
mod veth;

use member::{Member, REP, REQ};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vervain_names::parking::{Step, ask};

const HERE: &str = "127.0.0.1";
/// Within a host, without packets.
const LOCAL: [(&str, &str); 1] = [("VERVAIN_LINK", "local")];

/// Makes processes take steps of parking, all of them one step before the next; in the network namespace of this
/// thread.
pub fn park(members: &[&Member], steps: &[Step]) {
    for step in steps {
        for member in members {
            assert!(ask(uid(), member.slot, *step, Duration::from_secs(20)).unwrap(), "{step:?}");
        }
    }
}

fn uid() -> u32 {
    // SAFETY: asks the kernel a number.
    unsafe { libc::geteuid() }
}

/// A service ID that no other test claims.
fn service() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed)
}

#[test]
fn requests_find_the_process_that_has_the_service_and_answers_the_one_that_has_asked() {
    let [mut server, mut client, mut other] = [(); 3].map(|()| Member::start(HERE, &LOCAL));
    let service = service();
    assert_eq!(client.sends(REQ, service, HERE, 1, 1), libc::ECONNREFUSED);
    assert_eq!(server.does(&format!("claim {service} *")), 0);
    assert_eq!(other.does(&format!("claim {} {HERE}", service ^ 1 << 16)), 0);
    assert_eq!(client.sends(REQ, service, HERE, 2, 1), 0);
    assert_eq!(server.hear("mad "), server.line(REQ, 2, &client, 0));
    assert_eq!(server.sends(REP, client.slot.into(), HERE, 3, 1), 0);
    assert_eq!(client.hear("mad "), client.line(REP, 3, &server, 0));
    // Each to itself.
    assert_eq!(server.sends(REQ, service, HERE, 4, 1), 0);
    assert_eq!(server.hear("mad "), server.line(REQ, 4, &server, 0));
    assert_eq!(server.does(&format!("release {service} *")), 0);
    assert_eq!(client.sends(REQ, service, HERE, 5, 1), libc::ECONNREFUSED);
    client.tell("wake");
    client.hear("tick");
}

#[test]
fn a_service_is_one_process_s_at_an_address() {
    let [mut first, mut second, mut client] = [(); 3].map(|()| Member::start(HERE, &LOCAL));
    let service = service();
    let claim = |address: &str| format!("claim {service} {address}");
    assert_eq!(first.does(&claim(HERE)), 0);
    assert_eq!(first.does(&claim(HERE)), libc::EADDRINUSE);
    assert_eq!(second.does(&claim(HERE)), libc::EADDRINUSE);
    assert_eq!(second.does(&claim("*")), libc::EADDRNOTAVAIL);
    assert_eq!(first.does(&claim("192.0.2.77")), libc::EADDRNOTAVAIL);
    assert_eq!(first.does(&claim("*")), 0, "its own");
    assert_eq!(first.does(&format!("release {service} {HERE}")), 0);
    assert_eq!(second.does(&claim(HERE)), libc::EADDRNOTAVAIL);
    assert_eq!(client.sends(REQ, service, HERE, 1, 1), 0);
    assert_eq!(first.hear("mad "), first.line(REQ, 1, &client, 0));
    first.signal(libc::SIGKILL);
    assert_eq!(second.does(&claim("*")), 0, "the dead have none");
    assert_eq!(client.sends(REQ, service, HERE, 2, 1), 0);
    assert_eq!(second.hear("mad "), second.line(REQ, 2, &client, 0));
}

#[test]
fn the_end_of_a_process_is_told_after_what_it_has_said() {
    let [mut server, mut client] = [(); 2].map(|()| Member::start(HERE, &LOCAL));
    let service = service();
    assert_eq!(server.does(&format!("claim {service} *")), 0);
    assert_eq!(client.sends(REQ, service, HERE, 1, 1), 0);
    assert_eq!(server.hear("mad "), server.line(REQ, 1, &client, 0));
    assert_eq!(server.sends(REP, client.slot.into(), HERE, 2, 1), 0);
    assert_eq!(client.hear("mad "), client.line(REP, 2, &server, 0));
    // It stands still, so that what it is sent waits while the other ends.
    client.signal(libc::SIGSTOP);
    assert_eq!(server.sends(REP, client.slot.into(), HERE, 3, 5), 0);
    server.signal(libc::SIGKILL);
    client.signal(libc::SIGCONT);
    for sequence in 3..8 {
        assert_eq!(client.hear(""), format!("mad {}", client.line(REP, sequence, &server, 0)));
    }
    assert_eq!(client.hear(""), format!("gone {}", server.slot));
    assert_eq!(client.sends(REP, server.slot.into(), HERE, 9, 1), libc::ECONNREFUSED);
}

#[test]
fn more_than_a_socket_takes_arrives_in_order() {
    const EACH: u32 = 500;
    let [mut server, mut first, mut second] = [(); 3].map(|()| Member::start(HERE, &LOCAL));
    let service = service();
    assert_eq!(server.does(&format!("claim {service} *")), 0);
    server.signal(libc::SIGSTOP);
    assert_eq!(first.sends(REQ, service, HERE, 0, EACH), 0);
    assert_eq!(second.sends(REQ, service, HERE, 0, EACH), 0);
    // A process that is stopped keeps up no other.
    assert_eq!(first.sends(REP, second.slot.into(), HERE, 1, 1), 0);
    assert_eq!(second.hear("mad "), second.line(REP, 1, &first, 0));
    assert_eq!(first.sends(REQ, service, HERE, 0, 4096), libc::EAGAIN, "there is an end to it");
    server.signal(libc::SIGCONT);
    let mut next = [0, 0];
    while next != [EACH; 2] {
        let said = server.hear("mad ");
        let n = usize::from(!said.contains(&format!("from {} ", first.slot)));
        let sender = if n == 0 { &first } else { &second };
        if next[n] == EACH {
            // The MADs sent on top.
            continue;
        }
        assert_eq!(said, server.line(REQ, next[n], sender, 0));
        next[n] += 1;
    }
}

/// The names of a process's sockets.
fn names_of(member: &Member, service: u64) -> usize {
    let names = [vervain_names::management(uid(), member.slot), vervain_names::service(uid(), service, None)];
    let prefix = format!("{}cm/", vervain_names::slots(uid()));
    let holders = vervain_names::holders(rustix::net::SocketType::DGRAM, &prefix).unwrap();
    holders.iter().filter(|holder| names.contains(&holder.name)).count()
}

#[test]
fn nothing_is_lost_of_processes_that_are_parked() {
    let [mut server, mut client] = [(); 2].map(|()| Member::start(HERE, &LOCAL));
    let service = service();
    assert_eq!(server.does(&format!("claim {service} *")), 0);
    assert_eq!(client.sends(REQ, service, HERE, 0, 1), 0);
    assert_eq!(server.hear("mad "), server.line(REQ, 0, &client, 0));
    assert_eq!(names_of(&server, service), 2);
    park(&[&server], &[Step::Stop]);
    // More than its socket takes.
    assert_eq!(client.sends(REQ, service, HERE, 1, 100), 0);
    park(&[&server, &client], &[Step::Stop]);
    assert_eq!(client.sends(REQ, service, HERE, 101, 100), 0);
    park(&[&server, &client], &[Step::Leave]);
    assert_eq!(names_of(&server, service), 0);
    assert_eq!(client.sends(REQ, service, HERE, 201, 100), 0);
    park(&[&client, &server], &[Step::Rejoin]);
    assert_eq!(names_of(&server, service), 2);
    client.tell("wake");
    // The one that sends goes on first.
    park(&[&client, &server], &[Step::Go]);
    for sequence in 1..301 {
        assert_eq!(server.hear("mad "), server.line(REQ, sequence, &client, 0));
    }
    client.hear("tick");
    // None has heard of an end.
    assert_eq!(server.sends(REP, client.slot.into(), HERE, 1, 1), 0);
    assert_eq!(client.hear(""), format!("mad {}", client.line(REP, 1, &server, 0)));
    assert_eq!(client.sends(REQ, service, HERE, 301, 1), 0);
    assert_eq!(server.hear(""), format!("mad {}", server.line(REQ, 301, &client, 0)));
}

#[test]
fn a_forked_child_has_nothing_of_its_parent_s() {
    let [mut parent, mut other] = [(); 2].map(|()| Member::start(HERE, &LOCAL));
    let service = service();
    assert_eq!(parent.does(&format!("claim {service} *")), 0);
    parent.tell("fork");
    let child = Child(parent.hear("child ").parse().unwrap());
    let slot: u32 = parent.hear("slot of child ").parse().unwrap();
    assert_ne!(slot, parent.slot);
    assert_eq!(other.sends(REP, slot.into(), HERE, 1, 1), 0);
    let heard = parent.hear("mad ");
    assert!(heard.starts_with(&format!("{REP:#x} 1 from {} ", other.slot)), "{heard}");
    assert_eq!(other.sends(REP, parent.slot.into(), HERE, 2, 1), 0);
    assert_eq!(parent.hear("mad "), parent.line(REP, 2, &other, 0));
    // The child lives on, and keeps nothing that was its parent's.
    parent.signal(libc::SIGKILL);
    assert_eq!(other.hear("gone "), parent.slot.to_string());
    assert_eq!(other.does(&format!("claim {service} *")), 0);
    drop(child);
    assert_eq!(other.hear("gone "), slot.to_string());
}

/// A process that another has forked off.
struct Child(i32);

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a signal to a process that ends by it only.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}
