//! Atomics over the model's memory in place of std's. All have the size of a `u64`, so that structs of them lie in the arena of
//! the model as they lie in a real one; zeros are one that nobody has used yet.

use crate::memory;
use std::sync::atomic::AtomicUsize;

pub(crate) use crate::memory::fence;
pub(crate) use shuttle::hint::spin_loop;
pub(crate) use std::sync::atomic::Ordering;

/// Threads of a model take their steps in program order, so a compiler has nothing to keep.
pub(crate) fn compiler_fence(_: Ordering) {}

/// The number of a word of the model's memory, plus 1; 0 before its first use.
#[repr(align(8))]
struct Word(AtomicUsize);

impl Word {
    fn new(value: u64) -> Word {
        Word(AtomicUsize::new(memory::word(value) + 1))
    }

    fn number(&self) -> usize {
        let known = self.0.load(Ordering::Relaxed);
        if known != 0 {
            return known - 1;
        }
        let number = memory::word(0);
        self.0.store(number + 1, Ordering::Relaxed);
        number
    }
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        #[repr(transparent)]
        pub struct $name(Word);

        impl Default for $name {
            fn default() -> $name {
                $name::new(0)
            }
        }

        impl $name {
            pub fn new(value: $int) -> $name {
                $name(Word::new(value.into()))
            }

            pub fn load(&self, order: Ordering) -> $int {
                memory::load(self.0.number(), order) as $int
            }

            pub fn store(&self, value: $int, order: Ordering) {
                memory::store(self.0.number(), value.into(), order);
            }

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut f: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                let updated = memory::update(self.0.number(), success, failure, |v| f(v as $int).map(u64::from));
                updated.map(|v| v as $int).map_err(|v| v as $int)
            }

            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.fetch_update(success, failure, |value| (value == current).then_some(new))
            }

            fn update(&self, order: Ordering, f: impl Fn($int) -> $int) -> $int {
                self.fetch_update(order, order, |value| Some(f(value))).expect("an update without a condition")
            }

            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                self.update(order, |_| value)
            }

            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                self.update(order, |before| before | value)
            }

            pub fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                self.update(order, |before| before & value)
            }

            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.update(order, |before| before.wrapping_add(value))
            }
        }
    };
}

atomic!(AtomicU8, u8);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
