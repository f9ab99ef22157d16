//! Child processes: started on a given processor, watched without polling, killed by pid when they take too long or the
//! measurement is given up. Their output goes to files, so that a full pipe never stops them.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::machine::on_cpu;

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
    pub fn start(command: &mut Command, cpu: Option<usize>, limit: Duration) -> Result<Running> {
        let name = name_of(command);
        let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
        let child = on_cpu(cpu, || command.spawn().with_context(|| format!("starting {name}")))?;
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

/// Runs `command` on `cpu` to its end; the numbers on its last line.
pub fn numbers(command: &mut Command, cpu: Option<usize>, limit: Duration) -> Result<Vec<f64>> {
    let running = Running::start(command, cpu, limit)?;
    let name = running.name.clone();
    let text = running.finish()?;
    let line = text.lines().last().unwrap_or_default();
    let numbers: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    match numbers {
        Ok(numbers) if !numbers.is_empty() => Ok(numbers),
        _ => bail!("{name} printed {line:?} in place of numbers"),
    }
}

/// A TCP port that nobody uses now.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).context("looking for a free port")?.local_addr()?.port())
}

/// Waits until somebody listens on `port`. Read from /proc, because a server of perftest takes the first connection for
/// its client.
pub fn wait_for_listener(port: u16, server: &mut Running) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if is_listening(port) {
            return Ok(());
        }
        ensure!(server.is_alive(), "{} ended before it listened{}", server.name, server.told());
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("{} does not listen{}", server.name, server.told())
}

fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|path| fs::read_to_string(path).ok()).any(|table| {
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1).and_then(|address| address.rsplit_once(':'));
            let state = fields.nth(1);
            state == Some(LISTEN) && local.is_some_and(|(_, p)| u16::from_str_radix(p, 16) == Ok(port))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        assert!(is_listening(listener.local_addr().unwrap().port()));
    }

    #[test]
    fn a_process_that_takes_too_long_is_killed_and_named() {
        let started = Instant::now();
        let error = Running::start(Command::new("sleep").arg("60"), None, Duration::from_millis(50)).unwrap().finish();
        assert!(error.unwrap_err().to_string().contains("sleep did not end in time"));
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn numbers_are_read_from_the_last_line() {
        let mut command = Command::new("printf");
        command.arg("hello\\n1.5 2\\n");
        assert_eq!(numbers(&mut command, None, Duration::from_secs(10)).unwrap(), [1.5, 2.0]);
    }

    #[test]
    fn the_program_behind_vervain_run_gives_the_name() {
        let mut command = Command::new("some/vervain");
        command.args(["run", "--memory", "owner", "--", "/usr/bin/ib_write_lat", "-s", "8"]);
        assert_eq!(name_of(&command), "ib_write_lat");
    }
}
