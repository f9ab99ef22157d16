//! Values of VERVAIN_WINDOW, for windows that are gone when this process is.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use tempfile::TempDir;
use vervain_window::Options;

/// A window in memory without a name.
///
/// # Panics
/// When it cannot be made.
pub fn memory() -> &'static str {
    static WINDOW: OnceLock<(OwnedFd, String)> = OnceLock::new();
    &WINDOW.get_or_init(|| made(&Options::default())).1
}

/// [`memory`], in which each of 64 processes of a node has room for each: 2 GiB, of which they use 130 MiB.
///
/// # Panics
/// When it cannot be made.
pub fn large_memory() -> &'static str {
    static WINDOW: OnceLock<(OwnedFd, String)> = OnceLock::new();
    &WINDOW.get_or_init(|| made(&Options { size: Some(2 << 30), ..Options::default() })).1
}

/// A window in memory without a name, whose processes are the caller's only, as long as the descriptor is there.
///
/// # Panics
/// When it cannot be made.
pub fn of_its_own() -> (OwnedFd, String) {
    made(&Options::default())
}

fn made(options: &Options) -> (OwnedFd, String) {
    let memory = vervain_window::memfd(options).expect("a window");
    let name = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    (memory, name)
}

/// [`memory`], for programs whose own memory lies in it.
///
/// # Panics
/// When it cannot be made.
pub fn memory_with_heap() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| format!("{},heap=on", memory()))
}

/// [`large_memory`] that the nodes' boards write, with the memory of programs in it, and what else is said of the boards.
///
/// # Panics
/// When it cannot be made.
pub fn boards(more: &'static str) -> &'static str {
    boards_with("heap=on", more)
}

/// [`boards`], whose nodes have the memory of programs on a GPU.
///
/// # Panics
/// When it cannot be made.
pub fn gpus(more: &'static str) -> &'static str {
    boards_with("heap=gpu", more)
}

fn boards_with(heap: &'static str, more: &'static str) -> &'static str {
    static NAMES: Mutex<Vec<([&str; 2], &str)>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, name)) = names.iter().find(|(known, _)| *known == [heap, more]) {
        return name;
    }
    let name = Box::leak(format!("peach2:{},{heap}{more}", large_memory()).into_boxed_str());
    names.push(([heap, more], name));
    name
}

/// A window in a folder, whose regions others than their owner open to be written only.
///
/// # Panics
/// When its place cannot be made.
pub fn folder() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    static PLACE: Mutex<Option<TempDir>> = Mutex::new(None);
    extern "C" fn remove() {
        drop(PLACE.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
    NAME.get_or_init(|| {
        let place =
            tempfile::Builder::new().prefix("vervain-window.").tempdir_in("/dev/shm").expect("a place in /dev/shm");
        let name = format!("{}/window/", place.path().display());
        *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
        // SAFETY: a function that is called at the end of this process, once.
        let noted = unsafe { libc::atexit(remove) };
        assert_eq!(noted, 0, "atexit");
        name
    })
}
