//! The kernel of a simulation: locks that act like those of open file descriptions, and a clock that the simulation
//! advances.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vervain_window::parts::{Kernel, Kind};
use vervain_window::{Error, Result};

/// The locks of one kernel, its clock, and its random numbers.
#[derive(Debug, Default)]
pub struct Table {
    locks: Vec<(u64, Range<u64>, Kind)>,
    holders: u64,
    dead: BTreeSet<u64>,
    pub now_ms: u64,
    randoms: u64,
}

/// One holder of locks. The drop of its last clone releases them.
#[derive(Debug, Clone)]
pub struct Simulated(Arc<Holder>);

#[derive(Debug)]
struct Holder {
    table: Arc<Mutex<Table>>,
    number: u64,
}

impl Simulated {
    /// A new holder.
    pub fn new(table: &Arc<Mutex<Table>>) -> Simulated {
        let mut inside = table.lock().unwrap_or_else(PoisonError::into_inner);
        inside.holders += 1;
        Simulated(Arc::new(Holder { table: table.clone(), number: inside.holders }))
    }

    /// Ends the holder like kill -9: its locks are released, and its calls fail from now on.
    pub fn kill(&self) {
        let mut table = self.0.table();
        table.dead.insert(self.0.number);
        table.locks.retain(|(by, ..)| *by != self.0.number);
    }
}

impl Holder {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.table().locks.retain(|(by, ..)| *by != self.number);
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Table {
    /// The table of the kernel with this number. No other kernel has the same random numbers.
    pub fn new(kernel: u32) -> Arc<Mutex<Table>> {
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

impl Kernel for Simulated {
    fn try_lock(&self, bytes: Range<u64>, kind: Kind) -> Result<bool> {
        self.check()?;
        let mut table = self.0.table();
        if table.blocker(self.0.number, &bytes, kind).is_some() {
            return Ok(false);
        }
        table.unlock(self.0.number, &bytes);
        table.locks.push((self.0.number, bytes, kind));
        Ok(true)
    }

    fn unlock(&self, bytes: Range<u64>) {
        self.0.table().unlock(self.0.number, &bytes);
    }

    fn others(&self, bytes: Range<u64>) -> Result<Option<Range<u64>>> {
        self.check()?;
        let found = self.0.table().blocker(self.0.number, &bytes, Kind::Alone);
        Ok(found.map(|found| found.start.max(bytes.start)..found.end.min(bytes.end)))
    }

    fn now_ms(&self) -> u64 {
        self.0.table().now_ms
    }

    fn pause(&self, _time: Duration) {}

    fn random(&self) -> Result<u64> {
        // Different numbers are enough.
        let mut table = self.0.table();
        table.randoms += 1;
        Ok(table.randoms)
    }

    fn check(&self) -> Result<()> {
        if self.0.table().dead.contains(&self.0.number) {
            return Err(Error::new(libc::ESRCH, "the process was killed"));
        }
        Ok(())
    }
}
