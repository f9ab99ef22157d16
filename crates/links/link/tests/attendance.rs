//! The progress thread keeps away while the program polls, and yet sees to packets when it does not.

#[path = "hostile_packets/world.rs"]
#[allow(dead_code)]
mod world;

use std::time::{Duration, Instant};
use vervain_hca::{Data, Opcode, QpType, SendRequest, send_flags};
use world::{World, alone};

/// Number of times that the progress thread has gone to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of = |name: &str| {
        let named = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        tasks.into_iter().find(named).expect("a progress thread")
    };
    let status = std::fs::read_to_string(of("vervain").join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// The items found, up to the first that is right.
fn up_to_the_first<T>(found: impl Iterator<Item = T>, is_right: impl Fn(&T) -> bool) -> Vec<T> {
    let mut all = Vec::new();
    for one in found {
        let right = is_right(&one);
        all.push(one);
        if right {
            break;
        }
    }
    all
}

#[test]
fn a_program_that_polls_in_vain_is_seldom_looked_after() {
    alone("a_program_that_polls_in_vain_is_seldom_looked_after", || {
        let world = World::new(&[QpType::Rc]);
        let pair = world.pair(QpType::Rc);
        let poll_for = |time: Duration| {
            let begin = Instant::now();
            while begin.elapsed() < time {
                pair.poll();
            }
        };
        poll_for(Duration::from_millis(20));
        // Every 1.4 ms. In some tenth of a second the machine lets the program poll without a break.
        let in_a_tenth = (0..50).map(|_| {
            let before = sleeps();
            poll_for(Duration::from_millis(100));
            sleeps() - before
        });
        let seldom = |often: &u64| *often < 90;
        let often: Vec<u64> = up_to_the_first(in_a_tenth, seldom);
        assert!(often.last().is_some_and(seldom), "{often:?} times in a tenth of a second");
    });
}

#[test]
fn a_message_to_a_program_that_polls_no_longer_is_taken_in_soon() {
    alone("a_message_to_a_program_that_polls_no_longer_is_taken_in_soon", || {
        let world = World::new(&[QpType::Rc]);
        let pair = world.pair(QpType::Rc);
        let times = (0..50).map(|_| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(20) {
                pair.poll();
            }
            let waiting = pair.b.receives_waiting();
            let sge = [pair.memory.sge(0, 8)];
            let (flags, data) = (send_flags::SIGNALED, Data::Sges(&sge));
            let request = SendRequest { opcode: Opcode::Send, flags, data, ..SendRequest::default() };
            pair.a.post_send(|p| p.push(&request)).unwrap();
            // It does not poll, so it is the progress thread that takes the packets in.
            let posted = Instant::now();
            while pair.b.receives_waiting() == waiting {
                assert!(posted.elapsed() < Duration::from_secs(10), "nobody receives");
                std::thread::yield_now();
            }
            let taken_in = posted.elapsed();
            for cq in [&pair.recv_cq, &pair.send_cq] {
                while cq.poll(1, &mut |_| ()) == 0 {
                    assert!(posted.elapsed() < Duration::from_secs(10), "no completion came");
                }
            }
            taken_in
        });
        // A machine with much else to do lets the progress thread wait, but not each time.
        let soon = |time: &Duration| *time < Duration::from_millis(5);
        let times = up_to_the_first(times, soon);
        assert!(times.last().is_some_and(soon), "{times:?}");
    });
}
