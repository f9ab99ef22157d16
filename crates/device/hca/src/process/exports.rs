//! The owner's shared objects: which of its memory peers may map, in a table of the arena that they read. An object is
//! entered when memory in it is registered and withdrawn with the last key that leads to it; the heap, which the
//! preload serves large allocations from, is entered at the start and stays (DESIGN decisions 4a, 4b).
//!
//! Called by registration (`mr`) and by the link, which passes the descriptors.

use crate::adopt::Adopted;
use crate::arena::layout::{HEAP, NOT_SHARED, OBJECT_MEMFD, OBJECT_SYSV, OBJECTS, OFFSET_BITS, ObjectEntry};
use crate::arena::{Arena, ArenaRef};
use crate::error::Result;
use crate::host::lock::OwnerLock;
use crate::host::sysv;
use crate::process::share_api::Source;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use vervain_share::api::{KIND_WINDOW, Place};

/// Entries whose pages are committed together.
const COMMIT: usize = 64;
/// Bytes of an allocation by which the heap is found: large and aligned enough that the preload serves it.
const PROBE: usize = 4 << 20;

/// The owner's side of the object table.
pub(crate) struct Objects {
    entries: ArenaRef<[ObjectEntry]>,
    offset: u64,
    source: Option<Source>,
    state: OwnerLock<State>,
}

#[derive(Default)]
struct State {
    /// By number.
    owned: Vec<Option<Owned>>,
    numbers: HashMap<u64, u32>,
    free: VecDeque<u32>,
    generation: u32,
}

struct Owned {
    identity: u64,
    generation: u32,
    /// Pins, and one more for the heap.
    users: u64,
    length: u64,
    file: Option<File>,
}

/// A memfd of the source, which keeps it open while anything in the object is pinned.
struct File {
    fd: i32,
    /// Device and inode: a program that closes descriptors by number may have put another file there.
    id: (u64, u64),
}

/// Memory in an object that a registration holds there.
#[derive(Debug)]
pub(crate) struct Pin {
    number: u32,
    identity: u64,
    offset: u64,
    len: u64,
    /// Memory that was put into the object for this registration.
    adopted: Option<Adopted>,
}

impl Pin {
    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted.is_some()
    }
}

/// How peers find registered memory, for its key.
#[derive(Debug)]
pub(crate) struct ExportedRange {
    /// `KeyEntry::at`.
    pub(crate) at: u64,
    /// `KeyEntry::generation`.
    pub(crate) generation: u32,
    /// Given back when the key is revoked.
    pub(crate) pin: Option<Pin>,
}

impl ExportedRange {
    /// Memory that peers cannot map.
    pub(crate) const NOWHERE: ExportedRange = ExportedRange { at: NOT_SHARED, generation: 0, pin: None };
}

/// An object that went with its last user.
pub(crate) struct Withdrawn {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

impl Objects {
    /// The table at `offset` of the arena; finds the heap if there is one.
    pub(crate) fn new(arena: &Arena, offset: u64, source: Option<Source>) -> Result<Objects> {
        let view = arena.view();
        let entries = view.hold_slice::<ObjectEntry>(offset, OBJECTS).expect("just allocated");
        arena.commit(&(offset..offset + (COMMIT * size_of::<ObjectEntry>()) as u64))?;
        let objects = Objects { entries, offset, source, state: OwnerLock::default() };
        // Numbers 0 and HEAP are not given to others.
        objects.state.lock().owned.resize_with(HEAP as usize + 1, || None);
        if let Some(place) = source.and_then(probe) {
            objects.enter(arena, &place, Some(HEAP));
        }
        Ok(objects)
    }

    /// The source of shared memory.
    pub(crate) fn source(&self) -> Option<Source> {
        self.source
    }

    /// Returns true if any of `memory` is the heap's and shows pages that peers can map.
    pub(crate) fn in_heap(&self, memory: &Range<u64>) -> bool {
        let heap = self.state.lock().owned[HEAP as usize].as_ref().map(|owned| owned.identity);
        let (Some(source), Some(heap)) = (self.source, heap) else { return false };
        let shared = |at| source.find_range(at, 1).is_some_and(|place| place.object == heap);
        memory.clone().step_by(4096).chain([memory.end - 1]).any(shared)
    }

    /// Parts pinned memory of the heap from what peers can reach. No key leads there any more.
    pub(crate) fn part(&self, memory: &Range<u64>) {
        if let Some(source) = self.source {
            source.part(memory.start, memory.end - memory.start);
        }
    }

    /// Enters memory that was adopted; gives it back where there is no room for its object.
    pub(crate) fn hold(
        &self,
        arena: &Arena,
        place: &Place,
        len: u64,
        adopted: Adopted,
    ) -> std::result::Result<ExportedRange, Adopted> {
        let Some((number, generation)) = self.enter(arena, place, None) else { return Err(adopted) };
        let pin = Pin { number, identity: place.object, offset: place.offset, len, adopted: Some(adopted) };
        Ok(ExportedRange { at: u64::from(number) << OFFSET_BITS | place.offset, generation, pin: Some(pin) })
    }

    /// Pins `[addr, addr + len)` where it lies, if that is in a shared object.
    pub(crate) fn pin(&self, arena: &Arena, addr: u64, len: u64) -> ExportedRange {
        let Some(source) = self.source.filter(|_| len != 0) else { return ExportedRange::NOWHERE };
        let Some(place) = source.pin(addr, len) else { return ExportedRange::NOWHERE };
        if place.kind == KIND_WINDOW {
            // Peers of this host do not map a window: a process that shortens its file would end them by SIGBUS. The
            // memory stays in its place.
            let pin = Pin { number: 0, identity: place.object, offset: place.offset, len, adopted: None };
            return ExportedRange { pin: Some(pin), ..ExportedRange::NOWHERE };
        }
        let fits = place.offset.checked_add(len).is_some_and(|end| end <= place.object_len && end < 1 << OFFSET_BITS);
        let entered = if fits { self.enter(arena, &place, None) } else { None };
        let Some((number, generation)) = entered else {
            source.unpin(place.object, place.offset, len);
            return ExportedRange::NOWHERE;
        };
        let pin = Pin { number, identity: place.object, offset: place.offset, len, adopted: None };
        ExportedRange { at: u64::from(number) << OFFSET_BITS | place.offset, generation, pin: Some(pin) }
    }

    /// Ends a pin: the object, if that was its last one, and the memory that was adopted for it and is to be given
    /// back. Nobody reaches the memory through a key any more.
    pub(crate) fn unpin(&self, pin: Pin) -> (Option<Withdrawn>, Option<Adopted>) {
        // First: an object with users is pinned, so that its descriptor is good.
        let withdrawn = self.leave(pin.number);
        if let (None, Some(source)) = (&pin.adopted, self.source) {
            source.unpin(pin.identity, pin.offset, pin.len);
        }
        (withdrawn, pin.adopted)
    }

    /// The number and generation of the object of `place`, with one more user.
    pub(crate) fn enter(&self, arena: &Arena, place: &Place, number: Option<u32>) -> Option<(u32, u32)> {
        let mut state = self.state.lock();
        if let Some(number) = state.numbers.get(&place.object).copied() {
            let owned = state.owned[number as usize].as_mut()?;
            owned.users += 1;
            if place.object_len > owned.length {
                owned.length = place.object_len;
                self.entries[number as usize].length.store(place.object_len, Ordering::Release);
            }
            return Some((number, owned.generation));
        }
        let (file, segment) = match place.kind {
            OBJECT_MEMFD => (Some(File { fd: place.fd, id: file_id(place.fd)? }), None),
            OBJECT_SYSV => (None, Some(sysv::look(place.fd)?)),
            _ => return None,
        };
        let number = number.or_else(|| state.take_number())?;
        if (number as usize).is_multiple_of(COMMIT) {
            let first = self.offset + u64::from(number) * size_of::<ObjectEntry>() as u64;
            if arena.commit(&(first..first + (COMMIT * size_of::<ObjectEntry>()) as u64)).is_err() {
                state.free.push_back(number);
                return None;
            }
        }
        state.generation = state.generation.wrapping_add(1).max(1);
        let generation = state.generation;
        let e = &self.entries[number as usize];
        e.kind.store(place.kind, Ordering::Relaxed);
        e.identity.store(place.object, Ordering::Relaxed);
        e.length.store(place.object_len, Ordering::Relaxed);
        if let Some(s) = segment {
            e.shmid.store(place.fd as u32, Ordering::Relaxed);
            e.cuid.store(s.cuid, Ordering::Relaxed);
            e.ctime.store(s.ctime, Ordering::Relaxed);
            e.ipc_namespace.store(s.namespace, Ordering::Relaxed);
            e.length.store(s.length, Ordering::Relaxed);
        }
        e.generation.store(generation, Ordering::SeqCst);
        let owned = Owned { identity: place.object, generation, users: 1, length: place.object_len, file };
        state.owned[number as usize] = Some(owned);
        state.numbers.insert(place.object, number);
        Some((number, generation))
    }

    pub(crate) fn leave(&self, number: u32) -> Option<Withdrawn> {
        let mut state = self.state.lock();
        let owned = state.owned.get_mut(number as usize)?.as_mut()?;
        owned.users -= 1;
        if owned.users != 0 {
            return None;
        }
        let (identity, generation) = (owned.identity, owned.generation);
        self.entries[number as usize].generation.store(0, Ordering::SeqCst);
        state.numbers.remove(&identity);
        state.owned[number as usize] = None;
        state.free.push_back(number);
        Some(Withdrawn { number, generation })
    }

    /// The answer to a peer that asks for object `number`: a descriptor, or None for a segment, which the peer may
    /// attach by its number; the outer None if there is no such object any more.
    pub(crate) fn grant(&self, number: u32, generation: u32) -> Option<Option<OwnedFd>> {
        // Held while the descriptor is copied: an object with users is pinned.
        let state = self.state.lock();
        let owned = state.owned.get(number as usize)?.as_ref().filter(|o| o.generation == generation)?;
        match &owned.file {
            Some(file) => duplicate(file).map(Some),
            None => Some(None),
        }
    }
}

impl State {
    fn take_number(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop_front() {
            return Some(number);
        }
        let number = self.owned.len();
        if number == OBJECTS {
            return None;
        }
        self.owned.push(None);
        Some(number as u32)
    }
}

/// The place of large allocations that the preload serves.
fn probe(source: Source) -> Option<Place> {
    let mut p = std::ptr::null_mut();
    // SAFETY: fills the pointer, or says that it could not.
    if unsafe { libc::posix_memalign(&raw mut p, 4096, PROBE) } != 0 {
        return None;
    }
    let place = source.find_range(p as u64, PROBE as u64);
    // SAFETY: allocated just above.
    unsafe { libc::free(p) };
    place.filter(|place| place.kind == OBJECT_MEMFD)
}

fn file_id(fd: i32) -> Option<(u64, u64)> {
    // SAFETY: fstat fills the zeroed struct.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return None;
        }
        stat
    };
    Some((stat.st_dev, stat.st_ino))
}

/// A descriptor to be passed on. Not one of the standard streams, even if the program has closed those.
fn duplicate(file: &File) -> Option<OwnedFd> {
    // SAFETY: makes a new descriptor, owned at once.
    let new = unsafe {
        let new = libc::fcntl(file.fd, libc::F_DUPFD_CLOEXEC, 3);
        if new < 0 {
            return None;
        }
        OwnedFd::from_raw_fd(new)
    };
    (file_id(new.as_raw_fd()) == Some(file.id)).then_some(new)
}
