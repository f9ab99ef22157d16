//! One dump and one restore by CRIU, which runs inside of the job's namespaces, so that it saves no namespaces and
//! finds all paths.
//!
//! While all of the job stands still, CRIU runs a script of ours, which waits until what lies in the job's own folders
//! was copied. So images, files and sizes are of one moment.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{FileType, OFlags};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::criu::{Criu, Reason};
use crate::image;
use crate::manifest::{Image, Written};
use crate::place::Place;
use crate::scratch;
use crate::space::{Space, own_folders};
use crate::store::{IMAGES, SCRATCH};
use crate::word::Word;

/// Time that CRIU may take, apart from the time for memory: it may hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of memory that CRIU writes in a second where a disk is slow.
const SLOW: u64 = 20 << 20;
/// The names of the script and of logs in the job's folder.
const HOOK: &str = "hook";
const RESTORE_LOG: &str = "restore.log";
const DUMP_LOG: &str = "dump.log";

/// The script that CRIU runs. It acts only after all is dumped and stands still, or is restored and stands still.
const SCRIPT: &str = "#!/bin/sh
case $CRTOOLS_SCRIPT_ACTION in post-dump | post-restore) ;; *) exit 0 ;; esac
echo >\"${0%hook}tell\"
read -r answer <\"${0%hook}hear\"
[ \"$answer\" = go ]
";

/// Options that a dump and its restore share. On a connection whose other end is in the job too, no packet comes while
/// both stand still, so no packet filter is needed; and the job stays in the cgroup of the process that restarts it.
const SHARED: &[&str] = &["--file-locks", "--tcp-established", "--network-lock", "skip", "--manage-cgroups=ignore"];

/// The parameters of a dump of a job's part on a host.
#[derive(Debug)]
pub(crate) struct Dump<'a> {
    /// CRIU.
    pub criu: &'a Criu,
    /// The processes.
    pub space: &'a Space,
    /// The supervisor's folder.
    pub place: &'a Place,
    /// The folder of Vervain's that the job has its own of.
    pub private: &'a Path,
    /// True if the job ends with it.
    pub stop: bool,
    /// The control group in which the processes are frozen already.
    pub frozen: Option<&'a Path>,
}

/// While something takes its time, who waits sees to what else there is: called with what is waited for beside it.
pub type Wait<'a> = &'a mut dyn FnMut(&[BorrowedFd<'_>], Option<Instant>) -> Result<()>;

/// Waits for descriptors and nothing else.
///
/// # Errors
/// poll(2) fails.
pub fn wait(fds: &[BorrowedFd<'_>], until: Option<Instant>) -> Result<()> {
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    let timeout = match until {
        Some(until) => {
            PollTimeout::try_from(until.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
                .unwrap_or(PollTimeout::MAX)
        }
        None => PollTimeout::NONE,
    };
    match poll(&mut polled, timeout) {
        Err(nix::errno::Errno::EINTR) | Ok(_) => Ok(()),
        Err(e) => Err(e).context("cannot wait"),
    }
}

/// A dump that has come so far that all is written and stands still.
#[derive(Debug)]
pub(crate) struct Dumping {
    criu: Running,
    tell: File,
    images: PathBuf,
    until: Instant,
    still: Instant,
}

/// Begins a dump into a folder of a checkpoint, and says what was dumped. If this fails, the processes go on.
///
/// # Errors
/// A sentence.
pub(crate) fn begin(what: &Dump<'_>, dir: &Path, wait: Wait<'_>) -> Result<(Dumping, Image)> {
    what.place.program(HOOK, SCRIPT)?;
    let images = dir.join(IMAGES);
    let images_fd = File::open(&images).with_context(|| format!("cannot open {}", images.display()))?;
    let (mut hear, tell) = (what.place.fifo("tell")?, what.place.fifo("hear")?);
    let mut words: Vec<OsString> = vec![what.criu.path.clone().into(), "dump".into()];
    words.extend(["-t".into(), what.space.root().to_string().into()]);
    words.extend(["-D".into(), in_fd(&images_fd), "-o".into(), DUMP_LOG.into()]);
    words.extend(SHARED.iter().map(OsString::from));
    words.extend(["--ghost-limit".into(), "1G".into()]);
    words.extend(["--action-script".into(), what.space.held(HOOK).into()]);
    if let Some(group) = what.frozen {
        words.extend(["--freeze-cgroup".into(), group.into()]);
    }
    if !what.stop {
        words.push("--leave-running".into());
    }
    let child = what.space.start(&words, &[images_fd.as_fd()], quiet)?;
    let until = Instant::now() + PATIENCE + Duration::from_secs(what.space.memory() / SLOW);
    let mut criu = Running::new(child)?;
    if !criu.until_ready(hear.as_fd(), until, wait)? {
        ensure!(!what.space.has_ended(), "the job has ended meanwhile");
        bail!("the job cannot be saved: {}", Reason::of(&images.join(DUMP_LOG)).sentence);
    }
    hear.read_exact(&mut [0])?;
    let still = Instant::now();
    let dumping = Dumping { criu, tell, images, until, still };
    let held = || -> Result<Image> {
        check_orphans(what.space)?;
        check_signals(what.space, &dumping.images)?;
        for (name, at) in own_folders(what.private) {
            let to = dir.join(SCRATCH).join(name);
            scratch::copy(&what.space.path(&at), &to)
                .with_context(|| format!("cannot save what lies in {}", at.display()))?;
        }
        image_of(&dumping.images, what)
    };
    match held() {
        Ok(image) => Ok((dumping, image)),
        Err(e) => {
            let _ = dumping.end(false, wait);
            Err(e)
        }
    }
}

impl Dumping {
    /// The end of it: the processes go on, or, where all of it was kept and so was told, that they stood still for so
    /// many microseconds.
    ///
    /// # Errors
    /// CRIU has failed at last, or was told to.
    pub(crate) fn end(mut self, well: bool, wait: Wait<'_>) -> Result<u64> {
        let _ = self.tell.write_all(if well { b"go\n" } else { b"no\n" });
        let ended = self.criu.until_ended(self.until, wait)?;
        ensure!(well && ended, "the job cannot be saved: {}", Reason::of(&self.images.join(DUMP_LOG)).sentence);
        Ok(image::dump_stats(&self.images)?.frozen.into())
    }

    /// Microseconds in which the processes have stood still until now.
    pub(crate) fn still(&self) -> u64 {
        self.still.elapsed().as_micros() as u64
    }

    /// The processes are gone, and CRIU with their namespaces.
    pub(crate) fn leave(mut self) {
        self.criu.end();
    }
}

fn in_fd(fd: &dyn AsRawFd) -> OsString {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

fn quiet(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

/// A signal has come while the job stood still, so that no image has it.
#[derive(Debug, thiserror::Error)]
#[error("signals {signals:#x} have come to process {pid} of the job while it was saved")]
pub struct LateSignal {
    pid: u32,
    signals: image::SignalSet,
}

/// CRIU has dumped the first process with all below it. One that is a child of the init instead would be missing.
fn check_orphans(space: &Space) -> Result<()> {
    for pid in space.processes().into_iter().filter(|pid| *pid != space.root()) {
        let status = fs::read_to_string(space.path(Path::new(&format!("/proc/{pid}/status")))).unwrap_or_default();
        let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if of("PPid:") == Some("1") && !of("State:").is_some_and(|state| state.starts_with('Z')) {
            let name = of("Name:").unwrap_or_default().replace(char::is_control, " ");
            bail!("process {pid} of the job ({name}) is no descendant of its first one any more, and cannot be saved");
        }
    }
    Ok(())
}

/// CRIU looks at a process's pending signals before it writes its memory, and at its timers after: a timer that runs
/// out in between would neither be pending nor set. One that runs out again and again loses a turn only.
fn check_signals(space: &Space, images: &Path) -> Result<()> {
    for process in image::processes(images)? {
        for thread in process.threads.iter().copied().filter(|thread| *thread <= MOST) {
            let path = format!("/proc/{}/task/{thread}/status", process.pid);
            // One that has ended and was not waited for has no signals.
            let Ok(status) = fs::read_to_string(space.path(Path::new(&path))) else { continue };
            let Ok(known) = image::pending(images, thread) else { continue };
            let of = |name: &str| signals_in(&status, name);
            let now = if thread == process.pid { of("SigPnd:") | of("ShdPnd:") } else { of("SigPnd:") };
            let late = now & !known.signals & !known.periodic;
            if late != 0 {
                return Err(LateSignal { pid: process.pid, signals: late }.into());
            }
        }
    }
    Ok(())
}

fn signals_in(status: &str, name: &str) -> image::SignalSet {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|set| image::SignalSet::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// More than any kernel has numbers. CRIU writes nonsense for the thread of a process that has ended and was not waited
/// for.
const MOST: u32 = 1 << 22;

/// Reads the images.
fn image_of(images: &Path, what: &Dump<'_>) -> Result<Image> {
    let processes = image::processes(images)?;
    let numbers = processes.iter().flat_map(|process| process.threads.iter().copied().chain([process.pid]));
    let last = numbers.filter(|number| *number <= MOST).max().unwrap_or(0);
    let own = own_folders(what.private);
    let mut written: Vec<Written> = Vec::new();
    for file in image::files(images)? {
        let path = PathBuf::from(&file.name);
        let access = OFlags::from_bits_retain(file.flags) & OFlags::RWMODE;
        let regular = file.mode.is_some_and(|mode| FileType::from_raw_mode(mode) == FileType::RegularFile);
        // Files in the job's own folders are in the checkpoint anyway; so are files that have lost their names.
        let outside = path.is_absolute() && !own.iter().any(|(_, own)| path.starts_with(own));
        if !(regular && access != OFlags::RDONLY && outside) {
            continue;
        }
        let words = Word(path.as_os_str().as_bytes().to_vec());
        // CRIU says nothing of the size of a file that is only appended to, as by a shell's `>>`. It stands still too.
        let size = fs::metadata(&path).ok().filter(fs::Metadata::is_file).map(|meta| file.size.unwrap_or(meta.len()));
        if let Some(size) = size
            && !written.iter().any(|written| written.path == words)
        {
            written.push(Written { path: words, size });
        }
    }
    let (private, root) = (what.private.to_owned(), what.space.root());
    Ok(Image { host: None, folder: PathBuf::new(), private, root, last, processes: processes.len(), written })
}

/// A CRIU that runs. It is killed if it is given up.
#[derive(Debug)]
struct Running {
    child: Child,
    ended: std::os::fd::OwnedFd,
}

impl Running {
    fn new(child: Child) -> Result<Running> {
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).context("a program without a number")?;
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Running { child, ended })
    }

    /// Until it has ended; whether well.
    fn until_ended(&mut self, until: Instant, others: Wait<'_>) -> Result<bool> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code() == Some(0) && status.signal().is_none());
            }
            self.in_time(until)?;
            others(&[self.ended.as_fd()], Some(until))?;
        }
    }

    /// Until a descriptor is ready, or it has ended; whether the first.
    fn until_ready(&mut self, fd: BorrowedFd<'_>, until: Instant, others: Wait<'_>) -> Result<bool> {
        loop {
            let mut polled = [PollFd::new(fd, PollFlags::POLLIN), PollFd::new(self.ended.as_fd(), PollFlags::POLLIN)];
            if poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
                return Ok(polled[0].any().unwrap_or(false));
            }
            self.in_time(until)?;
            others(&[fd, self.ended.as_fd()], Some(until))?;
        }
    }

    fn in_time(&mut self, until: Instant) -> Result<()> {
        if Instant::now() >= until {
            self.end();
            bail!("CRIU did not end in its time and was killed");
        }
        Ok(())
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.end();
        }
    }
}

/// Cuts the files that the job was writing to what they were.
///
/// # Errors
/// One cannot be cut.
pub(crate) fn cut(image: &Image) -> Result<()> {
    for written in &image.written {
        let path = written.path();
        let cut = || -> std::io::Result<()> {
            let file = fs::OpenOptions::new().write(true).open(path)?;
            if file.metadata()?.len() != written.size {
                file.set_len(written.size)?;
            }
            Ok(())
        };
        cut().with_context(|| format!("cannot cut {} to what it was at the checkpoint", path.display()))?;
    }
    Ok(())
}

/// The parameters of a restore.
#[derive(Debug)]
pub(crate) struct Restore<'a> {
    /// CRIU.
    pub criu: &'a Criu,
    /// The namespaces that wait for their processes.
    pub space: &'a Space,
    /// The supervisor's folder.
    pub place: &'a Place,
    /// The folder of the images.
    pub images: &'a Path,
    /// The bytes of all of them.
    pub bytes: u64,
    /// The numbers of the pipes that are the supervisor's, and the new ones.
    pub streams: Vec<(u64, BorrowedFd<'a>)>,
}

/// Processes that are there again, and stand still.
#[derive(Debug)]
pub(crate) struct Restoring {
    criu: Running,
    tell: File,
    log: PathBuf,
    until: Instant,
}

/// Has CRIU bring the processes back below the init of new namespaces, and stops there: connections to other hosts
/// break if they go on before the other ends are there.
///
/// # Errors
/// What CRIU says.
pub(crate) fn bring_back(what: &Restore<'_>, wait: Wait<'_>) -> Result<Restoring, Refused> {
    what.place.program(HOOK, SCRIPT)?;
    let images = File::open(what.images).context("cannot open the images")?;
    let folder = what.place.folder();
    let (mut hear, tell) = (what.place.fifo("tell")?, what.place.fifo("hear")?);
    let mut words: Vec<OsString> = vec![what.criu.path.clone().into(), "restore".into(), "--restore-detached".into()];
    words.extend(["-D".into(), in_fd(&images), "-W".into(), in_fd(folder), "-o".into(), RESTORE_LOG.into()]);
    words.extend(SHARED.iter().map(OsString::from));
    words.extend(["--action-script".into(), what.space.held(HOOK).into()]);
    let mut passed = vec![images.as_fd(), folder.as_fd()];
    for (number, end) in &what.streams {
        words.extend(["--inherit-fd".into(), format!("fd[{}]:pipe:[{number}]", end.as_raw_fd()).into()]);
        passed.push(*end);
    }
    let child = what.space.start(&words, &passed, quiet)?;
    let until = Instant::now() + PATIENCE + Duration::from_secs(what.bytes / SLOW);
    let log = PathBuf::from(format!("/proc/self/fd/{}/{RESTORE_LOG}", folder.as_raw_fd()));
    let mut criu = Running::new(child)?;
    if !criu.until_ready(hear.as_fd(), until, wait)? {
        return Err(Refused::Criu(Reason::of(&log)));
    }
    hear.read_exact(&mut [0]).context("cannot hear CRIU")?;
    Ok(Restoring { criu, tell, log, until })
}

impl Restoring {
    /// The processes go on. Their devices do not yet.
    ///
    /// # Errors
    /// What CRIU says.
    pub(crate) fn end(mut self, wait: Wait<'_>) -> Result<(), Refused> {
        self.tell.write_all(b"go\n").context("cannot tell CRIU to go on")?;
        if self.criu.until_ended(self.until, wait)? { Ok(()) } else { Err(Refused::Criu(Reason::of(&self.log))) }
    }
}

/// The reason why a job cannot be brought back.
#[derive(Debug)]
pub enum Refused {
    /// The reason that CRIU gives.
    Criu(Reason),
    /// By something else.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Refused {
        Refused::Other(error)
    }
}
