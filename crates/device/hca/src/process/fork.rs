//! A process around fork(2): peers are kept out while memory is copied, and the child begins without a device.

use crate::error::Result;
use crate::host::barrier;
use crate::process::Process;
use crate::process::share_api::Source;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Descriptors that a forked child must not keep: peers see us dead when the last copy of them is closed.
static PRIVATE_FDS: [AtomicU32; 4096] = [const { AtomicU32::new(0) }; 4096];
/// How often this image is a child of the one that it was.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Makes the process of a forked child that opens an object of its parent's.
pub(crate) type Restart = Box<dyn Fn() -> Result<&'static Process> + Send + Sync>;

/// The image that has made a process, and what a forked child of it does for one of its own.
pub(crate) struct Image {
    /// How often it had forked then.
    forks: u32,
    restart: Restart,
}

impl Image {
    /// The calling one.
    pub(super) fn new(restart: Restart) -> Image {
        Image { forks: FORKS.load(Ordering::Relaxed), restart }
    }

    /// Returns true if it is the calling one, and not one that has forked that off.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// The child's process, made now if it has none yet.
    pub(super) fn restart(&self) -> Result<&'static Process> {
        (self.restart)()
    }
}

/// Has peers kept out while the source of shared memory forks, and the progress thread woken when it keeps memory.
pub(super) fn guard(source: Source) {
    source.guard_forks(keep_peers_out, let_peers_in);
    source.call_for_reaper(wake_reaper);
}

unsafe extern "C" fn keep_peers_out() {
    if let Some(process) = Process::current() {
        process.pause_for_fork();
    }
}

unsafe extern "C" fn let_peers_in() {
    if let Some(process) = Process::current() {
        process.resume();
    }
}

unsafe extern "C" fn wake_reaper() {
    if let Some(process) = Process::current() {
        process.own.wake();
    }
}

/// Notes a descriptor that a forked child closes at once.
pub fn keep_from_children(fd: i32) {
    for cell in &PRIVATE_FDS {
        if cell.compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// Takes the note back, before the descriptor is closed.
pub fn forget_private_fd(fd: i32) {
    for cell in &PRIVATE_FDS {
        if cell.compare_exchange(fd as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

pub(super) fn install_handlers() {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if !INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the child's handler only touches atomics, thread-local data and closes descriptors; the others run
        // where anything may be called.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    }
}

extern "C" fn before_fork() {
    if let Some(process) = Process::current()
        && let Some(adopting) = &process.adopting
    {
        // So that the child gets a snapshot of adopted memory. Peers wait.
        process.pause();
        adopting.before_fork();
    }
}

extern "C" fn after_fork_in_parent() {
    if let Some(process) = Process::current()
        && let Some(adopting) = &process.adopting
    {
        adopting.after_fork(&process.keys);
        process.resume();
    }
}

/// In the child: the objects belong to the parent, and so do the sockets by which peers see it alive.
extern "C" fn after_fork_in_child() {
    super::CURRENT.store(std::ptr::null_mut(), Ordering::Release);
    FORKS.fetch_add(1, Ordering::AcqRel);
    crate::host::tid::forget();
    crate::device::port_counters::forget();
    barrier::forget();
    for cell in &PRIVATE_FDS {
        let fd = cell.swap(0, Ordering::AcqRel);
        if fd != 0 {
            // SAFETY: the child's copy of a descriptor that only this library uses; the owner objects in the child are
            // never dropped with effect, for the process they belong to is not the current one.
            unsafe { libc::close(fd as i32 - 1) };
        }
    }
}
