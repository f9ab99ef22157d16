//! Child processes: started on a given processor, watched without polling, killed by pid when they take too long or the
//! measurement is given up. Their output goes to files, so that a full pipe never stops them.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use vervain_bench::topology::on_cpus;
use vervain_tests::listeners;

use crate::machine::Cpus;

/// How long a program may take that normally takes about a second.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A process under measurement.
pub struct Running {
    name: String,
    child: Child,
    out: File,
    err: File,
    deadline: Instant,
}

impl Running {
    /// Starts `command` on `cpu`, to end within `limit`.
    pub fn start(command: &mut Command, cpu: Option<u32>, limit: Duration) -> Result<Running> {
        let name = name_of(command);
        let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
        let child = match cpu {
            Some(cpu) => on_cpus(&[cpu], || command.spawn()).and_then(|child| child),
            None => command.spawn(),
        };
        let child = child.with_context(|| format!("starting {name}"))?;
        Ok(Running { name, child, out, err, deadline: Instant::now() + limit })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end; what it wrote to standard output, or an error with what it wrote to standard error.
    pub fn finish(mut self) -> Result<String> {
        let Some(status) = self.wait()? else {
            bail!("{} did not end in time{}", self.name, self.told());
        };
        ensure!(status.success(), "{} failed ({status}){}", self.name, self.told());
        text_of(&self.out)
    }

    /// The exit status, or None at the deadline. Sleeps in the kernel: a measuring loop beside a measured one would
    /// take its processor.
    fn wait(&mut self) -> Result<Option<ExitStatus>> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("an impossible process id")?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
            let timeout = Timespec::try_from(left).context("the time limit")?;
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(self.child.wait()?)),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("waiting for a process"),
            }
        }
    }

    /// Waits until somebody listens on `port`. Read from /proc, because a server of perftest takes the first connection
    /// for its client.
    fn wait_until_listening(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| !listeners(table, port).is_empty()) {
                return Ok(());
            }
            ensure!(self.is_alive(), "{} ended before it listened{}", self.name, self.told());
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("{} does not listen{}", self.name, self.told())
    }

    fn told(&self) -> String {
        let mut text = text_of(&self.err).unwrap_or_default();
        if text.trim().is_empty() {
            text = text_of(&self.out).unwrap_or_default();
        }
        let tail: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if tail.is_empty() { String::new() } else { format!(": {}", tail[tail.len().saturating_sub(3)..].join(" / ")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_alive() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A server and its client, each on the processor of its side.
pub struct Pair {
    /// The passive side.
    pub server: Running,
    /// The side that reports.
    pub client: Running,
}

impl Pair {
    /// Starts the server, and the client once the server listens on `port`.
    pub fn start(cpus: Cpus, port: u16, server: &mut Command, client: &mut Command) -> Result<Pair> {
        let mut server = Running::start(server, Some(cpus.server), LIMIT)?;
        server.wait_until_listening(port)?;
        Ok(Pair { server, client: Running::start(client, Some(cpus.client), LIMIT)? })
    }

    /// Waits for both; what the client wrote.
    pub fn finish(self) -> Result<String> {
        let told = self.client.finish()?;
        self.server.finish()?;
        Ok(told)
    }
}

fn text_of(mut file: &File) -> Result<String> {
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// The last word of what is run: the program under `vervain run --`, without its directory.
fn name_of(command: &Command) -> String {
    let mut words: Vec<String> = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    let program = words.iter().position(|w| w == "--").and_then(|i| words.get(i + 1)).unwrap_or(&words[0]);
    Path::new(program).file_name().map_or_else(|| program.clone(), |name| name.to_string_lossy().into_owned())
}

/// Runs `command` to its end, within `limit`; what it wrote.
pub fn output(command: &mut Command, cpu: Option<u32>, limit: Duration) -> Result<String> {
    Running::start(command, cpu, limit)?.finish()
}

/// Runs `command` on `cpu` to its end; the numbers on its last line.
pub fn numbers(command: &mut Command, cpu: Option<u32>) -> Result<Vec<f64>> {
    let text = output(command, cpu, LIMIT)?;
    let line = text.lines().last().unwrap_or_default();
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match numbers {
        Ok(numbers) if !numbers.is_empty() => Ok(numbers),
        _ => bail!("{} printed {line:?} in place of numbers", name_of(command)),
    }
}

/// As [`numbers`]; the first of them.
pub fn number(command: &mut Command, cpu: Option<u32>) -> Result<f64> {
    Ok(numbers(command, cpu)?[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_takes_too_long_is_killed_and_named() {
        let started = Instant::now();
        let error = output(Command::new("sleep").arg("60"), None, Duration::from_millis(50));
        assert!(error.unwrap_err().to_string().contains("sleep did not end in time"));
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn numbers_are_read_from_the_last_line() {
        assert_eq!(numbers(Command::new("printf").arg("hello\\n1.5 2\\n"), None).unwrap(), [1.5, 2.0]);
    }

    #[test]
    fn the_program_behind_vervain_run_gives_the_name() {
        let mut command = Command::new("some/vervain");
        command.args(["run", "--memory", "owner", "--", "/usr/bin/ib_write_lat", "-s", "8"]);
        assert_eq!(name_of(&command), "ib_write_lat");
    }
}
