//! Shared by the test binaries: the device's addresses and pairs of an unmodified server and client.

use std::process::Command;
use std::time::Duration;

use vervain_tests::{Finished, Job, free_port, under_vervain};

/// Index of the GID of 127.0.0.1 in the table of `vervain0`, as `ibv_devinfo -v` prints it.
#[allow(dead_code)]
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
#[allow(dead_code)]
pub fn pair(tool: &str, args: &[String], vars: &[(&str, &str)], limit: Duration) -> (Finished, Finished) {
    let port = free_port();
    let command = |client: bool| {
        let mut c = side(tool, args, vars, port);
        if client {
            c.arg("127.0.0.1");
        }
        c
    };
    let mut server = Job::start(&mut command(false));
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
    let client = Job::start(&mut command(true)).finish(limit);
    let grace = if client.success() { limit } else { Duration::from_millis(500) };
    (server.finish(grace), client)
}

fn side(tool: &str, args: &[String], vars: &[(&str, &str)], port: u16) -> Command {
    let mut c = under_vervain(tool);
    c.envs(vars.iter().copied());
    c.args(["-p", &port.to_string()]).args(args);
    c
}

/// Splits a line of arguments at spaces.
#[allow(dead_code)]
pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
