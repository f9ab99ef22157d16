//! Accesses to memory that may be gone, by instructions of AArch64 (`host::guarded` says what each is for). A fault
//! goes on where the table says, with the address that faulted in x9.
//!
//! Processors of this kind keep no order among plain loads and stores. So words are loaded by LDAR and stored by STLR;
//! where one is not aligned, which those do not take, DMB stands beside a plain access.

use std::arch::asm;

// vervain_move(to, from, n): as memmove. vervain_turns(to, from, n) and vervain_turns_streamed: n is a multiple of 128,
// not 0; no overlap. vervain_clear(to, n). All answer 0 or the address that faulted. None has a frame, so that they can
// be left from anywhere.
std::arch::global_asm!(
    ".pushsection .text.vervain_guarded,\"ax\",@progbits",
    ".globl vervain_move",
    ".hidden vervain_move",
    ".type vervain_move, @function",
    ".p2align 4",
    "vervain_move:",
    ".cfi_startproc",
    "mov x9, xzr",
    // The ends of both.
    "add x3, x1, x2",
    "add x4, x0, x2",
    "cmp x2, #16",
    "b.lo 22f",
    "cmp x2, #32",
    "b.hi 25f",
    // 16 to 32 bytes.
    "ldr q0, [x1]",
    "ldur q1, [x3, #-16]",
    "str q0, [x0]",
    "stur q1, [x4, #-16]",
    "b 29f",
    // Fewer than 16: two words that may overlap.
    "22:",
    "cmp x2, #8",
    "b.lo 23f",
    "ldr x5, [x1]",
    "ldur x6, [x3, #-8]",
    "str x5, [x0]",
    "stur x6, [x4, #-8]",
    "b 29f",
    "23:",
    "cmp x2, #4",
    "b.lo 24f",
    "ldr w5, [x1]",
    "ldur w6, [x3, #-4]",
    "str w5, [x0]",
    "stur w6, [x4, #-4]",
    "b 29f",
    "24:",
    "cbz x2, 29f",
    // The first, the middle and the last of one to three bytes.
    "lsr x7, x2, #1",
    "ldrb w5, [x1]",
    "ldrb w6, [x1, x7]",
    "ldurb w8, [x3, #-1]",
    "strb w5, [x0]",
    "strb w6, [x0, x7]",
    "sturb w8, [x4, #-1]",
    "b 29f",
    "25:",
    "cmp x2, #64",
    "b.hi 26f",
    // 33 to 64.
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x3, #-32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x4, #-32]",
    "b 29f",
    "26:",
    // Turns of 64 bytes, from the end at which the two do not overlap; the rest at the other end is read beforehand.
    "sub x5, x0, x1",
    "cmp x5, x2",
    "b.lo 28f",
    "ldp q4, q5, [x3, #-64]",
    "ldp q6, q7, [x3, #-32]",
    "sub x6, x4, #64",
    ".p2align 4",
    "27:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "cmp x0, x6",
    "b.lo 27b",
    "stp q4, q5, [x6]",
    "stp q6, q7, [x6, #32]",
    "b 29f",
    "28:",
    "ldp q4, q5, [x1]",
    "ldp q6, q7, [x1, #32]",
    "sub x2, x2, #64",
    "32:",
    "add x5, x1, x2",
    "add x6, x0, x2",
    "ldp q0, q1, [x5]",
    "ldp q2, q3, [x5, #32]",
    "stp q0, q1, [x6]",
    "stp q2, q3, [x6, #32]",
    "subs x2, x2, #64",
    "b.hi 32b",
    "stp q4, q5, [x0]",
    "stp q6, q7, [x0, #32]",
    "29:",
    "mov x0, x9",
    "ret",
    ".cfi_endproc",
    ".size vervain_move, . - vervain_move",
    guarded!("vervain_move", "29b", "29b"),
    ".globl vervain_clear",
    ".hidden vervain_clear",
    ".type vervain_clear, @function",
    ".p2align 4",
    "vervain_clear:",
    ".cfi_startproc",
    "mov x9, xzr",
    "cmp x1, #16",
    "b.lo 23f",
    "22:",
    "stp xzr, xzr, [x0], #16",
    "sub x1, x1, #16",
    "cmp x1, #16",
    "b.hs 22b",
    "23:",
    "cbz x1, 25f",
    "24:",
    "strb wzr, [x0], #1",
    "subs x1, x1, #1",
    "b.ne 24b",
    "25:",
    "mov x0, x9",
    "ret",
    ".cfi_endproc",
    ".size vervain_clear, . - vervain_clear",
    guarded!("vervain_clear", "25b", "25b"),
    ".macro vervain_turns_by name, load, store",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    ".p2align 5",
    "\\name:",
    ".cfi_startproc",
    "mov x9, xzr",
    // The end of the target.
    "add x2, x2, x0",
    ".p2align 5",
    "2:",
    "\\load q0, q1, [x1]",
    "\\load q2, q3, [x1, #32]",
    "\\load q4, q5, [x1, #64]",
    "\\load q6, q7, [x1, #96]",
    "\\store q0, q1, [x0]",
    "\\store q2, q3, [x0, #32]",
    "\\store q4, q5, [x0, #64]",
    "\\store q6, q7, [x0, #96]",
    "add x1, x1, #128",
    "add x0, x0, #128",
    "cmp x0, x2",
    "b.ne 2b",
    "3:",
    "mov x0, x9",
    "ret",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    guarded!("2b", "3b", "3b"),
    ".endm",
    "vervain_turns_by vervain_turns, ldp, stp",
    "vervain_turns_by vervain_turns_streamed, ldnp, stnp",
    ".purgem vervain_turns_by",
    ".popsection",
);

unsafe extern "C" {
    /// Copies, as memmove; 0, or the address that faulted.
    pub(in crate::host) fn vervain_move(to: *mut u8, from: *const u8, n: usize) -> usize;
    fn vervain_turns(to: *mut u8, from: *const u8, n: usize) -> usize;
    fn vervain_turns_streamed(to: *mut u8, from: *const u8, n: usize) -> usize;
    fn vervain_clear(to: *mut u8, n: usize) -> usize;
}

/// Returns true if the processor has what [`turns`] takes.
#[inline(always)]
pub(in crate::host) fn has_turns() -> bool {
    true
}

/// Copies `n` bytes by turns of 128, with `STREAM` past the caches; 0, or the address that faulted.
///
/// # Safety
/// `n` is a multiple of 128 and not 0, the ranges do not overlap; no reference is to what is written.
#[inline(always)]
pub(in crate::host) unsafe fn turns<const STREAM: bool>(to: *mut u8, from: *const u8, n: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { vervain_turns_streamed(to, from, n) } else { vervain_turns(to, from, n) } }
}

/// Orders streamed stores before all stores that follow.
#[inline(always)]
pub(in crate::host) fn order_streamed() {
    // SAFETY: a barrier touches no memory of the program.
    unsafe { asm!("dmb ishst", options(nostack, preserves_flags)) };
}

/// Copies eight bytes, by one load and one store where both are aligned; whether neither faulted. Loads and stores are
/// ordered as those of [`load8`] and [`store8`].
///
/// # Safety
/// No reference is to what is written, nor one that excludes others to what is read.
#[inline(always)]
pub(in crate::host) unsafe fn copy_word(from: *const u8, to: *mut u8) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let (fault, word) = load8(from);
        fault == 0 && store8(to, word) == 0
    }
}

/// Fills `n` bytes with zeros; 0, or the address that faulted.
///
/// # Safety
/// No reference is to them.
pub(in crate::host) unsafe fn clear(to: *mut u8, n: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { vervain_clear(to, n) }
}

macro_rules! accesses {
    ($load:ident, $store:ident, $word:ty, $of:literal, $size:literal) => {
        /// Loads a word at any address, before all that is loaded after it: 0 or the address that faulted, and the
        /// word.
        ///
        /// # Safety
        /// No reference excludes others from it.
        #[inline(always)]
        pub(in crate::host) unsafe fn $load(from: *const u8) -> (usize, $word) {
            let (fault, word): (usize, $word);
            // SAFETY: reads what the caller names; a fault goes on behind with the address in x9.
            unsafe {
                if from.cast::<$word>().is_aligned() {
                    asm!(
                        concat!("2: ldar", $size, " {word", $of, "}, [{from}]"),
                        "3:",
                        guarded!("2b", "3b", "3b"),
                        word = out(reg) word,
                        from = in(reg) from,
                        inlateout("x9") 0_usize => fault,
                        options(nostack, preserves_flags),
                    );
                } else {
                    asm!(
                        concat!("2: ldr", $size, " {word", $of, "}, [{from}]"),
                        "3: dmb ishld",
                        guarded!("2b", "3b", "3b"),
                        word = out(reg) word,
                        from = in(reg) from,
                        inlateout("x9") 0_usize => fault,
                        options(nostack, preserves_flags),
                    );
                }
            }
            (fault, word)
        }

        /// Stores a word at any address, after all that was loaded and stored before it; 0, or the address that
        /// faulted.
        ///
        /// # Safety
        /// No reference is to it.
        #[inline(always)]
        pub(in crate::host) unsafe fn $store(to: *mut u8, word: $word) -> usize {
            let fault: usize;
            // SAFETY: as above.
            unsafe {
                if to.cast::<$word>().is_aligned() {
                    asm!(
                        concat!("2: stlr", $size, " {word", $of, "}, [{to}]"),
                        "3:",
                        guarded!("2b", "3b", "3b"),
                        word = in(reg) word,
                        to = in(reg) to,
                        inlateout("x9") 0_usize => fault,
                        options(nostack, preserves_flags),
                    );
                } else {
                    asm!(
                        "dmb ish",
                        concat!("2: str", $size, " {word", $of, "}, [{to}]"),
                        "3:",
                        guarded!("2b", "3b", "3b"),
                        word = in(reg) word,
                        to = in(reg) to,
                        inlateout("x9") 0_usize => fault,
                        options(nostack, preserves_flags),
                    );
                }
            }
            fault
        }
    };
}

accesses!(load8, store8, u64, ":x", "");
accesses!(load4, store4, u32, ":w", "");
accesses!(load2, store2, u16, ":w", "h");
accesses!(load1, store1, u8, ":w", "b");

/// Write-faults a byte's page; the byte keeps its value, also while others write to it. Returns 0, or the address that
/// faulted.
///
/// # Safety
/// No reference is to it.
pub(in crate::host) unsafe fn touch(at: *mut u8) -> usize {
    let fault: usize;
    // SAFETY: changes nothing; a fault goes on behind with the address in x9.
    unsafe {
        asm!(
            "2: ldxrb {byte:w}, [{at}]",
            "stxrb {failed:w}, {byte:w}, [{at}]",
            "cbnz {failed:w}, 2b",
            "3:",
            guarded!("2b", "3b", "3b"),
            byte = out(reg) _,
            failed = out(reg) _,
            at = in(reg) at,
            inlateout("x9") 0_usize => fault,
            options(nostack, preserves_flags),
        );
    }
    fault
}

/// Adds to an aligned word, as a full barrier: 0 or the address that faulted, and the word before.
///
/// # Safety
/// No reference is to it.
#[inline]
pub(in crate::host) unsafe fn fetch_add(at: *mut u8, add: u64) -> (usize, u64) {
    let (fault, old): (usize, u64);
    // SAFETY: touches what the caller names; a fault goes on behind with the address in x9. The processor has the
    // instruction where it is used.
    unsafe {
        if std::arch::is_aarch64_feature_detected!("lse") {
            asm!(
                ".arch_extension lse",
                "2: ldaddal {add}, {old}, [{at}]",
                "3:",
                guarded!("2b", "3b", "3b"),
                add = in(reg) add,
                old = out(reg) old,
                at = in(reg) at,
                inlateout("x9") 0_usize => fault,
                options(nostack, preserves_flags),
            );
        } else {
            asm!(
                "2: ldaxr {old}, [{at}]",
                "add {new}, {old}, {add}",
                "stlxr {failed:w}, {new}, [{at}]",
                "cbnz {failed:w}, 2b",
                // Later accesses may not pass the store, which STLXR alone would allow.
                "3: dmb ish",
                guarded!("2b", "3b", "3b"),
                add = in(reg) add,
                old = out(reg) old,
                new = out(reg) _,
                failed = out(reg) _,
                at = in(reg) at,
                inlateout("x9") 0_usize => fault,
                options(nostack, preserves_flags),
            );
        }
    }
    (fault, old)
}

/// Puts `swap` in the place of `compare`, as a full barrier: 0 or the address that faulted, and the word before. If
/// that is another word it is only loaded, which may pass what was stored before; so a barrier comes first.
///
/// # Safety
/// As for [`fetch_add`].
#[inline]
pub(in crate::host) unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> (usize, u64) {
    let (fault, old): (usize, u64);
    // SAFETY: as above.
    unsafe {
        if std::arch::is_aarch64_feature_detected!("lse") {
            asm!(
                ".arch_extension lse",
                "dmb ish",
                "2: casal {old}, {swap}, [{at}]",
                "3:",
                guarded!("2b", "3b", "3b"),
                old = inout(reg) compare => old,
                swap = in(reg) swap,
                at = in(reg) at,
                inlateout("x9") 0_usize => fault,
                options(nostack, preserves_flags),
            );
        } else {
            asm!(
                "dmb ish",
                "2: ldaxr {old}, [{at}]",
                "cmp {old}, {compare}",
                "b.ne 3f",
                "stlxr {failed:w}, {swap}, [{at}]",
                "cbnz {failed:w}, 2b",
                // What follows may not pass the store, which STLXR alone allows.
                "3: dmb ish",
                guarded!("2b", "3b", "3b"),
                old = out(reg) old,
                compare = in(reg) compare,
                swap = in(reg) swap,
                failed = out(reg) _,
                at = in(reg) at,
                inlateout("x9") 0_usize => fault,
                options(nostack),
            );
        }
    }
    (fault, old)
}

/// The begin and the end of the table.
pub(in crate::host) fn table() -> (*const [i32; 3], *const [i32; 3]) {
    let (first, end): (*const [i32; 3], *const [i32; 3]);
    // SAFETY: takes two addresses that the linker provides. The entry made here is empty: with it there is a table
    // wherever this is linked.
    unsafe {
        asm!(
            ".pushsection vervain_faults,\"aR\",@progbits\n.balign 4\n.long 0, 0, 0\n.popsection",
            ".hidden __start_vervain_faults",
            ".hidden __stop_vervain_faults",
            "adrp {first}, __start_vervain_faults",
            "add {first}, {first}, :lo12:__start_vervain_faults",
            "adrp {end}, __stop_vervain_faults",
            "add {end}, {end}, :lo12:__stop_vervain_faults",
            first = out(reg) first,
            end = out(reg) end,
            options(nostack, nomem, preserves_flags),
        );
    }
    (first, end)
}

/// Has the thread of `context` go on at `landing`, with `address` where the accesses look for the one that faulted.
pub(in crate::host) fn go_on_at(context: &mut libc::ucontext_t, landing: usize, address: usize) {
    context.uc_mcontext.regs[9] = address as u64;
    context.uc_mcontext.pc = landing as u64;
}

/// The instruction that faulted.
pub(in crate::host) fn instruction(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}
