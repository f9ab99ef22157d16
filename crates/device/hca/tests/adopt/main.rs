//! Adoption under load and at its edges: `hammer` (no write of any kind is lost in 10,000 exchanges), `pages` (which
//! pages can be adopted, and what becomes of them). Without userfaultfd for kernel faults (root, CAP_SYS_PTRACE or
//! vm.unprivileged_userfaultfd=1) the tests say so and end.

mod hammer;
mod pages;

use std::ops::Range;
use vervain_hca::adopt::Adoption;
use vervain_skip::skip;

const PAGE: usize = 4096;

/// None, with a line that says why, where this process cannot adopt.
fn adoption() -> Option<Adoption> {
    Adoption::new().inspect_err(|e| skip(e)).ok()
}

/// Private anonymous memory between two pages that nobody may touch, so that the kernel joins it with nothing else.
struct Memory {
    base: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping, part of which is then opened.
        unsafe {
            let base = libc::mmap(std::ptr::null_mut(), len + 2 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base as usize + PAGE;
            assert_eq!(libc::mprotect(base as *mut _, len, libc::PROT_READ | libc::PROT_WRITE), 0);
            Memory { base, len }
        }
    }

    fn pages(&self, pages: Range<usize>) -> (usize, usize) {
        (self.base + pages.start * PAGE, pages.len() * PAGE)
    }

    #[allow(clippy::mut_from_ref, reason = "the tests' threads divide the words among themselves")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: mapped until drop.
        unsafe { std::slice::from_raw_parts_mut(self.base as *mut u8, self.len) }
    }

    /// Lines of /proc/self/maps about it: how often the kernel has it cut.
    fn vmas(&self) -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let inside = |line: &&str| {
            let (start, _) = line.split_once('-').unwrap();
            (self.base..self.base + self.len).contains(&usize::from_str_radix(start, 16).unwrap())
        };
        maps.lines().filter(inside).map(str::to_owned).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody uses the memory after the test.
        unsafe { libc::munmap((self.base - PAGE) as *mut _, self.len + 2 * PAGE) };
    }
}

/// A child process that runs `f` and ends with its result; it must not allocate.
fn fork(f: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child only runs `f`, which makes system calls and touches memory, and leaves by _exit.
    unsafe {
        match libc::fork() {
            0 => {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::_exit(i32::from(!f()))
            }
            pid => pid,
        }
    }
}

/// Returns true if the child ended well.
fn wait(pid: i32) -> bool {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    unsafe { libc::waitpid(pid, &raw mut status, 0) == pid && status == 0 }
}

/// Numbers that only look random (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
