//! The file: blocks taken by threads, and the sums over all of them.

use crate::{Line, WORDS};
use rustix::mm::{self, MapFlags, MremapFlags, ProtFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;

const LINE: usize = size_of::<Line>();
/// Blocks begin at pages, so that each is mapped alone; 4096 also where pages are larger, for then several blocks are
/// mapped at once.
const PAGE: usize = 4096;
/// Blocks in a file at most: threads of all processes that use the device at the same time. Further ones are not
/// counted.
const MOST_BLOCKS: usize = 16_384;
/// Blocks of one process at most.
const MOST_OWN: usize = 1024;

/// Bytes of a block with `ports` lines.
fn block_bytes(ports: usize) -> usize {
    (ports.max(1) * LINE).next_multiple_of(PAGE)
}

/// The file as a process sees it that counts. Its threads take turns: a lock in here would be kept by one that ends
/// within a call.
#[derive(Debug)]
pub struct CountersFile {
    path: PathBuf,
    /// None between [`CountersFile::leave`] and [`CountersFile::rejoin`].
    fd: Option<OwnedFd>,
    ports: usize,
    /// Those that this process holds, free for its next thread.
    free: Vec<Block>,
    /// All that it holds.
    held: Vec<Held>,
    /// The block at which the search for a free one begins.
    next: usize,
}

type Words = [u64; WORDS];

/// A block of this process.
#[derive(Debug)]
struct Held {
    block: Block,
    /// Counts that the block had when this process took it: sums over its lines.
    before: Words,
    /// Counts of its lines at the moment the file was left; None while it is open.
    left: Option<Vec<Words>>,
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
        let path = directory.join(crate::FILE);
        let fd = Some(open(&path)?);
        Ok(CountersFile { path, fd, ports, free: Vec::new(), held: Vec::new(), next: 0 })
    }

    /// Closes the file, for an image of the process: when that is restored, the blocks may belong to others, and the
    /// file may be another one. Until [`CountersFile::rejoin`] threads count in private memory of the process.
    ///
    /// # Errors
    /// That of mmap(2); it may be called again.
    pub fn leave(&mut self) -> io::Result<()> {
        for held in self.held.iter_mut().filter(|held| held.left.is_none()) {
            let (place, bytes) = place_of(held.block, self.ports);
            let own = map(bytes, None)?;
            // SAFETY: both have `bytes` bytes; a count that a thread makes at this moment may be missing.
            unsafe { ptr::copy_nonoverlapping(place, own, bytes) };
            let left = words_of(held.block, self.ports);
            put_in_place(own, bytes, place)?;
            held.left = Some(left);
        }
        self.fd = None;
        Ok(())
    }

    /// Counts in blocks of the file again, with what was counted meanwhile.
    ///
    /// # Errors
    /// As [`CountersFile::open`] and [`CountersFile::take`]; it may be called again, and counts in memory of the
    /// process until then.
    pub fn rejoin(&mut self) -> io::Result<()> {
        if self.fd.is_none() {
            self.fd = Some(open(&self.path)?);
            self.next = 0;
        }
        for at in 0..self.held.len() {
            let Held { block, before, left: Some(left) } = &self.held[at] else { continue };
            let (block, before, left) = (*block, *before, left.clone());
            let (place, bytes) = place_of(block, self.ports);
            // If pages are larger than blocks, the new block must have the old one's offset in its page.
            let within = block.0 as usize - place as usize;
            let new = loop {
                let number = self.lock_next()?;
                if number * block_bytes(self.ports) % page_bytes() == within {
                    break self.map(number)?;
                }
            };
            let now = words_of(block, self.ports);
            for (port, (now, left)) in now.iter().zip(&left).enumerate() {
                // SAFETY: a block has a line for each port, and nobody else has this one.
                unsafe { &*new.lines().add(port) }.go_on(now, left);
            }
            let own = less(self.sum(block), before);
            let before = less(self.sum(new), own);
            put_in_place(place_of(new, self.ports).0, bytes, place)?;
            self.held[at] = Held { block, before, left: None };
        }
        Ok(())
    }

    /// A block for the calling thread, until it gives it back.
    ///
    /// # Errors
    /// ENOSPC when the disk or the file is full, EMFILE when this process has its share, and what mmap(2) says.
    pub fn take(&mut self) -> io::Result<Block> {
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        if self.held.len() == MOST_OWN {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let number = self.lock_next()?;
        let block = self.map(number)?;
        self.held.push(Held { block, before: self.sum(block), left: None });
        Ok(block)
    }

    /// Locks the next block that no process holds; returns its number.
    fn lock_next(&mut self) -> io::Result<usize> {
        // A lock that this process has would be granted again, so it looks only beyond those.
        while self.next < MOST_BLOCKS {
            let number = self.next;
            self.next += 1;
            if self.lock(number)? {
                return Ok(number);
            }
        }
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// Takes a block back from a thread that has ended, for the next one.
    pub fn give_back(&mut self, block: Block) {
        self.free.push(block);
    }

    /// Counts of this process, over all ports.
    pub fn own_sums(&self) -> [u64; WORDS] {
        let mut sums = [0_u64; WORDS];
        for held in &self.held {
            add(&mut sums, &less(self.sum(held.block), held.before));
        }
        sums
    }

    /// The sum over the lines of a block.
    fn sum(&self, block: Block) -> Words {
        let mut sums = [0_u64; WORDS];
        words_of(block, self.ports).iter().for_each(|words| add(&mut sums, words));
        sums
    }

    /// The file's descriptor.
    fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Returns whether block `i` could be locked; false if another process holds it.
    fn lock(&self, i: usize) -> io::Result<bool> {
        // SAFETY: a struct of integers.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as _;
        lock.l_whence = libc::SEEK_SET as _;
        // One byte stands for the block: the lock needs no file behind it.
        (lock.l_start, lock.l_len) = (i as _, 1);
        // SAFETY: the lock is a valid struct for the whole call.
        if unsafe { libc::fcntl(self.fd()?.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
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
        // Beyond the limit the kernel sends a signal that ends the program.
        if file_limit() < (at + bytes) as u64 {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        // SAFETY: a plain call on our own descriptor.
        let error = unsafe { libc::posix_fallocate(self.fd()?.as_raw_fd(), at as _, bytes as _) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let before = at % page_bytes();
        let address = map(before + bytes, Some((self.fd()?, (at - before) as u64)))?;
        // SAFETY: inside the mapping just made; it is never unmapped.
        let line = unsafe { address.add(before).cast::<Line>() };
        for port in 0..self.ports.max(1) {
            // SAFETY: the block has a line for each port.
            unsafe { &*line.add(port) }.begin();
        }
        Ok(Block(line))
    }
}

/// RLIMIT_FSIZE in bytes; `u64::MAX`: there is none.
fn file_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
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
    Ok(fd)
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no conditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize
}

/// The address of the mapping of a block, and its bytes.
fn place_of(block: Block, ports: usize) -> (*mut u8, usize) {
    let within = block.0 as usize % page_bytes();
    (block.0.cast::<u8>().wrapping_sub(within).cast_mut(), within + block_bytes(ports))
}

/// Maps `bytes` bytes: of an open file from a page on, or of anonymous memory. A forked child, which would count where
/// its parent does, has none of them. By the system call: libc's functions are others' too, such as those of the
/// preload, which would give shared memory for anonymous memory, and of UCX, whose mremap forgets where to.
fn map(bytes: usize, of: Option<(BorrowedFd<'_>, u64)>) -> io::Result<*mut u8> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let address = unsafe {
        match of {
            Some((fd, at)) => mm::mmap(ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, at),
            None => mm::mmap_anonymous(ptr::null_mut(), bytes, prot, MapFlags::PRIVATE),
        }
    }?;
    // SAFETY: the mapping just made.
    let _ = unsafe { mm::madvise(address, bytes, mm::Advice::LinuxDontFork) };
    Ok(address.cast())
}

/// Moves a mapping of `bytes` bytes to `place`, whose old mapping is dropped.
fn put_in_place(new: *mut u8, bytes: usize, place: *mut u8) -> io::Result<()> {
    // SAFETY: both are mappings of blocks. A thread that counts finds lines at the place at any time.
    unsafe { mm::mremap_fixed(new.cast(), bytes, bytes, MremapFlags::MAYMOVE, place.cast()) }?;
    Ok(())
}

/// The values of the lines of a block.
fn words_of(block: Block, ports: usize) -> Vec<Words> {
    // SAFETY: a block in hand has a line for each port, and stays mapped.
    let line = |port: usize| unsafe { &*block.lines().add(port) };
    let words = |line: &Line| std::array::from_fn(|word| line.words[word].load(Ordering::Relaxed));
    (0..ports.max(1)).map(|port| words(line(port))).collect()
}

fn add(sums: &mut Words, more: &Words) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.wrapping_add(*more));
}

fn less(words: Words, fewer: Words) -> Words {
    std::array::from_fn(|word| words[word].wrapping_sub(fewer[word]))
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

/// Returns true if a process has block `i`.
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
        let (mut one, mut other) =
            (CountersFile::open(tmp.path(), 20).unwrap(), CountersFile::open(tmp.path(), 20).unwrap());
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
        let mut one = CountersFile::open(tmp.path(), 1).unwrap();
        let block = one.take().unwrap();
        add(block, 0, Word::Sends, 5);
        one.give_back(block);
        assert_eq!(one.own_sums()[Word::Sends as usize], 5);
        assert_eq!(one.take().unwrap(), block);
        // The same as the end of a process: the lock lives only as long as the mapping.
        // SAFETY: nobody uses the block any more.
        unsafe { libc::munmap(block.lines().cast_mut().cast(), PAGE) };
        drop(one);
        let mut next = CountersFile::open(tmp.path(), 1).unwrap();
        add(next.take().unwrap(), 0, Word::Sends, 6);
        assert_eq!(read(tmp.path(), 0, 1)[Word::Sends as usize], 11);
        assert_eq!(std::fs::metadata(tmp.path().join(crate::FILE)).unwrap().len(), PAGE as u64, "one block was enough");
    }

    #[test]
    fn objects_are_those_of_processes_that_are_there() {
        let tmp = tempfile::tempdir().unwrap();
        let held =
            || held_sums(File::open(tmp.path().join(crate::FILE)).unwrap().as_raw_fd(), 0, 1)[Word::Qps as usize];
        let (mut one, mut other) =
            (CountersFile::open(tmp.path(), 1).unwrap(), CountersFile::open(tmp.path(), 1).unwrap());
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
        let mut next = CountersFile::open(tmp.path(), 1).unwrap();
        next.take().unwrap();
        assert_eq!(held(), 2, "and its block begins at none for the next");
    }

    #[test]
    fn a_file_that_was_left_is_counted_on_in_whatever_blocks_are_free() {
        let tmp = tempfile::tempdir().unwrap();
        let mut one = CountersFile::open(tmp.path(), 2).unwrap();
        let block = one.take().unwrap();
        let objects = || held_sums(File::open(tmp.path().join(crate::FILE)).unwrap().as_raw_fd(), 1, 2);
        for another_takes_it in [false, true, false] {
            add(block, 1, Word::Sends, 5);
            add(block, 1, Word::Qps, 1);
            let (sends, qps) = (read(tmp.path(), 1, 2)[Word::Sends as usize], objects()[Word::Qps as usize]);
            let own = one.own_sums();
            one.leave().unwrap();
            one.leave().unwrap();
            assert_eq!(objects()[Word::Qps as usize], 0, "nobody has the block");
            add(block, 1, Word::Sends, 7);
            add(block, 1, Word::Qps, 1);
            assert_eq!(read(tmp.path(), 1, 2)[Word::Sends as usize], sends, "that is not in the file");
            let mut other = CountersFile::open(tmp.path(), 2).unwrap();
            let taken = another_takes_it.then(|| other.take().unwrap());
            taken.into_iter().for_each(|taken| add(taken, 1, Word::Sends, 100));
            one.rejoin().unwrap();
            one.rejoin().unwrap();
            let more = if another_takes_it { 100 } else { 0 };
            assert_eq!(read(tmp.path(), 1, 2)[Word::Sends as usize], sends + 7 + more);
            assert_eq!(objects()[Word::Qps as usize], qps + 1);
            assert_eq!(one.own_sums()[Word::Sends as usize], own[Word::Sends as usize] + 7);
            add(block, 1, Word::Sends, 1);
            assert_eq!(read(tmp.path(), 1, 2)[Word::Sends as usize], sends + 8 + more, "it counts in the file again");
            taken.into_iter().for_each(|taken| drop_mapping(taken, 2));
        }
    }

    /// The same as the end of a process: the lock lives only as long as the mapping.
    fn drop_mapping(block: Block, ports: usize) {
        let (place, bytes) = place_of(block, ports);
        // SAFETY: nobody uses the block any more.
        unsafe { libc::munmap(place.cast(), bytes) };
    }

    #[test]
    fn one_process_does_not_take_all_blocks() {
        let tmp = tempfile::tempdir().unwrap();
        let mut one = CountersFile::open(tmp.path(), 1).unwrap();
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
