//! Doors: cells in a process's own memory, one for each process that there can be, through which peers announce
//! themselves. A cell has one writer. It holds the writer's *state* towards the owner. The writer puts the state again
//! when it changes or has had no effect, so none is lost: the last one counts.

/// Words of a cell: a cache line.
pub const WORDS: usize = 8;
/// Version of the cell's layout.
const VERSION: u64 = 3;
/// Flags in the word of the version.
const IS_UP: u64 = 1 << 32;
const ASKS: u64 = 1 << 33;

/// One end of a pair: a process, and which of its pairs it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct End {
    /// The process's incarnation: random, not zero.
    pub incarnation: u64,
    /// Number of the pair, which the process gives to no other; 0: no pair.
    pub pair: u64,
}

/// The state of a process towards a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The writer.
    pub from: End,
    /// The owner's end of this pair; zeros: unknown to the writer. Once known, a pair's other end never changes.
    pub to: End,
    /// Offset in the writer's region of its block for that end; None: it has none.
    pub block: Option<u64>,
    /// True if the writer knows the other end's block.
    pub is_up: bool,
    /// True if the writer asks for the owner's state.
    pub asks: bool,
}

impl State {
    /// The words as they are put. Each put has a new `count`, not 0.
    pub fn encode(self, count: u64) -> [u64; WORDS] {
        let flags = if self.is_up { IS_UP } else { 0 } | if self.asks { ASKS } else { 0 };
        let (from, to, block) = (self.from, self.to, self.block.unwrap_or(u64::MAX));
        let said = [count, VERSION | flags, from.incarnation, from.pair, to.incarnation, to.pair, block];
        let mut words = [0; WORDS];
        words[..said.len()].copy_from_slice(&said);
        words[said.len()] = check(&said);
        words
    }

    /// The count and the state in a cell; None: it was read during a put, or is none of this version. Puts of an ended
    /// process may still be on their way when the next one of its number puts, so the words' order does not tell
    /// whether they are of one put.
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

/// A check word of others. It differs for a mix of the words of two puts.
pub(super) fn check(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) ^ mixed >> 32
    })
}
