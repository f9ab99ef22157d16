//! Programs that a supervisor has stand still, give up their sockets, take them back and go on, again and again while they work: they end as
//! if nothing had been, and have no socket for packets meanwhile.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use vervain_names::parking::{Step, ask};
use vervain_tests::netns::{Host, Network};
use vervain_tests::{Failures, Job, alone, have, unswayed, vervain};

const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);
/// Parked so often at least while pairs of a kind work, and how many pairs there may be: how long one takes differs from machine to machine.
const TIMES: u32 = 5;
const MOST_PAIRS: u32 = 12;

/// Ends of pairs, and of how many messages by memory and in packets. Not Sends by UC, which ends of perftest lose now and then by themselves:
/// the sender does not wait for receives.
const PAIRS: [(&str, [u32; 2]); 6] = [
    ("ibv_rc_pingpong -g 0 -c", [200_000, 10_000]),
    ("ibv_rc_pingpong -g 0 -c -e", [200_000, 10_000]),
    ("ibv_ud_pingpong -g 0", [200_000, 10_000]),
    ("ib_write_bw -F -x 0 -s 200000", [40_000, 4_000]),
    ("ib_write_bw -F -x 0 -c UC -s 4096", [400_000, 30_000]),
    ("ib_atomic_bw -F -x 0", [400_000, 20_000]),
];

/// A command of the shell's that waits until the server behind it in the background listens, or has ended: its client does not try twice. All of
/// them listen on TCP port 18515, and the network of each pair is one where nobody else does.
const UNTIL_IT_LISTENS: &str =
    "until grep -qs ':4853 [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6 || ! kill -0 $!; do sleep 0.05; done";

/// Slots that processes have here.
fn slots() -> Vec<u32> {
    let prefix = vervain_names::slots(0);
    let holders = vervain_names::holders(rustix::net::SocketType::SEQPACKET, &prefix).expect("the list of sockets");
    let mut slots: Vec<u32> =
        holders.iter().filter_map(|holder| holder.name.strip_prefix(&prefix)?.parse().ok()).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// UDP sockets of this namespace, but for those of programs themselves.
fn sockets_of_packets() -> Vec<String> {
    let files = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
    let tables = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    tables.flat_map(|table| table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Parks all for a moment; how many that were.
fn park() -> Result<usize, String> {
    let slots = slots();
    let mut parked = 0;
    let mut all = |step: Step| {
        let mut there = 0;
        for slot in &slots {
            match ask(0, *slot, step, PATIENCE) {
                Ok(is_there) => there += usize::from(is_there),
                Err(error) => return Err(format!("{step:?} of slot {slot}: {error}")),
            }
        }
        parked = there;
        Ok(())
    };
    all(Step::Stop)?;
    all(Step::Leave)?;
    let left = sockets_of_packets();
    thread::sleep(Duration::from_millis(50));
    all(Step::Rejoin)?;
    all(Step::Go)?;
    // One that came or ended meanwhile is none of ours.
    let is_same = slots == self::slots();
    if is_same && !left.is_empty() {
        return Err(format!("sockets while all were parked: {left:?}"));
    }
    Ok(parked)
}

/// Runs a pair and parks both ends, not for ever; how often both were there.
fn parked_again_and_again(host: &Host, command: &Command) -> Result<u32, String> {
    let mut job = Job::start(&mut host.enter(command));
    let begin = Instant::now();
    let (mut times, mut result) = (0, Ok(()));
    while job.running() && result.is_ok() && begin.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(30));
        if times == 2 * TIMES {
            continue;
        }
        result = host.act(park).map(|parked| times += u32::from(parked >= 2));
    }
    let end = job.finish(LIMIT);
    result?;
    if end.success() { Ok(times) } else { Err(end.describe()) }
}

/// CPU time that all threads of a process have had.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process");
    let words = stat.rsplit(')').next().expect("its numbers").split(' ');
    let ticks: u64 = words.skip(12).take(2).map(|word| word.parse::<u64>().expect("ticks")).sum();
    // USER_HZ is 100 wherever Linux runs.
    Duration::from_millis(ticks * 10)
}

#[test]
fn one_that_waits_costs_nothing_after_it_was_parked() {
    if !have(&["ibv_rc_pingpong"]) {
        return;
    }
    let Some(network) = Network::of_one() else { return };
    if !network.first().takes_threads() {
        return;
    }
    let host = network.first();
    let _turn = alone();
    for link in ["local", "roce"] {
        let mut command = unswayed(vervain());
        command.args(["run", "--link", link, "--", "ibv_rc_pingpong", "-g", "0"]);
        let mut server = Job::start(&mut host.enter(&command));
        let until = Instant::now() + PATIENCE;
        while host.act(|| park().expect("to be parked")) == 0 {
            assert!(server.running() && Instant::now() < until, "{}", server.output());
            thread::sleep(Duration::from_millis(30));
        }
        let before = cpu_time(server.pid());
        thread::sleep(Duration::from_secs(1));
        let since = cpu_time(server.pid()) - before;
        assert!(server.running() && since < Duration::from_millis(300), "{link}: {since:?} of CPU time in a second");
        server.finish(Duration::ZERO);
    }
}

#[test]
fn programs_that_are_parked_again_and_again_end_as_if_nothing_had_been() {
    if !have(&["ibv_rc_pingpong", "ibv_ud_pingpong", "ib_write_bw", "ib_atomic_bw"]) {
        return;
    }
    let Some(network) = Network::of_one() else { return };
    if !network.first().takes_threads() {
        return;
    }
    let host = network.first();
    let _turn = alone();
    let mut failures = Failures::default();
    for (link, number) in [("local", 0), ("roce", 1)] {
        for (program, counts) in PAIRS {
            let what = format!("{program} by {link}");
            let end = format!("{program} -n {}", counts[number]);
            let both = format!("{end} & {UNTIL_IT_LISTENS}; {end} 127.0.0.1; r=$?; wait $! && exit $r");
            let mut command = unswayed(vervain());
            command.args(["run", "--link", link, "--", "sh", "-c", &both]);
            let mut times = 0;
            for _ in 0..MOST_PAIRS {
                match parked_again_and_again(host, &command) {
                    Ok(more) => times += more,
                    Err(why) => {
                        failures.add(&what, why);
                        break;
                    }
                }
                if times >= TIMES {
                    break;
                }
            }
            println!("{what}: parked {times} times");
            if times < TIMES {
                failures.add(&what, format!("it was parked {times} times only"));
            }
        }
    }
    failures.assert_none();
}
