//! Accesses to memory that may be gone, by instructions of x86-64 (`host::guarded` says what each is for). A fault goes
//! on where the table says, with the address that faulted in rax.

use std::arch::asm;

// vervain_move(to, from, n): as memmove. vervain_turns(to, from, n) and vervain_turns_streamed: n is a multiple of 128,
// not 0; `to` is aligned to 32; no overlap; needs AVX. All answer 0 or the address that faulted. None has a frame, so
// that they can be left from anywhere.
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
    /// Copies, as memmove; 0, or the address that faulted.
    pub(in crate::host) fn vervain_move(to: *mut u8, from: *const u8, n: usize) -> usize;
    fn vervain_turns(to: *mut u8, from: *const u8, n: usize) -> usize;
    fn vervain_turns_streamed(to: *mut u8, from: *const u8, n: usize) -> usize;
}

/// Returns true if the processor has what [`turns`] takes.
#[inline(always)]
pub(in crate::host) fn has_turns() -> bool {
    std::is_x86_feature_detected!("avx")
}

/// Copies `n` bytes by turns of 128, with `STREAM` past the caches; 0, or the address that faulted.
///
/// # Safety
/// [`has_turns`]; `n` is a multiple of 128 and not 0, `to` is aligned to 64, the ranges do not overlap; no reference is
/// to what is written.
#[inline(always)]
pub(in crate::host) unsafe fn turns<const STREAM: bool>(to: *mut u8, from: *const u8, n: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { vervain_turns_streamed(to, from, n) } else { vervain_turns(to, from, n) } }
}

/// Orders streamed stores before all stores that follow: the release of a later one does not.
#[inline(always)]
pub(in crate::host) fn order_streamed() {
    // SAFETY: every x86-64 has the instruction, and it touches no memory of the program.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// Copies eight bytes by one load and one store; whether neither faulted. Loads and stores are ordered as those of
/// [`load8`] and [`store8`].
///
/// # Safety
/// No reference is to what is written, nor one that excludes others to what is read.
#[inline(always)]
pub(in crate::host) unsafe fn copy_word(from: *const u8, to: *mut u8) -> bool {
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
            faulted = label { return false },
            options(nostack, preserves_flags),
        );
    }
    true
}

/// Fills `n` bytes with zeros; 0, or the address that faulted.
///
/// # Safety
/// No reference is to them.
pub(in crate::host) unsafe fn clear(to: *mut u8, n: usize) -> usize {
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
    fault
}

macro_rules! accesses {
    ($load:ident, $store:ident, $word:ty, $class:ident, $size:literal, $of:literal) => {
        /// Loads a word at any address, before all that is loaded after it: 0 or the address that faulted, and the
        /// word.
        ///
        /// # Safety
        /// No reference excludes others from it.
        #[inline(always)]
        pub(in crate::host) unsafe fn $load(from: *const u8) -> (usize, $word) {
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
            (fault, word)
        }

        /// Stores a word at any address, after all that was stored before it; 0, or the address that faulted.
        ///
        /// # Safety
        /// No reference is to it.
        #[inline(always)]
        pub(in crate::host) unsafe fn $store(to: *mut u8, word: $word) -> usize {
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
            fault
        }
    };
}

accesses!(load8, store8, u64, reg, "qword", ":r");
accesses!(load4, store4, u32, reg, "dword", ":e");
accesses!(load2, store2, u16, reg, "word", ":x");
accesses!(load1, store1, u8, reg_byte, "byte", "");

/// Write-faults a byte's page; the byte keeps its value, also while others write to it. Returns 0, or the address that
/// faulted.
///
/// # Safety
/// No reference is to it.
pub(in crate::host) unsafe fn touch(at: *mut u8) -> usize {
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
    fault
}

/// Adds to an aligned word, as a full barrier: 0 or the address that faulted, and the word before.
///
/// # Safety
/// No reference is to it.
#[inline]
pub(in crate::host) unsafe fn fetch_add(at: *mut u8, add: u64) -> (usize, u64) {
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
    (fault, old)
}

/// Puts `swap` in the place of `compare`, as a full barrier: 0 or the address that faulted, and the word before.
///
/// # Safety
/// As for [`fetch_add`].
#[inline]
pub(in crate::host) unsafe fn compare_swap(at: *mut u8, compare: u64, swap: u64) -> (usize, u64) {
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
            "lea {first}, [rip + __start_vervain_faults]",
            "lea {end}, [rip + __stop_vervain_faults]",
            first = out(reg) first,
            end = out(reg) end,
            options(nostack, nomem, preserves_flags),
        );
    }
    (first, end)
}

/// Has the thread of `context` go on at `landing`, with `address` where the accesses look for the one that faulted.
pub(in crate::host) fn go_on_at(context: &mut libc::ucontext_t, landing: usize, address: usize) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RAX as usize] = address as i64;
    registers[libc::REG_RIP as usize] = landing as i64;
}

/// The instruction that faulted.
pub(in crate::host) fn instruction(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}
