//! Sets of values of a type.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use vervain_acp::Result;

use crate::hashed::{Bytes, Container, Extent, Hashed, Item, Kind, Name};

/// A set of `K` in the memory of several ranks, for all ranks and threads at once. All of `K` is its value: types with
/// padding are no `Pod`.
///
/// It is a name: dropping it does nothing, and [`destroy`](GSet::destroy) frees it.
pub struct GSet<'a, K> {
    core: Container<'a>,
    of: PhantomData<fn(K) -> K>,
}

macro_rules! common {
    ($what:ident<$($type:ident),+>, $kind:ident) => {
        impl<'a, $($type: Pod),+> $what<'a, $($type),+> {
            /// Makes an empty one: its directory in the memory of `rank`, `slots` slots in that of each of `ranks`.
            ///
            /// # Errors
            /// [Refused](vervain_acp::Error::is_refused): no ranks or slots, a rank that is none, no memory. Else the
            /// job is broken.
            pub fn create(hashed: Hashed<'a>, ranks: &[u32], slots: u64, rank: u32) -> Result<Self> {
                Ok(Self { core: hashed.create(Kind::$kind, ranks, slots, rank)?, of: PhantomData })
            }

            /// The one of this name, which some rank has made of the same types. Nothing is accessed.
            pub fn open(hashed: Hashed<'a>, name: Name) -> Self {
                Self { core: Container::of(hashed, Kind::$kind, name), of: PhantomData }
            }

            /// Its name in the job.
            pub fn name(&self) -> Name {
                self.core.name()
            }

            /// Returns whether it has the key. The round trips are one, and one for each element of the key's slot up
            /// to it.
            ///
            /// # Errors
            /// [Refused](vervain_acp::Error::is_refused): it was destroyed. Else the job is broken.
            pub fn contains(&self, key: &K) -> Result<bool> {
                Ok(self.core.count(Bytes::Here(bytemuck::bytes_of(key)))? > 0)
            }

            /// The number of its different keys; [`Container::len`].
            ///
            /// # Errors
            /// As [`contains`](Self::contains).
            pub fn len(&self, extent: Extent) -> Result<u64> {
                self.core.len(extent)
            }

            /// Returns whether it has none; [`Container::is_empty`].
            ///
            /// # Errors
            /// As [`contains`](Self::contains).
            pub fn is_empty(&self, extent: Extent) -> Result<bool> {
                self.core.is_empty(extent)
            }

            /// Removes all; [`Container::clear`].
            ///
            /// # Errors
            /// As [`contains`](Self::contains).
            pub fn clear(&self, extent: Extent) -> Result<()> {
                self.core.clear(extent)
            }

            /// Inserts copies of what `other` has; [`Container::merge`].
            ///
            /// # Errors
            /// Those of [`Container::merge`].
            pub fn merge(&self, other: &Self, extent: Extent) -> Result<()> {
                self.core.merge(&other.core, extent)
            }

            /// Moves what `other` has here; [`Container::take_from`].
            ///
            /// # Errors
            /// Those of [`Container::take_from`].
            pub fn take_from(&self, other: &Self, extent: Extent) -> Result<()> {
                self.core.take_from(&other.core, extent)
            }

            /// Becomes a copy of `other`; [`Container::assign`].
            ///
            /// # Errors
            /// Those of [`Container::assign`].
            pub fn assign(&self, other: &Self, extent: Extent) -> Result<()> {
                self.core.assign(&other.core, extent)
            }

            /// Exchanges the elements of both; [`Container::swap`].
            ///
            /// # Errors
            /// Those of [`Container::swap`].
            pub fn swap(&self, other: &Self) -> Result<()> {
                self.core.swap(&other.core)
            }

            /// Frees it. Nobody may use it any more.
            ///
            /// # Errors
            /// As [`contains`](Self::contains).
            pub fn destroy(self) -> Result<()> {
                self.core.destroy()
            }
        }

        impl<$($type),+> fmt::Debug for $what<'_, $($type),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($what)).field(&self.core.name()).finish()
            }
        }
    };
}

pub(crate) use common;

common!(GSet<K>, Set);

impl<K: Pod> GSet<'_, K> {
    /// Inserts a key; whether it was not there. [`Container::insert`].
    ///
    /// # Errors
    /// Those of [`Container::insert`].
    pub fn insert(&self, key: &K) -> Result<bool> {
        self.core.insert(Bytes::Here(bytemuck::bytes_of(key)), Bytes::Here(&[]))
    }

    /// Removes a key. Returns true if it was there. [`Container::remove`].
    ///
    /// # Errors
    /// Those of [`Container::remove`].
    pub fn remove(&self, key: &K) -> Result<bool> {
        self.core.remove(Bytes::Here(bytemuck::bytes_of(key)), 1)
    }

    /// All keys; [`Container::iter`].
    ///
    /// # Errors
    /// Those of [`Container::iter`].
    pub fn iter(&self, extent: Extent) -> Result<impl Iterator<Item = Result<K>> + '_> {
        Ok(self.core.iter(extent)?.map(|item| value_of(&item?.key)))
    }
}

/// The value that an element's bytes are.
pub(crate) fn value_of<T: Pod>(bytes: &[u8]) -> Result<T> {
    bytemuck::try_pod_read_unaligned(bytes).map_err(|_| {
        let (len, size) = (bytes.len(), size_of::<T>());
        vervain_acp::Error::refused(format!("an element has {len} bytes, and a value of its type {size}"))
    })
}

/// The key of an item, and what comes with it.
pub(crate) fn key_and<K: Pod, T>(item: Result<Item>, more: impl FnOnce(&Item) -> Result<T>) -> Result<(K, T)> {
    let item = item?;
    Ok((value_of(&item.key)?, more(&item)?))
}
