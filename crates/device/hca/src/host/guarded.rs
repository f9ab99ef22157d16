//! Accesses to registered memory that the program may have taken away. An HCA has pinned the pages; this device has the
//! program's own mapping, and the program may unmap or protect it, or cut a file short, while it is registered. Then an
//! access here ends in an answer, not in a signal: each instruction that touches such memory stands in a table along
//! with the place to go on at, and the handler of SIGSEGV and SIGBUS (`faults`) goes on there with the address in a
//! register. A good access of a word pays nothing for it, any other with the test of a register. The instructions are
//! in `arch`.

use crate::host::arch::guarded as native;
use std::num::NonZeroUsize;

/// The address that could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted(NonZeroUsize);

impl Faulted {
    /// The address.
    pub fn address(self) -> usize {
        self.0.get()
    }

    #[inline(always)]
    fn check(address: usize) -> Access {
        match NonZeroUsize::new(address) {
            None => Ok(()),
            Some(address) => Err(Faulted(address)),
        }
    }
}

/// The result of an access.
pub type Access = Result<(), Faulted>;

/// Copies `n` bytes; the ranges may overlap.
///
/// # Safety
/// No reference is to the bytes at `to`, nor one that excludes others to those at `from`. A fault is returned as an
/// error.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) -> Access {
    // SAFETY: the caller's promise.
    Faulted::check(unsafe { native::vervain_move(to, from, n) })
}

/// Returns true if the processor has what [`turns`] takes.
#[inline(always)]
pub(crate) fn has_turns() -> bool {
    native::has_turns()
}

/// Copies `n` bytes by turns of 128, with `STREAM` past the caches, and then visible before anything that is stored
/// after it.
///
/// # Safety
/// As for [`copy`]; [`has_turns`], `n` is a multiple of 128 and not 0, `to` is aligned to 64, the ranges do not
/// overlap.
#[inline]
pub(crate) unsafe fn turns<const STREAM: bool>(from: *const u8, to: *mut u8, n: usize) -> Access {
    // SAFETY: the caller's promise.
    let fault = unsafe { native::turns::<STREAM>(to, from, n) };
    if STREAM {
        native::order_streamed();
    }
    Faulted::check(fault)
}

/// Copies eight bytes, by one load and one store where both are aligned: what a short request comes down to, so that a
/// good one pays nothing. They are ordered as by [`load8`] and [`store8`].
///
/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_word(from: *const u8, to: *mut u8) -> Access {
    // SAFETY: the caller's promise.
    if unsafe { native::copy_word(from, to) } { Ok(()) } else { copy_faulted_word(from, to) }
}

/// Asks where it faulted, unless the memory has come back.
#[cold]
#[inline(never)]
fn copy_faulted_word(from: *const u8, to: *mut u8) -> Access {
    // SAFETY: by the contract of `copy_word`.
    unsafe { copy(from, to, 8) }
}

/// Fills `n` bytes with zeros.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn clear(to: *mut u8, n: usize) -> Access {
    // SAFETY: the caller's promise.
    Faulted::check(unsafe { native::clear(to, n) })
}

macro_rules! accesses {
    ($load:ident, $store:ident, $word:ty) => {
        /// Loads a word at any address, in one piece if it is aligned; later loads are at least as new (acquire).
        ///
        /// # Safety
        /// No reference excludes others from it. A fault is returned as an error.
        #[inline(always)]
        pub(crate) unsafe fn $load(from: *const u8) -> Result<$word, Faulted> {
            // SAFETY: the caller's promise.
            let (fault, word) = unsafe { native::$load(from) };
            Faulted::check(fault).map(|()| word)
        }

        /// Stores a word in one piece if its address is aligned; what was stored before is visible before it (release).
        ///
        /// # Safety
        /// As for [`copy`].
        #[inline(always)]
        pub(crate) unsafe fn $store(to: *mut u8, word: $word) -> Access {
            // SAFETY: the caller's promise.
            Faulted::check(unsafe { native::$store(to, word) })
        }
    };
}

accesses!(load8, store8, u64);
accesses!(load4, store4, u32);
accesses!(load2, store2, u16);
accesses!(load1, store1, u8);

/// Write-faults a byte's page; the byte keeps its value, also while others write to it.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn touch(at: *mut u8) -> Access {
    // SAFETY: the caller's promise.
    Faulted::check(unsafe { native::touch(at) })
}

/// Adds to a word, as a full barrier; what it was.
///
/// # Safety
/// As for [`copy`]; the word is aligned.
#[inline]
pub(crate) unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, Faulted> {
    // SAFETY: the caller's promise.
    let (fault, old) = unsafe { native::fetch_add(at, add) };
    Faulted::check(fault).map(|()| old)
}

/// Puts `swap` in the place of `compare`, as a full barrier; what the word was.
///
/// # Safety
/// As for [`fetch_add`].
#[inline]
pub(crate) unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> Result<u64, Faulted> {
    // SAFETY: the caller's promise.
    let (fault, old) = unsafe { native::compare_swap(at, compare, swap) };
    Faulted::check(fault).map(|()| old)
}

/// The place to continue at after a fault of the instruction at `at`; None if it is no guarded one. Safe in a signal
/// handler.
pub(crate) fn landing(at: usize) -> Option<usize> {
    let (first, end) = native::table();
    // SAFETY: the linker has put the entries one behind the other, all of them of three words.
    let entries = unsafe { std::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
    entries.iter().find_map(|entry| {
        let place = |word: &i32| (std::ptr::from_ref(word) as usize).wrapping_add_signed(*word as isize);
        let [from, to, on] = entry;
        (place(from)..place(to)).contains(&at).then(|| place(on))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pages, of which the second cannot be accessed, and the length of one.
    fn half() -> (*mut u8, usize) {
        crate::host::faults::install();
        let page = vervain_share::sys::page();
        // SAFETY: a fresh mapping, part of which is protected.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(page), page, libc::PROT_NONE), 0);
            (at.cast(), page)
        }
    }

    #[test]
    fn a_copy_into_or_out_of_a_page_that_is_gone_says_where() {
        let (at, page) = half();
        let gone = at.wrapping_add(page) as usize;
        let mut here = vec![7_u8; 3000];
        for n in [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 65, 200, 1000, 1500, 3000] {
            for before in [0, n / 2, n - 1] {
                let edge = at.wrapping_add(page - before);
                // SAFETY: the vector is long enough; of the pages nobody else knows.
                let (out, back) = unsafe {
                    (crate::host::copy::bulk(here.as_ptr(), edge, n, n > 1000), copy(edge, here.as_mut_ptr(), n))
                };
                for faulted in [out.unwrap_err(), back.unwrap_err()] {
                    assert!((gone..gone + page).contains(&faulted.address()), "{n} bytes, {before} of them there");
                }
            }
        }
    }

    #[test]
    fn every_access_of_a_word_is_answered() {
        let ((at, page), mut word) = (half(), 5_u64);
        let (here, gone) = ((&raw mut word).cast::<u8>(), at.wrapping_add(page));
        // SAFETY: as above.
        unsafe {
            assert!(copy_word(here, gone).is_err() && copy_word(gone, here).is_err() && copy_word(here, at).is_ok());
            assert!(load8(gone).is_err() && load4(gone).is_err() && load2(gone).is_err() && load1(gone).is_err());
            assert!(store8(gone, 1).is_err() && store4(gone, 1).is_err());
            assert!(store2(gone, 1).is_err() && store1(gone, 1).is_err());
            assert!(touch(gone).is_err() && clear(gone, 9).is_err());
            assert!(fetch_add(gone, 1).is_err() && compare_swap(gone, 0, 1).is_err());
            assert_eq!((load8(at), fetch_add(at, 2), compare_swap(at, 6, 9)), (Ok(5), Ok(5), Ok(7)));
            assert_eq!((compare_swap(at, 7, 9), touch(at), load8(at)), (Ok(7), Ok(()), Ok(9)));
            assert_eq!((clear(at, 3), store1(at.add(1), 0xee), load4(at)), (Ok(()), Ok(()), Ok(0xee00)));
        }
    }
}
