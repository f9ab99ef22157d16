//! The two exchanges under running threads: private pages for pages of the shared object, and back. Each is one short
//! critical section per piece, in which the program's threads that touch the piece wait in the kernel; docs/adoption.md
//! has the argument why no write is lost. Called with the gate closed: no peer writes meanwhile.

use super::sys::{self, NoSignals, PAGE, Stop};
use super::uffd::Uffd;

/// The most bytes that are exchanged at once, so that threads wait a fraction of a millisecond.
pub(super) const PIECE: usize = 2 << 20;

/// Pages that are exchanged together. They lie in one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) addr: usize,
    pub(super) len: usize,
}

/// Replaces the private anonymous pages by pages of the object `fd`, at the offset that equals their address. Returns
/// where the mapping that held them is kept, empty, for [`revert`]: it carries what the program said about it (madvise
/// flags) and lets the kernel join it with its neighbours again.
pub(super) fn adopt(uffd: &Uffd, fd: i32, piece: Piece) -> Result<usize, Stop> {
    let Piece { addr, len } = piece;
    let hold = sys::map_anonymous(len, libc::PROT_READ | libc::PROT_WRITE)?;
    let result = uffd.register_wp(hold, len).and_then(|()| {
        let _signals = NoSignals::new();
        uffd.register_missing(addr, len)?;
        // SAFETY: the range was just registered.
        let taken = unsafe { sys::take_pages(addr, len) };
        let result = taken.and_then(|side| fill_object(uffd, fd, piece, hold, side).map(|()| side));
        match result {
            Ok(_) => uffd.wake(addr, len),
            Err(_) => uffd.unregister(addr, len),
        }
        result
    });
    // SAFETY: made above, and its contents are in the object, or back at the side.
    unsafe { sys::unmap(hold, len) };
    result
}

/// The pages are at `side`, and a thread that touches `piece` waits. Puts them into the object and maps it; on failure
/// all is as it was.
fn fill_object(uffd: &Uffd, fd: i32, piece: Piece, hold: usize, side: usize) -> Result<(), Stop> {
    let Piece { addr, len } = piece;
    let mut moved = 0;
    let result = uffd
        // Proves that nobody has a page pinned: such a page would be written behind our back, and its copy not.
        .move_pages(hold, side, len, &mut moved)
        .and_then(|()| sys::write_object(fd, hold, len, addr))
        // SAFETY: the object holds what the pages held, and nobody has written since.
        .and_then(|()| unsafe { sys::map_object_over(addr, len, fd) });
    if result.is_err() {
        // SAFETY: both are working space of this length; nobody else knows them.
        unsafe { std::ptr::copy_nonoverlapping(hold as *const u8, side as *mut u8, moved) };
        // SAFETY: `side` holds everything again.
        if unsafe { sys::move_mapping(side, len, addr) }.is_err() {
            lost();
        }
        sys::punch(fd, addr, len);
    }
    result
}

/// Puts the contents of the object's pages into the mapping kept at `side` and that mapping back in their place.
/// `fd` is none if the program has closed it, `prot` what it allows on the pages now. On failure all is as it was.
pub(super) fn revert(uffd: &Uffd, fd: Option<i32>, piece: Piece, side: usize, prot: i32) -> Result<(), Stop> {
    let Piece { addr, len } = piece;
    let _signals = NoSignals::new();
    uffd.register_wp(addr, len)?;
    let filled = uffd
        .write_protect(addr, len, true)
        .and_then(|()| fill_side(uffd, fd, piece, side, prot))
        .and_then(|()| if prot == RW { Ok(()) } else { sys::protect(side, len, prot) });
    // SAFETY: `side` holds what the pages hold, and nobody has written since they are write-protected.
    let result = filled.and_then(|()| unsafe { sys::move_mapping(side, len, addr) });
    match result {
        Ok(()) => {
            uffd.wake(addr, len);
            if let Some(fd) = fd {
                sys::punch(fd, addr, len);
            }
        }
        Err(_) => {
            // mremap refuses before it unmaps; were it otherwise, this asks for pages that are gone.
            if uffd.write_protect(addr, len, false).is_err() {
                lost();
            }
            uffd.unregister(addr, len);
            let _ = sys::protect(side, len, RW);
            let _ = sys::advise(side, len, libc::MADV_DONTNEED);
        }
    }
    result
}

/// Fills the empty mapping at `side` with what the pages hold.
fn fill_side(uffd: &Uffd, fd: Option<i32>, piece: Piece, side: usize, prot: i32) -> Result<(), Stop> {
    let Piece { addr, len } = piece;
    // A read for what is small, or may not be looked at where it is; for the rest, a copy, which spares the kernel to
    // zero the pages first: half the time.
    if let Some(fd) = fd.filter(|_| len <= PAGE || prot & libc::PROT_READ == 0) {
        return sys::read_object(fd, side, len, addr);
    }
    uffd.register_wp(side, len)?;
    let result = uffd.copy_pages(side, addr, len);
    // The kernel joins the mapping with its neighbours only when it is like them.
    uffd.unregister(side, len);
    result
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// The kernel took the program's memory and cannot put it back (out of memory for its own tables).
fn lost() -> ! {
    const WHAT: &[u8] = b"vervain: the kernel could not put adopted memory back (mremap failed); ending the program\n";
    // SAFETY: writes a static to stderr.
    unsafe { libc::syscall(libc::SYS_write, 2, WHAT.as_ptr(), WHAT.len()) };
    std::process::abort();
}

const _: () = assert!(PIECE.is_multiple_of(PAGE));
