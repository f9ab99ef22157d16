//! The words by which the rank that is measured and the simulated ones check each other, their places in starter
//! memory, and the order of visits.

/// Bytes of the starter memory of each rank that are its own alone; the next rank's follow.
pub const OWN_BYTES: u64 = 32;
/// Offsets in a simulated rank's starter memory: its [`identity`], for ranks that get; a word for ranks that put
/// ([`mark`]); one for ranks that add; one for the copy of another rank's identity.
pub const IDENTITY: u64 = 0;
/// See [`IDENTITY`].
pub const PUT: u64 = 8;
/// See [`IDENTITY`].
pub const ADDED: u64 = 16;
/// See [`IDENTITY`].
pub const COPIED: u64 = 24;

/// Offsets in the starter memory of the visited rank: the identity that visitors get, a word that each adds 1 to, and
/// the first of the words that they put to.
pub const COUNT: u64 = 8;
/// See [`COUNT`].
pub const SLOTS: u64 = 16;

/// The word that identifies a rank.
pub fn identity(rank: u32) -> u64 {
    mix(rank, 0x9e37_79b9_7f4a_7c15)
}

/// The word that `rank` puts, or that is put to it.
pub fn mark(rank: u32) -> u64 {
    mix(rank, 0xd1b5_4a32_d192_ed03)
}

/// The rank of a mark, of `ranks`; None if it is no rank's mark.
pub fn marked(mark: u64, ranks: u32) -> Option<u32> {
    let rank = mark as u32;
    (rank < ranks && self::mark(rank) == mark).then_some(rank)
}

/// The number in the low half, and a hash of it in the high one.
fn mix(rank: u32, factor: u64) -> u64 {
    let hash = (u64::from(rank) + 1).wrapping_mul(factor);
    (hash | 1 << 63) & !0xffff_ffff | u64::from(rank)
}

/// All ranks of a job except one, each once, far from each other.
pub fn tour(ranks: u32, without: u32) -> impl Iterator<Item = u32> {
    let size = u64::from(ranks);
    // About the golden section of them, without a common divisor.
    let stride = (size * 618 / 1000..).find(|stride| *stride > 0 && gcd(*stride, size) == 1).unwrap_or(1);
    let all = (0..size).map(move |i| ((i + 1) * stride % size) as u32);
    all.filter(move |rank| *rank != without)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_tour_comes_to_each_rank_once() {
        for ranks in [2, 3, 4, 1000, 3000, 4096] {
            let all: Vec<u32> = tour(ranks, 1).collect();
            let distinct: BTreeSet<u32> = all.iter().copied().collect();
            assert_eq!((all.len(), distinct.len()), (ranks as usize - 1, ranks as usize - 1), "{ranks}");
            assert!(!distinct.contains(&1));
        }
    }

    #[test]
    fn marks_name_their_rank() {
        for rank in [0, 1, 77, 999_999] {
            assert_eq!(marked(mark(rank), 1_000_000), Some(rank));
            assert_ne!(identity(rank), mark(rank));
            assert_ne!(identity(rank), 0);
        }
        assert_eq!((marked(0, 10), marked(mark(10), 10), marked(identity(3), 10)), (None, None, None));
    }
}
