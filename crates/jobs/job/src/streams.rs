//! A job's standard streams. A file is given to the job as it is, so that CRIU opens it again where it stood. A pipe or
//! terminal of who started the job is nobody's who could be brought back; so the job has a pipe of the supervisor's,
//! which copies.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::space::own_folders;

/// Time to wait for the last output.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The streams of a supervisor, from one life of its job to the next.
#[derive(Debug)]
pub struct Streams {
    copied: [bool; 3],
    input: Arc<Mutex<Option<File>>>,
    ended: (Sender<()>, Receiver<()>),
    copying: usize,
}

/// The job's ends of the streams for one life.
#[derive(Debug)]
pub struct Ends(pub [Option<OwnedFd>; 3]);

impl Streams {
    /// Those of a job that is started: what is no file that the job can see is copied.
    pub fn of_this_process(private: &Path) -> Streams {
        let copied = |stream: BorrowedFd<'_>| is_copied(stream, private);
        Streams::new([copied(io::stdin().as_fd()), copied(io::stdout().as_fd()), copied(io::stderr().as_fd())])
    }

    /// Those that are copied.
    pub fn new(copied: [bool; 3]) -> Streams {
        let input = Arc::new(Mutex::new(None));
        if copied[0] {
            let input = Arc::clone(&input);
            thread::spawn(move || feed(&input));
        }
        Streams { copied, input, ended: channel(), copying: 0 }
    }

    /// New pipes, of which the job gets its ends. `unread` is what it was to read first.
    ///
    /// # Errors
    /// There is no room for pipes or threads.
    pub fn connect(&mut self, unread: Vec<u8>) -> Result<Ends> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe");
        let mut ends = [None, None, None];
        if self.copied[0] {
            let (read, write) = pipe()?;
            let mut write = File::from(write);
            let input = Arc::clone(&self.input);
            thread::spawn(move || {
                if write.write_all(&unread).is_ok() {
                    *input.lock().unwrap_or_else(PoisonError::into_inner) = Some(write);
                }
            });
            ends[0] = Some(read);
        }
        for (stream, end) in ends.iter_mut().enumerate().skip(1) {
            if self.copied[stream] {
                let (read, write) = pipe()?;
                let ended = self.ended.0.clone();
                thread::spawn(move || {
                    drain(File::from(read), stream);
                    let _ = ended.send(());
                });
                self.copying += 1;
                *end = Some(write);
            }
        }
        Ok(Ends(ends))
    }

    /// Waits until what the job has written is out. It has ended by then.
    pub fn finish(&mut self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let until = Instant::now() + LAST_OUTPUT;
        while self.copying > 0 && self.ended.1.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {
            self.copying -= 1;
        }
    }
}

impl Ends {
    /// As a new program gets them.
    ///
    /// # Errors
    /// There is no room for descriptors.
    pub fn stdio(&self) -> Result<[Stdio; 3]> {
        let one = |end: &Option<OwnedFd>| -> Result<Stdio> {
            Ok(match end {
                Some(end) => end.try_clone()?.into(),
                None => Stdio::inherit(),
            })
        };
        Ok([one(&self.0[0])?, one(&self.0[1])?, one(&self.0[2])?])
    }

    /// The pipes' numbers, as /proc and CRIU have them.
    pub fn numbers(&self) -> [Option<u64>; 3] {
        self.0.each_ref().map(|end| Some(fstat(end.as_ref()?).ok()?.st_ino))
    }
}

/// A file or a device that the job can open too is its own; one that is closed stays closed.
fn is_copied(stream: BorrowedFd<'_>, private: &Path) -> bool {
    let Ok(stat) = fstat(stream) else { return false };
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile && (kind != FileType::CharacterDevice || rustix::termios::isatty(stream)) {
        return true;
    }
    match path_of(stream) {
        Some(path) => own_folders(private).iter().any(|(_, own)| path.starts_with(own)),
        None => true,
    }
}

/// The path of an open file, if it still leads there.
fn path_of(stream: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd())).ok()?;
    let (there, here) = (std::fs::metadata(&path).ok()?, fstat(stream).ok()?);
    ((there.dev(), there.ino()) == (here.st_dev, here.st_ino)).then_some(path)
}

/// The standard streams as the job gets them in a mount namespace of its own: pipes as they are, files opened anew at
/// the same place. CRIU looks for an open file in the namespace's mounts, where one that was opened outside is not.
///
/// # Errors
/// A file cannot be opened, which could be a moment ago.
pub fn opened_here() -> Result<[Stdio; 3]> {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut opened: [Option<File>; 3] = [None, None, None];
    for (at, stream) in streams.into_iter().enumerate() {
        let Ok(stat) = fstat(stream) else { continue };
        if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::CharacterDevice) {
            continue;
        }
        // `> FILE 2>&1` is one open file, where each line stands behind the one before.
        let same =
            |other: &usize| fstat(streams[*other]).is_ok_and(|o| (o.st_dev, o.st_ino) == (stat.st_dev, stat.st_ino));
        if let Some(file) = (1..at).find(same).and_then(|other| opened[other].as_ref()) {
            opened[at] = Some(file.try_clone()?);
            continue;
        }
        let path = path_of(stream).context("a standard stream is no file that can be opened")?;
        let flags = rustix::fs::fcntl_getfl(stream)?;
        let access = flags & OFlags::RWMODE;
        let mut options = File::options();
        options.read(access != OFlags::WRONLY).write(access != OFlags::RDONLY);
        options.custom_flags((flags & OFlags::NONBLOCK).bits().cast_signed());
        options.append(flags.contains(OFlags::APPEND) && access != OFlags::RDONLY);
        let file = options.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if let Ok(position) = rustix::fs::tell(stream) {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(position))?;
        }
        opened[at] = Some(file);
    }
    Ok(opened.map(|file| file.map_or_else(Stdio::inherit, Stdio::from)))
}

/// Sets the place in files that the job has written to its end, as if the job had shared it: who writes there next goes
/// on behind.
pub fn go_behind() {
    for stream in [io::stdout().as_fd(), io::stderr().as_fd()] {
        let is_file = fstat(stream).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        if is_file {
            let _ = rustix::fs::seek(stream, rustix::fs::SeekFrom::End(0));
        }
    }
}

/// Copies what comes to whom there is at that time.
fn feed(input: &Mutex<Option<File>>) {
    let mut piece = [0; 64 << 10];
    loop {
        // A terminal that belongs to others now is not read, which would stop this process.
        let stdin = io::stdin();
        let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::NONE).is_err_and(|e| e != nix::errno::Errno::EINTR) {
            return;
        }
        // Not by std's buffer, which would keep what nobody has asked for.
        let length = match rustix::io::read(&stdin, &mut piece) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Ok(length) if length > 0 => length,
            _ => 0,
        };
        // Between two lives there is nobody.
        let writer = loop {
            let writer = input.lock().unwrap_or_else(PoisonError::into_inner).take();
            match writer {
                Some(writer) => break writer,
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        if length == 0 {
            // Dropped: the job finds the end.
            return;
        }
        let mut writer = writer;
        if writer.write_all(&piece[..length]).is_ok() {
            *input.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        }
    }
}

/// Copies until nobody writes any more, or nobody reads.
fn drain(mut from: File, stream: usize) {
    let mut piece = [0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        let written = if stream == 1 {
            let mut out = io::stdout().lock();
            out.write_all(&piece[..length]).and_then(|()| out.flush())
        } else {
            io::stderr().lock().write_all(&piece[..length])
        };
        if written.is_err() {
            return;
        }
    }
}
