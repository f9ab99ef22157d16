//! Pairs of an unmodified server and client, the device's addresses for them, and what they complain about.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::matrix::{PERFTEST, lines};
use crate::netns::Network;
use crate::{Failures, Finished, Job, alone, free_port, have, side_by_side, under_vervain, way};

const LIMIT: Duration = Duration::from_secs(60);
/// Of one that goes through all sizes, for which perftest takes ten seconds.
const LONG_LIMIT: Duration = Duration::from_secs(180);

/// Index of the GID of 127.0.0.1 in the table of `vervain0`, as `ibv_devinfo -v` prints it.
pub fn loopback_gid() -> u32 {
    let run = Job::start(under_vervain("ibv_devinfo").arg("-v")).finish(Duration::from_secs(20));
    run.output
        .lines()
        .filter(|l| l.contains("::ffff:127."))
        .find_map(|l| l.split(['[', ']']).nth(1)?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no GID of 127.0.0.1 in\n{}", run.describe()))
}

/// Runs `tool` as server and, with a host at the end, as client, both under Vervain with the same variables, and gives
/// both ends. Both must end within `limit`.
pub fn pair(tool: &str, args: &[String], vars: &[(&str, &str)], limit: Duration) -> (Finished, Finished) {
    pair_apart(tool, args, [vars, vars], limit)
}

/// [`pair`], of which server and client have other variables.
pub fn pair_apart(tool: &str, args: &[String], vars: [&[(&str, &str)]; 2], limit: Duration) -> (Finished, Finished) {
    let port = free_port();
    let [server, mut client] = vars.map(|vars| side(tool, args, vars, port));
    client.arg("127.0.0.1");
    serve(server, client, port, limit)
}

/// Runs `tool` as server on the second host of a network and as client on the first, and gives both ends.
pub fn pair_between(
    network: &Network,
    tool: &str,
    args: &[String],
    vars: &[(&str, &str)],
    limit: Duration,
) -> (Finished, Finished) {
    let port = free_port();
    let server = network.second().enter(&side(tool, args, vars, port));
    let mut client = network.first().enter(&side(tool, args, vars, port));
    client.arg(network.second().v4);
    serve(server, client, port, limit)
}

/// Starts a server and, when it listens on the TCP port, its client.
pub fn serve(mut server: Command, mut client: Command, port: u16, limit: Duration) -> (Finished, Finished) {
    let mut server = Job::start(&mut server);
    if !server.listens(port, limit) {
        let s = server.finish(Duration::from_millis(100));
        let c = Finished {
            command: "client".into(),
            status: None,
            output: "not started: the server does not listen".into(),
            took: Duration::ZERO,
        };
        return (s, c);
    }
    let client = Job::start(&mut client).finish(limit);
    let grace = if client.success() { limit } else { Duration::from_millis(500) };
    (server.finish(grace), client)
}

fn side(tool: &str, args: &[String], vars: &[(&str, &str)], port: u16) -> Command {
    let mut c = under_vervain(tool);
    c.envs(vars.iter().copied());
    c.args(["-p", &port.to_string()]).args(args);
    c
}

/// Runs `one`, which says what went wrong, for each line of options of `tool`: several at once where that is mostly waiting,
/// for the clients of the tools for bandwidth sleep a second before they speak to their server. Of the others, whose ends
/// spin, two pairs on two cores would wait for each other's time slices.
pub fn each_line(tool: &str, lines: &[&str], failures: &mut Failures, one: impl Fn(&str) -> Vec<String> + Sync) {
    let at_once = if tool.ends_with("_bw") { 4 } else { 1 };
    let all = Mutex::new(failures);
    side_by_side(at_once, lines, |line| {
        for why in one(line) {
            all.lock().unwrap_or_else(PoisonError::into_inner).add(&format!("{tool} {line}"), why);
        }
    });
}

/// perftest's options in a line, which may begin with a way and a colon. Its latencies are printed in cycles: for microseconds
/// it spins half a second to learn the clock's rate, at both ends and, where a line has all sizes, for each.
pub fn perftest_options(tool: &str, line: &str, gid: u32) -> Vec<String> {
    let (_, options) = line.split_once(": ").unwrap_or(("auto", line));
    let mut args = words(options);
    args.push("-F".to_owned());
    if !args.iter().any(|a| a == "-x") {
        args.extend(["-x".to_owned(), gid.to_string()]);
    }
    if tool.ends_with("_lat") && options != IN_MICROSECONDS {
        args.push("-C".to_owned());
    }
    args
}

/// The line by which every tool of perftest's shows its own units.
const IN_MICROSECONDS: &str = "-n 500";

/// Runs a tool of perftest's between two processes of this host with those of its lines in the table that `fits` says.
///
/// # Panics
/// When a run fails.
pub fn perftest(tool: &str, fits: impl Fn(&str) -> bool) {
    if have(&[tool, "ibv_devinfo"]) {
        let gid = loopback_gid();
        perftest_by(tool, gid, fits, |_, line| line.split_once(": ").map_or("auto", |(name, _)| name));
    }
}

/// The same by each of these ways in turn, on which there is one GID, an IPv6 one, whatever ways the lines name.
///
/// # Panics
/// When a run fails.
pub fn perftest_by_turns(tool: &str, ways: &[&'static str], fits: impl Fn(&str) -> bool) {
    if have(&[tool]) {
        perftest_by(tool, 0, |line| !line.contains(": ") && fits(line), |i, _| ways[i % ways.len()]);
    }
}

fn perftest_by<'a>(
    tool: &str,
    gid: u32,
    fits: impl Fn(&str) -> bool,
    way_of: impl Fn(usize, &'a str) -> &'a str + Sync,
) {
    let _turn = alone();
    let mut failures = Failures::default();
    let lines: Vec<_> = lines(PERFTEST, tool).iter().copied().filter(|line| fits(line)).collect();
    each_line(tool, &lines, &mut failures, |line| {
        let at = lines.iter().position(|other| *other == line).expect("one of them");
        let name = way_of(at, lines[at]);
        let limit = if has_all_sizes(line) { LONG_LIMIT } else { LIMIT };
        let (server, client) = pair(tool, &perftest_options(tool, line, gid), &way(name), limit);
        println!("{name} {tool} {line}: {:.2} s", client.took.as_secs_f64());
        complaint(tool, &server, &client)
    });
    failures.assert_none();
}

/// Whether a line of perftest's goes through all sizes, which takes it seconds to set up and little to send.
pub fn has_all_sizes(line: &str) -> bool {
    line.split_whitespace().any(|word| word == "-a")
}

/// Complaints that perftest prints and may yet end with status 0.
const COMPLAINTS: &[&str] =
    &["Completion with error", "completion with error", "Failed", "Couldn't", "Unable", "error", "Conflicting"];

/// What went wrong at either end of a pair.
pub fn complaint(tool: &str, server: &Finished, client: &Finished) -> Vec<String> {
    let ping_pong = tool.starts_with("ibv_");
    let bad = |end: &Finished| {
        // The last words of a ping-pong are the rate; a failed check of the data is printed.
        let silent = ping_pong && tool != "ibv_xsrq_pingpong" && !end.output.contains("Mbit/sec");
        let complains = !ping_pong && COMPLAINTS.iter().any(|c| end.output.contains(c));
        !end.success() || silent || complains || end.output.contains("invalid data")
    };
    let mut why: Vec<_> = [server, client].into_iter().filter(|end| bad(end)).map(Finished::describe).collect();
    if !ping_pong && client.success() && !has_row(client) {
        why.push(format!("no result row\n{}", client.describe()));
    }
    why
}

/// A row of perftest's results: the size, the number of iterations, and rates or times above zero. On a busy machine perftest
/// may not learn its clock's rate, says so, and prints zeros.
fn has_row(run: &Finished) -> bool {
    let knows_its_clock = !run.output.contains("Correlation coefficient r^2");
    run.output.lines().any(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map_while(|w| w.parse().ok()).collect();
        numbers.len() >= 4
            && numbers[0] >= 1.0
            && numbers[1] >= 5.0
            && (!knows_its_clock || numbers[2..].iter().any(|&x| x > 0.0))
    })
}

/// Splits a line of arguments at spaces.
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_rates_is_none_unless_perftest_did_not_learn_its_clock() {
        let run = |output: &str| Finished {
            command: "ib_write_bw".into(),
            status: None,
            output: output.into(),
            took: Duration::ZERO,
        };
        let zeros = " 1000000    100              0.00               0.00   \t\t   0.000000\n";
        assert!(has_row(&run(" 1000000    100              9000.00            8000.00   \t\t   0.008000\n")));
        assert!(!has_row(&run(zeros)));
        assert!(has_row(&run(&format!("Correlation coefficient r^2: 0.844691 < 0.9\n{zeros}"))));
        assert!(!has_row(&run("Correlation coefficient r^2: 0.844691 < 0.9\n")));
    }
}
