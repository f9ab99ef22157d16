//! The kernel of a simulation: locks that act like those of open file descriptions, and a clock that the simulation
//! advances.

use crate::error::{Error, Result};
use crate::locks::{Kernel, Kind};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The locks of one kernel, its clock, and its random numbers.
#[derive(Debug, Default)]
pub(crate) struct Table {
    locks: Vec<(u64, Range<u64>, Kind)>,
    holders: u64,
    dead: BTreeSet<u64>,
    pub now_ms: u64,
    randoms: u64,
}

/// One holder of locks. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct Simulated {
    table: Arc<Mutex<Table>>,
    holder: u64,
}

impl Simulated {
    /// A new holder.
    pub(crate) fn new(table: &Arc<Mutex<Table>>) -> Simulated {
        let mut inside = table.lock().unwrap_or_else(PoisonError::into_inner);
        inside.holders += 1;
        Simulated { table: table.clone(), holder: inside.holders }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the holder like kill -9: its locks are released, and its calls fail from now on.
    pub(crate) fn kill(&self) {
        let mut table = self.table();
        table.dead.insert(self.holder);
        table.locks.retain(|(by, ..)| *by != self.holder);
    }
}

impl Drop for Simulated {
    fn drop(&mut self) {
        self.table().locks.retain(|(by, ..)| *by != self.holder);
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Table {
    /// The table of the kernel with this number. No other kernel has the same random numbers.
    pub(crate) fn new(kernel: u32) -> Arc<Mutex<Table>> {
        Arc::new(Mutex::new(Table { randoms: u64::from(kernel) << 32, ..Table::default() }))
    }

    /// The first range locked by others that conflicts with a lock of these bytes.
    fn blocker(&self, holder: u64, bytes: &Range<u64>, kind: Kind) -> Option<Range<u64>> {
        let blocks = |(by, range, of): &&(u64, Range<u64>, Kind)| {
            *by != holder && overlap(range, bytes) && (kind == Kind::Alone || *of == Kind::Alone)
        };
        self.locks.iter().filter(blocks).map(|(_, range, _)| range.clone()).min_by_key(|range| range.start)
    }

    /// Removes these bytes from a holder's locks.
    fn unlock(&mut self, holder: u64, bytes: &Range<u64>) {
        let cut = |(by, range, kind): (u64, Range<u64>, Kind)| {
            let parts = if by != holder || !overlap(&range, bytes) {
                [range, 0..0]
            } else {
                [range.start..bytes.start.max(range.start), bytes.end.min(range.end)..range.end]
            };
            parts.into_iter().filter(|part| !part.is_empty()).map(move |part| (by, part, kind))
        };
        self.locks = std::mem::take(&mut self.locks).into_iter().flat_map(cut).collect();
    }
}

impl Kernel for Arc<Simulated> {
    fn try_lock(&self, bytes: Range<u64>, kind: Kind) -> Result<bool> {
        self.check()?;
        let mut table = self.table();
        if table.blocker(self.holder, &bytes, kind).is_some() {
            return Ok(false);
        }
        table.unlock(self.holder, &bytes);
        table.locks.push((self.holder, bytes, kind));
        Ok(true)
    }

    fn unlock(&self, bytes: Range<u64>) {
        self.table().unlock(self.holder, &bytes);
    }

    fn others(&self, bytes: Range<u64>) -> Result<Option<Range<u64>>> {
        self.check()?;
        let found = self.table().blocker(self.holder, &bytes, Kind::Alone);
        Ok(found.map(|found| found.start.max(bytes.start)..found.end.min(bytes.end)))
    }

    fn now_ms(&self) -> u64 {
        self.table().now_ms
    }

    fn pause(&self, _time: Duration) {}

    fn random(&self) -> Result<u64> {
        // Different numbers are enough.
        let mut table = self.table();
        table.randoms += 1;
        Ok(table.randoms)
    }

    fn check(&self) -> Result<()> {
        if self.table().dead.contains(&self.holder) {
            return Err(Error::new(libc::ESRCH, "the process was killed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks::one;
    use crate::ofd::Ofd;
    use proptest::prelude::*;
    use rustix::fs::OFlags;
    use std::os::fd::OwnedFd;

    /// A holder, bytes, and an operation.
    fn act() -> impl Strategy<Value = (usize, Range<u64>, u8)> {
        (0..3_usize, 0..12_u64, 1..6_u64, 0..3_u8).prop_map(|(who, at, len, what)| (who, at..at + len, what))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn simulated_locks_are_those_of_open_file_descriptions(acts in prop::collection::vec(act(), 1..40)) {
            let file = OwnedFd::from(tempfile::tempfile().unwrap());
            let real = [(); 3].map(|()| Ofd::new(crate::mapping::reopen(&file, OFlags::RDWR).unwrap()).unwrap());
            let table = Arc::default();
            let simulated = [(); 3].map(|()| Arc::new(Simulated::new(&table)));
            for (who, bytes, what) in acts {
                let (real, simulated) = (&real[who], &simulated[who]);
                match what {
                    0 => {
                        real.unlock(bytes.clone());
                        simulated.unlock(bytes);
                    }
                    _ => {
                        let kind = if what == 1 { Kind::Shared } else { Kind::Alone };
                        prop_assert_eq!(
                            real.try_lock(bytes.clone(), kind).unwrap(),
                            simulated.try_lock(bytes, kind).unwrap()
                        );
                    }
                }
                for byte in 0..18 {
                    let others = real.others(one(byte)).unwrap();
                    prop_assert_eq!(&others, &simulated.others(one(byte)).unwrap());
                    prop_assert!(others.is_none_or(|others| others == one(byte)));
                }
            }
        }
    }
}
