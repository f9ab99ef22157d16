//! Unmodified perftest programs, server and client, under `vervain run`, each on a processor of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{Running, free_port, wait_for_listener};
use crate::setup::{LIMIT, Setup};

/// A test of perftest and its options, and how Vervain may reach memory.
#[derive(Debug, Clone)]
pub struct Test<'a> {
    /// Program, such as `ib_write_lat`.
    pub program: &'static str,
    /// Bytes of a message; None for atomics, which have but one size.
    pub size: Option<usize>,
    /// Messages, or how long to go on.
    pub length: Length,
    /// Further options of the program.
    pub extra: &'static [&'static str],
    /// Options of `vervain run`.
    pub vervain: &'static [&'static str],
    /// Variables that both sides get.
    pub variables: &'a [(&'a str, &'a str)],
}

/// How long a test is.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    /// This many messages (`-n`).
    Messages(usize),
    /// This long (`-D`), less a second at either end (`-f 1`).
    Seconds(u32),
}

/// Both sides of a test under way.
pub struct Pair {
    /// The passive side.
    pub server: Running,
    /// The side that reports.
    pub client: Running,
}

impl Test<'_> {
    /// A test of `messages` messages of `size` bytes.
    pub const fn new(program: &'static str, size: usize, messages: usize) -> Self {
        let length = Length::Messages(messages);
        Test { program, size: Some(size), length, extra: &[], vervain: &[], variables: &[] }
    }

    fn command(&self, setup: &Setup, port: u16) -> Command {
        let mut command = setup.under_vervain(self.vervain, self.program);
        command.args(["-F", "-p", &port.to_string()]).args(self.extra).envs(self.variables.iter().copied());
        if let Some(size) = self.size {
            command.args(["-s", &size.to_string()]);
        }
        match self.length {
            Length::Messages(n) => command.args(["-n", &n.to_string()]),
            Length::Seconds(s) => command.args(["-D", &s.to_string(), "-f", "1"]),
        };
        command
    }

    /// Starts both sides.
    pub fn start(&self, setup: &Setup) -> Result<Pair> {
        let port = free_port()?;
        let mut server = Running::start(&mut self.command(setup, port), Some(setup.cpus.server), LIMIT)?;
        wait_for_listener(port, &mut server)?;
        let mut client = self.command(setup, port);
        let client = Running::start(client.arg("127.0.0.1"), Some(setup.cpus.client), LIMIT)?;
        Ok(Pair { server, client })
    }

    /// Runs both sides to their end; the client's line of numbers.
    pub fn run(&self, setup: &Setup) -> Result<Vec<f64>> {
        self.start(setup)?.finish().with_context(|| format!("{} under vervain run", self.program))
    }

    /// The typical latency in nanoseconds: perftest's median, of half a round trip where the test has two ways.
    pub fn typical_ns(&self, setup: &Setup) -> Result<f64> {
        // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%, in µs.
        const T_TYPICAL: usize = 4;
        let numbers = self.run(setup)?;
        Ok(numbers.get(T_TYPICAL).context("the line of a latency test is short")? * 1e3)
    }

    /// The average bandwidth in MiB/s.
    pub fn bandwidth(&self, setup: &Setup) -> Result<f64> {
        // #bytes #iterations peak average, in MiB/s (perftest writes MB), message rate.
        const AVERAGE: usize = 3;
        let numbers = self.run(setup)?;
        numbers.get(AVERAGE).copied().context("the line of a bandwidth test is short")
    }

    /// Millions of messages a second.
    pub fn message_rate(&self, setup: &Setup) -> Result<f64> {
        const RATE: usize = 4;
        let numbers = self.run(setup)?;
        numbers.get(RATE).copied().context("the line of a bandwidth test is short")
    }
}

impl Pair {
    /// Waits for both; the client's line of numbers.
    pub fn finish(self) -> Result<Vec<f64>> {
        let report = self.client.finish()?;
        self.server.finish()?;
        numbers_of(&report).context("the client printed no line of numbers")
    }
}

/// The first line that consists of numbers only.
fn numbers_of(report: &str) -> Option<Vec<f64>> {
    report.lines().find_map(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        (numbers.len() >= 4).then_some(numbers)
    })
}

/// The version that `ib_write_lat --version` tells.
pub fn version() -> Option<String> {
    let mut command = Command::new("ib_write_lat");
    let text = Running::start(command.arg("--version"), None, Duration::from_secs(5)).ok()?.finish().ok()?;
    Some(text.trim().trim_start_matches("Version:").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::numbers_of;

    #[test]
    fn the_line_of_numbers_is_found_in_a_report() {
        let report = "-----\n GID: 00:00\n #bytes #iterations    t_min[usec]\n 8       1000          2.23           80.77   2.27  6.43 125.85 3.02 2014.20\n----\n";
        assert_eq!(numbers_of(report).unwrap()[4], 2.27);
        assert_eq!(numbers_of("nothing\n 1 2\n"), None);
    }
}
