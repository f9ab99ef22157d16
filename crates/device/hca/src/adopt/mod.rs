//! Adoption (DESIGN decision 4 (e)): private anonymous memory that the program registers is moved, under its running
//! threads, onto a sealed memfd mapped at the same addresses, so that peers can map it; when the last registration of a
//! page ends, it becomes private anonymous memory again. This file owns the table of adopted pages; `exchange` moves
//! them. Called by registration while the gate is closed. docs/adoption.md says why no write is lost, and what adoption
//! cannot know.

mod exchange;
pub(crate) mod sys;
mod uffd;
mod vmas;

use crate::error::{Error, Result};
use crate::host::lock::{OwnerLock, RawLock};
use exchange::{PIECE, Piece};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use sys::PAGE;
use uffd::Uffd;
use vervain_share::sys::page;
use vmas::{Maps, Vma};

/// Bytes of an object: every user address is an offset in it, so that what is adjacent in memory is adjacent in the
/// object, whatever was adopted when. Sparse.
const OBJECT_LEN: u64 = 1 << 47;
/// Pieces adopted at a time. Each takes up to three of the mappings a process may have (65,530, `vm.max_map_count`).
const MAX_PIECES: usize = 16384;
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A memfd that adopted pages lie in. Sealed against shrinking, so that a mapping of it cannot be made to fault.
#[derive(Debug)]
pub struct Object {
    fd: OwnedFd,
    identity: u64,
    /// Device and inode.
    file: (u64, u64),
}

impl Object {
    fn create(identity: u64) -> Result<Object> {
        // SAFETY: the name is a C string; the descriptor is owned at once.
        let fd = unsafe {
            let raw = libc::memfd_create(c"vervain-adopted".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            if raw < 0 {
                return Err(Error::last_os("cannot make shared memory for adopted pages (memfd_create)"));
            }
            OwnedFd::from_raw_fd(raw)
        };
        // SAFETY: plain calls on a descriptor that we own.
        let failed = unsafe {
            libc::ftruncate(fd.as_raw_fd(), OBJECT_LEN as i64) != 0
                || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) != 0
        };
        match file_id(fd.as_raw_fd()) {
            Some(file) if !failed => Ok(Object { fd, identity, file }),
            _ => Err(Error::last_os("cannot size and seal shared memory for adopted pages")),
        }
    }

    /// The descriptor for the exchange; none if the program has closed it, and perhaps opened something else by its
    /// number.
    fn own_fd(&self) -> Option<RawFd> {
        Some(self.fd()).filter(|&fd| file_id(fd) == Some(self.file))
    }

    /// The memfd, to hand to peers.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Never reused by this [`Adoption`].
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Bytes, nearly all of them holes.
    pub fn object_len(&self) -> u64 {
        OBJECT_LEN
    }

    fn maps(&self, vma: &Vma, at: usize) -> bool {
        vma.shared && vma.inode == self.file.1 && vma.offset + (at - vma.start) as u64 == at as u64
    }
}

/// Memory that stays in `object` until [`Adoption::revert`].
#[derive(Debug)]
pub struct Adopted {
    /// The object that it lies in.
    pub object: Arc<Object>,
    /// Offset in the object of the first byte that was asked for.
    pub offset: u64,
    pages: Range<usize>,
}

/// Pages that were exchanged together, or a part of them.
#[derive(Clone)]
struct Segment {
    end: usize,
    /// Registrations that cover it.
    refs: u32,
    /// Address at which the private mapping is kept, empty.
    side: usize,
    /// Which exchange; parts of one may be joined again.
    run: u64,
    object: Arc<Object>,
}

#[derive(Default)]
struct Table {
    /// By first address. No two overlap.
    segments: BTreeMap<usize, Segment>,
    /// The object for the next adoption; None before the first, and after one was given up.
    current: Option<Arc<Object>>,
    made: u64,
    runs: u64,
    /// Segments may be left that no registration covers.
    leftover: bool,
}

/// The adopted memory of this process.
#[derive(Default)]
pub struct Adoption {
    table: OwnerLock<Table>,
    /// Held while mappings are changed, and across fork, so that a child never sees pages on their way.
    moving: RawLock,
}

struct Moving<'a>(&'a RawLock);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl Adoption {
    /// Finds out if this process can adopt.
    ///
    /// # Errors
    /// The missing part: EOPNOTSUPP or EPERM.
    pub fn new() -> Result<Adoption> {
        if page() != PAGE {
            return Err(Error::unsupported(format!("the kernel has pages of {} bytes, not of {PAGE}", page())));
        }
        Uffd::open()?;
        check_file_limit()?;
        Ok(Adoption::default())
    }

    /// Moves the pages of `[addr, addr + len)` to shared memory at the same addresses. The caller has closed the gate:
    /// no peer writes into this process meanwhile. Its own threads may do as they like, except unmap or protect these
    /// pages. On error nothing has changed; the error says what about the memory forbids it.
    pub fn adopt(&self, addr: usize, len: usize) -> Result<Adopted> {
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let (start, Some(end)) = (addr & !(PAGE - 1), end.filter(|&end| len > 0 && end as u64 <= OBJECT_LEN)) else {
            return Err(Error::invalid("memory not adopted: the range is empty or wraps around"));
        };
        check_file_limit()?;
        let _moving = self.begin_move();
        let mut table = self.table.lock();
        let gaps = table.gaps(start, end);
        let object = table.object_for(start, end, !gaps.is_empty())?;
        if !gaps.is_empty() {
            table.adopt_gaps(&gaps, &object)?;
        }
        table.each(start, end, |s| s.refs += 1);
        Ok(Adopted { object, offset: addr as u64, pages: start..end })
    }

    /// The registration of `adopted` has ended, peers have left its memory and stay away: pages that no other
    /// registration covers become private anonymous memory again. Pages that the program has unmapped or replaced
    /// meanwhile are left alone.
    pub fn revert(&self, adopted: Adopted) {
        let _moving = self.begin_move();
        let mut table = self.table.lock();
        table.each(adopted.pages.start, adopted.pages.end, |s| s.refs = s.refs.saturating_sub(1));
        // Pages that could not be reverted before are tried again.
        let pages = if table.leftover { 0..OBJECT_LEN as usize } else { adopted.pages };
        let over: Vec<usize> = table.range(&pages).filter(|(_, s)| s.refs == 0).map(|(&a, _)| a).collect();
        if let Err(e) = table.revert_segments(&over) {
            log::warn!("memory stays adopted after its registration: {e}");
        }
    }

    /// Before fork, in the parent, with the gate closed: all memory becomes private, so that the child gets a snapshot
    /// as from any fork. No adoption begins before [`Adoption::after_fork`].
    pub fn before_fork(&self) {
        std::mem::forget(self.begin_move());
        let mut table = self.table.lock();
        let all: Vec<usize> = table.segments.keys().copied().collect();
        let kept = table.segments.clone();
        if let Err(e) = table.revert_segments(&all) {
            log::warn!("a forked child lacks registered memory: {e}");
        }
        // Segments that were reverted are noted without their side mapping, for `after_fork`.
        for (start, segment) in kept {
            let end = table.segments.range(start..segment.end).next().map_or(segment.end, |(&rest, _)| rest);
            if start < end {
                table.segments.insert(start, Segment { end, side: 0, ..segment });
            }
        }
    }

    /// After fork, in the parent, with the gate still closed: adopts again, at the same offsets. Returns what could not
    /// be; keys must not name that as shared any more.
    pub fn after_fork(&self) -> Vec<Range<usize>> {
        let mut table = self.table.lock();
        let waiting: Vec<_> =
            table.segments.iter().filter(|(_, s)| s.side == 0).map(|(&a, s)| (a, s.clone())).collect();
        let mut lost = Vec::new();
        for (start, segment) in waiting {
            table.segments.remove(&start);
            let gap = start..segment.end;
            let given_up = table.current.as_ref().is_none_or(|current| !Arc::ptr_eq(current, &segment.object));
            if given_up || table.adopt_gaps(std::slice::from_ref(&gap), &segment.object).is_err() {
                lost.push(start..segment.end);
            } else {
                table.each(start, segment.end, |s| s.refs = segment.refs);
            }
        }
        drop(table);
        self.moving.unlock();
        lost
    }

    fn begin_move(&self) -> Moving<'_> {
        self.moving.lock();
        Moving(&self.moving)
    }
}

impl Table {
    fn range(&self, pages: &Range<usize>) -> impl Iterator<Item = (&usize, &Segment)> {
        // Segments do not overlap: only the one that begins before the range can reach into it from the left.
        let first = self.segments.range(..=pages.start).next_back().map_or(pages.start, |(&a, _)| a);
        let (start, end) = (pages.start, pages.end);
        self.segments.range(first..end).filter(move |(_, s)| s.end > start)
    }

    /// The parts of `[start, end)` that are not adopted.
    fn gaps(&self, start: usize, end: usize) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut at = start;
        for (&a, s) in self.range(&(start..end)) {
            if a > at {
                gaps.push(at..a);
            }
            at = s.end;
        }
        if at < end {
            gaps.push(at..end);
        }
        gaps
    }

    /// The one object that all of `[start, end)` can lie in.
    fn object_for(&mut self, start: usize, end: usize, more: bool) -> Result<Arc<Object>> {
        let held = self.range(&(start..end)).next().map(|(_, s)| Arc::clone(&s.object));
        let object = match (held, &self.current) {
            (Some(object), _) => object,
            (None, Some(object)) => Arc::clone(object),
            (None, None) => {
                self.made += 1;
                let object = Arc::new(Object::create(self.made)?);
                self.current = Some(Arc::clone(&object));
                object
            }
        };
        let retired = self.current.as_ref().is_none_or(|current| !Arc::ptr_eq(current, &object));
        if more && retired || self.range(&(start..end)).any(|(_, s)| !Arc::ptr_eq(&s.object, &object)) {
            return Err(Error::busy("memory not adopted: neighbouring pages lie in a shared object that is given up"));
        }
        Ok(object)
    }

    /// Adopts all of `gaps`, or nothing.
    fn adopt_gaps(&mut self, gaps: &[Range<usize>], object: &Arc<Object>) -> Result<()> {
        let frame = 0u8;
        let mut maps = Maps::open()?;
        let mut pieces = Vec::new();
        for gap in gaps {
            if let Some(why) = vmas::needed_by_threads(gap.start, gap.end, (&raw const frame) as usize) {
                return Err(Error::unsupported(format!("memory not adopted: {why}")));
            }
            let mut at = gap.start;
            while at < gap.end {
                let Some(vma) = maps.at(at) else {
                    return Err(Error::new(libc::EFAULT, "memory not adopted: it is not all mapped"));
                };
                if let Some(why) = vma.objection() {
                    return Err(Error::unsupported(format!("memory not adopted: {why}")));
                }
                let end = gap.end.min(vma.end).min((at + 1).next_multiple_of(PIECE));
                pieces.push(Piece { addr: at, len: end - at });
                at = end;
            }
        }
        drop(maps);
        if self.segments.len() + pieces.len() > MAX_PIECES {
            return Err(Error::no_memory("memory not adopted: this process has adopted all that it can"));
        }
        let Some(fd) = object.own_fd() else {
            self.current = None;
            return Err(Error::new(libc::EBADF, "memory not adopted: the program has closed the device's descriptors"));
        };
        let uffd = Uffd::open()?;
        let mut done = Vec::new();
        for &piece in &pieces {
            match exchange::adopt(&uffd, fd, piece) {
                Ok(side) => {
                    self.runs += 1;
                    let (end, run) = (piece.addr + piece.len, self.runs);
                    let segment = Segment { end, refs: 0, side, run, object: Arc::clone(object) };
                    self.segments.insert(piece.addr, segment);
                    done.push(piece.addr);
                }
                Err(stop) => {
                    drop(uffd);
                    self.revert_segments(&done)?;
                    return Err(stop.into());
                }
            }
        }
        drop(uffd);
        for gap in gaps {
            let len = gap.end - gap.start;
            // A child made by a bare clone must not write into its parent; and the pages are there, as registered ones
            // are.
            let _ = sys::advise(gap.start, len, libc::MADV_DONTFORK);
            let _ = sys::advise(gap.start, len, libc::MADV_POPULATE_READ);
        }
        Ok(())
    }

    /// Calls `f` for each segment of `[start, end)`, cut at both ends first, and joins again what then is alike.
    fn each(&mut self, start: usize, end: usize, f: impl Fn(&mut Segment)) {
        self.cut(start);
        self.cut(end);
        self.segments.range_mut(start..end).for_each(|(_, s)| f(s));
        self.join(start);
        self.join(end);
    }

    fn cut(&mut self, at: usize) {
        if let Some((&a, s)) = self.segments.range_mut(..at).next_back()
            && s.end > at
        {
            let right = Segment { side: s.side + (at - a), ..s.clone() };
            s.end = at;
            self.segments.insert(at, right);
        }
    }

    fn join(&mut self, at: usize) {
        let Some(right) = self.segments.get(&at).cloned() else { return };
        if let Some((_, left)) = self.segments.range_mut(..at).next_back()
            && left.end == at
            && left.run == right.run
            && left.refs == right.refs
        {
            left.end = right.end;
            self.segments.remove(&at);
        }
    }

    /// Makes the segments at these addresses private again and forgets them. One that the kernel cannot revert stays.
    fn revert_segments(&mut self, starts: &[usize]) -> Result<()> {
        if starts.is_empty() {
            return Ok(());
        }
        let frame = 0u8;
        let mine = |start: &usize| {
            let end = self.segments.get(start).map_or(*start, |s| s.end);
            vmas::needed_by_caller(*start, end, (&raw const frame) as usize).is_some()
        };
        let result = if starts.iter().any(mine) {
            // The calling thread's own stack, registered by another thread: it cannot write-protect that and go on.
            std::thread::scope(|scope| {
                let helper = std::thread::Builder::new().spawn_scoped(scope, || self.revert_all(starts));
                helper.map(|h| h.join().unwrap_or(Ok(()))).unwrap_or_else(|e| Err(e.into()))
            })
        } else {
            self.revert_all(starts)
        };
        self.leftover = result.is_err();
        result
    }

    fn revert_all(&mut self, starts: &[usize]) -> Result<()> {
        let uffd = Uffd::open()?;
        let mut maps = Maps::open()?;
        let mut result = Ok(());
        for &start in starts {
            let Some(segment) = self.segments.get(&start).cloned() else { continue };
            match revert_segment(&uffd, &mut maps, start, &segment) {
                Ok(true) => {}
                Ok(false) => {
                    // The program has put something else there. Pages it has moved away are still this object's, so the
                    // object gets no others at these offsets.
                    if self.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, &segment.object)) {
                        self.current = None;
                    }
                }
                Err((at, e)) => {
                    let rest = Segment { side: segment.side + (at - start), ..segment };
                    self.segments.insert(at, rest);
                    result = Err(e);
                    if at == start {
                        continue;
                    }
                }
            }
            self.segments.remove(&start);
        }
        result
    }
}

/// False where the program has not left all in place; an error comes with the address that it stands at.
type Reverted = std::result::Result<bool, (usize, Error)>;

/// Reverts what the program has left in place.
fn revert_segment(uffd: &Uffd, maps: &mut Maps, start: usize, segment: &Segment) -> Reverted {
    let (mut at, mut whole) = (start, true);
    let fd = segment.object.own_fd();
    while at < segment.end {
        let side = segment.side + (at - start);
        let vma = maps.at(at);
        let end = segment.end.min(vma.as_ref().map_or(at + PAGE, |vma| vma.end));
        match vma.filter(|vma| segment.object.maps(vma, at)) {
            Some(vma) => {
                let piece = Piece { addr: at, len: end - at };
                exchange::revert(uffd, fd, piece, side, vma.prot).map_err(|stop| (at, Error::from(stop)))?;
            }
            None => {
                whole = false;
                // SAFETY: the kept mapping of pages that the program has given up; nobody else knows it.
                unsafe { sys::unmap(side, end - at) };
            }
        }
        at = end;
    }
    Ok(whole)
}

fn file_id(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: fstat fills the zeroed struct.
    let (rc, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat), stat)
    };
    (rc == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Offsets in the object are addresses, far beyond any limit on the size of files, which the kernel enforces by a
/// signal.
fn check_file_limit() -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the struct.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return Ok(());
    }
    Err(Error::unsupported(
        "memory not adopted: the process has a limit on the size of files (RLIMIT_FSIZE, ulimit -f)",
    ))
}
