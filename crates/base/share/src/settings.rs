//! The settings of allocation from shared memory: `VERVAIN_SHARE`, `VERVAIN_FORK_LIMIT`, and the limits of the machine
//! and of resources. Read once, at the first large request of a process that uses verbs.

use std::ffi::CStr;
use std::fmt::{self, Write};

use vervain_config::{ADOPT, FORK_LIMIT, SHARE, Share, Switch, Variable, bytes};

use crate::{checkers, sys};

/// Requests of this many bytes and more are served.
pub const THRESHOLD: usize = 128 << 10;

/// Milliseconds for which freed memory is kept.
pub(crate) const KEEP_MS: u64 = 1000;

/// The reason why nothing is allocated from shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// `VERVAIN_SHARE=off`.
    Variable,
    /// `VERVAIN_SHARE` or `VERVAIN_FORK_LIMIT` has a value that is none.
    BadVariable,
    /// The program has a sanitizer, or runs under memcheck: those are the allocator, and decide where memory lies.
    Checked,
    /// The kernel counts shared memory when it is touched (overcommit_memory 2): a full machine would be SIGBUS there.
    StrictOvercommit,
    /// RLIMIT_FSIZE forbids a file of that length.
    FileSizeLimit,
    /// RLIMIT_AS is too small to have anything but the C library's heap.
    AddressSpaceLimit,
    /// memfd_create, sealing or mmap refused.
    Kernel(i32),
}

impl Off {
    /// The reason, as the second half of a sentence.
    pub fn reason(self) -> String {
        match self {
            Off::Variable => "VERVAIN_SHARE=off".into(),
            Off::BadVariable => "VERVAIN_SHARE or VERVAIN_FORK_LIMIT has a wrong value".into(),
            Off::Checked => "the program has a sanitizer, or runs under memcheck".into(),
            Off::StrictOvercommit => {
                "vm.overcommit_memory is 2, where shared memory on a full machine would end in SIGBUS".into()
            }
            Off::FileSizeLimit => "the file size limit (ulimit -f) is smaller than the heap".into(),
            Off::AddressSpaceLimit => "the address space limit (ulimit -v) is too small".into(),
            Off::Kernel(code) => {
                format!("the kernel refuses a sealed memfd ({})", std::io::Error::from_raw_os_error(code))
            }
        }
    }
}

/// The settings of this process image.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Length of the heap object: twice the machine's memory, a power of two.
    pub heap_len: usize,
    /// Bytes of freed memory that are kept for the next request: a sixteenth of the memory that this process may have.
    pub cache_limit: usize,
    /// Requests beyond this are the kernel's, which refuses them (overcommit_memory 0).
    pub largest: usize,
    /// Bytes that a fork copies at most.
    pub fork_limit: usize,
    /// Blocks that there may be at once, each of which may take a mapping: half of what a process may have.
    pub most_blocks: usize,
    /// True if the device adopts private memory when it is registered (`VERVAIN_ADOPT`).
    pub adopts: bool,
    /// True if the host gives huge pages to shared memory that asks for them.
    pub huge: bool,
}

/// Returns true if memory is to be shared from the start, and not from the moment that the process loads the verbs
/// library.
pub fn from_the_start() -> bool {
    SHARE.look(|value| value.and_then(Share::of)) == Some(Share::Always)
}

/// One line on standard error, by a system call: no stdio inside of malloc.
pub(crate) fn say(parts: &[&[u8]]) {
    let mut line = [0_u8; 512];
    let mut used = 0;
    for part in parts.iter().copied().chain([&b"\n"[..]]) {
        let n = part.len().min(line.len() - used);
        line[used..used + n].copy_from_slice(&part[..n]);
        used += n;
    }
    // SAFETY: the buffer holds `used` bytes.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), used) };
}

/// A line of [`say`] that is put together, as much of it as has room.
struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.used..];
        let n = text.len().min(room.len());
        room[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.used += n;
        Ok(())
    }
}

/// The value of a variable; `None` if it is not set. A wrong one is reported on standard error.
fn asked<T>(variable: &'static Variable, of: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>, Off> {
    variable.look(|value| {
        let Some(value) = value else { return Ok(None) };
        of(value).map(Some).ok_or_else(|| {
            let mut line = Line { bytes: [0; 512], used: 0 };
            let _ = write!(line, "vervain: {}; nothing is allocated from shared memory", variable.wrong(value));
            say(&[&line.bytes[..line.used]]);
            Off::BadVariable
        })
    })
}

/// Memory and swap of the machine in bytes.
fn machine_memory() -> (usize, usize) {
    // SAFETY: all zeros is a valid sysinfo.
    let mut about: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable; a call that cannot fail otherwise.
    unsafe { libc::sysinfo(&raw mut about) };
    let unit = (about.mem_unit as usize).max(1);
    (about.totalram as usize * unit, about.totalswap as usize * unit)
}

/// The memory that the control groups of this process allow it (`memory.max`, in version 1 `memory.limit_in_bytes`),
/// found at the usual places of their file systems; None without such a limit.
fn group_memory() -> Option<usize> {
    let (text, n) = sys::read_small::<4096>(c"/proc/self/cgroup")?;
    let lines = std::str::from_utf8(&text[..n]).ok()?.lines();
    let limits = lines.filter_map(|line| {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if id == "0" {
            smallest_limit("/sys/fs/cgroup", path, "memory.max")
        } else if controllers.split(',').any(|c| c == "memory") {
            smallest_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
        } else {
            None
        }
    });
    limits.min()
}

/// The smallest number that `file` has in a group and in those around it. In a container the path may be the host's,
/// and only the last of them there.
fn smallest_limit(root: &str, path: &str, file: &str) -> Option<usize> {
    let above = std::path::Path::new(path.trim_start_matches('/')).ancestors();
    let limits = above.filter_map(|group| {
        let file = std::path::Path::new(root).join(group).join(file);
        number(&std::ffi::CString::new(file.into_os_string().into_encoded_bytes()).ok()?)
    });
    limits.min()
}

fn first_byte(path: &CStr) -> Option<u8> {
    sys::read_small::<8>(path).map(|(bytes, _)| bytes[0])
}

/// The number that a file of /proc or of a control group has; `None` where it has none ("max") or is not there.
fn number(path: &CStr) -> Option<usize> {
    let (text, n) = sys::read_small::<32>(path)?;
    std::str::from_utf8(&text[..n]).ok()?.trim().parse().ok()
}

/// Returns true if shmem_enabled has one of the words that give huge pages to memory that asks for them.
fn host_has_huge_pages() -> bool {
    let Some((text, n)) = sys::read_small::<128>(c"/sys/kernel/mm/transparent_hugepage/shmem_enabled") else {
        return false;
    };
    let text = &text[..n];
    [&b"[always]"[..], b"[within_size]", b"[advise]", b"[force]"].iter().any(|w| text.windows(w.len()).any(|s| s == *w))
}

impl Settings {
    /// Reads variables, limits and the host. A wrong variable is reported on standard error.
    pub(crate) fn read() -> Result<Settings, Off> {
        if asked(&SHARE, Share::of)? == Some(Share::Off) {
            return Err(Off::Variable);
        }
        if checkers::sanitized() || checkers::memcheck() {
            return Err(Off::Checked);
        }
        let (machine, swap) = machine_memory();
        let memory = machine.min(group_memory().unwrap_or(usize::MAX));
        let fork_limit = asked(&FORK_LIMIT, |value| usize::try_from(bytes(value)?).ok())?.unwrap_or(memory / 4);
        let largest = match first_byte(c"/proc/sys/vm/overcommit_memory") {
            Some(b'2') => return Err(Off::StrictOvercommit),
            Some(b'1') => usize::MAX,
            _ => machine + swap,
        };
        let heap_len = (2 * machine).next_power_of_two().min(1 << 43);
        // Freed memory that is kept counts as well; a program that lives within a small limit has none to spare.
        let space = sys::limit(libc::RLIMIT_AS);
        if space.is_some_and(|limit| limit < 64 << 20) {
            return Err(Off::AddressSpaceLimit);
        }
        let adopts = ADOPT.look(|value| value.and_then(Switch::of)) == Some(Switch::On);
        let most_blocks = number(c"/proc/sys/vm/max_map_count").unwrap_or(65_530) / 2;
        let cache_limit = (memory / 16).min(space.map_or(usize::MAX, |limit| limit as usize / 16));
        Ok(Settings { heap_len, cache_limit, fork_limit, largest, most_blocks, adopts, huge: host_has_huge_pages() })
    }
}
