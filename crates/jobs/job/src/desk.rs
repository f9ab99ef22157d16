//! The input of all supervisors: signals, which they pass on to their job, and requests, by the control socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

use anyhow::{Result, bail};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::event::{EventfdFlags, eventfd};

use crate::checkpoint;
use crate::control::{Asker, Reply, Request, serve};
use crate::place::Place;
use crate::space::{Space, Target};

const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The processes of a job, as signals reach them.
pub(crate) trait Group {
    /// The first process, which leads a process group; None when it has ended.
    fn leader(&self) -> Option<Pid>;

    /// Kills all of them.
    fn kill(&self);
}

impl Group for Target {
    fn leader(&self) -> Option<Pid> {
        self.root()
    }

    fn kill(&self) {
        Target::kill(*self);
    }
}

impl Group for Space {
    fn leader(&self) -> Option<Pid> {
        self.target().root()
    }

    fn kill(&self) {
        Space::kill(self);
    }
}

/// The input of a supervisor.
pub(crate) struct Desk {
    pub signals: SignalFd,
    pub asked: Asked,
    requests: Receiver<(Request, Asker)>,
    hand_on: Sender<(Request, Asker)>,
    woken: OwnedFd,
}

impl Desk {
    /// Has signals taken in rather than end this process, and requests by the control socket of a place.
    pub fn new(place: &Place) -> Result<Desk> {
        let mut set = SigSet::empty();
        PASSED_ON.into_iter().for_each(|signal| set.add(signal));
        set.thread_block()?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (hand_on, requests) = channel();
        let desk = Desk { signals, asked: Asked::default(), requests, hand_on, woken };
        desk.take_in(place.listen()?, |request| !matches!(request, Request::Start { .. }))?;
        Ok(desk)
    }

    /// Takes in requests of one kind by a listener, for as long as that is open.
    pub fn take_in(&self, listener: UnixListener, is_one: fn(&Request) -> bool) -> Result<()> {
        let (hand_on, wake) = (self.hand_on.clone(), self.woken.try_clone()?);
        std::thread::spawn(move || {
            serve(&listener, &mut |request, mut asker| {
                if !is_one(&request) {
                    asker.tell(&Reply::Failed("that is not asked here".to_owned()));
                    return;
                }
                let _ = hand_on.send((request, asker));
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            });
        });
        Ok(())
    }

    /// Waits for descriptors, signals and requests, and passes signals on.
    pub fn wait(&mut self, group: Option<&dyn Group>, fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<()> {
        let all: Vec<BorrowedFd<'_>> = fds.iter().copied().chain([self.woken.as_fd()]).collect();
        self.asked.wait(&self.signals, group, &all, until)?;
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
        Ok(())
    }

    /// The next request, if there is one.
    pub fn next(&self) -> Result<Option<(Request, Asker)>> {
        match self.requests.try_recv() {
            Ok(request) => Ok(Some(request)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the control socket has ended"),
        }
    }
}

/// Requests that came as signals.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The number of them that asked for the end.
    times: u32,
    /// True if the end is wanted.
    pub end: bool,
}

impl Asked {
    /// Waits for descriptors and signals, and passes signals on to a job.
    pub fn wait(
        &mut self,
        signals: &SignalFd,
        group: Option<&dyn Group>,
        fds: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> Result<()> {
        let all: Vec<BorrowedFd<'_>> = fds.iter().copied().chain([signals.as_fd()]).collect();
        checkpoint::wait(&all, until)?;
        while let Ok(Some(info)) = signals.read_signal() {
            let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) else { continue };
            if !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) {
                self.times += 1;
                self.end = true;
            }
            match group.map(|group| (group, group.leader())) {
                // As a terminal does: to the group that the first process leads.
                Some((_, Some(leader))) if self.times < 2 => _ = killpg(leader, signal),
                Some((group, _)) => group.kill(),
                None => {}
            }
        }
        Ok(())
    }
}
