//! Containers of values: vectors, deques and lists of a type that any bytes are a value of, over those of bytes.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use vervain_acp::{Error, GlobalAddress, Result};
use vervain_acp_heap::Heap;

use crate::{Cursor, Deque, Element, List, Source, Vector};

/// Bytes that an iterator gets at a time, one value at least.
const AHEAD: usize = 16 << 10;

/// Bytes of `count` values.
fn bytes<T>(count: usize) -> Result<usize> {
    let bytes = count.checked_mul(size_of::<T>());
    bytes.ok_or_else(|| Error::refused(format!("{count} values are more than all memory")))
}

/// The methods that vectors and deques of values share.
macro_rules! values {
    ($name:ident, $inner:ident, $what:literal) => {
        impl<'h, 'w, T: Pod> $name<'h, 'w, T> {
            /// The one that another rank has made, of this type. Any bytes are values of it; what is no container is
            /// found when it is used.
            ///
            /// # Panics
            /// Values of the type have no bytes.
            pub fn open(heap: &'h Heap<'w>, inner: $inner) -> Self {
                assert!(size_of::<T>() > 0, "values have bytes");
                Self { heap, inner, of: PhantomData }
            }

            /// The bytes, whose address ranks tell each other.
            pub fn bytes(&self) -> $inner {
                self.inner
            }

            /// Frees it. Two round trips.
            ///
            /// # Errors
            /// As of all methods: the job is broken, as where there is no such container.
            pub fn destroy(self) -> Result<()> {
                self.inner.destroy(self.heap)
            }

            /// Values that it has. One round trip.
            ///
            /// # Errors
            /// The job is broken.
            pub fn len(&self) -> Result<usize> {
                Ok(self.inner.len(self.heap)? / size_of::<T>())
            }

            /// Returns whether it has none. One round trip.
            ///
            /// # Errors
            /// The job is broken.
            pub fn is_empty(&self) -> Result<bool> {
                Ok(self.len()? == 0)
            }

            /// The value at `index`. Two round trips.
            ///
            /// # Errors
            /// [Refused](Error::is_refused): there is none. Else the job is broken.
            pub fn get(&self, index: usize) -> Result<T> {
                let mut value = [T::zeroed()];
                self.inner.read(self.heap, bytes::<T>(index)?, bytemuck::cast_slice_mut(&mut value))?;
                Ok(value[0])
            }

            /// Puts `value` in the place of that at `index`. Two round trips.
            ///
            /// # Errors
            /// As of [`get`](Self::get).
            pub fn set(&self, index: usize, value: T) -> Result<()> {
                self.inner.write(self.heap, bytes::<T>(index)?, bytemuck::bytes_of(&value))
            }

            /// Adds values at the end. Two round trips where there is room.
            ///
            /// # Errors
            /// [Refused](Error::is_refused): there is no memory. Else the job is broken.
            pub fn extend(&self, values: &[T]) -> Result<()> {
                self.inner.push_back(self.heap, Source::Here(bytemuck::cast_slice(values)))
            }

            /// Adds a value at the end: as [`extend`](Self::extend).
            ///
            /// # Errors
            /// Those of [`extend`](Self::extend).
            pub fn push_back(&self, value: T) -> Result<()> {
                self.extend(&[value])
            }

            /// Takes the last value, if there is one. Up to five round trips.
            ///
            /// # Errors
            /// The job is broken.
            pub fn pop_back(&self) -> Result<Option<T>> {
                let Some(last) = self.len()?.checked_sub(1) else { return Ok(None) };
                let value = self.get(last)?;
                self.remove(last..last + 1)?;
                Ok(Some(value))
            }

            /// Inserts values before that at `index`, or at the end. Two round trips where there is room, and one for
            /// each 256 KiB that have to move.
            ///
            /// # Errors
            /// As of [`extend`](Self::extend); refused also where the index is behind the end.
            pub fn insert(&self, index: usize, values: &[T]) -> Result<()> {
                self.inner.insert(self.heap, bytes::<T>(index)?, Source::Here(bytemuck::cast_slice(values)))
            }

            /// Erases values, of which those behind the end are not there. Round trips as of [`insert`](Self::insert).
            ///
            /// # Errors
            /// As of [`get`](Self::get).
            pub fn remove(&self, range: Range<usize>) -> Result<()> {
                self.inner.erase(self.heap, bytes::<T>(range.start)?..bytes::<T>(range.end)?)
            }

            /// All values in turn. They are got 16 KiB at a time, in two round trips; what others add meanwhile is not
            /// among them.
            ///
            /// # Errors
            /// The job is broken; so may what the iterator yields, which then is its last.
            pub fn iter(&self) -> Result<impl Iterator<Item = Result<T>>> {
                let (len, heap, inner) = (self.len()?, self.heap, self.inner);
                let mut ahead = vec![].into_iter();
                let mut done = 0;
                let get = move || -> Result<Option<T>> {
                    if ahead.as_slice().is_empty() && done < len {
                        let mut values = vec![T::zeroed(); (AHEAD / size_of::<T>()).clamp(1, len - done)];
                        inner.read(heap, done * size_of::<T>(), bytemuck::cast_slice_mut(&mut values))?;
                        done += values.len();
                        ahead = values.into_iter();
                    }
                    Ok(ahead.next())
                };
                Ok(until_error(get))
            }
        }

        impl<T> fmt::Debug for $name<'_, '_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($what, " of {} at {}"), std::any::type_name::<T>(), self.inner.address())
            }
        }
    };
}

/// The values that `get` finds, until it finds no more, or has failed.
fn until_error<T>(mut get: impl FnMut() -> Result<Option<T>>) -> impl Iterator<Item = Result<T>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let found = get().transpose();
        is_over = !matches!(found, Some(Ok(_)));
        found
    })
}

/// A vector of values in global memory, over a [`Vector`] of their bytes. It is not freed by being dropped: other ranks
/// may use it.
pub struct GVec<'h, 'w, T> {
    heap: &'h Heap<'w>,
    inner: Vector,
    of: PhantomData<fn(T) -> T>,
}

values!(GVec, Vector, "a vector");

impl<'h, 'w, T: Pod> GVec<'h, 'w, T> {
    /// Makes one without values in the heap of `rank`. One round trip, besides an allocation.
    ///
    /// # Errors
    /// As of [`Vector::create`].
    ///
    /// # Panics
    /// Values of the type have no bytes.
    pub fn create(heap: &'h Heap<'w>, rank: u32) -> Result<Self> {
        Ok(Self::open(heap, Vector::create(heap, 0, rank)?))
    }
}

/// A deque of values in global memory, over a [`Deque`] of their bytes. It is not freed by being dropped: other ranks
/// may use it.
pub struct GDeque<'h, 'w, T> {
    heap: &'h Heap<'w>,
    inner: Deque,
    of: PhantomData<fn(T) -> T>,
}

values!(GDeque, Deque, "a deque");

impl<'h, 'w, T: Pod> GDeque<'h, 'w, T> {
    /// Makes one without values in the heap of `rank`. One round trip, besides an allocation.
    ///
    /// # Errors
    /// As of [`Deque::create`].
    ///
    /// # Panics
    /// Values of the type have no bytes.
    pub fn create(heap: &'h Heap<'w>, rank: u32) -> Result<Self> {
        Ok(Self::open(heap, Deque::create(heap, 0, rank)?))
    }

    /// Adds a value at the front. Two round trips where there is room.
    ///
    /// # Errors
    /// As of [`extend`](Self::extend).
    pub fn push_front(&self, value: T) -> Result<()> {
        self.insert(0, &[value])
    }

    /// Takes the first value, if there is one. Up to five round trips.
    ///
    /// # Errors
    /// The job is broken.
    pub fn pop_front(&self) -> Result<Option<T>> {
        if self.is_empty()? {
            return Ok(None);
        }
        let value = self.get(0)?;
        self.remove(0..1)?;
        Ok(Some(value))
    }
}

/// A list of values in global memory, over a [`List`] of their bytes. It is not freed by being dropped: other ranks may
/// use it.
///
/// Positions are [`Cursor`]s, with which the methods of [`List`] go too.
pub struct GList<'h, 'w, T> {
    heap: &'h Heap<'w>,
    inner: List,
    of: PhantomData<fn(T) -> T>,
}

impl<'h, 'w, T: Pod> GList<'h, 'w, T> {
    /// Makes one without values in the heap of `rank`. One round trip, besides an allocation.
    ///
    /// # Errors
    /// As of [`List::create`].
    pub fn create(heap: &'h Heap<'w>, rank: u32) -> Result<Self> {
        Ok(Self::open(heap, List::create(heap, rank)?))
    }

    /// The one that another rank has made, of this type.
    pub fn open(heap: &'h Heap<'w>, inner: List) -> Self {
        Self { heap, inner, of: PhantomData }
    }

    /// The list of bytes, whose address ranks tell each other.
    pub fn bytes(&self) -> List {
        self.inner
    }

    /// Frees it with its values. As [`List::destroy`].
    ///
    /// # Errors
    /// As of all methods: the job is broken, as where there is no list.
    pub fn destroy(self) -> Result<()> {
        self.inner.destroy(self.heap)
    }

    /// Values that it has. One round trip.
    ///
    /// # Errors
    /// The job is broken.
    pub fn len(&self) -> Result<usize> {
        self.inner.len(self.heap)
    }

    /// Returns whether it has none. One round trip.
    ///
    /// # Errors
    /// The job is broken.
    pub fn is_empty(&self) -> Result<bool> {
        self.inner.is_empty(self.heap)
    }

    /// Adds a value at the end, in the heap of `rank`. As [`List::push_back`].
    ///
    /// # Errors
    /// Those of [`List::push_back`].
    pub fn push_back(&self, value: T, rank: u32) -> Result<Cursor> {
        self.inner.push_back(self.heap, Source::Here(bytemuck::bytes_of(&value)), rank)
    }

    /// Adds a value at the front, in the heap of `rank`. As [`List::push_front`].
    ///
    /// # Errors
    /// Those of [`List::push_front`].
    pub fn push_front(&self, value: T, rank: u32) -> Result<Cursor> {
        self.inner.push_front(self.heap, Source::Here(bytemuck::bytes_of(&value)), rank)
    }

    /// The value at a position. Two round trips.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): the position is the end, or the value there is of another size. Else the job is
    /// broken.
    pub fn get(&self, at: Cursor) -> Result<T> {
        let element = at.value(self.heap)?;
        self.load(element)
    }

    /// Puts `value` in the place of that at a position. Two round trips.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn set(&self, at: Cursor, value: T) -> Result<()> {
        let to = Self::sized(at.value(self.heap)?)?;
        let mut batch = self.heap.world().batch();
        crate::source::put(&mut batch, to, bytemuck::bytes_of(&value), vervain_acp::Order::Now)?;
        batch.wait()
    }

    /// Takes the first value, if there is one. Up to six round trips.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn pop_front(&self) -> Result<Option<T>> {
        self.take(self.inner.begin(self.heap)?)
    }

    /// Takes the last value, if there is one. Up to six round trips.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn pop_back(&self) -> Result<Option<T>> {
        if self.is_empty()? { Ok(None) } else { self.take(self.inner.end().previous(self.heap)?) }
    }

    fn take(&self, at: Cursor) -> Result<Option<T>> {
        if at.is_end() {
            return Ok(None);
        }
        let value = self.get(at)?;
        self.inner.erase(self.heap, at)?;
        Ok(Some(value))
    }

    /// Sorts the values by `compare`, equal ones in the order that they have. One round trip for each, two, and one for
    /// each 16 KiB of values.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn sort_by(&self, mut compare: impl FnMut(&T, &T) -> Ordering) -> Result<()> {
        let elements = self.inner.elements(self.heap)?;
        let mut values = std::collections::HashMap::with_capacity(elements.len());
        for part in elements.chunks((AHEAD / size_of::<T>().max(1)).clamp(1, 500)) {
            values.extend(part.iter().map(|element| element.address).zip(self.load_all(part)?));
        }
        self.inner.sort(self.heap, |one, two| match (values.get(&one.address), values.get(&two.address)) {
            (Some(one), Some(two)) => compare(one, two),
            // Another rank has added it meanwhile, which it may not.
            _ => Ordering::Equal,
        })
    }

    /// All values in turn: one round trip for each, and then one for each 16 KiB.
    ///
    /// # Errors
    /// The job is broken; so may what the iterator yields, which then is its last.
    pub fn iter(&self) -> Result<impl Iterator<Item = Result<T>> + '_> {
        let elements = self.inner.elements(self.heap)?;
        let mut ahead = vec![].into_iter();
        let mut done = 0;
        let get = move || -> Result<Option<T>> {
            if ahead.as_slice().is_empty() && done < elements.len() {
                let count = (AHEAD / size_of::<T>().max(1)).clamp(1, 500).min(elements.len() - done);
                ahead = self.load_all(&elements[done..done + count])?.into_iter();
                done += count;
            }
            Ok(ahead.next())
        };
        Ok(until_error(get))
    }

    /// The address of a value of the type.
    fn sized(element: Element) -> Result<GlobalAddress> {
        if element.size == size_of::<T>() {
            return Ok(element.address);
        }
        let (size, wanted) = (element.size, size_of::<T>());
        Err(Error::refused(format!("the element at {} has {size} bytes, and a value has {wanted}", element.address)))
    }

    fn load(&self, element: Element) -> Result<T> {
        Ok(self.load_all(&[element])?[0])
    }

    fn load_all(&self, elements: &[Element]) -> Result<Vec<T>> {
        let mut batch = self.heap.world().batch();
        let mut places = Vec::with_capacity(elements.len());
        for element in elements {
            places.push(batch.get(Self::sized(*element)?, element.size, vervain_acp::Order::Now)?);
        }
        batch.wait()?;
        let value = |place| {
            let mut value = T::zeroed();
            batch.read(place, bytemuck::bytes_of_mut(&mut value));
            value
        };
        Ok(places.into_iter().map(value).collect())
    }
}

impl<T> fmt::Debug for GList<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {} at {}", std::any::type_name::<T>(), self.inner.address())
    }
}
