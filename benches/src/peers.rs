//! Vervain beside other ways to move data between two processes: what UCX and MPI have in common here. All of one
//! operation is measured in turns, each with all sizes.

use anyhow::Result;

use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Columns, Measure, interleaved};
use crate::setup::Setup;

/// A message size, its name, and operations in a run of a latency and of a bandwidth.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Bytes.
    pub bytes: usize,
    /// For readers.
    pub name: &'static str,
    /// Operations, for a latency.
    pub operations: usize,
    /// Operations, for a bandwidth.
    pub streamed: usize,
}

const fn size(bytes: usize, name: &'static str, operations: usize, streamed: usize) -> Size {
    Size { bytes, name, operations, streamed }
}

const SIZES: [Size; 6] = [
    size(8, "8 B", 20_000, 100_000),
    size(512, "512 B", 20_000, 100_000),
    size(4 << 10, "4 KiB", 10_000, 50_000),
    size(64 << 10, "64 KiB", 2_000, 10_000),
    size(1 << 20, "1 MiB", 200, 500),
    size(16 << 20, "16 MiB", 12, 32),
];

/// The sizes of this run.
pub fn sizes(setup: &Setup) -> Vec<Size> {
    SIZES.into_iter().filter(|size| !setup.quick || [8, 64 << 10, 1 << 20].contains(&size.bytes)).collect()
}

/// What the issue promises against a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Ahead: the peer works in memory that was simply allocated, as Vervain does.
    Ahead,
    /// Within 10 %: the peer works in memory that it allocated for itself.
    Near,
    /// Nothing.
    None,
}

impl Promise {
    fn target(self, unit: Unit) -> Option<Target> {
        match (self, unit) {
            (Promise::None, _) => None,
            (Promise::Ahead, Unit::Ns) => Some(Target::RatioAtMost(1.0)),
            (Promise::Near, Unit::Ns) => Some(Target::RatioAtMost(1.1)),
            (Promise::Ahead, _) => Some(Target::RatioAtLeast(1.0)),
            (Promise::Near, _) => Some(Target::RatioAtLeast(0.9)),
        }
    }
}

/// Something beside Vervain: a column of the table.
pub struct Peer<'a> {
    /// Its name.
    pub name: &'static str,
    /// What is promised against it.
    pub promise: Promise,
    /// One number for each line, or for the first lines if it cannot do them all.
    pub measure: Measure<'a>,
}

/// A table of one operation.
pub struct Operation<'a> {
    /// Heading.
    pub title: &'static str,
    /// How it was measured.
    pub how: &'static str,
    /// Unit of all numbers.
    pub unit: Unit,
    /// Names of the lines.
    pub lines: Vec<&'static str>,
    /// Vervain's number for each line.
    pub ours: Measure<'a>,
    /// The columns.
    pub peers: Vec<Peer<'a>>,
    /// What bounds Vervain against memory that a peer allocated for itself.
    pub limit: Option<&'static str>,
}

impl Operation<'_> {
    /// Measures it.
    pub fn section(self, setup: &Setup) -> Section {
        let (title, how) = (self.title, self.how);
        let described: Vec<_> = self.peers.iter().map(|peer| (peer.name, peer.promise)).collect();
        let measures = [self.ours].into_iter().chain(self.peers.into_iter().map(|peer| peer.measure));
        let mut results = interleaved(setup.fewer_rounds(), measures).into_iter();
        let ours = match results.next().unwrap_or_else(|| Ok(Columns::new())) {
            Ok(ours) => ours,
            Err(e) => return Section::new(title, how, Err(e)),
        };
        let mut rows = Rows::new();
        for ((name, promise), theirs) in described.into_iter().zip(results) {
            let limit = self.limit.filter(|_| promise == Promise::Near);
            match theirs {
                Ok(theirs) => {
                    rows.extend(self.lines.iter().zip(ours.iter().zip(&theirs)).map(|(line, (ours, theirs))| {
                        let row = Row::beside(*line, self.unit, ours, (name, theirs), promise.target(self.unit))?;
                        Ok(row.limit(limit))
                    }))
                }
                Err(e) => rows.push(Err(e.context(name))),
            }
        }
        if !rows.iter().any(Result::is_ok) {
            rows.extend(self.lines.iter().zip(&ours).map(|(line, ours)| Row::new(*line, self.unit, ours, None)));
        }
        Section::grid(title, how, rows)
    }
}

/// The numbers of one run for each size.
pub fn for_each(sizes: &[Size], measure: impl Fn(&Size) -> Result<f64>) -> Result<Vec<f64>> {
    sizes.iter().map(measure).collect()
}

/// The names of the sizes.
pub fn names(sizes: &[Size]) -> Vec<&'static str> {
    sizes.iter().map(|size| size.name).collect()
}
