//! A Jacobi kernel after the Himeno benchmark: the pressure of an incompressible flow, by 19 points in single
//! precision, 34 floating-point operations a cell. The cells lie in blocks, which ranks have: a grid of ranks in the
//! first two dimensions. Before each step a block gets what its neighbours have beside it, its *halo*.

use std::ops::{Deref, DerefMut, Range};

use anyhow::Result;

/// By how much of the residual a cell is moved.
const OMEGA: f32 = 0.8;
/// Bytes of a cell in a message.
const CELL: usize = size_of::<f32>();

/// Lines between the beginnings of two arrays, besides whole pages: rows of all of them would else share the same few
/// sets of the caches.
const STAGGER: usize = 5 * 64 / CELL;

/// Cells of a block, one value for each.
struct Array {
    cells: Vec<f32>,
    skip: usize,
}

impl Array {
    /// The one with that number of a block's.
    fn new(number: usize, len: usize, value: f32) -> Array {
        let skip = number * STAGGER;
        Array { cells: vec![value; skip + len], skip }
    }
}

impl Deref for Array {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        &self.cells[self.skip..]
    }
}

impl DerefMut for Array {
    #[inline]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.cells[self.skip..]
    }
}

/// Cells of the whole problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    /// In the three dimensions, the last of which is contiguous.
    pub cells: [usize; 3],
}

impl Problem {
    /// The problem whose pressure takes this number of bytes: sizes S (64 × 64 × 128), M (128 × 128 × 256) and L (256 ×
    /// 256 × 512) of the benchmark, and smaller ones of their shape for tests; None for other numbers.
    pub fn of(bytes: u64) -> Option<Problem> {
        let shape = |edge: u64| 2 * edge * edge * edge * CELL as u64;
        let edge = (2..=8).map(|power| 1 << power).find(|edge| shape(*edge) == bytes)? as usize;
        Some(Problem { cells: [edge, edge, 2 * edge] })
    }

    /// Floating-point operations of a step: 34 for each cell that is not of the border.
    pub fn operations(self) -> u64 {
        34 * self.cells.iter().map(|cells| *cells as u64 - 2).product::<u64>()
    }
}

/// A side of a block that another block may be at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Side {
    dimension: usize,
    is_high: bool,
}

/// The part of the problem that a rank has.
pub struct Block {
    /// Cells with the halo, which the last dimension has none of.
    cells: [usize; 3],
    /// Those that are computed: neither halo nor the border of the problem.
    inner: [Range<usize>; 2],
    /// The rank at each side, low and high, of the first two dimensions.
    neighbours: [[Option<u32>; 2]; 2],
    /// Its place in the grid of ranks.
    place: [usize; 2],
    pressure: Array,
    next: Array,
    /// Coefficients of each cell, of which the benchmark has arrays, so that they take their share of the memory's
    /// bandwidth.
    a: [Array; 4],
    b: [Array; 3],
    c: [Array; 3],
    bound: Array,
    work: Array,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Block {
    /// The block of a rank in a grid of `ranks`, of which the second dimension counts first. None if a block would be
    /// without cells.
    pub fn new(problem: Problem, ranks: [usize; 2], rank: usize) -> Option<Block> {
        let place = [rank / ranks[1], rank % ranks[1]];
        let share = |d: usize| {
            let at = |n: usize| problem.cells[d] * n / ranks[d];
            at(place[d])..at(place[d] + 1)
        };
        let own = [share(0), share(1)];
        if place[0] >= ranks[0] || own.iter().any(Range::is_empty) {
            return None;
        }
        let cells = [own[0].len() + 2, own[1].len() + 2, problem.cells[2]];
        // Local cell 1 is the first of its own; that of the problem's border stays as it is.
        let inner = [0, 1].map(|d| {
            let (first, last) = (own[d].start == 0, own[d].end == problem.cells[d]);
            1 + usize::from(first)..cells[d] - 1 - usize::from(last)
        });
        let neighbours = [0, 1].map(|d| {
            let step = if d == 0 { ranks[1] } else { 1 };
            let low = (place[d] > 0).then(|| (rank - step) as u32);
            [low, (place[d] + 1 < ranks[d]).then(|| (rank + step) as u32)]
        });
        let all = cells.iter().product();
        let filled = |number, value| Array::new(number, all, value);
        let mut pressure = filled(0, 0.0);
        for (i, plane) in pressure.chunks_exact_mut(cells[1] * cells[2]).enumerate() {
            // The initial values of the benchmark: the square of the place in the first dimension. In the halo they are
            // overwritten.
            let at = (own[0].start + i).saturating_sub(1) as f32 / (problem.cells[0] - 1) as f32;
            plane.fill(at * at);
        }
        Some(Block {
            cells,
            inner,
            neighbours,
            place,
            pressure,
            next: filled(1, 0.0),
            a: [filled(2, 1.0), filled(3, 1.0), filled(4, 1.0), filled(5, 1.0 / 6.0)],
            b: [filled(6, 0.0), filled(7, 0.0), filled(8, 0.0)],
            c: [filled(9, 1.0), filled(10, 1.0), filled(11, 1.0)],
            bound: filled(12, 1.0),
            work: filled(13, 0.0),
            outgoing: Vec::new(),
            incoming: Vec::new(),
        })
    }

    /// Gives its neighbours what they need of it, and takes what it needs of them: `swap` sends to a rank, and receives
    /// as much of it. Halos of the first dimension go in those of the second, so that corners come along.
    ///
    /// # Errors
    /// As of `swap`.
    pub fn exchange(&mut self, mut swap: impl FnMut(u32, &[u8], &mut [u8]) -> Result<()>) -> Result<()> {
        for dimension in [0, 1] {
            // Each pair at once, and not one behind the other.
            let is_odd = self.place[dimension] % 2 == 1;
            for is_high in [!is_odd, is_odd] {
                let Some(rank) = self.neighbours[dimension][usize::from(is_high)] else { continue };
                let side = Side { dimension, is_high };
                let (mut outgoing, mut incoming) =
                    (std::mem::take(&mut self.outgoing), std::mem::take(&mut self.incoming));
                outgoing.clear();
                for row in self.rows(side, false) {
                    outgoing.extend(self.pressure[row].iter().flat_map(|cell| cell.to_ne_bytes()));
                }
                incoming.resize(outgoing.len(), 0);
                swap(rank, &outgoing, &mut incoming)?;
                let (came, _) = incoming.as_chunks::<CELL>();
                let mut came = came.iter().map(|bytes| f32::from_ne_bytes(*bytes));
                for row in self.rows(side, true) {
                    self.pressure[row].iter_mut().zip(&mut came).for_each(|(cell, new)| *cell = new);
                }
                (self.outgoing, self.incoming) = (outgoing, incoming);
            }
        }
        Ok(())
    }

    /// The rows of its cells that a neighbour needs, or of the halo that it fills.
    fn rows(&self, side: Side, is_halo: bool) -> impl Iterator<Item = Range<usize>> + use<> {
        let [planes, rows, len] = self.cells;
        let depth = self.cells[side.dimension];
        let at = match (side.is_high, is_halo) {
            (false, true) => 0,
            (false, false) => 1,
            (true, false) => depth - 2,
            (true, true) => depth - 1,
        };
        let count = if side.dimension == 0 { rows } else { planes };
        (0..count).map(move |n| {
            let row = if side.dimension == 0 { at * rows + n } else { n * rows + at };
            row * len..(row + 1) * len
        })
    }

    /// A step: the sum of the squares of what is left at each cell (the benchmark's gosa).
    pub fn step(&mut self) -> f64 {
        let [_, rows, len] = self.cells;
        let mut left = 0.0;
        for i in self.inner[0].clone() {
            for j in self.inner[1].clone() {
                left += self.row((i * rows + j) * len);
            }
        }
        for i in self.inner[0].clone() {
            for j in self.inner[1].clone() {
                let row = (i * rows + j) * len + 1..(i * rows + j + 1) * len - 1;
                self.pressure[row.clone()].copy_from_slice(&self.next[row]);
            }
        }
        left
    }

    /// The row that begins at `at`.
    fn row(&mut self, at: usize) -> f64 {
        let [_, rows, len] = self.cells;
        let plane = rows * len;
        let of = |array: &'_ [f32], at: usize| -> Range<usize> {
            debug_assert!(at + len <= array.len());
            at..at + len
        };
        let p = |at: usize| &self.pressure[of(&self.pressure, at)];
        let (here, up, down, right, left) = (p(at), p(at + plane), p(at - plane), p(at + len), p(at - len));
        let (up_right, up_left) = (p(at + plane + len), p(at + plane - len));
        let (down_right, down_left) = (p(at - plane + len), p(at - plane - len));
        let row = of(&self.work, at);
        let a = self.a.each_ref().map(|array| &array[row.clone()]);
        let b = self.b.each_ref().map(|array| &array[row.clone()]);
        let c = self.c.each_ref().map(|array| &array[row.clone()]);
        let (bound, work, next) = (&self.bound[row.clone()], &self.work[row.clone()], &mut self.next[row]);
        let mut squares = 0.0_f32;
        for k in 1..len - 1 {
            let sum = a[0][k] * up[k]
                + a[1][k] * right[k]
                + a[2][k] * here[k + 1]
                + b[0][k] * (up_right[k] - up_left[k] - down_right[k] + down_left[k])
                + b[1][k] * (right[k + 1] - left[k + 1] - right[k - 1] + left[k - 1])
                + b[2][k] * (up[k + 1] - down[k + 1] - up[k - 1] + down[k - 1])
                + c[0][k] * down[k]
                + c[1][k] * left[k]
                + c[2][k] * here[k - 1]
                + work[k];
            let rest = (sum * a[3][k] - here[k]) * bound[k];
            squares += rest * rest;
            next[k] = here[k] + OMEGA * rest;
        }
        squares.into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// The pressure of the whole problem after some steps on a grid of ranks, and what was left at the last of them.
    fn run(problem: Problem, ranks: [usize; 2], steps: usize) -> (HashMap<[usize; 3], f32>, f64) {
        let all = ranks[0] * ranks[1];
        // A way from each rank to each, by whom it ends at and begins at.
        let ways = || (0..all).map(|_| (0..all).map(|_| channel()).collect::<Vec<_>>()).collect::<Vec<_>>();
        let mut senders: Vec<Vec<Sender<Vec<u8>>>> = (0..all).map(|_| Vec::new()).collect();
        let mut inboxes: Vec<Vec<Receiver<Vec<u8>>>> = Vec::new();
        for of_rank in ways() {
            let (ins, outs): (Vec<_>, Vec<_>) = of_rank.into_iter().map(|(sender, inbox)| (inbox, sender)).unzip();
            senders.iter_mut().zip(outs).for_each(|(senders, sender)| senders.push(sender));
            inboxes.push(ins);
        }
        let mut threads = Vec::new();
        for (rank, (senders, receivers)) in senders.into_iter().zip(inboxes).enumerate() {
            threads.push(thread::spawn(move || {
                let mut block = Block::new(problem, ranks, rank).expect("cells");
                let mut left = 0.0;
                for _ in 0..steps {
                    block
                        .exchange(|with, out, into| {
                            senders[with as usize].send(out.to_vec())?;
                            into.copy_from_slice(&receivers[with as usize].recv()?);
                            Ok(())
                        })
                        .expect("an exchange");
                    left = block.step();
                }
                (block, left)
            }));
        }
        let (mut pressure, mut left) = (HashMap::new(), 0.0);
        for (rank, thread) in threads.into_iter().enumerate() {
            let (block, of_rank) = thread.join().expect("a rank");
            left += of_rank;
            let first = [0, 1].map(|d| problem.cells[d] * [rank / ranks[1], rank % ranks[1]][d] / ranks[d]);
            let [planes, rows, len] = block.cells;
            for (i, j) in (1..planes - 1).flat_map(|i| (1..rows - 1).map(move |j| (i, j))) {
                for k in 0..len {
                    let at = [first[0] + i - 1, first[1] + j - 1, k];
                    assert!(pressure.insert(at, block.pressure[(i * rows + j) * len + k]).is_none(), "{at:?} twice");
                }
            }
        }
        (pressure, left)
    }

    #[test]
    fn however_many_ranks_there_are_the_pressure_is_one() {
        let problem = Problem::of(2 * 8 * 8 * 8 * 4).expect("a small one");
        let (alone, left) = run(problem, [1, 1], 12);
        assert_eq!(alone.len(), problem.cells.iter().product::<usize>());
        for ranks in [[1, 2], [2, 1], [2, 2], [3, 2], [4, 4]] {
            let (pressure, of_all) = run(problem, ranks, 12);
            assert_eq!(pressure, alone, "{ranks:?}");
            assert!((of_all - left).abs() <= left * 1e-5, "{of_all} and {left}");
        }
    }

    #[test]
    fn what_is_left_becomes_less() {
        let problem = Problem::of(2 * 16 * 16 * 16 * 4).expect("a small one");
        let left = [1, 10, 100].map(|steps| run(problem, [1, 1], steps).1);
        assert!(left[0] > left[1] && left[1] > left[2] && left[2] > 0.0, "{left:?}");
    }

    #[test]
    fn the_sizes_are_those_of_the_benchmark() {
        let cells = |bytes| Problem::of(bytes).map(|problem| problem.cells);
        assert_eq!(cells(2 << 20), Some([64, 64, 128]));
        assert_eq!(cells(16 << 20), Some([128, 128, 256]));
        assert_eq!(cells(128 << 20), Some([256, 256, 512]));
        assert_eq!(cells(3 << 20), None);
        assert_eq!(cells(1 << 30), None);
    }

    #[test]
    fn a_grid_with_more_ranks_than_cells_has_no_blocks() {
        let problem = Problem::of(2 * 4 * 4 * 4 * 4).expect("a small one");
        assert!(Block::new(problem, [5, 1], 0).is_none());
        assert!(Block::new(problem, [2, 2], 4).is_none());
    }
}
