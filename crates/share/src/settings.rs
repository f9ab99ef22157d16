//! Whether memory is shared from birth in this process: `VERVAIN_SHARE`, `VERVAIN_FORK_LIMIT`, and what the machine and
//! the resource limits say. Asked once, at the first request that is large enough.

use std::ffi::CStr;

use crate::{checkers, sys};

/// Why memory is not shared from birth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// `VERVAIN_SHARE=off`.
    Variable,
    /// `VERVAIN_SHARE` or `VERVAIN_FORK_LIMIT` has a value that is none.
    BadVariable,
    /// The program has a sanitizer, or runs under memcheck: those are the allocator, and decide where memory lies.
    Checked,
    /// The kernel counts shared memory when it is touched (overcommit_memory 2): a full machine would be SIGBUS there.
    StrictOvercommit,
    /// RLIMIT_FSIZE forbids a file of that length.
    FileSizeLimit,
    /// RLIMIT_AS is too small to have anything but the C library's heap.
    AddressSpaceLimit,
    /// memfd_create, sealing or mmap refused.
    Kernel(i32),
}

impl Off {
    /// The reason, as the second half of a sentence.
    pub fn reason(self) -> String {
        match self {
            Off::Variable => "VERVAIN_SHARE=off".into(),
            Off::BadVariable => "VERVAIN_SHARE or VERVAIN_FORK_LIMIT has a wrong value".into(),
            Off::Checked => "the program has a sanitizer, or runs under memcheck".into(),
            Off::StrictOvercommit => {
                "vm.overcommit_memory is 2, where shared memory on a full machine would end in SIGBUS".into()
            }
            Off::FileSizeLimit => "the file size limit (ulimit -f) is smaller than the heap".into(),
            Off::AddressSpaceLimit => "the address space limit (ulimit -v) is too small".into(),
            Off::Kernel(code) => {
                format!("the kernel refuses a sealed memfd ({})", std::io::Error::from_raw_os_error(code))
            }
        }
    }
}

/// What holds for this process image.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Length of the heap object: twice the machine's memory, a power of two.
    pub heap_len: usize,
    /// Bytes of freed memory that are kept for the next request: a sixteenth of the machine's memory.
    pub cache_limit: usize,
    /// Bytes that a fork copies at most.
    pub fork_limit: usize,
    /// Whether unmapped memory may stay in the address space: not where that is limited.
    pub keep_unmapped: bool,
    /// Whether the host gives huge pages to shared memory that asks for them.
    pub huge: bool,
}

/// The value of a variable, if it is set and not empty.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name is a C string; the answer is only looked at before the program runs on.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv's answer is a C string.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes()).filter(|v| !v.is_empty())
}

/// One line on standard error, by a system call: no stdio inside of malloc.
pub(crate) fn say(parts: &[&[u8]]) {
    let mut line = [0_u8; 512];
    let mut used = 0;
    for part in parts.iter().copied().chain([&b"\n"[..]]) {
        let n = part.len().min(line.len() - used);
        line[used..used + n].copy_from_slice(&part[..n]);
        used += n;
    }
    // SAFETY: the buffer holds `used` bytes.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), used) };
}

/// Bytes, with a suffix of K, M, G or T if wanted; `None` for anything else.
fn bytes(text: &[u8]) -> Option<usize> {
    let (digits, shift) = match text.last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        b'T' | b't' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Memory of the machine in bytes.
fn machine_memory() -> usize {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) as usize * sys::page() }
}

fn first_byte(path: &CStr) -> Option<u8> {
    sys::read_small::<8>(path).map(|(bytes, _)| bytes[0])
}

/// Whether shmem_enabled has one of the words that give huge pages to who asks.
fn host_has_huge_pages() -> bool {
    let Some((text, n)) = sys::read_small::<128>(c"/sys/kernel/mm/transparent_hugepage/shmem_enabled") else {
        return false;
    };
    let text = &text[..n];
    [&b"[always]"[..], b"[within_size]", b"[advise]", b"[force]"].iter().any(|w| text.windows(w.len()).any(|s| s == *w))
}

impl Settings {
    /// Reads variables, limits and the host. A wrong variable is told on standard error.
    pub(crate) fn read() -> Result<Settings, Off> {
        match variable(c"VERVAIN_SHARE") {
            None | Some(b"auto") => {}
            Some(b"off") => return Err(Off::Variable),
            Some(other) => {
                say(&[b"vervain: VERVAIN_SHARE=", other, b" is neither auto nor off; memory is not shared from birth"]);
                return Err(Off::BadVariable);
            }
        }
        if checkers::sanitized() || checkers::memcheck() {
            return Err(Off::Checked);
        }
        let memory = machine_memory();
        let fork_limit = match variable(c"VERVAIN_FORK_LIMIT") {
            None => memory / 4,
            Some(text) => bytes(text).ok_or_else(|| {
                say(&[
                    b"vervain: VERVAIN_FORK_LIMIT=",
                    text,
                    b" is not a number of bytes (512M, 4G); memory is not shared from birth",
                ]);
                Off::BadVariable
            })?,
        };
        if first_byte(c"/proc/sys/vm/overcommit_memory") == Some(b'2') {
            return Err(Off::StrictOvercommit);
        }
        let heap_len = (2 * memory).next_power_of_two().min(1 << 43);
        // Freed memory that is kept counts as well; a program that lives within a small limit has none to spare.
        let space = sys::limit(libc::RLIMIT_AS);
        if space.is_some_and(|limit| limit < 64 << 20) {
            return Err(Off::AddressSpaceLimit);
        }
        let cache_limit = (memory / 16).min(space.map_or(usize::MAX, |limit| limit as usize / 16));
        Ok(Settings { heap_len, cache_limit, fork_limit, keep_unmapped: space.is_none(), huge: host_has_huge_pages() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_suffix() {
        assert_eq!(bytes(b"4096"), Some(4096));
        assert_eq!(bytes(b"512M"), Some(512 << 20));
        assert_eq!(bytes(b"0"), Some(0));
        for wrong in [&b"G"[..], b"", b"-1", b"1.5G", b"4GB", b"99999999999T"] {
            assert_eq!(bytes(wrong), None);
        }
    }
}
