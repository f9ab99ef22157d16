//! The seam between allocation from shared memory and the device: one C symbol, found by dlsym, so that neither library
//! is linked to the other. A change of a struct must raise [`VERSION`].

use std::ffi::CStr;

/// The function that the preload library exports: `extern "C" fn() -> *const ShareApi`, null when sharing is off.
pub const SYMBOL: &CStr = c"vervain_share_v1";

/// The type of [`SYMBOL`].
pub type Entry = unsafe extern "C" fn() -> *const ShareApi;

/// The function of the preload library that the verbs library calls when it is loaded: `extern "C" fn()`. Memory is
/// shared from then on.
pub const WAKE_SYMBOL: &CStr = c"vervain_share_wake_v1";

/// The value of [`ShareApi::version`].
pub const VERSION: u32 = 4;

/// [`Place::kind`]: a memfd that is sealed against shrinking.
pub const KIND_MEMFD: u32 = 1;
/// [`Place::kind`]: a SysV segment.
pub const KIND_SYSV: u32 = 2;
/// [`Place::kind`]: the region of this process's node in the window that `VERVAIN_WINDOW` names.
pub const KIND_WINDOW: u32 = 3;

/// A place of this process's memory in an object that other processes can map.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// [`KIND_MEMFD`], [`KIND_SYSV`] or [`KIND_WINDOW`].
    pub kind: u32,
    /// Kind 1: a descriptor, valid while the object lives. Kind 2: the shmid. Kind 3: a descriptor of the window's
    /// file, by which no locks are taken.
    pub fd: i32,
    /// Identity of the object, never used again in this process image.
    pub object: u64,
    /// Offset of the address in the object, in bytes. Kind 3: in the region.
    pub offset: u64,
    /// Length of the object in bytes. Kind 3: of the region.
    pub object_len: u64,
    /// Kind 3: the incarnation that owns the memory in the window (`vervain_window::HeapOwner`). Else 0.
    pub incarnation: u64,
}

/// The functions of the preload library for the device. They are safe from any thread, not from signal handlers.
#[repr(C)]
#[derive(Debug)]
pub struct ShareApi {
    /// [`VERSION`].
    pub version: u32,
    /// `size_of::<ShareApi>()` of the library that answers.
    pub size: u32,
    /// Finds the place of `[addr, addr+len)`: 0 if all of it lies in one shared object contiguously, else -1.
    pub find: unsafe extern "C" fn(addr: usize, len: usize, out: *mut Place) -> i32,
    /// As `find`; besides, the pages stay at that place of the object until unpin, also if the program does munmap,
    /// free, MADV_DONTNEED or mremap with the range.
    pub pin: unsafe extern "C" fn(addr: usize, len: usize, out: *mut Place) -> i32,
    /// Ends one `pin` of the same place and length.
    pub unpin: unsafe extern "C" fn(object: u64, offset: u64, len: usize),
    /// Called around fork in the parent: `before` must return only when no peer writes into shared memory any more,
    /// `after` lets them in again.
    pub set_fork_gate:
        unsafe extern "C" fn(before: Option<unsafe extern "C" fn()>, after: Option<unsafe extern "C" fn()>),
    /// Puts private copies in the place of the pinned pages of `[addr, addr+len)`, as they are at this moment: what is
    /// stored in the object afterwards is not seen by the program. The pages of the object stay until unpin. Nothing
    /// happens where memory is the program's own shared mapping, for others that it shares it with would part from it.
    pub part: unsafe extern "C" fn(addr: usize, len: usize),
    /// Sets what is called when memory is kept for the next request while none was before: `reap` is to be called. It
    /// may be called by any thread, inside of free(3).
    pub set_reaper: unsafe extern "C" fn(called: Option<unsafe extern "C" fn()>),
    /// Gives memory back that was kept long enough. Returns in how many ms to call again; `u64::MAX`: when it is called
    /// for.
    pub reap: unsafe extern "C" fn() -> u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of a struct's fields, in order, in Rust or in C.
    fn fields(text: &str, begin: &str) -> Vec<String> {
        let body = text.split(begin).nth(1).and_then(|rest| rest.split("\n}").next()).expect("the struct");
        let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("///"));
        let name = |line: &str| {
            let rust = line.strip_prefix("pub ").and_then(|rest| rest.split_once(':')).map(|(name, _)| name);
            let function = line.split_once("(*").and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name);
            let value = line.strip_suffix(';').and_then(|rest| rest.split(' ').next_back());
            rust.or(function).or(value.filter(|_| !line.contains('('))).map(str::to_owned)
        };
        lines.filter_map(name).collect()
    }

    /// Programs of the tests implement the functions, and the library passes over a table of another version.
    #[test]
    fn the_header_of_the_tests_is_the_same() {
        let (here, header) = (include_str!("api.rs"), include_str!("../../../../tests/c/share_api.h"));
        for (rust, c) in
            [("pub struct Place {", "struct share_place {"), ("pub struct ShareApi {", "struct share_api {")]
        {
            let fields = [fields(here, rust), fields(header, c)];
            assert!(fields[0].len() > 5 && fields[0] == fields[1], "{fields:?}");
        }
        let kinds = [("MEMFD", KIND_MEMFD), ("SYSV", KIND_SYSV), ("WINDOW", KIND_WINDOW)];
        let kinds = kinds.map(|(name, kind)| (format!("SHARE_KIND_{name}"), kind));
        for (name, value) in kinds.into_iter().chain([("SHARE_API_VERSION".to_owned(), VERSION)]) {
            assert!(header.contains(&format!("#define {name} {value}\n")), "{name}");
        }
    }
}
