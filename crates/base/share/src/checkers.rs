//! Programs that check a program while it runs: the sanitizers of GCC and Clang, which are linked to it, and valgrind's
//! memcheck, which runs it. docs/sanitizers.md says what each of them sees of the device.
//!
//! A sanitizer is found by its runtime's functions, as weak symbols, so nothing is looked up and nobody's dlerror(3)
//! changes. Memcheck is asked by a client request: a few instructions that mean nothing to a processor
//! (valgrind/valgrind.h, "client requests"). Neither is done where data moves; what they say is asked once or kept.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering};

/// The address of a function that another library or the program may define; null when nobody does.
#[cfg(target_arch = "x86_64")]
macro_rules! weak {
    ($name:literal) => {{
        let found: *mut c_void;
        // SAFETY: reads the entry of the global offset table that the dynamic linker has filled.
        unsafe {
            std::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {found}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                found = out(reg) found,
                options(nostack, readonly, preserves_flags)
            );
        }
        found
    }};
}
#[cfg(target_arch = "aarch64")]
macro_rules! weak {
    ($name:literal) => {{
        let found: *mut c_void;
        // SAFETY: as on x86-64.
        unsafe {
            std::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {found}, :got:", $name),
                concat!("ldr {found}, [{found}, :got_lo12:", $name, "]"),
                found = out(reg) found,
                options(nostack, readonly, preserves_flags)
            );
        }
        found
    }};
}

/// Returns true if the program has a sanitizer that keeps books of its memory: AddressSanitizer, LeakSanitizer,
/// ThreadSanitizer, MemorySanitizer or HWAddressSanitizer. It has to be the allocator then, and places memory where its
/// shadow is. UndefinedBehaviorSanitizer keeps none.
#[inline]
pub fn sanitized() -> bool {
    let runtimes = [
        weak!("__asan_init"),
        weak!("__lsan_do_leak_check"),
        weak!("__tsan_init"),
        weak!("__msan_init"),
        weak!("__hwasan_init"),
    ];
    runtimes.iter().any(|runtime| !runtime.is_null())
}

/// Tells LeakSanitizer that pointers of the program may lie in `[start, start + len)`, which it does not look at else:
/// the number of a work request is often the only pointer to a buffer. It reads what is readable there when it looks.
pub fn may_hold_pointers(start: *const u8, len: usize) {
    let function = weak!("__lsan_register_root_region");
    if function.is_null() {
        return;
    }
    // SAFETY: sanitizer/lsan_interface.h has this type.
    let register = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_void, usize)>(function) };
    // SAFETY: only takes note of two numbers.
    unsafe { register(start.cast(), len) };
}

/// `__tsan_acquire` and `__tsan_release`.
type Touch = unsafe extern "C" fn(*mut c_void);

/// ThreadSanitizer's `__tsan_acquire` and `__tsan_release` (sanitizer/tsan_interface.h), by which one thread's doings
/// before the latter come before another's after the former, for the same address.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    acquire: Touch,
    release: Touch,
}

impl Order {
    /// Them, where the program has ThreadSanitizer.
    pub fn find() -> Option<Order> {
        let (acquire, release) = (weak!("__tsan_acquire"), weak!("__tsan_release"));
        if acquire.is_null() || release.is_null() {
            return None;
        }
        // SAFETY: the header has this type for both.
        let [acquire, release] = [acquire, release].map(|f| unsafe { std::mem::transmute::<*mut c_void, Touch>(f) });
        Some(Order { acquire, release })
    }

    /// Orders all that other threads did before they released `at` before all that this thread does from now on.
    pub fn acquire<T>(self, at: *const T) {
        // SAFETY: the address is a name only.
        unsafe { (self.acquire)(at.cast_mut().cast()) };
    }

    /// Orders all that this thread has done before all that other threads do after they have acquired `at`.
    pub fn release<T>(self, at: *const T) {
        // SAFETY: as above.
        unsafe { (self.release)(at.cast_mut().cast()) };
    }
}

/// Requests to valgrind (valgrind/valgrind.h), and memcheck's (valgrind/memcheck.h), which have "MC" in the upper half.
#[derive(Clone, Copy)]
enum Request {
    RunningOnValgrind = 0x1001,
    CheckAddressable = 0x4d43_0004,
    MakeDefinedIfAddressable = 0x4d43_000b,
}

/// Asks valgrind or its tool; `default` where there is none that understands it.
fn request(request: Request, address: usize, len: usize, default: usize) -> usize {
    let arguments = [request as usize, address, len, 0, 0, 0];
    let mut answer = default;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the rotations add up to whole turns, and the exchange is of a register with itself. Valgrind reads six
    // words.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") arguments.as_ptr(),
            inout("rdx") answer,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            inout("x3") answer,
            in("x4") arguments.as_ptr(),
            options(nostack)
        );
    }
    answer
}

/// Returns true if the program runs under valgrind, whatever the tool, and so some twenty times slower than else.
pub fn valgrind() -> bool {
    request(Request::RunningOnValgrind, 0, 0, 0) != 0
}

/// Returns true if the program runs under memcheck: not under any other tool of valgrind's, which keep no books of
/// memory.
pub fn memcheck() -> bool {
    const UNKNOWN: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let here = 0_u8;
            let address = (&raw const here) as usize;
            let yes = request(Request::CheckAddressable, address, 1, usize::MAX) == 0;
            KNOWN.store(u8::from(yes), Ordering::Relaxed);
            yes
        }
        known => known == 1,
    }
}

/// Tells memcheck that `[start, start + len)` has contents, as far as it is memory: a device writes there.
pub fn written_by_others(start: *const u8, len: usize) {
    if memcheck() {
        request(Request::MakeDefinedIfAddressable, start as usize, len, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_program_has_none_of_them() {
        assert!(!sanitized());
        assert!(!valgrind() && !memcheck());
        assert!(Order::find().is_none());
        // These do nothing then.
        let bytes = [1_u8; 64];
        written_by_others(bytes.as_ptr(), bytes.len());
        may_hold_pointers(bytes.as_ptr(), bytes.len());
        assert_eq!(bytes, [1; 64]);
    }
}
