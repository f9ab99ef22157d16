//! Doors: the cells of a process's own memory by which peers make themselves known, one for each process that there can be. A cell has
//! one writer. It holds the writer's *state* towards the owner, put anew when that changes or nothing has come of it, so that none
//! is lost: what counts is always the last.

/// Words of a cell: a cache line.
pub const WORDS: usize = 8;
/// What a cell of this protocol begins with; raised with the layout.
const VERSION: u64 = 1;

/// What a process says of itself to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The writer's incarnation: random, not zero.
    pub incarnation: u64,
    /// The incarnation of the owner that it means; zero while it knows none.
    pub meant: u64,
    /// The block that it has for the owner: its place in the writer's region. None if it has no room for one.
    pub block: Option<u64>,
}

impl State {
    /// As it is put: `count` is another one each time. The word that is read first is put last, and the other way round, so that a
    /// reader who finds them equal has what is between.
    pub fn encode(self, count: u64) -> [u64; WORDS] {
        [count, VERSION, self.incarnation, self.meant, self.block.unwrap_or(u64::MAX), 0, 0, count]
    }

    /// What was read, last word first, and its count; None for what was read in the midst of a put, or is none of this
    /// protocol's.
    pub fn decode(words: &[u64; WORDS]) -> Option<(u64, State)> {
        let &[last, version, incarnation, meant, block, _, _, first] = words;
        if last != first || version != VERSION || incarnation == 0 {
            return None;
        }
        Some((last, State { incarnation, meant, block: (block != u64::MAX).then_some(block) }))
    }
}
