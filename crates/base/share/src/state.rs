//! The state of the heap and its lock. Blocks are known by a table outside of them: what a peer writes into shared
//! memory cannot break the allocator.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::blocks::Blocks;
use crate::marks::{Marks, There};
use crate::mode::{self, exists, possible};
use crate::object::{self, Object};
use crate::pins::Pins;
use crate::room::{self, Room};
use crate::settings::{Off, Settings};
use crate::slab::Slabs;
use crate::snapshots::Snapshots;
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
    /// What the room has been given to.
    pub blocks: Blocks,
    /// Blocks that are cut into slots.
    pub slabs: Slabs,
    /// Ranges that are not plain memory.
    pub marks: Marks,
    /// Ranges that a device works on.
    pub pins: Pins,
    /// Copies that children of fork have.
    pub snapshots: Snapshots,
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
            blocks: Blocks::default(),
            slabs: Slabs::default(),
            marks: Marks::default(),
            pins: Pins::default(),
            snapshots: Snapshots::default(),
        })
    }

    /// The addresses of the heap.
    pub fn span(&self) -> Range<usize> {
        self.base..self.base + self.len
    }

    /// Returns true if all of `range` is live memory that shows the object's own pages.
    pub fn shared(&self, range: &Range<usize>) -> bool {
        if range.is_empty() || range.start < self.base || range.end > self.base + self.len {
            return false;
        }
        let mut at = range.start;
        for (_, _, part) in self.blocks.live_parts(range) {
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
