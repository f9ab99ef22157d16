//! The mappings of this process, and the memory that adoption must leave alone: mappings of files, of devices, shared,
//! read-only or executable ones, the main stack, and pages that the kernel writes when a thread ends.

use crate::error::{Error, Result};
use crate::host::tid;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// A mapping of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Vma {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) prot: i32,
    pub(super) shared: bool,
    /// Offset in the file, where there is one.
    pub(super) offset: u64,
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
    pub(super) name: String,
}

impl Vma {
    /// The reason why the pages cannot be adopted; None for private, anonymous, readable and writable memory.
    pub(super) fn objection(&self) -> Option<&'static str> {
        if self.shared {
            return Some("it is shared memory of the program");
        }
        if self.inode != 0 || self.device != (0, 0) || self.name.starts_with('/') {
            return Some("it belongs to a file");
        }
        if self.prot != libc::PROT_READ | libc::PROT_WRITE {
            return Some("it is not readable and writable memory");
        }
        if self.name == "[stack]" {
            return Some("it is the stack of the main thread");
        }
        None
    }
}

/// Looks mappings up: by PROCMAP_QUERY (Linux 6.11), or in the text of /proc/self/maps.
pub(super) struct Maps {
    file: File,
    text: Option<Vec<Vma>>,
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_addr: u64,
    build_id_addr: u64,
}

const PROCMAP_QUERY: libc::c_ulong = 3 << 30 | (size_of::<Query>() as libc::c_ulong) << 16 | 0x66 << 8 | 17;
const VMA_SHARED: u64 = 8;

impl Maps {
    pub(super) fn open() -> Result<Maps> {
        let file = File::open("/proc/self/maps")
            .map_err(|e| Error::unsupported(format!("memory not adopted: /proc/self/maps cannot be read: {e}")))?;
        Ok(Maps { file, text: None })
    }

    /// The mapping that holds `addr`.
    pub(super) fn at(&mut self, addr: usize) -> Option<Vma> {
        if self.text.is_none() {
            match self.query(addr) {
                Ok(vma) => return vma,
                Err(()) => self.read_text(),
            }
        }
        self.text.iter().flatten().find(|vma| vma.start <= addr && addr < vma.end).cloned()
    }

    fn query(&self, addr: usize) -> std::result::Result<Option<Vma>, ()> {
        let mut name = [0u8; 64];
        let mut q = Query {
            size: size_of::<Query>() as u64,
            addr: addr as u64,
            name_size: name.len() as u32,
            name_addr: name.as_mut_ptr() as u64,
            ..Query::default()
        };
        // SAFETY: the request encodes the struct's size, and the name buffer lives on this stack.
        if unsafe { libc::ioctl(self.file.as_raw_fd(), PROCMAP_QUERY, &raw mut q) } != 0 {
            return match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOENT) => Ok(None),
                // Longer than any name that matters.
                Some(libc::ENAMETOOLONG) => Ok(Some(Vma { end: usize::MAX, name: "/".into(), ..Vma::default() })),
                _ => Err(()),
            };
        }
        let name = &name[..(q.name_size as usize).clamp(1, name.len()) - 1];
        Ok(Some(Vma {
            start: q.vma_start as usize,
            end: q.vma_end as usize,
            // Its low bits are those of PROT_READ, PROT_WRITE and PROT_EXEC.
            prot: (q.vma_flags & 7) as i32,
            shared: q.vma_flags & VMA_SHARED != 0,
            offset: q.vma_offset,
            device: (q.dev_major, q.dev_minor),
            inode: q.inode,
            name: String::from_utf8_lossy(name).into_owned(),
        }))
    }

    fn read_text(&mut self) {
        let mut text = String::new();
        // Mappings that cannot be read count as absent, and so are not adopted.
        let _ = self.file.read_to_string(&mut text);
        self.text = Some(text.lines().filter_map(parse).collect());
    }
}

/// A line of /proc/self/maps (`man 5 proc_pid_maps`).
fn parse(line: &str) -> Option<Vma> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let perms = words.next()?.as_bytes();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let bit = |at: usize, letter: u8, prot: i32| if perms.get(at) == Some(&letter) { prot } else { 0 };
    Some(Vma {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        prot: bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC),
        shared: perms.get(3) == Some(&b's'),
        offset,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode,
        name: words.collect::<Vec<_>>().join(" "),
    })
}

/// The reason why the calling thread cannot take `[start, end)` away even for a moment: it needs it to go on. `frame`
/// is an address in its stack. None: it can.
pub(super) fn needed_by_caller(start: usize, end: usize, frame: usize) -> Option<&'static str> {
    let meets = |from: usize, to: usize| start < to && from < end;
    // The calls of the critical section lie below the frame; the caller's own words are just above it. What lies beyond
    // the ends of the stack is somebody else's.
    let stack = own_stack().filter(|stack| stack.contains(&frame)).unwrap_or(0..usize::MAX);
    if meets(frame.saturating_sub(64 << 10).max(stack.start), (frame + (16 << 10)).min(stack.end)) {
        return Some("it holds the stack of the calling thread");
    }
    // SAFETY: only the address is used.
    let errno = unsafe { libc::__errno_location() } as usize;
    if meets(errno, errno + 4) {
        return Some("it holds variables of the calling thread");
    }
    None
}

/// The stack that the C library has given the calling thread. None: it does not say, or the thread is the main one,
/// around whose stack the kernel leaves room.
fn own_stack() -> Option<Range<usize>> {
    if tid::tid() == std::process::id() {
        return None;
    }
    // SAFETY: fills the attributes, from which two words are read; they are freed once.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return None;
        }
        let (mut start, mut len) = (std::ptr::null_mut(), 0);
        let rc = libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut len);
        libc::pthread_attr_destroy(&raw mut attributes);
        (rc == 0).then_some(start as usize..start as usize + len)
    }
}

/// As [`needed_by_caller`], plus pages that the kernel writes at the exit of a thread, when it cannot wait.
pub(super) fn needed_by_threads(start: usize, end: usize, frame: usize) -> Option<&'static str> {
    if let Some(why) = needed_by_caller(start, end, frame) {
        return Some(why);
    }
    let meets = |from: usize, to: usize| start < to && from < end;
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return Some("the threads of the process cannot be listed");
    };
    for tid in tasks.flatten().filter_map(|t| t.file_name().to_str()?.parse::<i32>().ok()) {
        let (mut head, mut len) = (0usize, 0usize);
        // SAFETY: fills two words of this stack.
        let rc = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
        if rc != 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
            return Some("the kernel does not tell where the descriptors of threads are");
        }
        // The C library keeps that list in the thread's descriptor, beside the thread id, which the kernel clears, and
        // on which pthread_join waits by a futex that is not private.
        if rc == 0 && head != 0 && meets(head.saturating_sub(1024), head + 1024) {
            return Some("it holds the descriptor of a thread");
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_and_the_text_of_maps_agree() {
        let memory = vec![1u8; 1 << 20];
        let mut query = Maps::open().unwrap();
        let code = the_query_and_the_text_of_maps_agree as fn() as usize;
        // Not of the code: a long path of this file is a name that the query does not tell.
        for addr in [memory.as_ptr() as usize, (&raw const query) as usize] {
            // Other tests map and unmap meanwhile; what is read twice in a row without a change agrees.
            let agree = (0..1000).any(|_| {
                let mut text = Maps::open().unwrap();
                text.read_text();
                query.at(addr).unwrap() == text.at(addr).unwrap()
            });
            assert!(agree, "{addr:#x}: {:?}", query.at(addr));
        }
        assert_eq!(query.at(4096), None);
        assert_eq!(query.at(memory.as_ptr() as usize).unwrap().objection(), None);
        assert!(query.at(code).unwrap().objection().is_some());
    }

    #[test]
    fn the_calling_threads_own_memory_is_refused() {
        let local = 0u64;
        let frame = (&raw const local) as usize;
        assert!(needed_by_threads(frame & !4095, (frame & !4095) + 4096, frame).is_some());
        // SAFETY: only the address is used.
        let errno = unsafe { libc::__errno_location() } as usize & !4095;
        assert!(needed_by_threads(errno, errno + 4096, frame).is_some());
        let memory = vec![1u8; 1 << 20];
        let page = (memory.as_ptr() as usize + 4096) & !4095;
        assert_eq!(needed_by_threads(page, page + 4096, frame), None);
    }

    #[test]
    fn memory_next_to_the_stack_of_the_calling_thread_is_not_refused() {
        let thread = std::thread::spawn(|| {
            let local = 0u64;
            let frame = (&raw const local) as usize;
            let end = own_stack().unwrap().end;
            assert!(frame < end && end - frame < 16 << 10, "the last page of the stack is just above");
            assert_eq!(needed_by_caller(end, end + 4096, frame), None);
            assert!(needed_by_caller(end - 4096, end, frame).is_some());
        });
        thread.join().unwrap();
    }

    #[test]
    fn the_descriptor_of_another_thread_is_refused() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: the calling thread's handle is the address of its descriptor in glibc.
            tell.send(unsafe { libc::pthread_self() } as usize).unwrap();
            let _ = ended.recv();
        });
        let descriptor = told.recv().unwrap() & !4095;
        let local = 0u64;
        assert!(needed_by_threads(descriptor, descriptor + 8192, (&raw const local) as usize).is_some());
        drop(end);
        thread.join().unwrap();
    }
}
