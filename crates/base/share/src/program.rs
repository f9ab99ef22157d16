//! The program's own shared memory: mappings of memfds and SysV segments, noted as they are made, so that peers can map
//! the same pages. A file is shown to peers only while it is sealed against shrinking; all else could be cut short
//! under them.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};

use rangemap::RangeMap;

use crate::api::{KIND_MEMFD, KIND_SYSV, Place};
use crate::mode::possible;
use crate::object::identity;
use crate::state::lock;
use crate::sys::{self, page, round_up};

/// A memfd or a segment that is mapped somewhere.
#[derive(Debug)]
struct Theirs {
    id: u64,
    kind: u32,
    /// Our own descriptor of the file, or the shmid.
    fd: c_int,
    /// Device and inode of a file.
    file: (u64, u64),
    pins: usize,
}

/// Which object an address shows: its identity, and what to add to the address to get the offset.
type Shown = (u64, usize);

#[derive(Debug, Default)]
pub(crate) struct Table {
    objects: Vec<Theirs>,
    shown: RangeMap<usize, Shown>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
/// Ranges in the table: while there are none, munmap and its kin need not look.
static RANGES: AtomicUsize = AtomicUsize::new(0);

/// The table, locked.
pub(crate) fn table() -> MutexGuard<'static, Table> {
    sys::lock(&TABLE)
}

/// Returns true if anything is noted.
#[inline]
pub fn any() -> bool {
    RANGES.load(Ordering::Acquire) != 0
}

fn seals(fd: c_int) -> Option<c_int> {
    // SAFETY: plain numbers; on what is no memfd the kernel answers EINVAL.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    (seals >= 0).then_some(seals)
}

fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all zeros is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat)
}

impl Table {
    fn changed(&self) {
        RANGES.store(self.shown.len(), Ordering::Release);
    }

    /// Forgets objects that nothing shows and nothing pins.
    fn sweep(&mut self) {
        let shown = &self.shown;
        self.objects.retain(|object| {
            let used = object.pins > 0 || shown.iter().any(|(_, (id, _))| *id == object.id);
            if !used && object.kind == KIND_MEMFD {
                sys::close(object.fd);
            }
            used
        });
        self.changed();
    }

    fn insert(&mut self, start: usize, len: usize, id: u64, offset: usize) {
        self.shown.insert(start..start + round_up(len, page()), (id, offset.wrapping_sub(start)));
        self.sweep();
    }
}

/// A shared mapping of a file has been made: notes it if the file is a memfd.
pub fn mapped(addr: usize, len: usize, fd: c_int, offset: u64) {
    if !possible() {
        return;
    }
    let before = sys::errno();
    let _masked = sys::mask_signals();
    if seals(fd).is_some()
        && let Some(stat) = stat(fd)
    {
        let file = (stat.st_dev, stat.st_ino);
        let mut table = table();
        let known = table.objects.iter().find(|o| o.kind == KIND_MEMFD && o.file == file).map(|o| o.id);
        let id = known.or_else(|| {
            // SAFETY: an open descriptor.
            let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 700) };
            (own >= 0).then(|| {
                let id = identity();
                table.objects.push(Theirs { id, kind: KIND_MEMFD, fd: own, file, pins: 0 });
                id
            })
        });
        if let Some(id) = id {
            table.insert(addr, len, id, offset as usize);
        }
    }
    sys::set_errno(before);
}

/// A SysV segment has been attached.
pub fn attached(addr: usize, shmid: c_int) {
    if !possible() {
        return;
    }
    let before = sys::errno();
    let _masked = sys::mask_signals();
    // SAFETY: all zeros is a valid shmid_ds.
    let mut about: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable.
    if unsafe { libc::shmctl(shmid, libc::IPC_STAT, &raw mut about) } == 0 {
        let mut table = table();
        let id = identity();
        table.objects.push(Theirs { id, kind: KIND_SYSV, fd: shmid, file: (0, about.shm_segsz as u64), pins: 0 });
        table.insert(addr, about.shm_segsz, id, 0);
    }
    sys::set_errno(before);
}

/// Something else has been mapped over a range, or nothing is there any more.
pub fn gone(range: Range<usize>) {
    if !any() || range.is_empty() {
        return;
    }
    let _masked = sys::mask_signals();
    let mut table = table();
    if table.shown.overlaps(&range) {
        table.shown.remove(range);
        table.sweep();
    }
}

/// The segment at `addr` has been detached.
pub fn detached(addr: usize) {
    if !any() {
        return;
    }
    let _masked = sys::mask_signals();
    let range = table().shown.get_key_value(&addr).map(|(range, _)| range.clone());
    if let Some(range) = range {
        gone(range);
    }
}

/// A range has moved, and may have become longer or shorter; what is noted of it moves along, and what was at the new
/// place is gone.
pub fn moved(from: Range<usize>, to: Range<usize>, kept: bool) {
    if !any() || from.is_empty() || to.is_empty() {
        return;
    }
    let _masked = sys::mask_signals();
    let [from, to] = [from, to].map(|range| range.start..round_up(range.end, page()));
    let mut table = table();
    let cut = |part: &Range<usize>| part.start.max(from.start)..part.end.min(from.end);
    let pieces: Vec<(Range<usize>, Shown)> =
        table.shown.overlapping(from.clone()).map(|(part, shown)| (cut(part), *shown)).collect();
    if !kept {
        table.shown.remove(from.clone());
    }
    table.shown.remove(to.clone());
    for (part, (id, delta)) in pieces {
        let start = to.start + (part.start - from.start);
        // Only a range of one mapping becomes longer.
        let end = if part == from { to.end } else { to.end.min(start + part.len()) };
        if start < end {
            let offset = part.start.wrapping_add(delta);
            table.shown.insert(start..end, (id, offset.wrapping_sub(start)));
        }
    }
    table.sweep();
}

/// The place of a range in the program's own shared memory.
pub(crate) fn find(addr: usize, len: usize, pin: bool) -> Option<Place> {
    if !any() || len == 0 {
        return None;
    }
    let end = addr.checked_add(len)?;
    let mut table = table();
    let (range, &(id, delta)) = table.shown.get_key_value(&addr)?;
    if end > range.end {
        return None;
    }
    let offset = addr.wrapping_add(delta) as u64;
    let object = table.objects.iter_mut().find(|o| o.id == id)?;
    let object_len = if object.kind == KIND_SYSV {
        object.file.1
    } else {
        let sealed = seals(object.fd)? & libc::F_SEAL_SHRINK != 0;
        let stat = stat(object.fd).filter(|s| sealed && (s.st_dev, s.st_ino) == object.file)?;
        stat.st_size as u64
    };
    if offset.checked_add(len as u64)? > object_len {
        return None;
    }
    object.pins += usize::from(pin);
    Some(Place { kind: object.kind, fd: object.fd, object: id, offset, object_len, incarnation: 0 })
}

/// Ends a pin.
pub(crate) fn unpin(id: u64) {
    let mut table = table();
    if let Some(object) = table.objects.iter_mut().find(|o| o.id == id) {
        object.pins = object.pins.saturating_sub(1);
        if object.pins == 0 {
            table.sweep();
        }
    }
}

/// A descriptor for what would be a mapping of shared anonymous memory: the same to the program and its children, and a
/// peer can map it as well. `None`: the kernel's own will do.
pub fn shared_anonymous(len: usize) -> Option<c_int> {
    if !possible() || sys::limit(libc::RLIMIT_FSIZE).is_some() {
        return None;
    }
    let before = sys::errno();
    if lock().is_none_or(|heap| len > heap.settings.largest) {
        sys::set_errno(before);
        return None;
    }
    let object = crate::object::Object::create(round_up(len, page()), false).ok();
    sys::set_errno(before);
    object.map(|object| {
        let fd = object.fd;
        std::mem::forget(object);
        fd
    })
}
