//! Unmodified perftest programs, server and client, under `vervain run`, each on a processor of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use vervain_tests::free_port;

use crate::process::{Pair, output};
use crate::setup::Setup;

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
        let port = free_port();
        let [mut server, mut client] = [(); 2].map(|()| self.command(setup, port));
        Pair::start(setup.cpus, port, &mut server, client.arg("127.0.0.1"))
    }

    /// The number at `index` of the line that the client prints.
    fn number(&self, setup: &Setup, index: usize) -> Result<f64> {
        let numbers = self.start(setup)?.finish().and_then(|report| numbers_of(&report));
        let numbers = numbers.with_context(|| format!("{} under vervain run", self.program))?;
        numbers.get(index).copied().with_context(|| format!("the line of {} is short", self.program))
    }

    /// The typical latency in nanoseconds: perftest's median, of half a round trip where the test has two ways.
    pub fn typical_ns(&self, setup: &Setup) -> Result<f64> {
        // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%, in µs.
        const T_TYPICAL: usize = 4;
        Ok(self.number(setup, T_TYPICAL)? * 1e3)
    }

    /// The average bandwidth in MiB/s.
    pub fn bandwidth(&self, setup: &Setup) -> Result<f64> {
        // #bytes #iterations peak average, in MiB/s (perftest writes MB), message rate.
        const AVERAGE: usize = 3;
        self.number(setup, AVERAGE)
    }

    /// Millions of messages a second.
    pub fn message_rate(&self, setup: &Setup) -> Result<f64> {
        const RATE: usize = 4;
        self.number(setup, RATE)
    }
}

/// The first line of a client's report that consists of numbers only.
pub fn numbers_of(report: &str) -> Result<Vec<f64>> {
    let numbers = report.lines().find_map(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        (numbers.len() >= 4).then_some(numbers)
    });
    numbers.context("the client printed no line of numbers")
}

/// The version that `ib_write_lat --version` tells.
pub fn version() -> Option<String> {
    let text = output(Command::new("ib_write_lat").arg("--version"), None, Duration::from_secs(5)).ok()?;
    Some(text.trim().trim_start_matches("Version:").trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::numbers_of;

    #[test]
    fn the_line_of_numbers_is_found_in_a_report() {
        let report = "-----\n GID: 00:00\n #bytes #iterations    t_min[usec]\n 8       1000          2.23           80.77   2.27  6.43 125.85 3.02 2014.20\n----\n";
        assert_eq!(numbers_of(report).unwrap()[4], 2.27);
        assert!(numbers_of("nothing\n 1 2\n").is_err());
    }
}
