//! Processes of a window: their nodes, numbers and memory, and the fate of these when processes are killed, stopped, or
//! fork.

#[allow(dead_code)] // each test file uses a part of it
mod common;

use common::{Agent, folder, kill};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use vervain_window::{GRANULE, Layout, MAX_SIZE};

#[test]
#[ignore = "a process of its own, started by Agent::new"]
fn agent() {
    common::serve();
}

const KINDS: [&str; 2] = ["file", "write_only"];

/// The layout of the windows of [`Agent::on`].
fn layout() -> Layout {
    Layout::new(2, 4 << 20).unwrap()
}

fn all() -> u32 {
    layout().granules().len() as u32
}

/// Makes an agent claim single granules until there are no more. Returns them.
fn claim_all(agent: &mut Agent) -> Vec<u64> {
    std::iter::from_fn(|| agent.ask("claim 1").ok().map(|granules| granules[0])).collect()
}

#[test]
fn numbers_are_given_once_and_again_after_death() {
    for kind in KINDS {
        let (_folder, path) = folder();
        let mut agents: Vec<Agent> = (0..3).map(|_| Agent::on(kind, &path, 0)).collect();
        let numbers: Vec<Vec<u64>> = agents.iter_mut().map(|a| a.get("process")).collect();
        assert_eq!(numbers.iter().map(|n| n[0]).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(numbers[0][1] != 0 && numbers[0][1] != numbers[1][1], "incarnations differ");
        // Another node has numbers of its own.
        assert_eq!(Agent::on(kind, &path, 1).get("process")[0], 0);
        agents.remove(1).kill();
        agents.insert(0, Agent::on(kind, &path, 0));
        assert_eq!(agents[0].get("process")[0], 1);
        agents[1].get("close");
        agents.push(Agent::on(kind, &path, 0));
        assert_eq!(agents[3].get("process")[0], 0);
    }
}

#[test]
fn a_node_has_64_processes_at_most() {
    let (_folder, path) = folder();
    let options = common::options(&["size=4194304", "nodes=2", "node=0"]);
    let device = vervain_window::FileDevice::open(&path, &options).unwrap();
    let claims = vervain_window::PutDevice::claims(&device);
    let processes: Vec<_> = (0..64).map(|_| claims.process().unwrap()).collect();
    assert!(processes.iter().map(vervain_window::Process::number).eq(0..64));
    assert_eq!(claims.process_from(63).unwrap_err().errno(), libc::ENOSPC);
    let error = Agent::on("file", &path, 0).ask("process").unwrap_err();
    assert_eq!(error, (libc::ENOSPC, "node 0 of the window has 64 processes already".to_owned()));
    assert_eq!(claims.process().unwrap_err().errno(), libc::ENOSPC);
    drop(processes);
    assert_eq!(claims.process().unwrap().number(), 0);
    let after = [(); 3].map(|()| claims.process_from(62).unwrap());
    assert_eq!(after.map(|process| process.number()), [62, 63, 0]);
}

#[test]
fn memory_is_one_processes_until_it_dies_and_begins_as_zeros() {
    for kind in KINDS {
        let (_folder, path) = folder();
        let [mut a, mut b] = [0, 0].map(|node| Agent::on(kind, &path, node));
        a.get("process");
        b.get("process");
        let mine = a.get(&format!("claim {}", all() - 1));
        let at = mine[0] * GRANULE;
        b.get(&format!("put 0 {at} 77"));
        assert_eq!(a.get(&format!("read {at}")), [77]);
        let (errno, sentence) = b.ask("claim 2").unwrap_err();
        assert_eq!((errno, sentence.contains("has no room for 2")), (libc::ENOMEM, true), "{sentence}");
        assert_eq!(b.ask("claim 0").unwrap_err().0, libc::ENOMEM);
        assert_eq!(b.ask("claim 4294967295").unwrap_err().0, libc::ENOMEM);
        let last = b.get("claim 1");
        assert_eq!(last[0], mine[1]);
        // Stopped is not dead.
        a.signal(libc::SIGSTOP);
        assert_eq!(b.ask("claim 1").unwrap_err().0, libc::ENOMEM);
        a.kill();
        assert_eq!(b.get(&format!("claim {}", all() - 1)), mine);
        assert_eq!(b.get(&format!("read {at}")), [0]);
        // Another node's memory is its own.
        let mut c = Agent::on(kind, &path, 1);
        c.get("process");
        assert_eq!(c.get("claim 1")[0], mine[0]);
    }
}

#[test]
fn memory_of_a_dead_process_waits_for_peers_that_may_still_put_there() {
    for kind in KINDS {
        let (_folder, path) = folder();
        let [mut owner, mut heir, mut user] = [0, 0, 1].map(|node| Agent::on(kind, &path, node));
        let incarnation = owner.get("process")[1];
        heir.get("process");
        let [first, end] = owner.get("claim 3")[..] else { panic!() };
        user.get(&format!("use 0 {first} {} {incarnation}", end - 1));
        owner.kill();
        user.signal(libc::SIGSTOP);
        let got = claim_all(&mut heir);
        assert_eq!(got.len() as u32, all() - 2, "all but what is used: {got:?}");
        assert!(!got.contains(&first) && got.contains(&(end - 1)));
        user.signal(libc::SIGCONT);
        // The use goes on, and no new one begins, not even of what it has.
        assert_eq!(user.ask(&format!("use 0 {first} {} {incarnation}", first + 1)).unwrap_err().0, libc::ESTALE);
        assert_eq!(heir.ask("claim 1").unwrap_err().0, libc::ENOMEM);
        user.kill();
        assert_eq!(heir.get("claim 2"), [first, end - 1]);
    }
}

#[test]
fn memory_is_used_only_while_the_process_lives_that_said_it_was_its_own() {
    let (_folder, path) = folder();
    let [mut owner, mut heir, mut user] = [0, 0, 1].map(|node| Agent::on("file", &path, node));
    let incarnation = owner.get("process")[1];
    let [first, end] = owner.get("claim 2")[..] else { panic!() };
    let heirs = heir.get("process")[1];
    owner.kill();
    let (errno, sentence) = user.ask(&format!("use 0 {first} {end} {incarnation}")).unwrap_err();
    assert_eq!((errno, &*sentence), (libc::ESTALE, "the process of node 0 whose memory that was is dead"));
    // The granules locked for it are free.
    assert_eq!(heir.get("claim 2"), [first, end]);
    assert_eq!(user.ask(&format!("use 0 {first} {end} {incarnation}")).unwrap_err().0, libc::ESTALE);
    user.get(&format!("use 0 {first} {end} {heirs}"));
    // A process may use its own.
    heir.get(&format!("use 0 {first} {end} {heirs}"));
    for bad in ["2 40 41", "0 0 1", "0 40 40", "0 40 9999"] {
        assert_eq!(user.ask(&format!("use {bad} {heirs}")).unwrap_err().0, libc::EINVAL, "{bad}");
    }
}

#[test]
fn locks_of_one_process_split_and_meet_as_its_claims_and_uses_do() {
    let (_folder, path) = folder();
    let [mut a, mut b, mut user] = [0, 0, 1].map(|node| Agent::on("file", &path, node));
    let incarnation = a.get("process")[1];
    b.get("process");
    let at: Vec<u64> = (0..5).map(|_| a.get("claim 1")[0]).collect();
    assert!(at.windows(2).all(|pair| pair[1] == pair[0] + 1), "{at:?}");
    a.get("give_back 2");
    a.get(&format!("claim {}", all() - 5));
    assert_eq!(claim_all(&mut b), [at[2]]);
    b.get("give_back 0");
    // Uses overlap: 0..3 and 1..5.
    user.get(&format!("use 0 {} {} {incarnation}", at[0], at[3]));
    user.get(&format!("use 0 {} {} {incarnation}", at[1], at[4] + 1));
    (0..4).for_each(|_| drop(a.get("give_back 0")));
    assert_eq!(claim_all(&mut b), []);
    user.get("unuse 0");
    assert_eq!(claim_all(&mut b), [at[0]]);
    user.get("unuse 0");
    assert_eq!(claim_all(&mut b), at[1..]);
}

#[test]
fn a_forked_child_keeps_nothing_of_its_parents() {
    for kind in KINDS {
        let (_folder, path) = folder();
        let [mut parent, mut user, mut other] = [0, 1, 0].map(|node| Agent::on(kind, &path, node));
        let incarnation = parent.get("process")[1];
        let [first, end] = parent.get("claim 4")[..] else { panic!() };
        user.get("process");
        user.get(&format!("use 0 {first} {end} {incarnation}"));
        let children = [parent.get("fork")[0], user.get("fork")[0]].map(|pid| pid as i32);
        parent.kill();
        assert_eq!(other.get("process")[0], 0, "the number is free though the child lives");
        assert_eq!(claim_all(&mut other).len() as u32, all() - 4);
        user.kill();
        assert_eq!(other.get("claim 4"), [first, end]);
        // The node is free too: any process can take it.
        other.get("close");
        for child in children {
            // SAFETY: asks for existence.
            assert_eq!(unsafe { libc::kill(child, 0) }, 0, "the child still lives");
            kill(child, libc::SIGKILL);
        }
    }
}

#[test]
fn a_forked_child_can_do_nothing_and_takes_nothing_away() {
    let (_folder, path) = folder();
    let [mut parent, mut other] = [0, 0].map(|node| Agent::on("file", &path, node));
    let incarnation = parent.get("process")[1];
    let [first, end] = parent.get("claim 2")[..] else { panic!() };
    assert_eq!(parent.get("fork_and_drop"), [0]);
    assert_eq!(other.get("process")[0], 1);
    assert!(!claim_all(&mut other).contains(&first));
    let mut user = Agent::on("file", &path, 1);
    user.get(&format!("use 0 {first} {end} {incarnation}"));
    parent.get("beat");
    parent.get("give_back 0");
    user.get("unuse 0");
    assert_eq!(other.get("claim 2"), [first, end]);
}

/// Returns true if network namespaces can be made.
fn can_unshare(agent: &mut Agent) -> bool {
    let can = agent.ask("unshare").is_ok();
    if !can {
        vervain_skip::skip("no right to make network namespaces");
    }
    can
}

#[test]
fn a_node_is_a_network_namespace_while_a_process_of_it_lives() {
    let (_folder, path) = folder();
    let open = format!("open file {} size=4194304", path.display());
    let [mut a, mut b, mut c] = [(); 3].map(|()| Agent::new());
    if !can_unshare(&mut b) || !can_unshare(&mut c) {
        return;
    }
    let nodes =
        |agent: &mut Agent, options: &str| agent.ask(&format!("{open} nodes=2 {options}")).map(|facts| facts[0]);
    assert_eq!(nodes(&mut a, ""), Ok(0));
    assert_eq!(nodes(&mut b, ""), Ok(1));
    assert_eq!(nodes(&mut Agent::new(), ""), Ok(0), "of the same namespace");
    let (errno, sentence) = nodes(&mut c, "").unwrap_err();
    assert_eq!(
        (errno, sentence.ends_with("all 2 nodes of the window are others'")),
        (libc::ENOSPC, true),
        "{sentence}"
    );
    let (errno, sentence) = nodes(&mut c, "node=1").unwrap_err();
    assert_eq!(errno, libc::EBUSY);
    let names: Vec<&str> = sentence.split("network namespace ").skip(1).map(|s| s.split(' ').next().unwrap()).collect();
    assert!(sentence.contains(": node 1 of the window is network namespace "), "{sentence}");
    assert!(names.len() == 2 && names[0] != names[1], "both are named: {sentence}");
    // A stopped process still exists.
    b.signal(libc::SIGSTOP);
    assert_eq!(nodes(&mut c, "node=1").unwrap_err().0, libc::EBUSY);
    b.kill();
    assert_eq!(nodes(&mut c, ""), Ok(1));
    assert_eq!(nodes(&mut Agent::new(), "node=0"), Ok(0));
    assert_eq!(nodes(&mut Agent::new(), "node=1").unwrap_err().0, libc::EBUSY);
}

/// A lock of a process that does not use the window otherwise.
fn lock(path: &Path, byte: u64) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: a struct of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, byte as _, 1);
    // SAFETY: a valid struct.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    file
}

#[test]
fn whoever_stands_still_in_a_change_of_the_table_is_not_waited_for_for_ever() {
    let (_folder, path) = folder();
    let mut there = Agent::on("file", &path, 0);
    there.get("process");
    // The table of nodes, and the lock held during a search for memory of node 0.
    let table = lock(&path, MAX_SIZE);
    let _claiming = lock(&path, MAX_SIZE + 0x2_0000);
    let (errno, sentence) = Agent::new().ask(&format!("open file {} node=0", path.display())).unwrap_err();
    assert_eq!(errno, libc::EBUSY);
    assert!(sentence.contains("table of nodes has been locked for too long"), "{sentence}");
    // A process that has its number goes on.
    there.get("claim 1");
    drop(table);
    Agent::on("file", &path, 0).get("process");
}
