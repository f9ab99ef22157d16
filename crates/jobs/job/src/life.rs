//! A job from its start, or its restart, to its end, on all its hosts: what is done to all of its parts at once.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::agent::{Done, Task};
use crate::checkpoint::Wait;
use crate::hosts::Host;
use crate::manifest::Image;
use crate::park;
use crate::part::{Order, Part, Report, Trouble};
use crate::queues::Queues;
use crate::remote::Remote;
use crate::space::End;

/// A job from its start, or its restart, to its end.
pub(crate) struct Life {
    pub(crate) part: Part,
    /// Its parts on other hosts.
    pub(crate) remotes: Vec<Remote>,
    /// The numbers of its pipes.
    pub(crate) streams: [Option<u64>; 3],
    pub(crate) ended: Option<End>,
    /// The socket by which processes of the job reach the supervisor.
    pub(crate) inside: UnixListener,
}

impl Life {
    /// Has all parts do something at once, and waits for all. The supervisor's comes first.
    pub(crate) fn each(
        &mut self,
        order: impl Fn(Option<&Host>) -> Order,
        wait: Wait<'_>,
    ) -> Result<Vec<Report>, Trouble> {
        let sent: Vec<_> = self.remotes.iter_mut().map(|remote| remote.send(&order(Some(remote.host())))).collect();
        let mut all = vec![self.part.carry_out(&order(None), wait)];
        for (remote, sent) in self.remotes.iter_mut().zip(sent) {
            all.push(sent.map_err(Trouble::from).and_then(|()| remote.receive(wait)));
        }
        all.into_iter().collect()
    }

    /// The same task for all.
    pub(crate) fn tasks(&mut self, task: &Task, wait: Wait<'_>) -> Result<Vec<Done>, Trouble> {
        let reports = self.each(|_| Order::Task(task.clone()), wait)?;
        Ok(reports
            .into_iter()
            .map(|report| if let Report::Done(done) = report { done } else { Done::default() })
            .collect())
    }

    pub(crate) fn is_on_several_hosts(&self) -> bool {
        !self.remotes.is_empty()
    }

    /// Has all parts stand still: all devices before any process is stopped. If that cannot be, they go on.
    pub(crate) fn hold(&mut self, wait: Wait<'_>) -> Result<(), Trouble> {
        let held = self.tasks(&Task::Stop, wait).and_then(|_| self.tasks(&Task::Freeze, wait));
        if held.is_err() {
            let _ = self.release(wait);
        }
        held.map(drop)
    }

    /// They go on.
    pub(crate) fn release(&mut self, wait: Wait<'_>) -> Result<(), Trouble> {
        // Each step by all, whatever has become of the one before.
        let thawed = self.tasks(&Task::Thaw, wait);
        let went = self.tasks(&Task::Go, wait);
        thawed.and(went).map(drop)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.part.space.has_ended() || self.remotes.iter().any(Remote::has_ended)
    }

    pub(crate) fn kill(&mut self) {
        self.part.kill();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // The thread that takes in requests ends.
        let _ = rustix::net::shutdown(&self.inside, rustix::net::Shutdown::Both);
    }
}

/// The folder in a checkpoint of what was dumped on a host.
pub(crate) fn folder_of(host: Option<&Host>) -> PathBuf {
    host.map_or_else(PathBuf::new, |host| Path::new("hosts").join(host.file_name()))
}

impl Life {
    /// Has all parts written into a checkpoint, and stand still.
    pub(crate) fn dump(&mut self, checkpoint: &Path, stop: bool, wait: Wait<'_>) -> Result<Vec<Image>, Trouble> {
        let several = self.is_on_several_hosts();
        if several {
            // No device gives up its sockets before all stand still, on whatever host.
            self.tasks(&Task::Stop, wait)?;
        }
        let parked = self.tasks(&Task::Park, wait)?;
        let before = if several {
            self.tasks(&Task::Freeze, wait)?;
            Some(self.settled(wait)?)
        } else {
            None
        };
        let reports = self.each(|host| Order::Dump { folder: checkpoint.join(folder_of(host)), stop }, wait)?;
        let now = self.tasks(&Task::List, wait)?;
        parked.iter().zip(&now).try_for_each(|(parked, now)| park::check(&parked.processes, &now.processes))?;
        if let Some(before) = before
            && self.queues(wait)? != before
        {
            let sentence = "something has come by TCP while the job was saved".to_owned();
            return Err(Trouble { sentence, may_pass: true });
        }
        let hosts = [None].into_iter().chain(self.remotes.iter().map(|remote| Some(remote.host().clone())));
        let images = reports.into_iter().zip(hosts).map(|(report, host)| match report {
            Report::Dumped(image) => Ok(Image { folder: folder_of(host.as_ref()), host, ..image }),
            _ => Err(anyhow::anyhow!("an odd answer").into()),
        });
        images.collect()
    }

    /// The contents of the queues of TCP, after they have come to rest: bytes that one host has sent move on to the
    /// next one although all processes stand still.
    fn settled(&mut self, wait: Wait<'_>) -> Result<Vec<Queues>, Trouble> {
        const LOOK: Duration = Duration::from_millis(3);
        // No process reads, so bytes that are not acknowledged by then have no room, or were lost and are sent again
        // much later. That is found after the dump.
        const PATIENCE: Duration = Duration::from_millis(300);
        let until = Instant::now() + PATIENCE;
        let mut before = self.queues(wait)?;
        loop {
            std::thread::sleep(LOOK);
            let now = self.queues(wait)?;
            let still = now == before;
            // Somebody outside of the job may send on: that is found after the dump too.
            if Instant::now() >= until + PATIENCE * 10
                || still && (now.iter().all(|queues| !queues.unsent) || Instant::now() >= until)
            {
                return Ok(now);
            }
            before = now;
        }
    }

    fn queues(&mut self, wait: Wait<'_>) -> Result<Vec<Queues>, Trouble> {
        Ok(self.tasks(&Task::Queues, wait)?.into_iter().map(|done| done.queues).collect())
    }

    /// All goes on after a dump, which was good or was not; for how many microseconds the longest of the parts stood
    /// still.
    pub(crate) fn go_on(&mut self, well: bool, wait: Wait<'_>) -> Result<u64, Trouble> {
        let ended = self.each(|_| Order::EndDump { well }, wait);
        // Each step by all, whatever has become of the one before: none is left standing because another is lost.
        let thawed = if self.is_on_several_hosts() { self.tasks(&Task::Thaw, wait) } else { Ok(Vec::new()) };
        let rejoined = self.tasks(&Task::Rejoin(String::new()), wait);
        let went = self.tasks(&Task::Go, wait);
        thawed.and(rejoined).and(went)?;
        let ended = match ended {
            Err(_) if !well => Vec::new(),
            ended => ended?,
        };
        let still = ended.iter().map(|report| if let Report::StoodStill(time) = report { *time } else { 0 });
        Ok(still.max().unwrap_or(0))
    }
}
