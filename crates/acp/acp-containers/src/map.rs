//! Maps between values of types.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use vervain_acp::Result;

use crate::hashed::{Bytes, Container, Extent, Hashed, Kind, Name, Room};
use crate::set::{common, key_and, value_of};

/// A map from `K` to `V` in the memory of several ranks. As [`GSet`](crate::GSet).
pub struct GMap<'a, K, V> {
    core: Container<'a>,
    of: PhantomData<fn() -> (K, V)>,
}

common!(GMap<K, V>, Map);

impl<K: Pod, V: Pod> GMap<'_, K, V> {
    /// Inserts a key with its value, if the key is not there; whether it was not. [`Container::insert`].
    ///
    /// # Errors
    /// Those of [`Container::insert`].
    pub fn insert(&self, key: &K, value: &V) -> Result<bool> {
        self.core.insert(Bytes::Here(bytemuck::bytes_of(key)), Bytes::Here(bytemuck::bytes_of(value)))
    }

    /// The value of a key. [`Container::retrieve`].
    ///
    /// # Errors
    /// Those of [`Container::retrieve`]; [refused](vervain_acp::Error::is_refused) too: the value was inserted as one
    /// of another size.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let mut value = V::zeroed();
        let room = bytemuck::bytes_of_mut(&mut value);
        let stored = self.core.retrieve(Bytes::Here(bytemuck::bytes_of(key)), Room::Here(room))?;
        match stored {
            Some(stored) if stored != size_of::<V>() as u64 => {
                let size = size_of::<V>();
                Err(vervain_acp::Error::refused(format!("the value has {stored} bytes, and one of its type {size}")))
            }
            stored => Ok(stored.map(|_| value)),
        }
    }

    /// Removes a key. Returns true if it was there. [`Container::remove`].
    ///
    /// # Errors
    /// Those of [`Container::remove`].
    pub fn remove(&self, key: &K) -> Result<bool> {
        self.core.remove(Bytes::Here(bytemuck::bytes_of(key)), 1)
    }

    /// All keys with their values; [`Container::iter`].
    ///
    /// # Errors
    /// Those of [`Container::iter`].
    pub fn iter(&self, extent: Extent) -> Result<impl Iterator<Item = Result<(K, V)>> + '_> {
        Ok(self.core.iter(extent)?.map(|item| key_and(item, |item| value_of(&item.value))))
    }
}
