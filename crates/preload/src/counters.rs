//! Counters are the files of the tree whose content is not there yet: a program that opens one gets its value of that moment,
//! in a file of its own under the same descriptor. sysfs answers every read anew; here one that is read again from the start
//! says what it said first.
//!
//! They are told by their mode, and not by their path, for a program may come to them by a directory that it has open.

use std::ffi::c_int;
use std::io::Write;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use vervain_counters::{PLACEHOLDER_MODE, WORDS, parse_placeholder, sum, sums};

use crate::real::{errno, set_errno};
use crate::view;

/// Longest placeholder, and longest path of the file with the counts.
const TEXT: usize = 128;

/// Whether the program has been in the tree, so that a path without a directory may mean something there.
static VISITED: AtomicBool = AtomicBool::new(false);

/// The program sees, or may see, a directory of the tree.
pub fn visited() {
    VISITED.store(true, Ordering::Relaxed);
}

/// Whether it has.
#[inline]
pub fn may_be_inside() -> bool {
    VISITED.load(Ordering::Relaxed)
}

/// If `fd`, just opened, is a counter's placeholder, it becomes the counter.
#[cold]
#[inline(never)]
pub fn bring_to_life(fd: c_int) {
    let before = errno();
    if is_placeholder(fd)
        && let Some(value) = value(fd)
    {
        give(fd, value);
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

/// The value of the counter that placeholder `fd` stands for. Takes no memory: a hook may run anywhere.
fn value(fd: c_int) -> Option<u64> {
    let mut text = [0_u8; TEXT];
    // SAFETY: reads at most the size of the buffer into it.
    let n = unsafe { libc::pread(fd, text.as_mut_ptr().cast(), TEXT, 0) };
    let (port, ports, counter) = parse_placeholder(text.get(..usize::try_from(n).ok()?)?)?;
    let counts = view::with_file_of_tree(vervain_counters::FILE, |path| {
        // Not by open, which is ours.
        // SAFETY: a C string.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC) as c_int }
    })?;
    let mut words = [0; WORDS];
    // Nobody has counted anything before the file is there.
    if counts >= 0 {
        words = sums(counts, port, ports);
        // SAFETY: opened above.
        unsafe { libc::close(counts) };
    }
    Some(sum(counter, &words))
}

/// Puts a file with `value` in the place of `fd`, which stays what it is where that cannot be made.
fn give(fd: c_int, value: u64) {
    let mut text = [0_u8; TEXT];
    let mut rest = &mut text[..];
    if writeln!(rest, "{value}").is_err() {
        return;
    }
    let length = TEXT - rest.len();
    // SAFETY: plain calls on a descriptor of our own, with a buffer of that length; `fd` is the program's, which has not seen
    // it yet.
    unsafe {
        let file = libc::memfd_create(c"vervain-counter".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return;
        }
        let flags = if libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        if libc::pwrite(file, text.as_ptr().cast(), length, 0) == length as isize {
            libc::dup3(file, fd, flags);
        }
        libc::close(file);
    }
}
