//! Commands, by which a rank asks another one to act, and their answers.

use crate::address::GlobalAddress;
use crate::op::Atomic;

/// A request to the rank that it is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Copy memory of the receiver to that of another rank, or to its own.
    Copy { dst: GlobalAddress, src: GlobalAddress, len: u64 },
    /// Carry out an atomic on a word of the receiver.
    Atomic { at: GlobalAddress, what: Atomic },
    /// Forget the entries read from the sender's table.
    Discard,
    /// A request that is answered with a word.
    Ask(Ask),
}

/// A request of the libraries above to a rank, another one or this one, which is answered with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Look for the event that the receiver waits for. Answered with 0.
    Look,
    /// Make another segment of `len` bytes: for all ranks if the receiver has made `known` such, or for the asker.
    /// Answered with its address, or the reason why there is none (`engine::segments`).
    Extend { known: u64, len: u64 },
    /// Give up the segment at this address, which was the asker's own. Answered with 1 if there was one.
    Retract { segment: GlobalAddress },
}

impl Command {
    /// A size that fits into the inline data of a device's completion (Vervain: 28 bytes).
    pub const BYTES: usize = 28;

    /// Encodes the command with the issuer's number of its operation, which the answer carries.
    pub fn encode(self, index: u16) -> [u8; Self::BYTES] {
        let (kind, a, b, c) = match self {
            Self::Copy { dst, src, len } => (COPY, dst.0, src.0, len),
            Self::Atomic { at, what } => {
                let (number, a, b) = what.encode();
                (ATOMIC + number, at.0, a, b)
            }
            Self::Discard => (DISCARD, 0, 0, 0),
            Self::Ask(Ask::Look) => (LOOK, 0, 0, 0),
            Self::Ask(Ask::Extend { known, len }) => (EXTEND, known, len, 0),
            Self::Ask(Ask::Retract { segment }) => (RETRACT, segment.0, 0, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = kind;
        bytes[2..4].copy_from_slice(&index.to_le_bytes());
        for (to, word) in bytes[4..].chunks_exact_mut(8).zip([a, b, c]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a command and its number; None for bytes that are no command.
    pub fn decode(bytes: &[u8]) -> Option<(Self, u16)> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let index = u16::from_le_bytes([bytes[2], bytes[3]]);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (a, b, c) = (word(4), word(12), word(20));
        let command = match bytes[0] {
            COPY => Self::Copy { dst: GlobalAddress(a), src: GlobalAddress(b), len: c },
            DISCARD => Self::Discard,
            LOOK => Self::Ask(Ask::Look),
            EXTEND => Self::Ask(Ask::Extend { known: a, len: b }),
            RETRACT => Self::Ask(Ask::Retract { segment: GlobalAddress(a) }),
            number => Self::Atomic { at: GlobalAddress(a), what: Atomic::decode(number.checked_sub(ATOMIC)?, b, c)? },
        };
        Some((command, index))
    }
}

const COPY: u8 = 1;
const DISCARD: u8 = 2;
const LOOK: u8 = 3;
const EXTEND: u8 = 4;
const RETRACT: u8 = 5;
const ATOMIC: u8 = 16;

/// The outcome of a command. A value comes with it: the word that an atomic found, or the size of the region that was
/// missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Done,
    /// The server has no connection to spare: the issuer has to do the copy itself.
    Busy,
    /// The source is outside of its region; the value is the region's size, or `NOTHING`.
    SourceOutside,
    DestinationOutside,
    Misaligned,
    /// The memory may not be written.
    ReadOnly,
}

/// Stands for a region's size: nothing is registered there.
pub(crate) const NOTHING: u64 = u64::MAX;

impl Status {
    pub const ALL: [Self; 6] =
        [Self::Done, Self::Busy, Self::SourceOutside, Self::DestinationOutside, Self::Misaligned, Self::ReadOnly];

    fn decode(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|status| *status as u32 == number)
    }
}

/// The meaning of a notice's immediate value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The command of the operation with this number is over.
    Answer(u16, Status),
    /// The sender has reached this round of the barrier.
    Barrier(u32),
}

const BARRIER: u32 = 1 << 31;

impl Notice {
    pub fn encode(self) -> u32 {
        match self {
            Self::Answer(index, status) => u32::from(index) | (status as u32) << 16,
            Self::Barrier(round) => BARRIER | round,
        }
    }

    /// Decodes a notice; None for a number that is no notice.
    pub fn decode(immediate: u32) -> Option<Self> {
        if immediate & BARRIER != 0 {
            return Some(Self::Barrier(immediate & !BARRIER));
        }
        Some(Self::Answer(immediate as u16, Status::decode(immediate >> 16)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_notices_survive_the_way() {
        let (at, dst) = (GlobalAddress(0x8123_4567_89ab_cdef), GlobalAddress(7));
        let atomic = Command::Atomic { at, what: Atomic::CompareSwap8 { expected: u64::MAX, new: 3 } };
        let asks = [Ask::Look, Ask::Extend { known: 3, len: 1 << 30 }, Ask::Retract { segment: at }].map(Command::Ask);
        for command in asks.into_iter().chain([Command::Copy { dst, src: at, len: 1 << 40 }, atomic, Command::Discard])
        {
            assert_eq!(Command::decode(&command.encode(513)), Some((command, 513)));
        }
        for status in Status::ALL {
            let notice = Notice::Answer(0xfffe, status);
            assert_eq!(Notice::decode(notice.encode()), Some(notice));
        }
        assert_eq!(Notice::decode(Notice::Barrier(20).encode()), Some(Notice::Barrier(20)));
    }

    #[test]
    fn what_is_no_command_is_none() {
        assert_eq!(Command::decode(&[0; 28]), None);
        assert_eq!(Command::decode(&[1; 27]), None);
        assert_eq!(Command::decode(&[28; 28]), None);
        assert_eq!(Notice::decode(6 << 16), None);
    }
}
