//! Ranks of a job as workers: the launcher that starts them, and how they find the coordinator. `vervain launch` starts
//! those of ACP and PM, an mpirun those of an MPI.

use std::fs::File;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, getuid, kill_process};

use super::worker_handle::{WorkerError, WorkerHandle};
use crate::case::Interface;

/// Time for ranks to join: an mpirun and its libraries, on a busy machine.
const JOINING: Duration = Duration::from_secs(60);
/// Time for ranks to leave the job, and for its launcher to end: first by itself, then by a signal, before it is
/// killed.
const LEAVING: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// A job to be started.
pub struct JobRequest<'a> {
    /// The interface of the ranks.
    pub interface: Interface,
    /// The port of the device, from 1.
    pub port: u8,
    /// The number of ranks.
    pub ranks: u32,
    /// Bytes of starter memory of each rank, for ACP.
    pub starter: u64,
    /// The name under which a rank finds the coordinator ([`crate::worker::join`]).
    pub name: &'a str,
}

/// Makes the command that starts the ranks of a job, or says in a sentence why there is none.
pub type StartJob<'s> = dyn Fn(&JobRequest<'_>) -> Result<Command, String> + 's;

/// A job under way.
pub struct Job<'a> {
    /// Ranks besides requester and responder. Dropped first.
    pub others: Vec<WorkerHandle<'a>>,
    _launcher: Launcher,
}

impl<'a> Job<'a> {
    /// Has the ranks started by the command that `command` makes, and waits until all have joined: the job, and its
    /// ranks.
    pub fn start(
        (interface, ranks): (Interface, u32),
        port: u8,
        starter: u64,
        command: &StartJob<'_>,
        log: &File,
        interrupted: &'a AtomicBool,
    ) -> Result<(Self, Vec<WorkerHandle<'a>>), WorkerError> {
        let failed = |e: io::Error| WorkerError::Failed(format!("cannot start ranks of {}: {e}", interface.name()));
        let (listener, name) = listen().map_err(failed)?;
        let request = JobRequest { interface, port, ranks, starter, name: &name };
        let mut command = command(&request).map_err(WorkerError::Failed)?;
        let mut begin = || -> io::Result<Child> {
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
            // In a process group of its own, for Ctrl-C is meant for the coordinator, which then lets the job finish.
            command.process_group(0).spawn()
        };
        let mut launcher = Launcher { process: begin().map_err(failed)?, has_ranks: false };
        let mut workers = Vec::new();
        for stream in launcher.connections(&listener, interface, ranks, interrupted)? {
            workers.push(WorkerHandle::of_rank(stream, ranks, interrupted)?);
        }
        Ok((Self { others: vec![], _launcher: launcher }, workers))
    }
}

/// The process that started the ranks. Dropped when nobody gives them orders any more: then they leave, and it ends.
struct Launcher {
    process: Child,
    /// True if ranks have come, which leave when they are not needed any more.
    has_ranks: bool,
}

impl Launcher {
    /// Accepts as many connections as there are ranks.
    fn connections(
        &mut self,
        listener: &UnixListener,
        interface: Interface,
        ranks: u32,
        interrupted: &AtomicBool,
    ) -> Result<Vec<UnixStream>, WorkerError> {
        let since = Instant::now();
        let mut streams = Vec::new();
        let told = |why: String| WorkerError::Failed(format!("no ranks of {}: {why}", interface.name()));
        while streams.len() < ranks as usize {
            match listener.accept() {
                // Any process that knows the name may connect; ranks belong to this user.
                Ok((stream, _)) if socket_peercred(&stream).is_ok_and(|peer| peer.uid == getuid()) => {
                    stream.set_nonblocking(false).map_err(|e| told(e.to_string()))?;
                    streams.push(stream);
                    continue;
                }
                Ok(_) => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(told(e.to_string())),
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(WorkerError::Interrupted);
            }
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(told(format!("their launcher has ended, {status}; workers.log has what it printed")));
            }
            if since.elapsed() > JOINING {
                return Err(told(format!("they did not join within {JOINING:.0?}")));
            }
            thread::sleep(LOOK);
        }
        self.has_ranks = true;
        Ok(streams)
    }

    fn has_ended(&mut self) -> bool {
        let since = Instant::now();
        while since.elapsed() < LEAVING {
            // An error: somebody else has reaped it.
            if !matches!(self.process.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(LOOK);
        }
        false
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        if self.has_ranks && self.has_ended() {
            return;
        }
        // It then ends its ranks, and takes away what it has made.
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if !self.has_ended() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// A socket in the abstract namespace, whose name nobody guesses.
fn listen() -> io::Result<(UnixListener, String)> {
    let name = format!("vervain-bench-{}-{:016x}", std::process::id(), fastrand::u64(..));
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start<'a>(script: &'static str, interrupted: &'a AtomicBool) -> Result<Job<'a>, WorkerError> {
        let log = tempfile::tempfile().expect("a file");
        let command = move |_: &JobRequest<'_>| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        };
        Job::start((Interface::Acp, 3), 1, 4096, &command, &log, interrupted).map(|(job, _)| job)
    }

    #[test]
    fn a_launcher_that_ends_without_ranks_is_told() {
        let interrupted = AtomicBool::new(false);
        let Err(error) = start("exit 3", &interrupted) else { panic!("no ranks can have come") };
        let said = error.to_string();
        assert!(said.starts_with("no ranks of ACP: their launcher has ended, exit status: 3"), "{said}");
    }

    #[test]
    fn a_launcher_that_does_not_end_is_ended() {
        let interrupted = AtomicBool::new(true);
        assert!(matches!(start("exec sleep 1000", &interrupted), Err(WorkerError::Interrupted)));
    }

    #[test]
    fn a_command_that_there_is_not_is_the_reason() {
        let log = tempfile::tempfile().expect("a file");
        let (interrupted, none) = (AtomicBool::new(false), |_: &JobRequest<'_>| Err("no mpirun".to_owned()));
        let Err(error) = Job::start((Interface::Mpich, 2), 1, 0, &none, &log, &interrupted) else {
            panic!("nothing to start")
        };
        assert_eq!(error.to_string(), "no mpirun");
    }
}
