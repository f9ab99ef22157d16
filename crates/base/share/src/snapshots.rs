//! Copies of the heap for children of fork: whole ones, which several children share, and parts.

use std::ffi::c_int;
use std::ops::Range;

use rangemap::RangeSet;

use crate::object::{Object, raise};
use crate::settings::KEEP_MS;
use crate::sys;

/// Copies that children of fork have.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// The newest last.
    all: Vec<Snapshot>,
    /// When it was looked last whether children have them (ms).
    looked_at: u64,
}

impl Snapshots {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.all.iter().map(|s| s.bytes).sum()
    }

    pub fn newest(&self) -> Option<&Snapshot> {
        self.all.last()
    }

    /// Takes all out; when they were looked at stays noted.
    pub fn take(&mut self) -> Snapshots {
        Snapshots { all: std::mem::take(&mut self.all), looked_at: self.looked_at }
    }

    pub fn push(&mut self, made: Snapshot) {
        self.all.push(made);
    }

    /// Lets those go that no child has any more.
    pub fn drop_unused(&mut self) {
        self.all.retain(Snapshot::is_in_use);
    }

    /// [`Snapshots::drop_unused`] now and then: `now` is the time (ms).
    pub fn look(&mut self, now: u64) {
        if !self.is_empty() && now.saturating_sub(self.looked_at) >= KEEP_MS {
            self.looked_at = now;
            self.drop_unused();
        }
    }

    /// When it was looked last (ms), if there are any.
    pub fn looked_at(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.looked_at)
    }
}

/// A copy of the heap as it was at a fork. Children show it to themselves as private memory, so that all that are
/// forked while the parent changes little have one copy between them.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub object: Object,
    data: RangeSet<usize>,
    bytes: usize,
}

impl Snapshot {
    pub fn new(of: &Object, huge: bool, data: &[(usize, usize)], bytes: usize) -> Option<Snapshot> {
        let object = Object::create(of.len, huge).ok()?;
        let data = data.iter().map(|&(offset, n)| copy_part(of, &object, offset, n).then_some(offset..offset + n));
        Some(Snapshot { data: data.collect::<Option<_>>()?, object, bytes })
    }

    /// The differences since then: other contents, and pages that are zeros now. `None`: they are too many to be worth
    /// it.
    pub fn changes(&self, now: &Object, data: &[(usize, usize)], most: usize) -> Option<(Changes, Changes)> {
        let parts: RangeSet<usize> = data.iter().map(|&(offset, n)| offset..offset + n).collect();
        let mut changed = RangeSet::new();
        let mut total = 0;
        for range in parts.iter() {
            for gap in self.data.gaps(range) {
                total += gap.len();
                changed.insert(gap);
            }
            for both in self.data.overlapping(range.clone()) {
                let (start, end) = (both.start.max(range.start), both.end.min(range.end));
                pieces(start, end - start, |from, n| {
                    let (ours, theirs) = (View::of(now, from, n)?, View::of(&self.object, from, n)?);
                    let pages = ours.bytes().chunks(sys::page()).zip(theirs.bytes().chunks(sys::page()));
                    for (i, _) in pages.enumerate().filter(|(_, (a, b))| a != b) {
                        total += sys::page();
                        changed.insert(from + i * sys::page()..(from + (i + 1) * sys::page()).min(from + n));
                    }
                    (total <= most).then_some(())
                })?;
            }
            if total > most {
                return None;
            }
        }
        let cleared = self.data.iter().flat_map(|old| parts.gaps(old).collect::<Vec<_>>());
        let list = |range: Range<usize>| (range.start, range.len());
        Some((changed.into_iter().map(list).collect(), cleared.map(list).collect()))
    }

    /// Returns true if a child has it.
    fn is_in_use(&self) -> bool {
        let mut lock = lock_of(libc::F_WRLCK);
        // SAFETY: a descriptor, or none, which is refused; `lock` is writable.
        let asked = unsafe { libc::fcntl(self.object.fd, libc::F_OFD_GETLK, &raw mut lock) };
        asked == 0 && c_int::from(lock.l_type) != libc::F_UNLCK
    }

    /// A descriptor with a lock that lasts as long as any process has it: the child of the fork that follows, and those
    /// that it forks. So the description of the file is one that the parent's own descriptor does not share. Without
    /// /proc there is none, and the snapshot counts as unused.
    pub fn lease(&self) -> c_int {
        let mut path = [0_u8; 32];
        let text = format!("/proc/self/fd/{}\0", self.object.fd);
        path[..text.len()].copy_from_slice(text.as_bytes());
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) } as c_int;
        if fd < 0 {
            return fd;
        }
        let fd = raise(fd);
        let lock = lock_of(libc::F_RDLCK);
        // SAFETY: an open descriptor.
        unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const lock) };
        fd
    }
}

/// Offsets and lengths.
pub(crate) type Changes = Vec<(usize, usize)>;

/// A lock on a whole file: F_RDLCK of its users, F_WRLCK for the question if it has any.
fn lock_of(kind: c_int) -> libc::flock {
    // SAFETY: all zeros is a valid flock, of the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock
}

/// Parts of the heap, one after the other in shared anonymous memory.
#[derive(Default)]
pub(crate) struct Packed {
    at: usize,
    len: usize,
    /// Offsets in the object and lengths.
    data: Vec<(usize, usize)>,
}

impl Packed {
    pub fn new(object: &Object, data: Vec<(usize, usize)>) -> Option<Packed> {
        let len = data.iter().map(|(_, n)| n).sum::<usize>();
        if len == 0 {
            return Some(Packed::default());
        }
        // SAFETY: a place of the kernel's choice.
        let at = unsafe {
            sys::mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        }
        .ok()?;
        let packed = Packed { at, len, data };
        let mut to = at;
        for &(offset, n) in &packed.data {
            let copied = pieces(offset, n, |from, n| {
                let view = View::of(object, from, n)?;
                // SAFETY: room for the sum of all.
                unsafe { std::ptr::copy_nonoverlapping(view.0.start as *const u8, to as *mut u8, n) };
                to += n;
                Some(())
            });
            if copied.is_none() {
                packed.discard();
                return None;
            }
        }
        Some(packed)
    }

    /// Copies the parts to where they belong, but for what `may` not be written.
    pub fn unpack(&self, base: usize, may: impl Fn(Range<usize>) -> bool) {
        let mut from = self.at;
        for &(offset, n) in &self.data {
            let to = base + offset;
            if may(to..to + n) {
                // SAFETY: packed there by `new`, and mapped.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, n) };
            }
            from += n;
        }
    }

    pub fn discard(self) {
        if self.len > 0 {
            // SAFETY: mapped by `new`, known here only.
            let _ = unsafe { sys::munmap(self.at, self.len) };
        }
    }
}

/// A part of an object, readable past the protections that the program has set.
struct View(Range<usize>);

impl View {
    fn of(object: &Object, offset: usize, len: usize) -> Option<View> {
        // SAFETY: a place of the kernel's choice.
        let at = unsafe { object.show(0, offset, len, libc::PROT_READ, libc::MAP_SHARED) }.ok()?;
        Some(View(at..at + len))
    }

    /// The contents of the view. No store that the child must have happens meanwhile: peers are held off, and other
    /// threads of the program race with the fork anyway.
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and readable as long as this lives.
        unsafe { std::slice::from_raw_parts(self.0.start as *const u8, self.0.len()) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`.
        let _ = unsafe { sys::munmap(self.0.start, self.0.len()) };
    }
}

/// Calls `f` with offset and length of each piece of a range that is small enough for a view; until it says None.
fn pieces(offset: usize, len: usize, mut f: impl FnMut(usize, usize) -> Option<()>) -> Option<()> {
    const VIEW: usize = 64 << 20;
    (offset..offset + len).step_by(VIEW).try_for_each(|at| f(at, (offset + len - at).min(VIEW)))
}

/// Copies a part of an object.
fn copy_part(from: &Object, to: &Object, offset: usize, len: usize) -> bool {
    let copy = |at: usize, n: usize| {
        let view = View::of(from, at, n)?;
        let mut done = 0;
        while done < n {
            let rest = (view.0.start + done) as *const _;
            // SAFETY: `n` readable bytes.
            let wrote = unsafe { libc::pwrite(to.fd, rest, n - done, (at + done) as i64) };
            if wrote <= 0 {
                return None;
            }
            done += wrote as usize;
        }
        Some(())
    };
    pieces(offset, len, copy).is_some()
}
