//! What a carrier keeps for each of its QPs, by QP number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vervain_hca::host::lock::OwnerLock;

/// A value for each QP. The numbers are this process's own, so nobody chooses them to collide.
pub struct ByQp<T> {
    values: OwnerLock<HashMap<u32, Arc<T>, BuildHasherDefault<NumberHasher>>>,
    /// Number of values.
    count: AtomicUsize,
}

impl<T> Default for ByQp<T> {
    fn default() -> Self {
        ByQp { values: OwnerLock::default(), count: AtomicUsize::new(0) }
    }
}

impl<T> ByQp<T> {
    /// Adds that of QP `qpn`.
    pub fn insert(&self, qpn: u32, value: Arc<T>) {
        let mut values = self.values.lock();
        values.insert(qpn, value);
        self.count.store(values.len(), Ordering::Relaxed);
    }

    /// Takes that of QP `qpn` out.
    pub fn remove(&self, qpn: u32) -> Option<Arc<T>> {
        let mut values = self.values.lock();
        let value = values.remove(&qpn);
        self.count.store(values.len(), Ordering::Relaxed);
        value
    }

    /// Returns true if there is any. Waits for no lock.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// That of QP `qpn`.
    pub fn get(&self, qpn: u32) -> Option<Arc<T>> {
        self.values.lock().get(&qpn).cloned()
    }

    /// Those that `is_wanted`.
    pub fn all(&self, is_wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        self.values.lock().values().filter(|value| is_wanted(value)).cloned().collect()
    }

    /// Returns true if one of them `is_wanted`, or if that cannot be known just now. Waits for no lock.
    pub fn may_have(&self, is_wanted: impl Fn(&T) -> bool) -> bool {
        match self.values.try_lock() {
            Some(values) => values.values().any(|value| is_wanted(value)),
            None => self.values.raw().comes_free(),
        }
    }
}

/// Spreads a number over all bits of the hash.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    #[inline]
    fn write_u32(&mut self, number: u32) {
        // The golden ratio (Knuth, The Art of Computer Programming, 6.4); maps take bits of both ends.
        let spread = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(self.0 as u32 ^ u32::from(*byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
