//! Locks by an open file description (F_OFD_SETLK of fcntl(2)). The kernel releases them when its last descriptor is
//! closed.
//!
//! Descriptors, those of forked children included, and mappings keep a description alive, and so its locks. Hence locks
//! are taken by a description of their own, by which nothing is mapped, and a forked child closes its descriptor at
//! once (pthread_atfork(3)). In the child every call fails with ESRCH and changes nothing, as the locks are the
//! parent's. A child of a bare clone(2) or vfork(2) runs no such handler: it holds the parent's locks until it calls
//! exec or ends. A program with fork handlers of its own calls [`in_forked_child`] in them.

use crate::error::{Error, Result};
use crate::locks::{Kernel, Kind};
use std::io;
use std::ops::Range;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The descriptors that a forked child closes.
static DESCRIPTORS: [AtomicI32; 256] = [const { AtomicI32::new(NONE) }; 256];
/// A free place.
const NONE: i32 = -1;
/// A place whose owner lives in the parent.
const FORKED: i32 = -2;
/// Lowest number for descriptors: above those that programs use, as some close or replace all up to a small number.
const HIGH: i32 = 700;

/// Done once a fork handler is registered, or the program has promised one.
static INSTALLED: Once = Once::new();

/// Promises that every fork of this process calls [`in_forked_child`] in the child; to be called before a window is
/// opened. Then no handler is registered: registration takes a lock of the C library that a thread in fork(3) may hold.
pub fn forks_are_handled() {
    INSTALLED.call_once(|| {});
}

/// Gives up the parent's locks in a forked child, and with them the parent's claims. Claims and uses dropped later
/// leave the window unchanged.
pub fn in_forked_child() {
    after_fork_in_child();
}

/// An open file description. Only the process that made this can use it.
#[derive(Debug)]
pub(crate) struct Ofd {
    place: &'static AtomicI32,
}

impl Ofd {
    /// Takes over a descriptor, the only one of its description, open for reading and writing.
    pub(crate) fn new(fd: OwnedFd) -> Result<Ofd> {
        INSTALLED.call_once(|| {
            // SAFETY: the handler only exchanges atomics and closes descriptors.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        });
        let raw = rustix::io::fcntl_dupfd_cloexec(&fd, HIGH).unwrap_or(fd).into_raw_fd();
        let is_free = |p: &&AtomicI32| p.compare_exchange(NONE, raw, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if let Some(place) = DESCRIPTORS.iter().find(is_free) {
            return Ok(Ofd { place });
        }
        close(raw);
        Err(Error::new(libc::EMFILE, format!("this process has {} windows open already", DESCRIPTORS.len())))
    }

    fn fd(&self) -> Result<RawFd> {
        match self.place.load(Ordering::Acquire) {
            fd if fd >= 0 => Ok(fd),
            _ => Err(Error::new(libc::ESRCH, "the window was opened by the process that has forked this one")),
        }
    }

    fn call(&self, command: i32, kind: i32, bytes: Range<u64>) -> Result<io::Result<libc::flock>> {
        // SAFETY: a struct of integers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as _;
        lock.l_whence = libc::SEEK_SET as _;
        (lock.l_start, lock.l_len) = (bytes.start as _, (bytes.end - bytes.start) as _);
        // SAFETY: the struct is valid for the whole call.
        let rc = unsafe { libc::fcntl(self.fd()?, command, &raw mut lock) };
        Ok(if rc == 0 { Ok(lock) } else { Err(io::Error::last_os_error()) })
    }
}

impl Kernel for Ofd {
    fn try_lock(&self, bytes: Range<u64>, kind: Kind) -> Result<bool> {
        let kind = if kind == Kind::Shared { libc::F_RDLCK } else { libc::F_WRLCK };
        match self.call(libc::F_OFD_SETLK, kind, bytes)? {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => Err(refused(e)),
        }
    }

    fn unlock(&self, bytes: Range<u64>) {
        // In a forked child there is nothing to release. Otherwise it fails only if the kernel lacks memory, and then
        // the bytes stay locked until the window is closed.
        let _ = self.call(libc::F_OFD_SETLK, libc::F_UNLCK, bytes);
    }

    fn others(&self, bytes: Range<u64>) -> Result<Option<Range<u64>>> {
        let lock = self.call(libc::F_OFD_GETLK, libc::F_WRLCK, bytes.clone())?.map_err(refused)?;
        if i32::from(lock.l_type) == libc::F_UNLCK {
            return Ok(None);
        }
        // A length of 0 means up to the end of the file.
        let start = lock.l_start as u64;
        let end = if lock.l_len == 0 { u64::MAX } else { start + lock.l_len as u64 };
        Ok(Some(start.max(bytes.start)..end.min(bytes.end)))
    }

    fn now_ms(&self) -> u64 {
        // SAFETY: a struct of integers, which the call fills.
        let mut now: libc::timespec = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
        now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
    }

    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|e| Error::new(libc::EIO, format!("no random number can be had: {e}")))?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn check(&self) -> Result<()> {
        self.fd().map(drop)
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.fd().ok()
    }
}

impl Drop for Ofd {
    fn drop(&mut self) {
        let fd = self.place.swap(NONE, Ordering::AcqRel);
        if fd >= 0 {
            close(fd);
        }
    }
}

fn refused(error: io::Error) -> Error {
    Error::of("the file system of the window has no locks of open file descriptions (F_OFD_SETLK)", error)
}

/// Calls the kernel directly: a preload may keep the C library's function from closing the descriptor.
fn close(fd: RawFd) {
    // SAFETY: a descriptor that only this module has.
    unsafe { rustix::io::close(fd) };
}

extern "C" fn after_fork_in_child() {
    for place in &DESCRIPTORS {
        let fd = place.load(Ordering::Acquire);
        if fd >= 0 {
            place.store(FORKED, Ordering::Release);
            close(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::one;
    use crate::mapping::reopen;
    use crate::simulated::kernel::Simulated;
    use proptest::prelude::*;
    use rustix::fs::OFlags;
    use std::sync::Arc;

    /// A holder, bytes, and an operation.
    fn act() -> impl Strategy<Value = (usize, Range<u64>, u8)> {
        (0..3_usize, 0..12_u64, 1..6_u64, 0..3_u8).prop_map(|(who, at, len, what)| (who, at..at + len, what))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn simulated_locks_are_those_of_open_file_descriptions(acts in prop::collection::vec(act(), 1..40)) {
            let file = OwnedFd::from(tempfile::tempfile().unwrap());
            let real = [(); 3].map(|()| Ofd::new(reopen(&file, OFlags::RDWR).unwrap()).unwrap());
            let table = Arc::default();
            let simulated = [(); 3].map(|()| Simulated::new(&table));
            for (who, bytes, what) in acts {
                let (real, simulated) = (&real[who], &simulated[who]);
                match what {
                    0 => {
                        real.unlock(bytes.clone());
                        simulated.unlock(bytes);
                    }
                    _ => {
                        let kind = if what == 1 { Kind::Shared } else { Kind::Alone };
                        prop_assert_eq!(
                            real.try_lock(bytes.clone(), kind).unwrap(),
                            simulated.try_lock(bytes, kind).unwrap()
                        );
                    }
                }
                for byte in 0..18 {
                    let others = real.others(one(byte)).unwrap();
                    prop_assert_eq!(&others, &simulated.others(one(byte)).unwrap());
                    prop_assert!(others.is_none_or(|others| others == one(byte)));
                }
            }
        }
    }
}
