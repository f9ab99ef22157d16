//! A userfaultfd for the time of one adoption: while it is open, threads that touch pages that are away wait in the
//! kernel, in their own code as well as inside system calls. Its fault messages are not read: threads that wait are
//! woken when the pages are back, and look again. It never outlives the call that opened it: CRIU saves no process that
//! has one open (its issue 2021), and jobs are saved by CRIU (docs/checkpoint.md).

use super::sys::{Stop, checked, stop};
use libc::c_ulong;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const API: u64 = 0xaa;
/// Write protection, also of shared memory (Linux 5.19), and UFFDIO_MOVE (Linux 6.8). `linux/userfaultfd.h`.
const FEATURES: u64 = 1 << 0 | 1 << 12 | 1 << 16;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const COPY_DONTWAKE: u64 = 1;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;
/// How often a page is tried again that the kernel is busy with (reclaim, migration, a split of a huge page).
const PATIENCE: u32 = 1000;

const IOCTL_API: c_ulong = readwrite(0x3f, 24);
const IOCTL_REGISTER: c_ulong = readwrite(0x00, 32);
const IOCTL_UNREGISTER: c_ulong = read(0x01, 16);
const IOCTL_WAKE: c_ulong = read(0x02, 16);
const IOCTL_COPY: c_ulong = readwrite(0x03, 40);
const IOCTL_MOVE: c_ulong = readwrite(0x05, 40);
const IOCTL_WRITEPROTECT: c_ulong = readwrite(0x06, 24);
/// `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const IOCTL_NEW: c_ulong = API << 8;

const fn read(number: c_ulong, size: c_ulong) -> c_ulong {
    2 << 30 | size << 16 | API << 8 | number
}

const fn readwrite(number: c_ulong, size: c_ulong) -> c_ulong {
    3 << 30 | size << 16 | API << 8 | number
}

/// An open userfaultfd that also handles faults of the kernel (in `read`, `write` and so on).
pub(super) struct Uffd(OwnedFd);

impl Uffd {
    /// Opens one. The error names the part that the process or the kernel lacks.
    pub(super) fn open() -> Result<Uffd, Stop> {
        // SAFETY: no pointers; the descriptor is owned at once.
        let raw = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = if raw >= 0 {
            // SAFETY: just returned by the kernel.
            unsafe { OwnedFd::from_raw_fd(raw as i32) }
        } else {
            open_device().ok_or(Stop {
                errno: libc::EPERM,
                what: "userfaultfd for faults inside system calls is refused (it needs CAP_SYS_PTRACE, \
                       vm.unprivileged_userfaultfd=1 or access to /dev/userfaultfd)",
            })?
        };
        let uffd = Uffd(fd);
        let mut api = [API, FEATURES, 0];
        if uffd.call("userfaultfd", IOCTL_API, &mut api).is_err() {
            return stop("the kernel lacks UFFDIO_MOVE or write protection of shared memory (it needs Linux 6.8)");
        }
        Ok(uffd)
    }

    fn call<const N: usize>(&self, what: &'static str, request: c_ulong, words: &mut [u64; N]) -> Result<(), Stop> {
        // SAFETY: `words` has the size that the request encodes.
        checked(what, unsafe { libc::syscall(libc::SYS_ioctl, self.0.as_raw_fd(), request, words.as_mut_ptr()) })?;
        Ok(())
    }

    /// From now on, a thread that touches an absent page of the range waits.
    pub(super) fn register_missing(&self, addr: usize, len: usize) -> Result<(), Stop> {
        self.register(addr, len, MODE_MISSING)
    }

    /// Makes the range one whose pages can be write-protected, and that pages can be moved into.
    pub(super) fn register_wp(&self, addr: usize, len: usize) -> Result<(), Stop> {
        self.register(addr, len, MODE_WP)
    }

    fn register(&self, addr: usize, len: usize, mode: u64) -> Result<(), Stop> {
        self.call("userfaultfd on the range", IOCTL_REGISTER, &mut [addr as u64, len as u64, mode, 0])
    }

    /// Ends a registration and wakes the threads that wait in the range.
    pub(super) fn unregister(&self, addr: usize, len: usize) {
        let _ = self.call("unregister", IOCTL_UNREGISTER, &mut [addr as u64, len as u64]);
        self.wake(addr, len);
    }

    /// Has the threads that wait in the range look again.
    pub(super) fn wake(&self, addr: usize, len: usize) {
        let _ = self.call("wake", IOCTL_WAKE, &mut [addr as u64, len as u64]);
    }

    /// Makes writers of the range wait from now on (readers go on), or lets them go on.
    pub(super) fn write_protect(&self, addr: usize, len: usize, on: bool) -> Result<(), Stop> {
        let mut words = [addr as u64, len as u64, u64::from(on)];
        for _ in 0..PATIENCE {
            match self.call("write protection", IOCTL_WRITEPROTECT, &mut words) {
                Err(Stop { errno: libc::EAGAIN, .. }) => continue,
                done => return done,
            }
        }
        stop("write protection: the kernel is busy with the range")
    }

    /// Fills `[to, to + len)`, private, registered and without pages, with copies of the pages at `from`.
    pub(super) fn copy_pages(&self, to: usize, from: usize, len: usize) -> Result<(), Stop> {
        let (mut done, mut tries) = (0, 0);
        while done < len {
            let mut words = [(to + done) as u64, (from + done) as u64, (len - done) as u64, COPY_DONTWAKE, 0];
            let result = self.call("UFFDIO_COPY", IOCTL_COPY, &mut words);
            let n = words[4] as i64;
            match result {
                _ if n > 0 => (done, tries) = (done + n as usize, 0),
                Err(Stop { errno: libc::EAGAIN, .. }) if tries < PATIENCE => tries += 1,
                Err(other) => return Err(other),
                Ok(()) => return stop("UFFDIO_COPY ended early"),
            }
        }
        Ok(())
    }

    /// Moves the pages of `[from, from + len)` to `to`; pages that are absent stay absent. `moved` counts the bytes
    /// done. The kernel refuses a page that somebody has pinned (direct I/O, io_uring, a process_vm call in flight).
    pub(super) fn move_pages(&self, to: usize, from: usize, len: usize, moved: &mut usize) -> Result<(), Stop> {
        let mut tries = 0;
        while *moved < len {
            let (at, left) = (from + *moved, len - *moved);
            let mut words = [(to + *moved) as u64, at as u64, left as u64, MOVE_ALLOW_SRC_HOLES, 0];
            let result = self.call("UFFDIO_MOVE", IOCTL_MOVE, &mut words);
            let n = words[4] as i64;
            if n > 0 {
                *moved += n as usize;
                tries = 0;
                continue;
            }
            match result {
                Err(Stop { errno: libc::EAGAIN, .. }) if tries < PATIENCE => tries += 1,
                // The page is shared (after fork, or merged by KSM): a write fault makes it this process's own. If the
                // kernel refuses it still, it is pinned; a few more tries are made, for reclaim and migration hold
                // pages for a moment.
                Err(Stop { errno: libc::EBUSY, .. }) if tries < 3 => {
                    super::sys::advise(at, super::sys::PAGE, libc::MADV_POPULATE_WRITE)?;
                    tries += 1;
                }
                Err(Stop { errno: libc::EBUSY | libc::EAGAIN, .. }) => {
                    return Err(Stop {
                        errno: libc::EBUSY,
                        what: "a page is pinned (direct I/O, io_uring or a device is using it)",
                    });
                }
                Err(Stop { errno: libc::EINVAL, .. }) => {
                    return Err(Stop {
                        errno: libc::EINVAL,
                        what: "the pages are locked (mlock) or of a special kind",
                    });
                }
                Err(other) => return Err(other),
                Ok(()) => return stop("UFFDIO_MOVE ended early"),
            }
        }
        Ok(())
    }
}

fn open_device() -> Option<OwnedFd> {
    let device = std::fs::File::open("/dev/userfaultfd").ok()?;
    // SAFETY: the request takes flags and returns a descriptor, owned at once.
    unsafe {
        let raw = libc::ioctl(device.as_raw_fd(), IOCTL_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK);
        (raw >= 0).then(|| OwnedFd::from_raw_fd(raw))
    }
}
