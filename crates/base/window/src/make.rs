//! Making windows. A window is complete, with all its memory, before others can see it: it has no name or a temporary
//! one.

use crate::error::{Error, Result};
use crate::layout::{self, Layout};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use vervain_config::{Peach2, WindowSpec};

/// Wishes for a window that is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Bytes of the whole window at most; None: 256 MiB for a new one, any for an existing one.
    pub size: Option<u64>,
    /// Number of nodes; None: 8 for a new window, any for an existing one.
    pub nodes: Option<u32>,
    /// Model of the boards through which nodes put; None: no boards.
    pub peach2: Option<Peach2>,
    /// Number of this node; None: that of the calling thread's network namespace, if all nodes are of one kernel.
    pub node: Option<u32>,
}

impl Options {
    /// The wishes of the configuration.
    pub fn of(spec: &WindowSpec) -> Options {
        Options { size: spec.size, nodes: None, peach2: spec.peach2, node: spec.node }
    }

    /// The layout of a new window.
    pub(crate) fn layout(&self) -> Result<Layout> {
        Layout::new(self.nodes.unwrap_or(8), self.size.unwrap_or(256 << 20))
    }

    /// EINVAL: an existing window differs from these wishes.
    pub(crate) fn check(&self, there: Layout, name: &str) -> Result<()> {
        if let Some(nodes) = self.nodes.filter(|n| *n != there.nodes()) {
            return Err(Error::invalid(format!("{name} has {} nodes, not {nodes}", there.nodes())));
        }
        match self.size {
            Some(size) if Layout::new(there.nodes(), size)? != there => Err(Error::invalid(format!(
                "{name} has {} bytes, not {size}: leave size= out, or name another",
                there.size()
            ))),
            _ => Ok(()),
        }
    }
}

/// A window without a name, in memory that cannot shrink; its path is `/proc/self/fd/N`. Any process that gets the
/// descriptor can use it.
///
/// # Errors
/// EINVAL: the options are invalid; ENOMEM or ENOSPC: there is not enough memory.
pub fn memfd(options: &Options) -> Result<OwnedFd> {
    let layout = options.layout()?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"vervain-window", flags)
        .map_err(|e| Error::of("the window's memory cannot be made (memfd_create)", e))?;
    fill(&fd, layout.size(), &first_words(layout)?, Path::new("the memory"))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|e| Error::of("the window's memory cannot be sealed", e))?;
    Ok(fd)
}

/// The first words of a new window.
pub(crate) fn first_words(layout: Layout) -> Result<[u64; 6]> {
    let mut uuid = [0; 16];
    getrandom::fill(&mut uuid).map_err(|e| Error::new(libc::EIO, format!("no random number can be had: {e}")))?;
    Ok(layout::first_words(layout, uuid))
}

/// Folder in which windows are made only in [`SHARED_MEMORY`]: an absent device would become a file in the machine's
/// memory.
const DEVICES: &str = "/dev";
/// The file system below [`DEVICES`] in which windows are made.
const SHARED_MEMORY: &str = "/dev/shm";

/// ENOENT: `folder` belongs to devices, so a window absent there is not to be made.
pub(crate) fn check_place(folder: &Path, path: &Path) -> Result<()> {
    // An absent folder fails later, with an error of its own.
    let Ok(real) = folder.canonicalize() else { return Ok(()) };
    if !real.starts_with(DEVICES) || real.starts_with(SHARED_MEMORY) {
        return Ok(());
    }
    let path = path.display();
    Err(Error::new(
        libc::ENOENT,
        format!(
            "the window {path} is not there, and below {DEVICES} none is made but in {SHARED_MEMORY}: name a device that is \
             there (`ndctl list`, `daxctl list`), or a file"
        ),
    ))
}

/// The folder of a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file of `len` bytes that begins with `words` appear at `path`. Returns false if something is there already.
pub(crate) fn file(path: &Path, len: u64, words: &[u64]) -> Result<bool> {
    let cannot = |e| Error::of(format_args!("the window {} cannot be made", path.display()), e);
    let folder = folder_of(path);
    check_place(folder, path)?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        Ok(fd) => {
            fill(&fd, len, words, path)?;
            let itself = format!("/proc/self/fd/{}", fd.as_raw_fd());
            appear(Path::new(&itself), path).map_err(cannot)
        }
        // Not every file system has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let other = other_name(path)?;
            let fd = rustix::fs::open(&other, flags | OFlags::CREATE | OFlags::EXCL, mode).map_err(cannot)?;
            let done = fill(&fd, len, words, path).and_then(|()| appear(&other, path).map_err(cannot));
            let _ = std::fs::remove_file(&other);
            done
        }
        Err(e) => Err(cannot(e)),
    }
}

pub(crate) fn other_name(path: &Path) -> Result<PathBuf> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| Error::new(libc::EIO, format!("no random number can be had: {e}")))?;
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or_else(|| Error::invalid(format!("{} is no name of a file", path.display())))?);
    name.push(format!(".{:016x}", u64::from_ne_bytes(bytes)));
    Ok(path.with_file_name(name))
}

fn appear(from: &Path, path: &Path) -> rustix::io::Result<bool> {
    match rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives an empty file all its memory: zeros after its first words.
fn fill(fd: &OwnedFd, len: u64, words: &[u64], path: &Path) -> Result<()> {
    let name = path.display();
    // A write beyond this limit would raise SIGXFSZ.
    // SAFETY: a struct of integers, which the call fills.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0 && limit.rlim_cur < len {
        let most = limit.rlim_cur;
        return Err(Error::new(
            libc::EFBIG,
            format!("{name}: the window has {len} bytes, and files {most} at most (ulimit -f)"),
        ));
    }
    let room = |e| Error::of(format_args!("{name}: there is no room for a window of {len} bytes"), e);
    // Without this check the file system would be full until the last piece fails. A memfd reports 0 blocks.
    if rustix::fs::fstatvfs(fd).is_ok_and(|fs| fs.f_blocks > 0 && fs.f_bavail.saturating_mul(fs.f_frsize) < len) {
        return Err(room(std::io::Error::from_raw_os_error(libc::ENOSPC)));
    }
    allocate_all(fd, len).map_err(room)?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match rustix::io::pwrite(fd, &bytes, 0) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(Error::new(libc::ENOSPC, format!("{name}: the window's header cannot be written"))),
        Err(e) => Err(Error::of(format_args!("{name}: the window's header cannot be written"), e)),
    }
}

/// Allocates the first `len` bytes of a file.
pub(crate) fn allocate_all(fd: impl AsFd, len: u64) -> std::io::Result<()> {
    // In pieces, as a signal makes the kernel undo the whole call.
    const PIECE: u64 = 4 << 20;
    (0..len).step_by(PIECE as usize).try_for_each(|at| allocate(&fd, at, PIECE.min(len - at)))
}

fn allocate(fd: impl AsFd, at: u64, len: u64) -> std::io::Result<()> {
    loop {
        // posix_fallocate(3) writes where the file system cannot allocate.
        // SAFETY: a call on a descriptor.
        match unsafe { libc::posix_fallocate(fd.as_fd().as_raw_fd(), at as _, len as _) } {
            0 => return Ok(()),
            libc::EINTR => {}
            e => return Err(std::io::Error::from_raw_os_error(e)),
        }
    }
}
