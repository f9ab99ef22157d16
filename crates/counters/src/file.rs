//! The file: blocks taken by threads, and the sums over all of them.

use crate::{Line, WORDS};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

const LINE: usize = size_of::<Line>();
/// Blocks begin at pages, so that each is mapped alone; 4096 also where pages are larger, for then several blocks are mapped
/// at once.
const PAGE: usize = 4096;
/// Blocks in a file at most: threads of all processes that use the device at the same time. Further ones are not counted.
const MOST_BLOCKS: usize = 16_384;
/// Blocks of one process at most.
const MOST_OWN: usize = 1024;

/// Bytes of a block with `ports` lines.
fn block_bytes(ports: usize) -> usize {
    (ports.max(1) * LINE).next_multiple_of(PAGE)
}

/// The file as a process sees it that counts.
#[derive(Debug)]
pub struct CountersFile {
    fd: OwnedFd,
    ports: usize,
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Blocks {
    /// Those that this process holds, free for its next thread.
    free: Vec<Block>,
    /// All that it holds, with what each had counted before: the sum over its lines.
    held: Vec<(Block, [u64; WORDS])>,
    /// Where it looks for the next one.
    next: usize,
}

/// A block in hand: one line for each port. The memory stays mapped as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(*const Line);

// SAFETY: a line is made of atomics, and stays where it is.
unsafe impl Send for Block {}

impl Block {
    /// The line of the first port; those of the others follow.
    pub fn lines(self) -> *const Line {
        self.0
    }
}

impl CountersFile {
    /// Opens the file in `directory`, and makes it if it is not there. `ports` is the number of ports of all devices.
    ///
    /// # Errors
    /// What open(2) says, and EPERM for a file that is another user's.
    pub fn open(directory: &Path, ports: usize) -> io::Result<CountersFile> {
        let path = CString::new(directory.join(crate::FILE).as_os_str().as_bytes())?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let meta = status(&fd)?;
        // SAFETY: geteuid cannot fail.
        if meta.st_uid != unsafe { libc::geteuid() } || meta.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(CountersFile { fd, ports, blocks: Mutex::default() })
    }

    /// A block for the calling thread, until it gives it back.
    ///
    /// # Errors
    /// ENOSPC when the disk or the file is full, EMFILE when this process has its share, and what mmap(2) says.
    pub fn take(&self) -> io::Result<Block> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = blocks.free.pop() {
            return Ok(block);
        }
        if blocks.held.len() == MOST_OWN {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        // A lock that this process has would be granted again, so it looks only beyond those.
        while blocks.next < MOST_BLOCKS {
            let i = blocks.next;
            blocks.next += 1;
            if self.lock(i)? {
                let block = self.map(i)?;
                blocks.held.push((block, self.sum(block)));
                return Ok(block);
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// Takes a block back from a thread that has ended, for the next one.
    pub fn give_back(&self, block: Block) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).free.push(block);
    }

    /// What this process has counted, over all ports.
    pub fn own_sums(&self) -> [u64; WORDS] {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = [0_u64; WORDS];
        for (block, before) in &blocks.held {
            for (sum, (now, before)) in sums.iter_mut().zip(self.sum(*block).into_iter().zip(before)) {
                *sum = sum.wrapping_add(now.wrapping_sub(*before));
            }
        }
        sums
    }

    /// The sum over the lines of a block.
    fn sum(&self, block: Block) -> [u64; WORDS] {
        let mut sums = [0_u64; WORDS];
        for port in 0..self.ports.max(1) {
            // SAFETY: a block in hand has a line for each port, and stays mapped.
            let line = unsafe { &*block.lines().add(port) };
            for (sum, word) in sums.iter_mut().zip(&line.words) {
                *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// Whether block `i` could be locked: it is nobody else's.
    fn lock(&self, i: usize) -> io::Result<bool> {
        // SAFETY: a struct of integers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        lock.l_whence = libc::SEEK_SET as _;
        // One byte stands for the block: the lock needs no file behind it.
        (lock.l_start, lock.l_len) = (i as _, 1);
        // SAFETY: the lock is a valid struct for the whole call.
        if unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            e => Err(e),
        }
    }

    /// Maps block `i`, with room on the disk behind it: without that a write to it would end the program.
    fn map(&self, i: usize) -> io::Result<Block> {
        let bytes = block_bytes(self.ports);
        let at = i * bytes;
        // SAFETY: a plain call on our own descriptor.
        let error = unsafe { libc::posix_fallocate(self.fd.as_raw_fd(), at as _, bytes as _) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: sysconf has no conditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
        let before = at % page;
        // SAFETY: a new mapping, at an offset that is a multiple of the page size.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                before + bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.fd.as_raw_fd(),
                (at - before) as _,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A forked child would count where its parent does.
        // SAFETY: the mapping just made; it is never unmapped.
        let line = unsafe {
            libc::madvise(address, before + bytes, libc::MADV_DONTFORK);
            address.cast::<u8>().add(before).cast::<Line>()
        };
        for port in 0..self.ports.max(1) {
            // SAFETY: the block has a line for each port.
            unsafe { &*line.add(port) }.begin();
        }
        Ok(Block(line))
    }
}

fn status(fd: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: a struct of integers.
    let mut meta: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is writable for the whole call.
    match unsafe { libc::fstat(fd.as_raw_fd(), &raw mut meta) } {
        0 => Ok(meta),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The sums of the words of port `port` (counted over all devices, from 0) of `ports`, read from an open file. Takes no
/// memory, for it is called where a program opens a file.
pub fn sums(fd: libc::c_int, port: usize, ports: usize) -> [u64; WORDS] {
    sums_of(fd, port, ports, |_| true)
}

/// The sums of those blocks only that a process holds: for the words that count objects.
pub fn held_sums(fd: libc::c_int, port: usize, ports: usize) -> [u64; WORDS] {
    sums_of(fd, port, ports, |i| is_held(fd, i))
}

/// Whether a process has block `i`.
fn is_held(fd: libc::c_int, i: usize) -> bool {
    // SAFETY: a struct of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    (lock.l_start, lock.l_len) = (i as _, 1);
    // SAFETY: the lock is a valid struct for the whole call.
    let asked = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

fn sums_of(fd: libc::c_int, port: usize, ports: usize, counts: impl Fn(usize) -> bool) -> [u64; WORDS] {
    let mut words = [0_u64; WORDS];
    let mut line = [0_u64; WORDS];
    for i in 0..MOST_BLOCKS {
        let at = i * block_bytes(ports) + port * LINE;
        // SAFETY: reads at most the size of `line` into it.
        let n = unsafe { libc::pread(fd, line.as_mut_ptr().cast(), size_of_val(&line), at as _) };
        // The file ends with its last block.
        if n != size_of_val(&line) as isize {
            break;
        }
        if !counts(i) {
            continue;
        }
        for (sum, word) in words.iter_mut().zip(line) {
            *sum = sum.wrapping_add(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Word;
    use std::fs::File;

    fn add(block: Block, port: usize, word: Word, n: u64) {
        // SAFETY: the tests' blocks have so many lines, and stay mapped.
        unsafe { &*block.lines().add(port) }.add(word, n);
    }

    fn read(directory: &Path, port: usize, ports: usize) -> [u64; WORDS] {
        sums(File::open(directory.join(crate::FILE)).unwrap().as_raw_fd(), port, ports)
    }

    #[test]
    fn what_all_have_counted_is_summed_port_by_port() {
        let tmp = tempfile::tempdir().unwrap();
        // Two open files, as two processes have.
        let (one, other) = (CountersFile::open(tmp.path(), 20).unwrap(), CountersFile::open(tmp.path(), 20).unwrap());
        let blocks = [one.take().unwrap(), other.take().unwrap(), one.take().unwrap()];
        assert!(blocks[0] != blocks[2]);
        for (block, n) in blocks.into_iter().zip([1, 10, 100]) {
            add(block, 0, Word::MemorySends, n);
            add(block, 19, Word::Resent, 2 * n);
        }
        assert_eq!(read(tmp.path(), 0, 20)[Word::MemorySends as usize], 111);
        assert_eq!(read(tmp.path(), 19, 20)[Word::Resent as usize], 222);
        assert_eq!(read(tmp.path(), 1, 20), [0; WORDS]);
    }

    #[test]
    fn a_block_that_is_given_back_or_whose_process_ends_counts_on_for_the_next() {
        let tmp = tempfile::tempdir().unwrap();
        let one = CountersFile::open(tmp.path(), 1).unwrap();
        let block = one.take().unwrap();
        add(block, 0, Word::Sends, 5);
        one.give_back(block);
        assert_eq!(one.own_sums()[Word::Sends as usize], 5);
        assert_eq!(one.take().unwrap(), block);
        // What the end of a process does: the lock lives as long as the mapping, too.
        // SAFETY: nobody uses the block any more.
        unsafe { libc::munmap(block.lines().cast_mut().cast(), PAGE) };
        drop(one);
        let next = CountersFile::open(tmp.path(), 1).unwrap();
        add(next.take().unwrap(), 0, Word::Sends, 6);
        assert_eq!(read(tmp.path(), 0, 1)[Word::Sends as usize], 11);
        assert_eq!(std::fs::metadata(tmp.path().join(crate::FILE)).unwrap().len(), PAGE as u64, "one block was enough");
    }

    #[test]
    fn objects_are_those_of_processes_that_are_there() {
        let tmp = tempfile::tempdir().unwrap();
        let held =
            || held_sums(File::open(tmp.path().join(crate::FILE)).unwrap().as_raw_fd(), 0, 1)[Word::Qps as usize];
        let (one, other) = (CountersFile::open(tmp.path(), 1).unwrap(), CountersFile::open(tmp.path(), 1).unwrap());
        let (here, there, third) = (one.take().unwrap(), one.take().unwrap(), other.take().unwrap());
        add(here, 0, Word::Qps, 3);
        // SAFETY: a block has one line at least.
        unsafe { &*there.lines() }.subtract_one(Word::Qps);
        add(third, 0, Word::Qps, 10);
        assert_eq!(held(), 12, "what one thread has made, another destroys");
        // SAFETY: nobody uses the block any more.
        unsafe { libc::munmap(third.lines().cast_mut().cast(), PAGE) };
        drop(other);
        assert_eq!(held(), 2, "a process that has ended has none");
        let next = CountersFile::open(tmp.path(), 1).unwrap();
        next.take().unwrap();
        assert_eq!(held(), 2, "and its block begins at none for the next");
    }

    #[test]
    fn one_process_does_not_take_all_blocks() {
        let tmp = tempfile::tempdir().unwrap();
        let one = CountersFile::open(tmp.path(), 1).unwrap();
        let taken = (0..=MOST_OWN).map_while(|_| one.take().ok()).count();
        assert_eq!(taken, MOST_OWN);
    }

    #[test]
    fn a_link_in_the_files_place_is_not_followed() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("else"), b"").unwrap();
        std::os::unix::fs::symlink("else", tmp.path().join(crate::FILE)).unwrap();
        assert!(CountersFile::open(tmp.path(), 1).is_err());
    }
}
