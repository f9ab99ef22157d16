//! Operations: requests of the program, and work that this rank does for others, each a small machine of steps.

use vervain_mesh::Link;

use crate::address::GlobalAddress;
use crate::command::Ask;

/// An atomic operation on a word of 4 or 8 bytes, which yields the earlier value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the operations' names say it")]
pub enum Atomic {
    CompareSwap4 { expected: u32, new: u32 },
    CompareSwap8 { expected: u64, new: u64 },
    Swap4(u32),
    Swap8(u64),
    Add4(u32),
    Add8(u64),
    Xor4(u32),
    Xor8(u64),
    Or4(u32),
    Or8(u64),
    And4(u32),
    And8(u64),
}

impl Atomic {
    /// Bytes of the word.
    pub fn width(self) -> usize {
        use Atomic::*;
        match self {
            CompareSwap4 { .. } | Swap4(_) | Add4(_) | Xor4(_) | Or4(_) | And4(_) => 4,
            CompareSwap8 { .. } | Swap8(_) | Add8(_) | Xor8(_) | Or8(_) | And8(_) => 8,
        }
    }

    /// The new value, if the earlier one is `old`; None if the value stays, since the comparison failed.
    pub(crate) fn apply(self, old: u64) -> Option<u64> {
        use Atomic::*;
        let word = old as u32;
        let wide = u64::from;
        match self {
            CompareSwap4 { expected, new } => (word == expected).then_some(wide(new)),
            CompareSwap8 { expected, new } => (old == expected).then_some(new),
            Swap4(value) => Some(wide(value)),
            Swap8(value) => Some(value),
            Add4(value) => Some(wide(word.wrapping_add(value))),
            Add8(value) => Some(old.wrapping_add(value)),
            Xor4(value) => Some(wide(word ^ value)),
            Xor8(value) => Some(old ^ value),
            Or4(value) => Some(wide(word | value)),
            Or8(value) => Some(old | value),
            And4(value) => Some(wide(word & value)),
            And8(value) => Some(old & value),
        }
    }

    /// Number and operands, for commands.
    pub(crate) fn encode(self) -> (u8, u64, u64) {
        use Atomic::*;
        match self {
            CompareSwap4 { expected, new } => (0, expected.into(), new.into()),
            CompareSwap8 { expected, new } => (1, expected, new),
            Swap4(value) => (2, value.into(), 0),
            Swap8(value) => (3, value, 0),
            Add4(value) => (4, value.into(), 0),
            Add8(value) => (5, value, 0),
            Xor4(value) => (6, value.into(), 0),
            Xor8(value) => (7, value, 0),
            Or4(value) => (8, value.into(), 0),
            Or8(value) => (9, value, 0),
            And4(value) => (10, value.into(), 0),
            And8(value) => (11, value, 0),
        }
    }

    /// Decodes number and operands; None for an unknown number.
    pub(crate) fn decode(number: u8, a: u64, b: u64) -> Option<Self> {
        use Atomic::*;
        let (narrow, other) = (a as u32, b as u32);
        Some(match number {
            0 => CompareSwap4 { expected: narrow, new: other },
            1 => CompareSwap8 { expected: a, new: b },
            2 => Swap4(narrow),
            3 => Swap8(a),
            4 => Add4(narrow),
            5 => Add8(a),
            6 => Xor4(narrow),
            7 => Xor8(a),
            8 => Or4(narrow),
            9 => Or8(a),
            10 => And4(narrow),
            11 => And8(a),
            _ => return None,
        })
    }
}

/// The kind of an operation, and its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Own memory to a peer's: RDMA Writes.
    Put,
    /// A peer's memory to this rank's: RDMA Reads.
    Get,
    /// Between two peers, through a buffer of this rank's.
    Bounce,
    /// Between two peers, by a command that the source's rank serves.
    Forward,
    /// One atomic by the device.
    Device(Atomic),
    /// The device's compare and swap, until no other change has come between.
    Loop(Atomic),
    /// By a command that the word's owner serves.
    Owner(Atomic),
    /// A copy inside this rank.
    Here,
    /// An atomic by the processor, on a word of this rank.
    HereAtomic(Atomic),
    /// By a command that its rank serves: the word of the answer goes to the destination. That of a wake is dropped.
    Ask(Ask),
    /// Tells a peer to forget the entries of this rank's table.
    Discard,
    /// An immediate value without data; the peer has a receive for it.
    Notify(u32),
    /// Serves a peer's copy: from this rank's memory to another one's, then the answer.
    Serve,
    /// Serves a peer's copy inside this rank's memory, a part at a time, then the answer.
    ServeHere,
    /// The answer to a command.
    Answer,
}

impl Work {
    /// Returns true if it is one step on the data lane, which the device keeps in order behind others of this kind.
    pub fn is_single(self) -> bool {
        matches!(self, Self::Put | Self::Get | Self::Device(_))
    }
}

/// The step of an operation that is next, or under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Write,
    Read,
    Atomic,
    Command,
    Answer,
    Notify,
}

/// The state of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The place has no operation.
    Free,
    /// Waits for its order.
    Ordered,
    /// Waits for a connection.
    Contact,
    /// Waits for one of the buffers.
    Buffer,
    /// In the queue of a connection: for room in its send queue, or for an entry of the peer's table.
    Queued,
    /// With the device, or with a peer that serves its command.
    Posted,
    /// Done, but an earlier one is not.
    Done,
}

/// The answer to a command that this rank serves, and its receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub link: Link,
    /// The issuer's number of its operation.
    pub index: u16,
    pub status: u8,
    pub value: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    /// The handle; 0 for an operation of the library's own.
    pub seq: i64,
    pub work: Work,
    pub step: Step,
    pub place: Place,
    /// True: it must wait in the send queue until earlier Reads and atomics are over.
    pub fenced: bool,
    /// True: the word of 4 bytes is the upper half of its 8.
    pub upper: bool,
    /// True: the answer has come.
    pub answered: bool,
    /// The number of its buffer; `NO_BUFFER`: none.
    pub buffer: u16,
    /// The number of its requests with the device.
    pub in_flight: u16,
    pub dst: GlobalAddress,
    pub src: GlobalAddress,
    pub len: u64,
    /// Bytes of `len` that are posted, or copied.
    pub offset: u64,
    /// It starts once all operations up to this handle are over.
    pub after: i64,
    /// Its connection, held from the queue on until its step is over.
    pub link: Link,
    pub answer: Answer,
    /// The 8 bytes that a loop expects to find.
    pub expected: u64,
}

impl Op {
    /// The address of the 8 bytes around an atomic's word, most often: in a region that begins inside such 8 bytes, it
    /// stands for two neighbours.
    pub fn word(&self) -> u64 {
        self.src.0 & !7
    }

    pub const NONE: Self = Self {
        seq: 0,
        work: Work::Put,
        step: Step::Write,
        place: Place::Free,
        fenced: false,
        upper: false,
        answered: false,
        buffer: NO_BUFFER,
        in_flight: 0,
        dst: GlobalAddress::NULL,
        src: GlobalAddress::NULL,
        len: 0,
        offset: 0,
        after: 0,
        link: Link { index: 0, life: 0 },
        answer: Answer { link: Link { index: 0, life: 0 }, index: 0, status: 0, value: 0 },
        expected: 0,
    };
}

pub(crate) const NO_BUFFER: u16 = u16::MAX;

/// The word of `width` bytes inside the 8 bytes that a device has read.
pub(crate) fn half(word: u64, width: usize, upper: bool) -> u64 {
    match (width, upper) {
        (8, _) => word,
        (_, false) => word & 0xffff_ffff,
        (_, true) => word >> 32,
    }
}

/// The 8 bytes with one half replaced by `value`.
pub(crate) fn with_half(word: u64, value: u64, width: usize, upper: bool) -> u64 {
    match (width, upper) {
        (8, _) => value,
        (_, false) => word & !0xffff_ffff | value & 0xffff_ffff,
        (_, true) => word & 0xffff_ffff | value << 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_survive_a_command() {
        for number in 0..12 {
            let (a, b) = (0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321);
            let atomic = Atomic::decode(number, a, b).unwrap();
            let (again, a, b) = atomic.encode();
            assert_eq!((again, Atomic::decode(number, a, b)), (number, Some(atomic)));
        }
        assert_eq!(Atomic::decode(12, 0, 0), None);
    }

    #[test]
    fn narrow_atomics_see_and_make_32_bits() {
        let old = 0xaaaa_aaaa_ffff_ffff;
        assert_eq!(Atomic::Add4(2).apply(old), Some(1));
        assert_eq!(Atomic::CompareSwap4 { expected: u32::MAX, new: 7 }.apply(old), Some(7));
        assert_eq!(Atomic::CompareSwap4 { expected: 1, new: 7 }.apply(old), None);
        assert_eq!(Atomic::And4(0xff).apply(old), Some(0xff));
        assert_eq!(Atomic::Add8(1).apply(u64::MAX), Some(0));
    }

    #[test]
    fn a_half_is_taken_out_and_put_back() {
        let word = 0x1111_1111_2222_2222;
        assert_eq!((half(word, 4, false), half(word, 4, true), half(word, 8, true)), (0x2222_2222, 0x1111_1111, word));
        assert_eq!(with_half(word, 0x3333_3333, 4, true), 0x3333_3333_2222_2222);
        assert_eq!(with_half(word, 0x3333_3333, 4, false), 0x1111_1111_3333_3333);
        assert_eq!(with_half(word, 7, 8, false), 7);
    }
}
