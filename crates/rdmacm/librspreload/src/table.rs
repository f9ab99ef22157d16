//! Which descriptor has an rsocket. Looked at by each read and write of the program, in signal handlers too: without a
//! lock.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::rsockets::{Functions, functions};

const PAGE: usize = 1024;
const PAGES: usize = 1024;

type Page = [AtomicI32; PAGE];

/// Rsockets, plus 1, by descriptor; pages are made when first needed, and stay.
static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(ptr::null_mut()) }; PAGES];

/// The number of descriptors of each rsocket that has more than one; its lock is also that of changes to the table.
static COUNTS: Mutex<Vec<(c_int, usize)>> = Mutex::new(Vec::new());

/// The process that the rsockets of the table are of; 0 while there are none. After fork(2) the child has a copy of the
/// table, and after vfork(2) the table itself, and neither has the rsockets.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn process() -> u32 {
    // SAFETY: no arguments. By the system call, as the C library may have kept the number of another process after a
    // bare clone(2).
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

/// Returns true if this process may have rsockets: none of another are in the table.
pub fn is_here() -> bool {
    let owner = OWNER.load(Ordering::Acquire);
    owner == 0 || owner == process()
}

fn place(fd: c_int, make: bool) -> Option<&'static AtomicI32> {
    let at = usize::try_from(fd).ok()?;
    let page = TABLE.get(at / PAGE)?;
    let mut found = page.load(Ordering::Acquire);
    if found.is_null() {
        if !make {
            return None;
        }
        let new = Box::into_raw(Box::new([const { AtomicI32::new(0) }; PAGE]));
        match page.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => found = new,
            Err(other) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
                found = other;
            }
        }
    }
    // SAFETY: a page, which stays.
    Some(unsafe { &(*found)[at % PAGE] })
}

/// The rsocket of a descriptor, and the functions to use it with; None in a child of the process whose rsocket it is.
#[inline]
pub fn find(fd: c_int) -> Option<(c_int, &'static Functions)> {
    let rsocket = place(fd, false)?.load(Ordering::Acquire) - 1;
    // Most descriptors have none, and cost no system call.
    if rsocket < 0 || !is_here() { None } else { Some((rsocket, functions()?)) }
}

/// The descriptor has this rsocket from now on, beside others that may have it. Returns false if that is impossible:
/// some descriptors have no place in the table, and in a child of the table's process none has.
pub fn insert(fd: c_int, rsocket: c_int) -> bool {
    if !is_here() {
        return false;
    }
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(place) = place(fd, true) else { return false };
    OWNER.store(process(), Ordering::Release);
    match counts.iter_mut().find(|(other, _)| *other == rsocket) {
        Some((_, count)) => *count += 1,
        None => counts.push((rsocket, 1)),
    }
    let before = place.swap(rsocket + 1, Ordering::AcqRel) - 1;
    // A descriptor that the kernel has given anew was closed by a way that does not lead here, such as a system call of
    // the program's own.
    let left_over = count_down(&mut counts, before);
    drop(counts);
    if let (Some(rsocket), Some(functions)) = (left_over, functions()) {
        // SAFETY: an rsocket that no descriptor has any more.
        unsafe { (functions.rclose)(rsocket) };
    }
    true
}

/// A descriptor has this rsocket no more; the rsocket, if it was the last.
fn count_down(counts: &mut Vec<(c_int, usize)>, rsocket: c_int) -> Option<c_int> {
    let at = counts.iter().position(|(other, _)| *other == rsocket)?;
    counts[at].1 -= 1;
    if counts[at].1 > 0 {
        return None;
    }
    counts.swap_remove(at);
    Some(rsocket)
}

/// The descriptor has no rsocket any more; the rsocket, if it was the last.
pub fn remove(fd: c_int) -> Option<(c_int, &'static Functions)> {
    // Most descriptors have none, and never take the lock.
    find(fd)?;
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let rsocket = place(fd, false)?.swap(0, Ordering::AcqRel) - 1;
    let rsocket = count_down(&mut counts, rsocket)?;
    if counts.is_empty() {
        OWNER.store(0, Ordering::Release);
    }
    Some((rsocket, functions()?))
}

/// The descriptors from `first` to `last` have no rsockets any more; rsockets that had no others are closed.
pub fn remove_all(first: c_uint, last: c_uint) {
    let most = (PAGES * PAGE) as c_uint;
    let mut fd = first;
    while fd <= last && fd < most {
        if TABLE[fd as usize / PAGE].load(Ordering::Acquire).is_null() {
            // The whole page is empty.
            fd = (fd / PAGE as c_uint + 1) * PAGE as c_uint;
            continue;
        }
        if let Some((rsocket, functions)) = remove(fd as c_int) {
            // SAFETY: an rsocket that no descriptor has any more.
            unsafe { (functions.rclose)(rsocket) };
        }
        fd += 1;
    }
}
