//! Counters are the files of the tree whose content is not there yet: a program that opens one gets its value of that
//! moment, in a file of its own under the same descriptor, and as in sysfs anew with each read from the start, which
//! perftest relies on. The file's name says which counter it is.
//!
//! They are told by their mode, and not by their path, for a program may come to them by a directory that it has open.
//! One without a text is an attribute that has no value: its read fails with EINVAL, as the kernel's does.

use std::ffi::c_int;
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::off_t;
use vervain_counters::{PLACEHOLDER_MODE, WORDS, held_sums, parse_placeholder, sum, sums};
use vervain_share::sys::without_sigxfsz;

use crate::real::{errno, set_errno};
use crate::view;

/// Longest placeholder, and longest path of the file with the counts.
const TEXT: usize = 128;

/// True if the program has been in the tree, so that a path without a directory may mean something there.
static VISITED: AtomicBool = AtomicBool::new(false);

/// The program sees, or may see, a directory of the tree.
pub fn visited() {
    VISITED.store(true, Ordering::Relaxed);
}

/// Returns true if it has.
#[inline]
pub fn may_be_inside() -> bool {
    VISITED.load(Ordering::Relaxed)
}

/// If `fd`, just opened, is a placeholder, it becomes the counter, or the attribute without a value.
#[cold]
#[inline(never)]
pub fn bring_to_life(fd: c_int) {
    let before = errno();
    let mut text = [0_u8; TEXT];
    if is_placeholder(fd)
        && let Some(text) = read(fd, &mut text)
    {
        if text.is_empty() {
            refuse_reads(fd);
        } else if let Some(value) = value(text) {
            give(fd, text, value);
        }
    }
    set_errno(before);
}

/// Descriptors that have been a counter, one bit each. A descriptor may be another file by now; the file's name
/// decides.
static LIVE: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

/// The word and the bit of a descriptor.
#[inline]
fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((LIVE.get(fd / 64)?, 1 << (fd % 64)))
}

/// Returns true if `fd` may be a counter: all that a read of another file costs.
#[inline]
pub fn may_be_one(fd: c_int) -> bool {
    may_be_inside() && bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// If `fd` is a counter that lives, and is about to be read from its start, it gets its value of now. `at` is the place
/// that is read, where that is not the file's own.
#[cold]
#[inline(never)]
pub fn renew(fd: c_int, at: Option<off_t>) {
    let before = errno();
    // SAFETY: asks for the place in the program's file.
    if at.unwrap_or_else(|| unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }) != 0 {
        return;
    }
    let mut text = [0_u8; TEXT];
    if let Some(name) = name_of(fd, &mut text)
        && let Some(value) = value(name)
    {
        write(fd, value);
    }
    set_errno(before);
}

fn is_placeholder(fd: c_int) -> bool {
    let mut meta = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the struct when it says 0.
    let meta = unsafe {
        if libc::fstat(fd, meta.as_mut_ptr()) != 0 {
            return false;
        }
        meta.assume_init()
    };
    // SAFETY: geteuid cannot fail.
    meta.st_mode == libc::S_IFREG | PLACEHOLDER_MODE && meta.st_uid == unsafe { libc::geteuid() }
}

/// The text of a placeholder.
fn read(fd: c_int, text: &mut [u8; TEXT]) -> Option<&[u8]> {
    // SAFETY: reads at most the size of the buffer, less one for a NUL, into it.
    let n = unsafe { libc::syscall(libc::SYS_pread64, fd, text.as_mut_ptr(), TEXT - 1, 0) };
    text.get(..usize::try_from(n).ok()?)
}

/// The text of a counter that is open, from its file's name.
fn name_of(fd: c_int, text: &mut [u8; TEXT]) -> Option<&[u8]> {
    const FRAME: (&[u8], &[u8]) = (b"/memfd:", b" (deleted)");
    let mut link = [0_u8; 32];
    write!(&mut link[..], "/proc/self/fd/{fd}\0").ok()?;
    // SAFETY: a C string, and a buffer of that size.
    let n = unsafe { libc::readlink(link.as_ptr().cast(), text.as_mut_ptr().cast(), TEXT) };
    text.get(..usize::try_from(n).ok()?)?.strip_prefix(FRAME.0)?.strip_suffix(FRAME.1)
}

/// The value of the counter that a placeholder stands for. Takes no memory: a hook may run anywhere.
fn value(placeholder: &[u8]) -> Option<u64> {
    let (port, ports, counter) = parse_placeholder(placeholder)?;
    Some(sum(counter, &with_counts(|counts| sums(counts, port, ports))?))
}

/// The words that count the objects of the device whose first port is `port` of `ports`; None without a tree.
pub fn objects(port: usize, ports: usize) -> Option<[u64; WORDS]> {
    with_counts(|counts| held_sums(counts, port, ports))
}

/// Calls `f` with the file of counts. If it is not there yet, nothing has been counted: zeros. None without a tree.
fn with_counts(f: impl FnOnce(c_int) -> [u64; WORDS]) -> Option<[u64; WORDS]> {
    let counts = view::with_file_of_tree(vervain_counters::FILE, |path| {
        // Not by open, which is ours.
        // SAFETY: a C string.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC) as c_int }
    })?;
    if counts < 0 {
        return Some([0; WORDS]);
    }
    let words = f(counts);
    // SAFETY: opened above.
    unsafe { libc::close(counts) };
    Some(words)
}

/// Puts a file that cannot be read, an epoll's, in the place of `fd`: read(2) of it is EINVAL.
fn refuse_reads(fd: c_int) {
    // SAFETY: plain calls on a descriptor of our own; `fd` is the program's, which has not seen it yet.
    unsafe {
        let file = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if file >= 0 {
            replace(fd, file);
        }
    }
}

/// Makes `fd` the file that `file` is, which is closed; it is kept over exec(3) or not, as before.
///
/// # Safety
/// `fd` is a descriptor that the program has not seen yet, and `file` one of our own.
unsafe fn replace(fd: c_int, file: c_int) {
    // SAFETY: as the caller says.
    unsafe {
        let flags = if libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        libc::dup3(file, fd, flags);
        libc::close(file);
    }
}

/// Puts a file with `value` in the place of `fd`, which stays what it is where that cannot be made.
fn give(fd: c_int, placeholder: &[u8], value: u64) {
    let mut name = [0_u8; TEXT];
    let line = placeholder.split(|b| *b == b'\n').next().unwrap_or_default();
    name[..line.len()].copy_from_slice(line);
    // SAFETY: plain calls on a descriptor of our own, named by a C string, for the placeholder was shorter than the
    // buffer; `fd` is the program's, which has not seen it yet.
    unsafe {
        let file = libc::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC);
        if file < 0 {
            return;
        }
        if !write(file, value) {
            libc::close(file);
            return;
        }
        replace(fd, file);
        if let Some((word, bit)) = bit(fd) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

/// Makes `value` all that is in a file; whether it could.
fn write(file: c_int, value: u64) -> bool {
    let mut text = [0_u8; TEXT];
    let mut rest = &mut text[..];
    let _ = writeln!(rest, "{value}");
    let length = TEXT - rest.len();
    // SAFETY: plain calls with a buffer of that length. A value never gets shorter.
    without_sigxfsz(|| unsafe { libc::pwrite(file, text.as_ptr().cast(), length, 0) == length as isize })
}
