//! The objects of one opening, by handle: for `ibv_import_pd` and its kin, and for an image of all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use vervain_hca::Error;
use vervain_hca::host::lock::OwnerLock;

use crate::object::{Handle, state};

/// An object that a client has.
struct Known<C>(*mut C);

// SAFETY: the pointer is followed under the registry's lock only, and the object leaves the registry before it is
// freed, see [`Entry`].
unsafe impl<C> Send for Known<C> {}

type All<C> = Arc<OwnerLock<BTreeMap<u32, Known<C>>>>;

/// The objects of one kind.
pub(crate) struct Registry<C>(All<C>);

/// An object's place in the registry, kept first in its state, so that it is given up before anything else of the
/// object.
pub(crate) struct Entry<C> {
    all: All<C>,
    handle: u32,
}

impl<C> Drop for Entry<C> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.handle);
    }
}

impl<C> Default for Registry<C> {
    fn default() -> Self {
        Registry(All::default())
    }
}

impl<C: Handle> Registry<C> {
    /// A place for an object that is going to be made.
    pub(crate) fn entry(&self, handle: u32) -> Entry<C> {
        Entry { all: Arc::clone(&self.0), handle }
    }

    /// The object that has the entry `handle` is there.
    pub(crate) fn publish(&self, handle: u32, object: *mut C) -> *mut C {
        self.0.lock().insert(handle, Known(object));
        object
    }

    /// Looks at the state of an object.
    pub(crate) fn with<R>(&self, handle: u32, f: impl FnOnce(&C::State) -> R) -> Result<R, Error> {
        let all = self.0.lock();
        let known = all.get(&handle).ok_or_else(|| Error::new(libc::ENOENT, format!("there is no object {handle}")))?;
        // SAFETY: made by this library, and not freed as long as it is in the registry, which is locked.
        Ok(f(unsafe { state(known.0) }))
    }

    /// Looks at all objects, in the order in which they were made.
    pub(crate) fn each<R>(&self, mut f: impl FnMut(u32, *mut C) -> Result<R, Error>) -> Result<Vec<R>, Error> {
        self.0.lock().iter().map(|(handle, known)| f(*handle, known.0)).collect()
    }
}
