//! Processes that come, go, are stopped and are killed at any moment, under traffic.

use super::member::packet;
use super::world::{Member, Traffic, address, sender};
use super::{member, turn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vervain_roce::net::Port;

/// Numbers that look random and are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn members_that_come_go_stop_and_die_do_no_harm_to_others() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let mut numbers = Numbers(0x5eed_0004_4791);
    let mut slots = 1..;
    let mut members: Vec<(u32, Member)> = Vec::new();
    for _ in 0..150 {
        match numbers.below(4) {
            _ if members.len() < 3 => {
                let slot = slots.next().unwrap();
                let member = member(at, slot);
                traffic.open(slot, member.pid());
                members.push((slot, member));
            }
            0 if members.len() < 12 => {
                let slot = slots.next().unwrap();
                let member = member(at, slot);
                traffic.open(slot, member.pid());
                members.push((slot, member));
            }
            1 => {
                let (slot, member) = &members[numbers.below(members.len() as u64) as usize];
                traffic.close(*slot);
                member.signal(libc::SIGSTOP);
                traffic.flows(1);
                member.signal(libc::SIGCONT);
                traffic.reopen(*slot);
            }
            2 => {
                // Killed.
                let (slot, member) = members.swap_remove(numbers.below(members.len() as u64) as usize);
                traffic.close(slot);
                drop(member);
            }
            _ => {
                let (slot, mut member) = members.swap_remove(numbers.below(members.len() as u64) as usize);
                traffic.close(slot);
                assert_eq!(member.tell("become true"), "done");
            }
        }
        traffic.flows(2);
    }
    for (_, member) in &mut members {
        assert_eq!(member.counts()[..4], [0; 4], "no packet was misrouted");
    }
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn the_last_to_join_can_outlive_all_others() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let mut slot = 0;
    let mut survivor: Option<(u32, Member)> = None;
    for _ in 0..5 {
        let mut others = Vec::new();
        for _ in 0..6 {
            slot += 1;
            let member = member(at, slot);
            traffic.open(slot, member.pid());
            others.push((slot, member));
        }
        traffic.flows(5);
        let next = others.pop();
        for (slot, _) in others.iter().chain(&survivor) {
            traffic.close(*slot);
        }
        // Killed one after the other, the first of the group first.
        drop(survivor.take());
        drop(others);
        traffic.flows(5);
        survivor = next;
    }
    assert_eq!(survivor.unwrap().1.counts()[..4], [0; 4]);
    traffic.close(slot);
    traffic.finish();
}

#[test]
fn processes_killed_while_they_join_leave_the_group_in_order() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let mut first = member(at, 1000);
    traffic.open(1000, first.pid());
    let mut numbers = Numbers(0x5eed_0004_4792);
    let mut joined = 0;
    for round in 0..150u32 {
        let killed = [Member::start(at, &[1 + round], None), Member::start(at, &[301 + round], None)];
        std::thread::sleep(Duration::from_micros(numbers.below(12_000)));
        for mut member in killed {
            member.signal(libc::SIGKILL);
            joined += u32::from(member.hear().starts_with("joined"));
        }
        if round % 10 == 9 {
            let slot = 601 + round;
            let mut member = member(at, slot);
            traffic.open(slot, member.pid());
            traffic.flows(3);
            assert_eq!(member.counts()[..4], [0; 4]);
            traffic.close(slot);
        }
    }
    println!("{joined} of 300 were killed after they had joined");
    traffic.flows(3);
    assert_eq!(first.counts()[..4], [0; 4]);
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn one_that_runs_is_enough_to_let_others_in() {
    let _turn = turn();
    let at = address();
    let traffic = Traffic::start(at);
    let mut members: Vec<(u32, Member)> = (1..=4).map(|slot| (slot, member(at, slot))).collect();
    for (slot, member) in &members {
        traffic.open(*slot, member.pid());
    }
    traffic.flows(5);
    for (slot, member) in &members[..3] {
        traffic.close(*slot);
        member.signal(libc::SIGSTOP);
    }
    let mut another = member(at, 5);
    traffic.open(5, another.pid());
    traffic.flows(5);
    // With all of them stopped, nobody can hand out the descriptor store.
    for (slot, member) in [(4, &members[3].1), (5, &another)] {
        traffic.close(slot);
        member.signal(libc::SIGSTOP);
    }
    let said = Member::start(at, &[6], None).joined().unwrap_err();
    assert!(said.starts_with("failed 16 ") && said.contains("do not answer"), "{said}");
    for (slot, member) in members.iter().map(|(slot, member)| (*slot, member)).chain([(5, &another)]) {
        member.signal(libc::SIGCONT);
        traffic.reopen(slot);
    }
    let mut late = member(at, 6);
    traffic.open(6, late.pid());
    traffic.flows(5);
    for member in members.iter_mut().map(|(_, member)| member).chain([&mut another, &mut late]) {
        assert_eq!(member.counts()[..4], [0; 4]);
    }
    assert_eq!(traffic.finish().1, 0);
}

#[test]
fn a_process_that_becomes_another_program_has_left() {
    let _turn = turn();
    let at = address();
    let other = member(at, 7);
    let mut leaver = member(at, 8);
    assert_eq!(leaver.tell("become sleep"), "done");
    let socket = sender();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // Nobody reads these; the next owner of the slot does not get them either.
    for sequence in 0..20 {
        socket.send_to(&packet(8, sequence), at).unwrap();
    }
    // The program is another one as soon as its mailbox is shut; until then the slot is taken.
    let end = Instant::now() + Duration::from_secs(20);
    let mut heir = loop {
        let mut heir = Member::start(at, &[8], None);
        match heir.joined() {
            Ok(()) => break heir,
            Err(said) => assert!(said.contains("slot 8 is taken") && Instant::now() < end, "{said}"),
        }
    };
    // It has the leaver's socket, or that of an heir who came too early.
    assert_ne!(heir.socket, other.socket);
    socket.send_to(&packet(8, 77), at).unwrap();
    let mut bytes = [0; member::PACKET];
    socket.recv(&mut bytes).unwrap();
    assert_eq!((bytes[4], &bytes[12..16]), (77, &heir.pid().to_ne_bytes()[..]));
    assert_eq!(heir.counts()[..4], [0; 4]);
    drop(other);
}

#[test]
fn packets_for_the_dead_never_reach_those_who_take_their_places() {
    let _turn = turn();
    let at = address();
    let _other = member(at, 1000);
    let socket = sender();
    for slot in 1..30 {
        let dead = member(at, slot);
        let place = dead.socket.clone();
        drop(dead);
        let joined = AtomicBool::new(false);
        let mut heir = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !joined.load(Ordering::Relaxed) {
                    socket.send_to(&packet(slot, 0), at).unwrap();
                }
            });
            let heir = member(at, 500 + slot);
            joined.store(true, Ordering::Relaxed);
            heir
        });
        assert_eq!(heir.socket, place);
        let counts = heir.counts();
        // The kernel may have been about to queue one when the program was replaced and the socket emptied.
        assert!(counts[2] <= 1 && counts[0] + counts[1] + counts[3] == 0, "{counts:?}");
    }
}

#[test]
fn the_last_to_leave_leaves_nothing() {
    let _turn = turn();
    let at = address();
    for round in 0..10 {
        let members = [1, 2, 3].map(|slot| member(at, slot));
        for member in &members[..round % 3] {
            member.signal(libc::SIGSTOP);
        }
        drop(members);
        // One that does not share: nobody else is there.
        let end = Instant::now() + Duration::from_secs(20);
        while let Err(e) = std::net::UdpSocket::bind(at) {
            assert!(Instant::now() < end, "somebody still has the port: {e}");
        }
    }
    drop(Port::bind(at.ip(), 0).unwrap());
}
