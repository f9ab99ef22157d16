//! Multisets of values of a type.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use vervain_acp::Result;

use crate::hashed::{Bytes, Container, Extent, Hashed, Kind, Name};
use crate::set::{common, key_and};

/// A multiset of `K` in the memory of several ranks: each key with how often it is there. As [`GSet`](crate::GSet).
pub struct GMultiset<'a, K> {
    core: Container<'a>,
    of: PhantomData<fn(K) -> K>,
}

common!(GMultiset<K>, Multiset);

impl<K: Pod> GMultiset<'_, K> {
    /// Inserts a key once more. [`Container::insert`].
    ///
    /// # Errors
    /// Those of [`Container::insert`].
    pub fn insert(&self, key: &K) -> Result<()> {
        self.core.insert(Bytes::Here(bytemuck::bytes_of(key)), Bytes::Here(&[]))?;
        Ok(())
    }

    /// How often it has a key. [`Container::count`].
    ///
    /// # Errors
    /// Those of [`Container::count`].
    pub fn count(&self, key: &K) -> Result<u64> {
        self.core.count(Bytes::Here(bytemuck::bytes_of(key)))
    }

    /// Removes a key once. Returns true if it was there. [`Container::remove`].
    ///
    /// # Errors
    /// Those of [`Container::remove`].
    pub fn remove(&self, key: &K) -> Result<bool> {
        self.core.remove(Bytes::Here(bytemuck::bytes_of(key)), 1)
    }

    /// Removes a key as often as it is there; whether it was. [`Container::remove`].
    ///
    /// # Errors
    /// Those of [`Container::remove`].
    pub fn remove_all(&self, key: &K) -> Result<bool> {
        self.core.remove(Bytes::Here(bytemuck::bytes_of(key)), u64::MAX)
    }

    /// All keys, each with how often it is there; [`Container::iter`].
    ///
    /// # Errors
    /// Those of [`Container::iter`].
    pub fn iter(&self, extent: Extent) -> Result<impl Iterator<Item = Result<(K, u64)>> + '_> {
        Ok(self.core.iter(extent)?.map(|item| key_and(item, |item| Ok(item.count))))
    }
}
