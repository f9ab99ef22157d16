//! The check that a kernel makes when it pins memory at registration: all of it is mapped, with the rights that the
//! registration is for (`get_user_pages`, `ib_access_writable`). It asks the mapping and not each page, for the memory
//! may be sparse, and nothing is pinned here.

use crate::error::{Error, Result};
use crate::host::guarded;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use vervain_iba::access;
use vervain_share::sys::page;

/// `struct procmap_query` of <linux/fs.h>.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rest: [u64; 8],
}

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const QUERY: libc::Ioctl = (3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17) as libc::Ioctl;
/// `PROCMAP_QUERY_VMA_READABLE`, `_WRITABLE`.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

const _: () = assert!(size_of::<Query>() == 104);

/// The mappings of this process.
pub(crate) struct Mappings {
    /// `/proc/self/maps`, where there is one, for Linux 6.11 and later.
    maps: Option<OwnedFd>,
}

impl Mappings {
    pub(crate) fn open() -> Mappings {
        // SAFETY: a C string; the descriptor is owned at once.
        let opened = unsafe {
            let fd = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        let known = Mappings { maps: opened };
        // Kept only if it is of use, and not as one of the standard streams, even if the program has closed those.
        let here = std::ptr::from_ref(&known) as u64;
        let maps = known.maps.as_ref().filter(|_| known.allows(here, 1, WRITABLE).is_some()).and_then(|fd| {
            // SAFETY: makes a new descriptor, owned at once.
            let fd = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
            // SAFETY: as above.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        });
        Mappings { maps }
    }

    /// Its descriptor, which means the parent's mappings in a forked child.
    pub(crate) fn fd(&self) -> Option<i32> {
        self.maps.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// EFAULT unless `[addr, addr + length)` could be pinned for `rights` (`IBV_ACCESS_*`).
    pub(crate) fn check(&self, addr: u64, length: u64, rights: u32) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        // Memory that can be written need not be readable to be pinned.
        let writes = rights & access::WRITABLE != 0;
        let good = match self.allows(addr, length, if writes { WRITABLE } else { READABLE }) {
            Some(good) => good,
            None => is_mapped(addr, length) && ends_allow(addr, length, writes),
        };
        match (good, writes) {
            (true, _) => Ok(()),
            (false, true) => Err(Error::new(libc::EFAULT, "the memory to register is not all mapped and writable")),
            (false, false) => Err(Error::new(libc::EFAULT, "the memory to register is not all mapped and readable")),
        }
    }

    /// Returns true if all of the range is mapped with `right`; None if the kernel cannot answer.
    fn allows(&self, addr: u64, length: u64, right: u64) -> Option<bool> {
        let fd = self.maps.as_ref()?.as_raw_fd();
        let mut at = addr;
        while at - addr < length {
            let mut query = Query { size: size_of::<Query>() as u64, flags: right, address: at, ..Query::default() };
            // SAFETY: the kernel reads and writes the struct.
            if unsafe { libc::ioctl(fd, QUERY, &raw mut query) } != 0 {
                // Everything else than "no such mapping" says that it cannot be asked.
                let none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
                return none.then_some(false);
            }
            if query.end <= at {
                return None;
            }
            at = query.end;
        }
        Some(true)
    }
}

/// Returns true if there is no hole in the range: msync(2) reports ENOMEM for one, without touching a page.
fn is_mapped(addr: u64, length: u64) -> bool {
    let page = page() as u64;
    let first = addr & !(page - 1);
    let last = (addr + length - 1) & !(page - 1);
    // SAFETY: MS_ASYNC does nothing to the memory.
    unsafe { libc::msync(first as *mut libc::c_void, (last - first + page) as usize, libc::MS_ASYNC) == 0 }
}

/// Returns true if its first and its last byte can be accessed.
fn ends_allow(addr: u64, length: u64, writes: bool) -> bool {
    [addr, addr + length - 1].into_iter().all(|at| {
        let at = at as *mut u8;
        // SAFETY: the program's memory, which is answered for where it is not there; a byte that is written stays what
        // it was.
        unsafe { if writes { guarded::touch(at).is_ok() } else { guarded::load1(at).is_ok() } }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_cannot_be_asked_is_told_from_holes_and_ends() {
        crate::host::faults::install();
        let size = page();
        // SAFETY: a fresh mapping, the end of which is read-only.
        let at = unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                3 * size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(2 * size), size, libc::PROT_READ), 0);
            at as u64
        };
        let page = size as u64;
        for mappings in [Mappings::open(), Mappings { maps: None }] {
            let good = |first: u64, pages: u64, rights| mappings.check(at + first * page, pages * page, rights).is_ok();
            assert!(good(0, 2, access::LOCAL_WRITE) && good(0, 3, access::REMOTE_READ) && good(2, 1, 0));
            assert!(!good(0, 3, access::LOCAL_WRITE) && !good(2, 1, access::MW_BIND));
            assert!(mappings.check(16, 4096, 0).is_err() && mappings.check(16, 0, access::LOCAL_WRITE).is_ok());
        }
    }
}
