//! The state of the heap and its lock. Blocks are known by a table outside of them: what a peer writes into shared
//! memory cannot break the allocator.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::fork::Snapshot;
use crate::marks::{Marks, There};
use crate::mode::{self, exists, possible};
use crate::object::{self, Object};
use crate::pins::Pins;
use crate::room::{self, Room};
use crate::settings::{Off, Settings};
use crate::slab::Slabs;
use crate::sys;

/// Address of the heap; `usize::MAX`: none. Written before [`LEN`]; see [`range`].
static BASE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Bytes of the heap; 0 while there is none, so that one comparison excludes all other addresses.
pub static LEN: AtomicUsize = AtomicUsize::new(0);

/// The heap's address and its length; the length is 0 while there is no heap. The length is read first: a reader that
/// sees it sees the address too, and no address of the program's counts as the heap's while another thread makes the
/// heap.
#[inline]
pub fn range() -> (usize, usize) {
    let len = LEN.load(Ordering::Acquire);
    (BASE.load(Ordering::Relaxed), len)
}

/// The caller that a block was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// malloc and its kin; ended by free.
    Allocation,
    /// mmap; ended by munmap of all its pages.
    Mapping,
    /// Small allocations at page boundaries ([`Slabs`]); ended when all are free.
    Slab,
}

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The program has it.
    Live(Kind),
    /// The program has given it back while it was pinned.
    Parked,
    /// Kept for the next request since that time (ms).
    Cached(u64),
    /// A thread is making or releasing it; or something else was found at its place, and it stays unused.
    Busy,
}

/// One block: a range of the object and of addresses.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Room that belongs to it, in bytes.
    pub room: usize,
    /// Bytes from its start that are mapped (with the exceptions in `marks`).
    pub mapped: usize,
    /// Bytes from its start that may have pages.
    pub dirty: usize,
    /// Bytes from its start that are known to have pages.
    pub full: usize,
    /// See [`State`].
    pub state: State,
}

/// The heap.
#[derive(Debug)]
pub struct Heap {
    /// Address of the object's first byte.
    pub base: usize,
    /// Bytes of addresses from there: as many as the object has, or more.
    pub len: usize,
    /// The pages.
    pub object: Object,
    /// See [`Settings`].
    pub settings: Settings,
    /// Unused room.
    pub room: Room,
    /// All blocks by address.
    pub blocks: BTreeMap<usize, Block>,
    /// Cached blocks: room and address.
    pub by_size: BTreeSet<(usize, usize)>,
    /// Cached blocks, oldest first: since when, and address. Entries of blocks in use again are stale.
    pub by_age: VecDeque<(u64, usize)>,
    /// Sum of `dirty` of the cached blocks.
    pub cached: usize,
    /// Blocks that are cut into slots.
    pub slabs: Slabs,
    /// Ranges that are not plain memory.
    pub marks: Marks,
    /// Ranges that a device works on.
    pub pins: Pins,
    /// Copies that children of fork have, the newest last.
    pub snapshots: Vec<Snapshot>,
    /// When it was looked last whether they do (ms).
    pub snapshots_looked_at: u64,
}

static HEAP: Mutex<Result<Heap, Off>> = Mutex::new(Err(Off::Variable));

thread_local! {
    /// True while this thread holds the lock. Allocations of the table itself then go to the C library.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// The heap, locked.
pub struct Locked(ManuallyDrop<MutexGuard<'static, Result<Heap, Off>>>);

impl Locked {
    /// The heap, if there is one by now.
    pub fn heap(&mut self) -> Option<&mut Heap> {
        self.0.as_mut().ok()
    }
}

impl Deref for Locked {
    type Target = Heap;

    fn deref(&self) -> &Heap {
        self.0.as_ref().expect("locked only where there is a heap")
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Heap {
        self.0.as_mut().expect("locked only where there is a heap")
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: dropped here only, once.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        BUSY.set(false);
    }
}

/// Holds the lock over a fork, whether there is a heap or not: another thread may be making it right now.
pub fn hold() -> Option<Locked> {
    if !(possible() || exists()) || BUSY.get() {
        return None;
    }
    BUSY.set(true);
    Some(Locked(ManuallyDrop::new(sys::lock(&HEAP))))
}

/// Looks at the heap from a signal handler: not if anybody holds the lock.
pub fn peek(look: impl FnOnce(&Heap)) {
    if let Ok(guard) = HEAP.try_lock()
        && let Ok(heap) = &*guard
    {
        look(heap);
    }
}

/// Locks the heap, which the first caller makes. `None` when sharing is off, or when this thread is inside already (an
/// allocation of the table itself, or of a signal handler).
pub fn lock() -> Option<Locked> {
    if !(possible() || exists()) || BUSY.get() {
        return None;
    }
    BUSY.set(true);
    let mut guard = sys::lock(&HEAP);
    if mode::awaits_heap() {
        *guard = Heap::create();
        if let Ok(heap) = &*guard {
            heap.room.note_descriptors(&heap.object);
            BASE.store(heap.base, Ordering::Relaxed);
            LEN.store(heap.len, Ordering::Release);
        }
        mode::set(guard.is_ok());
        if guard.is_ok() {
            crate::dump::install();
        }
    }
    if guard.is_err() {
        drop(guard);
        BUSY.set(false);
        return None;
    }
    Some(Locked(ManuallyDrop::new(guard)))
}

impl Heap {
    fn create() -> Result<Heap, Off> {
        let mut settings = Settings::read()?;
        let (object, room) = match room::of_window() {
            Some((object, room)) => {
                // Memory that this process keeps is missing to the others of its node.
                settings.cache_limit = settings.cache_limit.min(room.len() / 4);
                (object, Room::Window(room))
            }
            None => {
                let object = Object::create(settings.heap_len, settings.huge)?;
                (object, Room::beside(settings.heap_len, std::iter::empty()))
            }
        };
        Ok(Heap {
            base: object::place(&settings),
            len: settings.heap_len,
            room,
            object,
            settings,
            blocks: BTreeMap::new(),
            by_size: BTreeSet::new(),
            by_age: VecDeque::new(),
            cached: 0,
            slabs: Slabs::default(),
            marks: Marks::default(),
            pins: Pins::default(),
            snapshots: Vec::new(),
            snapshots_looked_at: 0,
        })
    }

    /// Blocks in a state, by the addresses that they have mapped.
    pub fn overlapping(&self, range: &Range<usize>, which: impl Fn(State) -> bool) -> Vec<usize> {
        let first = self.block_at(range.start).map_or(range.start, |(start, _)| start);
        let blocks = self.blocks.range(first..range.end.max(first));
        blocks.filter(|(s, b)| which(b.state) && *s + b.mapped > range.start).map(|(&start, _)| start).collect()
    }

    /// The addresses of the heap.
    pub fn span(&self) -> Range<usize> {
        self.base..self.base + self.len
    }

    /// The block that has `addr` in its room.
    pub fn block_at(&self, addr: usize) -> Option<(usize, &Block)> {
        let (&start, block) = self.blocks.range(..=addr).next_back()?;
        (addr < start + block.room).then_some((start, block))
    }

    /// Live blocks that overlap `range`, with the part of it that they have mapped.
    pub fn live_parts(&self, range: &Range<usize>) -> Vec<(usize, Kind, Range<usize>)> {
        let first = self.block_at(range.start).map_or(range.start, |(start, _)| start);
        let mut all = Vec::new();
        for (&start, block) in self.blocks.range(first..range.end.max(first)) {
            let part = range.start.max(start)..range.end.min(start + block.mapped);
            if let State::Live(kind) = block.state
                && !part.is_empty()
            {
                all.push((start, kind, part));
            }
        }
        all
    }

    /// Returns true if all of `range` is live memory that shows the object's own pages.
    pub fn shared(&self, range: &Range<usize>) -> bool {
        if range.is_empty() || range.start < self.base || range.end > self.base + self.len {
            return false;
        }
        let mut at = range.start;
        for (_, _, part) in self.live_parts(range) {
            if part.start != at {
                return false;
            }
            at = part.end;
        }
        let ours = |there| there == There::Object;
        at == range.end
            && (!self.marks.any(range) || self.marks.pieces(range.clone()).iter().all(|(_, m)| ours(m.there)))
    }
}
