//! Which paths are shown from the tree, and the spelling of a path on each side.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crate::counters;

/// Room for a path with its terminating NUL (PATH_MAX).
pub const PATH_MAX: usize = libc::PATH_MAX as usize;

/// A prefix of the paths that are shown from the tree.
struct Prefix {
    text: &'static [u8],
    /// It is a whole name, and not the beginning of several.
    is_whole: bool,
    kind: Kind,
}

const SHOWN: [Prefix; 5] = [
    // The kernel's classes infiniband_verbs, _mad, _cm belong to one stack.
    Prefix { text: b"/sys/class/infiniband", is_whole: false, kind: Kind::Sysfs },
    Prefix { text: b"/sys/devices/virtual/infiniband", is_whole: false, kind: Kind::Sysfs },
    // The rest of these two directories is the machine's.
    Prefix { text: b"/sys/class/misc/rdma_cm", is_whole: true, kind: Kind::Sysfs },
    Prefix { text: b"/sys/devices/virtual/misc/rdma_cm", is_whole: true, kind: Kind::Sysfs },
    Prefix { text: b"/dev/infiniband", is_whole: true, kind: Kind::Device },
];

/// The tree's path, without a slash at its end, kept apart from the environment, which the program may rewrite.
struct Tree {
    path: &'static [u8],
}

static TREE: OnceLock<Option<Tree>> = OnceLock::new();

/// The bytes of the tree's path, which `find_tree` writes: zeros until then, and so no page of the file.
struct Room(UnsafeCell<[u8; PATH_MAX / 4]>);

// SAFETY: `find_tree` alone touches it, which `TREE` runs once; what it returns is only read.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([0; PATH_MAX / 4]));

/// Reads $VERVAIN_SYSFS once, and looks whether the program begins in the tree: a shell may have gone there.
pub fn prepare() {
    if tree().is_none() {
        return;
    }
    // Nearly every path is short, and a longer buffer takes a page of the stack that most programs never need.
    if is_here_inside::<512>().or_else(is_here_inside::<PATH_MAX>) == Some(true) {
        counters::visited();
    }
}

/// Whether the working directory is in the tree; None if its path has no room in `N` bytes.
#[inline(never)]
fn is_here_inside<const N: usize>() -> Option<bool> {
    let mut here = MaybeUninit::<[u8; N]>::uninit();
    // SAFETY: getcwd writes a C string of at most N bytes, or says null.
    let path = unsafe { libc::getcwd(here.as_mut_ptr().cast(), N) };
    // SAFETY: as above.
    (!path.is_null()).then(|| without_tree(unsafe { CStr::from_ptr(path) }.to_bytes()).is_some())
}

fn tree() -> Option<&'static Tree> {
    TREE.get_or_init(find_tree).as_ref()
}

fn find_tree() -> Option<Tree> {
    vervain_config::SYSFS.look(|value| {
        let bytes = value?;
        let length = bytes.iter().rposition(|&b| b != b'/')? + 1;
        // SAFETY: `TREE` calls this function once at a time and never after it has returned: nobody else has the bytes.
        let room = unsafe { &mut *ROOM.0.get() };
        let path = room.get_mut(..length).filter(|_| bytes[0] == b'/')?;
        path.copy_from_slice(&bytes[..length]);
        Some(Tree { path })
    })
}

/// Returns true if there is a tree.
pub fn is_shown() -> bool {
    tree().is_some()
}

impl Tree {
    fn bytes(&self) -> &[u8] {
        self.path
    }
}

/// The kind of a path that is shown from the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sysfs,
    /// At or below /dev/infiniband. The nodes there are links to nodes of memory devices, and must look like nodes.
    Device,
}

/// The kind of `path` if it is shown from the tree; None for any other path, which costs no more than this comparison,
/// or without a tree.
#[inline]
pub fn kind(path: *const c_char) -> Option<Kind> {
    let shown = SHOWN.iter().find(|prefix| {
        starts_with(path, prefix.text)
            && (!prefix.is_whole || {
                // SAFETY: the bytes up to the prefix's end are no NUL, so the next one is still of the string.
                let next = unsafe { path.add(prefix.text.len()).cast::<u8>().read() };
                next == 0 || next == b'/'
            })
    })?;
    tree()?;
    if shown.kind == Kind::Sysfs {
        counters::visited();
    }
    Some(shown.kind)
}

/// Byte by byte, so that nothing behind the string's end is read; nearly every path differs in the second byte.
#[inline]
fn starts_with(path: *const c_char, prefix: &[u8]) -> bool {
    // SAFETY: the callers' C strings are readable up to their NUL, and the comparison stops at the first difference.
    !path.is_null() && prefix.iter().enumerate().all(|(i, &b)| unsafe { path.add(i).cast::<u8>().read() } == b)
}

/// Calls `f` with the path in the tree, or with `path` itself where that has no room. On the stack: a hook may
/// run in a signal handler.
#[cold]
#[inline(never)]
pub fn with_tree_path<R>(path: *const c_char, f: impl FnOnce(*const c_char) -> R) -> R {
    let Some(tree) = tree() else { return f(path) };
    // SAFETY: `kind` has found a prefix, so this is a C string.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let mut buffer = [0_u8; PATH_MAX];
    let Some(rest) = buffer.get_mut(tree.path.len()..tree.path.len() + given.len()) else {
        return f(path);
    };
    rest.copy_from_slice(given);
    buffer[..tree.path.len()].copy_from_slice(tree.bytes());
    f(buffer.as_ptr().cast())
}

/// Calls `f` with the path of the file `name` beside the view; None without a tree.
pub fn with_file_of_tree<R>(name: &str, f: impl FnOnce(*const c_char) -> R) -> Option<R> {
    let tree = tree()?;
    let mut buffer = [0_u8; PATH_MAX];
    let rest = buffer.get_mut(tree.path.len()..tree.path.len() + name.len() + 2)?;
    rest[0] = b'/';
    rest[1..=name.len()].copy_from_slice(name.as_bytes());
    buffer[..tree.path.len()].copy_from_slice(tree.bytes());
    Some(f(buffer.as_ptr().cast()))
}

/// The program's spelling of a path in the tree: what follows the tree's own path.
pub fn without_tree(path: &[u8]) -> Option<&[u8]> {
    let rest = path.strip_prefix(tree()?.bytes())?;
    match rest.first() {
        None => Some(b"/"),
        Some(b'/') => Some(rest),
        Some(_) => None,
    }
}

/// Returns true if the tree's own path has a character that glob(3) would take as a pattern.
pub fn tree_is_a_pattern() -> bool {
    tree().is_some_and(|t| t.bytes().iter().any(|b| b"*?[\\".contains(b)))
}
