//! Doors: the cells of a process's own memory by which peers make themselves known, one for each process that there can be. A cell has
//! one writer. It holds the writer's *state* towards the owner, put anew when that changes or nothing has come of it, so that none
//! is lost: what counts is always the last.

/// Words of a cell: a cache line.
pub const WORDS: usize = 8;
/// What a cell of this protocol says; raised with the layout.
const VERSION: u64 = 3;
/// Beside it.
const IS_UP: u64 = 1 << 32;
const ASKS: u64 = 1 << 33;

/// One end of a pair: a process, and which of its pairs it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct End {
    /// The process's incarnation: random, not zero.
    pub incarnation: u64,
    /// The number of the pair, which the process gives to no other one. Zero where it has none.
    pub pair: u64,
}

/// What a process says of itself to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The writer.
    pub from: End,
    /// The end that the owner has of this pair; zeros while the writer knows of none. A pair never has another one later.
    pub to: End,
    /// The block that the writer has for that end: its place in the writer's region.
    pub block: Option<u64>,
    /// Whether the writer knows the block that the other end has for it.
    pub is_up: bool,
    /// Whether the writer wants to be told the owner's state.
    pub asks: bool,
}

impl State {
    /// As it is put: `count` is another one each time, and not zero.
    pub fn encode(self, count: u64) -> [u64; WORDS] {
        let flags = if self.is_up { IS_UP } else { 0 } | if self.asks { ASKS } else { 0 };
        let (from, to, block) = (self.from, self.to, self.block.unwrap_or(u64::MAX));
        let said = [count, VERSION | flags, from.incarnation, from.pair, to.incarnation, to.pair, block];
        let mut words = [0; WORDS];
        words[..said.len()].copy_from_slice(&said);
        words[said.len()] = check(&said);
        words
    }

    /// What was read, and its count; None for what was read in the midst of a put, or is none of this protocol's. Of two processes with
    /// one number, puts of the former may still be on their way when the latter tells, so that no order says what is whole.
    pub fn decode(words: &[u64; WORDS]) -> Option<(u64, State)> {
        let &[count, what, incarnation, pair, meant, meant_pair, block, last] = words;
        if what & !(IS_UP | ASKS) != VERSION || incarnation == 0 || last != check(&words[..WORDS - 1]) {
            return None;
        }
        let state = State {
            from: End { incarnation, pair },
            to: End { incarnation: meant, pair: meant_pair },
            block: (block != u64::MAX).then_some(block),
            is_up: what & IS_UP != 0,
            asks: what & ASKS != 0,
        };
        Some((count, state))
    }
}

/// A word that follows from others, and is another one for what has become of two of them.
pub(super) fn check(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 32
    })
}
