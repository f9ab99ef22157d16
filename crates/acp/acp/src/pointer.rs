//! Global pointers: global addresses of values of a type.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;

use crate::address::GlobalAddress;
use crate::error::{Error, Result};
use crate::handle::{Handle, Order};
use crate::memory::{self, Rights};
use crate::op::Atomic;
use crate::world::World;

/// The global address of a `T`, or of the first of several. Ranks may send it to each other, as the 64 bits that it is.
#[repr(transparent)]
pub struct GlobalPtr<T> {
    address: GlobalAddress,
    of: PhantomData<fn(T) -> T>,
}

impl<T> GlobalPtr<T> {
    /// A pointer to the values at `address`. It is not checked that these are of type `T`; any bytes are a value of a
    /// type that is `Pod`.
    pub fn new(address: GlobalAddress) -> Self {
        Self { address, of: PhantomData }
    }

    /// The address.
    pub fn address(self) -> GlobalAddress {
        self.address
    }

    /// The pointer to the value `count` further on.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "as of a raw pointer")]
    pub fn add(self, count: usize) -> Self {
        Self::new(self.address.add((count * size_of::<T>()) as u64))
    }

    /// A pointer to the same bytes as another type.
    pub fn cast<U>(self) -> GlobalPtr<U> {
        GlobalPtr::new(self.address)
    }
}

impl<T> Clone for GlobalPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalPtr<T> {}

impl<T> PartialEq for GlobalPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for GlobalPtr<T> {}

impl<T> fmt::Debug for GlobalPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlobalPtr<{}>({})", std::any::type_name::<T>(), self.address)
    }
}

// SAFETY: 64 bits, any of which are a pointer; `PhantomData` has none.
unsafe impl<T> bytemuck::Zeroable for GlobalPtr<T> {}
// SAFETY: as above.
unsafe impl<T: 'static> Pod for GlobalPtr<T> {}

/// A word that atomics work on: `u32` or `u64`.
pub trait Word: Pod + sealed::Sealed {
    #[doc(hidden)]
    fn swap(self) -> Atomic;
    #[doc(hidden)]
    fn compare_swap(expected: Self, new: Self) -> Atomic;
    #[doc(hidden)]
    fn add(self) -> Atomic;
    #[doc(hidden)]
    fn xor(self) -> Atomic;
    #[doc(hidden)]
    fn or(self) -> Atomic;
    #[doc(hidden)]
    fn and(self) -> Atomic;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

macro_rules! word {
    ($word:ty, $swap:ident, $compare:ident, $add:ident, $xor:ident, $or:ident, $and:ident) => {
        impl Word for $word {
            fn swap(self) -> Atomic {
                Atomic::$swap(self)
            }
            fn compare_swap(expected: Self, new: Self) -> Atomic {
                Atomic::$compare { expected, new }
            }
            fn add(self) -> Atomic {
                Atomic::$add(self)
            }
            fn xor(self) -> Atomic {
                Atomic::$xor(self)
            }
            fn or(self) -> Atomic {
                Atomic::$or(self)
            }
            fn and(self) -> Atomic {
                Atomic::$and(self)
            }
        }
    };
}

word!(u32, Swap4, CompareSwap4, Add4, Xor4, Or4, And4);
word!(u64, Swap8, CompareSwap8, Add8, Xor8, Or8, And8);

/// Values by global pointers. Operations start by their order and return a handle; [`load`](World::load) and
/// [`store`](World::store) access this rank's own memory at once.
impl World {
    /// The starter memory of `rank` as values of `T`; None if there is no such rank.
    pub fn starter_of<T: Pod>(&self, rank: u32) -> Option<GlobalPtr<T>> {
        self.starter(rank).map(GlobalPtr::new)
    }

    /// Copies `count` values from `src` to `dst`, as [`copy`](World::copy).
    ///
    /// # Errors
    /// As [`copy`](World::copy).
    pub fn copy_values<T: Pod>(
        &self,
        dst: GlobalPtr<T>,
        src: GlobalPtr<T>,
        count: usize,
        order: Order,
    ) -> Result<Handle> {
        let bytes = count.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or_else(|| Error::refused(format!("{count} values are more than all memory")))?;
        self.copy(dst.address, src.address, bytes, order)
    }

    /// Loads a value of this rank's memory. Aligned words of 4 and 8 bytes are read at once, others byte by byte while
    /// peers may write.
    ///
    /// # Errors
    /// [Refused](Error::is_refused): memory of another rank, or outside of its region.
    pub fn load<T: Pod>(&self, from: GlobalPtr<T>) -> Result<T> {
        let mut value = T::zeroed();
        self.read(from, std::slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Stores to memory of this rank, as [`load`](World::load) loads.
    ///
    /// # Errors
    /// As [`load`](World::load).
    pub fn store<T: Pod>(&self, to: GlobalPtr<T>, value: T) -> Result<()> {
        self.write(to, &[value])
    }

    /// Reads as many values of this rank's memory as fit, as [`load`](World::load) does.
    ///
    /// # Errors
    /// As [`load`](World::load).
    pub fn read<T: Pod>(&self, from: GlobalPtr<T>, into: &mut [T]) -> Result<()> {
        let bytes = bytemuck::cast_slice_mut::<T, u8>(into);
        // Under the lock, so that no thread takes the registration back meanwhile, after which the memory might be
        // gone.
        self.own(from.address, bytes.len(), Rights::Read, |place| {
            // SAFETY: registered memory of this length, which stays mapped while it is registered; the bytes are ours.
            unsafe { memory::copy(place, bytes.as_mut_ptr(), bytes.len()) };
        })
    }

    /// Writes values to this rank's memory, as [`load`](World::load) loads.
    ///
    /// # Errors
    /// As [`load`](World::load).
    pub fn write<T: Pod>(&self, to: GlobalPtr<T>, values: &[T]) -> Result<()> {
        let bytes = bytemuck::cast_slice::<T, u8>(values);
        self.own(to.address, bytes.len(), Rights::Write, |place| {
            // SAFETY: as in `read`, and the memory may be written.
            unsafe { memory::copy(bytes.as_ptr(), place, bytes.len()) };
        })
    }

    /// Adds to the word at `at`, and stores its earlier value to `old`, a word of this rank; as
    /// [`atomic`](World::atomic).
    ///
    /// # Errors
    /// As [`atomic`](World::atomic).
    pub fn fetch_add<W: Word>(&self, old: GlobalPtr<W>, at: GlobalPtr<W>, value: W, order: Order) -> Result<Handle> {
        self.atomic(old.address, at.address, value.add(), order)
    }

    /// Replaces `expected` by `new`, if the word is `expected`; as [`fetch_add`](World::fetch_add).
    ///
    /// # Errors
    /// As [`atomic`](World::atomic).
    pub fn compare_swap<W: Word>(
        &self,
        old: GlobalPtr<W>,
        at: GlobalPtr<W>,
        expected: W,
        new: W,
        order: Order,
    ) -> Result<Handle> {
        self.atomic(old.address, at.address, W::compare_swap(expected, new), order)
    }

    /// Replaces the word by `value`; as [`fetch_add`](World::fetch_add).
    ///
    /// # Errors
    /// As [`atomic`](World::atomic).
    pub fn swap<W: Word>(&self, old: GlobalPtr<W>, at: GlobalPtr<W>, value: W, order: Order) -> Result<Handle> {
        self.atomic(old.address, at.address, value.swap(), order)
    }

    /// Exclusive or; as [`fetch_add`](World::fetch_add).
    ///
    /// # Errors
    /// As [`atomic`](World::atomic).
    pub fn fetch_xor<W: Word>(&self, old: GlobalPtr<W>, at: GlobalPtr<W>, value: W, order: Order) -> Result<Handle> {
        self.atomic(old.address, at.address, value.xor(), order)
    }

    /// Or; as [`fetch_add`](World::fetch_add).
    ///
    /// # Errors
    /// As [`atomic`](World::atomic).
    pub fn fetch_or<W: Word>(&self, old: GlobalPtr<W>, at: GlobalPtr<W>, value: W, order: Order) -> Result<Handle> {
        self.atomic(old.address, at.address, value.or(), order)
    }

    /// And; as [`fetch_add`](World::fetch_add).
    ///
    /// # Errors
    /// As [`atomic`](World::atomic).
    pub fn fetch_and<W: Word>(&self, old: GlobalPtr<W>, at: GlobalPtr<W>, value: W, order: Order) -> Result<Handle> {
        self.atomic(old.address, at.address, value.and(), order)
    }
}
