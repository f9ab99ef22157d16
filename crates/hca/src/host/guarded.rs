//! Accesses to registered memory that the program may have taken away. An HCA has pinned the pages; this device has the
//! program's own mapping, and the program may unmap or protect it, or cut a file short, while it is registered. Then an
//! access here ends in an answer, not in a signal: each instruction that touches such memory stands in a table along with
//! the place to go on at, and the handler of SIGSEGV and SIGBUS (`faults`) goes on there with the address in rax. A
//! good access of a word pays nothing for it, any other with the test of a register.
//!
//! On other processors than x86-64 the accesses are plain ones, and such a program gets its signal.

use std::num::NonZeroUsize;

/// The address that could not be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faulted(NonZeroUsize);

impl Faulted {
    /// The address.
    pub fn address(self) -> usize {
        self.0.get()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn check(address: usize) -> Access {
        match NonZeroUsize::new(address) {
            None => Ok(()),
            Some(address) => Err(Faulted(address)),
        }
    }
}

/// What came of an access.
pub type Access = Result<(), Faulted>;

pub(crate) use native::*;

#[cfg(target_arch = "x86_64")]
mod native {
    use super::{Access, Faulted};
    use std::arch::asm;

    /// One entry of the table: a fault in `[$from, $to)` goes on at `$on`. Each is an offset from its own place.
    macro_rules! guarded {
        ($from:literal, $to:literal, $on:literal) => {
            concat!(
                ".pushsection vervain_faults,\"aR\",@progbits\n.balign 4\n",
                ".long ",
                $from,
                " - .\n.long ",
                $to,
                " - .\n.long ",
                $on,
                " - .\n.popsection"
            )
        };
    }

    // vervain_move(to, from, n): as memmove. vervain_turns(to, from, n) and vervain_turns_streamed: n is a multiple of 128,
    // not 0; `to` is aligned to 32; no overlap; needs AVX. All answer 0 or the address that faulted. None has a frame, so that
    // they can be left from anywhere.
    std::arch::global_asm!(
        ".pushsection .text.vervain_guarded,\"ax\",@progbits",
        ".globl vervain_move",
        ".hidden vervain_move",
        ".type vervain_move, @function",
        ".p2align 4",
        "vervain_move:",
        ".cfi_startproc",
        "xor eax, eax",
        "cmp rdx, 16",
        "jb 22f",
        "cmp rdx, 32",
        "ja 25f",
        // 16 to 32 bytes.
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "ret",
        // Fewer than 16: two words that may overlap.
        "22:",
        "cmp edx, 8",
        "jb 23f",
        "mov rcx, [rsi]",
        "mov r8, [rsi + rdx - 8]",
        "mov [rdi], rcx",
        "mov [rdi + rdx - 8], r8",
        "ret",
        "23:",
        "cmp edx, 4",
        "jb 24f",
        "mov ecx, [rsi]",
        "mov r8d, [rsi + rdx - 4]",
        "mov [rdi], ecx",
        "mov [rdi + rdx - 4], r8d",
        "ret",
        "24:",
        "test edx, edx",
        "je 29f",
        // The first, the middle and the last of one to three bytes.
        "mov r9, rdx",
        "shr r9, 1",
        "movzx ecx, byte ptr [rsi]",
        "movzx r8d, byte ptr [rsi + r9]",
        "movzx r10d, byte ptr [rsi + rdx - 1]",
        "mov [rdi], cl",
        "mov [rdi + r9], r8b",
        "mov [rdi + rdx - 1], r10b",
        "ret",
        "25:",
        "cmp rdx, 64",
        "ja 26f",
        // 33 to 64.
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "ret",
        "26:",
        // Turns of 64 bytes, from the end at which the two do not overlap; the rest at the other end is read beforehand.
        "mov rcx, rdi",
        "sub rcx, rsi",
        "cmp rcx, rdx",
        "jb 28f",
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 64]",
        ".p2align 4",
        "27:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rsi, 64",
        "add rdi, 64",
        "cmp rdi, r8",
        "jb 27b",
        "movups [r8], xmm4",
        "movups [r8 + 16], xmm5",
        "movups [r8 + 32], xmm6",
        "movups [r8 + 48], xmm7",
        "ret",
        "28:",
        "movups xmm4, [rsi]",
        "movups xmm5, [rsi + 16]",
        "movups xmm6, [rsi + 32]",
        "movups xmm7, [rsi + 48]",
        "sub rdx, 64",
        "32:",
        "movups xmm0, [rsi + rdx]",
        "movups xmm1, [rsi + rdx + 16]",
        "movups xmm2, [rsi + rdx + 32]",
        "movups xmm3, [rsi + rdx + 48]",
        "movups [rdi + rdx], xmm0",
        "movups [rdi + rdx + 16], xmm1",
        "movups [rdi + rdx + 32], xmm2",
        "movups [rdi + rdx + 48], xmm3",
        "sub rdx, 64",
        "ja 32b",
        "movups [rdi], xmm4",
        "movups [rdi + 16], xmm5",
        "movups [rdi + 32], xmm6",
        "movups [rdi + 48], xmm7",
        "29:",
        "ret",
        ".cfi_endproc",
        ".size vervain_move, . - vervain_move",
        guarded!("vervain_move", "29b", "29b"),
        ".macro vervain_turns_by name, store",
        ".globl \\name",
        ".hidden \\name",
        ".type \\name, @function",
        ".p2align 5",
        "\\name:",
        ".cfi_startproc",
        "xor eax, eax",
        // One register goes on in a turn: the source is rsi ahead of the target, which ends at rdx.
        "add rdx, rdi",
        "sub rsi, rdi",
        ".p2align 5",
        "2:",
        "vmovdqu ymm0, [rdi + rsi]",
        "vmovdqu ymm1, [rdi + rsi + 32]",
        "vmovdqu ymm2, [rdi + rsi + 64]",
        "vmovdqu ymm3, [rdi + rsi + 96]",
        "\\store [rdi], ymm0",
        "\\store [rdi + 32], ymm1",
        "\\store [rdi + 64], ymm2",
        "\\store [rdi + 96], ymm3",
        "sub rdi, -128",
        "cmp rdi, rdx",
        "jne 2b",
        "3:",
        "vzeroupper",
        "ret",
        ".cfi_endproc",
        ".size \\name, . - \\name",
        guarded!("2b", "3b", "3b"),
        ".endm",
        "vervain_turns_by vervain_turns, vmovdqa",
        "vervain_turns_by vervain_turns_streamed, vmovntdq",
        ".purgem vervain_turns_by",
        ".popsection",
    );

    unsafe extern "C" {
        fn vervain_move(to: *mut u8, from: *const u8, n: usize) -> usize;
        fn vervain_turns(to: *mut u8, from: *const u8, n: usize) -> usize;
        fn vervain_turns_streamed(to: *mut u8, from: *const u8, n: usize) -> usize;
    }

    /// Copies `n` bytes; the ranges may overlap.
    ///
    /// # Safety
    /// No reference is to the bytes at `to`, nor one that excludes others to those at `from`. What cannot be accessed is
    /// answered.
    #[inline]
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) -> Access {
        // SAFETY: the caller's promise.
        Faulted::check(unsafe { vervain_move(to, from, n) })
    }

    /// Copies `n` bytes by turns of 128, with `STREAM` past the caches.
    ///
    /// # Safety
    /// As for [`copy`]; `n` is a multiple of 128 and not 0, `to` is aligned to 32, the ranges do not overlap, the CPU has AVX.
    #[inline]
    pub(crate) unsafe fn turns<const STREAM: bool>(from: *const u8, to: *mut u8, n: usize) -> Access {
        // SAFETY: the caller's promise.
        Faulted::check(unsafe { if STREAM { vervain_turns_streamed(to, from, n) } else { vervain_turns(to, from, n) } })
    }

    /// Copies eight bytes, by one load and one store: what a short request comes down to, so that a good one pays nothing.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline(always)]
    pub(crate) unsafe fn copy_word(from: *const u8, to: *mut u8) -> Access {
        // SAFETY: touches what the caller names; a fault goes on at the label.
        unsafe {
            asm!(
                "2: mov rax, qword ptr [{from}]",
                "mov qword ptr [{to}], rax",
                "3:",
                guarded!("2b", "3b", "{faulted}"),
                from = in(reg) from,
                to = in(reg) to,
                out("rax") _,
                faulted = label { return copy_faulted_word(from, to) },
                options(nostack, preserves_flags),
            );
        }
        Ok(())
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
        let fault: usize;
        // SAFETY: as above; the direction flag is clear in every function.
        unsafe {
            asm!(
                "2: rep stosb",
                "3:",
                guarded!("2b", "3b", "3b"),
                inout("rdi") to => _,
                inout("rcx") n => _,
                inlateout("rax") 0_usize => fault,
                options(nostack, preserves_flags),
            );
        }
        Faulted::check(fault)
    }

    macro_rules! accesses {
        ($load:ident, $store:ident, $word:ty, $class:ident, $size:literal, $of:literal) => {
            /// Loads a word at any address.
            ///
            /// # Safety
            /// No reference excludes others from it. What cannot be accessed is answered.
            #[inline(always)]
            pub(crate) unsafe fn $load(from: *const u8) -> Result<$word, Faulted> {
                let (fault, word): (usize, $word);
                // SAFETY: reads what the caller names; a fault goes on behind with the address in rax.
                unsafe {
                    asm!(
                        concat!("2: mov {word", $of, "}, ", $size, " ptr [{from}]"),
                        "3:",
                        guarded!("2b", "3b", "3b"),
                        word = out($class) word,
                        from = in(reg) from,
                        inlateout("rax") 0_usize => fault,
                        options(nostack, readonly, preserves_flags),
                    );
                }
                Faulted::check(fault).map(|()| word)
            }

            /// Stores a word in one piece if its address is aligned; what was stored before is visible before it.
            ///
            /// # Safety
            /// As for [`copy`].
            #[inline(always)]
            pub(crate) unsafe fn $store(to: *mut u8, word: $word) -> Access {
                let fault: usize;
                // SAFETY: as above.
                unsafe {
                    asm!(
                        concat!("2: mov ", $size, " ptr [{to}], {word", $of, "}"),
                        "3:",
                        guarded!("2b", "3b", "3b"),
                        word = in($class) word,
                        to = in(reg) to,
                        inlateout("rax") 0_usize => fault,
                        options(nostack, preserves_flags),
                    );
                }
                Faulted::check(fault)
            }
        };
    }

    accesses!(load8, store8, u64, reg, "qword", ":r");
    accesses!(load4, store4, u32, reg, "dword", ":e");
    accesses!(load2, store2, u16, reg, "word", ":x");
    accesses!(load1, store1, u8, reg_byte, "byte", "");

    /// Writes to a byte what it is, whoever else writes to it.
    ///
    /// # Safety
    /// As for [`copy`].
    pub(crate) unsafe fn touch(at: *mut u8) -> Access {
        let fault: usize;
        // SAFETY: changes nothing; a fault goes on behind with the address in rax.
        unsafe {
            asm!(
                "2: lock or byte ptr [{at}], 0",
                "3:",
                guarded!("2b", "3b", "3b"),
                at = in(reg) at,
                inlateout("rax") 0_usize => fault,
                options(nostack),
            );
        }
        Faulted::check(fault)
    }

    /// Adds to a word; what it was.
    ///
    /// # Safety
    /// As for [`copy`]; the word is aligned.
    #[inline]
    pub(crate) unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, Faulted> {
        let (fault, old): (usize, u64);
        // SAFETY: touches what the caller names; a fault goes on behind with the address in rax.
        unsafe {
            asm!(
                "2: lock xadd qword ptr [{at}], {word}",
                "3:",
                guarded!("2b", "3b", "3b"),
                word = inout(reg) add => old,
                at = in(reg) at,
                inlateout("rax") 0_usize => fault,
                options(nostack),
            );
        }
        Faulted::check(fault).map(|()| old)
    }

    /// Puts `swap` in the place of `compare`; what the word was.
    ///
    /// # Safety
    /// As for [`fetch_add`].
    #[inline]
    pub(crate) unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> Result<u64, Faulted> {
        let (fault, old): (usize, u64);
        // SAFETY: as above.
        unsafe {
            asm!(
                "2: lock cmpxchg qword ptr [{at}], {swap}",
                "mov {old}, rax",
                "mov eax, 0",
                "3:",
                guarded!("2b", "3b", "3b"),
                old = out(reg) old,
                swap = in(reg) swap,
                at = in(reg) at,
                inout("rax") compare => fault,
                options(nostack),
            );
        }
        Faulted::check(fault).map(|()| old)
    }

    /// Where to go on after a fault of the instruction at `at`, if it is one of these. Safe in a signal handler.
    pub(crate) fn landing(at: usize) -> Option<usize> {
        let (first, end): (*const [i32; 3], *const [i32; 3]);
        // SAFETY: takes two addresses that the linker provides. The entry made here is empty: with it there is a table
        // wherever this is linked.
        unsafe {
            asm!(
                ".pushsection vervain_faults,\"aR\",@progbits\n.balign 4\n.long 0, 0, 0\n.popsection",
                ".hidden __start_vervain_faults",
                ".hidden __stop_vervain_faults",
                "lea {first}, [rip + __start_vervain_faults]",
                "lea {end}, [rip + __stop_vervain_faults]",
                first = out(reg) first,
                end = out(reg) end,
                options(nostack, nomem, preserves_flags),
            );
        }
        // SAFETY: the linker has put the entries one behind the other, all of them of three words.
        let entries = unsafe { std::slice::from_raw_parts(first, end.offset_from_unsigned(first)) };
        entries.iter().find_map(|entry| {
            let place = |word: &i32| (std::ptr::from_ref(word) as usize).wrapping_add_signed(*word as isize);
            let [from, to, on] = entry;
            (place(from)..place(to)).contains(&at).then(|| place(on))
        })
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod native {
    use super::{Access, Faulted};
    use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

    /// Copies `n` bytes; the ranges may overlap.
    ///
    /// # Safety
    /// They are valid.
    #[inline]
    pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, n: usize) -> Access {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, n) };
        Ok(())
    }

    /// Copies eight bytes, by one load and one store where they are aligned.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline(always)]
    pub(crate) unsafe fn copy_word(from: *const u8, to: *mut u8) -> Access {
        // SAFETY: the caller's promise.
        unsafe { store8(to, load8(from)?) }
    }

    /// Fills `n` bytes with zeros.
    ///
    /// # Safety
    /// As for [`copy`].
    pub(crate) unsafe fn clear(to: *mut u8, n: usize) -> Access {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(to, 0, n) };
        Ok(())
    }

    macro_rules! accesses {
        ($load:ident, $store:ident, $word:ty, $atomic:ty) => {
            /// Loads a word at any address.
            ///
            /// # Safety
            /// It is valid.
            #[inline(always)]
            pub(crate) unsafe fn $load(from: *const u8) -> Result<$word, Faulted> {
                if from.cast::<$atomic>().is_aligned() {
                    // SAFETY: the caller's promise, and aligned.
                    return Ok(unsafe { (*from.cast::<$atomic>()).load(Ordering::Acquire) });
                }
                // SAFETY: the caller's promise.
                Ok(unsafe { from.cast::<$word>().read_unaligned() })
            }

            /// Stores a word in one piece if its address is aligned; what was stored before is visible before it.
            ///
            /// # Safety
            /// As for [`copy`].
            #[inline(always)]
            pub(crate) unsafe fn $store(to: *mut u8, word: $word) -> Access {
                // SAFETY: the caller's promise; aligned where it says so.
                unsafe {
                    if to.cast::<$atomic>().is_aligned() {
                        (*to.cast::<$atomic>()).store(word, Ordering::Release);
                    } else {
                        to.cast::<$word>().write_unaligned(word);
                    }
                }
                Ok(())
            }
        };
    }

    accesses!(load8, store8, u64, AtomicU64);
    accesses!(load4, store4, u32, AtomicU32);
    accesses!(load2, store2, u16, AtomicU16);
    accesses!(load1, store1, u8, AtomicU8);

    /// Writes to a byte what it is, whoever else writes to it.
    ///
    /// # Safety
    /// As for [`copy`].
    pub(crate) unsafe fn touch(at: *mut u8) -> Access {
        // SAFETY: the caller's promise.
        let byte = unsafe { &*at.cast::<AtomicU8>() };
        let there = byte.load(Ordering::Relaxed);
        // Compilers make a load of `fetch_or(0)`.
        let _ = byte.compare_exchange(there, there, Ordering::Relaxed, Ordering::Relaxed);
        Ok(())
    }

    /// Adds to a word; what it was.
    ///
    /// # Safety
    /// As for [`copy`]; the word is aligned.
    #[inline]
    pub(crate) unsafe fn fetch_add(at: *mut u8, add: u64) -> Result<u64, Faulted> {
        // SAFETY: the caller's promise.
        Ok(unsafe { &*at.cast::<AtomicU64>() }.fetch_add(add, Ordering::SeqCst))
    }

    /// Puts `swap` in the place of `compare`; what the word was.
    ///
    /// # Safety
    /// As for [`fetch_add`].
    #[inline]
    pub(crate) unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> Result<u64, Faulted> {
        // SAFETY: the caller's promise.
        let word = unsafe { &*at.cast::<AtomicU64>() };
        let (Ok(old) | Err(old)) = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        Ok(old)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Two pages, of which the second cannot be accessed.
    fn half() -> *mut u8 {
        crate::host::faults::install();
        // SAFETY: a fresh mapping, part of which is protected.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            at.cast()
        }
    }

    #[test]
    fn a_copy_into_or_out_of_a_page_that_is_gone_says_where() {
        let at = half();
        let gone = at.wrapping_add(PAGE) as usize;
        let mut here = vec![7_u8; 3000];
        for n in [1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 65, 200, 1000, 1500, 3000] {
            for before in [0, n / 2, n - 1] {
                let edge = at.wrapping_add(PAGE - before);
                // SAFETY: the vector is long enough; of the pages nobody else knows.
                let (out, back) = unsafe {
                    (crate::host::copy::bulk(here.as_ptr(), edge, n, n > 1000), copy(edge, here.as_mut_ptr(), n))
                };
                for faulted in [out.unwrap_err(), back.unwrap_err()] {
                    assert!((gone..gone + PAGE).contains(&faulted.address()), "{n} bytes, {before} of them there");
                }
            }
        }
    }

    #[test]
    fn every_access_of_a_word_is_answered() {
        let (at, mut word) = (half(), 5_u64);
        let (here, gone) = ((&raw mut word).cast::<u8>(), at.wrapping_add(PAGE));
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
