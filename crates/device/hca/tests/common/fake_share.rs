//! A stand-in for the preload: memory in memfds or System V segments that a test makes, offered to the device as
//! `ShareApi`. Pins are counted, and pinned memory stays as long as the test keeps the object.
#![allow(dead_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use vervain_hca::process::share_api::offer;
use vervain_share::api::{KIND_MEMFD, KIND_SYSV, Place, ShareApi, VERSION};

static OBJECTS: Mutex<Vec<Object>> = Mutex::new(Vec::new());
static NEXT: AtomicU64 = AtomicU64::new(1);
static PINS: AtomicU32 = AtomicU32::new(0);
static GATED: AtomicBool = AtomicBool::new(false);
/// Pretends that whatever the device allocates to find the heap lies in the first object.
static HEAP: AtomicBool = AtomicBool::new(false);

/// A shared object and where this process has it.
#[derive(Debug)]
pub struct Object {
    place: Place,
    /// Address in this process.
    pub addr: usize,
    fd: Option<OwnedFd>,
    /// Bytes that count as one object.
    unit: u64,
}

static API: ShareApi = ShareApi {
    version: VERSION,
    size: size_of::<ShareApi>() as u32,
    find,
    pin,
    unpin,
    set_fork_gate,
    part,
    set_reaper,
    reap,
};

unsafe extern "C" fn set_reaper(_called: Option<unsafe extern "C" fn()>) {}

/// There is no freed memory to give back.
unsafe extern "C" fn reap() -> u64 {
    u64::MAX
}

unsafe extern "C" fn find(addr: usize, len: usize, out: *mut Place) -> i32 {
    let objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let inside = |o: &&Object| {
        addr >= o.addr && addr.checked_add(len).is_some_and(|e| e <= o.addr + o.place.object_len as usize)
    };
    let place = match objects.iter().find(inside) {
        Some(o) => {
            let offset = (addr - o.addr) as u64;
            Place { offset, object: o.place.object + ((offset / o.unit) << 32), ..o.place }
        }
        None if HEAP.load(Ordering::Relaxed) && !objects.is_empty() => objects[0].place,
        None => return -1,
    };
    // SAFETY: the caller gives a place to fill.
    unsafe { out.write(place) };
    0
}

unsafe extern "C" fn pin(addr: usize, len: usize, out: *mut Place) -> i32 {
    HEAP.store(false, Ordering::Relaxed);
    // SAFETY: as the caller promised us.
    let rc = unsafe { find(addr, len, out) };
    if rc == 0 {
        PINS.fetch_add(1, Ordering::SeqCst);
    }
    rc
}

unsafe extern "C" fn unpin(_: u64, _: u64, _: usize) {
    PINS.fetch_sub(1, Ordering::SeqCst);
}

/// Ranges that the device has parted from its peers.
pub static PARTED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

unsafe extern "C" fn part(addr: usize, len: usize) {
    PARTED.lock().unwrap_or_else(PoisonError::into_inner).push((addr, len));
}

type Gate = Option<unsafe extern "C" fn()>;

unsafe extern "C" fn set_fork_gate(before: Gate, after: Gate) {
    if let (Some(before), Some(after)) = (before, after) {
        // SAFETY: what the device gives may be called at any time.
        unsafe {
            before();
            after();
        }
        GATED.store(true, Ordering::Relaxed);
    }
}

/// Returns true if the device has given its fork gate, which was opened and closed once.
pub fn fork_gate() -> bool {
    GATED.load(Ordering::Relaxed)
}

/// The effect of a program that closes descriptors by number and opens something else.
pub fn replace_descriptor(addr: usize) {
    let objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let object = objects.iter().find(|o| o.addr == addr).expect("an object at this address");
    // SAFETY: puts another file in the place of a descriptor of our own.
    unsafe {
        let other = libc::memfd_create(c"other".as_ptr(), libc::MFD_CLOEXEC);
        assert!(libc::dup3(other, object.place.fd, libc::O_CLOEXEC) >= 0);
        libc::close(other);
    }
}

/// Makes each `unit` bytes of the object at `addr` an object of its own.
pub fn split(addr: usize, unit: u64) {
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    objects.iter_mut().find(|o| o.addr == addr).expect("an object at this address").unit = unit;
}

/// Has the device ask here for shared memory. Before it is opened.
pub fn install() {
    offer(&API);
}

/// The first object made is the heap.
pub fn with_heap() {
    HEAP.store(true, Ordering::Relaxed);
}

/// Pins that hold now.
pub fn pins() -> u32 {
    PINS.load(Ordering::SeqCst)
}

/// A memfd of `len` bytes, mapped; sealed as the seam promises, unless a test wants otherwise.
pub fn memfd(name: &std::ffi::CStr, len: u64, sealed: bool) -> usize {
    // SAFETY: a fresh descriptor, owned at once, and a fresh mapping of it.
    let (fd, at) = unsafe {
        let fd = OwnedFd::from_raw_fd(libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC));
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as i64), 0);
        if sealed {
            assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        (fd.try_clone().unwrap(), libc::mmap(std::ptr::null_mut(), len as usize, prot, flags, fd.as_raw_fd(), 0))
    };
    assert_ne!(at, libc::MAP_FAILED);
    add(KIND_MEMFD, fd.as_raw_fd(), Some(fd), at as usize, len)
}

/// One more descriptor of the last memfd that has `len` bytes.
pub fn descriptor(len: u64) -> OwnedFd {
    let objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let object = objects.iter().rev().find(|o| o.place.object_len == len).expect("an object of that length");
    object.fd.as_ref().expect("a memfd").try_clone().unwrap()
}

/// A System V segment of `len` bytes, attached, and marked to go with its last user.
pub fn segment(len: u64) -> usize {
    // SAFETY: makes and attaches a segment of our own.
    let (id, at) = unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, len as usize, 0o600);
        assert!(id >= 0);
        let at = libc::shmat(id, std::ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        (id, at)
    };
    assert_ne!(at as isize, -1);
    add(KIND_SYSV, id, None, at as usize, len)
}

fn add(kind: u32, raw: i32, fd: Option<OwnedFd>, addr: usize, len: u64) -> usize {
    let object = NEXT.fetch_add(1, Ordering::Relaxed);
    let place = Place { kind, fd: raw, object, offset: 0, object_len: len, incarnation: 0 };
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner).push(Object { place, addr, fd, unit: u64::MAX });
    addr
}

/// Gives up the object at `addr`.
pub fn remove(addr: usize) {
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let i = objects.iter().position(|o| o.addr == addr).expect("an object at this address");
    let o = objects.remove(i);
    // SAFETY: mapped by `memfd` or attached by `segment`; the test uses it no more.
    unsafe {
        match o.place.kind {
            KIND_SYSV => libc::shmdt(addr as *const libc::c_void),
            _ => libc::munmap(addr as *mut libc::c_void, o.place.object_len as usize),
        };
    }
}
