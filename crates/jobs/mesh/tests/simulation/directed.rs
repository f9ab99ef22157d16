//! One situation each: registration, lookups, attempts at the same time, theft of places, closing.

use std::time::{Duration, Instant};

use vervain_mesh::Event;
use vervain_mesh::protocol::Message;

use crate::fabric::doors;
use crate::few::{Few, LANES, encoded, ours, pool};
use crate::world::{EPOCH, KEY};

#[test]
fn nothing_is_said_or_heard_without_the_key() {
    let mut pool = pool(1, 1, |_| ());
    let now = Instant::now();
    pool.want(now, 0, 0);
    pool.datagram(now, 0, &encoded(&[0; 16], EPOCH, 0, Message::Lookup { rank: 1 }));
    assert_eq!((pool.progress(now), pool.fabric().sent.len(), pool.next_event()), (None, 0, None));
}

#[test]
fn a_second_process_of_a_rank_is_refused() {
    let mut few = Few::new(3);
    for (machine, rank) in [(3, 1), (4, 0)] {
        few.pools.push(pool(rank, machine, |_| ()));
        few.pools[machine as usize].set_key(KEY);
        few.pools[machine as usize].introduce(few.now, doors(0, 1));
        few.exchange();
        let events = few.events(machine as usize);
        let [Event::Failed { rank: named, error, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(*named, rank);
        assert!(
            error.to_string().contains(&format!("two processes of the job say that they are rank {rank}")),
            "{error}"
        );
        assert!(!few.pools[machine as usize].registered());
    }
    assert!((0..3).all(|machine| few.events(machine).is_empty()));
}

#[test]
fn a_rank_that_registers_late_is_found_then() {
    let mut few = Few::new(2);
    few.pools.push(pool(2, 2, |_| ()));
    few.pools[1].want(few.now, 2, 0);
    few.exchange();
    few.pass(Duration::from_secs(1));
    few.exchange();
    assert_eq!(few.events(1), []);
    few.pools[2].set_key(KEY);
    few.pools[2].introduce(few.now, doors(0, 1));
    few.exchange();
    few.pass(Duration::from_millis(200));
    few.exchange();
    assert!(matches!(few.events(1)[..], [Event::Opened(_)]));
    assert!(few.found(1, 2).is_some() && few.found(2, 1).is_some());
}

#[test]
fn glare_is_decided_for_the_lower_rank() {
    let mut few = Few::new(3);
    few.pools[1].want(few.now, 2, 0);
    few.pools[2].want(few.now, 1, 0);
    // The lookups and their answers.
    for _ in 0..2 {
        let all: Vec<_> = (0..3).flat_map(|machine| few.sent(machine)).collect();
        all.into_iter().for_each(|datagram| few.deliver(datagram));
    }
    let (low, high) = (few.sent(1).remove(0), few.sent(2).remove(0));
    assert!(
        matches!(ours(&low.1).message, Message::Connect { .. })
            && matches!(ours(&high.1).message, Message::Connect { .. })
    );
    few.deliver(high);
    assert!(few.sent(1).is_empty(), "the lower rank stays with its own");
    few.deliver(low);
    let accept = few.sent(2).remove(0);
    let Message::Accept { id, .. } = ours(&accept.1).message else { panic!("{accept:?}") };
    assert_eq!(id.initiator, 1);
    few.deliver(accept);
    few.exchange();
    assert!((1..3).all(|machine| matches!(few.events(machine)[..], [Event::Opened(_)])));
}

#[test]
fn who_has_all_places_held_is_busy_until_one_is_released() {
    let mut few = Few::new(4);
    let held = [few.open(1, 0), few.open(1, 1)];
    held.iter().for_each(|link| few.pools[1].hold(*link));
    few.pools[3].want(few.now, 1, 0);
    for _ in 0..20 {
        few.exchange();
        few.pass(Duration::from_millis(20));
    }
    assert_eq!(few.events(3), [], "it waits, and is not told that rank 1 is silent");
    assert!(held.iter().all(|link| few.pools[1].is_open(*link)));
    assert!(few.pools[3].links().next().is_none(), "and holds no place meanwhile");
    few.pools[1].release(held[1]);
    for _ in 0..10 {
        few.pass(Duration::from_millis(20));
        few.exchange();
    }
    assert!(matches!(few.events(3)[..], [Event::Opened(_)]));
    assert!(few.pools[1].is_open(held[0]) && !few.pools[1].is_open(held[1]));
}

#[test]
fn a_connection_closes_only_when_its_messages_were_received() {
    let mut few = Few::new(4);
    let link = few.open(1, 0);
    let there = few.pools[0].find(1, 0).expect("open");
    // A message of each side, whose sender has its completion, but whose receiver has not polled it.
    few.pools[1].sent(link);
    few.pools[0].sent(there);
    few.open(1, 1);
    few.pools[1].want(few.now, 2, 0);
    for _ in 0..10 {
        few.exchange();
        few.pass(Duration::from_millis(20));
    }
    assert!(!few.pools[1].is_open(link) && !few.pools[0].is_open(there), "it is closing");
    assert!(few.pools[1].is_alive(link) && few.pools[0].is_alive(there), "but not closed");
    few.pools[0].received(there);
    assert!(few.pools[0].is_due());
    few.pass(Duration::from_millis(200));
    few.exchange();
    assert!(!few.pools[0].is_alive(there) && few.pools[1].is_alive(link), "the one end is closed");
    few.pools[1].received(link);
    few.pass(Duration::from_millis(1));
    few.exchange();
    assert!(!few.pools[1].is_alive(link));
    assert!(few.found(1, 2).is_some());
}

#[test]
fn a_peer_that_holds_what_is_to_be_closed_is_not_taken_for_dead() {
    let mut few = Few::new(4);
    let link = few.open(1, 0);
    let there = few.pools[0].find(1, 0).expect("open");
    few.pools[0].hold(there);
    few.open(1, 1);
    few.pools[1].want(few.now, 2, 0);
    for _ in 0..600 {
        few.exchange();
        few.pass(Duration::from_millis(100));
    }
    assert_eq!(few.events(1), []);
    assert!(few.pools[1].is_alive(link) && few.pools[0].is_alive(there));
    few.pools[0].release(there);
    few.pass(Duration::from_millis(1));
    few.exchange();
    assert!(few.found(1, 2).is_some() && !few.pools[1].is_alive(link));
}

/// As many messages were received as the peer's count, but not the same ones.
#[test]
fn a_count_from_before_an_answer_is_not_valid() {
    let mut few = Few::new(4);
    let link = few.open(1, 0);
    let there = few.pools[0].find(1, 0).expect("open");
    // Rank 0 has asked by this connection, and holds it. Rank 1 has sent a command, whose completion nobody polls for a
    // while.
    few.pools[0].hold(there);
    few.pools[1].sent(link);
    few.open(1, 1);
    few.pools[1].want(few.now, 2, 0);
    few.exchange();
    assert!(!few.pools[1].is_open(link) && !few.pools[0].is_open(there));
    // It answers, which overtakes the command.
    few.pools[1].hold(link);
    few.pools[1].sent(link);
    few.pools[0].received(there);
    few.pools[0].release(there);
    few.pools[1].release(link);
    for _ in 0..10 {
        few.exchange();
        few.pass(Duration::from_millis(20));
    }
    assert!(few.pools[0].is_alive(there), "the command is not received yet");
    few.pools[0].received(there);
    few.pass(Duration::from_millis(1));
    few.exchange();
    assert!(!few.pools[0].is_alive(there) && few.found(1, 2).is_some());
}

/// Places of attempts are given to lower ranks, but not to higher ones.
#[test]
fn a_lower_rank_takes_the_place_of_an_attempt() {
    let mut few = Few::new(6);
    // All know where the others are.
    for rank in [1, 3, 4, 5] {
        few.open(2, rank);
    }
    few.open(1, 2);
    few.open(5, 2);
    for rank in [3, 4] {
        few.pools[2].want(few.now, rank, 0);
    }
    few.exchange_but(|message| matches!(message, Message::Connect { .. }));
    assert!(few.pools[2].links().next().is_none(), "both places are asking");
    for (machine, is_accepted) in [(5, false), (1, true)] {
        few.events(machine);
        few.pools[machine].want(few.now, 2, 0);
        let mut was_busy = false;
        few.exchange_but(|message| {
            was_busy |= matches!(message, Message::Busy { .. });
            matches!(message, Message::Connect { id, .. } if id.initiator == 2)
        });
        few.events(machine);
        assert_eq!((was_busy, few.found(machine, 2).is_some()), (!is_accepted, is_accepted), "rank {machine}");
    }
    let until = few.now + Duration::from_secs(2);
    while few.now < until {
        few.exchange();
        few.pass(Duration::from_millis(20));
        (0..6).for_each(|machine| drop(few.events(machine)));
    }
    assert!(few.found(3, 2).is_some() || few.found(4, 2).is_some(), "it is not given up");
}

#[test]
fn a_message_opens_what_was_accepted() {
    let mut few = Few::new(2);
    few.pools[1].want(few.now, 0, 0);
    few.exchange_but(|message| matches!(message, Message::Ready { .. }));
    assert_eq!((few.events(1).len(), few.events(0)), (1, vec![]));
    let link = few.pools[0].links().next().expect("accepted");
    assert!(!few.pools[0].is_open(link));
    few.pools[0].received(link);
    assert_eq!(few.events(0), [Event::Opened(link)]);
    few.pass(Duration::from_secs(1));
    assert!(few.sent(0).is_empty(), "the Accept is not said again");
}

#[test]
fn an_accept_with_other_lanes_is_stale() {
    let mut few = Few::new(2);
    few.pools[1].want(few.now, 0, 0);
    let mut accept = None;
    few.exchange_but(|message| {
        if let Message::Accept { id, lanes, .. } = message {
            accept = Some((*id, *lanes));
        }
        false
    });
    let (id, lanes) = accept.expect("accepted");
    for (lanes, said) in [(lanes, Message::Ready { id }), (LANES, Message::Stale { id })] {
        let accept = Message::Accept { id, lanes, hello: b"" };
        few.pools[1].datagram(few.now, 0, &encoded(&KEY, EPOCH, 0, accept));
        assert_eq!(ours(&few.sent(1).remove(0).1).message, said);
    }
}

#[test]
fn what_was_not_seen_is_not_closed() {
    let mut few = Few::new(4);
    few.pools[1].want(few.now, 2, 0);
    few.exchange();
    let at_peer = few.pools[2].links().next().expect("open");
    assert_eq!(few.pools[2].find(1, 0), None, "the owner has not heard of it");
    // The peer's owner has not looked; this side would like the place for others.
    few.events(1);
    for rank in [1, 0] {
        few.pools[1].want(few.now, rank, 0);
        few.exchange();
        few.events(1);
    }
    let until = few.now + Duration::from_secs(1);
    while few.now < until {
        few.exchange();
        few.pass(Duration::from_millis(20));
    }
    assert!(few.pools[2].is_open(at_peer));
    assert_eq!(few.events(2), [Event::Opened(at_peer)]);
    few.pass(Duration::from_millis(200));
    few.exchange();
    assert!(!few.pools[2].is_alive(at_peer) && few.found(1, 0).is_some());
}

#[test]
fn silence_ends_in_one_sentence() {
    let mut few = Few::new(3);
    few.pools[1].want(few.now, 2, 0);
    // Lookup and answer, then rank 2 is deaf.
    let lookup = few.sent(1).remove(0);
    few.deliver(lookup);
    let found = few.sent(0).remove(0);
    few.deliver(found);
    few.pass(Duration::from_secs(29));
    assert_eq!(few.events(1), []);
    few.pass(Duration::from_secs(2));
    let events = few.events(1);
    let [Event::Failed { rank: 2, color: 0, error }] = &events[..] else { panic!("{events:?}") };
    assert!(error.to_string().starts_with("rank 2 has not answered for 30s"), "{error}");
    few.pass(Duration::from_secs(60));
    assert_eq!(few.events(1), []);

    let mut alone = Few { now: few.now, pools: vec![pool(1, 1, |_| ())] };
    alone.pools[0].set_key(KEY);
    alone.pools[0].introduce(alone.now, doors(0, 1));
    alone.pass(Duration::from_secs(31));
    let events = alone.events(0);
    let [Event::Failed { error, .. }] = &events[..] else { panic!("{events:?}") };
    assert!(error.to_string().contains("process 0 of the job, where rank 1 registers, has not answered"), "{error}");
}

/// An error, which the crate makes only.
fn an_error() -> vervain_mesh::Error {
    let mut failing = pool(0, 0, |config| config.size = 4);
    failing.want(Instant::now(), 7, 0);
    let Some(Event::Failed { error, .. }) = failing.next_event() else { panic!("a rank that is not there") };
    error
}

#[test]
fn a_leader_that_is_not_found_fails_those_of_its_block_only() {
    let mut few = Few::new(1);
    few.pools = vec![pool(0, 0, |config| config.block = 4)];
    few.pools[0].set_key(KEY);
    few.pools[0].introduce(few.now, doors(0, 1));
    for rank in [5, 6, 9] {
        few.pools[0].want(few.now, rank, 0);
    }
    assert_eq!((few.pools[0].wanted_leader(), few.pools[0].wanted_leader()), (Some(4), Some(8)));
    few.pools[0].leader_found(few.now, 4, Err(an_error()));
    let failed: Vec<_> = few
        .events(0)
        .into_iter()
        .map(|event| match event {
            Event::Failed { rank, error, .. } => (rank, error.to_string().contains("address of process 4")),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(failed, [(5, true), (6, true)]);
}

/// Machine 0 leads the block of ranks 0 to 3, machine 4 the next one.
fn two_blocks() -> Few {
    let pools = (0..6).map(|machine| pool(machine, machine, |config| config.block = 4)).collect();
    let mut few = Few { now: Instant::now(), pools };
    for machine in 0..6 {
        few.pools[machine].set_key(KEY);
        few.pools[machine].introduce(few.now, doors(machine as u32 / 4 * 4, 1));
    }
    few.exchange();
    few
}

#[test]
fn only_leaders_ask_the_store_for_leaders() {
    let mut few = two_blocks();
    few.pools[1].want(few.now, 5, 0);
    few.pools[2].want(few.now, 5, 0);
    few.exchange();
    let wanted: Vec<_> = few.pools.iter_mut().map(|pool| pool.wanted_leader()).collect();
    assert_eq!(wanted, [Some(4), None, None, None, None, None]);
    few.pools[0].leader_found(few.now, 4, Ok(doors(4, 1)));
    few.exchange();
    assert!(few.found(1, 5).is_some() && few.found(2, 5).is_some());
    // Known since.
    few.pools[3].want(few.now, 4, 0);
    few.exchange();
    assert!(few.found(3, 4).is_some());
    assert_eq!(few.pools[0].wanted_leader(), None);
}

/// Three of 128 leaders, each of a block of one rank: machines 0 and 1, ranks 0 and 5, are of one group, and of the
/// addresses of all others rank 5 fetches that of machine 2, rank 37, for it.
fn three_leaders() -> Few {
    let of =
        |(rank, machine)| pool(rank, machine, |config| (config.job_rank, config.block, config.size) = (rank, 1, 128));
    let mut few = Few { now: Instant::now(), pools: [(0, 0), (5, 1), (37, 2)].map(of).into() };
    for machine in 0..3 {
        few.pools[machine].set_key(KEY);
        few.pools[machine].introduce(few.now, doors(machine as u32, 1));
    }
    few.exchange();
    few
}

#[test]
fn a_leader_asks_another_one_of_its_group_rather_than_the_store() {
    let mut few = three_leaders();
    let wanted = |few: &mut Few| -> Vec<_> { few.pools.iter_mut().map(|pool| pool.wanted_leader()).collect() };
    few.pools[0].want(few.now, 37, 0);
    few.exchange();
    assert_eq!(wanted(&mut few), [Some(5), None, None], "where rank 5 is");
    few.pools[0].leader_found(few.now, 5, Ok(doors(1, 1)));
    few.exchange();
    assert_eq!(wanted(&mut few), [None, Some(37), None]);
    few.pools[1].leader_found(few.now, 37, Ok(doors(2, 1)));
    few.exchange();
    assert!(few.found(0, 37).is_some());
    assert_eq!(wanted(&mut few), [None; 3]);
}

#[test]
fn a_leader_whose_teller_is_not_found_fails_those_of_its_block_at_once() {
    let mut few = three_leaders();
    few.pools[0].want(few.now, 37, 0);
    assert_eq!(few.pools[0].wanted_leader(), Some(5));
    let error = an_error();
    let why = error.to_string();
    few.pools[0].leader_found(few.now, 5, Err(error));
    let events = few.events(0);
    let [Event::Failed { rank: 37, color: 0, error }] = &events[..] else { panic!("{events:?}") };
    assert!(error.to_string().contains("process 5") && error.to_string().ends_with(&why), "{error}");
    few.pass(Duration::from_secs(60));
    assert_eq!((few.pools[0].wanted_leader(), few.events(0)), (None, vec![]));
    // It may be there later.
    few.pools[0].want(few.now, 37, 0);
    assert_eq!(few.pools[0].wanted_leader(), Some(5));
}

#[test]
fn a_leader_that_another_one_does_not_tell_of_fails_those_of_its_block() {
    let mut few = three_leaders();
    few.pools[0].leader_found(few.now, 5, Ok(doors(1, 1)));
    few.pools[0].want(few.now, 37, 0);
    few.exchange_but(|message| matches!(message, Message::SeekLeader { .. }));
    few.pass(Duration::from_secs(31));
    let events = few.events(0);
    let [Event::Failed { rank: 37, color: 0, error }] = &events[..] else { panic!("{events:?}") };
    assert!(error.to_string().contains("process 5 has not told it for 30s"), "{error}");
}

#[test]
fn a_question_for_a_leader_that_is_lost_is_asked_again() {
    let mut few = two_blocks();
    few.pools[0].leader_found(few.now, 4, Ok(doors(4, 1)));
    few.pools[1].want(few.now, 5, 0);
    few.exchange_but(|message| matches!(message, Message::SeekLeader { .. } | Message::LeaderFound { .. }));
    assert_eq!(few.found(1, 5), None);
    few.pass(Duration::from_millis(10));
    few.exchange();
    assert!(few.found(1, 5).is_some());
    // A rank whose address its leader never sends.
    few.pools[2].want(few.now, 9, 0);
    few.exchange_but(|message| matches!(message, Message::SeekLeader { .. }));
    few.pass(Duration::from_secs(31));
    let events = few.events(2);
    let failed = events.iter().find_map(|event| match event {
        Event::Failed { rank: 9, error, .. } => Some(error.to_string()),
        _ => None,
    });
    assert!(failed.is_some_and(|sentence| sentence.contains("this rank's leader has not told it")), "{events:?}");
}

#[test]
fn leaders_that_nobody_has_asked_for_or_that_are_none_are_not_heard() {
    let mut few = two_blocks();
    let told = Message::LeaderFound { leader: 4, doors: doors(3, 1) };
    few.pools[1].datagram(few.now, 0, &encoded(&KEY, EPOCH, 3, told));
    few.pools[1].want(few.now, 5, 0);
    let asked = few.sent(1);
    assert!(asked.iter().any(|(_, bytes)| ours(bytes).message == Message::SeekLeader { leader: 4 }), "{asked:?}");
    for leader in [3, 16, u32::MAX] {
        few.pools[0].datagram(few.now, 0, &encoded(&KEY, EPOCH, 1, Message::SeekLeader { leader }));
        few.pools[1].datagram(few.now, 0, &encoded(&KEY, EPOCH, 2, Message::SeekLeader { leader: 4 }));
    }
    assert_eq!((few.pools[0].wanted_leader(), few.pools[1].wanted_leader()), (None, None));
}
