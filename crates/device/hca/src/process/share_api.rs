//! The seam to the allocator that serves this process's memory from shared objects: the preload under `vervain run`
//! (`vervain-share`, found by `dlsym`), or a test. It finds the place of a range and keeps it there while it is
//! registered.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use vervain_config::{Config, Share};
use vervain_share::api::{self, Place, ShareApi};

/// The table that [`offer`] was given.
static OFFERED: AtomicPtr<ShareApi> = AtomicPtr::new(std::ptr::null_mut());

/// Names the source of shared memory in place of the preload, before the first device is opened: for tests and for
/// programs that serve their own memory.
pub fn offer(source: &'static ShareApi) {
    OFFERED.store(std::ptr::from_ref(source).cast_mut(), Ordering::Release);
}

/// The source of shared memory.
#[derive(Clone, Copy)]
pub(crate) struct Source(&'static ShareApi);

impl Source {
    /// The source of this process; none without the preload or when `VERVAIN_SHARE` is `off`.
    pub(crate) fn find(config: &Config) -> Option<Source> {
        if config.share == Share::Off {
            return None;
        }
        let offered = OFFERED.load(Ordering::Acquire);
        let found = if offered.is_null() { preloaded() } else { offered };
        // SAFETY: null, or the table of a library that is never unloaded (preloaded, or offered as static).
        let table = unsafe { found.as_ref() }?;
        if table.version != api::VERSION || (table.size as usize) < size_of::<ShareApi>() {
            log::error!(
                "the preload's shared memory speaks version {}, this library {}: use one Vervain for both",
                table.version,
                api::VERSION
            );
            return None;
        }
        Some(Source(table))
    }

    /// The present place of a range.
    pub(crate) fn find_range(&self, addr: u64, len: u64) -> Option<Place> {
        let mut place = Place::default();
        // SAFETY: the function looks the range up in its own tables and fills the struct on this stack.
        (unsafe { (self.0.find)(addr as usize, len as usize, &raw mut place) } == 0).then_some(place)
    }

    /// The place of a range until [`Source::unpin`].
    pub(crate) fn pin(&self, addr: u64, len: u64) -> Option<Place> {
        let mut place = Place::default();
        // SAFETY: as above; the holder of the place unpins it, once.
        (unsafe { (self.0.pin)(addr as usize, len as usize, &raw mut place) } == 0).then_some(place)
    }

    /// Ends a pin of [`Source::pin`].
    pub(crate) fn unpin(&self, object: u64, offset: u64, len: u64) {
        // SAFETY: the range was pinned and is not used through the pin any more.
        unsafe { (self.0.unpin)(object, offset, len as usize) };
    }

    /// Parts the program's memory in a pinned range from what peers can reach; its contents stay.
    pub(crate) fn part(&self, addr: u64, len: u64) {
        // SAFETY: peers that are waited for are led elsewhere; the stores of others go to memory that is not used from
        // now on.
        unsafe { (self.0.part)(addr as usize, len as usize) };
    }

    /// Has peers kept out while this process forks.
    pub(crate) fn guard_forks(&self, before: unsafe extern "C" fn(), after: unsafe extern "C" fn()) {
        // SAFETY: registers two functions that may be called at any time from now on.
        unsafe { (self.0.set_fork_gate)(Some(before), Some(after)) };
    }

    /// Has the progress thread woken when memory is kept for the next request.
    pub(crate) fn call_for_reaper(&self, wake: unsafe extern "C" fn()) {
        // SAFETY: registers a function that may be called at any time from now on, by any thread.
        unsafe { (self.0.set_reaper)(Some(wake)) };
    }

    /// Gives memory back that was kept long enough; in how many ns to do so again, if anything is left.
    pub(crate) fn reap(&self) -> Option<u64> {
        // SAFETY: has no arguments.
        let ms = unsafe { (self.0.reap)() };
        (ms != u64::MAX).then(|| ms.saturating_mul(1_000_000))
    }
}

/// A function that the preload has under a name of this project's own.
fn preloads_function(name: &CStr) -> Option<NonNull<libc::c_void>> {
    // SAFETY: looks a name up in the libraries that are loaded.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// The verbs library has been loaded: this process uses verbs, and is to have memory that peers can map from now on.
pub fn process_uses_verbs() {
    if let Some(symbol) = preloads_function(api::WAKE_SYMBOL) {
        // SAFETY: the name is this project's own, and stands for a function of this type (`api::WAKE_SYMBOL`).
        let wake = unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn()>(symbol.as_ptr()) };
        // SAFETY: it has no arguments, and may be called at any time.
        unsafe { wake() };
    }
}

/// The table of the preload, if there is one and sharing is on.
fn preloaded() -> *mut ShareApi {
    let Some(symbol) = preloads_function(api::SYMBOL) else { return std::ptr::null_mut() };
    // SAFETY: the name is this project's own, and stands for a function of this type (`api::SYMBOL`).
    let table = unsafe { std::mem::transmute::<*mut libc::c_void, api::Entry>(symbol.as_ptr()) };
    // SAFETY: it has no arguments.
    unsafe { table() }.cast_mut()
}
