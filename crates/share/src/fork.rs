//! fork(2) made right. To the program the heap is private memory, so a child gets the contents of the moment of the fork,
//! at the same addresses, in an object of its own, and the parent goes on with the old one.
//!
//! The copy is made in the parent, after the last of the program's own prepare handlers and before the process is
//! duplicated, with the device's peers held off. Our handlers are the first ones registered, thus the innermost. A child
//! that the C library knows nothing of (a raw clone) has no heap at all: a fault there, never a write into the parent's.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::marks::{Mark, There};
use crate::object::Object;
use crate::program;
use crate::settings::say;
use crate::state::{Heap, Locked, State, exists, lock};
use crate::sys;

/// The device's functions, as addresses; 0: none.
static BEFORE: AtomicUsize = AtomicUsize::new(0);
static AFTER: AtomicUsize = AtomicUsize::new(0);

/// Sets what is called around a fork, in the parent.
pub fn set_gate(before: Option<unsafe extern "C" fn()>, after: Option<unsafe extern "C" fn()>) {
    BEFORE.store(before.map_or(0, |f| f as usize), Ordering::Release);
    AFTER.store(after.map_or(0, |f| f as usize), Ordering::Release);
}

fn call(gate: &AtomicUsize) {
    let address = gate.load(Ordering::Acquire);
    if address != 0 {
        // SAFETY: stored by `set_gate` from a function of this type.
        let function: unsafe extern "C" fn() = unsafe { std::mem::transmute(address) };
        // SAFETY: whoever set the gate promised a function that may be called around fork.
        unsafe { function() };
    }
}

/// What lies between the handlers of one fork.
struct Between {
    heap: Option<Locked>,
    table: Option<MutexGuard<'static, program::Table>>,
    copy: Option<Object>,
}

struct Slot(UnsafeCell<Between>);
// SAFETY: written by the thread that forks only, which holds the heap's lock meanwhile.
unsafe impl Sync for Slot {}

static BETWEEN: Slot = Slot(UnsafeCell::new(Between { heap: None, table: None, copy: None }));

/// Registers the handlers, once. The preload library calls it before any other handler is registered.
pub fn register() {
    use std::sync::atomic::AtomicBool;
    unsafe extern "C" {
        fn __register_atfork(
            prepare: Option<unsafe extern "C" fn()>,
            parent: Option<unsafe extern "C" fn()>,
            child: Option<unsafe extern "C" fn()>,
            dso: *mut std::ffi::c_void,
        ) -> i32;
    }
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    let real = REGISTER.load(Ordering::Acquire);
    // SAFETY: functions without arguments, which stay loaded: no library is named that could be unloaded.
    unsafe {
        if real == 0 {
            __register_atfork(Some(prepare), Some(parent), Some(child), std::ptr::null_mut());
        } else {
            let real: unsafe extern "C" fn(
                Option<unsafe extern "C" fn()>,
                Option<unsafe extern "C" fn()>,
                Option<unsafe extern "C" fn()>,
                *mut std::ffi::c_void,
            ) -> i32 = std::mem::transmute(real);
            real(Some(prepare), Some(parent), Some(child), std::ptr::null_mut());
        }
    }
}

/// The C library's `__register_atfork`, where that name is hooked; 0: call it by name.
pub static REGISTER: AtomicUsize = AtomicUsize::new(0);

/// In the parent, before the process is duplicated.
///
/// # Safety
/// To be followed by a fork and `parent` or `child`, in the same thread.
pub unsafe extern "C" fn prepare() {
    if !exists() {
        return;
    }
    call(&BEFORE);
    let Some(heap) = lock() else { return };
    let copy = snapshot(&heap);
    // SAFETY: this thread holds the lock.
    let between = unsafe { &mut *BETWEEN.0.get() };
    between.copy = copy;
    between.heap = Some(heap);
    between.table = Some(program::table());
}

/// In the parent, afterwards.
///
/// # Safety
/// After `prepare`, in the same thread.
pub unsafe extern "C" fn parent() {
    if !exists() {
        return;
    }
    // SAFETY: as in `prepare`; without a locked heap there is nothing in it.
    let between = unsafe { &mut *BETWEEN.0.get() };
    drop(between.copy.take());
    drop(between.table.take());
    drop(between.heap.take());
    call(&AFTER);
}

/// In the child.
///
/// # Safety
/// After `prepare` in the thread that became the child.
pub unsafe extern "C" fn child() {
    if !exists() {
        return;
    }
    set_gate(None, None);
    // SAFETY: this is the only thread, and it inherited the lock.
    let between = unsafe { &mut *BETWEEN.0.get() };
    let copy = between.copy.take();
    drop(between.table.take());
    if let Some(mut heap) = between.heap.take() {
        heap.become_child(copy);
    }
}

/// The parts of live blocks that show the object's pages.
fn parts(heap: &Heap) -> Vec<(Range<usize>, Mark)> {
    heap.live_parts(&heap.span())
        .into_iter()
        .flat_map(|(_, _, part)| heap.marks.pieces(part))
        .filter(|(_, mark)| mark.there == There::Object && !mark.dont_fork)
        .collect()
}

/// A copy of what a child inherits; `None` when it is more than the limit, or cannot be made.
fn snapshot(heap: &Heap) -> Option<Object> {
    let mut data = Vec::new();
    let mut total = 0;
    for (part, mark) in parts(heap) {
        if !mark.wipe {
            data.extend(heap.object.resident(part.start - heap.base, part.len()));
        }
    }
    total += data.iter().map(|(_, n)| n).sum::<usize>();
    if total > heap.settings.fork_limit {
        say(&[b"vervain: fork without the shared heap: it is larger than VERVAIN_FORK_LIMIT"]);
        return None;
    }
    let made = Object::create(heap.object.len, heap.settings.huge).ok();
    let copied = made.filter(|copy| data.iter().all(|&(offset, n)| copy_part(&heap.object, copy, offset, n)));
    if copied.is_none() {
        say(&[b"vervain: fork without the shared heap: it could not be copied"]);
    }
    copied
}

/// Copies a part of an object, past the protections that the program has set.
fn copy_part(from: &Object, to: &Object, offset: usize, len: usize) -> bool {
    const WINDOW: usize = 64 << 20;
    let mut at = offset;
    while at < offset + len {
        let n = (offset + len - at).min(WINDOW);
        // SAFETY: a place of the kernel's choice.
        let Ok(window) = (unsafe { sys::mmap(0, n, libc::PROT_READ, libc::MAP_SHARED, from.fd, at as u64) }) else {
            return false;
        };
        let mut done = 0;
        while done < n {
            // SAFETY: `n` readable bytes.
            let wrote = unsafe { libc::pwrite(to.fd, (window + done) as *const _, n - done, (at + done) as i64) };
            if wrote <= 0 {
                break;
            }
            done += wrote as usize;
        }
        // SAFETY: mapped above.
        let _ = unsafe { sys::munmap(window, n) };
        if done < n {
            return false;
        }
        at += n;
    }
    true
}

impl Heap {
    /// Puts the copy in the parent's place. Nothing of the parent's object is mapped here.
    fn become_child(&mut self, copy: Option<Object>) {
        self.pins.clear();
        self.parked.clear();
        let keep = self.blocks.iter().filter(|(_, b)| matches!(b.state, State::Live(_))).map(|(&s, &b)| (s, b));
        let live: Vec<_> = keep.collect();
        let absent = copy.is_none();
        // Without a copy the heap's memory is not there, as after MADV_DONTFORK; new blocks need an object all the same.
        let object = copy.or_else(|| Object::create(self.object.len, self.settings.huge).ok());
        let Some(object) = object else { return };
        self.object = object;
        for (part, mark) in parts(self) {
            let there = !absent && self.object.map(part.start, part.start - self.base, part.len(), mark.prot).is_ok();
            if !there {
                self.marks.update(part, |m| m.there = There::Hole);
            }
        }
        for (start, block) in &live {
            for (part, mark) in self.marks.pieces(*start..start + block.mapped) {
                if mark.there == There::Object && mark.dont_fork {
                    self.marks.update(part, |m| m.there = There::Hole);
                }
            }
        }
        // Blocks that nobody has any more are just room.
        let gone: Vec<_> = self.blocks.iter().map(|(&s, b)| (s, b.room, b.state)).collect();
        for (start, room, state) in gone {
            if matches!(state, State::Cached(_) | State::Parked) {
                self.blocks.remove(&start);
                self.give_room(start, room);
            }
        }
        self.by_size.clear();
        self.by_age.clear();
        self.cached = 0;
    }
}
