//! Stand-in for the lock that a dying thread cannot keep.

use crate::memory::{self, View};
use shuttle::sync::{Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};

/// A value, and what was known to the last thread that had it.
#[derive(Default)]
pub(crate) struct OwnerLock<T>(Mutex<(T, View)>);

pub(crate) struct OwnerGuard<'a, T>(MutexGuard<'a, (T, View)>);

impl<T> OwnerLock<T> {
    pub(crate) fn new(value: T) -> OwnerLock<T> {
        OwnerLock(Mutex::new((value, View::default())))
    }

    pub(crate) fn lock(&self) -> OwnerGuard<'_, T> {
        let guard = self.0.lock().expect("a model ends where it panics");
        memory::hear(&guard.1);
        OwnerGuard(guard)
    }
}

impl<T> Deref for OwnerGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.0
    }
}

impl<T> DerefMut for OwnerGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.0
    }
}

impl<T> Drop for OwnerGuard<'_, T> {
    fn drop(&mut self) {
        self.0.1 = memory::known();
    }
}
