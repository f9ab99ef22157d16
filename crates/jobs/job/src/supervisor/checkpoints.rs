//! Making checkpoints of a job on all its hosts, and bringing it back from one. What may pass is tried again.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vervain_scheduler::First;

use super::{Checkpoint, Supervisor, kernel, now};
use crate::agent::Task;
use crate::control::{Asker, Made, Reply};
use crate::image;
use crate::life::folder_of;
use crate::manifest::{FORMAT, Image, Images, Manifest, Saved};
use crate::part::{Order, Part, Restored, Trouble};
use crate::remote::Remote;
use crate::store::{IMAGES, SCRATCH, Store};

/// Time to wait for a port that its last connection has left behind.
const TIME_WAIT: Duration = Duration::from_secs(60);
/// How often a checkpoint is begun anew, where a process has opened a device, a timer run out, or a connection not been
/// accepted yet.
const TRIES: u32 = 5;
/// Time for which the job runs before the second attempt; twice as long before each further one.
const BREATH: Duration = Duration::from_millis(10);
impl Supervisor {
    pub fn make(&mut self, what: &Checkpoint, mut asker: Asker) {
        asker.tell(&Reply::Doing(format!("job {} is being saved", self.name)));
        match self.checkpoint(&what.dir, what.stop, what.keep) {
            Ok(made) => asker.tell(&Reply::Made(made)),
            Err(e) => asker.tell(&Reply::Failed(format!("{e:#}"))),
        }
    }

    /// Makes a checkpoint. The job goes on if it cannot be made.
    pub fn checkpoint(&mut self, dir: &Path, stop: bool, keep: Option<usize>) -> Result<Made> {
        // This takes time, and other requests need not wait for it.
        let first = self.gang.as_mut().and_then(|member| member.first.take());
        let in_gang = first.is_some();
        drop(first);
        let mut tries = 0;
        let made = loop {
            tries += 1;
            match self.try_checkpoint(dir, stop, keep) {
                Err(e) if e.downcast_ref::<Trouble>().is_some_and(|trouble| trouble.may_pass) && tries < TRIES => {
                    // The process that is to accept a connection needs the processor for it.
                    let until = Instant::now() + BREATH * (1 << (tries - 1));
                    while Instant::now() < until && !self.desk.asked.end {
                        self.attend(Some(until))?;
                    }
                }
                made => break made,
            }
        };
        if let Some(member) = self.gang.as_mut().filter(|_| in_gang) {
            member.first = Some(First::of_this_thread());
        }
        made
    }

    fn try_checkpoint(&mut self, dir: &Path, stop: bool, keep: Option<usize>) -> Result<Made> {
        let began = Instant::now();
        let Some(life) = self.life.as_mut().filter(|life| life.ended.is_none()) else {
            bail!("the job does not run just now");
        };
        let store = Store::make(dir)?;
        let mut manifest = Manifest {
            format: FORMAT,
            name: self.name.to_string(),
            command: self.command.clone(),
            made: now(),
            vervain: self.vervain.clone(),
            kernel: kernel(),
            processes: 0,
            saved: Saved::Images(Images {
                criu: self.home.criu.version.to_string(),
                network: self.network,
                streams: life.streams,
                hosts: Vec::new(),
            }),
            frozen: 0,
            files: BTreeMap::new(),
        };
        let begun = store.begin()?;
        for host in [None].into_iter().chain(life.remotes.iter().map(|remote| Some(remote.host()))) {
            for part in [IMAGES, SCRATCH] {
                begun.folder(&folder_of(host).join(part))?;
            }
        }
        let target = life.part.space.target();
        let (signals, asked) = (&self.desk.signals, &mut self.desk.asked);
        let mut wait = |fds: &[BorrowedFd<'_>], until| asked.wait(signals, Some(&target), fds, until);
        let dumped = life.dump(begun.path(), stop, &mut wait).map(|hosts| {
            manifest.processes = hosts.iter().map(|image| image.processes).sum();
            if let Saved::Images(images) = &mut manifest.saved {
                images.hosts = hosts;
            }
        });
        let finished = match dumped {
            Ok(()) if stop => {
                manifest.frozen = life.part.still();
                let finished = begun.finish(manifest);
                match finished {
                    Ok(finished) => {
                        life.kill();
                        life.remotes.clear();
                        Ok(finished)
                    }
                    Err(e) => Err(life.go_on(false, &mut wait).err().map_or(e, Into::into)),
                }
            }
            Ok(()) => {
                manifest.frozen = life.go_on(true, &mut wait)?;
                begun.finish(manifest)
            }
            Err(trouble) => {
                let went = life.go_on(false, &mut wait);
                ensure!(!life.has_ended(), "the job has ended meanwhile");
                went.context("the job's devices do not go on")?;
                Err(trouble.into())
            }
        };
        let (path, manifest) = finished?;
        if stop {
            self.desk.asked.end = true;
            self.note(&format!(
                "job {} has ended with its checkpoint; `vervain restart {}` goes on from there",
                self.name,
                dir.display()
            ));
        }
        if let Some(keep) = keep {
            store.keep(keep);
        }
        self.last_checkpoint = Some((path.clone(), manifest.made));
        Ok(Made {
            path,
            bytes: manifest.bytes(),
            processes: manifest.processes,
            frozen: Duration::from_micros(manifest.frozen),
            took: began.elapsed(),
        })
    }

    /// Brings the job back from a checkpoint.
    pub fn bring_back(&mut self, path: &Path, manifest: &Manifest) -> Result<()> {
        let failed = format!("job {} cannot be brought back from {}", self.name, path.display());
        let until = Instant::now() + TIME_WAIT;
        let mut told = false;
        loop {
            match self.try_to_bring_back(path, manifest) {
                Ok(()) => {
                    self.has_moved = true;
                    return Ok(());
                }
                Err(trouble) if trouble.may_pass && Instant::now() < until && !self.desk.asked.end => {
                    if !told {
                        let limit = humantime::format_duration(TIME_WAIT);
                        self.note(&format!("{trouble}; that may pass: trying again for up to {limit}"));
                        told = true;
                    }
                    self.pause(Duration::from_secs(1))?;
                }
                Err(trouble) => bail!("{failed}: {trouble}"),
            }
        }
    }

    fn try_to_bring_back(&mut self, path: &Path, manifest: &Manifest) -> Result<(), Trouble> {
        let images = manifest.images()?;
        let own = images.hosts.first().context("the checkpoint has no image")?;
        let unread = match images.streams[0].and_then(|number| u32::try_from(number).ok()) {
            Some(number) => image::in_pipe(&path.join(&own.folder).join(IMAGES), number)?,
            None => Vec::new(),
        };
        let restored = |image: &Image| Restored {
            checkpoint: path.to_owned(),
            image: image.clone(),
            network: images.network,
            bytes: manifest.bytes(),
            vervain: manifest.vervain.clone(),
            map: self.setting.moves.addresses.to_string(),
        };
        let (signals, asked) = (&self.desk.signals, &mut self.desk.asked);
        let mut wait = |fds: &[BorrowedFd<'_>], until| asked.wait(signals, None, fds, until);
        let mut remotes = Vec::new();
        for image in &images.hosts[1..] {
            let host = self.setting.moves.of(image.host.as_ref().context("a part without a host")?);
            let start = self.setting.remote_start.as_ref().with_context(|| {
                format!("the job has a part on {host}, and it was not said how to start one there; remedy: --remote-start CMD")
            })?;
            let mut remote = Remote::start(start, &host, &self.name, self.setting.criu.as_deref(), &mut wait)?;
            remote.send(&Order::Restore(Box::new(restored(image))))?;
            remotes.push(remote);
        }
        let ends = self.streams.connect(unread)?;
        let pipes = images.streams.iter().zip(&ends.0);
        let pipes = pipes.filter_map(|(number, end)| Some(((*number)?, end.as_ref()?.as_fd()))).collect();
        let part = Part::restored(Rc::clone(&self.home), &restored(own), pipes, &mut wait);
        // All answers are read before a failure is reported: first that of the own part, else the first one of another
        // host.
        let there: Vec<_> = remotes.iter_mut().map(|remote| remote.receive(&mut wait)).collect();
        let part = part?;
        there.into_iter().collect::<Result<Vec<_>, _>>()?;
        let numbers = ends.numbers();
        drop(ends);
        self.live(part, remotes, numbers)?;
        let life = self.life.as_mut().context("the job")?;
        let target = life.part.space.target();
        let (signals, asked) = (&self.desk.signals, &mut self.desk.asked);
        let mut wait = |fds: &[BorrowedFd<'_>], until| asked.wait(signals, Some(&target), fds, until);
        let went = life
            .each(|_| Order::EndRestore, &mut wait)
            .and_then(|_| life.tasks(&Task::Rejoin(self.setting.moves.addresses.to_string()), &mut wait))
            .and_then(|_| life.tasks(&Task::Go, &mut wait));
        if went.is_err() {
            self.life = None;
        }
        went.map(drop)
    }
}
