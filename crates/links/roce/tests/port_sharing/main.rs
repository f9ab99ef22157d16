//! Sharing of UDP port 4791 of an address by real processes: while others come, go, are stopped or killed, each packet
//! is handled by the owner of its slot, and none is lost that was sent to a living process.

mod faults;
mod member;
mod refusals;
mod strangers;
mod world;

use member::packet;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;
use world::{Member, Traffic, address, sender, set};

/// The tests take both CPUs.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A member with one slot, joined.
fn member(at: SocketAddr, slot: u32) -> Member {
    let mut member = Member::start(at, &[slot], None);
    member.joined().unwrap();
    member
}

#[test]
fn sixty_four_processes_join_at_once_and_half_of_them_are_killed() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let mut members: Vec<(u32, Member)> = (1..=64).map(|i| (i * 15, Member::start(at, &[i * 15], None))).collect();
    for (slot, member) in &mut members {
        member.joined().unwrap();
        traffic.open(*slot, member.pid());
    }
    traffic.flows(20);
    let (killed, mut left): (Vec<_>, Vec<_>) = members.into_iter().partition(|(slot, _)| slot % 2 == 0);
    for (slot, _) in &killed {
        traffic.close(*slot);
    }
    let sockets: HashSet<String> = killed.iter().map(|(_, member)| member.socket.clone()).collect();
    drop(killed);
    traffic.flows(20);
    // A process that joins now takes the places of the dead.
    for slot in (1..=32).map(|i| i * 15 + 1) {
        let member = member(at, slot);
        assert!(sockets.contains(&member.socket), "{} is a new socket", member.socket);
        traffic.open(slot, member.pid());
        left.push((slot, member));
    }
    traffic.flows(20);
    for (slot, member) in &mut left {
        assert_eq!(member.counts(), [0; 5], "of slot {slot}: no packet was misrouted");
    }
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn a_process_that_gains_slots_gets_their_packets() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let mut members: Vec<Member> = [100, 200, 300].map(|slot| member(at, slot)).into();
    for more in 0..3 {
        for (member, first) in members.iter_mut().zip([100, 200, 300]) {
            assert_eq!(member.tell(&format!("slot {}", first + 1 + more)), "done");
            traffic.open(first + 1 + more, member.pid());
        }
        traffic.flows(20);
    }
    let said = members[0].tell("slot 150");
    assert!(said.starts_with("failed 22 "), "a fifth slot: {said}");
    let said = members[0].tell("slot 201");
    assert!(said.starts_with("failed 98 ") && said.contains("slot 201 is taken"), "another's slot: {said}");
    traffic.flows(20);
    for member in &mut members {
        assert_eq!(member.counts(), [0; 5]);
    }
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn packets_for_slots_that_nobody_has_end_in_the_kernel() {
    let _turn = turn();
    let at = address();
    let mut members = [member(at, 5), member(at, 6)];
    let socket = sender();
    for i in 0..2000 {
        socket.send_to(&packet([0, 4, 7, 1023][i % 4], 0), at).unwrap();
        socket.send_to(&packet(5, 0)[..i % 8], at).unwrap();
    }
    let counts = members.each_mut().map(Member::counts);
    for count in counts {
        assert_eq!(count[..4], [0; 4]);
        // All but those that found room in the smallest buffer that a socket may have.
        assert!(count[4] > 3900, "{} dropped", count[4]);
    }
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "somebody has answered");
}

#[test]
fn a_train_for_several_processes_reaches_all_of_them() {
    let _turn = turn();
    let at = address();
    let mut members = [10, 20, 30].map(|slot| (slot, member(at, slot)));
    let socket = sender();
    set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, member::PACKET as i32);
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Slot 40 is nobody's. The first packet decides where the whole train goes.
    let order = [20, 10, 20, 30, 40, 10, 20];
    let trains = 50;
    for train in 0..trains {
        let bytes: Vec<u8> = (0..order.len()).flat_map(|i| packet(order[i], train * 100 + i as u64)).collect();
        socket.send_to(&bytes, at).unwrap();
        // One after the other, for a mailbox takes but a few messages.
        let mut answers = HashSet::new();
        for _ in 0..order.len() - 1 {
            let mut bytes = [0; member::PACKET];
            socket.recv(&mut bytes).unwrap();
            let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
            let (slot, sequence, pid, way) = (word(0), word(4), word(12), word(16));
            let owner = members.iter().find(|(s, _)| *s == slot).unwrap().1.pid();
            assert_eq!(pid, owner, "packet {sequence} for slot {slot}");
            assert_eq!(way, if slot == 20 { member::DIRECT } else { member::ADOPTED });
            assert!(answers.insert(sequence), "packet {sequence} came twice");
        }
    }
    let counts = members.each_mut().map(|(_, member)| member.counts());
    assert_eq!(counts.map(|c| c[0]), [0, 3 * trains, 0], "handed over");
    assert_eq!(counts.map(|c| c[1]), [0; 3], "not taken");
    assert_eq!(counts.map(|c| c[2]), [0, trains, 0], "unowned");
    assert_eq!(counts.map(|c| c[3]), [2 * trains, 0, trains], "adopted");
}

#[test]
fn misrouted_packets_for_a_stopped_process_are_dropped_and_counted() {
    let _turn = turn();
    let at = address();
    let (mut first, stopped) = (member(at, 10), member(at, 20));
    stopped.signal(libc::SIGSTOP);
    let socket = sender();
    set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, member::PACKET as i32);
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let trains = 1000;
    for train in 0..trains {
        socket.send_to(&[packet(10, train), packet(20, train)].concat(), at).unwrap();
        // The receiver never waits for the stopped one.
        socket.recv(&mut [0; member::PACKET]).unwrap();
    }
    let counts = first.counts();
    assert_eq!(counts[0] + counts[1], trains);
    assert!(counts[1] > 0 && counts[0] > 0, "{counts:?}");
    stopped.signal(libc::SIGCONT);
    for _ in 0..counts[0] {
        let mut bytes = [0; member::PACKET];
        socket.recv(&mut bytes).unwrap();
        assert_eq!(bytes[12..16], stopped.pid().to_ne_bytes());
    }
}
